"""NeMo's YAML of a Megatron model (``model:`` beside ``trainer:``): Megatron-Core's classes under names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizer.readers.fields import Fields
from sizer.readers.megatron.layout import workload
from sizer.readers.megatron.models import build
from sizer.readers.optimizers import optimizer
from sizer.readers.reading import Reading

NAME = "nemo"

#: Megatron's argument -> NeMo's key, where the value is the same.
SAME = {
    "num_layers": "num_layers", "hidden_size": "hidden_size", "ffn_hidden_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads", "num_query_groups": "num_query_groups", "kv_channels": "kv_channels",
    "max_position_embeddings": "max_position_embeddings", "seq_length": "encoder_seq_length",
    "micro_batch_size": "micro_batch_size", "global_batch_size": "global_batch_size",
    "tensor_model_parallel_size": "tensor_model_parallel_size", "qk_layernorm": "qk_layernorm",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size", "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_model_parallel_size", "sequence_parallel": "sequence_parallel",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "rotary_percent": "rotary_percentage",
    "make_vocab_size_divisible_by": "make_vocab_size_divisible_by", "num_experts": "num_moe_experts",
    "moe_router_topk": "moe_router_topk", "moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "position_embedding_type": "position_embedding_type", "vocab_size": "override_vocab_size",
    "hidden_dropout": "hidden_dropout", "attention_dropout": "attention_dropout", "window_size": "window_size",
    "mtp_num_layers": "mtp_num_layers", "recompute_granularity": "activations_checkpoint_granularity",
}  # fmt: skip
#: Dimension -> its key in the file.
DIMENSIONS = {
    "hidden": "hidden_size", "layers": "num_layers", "heads": "num_attention_heads", "kv_heads": "num_query_groups",
    "head_dim": "kv_channels", "d_ff": "ffn_hidden_size", "experts": "num_moe_experts", "top_k": "moe_router_topk",
    "expert_d_ff": "moe_ffn_hidden_size",
}  # fmt: skip


def matches(config: Mapping[str, Any]) -> bool:
    """A ``model`` section with Megatron's sizes and at least one of NeMo's own keys, or a ``trainer`` beside it."""
    model = config.get("model")
    if not isinstance(model, Mapping) or not {"num_layers", "hidden_size", "num_attention_heads"} <= model.keys():
        return False
    return "trainer" in config or any(key in model for key in ("encoder_seq_length", "mcore_gpt", "megatron_amp_O2"))


def read(config: Mapping[str, Any], where: str) -> Reading:
    """Absent keys take NeMo's defaults: biases, tied embeddings, layer norms."""
    outer = Fields(config, where)
    section, trainer = outer.nested("model"), outer.nested("trainer")
    arguments = {
        ours: value for ours, theirs in SAME.items() if (value := section.raw(theirs, default=None)) is not None
    }
    activation = section.text("activation", default="gelu")
    norm = section.text("normalization", default="layernorm")
    tokenizer, optim = section.nested("tokenizer"), section.nested("optim")
    arguments |= {
        "gated_linear_unit": activation.removeprefix("fast-") in ("swiglu", "geglu", "reglu"),
        "disable_bias_linear": not section.flag("bias", default=True),
        "untie_embeddings_and_output_weights": not section.flag("share_embeddings_and_output_weights", default=True),
        "normalization": "RMSNorm" if norm.lower() == "rmsnorm" else "LayerNorm",
        "tokenizer_model": tokenizer.raw("type", default=None) or tokenizer.raw("model", default=None) or "",
        "use_distributed_optimizer": "distributed" in str(optim.config.get("name")),
    }
    if tokenizer.text("library") == "megatron" and not arguments["tokenizer_model"]:
        arguments["tokenizer_model"] = "gpt2"
    if section.flag("fp8"):
        arguments["fp8_format"] = "e4m3" if section.flag("fp8_e4m3") else "hybrid"
    precision = str(trainer.raw("precision", default=""))
    arguments |= {"bf16": True} if "bf16" in precision else {"fp16": True} if precision.startswith("16") else {}
    devices, nodes = trainer.raw("devices", default=None), trainer.raw("num_nodes", default=1)
    flat: dict[str, Any] = {**arguments}
    if type(devices) is int and type(nodes) is int and 0 < devices * nodes < 2**31:
        flat["_devices"] = devices * nodes
    fields = Fields(arguments, where, prefix="model.")
    model, notes = build(fields, flat)
    settled, layout_notes = workload(fields, model, flat)
    settled |= optimizer(optim, "name")
    keys = {dimension: f"model.{key}" for dimension, key in DIMENSIONS.items()}
    drop = ("experts", "top_k", "expert_d_ff") if model.moe is None else ("d_ff",)
    return Reading(
        model, NAME, where, keys={name: key for name, key in keys.items() if name not in drop}, workload=settled,
        config=config, longest=section.optional("encoder_seq_length"), notes=(*notes, *layout_notes),
        asked=frozenset(outer.asked),
    )  # fmt: skip
