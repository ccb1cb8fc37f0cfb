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

import itertools
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from shapes.dtypes import DTYPES
from shapes.errors import InputError, refuse
from shapes.frozen import Ints, Items, Named, Triple, Values, frozen
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.operators.types import Attention, Gemm, GroupedGemm, Phase
from shapes.toml_table import DATA, Table, check_bounds, content
from shapes.workload import Workload

from .jobs import ATTENTION, EXPERTS, Direction, Job, MemoryBound, Part, by_key, head, swiglu

#: Scaled sizes stay multiples of this, so that an offset is the only misalignment there too.
SCALE_MULTIPLE = 128
#: Longest list a range may give: a typing error must not fill the memory.
MOST_VALUES = 1_000_000


@frozen
class Suite:
    """A suite file's content."""

    name: str
    title: str
    jobs: tuple[Job, ...]
    settings: Values
    scale: float


def load_suite(path: Path, scale: float = 1.0) -> Suite:
    """The suite in ``path`` with its sizes multiplied by ``scale`` (0 < scale <= 1; for a dry run)."""
    where = str(path)
    check_bounds(scale=scale)
    top = Table(content(path), where)
    settings = {key: top.number(key) for key in ("precision", "time_s") if top.has(key)}
    settings |= {key: top.integer(key) for key in ("interleave", "least_samples") if top.has(key)}
    jobs = list[Job]()
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


def values_of(value: object) -> Ints:
    """An integer, a list of integers and ranges, or text such as "128,1000:1030:2" (last included) as integers.

    >>> values_of("8, 10:14:2")
    (8, 10, 12, 14)

    ValueError for anything else, and for sizes under 1.
    """
    if type(value) is int:
        found: Ints = (value,)
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
    try:
        parts = [*map(int, text.split(":"))]
    except ValueError:
        raise ValueError("expected integers and ranges") from None
    if len(parts) > 3:
        raise ValueError("expected first:last or first:last:step")
    first, last, step = parts + [parts[0], 1][len(parts) - 1 :]
    if step < 1 or last < first:
        raise ValueError("expected first:last:step with last >= first and step >= 1")
    if (last - first) // step >= MOST_VALUES:
        raise ValueError(f"expected at most {MOST_VALUES} values")
    return range(first, last + 1, step)


#: A sweep's axes by op; the words of an axis that are taken if none is named; sizes that a scale does not change.
SWEEPS = content(DATA / "sweeps.toml")
#: Layout -> the phase that has it.
PHASES: dict[str, Phase] = SWEEPS["phases"]
#: Axis, or op with kernels -> the words that there are.
KNOWN = {
    **SWEEPS["known"],
    "dtypes": DTYPES,
    "layouts": PHASES,
    "direction": get_args(Direction),
    "grouped": EXPERTS,
    "attention": (*ATTENTION["sdpa"], *ATTENTION["packages"], *ATTENTION["names"]),
}


class _Sweep:
    """One ``[[sweep]]`` table as jobs."""

    def __init__(self, table: Table, scale: float, place: int) -> None:
        self._table, self._scale = table, scale
        self.op, self.label = table.choice("op", SWEEPS["axes"]), table.text("label")
        self.priority = self._integer("priority") or place + 1

    def jobs(self) -> Iterator[Job]:
        names, made = SWEEPS["axes"][self.op], getattr(self, f"_{self.op}")
        for values in self._combined(*map(self._axis, names)):
            each = dict(zip(names, values, strict=True))
            kernel = each.pop("kernels", "")
            work = made(*each.values())
            # A layer's name tells it from the sweep's others.
            name = f" {work.model.model_type}" if self.op == "layer" else ""
            yield Job(work, kernel, self.priority, self.label + name)

    def _axis(self, name: str) -> Iterable[Any]:
        if name in ("shape", "heads", "models"):
            return getattr(self, f"_{name}")()  # type: ignore[no-any-return]
        if name == "what":
            return self._table.texts(name)
        return self._words(name) if name in SWEEPS["words"] else self._sizes(name)

    def _sizes(self, key: str) -> Ints:
        try:
            found = values_of(self._table.data[key] if self._table.has(key) else None)
        except ValueError as error:
            raise self._table.fail(key, str(error)) from None
        return found if key in SWEEPS["plain"] else tuple(map(self._scaled, found))

    def _integer(self, key: str) -> int | None:
        return self._table.integer(key) if self._table.has(key) else None

    def _first(self, key: str) -> int:
        """A size that a sweep has one of; 1 where it names none."""
        return self._sizes(key)[0] if self._table.has(key) else 1

    def _scaled(self, value: int) -> int:
        """``value`` times the scale, keeping its distance to the multiple of 128 below it."""
        if self._scale == 1.0:
            return value
        base, rest = divmod(value, SCALE_MULTIPLE)
        return (max(1, round(base * self._scale)) if base else 0) * SCALE_MULTIPLE + rest

    def _words(self, key: str) -> Items:
        usual = SWEEPS["words"][key]
        known = KNOWN[self.op if key == "kernels" else key]
        chosen = self._table.texts(key) or tuple(usual)
        if not set(chosen) <= {*known, *usual}:
            raise self._table.fail(key, f"expected some of {', '.join(known)}")
        return chosen

    def _combined(self, *choices: Iterable[Any]) -> Iterator[Items]:
        """Every combination; refused before the first is made where they are too many."""
        lists = [*map(tuple, choices)]
        if prod(map(len, lists)) > MOST_VALUES:
            expected = f"expected at most {MOST_VALUES} jobs"
            raise InputError(expected, self._table.prefix.rstrip("."), where=self._table.where)
        return itertools.product(*lists)

    def _shape(self) -> Iterator[Ints]:
        """m, n and k of every product."""
        if not self._table.has("offsets"):
            yield from self._listed()
            return
        offsets = self._table.data["offsets"]
        if not isinstance(offsets, list) or not all(isinstance(one, int) for one in offsets):
            raise self._table.fail("offsets", "expected a list of integers")
        for shape, move, offset in self._combined(self._listed(), self._words("moves"), offsets):
            moved = tuple(size + offset * (axis in move) for axis, size in zip("mnk", shape, strict=True))
            if min(moved) < 1:
                raise self._table.fail("offsets", "expected offsets that leave every size positive")
            yield moved

    def _listed(self) -> Iterator[Ints]:
        if not self._table.has("shapes"):
            return self._combined(*map(self._sizes, "mnk"))
        try:
            shapes = [values_of(row) for row in self._table.data["shapes"]]
        except (TypeError, ValueError):
            shapes = [()]
        if any(len(shape) != 3 for shape in shapes):
            raise self._table.fail("shapes", "expected rows of m, n and k")
        return (tuple(map(self._scaled, shape)) for shape in shapes)

    def _gemm(self, shape: Triple, layouts: Any, dtypes: str) -> Gemm:
        batch, out = self._first("batch"), "bf16" if dtypes == "fp8" else None
        kind: Literal["gemm", "bmm"] = "bmm" if batch > 1 else "gemm"
        return Gemm(self.label, PHASES[layouts], *shape, batch, dtypes, layouts, kind=kind, out_dtype=out)

    def _grouped(self, m: int, n: int, k: int, dtypes: str) -> GroupedGemm:
        return GroupedGemm(self.label, "forward", self._table.integer("groups"), m, n, k, dtype=dtypes)

    def _mlp(self, tokens: int, hidden: int, width: int, dtypes: str) -> Part:
        return swiglu(tokens, hidden, width, dtype=dtypes, gated=self._table.flag("gated") is not False, **self._run())

    def _head(self, tokens: int, hidden: int, vocab: int, dtypes: str) -> Part:
        return head(tokens, hidden, vocab, dtype=dtypes, **self._run())

    def _run(self) -> Values:
        """How whole parts run."""
        return {"compiled": bool(self._table.flag("compiled")), "direction": self._words("direction")[0]}

    def _heads(self) -> tuple[int | None, ...]:
        """As many as are named; None: those that fill a hidden size."""
        return self._sizes("heads") if self._table.has("heads") else (None,)

    def _attention(self, s: int, head_dim: int, heads: int | None, phases: Phase, dtypes: str) -> Attention:
        heads = heads or max(1, self._sizes("hidden")[0] // head_dim)
        batch, kv, causal = self._first("batch"), self._integer("kv_heads"), self._table.flag("causal") is not False
        widths = batch, heads, kv or heads, s, s, head_dim, head_dim
        return Attention(self.label, phases, *widths, causal=causal, dtype=dtypes)

    def _layer(self, models: ModelShape, s: int, dtypes: str) -> Part:
        return Part("layer", models, Workload(self._first("b"), s, dtypes), **self._run())

    def _models(self) -> Iterator[ModelShape]:
        for table in self._table.tables("models"):
            yield self._model(table)
            table.refuse_the_rest()

    def _model(self, table: Table) -> ModelShape:
        hidden, heads = table.integer("hidden"), table.integer("heads")
        kv, rotary = (table.integer(key) if table.has(key) else 0 for key in ("kv_heads", "rotary"))
        kv, head_dim = kv or heads, hidden // heads
        if self._scale != 1.0:  # fewer heads of the same width keep every alignment
            group = heads // kv
            kv = max(1, round(kv * self._scale))
            heads = kv * group
            hidden = heads * head_dim
        gated, parallel, biases = (bool(table.flag(key)) for key in ("gated", "parallel", "biases"))
        attention = AttentionShape(heads, kv, head_dim, rotary_dim=rotary, qkv_bias=biases, o_bias=biases)
        mlp = MlpShape(self._scaled(table.integer("width")), gated, biases)
        block = Block(attention, mlp, norm_weights=2 if biases else 1, parallel=parallel)
        return ModelShape(table.text("name"), (Stack("main", hidden, (block,)),), head=False)

    _memory = staticmethod(MemoryBound)
