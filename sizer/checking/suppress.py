"""Which rules are kept: --select and --ignore, and [tool.sizer] of the pyproject.toml above the configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from sizer.rules import RULES


@dataclass(frozen=True, slots=True)
class Suppression:
    """Codes or prefixes (``SZ1``) to keep alone and to leave out; ``per_file``: (glob, codes) left out there.

    A glob without a slash is a file's name in any folder; one with a slash is a path from ``folder`` (of
    pyproject.toml), where ``*`` stays within one folder and ``**`` is any number of them.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()
    folder: str = "."

    def __post_init__(self) -> None:
        for option, codes in (("--select", self.select), ("--ignore", self.ignore)):
            for code in codes:
                _known(code, option)

    def keeps(self, code: str, where: str) -> bool:
        if self.select and not code.startswith(tuple(self.select)):
            return False
        ignored = [*self.ignore]
        for pattern, codes in self.per_file:
            if _matches(where, pattern, self.folder):
                ignored += codes
        return not (ignored and code.startswith(tuple(ignored)))


def load_suppression(config: str, *, select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> Suppression:
    """The command line's choice over that of the nearest pyproject.toml with a [tool.sizer] table.

    ``[tool.sizer] select = [...]``, ``ignore = [...]`` and ``[[tool.sizer.per-file]] path, ignore, reason``; a reason
    is demanded, because a suppression outlives the memory of why.
    """
    found = None if config == "-" else nearest_table(Path(config))
    if found is None:
        return Suppression(select, ignore)
    path, table = found
    where = str(path)
    for key in table:
        if key not in ("select", "ignore", "per-file", "budgets"):
            raise InputError(
                "expected select, ignore, per-file or budgets", where=where, key=f"tool.sizer.{key}", value=table[key]
            )
    rules = table.get("per-file", [])
    if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
        raise InputError("expected tables [[tool.sizer.per-file]]", where=where, key="tool.sizer.per-file", value=rules)
    return Suppression(
        select or _codes(table, "select", where),
        (*ignore, *_codes(table, "ignore", where)),
        tuple(_per_file(rule, where) for rule in rules),
        str(path.parent),
    )


def _matches(where: str, pattern: str, folder: str) -> bool:
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


def _per_file(rule: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    for key in rule:
        if key not in ("path", "ignore", "reason"):
            raise InputError(
                "expected path, ignore or reason", where=where, key=f"tool.sizer.per-file.{key}", value=rule[key]
            )
    for key in ("path", "reason"):
        if not isinstance(rule.get(key), str) or not rule[key].strip():
            raise InputError(
                "expected a text" + (": say why" if key == "reason" else ""), where=where,
                key=f"tool.sizer.per-file.{key}", value=rule.get(key),
            )  # fmt: skip
    return rule["path"].strip(), _codes(rule, "ignore", where, "tool.sizer.per-file")


def _codes(table: Mapping[str, Any], key: str, where: str, parent: str = "tool.sizer") -> tuple[str, ...]:
    codes, name = table.get(key, []), f"{parent}.{key}"
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise InputError("expected a list of rule codes", where=where, key=name, value=codes)
    for code in codes:
        _known(code, name, where)
    return tuple(codes)


def _known(code: str, key: str, where: str | None = None) -> None:
    if not code or not any(rule.CODE.startswith(code) for rule in RULES):
        raise InputError(
            "expected a rule's code or a prefix of one (`sizer rules` lists them)", where=where, key=key, value=code
        )


def nearest_table(config: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The pyproject.toml nearest above ``config`` that has a [tool.sizer] table, and that table."""
    try:
        folder = config.resolve().parent
    except (OSError, ValueError, RuntimeError):
        return None
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
            raise InputError(f"cannot be read: {error}", where=str(path)) from None
        if not isinstance(tool, Mapping) or "sizer" not in tool:
            continue
        if not isinstance(tool["sizer"], Mapping):
            raise InputError("expected a table", where=str(path), key="tool.sizer", value=tool["sizer"])
        return path, tool["sizer"]
    return None
