"""A search: the landscape of a dimension, or a front (parameters and time, training and serving), the candidates."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby

from shapes.frozen import Named, Values, in_words, without
from sizer.readers.reading import with_settings
from sizer.searching.result import Ranked, SearchResult, label, objected, settings
from sizer.searching.run import decode_gain, training_gain
from sizer.searching.space import REACH, reaches

from . import (
    FULL,
    Charts,
    Column,
    Document,
    Section,
    Table,
    Text,
    columns,
    lines,
    seconds_scale,
    seconds_text,
    signed_count_text,
    split_text,
    width_text,
    within_text,
)
from .charts import LOOKS, Axis, Chart, Layer, path, points


def document(answer: SearchResult) -> Document:
    excluded = in_words(answer.excluded, "{1} by {0}")
    w, varied = answer.serving, _varied((answer.baseline, *answer.candidates, *answer.front, *answer.pareto))
    listed = _columns(answer, varied)
    same = in_words(without(answer.baseline.change, varied))
    served = (
        f"  decode: {w.b} requests of {w.context:,} keys, {split_text(w)}{w.dtype}, KV cache {w.cache_dtype}; "
        "operators added up, an engine's launches and host time not among them"
        if w
        else ""
    )
    parts = (
        Text(answer.verdict, "head"),
        Text(_first(answer)),
        *lines([served, same and f"  in every row: {same}"]),
        *lines((f"  {note}" for note in answer.notes), "quiet"),
        *lines([excluded and f"  excluded: {excluded}"], "quiet"),
        Charts(lambda: [(front if answer.what == "model" or answer.front else rates)(answer)]),
        Table(listed, (answer.baseline, *answer.candidates)),
        *_fronts(answer, listed),
        Table(_columns(answer, _varied(answer.ranked)), answer.ranked, "every candidate", only=FULL),
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
        run_by = f"stack {answer.stack}" if answer.stack else "kernels alone, no stack"
        first = f"predicted, not measured ({answer.source.removeprefix('predicted:')}, {run_by})"
    return (
        f"{first}: {answer.what} over {answer.tokens:,} tokens, {answer.considered} candidates, by {answer.objective}"
    )


def _columns(answer: SearchResult, sizes: Iterable[str]) -> tuple[Column, ...]:
    """Columns of the listed candidates, of a front and of all, with one for each of ``sizes``."""
    places = {id(one): str(at) for at, one in enumerate(answer.candidates, 1)} | {id(answer.baseline): "baseline"}
    place, *others = columns(
        "search",
        place=lambda one: places.get(id(one), ""),
        objected=objected,
        half_width=lambda one: width_text(one.timing.half_width),
        rate=lambda tflops: f"{tflops:.0f}" if tflops >= 100 else f"{tflops:.3g}",
        change=lambda value: signed_count_text(round(value)),
        split=lambda one: f"{split_text(one)}ZeRO {one.zero}, b {one.b}, checkpointing {one.checkpointing}",
        lost=lambda one: one.loss and f"{one.loss - 1:+.2%}",
        lost_by=lambda one: one.loss and f"{one.loss_error:.2%}",
        decoded=lambda one: one.decode and one.decode_speedup,
    )
    apart = [Column(name, f"change.{name}", str) for name in sizes]
    return place, *(apart if len(apart) <= MOST_APART else [Column(answer.what, label)]), *others


#: Sizes that are columns of their own; more, in words, leave a terminal room for what they cost.
MOST_APART = 6


def _varied(rows: Sequence[Ranked]) -> list[str]:
    """The names whose values ``rows`` differ in."""
    return [name for name, value in rows[0].change.items() if any(one.change[name] != value for one in rows)]


def _fronts(answer: SearchResult, listed: Sequence[Column]) -> Iterable[Table]:
    if answer.front:
        served = "is faster both to train and to serve, by the objective"
        judged = "has less loss and memory in less time" if answer.baseline.loss else served
        yield Table(listed, answer.front, f"Pareto (none {judged})")
    if answer.pareto:
        apart = "".join(f", alike or better in {name}" for name in REACH if name in answer.baseline.change)
        yield Table(listed, answer.pareto, f"Pareto (each is faster than every one with more parameters{apart})")


def _records(answer: SearchResult) -> Iterable[Named]:
    for one in (answer.baseline, *answer.candidates):
        yield {**one.change, **{key: value for key, value in one.to_dict().items() if not isinstance(value, dict)}}


def patch(answer: SearchResult) -> Document:
    """The best candidate as a JSON merge patch (RFC 7396) of the configuration, under the file's own keys.

    Nested keys become nested objects. Empty: keep what is there.
    """
    return Document("sizer search --emit", (), with_settings({}, settings(answer)))


def _points(answer: SearchResult, point: Callable[[Ranked, str], Values]) -> list[Values]:
    """A point for each candidate with a time, the notable ones last, so that they are drawn on top.

    ``point``: a function that makes a candidate's channels, its description too, of the candidate and its role.
    """
    listed = [one.change for one in answer.candidates]
    on_front = [one.change for one in answer.front or answer.pareto]

    def role(one: Ranked) -> str:
        if one.change == answer.baseline.change:
            return "baseline"
        if one.change in listed:
            return "best" if one.change == listed[0] else "listed"
        return "on the front" if one.change in on_front else "candidate"

    rows, order = [], list(LOOKS["roles"])
    for one, name in sorted(((one, role(one)) for one in answer.ranked), key=lambda pair: order.index(pair[1])):
        row = point(one, name)
        rows.append({**row, "size": LOOKS["role_sizes"][name], "what": f"{label(one)}\n{name}: {row['what']}"})
    return rows


def rates(answer: SearchResult) -> Chart:
    """TFLOPS over the searched dimension, coloured by alignment, with what it may be off by."""
    field = next(
        name for name in ("head_dim", "expert_d_ff", *answer.baseline.change) if name in answer.baseline.change
    )

    def point(one: Ranked, role: str) -> Values:
        slow, fast = (one.tflops * one.timing.seconds / max(end, 1e-12) for end in (one.timing.high, one.timing.low))
        name = f"{role} {one.change[field]}" if role in ("best", "baseline") else ""
        what = f"{one.tflops:.4g} TFLOPS, {within_text(one.timing)}, {one.speedup:.3f}x"
        place = {"x": one.change[field], "y": one.tflops, "low": slow, "high": fast}
        return place | {"kind": role, "label": name, "what": what}

    rows, (*powers, odd) = _points(answer, point), LOOKS["alignment"]
    for row in rows:
        row["group"] = next((name for name in powers if row["x"] % int(name) == 0), odd)
    joined = sorted(({key: row[key] for key in ("x", "y", "group")} for row in rows), key=lambda row: row["x"])
    return Chart(
        f"{answer.what}: rate over {field} with its interval, coloured by the power of two that divides it.",
        Axis(field, whole=True),
        Axis("TFLOPS"),
        points(rows, Layer("line", joined, {"strokeWidth": 0.8})),
        colours=LOOKS["alignment"],
        shapes=LOOKS["role_shapes"],
        legend="divisible by",
    )


def front(answer: SearchResult) -> Chart:
    """Time over parameters, or where both were asked for decoding over training, with the line of those none beats."""
    served = answer.serving is not None
    if served:
        names = "training step, over the baseline's", "decode step, over the baseline's"
    else:
        factor, unit = seconds_scale(max(one.timing.seconds for one in answer.ranked))
        names = "parameters, billions", f"time, {unit}"

    def place(one: Ranked) -> tuple[float, float]:
        if served:
            return 1 / training_gain(one), 1 / decode_gain(one)
        return one.parameters / 1e9, one.timing.seconds * factor

    def point(one: Ranked, role: str) -> Values:
        x, y = place(one)
        decoding = f", {one.decode_speedup:.3f}x to decode" if served else ""
        what = f"{seconds_text(one.timing.seconds)}, {one.speedup:.3f}x{decoding}"
        return {"x": x, "y": y, "group": role, "what": what}

    def reach(one: Ranked) -> list[float]:
        return reaches(one.change)

    # None of another reach is better or worse.
    lines = (
        path(sorted(map(place, alike)), color=LOOKS["roles"]["on the front"], interpolate="step-after")
        for _, alike in groupby(sorted(answer.front or answer.pareto, key=reach), reach)
    )
    return Chart(
        f"{answer.what}: {names[1]} over {names[0]}; none is better in both than what is on the front.",
        Axis(names[0]),
        Axis(names[1]),
        points(_points(answer, point), *lines),
        colours=LOOKS["roles"],
        shapes=LOOKS["role_shapes"],
    )
