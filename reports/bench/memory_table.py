"""Write reports/memory.md: sizer's memory by component beside torch's MemTracker over whole training steps.

    pip install -e '.[test]'
    python reports/bench/memory_table.py

Fake tensors on the CPU device: nothing is allocated, no GPU and no network are needed. Ten minutes or more on two
cores.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import memory_oracle as oracle  # noqa: E402 - beside the tests that use it too
import torch  # noqa: E402
import transformers  # noqa: E402
from test_memory_tracker import FURTHER, SMALL  # noqa: E402

from shapes.memory import CHECKED, memory  # noqa: E402
from shapes.workload import Workload  # noqa: E402
from sizer.readers import read_config  # noqa: E402

REPORT = ROOT / "reports" / "memory.md"
MIB = 2**20
_MAMBA = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 32}
#: Families whose totals are not within 1%: what runs in torch alone is another algorithm than what sizer counts.
UNCHECKED: dict[str, dict[str, Any]] = {
    "llama4_text": {
        **SMALL, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 1, "intermediate_size": 128,
        "intermediate_size_mlp": 512, "interleave_moe_layer_step": 1, "pad_token_id": 0,
    },
    "qwen3_next": {
        **SMALL, "num_hidden_layers": 4, "head_dim": 32, "linear_num_value_heads": 8, "linear_num_key_heads": 4,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128,
    },
    "bamba": {**SMALL, **_MAMBA, "attn_layer_indices": [1]},
}  # fmt: skip
#: Sequences and tokens; windows are shorter than that.
B, S = 2, 512


@dataclass(frozen=True)
class Row:
    """One step: totals in bytes, sizer's and torch's, with one microbatch and with two."""

    family: str
    attention: str
    checkpointing: str
    alone: tuple[int, int]
    accumulated: tuple[int, int]
    moment: str

    @property
    def off(self) -> float:
        return max((ours / theirs - 1 for ours, theirs in (self.alone, self.accumulated)), key=abs)


def measure(family: str, changes: dict[str, Any], attention: str, checkpointing: str) -> Row:
    config = oracle.config_of(family, **changes)
    workload = Workload(b=B, s=S, attention=attention, checkpointing=checkpointing)  # type: ignore[arg-type]
    tracked = oracle.track(config, B, S, attention=attention, checkpointing=checkpointing == "full")
    model = read_config(config.to_dict()).model
    alone, accumulated = (
        memory(model, workload, precision="bf16", context_bytes=0, dropout_mask_bytes=2, microbatches=n, update="loop")
        for n in (1, 2)
    )
    return Row(
        family, attention, checkpointing, (alone.total_bytes, tracked.alone),
        (accumulated.total_bytes, tracked.accumulated), alone.moment.split(":")[0],
    )  # fmt: skip


def rows() -> list[Row]:
    found = []
    families = {**{family: {"num_hidden_layers": 2} for family in oracle.CONFIGS}, **FURTHER, **UNCHECKED}
    for family, changes in families.items():
        for attention in ("flash", "eager"):
            if attention == ("eager" if family in UNCHECKED else "flash" if family in oracle.EAGER_ONLY else ""):
                continue
            for checkpointing in ("none", "full"):
                found.append(measure(family, changes, attention, checkpointing))
    return found


def report(found: list[Row], elapsed_s: float) -> str:
    checked = [row for row in found if row.family in CHECKED]
    worst = max(checked, key=lambda row: abs(row.off))
    within = sum(abs(row.off) <= 0.01 for row in checked)
    beyond = "; ".join(
        f"{row.family}, {row.attention}, {row.checkpointing} ({row.off:+.1%})" for row in checked if abs(row.off) > 0.01
    )
    table = [
        "| family | attention | checkpointing | one microbatch: sizer | torch | off "
        "| two: sizer | torch | off | fullest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        pairs = [
            cell
            for ours, theirs in (row.alone, row.accumulated)
            for cell in (f"{ours / MIB:.2f}", f"{theirs / MIB:.2f}", f"{ours / theirs - 1:+.3%}")
        ]
        table.append("| " + " | ".join([row.family, row.attention, row.checkpointing, *pairs, row.moment]) + " |")
    return "\n".join(
        [
            "# Memory beside torch's own accounting",
            "",
            "Written by `python reports/bench/memory_table.py` "
            f"(torch {torch.__version__}, transformers {transformers.__version__}, {elapsed_s:.0f} s).",
            "",
            "torch.distributed._tools.mem_tracker.MemTracker under FakeTensorMode on the CPU device: whole training "
            "steps with AdamW (tensor by tensor), transformers' own classes in bf16, once the states exist. Totals are "
            "compared, at the fullest moment of a step of one microbatch (before whose backward there are no "
            f"gradients) and of one of two (whose second finds the first one's). b {B}, s {S}; MiB.",
            "",
            "*flash* is torch's fused scaled_dot_product_attention, *eager* scores and softmax written out. No GPU was "
            "measured here: a caching allocator's rounding and fragmentation come on top there.",
            "",
            f"**{within} of {len(checked)} steps of {len({row.family for row in checked})} checked families within 1%; "
            f"furthest off: {worst.family}, {worst.attention}, checkpointing {worst.checkpointing}, "
            f"{worst.off:+.2%}.** Beyond 1%: {beyond}. Not counted there: the last layer's scores, which bloom's and "
            "falcon's layers return and which are still alive when it runs again; the gradient of gpt_oss's largest "
            "score; the second copy of a gradient that qwen2_moe's gathering makes.",
            "",
            f"Not checked, and `sizer memory` says so: {', '.join(sorted(UNCHECKED))}. transformers' llama4 runs every "
            "token through every expert, where sizer counts the routed ones; recurrent layers without their fused "
            "kernels (mamba-ssm, flash-linear-attention: CUDA alone) keep each step of the scan, where sizer counts "
            "what the kernels keep.",
            "",
            *table,
            "",
        ]
    )


def main() -> None:
    start = time.perf_counter()
    found = rows()
    REPORT.write_text(report(found, time.perf_counter() - start), encoding="utf-8")
    print(f"wrote {REPORT.relative_to(ROOT)}: {len(found)} steps")  # noqa: T201 - a script's last word


if __name__ == "__main__":
    main()
