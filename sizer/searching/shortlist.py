"""Every candidate's price as arrays, and which of a large space's are worth an object each: what the objective likes.

A space's columns run through the same formulas as one candidate does (`shapes.columns`): the same model, operators,
costs and stack, so that what is found is what `price` gives for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shapes.columns import Table, rows_by
from shapes.cost import Cost
from shapes.cost.columns import seconds_of
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import ModelShape
from shapes.operators import Operator, operators
from shapes.step import Pricer, Work, each_value, schedule_of, slowest_stage, step_parts, work
from shapes.workload import Workload
from sizer.searching.objective import TIE, Objective
from sizer.searching.predicting import as_run, timed
from sizer.searching.space import Candidates, Space

Array = NDArray[np.float64]
Change = Mapping[str, int]
#: So many candidates of a large space are made objects of: those that an answer, its page and its picture hold.
SHOWN = 256
#: And of the values of one dimension, which make a curve.
DRAWN = 1024
#: Shares of a decode step in what orders candidates for training and serving.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@frozen
class Estimates:
    """Of each candidate: ``seconds`` by device (rows), at the baseline's tokens; FLOPs, layers and parameters.

    Seconds are NaN where a candidate does not divide as it is to be run.
    """

    seconds: Array
    flops: Array
    layers: Array
    parameters: Array


def shortlist(
    space: Space,
    pricers: Sequence[Pricer],
    objective: Objective,
    progress: Callable[[int, int], None] | None = None,
    serving: Workload | None = None,
) -> Sequence[Change]:
    """All candidates of a small space; of a large one the ``SHOWN`` best, the best for each device and what no other

    beats in time and parameters among them. Of one dimension's values some more, evenly spread, for the picture.
    Where they are for ``serving`` too, the best of every weighing of a step of training against one of decoding, and
    what no other beats in both.
    """
    single = len(space.baseline) == 1
    if len(space.candidates) <= (DRAWN if single else SHOWN):
        return space.candidates
    found = estimates(space, space.candidates, pricers, progress)
    values = found.seconds * objective.weight(found)
    if serving is None:
        taken = by_worst_loss(values)[:SHOWN]
        taken += pareto(found.parameters, found.seconds[0]) if space.what == "model" else []
        taken += range(0, len(space.candidates), -(-len(space.candidates) // SHOWN)) if single else ()
    else:
        served = replace(space, workload=serving, as_run=None)
        decode = (estimates(served, space.candidates, pricers).seconds * objective.weight(found))[0]
        orders = [np.argsort(values[0] ** (1 - share) * decode**share, kind="stable")[:SHOWN] for share in SHARES]
        taken = list(dict.fromkeys(np.stack(orders, axis=1).ravel().tolist()))[:SHOWN]
        taken += front(1 / values[0], 1 / decode)
    return [space.candidates[index] for index in dict.fromkeys(taken)]


def by_worst_loss(values: Array) -> list[int]:
    """Candidates (columns) by their worst loss against the best of each device (row), after those best ones.

    >>> by_worst_loss(np.array([[2.0, 1.0, 1.4, 1.1], [1.0, 9.0, 1.4, 3.0]]))
    [1, 0, 2, 3]
    """
    losses = (values / np.nanmin(values, axis=1, keepdims=True)).max(axis=0)
    # The losses of the rest are against the best on each device: it has to be priced too.
    return list(dict.fromkeys([*np.nanargmin(values, axis=1).tolist(), *np.argsort(losses, kind="stable").tolist()]))


def pareto(parameters: ArrayLike, seconds: ArrayLike) -> list[int]:
    """Candidates that no other beats in time without having fewer parameters, by falling parameters.

    Of those a tie apart the one of the most parameters is kept.
    """
    parameters, seconds = np.asarray(parameters), np.asarray(seconds)
    kept: list[int] = []
    for index in np.lexsort((seconds, -parameters)).tolist():
        if not kept or seconds[index] < (1 - TIE) * seconds[kept[-1]]:
            kept.append(index)
    return kept


def front(training: ArrayLike, decoding: ArrayLike) -> list[int]:
    """Candidates that no other beats in training without being slower to decode, by falling gain in training.

    Of those a tie apart in one the better in the other is kept.
    """
    training, decoding = np.asarray(training), np.asarray(decoding)
    kept: list[int] = []
    for index in np.lexsort((-decoding, -training)).tolist():
        if decoding[index] > (1 + TIE) * (decoding[kept[-1]] if kept else 0):
            while kept and training[index] > (1 - TIE) * training[kept[-1]]:
                kept.pop()
            kept.append(index)
    return kept


def estimates(
    space: Space,
    changes: Sequence[Change],
    pricers: Sequence[Pricer],
    progress: Callable[[int, int], None] | None = None,
) -> Estimates:
    """What ``changes`` come to on each pricer's device."""
    table, done = Table(Candidates.of(changes).columns), 0
    found = []
    for pricer in pricers:

        def priced(part: Table, pricer: Pricer = pricer) -> Sequence[Any]:
            nonlocal done
            row = _priced(space, pricer, part)
            done += part.size
            if progress is not None:
                progress(done // len(pricers), table.size)
            return row

        found.append(rows_by(table, priced, 4))
    rows = np.array(found)
    return Estimates(rows[:, 0], *rows[0, 1:])


def _priced(space: Space, pricer: Pricer, part: Table) -> Sequence[Any]:
    """Rows: seconds, FLOPs, layers and parameters of the candidates that a part of the columns holds."""
    try:
        model, workload = as_run(space, {name: part[name] for name in part.columns}, pricer.device)
        listed = timed(space, model, workload)
        seconds = _step_seconds(space, listed, model, workload, pricer, part)
    except InputError:
        return (np.nan,) * 4
    times = workload.accumulation if space.as_run is not None else 1
    scale = space.tokens / (workload.tokens * times)
    flops = round(times * sum(one.flops * one.count for one in listed) * scale)
    return seconds * part.rows_of(scale), flops, model.layers, space.parameters(model)


def _step_seconds(
    space: Space,
    listed: Sequence[Operator],
    model: ModelShape,
    workload: Workload,
    pricer: Pricer,
    part: Table,
) -> Array:
    """Seconds of the steps that ``listed`` make, as `Pricer.step` has them."""
    costs = seconds_of(listed, pricer.device)
    if space.as_run is None or pricer.stack is None or workload.serving:
        stages = workload.p if workload.serving else 1
        return part.rows_of(stages * sum(cost * one.count for one, cost in zip(listed, costs, strict=True)))
    stage = slowest_stage(_work(listed, costs), model, workload.p)
    rows = whole = each_value(stage, part.rows_of)
    if workload.p > 1:
        every = operators(model, replace(workload, p=1, vpp=1))
        whole = each_value(_work(every, seconds_of(every, pricer.device)), part.rows_of)
    schedule, stack = schedule_of(workload), pricer.stack.without_overlap(workload.exposed)
    schedule = replace(schedule, accumulation=part.rows_of(schedule.accumulation))
    return np.asarray(sum(step_parts(rows, whole, schedule, stack, pricer.device).values()))


def _work(listed: Sequence[Operator], seconds: Sequence[Any]) -> Work:
    return work(listed, (Cost(one, one, one, "", "", 0.0, "") for one in seconds))
