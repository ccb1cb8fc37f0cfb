"""Bytes from a file -> a mapping, refusing what is no configuration."""

from __future__ import annotations

import json
import os
import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from functools import partial
from glob import iglob
from itertools import islice
from pathlib import Path
from typing import Any

from shapes.errors import InputError, refuse
from shapes.files import decoded, read_bounded
from sizer.readers.fields import Config, Values
from sizer.readers.reading import NoModel


class DuplicateKey(InputError):  # noqa: N818
    """A key that stands twice in one object: a parser would take the last in silence."""


#: Configurations are a few KiB; anything larger is the wrong file.
MAX_BYTES = 16 * 2**20
#: Characters of YAML, Python and shell scripts.
MAX_TEXT = 2**18
#: What JSON5 has and JSON has not, and texts, in which nothing is meant.
_EXTRA = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<key>\b[A-Za-z_]\w{0,99})(?=\s*:)|//[^\n]*"""
    r"""|/\*(?:.*?\*/|.*)|,(?=\s*[}\]])""",
    re.DOTALL,
)
#: Deeper nesting than any configuration has; the parsers recurse.
MAX_DEPTH = 100


#: What a directory's configuration is called, most telling first; without one, weights whose headers are read.
CONFIG_NAMES = ("config.json", "params.json", "model_config.yaml", "args.json", "adapter_config.json")
WEIGHTS = ("model.safetensors.index.json", "model.safetensors")


def is_weights(path: Path) -> bool:
    """Whether it is a file of weights, or the list of such files."""
    return path.suffix in (".gguf", ".safetensors") or path.name.endswith(".safetensors.index.json")


def find_config(path: Path) -> Path:
    """``path``, or the configuration inside a directory. InputError for a directory without one."""
    try:
        if not path.is_dir():
            return path
        found = next((path / name for name in (*CONFIG_NAMES, *WEIGHTS) if (path / name).is_file()), None)
    except (OSError, ValueError):
        return path
    if found is None:
        raise InputError(f"found a directory: expected one of {', '.join(CONFIG_NAMES)} in it", where=str(path))
    return found


#: A tree has thousands of files, of which a few are configurations.
MAX_FOUND = 100_000
#: What configurations are called that nobody named, and words that only those of models have.
_DATA = (".json", ".json5", ".yaml", ".yml", ".toml")
SUFFIXES = (*_DATA, ".py", ".sh", ".txt", ".slurm", ".bash", ".sbatch")
_MODEL = re.compile(rb"\b(?:model_type|hidden[-_]size|n_embd|d_model|n_layers|num[-_]layers|flavor)\b")
#: In scripts and Python: an option, or an assignment at a line's start. Programs speak of sizes all the time.
_STATED = re.compile(rb"--(?:hidden-size|num-layers)\b|^n_(?:embd|layer)[ \t]*=", re.MULTILINE)


def expand(argument: str) -> list[str]:
    """The files of a CONFIG argument: itself; a glob's files; the configurations anywhere in a directory.

    InputError for a glob or a directory with none.
    """
    path = Path(argument)
    try:
        if path.is_dir() and not any((path / name).is_file() for name in (*CONFIG_NAMES, *WEIGHTS)):
            found = _inside(path)
            missing = f"found a directory: expected one of {', '.join(CONFIG_NAMES)} in it, or files that state a model"
        elif path.exists() or not any(character in argument for character in "*?["):
            return [argument]
        else:
            listed = islice(iglob(argument, recursive=True), MAX_FOUND)
            found, missing = sorted(one for one in listed if Path(one).is_file()), "matches no file"
    except InputError:
        raise
    except (OSError, ValueError):
        return [argument]
    refuse(not found, missing, where=argument)
    return found


def _inside(directory: Path) -> list[str]:
    """The configurations anywhere in a directory by their usual names; else its own files that state a model."""
    usual: list[str] = []
    own: list[str] = []
    for seen, (folder, folders, files) in enumerate(os.walk(directory)):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        usual += [os.path.join(folder, one) for one in files if one in CONFIG_NAMES]
        own = own if seen else [os.path.join(folder, one) for one in files if may_be_configuration(one)]
        refuse(seen > MAX_FOUND, f"expected at most {MAX_FOUND} folders: name the one meant", where=str(directory))
    return sorted(one for one in usual or own if os.path.isfile(one) and (usual or _head_states_a_model(one)))


def _head_states_a_model(path: str) -> bool:
    with open(path, "rb") as file:
        return states_a_model(path, file.read(MAX_TEXT))


def may_be_configuration(name: str) -> bool:
    """Whether a file that nobody named may be a configuration by its name, told from the folder looked into."""
    return name.endswith(SUFFIXES) and not any(part.startswith(".") for part in name.split("/"))


def states_a_model(name: str, content: bytes) -> bool:
    """Whether a file's beginning has words that only a model's configuration has."""
    return (_MODEL if name.endswith(_DATA) else _STATED).search(content) is not None


#: Where the content of the hf_quant_config.json next to a config.json is put.
BESIDE = "_hf_quant_config"


def beside(path: Path) -> Values:
    """The hf_quant_config.json of a quantised release, next to its config.json, under ``BESIDE``."""
    stem = path.name.removesuffix("config.json")
    other = path.with_name(f"{stem}hf_quant_config.json")
    if stem == path.name or stem.endswith("quant_") or not other.is_file():
        return {}
    return {BESIDE: parse_mapping(load_text(other), str(other))}


def load_text(path: Path) -> str:
    """The file's text; InputError for what is missing, unreadable, too large or not UTF-8."""
    return decode(read_bounded(path, MAX_BYTES), str(path))


def decode(data: bytes, where: str) -> str:
    """A configuration's bytes as text; InputError for too many or for what is neither UTF-8 nor marked as UTF-16."""
    refuse(len(data) > MAX_BYTES, f"expected a configuration of at most {MAX_BYTES // 2**20} MiB", where=where)
    if data[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) and 0 in data[2:4]:  # its first character is one of ASCII
        return data.decode("utf-16", "replace")
    return decoded(data, where)


def check_size(text: str, where: str) -> None:
    """InputError for a text that would take seconds to read: all but JSON is read character by character."""
    refuse(
        len(text) > MAX_TEXT and text.lstrip()[:1] not in ("{", "["),
        f"expected a configuration of at most {MAX_TEXT // 2**10} KiB where it is no JSON",
        where=where,
    )


def parse_mapping(text: str, where: str) -> Config:
    """JSON or YAML whose top level is an object."""
    refuse(not text.strip(), "expected a configuration, found an empty file", where=where)
    parsed = _parse_json_or_flow(text, where) if text.lstrip()[0] in "{[" else parse_yaml(text, where)
    if not isinstance(parsed, dict):
        raise NoModel(f"expected an object at the top level, found {_kind(parsed)}", where=where)
    for key in parsed:
        if not isinstance(key, str):
            raise NoModel("expected text as keys", where=where, key=str(key))  # `on:` of a workflow is True
    return parsed


def parse_toml(text: str, where: str) -> Config:
    try:
        parsed = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"expected TOML: {error!s:.80}", where=where) from None
    check_depth(parsed, where)
    return parsed


def _parse_json_or_flow(text: str, where: str) -> object:
    """JSON; in a file that calls itself YAML also flow style, with its comments and bare words, in others JSON5's."""
    try:
        return _parse_json(text, where)
    except InputError as error:
        if isinstance(error, DuplicateKey) or len(text) > MAX_TEXT:
            raise
        if where.endswith((".yml", ".yaml")):
            return parse_yaml(text, where)
        plain = _EXTRA.sub(_plain, _EXTRA.sub(_plain, text))  # a comma is the last one where no comment follows it
        if plain == text:
            raise
    return _parse_json(plain, where)


def _plain(found: re.Match[str]) -> str:
    """JSON5's texts and keys as JSON has them, without its comments and last commas; lines and columns stay."""
    if found["key"]:
        return f'"{found["key"]}"'
    said = found["text"]
    return re.sub(r"[^\n]", " ", found[0]) if said is None else said if said[0] == '"' else json.dumps(said[1:-1])


def _parse_json(text: str, where: str) -> object:
    try:
        parsed = json.loads(text, object_pairs_hook=partial(_object, where=where))
    except json.JSONDecodeError as error:
        raise InputError(f"expected JSON: {error.msg}, line {error.lineno} column {error.colno}", where=where) from None
    except RecursionError:
        raise InputError(f"expected at most {MAX_DEPTH} levels of nesting", where=where) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("expected JSON", where=where) from None
    check_depth(parsed, where)
    return parsed


def _object(pairs: list[tuple[str, Any]], where: str) -> Values:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DuplicateKey("is given twice here: keep one", where=where, key=twice)
    return found


def parse_yaml(text: str, where: str) -> object:
    """A YAML document's value."""
    from sizer.readers import yaml_values

    return yaml_values.parse_yaml(text, where, MAX_DEPTH)


def check_depth(value: object, where: str) -> None:
    """InputError for what the code that walks configurations could not: it recurses."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for one in level
            if isinstance(one, list | dict)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise InputError(f"expected at most {MAX_DEPTH} levels of nesting", where=where)


def _kind(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing", bool: "a boolean"}.get(type(value), "a number")
