"""Which rules are kept: --select and --ignore, and [tool.sizer] of the pyproject.toml above the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.errors import InputError
from shapes.frozen import frozen
from sizer.checking.defaults import FILE_KEYS, matches, nearest_table, per_file
from sizer.rules import RULES, nearest

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
        here = (codes for pattern, codes in self.per_file if matches(where, pattern, self.folder))
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
        tuple(_per_file(rule, where, prefix) for rule in per_file(table, where)),
        str(path.parent),
    )


def _per_file(rule: Mapping[str, Any], where: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    parent = f"{prefix}per-file"
    for key in rule:
        if key not in FILE_KEYS:
            raise InputError(
                f"expected one of {', '.join(FILE_KEYS)}", where=where, key=f"{parent}.{key}", value=rule[key]
            )
    for key in ("path", "reason") if "ignore" in rule or "reason" in rule or len(rule) < 2 else ("path",):
        if not isinstance(rule.get(key), str) or not rule[key].strip():
            raise InputError(
                "expected a text" + (": say why" if key == "reason" else ""),
                where=where,
                key=f"{parent}.{key}",
                value=rule.get(key),
            )
    return rule["path"].strip(), _codes(rule, "ignore", where, f"{parent}.")


def _codes(table: Mapping[str, Any], key: str, where: str, prefix: str) -> tuple[str, ...]:
    codes, name = table.get(key, []), f"{prefix}{key}"
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise InputError("expected a list of rule codes", where=where, key=name, value=codes)
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
