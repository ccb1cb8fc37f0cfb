"""Remake reports/workloads.md: fine-tuning and serving, each command with what it answers.

python reports/bench/workloads.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from opening import with_answer

ROOT = Path(__file__).resolve().parents[2]
QWEN = "tests/data/configs/qwen2.5-7b.json --device rtx-4090 -b 1 -s 2048 --checkpointing full"
#: Llama-3.1-70B from the sizes of its smaller sister.
LLAMA = (
    "tests/data/configs/llama-3.1-8b.json --set hidden_size=8192 --set intermediate_size=28672 "
    "--set num_hidden_layers=80 --set num_attention_heads=64"
)
DECODE = f"{LLAMA} --phase decode -b 64 --context 8k --tp 8 --dtype fp8"
#: (what it is about, what the answer shows, the commands).
PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "QLoRA of Qwen2.5-7B on an RTX 4090",
        "The base's matrices take half a byte a parameter, embedding and head (1.1 billion parameters) four, as "
        "peft makes them ready, and hidden states are in fp32 then (`--workload base=nf4-16` keeps all of it in 16 "
        "bits); 2.5 million parameters train. The largest part after the base is the loss, whose logits do not change. "
        "In full, AdamW in mixed precision keeps 14 bytes a parameter of weights, masters and states, and 4 of "
        "gradients: no microbatch and no checkpointing changes that.",
        (f"sizer memory {QWEN} --finetune qlora", f"sizer memory {QWEN} --finetune full"),
    ),
    (
        "Decoding Llama-3.1-70B in fp8 on eight H100s, 64 requests of 8k",
        "A step reads every key and value of 64 x 8,192 tokens: 20 GiB on each device in 16 bits, and 8.5 GiB of "
        "weights in 8. The attention core is the largest operator, all of it the cache's bytes; a narrower "
        "cache (`--kv-dtype fp8`) halves it. Prices of decoding are extrapolated, and say so.",
        (
            f"sizer memory {DECODE}",
            f"sizer ops {DECODE}",
            f"sizer ops {DECODE} --explain attention.core",
            f"sizer check {DECODE} --kv-dtype fp8",
        ),
    ),
    (
        "The prompt before it",
        "The time to the first token, of one request; the head runs at the last position alone.",
        (f"sizer check {LLAMA} --phase prefill -b 1 -s 8k --tp 8 --dtype fp8",),
    ),
)


def answer(command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "sizer", *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ran.returncode not in (0, 1):
        raise SystemExit(ran.stderr)
    return f"```console\n$ {command}\n{ran.stdout.rstrip()}\n```\n\nExit code {ran.returncode}.\n"


def main() -> None:
    lines = [
        "# Fine-tuning and serving\n",
        "Every block is what the command above it answers: predicted, not measured.\n",
    ]
    lines += ["```sh\npython reports/bench/workloads.py\n```\n"]
    for title, said, commands in PARTS:
        lines += [f"## {title}\n", f"{said}\n", *map(answer, commands)]
    (ROOT / "reports" / "workloads.md").write_text(with_answer("workloads", "\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
