"""A check as a page: the findings of each configuration, where its step goes, the roofline and memory."""

from __future__ import annotations

from sizer.answers.overview import Overview, Overviews
from sizer.checking.findings import SEVERITIES, Checked, PricedFinding, Report
from sizer.documents import memory as memory_document
from sizer.documents import ops as ops_document
from sizer.documents.document import Axis, Cell, Chart, Document, Facts, Layer, Part, Section, Table, Text, cell
from sizer.documents.rule_page import rule_url
from sizer.documents.units import count_text, percent_text, seconds_scale, seconds_text


def document(answer: Overviews | Checked) -> Document:
    """With charts and operators where they were worked out (``Overviews``), else of the findings alone."""
    if isinstance(answer, Checked):
        sections, reports = [_section(report, None) for report in answer.reports], list(answer.reports)
    else:
        sections, reports = [_section(one.report, one) for one in answer.items], [one.report for one in answer.items]
    if len(reports) > 1:
        sections.insert(0, _compared(reports))
    return Document("sizer check", sections)


def _compared(reports: list[Report]) -> Section:
    """Configurations beside each other: step with its interval, and how much of it is the findings'."""
    names = [report.path for report in reports]
    longest = max(report.step.high for report in reports)
    factor, unit = seconds_scale(longest)
    bars = [
        {
            "x": 0.0,
            "x2": report.step.seconds * factor,
            "y": report.path,
            "group": report.worst() or "no findings",
            "what": f"{report.path}: {ops_document.step_fact(report.step)}, MFU {percent_text(report.step.mfu)}",
        }
        for report in reports
    ]
    within = [{"x": report.step.low * factor, "x2": report.step.high * factor, "y": report.path} for report in reports]
    colours = {"error": "#bb5566", "warning": "#ddaa33", "info": "#4477aa", "no findings": "#228833"}
    chart = Chart(
        "Steps beside each other with their intervals, coloured by the worst finding.",
        Axis(f"step, {unit}"),
        Axis("", order=tuple(dict.fromkeys(names))),
        [Layer("bar", bars), Layer("rule", within, {"strokeWidth": 2})],
        height=40 + 26 * len(names),
        colours=colours,
    )
    rows = [
        [
            cell(report.path),
            cell(report.device),
            cell(report.model.parameters, count_text(report.model.parameters)),
            cell(report.step.seconds, seconds_text(report.step.seconds)),
            cell(report.step.mfu, percent_text(report.step.mfu)),
            cell(len(report.findings)),
            _severity(report.worst()),
        ]
        for report in reports
    ]
    head = ("configuration", "device", "parameters", "step", "MFU", "findings", "worst")
    return Section("Side by side", (chart, Table("Configurations", head, rows)))


def _section(report: Report, seen: Overview | None) -> Section:
    step, workload = report.step, report.workload
    facts = {
        "model": report.model.model_type,
        "parameters": count_text(report.model.parameters),
        "device": report.device,
        "stack": report.stack or "-",
        "microbatch x sequence": f"{workload.b} x {workload.s}",
        "type": workload.dtype,
        "step": ops_document.step_fact(step),
        "MFU": percent_text(step.mfu),
    }
    parts: list[Part] = [Facts(facts), ops_document.source_line(step)]
    parts += [Text(f"Note: {note}", quiet=True) for note in report.model.notes]
    parts.append(findings(report.findings) if report.findings else Text("No findings."))
    if seen is not None:
        parts += ops_document.charts(seen.table)
        if seen.memory is not None:
            parts += [memory_document.chart(seen.memory, report.device), memory_document.components(seen.memory)]
        parts.append(ops_document.operators(seen.table))
    return Section(report.path, parts)


def findings(found: tuple[PricedFinding, ...], caption: str = "Findings") -> Table:
    """Findings with what they cost and what would fix them, each rule linked to its page."""
    rows = []
    for finding in found:
        changes = "; ".join(
            ", ".join(f"{key} {value}" for key, value in one.change.items())
            + f": {'saves' if one.step_seconds_change <= 0 else 'adds'} {seconds_text(abs(one.step_seconds_change))}"
            + (" (within the error)" if one.within_error else "")
            for one in finding.suggestions
        )
        rows.append(
            [
                _severity(finding.severity),
                Cell(f"{finding.code} {finding.slug}", link=rule_url(finding.code)),
                cell(f"{finding.field} = {finding.value}"),
                cell(finding.message),
                cell(finding.step_seconds, seconds_text(finding.step_seconds)),
                cell(changes),
            ]
        )
    return Table(caption, ("severity", "rule", "key", "what", "costs a step", "instead"), rows)


def _severity(level: str | None) -> Cell:
    return cell(SEVERITIES.index(level), level, level) if level in SEVERITIES else cell(None)
