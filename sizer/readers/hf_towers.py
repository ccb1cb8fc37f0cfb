"""Vision towers before a text tower, as ``towers.json`` declares them by their configuration's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from shapes.model import AttentionShape, Block, Linear, MlpShape, ModelShape, Stack, Tower, run_lengths
from sizer.readers.reading import Config, Fields, Names, Values, table


def with_towers(outer: Fields, wrapper: str, model: ModelShape) -> tuple[ModelShape, Names]:
    """``model``, a text tower, with the vision tower that its wrapper has before it, and notes on what is left out."""
    given = outer.config.get("vision_config")
    spec: Config = table("towers")["wrappers"].get(wrapper, {})
    left = [key for key in ("audio_config", "speech_config") if outer.config.get(key)]
    found = _known(given, spec) if isinstance(given, Mapping) else None
    if given and (found is None or not spec):
        left.append("vision_config")
    notes = [f"left out, with what joins it to the text: {key.removesuffix('_config')} tower" for key in left]
    if found is None or "vision_config" in left:
        return model, tuple(notes)
    tower = _tower(outer, found, spec, model.hidden)
    whole = replace(model, towers=(tower,))
    more = whole.parameters - model.parameters
    return whole, (*notes, f"with its vision tower, {more / 1e6:.4g} M parameters, which runs where --images are given")


def _known(given: Config, spec: Config) -> Config | None:
    """The tower that the file says, else its wrapper's."""
    towers: Mapping[str, Config] = table("towers")["towers"]
    return towers.get(str(given.get("model_type")), towers.get(spec.get("vision", "")))


def _tower(outer: Fields, spec: Config, around: Config, text: int) -> Tower:
    value = _reader(outer, spec, around, text)
    vision = outer.nested("vision_config")

    def vectors(name: str, times: int = 1) -> tuple[tuple[str, int], ...]:
        return tuple((key, times * value(size)) for one in (spec, around) for key, size in one.get(name, {}).items())

    vision.ignore(*spec.get("ignored", ()))
    hidden, heads = value("h"), value("heads")
    dim = vision.quotient(hidden, heads, f"the tower's hidden size {hidden}", "num_attention_heads")
    traits: Values = {
        name: vision.flag(one) if isinstance(one, str) else one for name, one in spec["attention"].items()
    }
    traits["qk_norm"] = "full" if traits.get("qk_norm") else "none"
    traits["rotary_dim"] = traits.get("rotary_dim", 0) * dim
    core = AttentionShape(heads, heads, dim, causal=False, **traits)
    norms = spec["norm_weights"]  # or by the kind of norm
    norms = (
        norms
        if isinstance(norms, int)
        else vision.choice(vision.text("norm_type", default="rms_norm"), norms, "norm_type")
    )
    block = Block(core, MlpShape(value("width"), **spec["mlp"]), norm_weights=norms, dropout=0.0)
    blocks = [replace(block, extra=vectors("layer"))] * value("layers")
    if "window_size" in spec["defaults"]:  # windows of so many pixels a side but in the layers listed
        window = (value("window_size") // value("patch")) ** 2
        listed = vision.integers("fullatt_block_indexes") or spec["defaults"]["fullatt_block_indexes"]
        local = replace(block, attention=replace(core, window=window))
        blocks = [one if layer in listed else local for layer, one in enumerate(blocks)]
    front = Linear("patch_embedding", hidden, value("inputs"), spec["front_bias"], kind="conv", grad_input=False)
    rows, extra = (*spec.get("behind", ()), *around.get("behind", ())), vectors("extra")
    if "each" in spec:  # deepstack: a merger more for each of the layers listed
        listed = vision.integers(spec["each"]["of"])
        rows += tuple((f"deepstack.{layer}.{name}", *rest) for layer in listed for name, *rest in spec["behind"])
        extra += tuple((name, len(listed) * value(size)) for name, size in spec["each"]["extra"].items() if listed)
    if vision.flag("vision_use_head", default="head" in spec):
        extra += vectors("head")
    usual = around.get("defaults", {}).get("multimodal_projector_bias", True)
    behind = tuple(
        Linear(name, value(out), value(inner), outer.flag(bias, default=usual) if isinstance(bias, str) else bias)
        for name, out, inner, bias in rows
    )
    stack = Stack("vision", hidden, run_lengths(blocks), front=(front,), final_norm=0, extra=extra)
    side, special = value("side"), spec.get("special", 0)
    return Tower(stack, behind, value("patch"), value("merge"), side, bool(spec.get("tiled")), special)


def _reader(outer: Fields, spec: Config, around: Config, text: int) -> Callable[[str], int]:
    """What works out a sum of products of numbers, keys and names."""
    vision = outer.nested("vision_config")
    names = {**table("towers")["names"], **spec["names"], **around.get("names", {})}

    def word(one: str) -> int:
        if one.isdigit() or one == "text":
            return text if one == "text" else int(one)
        if one == "patches":
            return (value("image_size") // value("patch")) ** 2
        if one in names:
            return value(names[one])
        fields, key = (outer, one[1:]) if one.startswith(".") else (vision, one)
        defaults = (around if fields is outer else spec).get("defaults", {})
        spelled = [key, *table("towers")["also"].get(key, ())]
        given = fields.raw(*spelled, default=defaults.get(key))
        if isinstance(given, list) and given and all(size == given[0] for size in given):
            return Fields({key: given[0]}, fields.where, prefix=fields.prefix).integer(key)  # height and width
        if isinstance(given, bool):
            return int(given)
        return fields.integer(*spelled, default=defaults.get(key))

    def value(said: str) -> int:
        return sum(prod(map(word, term.split("*"))) for term in said.split("+"))

    return value
