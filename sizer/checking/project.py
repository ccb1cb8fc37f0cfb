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
from shapes.workload import workload_fields
from sizer.rules import RULES, nearest

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
    for rule in _per_file(table, where):
        pattern = rule.get("path")
        if isinstance(pattern, str) and _matches(config, pattern, str(path.parent)):
            other, run_by, more = _own(rule, where)
            device, stack, workload = other or device, run_by or stack, {**workload, **more}
    fail_on = _text(table, "fail-on", where)
    _demand(fail_on in (None, *FAIL_ON), f"expected one of {', '.join(FAIL_ON)}", where, "fail-on", fail_on)
    return Defaults(device, stack, fail_on, _text(table, "format", where), workload)


def _demand(holds: bool, expected: str, where: str, key: str, value: object) -> None:
    if not holds:
        raise InputError(expected, where=where, key=key, value=value)


def _own(table: Mapping[str, Any], where: str) -> tuple[str | None, str | None, dict[str, Any]]:
    given = table.get("workload", {})
    _demand(isinstance(given, Mapping), "expected a table", where, "workload", given)
    try:
        workload = workload_fields({str(key).replace("-", "_"): value for key, value in given.items()})
    except InputError as error:
        raise InputError(error.expected, where=where, key=f"workload.{error.key}", value=error.value) from None
    return _text(table, "device", where), _text(table, "stack", where), workload


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    _demand(value is None or isinstance(value, str), "expected a text", where, key, value)
    return value


def _per_file(table: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """The per-file tables. InputError for anything else under the name."""
    rules = table.get("per-file", [])
    tables = isinstance(rules, list) and all(isinstance(rule, Mapping) for rule in rules)
    _demand(tables, "expected tables [[tool.sizer.per-file]]", where, "tool.sizer.per-file", rules)
    return list(rules)


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
            path = parent / name
            table = _table(path, prefix)
            if table is not None:
                for key, value in table.items():
                    _demand(key in KEYS, f"expected one of {', '.join(KEYS)}", str(path), prefix + key, value)
                return path, table, prefix
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
    table = tool["sizer"]
    _demand(isinstance(table, Mapping), "expected a table", str(path), "tool.sizer", table)
    return dict(table)


@lru_cache(maxsize=64)
def _parsed(path: str, _mtime_ns: int, _size: int, needed: str) -> Mapping[str, Any]:
    """A file's tables, read once as long as it does not change; none where the word ``needed`` is not in it."""
    text = read_text(path, MOST_BYTES)
    try:
        return tomllib.loads(text) if needed in text else {}
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", where=path) from None


def _matches(where: str, pattern: str, folder: str) -> bool:
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


#: Every rule, as people type it, and what their codes begin with.
ALL, PREFIX = "ALL", "SZ"


@frozen
class Suppression:
    """Codes, prefixes of codes (``SZ1``, ``ALL``) or slugs to keep alone and to leave out; the longer prefix decides.

    ``per_file``: (glob, codes) left out there. A glob without a slash is a file's name in any folder; one with a slash
    is a path from ``folder`` (of pyproject.toml), where ``*`` stays within one folder and ``**`` is any number of them.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()
    folder: str = "."

    def __post_init__(self) -> None:
        for option, name in (("--select", "select"), ("--ignore", "ignore")):
            object.__setattr__(self, name, tuple(_known(code, option) for code in getattr(self, name)))

    def keeps(self, code: str, where: str) -> bool:
        kept = max((len(one) for one in self.select if code.startswith(one)), default=-1 if self.select else 0)
        left_out = max((len(one) for one in self.ignore if code.startswith(one)), default=-1)
        if kept <= left_out or kept < 0:
            return False
        here = (codes for pattern, codes in self.per_file if _matches(where, pattern, self.folder))
        return not any(code.startswith(codes) for codes in here)


def load_suppression(
    config: str, *, select: tuple[str, ...] = (), ignore: tuple[str, ...] = (), extend_select: tuple[str, ...] = ()
) -> Suppression:
    """The command line's choice over that of the nearest sizer.toml, or pyproject.toml with a [tool.sizer] table.

    As in ruff: ``select`` replaces the file's, ``extend_select`` adds to what is selected, by the command line or by
    the file (where nothing is, every rule is), and what is ignored is ignored by either.

    ``[tool.sizer] select = [...]``, ``extend-select``, ``ignore``, ``extend-ignore`` and ``[[tool.sizer.per-file]]
    path, ignore, reason``; a reason is demanded, because a suppression outlives the memory of why.
    """
    found = nearest_table(config)
    if found is None:
        return Suppression((*(select or (ALL,)), *extend_select) if select or extend_select else (), ignore)
    path, table, prefix = found
    where = str(path)
    selected = select or _codes(table, "select", where, prefix)
    added = (*extend_select, *_codes(table, "extend-select", where, prefix))
    return Suppression(
        (*(selected or (ALL,)), *added) if selected or added else (),
        (*ignore, *_codes(table, "ignore", where, prefix), *_codes(table, "extend-ignore", where, prefix)),
        tuple(_left_out(rule, where, f"{prefix}per-file.") for rule in _per_file(table, where)),
        str(path.parent),
    )


def _left_out(rule: Mapping[str, Any], where: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    """A per-file table's pattern and the codes left out there."""
    for key in rule:
        _demand(key in FILE_KEYS, f"expected one of {', '.join(FILE_KEYS)}", where, prefix + key, rule[key])
    needed = ("path", "reason") if "ignore" in rule or "reason" in rule or len(rule) < 2 else ("path",)
    for key in needed:
        value = rule.get(key)
        said = isinstance(value, str) and bool(value.strip())
        _demand(said, "expected a text" + (": say why" if key == "reason" else ""), where, prefix + key, value)
    return rule["path"].strip(), _codes(rule, "ignore", where, prefix)


def _codes(table: Mapping[str, Any], key: str, where: str, prefix: str) -> tuple[str, ...]:
    codes, name = table.get(key, []), f"{prefix}{key}"
    listed = isinstance(codes, list) and all(isinstance(code, str) for code in codes)
    _demand(listed, "expected a list of rule codes", where, name, codes)
    return tuple(_known(code, name, where) for code in codes)


def _known(name: str, key: str, where: str | None = None) -> str:
    """A rule's code for its slug, a code or a prefix of one as it is; InputError for what is none."""
    if name == ALL:
        return PREFIX
    for rule in RULES:
        if name == rule.slug:
            return rule.code
    if not name or not any(rule.code.startswith(name) for rule in RULES):
        raise InputError(
            f"expected a rule's code, a prefix of one or a slug{nearest(name)}; `sizer rules` lists them",
            where=where,
            key=key,
            value=name,
        )
    return name
