"""Suites: TOML files that list sweeps, most wanted first, and become jobs.

A file has ``title``, optional ``precision``, ``time_s``, ``least_samples`` and ``interleave`` (see ``Settings``) and
``[[sweep]]`` tables:

========  ==========================================================================================================
op        keys
========  ==========================================================================================================
gemm      ``m n k`` (an integer, a list or a range "first:last:step", last included), or ``shapes`` [[m, n, k], …];
          ``batch``, ``layouts``, ``phase``; with ``offsets`` each ``moves`` ("m", "mn" …) of a shape goes through them
grouped   ``m n k`` of ``groups`` experts; ``kernels``
mlp       ``tokens hidden width``; ``gated``, ``direction``, ``compiled``
attention ``batch s head_dim`` and ``hidden`` (heads = hidden // head_dim) or ``heads``; ``kv_heads``, ``kernels``,
          ``phases``, ``causal``
layer     ``models`` = tables of name, hidden, heads, width, and optional kv_heads, gated, rotary, parallel; ``b s``;
          ``direction``, ``compiled``
head      ``tokens hidden vocab``; ``direction``, ``compiled``
memory    ``what rows columns``; ``phases``
========  ==========================================================================================================

Every sweep has ``label``, ``dtypes`` and ``priority`` (its place in the file where absent).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from shapes.dtypes import DTYPES
from shapes.errors import InputError, refuse
from shapes.frozen import Named, Names, Values, frozen
from shapes.measure.jobs import ATTENTION, EXPERTS, Direction, Job, MemoryBound, Part, by_key, head, swiglu
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.operators.types import Attention, Gemm, GroupedGemm, Phase
from shapes.toml_table import Table, content
from shapes.workload import Workload

#: Scaled sizes stay multiples of this, so that an offset is the only misalignment there too.
SCALE_MULTIPLE = 128
#: Longest list a range may give: a typing error must not fill the memory.
MOST_VALUES = 1_000_000


@frozen
class Suite:
    """What a suite file asks for."""

    name: str
    title: str
    jobs: tuple[Job, ...]
    settings: Values
    scale: float = 1.0


def load_suite(path: Path, scale: float = 1.0) -> Suite:
    """The suite in ``path`` with its sizes multiplied by ``scale`` (0 < scale <= 1; for a dry run)."""
    where = str(path)
    refuse(not 0 < scale <= 1, "expected a number above 0 and at most 1", "--scale", scale)
    top = Table(content(path), where)
    settings: Values = {key: top.number(key) for key in ("precision", "time_s") if top.has(key)}
    settings |= {key: top.integer(key) for key in ("interleave", "least_samples") if top.has(key)}
    jobs: list[Job] = []
    title = top.text("title")
    for place, sweep in enumerate(top.tables("sweep")):
        jobs += itertools.islice(_Sweep(sweep, scale, place).jobs(), MOST_VALUES + 1)
        refuse(len(jobs) > MOST_VALUES, f"expected at most {MOST_VALUES} jobs", f"sweep[{place}]", where=where)
        sweep.refuse_the_rest()
    top.refuse_the_rest()
    return Suite(path.stem, title, tuple(by_key(jobs).values()), settings, scale)


def sweep_jobs(keys: Named, where: str) -> Iterator[Job]:
    """The jobs of one ``[[sweep]]`` table that is in no file."""
    return _Sweep(Table(keys, where), 1.0, 0).jobs()


def values_of(value: object) -> tuple[int, ...]:
    """An integer, a list of integers and ranges, or text such as "128,1000:1030:2" (last included) as integers.

    >>> values_of("8, 10:14:2")
    (8, 10, 12, 14)

    ValueError for anything else, and for sizes under 1.
    """
    if type(value) is int:
        found: tuple[int, ...] = (value,)
    elif isinstance(value, str):
        found = tuple(itertools.chain.from_iterable(map(_range, value.split(","))))
    elif isinstance(value, list | tuple):
        found = tuple(itertools.chain.from_iterable(map(values_of, value)))
    else:
        raise ValueError("expected integers")
    if not found or min(found) < 1 or max(found) > 2**31:
        raise ValueError("expected sizes from 1 to 2**31")
    return found


def _range(text: str) -> range:
    parts = [int(part) for part in text.split(":")]
    if len(parts) > 3:
        raise ValueError("expected first:last or first:last:step")
    first, last, step = parts + [parts[0], 1][len(parts) - 1 :]
    if step < 1 or last < first:
        raise ValueError("expected first:last:step with last >= first and step >= 1")
    if (last - first) // step >= MOST_VALUES:
        raise ValueError(f"expected at most {MOST_VALUES} values")
    return range(first, last + 1, step)


def _integer(table: Table, key: str) -> int | None:
    return table.integer(key) if table.has(key) else None


#: Layout -> the phase that has it.
PHASES: dict[str, Phase] = {"tn": "forward", "nn": "dgrad", "nt": "wgrad", "tt": "forward"}
OPS = ("gemm", "grouped", "mlp", "attention", "layer", "head", "memory")
#: What is timed, and the kernel where it is named.
_Made = Any | tuple[Any, str]


class _Sweep:
    """One ``[[sweep]]`` table as jobs."""

    def __init__(self, table: Table, scale: float, place: int) -> None:
        self._table = table
        self._scale = scale
        self.op = table.text("op")
        self.label = table.text("label")
        self.priority = _integer(table, "priority") or place + 1
        self.dtypes = self._choices("dtypes", DTYPES, ("bf16",))

    def jobs(self) -> Iterator[Job]:
        if self.op not in OPS:
            raise self._table.fail("op", f"expected one of {', '.join(OPS)}")
        for made in getattr(self, f"_{self.op}")():
            work, kernel = made if isinstance(made, tuple) else (made, "")
            # A layer's name tells it from the sweep's others.
            name = f" {work.model.model_type}" if self.op == "layer" else ""
            yield Job(work, kernel, self.priority, self.label + name)

    def _sizes(self, key: str, *, scaled: bool = True, default: int | None = None) -> tuple[int, ...]:
        if not self._table.has(key) and default is not None:
            return (default,)
        try:
            found = values_of(self._table.data.get(key))
        except ValueError as error:
            raise self._table.fail(key, str(error)) from None
        return tuple(map(self._scaled, found)) if scaled else found

    def _scaled(self, value: int) -> int:
        """``value`` times the scale, keeping its distance to the multiple of 128 below it."""
        if self._scale == 1.0:
            return value
        base, rest = divmod(value, SCALE_MULTIPLE)
        smaller = max(1, round(base * self._scale)) if base else 0
        return smaller * SCALE_MULTIPLE + rest

    def _choices(self, key: str, known: Sequence[str], default: Names) -> tuple[Any, ...]:
        chosen = self._table.texts(key) or default
        if not set(chosen) <= {*known, *default}:
            raise self._table.fail(key, f"expected some of {', '.join(known)}")
        return chosen

    def _combined(self, *choices: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Every combination; refused before the first is made where they are too many."""
        lists = [tuple(one) for one in choices]
        if prod(map(len, lists)) > MOST_VALUES:
            key = self._table.prefix.rstrip(".")
            raise InputError(f"expected at most {MOST_VALUES} jobs", where=self._table.where, key=key)
        return itertools.product(*lists)

    def _shapes(self) -> Iterator[tuple[int, ...]]:
        if not self._table.has("shapes"):
            yield from self._combined(*(self._sizes(axis) for axis in "mnk"))
            return
        try:
            shapes = [values_of(row) for row in self._table.data["shapes"]]
        except (TypeError, ValueError):
            shapes = [()]
        if any(len(shape) != 3 for shape in shapes):
            raise self._table.fail("shapes", "expected rows of m, n and k")
        for shape in shapes:
            yield tuple(map(self._scaled, shape))

    def _moved(self) -> Iterator[tuple[int, ...]]:
        if not self._table.has("offsets"):
            yield from self._shapes()
            return
        offsets = self._table.data["offsets"]
        if not isinstance(offsets, list) or not all(isinstance(one, int) for one in offsets):
            raise self._table.fail("offsets", "expected a list of integers")
        moves = self._choices("moves", ("m", "n", "k", "mn", "mk", "nk", "mnk"), ("m", "n", "k"))
        for shape in self._shapes():
            for move, offset in self._combined(moves, offsets):
                moved = tuple(size + offset * (axis in move) for axis, size in zip("mnk", shape, strict=True))
                if min(moved) < 1:
                    raise self._table.fail("offsets", "expected offsets that leave every size positive")
                yield moved

    def _gemm(self) -> Iterator[_Made]:
        layouts = self._choices("layouts", ("tn", "nn", "nt", "tt"), ("tn",))
        kernels = self._choices("kernels", ("fast_accum", "precise_accum"), ("",))
        batch = self._sizes("batch", scaled=False, default=1)[0]
        kind: Literal["gemm", "bmm"] = "bmm" if batch > 1 else "gemm"
        for m, n, k in self._moved():
            for layout, dtype, kernel in self._combined(layouts, self.dtypes, kernels):
                out = "bf16" if dtype == "fp8" else None
                phase = PHASES[layout]
                yield Gemm(self.label, phase, m, n, k, batch, dtype, layout, kind=kind, out_dtype=out), kernel

    def _grouped(self) -> Iterator[_Made]:
        groups, kernels = self._table.integer("groups"), self._choices("kernels", EXPERTS, ("",))
        for m, n, k, kernel, dtype in self._combined(*(self._sizes(axis) for axis in "mnk"), kernels, self.dtypes):
            yield GroupedGemm(self.label, "forward", groups, m, n, k, dtype=dtype), kernel

    def _direction(self) -> Direction:
        chosen: Direction = self._choices("direction", get_args(Direction), ("forward+backward",))[0]
        return chosen

    def _mlp(self) -> Iterator[_Made]:
        return self._dense("width", partial(swiglu, gated=self._table.flag("gated") is not False))

    def _head(self) -> Iterator[_Made]:
        return self._dense("vocab", head)

    def _dense(self, size: str, make: Callable[..., Part]) -> Iterator[_Made]:
        more = {"compiled": bool(self._table.flag("compiled")), "direction": self._direction()}
        sizes = (self._sizes(key) for key in ("tokens", "hidden", size))
        for *shape, dtype in self._combined(*sizes, self.dtypes):
            yield make(*shape, dtype=dtype, **more)

    def _attention(self) -> Iterator[_Made]:
        kernels = self._choices("kernels", (*ATTENTION["sdpa"], *ATTENTION["packages"], *ATTENTION["names"]), ("",))
        phases = self._choices("phases", ("forward", "dgrad"), ("forward", "dgrad"))
        causal = self._table.flag("causal") is not False
        batch, kv = self._sizes("batch", scaled=False)[0], _integer(self._table, "kv_heads")
        # Either as many heads as are named, or those that fill a hidden size.
        named = self._table.has("heads")
        wide = self._sizes("heads", scaled=False) if named else self._sizes("hidden")[:1]
        sizes = self._sizes("s"), self._sizes("head_dim", scaled=False)
        for s, d, one, phase, kernel, dtype in self._combined(*sizes, wide, phases, kernels, self.dtypes):
            heads = one if named else max(1, one // d)
            yield (
                Attention(self.label, phase, batch, heads, kv or heads, s, s, d, d, causal=causal, dtype=dtype),
                kernel,
            )

    def _layer(self) -> Iterator[_Made]:
        b, compiled, direction = (
            self._sizes("b", scaled=False)[0],
            bool(self._table.flag("compiled")),
            self._direction(),
        )
        for table in self._table.tables("models"):
            model = self._layer_model(table)
            table.refuse_the_rest()
            for s, dtype in self._combined(self._sizes("s"), self.dtypes):
                yield Part("layer", model, Workload(b=b, s=s, dtype=dtype), direction, compiled)

    def _layer_model(self, table: Table) -> ModelShape:
        hidden, heads = table.integer("hidden"), table.integer("heads")
        kv = _integer(table, "kv_heads") or heads
        head_dim = hidden // heads
        if self._scale != 1.0:  # fewer heads of the same width keep every alignment
            group = heads // kv
            kv = max(1, round(kv * self._scale))
            heads = kv * group
            hidden = heads * head_dim
        rotary = _integer(table, "rotary") or 0
        gated, parallel, biases = (bool(table.flag(key)) for key in ("gated", "parallel", "biases"))
        attention = AttentionShape(heads, kv, head_dim, rotary_dim=rotary, qkv_bias=biases, o_bias=biases)
        mlp = MlpShape(self._scaled(table.integer("width")), gated, biases)
        block = Block(attention, mlp, norm_weights=2 if biases else 1, parallel=parallel)
        return ModelShape(table.text("name"), (Stack("main", hidden, (block,)),), head=False)

    def _memory(self) -> Iterator[_Made]:
        phases = self._choices("phases", ("forward", "dgrad"), ("forward", "dgrad"))
        sizes = self._sizes("rows"), self._sizes("columns")
        for row in self._combined(self._table.texts("what"), *sizes, phases, self.dtypes):
            yield MemoryBound(*row)
