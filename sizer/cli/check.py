"""`sizer check`."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shapes.device import load_device
from shapes.errors import InputError, one_of, printable, refuse
from shapes.frozen import Names, Texts, first_of, replace
from sizer.checking.checks import CheckRequest, Settled, check_subject
from sizer.checking.findings import Checked, Report, Severity
from sizer.checking.project import Accepted, known_rule, load_accepted, load_defaults, write_accepted
from sizer.documents import plural
from sizer.readers import NoModel
from sizer.readers.loading import expand, find_config, head_states_a_model
from sizer.render import formats
from sizer.subject import Subject

from .options import Asked, codes, exceeds, left_open, option_error, pass_on, say_line, subcommand

if TYPE_CHECKING:
    from shapes.measure import Executor
    from sizer.checking.fixes import ConfigText, Fixed


#: Files passed over that are named.
NAMED = 5


@dataclass
class _Found:
    """The outcome of the configurations so far; ``refused``: one could not be read.

    ``known``: findings that a baseline accepts. ``texts``: patches, and standard input fixed.
    """

    known: Accepted
    reports: list[Report] = field(default_factory=list)
    subjects: dict[str, Subject] = field(default_factory=dict)
    refused: bool = False
    passed_over: Texts = field(default_factory=list)
    texts: Texts = field(default_factory=list)
    executor: "Executor | None" = None

    def checked(self) -> Checked:
        """The answer, without findings that a baseline has."""
        new = [self.known.new_in(one) for one in self.reports]
        return Checked(tuple(report for report, _ in new), sum(number for _, number in new), len(self.passed_over))


@subcommand(
    "check",
    "check stack workload config measuring ray rules output",
    "For example: sizer check config.json --device b200 --tp 8 -b 2 -s 8192",
)
def command(asked: Asked) -> None:
    """Check configurations (files, directories, globs, or - for standard input) and price each finding in step time.

    Exit code: 0 clean, 1 findings at or above --fail-on, 2 bad input (the other files are checked all the same).
    """
    if not asked.configs:
        raise InputError(_nothing_named())
    refuse(asked.configs.count("-") > 1, "standard input is read once: expected - once", "CONFIG", "-")
    _refuse_contradictions(asked)
    found = _Found(load_accepted(asked.baseline) if asked.baseline is not None else Accepted({}, Path()))
    if asked.measure:
        from .measuring import chosen_executor

        found.executor = chosen_executor(asked.ray, asked.on)
    _take_project_s(asked)
    _check_all(asked, found)
    if asked.write_baseline is not None:
        if not found.refused:  # a part of a baseline would accept a part of the findings
            accepted = write_accepted(found.reports, asked.write_baseline)
            say_line(f"{plural(accepted, 'finding')} accepted in {asked.write_baseline}")
        sys.exit(2 * found.refused)
    checked = found.checked()
    if asked.fix is False or found.texts:
        pass_on("".join(found.texts), asked.output)
    else:
        _show(asked, found, checked)
    if found.refused:
        sys.exit(2)
    if exceeds(checked.worst(), asked.fail_on):
        sys.exit(1)


def _refuse_contradictions(asked: Asked) -> None:
    """Options that need others, or that do not go together; --fix-only is --fix."""
    asked.demand(ray="measure", on="ray", store="measure", time_limit_s="measure")
    if asked.fix_only and asked.fix is None:
        asked.fix = True
    refuse(asked.unsafe_fixes and asked.fix is None, "expected --fix or --diff with it", "--unsafe-fixes", True)
    refuse(
        len(asked.devices) > 1 and (asked.measure or asked.fix is not None),
        "expected one, to measure on or to fix for",
        "--device",
        ", ".join(asked.devices),
    )


def _check_all(asked: Asked, found: _Found) -> None:
    """Every configuration named, checked; one that cannot be read is said, and hides nothing of the others."""
    for config, named, unread in _expanded(asked.configs):
        try:
            if unread:
                raise unread
            if asked.models_only and Path(config).is_file() and not head_states_a_model(config):
                raise NoModel("no model", where=config)
            _check_one(asked, config, found)
        except InputError as error:
            passed = (asked.models_only or not named) and isinstance(error, NoModel)
            if passed:
                found.passed_over.append(str(error.where))
            else:
                found.refused = True
                say_line(str(option_error(error)))
    if found.passed_over and not asked.quiet:
        first, others = ", ".join(found.passed_over[:NAMED]), len(found.passed_over) - NAMED
        say_line(f"{first}{f' and {others} more' if others > 0 else ''}: no model configuration, passed over")
    found.refused |= not (found.reports or asked.models_only)  # a folder that only seemed to hold some


def _check_one(asked: Asked, config: str, found: _Found) -> None:
    """Add the report of one configuration; what measured it measures the next one too."""
    reading, device = asked.named("config_format"), first_of(asked.devices)
    request = CheckRequest(device, asked.stack, workload=asked.workload, reading=reading, **asked.suppression())
    source = asked.source(config)
    if asked.fix is not None:
        from sizer.checking.fixes import load_text

        settled = _fix_one(asked, load_text(config, request, source), found)
    else:
        settled = request.settle(config, source)
    if found.executor:
        from sizer.checking.measured import check_measured

        limits = asked.named("time_limit_s", "store")
        reports = [check_measured(settled.subject, found.executor, device, settled.suppression, **limits)]
    else:
        targets = [settled.device, *map(load_device, asked.devices[1:])]
        reports = [check_subject(settled.subject, target, settled.suppression) for target in targets]
    if asked.format_ == "sarif":
        from sizer.checking.fixes import with_fixes

        reports = [with_fixes(report, config, request, source, settled.subject) for report in reports]
    found.reports += reports
    if asked.format_ == "html":
        found.subjects[reports[0].path] = settled.subject


def _fix_one(asked: Asked, config: "ConfigText", found: _Found) -> Settled:
    """Fix one configuration, or keep its patch; the settled text afterwards."""
    from sizer.checking.fixes import fix, write_text

    refuse(asked.measure, "expected --predict: suggestions are applied by their predicted price", "--fix")
    worst: Severity = "warning" if asked.fail_on == "never" else asked.fail_on
    only = tuple(known_rule(code, "--fix-only") for code in codes(asked.fix_only)) or ("",)
    fixed = fix(config, worst, unsafe=asked.unsafe_fixes, only=only, kept=lambda report: found.known.new_in(report)[0])
    if not asked.fix:
        found.texts.append(fixed.patch)
    elif config.data is None:
        found.texts.append(fixed.after.text)
    else:
        write_text(fixed)
    _say_fixed(asked, fixed)
    return fixed.after.settle()


def _say_fixed(asked: Asked, fixed: "Fixed") -> None:
    """Say which fixes were applied, what they save, and what is left."""
    path, done = fixed.before.path, "fixed" if asked.fix else "would fix"
    lines = [f"left {one}" for one in fixed.left if not asked.quiet]
    if fixed.applied:
        saved = "" if fixed.saving is None else f"; together {fixed.saving:.1%} of a step"
        lines.insert(0, f"{done} {', '.join(fixed.applied)}{saved}")
    for line in lines or ["nothing to fix"] * (not asked.fix and not asked.quiet):
        say_line(printable(f"{path}: {line}"))


def _show(asked: Asked, found: _Found, checked: Checked) -> None:
    shown = replace(checked, reports=tuple(one for one in checked.reports if one.findings or not asked.quiet))
    if not shown.reports and found.refused:
        return  # all that is to be said was
    if found.subjects:  # of each report that is shown all there is to see
        from sizer.answers.operator_table import overview

        asked.answer(tuple(overview(found.subjects[one.path], load_device(one.device), one) for one in shown.reports))
    elif shown.reports or asked.format_ != "text":
        asked.answer(shown)


def _nothing_named() -> str:
    """A hint on what to type, with configurations of this folder if it has any."""
    with suppress(InputError):
        first, *others = expand(".")
        more = f" (and {len(others)} more; `sizer check .` takes them all)" if others else ""
        return f"expected a configuration, for instance: sizer check {find_config(Path(first))}{more}"
    return (
        "expected a configuration: sizer check config.json, or a directory, a glob, or - for standard input; "
        "`sizer check --help` has the options"
    )


def _take_project_s(asked: Asked) -> None:
    """The project's --fail-on and --format, where they were left at their defaults."""
    project = load_defaults(asked.configs[0])
    for option, said in (("fail_on", project.fail_on), ("format_", project.format)):
        if said is not None and left_open(option):
            setattr(asked, option, said)
    one_of(asked.format_, formats("check"), "format")


def _expanded(configs: Names) -> Iterator[tuple[str, bool, InputError | None]]:
    """Each configuration, whether a person named it (a folder may hold it), or why an argument names none."""
    for config in configs:
        try:
            found = [config] if config == "-" else expand(config)
            yield from ((one, one == config or not Path(config).is_dir(), None) for one in found)
        except InputError as error:
            yield config, True, error
