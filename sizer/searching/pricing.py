"""Candidates as models, their operators and predicted time: one at a time for what is shown, all of them as arrays.

A space's columns run through the same formulas as one candidate does (`shapes.columns`): the same model, operators,
costs and stack, so that what is found of many is what `price` gives for each.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from shapes.columns import Array, IntegerTable, each_part, objects, rows_by
from shapes.cost import Cost, Timing, seconds_of
from shapes.cost.constants import least_certain
from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import Names, Sizes, frozen, replace
from shapes.model import ModelShape
from shapes.model.resize import dimensions
from shapes.operators import operators
from shapes.operators.types import GroupedGemm, Operator, Operators, Product
from shapes.program import REQUESTS
from shapes.step import Pricer, Step, schedule_of
from shapes.step.seconds import each_value, microbatch, slowest_stage, step_parts, work
from shapes.workload import Workload

from .space import EQUAL, OBJECTIVES, TIE, Candidates, Space, reaches, resized

#: How far a search is, of how much, and the best so far ("": not known).
Progress = Callable[[int, int, str], None]
#: Where nobody wants to know.
QUIET: Progress = lambda *_: None  # noqa: E731


@frozen
class TimedCandidate:
    """A candidate with its time and FLOPs at the baseline's tokens, and the ``parameters`` of the part searched.

    ``structure``: candidates that are alike in it have errors that are alike (``_structure``). ``ratio_error``:
    relative error of its time over the baseline's, if known (None: the timings' own). ``launch_bound``: most of its
    time is in products that the host launches more slowly than the device runs them. ``layout``: its fastest layout, if
    layouts were asked for.
    """

    change: Sizes
    timing: Timing
    flops: int
    layers: int
    parameters: int
    structure: tuple[int, bool, bool]
    ratio_error: float | None
    launch_bound: bool
    layout: Workload | None = None


def rebuilt(space: Space, change: Sizes) -> tuple[ModelShape, Workload]:
    """The space's model and workload with a candidate's change; a longer context's cache is longer."""
    workload = space.workload
    if "s" in change:
        s, own = int(change["s"]), space.baseline["s"]
        workload = replace(workload, s=s, context=workload.context and workload.context * s // own)
    return resized(space.model, change), workload


@runtime_checkable
class Layouts(Protocol):
    """How a baseline's step is spread over devices (`sizer.plan`'s answer), and how steps of models like it are."""

    stack: str

    def ways(self) -> Sequence[Workload]:
        """The fastest layout of each split, the fastest first."""

    def best(self, model: ModelShape, ways: Sequence[Workload]) -> Workload:
        """The fastest layout of another model, of the splits of ``ways``. InputError: it does not fit in any."""


def in_layouts(
    space: Space,
    changes: Sequence[Sizes],
    layouts: Layouts,
    ways: Sequence[Workload],
    pricer: Pricer,
    progress: Progress,
) -> list[TimedCandidate]:
    """The baseline in the first of ``ways``, then each candidate that fits in their splits, as its own plan spreads it.

    After a request to stop those that are known, at least one: then as the baseline is spread, fitting or not.
    """

    def run(change: Sizes, way: Workload) -> TimedCandidate:
        (one,) = price(run_as(space, replace(way, s=space.workload.s)), [change], pricer)
        return replace(one, layout=way)

    found = [run(space.baseline, ways[0])]
    for done, change in enumerate(changes, 1):
        if REQUESTS and len(found) > 1:
            break
        with suppress(InputError):  # it does not split so, or does not fit
            model, workload = rebuilt(space, change)
            spread = [replace(way, s=workload.s) for way in ways]
            found.append(run(change, spread[0] if REQUESTS else layouts.best(model, spread)))
        progress(done, len(changes), f"{min(one.timing.seconds for one in found):.3g} s a step")
    return found


def run_as(space: Space, way: Workload) -> Space:
    """The space with every candidate run so, as whole steps."""
    return replace(space, workload=way, as_run=lambda workload, _: workload)


def price(space: Space, changes: Sequence[Sizes], pricer: Pricer) -> list[TimedCandidate]:
    """Each candidate priced operator by operator, scaled to the baseline's tokens; the operators of all in one go."""
    every, whole, made = [space.baseline, *changes], space.as_run is not None, dict[int, _Run]()
    for part, one in each_part(IntegerTable(Candidates.of(every).columns), partial(run_of, space, pricer.device)):
        made.update(zip(part.rows.tolist(), objects(part, one), strict=True))
    runs = [made[row] for row in range(len(every))]
    pricer.learn(run[2] for run in runs)
    own, *steps = (pricer.step(run[2], *(run[1::-1] if whole else ())) for run in runs)
    return [
        _candidate(change, run, step, pricer.error_s(own, step) / own.seconds if whole else None)
        for change, run, step in zip(changes, runs[1:], steps, strict=True)
    ]


#: A model, its workload, the operators timed, the baseline's tokens over a step's, FLOPs at those, and parameters.
_Run = tuple[ModelShape, Workload, Operators, float, int, int]


def run_of(space: Space, device: Device, change: Sizes | IntegerTable) -> _Run:
    """A candidate, or many as columns, as the space's stack runs it on ``device``."""
    # Attention's kernels differ by it, and stages by the order of a hybrid's layers. Columns have no order: rows are
    # told apart before the rest is worked out.
    ordered = space.workload.p > 1 and "full_every" in dimensions(space.model)
    for name in {"head_dim", *("layers", "full_every") * ordered} & {*change.keys()}:
        int(change[name])
    model, workload = rebuilt(space, {**change})
    if space.as_run:
        workload = space.as_run(workload, device)
    listed = tuple((space.timed or operators)(model, workload))
    flops = sum(one.flops * one.count for one in listed if one.phase != "optimizer")
    scale = space.tokens / replace(space, workload=workload).tokens
    return model, workload, listed, scale, round(space.tokens / workload.tokens * flops), model.parameters


def _candidate(change: Sizes, run: _Run, step: Step, ratio_error: float | None) -> TimedCandidate:
    model, _, _, scale, flops, parameters = run
    tier = least_certain((step.tier, step.cost.tier)) if step.cost else step.tier
    timing = Timing(step.seconds * scale, step.low * scale, step.high * scale, step.source, tier)
    products = [(op, cost, op.count * cost.seconds) for op, cost in step.priced if isinstance(op, Product)]
    short_s = sum(own for _, cost, own in products if cost.seconds < HOST_S)
    launch_bound = 2 * short_s > sum(own for *_, own in products)
    return TimedCandidate(
        change, timing, flops, model.layers, parameters, _structure(products), ratio_error, launch_bound
    )


#: The least time in which a host launches a product: GAC's took 15 to 18 us on H100 (reports/search-gac.md).
HOST_S = 10e-6
#: Elements beyond which another factor of two in alignment is worth nothing to any kernel.
ALIGNED = 256
#: A product fills whole waves where no more than this of their slots is idle.
IDLE = 0.05
#: Products below this share of all their time (a router's) make no class of their own.
NOTABLE = 0.01


def _structure(products: Sequence[tuple[Product, Cost, float]]) -> tuple[int, bool, bool]:
    """How well the products whose time counts are shaped.

    The worst alignment, whether the dearest one fills whole waves, and whether any expert has fewer rows than a tile.
    """
    if not products:
        return ALIGNED, False, False
    least_s = NOTABLE * sum(own for *_, own in products)
    products = [one for one in products if one[-1] >= least_s]
    level = min(min(size & -size, ALIGNED) for op, *_ in products for size in (op.n, op.k))
    filled = max(products, key=itemgetter(-1))[1].wave_efficiency
    thin = any(
        isinstance(op, GroupedGemm) and op.ragged == "m" and cost.tile and op.m < op.groups * cost.tile[0]
        for op, cost, _ in products
    )
    return level, filled is not None and filled >= 1 - IDLE, thin


#: Candidates of a large space that become objects: those that an answer, its page and its picture hold.
SHOWN = 256
#: And of the values of one dimension, which make a curve.
DRAWN = 1024
#: Name of the constraint that leaves out candidates with a step longer than a share of the baseline's.
BUDGET = "--limit training-budget={:.0%}"
#: Shares of a decode step in what orders candidates for training and serving.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Estimates(NamedTuple):
    """Each candidate's ``seconds`` at the baseline's tokens, FLOPs, layers and parameters.

    Seconds are NaN for a candidate that does not divide over its ranks.
    """

    seconds: Array
    flops: Array
    layers: Array
    parameters: Array


def shortlist(
    space: Space,
    pricer: Pricer,
    objective: str,
    progress: Progress,
    serving: Workload | None,
    budget: float | None,
    ways: Sequence[Workload],
) -> tuple[Space, Sequence[Sizes]]:
    """All candidates of a small space; of a large one the best, and those that no other beats.

    These are the ``SHOWN`` best, and the Pareto front of time and parameters (or loss). If one dimension is searched,
    some more evenly spread values complete the picture. With ``serving`` they are the best by every weight of a
    training step against a decode step, and the front of both. ``budget``: the longest step, over the baseline's, to
    which a large space is cut. ``ways``: layouts; each candidate runs in its fastest.
    """
    single = len(space.baseline) == 1
    if len(space.candidates) <= (DRAWN if single else SHOWN) and not ways:
        return space, space.candidates
    space, found = _cut(space, estimates(space, space.candidates, pricer, progress, ways), pricer, budget, ways)
    candidates, weight = space.candidates, OBJECTIVES[objective](found)
    values = found.seconds * weight
    worth = alike(space.loss(candidates)[0]) if space.loss else 1 / found.parameters
    reach = reaches(candidates.columns)
    if not serving:
        taken = np.argsort(values, kind="stable")[:SHOWN].tolist()
        taken += undominated(worth, found.seconds, *reach) if space.what == "model" else []
        taken += range(0, len(candidates), -(-len(candidates) // SHOWN)) if single else ()
    else:
        decode = estimates(run_as(space, serving), candidates, pricer).seconds * weight
        orders = [np.argsort(values ** (1 - share) * decode**share, kind="stable")[:SHOWN] for share in SHARES]
        taken = list(dict.fromkeys(np.stack(orders, axis=1).ravel().tolist()))[:SHOWN]
        taken += undominated(values, decode, *[worth] * bool(space.loss), *reach)
    return space, [candidates[index] for index in dict.fromkeys(taken)]


def _cut(
    space: Space, found: Estimates, pricer: Pricer, budget: float | None, ways: Sequence[Workload]
) -> tuple[Space, Estimates]:
    """The candidates within the budget that were priced before an interrupt."""
    conditions = {"the interrupt": np.isfinite(found.seconds) | (not REQUESTS)}
    if budget is not None:
        longest = budget * estimates(space, [space.baseline], pricer, ways=ways).seconds[0]
        conditions[BUDGET.format(budget)] = found.seconds <= longest
    within = np.all([*conditions.values()], axis=0)
    return space.where(conditions), Estimates(*(one[within] for one in found))


def alike(losses: ArrayLike) -> Array:
    """Losses to the power at which those that differ by less than ``EQUAL`` are a ``TIE``."""
    return np.asarray(losses, float) ** (TIE / EQUAL)


def undominated(*columns: ArrayLike) -> list[int]:
    """Candidates that no other beats in one of ``columns`` (less is better) without losing in another, ties apart."""
    logs = np.log(np.array(columns, float))
    left, kept = np.lexsort(logs[::-1]), []
    while len(left):
        kept.append(int(left[0]))
        left = left[1:][(logs[:, left[1:]] < logs[:, left[:1]] - TIE).any(axis=0)]
    return kept


def estimates(
    space: Space, changes: Sequence[Sizes], pricer: Pricer, progress: Progress = QUIET, ways: Sequence[Workload] = ()
) -> Estimates:
    """The estimates of ``changes`` on the pricer's device; after a request to stop, NaN for those not yet priced.

    ``ways``: layouts; the fastest counts, whether it fits or not (none: the space's own workload).
    """
    if ways:
        each = list[Estimates]()
        for way in ways:
            if REQUESTS and each:
                break
            each.append(estimates(run_as(space, way), changes, pricer))
            progress(len(each), len(ways), "")
        tried: Array = np.array(each)  # layouts x figures x candidates
        fastest = np.nan_to_num(tried[:, 0], nan=np.inf).argmin(0)
        return Estimates(*tried[fastest, :, np.arange(len(changes))].T)
    table, done, known = IntegerTable(Candidates.of(changes).columns), 0, False

    def priced(part: IntegerTable) -> Sequence[Any]:
        nonlocal done, known
        # Not before something is known: the first parts may be of shapes that the layout does not split.
        row = _UNPRICED if REQUESTS and known and table.size > SHOWN else _estimated(space, pricer, part)
        known |= row is not _UNPRICED
        done += part.size
        progress(done, table.size, "")
        return row

    return Estimates(*rows_by(table, priced, 4))


#: The row of candidates without a price.
_UNPRICED = (np.nan,) * 4


def _estimated(space: Space, pricer: Pricer, part: IntegerTable) -> Sequence[Any]:
    """Rows: seconds, FLOPs, layers and parameters of the candidates that a part of the columns holds."""
    try:
        model, workload, listed, scale, flops, parameters = run_of(space, pricer.device, part)
        seconds = _step_seconds(listed, model, workload, pricer, part)
    except InputError:
        return _UNPRICED
    return seconds * part.rows_of(scale), flops, model.layers, parameters


def _step_seconds(
    listed: Sequence[Operator], model: ModelShape, workload: Workload, pricer: Pricer, part: IntegerTable
) -> Any:
    """Seconds of the steps that ``listed`` make, as `Pricer.step` has them."""
    costs = seconds_of(listed, pricer.device)
    if not pricer.stack or workload.serving:
        stages = workload.p if workload.serving else 1
        return part.rows_of(stages * sum(cost * one.count for one, cost in zip(listed, costs, strict=True)))
    slowest = slowest_stage(work(listed, costs), model, workload.p, pricer.stack, pricer.device)
    rows = whole = each_value(slowest, part.rows_of)
    if workload.p > 1:
        every = operators(model, replace(workload, p=1, vpp=1))
        whole = each_value(work(every, seconds_of(every, pricer.device)), part.rows_of)
    stack = pricer.stack.without_overlap(workload.exposed)
    ran = (microbatch(one, stack, pricer.device) for one in (rows, whole))
    return sum(step_parts(rows, schedule_of(workload), stack, *ran).values())


@frozen
class Times:
    """Candidates with their times, the baseline first; ``samples`` were taken for them.

    ``undecided``: how sure their best is, where that is less than was asked.
    """

    row: Sequence[TimedCandidate]
    samples: int = 0
    notes: Names = ()
    undecided: str = ""
