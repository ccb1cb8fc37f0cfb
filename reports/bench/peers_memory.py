"""Write reports/peers-memory.md: training memory of six public models by three estimators, sizer and torch.

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install accelerate llm-analysis torch transformers
    python reports/bench/peers_memory.py --peers /tmp/peers/bin/python

No GPU and no network: configurations are those of tests/data/configs, torch's figures those of MemTracker over fake
tensors. EleutherAI's calc_transformer_mem.py is a script without a package; its published formulas are evaluated here
with the arguments that it takes from a Hugging Face configuration.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from opening import with_answer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import memory_oracle as oracle  # noqa: E402 - with the tests that use it too
import transformers  # noqa: E402

from shapes.memory import memory  # noqa: E402
from shapes.workload import Workload  # noqa: E402
from sizer.readers import read_config  # noqa: E402

REPORT = ROOT / "reports" / "peers-memory.md"
CONFIGS = ROOT / "tests" / "data" / "configs"
MODELS = ("gpt2", "llama-3.1-8b", "mistral-7b", "qwen2.5-7b", "gemma-2-9b", "mixtral-8x7b")
GIB = 2**30
B, S = 1, 1024
#: Mixed precision AdamW: 2 + 4 weights, 4 gradients, 8 states.
BYTES_A_PARAMETER = 18

LLM_ANALYSIS = """
import dataclasses, json, sys
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import (
    ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name, get_model_config_from_hf,
)
# It refuses what does not fit the GPU, so the GPU is given memory enough.
gpu = dataclasses.replace(get_gpu_config_by_name("h100-sxm-80gb"), mem_per_GPU_in_GB=10**6)
tool = LLMAnalysis(
    get_model_config_from_hf(sys.argv[1]), gpu, get_dtype_config_by_name("w16a16e16"), ParallelismConfig()
)
out = tool.training(
    batch_size_per_gpu=int(sys.argv[2]), seq_len=int(sys.argv[3]), ds_zero=DSZeRO.NONE,
    activation_recomputation=ActivationRecomputation.NONE, flash_attn=sys.argv[4] == "flash",
    mlp_gated_linear_units=sys.argv[5] == "gated",
)
print(json.dumps({"parameters": out["num_params_total"], "activations": out["activation_memory_per_gpu"],
                  "states": out["(weight+op_state+grad)_memory_per_gpu"]}))
"""
ACCELERATE = """
import json, sys
from accelerate import init_empty_weights
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModel
with init_empty_weights():
    model = AutoModel.from_config(AutoConfig.from_pretrained(sys.argv[1]))  # as accelerate estimate-memory builds it
total, _ = calculate_maximum_sizes(model)
# Its "Training using Adam" column: four times the weights in fp32.
print(json.dumps({"parameters": total // 4, "states": 4 * total, "activations": 0}))
"""


@dataclass(frozen=True)
class Answer:
    """Bytes of weights, gradients and states, of activations with the loss, and the parameters counted."""

    parameters: float
    states: float
    activations: float
    complaint: str = ""

    @property
    def total(self) -> float:
        return self.states + self.activations


def eleuther(config: dict[str, Any]) -> Answer:
    """EleutherAI cookbook, calc/calc_transformer_mem.py at 069ae2e, with its defaults and the file's values.

    The MLP has two matrices and key/value heads are as many as heads unless told otherwise, and experts are not read.
    """
    gpt2 = config["model_type"] == "gpt2"
    h = config["n_embd" if gpt2 else "hidden_size"]
    layers = config["n_layer" if gpt2 else "num_hidden_layers"]
    a = config["n_head" if gpt2 else "num_attention_heads"]
    expansion = 4.0 if gpt2 else config["intermediate_size"] / h
    parameters = 2 * config["vocab_size"] * h + h * S + 8 * h * layers + 2 * h + 4 * layers * h * h
    parameters += 2 * layers * h * expansion * h
    activations = S * B * h * layers * (34 + 5 * a * S / h)
    return Answer(parameters, parameters * BYTES_A_PARAMETER, activations)


def ask(peers: str, driver: str, config: dict[str, Any], *arguments: object) -> Answer:
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        run = subprocess.run(
            [peers, "-c", driver, folder, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if line.strip()]
        return Answer(0, 0, 0, lines[-1][:90] if lines else f"exit {run.returncode}")
    found = json.loads(run.stdout.splitlines()[-1])
    return Answer(found["parameters"], found["states"], found["activations"])


def ours(config: dict[str, Any], attention: str) -> Answer:
    model = read_config(config).model
    workload = Workload(b=B, s=S, attention=attention)  # type: ignore[arg-type]
    parts = memory(model, workload, context_bytes=0, dropout_mask_bytes=2).components
    activations = parts["activations"] + parts["logits_and_loss"] + parts["temporary"]
    return Answer(model.parameters, sum(parts.values()) - activations, activations)


def truth(config: dict[str, Any], attention: str) -> Answer:
    """torch: the class's own parameters at 18 bytes, and MemTracker's activations in bf16."""
    loaded = transformers.AutoConfig.for_model(**config)
    tracked = oracle.track(loaded, B, S, attention=attention)
    parameters = tracked.weights // 2
    return Answer(parameters, parameters * BYTES_A_PARAMETER, tracked.activations)


def row(name: str, attention: str, peers: str) -> dict[str, Answer]:
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    for key in ("attn_pdrop", "resid_pdrop", "embd_pdrop"):
        if key in config:
            config[key] = 0.0  # torch's CPU has no fused kernel with dropout
    gated = "plain" if config["model_type"] == "gpt2" else "gated"
    return {
        "torch": truth(config, attention),
        "sizer": ours(config, attention),
        "EleutherAI": eleuther(config),
        "llm-analysis": ask(peers, LLM_ANALYSIS, config, B, S, attention, gated),
        "accelerate": ask(peers, ACCELERATE, config),
    }


def report(rows: list[tuple[str, str, dict[str, Answer]]]) -> str:
    tools = [tool for tool in rows[0][2] if tool != "torch"]
    head = ["model", "attention", "figure", "torch", *tools, "closest"]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, attention, answers in rows:
        for figure in ("parameters", "activations", "total"):
            right = getattr(answers["torch"], figure)
            unit, suffix = (1e9, "B") if figure == "parameters" else (GIB, "GiB")
            cells, off = [], {}
            for tool in tools:
                answer = answers[tool]
                if answer.complaint:
                    cells.append(answer.complaint.replace("|", "\\|"))
                    continue
                value = getattr(answer, figure)
                off[tool] = abs(value / right - 1)
                cells.append(f"{value / unit:.3f} ({value / right - 1:+.1%})" if value else "none")
            closest = min(off, key=lambda tool: off[tool])
            table.append(
                "| "
                + " | ".join([name, attention, f"{figure}, {suffix}", f"{right / unit:.3f}", *cells, closest])
                + " |"
            )
    return "\n".join(
        [
            "# Training memory: peers, sizer and torch",
            "",
            "Written by `python reports/bench/peers_memory.py --peers /tmp/peers/bin/python`.",
            "",
            f"One device, b {B}, s {S}, AdamW in mixed precision (18 bytes a parameter: 2 + 4 weights, 4 gradients, "
            "8 states), no checkpointing, no dropout, without CUDA context. torch's parameters are the model class's "
            "own; its activations, with temporaries and the loss, are MemTracker's over whole training steps in bf16 "
            "under FakeTensorMode. *eager* and *flash* name torch's attention; EleutherAI's formula is of eager "
            "attention only. accelerate estimate-memory gives four times the fp32 weights and no activations. In "
            "brackets: off torch's.",
            "",
            *table,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", required=True, help="the Python of an environment with the peers")
    peers = parser.parse_args().peers
    rows = [
        (name, attention, row(name, attention, peers))
        for name in MODELS
        for attention in ("flash", "eager")
        if not (name.startswith("gemma-2") and attention == "flash")  # transformers has no fused kernel for it
    ]
    REPORT.write_text(with_answer("peers-memory", report(rows)), encoding="utf-8")
    print(f"wrote {REPORT.relative_to(ROOT)}")  # noqa: T201 - a script's last word


if __name__ == "__main__":
    main()
