"""A plan as a page: memory and time of every split that fits, the frontier of both, and the fastest taken apart."""

from __future__ import annotations

from sizer.answers.plan import Candidate, Plan
from sizer.documents.document import Axis, Chart, Document, Facts, Layer, Section, Table, Text, cell, limit
from sizer.documents.units import percent_text, seconds_text

GIB = 2**30
#: Splits slower than this many times the fastest are not drawn; the chart says how many.
SLOWEST = 1.5
#: Splits in the table; what is slower is counted.
LISTED = 400
#: Splits taken apart beside each other.
SHOWN = 12


def document(answer: Plan) -> Document:
    best = answer.recommended
    facts = {
        "devices": f"{answer.gpus} x {answer.device}",
        "global batch": f"{answer.global_batch:,}",
        "stack": answer.stack,
        "splits that fit": f"{len(answer.candidates):,}",
        "alike with the fastest": str(answer.indistinguishable),
        "recommended": split_text(best),
        "step": f"{seconds_text(best.seconds)} ({seconds_text(best.low_s)} to {seconds_text(best.high_s)})",
        "memory": f"{best.memory_bytes / GIB:.1f} GiB",
        "MFU": "-" if best.mfu is None else percent_text(best.mfu),
    }
    training = answer.training(best)
    if training is not None:
        facts |= {
            "days": f"{training.days:,.1f}",
            "device hours": f"{training.device_hours:,.0f}",
            "kWh": f"{training.kwh:,.0f}",
        }
        facts |= {} if training.cost is None else {"cost": f"{training.cost:,.0f}"}
    dropped = Table("Not listed", ("splits", "why"), [[cell(one.count), cell(one.reason)] for one in answer.dropped])
    parts = (
        Facts(facts),
        Text(f"Times: {answer.source}; stack {answer.stack}", quiet=True),
        _frontier(answer),
        _parts(answer),
        _table(answer),
        *([dropped] if answer.dropped else []),
        *(Text(f"Assumed: {one}", quiet=True) for one in answer.assumptions),
    )
    return Document("sizer plan", (Section(f"{answer.gpus} x {answer.device}", parts),))


def split_text(candidate: Candidate) -> str:
    """A split in a line: what is not 1, ZeRO, the microbatch and checkpointing."""
    w = candidate.workload
    names = ("t", "p", "vpp", "cp", "d", "e")
    degrees = [f"{name} {getattr(w, name)}" for name in names if getattr(w, name) > 1]
    hsdp = [f"HSDP over {w.d // w.replicas}"] if w.replicas > 1 else []
    checkpointing = [] if w.checkpointing == "none" else [f"{w.checkpointing} checkpointing"]
    return ", ".join((*degrees, f"ZeRO {w.zero}", *hsdp, f"b {w.b}", *checkpointing))


def _kinds(candidate: Candidate) -> str:
    w = candidate.workload
    kinds = [name for name, degree in (("tensor", w.t), ("pipeline", w.p), ("context", w.cp)) if degree > 1]
    return " + ".join(kinds) or "data alone"


def _frontier(answer: Plan) -> Chart:
    """Every split by what it holds and takes; the frontier is what none beats in both."""
    slowest = SLOWEST * answer.candidates[0].seconds
    drawn = [one for one in answer.candidates if one.seconds <= slowest]
    edge: list[Candidate] = []
    for one in sorted(drawn, key=lambda one: (one.memory_bytes, one.seconds)):
        if not edge or one.seconds < edge[-1].seconds:
            edge.append(one)
    rows = [
        {
            "x": one.memory_bytes / GIB,
            "y": one.seconds,
            "group": _kinds(one),
            "kind": one.workload.checkpointing,
            "size": 0.08,
            "what": f"{split_text(one)}: {seconds_text(one.seconds)}, {one.memory_bytes / GIB:.1f} GiB",
        }
        for one in drawn
    ]
    line = [{"x": one.memory_bytes / GIB, "y": one.seconds, "what": split_text(one)} for one in edge]
    best = answer.recommended
    at = {"x": best.memory_bytes / GIB}
    layers = [
        Layer("point", rows, {"opacity": 0.55}),
        Layer("line", line, {"color": "currentColor", "interpolate": "step-after"}),
        Layer("rule", [{**at, "y": best.low_s, "y2": best.high_s}], {"strokeWidth": 2}),
        Layer(
            "point",
            [{**at, "y": best.seconds, "size": 0.6, "what": split_text(best)}],
            {"filled": False, "color": "currentColor", "strokeWidth": 2},
        ),
        Layer(
            "text",
            [{**at, "y": best.seconds, "text": "recommended"}],
            {"dx": 12, "align": "left", "fontWeight": "bold"},
        ),
        *limit(answer.device_bytes / GIB, f"{answer.device} {answer.device_bytes / GIB:.1f} GiB", along="x"),
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


def _parts(answer: Plan) -> Chart:
    """The fastest splits, each the time computed, sent and waited, with its interval."""
    shown = list(answer.candidates[: min(answer.top, SHOWN)])
    shown += [answer.recommended] if answer.recommended not in shown else []
    names = {id(one): f"{at}. {split_text(one)}" for at, one in enumerate(shown, 1)}
    bars, within = [], []
    for one in shown:
        end, name = 0.0, names[id(one)]
        rest = one.seconds - one.communication_s - one.bubble_s
        for group, seconds in (("computing", rest), ("communication", one.communication_s), ("bubble", one.bubble_s)):
            start, end = end, end + seconds
            bars.append({"x": start, "x2": end, "y": name, "group": group, "what": f"{group}: {seconds_text(seconds)}"})
        within.append({"x": one.low_s, "x2": one.high_s, "y": name})
    return Chart(
        "The fastest splits by what their step is spent on, with intervals; communication: what is not hidden.",
        Axis("step, s"),
        Axis("", order=tuple(names.values())),
        [Layer("bar", bars), Layer("rule", within)],
        height=40 + 24 * len(shown),
    )


def _table(answer: Plan) -> Table:
    rows = [
        [
            cell(split_text(one)),
            cell(one.microbatches),
            cell(one.seconds, f"{one.seconds:.3f}"),
            cell(one.low_s, f"{one.low_s:.3f}"),
            cell(one.high_s, f"{one.high_s:.3f}"),
            cell(one.communication_s / one.seconds, f"{one.communication_s / one.seconds:.0%}"),
            cell(one.bubble_s / one.seconds, f"{one.bubble_s / one.seconds:.0%}"),
            cell(one.memory_bytes, f"{one.memory_bytes / GIB:.1f}"),
            cell(one.mfu, None if one.mfu is None else f"{one.mfu:.1%}"),
        ]
        for one in answer.candidates[:LISTED]
    ]
    left = len(answer.candidates) - len(rows)
    head = ("split", "microbatches", "step s", "low", "high", "communication", "bubble", "GiB", "MFU")
    return Table(f"The fastest {len(rows)} splits; {left} more fit" if left else "Splits", head, rows)
