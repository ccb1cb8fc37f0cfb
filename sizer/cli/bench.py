"""`sizer bench`."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shapes.dtypes import DTYPES
from shapes.errors import InputError
from shapes.files import make_folder, write_whole
from sizer.cli.executors import executors, ray_options, refuse_network, say_line
from sizer.cli.options import given, output_options, write_answer
from sizer.ending import resumable

if TYPE_CHECKING:
    from shapes.measure import Executor, Progress, Settings
    from shapes.measure.store import Store
    from shapes.measure.suite import Suite
    from sizer.answers.bench import Group, Peak, Table

_SIZES = ("m", "n", "k", "tokens", "hidden", "width", "vocab", "heads", "head_dim", "sequence")


@click.command()
@click.argument("what", required=False, type=click.Choice(["mamf"]))
@click.option("-m", "--m", help="Rows of C. Sizes are integers, lists and ranges: 128,1000:1030:2 (last included).")
@click.option("-n", "--n", help="Columns of C.")
@click.option("-k", "--k", help="Reduction.")
@click.option(
    "--op",
    default="gemm",
    show_default=True,
    metavar="NAME",
    help="gemm, bmm, swiglu, mlp, attention, layer, head, norm, layer_norm, softmax, activation, residual, "
    "cross_entropy.",
)
@click.option("--tokens", help="Rows b x s of an MLP, head or norm.")
@click.option("--hidden", help="Hidden size h.")
@click.option("--width", help="MLP width d_ff.")
@click.option("--vocab", help="Vocabulary v.")
@click.option("--heads", help="Attention heads a.")
@click.option("--head-dim", help="Head dimension d.")
@click.option("--kv-heads", type=click.IntRange(1), help="Key/value heads. [default: as heads]")
@click.option("-s", "--sequence", help="Tokens a sequence.")
@click.option("-b", "--batch", type=click.IntRange(1), default=1, show_default=True, help="Batch of bmm or sequences.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), help="Element type; repeatable.")
@click.option(
    "--layout", "layouts", multiple=True, type=click.Choice(["tn", "nn", "nt", "tt"]), help="[default: by phase]"
)
@click.option(
    "--phase",
    default="forward",
    show_default=True,
    type=click.Choice(["forward", "dgrad", "wgrad", "backward", "all"]),
    help="Which products; whole parts run forward, or forward and backward.",
)
@click.option("--kernel", "kernels", multiple=True, help="Attention: flash, cudnn, efficient, math, flash_attn.")
@click.option("--compile", "compiled", is_flag=True, help="Whole parts through torch.compile.")
@click.option(
    "--config", type=click.Path(), help="Measure this configuration's operators and compare with their predictions."
)
@click.option("--suite", "suites", multiple=True, type=click.Path(), help="Run a suite file; may be repeated.")
@click.option("--shard", metavar="I/N", help="With --suite: the I-th of N parts, equal shares of every priority.")
@click.option("--dry-run", is_flag=True, help="With --suite: list the jobs in their order and measure nothing.")
@click.option("--out", type=click.Path(file_okay=False), help="Write each suite's JSONL and summary into this folder.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Multiply a suite's sizes (a dry run).")
@click.option("--device", help="torch's device: cuda, cuda:1, cpu. [default: the accelerator here, else cpu]")
@click.option("--precision", type=click.FloatRange(0, 1, min_open=True), help="Interval's half-width. [default: 0.005]")
@click.option("--max-time", "time_s", type=click.FloatRange(0, min_open=True), help="Seconds a shape. [default: 0.5]")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), help="Seconds for all; most wanted first.")
@click.option("--interleave", type=click.IntRange(1, 64), help="Shapes sampled alternately in one round. [default: 8]")
@click.option(
    "--store",
    "store_path",
    type=click.Path(dir_okay=False),
    help="Measurement store. [default: SIZER_STORE, else the user's cache]",
)
@click.option("--fresh", is_flag=True, help="Measure again what the store has.")
@ray_options
@output_options("bench")
def command(
    what: str | None,
    suites: tuple[str, ...],
    config: str | None,
    device: str | None,
    store_path: str | None,
    ray: str | None,
    on: str | None,
    format_: str,
    output: str | None,
    **options: Any,
) -> None:
    """Measure operators, a configuration's operators or a suite on the device at hand.

    `sizer bench -m 1024 -n 1024 -k 1000:1030:1` times products; `sizer bench mamf` searches the maximum achievable
    matmul rate. Results go to the store at once: the same command again goes on where this one was stopped.
    """
    if sum((what is not None, bool(suites), config is not None)) > 1:
        raise InputError("expected one of mamf, --config and --suite", key="bench")
    for option in ("shard", "dry_run"):
        if options[option] and not suites:
            raise InputError("expected --suite FILE with it", key=f"--{option.replace('_', '-')}")
    from shapes.measure import Settings
    from shapes.measure.runner import Shard, ordered
    from shapes.measure.store import Store
    from sizer.answers.bench import Bench, Planned

    chosen = {key: options[key] for key in ("precision", "time_s", "interleave")}
    settings = Settings(**given(chosen))
    options["shard"] = Shard.parse(options["shard"]) if options["shard"] else None
    if options["dry_run"]:
        plans = [_planned(Path(suite), options) for suite in suites]
        answer = Planned({suite.name: ordered(list(suite.jobs), settings.seed) for suite in plans})
        write_answer("bench --dry-run", answer, None, output)
        return
    with Store.open(store_path, set_aside=True) as store:  # what is wrong with it is said before anything starts
        if ray is not None or options["shard"] is not None:
            refuse_network(store.path)
    found = executors(ray, on, device, settings)  # loads torch

    def run(executor: Executor, may_stop: Callable[[], None], bar: _Bar) -> list[Group]:
        with Store.open(store_path, set_aside=True) as store:
            one = _Run(executor, store, settings, options, bar.of(executor, may_stop), alone=len(found) == 1)
            return one.groups(what, config, [Path(suite) for suite in suites], given(chosen))

    with resumable() as may_stop, _bar() as bar, ThreadPoolExecutor(len(found)) as threads:
        # A thread a kind: each waits for its devices most of the time.
        futures = [threads.submit(run, one, may_stop, bar) for one in found[1:]]
        groups = [run(found[0], may_stop, bar), *(future.result() for future in futures)]
    write_answer("bench", Bench(tuple(itertools.chain.from_iterable(groups))), format_, output)


def _planned(path: Path, options: Mapping[str, Any]) -> Suite:
    """The suite in ``path``, or the shard of it that is asked for, named so."""
    from shapes.measure.suite import load_suite

    suite, shard = load_suite(path, options["scale"]), options["shard"]
    if shard is None:
        return suite
    # A search for the maximum cannot be split.
    mamf = suite.mamf if shard.number == 1 else ()
    return replace(suite, name=f"{suite.name}.{shard.name}", jobs=tuple(shard.jobs(suite.jobs)), mamf=mamf)


class _Run:
    """One call of `sizer bench` on one kind of device: where it measures, what it keeps and how it says so.

    ``alone``: the call measures on no other kind.
    """

    def __init__(
        self,
        session: Executor,
        store: Store,
        settings: Settings,
        options: dict[str, Any],
        progress: Callable[[Progress], None],
        *,
        alone: bool,
    ) -> None:
        self.session, self.store, self.settings, self.options = session, store, settings, options
        self._progress, self._alone = progress, alone

    def groups(self, what: str | None, config: str | None, suites: list[Path], asked: dict[str, Any]) -> list[Group]:
        from sizer.answers.bench import Group

        if suites:
            return self.suites(suites, asked)
        if what == "mamf":
            return [Group((peak,)) for peak in self.maximum()]
        return [Group((self.configuration(config) if config is not None else self.operators(),))]

    def _measure(self, jobs: Any, settings: Settings | None = None, time_limit_s: float | None = None) -> Any:
        from shapes.measure import measure

        limit = time_limit_s if time_limit_s is not None else self.options["time_limit"]
        return measure(
            jobs,
            executor=self.session,
            store=self.store,
            settings=settings or self.settings,
            time_limit_s=limit,
            fresh=self.options["fresh"],
            progress=self._progress,
        )

    def _dtypes(self) -> tuple[str, ...]:
        """As asked, else what the device trains in."""
        return self.options["dtypes"] or (("fp32",) if self.session.environment.cpu else ("bf16",))

    def operators(self) -> Table:
        from shapes.measure.suite import values_of
        from sizer.answers.bench import OPS, Table, jobs_of_op, option_of, rows_of
        from sizer.measuring import device_of

        options = self.options
        if options["op"] not in OPS:
            raise InputError(f"expected one of {', '.join(OPS)}", key="--op", value=options["op"])
        sizes = {}
        for name in _SIZES:
            if options[name] is not None:
                try:
                    sizes[name] = values_of(options[name])
                except ValueError as error:
                    expected = str(error) if "invalid literal" not in str(error) else "expected integers and ranges"
                    raise InputError(expected, key=option_of(name), value=options[name]) from None
        jobs = jobs_of_op(
            options["op"],
            sizes,
            dtypes=self._dtypes(),
            batch=options["batch"],
            phase=options["phase"],
            layouts=options["layouts"],
            kernels=options["kernels"],
            kv_heads=options["kv_heads"],
            compiled=options["compiled"],
        )
        sweep = self._measure(jobs)
        rows = rows_of(jobs, sweep, device_of(self.session.environment))
        return Table(rows, sweep, self.session.environment, self._by_device())

    def configuration(self, config: str) -> Table:
        from sizer.answers.bench import Table, rows_of_subject
        from sizer.measuring import device_of, jobs_of_subject
        from sizer.subject import read_subject

        asked = {"dtype": self.options["dtypes"][0] if self.options["dtypes"] else None}
        if self.options["sequence"] is not None:
            asked["s"] = _one(self.options["sequence"], "--sequence")
        subject = read_subject(config, **given({**asked, "b": self.options["batch"]}))
        jobs, notes = jobs_of_subject(subject)
        sweep = self._measure(jobs.values())
        rows = rows_of_subject(subject, jobs, sweep, device_of(self.session.environment))
        return Table(rows, sweep, self.session.environment, (*notes, *self._by_device()))

    def _by_device(self) -> tuple[str, ...]:
        """How many jobs each device of a fleet has done."""
        status = getattr(self.session, "status", "")
        return (f"by device: {status}",) if status else ()

    def maximum(self) -> list[Peak]:
        return [self._maximum(dtype, self.options["time_limit"] or 120.0) for dtype in self._dtypes()]

    def _maximum(self, dtype: str, time_limit_s: float) -> Peak:
        from shapes.measure.mamf import find_maximum
        from sizer.answers.bench import Peak
        from sizer.measuring import device_of

        device = device_of(self.session.environment)
        found = find_maximum(
            dtype,
            executor=self.session,
            device=device,
            store=self.store,
            settings=self.settings,
            time_limit_s=time_limit_s,
            scale=self.options["scale"],
            progress=self._progress,
        )
        published = device.mamf_flops.get(dtype) if device is not None else None
        return Peak(found, self.session.environment, published)

    def suites(self, paths: list[Path], asked: dict[str, Any]) -> list[Group]:
        """Each suite in turn, sharing the time limit: what one leaves is the next one's."""
        loaded = [_planned(path, self.options) for path in paths]
        start, limit, groups = time.monotonic(), self.options["time_limit"], []
        for place, suite in enumerate(loaded):
            share = (limit - (time.monotonic() - start)) / (len(loaded) - place) if limit is not None else None
            groups.append(self._suite(suite, asked, share))
        return groups

    def _suite(self, suite: Any, asked: dict[str, Any], limit_s: float | None) -> Group:

        from sizer.answers.bench import Group, Table, rows_of
        from sizer.measuring import device_of

        start = time.monotonic()
        parts: list[Table | Peak] = []
        extra: list[Any] = []
        if suite.mamf:
            share = (limit_s if limit_s is not None else 120.0 * len(suite.mamf)) / (len(suite.mamf) + bool(suite.jobs))
            for dtype in suite.mamf:
                peak = self._maximum(dtype, share)
                parts.append(peak)
                extra += peak.measurements
        left = max(0.0, limit_s - (time.monotonic() - start)) if limit_s is not None else None
        try:
            sweep = self._measure(suite.jobs, replace(self.settings, **{**suite.settings, **asked}), left)
        except KeyboardInterrupt:
            stored = {job.key: self.store.find(job.key, self.session.environment) for job in suite.jobs}
            self._write(suite, [*extra, *_labelled(suite.jobs, stored)], None)
            raise
        if suite.jobs:
            rows = rows_of(suite.jobs, sweep, device_of(self.session.environment))
            parts.append(Table(rows, sweep, self.session.environment, self._by_device()))
        self._write(suite, [*extra, *_labelled(suite.jobs, sweep.results)], sweep)
        return Group(tuple(parts), f"{suite.name}: {suite.title}")

    def _write(self, suite: Any, results: list[Any], sweep: Any) -> None:
        """``<suite>.jsonl`` and ``<suite>.summary.json`` in --out."""
        if self.options["out"] is None:
            return
        import json
        from dataclasses import asdict

        from shapes.measure.dataset import slug
        from sizer.answers.bench import write_rows

        folder = Path(self.options["out"])
        if not self._alone:
            folder /= slug(self.session.environment)
        make_folder(str(folder))
        write_rows(results, folder / f"{suite.name}.jsonl")
        summary = {
            "suite": suite.name,
            "title": suite.title,
            "scale": self.options["scale"],
            "jobs": len({job.key for job in suite.jobs}),
            "environment": self.session.environment.to_dict(),
            "results": len(results),
            "left": None if sweep is None else len(sweep.left),
            "drift": None if sweep is None else asdict(sweep.drift),
            "elapsed_s": None if sweep is None else sweep.elapsed_s,
        }
        write_whole(folder / f"{suite.name}.summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def _labelled(jobs: Any, results: Any) -> list[Any]:
    """Each job's result under its own label: one that came from the store was measured under another's."""
    from dataclasses import replace

    known = ((job, results.get(job.key)) for job in jobs)
    return [replace(one, label=job.label) for job, one in known if one is not None]


def _one(value: str, option: str) -> int:
    if not value.isdigit():
        raise InputError("expected one integer", key=option, value=value)
    return int(value)


class _Bar:
    """A line on a terminal's standard error, rewritten at most ten times a second, of every kind of device together."""

    def __init__(self, shown: bool) -> None:
        self._shown, self._last_s = shown, 0.0
        self._now: dict[Executor, Progress] = {}
        self._lock, self._told = threading.Lock(), False

    def of(self, executor: Executor, may_stop: Callable[[], None]) -> Callable[[Progress], None]:
        """What to tell how far ``executor`` is; each call is a place to stop at."""

        def tell(now: Progress) -> None:
            may_stop()
            with self._lock:
                self._now[executor] = now
                if now.elsewhere and not self._told:
                    self._told = True
                    say_line(f"{now.elsewhere} jobs are being measured by another process: waiting for what it stores")
                if self._shown:
                    self._show(now.done == now.total)

        return tell

    def _show(self, over: bool) -> None:
        if time.monotonic() - self._last_s < 0.1 and not over:
            return
        self._last_s = time.monotonic()
        done, total = (sum(getattr(one, name) for one in self._now.values()) for name in ("done", "total"))
        lefts = [one.left_s for one in self._now.values() if one.left_s is not None]
        left = f"{max(lefts):.0f} s left" if lefts else ""
        bar = ("#" * round(30 * (done / total if total else 1.0))).ljust(30, ".")
        devices = "; ".join(filter(None, (getattr(executor, "status", "") for executor in self._now)))
        click.echo(f"\r[{bar}] {done}/{total}  {left}  {devices}\x1b[K", nl=False, err=True)


@contextmanager
def _bar() -> Iterator[_Bar]:
    shown = sys.stderr.isatty()
    try:
        yield _Bar(shown)
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
