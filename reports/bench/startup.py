"""What `sizer check` costs to start, and the least a tool on numpy and click can cost.

    python reports/bench/startup.py

Whole processes, run alternately so that a busy machine slows both; the medians of the runs and their ratios. Exits 1
when a ratio is over its bound: 3 times the seconds, 2 times the peak memory (the median over the runs of ru_maxrss).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CONFIG = Path(__file__).resolve().parents[2] / "tests" / "data" / "configs" / "llama-3.1-8b.json"
MAX_SECONDS_RATIO = 3.0
MAX_MEMORY_RATIO = 2.0

BASELINE = [sys.executable, "-c", "import numpy, click"]
CHECK = [sys.executable, "-m", "sizer", "check", str(CONFIG), "--fail-on", "never"]


def run(command: list[str]) -> tuple[float, float]:
    """Seconds and peak MiB of one run; SystemExit when it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}:\n{complaint}")
    return seconds, usage.ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    runs: int = parser.parse_args().runs
    run(BASELINE), run(CHECK)  # the first runs compile and read from disk
    pairs = [(run(BASELINE), run(CHECK)) for _ in range(runs)]
    base_s, base_mib = (statistics.median(base[i] for base, _ in pairs) for i in (0, 1))
    check_s, check_mib = (statistics.median(check[i] for _, check in pairs) for i in (0, 1))
    sys.stdout.write(
        f"import numpy, click   {base_s:.3f} s   {base_mib:.0f} MiB   (median of {runs})\n"
        f"sizer check           {check_s:.3f} s   {check_mib:.0f} MiB\n"
        f"ratio                 {check_s / base_s:.2f} (at most {MAX_SECONDS_RATIO})   "
        f"{check_mib / base_mib:.2f} (at most {MAX_MEMORY_RATIO})\n"
    )
    return int(check_s / base_s > MAX_SECONDS_RATIO or check_mib / base_mib > MAX_MEMORY_RATIO)


if __name__ == "__main__":
    sys.exit(main())
