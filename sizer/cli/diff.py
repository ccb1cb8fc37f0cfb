"""`sizer diff`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from shapes.device import DEFAULT_DEVICE
from shapes.errors import InputError
from sizer.cli.numbers import QUANTITY
from sizer.cli.options import (
    codes,
    given,
    option_error,
    output_options,
    stack_option,
    workload_options,
    write_answer,
)
from sizer.cli.versions import Pair, Version, of_git, of_paths

if TYPE_CHECKING:
    from sizer.checking.checks import Settled


@click.command()
@click.argument("paths", nargs=-1, metavar="[OLD NEW | --git REV [PATH...]]")
@click.option("--git", "revision", metavar="REV", help="Old is what this git revision holds, new what is here.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help=f"Target (`sizer devices`); several allowed. [default: {DEFAULT_DEVICE}]",
)
@stack_option
@workload_options
@click.option("--select", multiple=True, metavar="CODES", help="Only these rules (codes, prefixes or slugs).")
@click.option("--extend-select", multiple=True, metavar="CODES", help="These rules too, beside those selected.")
@click.option("--ignore", "--extend-ignore", multiple=True, metavar="CODES", help="Not these rules.")
@click.option(
    "--tokens",
    type=QUANTITY,
    metavar="N",
    help="Give kWh (and cost) of this many tokens. [default: 1e12; serving: 1e6]",
)
@click.option("--price", type=float, metavar="AMOUNT", help="The price of a device hour: give the tokens' cost.")
@click.option("--max-step-regression", metavar="PERCENT", help="Exit 1 where a token takes longer by more: 1%.")
@click.option("--max-memory", metavar="BYTES", help="Exit 1 where a device needs more: 72GiB, or 90% of what it has.")
@click.option(
    "--fail-on",
    type=click.Choice(["warning", "error", "info", "never"]),
    default="warning",
    show_default=True,
    help="Exit 1 on findings added at or above this severity.",
)
@click.option("--models-only", is_flag=True, help="Pass over files that are no model configuration, with a note.")
@output_options("diff")
def command(
    paths: tuple[str, ...],
    revision: str | None,
    devices: tuple[str, ...],
    stack: str | None,
    select: tuple[str, ...],
    extend_select: tuple[str, ...],
    ignore: tuple[str, ...],
    tokens: float | None,
    price: float | None,
    max_step_regression: str | None,
    max_memory: str | None,
    fail_on: str,
    models_only: bool,
    format_: str,
    output: str | None,
    **workload: Any,
) -> None:
    """Price a change of configurations: step, MFU, memory, energy and cost, findings added and fixed.

    Exit code: 0, 1 for a broken budget (options, or [tool.sizer.budgets]) or findings added, 2 bad input.
    """
    from shapes.device import load_device
    from sizer.answers.budgets import budgets_of
    from sizer.answers.diff import Diff, compare, diff_of, tokens_of
    from sizer.checking.checks import Request
    from sizer.checking.findings import SEVERITIES

    amount = tokens_of(tokens, given(workload))
    parts: list[Diff] = []
    notes: list[str] = []
    refused = False
    for pair in _pairs(paths, revision, models_only):
        try:
            device = devices[0] if devices else None
            request = Request(device, stack, codes(select), codes(ignore), codes(extend_select), given(workload))
            read = partial(request.settle, _of(pair))
            sides = _read(pair, read, notes)
            if sides is None:
                continue
            table, where = _budget_table(_of(pair))
            budgets = budgets_of(table, max_step_regression=max_step_regression, max_memory=max_memory, where=where)
            old, new = (replace(side.subject, where=pair.path) if side is not None else None for side in sides)
            one = next(side for side in sides if side)  # either's device and rules: the project's are one
            targets = [one.device, *(load_device(name) for name in devices[1:])]
            found = compare(old, new, targets, (one.suppression, one.suppression), amount, price)
            parts.append(diff_of([found], budgets, amount, price))
        except InputError as error:
            click.echo(f"sizer: {option_error(error)}", err=True)
            refused = True
    if not parts and revision is not None and not refused:
        notes.append(f"no model configuration differs from {revision}")
    files, violations = ([one for part in parts for one in getattr(part, name)] for name in ("files", "violations"))
    answer = Diff(tuple(files), amount, price, tuple(violations), tuple(notes))
    if files or not refused:
        write_answer("diff", answer, format_, output)
    if refused:
        sys.exit(2)
    worst = answer.worst_added()
    if violations or (
        fail_on != "never" and worst is not None and SEVERITIES.index(worst) <= SEVERITIES.index(fail_on)
    ):
        sys.exit(1)


def _pairs(paths: tuple[str, ...], revision: str | None, models_only: bool) -> Iterator[Pair]:
    if revision is None and len(paths) != 2:
        raise InputError("expected OLD NEW (two files or directories), or --git REV", key="diff", value=" ".join(paths))
    found = of_git(revision, paths) if revision is not None else of_paths(*paths)
    return (replace(pair, named=pair.named and not models_only) for pair in found)


def _of(pair: Pair) -> str:
    """The path that decides which pyproject.toml counts: that of the new version."""
    return (pair.new or pair.old or Version(pair.path)).path


def _read(
    pair: Pair, read: Callable[[object], Settled], notes: list[str]
) -> tuple[Settled | None, Settled | None] | None:
    """Both versions as they resolve; None, with a note, for a file that nobody named and that is no configuration."""
    from sizer.readers import NoModel, Source

    found: list[Settled | None] = []
    for version in (pair.old, pair.new):
        if version is None:
            found.append(None)
            continue
        source = version.path if version.text is None else Source(version.path, text=version.text)
        try:
            found.append(read(source))
        except NoModel as error:
            if pair.named:
                raise
            notes.append(f"{error.where}: no model configuration, passed over")
            return None
    return found[0], found[1]


def _budget_table(config: str) -> tuple[dict[str, Any], str]:
    from sizer.checking.project import nearest_table

    found = nearest_table(config)
    table = found[1].get("budgets", {}) if found is not None else {}
    where = str(found[0]) if found is not None else ""
    if not isinstance(table, dict):
        raise InputError("expected a table", where=where, key="tool.sizer.budgets", value=table)
    return table, where
