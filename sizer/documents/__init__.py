"""A command's document, one for every format: headline, key figures, tables with typed columns, charts, notes.

Also the texts of its numbers: counts, seconds with bounds, shares, the sentences about a step.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

from shapes.frozen import Function, Named, Names, Values, in_words, inner
from shapes.toml_table import table_of
from shapes.workload import WORDS, Workload
from sizer.checking.findings import PricedFinding, PricedSuggestion, StepTime

#: Formats with room for everything, and those that a person reads in a browser.
FULL = ("html", "csv")
PAGES = ("html", "markdown")


class Cell(NamedTuple):
    """A table's cell: how it is shown, its number (which it is sorted by), its style."""

    shown: str
    value: float | None = None
    style: str = ""


class Column(NamedTuple):
    """``of``: a row's key, place or attribute (dotted), or a function of the row: a number, a text, a ``Cell`` or None.

    ``show``: a format specification or a function of the value; numbers are divided by ``unit`` first (GiB of bytes).
    ``drop``: columns of larger ones are left out first where a terminal is too narrow; 0: never. ``only``: the formats
    that have the column (all where empty).
    """

    name: str
    of: str | int | Function
    show: str | Callable[[Any], str] = ","
    drop: int = 0
    unit: float = 1
    style: str = ""
    only: Names = ()

    def cell(self, row: Any) -> Cell:
        value = self._value(row)
        if value is None or isinstance(value, Cell):
            return value or Cell("", style=self.style)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and self.unit != 1:
            value /= self.unit
        shown = self.show(value) if callable(self.show) else format(value, self.show) if number else str(value)
        return Cell(shown, value if number else None, self.style)

    def _value(self, row: Any) -> Any:
        if callable(self.of):
            return self.of(row)
        return row[self.of] if isinstance(self.of, int) else inner(row, self.of)


_COLUMNS: dict[str, list[Values]] = table_of(__file__, "columns.json")


def columns(table: str, **made: Function) -> tuple[Column, ...]:
    """The columns of a table in columns.json; its rows are keywords of ``Column`` ("of": by default the name).

    "of" and "show" may be formats of the row and the value ("{:.3f}x"). Else "of" names a function of a row in
    ``made``, and "show" one of this module or of ``made``.
    """
    rows = ({"of": row["name"], "show": ",", **row} for row in _COLUMNS[table])
    return tuple(
        Column(**row | {"of": _meant(row["of"], made), "show": _meant(row["show"], globals() | made)}) for row in rows
    )


def _meant(word: Any, known: Named) -> Any:
    return word.format if "{" in str(word) else known.get(word, word)


class Text(NamedTuple):
    """A paragraph or line: a text, or pieces that are styled by themselves.

    ``style``: head, quiet (a note), error, warning, info; page: Markdown already. ``indent``: an item of a list,
    wrapped to the width that there is.
    """

    text: str | Sequence[Cell]
    style: str = ""
    indent: int = 0
    only: Names = ()

    @property
    def pieces(self) -> Sequence[Cell]:
        return [Cell(self.text, style=self.style)] if isinstance(self.text, str) else self.text

    def __str__(self) -> str:
        return "".join(one.shown for one in self.pieces)


class Table(NamedTuple):
    """Rows under a caption; a cell is worked out when it is shown. ``most``: rows that text and Markdown show."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    caption: str = ""
    most: int | None = None
    only: Names = ()

    def seen(self, format_: str) -> tuple[list[Column], list[list[Cell]]]:
        """The columns and rows of a format; columns without a value are left out, but of CSV."""
        columns = seen(self.columns, format_)
        rows = self.rows if format_ in FULL else self.rows[: self.most]
        cells = [[column.cell(row) for column in columns] for row in rows]
        kept = [format_ == "csv" or any(row[at].shown for row in cells) for at in range(len(columns))]
        return [*compress(columns, kept)], [[*compress(row, kept)] for row in cells]

    @property
    def left(self) -> str:
        """How many rows text and Markdown do not show."""
        left = len(self.rows) - self.most if self.most is not None else 0
        return f"… and {left:,} more" if left > 0 else ""


#: Rows of CSV, and of documents without an answer.
Records = Table | Iterable[Named]


class Findings(NamedTuple):
    """Findings priced against a step of ``step_s`` (None: not known); ``path``: the file they point into (None: none).

    ``label``: what a diff says of each, added or fixed.
    """

    caption: str
    findings: Sequence[PricedFinding]
    step_s: float | None
    path: str | None = None
    label: str = ""
    only: Names = ()


class Charts(NamedTuple):
    """Makes charts (``sizer.documents.charts``) when they are drawn, so that a text does not load their data."""

    make: Callable[[], Iterable[Any]]
    only: Names = ()


#: A part of a section.
Part = Text | Table | Findings | Charts


class Section(NamedTuple):
    """``folded``: the line under which a comment folds it away; "": it is open."""

    title: str
    parts: Sequence[Part]
    folded: str = ""
    only: Names = ()

    def seen(self, format_: str) -> list[Part]:
        return seen(self.parts, format_)


class Document(NamedTuple):
    """A command's whole answer. ``headline``: the first line of a comment, for commands that have one.

    ``answer``: the library's, which becomes the JSON. ``records``: the answer's rows as data, or a table of them, which
    become the CSV; without them CSV is the first table. A command without an answer of its own has its rows as JSON.
    """

    title: str
    sections: Sequence[Section]
    answer: object = None
    headline: str = ""
    records: Callable[[], Records] | None = None

    def seen(self, format_: str) -> list[Section]:
        return seen(self.sections, format_)

    def rows(self) -> tuple[Iterable[str], list[Named]]:
        """Names, and the records by them, else the first table's rows."""
        tables = (part for one in self.seen("csv") for part in one.seen("csv") if isinstance(part, Table))
        found = self.records() if self.records else next(tables, ())
        if not isinstance(found, Table):
            rows = list(found)
            return dict.fromkeys(key for row in rows for key in row), rows
        names = [one.name for one in found.columns]
        values = ([cell.shown if cell.value is None else cell.value for cell in row] for row in found.seen("csv")[1])
        return names, [dict(zip(names, row, strict=True)) for row in values]


def seen(listed: Iterable[Any], format_: str) -> list[Any]:
    """The columns, parts or sections that a format has."""
    return [one for one in listed if not one.only or format_ in one.only]


def numeric(rows: Sequence[Sequence[Cell]]) -> list[bool]:
    """Which columns hold numbers, and so are aligned to the right."""
    return [any(cell.value is not None for cell in column) for column in zip(*rows, strict=True)]


def lines(texts: Iterable[str], style: str = "", indent: int = 0) -> list[Part]:
    """A line each, of those that say something."""
    return [Text(text, style, indent) for text in texts if text]


def notes(texts: Iterable[str]) -> list[Part]:
    return lines((f"note: {text}" for text in texts), "quiet")


def plural(number: int, name: str) -> str:
    """``1 finding``, ``2 findings``, ``2 microbatches``."""
    ending = "es" if name.endswith("ch") else "s"
    return f"{number:,} {name}{ending if number != 1 else ''}"


GIB = 2**30


def count_text(number: int) -> str:
    """A parameter count with its exact value where it is short: 8.03 B, 124.4 M, 1,024."""
    for limit, digits, suffix in ((1e12, 2, "T"), (1e9, 2, "B"), (1e6, 1, "M")):
        if abs(number) >= limit:
            return f"{number / limit:.{digits}f} {suffix}"
    return f"{number:,}"


def seconds_text(seconds: float) -> str:
    """Seconds with three significant digits and a unit: 1.23 s, 4.56 ms, 7.89 us."""
    factor, unit = seconds_scale(abs(seconds))
    return f"{seconds * factor:.3g} {unit}" if seconds else "0"


def seconds_scale(largest_s: float) -> tuple[float, str]:
    """The factor on seconds, and the unit, of an axis up to ``largest_s`` seconds."""
    if largest_s >= 1:
        return 1.0, "s"
    return (1e3, "ms") if largest_s >= 1e-3 else (1e6, "us")


def percent_text(share: float | None) -> str:
    """A share as a percentage, one digit below ten: 0.4%, 31%."""
    if share is None:
        return NOT_KNOWN
    percent = share * 100
    return f"{percent:.1f}%" if abs(percent) < 10 else f"{percent:.0f}%"


def signed_count_text(number: int) -> str:
    return f"{'+' if number > 0 else ''}{count_text(number)}"


def signed_seconds_text(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else ''}{seconds_text(seconds)}"


def width_text(half_width: float) -> str:
    """Half of an interval's width; past the figure itself its size says nothing more."""
    return f"{half_width:.1%}" if half_width <= 1 else ">100%"


def within_text(one: Any) -> str:
    """A step's or a product's ``seconds`` with its interval from ``low`` to ``high``."""
    if one is None:
        return NOT_KNOWN
    return f"{seconds_text(one.seconds)} ({range_text(one.low, one.high)})"


def range_text(low_s: float, high_s: float) -> str:
    return f"{seconds_text(low_s)} to {seconds_text(high_s)}"


#: Degrees of parallelism by their options' names -> the workload's fields.
DEGREES = {WORDS.get(key, key): key for key in ("t", "p", "vpp", "cp", "d", "e")}


def split_text(workload: Workload) -> str:
    """The degrees above 1 and sequence parallelism, each with a comma behind it: ``tp 8, dp 2, ``."""
    degrees = "".join(f"{name} {size}, " for name, key in DEGREES.items() if (size := getattr(workload, key)) > 1)
    cut = f"etp {workload.etp}, " * (workload.etp is not None)
    return f"{degrees}{cut}{'sequence parallel, ' * workload.sequence_parallel}"


def zero_text(workload: Workload) -> str:
    """ZeRO's stage, and the ranks that a hybrid shards over."""
    over = f", HSDP over {workload.d // workload.replicas}" * (workload.replicas > 1)
    return f"{workload.zero}{over}"


#: A figure that nobody knows, in a text.
NOT_KNOWN = "not known"


def step_text(step: StepTime | None) -> str:
    """A step with its interval, MFU and where the seconds come from."""
    if not step:
        return f"step {NOT_KNOWN}, MFU {NOT_KNOWN}"
    if step.coverage:
        microbatches = f" of {step.accumulation} microbatches" if step.accumulation > 1 else ""
        within = f"{microbatches} ({range_text(step.low, step.high)} in {step.coverage:.0%} of cases)"
        source = "; ".join((step.source.partition(":")[0], f"stack {step.tier}", *step.unknown))
    else:
        spread = (step.high - step.low) / 2 / step.seconds if step.seconds else 0.0
        source = step.source.replace("; predicted:", ", in part on ").replace(":", " on ", 1)
        within = f" +-{percent_text(spread)}"
        source += f"; {step.tier}" * bool(step.tier)
    used = f"MFU {mfu_text(step)}"
    if step.phase == "train":
        return f"step {seconds_text(step.seconds)}{within}, {used} ({source})"
    what = "time per token" if step.phase == "decode" else "time to first token"
    return (
        f"{what} {seconds_text(step.seconds)}{within}, {step.tokens_per_s:,.0f} tokens/s, "
        f"bandwidth utilisation (MBU) {percent_text(step.mbu)}, {used} ({source})"
    )


def change_text(suggestion: PricedSuggestion, form: str = "{} {}") -> str:
    return in_words(suggestion.change, form)


def mfu_text(step: StepTime | None) -> str:
    return percent_text(step.mfu) if step else NOT_KNOWN


def saved_text(suggestion: PricedSuggestion, step_s: float | None = None) -> str:
    """``saves 3.93 ms (16%), within the error``; the share of a step where that is given."""
    if suggestion.step_seconds_change is None:
        return f"what it saves is {NOT_KNOWN}"
    saved = -suggestion.step_seconds_change
    if not saved:
        return "no change in step time"
    share = f" ({percent_text(abs(saved) / step_s)})" if step_s else ""
    within = ", within the error" if suggestion.within_error and saved > 0 else ""
    return f"{'saves' if saved > 0 else 'adds'} {seconds_text(abs(saved))}{share}{within}"


def suggestion_text(suggestion: PricedSuggestion, step_s: float | None) -> str:
    """A change with what it does to the step and the parameters: ``vocab_size 50304: saves 3.93 ms (16%)``."""
    gain = saved_text(suggestion, step_s)
    if suggestion.parameters_change:
        gain += f", {signed_count_text(suggestion.parameters_change)} parameters"
    return f"{change_text(suggestion)}: {gain}" + (f" ({suggestion.note})" if suggestion.note else "")


def cost_text(finding: PricedFinding, step_s: float | None) -> str:
    """``costs 4.21 ms a step (16%)``; "" for a finding without a price, as what cannot run is."""
    if not finding.step_seconds or not step_s or finding.severity == "error":
        return ""
    return f"costs {seconds_text(finding.step_seconds)} a step ({percent_text(finding.step_seconds / step_s)})"
