"""A diff: both versions of each configuration on every device, the findings added and fixed, the budgets broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

from shapes.device import load_device
from sizer.answers.diff import DeviceDiff, Diff, Figures, FileDiff
from sizer.documents.charts import Bar, Chart, Layer, bars
from sizer.documents.document import PAGES, Charts, Column, Document, Findings, Part, Section, Table, Text, notes
from sizer.documents.units import GIB, count_text, percent_text, seconds_scale, seconds_text

COLOURS = {"old": "#bbbbbb", "new": "#4477aa"}
NAMES = [field.name for field in fields(Figures)]
#: Columns of CSV: a row a file and device.
FIELDS = (
    "path",
    "status",
    "model_type",
    "device",
    *(f"{name}_{age}" for name in NAMES for age in ("old", "new")),
    "time_ratio",
    "ratio_error",
    "exceeds_error",
    "findings_added",
    "findings_fixed",
    "budgets_broken",
)
#: Configurations that a comment compares in one table.
COMPARED = 12


def document(answer: Diff) -> Document:
    changed = [_summary(file, one, answer) for file in answer.files for one in file.devices]
    said = [*(Text(f"budget {one.budget}: {one.path}: {one.message}", "error") for one in answer.violations)]
    first = [*said, *([Table("", SUMMARY, changed, COMPARED)] if changed else [])]
    last: list[Part] = [*(Text(one.text, one.style, only=("text",)) for one in said), *notes(answer.notes)]
    return Document(
        "sizer diff",
        [
            *([Section("", first, only=PAGES)] if first else []),
            *(_section(file, answer) for file in answer.files),
            *([Section("Notes", last)] if last else []),
        ],
        answer,
        _headline(answer),
        partial(_records, answer),
        FIELDS,
    )


def _headline(answer: Diff) -> str:
    added, fixed = (
        sum(len(getattr(one, kind)) for file in answer.files for one in file.devices) for kind in ("added", "fixed")
    )
    number = len(answer.files)
    parts = [f"{number} configuration{'s' if number != 1 else ''} changed" if number else "no configuration changed"]
    parts += [f"{added} finding{'s' if added != 1 else ''} added"] if added else []
    parts += [f"{fixed} fixed"] if fixed else []
    parts += [f"{len(answer.violations)} over budget"] if answer.violations else []
    return ", ".join(parts)


SUMMARY = (
    Column("configuration", "path", style="code"),
    *(Column(name, name) for name in ("device", "time a token", "memory", "parameters", "findings")),
)


def _summary(file: FileDiff, one: DeviceDiff, answer: Diff) -> dict[str, str]:
    """What changed most."""
    figures = {row[0]: row for row in _rows(one, answer)}

    def brief(name: str) -> str:
        _, old, new, change = figures[name]
        return change or new or old

    if one.ratio is None:
        time = f"{file.status}, step {brief('step')}"
    elif one.ratio == 1:
        time = "unchanged"
    else:
        time = f"{one.ratio - 1:+.1%}" + ("" if one.exceeds_error else f" (within ±{one.ratio_error:.1%})")
    counts = [f"{sign}{len(found)}" for sign, found in (("+", one.added), ("-", one.fixed)) if found]
    return {
        "path": file.path,
        "device": one.device,
        "time a token": time,
        "memory": brief("memory a device"),
        "parameters": brief("parameters"),
        "findings": " ".join(counts) or "-",
    }


def _section(file: FileDiff, answer: Diff) -> Section:
    status = "" if file.status == "changed" else f" ({file.status})"
    parts: list[Part] = [Text(f"{file.path}: {file.model_type}, stack {file.stack}{status}", "head")]
    parts += [Text(f"{key} {_shown(old)} -> {_shown(new)}", indent=2) for key, (old, new) in file.changes.items()]
    parts.append(Charts(partial(_charts, file)))
    for one in file.devices:
        parts.append(Table(f"on {one.device}", FIGURES, _rows(one, answer)))
        parts += [Text(time_text(one))] if one.ratio is not None else []
        step_s = one.new.step_s if one.new is not None else 0.0
        if one.added:
            parts.append(Findings(f"findings added on {one.device}", one.added, step_s, file.path, "added"))
        if one.fixed:
            # What would have fixed it is of the version that is gone.
            fixed = [replace(finding, suggestions=()) for finding in one.fixed]
            parts.append(Findings(f"findings fixed on {one.device}", fixed, 0.0, None, "fixed"))
    return Section(file.path, parts, folded=True)


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


FIGURES = tuple(Column(name, at) for at, name in enumerate(("figure", "old", "new", "change")))


def _rows(one: DeviceDiff, whole: Diff) -> list[tuple[str, str, str, str]]:
    """The figures of both versions on one device: name, old, new and change ("" where there is none)."""
    listed: list[tuple[str, str, Callable[[Any], str]]] = [
        ("parameters", "parameters", count_text),
        ("FLOPs a token", "flops_per_token", lambda flops: f"{flops / 1e9:.4g} G"),
        ("step", "step_s", seconds_text),
        ("MFU", "mfu", percent_text),
        ("memory a device", "memory_bytes", lambda size: f"{size / GIB:.2f} GiB"),
        ("tokens/s a device", "tokens_per_s", lambda rate: f"{rate:,.0f}"),
        (f"kWh of {whole.tokens:.3g} tokens", "kwh", lambda energy: f"{energy:,.4g}"),
    ]
    if whole.price is not None:
        listed.append((f"cost of {whole.tokens:.3g} tokens", "cost", lambda cost: f"{cost:,.0f}"))
    rows = []
    for name, key, text in listed:
        before, after = (getattr(side, key) if side is not None else None for side in (one.old, one.new))
        change = ""
        if before is not None and after is not None and before != after:
            points = f"{100 * (after - before):+.1f} points" if key == "mfu" else ""
            change = points or (f"{after / before - 1:+.2%}" if before else "")
        old, new = ("" if value is None else text(value) for value in (before, after))
        rows.append((name, old, new, change))
    return rows


def time_text(one: DeviceDiff) -> str:
    """The change of the time a token, with what it may be off by."""
    if one.ratio is None:
        return ""
    if one.ratio == 1 and not one.ratio_error:
        return "no change in time a token"
    beyond = "beyond the error" if one.exceeds_error else "within the error"
    return f"{one.ratio - 1:+.1%} time a token (+-{one.ratio_error:.1%} of the ratio: {beyond})"


def _records(answer: Diff) -> Iterable[Mapping[str, object]]:
    for file in answer.files:
        for one in file.devices:
            sides = (("old", one.old), ("new", one.new))
            figures = {f"{name}_{age}": value for age, side in sides if side for name, value in asdict(side).items()}
            broken = [v.budget for v in answer.violations if (v.path, v.device) == (file.path, one.device)]
            yield {
                "path": file.path,
                "status": file.status,
                "model_type": file.model_type,
                "device": one.device,
                **figures,
                "time_ratio": one.ratio,
                "ratio_error": one.ratio_error,
                "exceeds_error": one.exceeds_error,
                "findings_added": [finding.code for finding in one.added],
                "findings_fixed": [finding.code for finding in one.fixed],
                "budgets_broken": broken,
            }


def _versions(file: FileDiff) -> Iterator[tuple[str, str, Figures]]:
    for one in file.devices:
        for version, figures in (("old", one.old), ("new", one.new)):
            if figures is not None:
                yield one.device, version, figures


def _charts(file: FileDiff) -> list[Chart]:
    """Steps, and memory where it was counted."""
    versions = list(_versions(file))
    factor, unit = seconds_scale(max(one.step_high_s for _, _, one in versions))
    steps, memory, has = [], [], []
    for device, version, one in versions:
        name = f"{device} {version}"
        within = f"{seconds_text(one.step_low_s)} to {seconds_text(one.step_high_s)}"
        said = f"{name}: {seconds_text(one.step_s)} ({within})"
        steps.append(Bar(name, [(version, one.step_s, said)], (one.step_low_s, one.step_high_s)))
        if one.memory_bytes is not None:
            size, known = one.memory_bytes / GIB, load_device(device).memory.bytes / GIB
            memory.append(Bar(name, [(version, size, f"{name}: {size:.2f} GiB")], label=f"{size:.1f} GiB"))
            has.append({"x": known, "y": name, "what": f"{device} has {known:.1f} GiB"})
    caption = "Steps with their intervals; what the change itself may be off by is less, and is in the table."
    charts = [bars(caption, f"step, {unit}", steps, factor, COLOURS)]
    if memory:
        look = {"shape": "stroke", "angle": 90, "size": 300, "color": "currentColor", "filled": False, "strokeWidth": 2}
        caption = "Memory of one device; the strokes are what each device has."
        charts.append(bars(caption, "GiB", memory, 1, COLOURS, [Layer("point", has, look)]))
    return charts
