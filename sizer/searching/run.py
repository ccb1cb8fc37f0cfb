"""`search`: faster neighbours of a baseline in one space, by an objective, predicted or measured.

With a decode step, training and serving are two objectives, and candidates that no other beats in both are listed.
Listed candidates keep the rules of check, or name those that they break and why they are worth it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, islice
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from shapes.device import Device
from shapes.errors import InputError, positive_int, refuse
from shapes.frozen import Floats, Names, Sizes, Values, frozen, replace
from shapes.memory import memory
from shapes.operators import operators
from shapes.program import REQUESTS
from shapes.step import Pricer
from shapes.step.stack import SoftwareStack, load_stack
from shapes.toml_table import check_bounds
from shapes.workload import Workload
from sizer.checking.checks import check_subject
from sizer.checking.grading import Objections, context_of, objections, worse
from sizer.subject import Subject, read_subject, resized_subject, routed_on, run_by

from .pricing import (
    BUDGET,
    Layouts,
    Progress,
    TimedCandidate,
    Times,
    alike,
    estimates,
    in_layouts,
    price,
    rebuilt,
    run_as,
    shortlist,
    undominated,
)
from .quality import at_equal_loss, wide
from .result import Ranked, Ranking, SearchResult, verdict
from .space import OBJECTIVES, TIE, Baseline, Candidates, Limits, Space, nothing_left, reaches
from .spaces import make_space

if TYPE_CHECKING:
    from .measuring import Measured  # loads what measures, which a prediction has no use for


#: Dimensions that candidates alike in all others differ by: only the best of them is listed.
SMALL = frozenset({"d_ff", "vocab", "expert_d_ff", "shared_d_ff"})
#: And layers that differ by no more than this share.
FEW_LAYERS = 0.1
#: In a tie its multiples are preferred: what halves over 2, 4 and 8 shards stays aligned.
PREFERRED = 512
#: Tensor-parallel shards of one node, which numbers of heads are best ready for.
MOST_SHARDS = 8
#: Candidates that the rules are asked about: beyond these the list is no better.
LOOKED_AT = 64


def listing(
    space: Space, ranked: Ranking, pricer: Pricer, top: int, stack: SoftwareStack | None
) -> tuple[Ranking, Names, Sizes]:
    """The ``top`` of ``ranked`` (baseline first), in order, and what rules say of them.

    Returned with them: rules that the first keeps and the baseline does not; how many were left out for the rules they
    break, in words. ``stack``: what `check` will price them on.
    """

    def order(one: Ranked) -> Floats:
        # Ties of the objective have the same first number.
        return round(-log(one.gain) / TIE), -_aligned(one.change), -one.gain, one.parameters

    rest = sorted((one for one in ranked[1:] if one.change != ranked[0].change), key=order)
    if not space.ruled:
        return rest[:top], (), {}
    checked = read_subject(space.model, stack=stack)
    broken = partial(_objections, checked, space, pricer)
    warned = partial(_warned, checked, space, pricer)
    own = broken(space.baseline)
    unlike = (rest[at] for at in _distinct(one.change for one in rest))
    passing, breaking = _judged(broken, unlike, own, top)
    worth = worth_it(breaking, passing)
    before = warned(space.baseline)
    best = [
        replace(one, warns=tuple(sorted(warned(one.change) - before - {*one.breaks})))
        for one in (*passing, *worth)[:top]
    ]
    excluded = Counter(
        f"rules of check ({', '.join(one.breaks)}), and no better beyond the error than what keeps them"
        for one in breaking[len(worth) :]
    )
    left = broken(best[0].change) if best and not best[0].breaks else own
    fixes = (code for (code, field), outright in own.items() if outright and (code, field) not in left)
    return best, tuple(dict.fromkeys(fixes)), excluded


def _judged(
    broken: Callable[[Sizes], Objections], listed: Iterable[Ranked], own: Objections, top: int
) -> tuple[Ranking, Ranking]:
    """The first ``top`` that break no rule which the baseline keeps, and those before them that do."""
    passing = list[Ranked]()
    breaking = list[Ranked]()
    for one in islice(listed, LOOKED_AT):
        # A rule that the baseline breaks in a searched dimension does not excuse a candidate.
        kept = {key: outright for key, outright in own.items() if key[1] not in one.change}
        breaks = worse(broken(one.change), kept)
        (breaking if breaks else passing).append(replace(one, breaks=breaks))
        if len(passing) == top:
            break
    return passing, breaking


def worth_it(breaking: Ranking, passing: Ranking) -> Ranking:
    """Those that break a rule and are worth it, the best first, saying why."""
    if not passing:
        return [replace(one, why="nothing that was tried keeps the rules") for one in breaking]
    return [
        replace(one, why=f"{ahead:.1%} better than any that keeps the rules")
        for one in breaking
        if (ahead := one.gain / passing[0].gain - 1) > (one.gain_high - one.gain_low) / 2 / one.gain
    ]


def _distinct(changes: Iterable[Sizes]) -> Iterator[int]:
    """Places of the first of those that are alike in every large dimension, and have about as many layers."""
    seen = dict[frozenset[tuple[str, int]], list[int]]()
    for at, change in enumerate(changes):
        large = frozenset((key, value) for key, value in change.items() if key not in SMALL | {"layers"})
        layers, others = change.get("layers", 1), seen.setdefault(large, [])
        if large and any(abs(layers - other) <= FEW_LAYERS * other for other in others):
            continue
        others.append(layers)
        yield at


def _aligned(change: Sizes) -> int:
    """How well widths halve over shards, and heads: the largest powers of two that divide them."""
    widths = min(
        (change[name] & -change[name] for name in ("d_ff", "expert_d_ff", "hidden") if name in change), default=1
    )
    heads = change.get("heads", 1)
    return min(widths, PREFERRED) * min(heads & -heads, MOST_SHARDS)


def _warned(subject: Subject, space: Space, pricer: Pricer, change: Sizes) -> frozenset[str]:
    """Codes that `check` warns of, costs alone among them, of a candidate as its file's ``subject``."""
    findings = check_subject(resized_subject(subject, *rebuilt(space, change)), pricer.device).findings
    return frozenset(code for one in findings if one.severity != "info" for code in one.codes)


def _objections(subject: Subject, space: Space, pricer: Pricer, change: Sizes) -> Objections:
    """Violations of the rules on shapes by a candidate as its file's ``subject``."""
    changed = resized_subject(subject, *rebuilt(space, change))
    return objections(context_of(changed, pricer.device, pricer.step(changed.operators)))


#: Splits over devices that each candidate is planned in, and how many candidates: half a minute of DeepSeek-V3's.
SPLITS, SPREAD_OUT = 12, 24


@frozen
class Query:
    """The ``top`` candidates are wanted of the space named ``what`` that ``objective`` likes best, for ``device``.

    The objective orders a large space's shortlist as well. ``measured``: who times candidates on the device,
    predictions only ordering them. With ``serving``, a decode step, each is priced in it too, and the answer has the
    front of both; ``training_budget``: the longest step, over the baseline's (None: any; 1.0: no longer than it is).
    ``stacked``: the baseline's stack was asked for. ``quality``: tokens of training at which candidates have the
    baseline's loss (None: loss is not looked at). ``layouts``: a plan of the baseline, in whose fastest splits each
    candidate has its own (None: all run in the baseline's workload), or what makes it, once nothing else can be
    mistaken. ``progress(done, of, best)``.
    """

    what: str
    objective: str
    limits: Limits
    device: Device
    measured: "Measured | None"
    top: int
    progress: Progress
    serving: Workload | None
    training_budget: float | None
    stacked: bool
    quality: float | None
    layouts: Layouts | Callable[[], Layouts] | None


def find(baseline: Baseline, query: Query) -> SearchResult:
    """Answer the ``query``. InputError if no candidate is within the limits."""
    started, device, objective, measured = time.perf_counter(), query.device, query.objective, query.measured
    positive_int(query.top, "top")
    check_bounds(training_budget=query.training_budget)
    device.peak(baseline.workload.dtype)  # InputError for a type that it has no figures for
    baseline, space, pricer, layouts, ways = _as_run(baseline, query)
    considered, limit = len(space.candidates), None if measured else query.training_budget
    space, chosen = shortlist(space, pricer, objective, query.progress, query.serving, limit, ways)
    times = _timed(space, chosen, query, pricer, ways, layouts)
    ranked, left_out = within_budget(space, _with_loss(space, rank(times.row, objective)), query)
    listed, fixes, broken = listing(space, ranked, pricer, query.top, baseline.stack)
    space = replace(space, workload=ranked[0].layout or space.workload)
    own, *best = _with_memory(space, (ranked[0], *listed))
    nearest = None if measured else aligned(times.row, ranked, device.alignment_elements(space.workload.dtype))
    # With a stack, launches are part of the step.
    launches = not measured and not pricer.stack and all(one.launch_bound for one in times.row)
    # A baseline that nobody typed is taken, not kept.
    keep, said = verdict(query.what, own, best, fixes, nearest, "keep" if baseline.stack else "take", launches=launches)
    return SearchResult(
        what=query.what,
        objective=objective,
        tokens=space.tokens * (space.workload.d if ways else 1),
        stack=pricer.stack.name if pricer.stack else None,
        baseline=own,
        candidates=tuple(best),
        aligned=nearest,
        source=times.row[0].timing.source,
        considered=considered,
        measurements=times.samples,
        elapsed_s=time.perf_counter() - started,
        excluded=Counter(space.excluded) + left_out + Counter(broken),
        notes=(*baseline.notes, *space.notes, *times.notes),
        ranked=tuple(ranked),
        serving=query.serving,
        verdict=times.undecided + said,
        keep=keep,
        **_fronts(query, space, ranked),
    )


def _as_run(baseline: Baseline, query: Query) -> tuple[Baseline, Space, Pricer, Layouts | None, Sequence[Workload]]:
    """The space as its steps run, and what prices them; of layouts the baseline's is in their stack."""
    model, notes = routed_on(baseline.model, query.device)
    baseline = replace(baseline, model=model, notes=(*baseline.notes, *notes))
    space = _space(baseline, query)
    layouts = query.layouts() if callable(query.layouts) else query.layouts
    if layouts and not query.stacked:
        baseline = replace(baseline, stack=load_stack(layouts.stack))
    stack = baseline.stack if not query.measured and not space.timed else None
    if stack:
        space = replace(space, as_run=partial(run_by, stack, baseline.given))
    pricer = Pricer(query.device, stack=stack)
    if query.quality is not None:
        space = at_equal_loss(space, pricer, query.quality)
    return baseline, space, pricer, layouts, layouts.ways()[:SPLITS] if layouts else ()


def _timed(
    space: Space,
    chosen: Sequence[Sizes],
    query: Query,
    pricer: Pricer,
    ways: Sequence[Workload],
    layouts: Layouts | None,
) -> Times:
    if layouts:
        return Times(
            in_layouts(
                space,
                [chosen[at] for at in islice(_distinct(chosen), SPREAD_OUT)],
                layouts,
                ways,
                pricer,
                query.progress,
            )
        )
    chosen = [space.baseline, *chosen]
    predicted = price(space, chosen, pricer)
    if not query.measured:
        return Times(predicted)
    return query.measured.times(space, predicted, query.objective, query.progress)


def _space(baseline: Baseline, query: Query) -> Space:
    """The space. InputError: a stack was asked for that runs none of it, as no whole steps are predicted."""
    limits, serving = query.limits, query.serving
    if query.quality is not None:
        step = query.device.alignment_elements(baseline.workload.dtype) * limits.shards(baseline.workload.t)
        limits = wide(limits, baseline.model, query.quality, step)
    asked = query.what, baseline, query.device, limits
    refuse(serving and query.measured, "expected --predict with it", "--serving")
    space = served_space(*asked, serving) if serving else make_space(*asked)
    refuse(
        query.stacked and (query.measured or space.timed),
        "expected --predict and whole steps (--what model, or --serving) with it",
        "--stack",
        baseline.stack and baseline.stack.name,
    )
    return space


def _fronts(query: Query, space: Space, ranked: Ranking) -> Values:
    """Those that no other beats.

    In training and decoding, or of whole models in time and parameters; at equal loss in loss, time and memory, and
    decoding where that is asked for.
    """
    if space.loss:
        name, gains = "front", [_amounts(space, one) for one in ranked]
    elif query.serving:
        name, gains = "front", [(1 / training_gain(one), 1 / decode_gain(one)) for one in ranked]
    elif query.what == "model":
        name, gains = "pareto", [(1 / one.parameters, one.timing.seconds) for one in ranked]
    else:
        return {}
    places = undominated(*zip(*gains, strict=True), *zip(*(reaches(one.change) for one in ranked), strict=True))
    return {name: _with_memory(space, [ranked[place] for place in places])}


def _amounts(space: Space, one: Ranked) -> Floats:
    """Loss, step, memory, and where it is to be served a decode step."""
    decode = one.decode.seconds if one.decode else 1.0
    return float(alike(one.loss or 1.0)), one.timing.seconds, _peak(space, one), decode


def _with_loss(space: Space, ranked: Ranking) -> Ranking:
    if not space.loss:
        return ranked
    loss, error, _ = space.loss(Candidates.of([one.change for one in ranked]))
    return [replace(one, loss=float(loss[at]), loss_error=float(error[at])) for at, one in enumerate(ranked)]


#: Products whose leading dimensions are multiples of fewer elements run on other kernels. Public sources differ in how
#: much slower those are: d_ff 10922 on H100 by 1.46 times (the ML Engineering book), 2.7 and more by GAC's sweeps.
NARROW, LEAST_OF_PENALTY = 8, 0.2


def rank(row: Sequence[TimedCandidate], objective: str) -> Ranking:
    """Every candidate against the baseline (the first)."""
    base, weight, ranked = row[0], OBJECTIVES[objective], []
    for first in row:
        low, high = (1.0, 1.0) if first is base else _ratio_bounds(base, first)
        worth = weight(base) / weight(first)
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
                gain=speedup * worth,
                gain_low=low * worth,
                gain_high=high * worth,
                layout=first.layout,
            )
        )
    return ranked


def _ratio_bounds(base: TimedCandidate, one: TimedCandidate) -> tuple[float, float]:
    """Bounds of base over candidate.

    Predicted steps: by the error of their ratio. Predicted kernels: by the error of the worse one, as shared errors
    cancel. Measurements: by the candidate's interval, which is that of its ratio to the baseline in the same rounds.
    """
    timing, ratio = one.timing, base.timing.seconds / one.timing.seconds
    if timing.measured:
        return base.timing.seconds / timing.high, base.timing.seconds / timing.low
    error = one.ratio_error
    if error is None:
        error = max(base.timing.half_width, timing.half_width)
    low = ratio * (1 - error)
    if base.structure[0] < NARROW <= one.structure[0]:
        low = min(low, 1 + LEAST_OF_PENALTY * (low - 1))
    return low, ratio * (1 + error)


def aligned(row: Sequence[TimedCandidate], ranked: Ranking, step: int) -> Ranked | None:
    """The candidate aligned to ``step`` elements that is nearest to a baseline that is not; else None."""
    own, whole = row[0].change, [one.change for one in row if one.structure[0] >= step]
    return min(
        [one for one in ranked if one.change in whole and own not in whole],
        key=lambda one: sum(abs(log(size / own[key])) for key, size in one.change.items()),
        default=None,
    )


def _with_memory(space: Space, listed: Ranking) -> Ranking:
    """Those that are shown, with their device's peak memory less the baseline's: half a millisecond each."""
    peak = memory(space.model, space.workload).total_bytes
    return tuple(replace(one, memory_change_bytes=_peak(space, one) - peak) for one in listed)


def _peak(space: Space, one: Ranked) -> int:
    model, workload = rebuilt(space, one.change)
    return memory(model, one.layout or workload).total_bytes


def served_space(what: str, baseline: Baseline, device: Device, limits: Limits, serving: Workload) -> Space:
    """The space of candidates that split as they are to be served, whole steps timed, as serving runs whole models.

    InputError for what serves nobody, or does not split so.
    """
    refuse(
        baseline.scope != "model" and what == "swiglu",
        "expected a search that changes a whole model with it",
        "--serving",
    )
    try:
        operators(baseline.model, serving)
    except InputError as error:
        raise InputError(error.expected, f"--serving {error.key}", error.value) from None
    ready = limits.shards(serving.t) if serving.t > 1 else limits.tp_ready
    space = make_space(what, baseline, device, replace(limits, tp_ready=ready))
    if "experts" in space.candidates.columns:
        divide = space.candidates.columns["experts"] % serving.e == 0
        space = space.where({f"experts that divide over ep {serving.e}": divide})
    notes = *space.notes, "to be served, whole steps are priced, in training too"
    return replace(space, model=baseline.model, timed=None, measured_parts=None, notes=notes)


def within_budget(space: Space, ranked: Ranking, query: Query) -> tuple[Ranking, Counter[str]]:
    """``ranked`` (baseline first) within the training budget, each with its decode step; and how many were left out.

    Served ones are better by the geometric mean of both gains.
    """
    excluded, found = Counter[str](), list(ranked)
    if query.training_budget is not None:
        most = query.training_budget * found[0].timing.seconds
        found = [one for one in ranked if one is ranked[0] or one.timing.seconds <= most]
        excluded[BUDGET.format(query.training_budget)] = len(ranked) - len(found)
    if serving := query.serving:
        priced = _served(space, found, serving, Pricer(query.device))
        unpriced = "the interrupt" if REQUESTS else f"the split that serves (tp {serving.t}, ep {serving.e})"
        excluded[unpriced] = len(found) - len(priced)
        found = priced
    if len(found) == 1 < len(ranked) and not REQUESTS:
        raise nothing_left(space.what, excluded)
    return found, excluded


def _served(space: Space, ranked: Ranking, serving: Workload, pricer: Pricer) -> list[Ranked]:
    space, found = run_as(space, serving), []
    # Those that split as they are to be served.
    split = ~np.isnan(estimates(space, [one.change for one in ranked], pricer).seconds)
    kept = [*compress(ranked, split)]
    own, *steps = (one.timing for one in price(space, [space.baseline, *(one.change for one in kept)], pricer))
    for one, timing in zip(kept, steps, strict=True):
        faster = own.seconds / timing.seconds
        # Over the gain in training: a second's worth by the objective is the same in both.
        mean = sqrt(faster / one.speedup)
        error = max(own.half_width, timing.half_width) if one is not ranked[0] else 0.0
        found.append(
            replace(
                one,
                decode=timing,
                decode_speedup=faster,
                gain=one.gain * mean,
                gain_low=sqrt(one.gain_low * one.gain * max(0.0, 1 - error)) * mean,
                gain_high=sqrt(one.gain_high * one.gain * (1 + error)) * mean,
            )
        )
    return found


def decode_gain(one: Ranked) -> float:
    """The gain in decoding by the objective, as gain^2 = (speedup x worth) (decode_speedup x worth)."""
    return one.gain * sqrt(one.decode_speedup / one.speedup)


def training_gain(one: Ranked) -> float:
    """By the objective, as ``decode_gain``."""
    return one.gain**2 / decode_gain(one)
