"""A diff as a page: both versions of each configuration beside each other, on every device, and their findings."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.device import load_device
from sizer.answers.diff import DeviceDiff, Diff, Figures, FileDiff
from sizer.documents.check import findings
from sizer.documents.diff_rows import rows, time_text
from sizer.documents.document import Axis, Chart, Document, Facts, Layer, Section, Table, Text, cell
from sizer.documents.units import seconds_scale, seconds_text

GIB = 2**30
COLOURS = {"old": "#bbbbbb", "new": "#4477aa"}


def document(answer: Diff) -> Document:
    said = [Text(f"Over budget, {one.path}: {one.message}") for one in answer.violations]
    said += [Text(f"Note: {note}", quiet=True) for note in answer.notes]
    first = [Section("Budgets and notes", said)] if said else []
    nothing = [Section("Nothing changed", (Text("No configuration changed."),))] if not answer.files else []
    return Document("sizer diff", [*first, *(_section(file, answer) for file in answer.files), *nothing])


def _section(file: FileDiff, answer: Diff) -> Section:
    facts = {key: f"{_shown(old)} → {_shown(new)}" for key, (old, new) in file.changes.items()}
    parts = [Facts({"status": file.status, "model": file.model_type, "stack": file.stack, **facts}), _time(file)]
    memory = _memory(file)
    parts += [memory] if memory is not None else []
    for one in file.devices:
        parts += [Text(f"{one.device}: {time_text(one)}")] if one.ratio is not None else []
        parts.append(_figures(one, answer))
        for what, found in (("added", one.added), ("fixed", one.fixed)):
            parts += [findings(found, f"Findings {what} on {one.device}")] if found else []
    return Section(file.path, parts)


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _time(file: FileDiff) -> Chart:
    versions = list(_versions(file))
    factor, unit = seconds_scale(max(one.step_high_s for _, _, one in versions))
    bars, within = [], []
    for device, version, one in versions:
        name = f"{device} {version}"
        low, high = one.step_low_s * factor, one.step_high_s * factor
        what = f"{name}: {seconds_text(one.step_s)} ({seconds_text(one.step_low_s)} to {seconds_text(one.step_high_s)})"
        bars.append({"x": 0.0, "x2": one.step_s * factor, "y": name, "group": version, "what": what})
        within.append({"x": low, "x2": high, "y": name, "what": what})
    return Chart(
        "Steps with their intervals; what the change itself may be off by is less, and is in the table.",
        Axis(f"step, {unit}"),
        Axis("", order=tuple(str(bar["y"]) for bar in bars)),
        [Layer("bar", bars), Layer("rule", within, {"strokeWidth": 2})],
        height=30 + 26 * len(bars),
        colours=COLOURS,
    )


def _memory(file: FileDiff) -> Chart | None:
    bars = [
        {
            "x": 0.0,
            "x2": one.memory_bytes / GIB,
            "y": f"{device} {version}",
            "group": version,
            "what": f"{device} {version}: {one.memory_bytes / GIB:.2f} GiB",
        }
        for device, version, one in _versions(file)
        if one.memory_bytes is not None
    ]
    if not bars:
        return None
    has = {one.device: load_device(one.device).memory.bytes / GIB for one in file.devices}
    limits = [
        {"x": has[device], "y": f"{device} {version}", "what": f"{device} has {has[device]:.1f} GiB"}
        for device, version, _ in _versions(file)
    ]
    totals = [{"x": bar["x2"], "y": bar["y"], "text": f"{bar['x2']:.1f} GiB"} for bar in bars]
    return Chart(
        "Memory of one device; the strokes are what each device has.",
        Axis("GiB"),
        Axis("", order=tuple(str(bar["y"]) for bar in bars)),
        [
            Layer("bar", bars),
            Layer("text", totals, {"align": "left", "dx": 4}),
            Layer(
                "point",
                limits,
                {
                    "shape": "stroke",
                    "angle": 90,
                    "size": 300,
                    "color": "currentColor",
                    "filled": False,
                    "strokeWidth": 2,
                },
            ),
        ],
        height=30 + 26 * len(bars),
        colours=COLOURS,
    )


def _versions(file: FileDiff) -> Iterator[tuple[str, str, Figures]]:
    for one in file.devices:
        for version, figures in (("old", one.old), ("new", one.new)):
            if figures is not None:
                yield one.device, version, figures


def _figures(one: DeviceDiff, answer: Diff) -> Table:
    listed = [[cell(row.name), cell(row.old), cell(row.new), cell(row.change)] for row in rows(one, answer)]
    return Table(f"On {one.device}", ("figure", "old", "new", "change"), listed)
