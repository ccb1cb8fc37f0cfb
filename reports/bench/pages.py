"""The pages of `--format html` in Chromium: how large, how long until they are read and drawn, and pictures of them.

    python reports/bench/pages.py --write

Writes reports/pages.md and its pictures (reports/plots/page-*.png); without --write the table alone is printed. Each
page is opened RUNS times in a browser context of its own; a time is the median, from the call on.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import browser, missing  # noqa: E402  # tests/browser.py
from opening import with_answer  # noqa: E402

from sizer.render import html as html_page  # noqa: E402

RUNS = 5
CONFIGS = "tests/data/configs"
#: Picture -> what is typed; the first is the page that the issue's two seconds are of.
PAGES = {
    "check": f"check {CONFIGS}/llama-3.1-8b.json --fail-on never",
    "ops": f"ops {CONFIGS}/qwen3-30b-a3b.json --tp 2 --dp 8 --ep 8",
    "search": "search --h 4096 --step 1",
    "search-model": f"search {CONFIGS}/llama-3.1-8b.json --what model",
    "plan": f"plan {CONFIGS}/llama-3.1-8b.json --gpus 64 --global-batch 512 --tokens 1e12",
    "memory": f"memory {CONFIGS}/llama-3.1-8b.json --dp 8 --zero 3 --checkpointing full",
    "diff": f"diff {CONFIGS}/llama-3.1-8b.json {CONFIGS}/qwen2.5-7b.json --device h200 --device b200 --fail-on never",
    "bench": "bench -m 256 -n 256 -k 240:272:1 --device cpu --max-time 0.05",
}
HEAD = """# Pages

What `--format html -o page.html` writes, opened in headless Chromium on two cores that other jobs shared (the processor
seconds are the page's own, of all its threads). Made by `python reports/bench/pages.py --write`. Every page holds all
that it needs: Vega and Vega-Lite (`pip install 'model-sizer[html]'`) are inside it, nothing is loaded.

| page | kB | without the library | first painted | all charts drawn | processor, page's process |
|---|---:|---:|---:|---:|---:|
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true")
    write = options.parse_args().write
    if reason := missing():
        raise SystemExit(reason)
    library = len(html_page._library().encode())
    lines, pictures = [], []
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for name, call in PAGES.items():
            path = Path(folder) / f"{name}.html"
            command = [sys.executable, "-m", "sizer", *call.split(), "--format", "html", "-o", str(path)]
            command += ["--store", str(Path(folder) / "store.db")] if name == "bench" else []
            subprocess.run(command, cwd=ROOT, check=name != "memory")  # memory ends with 1 where it does not fit
            runs = [opened(chromium, path) for _ in range(RUNS)]
            times = [f"{statistics.median(one):.2f} s" for one in zip(*runs, strict=True)]
            size = path.stat().st_size
            cells = [f"`sizer {call}`", f"{size / 1e3:.0f}", f"{(size - library) / 1e3:.0f}", *times]
            lines.append(f"| {' | '.join(cells)} |")
            sys.stdout.write(lines[-1] + "\n")
            if write:
                pictures += pictured(chromium, path, name)
    if write:
        shown = "\n".join(f"![{name}](plots/{name})\n" for name in pictures)
        (ROOT / "reports" / "pages.md").write_text(
            with_answer("pages", HEAD + "\n".join(lines) + f"\n\n{shown}"), encoding="utf-8"
        )
    return 0


def opened(chromium: Any, path: Path) -> tuple[float, float, float]:
    """Seconds to the first paint, until every chart is drawn, and of the processor in the page's process."""
    context = chromium.new_context()
    tab, system = context.new_page(), chromium.new_browser_cdp_session()
    before = processor(system)
    start = time.perf_counter()
    tab.goto(path.as_uri())
    tab.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")
    drawn = time.perf_counter() - start
    used = sum(seconds - before.get(process, 0.0) for process, seconds in processor(system).items())
    painted = tab.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime / 1e3")
    context.close()
    return painted, drawn, used


def processor(system: Any) -> dict[int, float]:
    found = system.send("SystemInfo.getProcessInfo")["processInfo"]
    return {one["id"]: one["cpuTime"] for one in found if one["type"] == "renderer"}


def pictured(chromium: Any, path: Path, name: str) -> list[str]:
    """The top of the page, light; of the first, the whole of it, light and dark."""
    schemes = ("light", "dark") if name == "check" else ("light",)
    names = []
    for scheme in schemes:
        tab = chromium.new_page(viewport={"width": 1200, "height": 1000}, color_scheme=scheme)
        tab.goto(path.as_uri())
        tab.wait_for_function("() => document.documentElement.dataset.drawn !== undefined")
        names.append(f"page-{scheme}.png" if name == "check" else f"page-{name}.png")
        tab.screenshot(path=ROOT / "reports" / "plots" / names[-1], full_page=name == "check")
        tab.close()
    return names


if __name__ == "__main__":
    sys.exit(main())
