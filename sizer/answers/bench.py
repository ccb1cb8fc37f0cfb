"""The jobs of `sizer bench`: those of options, a configuration or a suite, their rows, and whether measuring works."""

import gzip
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

from shapes.cost import predict
from shapes.device import Device
from shapes.errors import InputError, make_folder, one_of, refuse, write_whole
from shapes.frozen import Named, Names, Values, frozen, in_words, replace
from shapes.measure.dataset import objection
from shapes.measure.environment import Environment
from shapes.measure.executor import Executor, Settings
from shapes.measure.jobs import Job, MemoryBound, Part
from shapes.measure.record import Measurement
from shapes.measure.runner import Progress, Sweep, measure, shard_of
from shapes.measure.store import Store
from shapes.measure.suite import Suite, load_suite, sweep_jobs
from shapes.measure.workers import Session
from shapes.operators.types import Attention, Gemm, Operator
from shapes.toml_table import table_of
from sizer.checking.measured import jobs_of_subject
from sizer.printing import Printable
from sizer.subject import Subject

#: Values of ``--op``; settings of ``--sustained``; values of ``--phase``: directions of parts, and products' layouts.
OPS, SUSTAINED, DIRECTIONS, LAYOUTS = table_of(__file__, "bench.toml").values()

#: A file of rows is followed by another beyond this many bytes.
ROLL_BYTES = 8 * 2**20


def suites_of(paths: Iterable[Path], scale: float, shard: str | None) -> list[Suite]:
    """The suites in ``paths``, or the shards of them that are asked for (3/8), named so."""
    loaded = [load_suite(path, scale) for path in paths]
    if shard is None:
        return loaded
    behind = f".{shard.replace('/', '-of-')}"
    return [replace(one, name=one.name + behind, jobs=tuple(shard_of(one.jobs, shard))) for one in loaded]


def sizes_of_op(op: str, read: Callable[[str], Sequence[int] | None]) -> dict[str, Sequence[int]]:
    """Each size that ``op`` needs as ``read``; InputError names all that are missing."""
    one_of(op, OPS, "--op")
    sizes = {size: read(size) or () for size in OPS[op]["sizes"]}
    missing = [size for size, said in sizes.items() if not said]
    refuse(missing, f"expected a size, a list or first:last:step for --op {op}", ", ".join(missing))
    return sizes


def jobs_of_op(op: str, sizes: Mapping[str, Sequence[int]], dtypes: Sequence[str], asked: Named) -> list[Job]:
    """Jobs for every combination of ``sizes`` of ``op``; ``asked``: `bench`'s other options by name."""
    phase = asked["phase"]
    sweep = {
        **OPS[op],
        **{key: sizes[size] for size, key in OPS[op]["sizes"].items()},
        **{key: asked[key] for key in ("batch", "compiled", "kv_heads")},
        "label": "bench",
        "b": asked["batch"],
        "dtypes": list(dtypes),
        "kernels": list(asked["kernels"]),
        "layouts": LAYOUTS[phase],
        "phases": ["forward"] if phase == "forward" else ["forward", "dgrad"],
        "direction": [DIRECTIONS.get(phase, phase)],
    }
    if op == "layer":
        each = itertools.product(sizes["hidden"], sizes["heads"], sizes["width"])
        sweep["models"] = [_layer(*shape, asked["kv_heads"]) for shape in each]
    return list(sweep_jobs(sweep, "bench"))


def _layer(hidden: int, heads: int, width: int, kv_heads: int | None) -> Values:
    refuse(hidden % heads, f"expected a divisor of the hidden size {hidden}", "--heads", heads)
    sizes = {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "width": width}
    return {**sizes, "name": "layer", "gated": True, "rotary": hidden // heads // 2 * 2 or None}


@frozen
class Row:
    """One line of a table: what, the outcome, what was predicted for it, and how often a step runs it."""

    title: str
    measurement: Measurement | None
    predicted_s: float | None
    count: int


@frozen
class MeasuredTable:
    """A sweep's rows; ``notes``: what was not measured and why. ``title``: a suite's."""

    rows: Sequence[Row]
    sweep: Sweep
    environment: Environment
    notes: Names
    title: str = ""


def _rows(answer: "Bench | Stored") -> Values:
    """The JSON of measurements."""
    return {"measurements": [one.row() for one in answer.measurements]}


@frozen
class Bench(Printable):
    """The answer of one call of `sizer bench`."""

    COMMAND = "bench"

    tables: tuple[MeasuredTable, ...]

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(one for table in self.tables for one in table.sweep.results.values())

    @property
    def failed(self) -> str:
        """A line that counts what has no time, by why: not "unsupported" alone where anything was measured."""
        found = Counter(one.status for one in self.measurements)
        if found.pop("ok", 0) and not found.keys() - {"unsupported"}:
            return ""
        counts = in_words(dict(found.most_common()), "{1} {0}")
        return f"not measured: {counts}" if counts else ""

    to_dict = _rows


#: The answer of `sizer bench --dry-run`: each suite's jobs in the order in which they would be measured, and the most
#: seconds that one of them is timed.
Planned = Mapping[str, tuple[Sequence[Job], float]]


@frozen
class Bencher:
    """One call of `sizer bench` on one kind of device: where it measures, what it keeps and how it says how far it is.

    ``asked``: the settings that a person gave, which overrule a suite's. ``out``: the folder of suites' files.
    """

    executor: Session
    store: Store
    asked: Named
    progress: Callable[[Progress], None]
    time_limit_s: float | None
    fresh: bool
    out: Path | None

    def dtypes(self, named: Sequence[str]) -> Sequence[str]:
        """Those named, else what the device trains in."""
        return named or (("fp32",) if self.executor.environment.cpu else ("bf16",))

    def operators(self, jobs: Sequence[Job]) -> MeasuredTable:
        return self._table([(job, None) for job in jobs], self._measure(jobs, self.time_limit_s))

    def parts(self, subject: Subject, asked: Named) -> MeasuredTable:
        """Whole parts of a configuration, of each kind of block that it has; ``asked``: `bench`'s options by name."""
        model, phase, compiled = subject.whole(), asked["phase"], asked["compiled"]
        alone = (replace(model, stacks=(replace(model.main, blocks=(one,)),)) for one in model.main.blocks)
        made = [Part(asked["op"], one, subject.workload, DIRECTIONS.get(phase, phase), compiled) for one in alone]
        return self.operators([Job(part, kernel) for part in made for kernel in asked["kernels"] or ("",)])

    def configuration(self, subject: Subject) -> MeasuredTable:
        jobs, notes = jobs_of_subject(subject)
        sweep = self._measure(jobs.values(), self.time_limit_s)
        return self._table([(job, operator) for operator, job in jobs.items()], sweep, (*subject.left_out, *notes))

    def suites(self, suites: Sequence[Suite], name: str = "") -> list[MeasuredTable]:
        """Measure each suite in turn within one time limit: the next suite has the time that is left.

        ``<name>.summary.json`` in ``out`` covers all of them; without a name it has the first suite's.
        """
        start, limit_s, tables = time.monotonic(), self.time_limit_s, []
        summaries = Values()
        for place, suite in enumerate(suites):
            share_s = (limit_s - (time.monotonic() - start)) / (len(suites) - place) if limit_s is not None else None
            tables.append(self._suite(suite, share_s, f"{name or suites[0].name}.summary.json", summaries))
        return tables

    def _suite(self, suite: Suite, limit_s: float | None, file: str, summaries: Values) -> MeasuredTable:
        sweep, labels = None, {job.key: job.label for job in suite.jobs}
        with Rows(self.out, suite.name) as rows:
            try:
                # One that came from the store was measured under another label.
                keep = lambda one: rows.add(replace(one, label=labels[one.key]))  # noqa: E731
                sweep = self._measure(suite.jobs, limit_s, suite.settings, keep)
            finally:  # what was measured until it was stopped, too
                if self.out:
                    summaries[suite.name] = {
                        "title": suite.title,
                        "scale": suite.scale,
                        "jobs": len(suite.jobs),
                        "environment": self.executor.environment.to_dict(),
                        "results": rows.count,
                        "left": len(sweep.left) if sweep else None,
                        "drift": asdict(sweep.drift) if sweep else None,
                        "elapsed_s": sweep.elapsed_s if sweep else None,
                    }
                    write_whole(self.out / file, (json.dumps(summaries, indent=2) + "\n").encode())
        return replace(self._table([(job, None) for job in suite.jobs], sweep), title=f"{suite.name}: {suite.title}")

    def _measure(
        self,
        jobs: Iterable[Job],
        time_limit_s: float | None,
        settings: Named | None = None,
        keep: Callable[[Measurement], None] = lambda _: None,
    ) -> Sweep:
        return measure(
            jobs,
            executor=self.executor,
            store=self.store,
            settings=Settings(**{**(settings or {}), **self.asked}),
            time_limit_s=time_limit_s,
            fresh=self.fresh,
            progress=self.progress,
            keep=keep,
        )

    def _table(self, listed: Iterable[tuple[Job, Operator | None]], sweep: Sweep, notes: Names = ()) -> MeasuredTable:
        """A row for every job, or for a step's every operator."""
        rows = []
        device = self.executor.environment.accelerator
        for job, operator in listed:
            title, count = (f"{operator.name} {operator.phase}", operator.count) if operator else (job.title, 1)
            work = operator or (job.work if isinstance(job.work, Gemm | Attention) and not job.kernel else None)
            seconds = None
            with suppress(InputError):  # a dtype that the device's file has no figures for
                seconds = predict(work, device).seconds if work and device else None
            rows.append(Row(title, sweep.results.get(job.key), seconds, count))
        return MeasuredTable(rows, sweep, self.executor.environment, notes)


class Rows(ExitStack):
    """``<name>.jsonl.gz`` in ``folder`` (None: nothing): a JSON object a measurement and line, times to 7 digits.

    Each is on the disk when it was added; a file that grows over ROLL_BYTES is followed by ``<name>.2.jsonl.gz`` …
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        super().__init__()
        if folder:
            make_folder(folder)
        self._folder, self._name = folder, name
        self.count = self._files = 0
        self._file: gzip.GzipFile | None = None

    def add(self, one: Measurement) -> None:
        self.count += 1
        if not self._folder:
            return
        row = one.row()
        row["samples"] = [float(f"{value:.7g}") for value in row["samples"]]
        row["environment"].pop("host", None)
        if self._file is None or os.stat(self._file.name).st_size > ROLL_BYTES:
            self.close()
            self._files += 1
            number = f".{self._files}" if self._files > 1 else ""
            self._file = self.enter_context(gzip.GzipFile(self._folder / f"{self._name}{number}.jsonl.gz", "wb"))
        self._file.write((json.dumps(row, sort_keys=True) + "\n").encode())
        self._file.flush()


@frozen
class Stored:
    """The measurements chosen, in the order they were made, of ``total`` in the store."""

    measurements: tuple[Measurement, ...]
    total: int

    to_dict = _rows


#: The suite that is measured: jobs of priority 1 must run. On a processor they are smaller, by the factor.
SUITE, TEST_ON_A_CPU = Path(__file__).with_name("self-test.toml"), 1 / 16
#: A time that is off its prediction by more than this factor does not measure what it names.
FACTOR = 2.5
#: Seconds after which no check is begun.
LIMIT_S = 60.0


@frozen
class Check:
    """``passed`` None: this device or library has no such thing, or none is asked of it; ``said``: what was seen."""

    name: str
    passed: bool | None
    said: str


@frozen
class SelfTest:
    """Every check."""

    device: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(one.passed is not False for one in self.checks)


def self_test(executor: Executor) -> SelfTest:
    """Measure a job of each kind on ``executor``'s device, anew, and judge what comes out."""
    environment, device = executor.environment, executor.environment.accelerator
    suite = load_suite(SUITE, TEST_ON_A_CPU if environment.cpu else 1.0)
    settings = Settings(**suite.settings, profiled=True)
    sweep = measure(suite.jobs, executor=executor, settings=settings, time_limit_s=LIMIT_S)
    checks = [_judged(job, sweep.results.get(job.key), device) for job in suite.jobs]
    drift = sweep.drift
    steady = drift.steady or (None if environment.cpu else False)  # a processor is shared: its figures are no evidence
    checks.append(Check("control shape", steady, f"spread {drift.spread:.1%}, change {drift.change:+.1%}"))
    clocks = next((one.clocks for one in sweep.results.values() if one.clocks), {})
    named = in_words(clocks)
    checks.append(Check("clocks", True if clocks else None, named or "not read: no NVML here"))
    return SelfTest(environment.source.removeprefix("measured:"), tuple(checks))


def _judged(job: Job, one: Measurement | None, device: Device | None) -> Check:
    name = f"{job.label} {job.kernel}".rstrip()
    if not one:
        return Check(name, False, f"not reached in {LIMIT_S:.0f} s")
    if one.seconds is None:
        missing = one.status == "unsupported" and job.priority > 1
        return Check(name, None if missing else False, f"{one.status}: {one.message}")
    rate = f"{one.tflops:.4g} TFLOPS" if one.tflops else f"{one.bytes / one.seconds / 1e9:.4g} GB/s"
    said = f"{1e6 * one.seconds:.4g} us, {rate}"
    if one.kernel_s is not None:
        said += f", {one.seconds / one.kernel_s - 1:+.1%} to the profiler's kernels"
    if not device:
        return Check(name, True, said)
    why = objection(one, device, None)
    if why is not None:
        return Check(name, False, f"{said}: {why}")
    ratio = 1.0
    with suppress(InputError):  # a dtype that the device's file has no figures for
        if not isinstance(job.work, Part | MemoryBound) and not job.kernel:
            ratio = one.seconds / predict(job.work, device).seconds
            said += f", {ratio:.2f} times its prediction"
    return Check(name, 1 / FACTOR < ratio < FACTOR, said)
