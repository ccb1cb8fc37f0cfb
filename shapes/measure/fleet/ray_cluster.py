"""A Ray cluster's accelerators as a fleet: connect, see what is there, start an actor on each.

Ray places the actors and hears of their deaths; it sends this package to them, so that no node needs one of its own.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

import shapes
from shapes.errors import InputError
from shapes.measure.environment import Environment
from shapes.measure.executor import Samples, Settings
from shapes.measure.fleet.device import DeviceProcess, Greeting, LostError, Make, Message, Over
from shapes.measure.fleet.fleet import Fleet, Member
from shapes.measure.fleet.leases import UNNAMED, places
from shapes.measure.jobs import Job

#: A head node that does not take a connection within this is not there; Ray itself tries for minutes.
CONNECT_S = 5.0
#: Ray has what is asked for by then: it said so.
READY_S = 30.0
#: Where `ray start` writes the address of the cluster it started.
_CURRENT = "ray/ray_current_cluster"
_TYPE = "accelerator_type:"
#: What an actor takes of its node's resource for the accelerator's type: any share, the device itself is its GPU.
_TYPE_SHARE = 0.001


def connect(address: str) -> None:
    """Join the cluster at ``address`` ("auto": this machine's), unless this program has joined one already.

    InputError in one line of what was tried.
    """
    if ray.is_initialized():
        return
    if address.startswith("ray://"):
        expected = "expected auto or HOST:PORT of the head node: run sizer on a node of the cluster"
        raise InputError(expected, key="--ray", value=address)
    found, tried = _current() if address == "auto" else (address, address)
    if found is not None:
        _reachable(found, tried)
    # What Ray says of a worker's death goes to standard output, into our answer, whatever log_to_driver is; we say it.
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = False
    with _own_signals():
        try:
            ray.init(
                address=found or "auto",
                namespace="sizer",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
                runtime_env={"py_modules": [str(Path(shapes.__file__).parent)]},
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise InputError(
                f"no Ray cluster ({reason}); tried {tried}: start one with `ray start --head`", key="--ray"
            ) from None


def _current() -> tuple[str | None, str]:
    """(the address that Ray would find, what was looked at)."""
    named = os.environ.get("RAY_ADDRESS")
    if named and named != "auto":
        return named, f"RAY_ADDRESS={named}"
    path = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / _CURRENT
    try:
        return path.read_text().strip(), str(path)
    except OSError:
        return None, f"RAY_ADDRESS (not set), {path} (not there) and this machine's processes"


def _reachable(address: str, tried: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError("expected auto or HOST:PORT of the head node", key="--ray", value=address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f"{tried} ({address})" if tried != address else address
        raise InputError(
            f"no Ray cluster: tried {where} for {CONNECT_S:.0f} s: {reason}; start one with `ray start --head`",
            key="--ray",
        ) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray puts a handler of its own in place of ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None:
                signal.signal(number, handler)


def accelerators() -> Counter[str]:
    """Type -> whole accelerators of the cluster's nodes."""
    found: Counter[str] = Counter()
    for node in ray.nodes():
        resources: Mapping[str, float] = node["Resources"] if node["Alive"] else {}
        types = [name.removeprefix(_TYPE) for name in resources if name.startswith(_TYPE)]
        found[types[0] if types else UNNAMED] += int(resources.get("GPU", 0))
    return +found


def ray_fleet(
    address: str,
    *,
    make: Make,
    device: str | None = None,
    on: Mapping[str, int | None] | None = None,
    say: Callable[[str], None],
    silent_s: float = 120.0,
    start_s: float = 120.0,
) -> Fleet:
    """The accelerators of the cluster at ``address``, which are to be of one kind: the same name, driver and libraries.

    ``on``: type -> how many (None: all that are there). ``make`` and ``device``: see ``DeviceProcess``. ``say`` is told
    what happens to devices; one with another driver or library than most is set aside. InputError where there is no
    cluster, not what was asked for, or devices of several names.
    """
    connect(address)
    pool = RayPool(device, make)
    members = [
        Member(f"{type_}/{number}", type_)
        for type_, count in places(on, accelerators()).items()
        for number in range(count)
    ]
    for member in members:
        pool.start(member.name, member.type)
    ready = _greetings(pool, [member.name for member in members], say, start_s)
    fleet = Fleet(
        pool,
        [member for member in members if member.name in ready],
        _environment(ready.values()),
        say=say,
        silent_s=silent_s,
        start_s=start_s,
    )
    for member in fleet.members:
        fleet.greeted(member, ready[member.name])
    return fleet


def _environment(greetings: Iterable[Greeting]) -> Environment:
    """What most devices have; InputError where they are of several names."""
    found = [greeting.environment for greeting in greetings]
    devices = sorted({one.device for one in found})
    if len(devices) > 1:
        raise InputError(f"expected one kind of device, named with --on: {', '.join(devices)}", key="--ray")
    usual = Counter(one.identity for one in found).most_common(1)[0][0]
    return next(one for one in found if one.identity == usual)


def _greetings(pool: RayPool, names: list[str], say: Callable[[str], None], start_s: float) -> dict[str, Greeting]:
    """Who is ready within ``start_s``; a line for every other, and one while they are waited for."""
    heard: dict[str, Message] = {}
    start, told = time.monotonic(), False
    while len(heard) < len(names) and time.monotonic() < start + start_s:
        heard.update(pool.wait(0.5))
        if not told and time.monotonic() > start + 0.1 * start_s:
            told = True
            say(f"{len(heard)} of {len(names)} devices are ready: waiting for the others, {start_s:.0f} s at most")
    ready = {name: message for name, message in heard.items() if isinstance(message, Greeting)}
    late = f"not ready after {start_s:.0f} s: is it in use?"
    reasons = {name: str(heard.get(name, late)) for name in names if name not in ready}
    if not ready:
        listed = "; ".join(dict.fromkeys(reasons.values()))
        raise InputError(f"no device of the cluster can be used: {listed}", key="--ray")
    for name, reason in reasons.items():
        pool.stop(name)
        say(f"{name}: {reason}: not used")
    return ready


@dataclass(slots=True)
class _Seat:
    """An actor and the messages that are awaited of it: its greeting, then a lease's."""

    actor: Any
    messages: Any


class RayPool:
    """See ``Pool``: one actor an accelerator, placed by its type. ``device``: torch's; ``make``: its executor."""

    def __init__(self, device: str | None, make: Make) -> None:
        self._device, self._make = device, make
        self._class = ray.remote(DeviceProcess)
        self._seats: dict[str, _Seat] = {}

    def start(self, name: str, type_: str) -> None:
        actor = self._class.options(
            num_gpus=1,
            num_cpus=1,
            max_restarts=0,
            max_task_retries=0,
            resources={} if type_ == UNNAMED else {f"{_TYPE}{type_}": _TYPE_SHARE},
        ).remote(self._device, self._make)
        self._seats[name] = _Seat(actor, actor.greet.options(num_returns="streaming").remote())

    def stop(self, name: str) -> None:
        seat = self._seats.pop(name, None)
        if seat is not None:
            ray.kill(seat.actor)

    def lease(
        self, name: str, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> None:
        run = self._seats[name].actor.run.options(num_returns="streaming")
        self._seats[name].messages = run.remote(list(jobs), settings, dict(unfinished), left_s)

    def wait(self, timeout_s: float) -> Iterable[tuple[str, Message]]:
        awaited = {seat.messages: name for name, seat in self._seats.items() if seat.messages is not None}
        if not awaited:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        if not ready:
            ready, _ = ray.wait(list(awaited), num_returns=1, timeout=timeout_s)
        return [(awaited[one], self._message(self._seats[awaited[one]])) for one in ready]

    def _message(self, seat: _Seat) -> Message:
        try:
            message: Message = ray.get(next(seat.messages), timeout=READY_S)
        except (StopIteration, ray.exceptions.RayError) as error:
            seat.messages = None  # asked no more: whoever hears of an end stops or leases it
            return Over() if isinstance(error, StopIteration) else LostError(_reason(error))
        return message


def _reason(error: Exception) -> str:
    """One line of what Ray says over many."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}".splitlines()[0][:300]
    if isinstance(error, ray.exceptions.RayActorError):
        return "its process died"
    # A traceback comes before what it is about.
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
