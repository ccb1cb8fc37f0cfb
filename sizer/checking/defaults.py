"""What a project says once for every check: ``[tool.sizer]`` of the nearest pyproject.toml, or a sizer.toml.

    device = "h200-sxm"           # stack, fail-on, format, select, ignore as on the command line
    [workload]                    # long options: tp, pp, dp, ep, cp, microbatch, sequence, global-batch, zero …
    tp = 8
    [[per-file]]                  # device, stack and workload of the files that match; ignore with a reason
    path = "configs/small/*.json"
    workload = {tp = 1}

In pyproject.toml the same under ``tool.sizer``. What the command line says comes first.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.files import read_text
from shapes.frozen import frozen
from sizer.workload_names import workload_fields

#: Keys of the table, and of each per-file table.
KEYS = (
    "select",
    "extend-select",
    "ignore",
    "extend-ignore",
    "per-file",
    "budgets",
    "device",
    "stack",
    "fail-on",
    "format",
    "workload",
)
FILE_KEYS = ("path", "ignore", "reason", "device", "stack", "workload")
#: No project says so much.
MOST_BYTES = 2**20
FAIL_ON = ("warning", "error", "info", "never")


@frozen
class Defaults:
    """A project's defaults for one configuration; ``workload`` under the fields' own names. None: not said."""

    device: str | None = None
    stack: str | None = None
    fail_on: str | None = None
    format: str | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)


def load_defaults(config: str) -> Defaults:
    """Defaults for ``config`` (a path, or "-"): of the files that match, else the project's."""
    found = nearest_table(config)
    if found is None:
        return Defaults()
    path, table, _ = found
    where = str(path)
    device, stack, workload = _own(table, where)
    for rule in per_file(table, where):
        pattern = rule.get("path")
        if isinstance(pattern, str) and matches(config, pattern, str(path.parent)):
            other, run_by, more = _own(rule, where)
            device, stack, workload = other or device, run_by or stack, {**workload, **more}
    fail_on = _text(table, "fail-on", where)
    if fail_on is not None and fail_on not in FAIL_ON:
        raise InputError(f"expected one of {', '.join(FAIL_ON)}", where=where, key="fail-on", value=fail_on)
    return Defaults(device, stack, fail_on, _text(table, "format", where), workload)


def _own(table: Mapping[str, Any], where: str) -> tuple[str | None, str | None, dict[str, Any]]:
    given = table.get("workload", {})
    if not isinstance(given, Mapping):
        raise InputError("expected a table", where=where, key="workload", value=given)
    try:
        workload = workload_fields({str(key).replace("-", "_"): value for key, value in given.items()})
    except InputError as error:
        raise InputError(error.expected, where=where, key=f"workload.{error.key}", value=error.value) from None
    return _text(table, "device", where), _text(table, "stack", where), workload


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError("expected a text", where=where, key=key, value=value)
    return value


def per_file(table: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """The per-file tables. InputError for anything else under the name."""
    rules = table.get("per-file", [])
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise InputError("expected tables [[tool.sizer.per-file]]", where=where, key="tool.sizer.per-file", value=rules)
    return rules


def nearest_table(config: str | Path) -> tuple[Path, Mapping[str, Any], str] | None:
    """(file, its table, what its keys begin with in an error) nearest above ``config``; keys are checked."""
    if config == "-":
        return None
    try:
        folder = Path(config).resolve().parent
    except (OSError, ValueError, RuntimeError):
        return None
    for parent in (folder, *folder.parents):
        for name, prefix in (("sizer.toml", ""), ("pyproject.toml", "tool.sizer.")):
            table = _table(parent / name, prefix)
            if table is None:
                continue
            for key, value in table.items():
                if key not in KEYS:
                    raise InputError(
                        f"expected one of {', '.join(KEYS)}", where=str(parent / name), key=prefix + key, value=value
                    )
            return parent / name, table, prefix
    return None


def _table(path: Path, prefix: str) -> Mapping[str, Any] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    found = _parsed(str(path), status.st_mtime_ns, status.st_size, "sizer" if prefix else "")
    if not prefix:
        return dict(found)
    tool = found.get("tool", {})
    if not isinstance(tool, Mapping) or "sizer" not in tool:
        return None
    if not isinstance(tool["sizer"], Mapping):
        raise InputError("expected a table", where=str(path), key="tool.sizer", value=tool["sizer"])
    return dict(tool["sizer"])


@lru_cache(maxsize=64)
def _parsed(path: str, _mtime_ns: int, _size: int, needed: str) -> Mapping[str, Any]:
    """A file's tables, read once as long as it does not change; none where the word ``needed`` is not in it."""
    text = read_text(path, MOST_BYTES)
    try:
        return tomllib.loads(text) if needed in text else {}
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", where=path) from None


def matches(where: str, pattern: str, folder: str) -> bool:
    """Whether a file is one of ``pattern``'s, told from ``folder`` where it has a slash."""
    path = Path(where)
    if "/" not in pattern:
        return fnmatchcase(path.name, pattern)
    try:
        inside = path.resolve().relative_to(Path(folder).resolve())
    except (OSError, ValueError, RuntimeError):  # not a path (standard input), or of another tree
        return False
    return _parts_match(inside.parts, tuple(part for part in pattern.split("/") if part not in ("", ".")))


def _parts_match(parts: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_parts_match(parts[start:], patterns[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _parts_match(parts[1:], patterns[1:])
