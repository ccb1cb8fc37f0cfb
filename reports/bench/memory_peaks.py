"""Write reports/memory-peaks.md: published peaks of memory and sizer's.

    python reports/bench/memory_peaks.py
    python reports/bench/memory_peaks.py --data ../shared/evidence/mlperf.csv      # any file with steps.csv's columns

Seconds; no GPU, no network, no torch: the published figures are in tests/data/public_memory.toml with their source.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from opening import with_answer  # noqa: E402
from public_memory import GIB, Peak, peaks, sources  # noqa: E402 - with the tests that use it too
from step_rows import read_rows  # noqa: E402
from tabulate import tabulate  # noqa: E402

from shapes.errors import InputError  # noqa: E402
from shapes.memory import memory  # noqa: E402

REPORT = ROOT / "reports" / "memory-peaks.md"


def report() -> str:
    found = list(peaks())
    worst = max(found, key=lambda peak: abs(peak.off))
    lines = [
        "# Memory against published peaks",
        "",
        "Written by `python reports/bench/memory_peaks.py`. Published figures are `torch.cuda.max_memory_allocated()`, "
        "of the logging rank or the largest of all, and torchtitan's reserved memory; sizer's is its total without the "
        "framework's own memory and the caching allocator's rounding, which are outside of the former. None of these "
        "figures is measured here. How Transformer Engine, the distributed optimizer and FSDP2 allocate, and what the "
        "runs' configurations set, was read with these rows in view: nothing is fitted to them, but they are no rows "
        "held out either.",
        "",
        f"**{sum(abs(peak.off) <= 0.04 for peak in found)} of {len(found)} within 4%; mean error "
        f"{fmean(abs(peak.off) for peak in found):.2%}, bias {fmean(peak.off for peak in found):+.2%}, furthest off "
        f"{worst.off:+.2%} ({worst.model}, {worst.split}).**",
    ]
    for source in sources():
        lines += ["", f"## {source['name']}", "", f"{source['document']}. {source['software']}. {source['says']}", ""]
        own = [peak for peak in found if peak.source == source["name"]]
        rows = [
            [peak.model, peak.split, f"{peak.published:.2f}", f"{peak.ours:.2f}", f"{peak.off:+.2%}", moment_of(peak)]
            for peak in own
        ]
        lines.append(table(rows, ["model", "split", "published GiB", "sizer", "off", "sizer's fullest moment"]))
        lines += reserved(own)
    return "\n".join([*lines, ""])


def reserved(found: list[Peak]) -> list[str]:
    """What the allocator held of the device in these runs, where that was published."""
    held = [(peak, *peak.reserved) for peak in found if peak.reserved is not None]
    if not held:
        return []
    off = [ours / published - 1 for _, published, ours in held]
    alone = fmean(abs(peak.published / published - 1) for peak, published, _ in held)
    rows = [
        [peak.model, peak.split, f"{published:.2f}", f"{ours:.2f}", f"{one:+.1%}"]
        for (peak, published, ours), one in zip(held, off, strict=True)
    ]
    return [
        "",
        f"Reserved by torch's allocator (max_memory_reserved, the largest of all ranks) and as its rules are simulated "
        f"over sizer's tape: {max(off):+.1%} to {min(off):+.1%}, mean error {fmean(map(abs, off)):.1%}; the published "
        f"allocated bytes taken for it would be {alone:.1%} off. Other streams' pools and workspaces are not in it.",
        "",
        table(rows, ["model", "split", "reserved GiB", "simulated", "off"]),
    ]


def moment_of(peak: Peak) -> str:
    return peak.moment.split(":")[0]


def judged(path: Path) -> Iterator[list[Any]]:
    """Rows of published runs with the peak that they logged, sizer's, and by how much it is off."""
    for row in read_rows(path, []):
        if row.peak_gib is None:
            continue
        implementation = "megatron" if row.stack.framework == "megatron" else None
        kept = {"implementation": implementation, "microbatches": row.accumulation, "loss": row.loss}
        try:
            found = memory(row.model, row.workload, device=row.device, context_bytes=0, **kept)
        except InputError as error:
            yield [row.id, row.stack_name, row.device.name, row.peak_gib, "-", str(error)]
            continue
        ours = found.total_bytes / GIB
        yield [row.id, row.stack_name, row.device.name, row.peak_gib, f"{ours:.2f}", f"{ours / row.peak_gib - 1:+.1%}"]


def table(rows: list[list[Any]], headers: list[str]) -> str:
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="judge the peaks of a CSV with steps.csv's columns; nothing is written"
    )
    options = parser.parse_args()
    if options.data:
        said = table(list(judged(options.data)), ["run", "stack", "device", "published GiB", "sizer", "off"])
    else:
        REPORT.write_text(with_answer("memory-peaks", report()), encoding="utf-8")
        said = f"wrote {REPORT.relative_to(ROOT)}"
    print(said)  # noqa: T201 - a script's last word


if __name__ == "__main__":
    main()
