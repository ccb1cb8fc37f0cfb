"""A check: each configuration's findings and step; of a page also its operators, the roofline and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from shapes.errors import InputError
from sizer.checking.findings import SEVERITIES, Checked, PricedFinding, Report, Severity
from sizer.documents.document import (
    FULL,
    PAGES,
    Cell,
    Charts,
    Column,
    Document,
    Facts,
    Findings,
    Part,
    Section,
    Table,
    Text,
)
from sizer.documents.units import (
    change_text,
    count_text,
    percent_text,
    seconds_scale,
    step_text,
    within_text,
)
from sizer.readers.loading import load_text
from sizer.readers.locate import Place, locate
from sizer.readers.reading import sentences

if TYPE_CHECKING:
    from sizer.answers.overview import Overview, Overviews
    from sizer.documents.charts import Chart

#: Columns of CSV: a row a finding.
FIELDS = (
    "path",
    "line",
    "column",
    "device",
    "severity",
    "code",
    "slug",
    "field",
    "value",
    "step_seconds",
    "step_share",
    "suggestion",
    "saves_seconds",
    "within_error",
    "message",
)
#: Configurations that a comment compares in one table.
COMPARED = 12
COLOURS = {"error": "#bb5566", "warning": "#ddaa33", "info": "#4477aa", "no findings": "#228833"}


def document(answer: Checked | Overviews) -> Document:
    """With charts and operators where they were worked out (``Overviews``), else of the findings alone."""
    if isinstance(answer, Checked):
        checked, seen = answer, cast("Sequence[Overview | None]", [None] * len(answer.reports))
    else:
        checked, seen = Checked(tuple(one.report for one in answer.items)), answer.items
    reports = checked.reports
    sections = [_section(report, one) for report, one in zip(reports, seen, strict=True)]
    if reports:
        sections.insert(0, _compared(reports))
    if total := _total(checked):
        sections.append(Section("Total", (Text(total),), only=("text",)))
    headline = tally_text(checked.tally()) or "no findings"
    return Document("sizer check", sections, checked, headline, partial(_records, checked), FIELDS)


def _section(report: Report, seen: Overview | None) -> Section:
    step, model = report.step, report.model
    size = f"{count_text(model.parameters)} parameters"
    if model.active_parameters != model.parameters:
        size += f" ({count_text(model.active_parameters)} active)"
    facts = {
        "model": model.model_type,
        "parameters": count_text(model.parameters),
        "device": report.device,
        "step": within_text(step),
        "MFU": percent_text(step.mfu),
    }
    warnings = set(sentences(model.unread))
    parts: list[Part] = [
        Text(f"{report.path}: {model.model_type}, {size}", "head"),
        Text(f"  {_conditions(report)}"),
        Facts(facts),
        *(Text(f"  {'warning' if note in warnings else 'note'}: {note}", "quiet") for note in model.notes),
    ]
    if report.findings:
        parts.append(Findings("", report.findings, step.seconds, report.path))
    else:
        parts.append(Text("", only=("text",)))
    tally = tally_text({level: sum(one.severity == level for one in report.findings) for level in SEVERITIES})
    parts.append(Text(f"{tally or 'no findings'}; {step_text(step)}", report.worst() or ""))
    if seen is not None:
        from sizer.documents import memory, ops  # only pages show these

        parts.append(Charts(partial(ops.charts, seen.table)))
        if seen.memory is not None:
            parts += [Charts(partial(memory.charts, seen.memory, report.device)), *memory.components(seen.memory)]
        parts.append(ops.operators(seen.table))
    return Section(report.path, parts, folded=True, only=() if report.findings else ("text", "html"))


def _conditions(report: Report) -> str:
    """What was priced: the device, the workload, the split and the software."""
    workload, recipe = report.workload, report.workload.low_precision
    split = [
        f"{name} {getattr(workload, key)}"
        for key, name in (("t", "tp"), ("p", "pp"), ("d", "dp"), ("e", "ep"), ("cp", "cp"), ("vpp", "vpp"))
        if getattr(workload, key) > 1
    ]
    split += [f"no overlap of {' and '.join(workload.exposed)}"] if workload.exposed else []
    kernels = f" ({', '.join(report.attention)})" if report.attention else ""
    by = f" ({recipe.name} recipe)" if recipe is not None and recipe.name != workload.dtype else ""
    return ", ".join(
        (
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
        )
    )


def tally_text(tally: Mapping[Severity, int]) -> str:
    return ", ".join(
        f"{number} {level if level == 'info' or number == 1 else level + 's'}"
        for level, number in tally.items()
        if number
    )


def _total(answer: Checked) -> str:
    parts = []
    if len(answer.reports) > 1:
        clean = sum(not report.findings for report in answer.reports)
        tally = tally_text(answer.tally()) or "no findings"
        parts.append(f"{len(answer.reports)} configurations: {tally}, {clean} without findings")
    parts += [f"{answer.accepted} accepted in the baseline"] if answer.accepted else []
    parts += [f"{answer.passed_over} files passed over"] if answer.passed_over else []
    return "; ".join(parts)


def _worst(report: Report) -> Cell | None:
    level = report.worst()
    return Cell(level, SEVERITIES.index(level), level) if level is not None else None


def _tally_of(report: Report) -> str:
    return tally_text(Checked((report,)).tally()) or "-"


REPORTS = (
    Column("configuration", "path", style="code"),
    Column("device", "device"),
    Column("parameters", "model.parameters", count_text),
    Column("step", lambda one: Cell(within_text(one.step), one.step.seconds)),
    Column("MFU", "step.mfu", percent_text),
    Column("findings", _tally_of),
    Column("worst", _worst, only=FULL),
)


def _compared(reports: Sequence[Report]) -> Section:
    """Configurations side by side; of one only a comment has the table."""
    many = len(reports) > 1
    parts: tuple[Part, ...] = (Table("Configurations" if many else "", REPORTS, reports, COMPARED),)
    if many:
        parts = (Charts(lambda: [_steps(reports)]), *parts)
    return Section("", parts, only=PAGES if many else ("markdown",))


def _steps(reports: Sequence[Report]) -> Chart:
    from sizer.documents.charts import Bar, bars

    factor, unit = seconds_scale(max(report.step.high for report in reports))
    listed = [
        Bar(
            one.path,
            [
                (
                    one.worst() or "no findings",
                    one.step.seconds,
                    f"{one.path}: {within_text(one.step)}, MFU {percent_text(one.step.mfu)}",
                )
            ],
            (one.step.low, one.step.high),
        )
        for one in reports
    ]
    caption = "Steps side by side with their intervals, coloured by the worst finding."
    return bars(caption, f"step, {unit}", listed, factor, COLOURS)


def _records(answer: Checked) -> Iterable[Mapping[str, object]]:
    texts = lru_cache(maxsize=None)(text_of)
    own = ("severity", "code", "slug", "field", "value", "step_seconds", "message")
    for report in answer.reports:
        for finding in report.findings:
            place = place_of(finding, report.path, texts(report.path))
            best = finding.suggestions[0] if finding.suggestions else None
            yield {
                **{name: getattr(finding, name) for name in own},
                "path": report.path,
                "line": place.line if place else None,
                "column": place.column if place else None,
                "device": report.device,
                "step_share": finding.step_seconds / report.step.seconds,
                "suggestion": change_text(best) if best else None,
                "saves_seconds": -best.step_seconds_change if best else None,
                "within_error": best.within_error if best else None,
            }


def place_of(finding: PricedFinding, path: str, text: str | None) -> Place | None:
    """Where the finding's field is in the file, else the first of the keys that would be changed."""
    if text is None:
        return None
    keys = dict.fromkeys([finding.field, *(key for one in finding.suggestions for key in one.change)])
    return next((place for key in keys if (place := locate(text, key, path)) is not None), None)


def text_of(path: str) -> str | None:
    """The file's text; None for standard input, a module, a file that is gone."""
    try:
        return load_text(Path(path))
    except InputError:
        return None


COUNTED = (
    Column("findings", 1),
    Column("severity", lambda one: one[0][2]),
    Column("rule", lambda one: one[0][0]),
    Column("slug", lambda one: one[0][1]),
)


def statistics(answer: Checked) -> Document:
    """How many findings each rule has, the most frequent first; nothing where nothing was found."""
    counted = Counter((one.code, one.slug, one.severity) for report in answer.reports for one in report.findings)
    ranked = sorted(counted.items(), key=lambda entry: (-entry[1], entry[0][0], SEVERITIES.index(entry[0][2])))
    return Document("sizer check --statistics", (Section("", (Table("", COUNTED, ranked),)),), answer)
