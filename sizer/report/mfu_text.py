"""A step's utilization as text: the step as it was run, a row for every convention, and what each counts."""

from __future__ import annotations

from tabulate import tabulate

from sizer.answers.mfu import MfuAnswer
from sizer.report.page import Page


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
        [row.count.method, f"{row.model_tflops:.1f}", f"{row.mfu:.1%}", f"{row.hfu:.1%}", _share(row.mfu_achievable),
         _share(row.hfu_achievable)]
        for row in answer.rows
    ]  # fmt: skip
    headers = ["count", "TFLOPS/GPU", "MFU", "HFU", "MFU of achievable", "HFU of achievable"]
    lines += ["", tabulate(table, headers, disable_numparse=True), ""]
    lines += [f"{row.count.method}: {row.count.convention}" for row in answer.rows]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
