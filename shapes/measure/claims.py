"""Which process measures what at this moment: two that are given the same jobs share them instead of doing them twice.

A claim is a row of the store: a job that has begun, in one environment, and whose it is. It ends with the job, with its
owner's sweep, with its owner (a process of this host that is no more), or when it was not renewed for ``LASTS_S``.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from shapes.errors import InputError
from shapes.measure.environment import Environment
from shapes.measure.jobs import Job
from shapes.measure.store import Store

#: Longer than a sweep at work ever says nothing; a process that died on this host does not keep anyone so long.
LASTS_S = 300.0
_RENEW_S = 30.0


class Claims:
    """Of one sweep on devices of ``environment``. ``known(keys)``: what the store has of them by now.

    ``elsewhere``: jobs that others had when they were asked for. ``refused``: whether any was ever left to another.
    """

    def __init__(self, store: Store, environment: Environment, known: Callable[[list[str]], object]) -> None:
        self._store, self._identity, self._known = store, environment.identity, known
        self._owner, self._host, self._process = uuid.uuid4().hex, socket.gethostname(), os.getpid()
        self._renewed_s = time.monotonic()
        self.elsewhere: dict[str, Job] = {}
        self.refused = False

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(InputError):  # a full disk has been told; claims end of themselves
            self._store.change("DELETE FROM claim WHERE owner = ?", self._owner)

    def take(self, job: Job) -> bool:
        """Whether this sweep may measure ``job`` now: no other has begun it, and none has done it since."""
        place = (job.key, self._identity)
        with self._store.transaction() as connection:
            row = connection.execute(
                "SELECT owner, host, process, until FROM claim WHERE key = ? AND identity = ?", place
            ).fetchone()
            if row is not None and self._is_held(*row):
                self.elsewhere[job.key], self.refused = job, True
                return False
            connection.execute(
                "INSERT OR REPLACE INTO claim VALUES (?, ?, ?, ?, ?, ?)",
                (*place, self._owner, self._host, self._process, time.time() + LASTS_S),
            )
        self.elsewhere.pop(job.key, None)
        # Asked after it was claimed: who did it has stored it before its claim went.
        if not self._known([job.key]):
            return True
        self._store.change("DELETE FROM claim WHERE key = ? AND identity = ?", *place)
        self.refused = True
        return False

    def renew(self) -> None:
        """Say that this sweep is at work; to be called with everything that happens."""
        if time.monotonic() - self._renewed_s > _RENEW_S:
            self._renewed_s = time.monotonic()
            self._store.change("UPDATE claim SET until = ? WHERE owner = ?", time.time() + LASTS_S, self._owner)

    def _is_held(self, owner: str, host: str, process: int, until: float) -> bool:
        mine, over = owner == self._owner, until < time.time()
        return not (mine or over or (host == self._host and not _alive(process)))


def _alive(process: int) -> bool:
    """Whether a process of this host has that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True
