"""The page of a check of Llama-3.1-8B in Chromium: how large, how long it opens, and pictures of it.

    python reports/bench/page.py

Writes reports/plots/page-light.png and page-dark.png; prints the size without the library and the median of five
openings, from the call to the last chart drawn.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from browser import browser, missing  # noqa: E402  # tests/browser.py


def main() -> int:
    if reason := missing():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        config = "tests/data/configs/llama-3.1-8b.json"
        command = [sys.executable, "-m", "sizer", "check", config, "--format", "html", "-o", str(path), "--exit-zero"]
        subprocess.run(command, cwd=ROOT, check=True)
        library = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
        with browser() as chromium:
            opened = [_open(chromium, path) for _ in range(5)]
            for scheme in ("light", "dark"):
                tab = chromium.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
                tab.goto(path.as_uri())
                tab.screenshot(path=ROOT / "reports" / "plots" / f"page-{scheme}.png", full_page=True)
        size = path.stat().st_size - len(library)
    sys.stdout.write(f"{size / 1e3:.0f} kB without the library; opens in {statistics.median(opened):.2f} s\n")
    return 0


def _open(chromium, path: Path) -> float:  # type: ignore[no-untyped-def]
    tab = chromium.new_page()
    start = time.perf_counter()
    tab.goto(path.as_uri())
    tab.wait_for_function("document.querySelectorAll('.chart .main-svg').length >= 3")
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
