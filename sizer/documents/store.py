"""The store: what is in it, how two submissions of a device differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from shapes.measure.record import Measurement, key_of
from sizer.answers.datasets import LEAST, MEDIAN_ROOM, ROW_ROOM, Compared, Comparison, Pair, Stored
from sizer.documents.bench import FIELDS, TIMES, records
from sizer.documents.document import Cell, Column, Document, Part, Section, Table, Text, lines, seconds_text


def listed(answer: Stored) -> Document:
    """Stored measurements, the newest last."""
    columns = (
        Column("what", _what),
        Column("time", lambda one: one.seconds or Cell(one.status), seconds_text),
        *TIMES[1:],
        Column("device", "environment.device"),
        Column("label", "label"),
    )
    parts = (
        Table("", columns, answer.measurements),
        Text(f"{len(answer.measurements)} of {answer.total} measurements"),
    )
    return Document("sizer store list", (Section("Measurements", parts),), answer)


def exported(answer: Stored) -> Document:
    """Measurements for other programs."""
    return Document("sizer store export", (), answer, records=partial(records, answer.measurements), fields=FIELDS)


def _what(one: Measurement) -> str:
    row = one.row(samples=False)
    sizes = " x ".join(str(row[name]) for name in ("m", "n", "k") if row[name] is not None)
    batch = f"{row['batch']} x " if (row["batch"] or 1) > 1 else ""
    return _words((row["kind"], f"{batch}{sizes}", row["layout"], row["phase"], row["dtype"], row["kernel"]))


def _words(words: Sequence[object]) -> str:
    return " ".join(str(word) for word in words if word)


def compared(answer: Comparison) -> Document:
    sections = [Section(one.device, _compared(one)) for one in answer.devices]
    return Document("sizer store compare", sections, answer)


def _compared(one: Compared) -> list[Part]:
    (first, second), rows = one.folders, one.rows
    said = [f"{one.device}: {one.common} rows in common, of {rows[0]} in {first} and {rows[1]} in {second}"]
    said += ["the same card is in both: they are not independent"] if one.same_cards else []
    said += [f"{name}: {a} and {b}" for name, (a, b) in one.differences.items()]
    if one.ratio is not None and one.overlap is not None:
        middle, low, high = one.ratio
        said.append(f"second over first: {middle:.3f} (5% to 95%: {low:.3f} to {high:.3f})")
        said.append(f"intervals overlap in {one.overlap:.0%} of the rows")
    said += [f"control shape, second over first: {one.control:.3f}"] if one.control is not None else []
    room = f"(median within {MEDIAN_ROOM:.0%}, nine of ten rows within {ROW_ROOM:.0%} of it)"
    verdict = f"they {'agree' if one.agree else 'disagree'} {room}"
    if one.agree is None:
        verdict = f"no verdict: fewer than {LEAST} rows in common"
    return [*lines(said), Table("", FARTHEST, one.farthest), Text(verdict)]


def _pair(pair: Pair) -> str:
    row = json.loads(pair.key)
    sizes = {name: row[name] for name in ("m", "n", "k", "rows", "columns", "q_len", "head_dim") if name in row}
    named = " ".join(f"{name}={size}" for name, size in sizes.items()) or key_of(row)[:80]
    return f"{_words([row.get(name) for name in ('kind', 'phase', 'layout', 'dtype', 'kernel')])} {named}"


FARTHEST = (
    Column("farthest from the median", _pair),
    Column("first", "first_s", seconds_text),
    Column("second", "second_s", seconds_text),
    Column("off", "off", "+.1%"),
)
