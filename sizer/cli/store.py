"""`sizer store`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sizer.cli.options import Command, declared, output_options, say, write_answer

if TYPE_CHECKING:
    from shapes.measure.record import Measurement
    from shapes.measure.store import Store
    from sizer.answers.bench import Stored

#: Refused rows of a dataset that are named.
LISTED = 10


@click.group(no_args_is_help=False)
@declared("store")
@click.pass_context
def command(context: click.Context, path: str | None) -> None:
    """List, export, import or prune stored measurements."""
    context.obj = path


command.command_class = Command

_filters = declared("filters")


def _open(path: str | None, *, write: bool = False, create: bool = False) -> Store:
    from shapes.measure.store import Store

    return Store.open(path, create=create, write=write)


def _stored(path: str | None, **filters: Any) -> Stored:
    from sizer.answers.bench import Stored

    with _open(path) as store:
        return Stored(tuple(store.measurements(**filters)), store.count())


@command.command("list")
@_filters
@declared("store list")
@output_options("store list")
@click.pass_obj
def list_(path: str | None, /, newest: int, format_: str, output: str | None, **filters: Any) -> None:
    """List measurements, the newest last."""
    write_answer("store list", _stored(path, newest=newest, **filters), format_, output)


@command.command()
@_filters
@declared("store export")
@output_options("store export")
@click.pass_obj
def export(path: str | None, /, dataset: str | None, format_: str, output: str | None, **filters: Any) -> None:
    """Write measurements as JSON lines (which alone can be imported), JSON or CSV.

    --dataset: packed rows by device and environment, each with a sidecar (reports/datasets.md), which import takes too.
    """
    if dataset is None:
        write_answer("store export", _stored(path, **filters), format_, output)
        return
    from shapes.measure.dataset import export_dataset

    with _open(path) as store:
        written = export_dataset(store.measurements(**filters), Path(dataset))
    say("\n".join(f"{one.path}: {one.added} rows of {one.device}" for one in written) or "no measurements")


@command.command("import")
@click.argument("sources", nargs=-1, required=True, type=click.Path())
@click.pass_obj
def import_(path: str | None, sources: tuple[str, ...]) -> None:
    """Add the measurements of exported JSON lines, of other stores and of folders of datasets; none is doubled.

    What other programs timed (profiler traces, nvbench, hipblaslt-bench, triton, mamf-finder) becomes such lines by
    `python reports/bench/others.py FILE`. A wrong file adds nothing. Rows of a dataset are held against what the
    device can do first; exit code 1 where some are refused.
    """
    folders = [name for name in sources if Path(name).is_dir()]
    with ExitStack() as opened:
        found = [(name, list(_measured(name, opened))) for name in sources if name not in folders]
        store = opened.enter_context(_open(path, create=True, write=True))
        for name, measurements in found:
            say(f"{name}: {store.add(measurements)} added")
        refused = [name for name in folders if _import_datasets(name, store)]
    if refused:
        sys.exit(1)


def _measured(name: str, opened: ExitStack) -> Iterable[Measurement]:
    """The measurements of an export or of another store."""
    from shapes.measure.record import read_export

    if _is_store(name):
        return opened.enter_context(_open(name)).measurements()
    return read_export(_lines(name), name)


def _lines(name: str) -> list[str]:
    from shapes.files import read_bounded, read_text
    from shapes.measure.record import MAX_IMPORT, packed_lines

    if name.endswith(".gz"):
        return packed_lines(read_bounded(name, MAX_IMPORT), name)
    return read_text(name, MAX_IMPORT).split("\n")


def _is_store(name: str) -> bool:
    with suppress(OSError), open(name, "rb") as file:
        return file.read(6) == b"SQLite"
    return False


def _import_datasets(folder: str, store: Store) -> bool:
    """Whether rows were refused, which is said."""
    from shapes.measure.dataset import import_dataset

    datasets = import_dataset(Path(folder), store)
    for one in datasets:
        say(f"{one.path}: {one.added} added, {one.there} there already, {len(one.refused)} refused")
        for note in one.notes:
            say(f"  {note}")
        for key, why in one.refused[:LISTED]:
            say(f"  {why} ({key})")
    return any(one.refused for one in datasets)


@command.command()
@click.pass_obj
def prune(path: str | None) -> None:
    """Delete outcomes that are no times, and damaged rows."""
    with _open(path, write=True) as store:
        say(f"{store.prune()} deleted, {store.count()} left")
