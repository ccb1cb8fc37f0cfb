"""What of a fine-tuned model trains: all of it, the head, or adapters added to frozen matrices."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.errors import InputError
from shapes.model.layers import Block
from shapes.model.mixers import Linear
from shapes.model.parameters import ParameterTensor, block_tensors, linear_tensors, parameter_count
from shapes.model.shape import ModelShape
from shapes.model.stages import ShardParameters, Stage, counted, parameter_tensors, stage_kinds
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


def check_finetune(model: ModelShape, workload: Workload) -> None:
    """InputError where no matrix is a target, and where the head that alone should train is the embedding."""
    if workload.finetune == "frozen-base" and (model.tied or not model.head):
        raise InputError("expected a model with a head of its own", key="finetune", value=workload.finetune)
    if not has_adapters(workload):
        return
    linears = [linear for stack, block in model.all_blocks() for linear in block.linears(stack.hidden)]
    if not any(adapters(linear, workload) for linear in linears):
        known = sorted({linear.name.rsplit(".", 1)[-1] for linear in linears if "router" not in linear.name})
        raise InputError(
            f"expected some of {', '.join(known)} or all-linear: no matrix is called so",
            key="lora_targets",
            value=workload.lora_targets,
        )


def trained_block(block: Block, hidden: int, workload: Workload) -> Iterator[ParameterTensor]:
    """What trains of ``block.count`` layers on one tensor- and expert-parallel rank."""
    if layers_train(workload):
        yield from block_tensors(block, hidden, workload.t, workload.e)
        return
    for linear in block.linears(hidden):
        for adapter in adapters(linear, workload):
            yield from linear_tensors(adapter, workload.t, block.count, "block")


def trained_tensors(model: ModelShape, workload: Workload, stage: Stage = "last") -> tuple[ParameterTensor, ...]:
    """Every parameter of a stage on one rank that has a gradient (ZeRO not applied)."""
    if layers_train(workload):
        return parameter_tensors(model, workload, stage)
    found = [
        tensor
        for stack, blocks in stage_kinds(model, workload.p, stage)
        for block in blocks
        for tensor in trained_block(block, stack.hidden, workload)
    ]
    return (*found, *trained_ends(model, workload, stage))


def trained_ends(model: ModelShape, workload: Workload, stage: Stage = "last") -> tuple[ParameterTensor, ...]:
    """What trains behind the layers."""
    if stage == "first" and workload.p > 1:
        return ()
    if layers_train(workload):
        return tuple(model.end_tensors(workload.t))
    if workload.finetune != "frozen-base" or model.head_linear is None:
        return ()
    return tuple(linear_tensors(model.head_linear, workload.t, role="head"))


def trained_shard(model: ModelShape, workload: Workload, stage: Stage = "last") -> ShardParameters:
    """As ``shard_parameters``, of what trains."""
    return counted(trained_tensors(model, workload, stage))


def trained_parameters(model: ModelShape, workload: Workload) -> int:
    """Parameters of the whole model that train.

    Source: as peft counts ``requires_grad`` parameters.
    """
    whole = Workload(
        finetune=workload.finetune,
        lora_rank=workload.lora_rank,
        lora_targets=workload.lora_targets,
        base=workload.base,
    )
    return parameter_count(trained_tensors(model, whole))
