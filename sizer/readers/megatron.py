"""Megatron-LM: a YAML file of arguments, a saved ``args`` mapping, or a command line (a launch script)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, Stack
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import layer_count
from sizer.readers.reading import Reading

NAME = "megatron"

KEYS = {
    "hidden": ("hidden_size",),
    "layers": ("num_layers",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_query_groups",),
    "head_dim": ("kv_channels",),
    "d_ff": ("ffn_hidden_size",),
    "experts": ("num_experts",),
    "top_k": ("moe_router_topk",),
    "expert_d_ff": ("moe_ffn_hidden_size", "ffn_hidden_size"),
}


def matches(config: Mapping[str, Any]) -> bool:
    """Megatron says num_layers, hidden_size and num_attention_heads, and never model_type."""
    keys = _flat(config)
    own = ("num_layers", "hidden_size", "num_attention_heads")
    return all(key in keys for key in own) and "mlp_type" not in keys and "no_weight_tying" not in keys


def parse_command_line(text: str, where: str) -> dict[str, Any]:
    """``--hidden-size 4096 --swiglu …`` of a launch script -> its arguments; a flag alone is true."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"expected a command line: {error}", where=where) from None
    arguments: dict[str, Any] = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, attached = word[2:].partition("=")
        following = words[index + 1] if index + 1 < len(words) else "--"
        value = attached or ("" if following.startswith("--") else following)
        arguments[name.replace("-", "_")] = _value(value) if value else True
    return arguments


def read(config: Mapping[str, Any], where: str) -> Reading:
    """Absent keys take Megatron's defaults: ffn 4h, or 64 floor(8h/3/64) with swiglu; MHA; tied embeddings."""
    flat = _flat(config)
    fields = Fields(flat, where, prefix="")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    layers = layer_count(fields, "num_layers")
    block = Block(
        _attention(fields, hidden, heads), _mlp(fields, hidden), norm_weights=_norm_weights(fields), count=layers,
        dropout=fields.number("hidden_dropout", default=0.1),
    )  # fmt: skip
    learned = fields.text("position_embedding_type", default="learned_absolute") == "learned_absolute"
    positions = fields.integer("max_position_embeddings", "seq_length") if learned else 0
    stack = Stack("decoder", hidden, (block,), positions=positions, final_norm=_norm_weights(fields))
    tied = not fields.flag("untie_embeddings_and_output_weights")
    model = ModelShape("megatron", (stack,), vocab=_vocab(fields), tied=tied, max_positions=positions or None)
    return Reading(
        model, NAME, where, keys=_keys(flat), workload=_workload(fields), config=config,
        longest=fields.optional("seq_length"), notes=("the vocabulary is the padded one, as the products use it",),
    )  # fmt: skip


def _attention(fields: Fields, hidden: int, heads: int) -> AttentionShape:
    groups = heads
    if fields.flag("group_query_attention") or fields.config.get("num_query_groups") is not None:
        groups = fields.kv_heads(fields.integer("num_query_groups", default=heads), heads, "num_query_groups")
    channels = fields.optional("kv_channels")
    if channels is None and hidden % heads:
        raise fields.error(f"expected a divisor of hidden_size = {hidden}, or kv_channels", "num_attention_heads")
    dim = channels or hidden // heads
    bias = _bias(fields)
    rotary = fields.text("position_embedding_type", default="learned_absolute") == "rope"
    share = min(fields.number("rotary_percent", default=1.0), 1.0)
    return AttentionShape(
        heads, groups, dim, qkv_bias=bias or fields.flag("add_qkv_bias"), o_bias=bias, fused_qkv=True,
        rotary_dim=int(dim * share) if rotary else 0, dropout=fields.number("attention_dropout", default=0.1),
        qk_norm="head" if fields.flag("qk_layernorm") else "none", qk_norm_weights=_norm_weights(fields),
    )  # fmt: skip


def _mlp(fields: Fields, hidden: int) -> MlpShape | MoeShape:
    gated = fields.flag("swiglu")
    width = fields.optional("ffn_hidden_size")
    if width is None:
        # megatron/training/arguments.py: two thirds of 4h, rounded down to a multiple of 64.
        width = 64 * int(4 * hidden * 2 / 3 / 64) if gated else 4 * hidden
        if width < 1:
            raise fields.error("expected at least 24 with swiglu, or an ffn_hidden_size", "hidden_size")
    bias = _bias(fields)
    experts = fields.optional("num_experts")
    if experts is None:
        return MlpShape(width, gated, bias, fused_gate_up=True)
    shared = fields.optional("moe_shared_expert_intermediate_size")
    return MoeShape(
        experts, fields.integer("moe_router_topk", default=2), fields.optional("moe_ffn_hidden_size") or width, gated,
        bias, shared=MlpShape(shared, gated, bias, fused_gate_up=True) if shared else None,
    )  # fmt: skip


def _bias(fields: Fields) -> bool:
    return fields.flag("add_bias_linear", default=not fields.flag("disable_bias_linear"))


def _norm_weights(fields: Fields) -> int:
    return 1 if fields.text("normalization", default="LayerNorm") == "RMSNorm" else 2


def _vocab(fields: Fields) -> int:
    padded = fields.optional("padded_vocab_size")
    if padded is not None:
        return padded
    size = fields.integer("vocab_size")
    step = fields.integer("make_vocab_size_divisible_by", default=128)
    step *= fields.integer("tensor_model_parallel_size", default=1)
    return -(-size // step) * step


def _workload(fields: Fields) -> dict[str, Any]:
    names = {
        "s": "seq_length", "b": "micro_batch_size", "t": "tensor_model_parallel_size",
        "p": "pipeline_model_parallel_size", "e": "expert_model_parallel_size",
    }  # fmt: skip
    found: dict[str, Any] = {field: value for field, name in names.items() if (value := fields.optional(name))}
    for dtype in ("bf16", "fp16"):
        if fields.flag(dtype):
            found["dtype"] = dtype
    if fields.flag("sequence_parallel"):
        found["sequence_parallel"] = True
    return found


def _keys(flat: Mapping[str, Any]) -> dict[str, str]:
    present = {name: next((key for key in keys if key in flat), keys[0]) for name, keys in KEYS.items()}
    drop = ("experts", "top_k", "expert_d_ff") if flat.get("num_experts") is None else ("d_ff",)
    return {name: key for name, key in present.items() if name not in drop} | {"vocab": "vocab_size"}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of a YAML file (language_model: …) opened up, dashes as underscores."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update({str(inner).replace("-", "_"): item for inner, item in value.items()})
        else:
            flat[str(key).lstrip("-").replace("-", "_")] = value
    return flat


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
