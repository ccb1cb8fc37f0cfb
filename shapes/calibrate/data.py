"""Measured products of a store, and aligned ones as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shapes.cost.alignment import LEADING, LEVELS, Array, Booleans, Integers
from shapes.cost.constants import GemmConstants
from shapes.cost.gemm import LARGE, aligned_seconds
from shapes.dtypes import BYTES
from shapes.errors import refuse
from shapes.frozen import frozen
from shapes.measure.dataset import control_median

if TYPE_CHECKING:
    from shapes.device import Device
    from shapes.measure.environment import Environment
    from shapes.measure.store import Store


@frozen
class Record:
    """One measured product; ``source`` tells frameworks (or runs) apart, whose median is taken for the truth."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    layout: str
    seconds: float
    source: str

    @property
    def aligned(self) -> bool:
        """Whether every leading dimension is a multiple of 64 bytes, from which on nothing more is won."""
        dimensions = (self.m, self.n, self.k)
        return all(dimensions[which] * BYTES[self.dtype] % LEVELS[-2] == 0 for which in LEADING[self.layout])


def stored_products(store: Store, device: Device) -> tuple[Record, ...]:
    """Every product of ``device`` that ``store`` has a time of, as where the control shape takes its median."""

    def ours(environment: Environment) -> bool:
        known = environment.accelerator
        return environment.device in device.torch_names or (known is not None and known.name == device.name)

    found, rows = [], [one for one in store.measurements(status="ok") if ours(one.environment)]
    usual_s = control_median(rows)
    for one in rows:
        row = one.row(samples=False)
        if row["kind"] not in ("gemm", "bmm"):
            continue
        sizes = m, n, k, batch = row["m"], row["n"], row["k"], row["batch"]
        dtype, layout = row["dtype"], row["layout"]
        refuse(
            dtype not in BYTES or layout not in LEADING or not all(sizes),
            "expected positive sizes, a known dtype and layout of each product",
            value=one.key,
            where=str(store.path),
        )
        # A card, or an hour, in which the control shape is slower by a percent slows these by as much.
        steady = usual_s / one.control_s if usual_s and one.control_s else 1.0
        found.append(Record(m, n, k, batch, dtype, layout, row["seconds"] * steady, one.environment.source))
    return tuple(found)


Key = TypeVar("Key", bound=tuple[Any, ...])


@frozen
class Products:
    """Measured aligned products: dimensions and seconds, arrays of one length."""

    m: Array
    n: Array
    k: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, rows: Booleans | Integers) -> Products:
        return Products(self.m[rows], self.n[rows], self.k[rows], self.seconds[rows])

    @property
    def large(self) -> Booleans:
        """Where m, n and k are all at least LARGE."""
        large: Booleans = np.minimum(np.minimum(self.m, self.n), self.k) >= LARGE
        return large

    def predicted(self, constants: GemmConstants, size: int = 2, out: int = 2) -> Array:
        one = np.ones_like(self.m)
        seconds = aligned_seconds(self.m, self.n, self.k, one, size, out, constants)
        if constants.cells is None:
            return seconds
        m, n, k, batch = (dims.astype(np.int64) for dims in (self.m, self.n, self.k, one))
        return constants.cells.corrected(seconds, m, n, k, batch)

    def errors(self, constants: GemmConstants, size: int = 2, out: int = 2) -> Array:
        """Absolute relative error of each product's prediction."""
        errors: Array = np.abs(self.predicted(constants, size, out) / self.seconds - 1)
        return errors


def consensus(values: Iterable[tuple[Key, str, float]]) -> dict[Key, float]:
    """(shape, source, seconds) -> the median over sources of each source's median: one source is a noisy truth."""
    by_shape: dict[Key, dict[str, list[float]]] = {}
    for shape, source, seconds in values:
        by_shape.setdefault(shape, {}).setdefault(source, []).append(seconds)
    return {shape: median(map(median, sources.values())) for shape, sources in by_shape.items()}


def products(records: Iterable[Record], dtype: str) -> Products:
    """The consensus of all aligned, forward, unbatched products of ``dtype``."""
    wanted = (
        ((record.m, record.n, record.k), record.source, record.seconds)
        for record in records
        if record.dtype == dtype and record.batch == 1 and record.layout == "tn" and record.aligned
    )
    table = np.array([(*shape, seconds) for shape, seconds in sorted(consensus(wanted).items())], dtype=float)
    return Products(*table.reshape(-1, 4).T)


#: Share of the n values (or sequence lengths) held out whole: random rows would leak their neighbours.
HELD_OUT = 0.3


def held_out(values: Array, seed: int = 0, border: float = 512) -> Booleans:
    """Which rows belong to the 30% of distinct values that are held out whole, drawn below and from ``border`` on."""
    random = np.random.default_rng(seed)
    distinct = np.unique(values)
    parts = (distinct[distinct >= border], distinct[distinct < border])
    drawn = [random.choice(part, round(HELD_OUT * len(part)), replace=False) for part in parts]
    rows: Booleans = np.isin(values, np.concatenate(drawn))
    return rows
