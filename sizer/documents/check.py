"""A check: each configuration's findings and step; of a page also its operators, the roofline and memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from shapes.errors import InputError
from shapes.frozen import first_of
from sizer.checking.findings import SEVERITIES, Checked, PricedFinding, Report, Severity
from sizer.readers.loading import load_text
from sizer.readers.reading import sentences

from . import (
    PAGES,
    Cell,
    Charts,
    Column,
    Document,
    Findings,
    Part,
    Section,
    Table,
    Text,
    change_text,
    columns,
    cost_text,
    count_text,
    lines,
    mfu_text,
    plural,
    seconds_text,
    split_text,
    step_text,
    suggestion_text,
    within_text,
    zero_text,
)

if TYPE_CHECKING:
    from sizer.answers.operator_table import Overview
    from sizer.readers.locate import Place

#: Configurations that a comment compares in one table.
COMPARED = 12


def document(answer: "Checked | tuple[Overview, ...]") -> Document:
    """With charts and operators where they were worked out (``Overview``), else of the findings alone."""
    if isinstance(answer, Checked):
        checked, seen = answer, cast("Sequence[Overview | None]", [None] * len(answer.reports))
    else:
        checked, seen = Checked(tuple(map(attrgetter("report"), answer))), answer
    reports = checked.reports
    several = _on_several(reports)
    sections = [
        *([_compared(reports)] if reports else ()),
        *(_side_by_side(path, found) for path, found in several.items()),
        *(_section(report, one, report.path in several) for report, one in zip(reports, seen, strict=True)),
        Section("Total", lines([_total(checked)]), only=("text",)),
    ]
    return Document("sizer check", sections, checked, tally_text(checked), partial(_records, checked))


def _on_several(reports: Sequence[Report]) -> dict[str, list[Report]]:
    """The reports of each configuration on more than one device, by its path."""
    of_path = {report.path: [one for one in reports if one.path == report.path] for report in reports}
    return {path: found for path, found in of_path.items() if len({one.device for one in found}) > 1}


def _side_by_side(path: str, reports: Sequence[Report]) -> Section:
    """One configuration on several devices, a column each; below it each finding once, as on the first that has it."""
    found = {(one.code, one.field): f"{one.code} {one.field} = {one.value}" for it in reports for one in it.findings}
    rows = [(said, *map(of, reports)) for said, of in _OF_A_DEVICE.items()]
    rows += [(said, *(_price(one, *key) for one in reports)) for key, said in found.items()]
    columns = [Column("", 0), *(Column(one.device, at) for at, one in enumerate(reports, 1))]
    best = min(reports, key=lambda one: one.step_s or float("inf"))
    fastest = f" fastest on {best.device}, {within_text(best.step)}" if best.step_s else ""
    parts: list[Part] = [Text(f"{path}:{fastest}", "head"), Text(_conditions(reports[0], "")), Table(columns, rows)]
    return Section("", [*parts, *_first_seen(path, reports, found)], only=("text", "html"))


def _first_seen(path: str, reports: Sequence[Report], left: dict[tuple[str, str], str]) -> Iterator[Part]:
    """Each report's findings that are still ``left``, taken out of it: a page has a section for each device."""
    for report in reports:
        if new := [one for one in report.findings if left.pop((one.code, one.field), None)]:
            yield Text(f"on {report.device}:", only=("text",))
            yield Findings("", new, report.step_s, path, only=("text",))
            yield Text("", only=("text",))


def _hours(report: Report) -> float:
    """Device hours of a billion tokens; 0 where the step has no price."""
    own, step = report.workload, report.step
    return step.seconds * own.model_ranks / own.tokens / step.accumulation * 1e9 / 3600 if step else 0.0


def _usd(report: Report) -> float:
    return _hours(report) * (report.price_usd_per_h or 0.0)


def _tally_of(report: Report) -> str:
    return tally_text(Checked((report,)))


#: Figures of a configuration that are compared on several devices.
_OF_A_DEVICE: dict[str, Callable[[Report], object]] = {
    "findings": _tally_of,
    "step": lambda one: within_text(one.step),
    "MFU": lambda one: mfu_text(one.step),
    "device hours of 1e9 tokens": lambda one: f"{_hours(one):,.1f}" if _hours(one) else "",
    "USD of them, by list prices": lambda one: f"{_usd(one):,.0f}" if _usd(one) else "-",
}


def _price(report: Report, code: str, field: str) -> Cell:
    """How severe a finding is on a report's device and what it costs there, where known; "-" where there is none."""
    found = first_of(one for one in report.findings if (one.code, one.field) == (code, field))
    if not found:
        return Cell("-")
    cost = cost_text(found, report.step_s).removeprefix("costs ").replace(" a step", "")
    return Cell(f"{found.severity} {cost}".strip(), style=found.severity)


def _section(report: Report, seen: "Overview | None", compared: bool) -> Section:
    """``compared``: its devices are shown side by side above."""
    step, model = report.step, report.model
    warnings = set(sentences(one for one in model.unread if one.changes is not None))
    below = set(sentences(model.unread)) - warnings  # by SZ131
    notes = [note for note in model.notes if note not in below]
    found = report.findings
    parts = [
        Text([Cell(f"{report.path}: ", style="head"), *_tally(Checked((report,))), Cell(f"; {step_text(step)}")]),
        *_if_fixed(report),
        Text(_conditions(report, report.device)),
        *lines((f"  {'warning' if note in warnings else 'note'}: {note}" for note in notes), "quiet"),
        Findings("", found, report.step_s, report.path) if found else Text("", only=("text",)),
    ]
    if seen:
        from . import memory, ops  # only pages show these

        parts.append(Charts(partial(ops.roofline, seen.table)))
        if seen.memory is not None:
            parts += memory.components(seen.memory)
        parts.append(ops.operators(seen.table))
    shown = {"html": True, "markdown": bool(found), "text": not compared}
    return Section(
        f"{report.path}{f' on {report.device}' * compared}",
        parts,
        f"{report.path}: {plural(len(found), 'finding')} on {report.device}",
        only=tuple(name for name in shown if shown[name]),
    )


def _if_fixed(report: Report) -> Iterable[Text]:
    """The step with the best suggestions together; of pages with the first, where there is but one."""
    offer = report.joint or first_of(one for finding in report.findings for one in finding.suggestions)
    if offer and offer.step_seconds_change and report.step_s is not None:
        after = seconds_text(report.step_s + offer.step_seconds_change)
        yield Text(
            f"if fixed: step {after}, by {suggestion_text(offer, report.step_s)}",
            "head",
            only=() if report.joint else ("html",),
        )


def _conditions(report: Report, device: str) -> str:
    """The conditions of the price: the model, the workload, the split and the software, as far as they were said."""
    workload, recipe, model = report.workload, report.workload.low_precision, report.model
    active = f" ({count_text(model.active_parameters)} active)" * (model.active_parameters != model.parameters)
    kernels = f" ({', '.join(report.attention)})" * bool(report.attention)
    by = f" ({recipe.name} recipe)" if recipe and recipe.name != workload.dtype else ""
    said = (
        f"{model.model_type}, {count_text(model.parameters)} parameters{active}",
        device,
        workload.dtype + by,
        workload.phase,
        f"b {workload.b}",
        f"s {workload.s}",
        f"context {workload.context}, {workload.cache_dtype} KV cache" * workload.decode,
        split_text(workload).removesuffix(", "),
        f"ZeRO {zero_text(workload)}" * bool(workload.zero),
        f"checkpointing {workload.checkpointing}" * (workload.checkpointing != "none"),
        f"no overlap of {' and '.join(workload.exposed)}" * bool(workload.exposed),
        f"{workload.attention} attention{kernels}" * (workload.attention != "auto"),
        f"{workload.implementation} kernels" * bool(workload.implementation),
        workload.finetune,
        workload.optimizer,
        f"{workload.precision} precision" * bool(workload.precision),
        f"stack {report.stack}" * bool(report.stack),
    )
    return ", ".join(filter(None, said))


def tally_text(answer: Checked) -> str:
    return "".join(one.shown for one in _tally(answer))


def _tally(answer: Checked) -> list[Cell]:
    """``1 error, 2 warnings``, each styled as its severity."""
    found = [
        Cell(f"{number} info" if level == "info" else plural(number, level), style=level)
        for level, number in answer.tally().items()
        if number
    ]
    return [piece for one in found for piece in (Cell(", "), one)][1:] or [Cell("no findings")]


def _total(answer: Checked) -> str:
    reports = answer.reports
    clean = sum(not report.findings for report in reports)
    files = plural(len({one.path for one in reports}), "configuration")
    said = {
        f"{files}: {tally_text(answer)}, {clean} without findings": len(reports) > 1,
        f"{answer.accepted} accepted in the baseline": answer.accepted,
        f"{answer.passed_over} files passed over": answer.passed_over,
    }
    return "; ".join(text for text in said if said[text])


def severity_cell(level: Severity) -> Cell:
    return Cell(level, SEVERITIES.index(level), level)


REPORTS = columns(
    "check",
    step=lambda one: Cell(within_text(one.step), one.step_s),
    mfu=lambda one: Cell(mfu_text(one.step), one.step and one.step.mfu),
    tally=_tally_of,
    worst=lambda one: severity_cell(one.worst()) if one.findings else None,
)


def _compared(reports: Sequence[Report]) -> Section:
    """Configurations side by side; of one only a comment has the table."""
    many = len(reports) > 1
    return Section(
        "Configurations" * many, (Table(REPORTS, reports, most=COMPARED),), only=PAGES if many else ("markdown",)
    )


#: Columns of CSV: a row for each finding.
RECORDS = columns(
    "check records",
    share=lambda one: one.report.step_s and one.found.step_seconds and one.found.step_seconds / one.report.step_s,
    suggestion=lambda one: one.best and change_text(one.best),
)


def _records(answer: Checked) -> Table:
    texts = lru_cache(None)(text_of)
    rows = [
        SimpleNamespace(
            report=report,
            found=found,
            place=place_of(found, report.path, texts(report.path)),
            best=first_of(found.suggestions),
        )
        for report in answer.reports
        for found in report.findings
    ]
    return Table(RECORDS, rows)


def place_of(finding: PricedFinding, path: str, text: str | None) -> "Place | None":
    """Where the finding's field is in the file, else the first of the keys that would be changed."""
    if text is None:
        return None
    from sizer.readers.locate import locate  # a plain check shows no lines

    keys = dict.fromkeys([finding.field, *(key for one in finding.suggestions for key in one.change)])
    return first_of(place for key in keys if (place := locate(text, key, path)))


def text_of(path: str) -> str | None:
    """The file's text; None for standard input, a module, a file that is gone."""
    try:
        return load_text(Path(path))
    except InputError:
        return None
