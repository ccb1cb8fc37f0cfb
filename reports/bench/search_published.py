"""Predicted searches against published cases: reports/search-published.md.

python reports/bench/search_published.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from opening import with_answer
from tabulate import tabulate

from sizer.searching import search
from sizer.searching.space import Limits

REPORTS = Path(__file__).resolve().parents[1]
GPT3_2_7B = {"model_type": "gpt2", "n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048}
#: ML Engineering book, H100, fp16, bmm of 4 x 4096 x d_ff x 4096: TFLOPS at the widths it names.
BOOK = {
    10922: "273",
    10944: "395 to 398",
    10848: "395 to 398",
    10880: "395 to 398",
    10912: "395 to 398",
    11008: "395 to 398",
}


def main() -> None:
    book = search(h=4096, d_ff=10922, gemm_only=True, limits=Limits(step=16), top=100)
    tflops = {one.change["d_ff"]: one.tflops for one in (book.baseline, *book.candidates)}
    rows = [[width, f"{tflops[width]:.0f}", measured] for width, measured in BOOK.items()]
    lines = [
        "# Predicted searches against published cases",
        "",
        "    python reports/bench/search_published.py",
        "",
        "Predictions, none fitted to these figures but the misaligned width of the book, which sets the scale of the "
        "penalties (accuracy.md).",
        "",
        "## The book's widths: h 4096, d_ff as the reduction dimension, fp16, H100",
        "",
        tabulate(rows, ["d_ff", "predicted TFLOPS", "the book measured"], tablefmt="github"),
        "",
        "The book's level is lower; what is compared is the ratio to 10922, the figure that set the scale.",
        "",
        "## The paper's GPT-3 2.7B: h 2560, 32 heads of 80, 32 layers",
        "",
        "The paper (arXiv 2401.14489): models with efficient shapes run up to 39% faster than models with a similar "
        "number of parameters and unoptimised shapes; this one, h/a = 80, is its motivating case.",
        "",
    ]
    table = []
    for device in ("a100-sxm", "h100-sxm"):
        for what in ("heads", "model"):
            found = search(GPT3_2_7B, what=what, device=device, b=4, s=2048, top=1000)
            best = found.best
            table.append(
                [
                    device,
                    f"{what}, +-1% parameters" if what == "model" else "heads alone",
                    ", ".join(f"{key} {value}" for key, value in best.change.items()),
                    f"{best.speedup:.2f}x ({best.speedup_low:.2f} to {best.speedup_high:.2f})",
                    "whole step" if what == "model" else "attention and its projections",
                ]
            )
    lines += [tabulate(table, ["device", "search", "best", "predicted gain", "of"], tablefmt="github"), ""]
    text = "\n".join(lines)
    (REPORTS / "search-published.md").write_text(with_answer("search-published", text), encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
