"""What of a fine-tuned model trains, matrix by matrix, and the adapters beside frozen ones."""

from __future__ import annotations

from shapes.model.linear import Linear
from shapes.workload import Workload

#: peft's targets where nobody says, of all but a few model types: queries and values, or the fused projection
#: (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING in peft/utils/constants.py, 0.21).
USUAL = ("q_proj", "v_proj", "qkv_proj")
#: Of the types that peft has others for.
USUAL_OF = {"phi": "q_proj,v_proj,up_proj,down_proj", "nemotron_h": "q_proj,k_proj,v_proj,o_proj"}
ALL_LINEAR = "all-linear"
#: Names that model classes give to the same matrices.
_ALSO = {
    "q": "q_proj",
    "query": "q_proj",
    "k": "k_proj",
    "key": "k_proj",
    "v": "v_proj",
    "value": "v_proj",
    "query_key_value": "qkv_proj",
    "c_attn": "qkv_proj",
    "Wqkv": "qkv_proj",
    "out_proj": "o_proj",
    "fc1": "up_proj",
    "c_fc": "up_proj",
    "dense_h_to_4h": "up_proj",
    "fc2": "down_proj",
    "dense_4h_to_h": "down_proj",
}


def base_of(workload: Workload) -> str:
    """How frozen matrices are kept."""
    return workload.base or ("nf4" if workload.finetune == "qlora" else "bf16")


def widened(workload: Workload) -> bool:
    """Whether all but the quantised matrices is in fp32, so that hidden states are."""
    return has_adapters(workload) and base_of(workload) in ("nf4", "int8")


def layers_train(workload: Workload) -> bool:
    """Whether the layers' own weights have gradients."""
    return workload.finetune in (None, "full")


def has_adapters(workload: Workload) -> bool:
    return workload.finetune in ("lora", "qlora")


def adapter_rank(linear: Linear, workload: Workload) -> int:
    """The rank of ``linear``'s adapter, 0 where it has none. Experts and routers have none: they are no nn.Linear."""
    own = linear.name.rsplit(".", 1)[-1]
    if not has_adapters(workload) or "router" in own or ".experts." in linear.name:
        return 0
    targets = USUAL if workload.lora_targets is None else _targets(workload.lora_targets)
    return workload.lora_rank if own in targets or ALL_LINEAR in targets else 0


def _targets(text: str) -> tuple[str, ...]:
    # Under both names: what attention's class calls out_proj is o_proj here, a recurrent layer's is out_proj.
    return tuple(name for one in text.split(",") for name in (one.strip(), _ALSO.get(one.strip(), one.strip())))


def adapters(linear: Linear, workload: Workload) -> tuple[Linear, ...]:
    """A [r, in] and B [out, r] of ``linear``; tensor parallelism cuts the one that meets the cut side (empty: none)."""
    rank = adapter_rank(linear, workload)
    if not rank:
        return ()
    row = linear.shard == "row"
    return (
        Linear(f"{linear.name}.lora_A", rank, linear.in_features, shard="row" if row else "none"),
        Linear(
            f"{linear.name}.lora_B",
            linear.out_features,
            rank,
            shard="none" if row else linear.shard,
            units=() if row else linear.units,
        ),
    )
