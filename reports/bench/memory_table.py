"""Write reports/memory.md: sizer's memory by component beside torch's MemTracker over whole training steps.

    pip install -e '.[test]'
    python reports/bench/memory_table.py

Fake tensors on the CPU device: nothing is allocated, no GPU and no network are needed. About five minutes on one core.
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

from shapes.memory import memory  # noqa: E402
from shapes.workload import Workload  # noqa: E402
from sizer.readers import read_config  # noqa: E402

REPORT = ROOT / "reports" / "memory.md"
MIB = 2**20
#: (family, changed keys): six families small, three of them medium, and with a vocabulary so small that the fullest
#: moment is in a layer's backward and not at the loss.
MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {}),
    ("gpt2", {}),
    ("gpt_neox", {}),
    ("mixtral", {}),
    ("gemma2", {}),
    ("qwen3", {}),
    ("llama", {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32}),
    ("gpt_neox", {"hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32, "num_hidden_layers": 8}),
    ("llama", {"vocab_size": 512}),
    ("gpt2", {"vocab_size": 512}),
    ("gpt2", {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}),
    ("mixtral", {"vocab_size": 512}),
    ("gemma2", {"vocab_size": 512}),
    ("qwen3", {"vocab_size": 512}),
)
BATCHES = ((1, 512), (3, 1024), (2, 2048))


@dataclass(frozen=True)
class Row:
    name: str
    b: int
    s: int
    dtype: str
    attention: str
    checkpointing: str
    ours: dict[str, int]
    torch: dict[str, int]
    moment: str

    def off(self, component: str) -> float:
        return self.ours[component] / self.torch[component] - 1


def measure(family: str, changes: dict[str, Any], b: int, s: int, dtype: str, attention: str, again: bool) -> Row:
    config = oracle.config_of(family, **changes)
    workload = Workload(b=b, s=s, dtype=dtype, attention=attention, checkpointing="full" if again else "none")  # type: ignore[arg-type]
    tracked = oracle.track(config, b, s, dtype=dtype, attention=attention, checkpointing=again)
    bytes_each = 4 if dtype == "fp32" else 2
    found = memory(
        read_config(config.to_dict()).model, workload, precision="fp32" if dtype == "fp32" else "bf16",
        context_bytes=0, dropout_mask_bytes=bytes_each,
    )  # fmt: skip
    parts = found.components
    ours = {
        "weights": parts["weights"],
        "gradients": parts["gradients"],
        "states": parts["optimizer_states"],
        "activations": parts["activations"] + parts["logits_and_loss"] + parts["temporary"],
    }
    theirs = {
        "weights": tracked.weights, "gradients": tracked.gradients, "states": tracked.states,
        "activations": tracked.activations,
    }  # fmt: skip
    label = ", ".join(f"{key} {value}" for key, value in changes.items())
    moment = next(part.formula for part in found.parts if part.name == "temporary")
    return Row(
        f"{family}{' (' + label + ')' if label else ''}", b, s, dtype, attention, "full" if again else "none", ours,
        theirs, moment.split(":")[0],
    )  # fmt: skip


def rows() -> list[Row]:
    found = []
    for family, changes in MODELS:
        for b, s in BATCHES if not changes else BATCHES[1:2]:
            for attention in ("flash", "eager"):
                if attention == "flash" and (family == "gemma2" or changes.get("attn_pdrop")):
                    continue  # transformers has no fused kernel for gemma2; the CPU's has none with dropout
                for again in (False, True):
                    found.append(measure(family, changes, b, s, "bf16", attention, again))
        if not changes and family != "mixtral":  # torch's grouped product takes bf16 only
            found.append(measure(family, changes, 3, 1024, "fp32", "eager", False))
    return found


def report(found: list[Row], elapsed_s: float) -> str:
    worst = {name: max(abs(row.off(name)) for row in found) for name in found[0].ours}
    table = [
        "| model | b x s | dtype | attention | checkpointing | weights | gradients | states | activations with "
        "temporaries, sizer | torch | off | fullest moment |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        cells = [
            row.name, f"{row.b} x {row.s}", row.dtype, row.attention, row.checkpointing,
            *(f"{row.ours[name] / MIB:.1f} ({row.off(name):+.3%})" for name in ("weights", "gradients", "states")),
            f"{row.ours['activations'] / MIB:.2f}", f"{row.torch['activations'] / MIB:.2f}",
            f"{row.off('activations'):+.3%}", row.moment,
        ]  # fmt: skip
        table.append("| " + " | ".join(cells) + " |")
    summary = "; ".join(f"{name} {value:.3%}" for name, value in worst.items())
    return "\n".join(
        [
            "# Memory beside torch's own accounting",
            "",
            "Written by `python reports/bench/memory_table.py` "
            f"(torch {torch.__version__}, transformers {transformers.__version__}, {elapsed_s:.0f} s).",
            "",
            "torch.distributed._tools.mem_tracker.MemTracker under FakeTensorMode on the CPU device, two whole "
            "training steps with AdamW each, transformers' own model classes in training mode; checkpointing is "
            "torch.utils.checkpoint without reentry on every layer. Each component is compared by itself, because a "
            "total can be right by errors that cancel: weights and gradients at their largest, optimizer states after "
            "the step, activations with temporaries at the moment when they were largest together. MiB; in brackets "
            "and under *off* what sizer is off torch's figure. torch's states hold a step counter for each tensor, "
            "which sizer leaves out.",
            "",
            "*flash* is torch's fused scaled_dot_product_attention, *eager* scores and softmax written out. No GPU was "
            "measured here: a caching allocator's rounding and fragmentation come on top there.",
            "",
            f"**{len(found)} steps; furthest off: {summary}.** Promised: 3%.",
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
