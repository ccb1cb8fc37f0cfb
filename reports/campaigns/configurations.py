"""Configurations of every format, mutated knowing their structure, through check, memory and ops in this process."""

from __future__ import annotations

import json
import random
import resource
import time
from pathlib import Path
from typing import Any

import yaml

from reports.campaigns.outcome import Outcome, judge, run_command

ROOT = Path(__file__).parents[2]
#: Seconds of the processor and bytes that one answer may take (the formula path; a trace may take longer).
MOST_S, MOST_BYTES = 2.0, 2**30
VALUES: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    3,
    7,
    31,
    64,
    127,
    128,
    1000,
    2**15,
    2**31 - 1,
    2**31,
    2**48,
    2**63,
    10**40,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    "",
    "4096",
    "gelu",
    "\x1b[31m",
    "\ud800",
    [],
    {},
    [1],
    [None] * 3,
    [[[]]],
    {"a": {"b": [1]}},
    ["sliding_attention", "full_attention"] * 40,
    ["x"] * 10_000,
)
MEGATRON = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "ffn_hidden_size": 14336,
    "seq_length": 4096,
    "max_position_embeddings": 4096,
    "micro_batch_size": 1,
    "tensor_model_parallel_size": 2,
    "swiglu": True,
    "vocab_size": 32000,
    "position_embedding_type": "rope",
    "num_experts": 8,
    "moe_router_topk": 2,
    "normalization": "RMSNorm",
    "bf16": True,
}
NEOX = {
    "num_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "seq_length": 2048,
    "max_position_embeddings": 2048,
    "no_weight_tying": True,
    "mlp_type": "llama",
    "rotary_pct": 0.25,
    "train_micro_batch_size_per_gpu": 4,
}
LITGPT = {"n_layer": 12, "n_head": 12, "n_embd": 768, "padded_vocab_size": 50304, "block_size": 1024, "name": "x"}
NANOGPT = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "batch_size": 12, "bias": False}
META = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024}


def sources() -> list[tuple[str, dict[str, Any]]]:
    """(file's ending, content) of every configuration that is mutated."""
    files = sorted((ROOT / "tests" / "data" / "configs").glob("*.json"))
    found = [("json", json.loads(path.read_text(encoding="utf-8"))) for path in files]
    found += [("yaml", MEGATRON), ("sh", MEGATRON), ("yaml", NEOX), ("yaml", LITGPT), ("py", NANOGPT), ("json", META)]
    return found


def mutated(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One to four keys of ``config`` (those inside others too) changed, scaled, dropped, swapped or doubled."""
    out = json.loads(json.dumps(config))
    for _ in range(rng.randint(1, 4)):
        holder = out
        inner = [value for value in out.values() if isinstance(value, dict) and value]
        if inner and rng.random() < 0.3:
            holder = rng.choice(inner)
        if not holder:
            continue
        key, other = rng.choice(sorted(holder)), rng.choice(sorted(holder))
        way = rng.randrange(6)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder[key], int):
            holder[key] = holder[key] * rng.choice((2, 3, -1, 1000, 2**20)) + rng.choice((-1, 0, 1))
        elif way == 2:
            holder[key], holder[other] = holder[other], holder[key]
        elif way == 3 and isinstance(holder[key], list):
            holder[key] = holder[key] * rng.choice((0, 2, 50)) + [rng.choice(VALUES)]
        elif way == 4:
            holder[f"{key}{rng.choice(('_', 's', '.x', ''))}"] = rng.choice(VALUES)
        else:
            holder[key] = rng.choice(VALUES)
    return out


def text_of(kind: str, config: dict[str, Any], rng: random.Random) -> str:
    """``config`` in its format; one in twenty with a few characters of the text changed too."""
    if kind == "yaml":
        text = yaml.dump(config, default_flow_style=rng.random() < 0.2)
    elif kind == "sh":
        flags = " ".join(f"--{key.replace('_', '-')} {value!r}" for key, value in config.items())
        text = f"#!/bin/bash\nH=$(({rng.randint(1, 9)} * 128))\ntorchrun train.py {flags}\n"
    elif kind == "py":
        text = "".join(f"{key} = {value!r}\n" for key, value in config.items() if key.isidentifier())
    else:
        text = json.dumps(config)
    if rng.random() < 0.05:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(('"', "{", "]", "&a", "*a", "\0", "!!int ", "${", "\n", ":")) + text[at + 1 :]
    return text


def run(count: int, rng: random.Random, folder: Path) -> Outcome:
    outcome, known, held = Outcome(), sources(), _peak_bytes()
    commands = (("check",), ("memory",), ("ops", "--format", "json"), ("check", "--format", "json", "--tp", "2"))
    for number in range(count):
        kind, config = rng.choice(known)
        text = text_of(kind, mutated(config, rng), rng)
        file = folder / f"config.{kind}"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        command = rng.choice(commands)
        start = time.process_time()
        # Other classes than the readers' own are traced with torch: seconds, and another campaign.
        result = run_command([command[0], str(file), *command[1:]]) if "model_type" not in text or _read(file) else None
        if result is None:
            outcome.tell("left to tracing")
            continue
        judge(outcome, result, (command, kind, text))
        taken = time.process_time() - start
        if taken > MOST_S and number > 20:  # the first ones load modules
            outcome.violation(f"over {MOST_S:g} s", (taken, command, text))
    peak = _peak_bytes()
    outcome.kinds["peak MiB"] = peak // 2**20
    # What a process held before (a test runner with torch loaded) is not the campaign's.
    if peak - held > MOST_BYTES:
        outcome.violation("over 1 GiB", peak)
    return outcome


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read(file: Path) -> bool:
    from sizer.readers import UnknownModelType, read_config

    try:
        read_config(file)
    except UnknownModelType:
        return False
    except Exception:  # the command is to say it
        return True
    return True
