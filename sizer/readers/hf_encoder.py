"""BERT, RoBERTa, T5, BART, Whisper, ViT, SigLIP of transformers; towers before a text tower, as ``towers.json`` has."""

from collections.abc import Callable, Mapping
from functools import partial

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
    POSITIONS,
    Rows,
    all_heads,
    architecture_of,
    head_dim,
    head_matrices,
    hidden_size,
    matrices,
    positions,
    total,
    vectors,
)
from .reading import FORMATS, Config, Fields, Names, Values, table


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


def shared_vocabulary(fields: Fields) -> int:
    """The vocabulary of both sides, of which marian could have two."""
    vocab = fields.integer("vocab_size")
    decoders = fields.config.get("decoder_vocab_size") or vocab
    fields.refuse(decoders != vocab, f"expected vocab_size = {vocab}", "decoder_vocab_size")
    return vocab


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
