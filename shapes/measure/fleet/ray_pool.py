"""Ray's actors as a pool: one an accelerator, placed by the accelerator's type."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from shapes.errors import InputError
from shapes.measure.executor import NotMeasured, Samples, Settings
from shapes.measure.fleet.device_process import DeviceProcess, Make
from shapes.measure.fleet.messages import Gone, Message, Over
from shapes.measure.fleet.placement import UNNAMED
from shapes.measure.fleet.pool import LostError
from shapes.measure.jobs import Job

#: What an actor takes of its node's resource for the accelerator's type: any share, the device itself is its GPU.
_TYPE_SHARE = 0.001


@dataclass(slots=True)
class _Seat:
    """An actor; what is awaited of it, in the order it was asked for."""

    actor: Any
    greeting: Any
    runs: deque[Any] = field(default_factory=deque)


class RayPool:
    """See ``Pool``. ``device``: torch's, in each process; ``make``: its executor."""

    def __init__(self, device: str | None, make: Make) -> None:
        self._device, self._make = device, make
        self._class = ray.remote(_Actor)
        self._seats: dict[str, _Seat] = {}

    def split(self, names: Iterable[str]) -> RayPool:
        """A pool of these processes alone, taken out of this one."""
        other = RayPool(self._device, self._make)
        other._seats = {name: self._seats.pop(name) for name in names}
        return other

    def start(self, name: str, type_: str) -> None:
        actor = self._class.options(
            num_gpus=1,
            num_cpus=1,
            max_restarts=0,
            max_task_retries=0,
            resources={} if type_ == UNNAMED else {f"accelerator_type:{type_}": _TYPE_SHARE},
        ).remote(self._device, self._make)
        self._seats[name] = _Seat(actor, actor.greet.remote())

    def stop(self, name: str) -> None:
        seat = self._seats.pop(name, None)
        if seat is not None:
            ray.kill(seat.actor)

    def lease(
        self, name: str, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> None:
        seat = self._seats[name]
        run = seat.actor.run.options(num_returns="streaming")
        seat.runs.append(run.remote(list(jobs), settings, dict(unfinished), left_s))

    def wait(self, timeout_s: float) -> Iterable[tuple[str, Message]]:
        awaited = {}
        for name, seat in self._seats.items():
            if seat.greeting is not None:
                awaited[seat.greeting] = name
            elif seat.runs:
                awaited[seat.runs[0]] = name
        if not awaited:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        if not ready:
            ready, _ = ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
        return [(awaited[one], self._message(self._seats[awaited[one]])) for one in ready]

    def _message(self, seat: _Seat) -> Message:
        message: Message
        try:
            if seat.greeting is not None:
                message = ray.get(seat.greeting)
                seat.greeting = None
            else:
                message = ray.get(next(seat.runs[0]))
        except StopIteration:
            seat.runs.popleft()
            return Over()
        except ray.exceptions.RayError as error:
            # Asked no more: whoever hears of it stops it.
            seat.greeting, seat.runs = None, deque()
            return Gone(_reason(error), final=isinstance(getattr(error, "cause", None), InputError))
        return message

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        actor = self._seats[name].actor
        try:
            answer = ray.get(getattr(actor, method).remote(*arguments), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise LostError(f"answered nothing for {timeout_s:.0f} s", silent=True) from None
        except ray.exceptions.RayError as error:
            raise LostError(_reason(error), silent=False) from None
        if isinstance(answer, tuple) and isinstance(answer[0], str):
            raise NotMeasured(*answer)
        return answer


class _Actor(DeviceProcess):
    """A device process that knows its node by Ray's address of it."""

    def __init__(self, device: str | None, make: Make) -> None:
        super().__init__(device, make, ray.util.get_node_ip_address())


def _reason(error: Exception) -> str:
    """One line of what Ray says over many."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}".splitlines()[0][:300]
    if isinstance(error, ray.exceptions.RayActorError):
        text = str(error)
        if "creation task" in text:  # with the traceback after it
            return text.strip().splitlines()[-1][:300]
        return "its node died" if "node failure" in text or "node was terminated" in text else "its process died"
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
