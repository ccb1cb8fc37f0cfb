"""Two budgets side by side: a training step and a decode step of the same candidates, and what no candidate beats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from shapes.cost import Timing
from shapes.device import Device
from shapes.errors import InputError, refuse
from shapes.frozen import frozen
from shapes.operators import operators
from shapes.step import Pricer
from shapes.workload import Workload
from sizer.searching.baseline import Baseline
from sizer.searching.pricing import budget_limit, rebuilt
from sizer.searching.result import Ranked
from sizer.searching.space import Limits, Space, nothing_left
from sizer.searching.spaces import make_space


@frozen
class Budgets:
    """``serving``: the decode step that is priced with each candidate's step (None: none). ``training``: the longest

    step, over the baseline's (None: any; 1.0: no longer than it is).
    """

    serving: Workload | None = None
    training: float | None = None

    def __post_init__(self) -> None:
        refuse(
            self.training is not None and not 0 < self.training < 100,
            "expected a share of the baseline's step (100%: no longer)",
            "--limit training-budget",
            self.training,
        )
        if self.serving is not None and not self.serving.decode:
            raise InputError("expected a decode step", key="--serving", value=self.serving.phase)


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
        raise InputError(error.expected, key=f"--serving {error.key}", value=error.value) from None
    space = make_space(what, baseline, device, replace(limits, tp_ready=limits.shards(serving.t)))
    if "experts" in space.candidates.columns:
        divide = space.candidates.columns["experts"] % serving.e == 0
        space = space.where({f"experts that divide over ep {serving.e}": divide})
    notes = (*space.notes, "to be served, whole steps are priced, in training too")
    return replace(space, model=baseline.model, timed=None, measured_parts=None, notes=notes)


def beside(
    space: Space, ranked: Sequence[Ranked], budgets: Budgets, device: Device
) -> tuple[list[Ranked], Counter[str]]:
    """``ranked`` (baseline first) within the training budget, each with its decode step; and how many were left out.

    Served ones are better by the geometric mean of both gains.
    """
    excluded, found = Counter[str](), list(ranked)
    if budgets.training is not None:
        most = budgets.training * found[0].timing.seconds
        found = [one for one in ranked if one is ranked[0] or one.timing.seconds <= most]
        excluded[budget_limit(budgets.training)] = len(ranked) - len(found)
    if budgets.serving is not None:
        priced = _served(space, found, budgets.serving, Pricer(device))
        excluded[f"the split that serves (tp {budgets.serving.t}, ep {budgets.serving.e})"] = len(found) - len(priced)
        found = priced
    if len(found) == 1 < len(ranked):
        raise nothing_left(space.what, excluded)
    return found, excluded


def _served(space: Space, ranked: Sequence[Ranked], serving: Workload, pricer: Pricer) -> list[Ranked]:
    own, found = pricer.step(operators(space.model, serving), serving), []
    for one in ranked:
        try:
            step = pricer.step(operators(rebuilt(space, one.change)[0], serving), serving)
        except InputError:
            continue  # it does not split as it is to be served
        timing = Timing(step.seconds, step.low, step.high, step.source, step.tier)
        faster = own.seconds / step.seconds
        # Over the gain in training: a second's worth by the objective is the same in both.
        mean = sqrt(faster / one.speedup)
        error = max((each.high - each.low) / 2 / each.seconds for each in (own, step)) if one is not ranked[0] else 0.0
        found.append(
            replace(
                one,
                decode=timing,
                decode_speedup=faster,
                gain=one.gain * mean,
                gain_low=sqrt(one.gain_low * one.gain * max(0.0, 1 - error)) * mean,
                gain_high=sqrt(one.gain_high * one.gain * (1 + error)) * mean,
                value=1 / (one.gain * mean),
            )
        )
    return found


def decode_gain(one: Ranked) -> float:
    """By the objective, whose gain is the mean of both: gain^2 = (speedup x worth) (decode_speedup x worth)."""
    return one.gain * sqrt(one.decode_speedup / one.speedup)


def training_gain(one: Ranked) -> float:
    """By the objective, as ``decode_gain``."""
    return one.gain * sqrt(one.speedup / one.decode_speedup)
