"""Megatron-Core's GPT, BERT, T5 and hybrid models from their arguments."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from shapes.model import AttentionShape, Block, Linear, MlaShape, MlpShape, ModelShape, MoeShape, Stack
from sizer.readers.fields import MAX_LAYERS, Fields, table
from sizer.readers.hf_blocks import run_lengths
from sizer.readers.megatron.hybrid import HybridParts, delta_net, pattern_of, predicting
from sizer.readers.tokenizers import vocabulary

#: Model specifications that are Megatron's own GPT, whatever they are called.
_USUAL_SPECS = ("local", "gpt_layer_specs", "mamba_layer_specs", "hybrid_layer_specs")


def build(fields: Fields, flat: Mapping[str, Any]) -> tuple[ModelShape, tuple[str, ...]]:
    """The model of the arguments, and what a person should know of how it was read."""
    fields, notes = _with_language_model(fields)
    for key, what in table("formats")["megatron"]["refused"].items():
        value = fields.raw(key, default=None)
        usual = key == "spec" and any(name in str(value) for name in _USUAL_SPECS)
        usual = usual or (key == "experimental_attention_variant" and value == "gated_delta_net")
        if value not in (None, False, 0, "") and not usual:
            raise fields.error(f"has no formula here: {what}", key)
    if any(key in fields.config for key in ("encoder_num_layers", "decoder_num_layers")):
        model, more = _t5(fields, flat)
    elif _is_bert(fields, flat):
        model, more = _bert(fields, flat)
    else:
        model, more = _gpt(fields, flat)
    return model, (*notes, *more)


def _with_language_model(fields: Fields) -> tuple[Fields, tuple[str, ...]]:
    """A vision-language script's ``language_model_type`` decides some arguments in the code (multimodal/config.py)."""
    kind = fields.raw("language_model_type", default=None)
    sees = any(key in fields.config for key in ("language_model_type", "vision_model_type", "img_h"))
    notes = ("language model only: the vision tower and its projection are not counted",) if sees else ()
    settings = table("language_models")["language_models"].get(str(kind)) if kind is not None else None
    if kind is not None and settings is None and "ffn_hidden_size" not in fields.config:
        raise fields.error("decides sizes in code that is not read; give ffn_hidden_size", "language_model_type")
    if settings is None:
        return fields, notes
    config = {**fields.config, **settings}
    return Fields(config, fields.where, asked=fields.asked, present=fields.present), (
        *notes,
        f"MLP and biases are those of {kind}",
    )


def _gpt(fields: Fields, flat: Mapping[str, Any]) -> tuple[ModelShape, tuple[str, ...]]:
    hidden, weights = fields.integer("hidden_size"), norm_weights(fields)
    dropout = fields.number("hidden_dropout", default=0.1)
    pattern, depths = pattern_of(fields)
    if pattern:
        fields.raw("num_layers", default=None)
        fields.raw("mtp_num_layers", default=None)
        dense = mlp(fields) if "-" in "".join((pattern, *depths)) else None
        parts = HybridParts(fields, attention(fields), dense, mixture(fields), weights, dropout)
        blocks = parts.blocks(pattern)
        predicted = [predicting(parts.blocks(depth), hidden) for depth in depths]
    else:
        blocks = _layers(fields, hidden, weights, dropout)
        predicted = [predicting(blocks[-1:], hidden)] * fields.count("mtp_num_layers")
    notes: list[str] = []
    passes = 1 + len(predicted)
    if predicted and fields.flag("mtp_use_repeated_layer"):
        predicted = predicted[:1]
        notes.append(f"multi-token prediction repeats its layers {passes - 1} times: they are counted and listed once")
    learned = position_embedding(fields) == "learned_absolute"
    positions = fields.integer("max_position_embeddings", "seq_length") if learned else 0
    vocab, said = vocabulary(fields, flat)
    layers = run_lengths([*blocks, *(block for depth in predicted for block in depth)])
    stack = Stack("decoder", hidden, layers, positions=positions, final_norm=weights)
    model = ModelShape(
        "megatron",
        (stack,),
        vocab=vocab,
        tied=not fields.flag("untie_embeddings_and_output_weights"),
        max_positions=positions or None,
        head_passes=passes,
    )
    return model, (*notes, *said)


def _layers(fields: Fields, hidden: int, weights: int, dropout: float) -> list[Block]:
    layers = fields.layers("num_layers")
    sparse = _sparse(fields, layers)
    windowed = _layer_flags(fields, "window_attn_skip_freq", layers, lambda layer, every: (layer + 1) % every != 0)
    recurrent, mixer = [False] * layers, None
    if fields.text("experimental_attention_variant") == "gated_delta_net":
        if fields.raw("linear_attention_freq", default=None) is None:
            raise fields.error("expected which layers are gated delta nets", "linear_attention_freq")
        recurrent = _layer_flags(fields, "linear_attention_freq", layers, lambda layer, every: (layer + 1) % every != 0)
        mixer = delta_net(fields, weights)
    cores = {flag: attention(fields, windowed=flag) for flag in sorted(set(windowed))}
    moe = mixture(fields)
    mlps = {flag: (moe if flag else None) or mlp(fields) for flag in set(sparse)}
    return [
        Block(
            None if recurrent[layer] else cores[windowed[layer]],
            mlps[sparse[layer]],
            norm_weights=weights,
            dropout=dropout,
            extra=() if recurrent[layer] else _latent_bias(fields, hidden),
            mixer=mixer if recurrent[layer] else None,
        )
        for layer in range(layers)
    ]


def attention(fields: Fields, *, causal: bool = True, cross: bool = False, windowed: bool = True) -> Any:
    """Self or cross attention as Megatron builds it: one product for q, k and v; latent attention by its own names."""
    heads, hidden, bias = fields.integer("num_attention_heads"), fields.integer("hidden_size"), bias_linear(fields)
    channels = fields.optional("kv_channels")
    if fields.flag("multi_latent_attention"):
        normed = fields.flag("qk_layernorm")
        return MlaShape(
            heads,
            fields.integer("kv_lora_rank", default=32),
            fields.integer("qk_head_dim", default=128),
            fields.integer("qk_pos_emb_head_dim", default=64),
            fields.integer("v_head_dim", default=128),
            fields.optional("q_lora_rank"),
            dropout=fields.number("attention_dropout", default=0.1),
            latent_norm=norm_weights(fields) if normed else 0,
        )
    fields.ignore("group_query_attention")  # num_query_groups says it
    groups = fields.kv_heads(heads, "num_query_groups")
    if channels is None and hidden % heads:
        raise fields.error(f"expected a divisor of hidden_size = {hidden}, or kv_channels", "num_attention_heads")
    dim = channels or hidden // heads
    rotary = position_embedding(fields) in ("rope", "mrope", "yarn")
    share = min(fields.number("rotary_percent", default=1.0), 1.0)
    return AttentionShape(
        heads,
        groups,
        dim,
        qkv_bias=bias or fields.flag("add_qkv_bias"),
        o_bias=bias,
        fused_qkv=not cross,
        rotary_dim=int(dim * share) if rotary and not cross else 0,
        causal=causal,
        cross=cross,
        dropout=fields.number("attention_dropout", default=0.1),
        window=_window(fields) if windowed else None,
        qk_norm="head" if fields.flag("qk_layernorm") or fields.flag("qk_l2_norm") else "none",
        qk_norm_weights=norm_weights(fields) if not fields.flag("qk_l2_norm") else 0,
        sinks=fields.text("softmax_type", default="vanilla") == "learnable",
        gated=fields.flag("attention_output_gate") and not cross,
    )


def _sparse(fields: Fields, layers: int) -> list[bool]:
    """The layers with experts; of Megatron-DeepSpeed every other one where nothing is said, the last of each two."""
    if not _deepspeeds(fields):
        return _layer_flags(fields, "moe_layer_freq", layers, lambda layer, every: layer % every == 0)
    every = fields.integer("expert_interval", default=2)
    return [(layer + 1) % every == 0 for layer in range(layers)]


def _deepspeeds(fields: Fields) -> bool:
    """Whether it is the fork Megatron-DeepSpeed, whose experts are DeepSpeed's layer."""
    return any(key in fields.config for key in ("deepspeed", "create_moe_param_group", "moe_expert_parallel_size"))


def mlp(fields: Fields) -> MlpShape:
    return MlpShape(_width(fields), _gated(fields), bias_linear(fields), fused_gate_up=True)


def mixture(fields: Fields) -> MoeShape | None:
    """The experts of a sparse layer; None for a dense model."""
    if _deepspeeds(fields) and fields.text("mlp_type", default="standard") != "standard":
        raise fields.error("has no formula here: experts beside a dense MLP (PR-MoE)", "mlp_type")
    experts = fields.count("num_experts") or None
    if experts is None:
        return None
    gated, bias, dense = _gated(fields), bias_linear(fields), _width(fields)
    if _deepspeeds(fields):
        top_k = fields.integer("topk", default=1)
        return None if experts == 1 else MoeShape(experts, min(top_k, experts), dense, gated, bias)
    shared = fields.optional("moe_shared_expert_intermediate_size", "shared_moe_ffn_hidden_size")
    top_k = fields.integer("moe_router_topk", default=2)
    if top_k > experts:
        raise fields.error(f"expected at most the {experts} experts there are", "moe_router_topk")
    return MoeShape(
        experts,
        top_k,
        fields.optional("moe_ffn_hidden_size") or dense,
        gated,
        bias,
        router_bias=bias,
        router_dtype=fields.text("moe_router_dtype") or None,
        shared=MlpShape(shared, gated, bias, fused_gate_up=True) if shared else None,
        shared_gate=bool(shared) and fields.flag("moe_shared_expert_gate"),
        latent=fields.optional("moe_latent_size"),
    )


def bias_linear(fields: Fields) -> bool:
    return fields.flag("add_bias_linear", default=not fields.flag("disable_bias_linear"))


def norm_weights(fields: Fields) -> int:
    return 1 if fields.text("normalization", default="LayerNorm") == "RMSNorm" else 2


def position_embedding(fields: Fields) -> str:
    kind = fields.text("position_embedding_type", default="learned_absolute")
    if fields.flag("use_rotary_position_embeddings") and kind == "learned_absolute":
        return "rope"
    absent = fields.flag("no_position_embedding") or not fields.flag("add_position_embedding", default=True)
    return "none" if absent and kind == "learned_absolute" else kind


def _gated(fields: Fields) -> bool:
    gates = [fields.flag(key) for key in ("swiglu", "quick_geglu", "geglu", "gated_linear_unit")]
    return any(gates)


def _width(fields: Fields) -> int:
    width = fields.optional("ffn_hidden_size")
    if width is not None:
        return width
    hidden = fields.integer("hidden_size")
    # megatron/training/arguments.py: with swiglu two thirds of 4h, rounded down to a multiple of 64.
    width = 64 * int(4 * hidden * 2 / 3 / 64) if fields.flag("swiglu") else 4 * hidden
    if width < 1:
        raise fields.error("expected at least 24 with swiglu, or an ffn_hidden_size", "hidden_size")
    return width


def _window(fields: Fields) -> int | None:
    """``window_size`` (keys before, keys after): a query sees itself and those before."""
    value = fields.raw("window_size", default=None)
    if value is None:
        return None
    first = str(value[0] if isinstance(value, (list, tuple)) and value else value).strip("() ").split(",")[0]
    if not first.lstrip("-").isdecimal() or len(first) > 9:
        raise fields.error("expected two integers, such as 127,0", "window_size")
    return int(first) + 1 if int(first) >= 0 else None


def _latent_bias(fields: Fields, hidden: int) -> tuple[tuple[str, int], ...]:
    # Of latent attention's matrices only the last has a bias.
    latent = fields.flag("multi_latent_attention") and bias_linear(fields)
    return (("attention.o_proj.bias", hidden),) if latent else ()


def _layer_flags(fields: Fields, key: str, layers: int, every: Any) -> list[bool]:
    """One flag a layer: an integer is a period, ``([0]*3+[1]*58)`` a list; absent: all."""
    value = fields.raw(key, default=None)
    if value is None:
        return [True] * layers
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 6:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return [every(layer, value) for layer in range(layers)]
    try:
        listed = _pattern(ast.parse(str(value), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise fields.error("expected an integer or a list such as ([0]*3+[1]*58)", key) from None
    if not isinstance(listed, list) or len(listed) != layers:
        raise fields.error(f"expected a pattern of {layers} layers", key)
    return [bool(one) for one in listed]


def _pattern(node: ast.expr) -> list[int] | int:
    """``([1]*3+[0])*2`` without running it; ValueError for anything else or for more layers than any model has."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        items = [_pattern(item) for item in node.elts]
        if all(isinstance(item, int) for item in items):
            return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _pattern(node.left), _pattern(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return (left + right)[: MAX_LAYERS + 1]
        repeated = isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int)
        if repeated and 0 <= right * len(left) <= MAX_LAYERS:  # type: ignore[operator, arg-type]
            return left * right  # type: ignore[operator]
    raise ValueError


def _is_bert(fields: Fields, flat: Mapping[str, Any]) -> bool:
    """BERT's launch says so by its program, its tokenizer or its one vocabulary file."""
    tokenizer = fields.text("tokenizer_type")
    named = "bert" in str(flat.get("_program", "")) or tokenizer.startswith("BertWordPiece")
    unknown: Mapping[str, str] = flat.get("_unknown", {})
    file = str(fields.raw("vocab_file", default=unknown.get("vocab_file", "")))
    return named or (not tokenizer and file.endswith("vocab.txt"))


def _bert(fields: Fields, flat: Mapping[str, Any]) -> tuple[ModelShape, tuple[str, ...]]:
    """BERT with its masked-token head and, unless it is switched off, the next-sentence head."""
    hidden, positions = fields.integer("hidden_size"), fields.integer("max_position_embeddings", "seq_length")
    weights = norm_weights(fields)
    block = Block(
        attention(fields, causal=False),
        mlp(fields),
        norm_weights=weights,
        count=fields.layers("num_layers"),
        dropout=fields.number("hidden_dropout", default=0.1),
    )
    types = (("token_type_embeddings", 2 * hidden),)
    stack = Stack("encoder", hidden, (block,), positions=positions, final_norm=weights, extra=types)
    before: tuple[Linear, ...] = (Linear("head_transform", hidden, hidden, True),)
    if fields.flag("bert_binary_head", default=not fields.flag("bert_no_binary_head")):
        before += (Linear("pooler", hidden, hidden, True, rows=1), Linear("next_sentence", 2, hidden, True, rows=1))
    vocab, said = vocabulary(fields, flat, usual="BertWordPieceLowerCase")
    model = ModelShape(
        "megatron-bert",
        (stack,),
        vocab=vocab,
        tied=not fields.flag("untie_embeddings_and_output_weights"),
        head_bias=True,
        before_head=before,
        max_positions=positions,
        extra=(("head_norm", weights * hidden),),
    )
    return model, ("read as BERT", *said)


def _t5(fields: Fields, flat: Mapping[str, Any]) -> tuple[ModelShape, tuple[str, ...]]:
    """T5: learned positions that encoder and decoder share, and a bias in the head."""
    hidden, weights = fields.integer("hidden_size"), norm_weights(fields)
    dropout = fields.number("hidden_dropout", default=0.1)
    one = fields.layers("encoder_num_layers", "num_layers")
    two = fields.layers("decoder_num_layers", "num_layers", "encoder_num_layers")
    encoder = Block(attention(fields, causal=False), mlp(fields), norm_weights=weights, count=one, dropout=dropout)
    decoder = Block(
        attention(fields),
        mlp(fields),
        cross=attention(fields, causal=False, cross=True),
        norms=3,
        norm_weights=weights,
        count=two,
        dropout=dropout,
    )
    learned = position_embedding(fields) == "learned_absolute"
    positions = fields.integer("max_position_embeddings") if learned else 0
    vocab, said = vocabulary(fields, flat, usual="BertWordPieceCase")
    model = ModelShape(
        "megatron-t5",
        (
            Stack("encoder", hidden, (encoder,), positions=positions, final_norm=weights),
            Stack("decoder", hidden, (decoder,), final_norm=weights),
        ),
        vocab=vocab,
        tied=not fields.flag("untie_embeddings_and_output_weights"),
        head_bias=True,
        max_positions=positions or None,
    )
    return model, ("read as T5", *said)
