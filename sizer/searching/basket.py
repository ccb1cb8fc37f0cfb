"""Several devices at once, measured where one is at hand and predicted where none is: good on all of them.

What counts is a candidate's worst loss: how much slower it is on some device than the best candidate there. Each
measured device is raced for its best, all at the same time. Then candidates are measured on every one of those devices,
the most promising first, until none that was not measured could have a smaller worst loss, as far as the predictions'
error is what it is said to be (branch and bound).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.device import Device, load_device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.measure.executor import Executor
from sizer.measuring import device_of
from sizer.searching.measuring import Measured
from sizer.searching.objective import Objective
from sizer.searching.predicting import TimedCandidate
from sizer.searching.source import Progress, Times
from sizer.searching.space import Space

Array = NDArray[np.float64]
#: Candidates that are measured on every device before the bound is looked at again.
BATCH = 4
#: Of a time limit the races may take so much.
RACING = 0.6


@frozen
class Basket:
    """Seconds on each of ``devices``; ``measured``: name of a device -> how it is measured."""

    devices: tuple[Device, ...]
    measured: Mapping[str, Measured]

    def __post_init__(self) -> None:
        if not self.measured:
            raise InputError(
                "expected one of the devices to be here: several can only be predicted (--predict)", key="--measure"
            )

    @property
    def strategy(self) -> str:
        return next(iter(self.measured.values())).strategy

    def times(
        self,
        space: Space,
        predicted: Sequence[Sequence[TimedCandidate]],
        objective: Objective,
        progress: Progress | None,
    ) -> Times:
        """The candidates that were measured on every device at hand, beside their predictions for the others."""
        first = next(iter(self.measured.values()))
        started, limit = time.monotonic(), first.time_limit_s
        table = _Table(self, predicted, objective, progress)
        table.measure(space, None, RACING * limit if limit is not None else None)
        left = _left(started, limit)
        wanted = table.to_begin_with()
        while wanted and (left is None or left > 0):
            table.measure(space, wanted, left)
            left, wanted = _left(started, limit), table.promising(first.regret)
        if not table.known:
            raise InputError("nothing was measured on every device in time", key="--time-limit", value=limit)
        return table.times(finished=not wanted)


def basket(executors: Sequence[Executor], named: Sequence[str | Device], measuring: Mapping[str, Any]) -> Basket:
    """The devices ``named``, or without names those of ``executors``; ``measuring``: options of ``Measured``."""
    there = {}
    for executor in executors:
        device = device_of(executor.environment)
        if device is not None:
            there[device.name] = device, executor
        elif not named:
            said = executor.environment.device
            raise InputError("expected --device NAME: it is no known device", key="--measure", value=said)
    devices = tuple(load_device(one) for one in named) or tuple(device for device, _ in there.values())
    here = [one for one in devices if one.name in there]
    return Basket(devices, {one.name: Measured(there[one.name][1], one, **measuring) for one in here})


def _left(started: float, limit: float | None) -> float | None:
    return None if limit is None else max(0.0, limit - (time.monotonic() - started))


class _Table:
    """What is known of every candidate on every device."""

    def __init__(
        self,
        basket: Basket,
        predicted: Sequence[Sequence[TimedCandidate]],
        objective: Objective,
        progress: Progress | None,
    ) -> None:
        self._devices, self._measured = basket.devices, basket.measured
        self._predicted, self._objective = predicted, objective
        self._places = {_key(one): place for place, one in enumerate(predicted[0])}
        #: Device -> place -> the candidate as it was measured there.
        self._found: dict[str, dict[int, TimedCandidate]] = {name: {} for name in basket.measured}
        self._failed: set[int] = set()
        self._notes: dict[str, tuple[str, ...]] = {}
        self._samples = 0
        self._progress = _Progress(progress)

    @property
    def known(self) -> list[int]:
        """Candidates that were measured on every device that is measured."""
        rows = [set(found) for found in self._found.values()]
        return sorted(set.intersection(*rows) - self._failed)

    def measure(self, space: Space, wanted: Sequence[int] | None, limit_s: float | None) -> None:
        """Measure ``wanted`` where they are not yet (None: race for each device's best), all devices at a time."""
        tasks = []
        for device, row in zip(self._devices, self._predicted, strict=True):
            source = self._measured.get(device.name)
            if source is None:
                continue
            missing = [place for place in wanted or () if place and place not in self._found[device.name]]
            if wanted is not None and not missing:
                continue
            how = source if wanted is None else replace(source, strategy="exhaustive")
            chosen = row if wanted is None else [row[0], *(row[place] for place in missing)]
            told = self._progress.of(device.name) if wanted is None else self._progress.silent()
            tasks.append(
                (
                    device.name,
                    missing,
                    partial(replace(how, time_limit_s=limit_s).times, space, [chosen], self._objective, told),
                )
            )
        if not tasks:
            return
        with ThreadPoolExecutor(len(tasks)) as threads:
            futures = [(name, missing, threads.submit(task)) for name, missing, task in tasks]
            for name, missing, future in futures:
                self._take(name, missing, future.result(), first=wanted is None)

    def _take(self, name: str, missing: Sequence[int], answer: Times, *, first: bool) -> None:
        self._samples += answer.samples
        places = {self._places[_key(one)]: one for one in answer.rows[0]}
        if first:
            self._notes[name] = answer.notes
        else:
            places.pop(0, None)  # the race knows the baseline better
            self._failed |= set(missing) - set(places)
        self._found[name].update(places)

    def to_begin_with(self) -> list[int]:
        """Each device's best, without which no loss is known, and the best of them all as predicted."""
        rows = [self._values(device, row) for device, row in zip(self._devices, self._predicted, strict=True)]
        best = set()
        for device, (values, _) in zip(self._devices, rows, strict=True):
            found = self._found.get(device.name)
            best.add(int(min(found if found is not None else range(len(values)), key=values.__getitem__)))
        guess = int(np.argmin(self._losses(rows)[0]))
        return self._unknown([0, *sorted(best | {guess})])

    def promising(self, regret: float) -> list[int]:
        """Candidates that may yet have a smaller worst loss than every one that is known, the likeliest first."""
        rows = [self._values(device, row) for device, row in zip(self._devices, self._predicted, strict=True)]
        value, least = self._losses(rows)
        known = self.known
        if not known:
            return []
        bound = min(value[place] for place in known) - regret
        open_ = [int(place) for place in np.argsort(value, kind="stable") if least[place] < bound]
        return self._unknown(open_)[:BATCH]

    def _unknown(self, places: Sequence[int]) -> list[int]:
        known = set(self.known)
        return [place for place in places if place not in known and place not in self._failed]

    def _losses(self, rows: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
        """(worst loss of each candidate, the least that it can be), against the best on each device."""
        best = []
        for device, (values, _) in zip(self._devices, rows, strict=True):
            found = self._found.get(device.name)
            best.append(values.min() if found is None else min(values[place] for place in found))
        return tuple(
            np.max([row[which] / one for row, one in zip(rows, best, strict=True)], axis=0) - 1 for which in (0, 1)
        )

    def _values(self, device: Device, row: Sequence[TimedCandidate]) -> tuple[Array, Array]:
        """(what is minimised of every candidate, the least that it can be): as measured, else as predicted.

        Of a measured device predictions are shifted by how those seen were off; what a prediction says of a device that
        is not measured stands as it is, since nothing will contradict it.
        """
        weights = np.array([self._objective.weight(one) for one in row])
        seconds = np.array([one.timing.seconds for one in row])
        found = self._found.get(device.name)
        if found is None:
            return seconds * weights, seconds * weights
        error = max((one.timing.high - one.timing.low) / 2 / one.timing.seconds for one in row)
        shift = np.median([one.timing.seconds / seconds[place] for place, one in found.items()]) if found else 1.0
        value, least = seconds * shift, seconds * shift * (1 - min(error, 0.99))
        for place, one in found.items():
            value[place], least[place] = one.timing.seconds, one.timing.low
        return value * weights, least * weights

    def times(self, *, finished: bool) -> Times:
        """The rows of what is known; the notes say what was measured on which device, and how sure that is."""
        known = self.known
        rows, notes = [], []
        for device, row in zip(self._devices, self._predicted, strict=True):
            found = self._found.get(device.name)
            rows.append([row[place] if found is None else found[place] for place in known])
            if found is None:
                notes.append(f"{device.name}: predicted, no such device is here")
            else:
                source = self._measured[device.name].executor.environment.source.removeprefix("measured:")
                notes.append(f"{device.name}: measured ({source}); {self._notes[device.name][0]}")
        notes += dict.fromkeys(note for own in self._notes.values() for note in own[1:])
        said = "none of the others could do better beyond the error" if finished else "--time-limit was up first"
        notes.append(f"{len(known) - 1} candidates measured on every device that is measured: {said}")
        return Times(rows, self._samples, tuple(notes))


def _key(one: TimedCandidate) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(one.change.items()))


class _Progress:
    """One bar of the races on several devices; each call is a place to stop at."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._lock = progress, Lock()
        self._now: dict[str, tuple[int, int]] = {}

    def of(self, name: str) -> Progress:
        def tell(done: int, of: int) -> None:
            with self._lock:
                self._now[name] = done, of
                self._say()

        return tell

    def silent(self) -> Callable[[int, int], None]:
        """What is measured after the races moves no bar."""

        def tell(_done: int, _of: int) -> None:
            with self._lock:
                self._say()

        return tell

    def _say(self) -> None:
        if self._progress is not None:
            self._progress(sum(done for done, _ in self._now.values()), max(1, sum(of for _, of in self._now.values())))
