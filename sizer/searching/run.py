"""`search`: faster neighbours of a baseline in one space, by an objective, predicted or measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any

from shapes.device import Device
from shapes.errors import InputError, positive_int, refuse
from shapes.frozen import frozen
from shapes.memory import memory
from shapes.step import Pricer
from shapes.step.stack import SoftwareStack
from sizer.searching.baseline import Baseline
from sizer.searching.listing import listing
from sizer.searching.pricing import (
    Progress,
    TimedCandidate,
    Times,
    device_agrees,
    price,
    rebuilt,
    shortlist,
    undominated,
)
from sizer.searching.result import Ranked, SearchResult, keeps, launched_verdict, verdict
from sizer.searching.space import Limits, Objective, Space
from sizer.searching.spaces import make_space
from sizer.searching.two_budgets import Budgets, beside, decode_gain, served_space, training_gain
from sizer.subject import run_by

if TYPE_CHECKING:
    from sizer.searching.measuring import Measured  # loads what measures, which a prediction has no use for

#: How candidates are tried where all of them are priced.
EXHAUSTIVE = "exhaustive"


@frozen
class Query:
    """The ``top`` candidates are wanted of the space named ``what`` that ``objective`` likes best, for ``device``.

    The objective orders a large space's shortlist as well. ``measured``: who times candidates on the device,
    predictions only ordering them. With ``budgets`` for serving each is priced in decoding too, and the answer has the
    front of both. ``stacked``: the baseline's stack was asked for. ``progress(done, of, best)``.
    """

    what: str
    objective: Objective
    limits: Limits
    device: Device
    measured: Measured | None
    top: int
    progress: Progress | None
    budgets: Budgets
    stacked: bool


def find(baseline: Baseline, query: Query) -> SearchResult:
    """What answers the ``query``. InputError where nothing satisfies the limits."""
    started, device, objective, measured = time.perf_counter(), query.device, query.objective, query.measured
    positive_int(query.top, "--top")
    device_agrees(device, baseline.workload.dtype)
    space, stack = _space(baseline, query)
    pricer, budgets = Pricer(device, stack=stack), query.budgets
    considered, budget = len(space.candidates), None if measured else budgets.training
    space, chosen = shortlist(space, pricer, objective, query.progress, budgets.serving, budget)
    chosen = [space.baseline, *chosen]
    times = Times(price(space, chosen, pricer))
    if measured is not None:
        times = measured.times(space, times.row, objective, query.progress)
    ranked, left_out = beside(space, rank(times.row, objective), budgets, device)
    listed = listing(space, ranked, pricer, query.top, baseline.stack)
    own, *best = _with_memory(space, (ranked[0], *listed.best))
    # With a stack, launches are part of the step.
    launched = not measured and stack is None and all(one.launch_bound for one in times.row)
    nearest = None if measured else aligned(times.row, ranked, device.alignment_elements(space.workload.dtype))
    return SearchResult(
        what=query.what,
        objective=objective.name,
        tokens=space.tokens,
        stack=stack.name if stack else None,
        baseline=own,
        candidates=tuple(best),
        aligned=nearest,
        strategy=measured.strategy if measured else EXHAUSTIVE,
        source=times.row[0].timing.source,
        considered=considered,
        measurements=times.samples,
        elapsed_s=time.perf_counter() - started,
        excluded=Counter(space.excluded) + left_out + Counter(listed.excluded),
        notes=(*space.notes, *times.notes),
        ranked=tuple(ranked),
        serving=budgets.serving,
        **_words(query.what, own, best, listed.fixes, nearest, launched),
        **_fronts(query.what, space, ranked, budgets),
    )


def _space(baseline: Baseline, query: Query) -> tuple[Space, SoftwareStack | None]:
    """The space, as the baseline's stack runs it where whole steps are predicted. InputError: a stack was asked for

    that runs none of it.
    """
    asked, serving, stack = (query.what, baseline, query.device, query.limits), query.budgets.serving, baseline.stack
    if serving is None:
        space = make_space(*asked)
    elif query.measured is not None:
        raise InputError("expected --predict with it", key="--serving")
    else:
        space = served_space(*asked, serving)
    if query.measured is None and space.timed is None and stack is not None:
        return replace(space, as_run=partial(run_by, stack, baseline.given)), stack
    refuse(
        query.stacked,
        "expected --predict and whole steps (--what model, or --serving) with it",
        "--stack",
        stack and stack.name,
    )
    return space, None


def _words(
    what: str, own: Ranked, best: Sequence[Ranked], fixes: tuple[str, ...], nearest: Ranked | None, launched: bool
) -> dict[str, Any]:
    """The verdict, and whether it is to keep the baseline; ``launched``: launches bound every candidate."""
    if launched:
        return {"verdict": launched_verdict(own), "keep": True}
    fixes = fixes or (("the device's alignment",) if nearest else ())
    return {"verdict": verdict(what, own, best, fixes, nearest), "keep": keeps(best, fixes)}


def _fronts(what: str, space: Space, ranked: Sequence[Ranked], budgets: Budgets) -> dict[str, Any]:
    """Those that no other beats: in training and decoding, or of whole models in time and parameters."""
    if budgets.serving is not None:
        name, gains = "front", [(1 / training_gain(one), 1 / decode_gain(one)) for one in ranked]
    elif what == "model":
        name, gains = "pareto", [(1 / one.parameters, one.timing.seconds) for one in ranked]
    else:
        return {}
    return {name: _with_memory(space, [ranked[place] for place in undominated(*zip(*gains, strict=True))])}


#: Products whose leading dimensions are multiples of fewer elements run on other kernels. Public sources differ in how
#: much slower those are: d_ff 10922 on H100 by 1.46 times (the ML Engineering book), 2.7 and more by GAC's sweeps.
NARROW, LEAST_OF_PENALTY = 8, 0.2


def rank(row: Sequence[TimedCandidate], objective: Objective) -> list[Ranked]:
    """Every candidate against the baseline (the first)."""
    base, ranked = row[0], []
    for index, first in enumerate(row):
        low, high = _ratio_bounds(base, first) if index else (1.0, 1.0)
        worth = objective.weight(base) / objective.weight(first)
        speedup = base.timing.seconds / first.timing.seconds
        ranked.append(
            Ranked(
                change=first.change,
                timing=first.timing,
                tflops=first.flops / first.timing.seconds / 1e12,
                speedup=speedup,
                speedup_low=low,
                speedup_high=high,
                parameters=first.parameters,
                parameters_change=first.parameters - base.parameters,
                memory_change_bytes=None,
                value=first.timing.seconds * objective.weight(first),
                gain=speedup * worth,
                gain_low=low * worth,
                gain_high=high * worth,
            )
        )
    return ranked


def _ratio_bounds(base: TimedCandidate, one: TimedCandidate) -> tuple[float, float]:
    """Bounds of base over candidate: of predicted steps by what their ratio has been off by, of predicted kernels by

    the error of the worse one (what they share cancels), of measurements by the candidate's own interval, which is of
    its ratio to the baseline it was paired with.
    """
    timing, ratio = one.timing, base.timing.seconds / one.timing.seconds
    if timing.measured:
        return base.timing.seconds / timing.high, base.timing.seconds / timing.low
    error = one.ratio_error
    if error is None:
        error = max((each.high - each.low) / 2 / each.seconds for each in (base.timing, timing))
    low = ratio * (1 - error)
    if base.structure[0] < NARROW <= one.structure[0]:
        low = min(low, 1 + LEAST_OF_PENALTY * (low - 1))
    return low, ratio * (1 + error)


def aligned(row: Sequence[TimedCandidate], ranked: Sequence[Ranked], step: int) -> Ranked | None:
    """Of those aligned to ``step`` elements the nearest to a baseline that is not."""
    own, whole = row[0].change, [one.change for one in row if one.structure[0] >= step]
    near = [one for one in ranked if one.change in whole and own not in whole]
    return min(near, key=lambda one: sum(abs(log(size / own[key])) for key, size in one.change.items()), default=None)


def _with_memory(space: Space, listed: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """Those that are shown, with their device's peak memory less the baseline's: half a millisecond each."""
    peak = memory(space.model, space.workload).total_bytes
    return tuple(
        replace(one, memory_change_bytes=memory(*rebuilt(space, one.change)).total_bytes - peak) for one in listed
    )
