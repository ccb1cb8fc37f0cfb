"""A pipeline's schedule drawn: when each stage computes, and when it waits for another (the bubble)."""

from __future__ import annotations

from shapes.workload import Workload
from sizer.documents import percent_text, seconds_scale
from sizer.documents.charts import LOOKS, Axis, Chart, Layer

#: Forwards that are drawn at most.
MOST = 600


def timeline(w: Workload, microbatches: int, seconds: float, bubble_s: float) -> list[Chart]:
    """1F1B of a step of ``seconds``, a backward as two forwards; none without a pipeline. Of many microbatches some.

    Stage i starts the forward of microbatch j at i + j while the pipeline fills, then at i + 3j, and its backward at
    3p - 2 - 2i + 3j.
    """
    p, drawn = w.p, min(microbatches, MOST // w.p)
    factor, unit = seconds_scale(seconds * drawn / microbatches)
    third = (seconds - bubble_s) / microbatches / 3 * factor
    rows = [
        {
            "x": start * third,
            "x2": (start + long) * third,
            "y": stage + 1,
            "group": name,
            "what": f"{name} of microbatch {one + 1}",
        }
        for stage in range(p)
        for one in range(drawn)
        for name, start, long in (
            ("forward", stage + one * (1 if one < p - stage else 3), 1),
            ("backward", 3 * p - 2 - 2 * stage + 3 * one, 2),
        )
    ]
    chunks = f" Drawn without the {w.vpp} chunks a stage, which make the gaps so much shorter." * (w.vpp > 1)
    caption = (
        f"Pipeline: when each stage computes {drawn} of {microbatches} microbatches, all drawn as slow as the slowest, "
        f"a backward as two forwards; the gaps are the bubble, {percent_text(bubble_s / seconds)} of the step.{chunks}"
    )
    bars = Layer("rule", rows, {"strokeWidth": min(160 / p, 40)})
    return [Chart(caption, Axis(f"time, {unit}"), Axis("stage", whole=True), [bars], LOOKS["passes"])] if p > 1 else []
