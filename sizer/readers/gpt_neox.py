"""GPT-NeoX YAML: dashes and underscores both occur, and a gated MLP is cut to two thirds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import layer_count
from sizer.readers.reading import Reading

NAME = "gpt_neox"

KEYS = {
    "hidden": "hidden_size",
    "layers": "num_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_kv_heads",
    "d_ff": "intermediate_size",
}
#: Keys that GPT-NeoX has and Megatron has not.
OWN = ("mlp_type", "no_weight_tying", "pos_emb", "model_parallel_size", "pipe_parallel_size", "gpt_j_residual",
       "train_micro_batch_size_per_gpu", "mlp_multiple_of", "rotary_pct")  # fmt: skip
#: GPT-2's and GPT-NeoX-20B's tokenizers, which the files do not give the size of.
DEFAULT_VOCAB = 50257


def matches(config: Mapping[str, Any]) -> bool:
    """num_layers with at least one key of GPT-NeoX's own."""
    keys = _underscored(config)
    return "num_layers" in keys and "hidden_size" in keys and any(key in keys for key in OWN)


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every key with underscores; sections are GPT-NeoX's own mappings and stay."""
    return _underscored(config)


def read(config: Mapping[str, Any], where: str) -> Reading:
    """Without vocab_size the GPT-2 tokenizer's 50,257 is taken and padded, which a note says."""
    flat = _underscored(config)
    fields = Fields(flat, where)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    layers = layer_count(fields, "num_layers")
    if hidden % heads:
        raise fields.error(f"expected a divisor of hidden_size = {hidden}", "num_attention_heads")
    kv = fields.kv_heads(fields.optional("num_kv_heads"), heads, "num_kv_heads")
    rms = fields.text("norm", default="layernorm") in ("rmsnorm", "te_rmsnorm")
    positions = fields.text("pos_emb", default="learned")
    rotary = int(hidden // heads * min(fields.number("rotary_pct", default=1.0), 1.0)) if positions == "rotary" else 0
    bias = fields.flag("use_bias_in_attn_linear", default=True)
    attention = AttentionShape(
        heads, kv, hidden // heads, qkv_bias=bias, o_bias=bias, fused_qkv=True, rotary_dim=rotary,
        dropout=fields.number("attention_dropout", default=0.0),
    )  # fmt: skip
    parallel = fields.flag("gpt_j_residual")
    block = Block(
        attention, _mlp(fields, hidden), norm_weights=1 if rms else 2, parallel=parallel, count=layers,
        dropout=fields.number("hidden_dropout", default=0.0),
    )  # fmt: skip
    rows = fields.integer("max_position_embeddings", "seq_length") if positions == "learned" else 0
    stack = Stack("decoder", hidden, (block,), positions=rows, final_norm=1 if rms else 2)
    vocab, notes = _vocab(fields)
    model = ModelShape(
        "gpt_neox", (stack,), vocab=vocab, tied=not fields.flag("no_weight_tying"), max_positions=rows or None
    )
    return Reading(
        model, NAME, where, keys=_keys(config), workload=_workload(fields), config=config,
        asked=frozenset(fields.asked), longest=fields.optional("seq_length"), notes=notes,
    )  # fmt: skip


def _mlp(fields: Fields, hidden: int) -> MlpShape:
    activation, kind = fields.text("activation", default="gelu"), fields.text("mlp_type", default="regular")
    gated = kind == "llama" or activation in ("swiglu", "geglu", "reglu", "bilinear", "glu")
    width = fields.optional("intermediate_size")
    if width is None:
        width = 4 * hidden
        if gated:
            # megatron/model/transformer.py: two thirds, rounded up to a multiple of mlp_multiple_of.
            step = fields.integer("mlp_multiple_of", default=1)
            width = -(-(2 * width // 3) // step) * step
    bias = fields.flag("use_bias_in_mlp", default=kind != "llama")
    return MlpShape(width, gated=gated, bias=bias, fused_gate_up=True)


def _vocab(fields: Fields) -> tuple[int, tuple[str, ...]]:
    size = fields.optional("padded_vocab_size")
    if size is not None:
        return size, ()
    named = fields.optional("vocab_size")
    step = fields.integer("make_vocab_size_divisible_by", default=128)
    step *= fields.integer("model_parallel_size", default=1)
    padded = -(-(named or DEFAULT_VOCAB) // step) * step
    if named is None:
        return padded, (f"no vocab_size: GPT-2's {DEFAULT_VOCAB}, padded to {padded}, is taken",)
    return padded, ("the vocabulary is the padded one, as the products use it",)


def _workload(fields: Fields) -> dict[str, Any]:
    names = {
        "s": "seq_length", "b": "train_micro_batch_size_per_gpu", "t": "model_parallel_size",
        "p": "pipe_parallel_size",
    }  # fmt: skip
    # A pipeline of 0 stages is DeepSpeed's way of saying none.
    return {key: value for key, name in names.items() if (value := fields.count(name))}


def _keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Each dimension under the file's own spelling."""
    spelled = {str(key).replace("-", "_"): str(key) for key in config}
    return {dimension: spelled.get(key, key) for dimension, key in KEYS.items()}


def _underscored(config: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).replace("-", "_"): value for key, value in config.items()}
