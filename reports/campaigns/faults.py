"""Faults of a device while a sweep runs on tests/cuda_shim.py: no row lost or doubled, every culprit named.

Of so many faults most are shapes that always go wrong: an illegal access, a device's process that is killed, one that
hangs, memory that is not there; some make the device throttle for a while; the last, one in twenty, kill the driver
when it has stored some rows more: it is started again. A thousand faults are met by a sweep of 9,717 shapes, fewer by
ten shapes a fault. Devices' processes are forked from a server that has torch loaded.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from reports.campaigns.configurations import ROOT
from reports.campaigns.outcome import Outcome
from shapes.errors import InputError
from shapes.measure import InProcess, Settings, workers
from shapes.measure.jobs import Job
from shapes.measure.runner import measure
from shapes.measure.store import Store
from shapes.measure.workers import Child, Workers
from shapes.operators.types import Gemm
from sizer.answers.bench import Rows

sys.path.insert(0, str(ROOT / "tests"))

#: Shares of the faults; those of LOSING lose the device each time.
KINDS = {"access": 30, "killed": 20, "hang": 6, "memory": 25, "throttle": 14, "driver": 5}
LOSING = ("access", "killed", "hang")
SHAPES, SILENT_S = 9717, 2.0
FAST = Settings(
    precision=0.5, least_samples=8, time_s=1e-3, batch_s=1e-4, warm_up_s=1e-4, most_warm_up_s=2e-2, interleave=4
)

Shape = tuple[int, int, int]


def shape_of(place: int) -> Shape:
    return 16 + place % 32, 8 + 8 * (place // 32 % 32), 16 + place // 1024


def job_of(place: int) -> Job:
    m, n, k = shape_of(place)
    return Job(Gemm("x", "forward", m, n, k))


def planned(count: int, rng: random.Random) -> tuple[dict[Shape, str], int, int]:
    """(shape -> what is wrong with it, how many shapes there are, how often the driver is killed)."""
    shapes = SHAPES if count >= 1000 else 10 * count
    kinds = [kind for kind, share in KINDS.items() for _ in range(-(-count * share // 100))]
    wrong = [kind for kind in kinds if kind != "driver"]
    places = rng.sample(range(shapes), len(wrong))
    return dict(zip(map(shape_of, places), wrong, strict=True)), shapes, len(kinds) - len(wrong)


class Faulty:
    """What is asked of each operator on the shim."""

    def __init__(self, wrong: dict[Shape, str]) -> None:
        self.wrong, self.hot, self.cooled = wrong, None, Counter[Any]()
        self.cuda: Any = None

    def __call__(self, func: Any, args: tuple[Any, ...]) -> None:
        import torch

        if not str(func).startswith("aten.mm") or args[0].dtype != torch.bfloat16:  # what it is checked by is wider
            return
        (m, k), n = args[0].shape, args[1].shape[1]
        kind = self.wrong.get((m, n, k))
        self.hot = (m, n, k) if kind == "throttle" else None
        if kind == "access":
            self.cuda.lose()
        elif kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "hang":
            time.sleep(10 * SILENT_S)
            os._exit(1)  # nobody may be left to end it
        elif kind == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")

    def reasons(self, card: Any, out: Any) -> int:
        """NVML's: a shape that heats the device does so for three batches."""
        hot = self.hot is not None and self.cooled[self.hot] < 3
        self.cooled[self.hot] += hot
        out._obj.value = 0x40 if hot else 0
        return 0


class Make:
    """The executor of a device's process: the shim, for as long as it lives."""

    def __init__(self, wrong: dict[Shape, str]) -> None:
        self.wrong = wrong

    def __call__(self, device: str | None) -> InProcess:
        import cuda_shim  # of tests
        import torch

        faulty = Faulty(self.wrong)
        torch.set_num_threads(1)  # products this small take longer on more
        held.append(cuda_shim.installed(faulty))
        faulty.cuda = held[0].__enter__()
        faulty.cuda.capturable = False  # what is replayed runs no operator here
        faulty.cuda.nvml.nvmlDeviceGetCurrentClocksEventReasons = faulty.reasons
        return InProcess("cuda")


held: list[Any] = []


def drive(folder: Path, wrong: dict[Shape, str], shapes: int) -> None:
    """One run of the driver, in a process of its own."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["cuda_shim", "shapes.measure.kernels", "reports.campaigns.faults"])
    with (
        patch.object(workers.multiprocessing, "get_context", lambda _: server),
        Store.open(folder / "s.db", measuring=True) as store,
        Rows(folder / "out", "sweep") as rows,
    ):
        executor = Workers([Child(None, Make(wrong))], lambda _: None, SILENT_S)
        jobs = [job_of(place) for place in range(shapes)]
        measure(jobs, executor=executor, store=store, settings=FAST, keep=rows.add)
    os._exit(0)


def stored(folder: Path) -> dict[str, tuple[str, str, bytes]]:
    """Key -> (uid, status, samples) of what a reader sees."""
    with Store.open(folder / "s.db", create=False, write=False) as store:
        found = [(one.key, (one.uid, one.status, one.samples.tobytes())) for one in store.measurements()]
    assert len(dict(found)) == len(found), "doubled"
    return dict(found)


def _rows(folder: Path) -> int:
    """How many results are stored."""
    with suppress(InputError), Store.open(folder / "s.db", create=False, write=False) as store:
        return store.count()
    return 0  # not there yet, or being created


def _driven(folder: Path, wrong: dict[Shape, str], shapes: int, more: int | None) -> int | None:
    """A driver's exit code; ``more``: it is killed when so many more results were stored."""
    driver = multiprocessing.get_context("forkserver").Process(target=drive, args=(folder, wrong, shapes))
    before = _rows(folder)
    driver.start()
    if more is not None:
        while driver.is_alive() and _rows(folder) - before < more:
            time.sleep(0.05)
        driver.kill()
    driver.join()
    return driver.exitcode


def run(count: int, rng: random.Random, folder: Path) -> Outcome:
    outcome = Outcome()
    wrong, shapes, kills = planned(count, rng)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "reports.campaigns.faults"])
    before: dict[str, tuple[str, str, bytes]] = {}
    for number in range(kills + 1):
        last = number == kills
        code = _driven(folder, wrong, shapes, None if last else rng.randrange(1, 2 * shapes // (kills + 1)))
        if code not in ((0,) if last else (0, -signal.SIGKILL)):
            outcome.violation(f"exit code {code}", number)
        after = stored(folder)
        for key, row in before.items():
            if after.get(key) != row:
                outcome.violation("lost or changed", (number, key))
        before = after
        if not last:
            outcome.tell("driver")
    wanted = {job_of(place).key: wrong.get(shape_of(place), "") for place in range(shapes)}
    with Store.open(folder / "s.db", create=False, write=False) as store:
        found = {one.key: one for one in store.measurements()}
    written = [
        json.loads(line)
        for path in (folder / "out").glob("*.jsonl.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    rows = Counter(row["uid"] for row in written)
    for key, kind in wanted.items():
        if kind:
            outcome.tell(kind)
        one = found.get(key)
        if one is None:
            outcome.violation("no row", (key, kind))
            continue
        if rows[one.uid] != 1:
            outcome.violation("lost or doubled in the files", (key, kind, rows[one.uid]))
        said = {"": "ok", "throttle": "ok", "memory": "oom"}.get(kind, "error")
        lost = one.message.startswith("the device was lost with it: ")
        if one.status != said or lost is not (kind in LOSING):
            outcome.violation(f"{kind or 'innocent'} is {one.status}", (key, one.message))
        if one.clocks.get("throttle") or (kind == "throttle" and one.clocks["throttled"] != 3):
            outcome.violation("throttled samples were kept", (key, kind, dict(one.clocks)))
    outcome.kinds["rows"] = len(found)
    outcome.kinds["measured"] = sum(one.ok for one in found.values())
    if len(found) != shapes or sum(rows.values()) != shapes:
        outcome.violation("rows", (shapes, len(found), sum(rows.values())))
    return outcome
