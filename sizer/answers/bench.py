"""What `sizer bench` measures: options, a configuration or a suite turned into jobs, and results into rows."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

from shapes.device import Device
from shapes.errors import InputError
from shapes.files import write_whole
from shapes.frozen import frozen
from shapes.measure.environment import Environment
from shapes.measure.jobs import Job, MemoryBound, swiglu
from shapes.measure.mamf import Maximum
from shapes.measure.record import Measurement
from shapes.measure.runner import Sweep
from shapes.operators import LAYOUT_OF_PHASE, Attention, Gemm, Operator, Phase
from sizer.printing import Printable
from sizer.subject import Subject

#: What ``--op`` knows, and the sizes each needs.
OPS: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "bmm": ("m", "n", "k"),
    "swiglu": ("tokens", "hidden", "width"),
    "mlp": ("tokens", "hidden", "width"),
    "attention": ("sequence", "head_dim", "heads"),
    "layer": ("sequence", "hidden", "heads", "width"),
    "head": ("tokens", "hidden", "vocab"),
    "norm": ("tokens", "hidden"),
    "layer_norm": ("tokens", "hidden"),
    "softmax": ("tokens", "hidden"),
    "activation": ("tokens", "hidden"),
    "residual": ("tokens", "hidden"),
    "cross_entropy": ("tokens", "vocab"),
}

PHASES: dict[str, tuple[Phase, ...]] = {
    "forward": ("forward",),
    "dgrad": ("dgrad",),
    "wgrad": ("wgrad",),
    "backward": ("dgrad", "wgrad"),
    "all": ("forward", "dgrad", "wgrad"),
}


def option_of(size: str) -> str:
    """The command-line option of a size: -m, --head-dim."""
    return f"-{size}" if len(size) == 1 else f"--{size.replace('_', '-')}"


#: Combinations of sizes of one sweep, half a second each: six days.
MOST_JOBS = 1_000_000


def jobs_of_op(
    op: str,
    sizes: Mapping[str, Sequence[int]],
    *,
    dtypes: Sequence[str],
    batch: int,
    phase: str,
    layouts: Sequence[str],
    kernels: Sequence[str],
    kv_heads: int | None = None,
    compiled: bool = False,
) -> list[Job]:
    """Jobs for every combination of ``sizes`` of ``op``; InputError names the size that is missing."""
    for size in OPS[op]:
        if not sizes.get(size):
            raise InputError(
                f"expected a size, a list or first:last:step for --op {op}", key=f"--{size.replace('_', '-')}"
            )
    wanted = prod(len(sizes[size]) for size in OPS[op])
    if wanted > MOST_JOBS:
        raise InputError(f"expected at most {MOST_JOBS} combinations of sizes, found {wanted}", key="--op", value=op)
    jobs: list[Job] = []
    for values in itertools.product(*(sizes[size] for size in OPS[op])):
        for dtype in dtypes:
            made = _one_op(op, values, dtype, batch, phase, layouts, kv_heads, compiled)
            jobs += [Job(subject, kernel) for subject in made for kernel in kernels or ("",)]
    return jobs


def _one_op(
    op: str,
    values: Sequence[int],
    dtype: str,
    batch: int,
    phase: str,
    layouts: Sequence[str],
    kv_heads: int | None,
    compiled: bool,
) -> list[Any]:
    out_dtype = "bf16" if dtype == "fp8" else None
    if op in ("gemm", "bmm"):
        m, n, k = values
        kind: Literal["gemm", "bmm"] = "bmm" if op == "bmm" else "gemm"
        # dgrad's n is forward's k and so on: the sizes are the product's own, as given, whatever the phase.
        chosen: list[tuple[Phase, Any]] = [(one, LAYOUT_OF_PHASE[one]) for one in PHASES[phase]]
        if layouts:
            chosen = [("forward", layout) for layout in layouts]
        return [
            Gemm("bench", one, m, n, k, batch, dtype, layout, kind=kind, out_dtype=out_dtype) for one, layout in chosen
        ]
    if op in ("swiglu", "mlp"):
        tokens, hidden, width = values
        train = phase != "forward"
        return [swiglu(tokens, hidden, width, dtype=dtype, gated=op == "swiglu", train=train, compiled=compiled)]
    if op == "attention":
        s, d, heads = values
        phases: list[Phase] = ["forward"] if phase == "forward" else ["forward", "dgrad"]
        return [Attention("bench", one, batch, heads, kv_heads or heads, s, s, d, d, dtype=dtype) for one in phases]
    if op in ("layer", "head"):
        return [_part(op, values, dtype, batch, phase, kv_heads, compiled)]
    directions: list[Literal["forward", "dgrad"]] = ["forward"] if phase == "forward" else ["forward", "dgrad"]
    return [MemoryBound(op, values[0], values[1], one, dtype) for one in directions]


def _part(
    op: str, values: Sequence[int], dtype: str, batch: int, phase: str, kv_heads: int | None, compiled: bool
) -> Any:
    from shapes.measure.jobs import Part
    from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
    from shapes.workload import Workload

    direction: Literal["forward", "forward+backward"] = "forward" if phase == "forward" else "forward+backward"
    if op == "head":
        tokens, hidden, vocab = values
        model = ModelShape("head", (Stack("main", hidden, (Block(None, None, norms=0),)),), vocab)
        return Part("head", model, Workload(b=1, s=tokens, dtype=dtype), direction, compiled)
    s, hidden, heads, width = values
    if hidden % heads:
        raise InputError(f"expected a divisor of the hidden size {hidden}", key="--heads", value=heads)
    d = hidden // heads
    block = Block(AttentionShape(heads, kv_heads or heads, d, rotary_dim=d // 2 * 2), MlpShape(width))
    model = ModelShape("layer", (Stack("main", hidden, (block,)),), head=False)
    return Part("layer", model, Workload(b=batch, s=s, dtype=dtype), direction, compiled)


@frozen
class Row:
    """One line of a table: what, the outcome, what was predicted for it, and how often a step runs it."""

    title: str
    measurement: Measurement | None
    predicted_s: float | None = None
    count: int = 1


@frozen
class Table:
    """A sweep's rows; ``notes``: what was not measured and why."""

    rows: Sequence[Row]
    sweep: Sweep
    environment: Environment
    notes: tuple[str, ...] = ()

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(self.sweep.results.values())


@frozen
class Peak:
    """A maximum as found here, and the device's published one where there is one."""

    maximum: Maximum
    environment: Environment
    published_flops: float | None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return self.maximum.tried


@frozen
class Group:
    """Tables and maxima that belong together: a suite under its title, or one call's."""

    parts: tuple[Table | Peak, ...]
    title: str = ""


@frozen
class Bench(Printable):
    """What one call of `sizer bench` answers."""

    COMMAND = "bench"

    groups: tuple[Group, ...]

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(one for group in self.groups for part in group.parts for one in part.measurements)

    def to_dict(self) -> dict[str, Any]:
        return {"measurements": [one.row() for one in self.measurements]}


@frozen
class Planned:
    """What `sizer bench --dry-run` answers: the jobs of each suite in the order in which they would be measured."""

    suites: Mapping[str, Sequence[Job]]


def rows_of(jobs: Iterable[Job], sweep: Sweep, device: Device | None) -> list[Row]:
    """A row for every job, with its prediction where the device is known and the cost model covers it."""
    from shapes.cost import predict

    rows = []
    for job in jobs:
        predicted = None
        if device is not None and isinstance(job.work, Gemm | Attention) and not job.kernel:
            with contextlib.suppress(InputError):  # a dtype that the device's file has no figures for
                predicted = predict(job.work, device).seconds
        rows.append(Row(job.title, sweep.results.get(job.key), predicted))
    return rows


def rows_of_subject(subject: Subject, jobs: Mapping[Operator, Job], sweep: Sweep, device: Device | None) -> list[Row]:
    """A row for every operator of a step."""
    from shapes.cost import predict_many

    operators = list(jobs)
    costs = (
        [cost.seconds for cost in predict_many(operators, device)] if device is not None else [None] * len(operators)
    )
    return [
        Row(f"{operator.name} {operator.phase}", sweep.results.get(jobs[operator].key), cost, operator.count)
        for operator, cost in zip(operators, costs, strict=True)
    ]


def write_rows(results: Iterable[Measurement], path: Path) -> None:
    """One JSON object a measurement and line, times to 7 digits; replaced whole."""
    lines = []
    for one in results:
        row = one.row()
        row["samples"] = [float(f"{value:.7g}") for value in row["samples"]]
        row["environment"].pop("host", None)
        lines.append(json.dumps(row, sort_keys=True) + "\n")
    write_whole(path, "".join(lines).encode())
