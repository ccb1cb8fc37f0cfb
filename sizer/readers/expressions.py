"""Expressions of tables (layouts.json): another reader's keys, and fields of a workload, of a file's keys.

Trainers' settings (``--training FILE``) are read so too: they give the workload and nothing of the architecture.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shapes.errors import InputError, positive_int, refuse, within
from shapes.frozen import Texts, Words, given, replace

from .loading import parse_file
from .reading import FORMATS, Config, Fields, Names, Reading, Values, at, stated, table, unread, whole

#: Functions that a table's expression may call: they keep sizes floats and integers.
CALLS = {"__builtins__": {}, "int": int, "len": len, "max": max, "min": min, "range": range, "zip": zip}
#: Optimizers as files call them (lower case, without underscores and a suffix that says only which kernel runs) -> our
#: name. Those whose states are not known are not here: their key is named as not read.
OPTIMIZER_NAMES: Words = FORMATS["optimizers"]

_ABSENT = object()


def expressed(names: Words, held: Config, found: Values) -> tuple[Values, set[str]]:
    """(the other reader's keys with values, over what is ``found`` already; which keys of the file were asked)."""
    used = set[str]()
    for ours, said in names.items():
        value = _value(said, {**found, **held}, used)
        if value is not _ABSENT:
            found[ours] = value
    return found, used


def _value(said: str, held: Config, used: set[str]) -> Any:
    """The first of the alternatives whose names the file has: a key, or an expression of keys (``4 * dim``)."""
    for one in said.split(" | "):
        if one.isidentifier():
            used.add(one)
            if one in held:
                return held[one]
            continue
        small = {key: value for key, value in held.items() if not isinstance(value, int | float) or abs(value) < 2**40}
        code = compile(one, "layouts.json", "eval")
        used |= {*code.co_names} - CALLS.keys()
        try:
            return eval(code, CALLS, small)  # the table's own expression, of the file's values
        except (NameError, ArithmeticError, TypeError, ValueError):
            continue
    return _ABSENT


def sized(said: str, size: Callable[[str], float]) -> int:
    """The integer that a table's expression of names comes to (``3 * patch ** 2``), ``size`` giving theirs."""
    code = compile(said, "table", "eval")
    held = {name: size(name) for name in code.co_names}
    try:
        return int(eval(code, CALLS, held))  # the table's own
    except ZeroDivisionError:
        raise InputError("expected an integer of at least 1", min(held, key=held.__getitem__), 0) from None


def notes_of(row: Config, found: Config) -> Texts:
    return [said for key, said in row.get("unless", {}).items() if not found.get(key, True)]


def flat(config: Config, prefix: str = "") -> Values:
    """Numbers, texts and lists (as texts) by their keys, those of sections as section__key."""
    found = Values()
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}__")
        elif value is not None:
            found[f"{prefix}{key}"] = ",".join(map(str, value[:99])) if isinstance(value, list) else value
    return found


def check_allowed(row: Config, held: Config, fields: Fields) -> None:
    """InputError for a value that has no formula; usual ones count as read."""
    fields.ignore(*(key for key, usual in row.get("usual", {}).items() if at(fields.config, key) == usual))
    for key, allowed in row.get("allowed", {}).items():
        if held.get(key) not in (None, *allowed):
            said = row.get("refused", {}).get(key) or f"expected {' or '.join(map(str, allowed)) or 'none'}"
            raise fields.error(f"has no formula here: {said}", key)


def workload(row: Config, held: Config, fields: Fields) -> tuple[Values, Texts]:
    """(the fields of a workload that the row's expressions make of a file's keys, notes)."""
    said = row.get("workload", {})
    found, used = expressed(said, held, {})
    fields.ignore(*(one.replace("__", ".") for one in used.difference(row.get("optimizer", ()))))
    settled = {}
    for key, value in found.items():
        size = whole(value)
        if size not in ("", "auto", 0, -1) and key[0] != "_":  # none, or left to another file; what others are made of
            theirs = next((one for one in re.findall(r"\w+", said[key]) if held.get(one) == value), key)
            own = size is True or "'" in said[key].replace("''", "")
            settled[key] = size if own else positive_int(size, theirs.replace("__", "."))
    for key in row.get("optimizer", ()):
        settled |= _optimizer(fields, key, found.get("_named", {}))
    return settled, notes_of(row, found)


def _optimizer(fields: Fields, name: str, own: Words) -> Values:
    """The workload's ``optimizer`` as ``fields`` say it under ``name`` (its class's own name: ``torch.optim.SGD``).

    Empty where it is the usual one or unknown. ``own``: what the framework has under a name. An unknown name leaves
    the key unread.
    """
    said = str(at(fields.config, name)).rpartition(".")[2]
    known = OPTIMIZER_NAMES.get(said.lower().replace("_", "").removesuffix("fused"))
    if known:
        fields.ignore(name)
        known = own.get(known, known)
    return stated(optimizer=known if known != "adamw" else None)


def with_training(reading: Reading, files: Names) -> Reading:
    """``reading`` with the workload of ``files`` over its own, the later file over the earlier."""
    for file in files:
        reading = with_settings_of(reading, parse_file(Path(file)), file)
    return reading


def with_settings_of(reading: Reading, config: Config, where: str) -> Reading:
    """``reading`` with the workload of a trainer's settings, those of the file ``where``, over its own."""
    with within(where):
        claims = table("trainers")["claims"]
        name = next((name for name, keys in claims if not config.keys().isdisjoint(keys)), "")
        refuse(not name, f"expected a trainer's settings ({', '.join(dict(claims))})")
        fields = Fields(config)
        row = table("trainers")[name]
        for key, kind in row["checked"].items():
            getattr(fields, kind)(key)
        held = flat(row["defaults"] | given(config))
        check_allowed(row, held, Fields(held))
        fields.ignore(*(key for key, other in row.get("moot", {}).items() if not config.get(other)))
        found, said = workload(row, held, fields)
        if name == "deepspeed" and "no_overlap" in reading.workload:
            # It decides on data parallelism's communication alone.
            kept = {*reading.workload["no_overlap"].split(",")} - {"data", "gather", "none"}
            found["no_overlap"] = ",".join([*sorted(kept), *["data"] * ("no_overlap" in found)]) or "none"
        settled = {**reading.workload, **found}
        notes = f"workload from {Path(where).name} ({name})", *said, *_accumulated(settled)
        return replace(
            reading,
            workload=settled,
            notes=(*reading.notes, *notes),
            unread=(*reading.unread, *unread(config, fields.asked, name)),
        )


def _accumulated(workload: Values) -> Names:
    """Microbatches that accumulate make the global batch, where data parallelism is known; else a note."""
    steps, b = workload.pop("accumulated", None), workload.get("b")
    if not steps or not b or "global_batch" in workload:
        return ()
    degrees = workload.get("t", 1) * workload.get("p", 1) * workload.get("cp", 1)
    if d := workload.get("d") or workload.get("gpus", 0) // degrees:
        workload["global_batch"] = steps * b * d
    if d or steps == 1:
        return ()
    workload["accumulated"] = steps
    return (f"{steps} microbatches accumulate: the global batch is {steps * b} x data parallelism",)
