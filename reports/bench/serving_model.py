"""What a serving engine makes of a model: first token, time per output token and tokens a second at a concurrency.

An engine runs steps of ``b`` requests a replica, of all their next tokens. A step takes what products and attention
read and compute, and what an engine adds: a launch a kernel and a layer of experts, an all-reduce, host time a request.
Between steps it runs the prompts of requests that come in, each as a step that is the longer by the prompt's tokens:

    step    = products(b) + attention b + launches + all-reduces(b) + host b
    prompt  = products(b + input) - products(b) + attention and all-reduces of the input
    token   = step / tokens accepted a step + (b - 1) prompt / output
    first   = fixed + steps + input + prompt (1 + waiting (b - 1)) + arrivals + queue
    queue   = (requests / b - 1) output token            where the memory holds b of the requests only

``products``: sum over products of max(factor x bytes / bandwidth, factor x FLOPs / peak). Constants are
``serving_stacks/<name>.toml``, which reports/fit/serving.py fits. No command of sizer predicts by them yet. Values are
numbers, or arrays of one length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import ModelShape
from shapes.model.layers import MoeShape
from shapes.operators import operators
from shapes.operators.types import Collective, Elementwise, Gemm, GroupedGemm, Operator
from shapes.toml_table import Amount, Share, Table, content
from shapes.workload import Workload

#: Constants of each engine.
FOLDER = Path(__file__).parent / "serving_stacks"
#: Bytes of an MXFP4 weight with its scales: on devices with FP4 units engines multiply it by 8-bit activations.
MXFP4_BYTES = 0.5 + 1 / 32
#: Products by what their constants are: with a weight of its own, of experts, of experts in NVFP4.
DENSE, EXPERTS, NVFP4_EXPERTS = range(3)
#: Share of the time that prompts may take: beyond it their queue would grow for ever.
MOST_BUSY = 0.95
#: Kernels that engines fuse into their neighbours.
FUSED = ("residual", "quantise", "moe")


@frozen
class ServingStack:
    """Constants of one engine on one architecture. ``dense``, ``experts`` and ``experts_nvfp4`` multiply a product's

    seconds of reading, ``attention`` and ``attention_fp8`` those of a cache in 16 and 8 bits; ``arithmetic`` and
    ``experts_arithmetic`` seconds at peak, ``communication`` those of a ring all-reduce at the link's bandwidth. Others
    are seconds: a kernel, a layer of experts, an all-reduce, a request of a step (``batch_request_s``: of those that
    are not streamed), a token that data-parallel ranks exchange in a layer of experts; of a first token at all
    (``first_s``), a token of its prompt and a request in flight. ``first_steps``: decode steps before it. ``waiting``:
    prompts waited for, a request in flight. ``reserved``: share of its output that a request holds memory for.
    ``intervals``: metric, "dense" or "moe" -> measured over predicted, lower and upper, in ``coverage`` of cases.
    """

    name: str
    title: str
    tier: str
    coverage: Share
    source: str
    dense: float
    experts: float
    experts_nvfp4: float
    attention: float
    attention_fp8: float
    arithmetic: float
    experts_arithmetic: float
    communication: float
    kernel_s: Amount
    moe_layer_s: Amount
    all_reduce_s: Amount
    request_s: Amount
    batch_request_s: Amount
    exchange_s: Amount
    first_s: Amount
    first_steps: Amount
    token_s: Amount
    arrival_s: Amount
    waiting: Amount
    reserved: Share
    intervals: Mapping[str, tuple[float, float]]

    def __hash__(self) -> int:
        return hash((self.name, self.source))


def list_serving_stacks() -> tuple[str, ...]:
    """Names of the engines that serving is priced by, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@lru_cache(maxsize=64)
def load_serving_stack(name: str, architecture: str = "") -> ServingStack:
    """One of `list_serving_stacks` as it runs on ``architecture``. InputError for another name."""
    known = list_serving_stacks()
    if name not in known:
        raise InputError(f"expected one of {', '.join(known)}", key="stack", value=name)
    path = FOLDER / f"{name}.toml"
    data = dict(content(path))
    table = Table(data | data.pop("architecture", {}).get(architecture, {}), str(path))
    return table.record(ServingStack, intervals=table.read_only("intervals"))


@frozen
class Load:
    """What a pass costs at the least, by product (last axis) and as a whole, of one device.

    ``own_s`` and ``token_s``: seconds to move a product's weights, and what a token adds; ``arithmetic_s``: those of a
    token's FLOPs at peak; ``chosen``: share of the experts that a token is routed to; ``joins``: share of a prompt's
    tokens that run it (the head: none of note); ``kinds``: of DENSE and so on.
    ``attention_s``: of one request's step, ``prompt_s`` of its prompt at peak; ``ring_s``: a token's all-reduces at the
    link's bandwidth. ``spread``: data-parallel ranks that share the experts.
    """

    kinds: Any
    counts: Any
    own_s: Any
    token_s: Any
    arithmetic_s: Any
    chosen: Any
    joins: Any
    attention_s: Any
    prompt_s: Any
    ring_s: Any
    kernels: Any
    all_reduces: Any
    moe_layers: Any
    spread: Any
    fp8_cache: Any

    def products_s(self, stack: ServingStack, tokens: Any, prompt: Any = 0) -> Any:
        """Seconds of all products of ``tokens`` a rank and those of a ``prompt``."""
        own, more, ranks = (np.asarray(one)[..., None] for one in (tokens, prompt, self.spread))
        tokens = own + self.joins * more
        reading = np.array([stack.dense, stack.experts, stack.experts_nvfp4])[self.kinds]
        computing = np.where(self.kinds == DENSE, 1.0, stack.experts_arithmetic) * stack.arithmetic
        read_s = touched(self.chosen, tokens * ranks) * self.own_s + tokens * self.token_s
        return (self.counts * np.maximum(reading * read_s, computing * tokens * self.arithmetic_s)).sum(-1)

    def step_parts(
        self, stack: ServingStack, requests: Any, tokens: Any = 1, *, streamed: bool = True
    ) -> dict[str, Any]:
        """Seconds of one decode step of ``requests`` a rank, each of so many ``tokens``, by part."""
        ran = requests * tokens
        attention = np.where(self.fp8_cache, stack.attention_fp8, stack.attention)
        alone = stack.all_reduce_s * self.all_reduces
        return {
            "products": self.products_s(stack, ran),
            "attention": attention * requests * self.attention_s,
            "launches": stack.kernel_s * self.kernels + stack.moe_layer_s * self.moe_layers,
            "tensor parallelism": np.maximum(alone, stack.communication * ran * self.ring_s),
            "expert parallelism": np.where(
                self.spread > 1, stack.exchange_s * self.moe_layers * self.spread * ran, 0.0
            ),
            "host": (stack.request_s if streamed else stack.batch_request_s) * requests,
        }

    def prompt_seconds(self, stack: ServingStack, tokens: Any, requests: Any = 0) -> Any:
        """Seconds that a prompt adds to a step of ``requests``, whose launches it shares; to none: those it takes."""
        alone = (
            stack.kernel_s * self.kernels + stack.moe_layer_s * self.moe_layers + stack.all_reduce_s * self.all_reduces
        )
        joined = np.asarray(requests) > 0
        return (
            self.products_s(stack, requests, tokens)
            - np.where(joined, self.products_s(stack, np.maximum(requests, 1)), -alone)
            + stack.arithmetic * self.prompt_s
            + stack.communication * tokens * self.ring_s
        )


def touched(chosen: Any, tokens: Any) -> Any:
    """Share of the experts that any of ``tokens`` is routed to, each at random to ``chosen`` of them."""
    return 1.0 - (1.0 - np.minimum(1.0, chosen)) ** tokens


def load_of(listed: Iterable[Operator], requests: int, tokens: int, device: Device, experts: int, spread: int) -> Load:
    """Of the ``listed`` operators of a pass of ``requests`` with so many ``tokens`` in all.

    ``experts``: of a layer, over ``spread`` data-parallel ranks.
    """
    bandwidth = device.memory.bandwidth_bytes_per_s
    products: list[tuple[float, ...]] = []
    totals = dict.fromkeys(("attention_s", "prompt_s", "ring_s"), 0.0) | dict.fromkeys(("kernels", "all_reduces"), 0)
    fp8_cache = False
    for one in listed:
        if isinstance(one, Collective):
            reduces = one.what == "all_reduce"
            totals["all_reduces"] += one.count * reduces
            ring = 2 * (one.ranks - 1) / one.ranks * one.bytes / device.link.intra_node_bytes_per_s
            totals["ring_s"] += reduces * one.count * ring / tokens
            continue
        if isinstance(one, Elementwise):
            totals["kernels"] += one.count * (one.what not in FUSED)
            continue
        flops_s = float(getattr(one, "visible_flops", one.flops)) / _peak(device, one)
        if isinstance(one, Gemm | GroupedGemm):
            mixed = isinstance(one, GroupedGemm)
            weights = replace(one, m=0)
            own = replace(one, m=0, groups=experts).bytes / spread if isinstance(one, GroupedGemm) else weights.bytes
            moved = one.bytes - weights.bytes
            chosen = one.m / tokens / experts if mixed else 1.0
            kind = DENSE if not mixed else NVFP4_EXPERTS if one.dtype == "nvfp4" else EXPERTS
            joins = one.name != "lm_head"
            moving = (own / bandwidth, moved / tokens / bandwidth, flops_s / tokens)
            products.append((kind, one.count, *moving, chosen, joins))
            totals["kernels"] += 0 if mixed else one.count
        else:
            totals["attention_s"] += one.count * max(one.bytes / bandwidth, flops_s) / requests
            totals["prompt_s"] += one.count * flops_s / requests
            totals["kernels"] += one.count
            fp8_cache |= getattr(one, "kv_dtype", "") in ("fp8", "int8")
    kinds, counts, *columns = np.array(products, dtype=float).reshape(-1, 7).T
    layers = counts[kinds != DENSE].sum() // 2
    values = (kinds.astype(int), counts, *columns, *totals.values(), layers, spread, fp8_cache)
    return Load(*values)


def serving_load(
    model: ModelShape, workload: Workload, device: Device, input_tokens: int, output_tokens: int, spread: int = 1
) -> Load:
    """Of requests halfway through their output, their experts over ``spread`` data-parallel ranks."""
    own = replace(engine_workload(workload), gpus=None, global_batch=None, p=1, d=1, e=1, zero=0, speculative=0)
    step = replace(own, phase="decode", b=1, s=1, context=input_tokens + output_tokens // 2)
    prompt = replace(own, phase="prefill", b=1, s=input_tokens, context=None)
    found, first = (
        load_of(operators(model, one), 1, one.s, device, experts_of(model), spread) for one in (step, prompt)
    )
    return replace(found, prompt_s=first.prompt_s)


def engine_workload(workload: Workload) -> Workload:
    """``workload`` with the projections merged that engines merge."""
    return replace(
        workload, fused_qkv=workload.fused_qkv is not False, fused_gate_up=workload.fused_gate_up is not False
    )


def experts_of(model: ModelShape) -> int:
    """Experts of a layer that has most; 0 of a dense model."""
    return max((block.mlp.experts for _, block in model.all_blocks() if isinstance(block.mlp, MoeShape)), default=0)


def _peak(device: Device, one: Operator) -> float:
    narrow = getattr(one, "weight_bytes", None) == MXFP4_BYTES and "nvfp4" in device.peak_flops
    wanted = ("fp8",) if narrow else (one.dtype, "fp8", "bf16", "fp16", "fp32")
    return next(device.peak_flops[own] for own in wanted if own in device.peak_flops)


@frozen
class Requests:
    """What is served: ``concurrency`` requests of ``input_tokens`` and ``output_tokens``, over ``replicas``.

    ``most``: requests that a replica's memory holds at once (None: any number). ``drafted`` tokens a step, each
    accepted with the probability ``acceptance`` where the one before was, by a drafter of one of ``layers``.
    ``streamed``: tokens are sent as they come. ``apart``: other devices run the prompts. ``at_random``: requests come
    when they like, and a prompt waits for others as in a queue of random arrivals and even service; else each comes as
    another ends, and they come together.
    """

    concurrency: Any
    input_tokens: Any
    output_tokens: Any
    replicas: Any = 1
    most: Any = None
    drafted: int = 0
    acceptance: float = 0.0
    layers: int = 1
    streamed: bool = True
    apart: bool = False
    at_random: bool = False

    @property
    def accepted(self) -> float:
        """Tokens of a request that a step makes (Leviathan et al. 2211.17192, equation 1)."""
        return sum(self.acceptance**drawn for drawn in range(self.drafted + 1))


@frozen
class Served:
    """Seconds to the first token and per output token, output tokens a second of all replicas, requests that each runs

    at once, and seconds of its step and of a prompt.
    """

    first_s: Any
    token_s: Any
    tokens_per_s: Any
    running: Any
    step_s: Any
    prompt_s: Any


def served(stack: ServingStack, load: Load, asked: Requests) -> Served:
    """``asked`` in a steady state: as one request ends, the next begins."""
    each = np.maximum(1.0, np.ceil(asked.concurrency / asked.replicas))
    running = each if asked.most is None else np.minimum(each, np.maximum(1, asked.most))
    step = sum(load.step_parts(stack, running, 1 + asked.drafted, streamed=asked.streamed).values())
    drafting = 1 + asked.drafted / asked.layers
    prompt = load.prompt_seconds(stack, asked.input_tokens, running)
    between = 0.0 if asked.apart else (running - 1) * prompt / asked.output_tokens
    token = step * drafting / asked.accepted + between
    together = asked.output_tokens * token + (0.0 if asked.apart else prompt)
    alone = load.prompt_seconds(stack, asked.input_tokens)
    server = stack.first_s + stack.first_steps * step + stack.token_s * asked.input_tokens
    server = server + stack.arrival_s * asked.concurrency
    queue = (each / running - 1) * asked.output_tokens * token
    busy = np.minimum(prompt * running / together, MOST_BUSY)
    behind = busy / (1 - busy) / 2 if asked.at_random else stack.waiting * (running - 1)
    # Half the step that runs, and the one that the prompt joins.
    joining = 1.5 * step if asked.at_random else 0.0
    first = alone * (1 + behind) + joining + queue + (server if asked.streamed else 0.0)
    rate = asked.replicas * running * asked.output_tokens / together
    return Served(first, token, rate, running, step, alone)
