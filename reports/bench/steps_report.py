"""reports/steps.md: its tables, plots, noise floor and the worst ten."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from opening import with_answer
from step_rows import price_step, read_rows
from tabulate import tabulate

from shapes.device import load_device
from shapes.step.stack import list_stacks, load_stack
from shapes.workload import Workload
from sizer.readers import read_config

if TYPE_CHECKING:
    from step_rows import Row
    from steps import Judged

REPORT = Path(__file__).parents[1] / "steps.md"
TEMPLATE = Path(__file__).parent / "steps_template.md"
HELD_OUT = Path(__file__).parents[1] / "data" / "steps-held-out.json"
CONTEXT = Path(__file__).parents[1] / "data" / "steps-context.csv"
PLOTS = Path(__file__).parents[1] / "plots"

#: What steps_fit.py records of rows priced by another stack's constants.
UNKNOWN, NESTED = "priced by the nearest other stack", "priors chosen by folds within"
POOLED = "facts known, constants of the others"

#: Why a row is far off, as far as is known, by (source, configuration's words).
REASONS = (
    (
        lambda one: one.row.source == "mt-nlg-530b",
        "microbatch, recomputation and vocabulary are assumed in the row; Megatron 2021 on the same model is within 1%",
    ),
    (
        lambda one: one.row.model.moe is not None and one.row.workload.e > one.row.device.link.domain_devices,
        "experts across nodes: the dispatcher (all-to-all, DeepEP, HybridEP) follows a recipe the table does not show",
    ),
    (
        lambda one: one.row.model.moe is not None,
        "mixture of experts: routing kernels, CUDA graphs and recomputation follow recipes the table does not show",
    ),
    (
        lambda one: one.row.workload.p > 1 and one.row.workload.vpp == 1 and one.row.source == "megatron-bridge",
        "the interleaving is not published, one chunk a stage is assumed",
    ),
    (lambda one: one.row.source == "megatron-bridge", "the recipe's recomputation and overlap are not published"),
    (
        lambda one: one.row.source == "vtrain-single" and one.row.workload.t > 1,
        "launch-bound or near it, with tensor parallelism: host time differs by 20% between runs of equal launches",
    ),
    (
        lambda one: one.row.source == "llm-foundry" and one.row.workload.b <= 3,
        "memory nearly full: the allocator frees and asks again, which no kernel's time says",
    ),
)


def write(done: Sequence[Judged], refused: Sequence[tuple[str, str]]) -> None:
    """The report and its plots."""
    from steps import KEYS, by, table

    parts = {name: table(by(done, key), name.replace("_", " ")) for name, key in KEYS.items()}
    parts |= {
        "rows": str(len(done)),
        "held_out": _held_out(),
        "missed": _missed(),
        "unknown": _unknown(),
        "pooled": _pooled(),
        "llama": _llama(),
        "context": _context(),
        "noise": _noise(done),
        "ratios": _ratios(done),
        "nested": _nested(),
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
    REPORT.write_text(with_answer("steps", text), encoding="utf-8", newline="\n")


#: Llama 3's pre-training as published (arXiv 2407.21783, table 4): devices, t, cp, p, d, tokens a sequence, TFLOPS a
#: device and MFU. Chunks a stage are not stated. 16 Mi tokens a step.
LLAMA = (
    (8192, 8, 1, 16, 64, 8192, 430, 0.43),
    (16384, 8, 1, 16, 128, 8192, 400, 0.41),
    (16384, 8, 16, 16, 8, 131072, 380, 0.38),
)
LLAMA_405B = {
    "model_type": "llama",
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "intermediate_size": 53248,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def _llama() -> str:
    """Published runs in a layout that no row has, by chunks a pipeline stage."""
    model, device, stack = read_config(LLAMA_405B).model, load_device("h100-sxm"), load_stack("megatron-core-te")
    rows = []
    for gpus, t, cp, p, d, s, tflops, mfu in LLAMA:
        found = []
        for vpp in (1, 2, 4):
            workload = Workload(
                b=1, s=s, t=t, cp=cp, p=p, d=d, vpp=vpp, zero=1, sequence_parallel=True, global_batch=2**24 // s
            )
            cost = price_step(model, workload, device, stack)
            # As the paper counts: 6 FLOPs a parameter and token, and attention's causal half.
            attention = 6 * 126 * 16384 * s
            flops = (6 * model.parameters + attention) * 2**24 / gpus / device.peak("bf16")
            found.append(f"{flops / cost.seconds:.0%} ({flops / cost.high:.0%} to {flops / cost.low:.0%})")
        rows.append([gpus, f"t {t}, cp {cp}, p {p}, d {d}", s, f"{mfu:.0%} ({tflops} TFLOPS)", *found])
    headers = ["H100s", "split", "tokens a sequence", "published MFU", "1 chunk a stage", "2", "4"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _context() -> str:
    """Published runs with sequences of 4 Ki to 1 Mi tokens, that no fit has used, by the kernel of their attention."""
    rows = []
    for row in read_rows(CONTEXT):
        errors = []
        for kernel in dict.fromkeys((row.workload.attention, "fa2")):
            workload = replace(row.workload, attention=kernel)
            cost = price_step(row.model, workload, row.device, row.stack, row.accumulation)
            errors.append(f"{cost.seconds / row.step_s - 1:+.0%}")
        split = f"t {row.workload.t}, p {row.workload.p}, d {row.workload.d}"
        rows.append([row.id, row.workload.s, row.workload.cp, split, *errors])
    headers = ["run", "tokens a sequence", "cp", "split", "off by", "with FlashAttention 2"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _stacks() -> list[Any]:
    return [load_stack(name) for name in list_stacks()]


def _held_out() -> str:
    found = _stacks_recorded()
    ways = dict.fromkeys(way for sources in found.values() for own in sources.values() for way in own if way != "rows")
    names = sorted(ways, key=lambda way: way != "in sample")
    rows = [
        [stack, source, own["rows"], *(_errors(own[way]) if way in own else "-" for way in names)]
        for stack, sources in found.items()
        for source, own in sources.items()
    ]
    return tabulate(rows, ["stack", "source", "rows", *names], tablefmt="github", disable_numparse=True)


def _unknown() -> str:
    rows = [[stack, own["by"], own["rows"], _errors(own)] for stack, own in _recorded()[UNKNOWN].items()]
    return tabulate(rows, ["stack", "priced by", "rows", "bias, MAPE"], tablefmt="github", disable_numparse=True)


def _pooled() -> str:
    rows = [
        [stack, source, own["rows"], _errors(own)]
        for stack, sources in _recorded()[POOLED].items()
        for source, own in sources.items()
    ]
    return tabulate(rows, ["stack", "source", "rows", "bias, MAPE"], tablefmt="github", disable_numparse=True)


def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    return found


def _stacks_recorded() -> dict[str, Any]:
    return {name: own for name, own in _recorded().items() if name not in (UNKNOWN, NESTED, POOLED)}


def _nested() -> str:
    """What the choice of the priors' width was worth."""
    found = _recorded().get(NESTED, {})
    if not found:
        return ""
    all_rows = {name: sum(own["rows"] for own in sources.values()) for name, sources in _stacks_recorded().items()}
    said = []
    for name, own in found.items():
        sources = _stacks_recorded()[name].values()
        plain = sum(one["rows"] * one["left out by id"]["mape"] for one in sources) / all_rows[name]
        said.append(f"{name} {own['mape']:.1%} instead of {plain:.1%}")
    return (
        "With their width chosen anew for each fold, by folds within the rows it leaves (steps_fit.py --nested, half, "
        f"once or twice the spreads), rows left out at random are off by: {', '.join(said)}. Centres stay as chosen."
    )


def _errors(own: dict[str, float]) -> str:
    return f"{own['bias']:+.1%}, {own['mape']:.1%}"


def _missed() -> str:
    """Which sources miss the target on rows left out at random, from the figures above."""
    over = [
        f"{source} ({own['left out by id']['mape']:.1%})"
        for stack, sources in _stacks_recorded().items()
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
            others = [np.expm1((sum(own) - value) / (len(own) - 1) - value) for own in alike for value in own]
            pairs = [np.expm1(abs(a - b)) for own in alike for i, a in enumerate(own) for b in own[:i]]
            lines.append(
                f"- {source}: {len(alike)} runs recur ({sum(map(len, alike))} rows, in other releases); they differ "
                f"from their mean by {spread.mean():.1%} on average and by up to {spread.max():.0%}. The mean of a "
                f"run's other releases, were it the prediction, would be off by {np.abs(others).mean():.1%}, and two "
                f"releases' ratio from 1 by {np.median(pairs):.1%} in the median."
            )
    return "\n".join([*lines, *_near_identical(done), *_ratios_of_equal_launches(done)])


#: Runs whose published settings are equal but for what is said: (dearer, cheaper, what). Each is a fact of the rows.
NEAR_IDENTICAL = (
    ("megatron-sc21-0010", "korthikanti-0007", "1T, t 8, p 64, 512 microbatches: 2021, d 6, against 2022, d 1"),
    (
        "mtnlg-0001",
        "korthikanti-0010",
        "530B, t 8, p 35, d 8: a microbatch and its share of the bubble, 240 + 34 of "
        "DeepSpeed's and 280 + 34/3 of Megatron's",
    ),
    ("mbridge-gb200-0066", "mbridge-b200-0022", "Llama 3.1 405B, mxfp8, t 4, p 8, cp 2, release 25.09: GB200 and B200"),
    ("mbridge-h100-0030", "mbridge-h100-0025", "Qwen3 235B, one layout on H100: 25.09 and 25.11"),
)


def _near_identical(done: Sequence[Judged]) -> list[str]:
    rows = {one.row.id: one.row for one in done}
    lines = []
    for dear, cheap, what in NEAR_IDENTICAL:
        if dear in rows and cheap in rows:
            seconds = [_a_microbatch(rows[name]) for name in (dear, cheap)]
            lines.append(
                f"- {what}: {rows[dear].step_s:g} and {rows[cheap].step_s:g} s, "
                f"{seconds[0] / seconds[1] - 1:+.0%} a microbatch."
            )
    return lines


def _a_microbatch(row: Row) -> float:
    """Seconds of a step over its microbatches and those that fill the pipeline."""
    return row.step_s / (row.accumulation + (row.workload.p - 1) / row.workload.vpp)


#: What two runs may differ in -> what is compared; devices, data parallelism and accumulation follow the others.
DIFFERENCES: dict[str, Callable[[Row], object]] = {
    "layers or width": lambda row: (row.model.model_type, row.model.hidden, row.model.layers),
    "microbatch": lambda row: row.workload.b,
    "t": lambda row: row.workload.t,
    "p": lambda row: (row.workload.p, row.workload.vpp),
    "tokens a sequence": lambda row: row.workload.s,
    "recomputation": lambda row: row.workload.checkpointing,
    "element type": lambda row: row.dtype,
}


def _ratios(done: Sequence[Judged]) -> str:
    """Median error of the ratio of two runs of one stack name and device, by what alone they differ in."""
    found: dict[str, dict[str, list[float]]] = {}
    groups: dict[tuple[str, str], list[Judged]] = {}
    for one in done:
        groups.setdefault((one.row.stack_name, one.row.device.name), []).append(one)
    for own in groups.values():
        settings = [[value(one.row) for value in DIFFERENCES.values()] for one in own]
        codes = np.array([[column.index(value) for value in column] for column in zip(*settings, strict=True)])
        off = np.log1p([one.error for one in own])
        first, second = np.triu_indices(len(own), 1)
        differ = codes[:, first] != codes[:, second]
        errors = np.abs(np.expm1(off[first] - off[second]))
        table = found.setdefault(own[0].row.source, {})
        for kind, which in enumerate(DIFFERENCES):
            table.setdefault(which, []).extend(errors[differ[kind] & (differ.sum(0) == 1)].tolist())
        table.setdefault("none of these", []).extend(errors[differ.sum(0) == 0].tolist())
        table.setdefault("several", []).extend(errors[differ.sum(0) > 1].tolist())
    kinds = [*DIFFERENCES, "none of these", "several"]
    rows = [
        [source, *(f"{np.median(own[kind]):.1%} ({len(own[kind])})" if own[kind] else "-" for kind in kinds)]
        for source, own in sorted(found.items())
    ]
    return tabulate(rows, ["source", *kinds], tablefmt="github", disable_numparse=True)


def _ratios_of_equal_launches(done: Sequence[Judged]) -> list[str]:
    """What the ratio error of one node's runs consists of: runs whose layers launch the same kernels, and others."""
    own = [one for one in done if one.row.source == "vtrain-single"]
    if len(own) < 2:
        return []
    off = np.log1p([one.error for one in own])
    names = [(one.row.model.hidden, one.row.workload.t, one.row.workload.b) for one in own]
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    cells = np.array([number[name] for name in names])
    means = np.array([off[cells == cell].mean() for cell in range(len(number))])
    first, second = np.triu_indices(len(own), 1)
    pairs = np.abs(np.expm1(off[first] - off[second]))
    known = np.abs(np.expm1((off - means[cells])[first] - (off - means[cells])[second]))
    alike = cells[first] == cells[second]
    rows, deviation = _sums_of_a_layer([one.row for one in own], cells)
    return [
        f"- vtrain-single: the rows fall into {len(number)} groups of equal hidden size, tensor-parallel degree and "
        f"microbatch. In the groups of 30 rows and more ({rows} rows) the step is a sum, linear in layers, "
        f"microbatches and stages, that leaves {deviation:.2%} of it unexplained (13 terms): no runs timed one by one "
        f"do that. They amount to {len(number)} timings of a layer, so that errors come by groups. Two runs of one "
        f"group have ratios off by {np.median(pairs[alike]):.1%} in the median, two others by "
        f"{np.median(pairs[~alike]):.1%}; were the mean error of every group known, all would be off by "
        f"{np.median(known):.1%}. The timings contradict any law of launches and kernels: a layer of h 1024 at t 2 "
        "takes 3.3, 3.6 and 3.2 ms at microbatch 1, 2 and 4, of h 2048 at t 4 3.0 and 2.7 at 1 and 2, all with the "
        "same launches; and of two layers at t 2 that need as long on the device as on the host and send 8 MB an "
        "all-reduce, one (h 1024, microbatch 4) takes 3.2 ms and the other (h 2048, 2) 4.6. A constant for each group "
        "would reach the target of 3% and say nothing of other models."
    ]


def _sums_of_a_layer(rows: Sequence[Row], cells: np.ndarray) -> tuple[int, float]:
    """How far steps of one cell are from a sum of terms in layers, microbatches, stages and data parallelism."""
    off: list[float] = []
    for cell in np.unique(cells):
        own = [row for row, name in zip(rows, cells, strict=True) if name == cell]
        if len(own) < 30:
            continue
        terms = np.array(
            [
                [
                    (row.accumulation + w.p - 1) * share,
                    row.accumulation,
                    w.p > 1,
                    (w.p == 1) * row.accumulation,
                    1.0,
                    share,
                    (w.p > 1) * (row.accumulation + w.p - 1),
                    w.p == 4,
                    *(part for d in (2, 4, 8) for part in (share * (w.d == d), w.d == d)),
                ]
                for row in own
                for w in (row.workload,)
                for share in (row.model.layers / w.p,)
            ],
            float,
        )
        terms /= np.array([row.step_s for row in own])[:, None]
        found = np.linalg.lstsq(terms, np.ones(len(own)), rcond=None)[0]
        off.extend(np.abs(terms @ found - 1))
    return len(off), float(np.mean(off)) if off else 0.0


def _worst(done: Sequence[Judged]) -> str:
    worst = sorted(done, key=lambda one: -abs(np.log1p(one.error)))[:10]
    rows = [
        [
            one.row.id,
            one.row.stack_name,
            one.row.device.name,
            f"{one.row.step_s:.4g}",
            f"{one.cost.seconds:.4g}",
            f"{one.error:+.0%}",
            next((why for applies, why in REASONS if applies(one)), "not known"),
        ]
        for one in worst
    ]
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
