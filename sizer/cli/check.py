"""`sizer check`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapes.errors import InputError
from sizer.cli.executors import executors, one_executor, ray_options
from sizer.cli.options import (
    codes,
    config_argument,
    config_options,
    given,
    option_error,
    output_options,
    plot_wanted,
    stack_option,
    trace_options,
    workload_options,
    write_answer,
)

if TYPE_CHECKING:
    from sizer.answers.overview import Overview, Overviews
    from sizer.checking.findings import Checked, Report


@click.command(epilog="For example: sizer check config.json --device b200 --tp 8 -b 2 -s 8192")
@click.argument("configs", nargs=-1, metavar="CONFIG...")
@click.option("--device", metavar="NAME", help="Target (`sizer devices`). [default: h100-sxm; measuring: what is here]")
@stack_option
@workload_options
@config_options
@trace_options
@click.option("--measure", is_flag=True, help="Price by timing the operators here (needs sizer[torch]).")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), help="Measuring: seconds a configuration.")
@click.option("--store", metavar="FILE", help="Measuring: the database. [default: SIZER_STORE, else the user's cache]")
@ray_options
@click.option("--select", multiple=True, metavar="CODES", help="Only these rules (codes, prefixes or slugs; commas).")
@click.option("--extend-select", multiple=True, metavar="CODES", help="These rules too, beside those selected.")
@click.option("--ignore", "--extend-ignore", multiple=True, metavar="CODES", help="Not these rules.")
@click.option("--baseline", metavar="FILE", help="Leave out the findings that this file accepts.")
@click.option(
    "--write-baseline",
    metavar="FILE",
    help="Accept every finding, into this file; exit 0 (2 unwritten: bad input).",
)
@click.option("--models-only", is_flag=True, help="Pass over files that are no model configuration, with a note.")
@click.option("--statistics", is_flag=True, help="Count findings by rule instead of listing them.")
@click.option("-q", "--quiet", is_flag=True, help="Only configurations with findings; no notes.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 whatever is found (2 for bad input).")
@click.option(
    "--fail-on",
    type=click.Choice(["warning", "error", "info", "never"]),
    default="warning",
    show_default=True,
    help="Exit 1 on findings at or above this severity.",
)
@output_options("check")
def command(
    configs: tuple[str, ...],
    device: str | None,
    stack: str | None,
    config_format: str | None,
    trace: bool,
    plan: dict[str, str] | None,
    measure: bool,
    time_limit: float | None,
    store: str | None,
    ray: str | None,
    on: str | None,
    select: tuple[str, ...],
    extend_select: tuple[str, ...],
    ignore: tuple[str, ...],
    baseline: str | None,
    write_baseline: str | None,
    models_only: bool,
    statistics: bool,
    quiet: bool,
    exit_zero: bool,
    fail_on: str,
    format_: str,
    output: str | None,
    **workload: Any,
) -> None:
    """Check configurations (files, directories, globs, or - for standard input) and price each finding in step time.

    Exit code: 0 clean, 1 findings at or above --fail-on, 2 bad input (the other files are checked all the same).
    """
    from shapes.device import load_device
    from sizer.checking.checks import Request
    from sizer.checking.findings import SEVERITIES, Checked
    from sizer.checking.project import load_defaults
    from sizer.readers import NoModel
    from sizer.render import formats

    if not configs:
        raise InputError(_nothing_named())
    if ray is not None and not measure:
        raise InputError("expected --measure with it", key="--ray", value=ray)
    known = None
    if baseline is not None:
        from sizer.checking.accepted import load_accepted

        known = load_accepted(baseline)
    reports: list[Report] = []
    overviews: list[Overview] = []
    executor = one_executor(executors(ray, on), device) if ray is not None else None
    refused, passed_over = False, 0
    project = load_defaults(configs[0])
    fail_on = _unless_given("fail_on", fail_on, project.fail_on)
    format_ = _unless_given("format_", format_, project.format)
    if format_ not in formats("check"):
        raise InputError(f"expected one of {', '.join(formats('check'))}", key="format", value=format_)
    for config, unread in _expanded(configs):
        try:
            if unread is not None:
                raise unread
            request = Request(
                device,
                stack,
                codes(select),
                codes(ignore),
                codes(extend_select),
                given(workload),
                {"trace": trace, "plan": plan, "config_format": config_format},
            )
            settled = request.settle(config, config_argument(config))
            if measure:
                from sizer.checking.measured import check_measured

                executor = executor or one_executor(executors(None, on), device)
                reports.append(
                    check_measured(
                        settled.subject, executor, device, settled.suppression, time_limit_s=time_limit, store=store
                    )
                )
            else:
                reports.append(settled.check())
            if format_ == "html" or plot_wanted():
                from sizer.answers.overview import overview

                overviews.append(overview(settled.subject, load_device(reports[-1].device), reports[-1]))
        except NoModel as error:
            passed_over += models_only
            refused |= not models_only
            if not (quiet and models_only):
                note = f"{error.where}: no model configuration, passed over" if models_only else option_error(error)
                click.echo(f"sizer: {note}", err=True)
        except InputError as error:
            # One file that cannot be read hides nothing of the others.
            click.echo(f"sizer: {option_error(error)}", err=True)
            refused = True
    if write_baseline is not None:
        if refused:
            sys.exit(2)  # half a baseline would accept half of what is there
        from sizer.checking.accepted import write_accepted

        number = write_accepted(reports, write_baseline)
        click.echo(f"{number} finding{'s' if number != 1 else ''} accepted in {write_baseline}", err=True)
        sys.exit(0)
    accepted = 0
    if known is not None:
        pairs = [known.new_in(report) for report in reports]
        reports, accepted = [report for report, _ in pairs], sum(number for _, number in pairs)
    checked = Checked(tuple(reports), accepted, passed_over)
    shown = replace(checked, reports=tuple(one for one in reports if one.findings or not quiet))
    if not shown.reports and refused:
        sys.exit(2)  # all that is to be said was
    if statistics:
        write_answer("check --statistics", shown, None, output)
    elif shown.reports or format_ != "text":
        write_answer("check", shown, format_, output, seen=_pages(overviews, shown) if overviews else None)
    if refused:
        sys.exit(2)
    worst = checked.worst()
    above = worst is not None and fail_on != "never" and SEVERITIES.index(worst) <= SEVERITIES.index(fail_on)
    if above and not exit_zero:
        sys.exit(1)


def _pages(overviews: list[Overview], shown: Checked) -> Overviews:
    """The overviews of the reports that are shown, with what is left of their findings."""
    from sizer.answers.overview import Overviews

    left = {(report.path, report.device): report for report in shown.reports}
    found = [(one, left.get((one.report.path, one.report.device))) for one in overviews]
    return Overviews(tuple(replace(one, report=report) for one, report in found if report is not None))


def _nothing_named() -> str:
    """What to type: with the configurations that lie here, where there are any."""
    from sizer.readers.loading import expand, find_config

    with suppress(InputError):
        found = expand(".")
        more = f" (and {len(found) - 1} more; `sizer check .` takes them all)" if len(found) > 1 else ""
        if found != ["."]:
            return f"expected a configuration, for instance: sizer check {found[0]}{more}"
        return f"expected a configuration, for instance: sizer check {find_config(Path('.'))}"
    return (
        "expected a configuration: sizer check config.json, or a directory, a glob, or - for standard input; "
        "`sizer check --help` has the options"
    )


def _unless_given(option: str, value: str, default: str | None) -> str:
    """The project's ``default`` for an option that was left at its own."""
    source = click.get_current_context().get_parameter_source(option)
    return default if default is not None and source is click.core.ParameterSource.DEFAULT else value


def _expanded(configs: tuple[str, ...]) -> Iterator[tuple[str, InputError | None]]:
    """Each configuration named, by globs and directories too; with its error an argument that stands for none."""
    from sizer.readers.loading import expand

    for config in configs:
        try:
            yield from ((one, None) for one in ([config] if config == "-" else expand(config)))
        except InputError as error:
            yield config, error
