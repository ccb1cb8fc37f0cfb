"""A search: the landscape of a dimension, or a front (parameters and time, training and serving), the candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from shapes.timing import Timing
from shapes.workload import Workload
from sizer.documents.charts import ALIGNMENT_COLOURS, Axis, Chart, Layer, alignment_class
from sizer.documents.document import FULL, Charts, Column, Document, Facts, Part, Section, Table, Text
from sizer.documents.units import percent_text, seconds_scale, seconds_text, signed_count_text
from sizer.searching.result import Ranked, SearchResult, label, objected, settings
from sizer.searching.two_budgets import decode_gain, training_gain

#: What a candidate is -> its shape, colour and size in a chart; the later is drawn on top.
ROLES = {
    "candidate": ("circle", "#999999", 0.06),
    "on the front": ("diamond", "#66ccee", 0.14),
    "listed": ("triangle-up", "#4477aa", 0.2),
    "best": ("cross", "#228833", 0.7),
    "baseline": ("square", "#ee6677", 0.35),
}
SHAPES = {role: shape for role, (shape, _, _) in ROLES.items()}
ROLE_COLOURS = {role: colour for role, (_, colour, _) in ROLES.items()}


def document(answer: SearchResult) -> Document:
    best = answer.best
    facts = {
        "tokens": f"{answer.tokens:,}",
        "candidates": f"{answer.considered:,}",
        "speed-up": f"{best.speedup:.3f}x ({best.speedup_low:.2f} to {best.speedup_high:.2f})",
    }
    excluded = ", ".join(f"{number} by {why}" for why, number in answer.excluded.items() if number)
    columns = _columns(answer)
    parts: tuple[Part, ...] = (
        Text(_first(answer), "head"),
        *([Text(f"  {_serving(answer.serving)}")] if answer.serving is not None else []),
        *(Text(f"  {note}", "quiet") for note in answer.notes),
        *([Text(f"  excluded: {excluded}", "quiet")] if excluded else []),
        Facts(facts),
        Charts(partial(_charts, answer)),
        Table("", columns, (answer.baseline, *answer.candidates)),
        Text(answer.verdict),
        *_fronts(answer, columns),
        Table("every candidate", columns, answer.ranked, only=FULL),
    )
    return Document(
        f"sizer search: {answer.what}",
        (Section(f"{answer.what}, {answer.source}", parts),),
        answer,
        records=partial(_records, answer),
    )


def _first(answer: SearchResult) -> str:
    """Where the times come from, before anything else."""
    if answer.source.startswith("measured:"):
        first = f"measured here ({answer.source.removeprefix('measured:')})"
    else:
        run_by = f"stack {answer.stack}" if answer.stack is not None else "kernels alone, no stack"
        first = f"predicted, not measured ({answer.source.removeprefix('predicted:')}, {run_by})"
    return (
        f"{first}: {answer.what} over {answer.tokens:,} tokens, {answer.considered} candidates, by {answer.objective}"
    )


def _serving(workload: Workload) -> str:
    split = "".join(f", {word} {getattr(workload, key)}" for key, word in (("t", "tp"), ("e", "ep"), ("d", "dp")))
    return (
        f"decode: {workload.b} requests of {workload.context:,} keys{split}, {workload.dtype}, KV cache "
        f"{workload.cache_dtype}; extrapolated, no decode kernel was measured"
    )


def _columns(answer: SearchResult) -> tuple[Column, ...]:
    """Of the listed candidates, of a front and of all."""
    places = {id(one): str(at) for at, one in enumerate(answer.candidates, 1)} | {id(answer.baseline): "baseline"}

    def half_width(one: Ranked) -> str:
        half = (one.timing.high - one.timing.low) / 2 / one.timing.seconds
        return f"{half:.1%}" if half <= 1 else ">100%"

    decode = (
        Column("decode step", lambda one: one.decode.seconds if one.decode is not None else None, seconds_text),
        Column("decode speed-up", "decode_speedup", lambda value: f"{value:.3f}x"),
    )
    losses = [
        Column(f"loss on {name}", partial(_loss, name), ".1%") for name in answer.devices or answer.baseline.losses
    ]
    return (
        Column("", lambda one: places.get(id(one), "")),
        Column(answer.what, lambda one: label(one) + objected(one)),
        Column("time", "timing.seconds", seconds_text),
        Column("+-", half_width, drop=5),
        Column("low", "timing.low", seconds_text, only=FULL),
        Column("high", "timing.high", seconds_text, only=FULL),
        Column("TFLOPS", "tflops", lambda value: f"{value:.0f}" if value >= 100 else f"{value:.3g}", drop=4),
        Column("speed-up", "speedup", lambda value: f"{value:.3f}x"),
        Column("interval", lambda one: f"{one.speedup_low:.2f}..{one.speedup_high:.2f}", drop=2),
        Column("all parameters", "parameters", only=FULL),
        Column("parameters", "parameters_change", lambda value: signed_count_text(round(value))),
        Column("memory", "memory_change_bytes", _signed_bytes, drop=1),
        Column("shards", lambda one: one.shards or None, drop=3),
        *(decode if answer.serving is not None else ()),
        *(losses if answer.baseline.losses else ()),
    )


def _loss(device: str, one: Ranked) -> float | None:
    return one.losses.get(device)


def _signed_bytes(number: float) -> str:
    unit, name = (2**20, "MiB") if abs(number) >= 2**20 else (2**10, "KiB")
    return f"{number / unit:+,.0f} {name}" if number else "0"


def _fronts(answer: SearchResult, columns: Sequence[Column]) -> Iterable[Table]:
    shown = [one for one in columns if one.name not in ("", "+-", "interval", "shards", "memory")]
    size = Column("parameters", lambda one: one.parameters / 1e9, lambda value: f"{value:.3f} B")
    by_size = [size if one.name == "parameters" else one for one in shown]
    if answer.front:
        yield Table("Pareto (none is faster both to train and to serve, by the objective)", shown, answer.front)
    if answer.pareto:
        yield Table("Pareto (each is faster than every one with more parameters)", by_size, answer.pareto)


def _records(answer: SearchResult) -> Iterable[Mapping[str, object]]:
    ranked = (answer.baseline, *answer.candidates)
    names = list(dict.fromkeys(key for one in ranked for key in one.change))
    for one in ranked:
        scalars = {key: value for key, value in one.to_dict().items() if not isinstance(value, dict)}
        yield {**{key: one.change.get(key) for key in names}, **scalars}


def patch(answer: SearchResult) -> Document:
    """The best candidate as a JSON merge patch (RFC 7396) of the configuration, under the file's own keys.

    Nested keys become nested objects. Empty: keep what is there.
    """
    found: dict[str, Any] = {}
    for key, value in settings(answer).items():
        *parents, last = key.split(".")
        inner = found
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return Document("sizer search --emit", (), found)


def _charts(answer: SearchResult) -> list[Chart]:
    single = len(answer.baseline.change) == 1
    draw = served if answer.front else landscape if single else front
    return [draw(answer), *([losses(answer)] if answer.baseline.losses else [])]


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

    return sorted(((one, role(one)) for one in answer.ranked), key=lambda pair: list(ROLES).index(pair[1]))


def landscape(answer: SearchResult) -> Chart:
    """TFLOPS over the searched dimension, coloured by alignment, with what it may be off by and the device's edges."""
    (field,) = answer.baseline.change
    rows: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for one, role in _roles(answer):
        value, time = one.change[field], one.timing
        at = {"x": value, "y": one.tflops, "group": alignment_class(value)}
        what = f"{field} {value}, {role}: {one.tflops:.4g} TFLOPS, {_within(time)}, {one.speedup:.3f}x"
        rows.append({**at, "kind": role, "size": ROLES[role][2], "what": what})
        slow, fast = (one.tflops * time.seconds / max(bound, 1e-12) for bound in (time.high, time.low))
        errors.append({**at, "y": slow, "y2": fast})
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
        colours=ALIGNMENT_COLOURS,
        shapes=SHAPES,
        legend=("divisible by", ""),
    )


def _within(time: Timing) -> str:
    return f"{seconds_text(time.seconds)} ({seconds_text(time.low)} to {seconds_text(time.high)})"


def _edges(values: Iterable[int], what: str, look: dict[str, Any]) -> list[Layer]:
    rows = [{"x": value, "what": f"{value}: {what}"} for value in values]
    return [Layer("rule", rows, look)] if rows else []


def front(answer: SearchResult) -> Chart:
    """Time over parameters: what nothing beats in both is the front."""
    unit, scale = ("billions", 1e9) if answer.ranked[0].parameters >= 10**9 else ("millions", 1e6)
    factor, time = seconds_scale(max(one.timing.seconds for one in answer.ranked))
    errors = [
        {"x": one.parameters / scale, "y": one.timing.low * factor, "y2": one.timing.high * factor, "group": role}
        for one, role in _roles(answer)
        if role in ("best", "baseline")
    ]
    return _front(
        answer,
        f"{answer.what}: time over parameters of every candidate; those on the front are faster than all that have "
        "more parameters. Lines at baseline and best: their intervals.",
        (f"parameters, {unit}", f"time, {time}"),
        lambda one: (one.parameters / scale, one.timing.seconds * factor),
        lambda one: f"{seconds_text(one.timing.seconds)}, {one.speedup:.3f}x",
        Layer("rule", errors, {"opacity": 0.6}),
    )


def served(answer: SearchResult) -> Chart:
    """The decode step over the training step, each over the baseline's and by the objective."""

    def place(one: Ranked) -> tuple[float, float]:
        return 1 / training_gain(one), 1 / decode_gain(one)

    def differs(one: Ranked) -> str:
        return ", ".join(f"{key} {value}" for key, value in one.change.items() if value != answer.baseline.change[key])

    ends = [
        {"x": place(one)[0], "y": place(one)[1], "text": differs(one)}
        for one in {id(one): one for one in (answer.front[0], answer.front[-1])}.values()
    ]
    return _front(
        answer,
        f"{answer.what}: the decode step over the training step, both over the baseline's, by {answer.objective}; none "
        "is faster in both than what is on the front.",
        ("training step, over the baseline's", "decode step, over the baseline's"),
        place,
        lambda one: f"{one.speedup:.3f}x to train, {one.decode_speedup:.3f}x to decode",
        Layer("text", ends, {"align": "left", "dx": 9, "dy": -9}),
    )


def _front(
    answer: SearchResult,
    caption: str,
    axes: tuple[str, str],
    place: Callable[[Ranked], tuple[float, float]],
    said: Callable[[Ranked], str],
    top: Layer,
) -> Chart:
    """Every candidate at its place, with the line of those that none beats."""
    rows = []
    for one, role in _roles(answer):
        x, y = place(one)
        what = f"{label(one)}\n{role}: {said(one)}"
        rows.append({"x": x, "y": y, "group": role, "size": ROLES[role][2], "what": what})
    line = [{"x": x, "y": y} for x, y in sorted(place(one) for one in answer.front or answer.pareto)]
    look = {"color": ROLE_COLOURS["on the front"], "interpolate": "step-after"}
    layers = [*([Layer("line", line, look)] if line else []), Layer("point", rows, {"opacity": 0.85}), top]
    horizontal, vertical = (Axis(name, zero=False) for name in axes)
    return Chart(caption, horizontal, vertical, layers, colours=ROLE_COLOURS, shapes=SHAPES)


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
