"""Readers: a configuration in somebody's format -> ModelShape. One file a format, tried in the order of ``READERS``."""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shapes.errors import InputError, one_of, refuse, within
from shapes.frozen import Named, Names, replace, without
from shapes.model import ModelShape
from shapes.program import added
from shapes.toml_table import parse_toml

from .loading import (
    MAX_TEXT,
    Tree,
    check_depth,
    find_config,
    is_name,
    is_weights,
    load_text,
    parse_mapping,
    quantisation_of,
)
from .reading import (
    FORMATS,
    Config,
    NoModel,
    Reading,
    Source,
    UnknownModelType,
    Values,
    at,
    check_settings,
    lacking,
    leaves,
    named_plainly,
    names_of,
    recipe_of,
    speaks_of,
    stated,
    table,
    underscored,
    unread,
    with_settings,
)

#: Formats by name, each the module of that name, which has NAME and read(config, where) and is loaded when its claim
#: (formats.json) holds: `check` answers in a blink. Those that are a table of layouts.json come after, in this order.
MODULES, LAYOUTS = tuple(FORMATS["modules"]), tuple(FORMATS["layouts"])
READERS = MODULES + LAYOUTS


def read_config(
    source: object,
    *,
    config_format: str | None = None,
    where: str | None = None,
    settings: Config | None = None,
    root: str | Path | None = None,
) -> Reading:
    """Read a model's configuration, and the workload that it states.

    ``source``: a path (a directory: the config.json, params.json or model_config.yaml in it), a mapping, an object with
    the usual names (a transformers ``PretrainedConfig`` or model, a dataclass, a namespace) or a ``ModelShape``.

    The format is detected unless ``config_format`` names it. ``settings`` replace or add keys of the file; one that the
    format has no use for is refused. Files that it builds on are read below ``root`` (``Tree``). Raises InputError
    (one line: file, key, value, what was expected) for anything it cannot read, and UnknownModelType for an
    architecture that no reader knows.
    """
    asked = source if isinstance(source, Source) else Source(source, settings or {}, root=root)
    config = asked.config
    if isinstance(config, ModelShape):
        reading = Reading(config, "shape", where or config.model_type)
    else:
        try:
            held, named, notes = _held(asked, config_format)
            # An object whose fields are llama's own names, and say no type.
            if not isinstance(config, str | Path | Mapping) and not lacking(FORMATS["object"]["claim"], names_of(held)):
                config_format = config_format or "object"
            one_of(config_format or "object", (*_claims(), "object"), "--config-format")
            with within(where or named):
                reading = _read_mapping(held, where or named, config_format, asked.settings)
        except NoModel as error:
            if isinstance(config, str | Path) and not error.expected.startswith("names a model"):
                error.expected += speaks_of(asked.text or load_text(find_config(Path(config))))
            raise
        reading = replace(reading, notes=(*notes, *reading.notes))
    from .expressions import with_training

    return with_training(reading, asked.training)


def load_mapping(source: object) -> Config:
    """The keys of a configuration as they stand, settings applied: for what no reader knows and a trace takes."""
    asked = source if isinstance(source, Source) else Source(source)
    return with_settings(_held(replace(asked, settings={}), None)[0], asked.settings)


def _held(asked: Source, config_format: str | None) -> tuple[Config, str, Names]:
    """The keys of the source (for weights: those of their headers), its name in errors, and notes on it."""
    config = asked.config
    if asked.text is not None:
        with within(str(config)):
            return _parse(asked.text, str(config), config_format, asked), str(config), ()
    if not isinstance(config, str | Path):
        return *plain_mapping(config), ()
    path = find_config(Path(config))
    found_at = str(path)
    if is_name(config):
        from .released import released

        held, note = released(str(config))
        return held, found_at, (note,)
    if is_weights(path):
        from .tensors import header

        return header(path), found_at, ()
    with within(found_at):
        return _parse(load_text(path), found_at, config_format, asked), found_at, ()


def _parse(text: str, where: str, config_format: str | None, asked: Source) -> Config:
    """JSON or YAML with what it builds on; a nanoGPT Python file; a Megatron launch script."""
    refuse(  # what would take seconds to read: all but JSON is read character by character
        len(text) > MAX_TEXT and text.lstrip()[:1] not in ("{", "["),
        f"expected a configuration of at most {MAX_TEXT // 2**10} KiB where it is no JSON",
    )
    tree = Tree(where, asked.root)
    if where.endswith(".toml"):
        found = parse_toml(text)
        check_depth(found)
        return found
    plain = text.lstrip()[:1] != "{" or where.endswith(".ipynb")
    # A Makefile's words, and those that a shell has for them.
    rules = FORMATS["rewritten"].get(Path(where).stem.lower(), ())
    if plain and (config_format == "nanogpt" or where.endswith((".py", ".ipynb"))):
        from .python_code import parse_code

        found = parse_code(text, where, asked.settings, tree)
        said = found.pop("_commands", "") * ("Train" not in " ".join(found))  # what trains is no server
    elif plain and config_format in (None, "megatron") and (rules or _reader("megatron").is_script(text, where)):
        found, said = {}, text
    else:
        found = tree.followed(parse_mapping(text, where)) | quantisation_of(Path(where))
        run = found.keys() & FORMATS["manifests"]["keys"]
        said = import_module("sizer.readers.manifests").script(found) if run else ""
    if said:
        for pattern, put in (*rules, *FORMATS["positional"]):  # words without options' names
            said = re.sub(pattern, put, said)
        try:
            return dict(_reader("megatron").parse_script(said, asked.settings, tree))
        except InputError:
            if not (named_plainly(found) or "_assigned" in found):  # by its keys, where its commands name none
                raise
    return found | stated(_bases=tree.names)


def _added() -> Named:
    return added("sizer.readers", "NAME", "CLAIM", "read")


def _claims() -> dict[str, Named]:
    """Each format -> what claims a file for it; those of other distributions come last."""
    return {name: FORMATS[name]["claim"] for name in READERS} | {name: one.CLAIM for name, one in _added().items()}


def _reader(name: str) -> Any:
    if name in MODULES:
        return import_module(f"sizer.readers.{name}")
    if name in (others := _added()):
        return others[name]
    return import_module("sizer.readers.layouts").reader(name)


def _read_mapping(config: Config, where: str, config_format: str | None, settings: Config) -> Reading:
    chosen = config_format or recipe_of(config) or _format_of(config)
    if not isinstance(chosen, str):
        return _of_recipe(chosen, underscored(config), underscored(settings), where)
    reader = _reader(chosen)
    normalised = getattr(reader, "normalised", dict)
    keys = with_settings(normalised(config), settings, normalised)
    found: Reading = reader.read(keys, where)
    used = found.asked | keys.get("_variables", frozenset())
    if "_tensors" in keys:
        from .tensors import proven

        found = proven(found, keys["_tensors"])
    check_settings(normalised(settings), found, used)
    bases = (f"with what it builds on: {', '.join(keys['_bases'][:-9:-1])}",) if "_bases" in keys else ()
    unknown = unread(keys, used, reader.NAME)
    return replace(found, config=keys, notes=(*found.notes, *bases), unread=(*found.unread, *unknown))


def _of_recipe(row: Config, config: Config, settings: Config, where: str) -> Reading:
    """The model that a recipe names, to which go the settings that the recipe has no key for."""
    from .released import read_recipe

    own = {key: value for key, value in settings.items() if at(config, key) is not None}
    taken = {*own, *config.get("_variables", ())}
    rest, config = without(settings, taken), with_settings(config, own)
    config["_built"] = bool(built := config.get("_built"))  # a model's sizes, which the program has
    return read_recipe(row, config, where, lambda name: read_config(built or name, settings=rest))


def _format_of(config: Config) -> str | Config:
    """The one format that claims the configuration, else a recipe of the model that it names.

    NoModel for none or two, naming the nearest and what it lacks.
    """
    if "_program" in config:  # a script that was followed here
        return "megatron"
    claims, names = _claims(), names_of(config)
    lacks = {name: lacking(claim, names) for name, claim in claims.items()}
    claimed, row = [name for name in claims if not lacks[name]], named_plainly(config)
    if row and claimed == ["huggingface"]:
        usual = table("hf_defaults").get(str(config.get("model_type")), ())
        if config.keys().isdisjoint(usual):
            return row  # the type is a server's or a trainer's word for what it loads
    if claimed and claims[claimed[0]].get("deep") and not any(str(key).upper() == "MODEL_ARGS" for key in config):
        sizes = {str(value): None for key, value in leaves(config) if key == "hidden_size" and "$" not in str(value)}
        if len(sizes) > 1:
            raise NoModel(f"expected one model, found several: hidden_size {', '.join([*sizes][:3])}")
    if claimed:
        if len(claimed) > 1 and not claims[claimed[0]].get("declared"):
            raise NoModel(f"has the keys of {' and of '.join(claimed)}: choose one with --config-format")
        return claimed[0]
    for keys, other in FORMATS["elsewhere"]:
        if config.keys() >= {*keys}:
            raise NoModel(other, keys[-1], config[keys[-1]])
    if row:
        return row
    near = sorted(claims, key=lambda name: len(lacks[name]) / len(claims[name]["all"]))
    said = "; ".join(
        f"{name} without {', '.join(one.split('|')[0] for one in lacks[name][:3])}"
        for name in near[:2]
        if 2 * len(lacks[name]) <= len(claims[name]["all"])
    )
    raise NoModel(
        "names no model in its options, settings or calls: sizer.check(module, example_inputs=...) takes what it builds"
        if "_assigned" in config and len(lacks["nanogpt"]) > 2  # it states no size either
        else "expected a configuration in one of the known formats: "
        + (f"nearest are {said}" if said else "no model_type found (--config-format NAME names one)")
    )


#: What a module that has no configuration of its own is asked for.
EXAMPLE = "expected example_inputs: the arguments of one forward call, as torch.zeros(4, 2048, dtype=int)"


def plain_mapping(source: object) -> tuple[Config, str]:
    """(its keys, what to call it). InputError for an object that holds none."""
    if isinstance(source, Mapping):
        return source, "<dict>"
    named = type(source).__name__
    if callable(getattr(source, "named_parameters", None)):
        # A transformers model knows its own configuration.
        inner = getattr(source, "config", None)
        refuse(inner is None, EXAMPLE, where=named)
        return plain_mapping(inner)[0], named
    if not isinstance(source, type):
        to_dict = getattr(source, "to_dict", None)
        if callable(to_dict) and isinstance(found := to_dict(), Mapping):
            return found, named
        if dataclasses.is_dataclass(source):
            return dataclasses.asdict(source), named  # type: ignore[arg-type] # no class comes here
        held = getattr(source, "__dict__", None)
        if held and not callable(source):
            return {key: value for key, value in held.items() if not key.startswith("_")}, named
    raise InputError(
        "expected a path, a mapping, a PretrainedConfig, an nn.Module, a dataclass or a namespace, or a ModelShape, "
        f"found {named}",
        "config",
    )


#: More than anyone types; a value is a number, a word or a short list.
MAX_VALUE = 10_000


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` as (key, value): a JSON value, else the text itself. InputError without a key."""
    key, equals, value = text.partition("=")
    refuse(not equals or not key.strip() or len(value) > MAX_VALUE, "expected KEY=VALUE", "--set", text)
    try:
        return key.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return key.strip(), FORMATS["literals"].get(value, value)
