"""A check as a page: the findings of each configuration, where its step goes, the roofline and memory."""

from __future__ import annotations

from sizer.answers.overview import Overview, Overviews
from sizer.checking.findings import SEVERITIES, PricedFinding, Report
from sizer.report import memory_document, ops_document
from sizer.report.document import Axis, Cell, Chart, Document, Facts, Layer, Section, Table, Text, cell
from sizer.report.rule_page import rule_url
from sizer.report.units import count_text, percent_text, seconds_scale, seconds_text


def document(answer: Overviews) -> Document:
    sections = [_section(one) for one in answer.items]
    if len(answer.items) > 1:
        sections.insert(0, _compared([one.report for one in answer.items]))
    return Document("sizer check", sections)


def _compared(reports: list[Report]) -> Section:
    """Configurations beside each other: step with its interval, and how much of it is the findings'."""
    names = [report.path for report in reports]
    longest = max(report.step.high for report in reports)
    factor, unit = seconds_scale(longest)
    bars = [
        {"x": 0.0, "x2": report.step.seconds * factor, "y": report.path, "group": report.worst() or "no findings",
         "what": f"{report.path}: {ops_document.step_fact(report.step)}, MFU {percent_text(report.step.mfu)}"}
        for report in reports
    ]  # fmt: skip
    within = [{"x": report.step.low * factor, "x2": report.step.high * factor, "y": report.path} for report in reports]
    colours = {"error": "#bb5566", "warning": "#ddaa33", "info": "#4477aa", "no findings": "#228833"}
    chart = Chart(
        "Steps beside each other with their intervals, coloured by the worst finding.",
        Axis(f"step, {unit}"), Axis("", order=tuple(dict.fromkeys(names))),
        [Layer("bar", bars), Layer("rule", within, {"strokeWidth": 2})], height=40 + 26 * len(names), colours=colours,
    )  # fmt: skip
    rows = [
        [cell(report.path), cell(report.device), cell(report.model.parameters, count_text(report.model.parameters)),
         cell(report.step.seconds, seconds_text(report.step.seconds)),
         cell(report.step.mfu, percent_text(report.step.mfu)), cell(len(report.findings)), _severity(report.worst())]
        for report in reports
    ]  # fmt: skip
    head = ("configuration", "device", "parameters", "step", "MFU", "findings", "worst")
    return Section("Side by side", (chart, Table("Configurations", head, rows)))


def _section(one: Overview) -> Section:
    report, step = one.report, one.report.step
    workload = report.workload
    facts = {
        "model": report.model.model_type, "parameters": count_text(report.model.parameters), "device": report.device,
        "stack": report.stack or "-", "microbatch x sequence": f"{workload.b} x {workload.s}", "type": workload.dtype,
        "step": ops_document.step_fact(step), "MFU": percent_text(step.mfu),
    }  # fmt: skip
    parts = [
        Facts(facts),
        ops_document.source_line(step),
        *(Text(f"Note: {n}", quiet=True) for n in report.model.notes),
    ]
    found = [findings(report.findings)] if report.findings else [Text("No findings.")]
    memory = [] if one.memory is None else [memory_document.chart(one.memory, report.device)]
    tables = [] if one.memory is None else [memory_document.components(one.memory)]
    charts = ops_document.charts(one.table)
    return Section(report.path, (*parts, *found, *charts, *memory, *tables, ops_document.operators(one.table)))


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
        rows.append([
            _severity(finding.severity), Cell(f"{finding.code} {finding.slug}", link=rule_url(finding.code)),
            cell(f"{finding.field} = {finding.value}"), cell(finding.message),
            cell(finding.step_seconds, seconds_text(finding.step_seconds)), cell(changes),
        ])  # fmt: skip
    return Table(caption, ("severity", "rule", "key", "what", "costs a step", "instead"), rows)


def _severity(level: str | None) -> Cell:
    return cell(SEVERITIES.index(level), level, level) if level in SEVERITIES else cell(None)
