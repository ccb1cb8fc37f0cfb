"""A Ray cluster's accelerators as workers: connect, see what is there, an actor on each. Nothing else imports ray.

Ray places the actors and hears of their deaths; it sends this package to them.
"""

import logging
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray

import shapes
from shapes.errors import InputError, refuse

from .in_process import InProcess
from .workers import START_S, DeviceServer, LostError, Make, Worker

#: A head node that takes no connection within this is not there (Ray tries for minutes); what Ray said to be ready
#: comes within this.
CONNECT_S, READY_S = 5.0, 30.0
_TYPE = "accelerator_type:"
#: Name of devices whose node does not name their type.
UNNAMED = "GPU"


def connect(address: str) -> None:
    """Join the cluster at ``address`` (auto: this machine's; local: one that is started here, and ends with us)."""
    if ray.is_initialized():
        return
    # Ray reports a worker's death on standard output, into our answer, whatever log_to_driver is; we report it.
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = False
    try:
        if address not in ("auto", "local"):
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        with _own_signals():
            ray.init(
                address=address,
                namespace="sizer",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
                runtime_env={"py_modules": [str(Path(shapes.__file__).parent)]},
            )
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        expected = f"expected local, auto or HOST:PORT of a head node that `ray start --head` started ({reason})"
        raise InputError(expected, "--ray", address) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray puts a handler of its own in place of ours."""
    main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None:
                signal.signal(number, handler)


def accelerators() -> Counter[str]:
    """Type -> whole accelerators of the cluster's nodes."""
    found = Counter[str]()
    for node in ray.nodes():
        resources = node["Resources"] if node["Alive"] else {}
        types = [name.removeprefix(_TYPE) for name in resources if name.startswith(_TYPE)]
        found[types[0] if types else UNNAMED] += int(resources.get("GPU", 0))
    return +found


def ray_workers(address: str, on: str | None, device: str | None, make: Make | None = None) -> list[Worker]:
    """The accelerators of the cluster at ``address``; ``on``: "H100", their type (None: all).

    InputError where there is no cluster, or not what was asked for.
    """
    connect(address)
    there = accelerators()
    wanted = there if on is None else {on: there[on]}
    if not any(wanted.values()):
        listed = ", ".join(f"{type_}:{here}" for type_, here in sorted(there.items())) or "no accelerators"
        raise InputError(f"expected a type of what the cluster has: {listed}", "--on", on)
    return [
        RayWorker(f"{type_}/{number}", type_, device, make or accelerator_or_cpu)
        for type_, many in wanted.items()
        for number in range(many)
    ]


def accelerator_or_cpu(device: str | None) -> InProcess:
    """``InProcess``; InputError where torch sees no accelerator and none was named: figures would be a CPU's."""
    found = InProcess(device)
    refuse(
        device is None and found.backend.device == "cpu",
        "torch sees no accelerator in a process that was given one",
        where=socket.gethostname(),
    )
    return found


class RayWorker:
    """See ``Worker``: an actor that has one accelerator."""

    def __init__(self, name: str, type_: str, device: str | None, make: Make) -> None:
        self.name = name
        # Any share of the node's resource for the accelerator's type: the device itself is the actor's GPU.
        resources = {} if type_ == UNNAMED else {f"{_TYPE}{type_}": 0.001}
        # Ray fails what is asked of an actor that it starts again: another takes its place.
        placed = {"num_gpus": 1, "num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "resources": resources}
        self._start = partial(ray.remote(DeviceServer).options(**placed).remote, make, device)
        self._actor: Any = None
        self._fresh = True

    def ask(self, patience_s: float, request: str, *arguments: Any) -> Iterator[Any]:
        """See ``Worker.ask``."""
        self._actor = self._actor or self._start()
        stream = getattr(self._actor, request).options(num_returns="streaming").remote(*arguments)
        over, wait_s = False, START_S if self._fresh else patience_s
        try:
            while ray.wait([stream], timeout=wait_s)[0]:
                message = ray.get(next(stream), timeout=READY_S)
                self._fresh, wait_s = False, patience_s
                yield message
            raise LostError(f"answered nothing for {wait_s:.0f} s")
        except StopIteration:
            over = True
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, InputError):
                raise cause from None
            died = isinstance(error, ray.exceptions.RayActorError)
            raise LostError("its process died" if died else f"{cause or error}".splitlines()[0][:300]) from None
        finally:
            if not over:
                self.stop()

    def stop(self) -> None:
        """See ``Worker.stop``."""
        self._fresh = True
        if self._actor is not None:
            ray.kill(self._actor)
        self._actor = None
