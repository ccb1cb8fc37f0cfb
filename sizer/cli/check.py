"""`sizer check`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from shapes.errors import InputError
from sizer.cli.options import (
    codes,
    config_argument,
    config_options,
    given,
    option_error,
    output_options,
    stack_option,
    trace_options,
    workload_options,
    write_answer,
)


@click.command()
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG...")
@click.option("--device", metavar="NAME", help="Target (`sizer devices`). [default: h100-sxm; measuring: what is here]")
@stack_option
@workload_options
@config_options
@trace_options
@click.option("--measure", is_flag=True, help="Price by timing the operators here (needs sizer[torch]).")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), help="Measuring: seconds a configuration.")
@click.option("--store", metavar="FILE", help="Measuring: the database. [default: SIZER_STORE, else the user's cache]")
@click.option("--select", multiple=True, metavar="CODES", help="Only these rules (codes or prefixes, commas allowed).")
@click.option("--ignore", multiple=True, metavar="CODES", help="Not these rules.")
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
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str,
    format_: str,
    output: str | None,
    **workload: Any,
) -> None:
    """Check configurations (files, directories, globs, or - for standard input) and price each finding in step time.

    Exit code: 0 clean, 1 findings at or above --fail-on, 2 bad input (the other files are checked all the same).
    """
    from shapes.device import DEFAULT_DEVICE, load_device
    from sizer.checking import check_subject
    from sizer.checking.defaults import load_defaults
    from sizer.checking.findings import SEVERITIES, Checked
    from sizer.checking.suppress import load_suppression
    from sizer.report.formats import formats
    from sizer.subject import read_subject

    reports, executor, refused = [], None, False
    project = load_defaults(configs[0])
    fail_on = _unless_given("fail_on", fail_on, project.fail_on)
    format_ = _unless_given("format_", format_, project.format)
    if format_ not in formats("check"):
        raise InputError(f"expected one of {', '.join(formats('check'))}", key="format", value=format_)
    for config, unread in _expanded(configs):
        try:
            if unread is not None:
                raise unread
            project = load_defaults(config)
            target = load_device(device or project.device or DEFAULT_DEVICE)
            suppression = load_suppression(config, select=codes(select), ignore=codes(ignore))
            source = config_argument(config)
            subject = read_subject(
                source,
                nearest=True,
                trace=trace,
                plan=plan,
                stack=stack or project.stack,
                config_format=config_format,
                **{**project.workload, **given(workload)},
            )
            if measure:
                from shapes.measure import InProcess
                from sizer.checking.measured import check_measured

                executor = executor or InProcess()
                reports.append(
                    check_measured(subject, executor, device, suppression, time_limit_s=time_limit, store=store)
                )
            else:
                reports.append(check_subject(subject, target, suppression))
        except InputError as error:
            # One file that cannot be read hides nothing of the others.
            click.echo(f"sizer: {option_error(error)}", err=True)
            refused = True
    checked = Checked(tuple(reports))
    if reports:
        write_answer("check", checked, format_, output)
    if refused:
        sys.exit(2)
    worst = checked.worst()
    if fail_on != "never" and worst is not None and SEVERITIES.index(worst) <= SEVERITIES.index(fail_on):
        sys.exit(1)


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
