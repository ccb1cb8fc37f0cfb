"""Hugging Face ``config.json``: model_type -> builder, with the model class's own defaults for absent keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from shapes.errors import InputError, refuse
from shapes.model import ModelShape
from sizer.readers.fields import Config, Fields, Values, table
from sizer.readers.hf_blocks import POSITIONS, with_head
from sizer.readers.hf_families import DECODERS, ENCODERS, HYBRIDS, declared
from sizer.readers.loading import BESIDE
from sizer.readers.reading import Reading, UnknownModelType, reading

NAME = "huggingface"

#: model_type -> how its fields become a ModelShape.
BUILDERS = {**DECODERS, **HYBRIDS, **ENCODERS}
#: Types whose builders read ``architectures`` themselves.
OWN_HEADS = ("bert", "roberta", "siglip_vision_model", "vit")

_TABLE = table("formats")[NAME]
#: Types that hold the part we size under a key: type -> (key, that part's type where it does not say, the part).
NESTED: dict[str, tuple[str, str, str]] = _TABLE["nested"]
#: Types whose absent keys another type's class fills in.
DEFAULTS_OF: dict[str, str] = _TABLE["defaults_of"]
#: Dimension -> the names it may have in a file.
KEYS: dict[str, list[str]] = _TABLE["dimensions"]


def read(config: Config, where: str, family: str = "") -> Reading:
    """``config`` as a Reading; UnknownModelType for a type no builder knows (it is never guessed).

    ``family``: a table of formats.toml that builds it.
    """
    top = outer = Fields(config, where)
    if "thinker_config" in config:  # what hears, sees and writes; a talker makes the writing speech
        top.ignore("model_type", "talker_config", "code2wav_config", "token2wav_config")
        outer = top.nested("thinker_config")
    wrapper = _type_of(outer)
    fields, model_type, part = _sized(outer, wrapper)
    builder = partial(declared, family) if family else BUILDERS.get(model_type)
    if builder is None:
        raise UnknownModelType(
            f"no reader for this model type (known: {', '.join(sorted({*BUILDERS, *NESTED}))})",
            where=where,
            key=fields.key_of("model_type"),
            value=model_type,
        )
    known = {} if family else table("hf_defaults")[DEFAULTS_OF.get(model_type, model_type)]
    given = {key: value for key, value in fields.config.items() if key != "model_type"}
    if part and "tie_word_embeddings" not in given and "tie_word_embeddings" in config:
        given["tie_word_embeddings"] = config["tie_word_embeddings"]
    filled = {**known, "model_type": model_type}
    fields = Fields(given, where, defaults=filled, prefix=fields.prefix, asked=outer.asked)
    try:
        model = replace(builder(fields), model_type=model_type, part=part)
        model, heads = (model, ()) if model_type in OWN_HEADS else with_head(outer, model)
        model, released, quantised = _released(top, model)
        model, towers = _seen(outer, wrapper, model)
    except InputError as error:
        raise _in_file_terms(error, fields, where) from None
    notes = _notes(config, model_type, None if model.towers else part)
    return reading(
        top,
        NAME,
        model,
        keys=_keys(fields, model),
        longest=_longest(fields, model),
        workload=released,
        notes=(*heads, *notes, *towers, *quantised),
    )


def _type_of(outer: Fields) -> str:
    model_type = outer.text("model_type")
    refuse(not model_type, "expected a model_type: which architecture is this?", "model_type", where=outer.where)
    outer.refuse(
        model_type.endswith("_assistant"),
        "expected the model that it drafts for, whose keys and values its layers read",
        "model_type",
    )
    return model_type


def _sized(outer: Fields, wrapper: str) -> tuple[Fields, str, str | None]:
    """The fields of what is sized of a ``wrapper``, its type, and which part it is (None: all)."""
    nested = NESTED.get(wrapper) or _around(outer.config, wrapper)
    if not nested:
        return outer, wrapper, None
    key, inner, part = nested
    # qwen2_vl used to keep the text tower's fields at the top level.
    fields = outer.nested(key) if key in outer.config else outer
    named = fields.text("model_type") if fields is not outer else ""
    return fields, named if named in BUILDERS else inner if not named or named in NESTED else named, part


def _released(outer: Fields, model: ModelShape) -> tuple[ModelShape, Values, tuple[str, ...]]:
    """``model`` in the formats that its release says next to it, in its file or in its text tower's part."""
    outer = Fields(outer.config, outer.where)  # its keys are quantisers' own, of which none is named as not read
    inner = outer.config.get("text_config")
    texts = (outer, outer.nested("text_config")) if isinstance(inner, Mapping) else (outer,)
    keys = ((one, key) for one in texts for key in ("quantization_config", BESIDE))
    said = next((one.nested(key) for one, key in keys if one.config.get(key)), None)
    if said is None:
        return model, {}, ()
    from sizer.readers.hf_quantised import as_released

    return as_released(said, str(outer.config.get("expert_dtype", "")), model)


def _seen(outer: Fields, wrapper: str, model: ModelShape) -> tuple[ModelShape, tuple[str, ...]]:
    """A text tower with the vision tower before it."""
    if model.part != "text tower":
        return model, ()
    from sizer.readers.hf_towers import with_towers

    return with_towers(outer, wrapper, model)


def _around(config: Config, model_type: str) -> tuple[str, str, str] | None:
    """Where an unknown type has a text tower that is known."""
    for key in ("text_config", "llm_config", "language_config") if model_type not in BUILDERS else ():
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner.get("model_type") in BUILDERS:
            return key, inner["model_type"], "text tower"
    return None


def _in_file_terms(error: InputError, fields: Fields, where: str) -> InputError:
    """An error that ModelShape raised about a dimension, under the file's name for it."""
    if error.where is None and error.key in KEYS:
        return InputError(error.expected, where=where, key=fields.key_of(*KEYS[error.key]), value=error.value)
    return error.at(where)


def _keys(fields: Fields, model: ModelShape) -> dict[str, str]:
    known = {**fields.defaults, **fields.config}
    keys = {
        dimension: fields.prefix + next(name for name in names if name in known)
        for dimension, names in KEYS.items()
        if any(name in known for name in names)
    }
    if model.model_type == "llama4_text":
        keys.pop("d_ff", None)
    if keys.get("head_dim") and fields.raw("head_dim", "d_kv", default=None) is None:
        del keys["head_dim"]
    return keys


def _longest(fields: Fields, model: ModelShape) -> int | None:
    """The longest sequence the file speaks of: the learned positions, or those it was trained for."""
    return model.main.length or model.max_positions or fields.optional(*POSITIONS)


def _notes(config: Config, model_type: str, part: str | None) -> tuple[str, ...]:
    notes = [f"{part} only ({model_type})"] if part else []
    if config.get("auto_map"):
        notes.append(f"its own code (auto_map) is not run: read as transformers' {model_type}")
    notes += [said for key, said in _TABLE["notes_of_keys"].items() if config.get(key)]
    if model_type in HYBRIDS:
        notes.append("recurrent layers as their fused kernels run (mamba-ssm, fla)")
    return (*notes, *_TABLE["notes_of_types"].get(model_type, ()))
