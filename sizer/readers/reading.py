"""A reader's answer; keys that it did not look at: which change the model, its split or its step, which are typing

errors, which are harmless; and the refusal of recipes that leave a model's sizes to another file.

One mechanism for every format: ``Fields`` records what was asked for, and ``known_keys.json`` says of each format which
further keys are known to matter or to be harmless (globs allowed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from typing import Any

from shapes.errors import InputError, refuse, shorten
from shapes.frozen import frozen
from shapes.model import ModelShape
from shapes.model.resize import dimensions
from sizer.readers.fields import Config, Fields, table


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


@frozen
class Reading:
    """A configuration as read.

    ``keys``: dimension (``DIMENSIONS``) -> its key in the file, nested ones dotted. ``workload``: fields
    of ``Workload`` that the file gives. ``longest``: the sequence to take where nobody says. ``notes``: what a person
    should know of how it was read. ``unread``: keys that matter, or that nobody knows, and were not read. ``asked``:
    the keys that the reader looked for. ``recognised``: no reader knows the type; its transformers class was recognised
    and proven (shapes.trace.prove).
    """

    model: ModelShape
    format: str
    source: str
    keys: Mapping[str, str] = field(default_factory=dict)
    workload: Config = field(default_factory=dict)
    longest: int | None = None
    config: Config = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()
    asked: frozenset[str] = frozenset()
    recognised: bool = False


def reading(fields: Fields, format_name: str, model: ModelShape, **said: Any) -> Reading:
    """The answer of a reader of ``fields``, with the keys of dimensions that the model has.

    ``said`` are further fields of Reading.
    """
    # A count of shared experts is no dimension: their width is the count's.
    held = {"shared_experts", *dimensions(model)}
    keys = {name: key for name, key in said.pop("keys").items() if name in held}
    return Reading(model, format_name, fields.where, keys, asked=frozenset(fields.asked), **said)


@frozen
class Source:
    """A configuration to read (a path, a mapping, "-" already read as text) with what the caller says over it.

    ``settings`` replace or add keys of it; ``training`` are files of a trainer's settings, which give the workload.
    ``root``: the folder that the configuration's bases are opened in (None: its repository).
    """

    config: object
    settings: Config = field(default_factory=dict)
    training: tuple[str, ...] = ()
    text: str | None = None
    root: str | None = None


class Include(str):
    """The name of a file whose value belongs here (``!include``)."""

    __slots__ = ()


class UnknownModelType(InputError):  # noqa: N818
    """A Hugging Face ``model_type`` that no reader knows; tracing may answer."""


class NoModel(InputError):  # noqa: N818
    """A file that is in none of the formats: some program's settings, perhaps."""


def names_of(config: Config) -> tuple[set[str], set[str]]:
    """(keys, those of sections dotted; keys of sections at any depth, undotted), dashes as underscores.

    A key whose value is null is as good as not there.
    """
    found: set[str] = set()
    inner: set[str] = set()
    for key, value in config.items():
        if value is None:
            continue
        name = str(key).lstrip("-").replace("-", "_")
        found |= {name, f"{name}=", f"{name}={value}"} if isinstance(value, str) else {name}
        if isinstance(value, Mapping):
            below, further = names_of(value)
            found |= {f"{name}.{one}" for one in below if "." not in one and "=" not in one}
            inner |= below | further
    return found, inner


def lacking(claim: Config, names: tuple[set[str], set[str]]) -> list[str]:
    """What the configuration lacks of the keys that claim it for a format, and the keys that say it is none."""
    held = names[0] | names[1] if claim.get("deep") else names[0]
    return [one for one in claim["all"] if held.isdisjoint(one.split("|"))] + [
        f"no {one}" for one in claim.get("none", ()) if one in held
    ]


def at(config: Config, key: str) -> Any:
    """The value under a dotted key; None where there is none."""
    first, _, rest = key.partition(".")
    value = config.get(first)
    return value if not rest else at(value, rest) if isinstance(value, Mapping) else None


def recipe_of(config: Config) -> Config | None:
    """The row of the recipes that ``config`` is one of: a trainer's or a server's settings that name a model."""
    names = names_of(config)
    rows: Iterable[Config] = table("formats")["recipes"].values()
    return next((row for row in rows if not lacking(row["claim"], names)), None)


def named_plainly(config: Config) -> Config | None:
    """A recipe of the model alone that a file names in a usual key: none of a tokenizer, a teacher or the like."""
    words = table("formats")["names"]
    named = sorted(names_of(config)[0], key=lambda key: ("model" not in key, key))
    return next(
        (
            {"model": key, "names": {}}
            for key in named
            if key.rpartition(".")[2] in words["keys"] and isinstance(at(config, key), str)
            if not any(other in key for other in words["others"])
        ),
        None,
    )


def _known(format_name: str) -> Config:
    """``harmless`` (globs), ``matters`` (glob -> what the key changes) and ``model`` (those that change the model).

    Where ``model_by`` is named, they do so only in a file with that key.
    """
    found: Config = table("known_keys").get(format_name, {})
    return found


#: Keys that are not read, of one file: with more it is another kind of file, and comparing names takes a while.
MOST_UNREAD = 1000


def unread(config: Config, asked: Iterable[str], format_name: str, where: str) -> tuple[Unread, ...]:
    """Keys of ``config`` (nested ones dotted) outside ``asked`` that are not known to be harmless in the format.

    A key that is off (false, null, 0, empty) changes nothing, so it is named only if nobody knows it. InputError for
    one that changes the model.
    """
    known = _known(format_name)
    model: Mapping[str, str] = known.get("model", {})
    foreign = "model_by" not in known or known["model_by"] in config  # whether code that we do not know reads them
    matters: Mapping[str, str] = {**known.get("matters", {}), **model}
    read = set(asked)
    harmless: Collection[str] = known.get("harmless", ())
    names = [name for name in (*read, *matters, *harmless) if "*" not in name]
    found = []
    for key, value in flattened(config, read, {*read, *matters}):
        spelled = (key, key.rpartition(".")[2])
        if any(one in harmless for one in spelled):
            continue  # by its own name, whatever a glob says
        entry = next((entry for one in spelled if (entry := _entry(one, matters))), None)
        if entry is not None:
            what, off = matters[entry], value in (None, False, 0, "", [], {})
            if entry in model and foreign and not off:
                said = f"changes {what} and is not read here; --set {key}=null for the model without it"
                raise InputError(said, where=where, key=key, value=value)
            if not off:
                found.append(Unread(key, shorten(value), changes=what))
        elif not any(_entry(one, harmless) for one in spelled):
            found.append(Unread(key, shorten(value), meant=misspelt(key, names, config)))
        refuse(
            len(found) > MOST_UNREAD,
            f"expected at most {MOST_UNREAD} keys that {format_name} does not have",
            where=where,
        )
    return tuple(found)


def sentences(found: Iterable[Unread]) -> tuple[str, ...]:
    """The keys that were not read, a line each; keys that nobody knows and that resemble none share one."""
    known = [one for one in found if one.changes is not None or one.meant is not None]
    strange = [one.key for one in found if one.changes is None and one.meant is None]
    few = ", ".join(strange[:8]) + (f" and {len(strange) - 8} more" if len(strange) > 8 else "")
    return (*map(str, known), *([f"not known here and not read: {few}"] if strange else []))


def is_harmless(key: str, format_name: str) -> bool:
    return _entry(key, _known(format_name).get("harmless", ())) is not None


def _entry(key: str, names: Collection[str]) -> str | None:
    """The entry that a key falls under: itself, or the first glob that it matches."""
    return key if key in names else next((name for name in names if "*" in name and fits(key, name)), None)


def fits(key: str, glob: str) -> bool:
    """Whether a glob of asterisks alone matches: without an expression, whose compiling takes longer than a check."""
    first, *middle, last = glob.split("*")
    at, end = len(first), len(key) - len(last)
    for part in middle:
        found = key.find(part, at)
        at = found + len(part) if found >= 0 else len(key) + 1
    return key.startswith(first) and key.endswith(last) and at <= end


def flattened(config: Config, read: set[str], known: set[str], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Keys that are not in ``read``; a mapping that holds ``known`` keys is opened up."""
    for key, value in config.items():
        if str(key).startswith("_"):
            continue  # a reader's own, or a class's private attribute
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and any(one.startswith(name + ".") for one in known):
            yield from flattened(value, read, known, name + ".")
        elif name not in read:
            yield name, value


def did_you_mean(key: str, names: Iterable[str], cutoff: float = 0.8) -> str | None:
    """The known name nearest to ``key``, if one is near."""
    from difflib import get_close_matches  # only a strange key pays for it

    near = get_close_matches(key, sorted(names), n=1, cutoff=cutoff)
    return near[0] if near else None


def misspelt(key: str, names: Iterable[str], config: Config) -> str | None:
    """The key that ``key`` is a typing error for: ``config`` lacks it, and it has as many words."""
    parent, _, own = key.rpartition(".")
    inner = at(config, parent) if parent else config
    inner = inner if isinstance(inner, Mapping) else {}
    known = {last: name for name in names for above, _, last in [name.rpartition(".")] if above == parent}
    near = did_you_mean(own, known.keys() - inner.keys(), 0.9)
    words, others = set(own.split("_")), set((near or own).split("_"))
    return None if near is None or words < others or words > others else known[near]


def check_settings(
    settings: Config,
    asked: Iterable[str],
    where: str,
    normalised: Callable[[Config], Config] = dict,
) -> None:
    """InputError for a key of ``--set`` with a value that the reader has no use for."""
    names = set(asked)
    for key, value in normalised(settings).items():
        if key not in names and value is not None:  # a key may be taken out of the file
            near = did_you_mean(key, names)
            guess = f"did you mean {near}?" if near else ", ".join(sorted(names))
            raise InputError(f"expected a key that is read here: {guess}", where=where, key=f"--set {key}", value=value)
