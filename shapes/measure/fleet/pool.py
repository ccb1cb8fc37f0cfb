"""Processes that hold one accelerator each: what a fleet needs of whatever starts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from shapes.measure.executor import Samples, Settings
from shapes.measure.fleet.messages import Message
from shapes.measure.jobs import Job


class LostError(RuntimeError):
    """A device's process ended, or did not answer in time (``silent``), before it had done what was asked."""

    def __init__(self, reason: str, *, silent: bool) -> None:
        super().__init__(reason)
        self.silent = silent


class Pool(Protocol):
    """Device processes by name. Only ``wait`` and ``call`` wait."""

    def start(self, name: str, type_: str) -> None:
        """Begin to start a process on a device of ``type_``; its Greeting comes when it is ready."""
        ...

    def stop(self, name: str) -> None:
        """End the process at once, whatever it does; nothing more is heard of it."""
        ...

    def lease(
        self, name: str, jobs: Sequence[Job], settings: Settings, unfinished: Samples, left_s: float | None
    ) -> None:
        """Queue ``jobs``: Bursts and an Over come of them. None is begun after ``left_s`` seconds."""
        ...

    def wait(self, timeout_s: float) -> Iterable[tuple[str, Message]]:
        """What has come, after at most ``timeout_s`` seconds; of one process in the order it was sent."""
        ...

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """What ``method`` (prepare, sample, finish, release) returns there. LostError, NotMeasured."""
        ...
