"""`sizer bench`, `sizer calibrate`, `sizer store`, and where commands measure.

That is the device here, or with ``--ray`` the accelerators of a cluster.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import get_args

import click

import sizer
from shapes.device import load_device
from shapes.errors import InputError, decoded, read_bounded, refuse
from shapes.frozen import Ints, Named, Values, first_of, given
from shapes.measure import Progress, Settings
from shapes.measure.dataset import Dataset, export_dataset, import_dataset, import_rows, read_datasets
from shapes.measure.jobs import PartName
from shapes.measure.others import read_others
from shapes.measure.record import Measurement, read_export, unpacked
from shapes.measure.runner import ordered
from shapes.measure.store import Store
from shapes.measure.suite import Suite, values_of
from shapes.measure.workers import Session, Workers, here
from shapes.program import install
from sizer.answers.bench import (
    SUSTAINED,
    Bench,
    Bencher,
    MeasuredTable,
    Stored,
    jobs_of_op,
    self_test,
    sizes_of_op,
    suites_of,
)
from sizer.process import KEPT, working
from sizer.subject import read_subject

from .options import Asked, declared, say, say_line, subcommand, write_answer


def chosen_executor(ray: str | None, on: str | None, device: str | None = None) -> Session:
    """The accelerator here in a process of its own, the processor in this one, or a cluster's devices (``ray``).

    ``device``: torch's name of it; of a cluster's only "cpu" (its simulated accelerators), since Ray places.
    """
    if ray is None:
        return here(device, say_line)
    refuse(
        device not in (None, "cpu"),
        "expected no --device with --ray, which places jobs itself: use --on",
        "--device",
        device,
    )
    refuse(find_spec("ray") is None, f"expected Ray to be installed: {install('ray')}", "--ray", ray)
    from shapes.measure.ray_workers import ray_workers

    return Workers(ray_workers(ray, on, device), say_line)


@subcommand("bench", "bench ray output")
def bench(asked: Asked) -> None:
    """Measure operators, a configuration's operators (with their predictions) or a suite on the device at hand.

    `sizer bench all --time-limit 25min --out DIR` is half an hour on a new device: the self-test, then every suite.
    `sizer bench -m 1024 -n 1024 -k 1000:1030:1` times products. Results go to the store at once: the same command
    again goes on where this one was stopped.
    """
    everything = {}
    if asked.config == "all":  # of a working tree alone: neither it nor the suites are installed
        path = Path(sizer.__file__).parents[1] / "reports/suites/everything.py"
        expected = "expected a working tree of sizer's, where the suites are"
        refuse(not path.is_file(), expected, "bench all", str(path.parent))
        everything = run_path(str(path))
        asked.suite, asked.config = everything["every_suite"](), None
        asked.time_limit = asked.time_limit or 60.0 * 25
    refuse(asked.suite and asked.config, "expected one of CONFIG and --suite", "bench")
    asked.demand(on="ray", shard="suite", dry_run="suite", out="suite")
    settings = {**SUSTAINED} if asked.sustained else {}
    settings |= given({"precision": asked.workload.pop("precision", None), "time_s": asked.time_s})
    if asked.dry_run:
        usual = [(one, Settings(**one.settings | settings)) for one in _suites(asked)]
        asked.answer({one.name: (ordered(one.jobs, its.seed), its.time_s) for one, its in usual}, " --dry-run")
    else:
        _measure(asked, settings, everything)


def _measure(asked: Asked, settings: Values, everything: Values) -> None:
    """Exit code 1 where not all could be measured."""
    elsewhere = asked.config or asked.suite or asked.self_test
    sizes = {} if elsewhere else sizes_of_op(asked.op, partial(_sizes, asked))
    with Store.open(asked.store_path, measuring=True) as store:  # what is wrong with it is said before torch loads
        executor = chosen_executor(asked.ray, asked.on, asked.device)
        if asked.self_test and not everything:
            tested = self_test(executor)
            asked.answer(tested, " --self-test")
            sys.exit(not tested.passed)
        with working("measuring", KEPT) as told:
            tell, out = partial(_tell, told), asked.out and Path(asked.out)
            bencher = Bencher(executor, store, settings, tell, asked.time_limit, asked.fresh, out)
            if everything:
                tables, passed = everything["everything"](bencher, asked.suite, say_line, asked.shard)
            else:
                tables, passed = _tables(bencher, asked, sizes), True
    answer = Bench(tuple(tables))
    asked.answer(answer)
    if answer.failed:
        say_line(answer.failed)
    sys.exit(bool(answer.failed) or not passed)


def _tell(told: Callable[..., None], now: Progress) -> None:
    rate = now.best and now.best.tflops
    told(now.done, now.total, f"{rate:.4g} TFLOPS" if rate else "", now.left_s)


def _tables(bencher: Bencher, asked: Asked, sizes: dict[str, Sequence[int]]) -> list[MeasuredTable]:
    if asked.suite:
        return bencher.suites(_suites(asked))
    dtypes, said = bencher.dtypes(asked.dtypes), vars(asked) | asked.workload
    if asked.config:
        s = _sizes(asked, "sequence") or (None,)
        refuse(len(s) > 1, "expected one integer", "--sequence", asked.sequence)
        dtype, recipe = first_of(asked.dtypes), said.get("recipe")
        subject = read_subject(asked.config, **given({"dtype": dtype, "s": s[0], "b": asked.batch, "recipe": recipe}))
        return [bencher.parts(subject, said) if asked.op in get_args(PartName) else bencher.configuration(subject)]
    return [bencher.operators(jobs_of_op(asked.op, sizes, dtypes, said))]


def _sizes(asked: Asked, name: str) -> Ints | None:
    said = vars(asked)[name]
    try:
        return values_of(said) if said is not None else None
    except ValueError as error:
        raise InputError(str(error), name, said) from None


def _suites(asked: Asked) -> list[Suite]:
    return suites_of(map(Path, asked.suite), asked.scale, asked.shard)


@subcommand("calibrate", "calibrate")
def calibrate(asked: Asked) -> None:
    """Fit a device's cost constants from its products in the store.

    `sizer bench` measures some, `sizer store import` adds others'. The present constants (or a relative's) are pulled
    towards what was measured: the more products, the further. Reports the error on n values that the fit has not seen.
    """
    from shapes.calibrate import calibrate, stored_products, write_tables

    named = asked.device
    target = load_device(named) if named else (here := chosen_executor(None, None).environment).accelerator
    if not target:
        raise InputError(f"expected a device's name or .toml file: here is {here.device}, no known one", "--device")
    with Store.open(asked.store, create=False) as kept:
        records = stored_products(kept, target)
        expected = f"expected measured products of {target.name}: `sizer bench --suite FILE` measures some"
        refuse(not records, expected, where=str(kept.path))
    with working("fitting", KEPT):
        result = calibrate(target, records, progress=say_line)
    write_answer("calibrate", result)
    if asked.write:
        write_tables(Path(target.origin), result.tables)
        say(f"wrote [cost], [error] and [provenance] of {target.origin}")
    else:
        say("nothing written (--write writes)")


#: Refused rows of a dataset that are named.
LISTED = 10


@click.group(no_args_is_help=False, params=declared("store"))
@click.pass_context
def store(context: click.Context, path: str | None) -> None:
    """List, export, import or prune stored measurements."""
    context.obj = path


def _open(*, write: bool = False, create: bool = False) -> Store:
    return Store.open(click.get_current_context().obj, create=create, write=write)


def _chosen(kept: Store, asked: Asked) -> Iterator[Measurement]:
    return kept.measurements(newest=vars(asked).get("newest"), **asked.named("kind", "device"))


def _stored(asked: Asked) -> Stored:
    with _open() as kept:
        return Stored(tuple(_chosen(kept, asked)), kept.count())


@subcommand("store list", "filters newest output")
def list_(asked: Asked) -> None:
    """List measurements, the newest last."""
    asked.answer(_stored(asked))


@subcommand("store export", "filters dataset output")
def export(asked: Asked) -> None:
    """Write measurements as JSON lines (which alone can be imported), JSON or CSV.

    --dataset: packed rows by device and environment, which import takes too (reports/datasets.md).
    """
    if asked.dataset is None:
        asked.answer(_stored(asked))
        return
    with _open() as kept:
        written = export_dataset(_chosen(kept, asked), Path(asked.dataset))
    say("\n".join(f"{one.path}: {one.added} rows of {one.device}" for one in written) or "no measurements")


@subcommand("store import", "sources")
def import_(asked: Asked) -> None:
    """Add the measurements of exported JSON lines, of other stores and of folders of datasets; none is doubled.

    So are the products that torch's profiler (export_chrome_trace), nvbench, hipblaslt-bench, superbench's
    cublaslt_gemm, triton's perf_report and mamf-finder timed, under their name. A wrong file adds nothing. Rows are
    held against what the device can do first; exit code 1 where some are refused.
    """
    refused = False
    with ExitStack() as opened:
        found = [(name, _measured(name, opened, asked.named("device") | asked.workload)) for name in asked.sources]
        kept = opened.enter_context(_open(create=True, write=True))
        for name, read in found:
            exchanged = (
                [import_rows(name, read, kept)]
                if isinstance(read, list)
                else [import_dataset(one, kept) for one in read]
            )
            for one in exchanged:
                say(f"{one.path}: {one.added} added, {one.there} there already, {len(one.refused)} refused")
                for line in (*one.notes, *(f"{why} ({key})" for key, why in one.refused[:LISTED])):
                    say(f"  {line}")
                refused |= bool(one.refused)
    sys.exit(refused)


def _measured(name: str, opened: ExitStack, asked: Named) -> list[Measurement] | tuple[Dataset, ...]:
    """The measurements of an export or of another store; datasets of a folder or of another program's file."""
    if Path(name).is_dir():
        return read_datasets(Path(name))
    if read_bounded(name, 5) == b"SQLite":
        return list(opened.enter_context(Store.open(name, create=False, write=False)).measurements())
    text = decoded(unpacked(name), name)
    # Rows that were packed as they came may have no end.
    rows = text.rpartition("\n")[0] if name.endswith(".gz") else text
    return read_others(text, name, asked) or list(read_export(rows.split("\n"), name))


@subcommand("store prune", "")
def prune(_asked: Asked) -> None:
    """Delete outcomes that are no times, and damaged rows."""
    with _open(write=True) as kept:
        say(f"{kept.prune()} deleted, {kept.count()} left")


store.commands.update({"list": list_, "export": export, "import": import_, "prune": prune})
