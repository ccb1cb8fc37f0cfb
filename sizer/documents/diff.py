"""A diff: both versions of each configuration on every device, the findings added and fixed, the budgets broken."""

from functools import partial
from types import SimpleNamespace

from shapes.frozen import Words, replace
from sizer.answers.diff import DeviceDiff, Diff, FileDiff

from . import PAGES, Cell, Document, Findings, Section, Table, Text, columns, lines, notes, plural

#: Configurations that a comment compares in one table.
COMPARED = 12


def document(answer: Diff) -> Document:
    changed = [_summary(file, one) for file in answer.files for one in file.devices]
    broken = [f"budget {one.budget}: {one.path}: {one.message}" for one in answer.violations]
    sections = [
        Section("", [*lines(broken, "error"), Table(columns("diff"), changed, most=COMPARED)], only=PAGES),
        *map(_section, answer.files),
        Section("Broken budgets", lines(broken, "error"), only=("text",)),
        Section("Notes", notes(answer.notes)),
    ]
    shown = [one for one in sections if one.parts and (one.only != PAGES or changed or broken)]
    return Document("sizer diff", shown, answer, _headline(answer), partial(_records, answer))


def _headline(answer: Diff) -> str:
    devices = [one for file in answer.files for one in file.devices]
    added, fixed = sum(len(one.added) for one in devices), sum(len(one.fixed) for one in devices)
    said = {
        f"{plural(len(answer.files), 'configuration')} changed": answer.files,
        "no configuration changed": not answer.files,
        f"{plural(added, 'finding')} added": added,
        f"{fixed} fixed": fixed,
        f"{len(answer.violations)} over budget": answer.violations,
    }
    return ", ".join(text for text in said if said[text])


def _summary(file: FileDiff, one: DeviceDiff) -> Words:
    """The figures of a summary line."""
    figures = {row[0]: row for row in _rows(one)}

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


def _section(file: FileDiff) -> Section:
    status = "" if file.status == "changed" else f" ({file.status})"
    times = [f"{said} on {one.device}" for one in file.devices if (said := time_text(one))]
    parts = [
        Text(f"{file.path}{status}{': ' * bool(times)}{'; '.join(times)}", "head"),
        Text(f"{file.model_type}, stack {file.stack}"),
        *notes(file.notes),
    ]
    for key, versions in file.changes.items():
        old, new = ("-" if value is None else value for value in versions)
        parts.append(Text(f"{key} {old} -> {new}", indent=2))
    for one in file.devices:
        parts.append(Table(columns("diff changes"), _rows(one), f"on {one.device}"))
        new_s, old_s = (side.step_s if side else None for side in (one.new, one.old))
        if one.added:
            parts.append(Findings(f"findings added on {one.device}", one.added, new_s, file.path, "added"))
        if one.fixed:
            # Its suggestions belong to the version that is gone.
            fixed = [replace(finding, suggestions=()) for finding in one.fixed]
            parts.append(Findings(f"findings fixed on {one.device}", fixed, old_s, None, "fixed"))
    return Section(file.path, parts, file.path)


FIGURES = columns("diff figures")


def _rows(one: DeviceDiff) -> list[tuple[str, str, str, str]]:
    """The figures of both versions on one device: name, old, new and change ("" where there is none)."""
    rows = []
    for column in FIGURES:
        old, new = (column.cell(side) if side else Cell("") for side in (one.old, one.new))
        was, now, change = old.value, new.value, ""
        if was and now is not None and was != now:
            change = f"{100 * (now - was):+z.1f} points" if column.name == "MFU" else f"{now / was - 1:+z.2%}"
        rows.append((column.name, old.shown, new.shown, change))
    return rows


def time_text(one: DeviceDiff) -> str:
    """The change of the time a token, with what it may be off by."""
    if one.ratio is None:
        return ""
    if one.ratio == 1 and not one.ratio_error:
        return "no change in time a token"
    beyond = "beyond the error" if one.exceeds_error else "within the error"
    return f"{one.ratio - 1:+.1%} time a token (+-{one.ratio_error:.1%} of the ratio: {beyond})"


def _records(answer: Diff) -> Table:
    """A row a file and device."""
    shown = columns(
        "diff records",
        added=lambda row: " ".join(one.code for one in row.one.added),
        fixed=lambda row: " ".join(one.code for one in row.one.fixed),
        broken=lambda row: " ".join(
            one.budget for one in answer.violations if (one.path, one.device) == (row.file.path, row.one.device)
        ),
    )
    return Table(shown, [SimpleNamespace(file=file, one=one) for file in answer.files for one in file.devices])
