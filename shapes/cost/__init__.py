"""Any operator -> its Cost; many at once, products vectorised.

`seconds_of` gives the seconds alone of operators whose sizes are columns (`shapes.columns`), which a search prices
without an object for each row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shapes.columns import spread
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.frozen import Function, Items, Names, Pair, T, frozen
from shapes.kernels import Run, load_kernel, run_of
from shapes.operators.cores import written_out
from shapes.operators.types import Attention, Gemm, Operator, Product, kind_of
from shapes.program import named_function

from .constants import (
    GROUPED,
    IN_CELL,
    LARGE,
    MISALIGNED_AS,
    WEIGHTS_ALONE,
    Expected,
    Origin,
    expected,
    gemm_constants,
    least_certain,
    published_error,
)
from .corrections import CLASSES, OPERANDS, Integers, operand_classes
from .fused_attention import (
    LARGEST_ENCODER_HEAD,
    QUERIES,
    AttentionBatch,
    AttentionTimes,
    attention_row,
    attention_times,
    constants_of,
    phase_of,
    work_of,
)
from .gemm import ProductKernels, gemm_seconds, gemm_times, output_bytes
from .moving import moved_parts, origin_of


class Term(NamedTuple):
    """One contribution to an operator's time; the seconds of all parts add up to the total."""

    what: str
    seconds: float
    why: str


@frozen
class Timing:
    """Seconds of one run with an interval and where they come from.

    ``source`` is "predicted:<device>" or "measured:<device name> torch <version> …". ``low`` and ``high`` bound a
    prediction by its held-out error and a measurement by its confidence interval. ``tier``: what the seconds rest on
    (measured, fitted, published, borrowed, extrapolated).
    """

    seconds: float
    low: float
    high: float
    source: str
    tier: str = "measured"

    @property
    def measured(self) -> bool:
        return self.source.startswith("measured:")

    @property
    def half_width(self) -> float:
        """Half the interval's width relative to the seconds."""
        return (self.high - self.low) / 2 / self.seconds


@frozen
class Cost:
    """Predicted seconds of ONE run of an operator (multiply by ``operator.count``), sustained as in training.

    ``low`` and ``high`` widen the prediction by ``error``, the mean absolute relative error on held-out measurements
    of this ``regime``. ``bound`` is what the time is made of: "compute", "memory", "overhead" or "communication".
    ``tile`` to ``wave_efficiency`` are of matrix products and attention, None elsewhere: output (or query) elements a
    thread block works on, blocks, waves of blocks over the device, share of the computed output that is kept, and
    share of the waves' slots that is filled. ``alignment_s``: seconds each operand's leading dimension costs, by
    operand ("A", "B", "C"). ``kernel``: of attention, what runs it in the end. ``p95``: 95th percentile of the same
    error, None where nobody judged it. ``tier``: what the price rests on, one of `shapes.cost.constants.TIERS`.
    """

    seconds: float
    low: float
    high: float
    source: str
    bound: str
    error: float
    regime: str
    tile: Pair | None = None
    tiles: int | None = None
    waves: float | None = None
    tile_efficiency: float | None = None
    wave_efficiency: float | None = None
    alignment_s: tuple[tuple[str, float], ...] = ()
    kernel: str | None = None
    p95: float | None = None
    tier: str = "fitted"

    @property
    def timing(self) -> Timing:
        """The same seconds as measured times have them."""
        return Timing(self.seconds, self.low, self.high, self.source, self.tier)


def predict(operator: Operator, device: str | Device) -> Cost:
    """Predicted cost of one run of ``operator``; see `predict_many`."""
    return predict_many([operator], device)[0]


def predict_many(operators: Iterable[Operator], device: str | Device) -> tuple[Cost, ...]:
    """Predicted costs of one run of each operator, in order, sustained as in training.

    InputError naming the operator: a dtype the device lacks, or a kind that has no cost. Nothing is skipped.
    """
    return tuple(
        _by_group(
            list(operators),
            load_device(device),
            lambda one, _: kind_of(one).priced,
            lambda listed, path, target: named_function(path)(listed, target),
        )
    )


def _by_group(
    operators: Sequence[Any], device: Device, key: Function, price: Callable[[list[Any], Any, Device], Iterable[Cost]]
) -> list[Cost]:
    """The costs of operators, in their order, those of one ``key`` priced together; errors name the operator."""
    groups = dict[Any, list[int]]()
    for index, operator in enumerate(operators):
        groups.setdefault(_naming(key, operator, device), []).append(index)
    costs = dict[int, Cost]()
    for own, indices in groups.items():
        costs.update(zip(indices, price([operators[index] for index in indices], own, device), strict=True))
    return [costs[index] for index in range(len(operators))]


def _naming(function: Callable[[Any, Device], T], operator: Operator, device: Device) -> T:
    """``function`` of the operator, which its InputError names."""
    # As `shapes.errors.within` does, without a context manager for each of a plan's operators.
    try:
        return function(operator, device)
    except InputError as error:
        error.where = error.where or operator.name
        raise


def seconds_of(operators: Sequence[Operator], device: Device) -> list[Any]:
    """Predicted seconds of one run of each operator: a column where sizes are. InputError as of `predict_many`."""
    found: list[Any] = [None] * len(operators)
    groups = dict[tuple[ProductKernels, float], dict[Items, list[int]]]()
    for place, operator in enumerate(operators):
        if kind_of(operator).parts:
            found[place] = sum(moved_parts(operator, device))
        elif isinstance(operator, Product):
            equal = groups.setdefault((alike(operator, device), _load(operator)), {})
            equal.setdefault(per_group(operator), []).append(place)
        elif isinstance(operator, Attention):
            found[place] = _attention_seconds(operator, device)
    for key, equal in groups.items():
        packs, sizes = zip(*(spread(*one) for one in equal), strict=True)
        seconds = gemm_seconds(np.concatenate(sizes, axis=1), *key)
        ends = np.cumsum([one.shape[1] for one in sizes])
        for places, pack, own in zip(equal.values(), packs, np.split(seconds, ends[:-1]), strict=True):
            for place in places:
                found[place] = pack(own)
    return found


def alike(operator: Product, device: Device) -> ProductKernels:
    """The kernels that price the operator, in one go with others; InputError: a dtype the device lacks."""
    device.peak(operator.dtype)
    # A model's low-precision products write a type that is said; engines run those of few rows by kernels of their own.
    wide = getattr(operator, "out_dtype", None)
    out, recipe = output_bytes(operator.dtype, wide), operator.recipe and operator.recipe + "_served" * bool(wide)
    grouped, pads = operator.kind == "grouped_gemm", getattr(operator, "pads", False)
    said = operator.layout, recipe, out, grouped, pads, operator.weight_bytes
    return ProductKernels(device, operator.dtype, *said)


def per_group(operator: Product) -> tuple[int, int, int, int]:
    """m, n, k, batch of one product; of a grouped one, an even share of the ragged dimension for each group."""
    if isinstance(operator, Gemm):
        return operator.m, operator.n, operator.k, operator.batch
    m, k = operator.m, operator.k
    if operator.ragged == "m":
        m = np.maximum(round(m / operator.groups), 1)
    else:
        k = np.maximum(round(k / operator.groups), 1)
    return m, operator.n, k, operator.groups


def sizes_of(products: Iterable[Product]) -> Integers:
    """Rows m, n, k and batch, a column for each product (``per_group``)."""
    return np.array([*map(per_group, products)], dtype=np.int64).T


def _load(operator: Product) -> float:
    """The fullest group's reduction over the even one, which outlasts the others' in wgrad."""
    return 1.0 if isinstance(operator, Gemm) or operator.ragged == "m" else operator.load


def _products(products: Sequence[Product], by: ProductKernels, device: Device) -> Iterator[Cost]:
    m, n, _, batch = sizes = sizes_of(products)
    times = gemm_times(sizes, by, np.array([*map(_load, products)]))
    constants = by.constants
    _, origin = gemm_constants(device, by.dtype, by.recipe)
    source, regimes = origin.source(device), _regimes(sizes, by)
    judged = {regime: expected(device, origin, regime, by.dtype) for regime in dict.fromkeys(regimes)}
    if by.weights_alone:
        judged = {regime: one.combined(WEIGHTS_ALONE) for regime, one in judged.items()}
    # Those of small products begin with the others.
    tiles = (constants.small or constants).tiles
    slots = times.tiles * np.array(tiles).prod(axis=1)[times.tile]
    columns = (
        times.seconds,
        times.compute_s,
        times.memory_s,
        times.tile,
        times.tiles.astype(np.int64),
        times.waves,
        1.0 * batch * m * n / slots,
        times.tiles / constants.units / times.waves,
        *(one * by.slower for one in times.alignment),
    )
    for regime, total, compute, memory, tile, count, waves, kept, filled, *extra in zip(
        regimes, *(column.tolist() for column in columns), strict=True
    ):
        bound = _bound(constants.launch_s, total - constants.launch_s, compute, memory)
        yield cost_of(
            total,
            source,
            judged[regime],
            regime,
            bound,
            tile=tiles[tile],
            tiles=count,
            waves=waves,
            tile_efficiency=kept,
            wave_efficiency=filled,
            alignment_s=tuple(zip(OPERANDS, extra, strict=True)),
        )


def _regimes(sizes: Integers, by: ProductKernels) -> list[str]:
    """The regime of each product's error."""
    of_a, of_b, _ = operand_classes(sizes, by.elements, by.layout)
    hit = by.cells.hit(sizes) if by.cells else np.empty(0, np.intp)
    names = np.where(np.min(sizes[:3], axis=0) >= LARGE, "large", "small").astype(object)
    names[hit] += IN_CELL
    if by.grouped:
        names[:] = GROUPED
    for index, name in enumerate(CLASSES):
        if by.alignment.served[index]:
            # Of a grouped product, what its groups would be in, each by itself, comes on top.
            names[np.minimum(of_a, of_b) == index] = f"{GROUPED}, " * by.grouped + MISALIGNED_AS + name
    return names.tolist()


#: Costs of matrix products on a device.
product_costs = partial(_by_group, key=alike, price=_products)


def _bound(launch: float, body: float, compute: float, memory: float) -> str:
    return "overhead" if launch > body else "memory" if memory > compute else "compute"


def cost_of(seconds: float, source: str, off: Expected, regime: str, bound: str, **rest: Any) -> Cost:
    """``rest``: the fields from ``tile`` on."""
    wide = 1 + off.error
    low, high = seconds / wide, seconds * wide
    return Cost(seconds, low, high, source, bound, off.error, regime, p95=off.p95, tier=off.tier, **rest)


def run_for(operator: Attention, device: Device) -> Run:
    """Which kernel runs the attention on this device, and in which head dimensions, which have to be numbers."""
    d_qk, d_v = int(operator.head_dim), int(operator.v_head_dim)
    return run_of(operator.kernel, device.architecture, operator.dtype, d_qk, d_v, operator.trains)


def attention_titles(operators: Iterable[Operator], device: Device) -> Names:
    """Titles of the kernels that run the fused attentions among ``operators`` on ``device``."""
    runs = (run_for(operator, device) for operator in operators if isinstance(operator, Attention))
    return tuple(dict.fromkeys(load_kernel(run.kernel).title for run in runs))


class AlikeAttention(NamedTuple):
    """The key that fused attentions priced in one go share."""

    kernel: str
    dtype: str
    phase: int

    def times(self, work: AttentionBatch, device: Device) -> AttentionTimes:
        constants = constants_of(self.kernel, device, self.dtype).phases[self.phase]
        return attention_times(work, constants, self.phase == 1, BYTES[self.dtype])


def alike_attention(operator: Attention, device: Device) -> AlikeAttention:
    """The key that the operator shares with others priced in one go; InputError: a dtype the device lacks."""
    device.peak(operator.dtype)
    phase = phase_of(operator.phase != "forward", operator.trains or not operator.causal)
    if phase == 2 and not operator.trains and operator.head_dim <= LARGEST_ENCODER_HEAD:
        phase = 3
    return AlikeAttention(run_for(operator, device).kernel, operator.dtype, phase)


def _attention(operators: Sequence[Attention], shared: AlikeAttention, device: Device) -> Iterator[Cost]:
    regime = "attention" + "_backward" * (shared.phase == 1)
    if shared.kernel == "eager":
        # No fused kernel takes it: its products, and the passes over the square between them.
        for operator in operators:
            parts = predict_many(written_out(operator), device)
            off = Expected(
                max(part.error for part in parts),
                max(part.p95 or part.error for part in parts),
                least_certain(part.tier for part in parts),
            )
            bound = max(parts, key=lambda part: part.seconds).bound
            seconds = sum(part.seconds for part in parts)
            yield cost_of(seconds, parts[0].source, off, regime, bound, kernel="eager")
        return
    constants = constants_of(shared.kernel, device, shared.dtype)
    c, source = constants.phases[shared.phase], constants.source(device)
    runs = [run_for(operator, device) for operator in operators]
    times = shared.times(work_of(operators, runs), device)
    for at, run in enumerate(runs):
        one = times.only(at)
        yield cost_of(
            one.seconds,
            source,
            constants.expected[shared.phase],
            regime,
            _bound(c.launch_s, one.seconds - c.launch_s, one.compute_s, one.memory_s),
            tile=(QUERIES, max(run.d_qk, run.d_v)),
            tiles=int(one.blocks),
            waves=one.waves,
            tile_efficiency=one.ideal_s / one.walked_s,
            wave_efficiency=one.blocks / c.units / one.waves,
            kernel=shared.kernel,
        )


#: Costs of fused attentions, or of what runs in their place.
attention_costs = partial(_by_group, key=alike_attention, price=_attention)


def _attention_seconds(operator: Attention, device: Device) -> Any:
    """Seconds of a fused attention.

    Kernels are chosen, and fitted, by the head dimensions: rows are told apart by them.
    """
    shared = alike_attention(operator, device)
    if shared.kernel == "eager":
        return sum(seconds_of(written_out(operator), device))
    pack, rows = spread(*attention_row(operator, run_for(operator, device)))
    return pack(shared.times(AttentionBatch(*rows.astype(float)), device).seconds)


def _moved(operators: Sequence[Operator], shared: tuple[str, Origin], device: Device) -> Iterator[Cost]:
    regime, origin = shared
    judged = kind_of(operators[0]).form
    off = published_error(origin) if judged else expected(device, origin, regime, origin.dtype)
    for operator in operators:
        fixed, moving, *computing = _naming(moved_parts, operator, device)
        rest = float(moving + sum(computing))
        bound = _bound(fixed, rest, sum(computing), moving)
        if regime == "collective":
            bound = bound.replace("memory", "communication")
        yield cost_of(fixed + rest, origin.source(device), off, regime, bound)


#: Costs of what moves bytes above all: memory-bound operators, collectives, a decode step's attention.
moved_costs = partial(_by_group, key=lambda one, on: (kind_of(one).regime, origin_of(one, on)), price=_moved)
