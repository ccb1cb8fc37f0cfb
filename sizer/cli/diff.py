"""`sizer diff`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from shapes.errors import InputError
from sizer.cli.options import (
    Asked,
    exceeds,
    option_error,
    say_line,
    subcommand,
)
from sizer.cli.versions import Pair, of_git
from sizer.readers import NoModel, Source

if TYPE_CHECKING:
    from sizer.answers.diff import Diff
    from sizer.checking.checks import Settled


@subcommand("diff", "diff stack workload rules output")
@click.argument("paths", nargs=-1, metavar="[OLD NEW | --git REV [PATH...]]")
def command(asked: Asked) -> None:
    """Price a change of configurations: step, MFU, memory, findings added and fixed.

    Exit code: 0, 1 for a broken budget (options, or [tool.sizer.budgets]) or findings added, 2 bad input.
    """
    answer, refused = _all_compared(asked)
    if answer.files or not refused:
        asked.answer(answer)
    if refused:
        sys.exit(2)
    if answer.violations or exceeds(answer.worst_added(), asked.fail_on):
        sys.exit(1)


def _all_compared(asked: Asked) -> tuple[Diff, bool]:
    """(the comparison of every configuration named, whether one could not be read, which is said)."""
    from sizer.answers.diff import Diff

    parts: list[Diff] = []
    notes: list[str] = []
    refused = False
    for pair in _pairs(asked.paths, asked.revision, asked.models_only):
        try:
            found = _compared(asked, pair, notes)
            parts += [found] if found is not None else []
        except InputError as error:
            say_line(str(option_error(error)))
            refused = True
    if not parts and asked.revision is not None and not refused:
        notes.append(f"no model configuration differs from {asked.revision}")
    files, violations = (
        tuple(one for part in parts for one in getattr(part, name)) for name in ("files", "violations")
    )
    return Diff(files, violations, tuple(notes)), refused


def _compared(asked: Asked, pair: Pair, notes: list[str]) -> Diff | None:
    """One configuration's comparison; None, with a note, for what nobody named and that is no configuration."""
    from shapes.device import load_device
    from sizer.answers.diff import budgets_of, compare, diff_of
    from sizer.checking.checks import Request
    from sizer.checking.project import nearest_table

    devices = asked.devices
    request = Request(devices[0] if devices else None, asked.stack, workload=asked.workload, **asked.suppression())
    sides = _read(pair, partial(request.settle, pair.path), notes)
    if sides is None:
        return None
    project = nearest_table(pair.path)
    budgets = budgets_of(project.table("budgets"), asked.limits, str(project.file))
    old, new = (replace(side.subject, where=pair.path) if side is not None else None for side in sides)
    one = next(side for side in sides if side)  # either's device and rules: the project's are one
    targets = [one.device, *(load_device(name) for name in devices[1:])]
    return diff_of([compare(old, new, targets, one.suppression)], budgets)


def _pairs(paths: tuple[str, ...], revision: str | None, models_only: bool) -> Iterator[Pair]:
    if revision is None and len(paths) != 2:
        raise InputError("expected OLD NEW (two files), or --git REV", key="diff", value=" ".join(paths))
    found = of_git(revision, paths) if revision is not None else [Pair(paths[1], Source(paths[0]), Source(paths[1]))]
    return (replace(pair, named=pair.named and not models_only) for pair in found)


def _read(
    pair: Pair, read: Callable[[object], Settled], notes: list[str]
) -> tuple[Settled | None, Settled | None] | None:
    """Both versions as they resolve; None, with a note, for a file that nobody named and that is no configuration."""
    found: list[Settled | None] = []
    for version in (pair.old, pair.new):
        try:
            found.append(None if version is None else read(version))
        except NoModel as error:
            if pair.named:
                raise
            notes.append(f"{error.where}: no model configuration, passed over")
            return None
    return found[0], found[1]
