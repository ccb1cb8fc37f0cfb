"""SIGTERM, SIGINT and SIGHUP at random moments of bench and search: one line, the documented code, nothing lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from reports.campaigns.configurations import ROOT
from reports.campaigns.outcome import Outcome
from shapes.measure.store import Store

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _handles(process: int) -> bool:
    """Whether the program has its handlers: what comes before is Python's own start."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return True
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


def run(count: int, rng: random.Random, folder: Path) -> Outcome:
    outcome, known = Outcome(), 0
    store = folder / "s.db"
    commands = (
        ("bench", "-m", "64", "-n", "64", "-k", "8:4000:8", "--store", str(store), "--max-time", "0.1"),
        ("search", "--h", "4096", "--what", "model", "--predict"),
    )  # fmt: skip
    for _ in range(count):
        words, number = rng.choice(commands), rng.choice(NUMBERS)
        with subprocess.Popen(
            [sys.executable, "-m", "sizer", *words], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as process:
            while not _handles(process.pid):
                time.sleep(0.002)
            time.sleep(rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, 8))))
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        outcome.tell(f"{words[0]}: {process.returncode}")
        if process.returncode not in (0, 128 + number):
            outcome.violation(f"exit code {process.returncode} for {number.name}", (words, stderr.decode()))
        if process.returncode and stderr.count(b"\n") != 1:
            outcome.violation("not one line", (words, number.name, stderr.decode()))
        if store.exists():
            with Store.open(store, write=False) as opened:
                found = [one.key for one in opened.measurements()]
            if len(found) < known or len(found) != len(set(found)):
                outcome.violation("lost or doubled", (known, len(found)))
            known = len(found)
    outcome.kinds["measurements"] = known
    return outcome
