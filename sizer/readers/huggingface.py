"""Hugging Face ``config.json``: model_type -> builder, with the model class's own defaults for absent keys."""

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.frozen import Function, Words, first_of, replace
from shapes.model import Block, ModelShape, Stack, Tower, run_lengths
from shapes.model.resize import dimensions

from .expressions import CALLS
from .hf_blocks import (
    NAMES,
    OF_LAYERS,
    OF_STACK,
    POSITIONS,
    architecture_of,
    head_of,
    hidden_size,
    layer_count,
    layers,
    matrices,
    model_of,
    said,
    told,
    total,
    vectors,
    with_head,
)
from .loading import QUANTISATION
from .reading import FORMATS, Config, Fields, Names, Reading, UnknownModelType, Values, at, reading, table, unread


def _function(name: str) -> Function:
    """A function of a file's fields that a table calls by its name; no module is loaded past the one that has it."""
    modules = (import_module(f"sizer.readers.hf_{one}") for one in ("blocks", "decoders", "encoder"))
    found: Function = next(getattr(one, name) for one in modules if hasattr(one, name))
    return found


def _read(kind: str, **given: Any) -> Callable[[Fields], Any]:
    """The first of some keys, as ``Fields`` reads a ``kind``."""
    named, inside = given.pop(kind), given.pop("inside", None)
    names = [named] if isinstance(named, str) else named
    return lambda fields: getattr(fields.nested(inside) if inside else fields, kind)(*names, **given)


def _either(flag: Function, then: Any = True, otherwise: Any = False) -> Any:
    yes, no = _trait(then), _trait(otherwise)
    return lambda fields: said(fields, yes if flag(fields) else no)


def _call(call: str, **given: Any) -> Any:
    traits = _traits(given)
    return lambda fields: _function(call)(fields, **told(fields, traits))


def _layers(layers: str, **given: Any) -> Any:
    """A function of fields that gives each layer a table's expression of ``layer``, ``window``, number, traits."""
    code, traits = compile(layers, "table", "eval"), _traits(given)

    def part(fields: Fields) -> Function:
        held = {**told(fields, traits), "layers": layer_count(fields)}
        return lambda layer, window=None: eval(
            code, CALLS, {**held, "layer": layer, "window": window}
        )  # the table's own

    return part


NAME = "huggingface"
_TABLE = FORMATS[NAME]
#: How a trait is read -> the function of a file's fields that its table's entries make.
_WAYS: dict[str, Callable[..., Function]] = {
    "flag": lambda then=True, otherwise=False, **given: _either(_read("flag", **given), then, otherwise),
    "key": lambda key, among, **given: _either(lambda fields: fields.raw(key) in among, **given),
    "choice": lambda choice, of: lambda fields: fields.choice(fields.text(of), choice, of),
    "layers": _layers,
    "call": _call,
    **{way: partial(_call, function) for way, function in _TABLE["functions"].items()},
    **{kind: partial(_read, kind) for kind in _TABLE["reads"]},
}


def _tables(file: str) -> Values:
    """Family -> its table's text. One family is parsed: the whole file takes as long as a tenth of a check."""
    text = Path(__file__).with_name(f"{file}.toml").read_text("utf-8")
    _, *parts = re.split(r"(?m)^\[([\w-]+)\]\n", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


DECODERS, HYBRIDS, ENCODERS = map(_tables, ("families", "hybrids", "encoders"))
#: model_type -> the table that says how its fields become a ModelShape.
BUILDERS = DECODERS | HYBRIDS | ENCODERS
_TABLES = BUILDERS | _tables("formats")
#: Sections of a table, each the traits of a part of a layer.
_PARTS = "attention", "mlp", "experts", "mixer"


def _traits(table: Config) -> Values:
    """Traits by name: values as they are, else functions of a file's fields."""
    return {name: _traits(each) if name in ("local", "whole") else _trait(each) for name, each in table.items()}


def _trait(given: Any) -> Any:
    if isinstance(given, list):
        return [*map(_trait, given)]
    if not isinstance(given, dict):
        return given
    given = dict(given)
    other = _trait(given.pop("or", None))
    found = _WAYS[next(name for name in given if name in _WAYS)](**given)
    return found if other is None else lambda fields: found(fields) or said(fields, other)


def _table(name: str) -> Values:
    """A family's traits, with those of the family that it is like."""
    own = tomllib.loads(_TABLES[name])
    own |= own.pop(name, {})  # [name.mixer]
    return _over(_table(own.pop("like")) if "like" in own else {}, own)


def _over(table: Values, own: Config) -> Values:
    """``table`` with a family's, or a stack's, ``own`` traits over it."""
    parts = {key: {**table.get(key, {}), **own[key]} for key in _PARTS if isinstance(own.get(key), dict)}
    return {**table, **own, **parts}


def declared(name: str, fields: Fields) -> ModelShape:
    """A model of the family ``name``."""
    table = _table(name)
    fields.ignore(*table.pop("ignored", ()))
    common = {name: table.pop(name) for name in (*_PARTS, *OF_LAYERS, *OF_STACK, "blocks") if name in table}
    stacks = [_stacks(fields, _over(common, own)) for own in table.pop("stacks", [{}])]
    return model_of(fields, *chain(*stacks), **_traits(table))


def _stacks(fields: Fields, table: Values) -> list[Stack]:
    """A table's stack of layers, or of several ``blocks`` of them; or the stacks of its ``call``."""
    if "call" in table:
        return _trait(table)(fields)  # type: ignore[no-any-return] # hf_encoder.py's
    groups, extra = table.pop("blocks", [{}]), _trait(table.pop("extra", []))
    traits = {name: _trait(table.pop(name)) for name in OF_STACK if name in table}
    blocks = run_lengths(chain(*(_layers_of(fields, _over(table, own)) for own in groups)))
    usual = {"name": "decoder", "hidden": hidden_size, "final_norm": blocks[0].norm_weights}
    return [Stack(blocks=blocks, extra=vectors(fields, extra), **told(fields, usual | traits))]


def _layers_of(fields: Fields, table: Values) -> list[Block]:
    core, dense, sparse, mixer = (table.pop(part, {}) for part in _PARTS)
    mlps = _trait({"call": "mlp"} | dense)
    if sparse:  # whose traits may be lacking where no layer has experts
        mlps = partial(_function("experts"), elsewhere=_traits(dense), **_traits(sparse))
    traits = _traits(table) | ({"mixer": _trait({"call": "recurrence"} | mixer)} if mixer else {})
    return layers(fields, _trait({"call": "attention"} | core), mlps, **traits)


#: Where wrappers hold their text tower.
_TEXTS = ("text_config", "llm_config", "language_config")

#: Types that hold the part we size under a key: type -> (key, that part's type where it does not say, the part).
NESTED: dict[str, Names] = _TABLE["nested"]
#: Types whose absent keys another type's class fills in.
DEFAULTS_OF: Words = _TABLE["defaults_of"]
#: Dimension -> the names it may have in a file.
KEYS: dict[str, Names] = _TABLE["dimensions"]


def read(config: Config, where: str, family: str = "") -> Reading:
    """``config`` as a Reading, by formats.toml's ``family`` where one is named; UnknownModelType: none is guessed."""
    top = outer = Fields(config)
    for key in config.keys() & {"thinker_config", "vlm_config"}:  # a talker makes speech of it, a retriever an index
        top.ignore("model_type", "talker_config", "code2wav_config", "token2wav_config")
        outer = top.nested(key)
    wrapper = _type_of(outer)
    fields, model_type, part = _sized(outer, wrapper)
    if not family and model_type not in BUILDERS:
        raise UnknownModelType("no reader for this model type", fields.key_of("model_type"), model_type)
    known = {} if family else table("hf_defaults")[DEFAULTS_OF.get(model_type, model_type)]
    # The class's own file names its head.
    given = {**fields.config, "model_type": model_type, "architectures": outer.config.get("architectures")}
    alone = _TABLE["drafts"].get(head_of(architecture_of(outer)), {}).get("sets", {})
    given |= alone
    tie = "tie_word_embeddings"
    if part and tie in outer.config:  # said twice, either ties, but where the class takes its own word alone
        given[tie] = outer.config[tie] or (wrapper not in _TABLE["own_ties"] and given.get(tie))
    fields = replace(fields, config=given, defaults=known)
    _refuse_uneven(fields)
    try:
        model = replace(declared(family or model_type, fields), model_type=model_type, part=part)
        own = model_type in _TABLE["own_heads"] and outer is top  # of a retriever the head is outermost
        model, heads = (model, ()) if own else with_head(top, model)
        model, released, quantised = _released(top, model)
        towers: Names = ()
        if not alone and (model.part == "text tower" or "audio_config" in config):
            model, towers = with_towers(outer, wrapper, model)
    except InputError as error:
        raise _in_file_terms(error, fields) from None
    _refuse_unknown_layers(fields)
    outer.ignore(*_TEXTS * (part == "vision tower"))  # as a note says
    top.ignore(*(key for key, value in table("hf_written").get(wrapper, {}).items() if at(config, key) == value))
    if model.stacks[1:] and architecture_of(outer).endswith("ForCausalLM"):
        raise UnknownModelType("has no formula: an encoder-decoder's decoder alone", "architectures")
    notes, keys = _notes({**config, **given}, model_type, None if model.towers else part), _keys(fields, model)
    return reading(
        top,
        NAME,
        model,
        where,
        keys=keys,
        longest=model.main.length or model.max_positions or fields.optional(*POSITIONS),  # learned, or trained for
        workload=released,
        notes=(
            *_contradicted(outer, wrapper, model_type),
            *heads,
            *notes,
            *_left_to_the_class(keys, fields),
            *towers,
            *quantised,
        ),
    )


def of_class(proof: Any, config: Config, where: str) -> Reading:
    """A class whose ``proof`` (shapes.trace.prove) says what model it is, as the reading of its file.

    In its release's formats, and with all that the class has and that did not run.
    """
    fields, built = Fields(config, asked={*_TEXTS}), proof.module
    model, released, quantised = _released(fields, proof.model)
    beside = sum(one.numel() for one in built.parameters()) - proof.parameters
    whole, notes = with_towers(fields, fields.text("model_type"), model)
    named = architecture_of(fields)
    other = named not in ("", type(built).__name__)
    if not (beside or other) or whole.parameters - model.parameters != beside:  # of CLIP's tower none is: it ran
        whole = replace(model, extra=(*model.extra, ("not run", beside))) if beside else model
        notes = (
            f"not run: {', '.join(proof.held) or 'a part'}, all alike; {beside:,} parameters, on the last stage",
        ) * bool(beside)
    notes += (f"{named} is not known: read as {type(built).__name__}",) * other
    inner = getattr(built, "config", config)
    known = fields.asked.union(signature(type(inner).__init__).parameters, getattr(inner, "attribute_map", ()))
    return Reading(
        whole,
        NAME,
        where,
        keys=proof.keys,
        longest=model.main.length or proof.longest,
        workload=released,
        config=config,
        notes=(f"recognised in its class, {proof.parameters:,} parameters and all products proven", *notes, *quantised),
        # Keys that are known to matter a class may ask for and not declare; parts have their own.
        unread=tuple(one for one in unread(config, known, NAME) if not one.changes and "." not in one.key),
        recognised=True,
    )


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
        found = first_of(tables["towers"][kind] for kind in kinds if kind in tables["towers"])
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
    outer, tables = replace(outer, defaults=around.get("defaults", {})), table("towers")
    both = {key: [*spec.get(key, ()), *around.get(key, ())] for key in ("front", "behind", "extra", "reads")}
    outer.ignore(*both["reads"])
    read, part = outer.raw("vision_feature_layer", "vision_feature_layers"), outer.nested(f"{name}_config")
    size = {**part.config, "text": text, "features": len(read) if isinstance(read, list) else 1}
    size["outer"] = {**outer.defaults, **outer.config}
    own = replace(part, config=size, defaults=spec["defaults"])
    own.ignore(*spec.get("ignored", ()))
    size["mergers"] = len(own.integers(spec.get("each", "")))
    for key, of in (tables["names"] | spec["names"] | around.get("names", {})).items():
        size[key] = own.integer(*NAMES.get(of, [of])) if of in spec["defaults"] else total(own, of)
    size.setdefault("dim", own.quotient(size["h"], size["a"], f"the hidden size {size['h']}", "num_attention_heads"))
    found = {"name": name, "front": {"matrices": both["front"]}, "extra": both["extra"]}
    (stack,) = _stacks(own, _over(tables["stack"], spec["stack"]) | found)
    return Tower(stack, matrices(own, both["behind"]), *map(size.__getitem__, tables["tower"]))


def _type_of(outer: Fields) -> str:
    model_type: str = _TABLE["types_of_classes"].get(architecture_of(outer), outer.text("model_type"))
    outer.refuse(not model_type, "expected a model_type: which architecture is this?", "model_type")
    outer.refuse(
        model_type.endswith("_assistant"),
        "expected the model that it drafts for, whose keys and values its layers read",
        "model_type",
    )
    return model_type


def _sized(outer: Fields, wrapper: str) -> tuple[Fields, str, str | None]:
    """The fields of the part of a ``wrapper`` that is sized, its type, and the part's name (None: all of it)."""
    # An unknown type may have a known text tower.
    around = (
        (key, kind, "text tower")
        for key in _TEXTS
        if wrapper not in BUILDERS and (kind := str(at(outer.config, f"{key}.model_type"))) in BUILDERS
    )
    nested = NESTED.get(wrapper) or first_of(around)
    if not nested:
        return outer, wrapper, None
    key, inner, part = nested
    fields = _within(outer, key)
    named = fields.text("model_type")
    # A class with a text class of its own takes no other, whatever the file calls it.
    own = fields is outer or named in {"", *NESTED} or inner.startswith(wrapper) or named.startswith(wrapper)
    return fields, inner if own else named, part


def _within(outer: Fields, key: str) -> Fields:
    """A wrapper's part under ``key``, or where others have their text tower; some say its sizes twice."""
    there = first_of(one for one in (key, *_TEXTS) if one in outer.config)
    if there is None:  # qwen2_vl used to keep them at the top level
        return outer
    fields = outer.nested(there)
    outer.ignore(*(name for name, value in fields.config.items() if outer.config.get(name) == value))
    return fields


def _released(outer: Fields, model: ModelShape) -> tuple[ModelShape, Values, Names]:
    """``model`` in the formats that its release says next to it, in its file or in its text tower's part."""
    outer = Fields(outer.config)  # quantisers' keys: none is reported as not read
    inner = outer.config.get("text_config")
    texts = (outer, outer.nested("text_config")) if isinstance(inner, Mapping) else (outer,)
    keys = ((one, key) for one in texts for key in ("quantization_config", QUANTISATION, "quantization"))
    said = first_of(one.nested(key) for one, key in keys if one.config.get(key))
    if not said:
        return model, {}, ()
    from .hf_quantised import as_released

    return as_released(said, str(outer.config.get("expert_dtype", "")), model)


def _refuse_uneven(fields: Fields) -> None:
    """InputError for lists that have not an entry for each layer, with those of multi-token prediction or without."""
    own = replace(fields, asked=set())
    layers = own.optional(*NAMES["layers"], "decoder_layers") or 0
    more = layers + own.count("num_nextn_predict_layers")
    for key, kind in _TABLE["by_layer"].items():
        value = fields.config.get(key)
        if layers and value and not (kind == "integers" and isinstance(value, int)):
            own.refuse(len(getattr(own, kind)(key)) not in (layers, more), f"expected a list of {layers} {kind}", key)


def _refuse_unknown_layers(fields: Fields) -> None:
    """InputError for layers of unknown kinds, and for layers that differ where nobody asked how."""
    words, known = {*(fields.config.get("layer_types") or ())}, _TABLE["layer_words"]
    alike = known["alike"].get(fields.text("model_type"))
    differ = words if len(words) > 1 and (alike or f"{fields.prefix}layer_types" not in fields.asked) else ()
    strange = ", ".join(sorted(words.difference(alike or known["of_any"]) or differ))
    fields.refuse(
        strange, f"expected layers of one kind in transformers' words for layers, found {strange}", "layer_types"
    )


def _in_file_terms(error: InputError, fields: Fields) -> InputError:
    """An error that ModelShape raised about a dimension, under the file's name for it, with the keys that are misspelt.

    One that is not read leaves its class's own size to clash with the others.
    """
    if error.where is None and error.key in KEYS:
        error.key = fields.key_of(*KEYS[error.key])
    error.expected += fields.misspelt({*chain(*KEYS.values())})
    return error


def _keys(fields: Fields, model: ModelShape) -> Words:
    sizes = dimensions(model)
    return {  # of several names the first counts that has the size, one in the file before the class's own
        dimension: fields.prefix + name
        for dimension, names in KEYS.items()
        for held in (fields.defaults, fields.config)
        for name in names[::-1]
        if name in held and held[name] == sizes.get(dimension, held[name])
    }


def _left_to_the_class(keys: Words, fields: Fields) -> Names:
    """Names of sizes that the file leaves to its class: such a file is often another one, or a part of one.

    InputError for a size under another class's name: this class ignores it and takes its own default.
    """
    kind = fields.config["model_type"]
    for one, mapped in _TABLE["mapped"].items():
        own = {*fields.defaults}.intersection(KEYS[one])
        known = {"auto_map", *own, *mapped, *_TABLE["mapped_of"].get(kind, ())}
        # A type in DEFAULTS_OF has no class of its own.
        other = own and kind not in DEFAULTS_OF and known.isdisjoint(fields.config)
        strange = other and not fields.config.keys().isdisjoint(KEYS[one])
        fields.refuse(strange, f"is no key of its class, which reads {' or '.join(sorted(own))}", *KEYS[one])
    names = [keys[one].removeprefix(fields.prefix) for one in _TABLE["sizes_said"] if one in keys]
    # A width of None is computed from the others.
    absent = [f"{one} {fields.defaults[one]}" for one in names if one not in fields.config and fields.defaults.get(one)]
    return (f"not in the file, the class's own: {', '.join(absent)}",) * bool(absent)


def _contradicted(outer: Fields, wrapper: str, model_type: str) -> Names:
    """A note on a class, named in ``architectures``, that is another type's than the file's, or no known one's."""
    named = architecture_of(outer)
    said = _plainly(re.split("For[A-Z]|LMHead|Model", named)[0])
    own = {*map(_plainly, (wrapper, model_type, DEFAULTS_OF.get(model_type, model_type)))}
    if said in own:
        return ()
    if said in map(_plainly, (*BUILDERS, *NESTED)):
        return (f"model_type {wrapper} and {named} of another type: read as {model_type}, as transformers does",)
    alike = any(one.startswith(said) or said.startswith(one) for one in own) or named in _TABLE["types_of_classes"]
    known = alike or "auto_map" in outer.config
    return () if known else (f"{named} is no class of {wrapper} that is known: read as {model_type}",)


def _plainly(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower().removesuffix("_text"))


def _notes(config: Config, model_type: str, part: str | None) -> Names:
    notes = [f"{part} only ({model_type})"] if part else []
    if config.get("auto_map"):
        notes.append(f"its own code (auto_map) is not run: read as a {model_type}")
    notes += [said for key, said in _TABLE["notes_of_keys"].items() if config.get(key)]
    if model_type in HYBRIDS:
        notes.append("recurrent layers as their fused kernels run (mamba-ssm, fla)")
    return *notes, *_TABLE["notes_of_types"].get(model_type, ())
