"""Kimi K2's published steps away from DeepSeek-V3, each priced in training and in serving: reports/two-budgets.md.

python reports/bench/two_budgets.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from string import Template
from typing import Any

import vl_convert
from opening import with_answer
from tabulate import tabulate

import sizer
from sizer.answers.diff import DeviceDiff, diff
from sizer.documents import Charts, seconds_text
from sizer.readers import Source
from sizer.render import document_of
from sizer.render.vega import ASSETS, spec
from sizer.searching import search
from sizer.searching.result import label
from sizer.searching.space import Limits

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "tests" / "data" / "configs" / "deepseek-v3.json")
PLOT = ROOT / "reports" / "plots" / "two-budgets.png"
#: The K2 report (arXiv 2507.20534), section 2.3: what differs from DeepSeek-V3, under the keys of its configuration.
STEPS: dict[str, dict[str, int]] = {
    "experts 256 to 384": {"n_routed_experts": 384},
    "heads 128 to 64": {"num_attention_heads": 64},
    "dense layers 3 to 1": {"first_k_dense_replace": 1},
}
#: The report's training: 16 stages, experts over 16 ranks, ZeRO-1, 67 million tokens a step of sequences of 4096.
TRAINING: dict[str, Any] = {
    "p": 16,
    "e": 16,
    "d": 128,
    "zero": 1,
    "b": 1,
    "s": 4096,
    "global_batch": 16384,
    "checkpointing": "selective",
    "stack": "megatron-core-te",
}
DECODING: dict[str, Any] = {"phase": "decode", "dtype": "fp8", "e": 32, "d": 32}
CONTEXTS = {"4k": {"b": 128, "context": 4096}, "128k": {"b": 4, "context": 131072}}
SERVING = {"b": 128, "context": 4096, "e": 32, "d": 32, "dtype": "fp8"}


def priced(settings: dict[str, int], **workload: Any) -> DeviceDiff:
    (file,) = diff(CONFIG, Source(CONFIG, settings), **workload).files
    return file.devices[0]


def ratio(found: DeviceDiff) -> str:
    assert found.ratio is not None
    return f"{found.ratio:.3f} +-{found.ratio_error:.3f}"


def steps() -> str:
    together = {key: value for settings in STEPS.values() for key, value in settings.items()}
    rows = []
    for name, settings in {"DeepSeek-V3": {}, **STEPS, "all three: K2's dimensions": together}.items():
        subject = sizer.check(Source(CONFIG, settings)).model
        found = [priced(settings, **TRAINING), *(priced(settings, **DECODING, **one) for one in CONTEXTS.values())]
        cells = [f"{subject.parameters / 1e9:.1f}", f"{subject.active_parameters / 1e9:.2f}"]
        for one in found:
            assert one.new is not None
            cells += [seconds_text(one.new.step_s), ratio(one) if settings else "1"]
        rows.append([name, *cells])
    heads = [
        "",
        "B parameters",
        "B active",
        "training step",
        "of V3's",
        "decode, 4k",
        "of V3's",
        "decode, 128k",
        "of V3's",
    ]
    return tabulate(rows, heads, tablefmt="github")


def heads_at_128k() -> tuple[float, float]:
    """FLOPs of 128 heads over 64 with 384 experts: of a prompt of 128k, and of a decode step with 128k keys."""
    prefill, decode = {"phase": "prefill", "b": 1, "s": 131072}, {**DECODING, **CONTEXTS["128k"]}
    both = []
    for workload in (prefill, decode):
        flops = [
            sizer.check(Source(CONFIG, {"n_routed_experts": 384, "num_attention_heads": heads}), **workload).step.flops
            for heads in (128, 64)
        ]
        both.append(flops[0] / flops[1])
    return both[0], both[1]


def main() -> None:
    prompt, decode = heads_at_128k()
    limits = Limits(step=512, vary=("mla-heads",))
    stack = TRAINING["stack"]
    found = search(CONFIG, what="model", limits=limits, e=32, d=32, serving=SERVING, training_budget=1.0, stack=stack)
    (section,) = document_of("search", found).seen("html")
    (chart,) = (one for part in section.parts if isinstance(part, Charts) for one in part.make())
    drawn = {**spec(chart), "width": 620, "background": "white", "config": ASSETS["config"]}
    PLOT.write_bytes(vl_convert.vegalite_to_png(json.dumps(drawn), scale=2))
    front = [
        [
            label(one),
            seconds_text(one.timing.seconds),
            f"{one.speedup:.2f}x",
            seconds_text(one.decode.seconds) if one.decode else "",
            f"{one.decode_speedup:.2f}x",
        ]
        for one in (found.baseline, *found.front)
    ]
    heads = ["dimensions", "training step", "faster", "decode step", "faster"]
    text = Template((ROOT / "reports" / "bench" / "two_budgets_template.md").read_text("utf-8")).substitute(
        steps=steps(),
        prompt=f"{prompt - 1:.0%}",
        decode=f"{decode - 1:.0%}",
        front=tabulate(front, heads, tablefmt="github"),
    )
    (ROOT / "reports" / "two-budgets.md").write_text(with_answer("two-budgets", text), encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
