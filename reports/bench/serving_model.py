"""What a serving engine makes of a model: first token, time per output token and tokens a second at a concurrency.

An engine runs steps of ``b`` requests a replica. A decode step is what memory and arithmetic allow at the least, in
three classes of operators, and what an engine adds: a launch a kernel and a layer of experts, a synchronisation an
all-reduce, host time a request, and the other requests' prompts, which it runs between. reports/fit/serving.py fits
these constants (``serving_engines/<name>.toml``). No command of sizer predicts by them yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import ModelShape
from shapes.model.layers import MoeShape
from shapes.operators import operators
from shapes.operators.types import Collective, Elementwise, Gemm, GroupedGemm
from shapes.toml_table import Amount, Table, load
from shapes.workload import Workload

#: Constants of each engine.
FOLDER = Path(__file__).parent / "serving_engines"
#: Seconds of figures in ``METRICS`` are in milliseconds, as people publish them.
METRICS = ("ttft_ms", "tpot_ms", "output_tokens_per_s_total")


@frozen
class ServingEngine:
    """Constants of one engine. ``dense``, ``experts``, ``attention``, ``prompt`` and ``communication`` multiply the

    least seconds; the others are seconds: a kernel, an all-reduce, a layer of experts (on Hopper), a request of a
    step's host time; of a first token, at all, each token of a prompt and each request. ``waiting``: of a prompt, a
    request before it. ``occupancy``: share of the time in which an offline run's steps are full.
    ``intervals``: metric, "dense" or "moe" -> measured over predicted, lower and upper.
    """

    name: str
    title: str
    tier: str
    coverage: float
    source: str
    dense: float
    experts: float
    attention: float
    kernel_s: Amount
    all_reduce_s: Amount
    moe_layer_s: Amount
    request_s: Amount
    prompt: float
    communication: float
    first_s: Amount
    first_steps: Amount
    token_s: Amount
    waiting: Amount
    arrival_s: Amount
    occupancy: float
    steady: float
    intervals: Mapping[str, tuple[float, float]]


def list_serving_engines() -> tuple[str, ...]:
    """Names of the engines that serving is priced by."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_serving_engine(name: str) -> ServingEngine:
    """One of `list_serving_engines`. InputError for another name, or a file with a value that is none."""
    known = list_serving_engines()
    if name not in known:
        raise InputError(f"expected one of {', '.join(known)}", key="engine", value=name)
    return load(FOLDER / f"{name}.toml", _engine)


def _engine(data: Mapping[str, Any], where: str) -> ServingEngine:
    table = Table(data, where)
    ranges = {key: (float(low), float(high)) for key, (low, high) in table.read_only("intervals").items()}
    return table.record(ServingEngine, intervals=ranges)


@frozen
class Amounts:
    """The least seconds of one pass on one device by class of operators, and how often it launches and synchronises."""

    dense_s: float
    experts_s: float
    attention_s: float
    arithmetic_s: float
    communication_s: float
    weights_bytes: float
    cache_bytes: float
    kernels: int
    all_reduces: int
    moe_layers: int


def amounts(model: ModelShape, workload: Workload, device: Device, replicas: int = 1) -> Amounts:
    """Of one pass of ``workload`` (prefill or decode), its experts spread over ``replicas`` that serve as much each."""
    least = {"dense": 0.0, "experts": 0.0, "attention": 0.0}
    arithmetic = communication = weights = cache = 0.0
    reduces = 0
    layers = [block for _, block in model.all_blocks()]
    experts = max((block.mlp.experts for block in layers if isinstance(block.mlp, MoeShape)), default=0)
    for one in operators(model, workload):
        if isinstance(one, Collective):
            reduces += one.count
            communication += (
                one.count * 2 * (one.ranks - 1) / one.ranks * one.bytes / device.link.intra_node_bytes_per_s
            )
        elif not isinstance(one, Elementwise):
            own, read = 0.0, float(one.bytes)
            if isinstance(one, GroupedGemm):
                own, tokens = replace(one, m=0, groups=experts).bytes / replicas, replace(one, groups=0).bytes
                read = own * touched(experts, one.m / workload.tokens, workload.tokens * replicas) + tokens
            elif isinstance(one, Gemm):
                own = replace(one, m=0).bytes
            weights, cache = weights + one.count * own, cache + one.count * getattr(one, "cache_bytes", 0)
            flops_s = float(getattr(one, "visible_flops", one.flops)) / _peak(device, one.dtype)
            name = {"grouped_gemm": "experts", "gemm": "dense"}.get(one.kind, "attention")
            least[name] += one.count * max(read / device.memory.bandwidth_bytes_per_s, flops_s)
            arithmetic += one.count * flops_s
    mixed = sum(block.count for block in layers if isinstance(block.mlp, MoeShape))
    kernels = 9 * sum(block.count for block in layers) + 3 * mixed
    return Amounts(
        least["dense"],
        least["experts"],
        least["attention"],
        arithmetic,
        communication,
        weights,
        cache,
        kernels,
        reduces,
        mixed,
    )


def _peak(device: Device, dtype: str) -> float:
    return next(device.peak_flops[own] for own in (dtype, "fp8", "bf16", "fp16", "fp32") if own in device.peak_flops)


def touched(experts: int, top_k: float, tokens: int) -> float:
    """Share of ``experts`` that any of ``tokens`` is routed to, each at random to ``top_k``."""
    return 1.0 - (1.0 - min(1.0, top_k / experts)) ** tokens


@frozen
class Requests:
    """What is served: ``concurrency`` requests of ``input_tokens`` and ``output_tokens``, over ``replicas``."""

    concurrency: int
    input_tokens: int
    output_tokens: int
    replicas: int = 1

    @property
    def batch(self) -> int:
        return max(1, ceil(self.concurrency / self.replicas))


def passes(model: ModelShape, workload: Workload, device: Device, asked: Requests) -> tuple[Amounts, Amounts]:
    """A decode step of a replica's requests halfway through their output, and the pass of one prompt."""
    context = asked.input_tokens + asked.output_tokens // 2
    own = replace(workload, gpus=None, global_batch=None, d=1, e=1, zero=0, speculative=0)
    step = replace(own, phase="decode", b=asked.batch, s=1, context=context)
    prompt = replace(own, phase="prefill", b=1, s=asked.input_tokens, context=None)
    return amounts(model, step, device, asked.replicas), amounts(model, prompt, device, asked.replicas)


def times(engine: ServingEngine, step: Amounts, prompt: Amounts, asked: Requests, device: Device) -> dict[str, float]:
    """Each of ``METRICS``: milliseconds to the first token and per output token, and output tokens a second of all

    requests, kept at a concurrency.
    """
    b, out = asked.batch, asked.output_tokens
    alone = engine.dense * step.dense_s + engine.experts * step.experts_s + engine.attention * step.attention_s
    alone += engine.kernel_s * step.kernels + engine.all_reduce_s * step.all_reduces + engine.request_s * b
    alone += engine.moe_layer_s * step.moe_layers * (device.architecture == "hopper")
    one_prompt = engine.prompt * prompt.arithmetic_s + engine.communication * prompt.communication_s
    first = engine.first_s + engine.first_steps * alone + engine.token_s * asked.input_tokens
    first += one_prompt * (1 + engine.waiting * (b - 1) / 2) + engine.arrival_s * asked.concurrency
    rate = engine.steady * asked.concurrency * out / (out * alone + 0.5 * b * one_prompt)
    return dict(zip(METRICS, (1e3 * first, 1e3 * (alone + (b - 1) * one_prompt / out), rate), strict=True))
