"""A step's utilization as text: the step as it was run, a row for every convention, and what each counts."""

from __future__ import annotations

from tabulate import tabulate

from sizer.answers.mfu import MfuAnswer
from sizer.answers.mfu_explain import Explanation
from sizer.documents.units import percent_text, seconds_text
from sizer.render.page import Page

#: What no cause of `mfu --explain` stands for.
BEYOND_SLOW = "data loading, checkpoints to disk, evaluation and stragglers are not modelled, or the layout is another"
BEYOND_FAST = "the layout, the batch or the software is another than was said"


def render(answer: MfuAnswer, page: Page) -> str:
    mamf = answer.device.mamf_flops.get(answer.dtype)
    achievable = f", achievable {mamf / 1e12:.1f}" if mamf else ", achievable not known"
    lines = [
        f"{answer.seconds:.4g} s a step, {answer.gpus} x {answer.device.title}, "
        f"global batch {answer.global_batch} x {answer.s} tokens, checkpointing {answer.checkpointing}",
        f"{answer.dtype} peak {answer.device.peak(answer.dtype) / 1e12:.1f} TFLOPS{achievable}",
    ]
    times = answer.log
    if times is not None:
        lines.append(
            f"log: {len(times.seconds)} steps, median {times.median_s:.4g} s, mean {times.mean_s:.4g}, fastest "
            f"{min(times.seconds):.4g}, 90th percentile {times.percentile_s(90):.4g}; "
            f"{times.unread} lines without a time"
        )
    table = [
        [
            row.count.method,
            f"{row.model_tflops:.1f}",
            f"{row.mfu:.1%}",
            f"{row.hfu:.1%}",
            _share(row.mfu_achievable),
            _share(row.hfu_achievable),
        ]
        for row in answer.rows
    ]
    headers = ["count", "TFLOPS/GPU", "MFU", "HFU", "MFU of achievable", "HFU of achievable"]
    lines += ["", tabulate(table, headers, disable_numparse=True), ""]
    lines += [f"{row.count.method}: {row.count.convention}" for row in answer.rows]
    if any(row.mfu > 1 for row in answer.rows):
        lines.append(
            "above 100%: the masked half of the attention square is counted, which a causal kernel does not run"
        )
    if answer.explanation is not None:
        lines += ["", *_explained(answer.explanation)]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _explained(found: Explanation) -> list[str]:
    predicted = found.predicted
    difference = found.measured_s - predicted.seconds
    lines = [
        f"predicted as {found.stack} runs it ({predicted.tier}): {seconds_text(predicted.seconds)} "
        f"({seconds_text(predicted.low)} to {seconds_text(predicted.high)} in {predicted.coverage:.0%} of cases), "
        f"{found.accumulation} {'microbatch' if found.accumulation == 1 else 'microbatches'} a device",
        *(
            f"  {what:<24} {seconds_text(seconds):>8}  {percent_text(seconds / found.measured_s)} of the measured step"
            for what, seconds in sorted(predicted.parts.items(), key=lambda part: -part[1])
        ),
        f"  {'measured beyond these':<24} {seconds_text(difference):>8}  {percent_text(difference / found.measured_s)}",
        "",
        "the measurement lies in the interval: nothing needs explaining; what could still differ:"
        if found.expected
        else "the measurement lies outside the interval; causes that lead towards it, one at a time:",
    ]
    if not found.causes:
        return [*lines, "  none of those known"]
    lines += [f"  {_signed(cause.seconds):>9}  {cause.what}" for cause in found.causes]
    left = difference - sum(cause.seconds for cause in found.causes)
    if not found.expected and left * difference > 0:
        # Causes that overlap are worth less together, so that at least this much is left.
        lines.append(f"even added up they leave {_signed(left)}: {BEYOND_SLOW if left > 0 else BEYOND_FAST}")
    return lines


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))}"
