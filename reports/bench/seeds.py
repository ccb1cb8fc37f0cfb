"""What the first sources describe and was once missing or partial, each tried by a command: reports/seeds.md.

    python reports/bench/seeds.py

Half a minute. A row's command is run, and what it says is found in its output by a pattern: one that finds nothing
fails. What does not work says why.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from pathlib import Path

from click.testing import CliRunner
from opening import with_answer
from tabulate import tabulate

from sizer.cli import main

REPORTS = Path(__file__).resolve().parents[1]
LLAMA = "tests/data/configs/llama-3.1-8b.json"
#: transformers' guide on one GPU (perf_train_gpu_one): options -> MB that nvidia-smi had, samples a second.
GUIDE = {
    "-b 4 --dtype fp32": (14949, 8.86),
    "-b 1 --global-batch 4 --dtype fp32": (8681, 7.75),
    "-b 1 --global-batch 4 --dtype fp32 --checkpointing full": (6775, 5.99),
    "-b 4 --dtype fp16 --precision amp --stack transformers-amp": (13939, 18.64),
    "-b 1 --global-batch 4 --dtype fp16 --precision amp --stack transformers-amp --checkpointing full": (7275, 10.09),
    "-b 4 --dtype fp32 --optimizer adafactor": (12295, 7.96),
    "-b 4 --dtype fp32 --optimizer adamw-8bit": (13085, 9.15),
    "-b 1 --global-batch 4 --dtype fp16 --precision amp --stack transformers-amp --checkpointing full "
    "--optimizer adafactor": (4847, 9.06),
    "-b 1 --global-batch 4 --dtype fp16 --precision amp --stack transformers-amp --checkpointing full "
    "--optimizer adamw-8bit": (5363, 10.35),
}
BERT_LARGE = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "intermediate_size": 4096,
    "vocab_size": 30522,
}
SOFTWARE = (
    "nine rows of the guide of 2022, as torch before 1.11 ran them: softmax saved its input, gradients stayed, every "
    "kernel was loaded at the start"
)
#: Capability, a command, what it says (one pattern or several), whether that is whole, a note.
ROWS = (
    (
        "memory of inference: 6, 4, 2, 1 bytes a parameter",
        (f"memory {LLAMA} --phase infer -b 1 -s 128 --weights {kind}" for kind in ("mixed", "fp32", "bf16", "int8")),
        r"weights +([0-9.]+)",
        "works",
        "GiB of 8.03 B parameters; int8 keeps embedding and head in 16 bits",
    ),
    (
        "methods by speed and memory",
        (f"memory {LLAMA} -b 1 --dp 8 --zero 3",),
        r"full checkpointing +([0-9.]+ +\w+ +\d+ +\S+ \w+)",
        "works",
        "GiB, whether it fits, largest microbatch, step, a row for each method",
    ),
    (
        "temporary memory, fragmentation, PYTORCH_CUDA_ALLOC_CONF",
        (f"memory {LLAMA} -b 1",),
        r"nvidia-smi +(.*)",
        "works",
        "the allocator's rules over the tape's requests in their order (reports/memory-peaks.md), and the setting "
        "against it; a run's own by `memory --explain`",
    ),
    (
        "CUDA context by version and lazy loading",
        (f"memory {LLAMA} -b 1",),
        r"framework +(.*)",
        "in part",
        "a constant with its range, loaded lazily or not: which kernels a process loads is not known before it runs",
    ),
    (
        "memory profiler: measured against planned",
        ("memory --help-all",),
        r"(--explain SNAPSHOT)",
        "works",
        "a snapshot of torch.cuda.memory next to the prediction",
    ),
    (
        "beam search",
        ("memory tests/data/configs/llama-3.1-8b.json --phase decode -b 64 --context 4096",),
        r"kv_cache +([0-9.]+)",
        "works",
        "16 requests of 4 beams are -b 64 in transformers, whose cache repeats each prompt (5.23, "
        "generation/utils.py:2928); putting beams in order copies one layer's keys, 0.5 GiB here; "
        "engines share the prompt and need less",
    ),
    (
        "ZeRO with CPU and NVMe offload",
        (f"check {LLAMA} -b 1 --dp 8 --zero 3 --offload 1 --workload offload-params=1",),
        r"(step [0-9.]+ s \([0-9.]+ s to [0-9.]+ s)",
        "in part",
        "optimizer, weights and saved tensors on the host, in bytes and seconds; no published step names the "
        "rate of its disks, so that what NVMe takes has no price",
    ),
    (
        "fused, apex, foreach optimizers; torch.compile backends",
        (f"check {LLAMA} --stack transformers-compile",),
        r"(step [0-9.]+ m?s)",
        "in part",
        "one price a software stack: public runs name the stack, neither the optimizer's kernel nor another "
        "backend than inductor, so that a price apart would be made up",
    ),
    (
        "choice of GPU by cost",
        (f"check {LLAMA} --device h100-sxm --device b200 --device a100-sxm",),
        r"USD of them, by list prices +(.*)",
        "works",
        "dollars of 1e9 tokens; of a whole training `plan --tokens`, of a measured step `mfu`",
    ),
    ("MAC beside FLOP", (f"ops {LLAMA} --top 1",), r"([0-9.e+]+ FLOPs \([0-9.e+]+ MACs\))", "works", ""),
    (
        "MFU by precision",
        (f"mfu {LLAMA} --gpus 64 --global-batch 1024 --step-time 12.7 --recipe blockwise",),
        r"operators, by precision: .*?\((.*?)\)",
        "works",
        "shares of the FLOPs, each at its own type's peak",
    ),
    (
        "swiglu-maf-bench, mamf-finder",
        ("search --what swiglu-gemm --h 4096 --d-ff 10922 --dtype fp16",),
        r"1 +11008 .*?(\d\.\d+x +\d\.\d+\.\.\d\.\d+)",
        "works",
        "predicted: the interval holds the book's 1.46x; on a GPU `--measure` and `bench all` time it",
    ),
)


def said(words: str) -> str:
    """What a command answers; its exit code may be that of findings."""
    run = CliRunner().invoke(main, shlex.split(words), catch_exceptions=False)
    if run.exit_code not in (0, 1):
        raise SystemExit(f"sizer {words}: {run.stderr}")
    return run.output


def found(words: str, pattern: str) -> str:
    match = re.search(pattern, said(words))
    if match is None:
        raise SystemExit(f"sizer {words}: nothing like {pattern}")
    return " ".join(match[1].split())


def guide() -> list[list[str]]:
    """Each row of the guide: memory and samples a second, measured and predicted."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "bert-large.json")
        file.write_text(json.dumps(BERT_LARGE))
        for options, (megabytes, rate) in GUIDE.items():
            words = f"{file} --device v100-sxm-16 -s 512 --attention eager {options}"
            memory = json.loads(said(f"memory {words} --implementation torch-1 --format json"))
            used = (memory["reserved_bytes"] + memory["components"]["framework"]) / 2**20
            report = json.loads(said(f"check {words} --fail-on never --format json"))["reports"][0]
            ours = 4 / report["step"]["seconds"]
            off = f"{used / megabytes - 1:+.0%}", f"{ours / rate - 1:+.0%}"
            rows.append([f"`{options}`", megabytes, f"{used:,.0f}", off[0], rate, f"{ours:.2f}", off[1]])
    return rows


def write() -> None:
    rows = []
    for capability, commands, pattern, state, note in ROWS:
        listed = list(commands)
        figures = ", ".join(found(words, pattern) for words in listed)
        rows.append([capability, state, f"`sizer {listed[0]}`" if listed else "", figures.replace("|", "/"), note])
    measured = guide()
    rows.insert(0, ["bert-large on V100: memory and time", "works", "the table below", "", SOFTWARE])
    head = ["capability", "state", "command", "what it says", "note"]
    columns = [
        "options",
        "measured MB",
        "predicted",
        "off",
        "samples/s",
        "predicted rate",
        "rate off",
    ]
    text = f"""# What the first sources describe, row by row

    python reports/bench/seeds.py

Rows that a first walk found missing or in part; each command was run on this code. The rest worked then.

{tabulate(rows, head, tablefmt="github")}

## transformers' guide on one GPU

bert-large-uncased for classification, 512 tokens, 4 sequences a step, on a V100 of 16 GB (transformers'
perf_train_gpu_one). The guide's memory is nvidia-smi's, with what the allocator keeps; no fit has seen these rows.
`memory --implementation torch-1` knows three things of torch before 1.11: softmax saved its input (its backward asked
for it, and read the type alone), zero_grad zeroed gradients in place, so that they too are there when most is held, and
every kernel was loaded at the start (the guide's own 1.3 GB before any model).

{tabulate(measured, columns, tablefmt="github")}
"""
    (REPORTS / "seeds.md").write_text(with_answer("seeds", text), encoding="utf-8")


if __name__ == "__main__":
    write()
