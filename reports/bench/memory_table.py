"""Write reports/memory.md: sizer's memory by component against torch's MemTracker over whole training steps.

    pip install -e '.[test]'
    python reports/bench/memory_table.py

Fake tensors on the CPU device: nothing is allocated, no GPU and no network are needed. Half an hour on two cores, most
of it for recurrent layers that step through their scan.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import memory_oracle as oracle  # noqa: E402 - with the tests that use it too
import torch  # noqa: E402
import transformers  # noqa: E402
from opening import with_answer  # noqa: E402
from test_memory_tracker import FURTHER, OPTIMIZERS, SMALL  # noqa: E402

from shapes.frozen import replace  # noqa: E402
from shapes.memory import memory  # noqa: E402
from shapes.memory.modules import CHECKED  # noqa: E402
from shapes.workload import Workload  # noqa: E402
from sizer.readers import read_config  # noqa: E402

REPORT = ROOT / "reports" / "memory.md"
MIB = 2**20
_MAMBA = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 32}
#: Families whose totals are not within 1%: what runs in torch alone is another algorithm than what sizer counts.
UNCHECKED: dict[str, dict[str, Any]] = {
    "llama4_text": {
        **SMALL,
        "head_dim": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 1,
        "intermediate_size": 128,
        "intermediate_size_mlp": 512,
        "interleave_moe_layer_step": 1,
        "pad_token_id": 0,
    },
    "qwen3_next": {
        **SMALL,
        "num_hidden_layers": 4,
        "head_dim": 32,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
    },
    "bamba": {**SMALL, **_MAMBA, "attn_layer_indices": [1]},
}
FAMILIES = {**{family: {"num_hidden_layers": 2} for family in oracle.CONFIGS}, **FURTHER}
#: Sequences and tokens; windows are shorter than that.
B, S = 2, 512
#: Configurations drawn at random, besides those of the table.
DRAWS = 20


@dataclass(frozen=True)
class Row:
    """One step: totals in bytes, sizer's and torch's, with one microbatch and with two; ``how``, where drawn."""

    family: str
    attention: str
    checkpointing: str
    alone: tuple[int, int]
    accumulated: tuple[int, int]
    moment: str
    how: str = ""

    @property
    def off(self) -> float:
        return max((ours / theirs - 1 for ours, theirs in (self.alone, self.accumulated)), key=abs)


def measure(family: str, changes: dict[str, Any], workload: Workload, optimizer: str = "adamw", how: str = "") -> Row:
    config = oracle.config_of(family, **changes)
    tracked = oracle.track(
        config,
        workload.b,
        workload.s,
        dtype=workload.dtype,
        attention=workload.attention,
        checkpointing=workload.checkpointing == "full",
        optimizer=OPTIMIZERS[optimizer],
    )
    model = read_config(config.to_dict()).model
    alone, accumulated = (
        memory(
            model,
            replace(workload, precision=workload.dtype, optimizer=optimizer),
            context_bytes=0,
            microbatches=number,
            dropout_mask_bytes=workload.activation_bytes,
        )
        for number in (1, 2)
    )
    return Row(
        family,
        workload.attention,
        workload.checkpointing,
        (alone.total_bytes, tracked.alone),
        (accumulated.total_bytes, tracked.accumulated),
        alone.moment.split(":")[0],
        how,
    )


def rows() -> list[Row]:
    found = []
    for family, changes in {**FAMILIES, **UNCHECKED}.items():
        for attention in ("flash", "eager"):
            if attention == ("eager" if family in UNCHECKED else "flash" if family in oracle.EAGER_ONLY else ""):
                continue
            for checkpointing in ("none", "full"):
                workload = Workload(b=B, s=S, attention=attention, checkpointing=checkpointing)  # type: ignore[arg-type]
                found.append(measure(family, changes, workload))
    return found


def draw(seed: int) -> Row:
    """A checked family in sizes and a setting of its own."""
    rng = random.Random(seed)
    family = rng.choice(sorted(CHECKED))
    base = {**oracle.CONFIGS.get(family, {}), **FAMILIES[family]}
    heads, head_dim, layers = rng.choice((4, 8, 16, 32)), rng.choice((32, 64, 128)), rng.choice((2, 3, 5))
    hidden, vocab, positions = heads * head_dim, rng.choice((512, 1000, 8192, 32000)), 2048
    experts = "num_experts_per_tok" in base
    sizes = {
        **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), hidden),
        **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), heads),
        **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), layers),
        **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), positions),
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), rng.choice((4, 8, 16))),
        "num_key_value_heads": heads if "kv_lora_rank" in base else rng.choice((1, 2, 4, heads)),
        "intermediate_size": rng.choice((128, hidden // 2, hidden) if experts else (2 * hidden, 4 * hidden)),
        "moe_intermediate_size": rng.choice((128, hidden // 2)),
        "num_experts_per_tok": rng.choice((1, 2, 4)),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "sliding_window": rng.choice((100, 128, 4096)),
    }
    if family in oracle.CONFIGS:
        base |= {"max_position_embeddings": positions, "n_positions": positions}
    changes = {**base, **{key: size for key, size in sizes.items() if key in base}}
    changes["tie_word_embeddings"] = rng.random() < 0.5
    workload = Workload(
        b=rng.choice((1, 1, 2, 3, 4)),
        s=rng.choice((64, 128, 255, 257, 384, 512, 777, 1024, 2048)),
        dtype="bf16" if experts else rng.choice(("bf16", "bf16", "fp32")),  # torch's grouped product is of bf16 alone
        attention="eager" if family in oracle.EAGER_ONLY else rng.choice(("flash", "eager")),
        checkpointing=rng.choice(("none", "full")),
    )
    optimizer = rng.choice(("adamw", "adamw", "sgd", "sgd-momentum"))
    how = (
        f"h {hidden}, heads {heads}, L {layers}, v {vocab}{', tied' if changes['tie_word_embeddings'] else ''}; "
        f"b {workload.b}, s {workload.s}, {workload.dtype}, {optimizer}"
    )
    return measure(family, changes, workload, optimizer, how)


def drawn_report(found: list[Row]) -> list[str]:
    within = sum(abs(row.off) <= 0.01 for row in found)
    offs = sorted(abs(row.off) for row in found)
    lines = [
        "## Sizes, settings and optimizers drawn at random",
        "",
        f"{len(found)} draws (seeds 0 to {len(found) - 1}): **{within} within 1%**, half within "
        f"{offs[len(offs) // 2]:.3%}, nine of ten within {offs[9 * len(offs) // 10]:.3%}. The five furthest off:",
        "",
        "| family | attention | checkpointing | sizes | one microbatch | two | fullest |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: -abs(row.off))[:5]:
        offs_of = [f"{ours / theirs - 1:+.3%}" for ours, theirs in (row.alone, row.accumulated)]
        lines.append(
            "| " + " | ".join([row.family, row.attention, row.checkpointing, row.how, *offs_of, row.moment]) + " |"
        )
    return [*lines, ""]


def report(found: list[Row], drawn: list[Row]) -> str:
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
            "# Memory against torch's own accounting",
            "",
            "Written by `python reports/bench/memory_table.py` "
            f"(torch {torch.__version__}, transformers {transformers.__version__}).",
            "",
            "torch.distributed._tools.mem_tracker.MemTracker under FakeTensorMode on the CPU device: whole training "
            "steps with AdamW (one fused kernel), transformers' own classes in bf16, once the states exist. Totals are "
            "compared, at the fullest moment of a step of one microbatch (before whose backward there are no "
            f"gradients) and of one of two (whose second finds the first one's). b {B}, s {S}; MiB.",
            "",
            "*flash* is torch's fused scaled_dot_product_attention, *eager* scores and softmax written out. No GPU was "
            "measured here: a caching allocator's rounding and fragmentation come on top there.",
            "",
            f"**{within} of {len(checked)} steps of {len({row.family for row in checked})} checked families within 1%; "
            f"furthest off: {worst.family}, {worst.attention}, checkpointing {worst.checkpointing}, "
            f"{worst.off:+.2%}.** Beyond 1%: {beyond or 'none'}.",
            "",
            "A dispatch mode, as the tracker is, makes autograd scatter gradients out of place (a mixture's gathered "
            "tokens, gpt_oss's largest score): the second copy is counted here and, a bound, everywhere. The CPU has "
            "no fused attention with dropout; with one, this tracker would see torch's math path.",
            "",
            f"Not checked, and `sizer memory` says so: {', '.join(sorted(UNCHECKED))}. transformers' llama4 runs every "
            "token through every expert, where sizer counts the routed ones; recurrent layers without their fused "
            "kernels (mamba-ssm, flash-linear-attention: CUDA alone) keep each step of the scan, where sizer counts "
            "what the kernels keep.",
            "",
            *drawn_report(drawn),
            "## The table",
            "",
            *table,
            "",
        ]
    )


def main() -> None:
    found = rows()
    drawn = [draw(seed) for seed in range(DRAWS)]
    # adapter_table.py writes the section behind.
    _, heading, adapters = REPORT.read_text(encoding="utf-8").partition("\n## Adapters\n")
    whole = report(found, drawn) + heading + adapters
    REPORT.write_text(with_answer("memory", whole), encoding="utf-8")
    print(f"wrote {REPORT.relative_to(ROOT)}: {len(found)} steps and {len(drawn)} draws")  # noqa: T201 - a script's last word


if __name__ == "__main__":
    main()
