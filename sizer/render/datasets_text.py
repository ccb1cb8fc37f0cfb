"""`store compare` as text: how two submissions of a device differ, and the rows that differ most."""

from __future__ import annotations

import json

from tabulate import tabulate

from shapes.errors import printable
from shapes.measure.record import key_of
from sizer.answers.datasets import LEAST, MEDIAN_ROOM, ROW_ROOM, Compared, Comparison
from sizer.documents.units import seconds_text
from sizer.render.page import Page


def render(answer: Comparison, page: Page) -> str:
    return "\n\n".join(_one(one) for one in answer.devices)


def _one(one: Compared) -> str:
    lines = [
        f"{printable(one.device)}: {one.common} rows in common, of {one.rows[0]} in {one.folders[0]} and {one.rows[1]} "
        f"in {one.folders[1]}"
    ]
    if one.same_cards:
        lines.append("the same card is in both: they are not independent")
    lines += [f"{name}: {printable(a)} and {printable(b)}" for name, (a, b) in one.differences.items()]
    if one.ratio is not None and one.overlap is not None:
        middle, low, high = one.ratio
        lines.append(f"second over first: {middle:.3f} (5% to 95%: {low:.3f} to {high:.3f})")
        lines.append(f"intervals overlap in {one.overlap:.0%} of the rows")
    if one.control is not None:
        lines.append(f"control shape, second over first: {one.control:.3f}")
    if one.farthest:
        rows = [
            (printable(_what(pair.key)), seconds_text(pair.first_s), seconds_text(pair.second_s), f"{pair.off:+.1%}")
            for pair in one.farthest
        ]
        lines += ["", tabulate(rows, ("farthest from the median", "first", "second", "off"), disable_numparse=True), ""]
    return "\n".join([*lines, _verdict(one)])


def _verdict(one: Compared) -> str:
    if one.agree is None:
        return f"no verdict: fewer than {LEAST} rows in common"
    said = "agree" if one.agree else "disagree"
    return f"they {said} (median within {MEDIAN_ROOM:.0%}, nine of ten rows within {ROW_ROOM:.0%} of it)"


def _what(key: str) -> str:
    row = json.loads(key)
    sizes = {name: row[name] for name in ("m", "n", "k", "rows", "columns", "q_len", "head_dim") if name in row}
    words = (row.get("kind"), row.get("phase"), row.get("layout"), row.get("dtype"), row.get("kernel"))
    named = " ".join(f"{name}={size}" for name, size in sizes.items()) or key_of(row)[:80]
    return f"{' '.join(str(word) for word in words if word)} {named}"
