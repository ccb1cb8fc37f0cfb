"""Megatron-Core's GPT, BERT, T5 and hybrid models from their arguments."""

import re
from pathlib import Path
from typing import Any

from shapes.dtypes import next_multiple
from shapes.frozen import replace
from shapes.model import (
    DELTA_CHUNK,
    AttentionShape,
    Block,
    Linear,
    MlpShape,
    ModelShape,
    MoeShape,
    RecurrentShape,
    Stack,
    run_lengths,
)
from sizer.readers.hf_blocks import latent, matrices
from sizer.readers.hf_decoders import recurrence
from sizer.readers.reading import FORMATS, MAX_LAYERS, Fields, Names, Values, table, vocabulary
from sizer.readers.shell.words import evaluated

_TABLE = FORMATS["megatron"]
#: A model, and what a person should know of how it was read.
Noted = tuple[ModelShape, Names]
#: A folder that is called by the tokenizer in it.
_OWN_FOLDER = r"([^/]*(?:[^/$][-_]tokenizer|tokenizer[-_][^/])[^/]*)/vocab\.json$"
#: Letters and separators of the pattern are those of megatron/core/models/hybrid/hybrid_layer_allocation.py.
_PATTERNS = _TABLE["patterns"]


def build(fields: Fields) -> Noted:
    """The model of the arguments, and what a person should know of how it was read."""
    fields.defaults = _TABLE["defaults"]
    notes = _language_model(fields)
    for key, (what, usual) in _TABLE["refused"].items():
        fields.refuse(not re.search(usual, str(fields.raw(key) or "")), f"has no formula here: {what}", key)
    stacks = {"encoder_num_layers", "decoder_num_layers"} & fields.config.keys()
    program = str(fields.config.get("_program"))
    # BERT's launch says so by its program, its tokenizer or its one vocabulary file.
    kind, file = fields.text("tokenizer_type"), str(_said(fields, "vocab_file"))
    bert = "bert" in program or kind.startswith("BertWordPiece") or (not kind and file.endswith("vocab.txt"))
    made = _t5 if stacks or "t5" in program else _bert if bert else _gpt
    model, more = made(fields)
    return model, (*notes, *more)


def _language_model(fields: Fields) -> Names:
    """A vision-language script's ``language_model_type`` decides some arguments in the code (multimodal/config.py)."""
    kind = fields.raw("language_model_type")
    notes = ("language model only: the vision tower and its projection are not counted",) * (
        not fields.config.keys().isdisjoint(_TABLE["towers"])
    )
    settings = table("language_models")["language_models"].get(str(kind), {})
    fields.refuse(
        kind is not None and not settings and "ffn_hidden_size" not in fields.config,
        "decides sizes in code that is not read; give ffn_hidden_size",
        "language_model_type",
    )
    fields.config = fields.config | settings
    return (*notes, f"MLP and biases are those of {kind}") if settings else notes


def _model(fields: Fields, kind: str, *stacks: Stack, usual: str = "", **traits: Any) -> Noted:
    """The model of these stacks with its vocabulary; ``traits`` are further fields of ModelShape."""
    vocab, notes = vocabulary(
        fields, "tensor_model_parallel_size", lambda: [*_tokenizers(fields), usual], "vocab_extra_ids"
    )
    said = (f"read as {kind[9:].upper()}",) * (kind != "megatron")
    return ModelShape(
        kind, stacks, vocab=vocab, tied=not fields.flag("untie_embeddings_and_output_weights"), **traits
    ), (*said, *notes)


def _tokenizers(fields: Fields) -> tuple[str, str]:
    """The tokenizer, which decides the vocabulary: the tokenizer's model, else its type, else its files.

    A type says nothing of a model with a name of its own (llm-jp's under Llama2Tokenizer, a folder's under GPT-2's).
    """
    said = _said(fields, "tokenizer_model", "tokenizer_name_or_path")
    model, kind = str(said or fields.config.get("_tokenizer", "")), fields.text("tokenizer_type")
    if not kind and _said(fields, "merge_file"):
        kind = "GPT2BPETokenizer"
    if not model and (own := re.search(_OWN_FOLDER, str(_said(fields, "vocab_file")))):
        model = own[1]
    named = Path(model).name
    return model, "" if named and "$" not in named and not named.startswith("tokenizer.") else kind


def _said(fields: Fields, *names: str) -> Any:
    """A value, or the unknown text that a script has for the first name; None for neither."""
    return fields.raw(*names, default=fields.config.get("_unknown", {}).get(names[0]))


def _common(fields: Fields) -> Values:
    return {"norm_weights": norm_weights(fields), "dropout": fields.number("hidden_dropout")}


def _learned(fields: Fields, *names: str) -> int:
    """Learned positions; 0 where there are none."""
    return fields.integer(*names) if position_embedding(fields) == "learned_absolute" else 0


def _gpt(fields: Fields) -> Noted:
    hidden, common = fields.integer("hidden_size"), _common(fields)
    pattern, depths = pattern_of(fields)
    if pattern:
        fields.ignore("num_layers", "mtp_num_layers")
        attention(fields)  # a pattern without either may come with their arguments
        mixture(fields)
        blocks = hybrid_blocks(fields, pattern, common)
        predicted = [predicting(hybrid_blocks(fields, depth, common), hidden) for depth in depths]
    else:
        blocks = _layers(fields, hidden, common)
        fields.refuse(not blocks, "expected other layers than these", "noop_layers")
        predicted = [predicting(blocks[-1:], hidden)] * fields.count("mtp_num_layers")
    passes = 1 + len(predicted)
    again = f"multi-token prediction repeats its layers {passes - 1} times: they are counted and listed once"
    notes = (again,) if predicted and fields.flag("mtp_use_repeated_layer") else ()
    predicted = predicted[:1] if notes else predicted
    positions = _learned(fields, "max_position_embeddings", "seq_length")
    layers = run_lengths([*blocks, *(block for depth in predicted for block in depth)])
    norm = common["norm_weights"]  # also of the embedding, in Megatron-DeepSpeed's BLOOM
    first = norm * fields.flag("embed_layernorm")
    stack = Stack("decoder", hidden, layers, positions=positions, final_norm=norm, embedding_norm=first)
    model, said = _model(fields, "megatron", stack, max_positions=positions or None, head_passes=passes)
    return model, (*notes, *said)


def _layers(fields: Fields, hidden: int, common: Values) -> list[Block]:
    layers = fields.layers("num_layers")
    sparse = _sparse(fields, layers)
    windowed = _layer_flags(fields, "window_attn_skip_freq", layers, _last_of_each)
    recurrent, mixer = [False] * layers, None
    if fields.text("experimental_attention_variant") == "gated_delta_net":
        fields.refuse(
            fields.raw("linear_attention_freq") is None,
            "expected which layers are gated delta nets",
            "linear_attention_freq",
        )
        recurrent = _layer_flags(fields, "linear_attention_freq", layers, _last_of_each)
        mixer = gated_delta(fields)
    cores = {flag: attention(fields, windowed=flag) for flag in set(windowed)}
    moe = mixture(fields)
    mlps = {flag: (flag and moe) or mlp(fields) for flag in set(sparse)}
    # Only the last of latent attention's matrices has a bias.
    latent = fields.flag("multi_latent_attention") and bias_linear(fields)
    extra = (("attention.o_proj.bias", hidden),) * latent
    idle = re.findall(r"\d+", str(fields.raw("noop_layers")))  # MindSpeed's, to fill stages
    return [
        Block(None, mlps[sparse[layer]], mixer=mixer, **common)
        if recurrent[layer]
        else Block(cores[windowed[layer]], mlps[sparse[layer]], extra=extra, **common)
        for layer in range(layers)
        if str(layer) not in idle
    ]


def _last_of_each(layer: int, every: int) -> bool:
    return (layer + 1) % every != 0


def pattern_of(fields: Fields) -> tuple[str, Names]:
    """(the layers' letters, those of each depth of multi-token prediction), without the bars between stages."""
    text = fields.text(*_PATTERNS)
    fields.refuse(
        not text and fields.number("hybrid_attention_ratio", "hybrid_mlp_ratio"),
        "expected hybrid_layer_pattern, which newer Megatron wants for it",
        "hybrid_attention_ratio",
    )
    main, *depths = text.split("/")
    own = fields.text("mtp_hybrid_override_pattern")
    depths = [depth for depth in depths if depth] or [own] * (fields.count("mtp_num_layers") if own else 0)
    fields.refuse(
        len(text) > MAX_LAYERS or len(depths) * len(own) > MAX_LAYERS,
        f"expected at most {MAX_LAYERS} layers",
        *_PATTERNS,
    )
    return main.replace("|", ""), tuple(depths)


def hybrid_blocks(fields: Fields, pattern: str, common: Values) -> list[Block]:
    """A block of one part for each letter."""
    parts = _TABLE["parts"]  # each the one part of a layer, and who reads it
    kinds = ", ".join(
        {"D": "sparse attention"}.get(kind, repr(kind)) for kind in dict.fromkeys(pattern) if kind not in parts
    )
    fields.refuse(kinds or not pattern, f"has no formula here: {kinds or 'no'} layers", *_PATTERNS)
    without = "E" in pattern and mixture(fields) is None
    fields.refuse(without, "expected num_experts: the pattern has layers of experts", "num_experts")
    made = {
        letter: Block(**{"attention": None, "mlp": None, name: globals()[read](fields)}, norms=1, **common)
        for letter, (name, read) in parts.items()
        if letter in pattern
    }
    return [made[letter] for letter in pattern]


def mamba_layer(fields: Fields) -> RecurrentShape:
    """Mamba-2 as MambaMixer builds it: twice the hidden size inside where no number of heads is given."""
    dim, inside = fields.integer("mamba_head_dim"), 2 * fields.integer("hidden_size")
    heads = fields.optional("mamba_num_heads")
    heads = heads or fields.quotient(inside, dim, f"twice the hidden size, {inside}", "mamba_head_dim")
    groups, state = fields.integer("mamba_num_groups"), fields.integer("mamba_state_dim")
    return recurrence(fields, heads=heads, head_dim=dim, groups=groups, state=state, **_TABLE["mamba"])(0)


def gated_delta(fields: Fields) -> RecurrentShape:
    """A gated delta net by Megatron's ``linear_`` arguments."""
    sizes = {ours: fields.integer(key) for ours, key in _TABLE["gated_delta"].items()}
    made = recurrence(fields, kind="gated_delta", chunk=DELTA_CHUNK, key="linear_num_key_heads", **sizes)(0)
    return replace(made, norm=norm_weights(fields) * made.head_dim)


def predicting(blocks: list[Block], hidden: int) -> list[Block]:
    """A depth of multi-token prediction.

    Norms of the state and of the next embedding and a product of both in front of its layers, a norm behind them.
    """
    first = replace(
        blocks[0], norms=blocks[0].norms + 2, before=(Linear("mtp.eh_proj", hidden, 2 * hidden, shard="column"),)
    )
    made = [first, *blocks[1:]]
    return [*made[:-1], replace(made[-1], norms=made[-1].norms + 1)]


def attention(fields: Fields, *, causal: bool = True, cross: bool = False, windowed: bool = True) -> Any:
    """Self or cross attention as Megatron builds it: one product for q, k and v; latent attention by its own names."""
    heads, hidden, bias = fields.integer("num_attention_heads"), fields.integer("hidden_size"), bias_linear(fields)
    channels = fields.optional("kv_channels")
    normed, l2 = fields.flag("qk_layernorm"), fields.flag("qk_l2_norm")
    if fields.flag("multi_latent_attention"):
        norms = norm_weights(fields) if normed else 0
        return latent(fields, "qk_head_dim", "qk_pos_emb_head_dim", latent_norm=norms)(0)
    fields.ignore("group_query_attention")  # num_query_groups says it
    groups = fields.kv_heads(heads, "num_query_groups")
    dim = channels or fields.quotient(hidden, heads, f"hidden_size = {hidden}, or kv_channels", "num_attention_heads")
    rotary = position_embedding(fields) in _TABLE["rotary"]
    share = min(fields.number("rotary_percent"), 1.0)
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
        dropout=fields.number("attention_dropout"),
        window=_window(fields) if windowed else None,
        qk_norm="head" if normed or l2 else "none",
        qk_norm_weights=0 if l2 else norm_weights(fields),
        sinks=fields.text("softmax_type") == "learnable",
        gate="queries" if fields.flag("attention_output_gate") and not cross else "none",
    )


def _sparse(fields: Fields, layers: int) -> list[bool]:
    """The layers with experts; of Megatron-DeepSpeed every other one where nothing is said, the last of each two."""
    if not _deepspeeds(fields):
        sparse = _layer_flags(fields, "moe_layer_freq", layers, lambda layer, every: layer % every == 0)
        leading = fields.count("first_k_dense_replace")  # MindSpeed-LLM's
        return [flag and layer >= leading for layer, flag in enumerate(sparse)]
    every = fields.integer("expert_interval")
    return [(layer + 1) % every == 0 for layer in range(layers)]


def _deepspeeds(fields: Fields) -> bool:
    """Whether it is the fork Megatron-DeepSpeed, which has DeepSpeed's layer of experts."""
    return not fields.config.keys().isdisjoint(_TABLE["deepspeeds"])


def mlp(fields: Fields) -> MlpShape:
    return MlpShape(_width(fields), _gated(fields), bias_linear(fields), fused_gate_up=True)


def mixture(fields: Fields) -> MoeShape | None:
    """The experts of a sparse layer; None for a dense model."""
    experts = fields.count("num_experts")
    if not experts:
        return None
    gated, bias, dense = _gated(fields), bias_linear(fields), _width(fields)
    if _deepspeeds(fields):
        top_k = fields.integer("topk")
        return None if experts == 1 else MoeShape(experts, min(top_k, experts), dense, gated, bias)
    width = fields.optional("moe_ffn_hidden_size") or dense
    together = "moe_shared_expert_intermediate_size", "shared_moe_ffn_hidden_size"
    shared = fields.optional(*together) or fields.count("n_shared_experts") * width
    top_k = fields.top_k(experts, "moe_router_topk")
    return MoeShape(
        experts,
        top_k,
        width,
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
    return 1 if fields.text("normalization") == "RMSNorm" else 2


def position_embedding(fields: Fields) -> str:
    kind = fields.text("position_embedding_type")
    if fields.flag("use_rotary_position_embeddings") and kind == "learned_absolute":
        return "rope"
    absent = fields.flag("no_position_embedding") or not fields.flag("add_position_embedding")
    return "none" if absent and kind == "learned_absolute" else kind


def _gated(fields: Fields) -> bool:
    return True in [fields.flag(name) for name in _TABLE["gates"]]


def _width(fields: Fields) -> int:
    width, step = fields.optional("ffn_hidden_size"), fields.optional("multiple_of")
    factor = fields.number("hidden_dim_multiplier")
    if width is not None:
        return width
    hidden = fields.integer("hidden_size")
    if step and fields.flag("swiglu"):  # FlagScale's
        return int(next_multiple(int(int(4 * hidden * 2 / 3) * factor), step))
    # megatron/training/arguments.py: with swiglu two thirds of 4h, rounded down to a multiple of 64.
    width = 64 * int(4 * hidden * 2 / 3 / 64) if fields.flag("swiglu") else 4 * hidden
    fields.refuse(width < 1, "expected at least 24 with swiglu, or an ffn_hidden_size", "hidden_size")
    return width


def _window(fields: Fields) -> int | None:
    """``window_size`` (keys before, keys after): a query sees itself and those before."""
    before = re.findall(r"^(?:None$|[(\[\s]*(-?\d{1,9})\b)", str(fields.raw("window_size")))
    fields.refuse(not before, "expected two integers, such as 127,0", "window_size")
    return max(int(before[0] or -1) + 1, 0) or None


def _layer_flags(fields: Fields, key: str, layers: int, every: Any) -> list[bool]:
    """One flag a layer: an integer is a period, ``([0]*3+[1]*58)`` a list; absent: all."""
    value = fields.raw(key)
    if value is None:
        return [True] * layers
    try:
        listed = evaluated(str(value), MAX_LAYERS)
    except ValueError:
        raise fields.error("expected an integer or a list such as ([0]*3+[1]*58)", key) from None
    if isinstance(listed, int) and listed > 0:
        return [every(layer, listed) for layer in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers:
        raise fields.error(f"expected a pattern of {layers} layers", key)
    return [*map(bool, listed)]


def _bert(fields: Fields) -> Noted:
    """BERT with its masked-token head and, unless it is switched off, the next-sentence head."""
    hidden, positions = fields.integer("hidden_size"), fields.integer("max_position_embeddings", "seq_length")
    common = _common(fields)
    block = Block(attention(fields, causal=False), mlp(fields), count=fields.layers("num_layers"), **common)
    stack = Stack(
        "encoder",
        hidden,
        (block,),
        positions=positions,
        final_norm=common["norm_weights"],
        extra=(("token_type_embeddings", 2 * hidden),),
    )
    pooled = fields.flag("bert_binary_head", default=not fields.flag("bert_no_binary_head"))
    return _model(
        fields,
        "megatron-bert",
        stack,
        usual="BertWordPieceLowerCase",
        head_bias=True,
        before_head=matrices(fields, _TABLE["bert_head"][: 3 if pooled else 1]),
        max_positions=positions,
        extra=(("head_norm", common["norm_weights"] * hidden),),
    )


def _t5(fields: Fields) -> Noted:
    """T5: learned positions that encoder and decoder share, and a bias in the head."""
    hidden, common = fields.integer("hidden_size"), _common(fields)
    one = fields.layers("encoder_num_layers", "num_layers")
    two = fields.layers("decoder_num_layers", "num_layers", "encoder_num_layers")
    encoder = Block(attention(fields, causal=False), mlp(fields), count=one, **common)
    cross = attention(fields, causal=False, cross=True)
    decoder = Block(attention(fields), mlp(fields), cross=cross, norms=3, count=two, **common)
    positions, final = _learned(fields, "max_position_embeddings"), common["norm_weights"]
    return _model(
        fields,
        "megatron-t5",
        Stack("encoder", hidden, (encoder,), positions=positions, final_norm=final),
        Stack("decoder", hidden, (decoder,), final_norm=final),
        usual="BertWordPieceCase",
        head_bias=True,
        max_positions=positions or None,
    )
