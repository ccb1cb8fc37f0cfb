"""Text output: short, as wide as the terminal, coloured only on one."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from functools import partial

from shapes.errors import printable
from sizer.checking.findings import SEVERITIES, Checked, PricedFinding, PricedSuggestion, Report, Severity
from sizer.documents.units import count_text, percent_text, seconds_text, signed_count_text, step_text
from sizer.readers.unread import sentences
from sizer.render.page import Page, Style


def render(answer: Checked, page: Page) -> str:
    """Each configuration's report: a header, the findings by cost, one summary line; of several a total."""
    return "\n".join([*(_report(report, page) for report in answer.reports), *_totals(answer, page.style)])


def _totals(answer: Checked, style: Style) -> list[str]:
    parts = []
    if len(answer.reports) > 1:
        clean = sum(not report.findings for report in answer.reports)
        tally = _tally(answer.tally(), style) or "no findings"
        parts.append(f"{len(answer.reports)} configurations: {tally}, {clean} without findings")
    parts += [f"{answer.accepted} accepted in the baseline"] if answer.accepted else []
    parts += [f"{answer.passed_over} files passed over"] if answer.passed_over else []
    return ["; ".join(parts)] if parts else []


def _report(report: Report, page: Page) -> str:
    lines = [*_header(report, page.style), ""]
    for finding in report.findings:
        lines += _finding(finding, report, page)
    lines.append(_summary(report, page.style))
    return "\n".join(lines) + "\n"


def _header(report: Report, style: Style) -> list[str]:
    model, workload = report.model, report.workload
    size = f"{count_text(model.parameters)} parameters"
    if model.active_parameters != model.parameters:
        size += f" ({count_text(model.active_parameters)} active)"
    split = [
        f"{name} {getattr(workload, key)}"
        for key, name in (("t", "tp"), ("p", "pp"), ("d", "dp"), ("e", "ep"), ("cp", "cp"), ("vpp", "vpp"))
        if getattr(workload, key) > 1
    ]
    split += [f"no overlap of {' and '.join(workload.exposed)}"] if workload.exposed else []
    kernels = f" ({', '.join(report.attention)})" if report.attention else ""
    recipe = workload.low_precision
    by = f" ({recipe.name} recipe)" if recipe is not None and recipe.name != workload.dtype else ""
    parts = [
        report.device,
        workload.dtype + by,
        workload.phase,
        f"b {workload.b}",
        f"s {workload.s}",
        *((f"context {workload.context}", f"{workload.cache_dtype} KV cache") if workload.decode else ()),
        *split,
        f"{workload.attention} attention{kernels}",
        f"{report.implementation} kernels",
        *filter(None, (workload.optimizer, workload.precision and f"{workload.precision} precision")),
        *((f"stack {report.stack}",) if report.stack else ()),
    ]
    lines = [style(f"{printable(report.path)}: {model.model_type}, {size}", "head"), "  " + ", ".join(parts)]
    warnings = set(sentences(model.unread))
    return lines + [f"  {'warning' if note in warnings else 'note'}: {note}" for note in model.notes]


def _finding(finding: PricedFinding, report: Report, page: Page) -> list[str]:
    step_s, width = report.step.seconds, max(page.width, 40)
    cost = ""
    if finding.step_seconds > 0 and step_s:
        cost = f"  costs {seconds_text(finding.step_seconds)} a step ({percent_text(finding.step_seconds / step_s)}"
        sure = [finding.tier] if finding.tier in ("borrowed", "extrapolated") else []
        cost += ", ".join(["", *sure, *(["within the error"] if finding.within_error else [])]) + ")"
    elif finding.violated and finding.severity != "error" and "priced there" not in finding.message:
        cost = "  price unknown"
    codes = ", ".join(page.link(code, partial(_rule_address, code)) for code in finding.codes or (finding.code,))
    label = page.style(f"{finding.severity:<7} {codes}", finding.severity)
    lines = [f"{label} {finding.field} = {finding.value}{cost}"]
    if page.terminal:
        from sizer.render.excerpt import excerpt  # only who looks pays for reading the file again

        lines += excerpt(finding, report.path, page)
    lines += textwrap.wrap(finding.message, width, initial_indent="  ", subsequent_indent="  ")
    for suggestion in finding.suggestions:
        lines += textwrap.wrap(
            suggestion_line(suggestion, step_s), width, initial_indent="  -> ", subsequent_indent="     "
        )
    return lines


def suggestion_line(suggestion: PricedSuggestion, step_s: float) -> str:
    """A change with what it does to the step and the parameters: ``vocab_size 50304: saves 3.93 ms (16%)``."""
    change = ", ".join(f"{key} {value}" for key, value in suggestion.change.items())
    saved = -suggestion.step_seconds_change
    if saved > 0:
        gain = f"saves {seconds_text(saved)} ({percent_text(saved / step_s)})"
    elif saved < 0:
        gain = f"adds {seconds_text(-saved)} ({percent_text(-saved / step_s)})"
    else:
        gain = "no change in step time"
    if suggestion.within_error and saved > 0:
        gain += ", within the error"
    if suggestion.parameters_change:
        gain += f", {signed_count_text(suggestion.parameters_change)} parameters"
    return f"{change}: {gain}" + (f" ({suggestion.note})" if suggestion.note else "")


def _rule_address(code: str) -> str:
    from sizer.documents.rule_page import rule_address  # reads the package's metadata

    return rule_address(code)


def _summary(report: Report, style: Style) -> str:
    tally = {level: sum(finding.severity == level for finding in report.findings) for level in SEVERITIES}
    return f"{_tally(tally, style) or 'no findings'}; {step_text(report.step)}"


def _tally(tally: Mapping[Severity, int], style: Style) -> str:
    listed = [
        style(f"{number} {level if level == 'info' or number == 1 else level + 's'}", level)
        for level, number in tally.items()
        if number
    ]
    return ", ".join(listed)
