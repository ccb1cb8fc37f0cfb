"""A step's utilization: the step as it was run, a row for every convention, and what each counts."""

from collections.abc import Iterator

from sizer.answers.mfu import Explanation, MfuAnswer, StepTimes

from . import Document, Part, Section, Table, Text, columns, lines, notes, plural, range_text, seconds_text

#: An MFU below which a step time is likelier to be in another unit.
UNLIKELY = 0.01


def document(answer: MfuAnswer) -> Document:
    return Document(
        "sizer mfu",
        (Section(f"{answer.gpus} x {answer.device.title}", list(_parts(answer))),),
        answer,
        records=lambda: answer.to_dict()["counts"],
    )


def row(answer: MfuAnswer) -> Document:
    """The run as a table of runs has it."""
    return Document("sizer mfu --row", (), answer, records=lambda: [answer.to_dict()["explanation"]["row"]])


def _parts(answer: MfuAnswer) -> Iterator[Part]:
    mamf, times = answer.achievable_flops, answer.log
    yield Text("MFU " + ", ".join(map("{0.mfu:.1%} ({0.count.method})".format, answer.rows)), "head")
    yield Text(
        f"{answer.seconds:.4g} s a step, {answer.gpus} x {answer.device.title}, "
        f"global batch {answer.global_batch} x {answer.s} tokens, checkpointing {answer.checkpointing}"
    )
    if price := answer.device.price_usd_per_h:
        yield Text(f"{price * answer.gpus * answer.seconds / 3600:,.2f} USD a step, at {price:g} a device hour")
    if not times and all(row.mfu < UNLIKELY for row in answer.rows):  # a log says its unit
        yield Text(f"under {UNLIKELY:.0%}: is the time in milliseconds? --step-time {answer.seconds:g}ms", "warning")
    achievable = f"{mamf / 1e12:.1f}" if mamf else "not known"
    yield Text(f"{answer.dtype} peak {answer.peak_flops / 1e12:.1f} TFLOPS, achievable {achievable}")
    if times:
        yield Text(
            f"log: {times.steps} steps, median {times.median_s:.4g} s, fastest "
            f"{min(times.seconds):.4g}; {times.unread} lines without a time"
        )
    yield Table(columns("mfu"), answer.rows)
    yield from lines(f"{row.count.method}: {row.count.convention}" for row in answer.rows)
    if answer.rows[0].count.method == "operators, causal":
        yield Text("operators: above 100%: the masked half of attention's square is in it, which no causal kernel runs")
    if answer.explanation:
        yield from _explained(answer.explanation, times)
    yield from notes(answer.notes)


def _explained(found: Explanation, times: StepTimes | None) -> Iterator[Part]:
    predicted, measured_s = found.predicted, found.measured_s
    parts = [
        *sorted(predicted.parts.items(), key=lambda part: -part[1]),
        ("measured beyond these", found.unexplained_s),
    ]
    share = columns("mfu parts", share=lambda part: part[1] / measured_s)
    known = "; ".join((predicted.tier, *predicted.unknown))
    yield Text("")
    yield Text(
        f"predicted as {found.stack} runs it ({known}): {seconds_text(predicted.seconds)} "
        f"({range_text(predicted.low, predicted.high)} in {predicted.coverage:.0%} of cases), "
        f"{plural(found.accumulation, 'microbatch')} a device"
    )
    yield Table(share, parts)
    if times and times.kernels:
        own = dict.fromkeys(times.kernels, 0.0)  # parts without a kernel are waiting
        for part, time in predicted.parts.items():
            sent = part.endswith(("parallelism", "sends"))
            own[part if part in own else "communication" if sent else "idle"] += time
        compared = [(part, time, own[part]) for part, time in times.kernels.items()]
        yield Table(columns("mfu profile"), compared, "The trace's kernels (communication: while nothing else runs)")
        yield Table(columns("mfu operators"), found.operators, "By operator, as each runs alone (equal ones together)")
    yield Text(
        "the measurement lies in the interval: nothing needs explaining; what could still differ:"
        if found.expected
        else "the measurement lies outside the interval; causes that lead towards it, one at a time:"
    )
    yield Table(columns("mfu causes"), found.causes)
    if not found.causes:
        yield Text("none of those known", indent=2)
