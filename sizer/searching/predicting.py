"""A candidate of a space as a model, its operators and their predicted time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shapes.cost.error import TIERS
from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import ModelShape
from shapes.model.resize import DIMENSIONS, resize
from shapes.operators import Gemm, GroupedGemm, Operator, operators
from shapes.step import Pricer, Step
from shapes.timing import Timing
from shapes.workload import Workload
from sizer.searching.space import Space

#: Candidates whose operators are priced in one go: few enough to stay in a core's caches.
BATCH = 512


@frozen
class TimedCandidate:
    """A candidate with its time and FLOPs at the baseline's tokens; ``parameters`` are of what is searched.

    ``structure``: what a prediction is off for together with its like (``_structure``). ``ratio_error``: of its time
    over the baseline's, relative, where that is known (None: the timings' own).
    """

    change: Mapping[str, int]
    timing: Timing
    flops: int
    layers: int
    parameters: int
    structure: tuple[int, bool, bool] = (0, False, False)
    ratio_error: float | None = None


def rebuilt(space: Space, change: Mapping[str, int]) -> tuple[ModelShape, Workload]:
    """The space's model and workload with a candidate's change."""
    dims = {key: value for key, value in change.items() if key in DIMENSIONS}
    rest = {key: value for key, value in change.items() if key not in DIMENSIONS}
    model = resize(space.model, **dims) if dims else space.model
    return model, replace(space.workload, **rest) if rest else space.workload  # type: ignore[arg-type]


def timed_operators(space: Space, change: Mapping[str, int]) -> tuple[Operator, ...]:
    """The operators that a candidate's time consists of."""
    return timed(space, *rebuilt(space, change))


def timed(space: Space, model: ModelShape, workload: Workload) -> tuple[Operator, ...]:
    """The operators that the time of ``model`` consists of."""
    listed = space.operators_of or space.timed or operators
    return tuple(listed(model, workload))


def price(space: Space, changes: Sequence[Mapping[str, int]], pricer: Pricer) -> list[TimedCandidate]:
    """Each candidate priced operator by operator, scaled to the baseline's tokens; the operators of many in one go."""
    return [
        one for start in range(0, len(changes), BATCH) for one in _priced(space, changes[start : start + BATCH], pricer)
    ]


def _priced(space: Space, changes: Sequence[Mapping[str, int]], pricer: Pricer) -> list[TimedCandidate]:
    made = [as_run(space, change, pricer.device) for change in changes]
    steps = pricer.steps([timed(space, *one) for one in made], made if space.as_run is not None else None)
    found = [_candidate(space, change, *one, step) for change, one, step in zip(changes, made, steps, strict=True)]
    if space.as_run is None:
        return found
    model, workload = as_run(space, space.baseline, pricer.device)
    own = pricer.step(timed(space, model, workload), workload, model)
    return [
        replace(one, ratio_error=pricer.error_s(own, step) / own.seconds)
        for one, step in zip(found, steps, strict=True)
    ]


def as_run(space: Space, change: Mapping[str, int], device: Device) -> tuple[ModelShape, Workload]:
    """A candidate's model, and its workload as the space's stack runs it on ``device``."""
    model, workload = rebuilt(space, change)
    return model, workload if space.as_run is None else space.as_run(workload, device)


def _candidate(
    space: Space, change: Mapping[str, int], model: ModelShape, workload: Workload, step: Step
) -> TimedCandidate:
    scale = space.tokens / (workload.tokens * step.accumulation)
    tier = max(step.tier, step.cost.tier, key=TIERS.index) if step.cost is not None else step.tier
    timing = Timing(step.seconds * scale, step.low * scale, step.high * scale, step.source, tier)
    return TimedCandidate(
        change, timing, round(step.flops * scale), model.layers, space.parameters(model), _structure(step)
    )


#: Elements beyond which another factor of two in alignment is worth nothing to any kernel.
ALIGNED = 256
#: A product fills whole waves where no more than this of their slots is idle.
IDLE = 0.05
#: Products below this share of all their time (a router's) make no class of their own.
NOTABLE = 0.01


def _structure(step: Step) -> tuple[int, bool, bool]:
    """Of the products whose time counts: the worst alignment, whether the dearest one fills whole waves, and whether

    any expert has fewer rows than a tile.
    """
    priced = [
        (op, cost, op.count * cost.seconds)
        for op, cost in zip(step.operators, step.costs, strict=True)
        if isinstance(op, Gemm | GroupedGemm)
    ]
    least_s = NOTABLE * sum(seconds for _, _, seconds in priced)
    products = [one for one in priced if one[2] >= least_s]
    level = min((min(size & -size, ALIGNED) for op, _, _ in products for size in (op.n, op.k)), default=ALIGNED)
    dearest = max(products, key=lambda one: one[2], default=None)
    filled = dearest[1].wave_efficiency if dearest is not None else None
    thin = any(
        isinstance(op, GroupedGemm) and op.ragged == "m" and cost.tile is not None and op.m < op.groups * cost.tile[0]
        for op, cost, _ in products
    )
    return level, filled is not None and filled >= 1 - IDLE, thin


def tile_of(space: Space, pricer: Pricer, change: Mapping[str, int]) -> int | None:
    """The searched dimension's tile at ``change``: columns of C a thread block computes, over all t shards."""
    found = _of_columns(space, pricer, change)
    return found[1][1] * space.workload.t if found is not None else None


def wave_edges(space: Space, pricer: Pricer, change: Mapping[str, int]) -> tuple[int, ...]:
    """Values of the searched dimension, among its candidates, beyond which a product of that tile is a wave longer."""
    found = _of_columns(space, pricer, change)
    if found is None or not len(space.candidates):
        return ()
    (values,) = space.candidates.columns.values()
    product, (rows, columns) = found
    tile, down = columns * space.workload.t, -(-product.m // rows) * product.batch
    ends = range(-(-int(values.min()) // tile) * tile, int(values.max()) + 1, tile)
    units = pricer.device.compute.units
    waves = [-(-down * (end // tile) // units) for end in (*ends, ends[-1] + tile)] if ends else []
    return tuple(end for end, now, after in zip(ends, waves, waves[1:], strict=False) if after > now)


def _of_columns(space: Space, pricer: Pricer, change: Mapping[str, int]) -> tuple[Gemm, tuple[int, int]] | None:
    """The forward product whose columns are the searched dimension, and its tile; None where there is none."""
    if len(space.baseline) != 1:
        return None
    (value,), t = change.values(), space.workload.t
    step = pricer.step(timed_operators(space, change))
    for operator, cost in zip(step.operators, step.costs, strict=True):
        columns = (value // t, -(-value // t))
        if isinstance(operator, Gemm) and operator.phase == "forward" and cost.tile and operator.n in columns:
            return operator, cost.tile
    return None


def devices_agree(devices: Sequence[Device], dtype: str) -> None:
    """Raise InputError where a device has no figures for the element type."""
    for device in devices:
        if dtype not in device.peak_flops:
            raise InputError(
                f"{device.name} has no figures for it; it has {', '.join(device.peak_flops)}",
                key="--dtype",
                value=dtype,
            )
