"""BERT, RoBERTa, T5, BART, Whisper, ViT, SigLIP of transformers; towers before a text tower, as ``towers.json`` has."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shapes.frozen import Words, replace
from shapes.model import (
    AttentionShape,
    Block,
    Linear,
    Linears,
    MlpShape,
    ModelShape,
    QkNorm,
    Stack,
    Tower,
    Vectors,
    run_lengths,
)

from .expressions import sized
from .hf_blocks import (
    HIDDEN,
    POSITIONS,
    Rows,
    all_heads,
    architecture_of,
    flag,
    head_dim,
    head_matrices,
    hidden_size,
    layer_count,
    matrices,
    model_of,
    positions,
    total,
    vectors,
)
from .reading import FORMATS, Config, Fields, Names, Values, table

_TIED = flag("tie_word_embeddings", True)


def learned(fields: Fields, padding: int = 0) -> int | None:
    """Learned positions but ``padding`` rows that are none, as those to the padding index; None: alibi's."""
    rows = positions(fields)
    fields.refuse(rows <= padding, f"expected more than {padding} positions", *POSITIONS)
    return None if fields.text("position_embedding_type") == "alibi" else rows - padding


def own_head(fields: Fields, of: str) -> Linears:
    """The matrices of the head that ``architectures`` names, as the table ``of`` has them."""
    architecture = architecture_of(fields)
    kind = next(one for one in FORMATS["huggingface"][of] if architecture.endswith(one))
    return head_matrices(fields, of, kind, hidden_size(fields))


def has_vocabulary(fields: Fields, of: str) -> bool:
    return any(one.name == "head_transform" for one in own_head(fields, of))


def head_norm(fields: Fields, of: str, weights: int = 2) -> int:
    """A norm behind the head's first matrix."""
    return weights * sum(one.out_features for one in own_head(fields, of) if one.name.startswith("head"))


def one_side(side: str, core: AttentionShape, mlp: MlpShape, layers: int, **traits: Any) -> Block:
    """Layers of an encoder, which see everything, or of its decoder, which attend to it as well."""
    whole = replace(core, causal=False)
    if side == "encoder":
        return Block(whole, mlp, count=layers, **traits)
    return Block(core, mlp, cross=replace(whole, cross=True), norms=3, count=layers, **traits)


def t5(fields: Fields, activation: str = "relu") -> ModelShape:
    """T5, where a x d_kv need not be h.

    ``feed_forward_proj`` (absent: ``activation``) "gated-…" makes the MLP gated; the first layer of each stack learns
    relative position biases.
    """
    hidden, heads, dropout = hidden_size(fields), all_heads(fields), fields.number("dropout_rate")
    gated = fields.text("feed_forward_proj", default=activation).startswith("gated-")
    width = MlpShape(fields.integer("d_ff"), gated=gated)
    buckets = fields.integer("relative_attention_num_buckets", default=32)
    core = AttentionShape(heads, heads, fields.integer("head_dim", "d_kv"), dropout=dropout)
    # Absent, the class takes num_layers (not its alias), whatever the table of defaults (made from default num_layers)
    # holds.
    own = "num_decoder_layers" in fields.config and fields.optional("num_decoder_layers")
    layers = {"encoder": layer_count(fields), "decoder": own or fields.layers("num_layers")}
    stacks = [
        Stack(
            side,
            hidden,
            (one_side(side, core, width, number, dropout=dropout),),
            extra=(("relative_attention_bias", buckets * heads),),
        )
        for side, number in layers.items()
    ]
    # transformers 5's class ties whatever the file says, but for a checkpoint whose two matrices differ: Flan-T5's do.
    return model_of(fields, *stacks, tied=_TIED)


def bart(fields: Fields, offset: int = 2, embedding_norm: int = 2, final_norm: int = 0) -> ModelShape:
    """BART and its kin: learned positions (``offset`` rows more than positions), norms by their weights."""
    rows = positions(fields)
    stacks = _bart_stacks(fields, positions=rows + offset, embedding_norm=embedding_norm, final_norm=final_norm)
    # Untied, the class keeps a table for each side and the shared one, which then nothing reads.
    tables = (1 if _TIED(fields) else 3) if fields.flag("share_encoder_decoder_embeddings", default=True) else 2
    vocab = fields.integer("vocab_size")  # marian's
    decoders = fields.config.get("decoder_vocab_size") or vocab
    fields.refuse(decoders != vocab, f"expected vocab_size = {vocab}", "decoder_vocab_size")
    return model_of(fields, *stacks, tied=_TIED, max_positions=rows, embedding_tables=tables)


def whisper(fields: Fields) -> ModelShape:
    """Whisper: two convolutions turn 3,000 frames into 1,500 positions; keys have no bias."""
    frames, targets = fields.integer("max_source_positions"), fields.integer("max_target_positions")
    front = matrices(fields, FORMATS["huggingface"]["whisper_front"])
    encoder, decoder = _bart_stacks(fields, k_bias=False, final_norm=2)
    encoder = replace(encoder, length=frames, front=front, positions=frames)
    return model_of(fields, encoder, replace(decoder, positions=targets), tied=_TIED, max_positions=targets)


def _bart_stacks(fields: Fields, *, k_bias: bool = True, **traits: Any) -> list[Stack]:
    hidden, dropout = hidden_size(fields), fields.number("attention_dropout")
    stacks = []
    for side, (names, layers) in FORMATS["huggingface"]["sides"].items():
        heads = fields.integer(*names)
        dim = fields.quotient(hidden, heads, f"{fields.key_of(*HIDDEN)} = {hidden}", *names)
        core = AttentionShape(heads, heads, dim, qkv_bias=True, k_bias=k_bias, o_bias=True, dropout=dropout)
        width = MlpShape(fields.integer(f"{side}_ffn_dim"), gated=False, bias=True)
        block = one_side(side, core, width, fields.layers(*layers), norm_weights=2, dropout=fields.number("dropout"))
        stacks.append(Stack(side, hidden, (block,), **traits))
    return stacks


def patches(fields: Fields, more: int = 0) -> int:
    """The patches of an image, and ``more`` tokens."""
    image, patch = fields.integer("image_size"), fields.integer("patch_size")
    fields.refuse(patch > image, f"expected at most image_size = {image}", "patch_size")
    return (image // patch) ** 2 + more


def diffusion(fields: Fields, blocks: list[Values], front: Rows, behind: Rows) -> ModelShape:
    """A diffusion transformer: layers whose norms one vector a sequence scales and shifts; tables of formats.toml."""
    size = partial(total, fields)
    heads, dim = all_heads(fields), head_dim(fields)
    norm: QkNorm = "head" if size("qk_norm") else "none"
    core = AttentionShape(
        heads, heads, dim, qkv_bias=True, o_bias=True, causal=False, qk_norm=norm, rotary_dim=size("rotary_dim")
    )
    width, layers = MlpShape(size("intermediate_size"), gated=False, bias=True), []
    crosses = {"text": replace(core, cross=True), "own": core}
    for given in blocks:
        traits = dict(given)
        if number := size(traits.pop("number")):
            block = Block(
                core,
                width,
                crosses.get(traits.pop("cross", "")),
                norm_weights=0,
                count=number,
                before=matrices(fields, traits.pop("before")),
                extra=vectors(fields, traits.pop("extra")),
                context=size(traits.pop("context")),
                **traits,
            )
            layers.append(block)
    stack = Stack("image", hidden_size(fields), tuple(layers), front=matrices(fields, front), final_norm=0)
    extra = vectors(fields, [["scale_shift_table", "tables"]])
    return ModelShape("diffusion", (stack,), head=False, before_head=matrices(fields, behind), extra=extra)


def with_towers(outer: Fields, wrapper: str, model: ModelShape) -> tuple[ModelShape, Names]:
    """``model``, a text tower, with the known towers that its wrapper has before it, and notes on them and the others.

    Behind a known tower of a wrapper that is not known there is nothing, and a note.
    """
    tables, notes = table("towers"), []
    for key, given in outer.config.items():
        part = isinstance(given, Mapping) and given and (key in tables or "model_type" in given)
        if not part or outer.prefix + key in outer.asked:
            continue
        outer.ignore(key)
        name, spec = key.removesuffix("_config"), tables.get(key, {}).get(wrapper, {})
        kinds = wrapper, str(given.get("model_type")), spec.get("tower")
        found = next((tables["towers"][kind] for kind in kinds if kind in tables["towers"]), None)
        if not found:
            notes.append(f"left out, with what joins it to the text: {name} tower")
            continue
        whole = replace(model, towers=(*model.towers, _tower(outer, name, found, spec, model.hidden)))
        more = f"{(whole.parameters - model.parameters) / 1e6:.4g} M parameters on the first stage"
        notes += [f"with its {name} tower, {more}, which train as the text does, {tables['runs'][key]}"]
        notes += [f"left out: what joins its {name} tower to the text"] * (not spec)
        model = whole
    return model, tuple(notes)


def _tower(outer: Fields, name: str, spec: Config, around: Config, text: int) -> Tower:
    """The tower of this ``name`` in a wrapper, as the tables have it; ``text``: the text tower's hidden size."""
    outer = replace(outer, defaults=around.get("defaults", {}))
    own = replace(outer.nested(f"{name}_config"), defaults=spec["defaults"])
    value = _reader(outer, own, spec["names"] | around.get("names", {}), text)

    def vectors(name: str) -> Vectors:
        return tuple((key, value(size)) for one in (spec, around) for key, size in one.get(name, {}).items())

    def linears(name: str, rows: Rows = ()) -> Linears:
        return tuple(
            Linear(
                name, value(out), value(inner), outer.flag(bias, default=True) if isinstance(bias, str) else bias, *cut
            )
            for name, out, inner, bias, *cut in (*spec.get(name, ()), *rows, *around.get(name, ()))
        )

    own.ignore(*spec.get("ignored", ()))
    # deepstack: a merger more for each of the layers listed
    mergers = len(own.integers(spec["each"])) if "each" in spec else 0
    extra = vectors("extra") + vectors("of_each") * mergers
    extra += vectors("head") * own.flag("vision_use_head", default=True)
    blocks = run_lengths(_layers(own, spec, value, vectors("layer")))
    stack = Stack(name, value("h"), blocks, front=linears("front"), final_norm=0, extra=extra)
    return Tower(
        stack,
        linears("behind", [*spec.get("behind", ())] * mergers),
        value("patch"),
        value("merge"),
        value("side"),
        bool(spec.get("tiled")),
        spec.get("special", 0),
        value("heads") if spec.get("cut") else 1,
    )


def _layers(own: Fields, spec: Config, value: Callable[[str], int], extra: Vectors) -> list[Block]:
    """A tower's layers."""
    heads = value("heads")
    own.quotient(value("h"), heads, f"the tower's hidden size {value('h')}", "num_attention_heads")
    dim = value("dim")
    traits: Values = {name: own.flag(one) if isinstance(one, str) else one for name, one in spec["attention"].items()}
    traits["qk_norm"] = spec.get("qk_norm", "full") if traits.get("qk_norm") else "none"
    traits["rotary_dim"] = traits.get("rotary_dim", 0) * dim
    core = AttentionShape(heads, value("kv"), dim, causal=False, **traits)
    weights = own.choice(own.text("norm_type"), spec["norm_weights"], "norm_type")
    block = Block(
        core,
        MlpShape(value("width"), **spec["mlp"]),
        norms=spec.get("norms", 2),
        norm_weights=weights,
        extra=extra,
    )
    blocks = [block] * value("layers")
    if "window_size" not in own.defaults:
        return blocks
    # Windows of so many pixels a side but in the layers listed.
    window = (value("window_size") // value("patch")) ** 2
    listed = own.integers("fullatt_block_indexes")
    local = replace(block, attention=replace(core, window=window))
    return [one if layer in listed else local for layer, one in enumerate(blocks)]


def _reader(outer: Fields, own: Fields, names: Words, text: int) -> Callable[[str], int]:
    """A function that evaluates a table's expression of numbers, keys and ``names``."""
    tables = table("towers")
    names = tables["names"] | names

    def size(one: str) -> int:
        if one == "text":
            return text
        if one == "features":
            read = outer.raw("vision_feature_layer", "vision_feature_layers")
            return len(read) if isinstance(read, list) else 1
        if one in names:
            return sized(names[one], size)
        key = one.removeprefix("outer__")
        fields = own if key == one else outer
        spelled = [key, *tables["also"].get(key, ())]
        given = fields.required(*spelled)
        # Some say height and width, or a flag.
        return given if isinstance(given, bool) else fields.integer(*spelled)

    return partial(sized, size=size)
