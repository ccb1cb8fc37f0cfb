"""A user's own measurements -> a device's constants: the records, the fit, and the tables of a device's file.

Used by `sizer calibrate`; needs scipy. The shipped constants were fitted by reports/fit on published tables. In a
device's file the tables [cost], [error] and [provenance] are written, and not one byte else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from .cost.constants import LARGE, NUMBERS, GemmConstants, gemm_constants
from .cost.corrections import LEADING, LEVELS, Array, Booleans, Integers, moved_bytes
from .cost.gemm import aligned_seconds, uncorrected_seconds
from .device import Device
from .dtypes import BYTES
from .errors import InputError, read_text, refuse, write_whole
from .frozen import Items, Named, Numbers, Values, among, frozen, in_words, plain, replace
from .measure.dataset import control_median
from .measure.environment import Environment
from .measure.store import Store
from .toml_table import DATA, MAX_BYTES, content


@frozen
class Record:
    """One measured product; ``source`` tells frameworks (or runs) apart; their median is taken for the truth."""

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
        dimensions = self.m, self.n, self.k
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
        own = {name: row[name] for name in ("m", "n", "k", "batch", "dtype", "layout")}
        refuse(
            row["dtype"] not in BYTES or row["layout"] not in LEADING or not all(own.values()),
            "expected positive sizes, a known dtype and layout of each product",
            value=one.key,
            where=str(store.path),
        )
        # A card, or an hour, in which the control shape is slower by a percent slows these by as much.
        steady = usual_s / one.control_s if usual_s and one.control_s else 1.0
        found.append(Record(**own, seconds=row["seconds"] * steady, source=one.environment.source))
    return tuple(found)


Key = TypeVar("Key", bound=Items)


@frozen
class Products:
    """Measured aligned products: dimensions and seconds, arrays of one length."""

    m: Array
    n: Array
    k: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, rows: Booleans | Integers) -> "Products":
        return Products(self.m[rows], self.n[rows], self.k[rows], self.seconds[rows])

    @property
    def sizes(self) -> Array:
        """Rows m, n, k and batch."""
        return np.array([self.m, self.n, self.k, np.ones_like(self.m)])

    @property
    def large(self) -> Booleans:
        """Where m, n and k are all at least LARGE."""
        return self.sizes[:3].min(axis=0) >= LARGE

    def predicted(self, constants: GemmConstants, size: float = 2, out: int = 2) -> Array:
        seconds = aligned_seconds(self.sizes, moved_bytes(self.sizes, size, out), constants)
        return constants.cells.corrected(seconds, self.sizes.astype(np.int64)) if constants.cells else seconds

    def errors(self, constants: GemmConstants, size: float = 2, out: int = 2) -> Array:
        """Absolute relative error of each product's prediction."""
        return np.abs(self.predicted(constants, size, out) / self.seconds - 1)


def consensus(values: Iterable[tuple[Key, str, float]]) -> dict[Key, float]:
    """(shape, source, seconds) -> the median over sources of each source's median: one source is a noisy truth."""
    by_shape = dict[Key, dict[str, list[float]]]()
    for shape, source, seconds in values:
        by_shape.setdefault(shape, {}).setdefault(source, []).append(seconds)
    return {shape: median(map(median, sources.values())) for shape, sources in by_shape.items()}


def products(records: Iterable[Record], dtype: str) -> "Products":
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
    parts = distinct[distinct >= border], distinct[distinct < border]
    drawn = [random.choice(part, round(HELD_OUT * len(part)), replace=False) for part in parts]
    return np.isin(values, np.concatenate(drawn))


#: Relative residual from which a shape pulls less than in proportion: 1-4% of shapes are kernel-choice cliffs.
ROBUST_SCALE = 0.05

#: Rows a fit of the closed form looks at: more change nothing in the third digit.
ROWS = 2000


def bounds(device: Device, dtype: str) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each constant: what is physically sensible, which is also what carries over.

    No rate above the peak, and no loss hidden in a load or a throttling so gradual that it acts on every product.
    """
    of = {
        "": 1.0,
        "peak": device.peak(dtype),
        "bandwidth": device.memory.bandwidth_bytes_per_s,
        "l2": device.memory.l2_bytes,
    }
    limits = content(DATA / "fitting.toml")["bounds"].items()
    return {name: (low * of[unit], high * of[unit]) for name, (low, high, unit) in limits}


def fit_closed_form(
    products: "Products",
    guess: GemmConstants,
    limits: dict[str, tuple[float, float]],
    sizes: tuple[float, int],
    starts: int,
    seed: int = 0,
    prior: float | None = None,
) -> GemmConstants:
    """The 14 numbers by least squares on log time; ``prior``: pull each towards ``guess`` by that many log units."""
    from scipy.optimize import least_squares

    random = np.random.default_rng(seed)
    seen = products[random.choice(len(products), min(ROWS, len(products)), replace=False)]
    low, high = (np.log([limits[name][side] for name in NUMBERS]) for side in (0, 1))
    # A device whose power is ample has no throttling: 0, below every bound.
    begun = np.maximum([getattr(guess, name) for name in NUMBERS], np.exp(low))
    centre = np.clip(np.log(begun), low + 1e-6, high - 1e-6)
    dims, moved = seen.sizes, moved_bytes(seen.sizes, *sizes)

    def residuals(theta: Array) -> Array:
        trial = _with(guess, theta)
        price = aligned_seconds if trial.correction else uncorrected_seconds
        pull = () if prior is None else (theta - centre) * (ROBUST_SCALE / prior)
        return np.concatenate([np.log(price(dims, moved, trial) / seen.seconds), pull])

    how = {"loss": "soft_l1", "f_scale": ROBUST_SCALE, "x_scale": "jac", "max_nfev": 40}
    fitted = partial(least_squares, residuals, bounds=(low, high), **how)
    further = (centre + random.normal(0, 0.6, centre.size) for _ in range(starts - 1))
    begins = np.clip([centre, *further], low + 1e-6, high - 1e-6)
    return _with(guess, min(map(fitted, begins), key=lambda result: result.cost).x)


def _with(constants: GemmConstants, theta: Array) -> GemmConstants:
    return replace(constants, **dict(zip(NUMBERS, np.exp(theta).tolist(), strict=True)))


#: How far a refined constant may stray from where it was, in log units: what differs between relatives.
PRIOR = 0.15
#: Stated, not measured: no public table holds fused elementwise kernels.
STATED = {"memory_bound": 0.15}

Progress = Callable[[str], None]
#: Products that may be seen, the device, the dtype and a seed -> constants.
Fit = Callable[[Products, Device, str, int], GemmConstants]


@frozen
class Calibration:
    """A calibration's result: the owned tables of a device file, and a line for each error."""

    device: str
    cost: Values
    error: Values
    provenance: Values

    @property
    def tables(self) -> dict[str, Values]:
        return {name: getattr(self, name) for name in OWNED}


def calibrate(
    device: Device,
    records: Sequence[Record],
    *,
    seed: int = 0,
    fit: Fit | None = None,
    data: str | None = None,
    progress: Progress = lambda _: None,
) -> Calibration:
    """Pull ``device``'s constants towards ``records``.

    Errors are those of constants that have not seen the held-out n, which are the constants returned. ``fit`` is what
    is done to the products that may be seen (`refine`); ``data`` says where the records are from.
    """
    cost, error = plain(device.cost), STATED | plain(device.errors)
    provenance = {
        # Constants that are not fitted anew stay, and so does what they were fitted on.
        **among(plain(device.provenance), cost),
        "data": data or "; ".join(sorted({record.source for record in records})),
        "date": date.today().isoformat(),
        "seed": seed,
        "held_out": "30% of the n values whole; of the sequence lengths for attention",
    }
    for dtype in sorted({record.dtype for record in records}):
        measured = products(records, dtype)
        if dtype not in device.peak_flops or len(measured) == 0:
            continue
        hidden = held_out(measured.n, seed)
        constants = (fit or refine)(measured[~hidden], device, dtype, seed)
        cost[dtype], error[dtype] = gemm_table(constants), _errors(measured, constants, dtype, hidden)
        provenance[dtype] = {
            "shapes": len(measured),
            "sources": sorted({record.source for record in records if record.dtype == dtype}),
            "held_out_n": np.unique(measured.n[hidden]).tolist(),
        }
        figures = in_words(error[dtype], "{} {:.1%}")
        progress(f"{device.name} {dtype}: error on held-out n: {figures}")
    return Calibration(device.name, cost, error, provenance)


def _errors(measured: "Products", constants: GemmConstants, dtype: str, hidden: Booleans) -> Numbers:
    """Mean error by regime on the rows that the fit has not seen."""
    off, large = measured.errors(constants, BYTES[dtype], max(2, BYTES[dtype])), measured.large
    return {
        name: round(float(off[rows & hidden].mean()), 4)
        for name, rows in (("large", large), ("small", ~large))
        if (rows & hidden).any()
    }


def refine(measured: "Products", device: Device, dtype: str, seed: int = 0) -> GemmConstants:
    """The device's present (or borrowed) constants, pulled towards measured products: the more, the further.

    The correction tables stay; both sets move, the small one by the same factors. Cells go: their bounds on growth hold
    of the constants that they were fitted over.
    """
    present = replace(gemm_constants(device, dtype)[0], cells=None)
    sizes = BYTES[dtype], max(2, BYTES[dtype])
    limits = {
        name: (0.5 * now if 0 < (now := getattr(present, name)) <= low else low, 2 * now if now >= high else high)
        for name, (low, high) in bounds(device, dtype).items()
    }
    refined = fit_closed_form(measured, present, limits, sizes, starts=1, seed=seed, prior=PRIOR)
    small = present.small
    if not small:
        return refined
    rates = "flops_per_s", "bandwidth_bytes_per_s", "cache_bandwidth_bytes_per_s", "launch_s"
    moved = {name: getattr(small, name) * getattr(refined, name) / getattr(present, name) for name in rates}
    return replace(refined, small=replace(small, **moved))


#: Top-level tables that calibration owns.
OWNED = ("cost", "error", "provenance")
#: Rows of numbers that are written in one line.
MOST_IN_A_LINE = 8


def write_tables(path: Path, tables: Mapping[str, Named]) -> None:
    """Replace the owned tables of the device file by ``tables`` (name -> content); the file is swapped whole.

    InputError when the file cannot be read or written, or a table is not an owned one.
    """
    for name in tables.keys() - set(OWNED):
        raise InputError(f"expected one of {', '.join(OWNED)}", name, where=str(path))
    write_whole(path, replaced(read_text(path, MAX_BYTES), tables).encode())


def replaced(text: str, tables: Mapping[str, Named]) -> str:
    """The TOML ``text`` without the old ``tables`` and with these at its end; all else is unchanged."""
    import tomlkit  # who measures writes no tables

    document = tomlkit.parse(text)
    for name, table in tables.items():
        document.pop(name, None)
        document.append(name, tomlkit.item(written(table)))
    return tomlkit.dumps(document)


def written(value: Any) -> Any:
    """``value`` as files of facts have it: lines of numbers in a literal string, a longer table's rows one a line."""
    import tomlkit  # as above

    if isinstance(value, Mapping):
        return {key: written(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        rows = tomlkit.item([*map(written, value)])
        return rows.multiline(len(value) > MOST_IN_A_LINE and isinstance(value[0], list | tuple))
    return tomlkit.value(f"'''\n{value}'''") if str(value).endswith("\n") else value


def gemm_table(constants: GemmConstants) -> Values:
    """``[cost.<dtype>]`` of a closed form; to six digits: rounding must not undo the order of two sizes' times."""
    numbers = [*NUMBERS, *(["split_steps"] if isfinite(constants.split_steps) else [])]
    table: Values = {name: float(f"{getattr(constants, name):.6g}") for name in numbers}
    table["tiles"] = [*map(list, constants.tiles)]
    if constants.small:
        table["small"] = gemm_table(constants.small)
    return table
