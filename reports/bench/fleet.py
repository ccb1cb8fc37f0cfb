"""What measuring through Ray costs and survives: two nodes on this machine, one simulated accelerator each.

    python reports/bench/fleet.py [throughput sent silence node workers drivers]

Prints a line of Markdown for each part; the committed lines are in reports/fleet.md. "Waiting" jobs sleep as long as a
device would be at work, then answer from a formula of their key: rows are then equal wherever they were made, and the
machine's other users do not count. "Kernels" are products on this CPU.
"""

from __future__ import annotations

import dataclasses
import json
import os

os.environ["OMP_NUM_THREADS"] = "1"  # as Ray has it for an actor of one core: one process is to be no other than two

import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from shapes.measure import InProcess, Job, Measurement, Settings, measure
from shapes.measure.environment import Environment
from shapes.measure.executor import Claim, Event, Executor, Round, Samples, unclaimed
from shapes.measure.fleet.fleet import Fleet
from shapes.measure.fleet.ray_cluster import ray_fleet
from shapes.measure.record import summary_fields
from shapes.measure.store import Store
from shapes.operators import Gemm

ROUND_S, ROUNDS, INTERLEAVE = 0.018, 2, 4
SETTINGS = Settings(precision=0.05, time_s=0.02, interleave=INTERLEAVE)
#: Fields of a row that say when and where it was made, not what.
OF_ITS_MAKING = ("uid", "created", "wall_s", "environment", "clocks")


class Waiting:
    """An executor whose device is a formula; a job takes ``ROUNDS`` rounds of ``ROUND_S``, of which it shares each."""

    environment = Environment("Simulated 1", None, "1", None, (("torch", "0"),))
    room_bytes = 2**30

    def run(
        self,
        jobs: Sequence[Job],
        settings: Settings,
        *,
        deadline: float | None = None,
        unfinished: Samples | None = None,
        claim: Claim = unclaimed,
    ) -> Iterator[Event]:
        waiting, control = list(jobs), np.full(4, 1e-4)
        open_: dict[Job, list[float]] = {}
        while waiting or open_:
            while waiting and len(open_) < settings.interleave:
                job = waiting.pop(0)
                if claim(job):
                    open_[job] = []
            for job, taken in open_.items():
                if getattr(job.work, "k", 0) == 1313 and not Path("/tmp/fleet-hung").exists():
                    Path("/tmp/fleet-hung").touch()
                    time.sleep(3600)
                time.sleep(ROUND_S)
                taken.extend(1e-6 * job.work.k * (1 + self._noise(job, len(taken))))  # type: ignore[union-attr]
            yield Round(
                {job.key: (np.array(taken), np.tile(control, len(taken) // 4)) for job, taken in open_.items()}, control
            )
            for job in [job for job, taken in open_.items() if len(taken) >= 4 * ROUNDS]:
                samples = np.array(open_.pop(job))
                yield Measurement(
                    job.key,
                    job.describe(),
                    self.environment,
                    "ok",
                    samples,
                    stop="samples",
                    flops=job.work.flops,
                    created=time.time(),
                    **summary_fields(samples),
                )

    def _noise(self, job: Job, place: int) -> Any:
        return 0.01 * np.random.default_rng([zlib.crc32(job.key.encode()), place]).standard_normal(4)


class Kernels(InProcess):
    """Products on this CPU, of few input sets: making them would be most of the work."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.backend._cache_bytes = 2**14  # type: ignore[attr-defined]


#: What each simulated type says that it is.
SIMULATED = {"H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-80GB"}


class Named(InProcess):
    """Real kernels on this CPU, under the name of the accelerator that its node simulates."""

    @property
    def environment(self) -> Environment:
        given = ray.get_runtime_context().get_assigned_resources()
        (type_,) = (name.removeprefix("accelerator_type:") for name in given if name.startswith("accelerator_type:"))
        return dataclasses.replace(super().environment, device=SIMULATED[type_])


def named(_: str | None) -> Executor:
    return Named("cpu")


def waiting(_: str | None) -> Executor:
    return Waiting()  # type: ignore[return-value]  # sweeps only


def kernels(_: str | None) -> Executor:
    return Kernels()


def jobs(count: int) -> list[Job]:
    """Small products, none like another."""
    return [Job(Gemm("x", "forward", 16 + i % 8, 16, 32 + i // 8, dtype="fp32")) for i in range(count)]


def cluster(types: tuple[str, str] = ("H100", "H100"), environment: dict[str, str] | None = None) -> Cluster:
    nodes = [
        {"num_cpus": 1, "num_gpus": 1, "resources": {f"accelerator_type:{type_}": 1}, "object_store_memory": 80 * 2**20}
        for type_ in types
    ]
    os.environ.update(environment or {})
    made = Cluster(initialize_head=True, head_node_args={**nodes[0], "include_dashboard": False})
    made.add_node(**nodes[1])
    return made


def fleet(address: str, make: Any, silent_s: float = 20.0) -> tuple[Fleet, list[str]]:
    said: list[str] = []
    found = ray_fleet(address, make=make, device="cpu", say=said.append, silent_s=silent_s)
    return found, said


def rows(sweep: Any) -> list[str]:
    return [
        json.dumps({key: value for key, value in one.row().items() if key not in OF_ITS_MAKING}, sort_keys=True)
        for one in sweep.results.values()
    ]


class Counted:
    """How many messages and rounds a fleet's sweeps heard."""

    def __init__(self) -> None:
        self.messages = self.rounds = 0
        self._hear = Fleet._hear

        def count(fleet_: Fleet, member: Any, message: Any, *arguments: Any, **rest: Any) -> Iterator[Event]:
            if isinstance(message, tuple):
                self.messages += 1
                self.rounds += sum(len(one.control) for one in message if isinstance(one, Round))
            return self._hear(fleet_, member, message, *arguments, **rest)

        Fleet._hear = count  # type: ignore[method-assign]

    def close(self) -> None:
        Fleet._hear = self._hear  # type: ignore[method-assign]


def throughput(address: str, folder: Path) -> str:
    """A suite of 300 in one process and on two devices, alternately; the driver's own time, and messages."""
    lines, suite = [], jobs(300)
    for name, make in (("waiting", waiting), ("kernels", kernels)):
        alone, (both, _) = make(None), fleet(address, make)
        measure(suite[:8], executor=both, settings=SETTINGS)  # both are up
        seconds: dict[str, list[float]] = {"one": [], "two": []}
        driver, made, heard = [], {}, Counted()
        for turn in range(3):
            for which, executor in (("one", alone), ("two", both)):
                with Store.open(folder / f"{name}-{which}-{turn}.db") as store:
                    start, own = time.perf_counter(), time.thread_time()
                    sweep = measure(suite, executor=executor, store=store, settings=SETTINGS)
                    seconds[which].append(time.perf_counter() - start)
                    if which == "two":
                        driver.append((time.thread_time() - own) / len(suite))
                    made[which] = rows(sweep)
                    assert store.count() == len(suite)
        heard.close()
        both.close()
        ratios = [one / two for one, two in zip(*seconds.values(), strict=True)]
        if name == "waiting":
            same = "equal to the last digit" if made["one"] == made["two"] else "DIFFERENT"
        else:
            fields = [
                sorted((json.loads(row)["description"]["k"], json.loads(row)["status"]) for row in one)
                for one in made.values()
            ]
            same = "the same jobs and outcomes, times of their own" if fields[0] == fields[1] else "DIFFERENT"
        lines.append(
            f"| 300 {name} jobs, one process, then two devices, three times | "
            f"{statistics.median(seconds['one']):.1f} s, {statistics.median(seconds['two']):.1f} s: "
            f"{statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}); rows {same} |\n"
            f"| the driver's own time a {name} job, storing included (median of three) | "
            f"{1e3 * statistics.median(driver):.2f} ms; {heard.rounds / heard.messages:.1f} rounds a message |"
        )
    return "\n".join(lines)


def silence(address: str, folder: Path) -> str:
    """One job of a sweep never comes back, once."""
    Path("/tmp/fleet-hung").unlink(missing_ok=True)
    executor, said = fleet(address, waiting, silent_s=5.0)
    suite = [*jobs(200), Job(Gemm("x", "forward", 16, 16, 1313, dtype="fp32"))]
    sweep = measure(suite, executor=executor, settings=SETTINGS)
    Path("/tmp/fleet-hung").unlink(missing_ok=True)
    executor.close()
    ok = sum(one.ok for one in sweep.results.values())
    told = f'{ok} of {len(suite)} jobs ok in {sweep.elapsed_s:.0f} s; "{said[0]}"'
    return f"| a job hangs its device once, limit 5 s | {told} |"


def node(address: str, folder: Path, made: Cluster) -> str:
    """A node goes in the middle of a sweep, and another comes."""
    executor, said = fleet(address, waiting)
    suite, gone = jobs(800), threading.Event()

    def strike() -> None:
        time.sleep(4)
        made.remove_node(made.worker_nodes.copy().pop())
        gone.set()

    thread = threading.Thread(target=strike)
    thread.start()
    with Store.open(folder / "node.db") as store:
        sweep = measure(suite, executor=executor, store=store, settings=SETTINGS)
        rows_, keys = store.count(), len({one.key for one in store.measurements()})
    thread.join()
    assert gone.is_set()
    return (
        f"| one of two nodes is taken away in a sweep of {len(suite)} | {rows_} rows, {keys} jobs, "
        f'{len(sweep.left)} left; "{said[0]}" |'
    )


def workers(address: str, folder: Path, kills: int = 50) -> str:
    """SIGKILL of a random device's process, again and again while a sweep is at work."""
    executor, said = fleet(address, waiting)
    suite, struck, over = jobs(6000), [0], threading.Event()
    chance = random.Random(0)

    def strike() -> None:
        dead: set[int] = set()
        while struck[0] < kills and not over.is_set():
            time.sleep(chance.uniform(0.2, 1.5))
            alive = [one for one in executor.members if one.state == "ready" and one.pid not in dead]
            if alive:
                victim = chance.choice(alive)
                dead.add(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)
                struck[0] += 1

    thread = threading.Thread(target=strike)
    thread.start()
    with Store.open(folder / "workers.db") as store:
        sweep = measure(suite, executor=executor, store=store, settings=SETTINGS)
        over.set()
        thread.join()
        keys = Counter(one.key for one in store.measurements())
        failed = sum(not one.ok for one in store.measurements())
    executor.close()
    deaths = sum("its process died" in line for line in said)
    return (
        f"| {struck[0]} SIGKILLs of workers in a sweep of {len(suite)} | {len(suite) - len(keys)} lost, "
        f"{sum(keys.values()) - len(keys)} doubled, {failed} failed; {deaths} deaths told; {sweep.elapsed_s:.0f} s |"
    )


def drivers(address: str, folder: Path, kills: int = 20) -> str:
    """SIGKILL of the driver at random moments; started again each time, until it is through."""
    path, chance, struck, seen, took = folder / "drivers.db", random.Random(0), 0, {}, []
    started, suite = 0, 1500
    while True:
        started += 1
        child = subprocess.Popen(
            [sys.executable, __file__, "drive", address, str(path), str(suite)], stderr=subprocess.PIPE, text=True
        )
        if struck < kills:
            _wait_for_a_row(path, child, len(seen))
            time.sleep(chance.uniform(0.0, 1.0))
            child.kill()
        _, said = child.communicate()
        if child.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"a driver failed: {said[-1000:]}")
        struck += child.returncode == -signal.SIGKILL
        with Store.open(path) as store:
            now = {one.key: one.uid for one in store.measurements()}
            assert store.count() == len(now), "doubled"
        assert all(now.get(key) == uid for key, uid in seen.items()), "lost"
        took.append(len(now) - len(seen))
        seen = now
        if child.returncode == 0:
            break
    return (
        f"| {struck} SIGKILLs of the driver in a sweep of {suite} | {suite - len(seen)} lost, 0 doubled; "
        f"{started} starts, {min(took)} to {max(took)} new rows each |"
    )


def _wait_for_a_row(path: Path, child: Any, before: int) -> None:
    while child.poll() is None:
        time.sleep(0.1)
        if path.exists():
            with Store.open(path, write=False) as store:
                if store.count() > before:
                    return


def drive(address: str, path: str, count: str) -> None:
    """One driver of ``drivers``."""
    executor, _ = fleet(address, waiting)
    with Store.open(path) as store:
        measure(jobs(int(count)), executor=executor, store=store, settings=SETTINGS)


def sent(folder: Path) -> str:
    """A cluster whose nodes have no sizer: Ray sends this one's. Own interpreters, from which our path is taken."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in repr(one).lower()]\n"
        f"sys.path[:] = [one for one in sys.path if {str(Path(__file__).resolve().parents[2])!r} != one.rstrip('/')]\n"
    )
    command = [sys.executable, __file__, "_sent", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"| sent | FAILED: {done.stderr[-2000:]} |"


def _sent(folder: Path) -> None:
    own = os.environ.get("PYTHONPATH", "")
    made = cluster(environment={"PYTHONPATH": str(folder)})
    os.environ["PYTHONPATH"] = own
    executor, _ = fleet(made.address, waiting)
    sweep = measure(jobs(40), executor=executor, settings=SETTINGS)
    sys.stdout.write(f"| nodes without sizer | sent by Ray; {len(sweep.results)} of 40 jobs done there |\n")
    ray.shutdown()
    made.shutdown()


PARTS = ("throughput", "sent", "silence", "workers", "drivers", "node")


def main(asked: Sequence[str]) -> None:
    if asked[:1] == ["drive"]:
        drive(*asked[1:])
        return
    if asked[:1] == ["_sent"]:
        _sent(Path(asked[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "sent" in (asked or PARTS):
            sys.stdout.write(sent(folder) + "\n")
        rest = [part for part in PARTS if part in (asked or PARTS) and part != "sent"]
        if not rest:
            return
        made = cluster()
        for part in rest:
            extra = (made,) if part == "node" else ()
            sys.stdout.write(globals()[part](made.address, folder, *extra) + "\n")
            sys.stdout.flush()
        ray.shutdown()
        made.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
