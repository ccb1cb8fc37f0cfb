"""The figures of a diff as rows of text, which every format that shows a table shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shapes.frozen import frozen
from sizer.answers.diff import DeviceDiff, Diff, Figures
from sizer.documents.units import count_text, percent_text, seconds_text


@frozen
class Row:
    """One figure: its name, both versions and the change, as texts ("" where there is none)."""

    name: str
    old: str
    new: str
    change: str


def rows(one: DeviceDiff, whole: Diff) -> list[Row]:
    """The figures of both versions on one device."""
    old, new = one.old, one.new
    listed = [
        _row("parameters", old, new, "parameters", count_text),
        _row("FLOPs a token", old, new, "flops_per_token", lambda flops: f"{flops / 1e9:.4g} G"),
        _row("step", old, new, "step_s", seconds_text),
        _row("MFU", old, new, "mfu", percent_text, points=True),
        _row("memory a device", old, new, "memory_bytes", lambda size: f"{size / 2**30:.2f} GiB"),
        _row("tokens/s a device", old, new, "tokens_per_s", lambda rate: f"{rate:,.0f}"),
        _row(f"kWh of {whole.tokens:.3g} tokens", old, new, "kwh", lambda energy: f"{energy:,.4g}"),
    ]
    if whole.price is not None:
        listed.append(_row(f"cost of {whole.tokens:.3g} tokens", old, new, "cost", lambda cost: f"{cost:,.0f}"))
    return listed


def time_text(one: DeviceDiff) -> str:
    """The change of the time a token, with what it may be off by."""
    if one.ratio is None:
        return ""
    if one.ratio == 1 and not one.ratio_error:
        return "no change in time a token"
    beyond = "beyond the error" if one.exceeds_error else "within the error"
    return f"{one.ratio - 1:+.1%} time a token (+-{one.ratio_error:.1%} of the ratio: {beyond})"


def _row(
    name: str, old: Figures | None, new: Figures | None, key: str, text: Callable[[Any], str], points: bool = False
) -> Row:
    before, after = (getattr(side, key) if side is not None else None for side in (old, new))
    change = ""
    if before is not None and after is not None and before != after:
        change = f"{100 * (after - before):+.1f} points" if points else f"{after / before - 1:+.2%}" if before else ""
    return Row(name, "" if before is None else text(before), "" if after is None else text(after), change)
