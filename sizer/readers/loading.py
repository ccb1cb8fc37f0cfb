"""Bytes from a file -> a mapping, refusing what is no configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shapes.errors import InputError

#: Configurations are a few KiB; anything larger is the wrong file.
MAX_BYTES = 16 * 2**20
#: Deeper nesting than any configuration has; the parsers recurse.
MAX_DEPTH = 100


#: What a directory's configuration is called, most telling first.
CONFIG_NAMES = ("config.json", "params.json", "model_config.yaml", "args.json")


def find_config(path: Path) -> Path:
    """``path``, or the configuration inside a directory. InputError for a directory without one."""
    try:
        if not path.is_dir():
            return path
        found = next((path / name for name in CONFIG_NAMES if (path / name).is_file()), None)
    except (OSError, ValueError):
        return path
    if found is None:
        raise InputError(f"found a directory: expected one of {', '.join(CONFIG_NAMES)} in it", where=str(path))
    return found


def load_text(path: Path) -> str:
    """The file's text; InputError for what is missing, unreadable, too large or not UTF-8."""
    where = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise InputError("expected a file, found a directory", where=where) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError:
        raise InputError("expected a file name", where=where) from None
    return decode(data, where)


def decode(data: bytes, where: str) -> str:
    """A configuration's bytes as text; InputError for too many or for what is not UTF-8."""
    if len(data) > MAX_BYTES:
        raise InputError(f"expected a configuration of at most {MAX_BYTES // 2**20} MiB", where=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {data[error.start]:#04x} at {error.start}"
        raise InputError(f"expected UTF-8 text, found {found}", where=where) from None


def parse_mapping(text: str, where: str) -> Mapping[str, Any]:
    """JSON or YAML whose top level is an object."""
    if not text.strip():
        raise InputError("expected a configuration, found an empty file", where=where)
    parsed = _parse_json_or_flow(text, where) if text.lstrip()[0] in "{[" else _parse_yaml(text, where)
    if not isinstance(parsed, dict):
        raise InputError(f"expected an object at the top level, found {_kind(parsed)}", where=where)
    for key in parsed:
        if not isinstance(key, str):
            raise InputError("expected text as keys", where=where, key=str(key))
    return parsed


def _parse_json_or_flow(text: str, where: str) -> object:
    """JSON; in a file that calls itself YAML also flow style, with its comments and bare words."""
    try:
        return _parse_json(text, where)
    except InputError:
        if not where.endswith((".yml", ".yaml")):
            raise
    return _parse_yaml(text, where)


def _parse_json(text: str, where: str) -> object:
    _check_depth(text, where)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"expected JSON: {error.msg}, line {error.lineno} column {error.colno}", where=where) from None
    except (RecursionError, ValueError):
        raise InputError("expected JSON", where=where) from None


def _parse_yaml(text: str, where: str) -> object:
    import yaml

    _check_depth(text, where)
    if re.search(r"(^|[\s\[{,:-])[&*]\w", text):
        # An alias may name its own ancestors: a few lines become gigabytes.
        raise InputError("expected YAML without anchors and aliases", where=where)
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"expected JSON or YAML: {error.problem}{line}", where=where) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise InputError("expected JSON or YAML", where=where) from None


def _check_depth(text: str, where: str) -> None:
    depth = 0
    for bracket in re.finditer(r"[\[{\]}]", text):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            raise InputError(f"expected at most {MAX_DEPTH} levels of nesting", where=where)


def _kind(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing", bool: "a boolean"}.get(type(value), "a number")
