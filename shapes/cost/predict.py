"""Any operator -> its Cost; many at once, products vectorised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shapes.cost.alignment import operand_classes
from shapes.cost.constants import (
    Origin,
    collective_constants,
    gemm_constants,
    moving_constants,
    number,
)
from shapes.cost.error import P95_OVER_MEAN, TIERS, expected, gemm_regimes, grouped_regime
from shapes.cost.fused_attention import QUERIES, attention_times, constants_of, phase_of, work_of
from shapes.cost.gemm import GemmTimes, ProductKernels, gemm_times, output_bytes, padded_times
from shapes.cost.moving import DECODE_ERROR, cached_attention_parts, collective_parts, elementwise_parts
from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.kernels import Run, load_kernel, run_of
from shapes.operators.cores import written_out
from shapes.operators.types import (
    Attention,
    CachedAttention,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    Layout,
    Operator,
    Product,
    kind_of,
    named_function,
)
from shapes.timing import Timing


class Term(NamedTuple):
    """One contribution to an operator's time; the seconds of all parts add up to the total."""

    what: str
    seconds: float
    why: str


@frozen
class Cost:
    """Predicted seconds of ONE run of an operator (multiply by ``operator.count``), sustained as in training.

    ``low`` and ``high`` widen the prediction by ``error``, the mean absolute relative error on held-out measurements
    of this ``regime``. ``bound`` is what the time is made of: "compute", "memory", "overhead" or "communication".
    ``tile`` to ``wave_efficiency`` are of matrix products and attention, None elsewhere: output (or query) elements a
    thread block works on, blocks, waves of blocks over the device, share of the computed output that is kept, and
    share of the waves' slots that is filled. ``alignment_s``: seconds each operand's leading dimension costs, by
    operand ("A", "B", "C"). ``kernel``: of attention, what runs it in the end. ``p95``: 95th percentile of the same
    error, None where nobody judged it. ``tier``: what the price rests on, one of `shapes.cost.error.TIERS`.
    """

    seconds: float
    low: float
    high: float
    source: str
    bound: str
    error: float
    regime: str
    tile: tuple[int, int] | None = None
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
    target = load_device(device)

    def priced(listed: Sequence[Operator], path: str) -> Sequence[Cost]:
        costs: Sequence[Cost] = named_function(path)(listed, target)
        return costs

    return tuple(_by_group(list(operators), lambda operator: kind_of(operator).priced, priced))


def _by_group(
    operators: Sequence[Any], key: Callable[[Any], Any], price: Callable[[list[Any], Any], Iterable[Cost]]
) -> list[Cost]:
    """The costs of operators, in their order, those of one ``key`` priced together; errors name the operator."""
    groups: dict[Any, list[int]] = {}
    for index, operator in enumerate(operators):
        try:
            groups.setdefault(key(operator), []).append(index)
        except InputError as error:
            raise error.at(operator.name) from None
    costs: dict[int, Cost] = {}
    for own, indices in groups.items():
        costs.update(zip(indices, price([operators[index] for index in indices], own), strict=True))
    return [costs[index] for index in range(len(operators))]


def product_costs(products: Sequence[Product], device: Device) -> list[Cost]:
    """Costs of matrix products."""
    return _by_group(
        products, lambda product: alike(product, device), lambda own, shared: _products(own, shared, device)
    )


def _dtype(operator: Operator, device: Device) -> str:
    """The operator's element type; InputError where the device lacks it."""
    device.peak(operator.dtype)
    return operator.dtype


class Alike(NamedTuple):
    """What products share that are priced in one go; ``out``: bytes an element of C, ``pads``: may be padded."""

    grouped: bool
    dtype: str
    out: int
    layout: Layout
    recipe: str | None
    pads: bool

    def kernels(self, device: Device) -> ProductKernels:
        return ProductKernels.of(device, self.dtype, self.layout, self.recipe, self.out, self.grouped)

    def times(self, sizes: NDArray[np.int64], device: Device) -> GemmTimes:
        """Times of products of these ``sizes``; of grouped ones, of each group's."""
        by = self.kernels(device)
        times = gemm_times(sizes, by)
        return padded_times(times, sizes, by) if self.pads else times


def alike(operator: Product, device: Device) -> Alike:
    """What the operator has to share with others; InputError: a dtype the device lacks."""
    dtype = _dtype(operator, device)
    out = output_bytes(dtype, getattr(operator, "out_dtype", None))
    grouped, pads = operator.kind == "grouped_gemm", getattr(operator, "pads", False)
    return Alike(grouped, dtype, out, operator.layout, operator.recipe, pads)


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


def sizes_of(products: Iterable[Product]) -> NDArray[np.int64]:
    """Rows m, n, k and batch, a column for each product (``per_group``)."""
    return np.array([per_group(product) for product in products], dtype=np.int64).T


#: Seconds of misalignment by operand of a product that has none.
ALIGNED = (("A", 0.0), ("B", 0.0), ("C", 0.0))


def _products(products: Sequence[Product], shared: Alike, device: Device) -> list[Cost]:
    grouped, dtype, out, layout, recipe, _ = shared
    m, n, k, batch = sizes = sizes_of(products)
    times, by = shared.times(sizes, device), shared.kernels(device)
    constants, origin = by.constants, gemm_constants(device, dtype, recipe)[1]
    slower = number(device, "grouped", "slowdown") if grouped else 1.0
    source = origin.source(device)
    in_a, in_b, in_c = times.alignment
    seconds, tiles = times.seconds, constants.tiles
    if grouped:
        skew = np.array([_skew(product) for product in products])
        seconds = seconds + (seconds - constants.launch_s) * (slower - 1) + skew * times.compute_s
    of_a, of_b, _ = operand_classes(m, n, k, (by.size, by.size, out), layout)
    hit = np.empty(0, np.intp) if by.cells is None else by.cells.hit(m, n, k, batch)
    regimes = gemm_regimes(np.minimum(np.minimum(m, n), k), np.minimum(of_a, of_b), by.alignment, hit)
    if grouped:
        regimes = [grouped_regime(regime) for regime in regimes]
    of_regime = {regime: expected(device, origin, regime, dtype) for regime in dict.fromkeys(regimes)}
    wide = 1 + np.array([of_regime[regime].error for regime in regimes])
    slots = times.tiles * np.array(tiles).prod(axis=1)[times.tile]
    columns = (
        seconds,
        seconds / wide,
        seconds * wide,
        seconds - constants.launch_s,
        times.compute_s,
        times.memory_s,
        times.tile,
        times.tiles.astype(np.int64),
        times.waves,
        1.0 * batch * m * n / slots,
        times.tiles / constants.units / times.waves,
        in_a * slower,
        in_b * slower,
        in_c * slower,
    )
    return [
        Cost(
            total,
            low,
            high,
            source,
            _bound(constants.launch_s, body, compute, memory),
            of_regime[regime].error,
            regime,
            tiles[tile],
            count,
            waves,
            kept,
            filled,
            (("A", a), ("B", b), ("C", c)) if a or b or c else ALIGNED,
            None,
            of_regime[regime].p95,
            of_regime[regime].tier,
        )
        for regime, total, low, high, body, compute, memory, tile, count, waves, kept, filled, a, b, c in zip(
            regimes, *(column.tolist() for column in columns), strict=True
        )
    ]


def _skew(operator: Product) -> float:
    """Share of the even time by which the fullest group's longer reduction outlasts the others, in wgrad."""
    if not isinstance(operator, GroupedGemm) or operator.ragged == "m":
        return 0.0
    return (operator.load - 1) / max(1, operator.groups)


def _bound(launch: float, body: float, compute: float, memory: float) -> str:
    if launch > body:
        return "overhead"
    return "memory" if memory > compute else "compute"


def _cost(seconds: float, source: str, error: float, regime: str, bound: str, **rest: Any) -> Cost:
    return Cost(seconds, seconds / (1 + error), seconds * (1 + error), source, bound, error, regime, **rest)


def attention_costs(operators: Sequence[Attention], device: Device) -> list[Cost]:
    """Costs of fused attentions, or of what runs in their place."""

    def asked(operator: Attention) -> tuple[Any, ...]:
        dtype = _dtype(operator, device)
        return run_for(operator, device).kernel, dtype, operator.phase != "forward", operator.trains

    return _by_group(operators, asked, lambda alike, key: _attention(alike, key, device))


def _attention(operators: Sequence[Attention], key: tuple[Any, ...], device: Device) -> Iterator[Cost]:
    kernel, dtype, backward, trains = key
    if kernel == "eager":
        yield from (_written_out(operator, device) for operator in operators)
        return
    constants, phase = constants_of(kernel, device, dtype), phase_of(backward, trains)
    c, source = constants.phases[phase], constants.source(device)
    runs = [run_for(operator, device) for operator in operators]
    times = attention_times(work_of(operators, runs), c, backward, BYTES[dtype])
    for at, run in enumerate(runs):
        seconds = float(times.seconds[at])
        yield _cost(
            seconds,
            source,
            constants.errors[phase],
            "attention_backward" if backward else "attention",
            bound=_bound(c.launch_s, seconds - c.launch_s, float(times.compute_s[at]), float(times.memory_s[at])),
            tile=(QUERIES, max(run.d_qk, run.d_v)),
            tiles=int(times.blocks[at]),
            waves=float(times.waves[at]),
            tile_efficiency=float(times.ideal_s[at] / times.walked_s[at]),
            wave_efficiency=float(times.blocks[at] / c.units / times.waves[at]),
            kernel=kernel,
            p95=constants.p95s[phase],
            tier=constants.tiers[phase],
        )


def cached_attention_costs(operators: Sequence[CachedAttention], device: Device) -> list[Cost]:
    """Costs of decode steps' attentions."""
    return _by_group(
        operators,
        lambda operator: _dtype(operator, device),
        lambda alike, dtype: [_cached_attention(one, device) for one in alike],
    )


def _cached_attention(operator: CachedAttention, device: Device) -> Cost:
    constants, origin = gemm_constants(device, operator.dtype)
    launch, memory, compute = cached_attention_parts(operator, constants, device)
    body = max(memory, compute)
    return _cost(
        launch + body,
        origin.source(device),
        DECODE_ERROR,
        "decode_attention",
        _bound(launch, body, compute, memory),
        p95=P95_OVER_MEAN * DECODE_ERROR,
        tier="extrapolated",
    )


def run_for(operator: Attention, device: Device) -> Run:
    """Which kernel runs the attention on this device, and in which head dimensions."""
    return run_of(
        operator.kernel, device.architecture, operator.dtype, operator.head_dim, operator.v_head_dim, operator.trains
    )


def attention_titles(operators: Iterable[Operator], device: Device) -> tuple[str, ...]:
    """Titles of the kernels that run the fused attentions among ``operators`` on ``device``."""
    runs = (run_for(operator, device) for operator in operators if isinstance(operator, Attention))
    return tuple(dict.fromkeys(load_kernel(run.kernel).title for run in runs))


def _written_out(operator: Attention, device: Device) -> Cost:
    """An attention that no fused kernel takes: its products and the passes over the square between them."""
    parts = predict_many(written_out(operator), device)
    seconds, error = sum(part.seconds for part in parts), max(part.error for part in parts)
    p95 = max(part.p95 or part.error for part in parts)
    bound = max(parts, key=lambda part: part.seconds).bound
    regime = "attention" if operator.phase == "forward" else "attention_backward"
    tier = max((part.tier for part in parts), key=TIERS.index)
    return _cost(seconds, parts[0].source, error, regime, bound, kernel="eager", p95=p95, tier=tier)


def elementwise_costs(operators: Sequence[Elementwise], device: Device) -> list[Cost]:
    """Costs of memory-bound operators."""
    constants, origin = moving_constants(device)
    return [_moved(elementwise_parts(one, constants), origin, device, "memory_bound", "memory") for one in operators]


def collective_costs(operators: Sequence[Collective], device: Device) -> list[Cost]:
    """Costs of collectives."""
    _, origin = moving_constants(device)
    return _by_group(
        operators,
        lambda operator: collective_constants(device, operator.what),
        lambda alike, own: [
            _moved(collective_parts(one, device, own), origin, device, "collective", "communication") for one in alike
        ],
    )


def _moved(parts: tuple[float, float], origin: Origin, device: Device, regime: str, bound: str) -> Cost:
    fixed, moving = parts
    off = expected(device, origin, regime, origin.dtype)
    return _cost(
        fixed + moving,
        origin.source(device),
        off.error,
        regime,
        p95=off.p95,
        tier=off.tier,
        bound=bound if moving >= fixed else "overhead",
    )
