"""How TensorRT-LLM's published offline runs were set up: requests in all, those that run at once, memory's share.

Read in the pages and programs of NVIDIA/TensorRT-LLM. To 0.12 an engine was built for a model and its degree
(docs/source/performance/perf-overview.md at 32ed92e4, tensorrt_llm/bench/build/benchmark_config.yml at 8fcf9fc2) and
ran without CUDA graphs; its cache took 0.99 of what the rest left free (0.95 on GH200). Later trtllm-bench chooses
(tensorrt_llm/bench/build/tuning.py at 04cba882), and 0.95 of what is free is the cache's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil

from shapes.device import Device
from shapes.memory import GIB, memory
from shapes.model import ModelShape, parameter_count
from shapes.workload import Workload

#: Requests of a run by prompt and output ("Preparing a Dataset", perf-overview.md at 00f37686 and 03e27c7d): the last
#: of them run alone. Others: as many as the memory holds, again and again.
REQUESTS = {
    (128, 128): 30000,
    (128, 2048): 3000,
    (128, 4096): 1500,
    (500, 2000): 3000,
    (1000, 1000): 3000,
    (1000, 2000): 1500,
    (1024, 1024): 3000,
    (1024, 8192): 1500,
    (1024, 32768): 1000,
    (2048, 128): 3000,
    (2048, 2048): 1500,
    (5000, 500): 1500,
    (8192, 1024): 1500,
    (20000, 2000): 1000,
    (32768, 1024): 1000,
}
#: Releases that were built so, without CUDA graphs.
BUILT = ("0.10.0", "0.11.0", "0.12.0")
#: Model, degree, and tokens of a request where they matter -> tokens of a step and requests at once of its engine.
ENGINES: Mapping[tuple[str, str, int], tuple[int, int]] = {
    ("GPT-J 6B", "1", 0): (2048, 128),
    ("GPT-J 6B", "1", 256): (2048, 2048),
    ("Falcon 180B", "4", 0): (8192, 4096),
    ("Falcon 180B", "8", 0): (8192, 2048),
    ("Llama 2 7B", "1", 0): (8192, 4096),
    ("Llama 2 70B", "2", 0): (2048, 2048),
    ("Llama 2 70B", "4", 0): (8192, 4096),
    ("Llama 2 70B", "4", 4224): (8192, 256),
    ("Llama 2 70B", "8", 0): (16384, 8192),
    ("Llama 2 70B", "8", 2176): (16384, 1024),
    ("Llama 3 8B", "1", 0): (8192, 2048),
    ("Llama 3 70B", "1", 0): (2048, 2048),
    ("Llama 3 70B", "2", 0): (1024, 256),
    ("Llama 3 70B", "2", 4096): (1024, 2048),
    ("Llama 3 70B", "4", 0): (1024, 2048),
    ("Llama 3 70B", "8", 0): (16384, 8192),
    ("Mixtral 8x7B", "2", 0): (3072, 2048),
    ("Mixtral 8x7B", "4", 0): (8192, 8192),
    ("Mistral 7B", "1", 0): (8192, 4098),
}
#: Of a model and degree that no page lists, and trtllm-bench's of formats that it does not know.
ELSE = (8192, 2048)
#: Buffers of a step's logits in fp32: the model's, and what sampling works on.
LOGITS = 2 * 4
#: Bytes of a weight in NVFP4 with its scale.
NVFP4 = 0.5 + 1 / 16
#: Of the process on the device: CUDA's context and kernels.
CONTEXT = GIB


def at_once(
    line: Mapping[str, str], model: ModelShape, step: Workload, device: Device, lengths: tuple[int, int]
) -> int:
    """Requests of a prompt and an output that a stage runs at once; 0: the memory does not hold one."""
    weights, cache = _bytes(model, replace(step, b=1, context=1), "weights"), _held(model, step)
    free, share = device.memory.bytes - weights - CONTEXT, 0.95
    if line["engine_version"] in BUILT:
        key = line["model"], line["t"]
        batched, most = ENGINES.get((*key, sum(lengths))) or ENGINES.get((*key, 0), ELSE)
        share = share if device.name == "gh200" else 0.99
    else:
        batched, most = _chosen(line, model, step, device, lengths)
    prompts = replace(step, phase="prefill", s=batched, context=None)
    work = LOGITS * most * model.vocab + _bytes(model, prompts, "activations")
    return min(most, int(share * (free - work) / cache / step.p) if cache else most)


def _chosen(
    line: Mapping[str, str], model: ModelShape, step: Workload, device: Device, lengths: tuple[int, int]
) -> tuple[int, int]:
    """Tokens of a step and requests of a stage that trtllm-bench chooses: it takes a latent's cache for heads'."""
    if line["dtype_weights"] in ("mxfp4", "int4"):
        return ELSE
    ranks = step.t * step.p * step.d
    sizes = {"nvfp4": 0.5, "fp8": 1}
    counted = parameter_count(model.tensors())
    if line["dtype_weights"] == "nvfp4":
        # It counts a checkpoint's elements: two weights are one byte there, and 16 have a scale. The rest has 16 bits.
        held = _bytes(model, replace(step, t=1, p=1, d=1, e=1), "weights")
        counted = held - (held - NVFP4 * counted) / (2 - NVFP4)
    weights = counted * sizes.get(line["dtype_weights"], 2)
    cache = _held(model, step) * step.t * step.p
    said = json.loads(line["config"]) if line["config"].startswith("{") else {}
    if said.get("kv_lora_rank"):
        width = said.get("head_dim") or said["hidden_size"] // said["num_attention_heads"]
        numbers = 2 * said["num_hidden_layers"] * max(ranks, said["num_key_value_heads"]) * width
        cache = numbers * sum(lengths) * (1 if step.kv_dtype == "fp8" else 2)
    most = min(4096, 0.95 * (ranks * device.memory.bytes - weights) / cache) / step.p
    batched = min(most * (1 + lengths[0] / lengths[1]), 32768)
    return _rounded(batched, 2048, ((4096, 256), (8192, 512)), 1024), _rounded(most, 64, ((256, 32), (1024, 128)), 256)


def _held(model: ModelShape, step: Workload) -> int:
    """Bytes of the cache of ``step``'s requests.

    Without max_attention_window, which no page sets, layers with a window hold a request's whole length like the others
    (tensorrt_llm/_torch/pyexecutor/resource_manager.py).
    """
    one, two = (_bytes(model, replace(step, context=tokens), "kv_cache") for tokens in (1, 2))
    return one + (two - one) * ((step.context or 1) - 1)


def _rounded(number: float, least: int, steps: tuple[tuple[int, int], ...], coarsest: int) -> int:
    by = next((by for below, by in steps if number < below), coarsest)
    return max(least, by * ceil(number / by))


@lru_cache(maxsize=1 << 14)
def _bytes(model: ModelShape, workload: Workload, what: str) -> int:
    held = memory(model, workload, context_bytes=0, implementation="megatron" if what == "activations" else None)
    return sum(part.bytes for part in held.parts if part.name == what)
