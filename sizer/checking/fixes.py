"""Suggestions as edits of a configuration's text, and the edits of one report applied together.

No format is written here. A suggestion's edits are guessed from where its keys, or the values that they have now, stand
in the text. They count only where the edited text, read again, runs the operators that were priced.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import field
from difflib import unified_diff
from itertools import islice, product
from pathlib import Path

from shapes.errors import InputError, read_bounded, refuse, write_whole
from shapes.frozen import Names, frozen, in_words, replace
from shapes.model.resize import DIMENSIONS
from shapes.toml_table import table_of
from shapes.workload import WORKLOAD_FIELDS, option_of
from sizer.readers import Source, is_name
from sizer.readers.loading import MAX_BYTES, decode, find_config
from sizer.readers.locate import entry, place
from sizer.subject import Subject

from .checks import CheckRequest, Settled, report_of
from .findings import SEVERITIES, Change, Edit, Fix, PricedSuggestion, Report, Severity
from .grading import SAME_SIZE, Proposals, changed_subject, dimensions_and_fields, equal_work

#: Dimensions that may be padded without anybody noticing: tokenizer and checkpoint stay valid. Fields of a workload
#: that say how a model is run, and do not change what it learns.
PADDED, LAYOUT = table_of(__file__, "fixes.json").values()
#: Places where a value may stand, and combinations of them, that are tried.
MOST_PLACES = 20
MOST_TRIED = 60


@frozen
class ConfigText:
    """A configuration's text, and how it is checked. ``data``: the file's bytes (None: standard input, an editor)."""

    path: str
    text: str
    request: CheckRequest
    source: Source = field(default_factory=lambda: Source(None))
    data: bytes | None = None

    def settle(self) -> Settled:
        return self.request.settle(self.path, replace(self.source, config=self.path, text=self.text))

    def edited(self, fix: Fix) -> "ConfigText":
        return replace(self, text=applied(self.text, fix.edits))


@frozen
class Fixed:
    """A text with all of its report's fixes that agree with one another: ``before`` and after, and what was applied.

    ``saving``: the share of a step that they save together (None: it is not known). ``left``: what was not applied,
    and how to say it.
    """

    before: ConfigText
    after: ConfigText
    applied: Names
    saving: float | None
    left: Names

    @property
    def patch(self) -> str:
        """A unified diff; "" where nothing changes."""
        before, after = (re.findall(r"[^\n]*\n|[^\n]+", one.text) for one in (self.before, self.after))
        ends = "\n\\ No newline at end of file\n"
        lines = unified_diff(before, after, self.before.path, self.before.path)
        return "".join(line if line.endswith("\n") else line + ends for line in lines)


def load_text(config: str, request: CheckRequest, source: object) -> ConfigText:
    """The text of ``config``, a file or the configuration in a directory; a ``source`` may hold standard input's."""
    source = source if isinstance(source, Source) else Source(config)
    if source.text is not None:
        return ConfigText(str(source.config), source.text, request, source)
    refuse(is_name(config), "expected a file: a model that is named has none to edit", "--fix", config)
    path = str(find_config(Path(config)))
    data = read_bounded(path, MAX_BYTES)
    text = decode(data, path)
    refuse(not data.endswith(text.encode("utf-8")), "expected UTF-8 text to edit", where=path)
    return ConfigText(path, text, request, source, data)


def write_text(fixed: Fixed) -> None:
    """The text after, as the file; InputError where the file is not what was checked any more."""
    path, data = fixed.before.path, fixed.before.data
    if data is None or fixed.after.text == fixed.before.text:
        return
    refuse(
        read_bounded(path, MAX_BYTES) != data,
        "was changed while it was checked: nothing is written; check it again",
        where=path,
    )
    mark = data[: len(data) - len(fixed.before.text.encode("utf-8"))]  # of a file that begins with one
    write_whole(path, mark + fixed.after.text.encode("utf-8"))


def applied(text: str, edits: Sequence[Edit]) -> str:
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda one: (-one.place.line, -one.place.column)):
        at = edit.place
        line = lines[at.line - 1]
        lines[at.line - 1] = line[: at.column - 1] + edit.text + line[at.end_column - 1 :]
    return "\n".join(lines)


def with_fixes(report: Report, config: str, request: CheckRequest, source: object, subject: Subject) -> Report:
    """``report`` of ``config``, settled as ``subject``, with the edits of every suggestion that the file can say."""
    if is_name(config):
        return report
    text = load_text(config, request, source)

    findings = [
        replace(finding, suggestions=tuple(replace(one, fix=fix_of(one, text, subject)) for one in finding.suggestions))
        for finding in report.findings
    ]
    return replace(report, findings=tuple(findings))


def fix_of(suggestion: PricedSuggestion, config: ConfigText, subject: Subject) -> Fix | None:
    """The edits of ``config`` that make what ``suggestion`` is the price of; None where no edit of it does."""
    names = {subject.name_of(name): name for name in (*subject.dimensions, *WORKLOAD_FIELDS)}
    if not suggestion.change.keys() <= names.keys():
        return None
    change = {names[key]: value for key, value in suggestion.change.items()}
    try:
        wanted = changed_subject(subject, change)
    except InputError:
        return None
    guesses = product(*(_guesses(config, subject, name, value) for name, value in change.items()))
    for guess in islice(guesses, MOST_TRIED):
        fix = Fix(tuple(filter(None, guess)), _unsafe(subject, change, wanted))
        if fix.edits and _runs(config.edited(fix), wanted):
            return fix
    return None


def _runs(config: ConfigText, wanted: Subject) -> bool:
    """Whether a text is read as the model, workload and operators that were priced."""
    try:
        found = config.settle().subject
    except InputError:
        return False
    priced = "operators", "workload", "asked", "parameters", "dimensions"
    return all(getattr(found, part) == getattr(wanted, part) for part in priced)


def _guesses(config: ConfigText, subject: Subject, name: str, value: int | str) -> list[Edit | None]:
    """Edits that may give ``name`` a value; None: it follows from the other keys of the change."""
    text, key, new = config.text, subject.name_of(name), str(value)
    reading = subject.reading
    keys, held = (reading.keys, reading.config) if reading else ({}, {})
    if name in keys and (found := entry(text, key, config.path)) and found.value:
        start, end = found.value  # the last word of a value: an anchor before it stays
        return [Edit(place(text, end - len(text[start:end].split()[-1]), end), new)]
    old = subject.dimensions.get(name) if name in DIMENSIONS else getattr(subject.asked or subject.workload, name)
    said = held.get(key, old)  # a vocabulary, unpadded
    stands = re.finditer(rf"(?<![\w.])({re.escape(str(said))}|{re.escape(str(old))})(?![\w.])", text)
    places = [place(text, *one.span()) for one in islice(stands, MOST_PLACES)]
    return [*[None] * (name in (*keys, "d")), *(Edit(one, new) for one in places)]


def _unsafe(subject: Subject, change: Change, wanted: Subject) -> str:
    """Why a person has to ask for a change."""
    dims, fields = dimensions_and_fields(change)
    trained = [option_of(name) for name in fields if name not in LAYOUT]
    grown = abs(wanted.parameters - subject.parameters) / max(1, subject.parameters)
    smaller = any(int(value) < subject.dimensions[name] for name, value in dims.items())
    reasons = {
        "a released checkpoint has these dimensions": dims and subject.released,
        "the tokenizer needs its tokens": "vocab" in dims and smaller,
        "it does more than pad a vocabulary or width": smaller or not dims.keys() <= set(PADDED),
        f"it changes the parameters by {grown:.1%}": grown > SAME_SIZE,
        f"{' and '.join(trained)} changes what is trained": trained,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@frozen
class _Checked:
    """A text with what is proposed for it, and its report without the findings that were accepted."""

    config: ConfigText
    settled: Settled
    proposals: Proposals
    report: Report


def fix(
    config: ConfigText,
    worst: Severity,
    *,
    unsafe: bool = False,
    only: Names = ("",),
    kept: Callable[[Report], Report] = lambda report: report,
) -> Fixed:
    """``config`` with suggestions for its findings at or above ``worst`` applied, one at a time, each checked again.

    One is kept if findings become fewer or less severe and none new or worse comes of it. ``unsafe``: those too that a
    person has to ask for. ``only``: those of rules whose codes begin so. ``kept``: leaves out findings of a report that
    were accepted.
    """
    levels = SEVERITIES[: SEVERITIES.index(worst) + 1]

    def checked(text: ConfigText) -> _Checked:
        settled = text.settle()
        proposals = settled.propose()
        return _Checked(text, settled, proposals, kept(report_of(proposals)))

    done = []
    first = now = checked(config)
    while (found := _next(now, levels, only, unsafe, checked))[1]:
        now = found[0]
        done.append(found[1])
    before, after = first.proposals, now.proposals
    scale, seconds = equal_work(before.subject, before.step, after.subject, after.step), before.step.seconds
    saving = 1 - after.step.seconds * scale / seconds if done and seconds else None
    return Fixed(config, now.config, tuple(done), saving, found[2])


def _next(
    now: _Checked, levels: Sequence[Severity], only: Names, unsafe: bool, checked: Callable[[ConfigText], _Checked]
) -> tuple[_Checked, str, Names]:
    """The text with the first suggestion that can be applied, and the suggestion.

    If none can: the same text, "", and for each finding its first suggestion with the obstacle.
    """
    left = dict[tuple[str, str], str]()
    for finding in now.report.findings:
        asked = finding.severity in levels and any(one.startswith(only) for one in finding.codes)
        for suggestion in finding.suggestions * asked:
            said = f"{finding.code} {in_words(suggestion.change)}"
            found = fix_of(suggestion, now.config, now.settled.subject)
            if not found:
                why = f"no edit of this file says it; say {_options(suggestion, now.settled.subject)}"
            elif found.unsafe and not unsafe:
                why = f"with --unsafe-fixes ({found.unsafe})"
            else:
                after = checked(now.config.edited(found))
                if _better(after.report, now.report, levels):
                    return after, said, ()
                why = "another finding would be as severe"
            left.setdefault((finding.code, finding.field), f"{said}: {why}")
    return now, "", tuple(left.values())


def _options(suggestion: PricedSuggestion, subject: Subject) -> str:
    """The options that make a change on the command line."""
    fields, change = {subject.name_of(name): name for name in WORKLOAD_FIELDS}, suggestion.change.items()
    return " ".join(f"{option_of(fields[key])} {one}" if key in fields else f"--set {key}={one}" for key, one in change)


def _better(after: Report, before: Report, levels: Sequence[Severity]) -> bool:
    """Whether findings are fewer or less severe, and each was there before, no less severe, by its field or a rule."""
    then, now = (
        [(SEVERITIES.index(one.severity), one.field, {*one.codes}) for one in report.findings if one.severity in levels]
        for report in (before, after)
    )
    counts = [[sum(SEVERITIES[one[0]] == level for one in found) for level in levels] for found in (now, then)]
    known = all(
        any(old <= severity and (field == was or codes & rules) for old, was, rules in then)
        for severity, field, codes in now
    )
    return known and counts[0] < counts[1]
