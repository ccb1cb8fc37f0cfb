"""Write reports/memory-peaks.md: published peaks of allocated memory and sizer's.

    python reports/bench/memory_peaks.py

Seconds; no GPU, no network, no torch: the published figures are in tests/data/public_memory.toml with their source.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from opening import with_answer  # noqa: E402
from public_memory import peaks, sources  # noqa: E402 - with the tests that use it too

REPORT = ROOT / "reports" / "memory-peaks.md"


def report() -> str:
    found = list(peaks())
    worst = max(found, key=lambda peak: abs(peak.off))
    lines = [
        "# Memory against published peaks",
        "",
        "Written by `python reports/bench/memory_peaks.py`. Published figures are `torch.cuda.max_memory_allocated()`, "
        "the largest of all ranks; sizer's is its total without the framework's own memory and the caching "
        "allocator's rounding, which are outside of it. None of these figures is measured here. How Transformer Engine "
        "and the distributed optimizer allocate was read in their code, with these rows in view: nothing is fitted to "
        "them, but they are no rows held out either.",
        "",
        f"**{sum(abs(peak.off) <= 0.04 for peak in found)} of {len(found)} within 4%; mean error "
        f"{fmean(abs(peak.off) for peak in found):.2%}, bias {fmean(peak.off for peak in found):+.2%}, furthest off "
        f"{worst.off:+.2%} ({worst.model}, {worst.split}).**",
        "",
        "| model | layers cut as published, split | published GiB | sizer | off | sizer's fullest moment |",
        "|---|---|---|---|---|---|",
    ]
    for peak in found:
        figures = f"{peak.published:.2f} | {peak.ours:.2f} | {peak.off:+.2%} | {peak.moment.split(':')[0]}"
        lines.append(f"| {peak.model} | {peak.split} | {figures} |")
    for source in sources():
        lines += ["", f"{source['name']}: {source['document']}. {source['software']}. {source['says']}"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    REPORT.write_text(with_answer("memory-peaks", report()), encoding="utf-8")
    print(f"wrote {REPORT.relative_to(ROOT)}")  # noqa: T201 - a script's last word
