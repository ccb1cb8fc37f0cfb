"""The pages of `--format html` in Chromium: how large, how long until they are read and drawn, and pictures of them.

    npm install axe-core
    python reports/bench/pages.py --write --axe node_modules/axe-core/axe.min.js

Writes reports/pages.md and its pictures (reports/plots/page-*.png: 1280 wide, dark, and 400 wide); without --write the
tables alone are printed. Each page is opened RUNS times in a browser context of its own; a time is the median, from the
call on. `--axe`: axe-core's script, whose findings are then counted.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import AUDIT, LOOKS, browser, looked_at, missing  # noqa: E402  # tests/browser.py
from opening import with_answer  # noqa: E402
from PIL import Image  # noqa: E402

from sizer.render import html as html_page  # noqa: E402

RUNS = 5
CONFIGS = "tests/data/configs"
#: Picture -> what is typed; the first is the page that the issue's two seconds are of.
PAGES = {
    "check": f"check {CONFIGS}/gpt2.json --fail-on never",
    "check-several": f"check {CONFIGS}/gpt2.json {CONFIGS}/qwen2.5-7b.json {CONFIGS}/mixtral-8x7b.json --fail-on never",
    "check-pipeline": f"check {CONFIGS}/llama-3.1-8b.json --tp 2 --pp 4 --gpus 64 --global-batch 128 --fail-on never",
    "ops": f"ops {CONFIGS}/qwen3-30b-a3b.json --tp 2 --dp 8 --ep 8",
    "search": "search --h 4096 --limit step=1",
    "search-model": f"search {CONFIGS}/llama-3.1-8b.json --what model",
    "plan": f"plan {CONFIGS}/llama-3.1-8b.json --gpus 64 --global-batch 512 --tokens 1e12",
    "memory": f"memory {CONFIGS}/llama-3.1-8b.json --dp 8 --zero 3 --checkpointing full",
    "mfu": f"mfu {CONFIGS}/llama-3.1-8b.json --step-time 9.8 --gpus 8 --global-batch 64 -b 1 --dp 8 --zero 2 --explain",
    "diff": f"diff {CONFIGS}/llama-3.1-8b.json {CONFIGS}/qwen2.5-7b.json --device h200 --device b200 --fail-on never",
    "check-devices": f"check {CONFIGS}/qwen2.5-7b.json --device h100-sxm --device b200 --device mi300x --fail-on never",
    "ops-explain": f"ops {CONFIGS}/llama-3.1-8b.json --tp 2 --explain down_proj",
    "memory-decode": f"memory {CONFIGS}/llama-3.1-8b.json --phase decode -b 16 --context 8k --memory-utilization 0.9",
    "plan-serving": f"plan {CONFIGS}/llama-3.1-8b.json --phase decode --gpus 8 --tpot 30ms -s 2k --context 3k",
    "deploy": f"deploy {CONFIGS}/qwen3-30b-a3b.json --tp 3",
    "devices": "devices",
    "rules": "rules",
    "explain": "explain SZ102",
    "bench": "bench -m 256 -n 256 -k 240:272:1 --device cpu --max-time 0.05",
}
HEAD = """# Pages

What `--format html -o page.html` writes, opened in headless Chromium on two cores that other jobs shared (the processor
seconds are the page's own, of all its threads). Made by `python reports/bench/pages.py --write --axe FILE` (axe-core's
axe.min.js of the npm registry). Every page holds all that it needs: Vega and Vega-Lite
(`pip install 'model-sizer[html]'`) are inside where it has charts, nothing is loaded.

| page | kB | without the library | first painted | all charts drawn | processor, page's process |
|---|---:|---:|---:|---:|---:|
"""
#: Heads the second table.
LOOKED = """

Each page 1280 and 400 pixels wide, and dark: findings of axe-core, what the browser said or asked of a network, pixels
that the page is too wide, the smallest text in pixels, texts of charts that lie on each other.

| page | look | axe-core | console, network | too wide | smallest text | on each other |
|---|---|---|---:|---:|---:|---:|
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true")
    options.add_argument("--axe", type=Path)
    asked = options.parse_args()
    write, axe = asked.write, asked.axe and asked.axe.read_text()
    if reason := missing():
        raise SystemExit(reason)
    library = len(html_page._library().encode())
    lines, audits, pictures = [], [], []
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for name, call in PAGES.items():
            path = Path(folder) / f"{name}.html"
            command = [sys.executable, "-m", "sizer", *call.split(), "--format", "html", "-o", str(path)]
            command += ["--store", str(Path(folder) / "store.db")] if name == "bench" else []
            subprocess.run(command, cwd=ROOT, check=name != "deploy")  # ends with 1 where an engine refuses
            runs = [opened(chromium, path) for _ in range(RUNS)]
            times = [f"{statistics.median(one):.2f} s" for one in zip(*runs, strict=True)]
            size = path.stat().st_size
            cells = [f"`sizer {call}`", f"{size / 1e3:.0f}", f"{(size - library * (size > library)) / 1e3:.0f}", *times]
            lines.append(f"| {' | '.join(cells)} |")
            sys.stdout.write(lines[-1] + "\n")
            shots = []
            for look in LOOKS:
                tab, said = looked_at(chromium, path, look)
                shots.append(tab.screenshot())
                audits.append(f"| {name} | {look} | {audited(tab, said, axe)} |")
                sys.stdout.write(audits[-1] + "\n")
                tab.close()
            if write and name != "bench":  # a table alone
                pictures.append(pictured(shots, name))
    if write:
        shown = "\n".join(f"![{name}](plots/{name})\n" for name in pictures)
        (ROOT / "reports" / "pages.md").write_text(
            with_answer("pages", HEAD + "\n".join(lines) + LOOKED + "\n".join(audits) + f"\n\n{shown}"),
            encoding="utf-8",
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
    tab.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length")
    painted = tab.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime / 1e3")
    context.close()
    return painted, drawn, used


def processor(system: Any) -> dict[int, float]:
    found = system.send("SystemInfo.getProcessInfo")["processInfo"]
    return {one["id"]: one["cpuTime"] for one in found if one["type"] == "renderer"}


def audited(tab: Any, said: list[str], axe: str | None) -> str:
    """The cells of a look: findings of axe-core by impact, the browser's complaints, and what AUDIT measures."""
    found = tab.evaluate(AUDIT)
    impacts = "not run"
    if axe is not None:
        tab.evaluate(axe)
        broken = tab.evaluate("() => axe.run(document, {resultTypes: ['violations']}).then((one) => one.violations)")
        impacts = ", ".join(f"{one['id']} ({one['impact']})" for one in broken) or "none"
    sizes = f"{found['overflow']} | {found['smallest']:.0f} | {len(found['overlaps'])}"
    return f"{impacts} | {len(said)} | {sizes}"


def palette() -> Any:
    """The colours of pages and charts, and no others: small files."""
    looks = tomllib.loads((ROOT / "sizer" / "documents" / "looks.toml").read_text())
    style = (ROOT / "sizer" / "render" / "assets" / "page.css").read_text()
    known = {*re.findall("#[0-9a-f]{6}", f"{looks} {style}"), "#808080", "#a0a0a0", "#c8c8c8", "#606060", "#303030"}
    image = Image.new("P", (1, 1))
    image.putpalette([int(one[at : at + 2], 16) for one in sorted(known) for at in (1, 3, 5)])
    return image


def pictured(shots: list[bytes], name: str) -> str:
    """The tops of the page's looks in one small picture."""
    wide, phone, dark = (Image.open(io.BytesIO(one)) for one in shots)
    sheet = Image.new("RGB", (1305, 394), "#808080")
    for shot, left, width in ((wide, 0, 560), (dark, 565, 560), (phone, 1130, 175)):
        sheet.paste(shot.resize((width, 394), Image.Resampling.LANCZOS), (left, 0))
    file = f"page-{name}.png"
    sheet.quantize(palette=palette(), dither=Image.Dither.NONE).save(ROOT / "reports" / "plots" / file, optimize=True)
    return file


if __name__ == "__main__":
    sys.exit(main())
