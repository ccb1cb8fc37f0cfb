"""Keys of a configuration that its reader did not look at: which change the model, its split or its step, which are

typing errors, which are harmless. One mechanism for every format: ``Fields`` records what was asked for, and
``known_keys.json`` says of each format which further keys are known to matter or to be harmless (globs allowed).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from shapes.errors import InputError, shorten
from shapes.frozen import frozen
from sizer.readers.fields import table


@frozen
class Unread:
    """A key that was not read. ``changes``: what it changes; None for a key that nobody knows, which may be a typing

    error for ``meant``.
    """

    key: str
    value: str
    changes: str | None = None
    meant: str | None = None

    def __str__(self) -> str:
        if self.changes is not None:
            return f"{self.key} = {self.value} is not read: it changes {self.changes}"
        guess = f": did you mean {self.meant}?" if self.meant else ""
        return f"{self.key} = {self.value} is not a key that is known here{guess}"


def _known(format_name: str) -> Mapping[str, Any]:
    """``harmless`` (globs) and ``matters`` (glob -> what the key changes) of a format."""
    found: Mapping[str, Any] = table("known_keys").get(format_name, {})
    return found


def unread(config: Mapping[str, Any], asked: Iterable[str], format_name: str) -> tuple[Unread, ...]:
    """Keys of ``config`` (nested ones dotted) outside ``asked`` that are not known to be harmless in the format.

    A key that is off (false, null, 0, empty) changes nothing, so it is named only if nobody knows it.
    """
    known = _known(format_name)
    matters: Mapping[str, str] = known.get("matters", {})
    read = set(asked)
    names = [name for name in (*read, *matters, *known.get("harmless", ())) if "*" not in name]
    found = []
    for key, value in flattened(config, read, {*read, *matters}):
        spelled = (key, key.rpartition(".")[2])
        what = next((matters[entry] for one in spelled if (entry := _entry(one, format_name))), None)
        if what is not None:
            if value not in (None, False, 0, "", [], {}):
                found.append(Unread(key, shorten(value), changes=what))
        elif not any(is_harmless(one, format_name) for one in spelled):
            found.append(Unread(key, shorten(value), meant=did_you_mean(key, names)))
    return tuple(found)


def sentences(found: Iterable[Unread]) -> tuple[str, ...]:
    """The keys that were not read, a line each; keys that nobody knows and that resemble none share one."""
    known = [one for one in found if one.changes is not None or one.meant is not None]
    strange = [one.key for one in found if one.changes is None and one.meant is None]
    few = ", ".join(strange[:8]) + (f" and {len(strange) - 8} more" if len(strange) > 8 else "")
    return (*map(str, known), *([f"not known here and not read: {few}"] if strange else []))


def is_harmless(key: str, format_name: str) -> bool:
    harmless = _known(format_name).get("harmless", ())
    return key in harmless or bool(_globs(format_name, "harmless")[1].fullmatch(key))


def _entry(key: str, format_name: str) -> str | None:
    """The entry among the keys that matter that a key falls under: itself, or the first glob that it matches."""
    if key in _known(format_name).get("matters", ()):
        return key
    globs, pattern = _globs(format_name, "matters")
    return next(glob for glob in globs if fnmatchcase(key, glob)) if pattern.fullmatch(key) else None


@cache
def _globs(format_name: str, which: str) -> tuple[list[str], re.Pattern[str]]:
    """All globs of a table, and in one expression: compiling each by itself takes longer than a check."""
    globs = [name for name in _known(format_name).get(which, ()) if "*" in name]
    every = "|".join(re.escape(glob).replace(r"\*", ".*") for glob in globs)
    return globs, re.compile(every or "(?!)", re.DOTALL)


def flattened(
    config: Mapping[str, Any], read: set[str], known: set[str], prefix: str = ""
) -> Iterable[tuple[str, Any]]:
    """Keys that are not in ``read``; a mapping that holds ``known`` keys is opened up."""
    for key, value in config.items():
        if str(key).startswith("_"):
            continue  # a reader's own, or a class's private attribute
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and any(one.startswith(name + ".") for one in known):
            yield from flattened(value, read, known, name + ".")
        elif name not in read:
            yield name, value


def did_you_mean(key: str, names: Iterable[str]) -> str | None:
    """The known name nearest to ``key``, if one is near."""
    from difflib import get_close_matches  # only a strange key pays for it

    near = get_close_matches(key, sorted(names), n=1, cutoff=0.8)
    return near[0] if near else None


def check_settings(
    settings: Mapping[str, Any],
    asked: Iterable[str],
    where: str,
    normalised: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> None:
    """InputError for a key of ``--set`` that the reader has no use for."""
    names = set(asked)
    for key, value in normalised(settings).items():
        if key not in names:
            near = did_you_mean(key, names)
            guess = f"did you mean {near}?" if near else ", ".join(sorted(names))
            raise InputError(f"expected a key that is read here: {guess}", where=where, key=f"--set {key}", value=value)
