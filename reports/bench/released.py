"""Every command on every released configuration: how many answer, how many refuse, and how long each takes.

    python reports/bench/released.py DIR [--only NAME ...] [--raw FILE] [--write]

DIR holds config.json files, model_configs of aiconfigurator-core 0.12. Each configuration has a forked process, one at
a time, which runs all commands: times are of its CPU, without Python's start. What has not ended after LIMIT_S is
stopped. ``--raw`` is written as runs end; configurations that it has are not run again. ``--write`` makes
reports/released.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REPORT = Path(__file__).resolve().parents[1] / "released.md"
LIMIT_S = 120
#: A refusal has to be there within it.
REFUSED_S = 1.0
_RUN = ("-b", "1", "-s", "4096")
_CLUSTER = ("--gpus", "256", "--global-batch", "256", "-s", "4096", "--device", "b200")
#: Command as it is shown -> its arguments; "{0}": the configuration, "{other}": the one before it.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "check": ("check", "{0}", *_RUN),
    "check decode": ("check", "{0}", "--phase", "decode", "-b", "8", "--context", "4096"),
    "memory": ("memory", "{0}", *_RUN),
    "plan": ("plan", "{0}", *_CLUSTER),
    "deploy": ("deploy", "{0}"),
    "search swiglu": ("search", "{0}", "--what", "swiglu", *_RUN),
    "search heads": ("search", "{0}", "--what", "heads", *_RUN),
    "search experts": ("search", "{0}", "--what", "experts", *_RUN),
    "search vocab": ("search", "{0}", "--what", "vocab", *_RUN),
    "search model": ("search", "{0}", "--what", "model", *_RUN),
    "mfu": ("mfu", "{0}", "--step-time", "10", *_CLUSTER),
    "diff": ("diff", "{other}", "{0}"),
}


def ran(arguments: Iterable[str]) -> dict[str, Any]:
    """One command in this process: its exit code, its time, and the line of a refusal."""
    from click.testing import CliRunner

    from sizer.cli import main

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {LIMIT_S} s")

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)  # of the CPU: others may have the machine
    started = time.process_time()
    try:
        result = CliRunner().invoke(main, list(arguments))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - started
    said = result.stderr.strip()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        said = f"{type(result.exception).__name__}: {result.exception}"
        return {"code": "failed", "seconds": seconds, "said": said}
    return {"code": result.exit_code, "seconds": seconds, "said": said if result.exit_code == 2 else ""}


def answers(path: Path, other: Path, sender: Any) -> None:
    for name, arguments in COMMANDS.items():
        filled = [one.format(path, other=other) for one in arguments]
        sender.send({"name": path.stem.removesuffix("_config"), "command": name, **ran(filled)})
    sender.close()


def all_of(paths: list[Path], raw: Path | None) -> list[dict[str, Any]]:
    """Every command on every file that ``raw`` has not, each file in a process of its own."""
    context = multiprocessing.get_context("fork")
    lines = raw.read_text("utf-8").splitlines() if raw is not None and raw.exists() else []
    found = [json.loads(line) for line in lines]
    times = Counter(row["name"] for row in found)
    found = [row for row in found if times[row["name"]] == len(COMMANDS)]
    if raw is not None:
        raw.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    for path, other in zip(paths, [paths[-1], *paths], strict=False):
        if times[path.stem.removesuffix("_config")] == len(COMMANDS):
            continue
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=answers, args=(path, other, sender))
        process.start()
        sender.close()
        while True:
            try:
                found.append(receiver.recv())
            except EOFError:
                break
            for out in (sys.stdout, *([raw.open("a", encoding="utf-8")] if raw is not None else [])):
                out.write(json.dumps(found[-1]) + "\n")
                out.flush()
        process.join()
    return found


def rendered(rows: list[dict[str, Any]]) -> str:
    """The report in Markdown."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    failed = [row for row in rows if row["code"] not in (0, 1, 2)]
    refusals = [row for row in rows if row["code"] == 2]
    slow = max(refusals, key=lambda row: row["seconds"], default=None)
    longest = max((row for row in rows if row["code"] in (0, 1)), key=lambda row: row["seconds"])
    lines = [
        "# Every command on released configurations",
        "",
        f"Of {len(rows)} runs ({len(COMMANDS)} commands on {len(names)} configurations) "
        f"{len(rows) - len(refusals) - len(failed)} answer, {len(refusals)} refuse and {len(failed)} fail. The longest "
        f"answer takes {longest['seconds']:.1f} s ({longest['command']}, {longest['name']})"
        + (f", the longest refusal {slow['seconds']:.2f} s ({slow['command']}, {slow['name']})." if slow else "."),
        "",
        "Made by `python reports/bench/released.py DIR --write` (DIR: model_configs of aiconfigurator-core 0.12); "
        "times are of the CPU, without Python's start.",
        "",
        "| command | answer | refuse | fail | median s | longest s |",
        "|---|---|---|---|---|---|",
    ]
    for command in COMMANDS:
        own = [row for row in rows if row["command"] == command]
        times = sorted(row["seconds"] for row in own)
        codes = [row["code"] for row in own]
        counts = sum(code in (0, 1) for code in codes), codes.count(2), codes.count("failed")
        lines.append(f"| {command} | {' | '.join(map(str, counts))} | {times[len(times) // 2]:.2f} | {times[-1]:.2f} |")
    lines += ["", "## Refusals", "", "| command | configurations | longest s | what it says |", "|---|---|---|---|"]
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in refusals + failed:
        said = re.sub(r"^sizer: (/\S+: )?", "", row["said"].splitlines()[0] if row["said"] else "")
        kinds.setdefault((row["command"], said), []).append(row)
    for (command, said), own in kinds.items():
        longest_s = max(row["seconds"] for row in own)
        lines.append(f"| {command} | {len(own)} (as {own[0]['name']}) | {longest_s:.2f} | {said} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--raw", type=Path, help="a line of JSON for each run")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    paths = sorted(path for path in arguments.folder.glob("*_config.json") if "hf_quant" not in path.stem)
    if arguments.only:
        paths = [path for path in paths if any(one in path.stem for one in arguments.only)]
    rows = all_of(paths, arguments.raw)
    if arguments.write:
        REPORT.write_text(rendered(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
