"""Kills and signals at random moments of bench and of a measured search: nothing stored is lost or doubled.

What a reader saw in the store when the signal was sent is there afterwards, samples of unfinished jobs too; a program
that may end in order does so with one line and 128 plus the signal; when a command at last comes to its end, each job
is stored once and nothing but the lock lies next to the store. Programs are forked from a server that has torch loaded,
so that a try takes a moment; one in thirty is started anew, so that signals come while torch loads, too.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reports.campaigns.configurations import ROOT
from reports.campaigns.outcome import Outcome
from shapes.errors import InputError
from shapes.measure.store import Store

NUMBERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WEIGHTS = (75, 15, 5, 5)
JOBS = 12
COMMANDS = {
    "bench": ("bench", "-m", "64", "-n", "64", "-k", f"8:{8 * JOBS}:8", "--max-time", "0.05", "--device", "cpu"),
    "search": (
        "search",
        "--h",
        "64",
        "-b",
        "1",
        "-s",
        "64",
        "--dtype",
        "fp32",
        "--tolerance",
        "5%",
        "--limit",
        "step=4",
        "--measure",
        "--limit",
        "regret=30%",
        "--time-limit",
        "15",
    ),
}
#: After so many tries a command is left to come to its end.
_PATIENCE = 40
#: Seconds in which a program is to end, on a busy machine too.
_END_S = 300


def program(words: tuple[str, ...], said: Path) -> None:
    """The command line in a forked process; standard error goes to a file."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["sizer", *words]
    from sizer.__main__ import run

    run()


@dataclass(slots=True)
class Seen:
    """What a reader finds: the jobs stored, and the samples of those under way."""

    keys: list[str]
    samples: int


def seen(store: Path) -> Seen:
    if not store.exists():
        return Seen([], 0)
    try:
        with Store.open(store, create=False, write=False) as opened:
            keys = [one.key for one in opened.measurements()]
            sizes = opened._connection.execute(
                # What goes on from a measurement holds its samples too, and replaces it when it is done.
                "SELECT coalesce(sum(most), 0) FROM (SELECT max(length(samples)) AS most FROM"
                " (SELECT key, samples FROM part UNION ALL SELECT key, samples FROM measurement) GROUP BY key)"
            ).fetchone()
    except InputError:
        if store.stat().st_size:
            raise
        return Seen([], 0)  # being created
    return Seen(keys, int(sizes[0]))


def _handles(process: int) -> bool:
    """Whether the program has its handlers: what comes before is Python's own start."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return True
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _interrupted(
    words: tuple[str, ...], number: signal.Signals | None, rng: random.Random, store: Path
) -> tuple[int | None, str, Seen]:
    """Exit code (None: it did not end), what was said, and what was stored when the signal (None: none) was sent."""
    said = store.parent / "said.txt"
    anew = rng.random() < 1 / 30
    after = rng.choice((0.0, rng.uniform(0, 0.3), rng.uniform(0, 1.0))) * (6 if anew else 1)
    server = multiprocessing.get_context("forkserver")
    if anew:
        with said.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "sizer", *words], cwd=ROOT, stderr=file, stdout=subprocess.DEVNULL
            )
    else:
        server.set_forkserver_preload(["torch", "sizer.cli.measuring", "sizer.cli.search", "shapes.measure.in_process"])
        process = server.Process(target=program, args=(words, said))
        process.start()
    assert process.pid is not None
    while not _handles(process.pid):
        time.sleep(0.002)
    time.sleep(after)
    before = seen(store)
    if number is not None:
        with suppress(ProcessLookupError):  # it is done
            os.kill(process.pid, number)
    if isinstance(process, subprocess.Popen):
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        code = process.poll()
    else:
        process.join(_END_S)
        code = process.exitcode
    if code is None:  # it would measure into the store of the next try
        process.kill()
    return code, said.read_text() if said.exists() else "", before


def run(count: int, rng: random.Random, folder: Path) -> Outcome:
    outcome = Outcome()
    # In the background of a shell or under nohup, programs are to leave these alone.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    where = {name: folder / f"{name}0" for name in COMMANDS}
    tries = dict.fromkeys(COMMANDS, 0)
    for number in range(count):
        name = rng.choice(sorted(COMMANDS))
        place = where[name]
        place.mkdir(exist_ok=True)
        store = place / "s.db"
        sent = rng.choices(NUMBERS, WEIGHTS)[0] if tries[name] < _PATIENCE else None
        code, said, before = _interrupted((*COMMANDS[name], "--store", str(store)), sent, rng, store)
        after = seen(store)
        tries[name] += 1
        what = sent.name if sent else "left alone"
        outcome.tell(f"{name} {what}: {code}")
        example = (number, name, what, code, said)
        if code not in (0, *([-sent if sent == signal.SIGKILL else 128 + sent] if sent else [])):
            outcome.violation(f"exit code {code} for {what}", example)
        if code and sent != signal.SIGKILL and said.count("\n") != 1:
            outcome.violation("not one line", example)
        if not set(before.keys) <= set(after.keys) or after.samples < before.samples:
            outcome.violation("lost", (example, before.samples, after.samples, len(before.keys), len(after.keys)))
        if len(after.keys) != len(set(after.keys)):
            outcome.violation("doubled", example)
        left = [one.name for one in place.iterdir() if one.name.startswith(".") or one.suffix in (".new", ".part")]
        if left and code:
            outcome.kinds["left over until the next start"] += 1
        if code == 0:
            outcome.kinds["came to their end"] += 1
            outcome.kinds["measurements"] += len(after.keys)
            if name == "bench" and len(after.keys) != JOBS:
                outcome.violation("not all measured", (example, len(after.keys)))
            left = sorted(one.name for one in place.iterdir() if one.name not in ("s.db", "s.db-lock", "said.txt"))
            if left:
                outcome.violation("left over", (example, left))
            where[name], tries[name] = folder / f"{name}{number + 1}", 0
    return outcome
