"""A search as a page: the landscape of a dimension, or a front (parameters and time; training and serving), and every

candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sizer.documents.alignment_classes import COLOURS, alignment_class
from sizer.documents.document import Axis, Chart, Document, Facts, Layer, Section, Table, Text, cell
from sizer.documents.units import percent_text, seconds_scale, seconds_text, signed_count_text
from sizer.searching.ranked import Ranked, SearchResult
from sizer.searching.two_budgets import decode_gain, training_gain
from sizer.searching.verdict import label, objected

SHAPES = {
    "candidate": "circle",
    "on the front": "diamond",
    "listed": "triangle-up",
    "best": "cross",
    "baseline": "square",
}
ROLE_COLOURS = {
    "candidate": "#999999",
    "on the front": "#66ccee",
    "listed": "#4477aa",
    "best": "#228833",
    "baseline": "#ee6677",
}
SIZES = {"candidate": 0.06, "on the front": 0.14, "listed": 0.2, "best": 0.7, "baseline": 0.35}


def document(answer: SearchResult) -> Document:
    best = answer.candidates[0] if answer.candidates else answer.baseline
    facts = {
        "searched": answer.what,
        "by": answer.objective,
        "tokens": f"{answer.tokens:,}",
        "candidates": f"{answer.considered:,}",
        "speed-up": f"{best.speedup:.3f}x ({best.speedup_low:.2f} to {best.speedup_high:.2f})",
    }
    notes = [Text(f"Note: {note}", quiet=True) for note in answer.notes]
    excluded = ", ".join(f"{number} by {why}" for why, number in answer.excluded.items() if number)
    notes += [Text(f"Excluded: {excluded}", quiet=True)] if excluded else []
    single = len(answer.baseline.change) == 1
    charts = [served(answer)] if answer.front else [landscape(answer)] if single else [front(answer)]
    charts += [losses(answer)] if answer.baseline.losses else []
    parts = (
        Text(answer.verdict),
        Facts(facts),
        Text(f"Times: {answer.source}", quiet=True),
        *notes,
        *charts,
        _table("Listed", (answer.baseline, *answer.candidates), answer),
        *([_table("Pareto front", shown, answer)] if (shown := answer.front or answer.pareto) else []),
        _table("Every candidate", answer.ranked, answer),
    )
    return Document(f"sizer search: {answer.what}", (Section(f"{answer.what}, {answer.source}", parts),))


def _roles(answer: SearchResult) -> list[tuple[Ranked, str]]:
    """Every candidate with a time and what it is, the notable ones last, so that they are drawn on top."""
    listed = [one.change for one in answer.candidates]
    on_front = [one.change for one in answer.front or answer.pareto]

    def role(one: Ranked) -> str:
        if one.change == answer.baseline.change:
            return "baseline"
        if one.change in listed:
            return "best" if one.change == listed[0] else "listed"
        return "on the front" if one.change in on_front else "candidate"

    return sorted(((one, role(one)) for one in answer.ranked), key=lambda pair: list(SHAPES).index(pair[1]))


def landscape(answer: SearchResult) -> Chart:
    """TFLOPS over the searched dimension, coloured by alignment, with what it may be off by and the device's edges."""
    (field,) = answer.baseline.change
    rows: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for one, role in _roles(answer):
        value, time = one.change[field], one.timing
        group = alignment_class(value)
        within = f"{seconds_text(time.seconds)} ({seconds_text(time.low)} to {seconds_text(time.high)})"
        what = f"{field} {value}, {role}: {one.tflops:.4g} TFLOPS, {within}, {one.speedup:.3f}x"
        rows.append({"x": value, "y": one.tflops, "group": group, "kind": role, "size": SIZES[role], "what": what})
        slow, fast = (one.tflops * time.seconds / max(bound, 1e-12) for bound in (time.high, time.low))
        errors.append({"x": value, "y": slow, "y2": fast, "group": group})
    named = [
        {"x": row["x"], "y": row["y"], "text": f"{row['kind']} {row['x']}"}
        for row in rows
        if row["kind"] in ("best", "baseline")
    ]
    low, high = (pick(row["x"] for row in rows) for pick in (min, max))
    tiles = range(-(-low // answer.tile) * answer.tile, high + 1, answer.tile) if answer.tile else range(0)
    curve = sorted(({key: row[key] for key in ("x", "y", "group")} for row in rows), key=lambda row: row["x"])
    single = len({row["x"] for row in curve}) == len(curve)
    layers = [
        *_edges(tiles, "a tile ends here", {"color": "#888888", "opacity": 0.35}),
        *_edges(answer.waves, "a wave is full here", {"strokeDash": [2, 3], "opacity": 0.7}),
        Layer("rule", errors, {"opacity": 0.45}),
        *([Layer("line", curve, {"strokeWidth": 0.8})] if single else []),
        Layer("point", rows, {"opacity": 0.9}),
        Layer("text", named, {"align": "left", "dx": 9, "dy": -9, "fontWeight": "bold"}),
    ]
    edges = f" Grey lines: tiles of {answer.tile} end; dotted: a wave is full." if answer.tile else ""
    return Chart(
        f"{answer.what}: rate over {field} with its interval, coloured by the power of two that divides it.{edges}",
        Axis(field, zero=False, whole=True),
        Axis("TFLOPS", zero=False),
        layers,
        height=380,
        colours=COLOURS,
        shapes=SHAPES,
        legend=("divisible by", ""),
    )


def _edges(values: Iterable[int], what: str, look: dict[str, Any]) -> list[Layer]:
    rows = [{"x": value, "what": f"{value}: {what}"} for value in values]
    return [Layer("rule", rows, look)] if rows else []


def front(answer: SearchResult) -> Chart:
    """Time over parameters: what nothing beats in both is the front."""
    several = answer.ranked[0].parameters >= 10**9
    unit, scale = ("billions", 1e9) if several else ("millions", 1e6)
    factor, time = seconds_scale(max(one.timing.seconds for one in answer.ranked))
    rows = [
        {
            "x": one.parameters / scale,
            "y": one.timing.seconds * factor,
            "group": role,
            "size": SIZES[role],
            "what": f"{label(one)}\n{role}: {seconds_text(one.timing.seconds)}, {one.speedup:.3f}x",
        }
        for one, role in _roles(answer)
    ]
    marked = [(one, role) for one, role in _roles(answer) if role != "candidate"]
    errors = [
        {"x": one.parameters / scale, "y": one.timing.low * factor, "y2": one.timing.high * factor, "group": role}
        for one, role in marked
        if role in ("best", "baseline")
    ]
    line = sorted(
        ({"x": one.parameters / scale, "y": one.timing.seconds * factor} for one in answer.pareto),
        key=lambda row: row["x"],
    )
    layers = [
        *([Layer("line", line, {"color": ROLE_COLOURS["on the front"], "interpolate": "step-after"})] if line else []),
        Layer("rule", errors, {"opacity": 0.6}),
        Layer("point", rows, {"opacity": 0.85}),
    ]
    return Chart(
        f"{answer.what}: time over parameters of every candidate; those on the front are faster than all that have "
        "more parameters. Lines at baseline and best: their intervals.",
        Axis(f"parameters, {unit}", zero=False),
        Axis(f"time, {time}", zero=False),
        layers,
        height=380,
        colours=ROLE_COLOURS,
        shapes=SHAPES,
    )


def served(answer: SearchResult) -> Chart:
    """The decode step over the training step, each over the baseline's and by the objective."""
    rows = [
        {
            "x": 1 / training_gain(one),
            "y": 1 / decode_gain(one),
            "group": role,
            "size": SIZES[role],
            "what": f"{label(one)}\n{role}: {one.speedup:.3f}x to train, {one.decode_speedup:.3f}x to decode",
        }
        for one, role in _roles(answer)
    ]
    line = sorted(
        ({"x": 1 / training_gain(one), "y": 1 / decode_gain(one)} for one in answer.front), key=lambda row: row["x"]
    )
    ends = [
        {"x": 1 / training_gain(one), "y": 1 / decode_gain(one), "text": _differs(one, answer)}
        for one in {id(one): one for one in (answer.front[0], answer.front[-1])}.values()
    ]
    layers = [
        Layer("line", line, {"color": ROLE_COLOURS["on the front"], "interpolate": "step-after"}),
        Layer("point", rows, {"opacity": 0.85}),
        Layer("text", ends, {"align": "left", "dx": 9, "dy": -9}),
    ]
    return Chart(
        f"{answer.what}: the decode step over the training step, both over the baseline's, by {answer.objective}; none "
        "is faster in both than what is on the front.",
        Axis("training step, over the baseline's", zero=False),
        Axis("decode step, over the baseline's", zero=False),
        layers,
        height=380,
        colours=ROLE_COLOURS,
        shapes=SHAPES,
    )


def _differs(one: Ranked, answer: SearchResult) -> str:
    """Where a candidate is not the baseline."""
    return ", ".join(f"{key} {value}" for key, value in one.change.items() if value != answer.baseline.change[key])


def losses(answer: SearchResult) -> Chart:
    """What each listed candidate loses on each device against the best of that device."""
    shown = (answer.baseline, *answer.candidates)
    rows = [
        {
            "x": 100 * loss,
            "y": label(one),
            "group": device,
            "kind": device,
            "size": 0.2,
            "what": f"{label(one)} on {device}: {percent_text(loss)} slower than its best",
        }
        for one in shown
        for device, loss in one.losses.items()
    ]
    return Chart(
        "Devices side by side: how much slower each candidate is than the best one of that device.",
        Axis("% slower"),
        Axis("", order=tuple(dict.fromkeys(label(one) for one in shown))),
        [Layer("point", rows)],
        height=40 + 26 * len(shown),
    )


def _table(caption: str, ranked: Sequence[Ranked], answer: SearchResult) -> Table:
    rows = [
        [
            cell(label(one) + objected(one)),
            cell(one.timing.seconds, seconds_text(one.timing.seconds)),
            cell(one.timing.low, seconds_text(one.timing.low)),
            cell(one.timing.high, seconds_text(one.timing.high)),
            cell(one.tflops, f"{one.tflops:.4g}"),
            cell(one.speedup, f"{one.speedup:.3f}x"),
            cell(one.parameters),
            cell(one.parameters_change, signed_count_text(one.parameters_change) if one.parameters_change else "0"),
            *(cell(step.seconds, seconds_text(step.seconds)) for step in (one.decode,) if step is not None),
            *(cell(loss, percent_text(loss)) for loss in one.losses.values()),
        ]
        for one in ranked
    ]
    head = [answer.what, "time", "low", "high", "TFLOPS", "speed-up", "parameters", "change"]
    head += ["decode step"] if answer.serving is not None else []
    return Table(caption, [*head, *(f"loss on {name}" for name in answer.devices)], rows)
