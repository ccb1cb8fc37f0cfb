"""Write the section on adapters of reports/memory.md: fine-tuning against torch's MemTracker, peft and bitsandbytes.

    pip install -e '.[test]'
    python reports/bench/adapter_table.py

No GPU and no network. LoRA's steps are fake, QLoRA's run bitsandbytes' kernels on the CPU. A few minutes on two cores.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import memory_oracle as oracle  # noqa: E402 - with the tests that use it too
from adapter_oracle import MATRICES, Tuning, track_adapted  # noqa: E402
from test_memory_adapters import TOYS, of_tuning  # noqa: E402
from test_memory_tracker import FURTHER, SMALL  # noqa: E402

from shapes.frozen import replace  # noqa: E402
from shapes.memory import memory  # noqa: E402
from sizer.readers import read_config  # noqa: E402

REPORT = ROOT / "reports" / "memory.md"
HEADING = "## Adapters"
MIB = 2**20
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
#: Families whose targets a model class has names of its own for: all of them, and those of attention.
TARGETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gpt2": (("c_attn", "c_fc"), ("c_attn",)),
    "gpt_neox": (("query_key_value", "dense_h_to_4h", "dense_4h_to_h"), ("query_key_value",)),
    "phi3": (FUSED, FUSED[:1]),
}
PLAIN = (MATRICES, ("q_proj", "v_proj"))
#: Random draws: families with their sizes.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    **TOYS,
    **{name: FURTHER[name] for name in ("mistral", "qwen2", "phi3", "gemma", "olmo2")},
    "qwen3": {**SMALL, "head_dim": 32},
}


@dataclass(frozen=True)
class Row:
    """One step: totals in bytes, sizer's and torch's, with one microbatch and with two."""

    what: str
    alone: tuple[int, int]
    accumulated: tuple[int, int]

    @property
    def off(self) -> float:
        return max((ours / theirs - 1 for ours, theirs in (self.alone, self.accumulated)), key=abs)

    def line(self) -> str:
        pairs = [
            cell
            for ours, theirs in (self.alone, self.accumulated)
            for cell in (f"{ours / MIB:.2f}", f"{theirs / MIB:.2f}", f"{ours / theirs - 1:+.2%}")
        ]
        return f"| {self.what} | " + " | ".join(pairs) + " |"


def measure(family: str, changes: dict[str, Any], tuning: Tuning, at: tuple[int, int, str, str]) -> Row:
    b, s, attention, checkpointing = at
    config = oracle.config_of(family, **changes)
    full = checkpointing == "full"
    tracked = track_adapted(config, b, s, tuning, attention=attention, checkpointing=full)
    model = read_config(config.to_dict()).model
    alone, accumulated = (
        memory(
            model,
            replace(of_tuning(tuning, b, s, attention, checkpointing), precision=tuning.adapters),
            context_bytes=0,
            dropout_mask_bytes=2,
            microbatches=n,
        ).total_bytes
        for n in (1, 2)
    )
    targets = "all" if len(tuning.targets) > 3 else "+".join(tuning.targets)
    what = " | ".join(
        (family, f"{b} x {s}", tuning.base, targets, str(tuning.rank), tuning.adapters, attention, checkpointing)
    )
    return Row(what, (alone, tracked.alone), (accumulated, tracked.accumulated))


def fixed() -> list[Row]:
    found = []
    for base in ("bf16", "nf4", "nf4-16"):
        for targets, rank, adapters in ((PLAIN[1], 8, "fp32"), (MATRICES, 64, "fp32"), (MATRICES, 8, "bf16")):
            if base == "nf4" and adapters == "bf16":
                continue
            for attention, checkpointing in (("flash", "none"), ("flash", "full"), ("eager", "full")):
                tuning = Tuning(targets, rank, adapters=adapters, base=base)
                found.append(measure("llama", SMALL, tuning, (2, 256, attention, checkpointing)))
    return found


def drawn(number: int) -> list[Row]:
    """Family x size x adapter at random (seed 0)."""
    draw = random.Random(0)
    found = []
    for _ in range(number):
        family = draw.choice(sorted(FAMILIES))
        targets = draw.choice(TARGETS.get(family, PLAIN))
        base = draw.choice(("bf16", "bf16", "nf4-16", "nf4")) if family not in ("gpt2",) else "bf16"
        adapters = draw.choice(("fp32", "bf16")) if base != "nf4" else "fp32"
        tuning = Tuning(targets, draw.choice((4, 16, 64, 128)), adapters=adapters, base=base)
        changes = {**FAMILIES[family]}
        if "num_hidden_layers" in changes:
            changes["num_hidden_layers"] = draw.choice((1, 2, 3))
        changes["vocab_size"] = draw.choice((512, 2048, 8192))
        at = (
            draw.choice((1, 2, 4)),
            draw.choice((64, 128, 256)),
            draw.choice(("flash", "eager")),
            draw.choice(("none", "full")),
        )
        found.append(measure(family, changes, tuning, at))
    return found


def section(table: list[Row], draws: list[Row], elapsed_s: float) -> str:
    head = [
        "| family | b x s | base | targets | rank | adapters | attention | checkpointing "
        "| one microbatch: sizer | torch | off | two: sizer | torch | off |",
        "|" + "---|" * 14,
    ]

    def within(rows: list[Row]) -> str:
        worst = max(rows, key=lambda row: abs(row.off))
        good = sum(abs(row.off) <= 0.01 for row in rows)
        return f"{good} of {len(rows)} within 1%, furthest off {worst.off:+.2%}"

    return "\n".join(
        [
            HEADING,
            "",
            f"Written by `python reports/bench/adapter_table.py` ({elapsed_s:.0f} s). peft's LoRA under the same "
            "tracker, forward under bf16 autocast; base nf4 is bitsandbytes' own Linear4bit (double quantisation), "
            "whose kernels run on the CPU, with its constants added, made ready by peft's "
            "prepare_model_for_kbit_training (hidden states in fp32); nf4-16 is the same without it, as TRL and "
            "LLaMA-Factory train. MiB.",
            "",
            f"**{within(table)}; of configurations drawn at random: {within(draws)}.**",
            "",
            "What checkpointing once seemed to miss (2 to 10%) was the tracker's own: hooks of ModTracker kept the "
            "embedding's output of each microbatch, and its gradient. Not compared: int8 (LLM.int8()), CUDA's "
            "autocast, which runs a LayerNorm in fp32 where the CPU's does not.",
            "",
            *head,
            *(row.line() for row in table),
            "",
            "Drawn at random (seed 0):",
            "",
            *head,
            *(row.line() for row in draws),
            "",
        ]
    )


def main() -> None:
    start = time.perf_counter()
    table, draws = fixed(), drawn(20)
    before = REPORT.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")[0].rstrip()
    REPORT.write_text(f"{before}\n\n{section(table, draws, time.perf_counter() - start)}", encoding="utf-8")
    print(f"wrote {HEADING} of {REPORT.relative_to(ROOT)}: {len(table)} and {len(draws)} steps")  # noqa: T201 - a script's last word


if __name__ == "__main__":
    main()
