"""reports/steps.md: its tables, plots, noise floor and the worst ten."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tabulate import tabulate

from shapes.software_stack import list_stacks, load_stack

if TYPE_CHECKING:
    from steps import Judged

REPORT = Path(__file__).parents[1] / "steps.md"
TEMPLATE = Path(__file__).parent / "steps_template.md"
HELD_OUT = Path(__file__).parents[1] / "data" / "steps-held-out.json"
PLOTS = Path(__file__).parents[1] / "plots"

#: Why a row is far off, as far as is known, by (source, configuration's words).
REASONS = (
    (lambda one: one.row.source == "mt-nlg-530b",
     "microbatch, recomputation and vocabulary are assumed in the row; Megatron 2021 on the same model is within 1%"),
    (lambda one: one.row.model.moe is not None and one.row.workload.e > one.row.device.link.domain_devices,
     "experts across nodes: the dispatcher (all-to-all, DeepEP, HybridEP) follows a recipe the table does not show"),
    (lambda one: one.row.model.moe is not None,
     "mixture of experts: routing kernels, CUDA graphs and recomputation follow recipes the table does not show"),
    (lambda one: one.row.workload.p > 1 and one.row.workload.vpp == 1 and one.row.source == "megatron-bridge",
     "the interleaving is not published, one chunk a stage is assumed"),
    (lambda one: one.row.source == "megatron-bridge", "the recipe's recomputation and overlap are not published"),
    (lambda one: one.row.source == "vtrain-single" and one.row.workload.t > 1,
     "launch-bound or near it, with tensor parallelism: host time differs by 20% between runs of equal launches"),
    (lambda one: one.row.source == "llm-foundry" and one.row.workload.b <= 3,
     "memory nearly full: the allocator frees and asks again, which no kernel's time says"),
)  # fmt: skip


def write(done: Sequence[Judged], refused: Sequence[tuple[str, str]]) -> None:
    """The report and its plots."""
    from steps import KEYS, by, table

    parts = {name: table(by(done, key), name.replace("_", " ")) for name, key in KEYS.items()}
    parts |= {
        "rows": str(len(done)),
        "held_out": _held_out(),
        "missed": _missed(),
        "noise": _noise(done),
        "plots": "\n".join(f"![{path.stem}](plots/{path.name})" for path in _plots(done)),
        "worst": _worst(done),
        "fitted": "; ".join(f"**{one.name}**: {one.rows}" for one in _stacks() if one.architectures),
        "borrowed": ", ".join(one.name for one in _stacks() if not one.architectures),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace("{{" + name + "}}", value)
    if refused:
        text += "\n## Not priced\n\n" + "\n".join(f"- {identity}: {reason}" for identity, reason in refused) + "\n"
    REPORT.write_text(text, encoding="utf-8", newline="\n")


def _stacks() -> list[Any]:
    return [load_stack(name) for name in list_stacks()]


def _held_out() -> str:
    found = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    ways = [way for way in next(iter(next(iter(found.values())).values())) if way != "rows"]
    ways.sort(key=lambda way: way != "in sample")
    rows = [
        [stack, source, own["rows"], *(f"{own[way]['bias']:+.1%}, {own[way]['mape']:.1%}" for way in ways)]
        for stack, sources in found.items()
        for source, own in sources.items()
    ]
    return tabulate(rows, ["stack", "source", "rows", *ways], tablefmt="github", disable_numparse=True)


def _missed() -> str:
    """Which sources miss the target on rows left out at random, from the figures above."""
    found = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    over = [
        f"{source} ({own['left out by id']['mape']:.1%})"
        for sources in found.values()
        for source, own in sources.items()
        if own["left out by id"]["mape"] > 0.06 or abs(own["left out by id"]["bias"]) > 0.03
    ]
    return f"Missed on rows left out at random by {', '.join(over)}." if over else "None is missed at random."


def _noise(done: Sequence[Judged]) -> str:
    """Runs of one configuration, devices and layout that differ in the release alone, or not at all."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for one in done:
        w = one.row.workload
        layout = (w.t, w.p, w.d, w.cp, w.e, w.vpp, w.b, w.s, w.checkpointing, w.attention, w.zero)
        key = (one.row.source, one.row.config, one.row.device.name, one.row.dtype, one.row.accumulation, *layout)
        groups.setdefault(key, []).append(np.log(one.row.step_s))
    lines = []
    for source in sorted({str(key[0]) for key in groups}):
        alike = [own for key, own in groups.items() if key[0] == source and len(own) > 1]
        if alike:
            spread = np.array([abs(value - np.mean(own)) for own in alike for value in own])
            lines.append(
                f"- {source}: {len(alike)} runs recur ({sum(map(len, alike))} rows, in other releases); they differ "
                f"from their mean by {spread.mean():.1%} on average and by up to {spread.max():.0%}."
            )
    lines.append(
        "- vtrain-single: runs that differ only in layers, stages or accumulation have residuals within 1 to 2% of "
        "each other, while residuals of equal launches at other tensor-parallel degrees and hidden sizes differ by up "
        "to 30%: one layer's launches take 3.0 to 3.7 ms at t 4, slower at the smaller hidden size."
    )
    return "\n".join(lines)


def _worst(done: Sequence[Judged]) -> str:
    worst = sorted(done, key=lambda one: -abs(np.log1p(one.error)))[:10]
    rows = [
        [one.row.id, one.row.stack_name, one.row.device.name, f"{one.row.step_s:.4g}", f"{one.cost.seconds:.4g}",
         f"{one.error:+.0%}", next((why for applies, why in REASONS if applies(one)), "not known")]
        for one in worst
    ]  # fmt: skip
    headers = ["run", "stack", "device", "measured s", "predicted s", "off by", "reason, as far as known"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _plots(done: Sequence[Judged]) -> list[Path]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    paths = []
    for stack in sorted({one.row.stack.name for one in done}):
        own = [one for one in done if one.row.stack.name == stack]
        figure, axes = plt.subplots(figsize=(5, 5))
        for device in sorted({one.row.device.name for one in own}):
            points = [one for one in own if one.row.device.name == device]
            measured, predicted = [one.row.step_s for one in points], [one.cost.seconds for one in points]
            axes.loglog(measured, predicted, ".", markersize=4, alpha=0.5, label=device)
        ends = [min(one.row.step_s for one in own), max(one.row.step_s for one in own)]
        axes.loglog(ends, ends, linewidth=0.8, color="black")
        axes.set(xlabel="measured s", ylabel="predicted s", title=f"{stack}, {len(own)} published steps")
        axes.legend(fontsize=7)
        path = PLOTS / f"steps-{stack}.png"
        figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        paths.append(path)
    return paths
