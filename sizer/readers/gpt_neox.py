"""GPT-NeoX YAML: dashes and underscores both occur, and a gated MLP is cut to two thirds, as transformer.py does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shapes.errors import shorten
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, Stack, run_lengths
from sizer.readers.fields import Fields, stated, table, vocabulary
from sizer.readers.reading import Reading, Unread, reading
from sizer.readers.training import optimizer, zero_optimization

NAME = "gpt_neox"

_TABLE = table("formats")[NAME]
#: Kinds of attention in which a query sees all keys before it.
DENSE = ("global", "flash")


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every key with underscores; sections are GPT-NeoX's own mappings and stay."""
    return {str(key).replace("-", "_"): value for key, value in config.items()}


def read(config: Mapping[str, Any], where: str) -> Reading:
    """Without vocab_size the named tokenizer's is taken, else GPT-2's, and padded; a note says so."""
    fields = Fields(config, where)
    kinds, left = _attention_kinds(fields, fields.layers("num_layers"))
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    dim = fields.quotient(hidden, heads, f"hidden_size = {hidden}", "num_attention_heads")
    kind = fields.text("norm", default="layernorm")
    weights = fields.choice(kind, _TABLE["norms"], "norm", unless="has no formula here; expected")
    parallel = fields.flag("gpt_j_residual")
    attention = _attention(fields, heads, dim)
    # The norm that queries and keys share has a weight for every head's every channel.
    extra = (("attention.qk_norm", weights * hidden),) if fields.flag("use_qk_layernorm") else ()
    dense, moe = _mlp(fields, hidden), _mixture(fields, hidden)
    every = fields.integer("moe_expert_interval", default=1)
    blocks = run_lengths(
        [
            Block(
                attention,
                moe if moe is not None and layer % every == 0 else dense,
                norm_weights=weights,
                extra=extra,
                parallel=parallel,
                dropout=fields.number("hidden_dropout", default=0.0),
            )
            for layer in range(len(kinds))
        ]
    )
    learned = fields.text("pos_emb", default="learned") == "learned"
    rows = fields.integer("max_position_embeddings", "seq_length") if learned else 0
    rows += fields.count("opt_pos_emb_offset") if learned else 0
    stack = Stack("decoder", hidden, blocks, positions=rows, final_norm=weights)
    vocab, notes = vocabulary(fields, "model_parallel_size", lambda: _tokenizers(fields))
    model = ModelShape(
        "gpt_neox", (stack,), vocab=vocab, tied=not fields.flag("no_weight_tying"), max_positions=rows or None
    )
    return reading(
        fields,
        NAME,
        model,
        keys=_keys(model),
        workload=_workload(fields),
        longest=fields.optional("seq_length"),
        notes=(*notes, *_mlp_notes(fields, hidden, dense)),
        unread=left,
    )


def _mlp_notes(fields: Fields, hidden: int, dense: MlpShape) -> Iterator[str]:
    if dense.gated:
        yield f"gated: gate and up share two thirds of the width, as GPT-NeoX builds it: {dense.width} each"
    if fields.text("mlp_type") != "llama" and not _fits(fields, hidden, dense):
        yield "GPT-NeoX rounds the products of this MLP to widths that do not fit each other: set mlp_multiple_of"


def _attention_kinds(fields: Fields, layers: int) -> tuple[list[str], tuple[Unread, ...]]:
    """The attention of each layer from ``attention_config`` ([[["global", "local"], 6]]; "all": to the last layer)."""
    listed = fields.raw("attention_config", default=None)
    kinds: list[str] = []
    for entry in listed if isinstance(listed, list) else []:
        names, times = entry if isinstance(entry, list) and len(entry) == 2 else (entry, 1)
        names = names if isinstance(names, list) else [names]
        if times == "all":
            times = max(layers // max(len(names), 1), 1)
        if not isinstance(times, int) or not 0 < times <= layers or not all(isinstance(name, str) for name in names):
            raise fields.error('expected lists such as [[["global", "local"], 6]]', "attention_config")
        kinds += names * times
    if listed is None:
        return ["global"] * layers, ()
    strange = next((kind for kind in kinds if kind in _TABLE["no_attention"]), None)
    if strange is not None:
        raise fields.error(f"has no formula here: {strange} layers", "attention_config")
    if len(kinds) != layers:
        raise fields.error(f"expected the attention of {layers} layers", "attention_config")
    sparse = sorted({kind for kind in kinds if kind not in DENSE})
    left = [Unread("attention_config", shorten(listed), f"which keys a query sees ({', '.join(sparse)})")]
    return kinds, tuple(left) if sparse else ()


def _attention(fields: Fields, heads: int, dim: int) -> AttentionShape:
    share = min(fields.number("rotary_pct", default=1.0), 1.0)
    bias = fields.flag("use_bias_in_attn_linear", default=True)
    return AttentionShape(
        heads,
        fields.kv_heads(heads, "num_kv_heads"),
        dim,
        qkv_bias=bias,
        o_bias=bias,
        fused_qkv=True,
        rotary_dim=int(dim * share) if fields.text("pos_emb", default="learned") == "rotary" else 0,
        window=fields.optional("sliding_window_width"),
        dropout=fields.number("attention_dropout"),
    )


def _width(fields: Fields, hidden: int) -> int:
    """The width before a gated MLP is cut: absolute, a multiple of h, or 4h."""
    width, factor = fields.optional("intermediate_size"), fields.number("expansion_factor", default=0.0)
    return width or (int(factor * hidden) if factor >= 1e-6 else 4 * hidden)


def _mlp(fields: Fields, hidden: int) -> MlpShape:
    activation, kind = fields.text("activation", default="gelu"), fields.text("mlp_type", default="regular")
    step = fields.integer("mlp_multiple_of", default=1)
    bias = fields.flag("use_bias_in_mlp", default=kind != "llama")
    if kind == "llama":
        # GPT-NeoX before 2.0: three matrices of their own width, 8h/3 rounded up.
        width = fields.optional("intermediate_size") or -(-(8 * hidden // 3) // step) * step
        return MlpShape(width, bias=bias, fused_gate_up=True)
    width, gated = _width(fields, hidden), activation in _TABLE["gated"]
    if gated:
        # gate and up together are two thirds of the width, so that gated and plain MLPs have as many parameters.
        width = int(width * 2 / 3) // 2
    return MlpShape(max(-(-width // step) * step, 1), gated=gated, bias=bias, fused_gate_up=True)


def _fits(fields: Fields, hidden: int, mlp: MlpShape) -> bool:
    """Whether the first product, rounded to two multiples, is as wide as the second takes, rounded to one."""
    step, width = fields.integer("mlp_multiple_of", default=1), _width(fields, hidden)
    together = int(width * 2 / 3) if mlp.gated else width
    return -(-together // (2 * step)) * 2 * step == mlp.width * (2 if mlp.gated else 1)


def _mixture(fields: Fields, hidden: int) -> MoeShape | None:
    """GPT-NeoX's dropless experts (megatron/model/moe_mlp.py): plain, without biases, 4h wide unless told."""
    experts, top_k = fields.count("moe_num_experts", default=1), fields.count("moe_top_k", default=1)
    if experts <= 1:
        return None
    if top_k > experts:
        raise fields.error(f"expected at most the {experts} experts there are", "moe_top_k")
    width = fields.optional("intermediate_size") or -(-4 * hidden // 256) * 256
    return MoeShape(experts, top_k, width, gated=False)


def _tokenizers(fields: Fields) -> tuple[str, ...]:
    kind, file = fields.text("tokenizer_type", default="GPT2BPETokenizer"), str(fields.raw("vocab_file", default=""))
    # An HFTokenizer without a name is GPT-NeoX-20B's, which Pythia has too.
    return file.rpartition("/")[2], file, kind, "gpt-neox-20b" if kind == "HFTokenizer" else ""


def _workload(fields: Fields) -> dict[str, Any]:
    # A pipeline of 0 stages is DeepSpeed's way of saying none.
    found = fields.given(fields.count, **_TABLE["workload"])
    found |= zero_optimization(fields.nested("zero_optimization"))
    found |= optimizer(fields.nested("optimizer"), "type", momentum=True)
    recomputed, each = fields.flag("checkpoint_activations"), fields.count("checkpoint_num_layers", default=1)
    full = "full" if recomputed and each == 1 else None
    found |= stated(sequence_parallel=fields.flag("sequence_parallel"), checkpointing=full)
    precision = fields.text("precision")
    for dtype, name in (("bf16", "bfloat16"), ("fp16", "fp16")):
        section = fields.raw(dtype, default=None)
        on = isinstance(section, Mapping) and section.get("enabled", dtype == "bf16") is True
        if precision == name or (on and not precision):
            return {**found, "dtype": dtype}
    return found


def _keys(model: ModelShape) -> dict[str, str]:
    """The file's dimensions; a gated width is no key of the file, which holds another number."""
    keys = {**_TABLE["dimensions"]}
    if model.dense_mlp is not None and not model.dense_mlp.gated:
        keys["d_ff"] = "intermediate_size"
    return keys
