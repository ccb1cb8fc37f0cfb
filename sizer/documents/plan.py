"""A plan: the recommended split, the fastest ones, the frontier of memory and time, and the fastest taken apart."""

from __future__ import annotations

from collections.abc import Callable

from shapes.json_form import plain
from sizer.answers.plan import Candidate, Plan
from sizer.documents.charts import Axis, Bar, Chart, bars, limit, path, points
from sizer.documents.document import (
    FULL,
    GIB,
    Charts,
    Column,
    Document,
    Facts,
    Section,
    Table,
    Text,
    lines,
    percent_text,
    range_text,
    seconds_text,
)

#: Splits slower than this many times the fastest are not drawn; the chart says how many.
SLOWEST = 1.5
#: Splits in the table of a page.
LISTED = 400
#: Splits taken apart in a chart; reasons why others are not listed, in a text.
SHOWN = 12


def document(answer: Plan) -> Document:
    best, w = answer.recommended, answer.candidates[0].workload
    facts = {
        "recommended": split_text(best),
        "step": f"{seconds_text(best.seconds)} ({range_text(best.low_s, best.high_s)})",
        "memory": f"{best.memory_bytes / GIB:.1f} GiB",
        "MFU": "-" if best.mfu is None else percent_text(best.mfu),
    }
    head = (
        f"{answer.gpus} x {answer.device}, global batch {answer.global_batch} x {w.s} tokens, {w.dtype}, "
        f"{w.attention} attention, {answer.implementation} kernels, stack {answer.stack}"
    )
    fit = (
        f"{len(answer.candidates)} splits fit; {answer.source}; layouts within {answer.ratio_error:.0%} are "
        "indistinguishable"
    )
    simplest = f"recommended, the simplest of the {answer.indistinguishable} within that of the fastest"
    left = len(answer.candidates) - LISTED
    every = f"the fastest {LISTED} splits; {left} more fit" if left > 0 else "every split that fits"
    reasons = (Column("splits", "count"), Column("why", "reason"))
    parts = (
        Text(", ".join(f"{name} {said}" for name, said in facts.items()), "head"),
        Text(head),
        Text(fit),
        Facts(facts),
        Table(simplest, SPLIT, [best]),
        *lines([_training(answer)]),
        Charts(lambda: (_frontier(answer), _taken_apart(answer))),
        Table("the fastest", SPLIT, answer.candidates[: answer.top]),
        Table(every, SPLIT, answer.candidates[:LISTED], only=FULL),
        Table("not listed", reasons, answer.dropped, most=SHOWN),
        *lines(["assumed:"] if answer.assumptions else []),
        *lines(answer.assumptions, indent=2),
    )
    return Document(
        "sizer plan",
        (Section(f"{answer.gpus} x {answer.device}", parts),),
        answer,
        records=lambda: (_record(one) for one in answer.candidates),
    )


def _training(answer: Plan) -> str:
    training = answer.training(answer.recommended)
    if training is None:
        return ""
    cost = "" if training.cost is None else f", costing {training.cost:,.0f}"
    return (
        f"{training.tokens:.3g} tokens take {training.days:,.1f} days, {training.device_hours:,.0f} device hours and "
        f"{training.kwh:,.0f} kWh (the devices alone, at their rated power){cost}"
    )


def _record(one: Candidate) -> dict[str, object]:
    """A candidate's figures with the degrees of its split."""
    values = plain(one)
    return {
        **{key: value for key, value in values.items() if not isinstance(value, dict)},
        **{key: value for inner in values.values() if isinstance(inner, dict) for key, value in inner.items()},
    }


def split_text(candidate: Candidate) -> str:
    """A split in a line: what is not 1, ZeRO, the microbatch and checkpointing."""
    w = candidate.workload
    degrees = [f"{name} {getattr(w, name)}" for name in DEGREES if getattr(w, name) > 1]
    checkpointing = [] if w.checkpointing == "none" else [f"{w.checkpointing} checkpointing"]
    return ", ".join((*degrees, f"ZeRO {_zero(candidate)}", f"b {w.b}", *checkpointing))


def _zero(candidate: Candidate) -> str:
    w = candidate.workload
    return str(w.zero) if w.replicas == 1 else f"{w.zero}, HSDP over {w.d // w.replicas}"


def _share(field: str) -> Callable[[Candidate], float]:
    return lambda one: getattr(one, field) / one.seconds


#: How the recommended split is drawn.
RING = {"filled": False, "color": "currentColor", "strokeWidth": 2}
DEGREES = ("t", "p", "vpp", "cp", "d", "e")
SPLIT = (
    *(Column(name, f"workload.{name}") for name in DEGREES),
    Column("ZeRO", _zero),
    Column("b", "workload.b"),
    Column("microbatches", "microbatches", drop=1),
    Column("checkpointing", "workload.checkpointing"),
    Column("step s", "seconds", ".3f"),
    Column("low", "low_s", ".3f", drop=3),
    Column("high", "high_s", ".3f", drop=3),
    Column("comm.", _share("communication_s"), ".0%", drop=2),
    Column("bubble", _share("bubble_s"), ".0%", drop=2),
    Column("GiB", "memory_bytes", ".1f", unit=GIB),
    Column("MFU", "mfu", ".1%"),
)


def _kinds(candidate: Candidate) -> str:
    w = candidate.workload
    kinds = [name for name, degree in (("tensor", w.t), ("pipeline", w.p), ("context", w.cp)) if degree > 1]
    return " + ".join(kinds) or "data alone"


def _at(candidate: Candidate) -> dict[str, float]:
    return {"x": candidate.memory_bytes / GIB, "y": candidate.seconds}


def _frontier(answer: Plan) -> Chart:
    """Every split by what it holds and takes; the frontier is what none beats in both."""
    slowest = SLOWEST * answer.candidates[0].seconds
    drawn = [one for one in answer.candidates if one.seconds <= slowest]
    edge: list[tuple[float, float]] = []
    for size, seconds in sorted((one.memory_bytes / GIB, one.seconds) for one in drawn):
        if not edge or seconds < edge[-1][1]:
            edge.append((size, seconds))
    rows = [
        {
            **_at(one),
            "group": _kinds(one),
            "kind": one.workload.checkpointing,
            "size": 0.08,
            "what": f"{split_text(one)}: {seconds_text(one.seconds)}, {one.memory_bytes / GIB:.1f} GiB",
        }
        for one in drawn
    ]
    best = answer.recommended
    chosen = {**_at(best), "size": 0.6, "what": split_text(best), "label": "recommended"}
    layers = [
        *points(rows, path(edge, color="currentColor", interpolate="step-after")),
        *points([{**chosen, "low": best.low_s, "high": best.high_s}], look=RING),
        *limit(answer.device_bytes / GIB, f"{answer.device} {answer.device_bytes / GIB:.1f} GiB"),
    ]
    left = len(answer.candidates) - len(drawn)
    slower = f" {left} that take more than {SLOWEST:g} times the fastest are not drawn." if left else ""
    return Chart(
        f"Step time over memory of every split that fits; the line is the frontier of both.{slower}",
        Axis("GiB a device"),
        Axis("step, s", zero=False),
        layers,
        height=420,
        legend=("parallelism", "checkpointing"),
    )


def _taken_apart(answer: Plan) -> Chart:
    """The fastest splits, each the time computed, sent and waited, with its interval."""
    shown = list(answer.candidates[: min(answer.top, SHOWN)])
    shown += [answer.recommended] if answer.recommended not in shown else []
    listed = []
    for at, one in enumerate(shown, 1):
        rest = one.seconds - one.communication_s - one.bubble_s
        spent = {"computing": rest, "communication": one.communication_s, "bubble": one.bubble_s}
        pieces = [(group, seconds, f"{group}: {seconds_text(seconds)}") for group, seconds in spent.items()]
        listed.append(Bar(f"{at}. {split_text(one)}", pieces, (one.low_s, one.high_s)))
    caption = "The fastest splits by what their step is spent on, with intervals; communication: what is not hidden."
    return bars(caption, "step, s", listed)
