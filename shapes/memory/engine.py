"""A serving engine's capacity in its share of a device: the longest context of so many requests, and the most requests.

An engine also keeps what its largest pass needs, a graph of each batch that it captures, and what
libraries allocate past torch. vLLM prints each as it starts.
"""

from functools import partial

from shapes.device import Device
from shapes.frozen import Ints, replace
from shapes.model import ModelShape
from shapes.toml_table import DATA, check_bounds, content
from shapes.workload import Workload

from . import GIB, largest_size, memory

#: Share of the device that an engine takes: vLLM's --gpu-memory-utilization.
UTILIZATION = 0.9
#: Tokens of the largest pass: vLLM's --max-num-batched-tokens of a server, chunked prefill on.
BATCHED_TOKENS = 2048
#: Outside torch's allocator, as vLLM 0.10 printed on one H100 and on each of four L40S (2025-09): NCCL's buffers.
LIBRARIES, NCCL = 0.07 * GIB, 0.14 * GIB
#: Bytes of one layer's captured graph: vLLM 0.21 prints them for 51 graphs of Qwen3-8B's 36 layers (LMCache 3430);
#: 0.10's took 11% more.
GRAPH_BYTES = 0.52 * GIB / 51 / 36
#: Batches that are captured, to twice the requests.
CAPTURED: Ints = content(DATA / "models.toml")["captured"]
#: Bytes of a sampled logit in vLLM's profile run: 2 and 4 (in 16 and 32 bits), 4 and 8 (sorted, its place), 2 masks.
SAMPLED_BYTES = 20
#: No context is searched beyond this: of layers that keep a state, nothing grows with it.
LONGEST_SEARCHED = 1 << 27


def engine_bytes(model: ModelShape, workload: Workload, weight_dtype: str | None = None) -> int:
    """Bytes of an engine that decodes ``workload.b`` requests: weights, caches, its largest pass, graphs, libraries."""
    used = memory(model, workload, context_bytes=0, weight_dtype=weight_dtype).components
    tokens = min(BATCHED_TOKENS, (workload.context or 1) * workload.b)
    prompt = replace(workload, phase="prefill", b=1, s=tokens, context=None, speculative=0)
    # Engines' kernels are fused, as Megatron's are, and compiled.
    largest = memory(model, prompt, context_bytes=0, implementation="megatron").components
    sampled = SAMPLED_BYTES * workload.b * workload.s * model.vocab * model.head
    graphs = GRAPH_BYTES * -(-model.layers // workload.p) * sum(size <= 2 * workload.b for size in CAPTURED)
    libraries = LIBRARIES + NCCL * (workload.model_ranks * workload.e > 1)
    return round(used["weights"] + used["kv_cache"] + max(largest["activations"], sampled) + graphs + libraries)


def _largest(
    key: str, model: ModelShape, workload: Workload, device: Device, utilization: float, weight_dtype: str | None = None
) -> int | None:
    """The largest size of a field that an engine's share of the device holds; 0: not the least; None: any number."""
    check_bounds(memory_utilization=utilization)
    bounds = (LONGEST_SEARCHED, 1 + workload.speculative) if key == "context" else ()
    return largest_size(
        lambda size: engine_bytes(model, replace(workload, s=1, **{key: size}), weight_dtype),
        utilization * device.memory.bytes,
        *bounds,
    )


def share_of_free(model: ModelShape, workload: Workload, device: Device, share: float) -> float:
    """The share of the whole device that an engine takes.

    Its own ``share`` counts memory that its weights leave free (TensorRT-LLM's free_gpu_memory_fraction).
    """
    return min(
        1.0, share + (1 - share) * engine_bytes(model, replace(workload, b=1, context=workload.s)) / device.memory.bytes
    )


#: Tokens of context that each of ``workload.b`` requests can have, and requests that fit at ``workload.context``.
longest_context, most_requests = partial(_largest, "context"), partial(_largest, "b")
