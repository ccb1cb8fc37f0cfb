"""A diff as a comment on a pull request: it fits one screen, all else is folded away."""

from __future__ import annotations

from sizer.answers.diff import DeviceDiff, Diff, FileDiff
from sizer.documents.diff_rows import rows, time_text
from sizer.render.findings_markdown import finding_markdown
from sizer.render.markdown import code, details, html_text, inline, table
from sizer.render.page import Page

#: How a comment on a pull request is found again, so that it is updated and not repeated.
MARKER = "<!-- sizer diff -->"
#: Configurations whose summary is shown unfolded, and findings of each.
SHOWN = 12


def render(answer: Diff, page: Page) -> str:
    """One row a configuration and device; its figures and findings under it, folded."""
    lines = [MARKER, f"### sizer: {_headline(answer)}", ""]
    lines += [f"- **over budget** {inline(found.path)}: {inline(found.message)}" for found in answer.violations]
    lines += [""] if answer.violations else []
    pairs = [(file, one) for file in answer.files for one in file.devices]
    if pairs:
        head = ["configuration", "device", "time a token", "memory", "parameters", "findings"]
        lines += table(head, [_summary(*pair, answer) for pair in pairs[:SHOWN]], right=2)
        lines += [f"… and {len(pairs) - SHOWN} more below"] if len(pairs) > SHOWN else []
    for file, one in pairs:
        lines += ["", *_details(file, one, answer)]
    if answer.notes:
        lines += ["", *details("notes", [f"- {inline(note)}" for note in answer.notes])]
    return "\n".join(lines) + "\n"


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


def _summary(file: FileDiff, one: DeviceDiff, answer: Diff) -> list[str]:
    by_name = {row.name: row for row in rows(one, answer)}
    if one.ratio is None:
        time = f"{file.status}, step {by_name['step'].new or by_name['step'].old}"
    elif one.ratio == 1:
        time = "unchanged"
    else:
        time = f"{one.ratio - 1:+.1%}" + ("" if one.exceeds_error else f" (within ±{one.ratio_error:.1%})")
    memory, size = by_name["memory a device"], by_name["parameters"]
    findings = " ".join(
        filter(None, (f"+{len(one.added)}" if one.added else "", f"-{len(one.fixed)}" if one.fixed else ""))
    )
    return [
        code(file.path),
        inline(one.device),
        time,
        memory.change or memory.new or memory.old,
        size.change or size.new or size.old,
        findings or "-",
    ]


def _details(file: FileDiff, one: DeviceDiff, answer: Diff) -> list[str]:
    lines = [f"- {code(key)}: {inline(old)} → {inline(new)}" for key, (old, new) in file.changes.items()]
    lines += [""] if lines else []
    body = [[row.name, row.old, row.new, row.change] for row in rows(one, answer)]
    lines += table(["", "old", "new", "change"], body)
    if one.ratio is not None:
        lines += ["", time_text(one)]
    for what, findings in (("added", one.added), ("fixed", one.fixed)):
        lines += [""] if findings else []
        lines += [f"- {what}: {finding_markdown(finding)}" for finding in findings[:SHOWN]]
        lines += [f"- … {len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
    return details(html_text(f"{file.path} on {one.device}, {file.model_type}, stack {file.stack}"), lines)
