"""Every command with a standard output that is full, closed or read by nobody, and -o where nothing can be written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from reports.campaigns.configurations import ROOT
from reports.campaigns.outcome import Outcome

GPT2 = str(ROOT / "tests" / "data" / "configs" / "gpt2.json")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("check", GPT2), ("check", GPT2, "--format", "json"), ("ops", GPT2), ("memory", GPT2), ("rules",), ("devices",),
    ("explain", "SZ101"), ("search", "--h", "1024", "--predict"), ("plan", GPT2, "--gpus", "8", "--global-batch", "64"),
    ("mfu", GPT2, "--step-time", "0.1", "--gpus", "8", "--global-batch", "64"), ("--help",), ("check", "--help"),
    ("store", "--store", "{folder}/s.db", "list"), ("store", "--store", "{folder}/s.db", "export"),
)  # fmt: skip
WITHOUT_OUTPUT = ("--help", "explain", "rules")
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); from sizer.__main__ import run; run()"


def _run(arguments: list[str], stdout: Any, code: str | None = None) -> subprocess.CompletedProcess[bytes]:
    program = ["-c", code] if code else ["-m", "sizer"]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        timeout=120,
    )


def run(count: int, rng: random.Random, folder: Path) -> Outcome:
    from shapes.measure.store import Store

    outcome = Outcome()
    with Store.open(folder / "s.db"):
        pass
    for number in range(count):
        words = [part.format(folder=folder) for part in COMMANDS[number % len(COMMANDS)]]
        way = rng.choice(("full", "closed", "gone", "limit", "folder", "null", "link"))
        if way in ("limit", "folder", "null", "link") and (
            "--help" in words or words[0] in WITHOUT_OUTPUT or "list" in words
        ):
            way = "full"
        target = folder / "out.txt"
        codes: tuple[int, ...] = (2,)
        if way == "full":
            with open("/dev/full", "wb") as full:
                done = _run(words, full)
        elif way == "closed":
            text = " ".join(f"'{word}'" for word in words)
            done = subprocess.run(
                ["bash", "-c", f"'{sys.executable}' -m sizer {text} >&-"], cwd=ROOT, stderr=subprocess.PIPE, check=False
            )
            codes = (0, 2) if "--help" in words else (2,)  # click says nothing where there is nowhere to say it
        elif way == "gone":
            read, write = os.pipe()
            os.close(read)
            done = _run(words, write)
            os.close(write)
            codes = (-signal.SIGPIPE,)
        elif way == "limit":
            target.write_text("as it was")
            done = _run([*words, "-o", str(target)], subprocess.DEVNULL, LIMITED)
            if target.read_text() != "as it was":
                outcome.violation("an old file is damaged", words)
        elif way == "folder":
            done = _run([*words, "-o", str(folder / "no" / "file")], subprocess.DEVNULL)
        elif way == "null":
            done = _run([*words, "-o", "/dev/null"], subprocess.DEVNULL)
            codes = (0, 1)
        else:
            link = folder / "link"
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            done = _run([*words, "-o", str(link)], subprocess.DEVNULL)
            codes = (0, 1)
            if not link.is_symlink():
                outcome.violation("a link is replaced", words)
        outcome.tell(f"{way}: {done.returncode}")
        if done.returncode not in codes:
            outcome.violation(f"{way}: exit code {done.returncode}", (words, done.stderr.decode(errors="replace")))
        if done.returncode == 2 and done.stderr.count(b"\n") != 1:
            outcome.violation(f"{way}: not one line", (words, done.stderr.decode(errors="replace")))
        left = [path.name for path in folder.iterdir() if path.name.startswith(".") or path.name.endswith(".part")]
        if left:
            outcome.violation("left over", (words, way, left))
    return outcome
