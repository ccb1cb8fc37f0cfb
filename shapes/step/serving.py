"""A serving engine's speed with a model: first token, time per output token and tokens a second.

An engine runs steps of ``running`` requests a rank, each for all their next tokens. A step is the time in which
products and attention read and compute, and what an engine adds: a launch for each kernel and layer of experts,
all-reduces, and host time for each request. Between steps it runs the prompts of new requests, each in a step that is
longer by the prompt's tokens:

    step   = products(running) + attention running + launches + all-reduces(running) + host running
    prompt = products(running + input) - products(running) + attention, passes and all-reduces of the input
    token  = step / tokens accepted a step + (running - 1) prompt / output
    first  = fixed + steps + input + prompt

``products``: sum over products of max(factor x bytes / bandwidth, factor x FLOPs / peak); experts' FLOPs are those of
their tokens and of the empty rows of their tiles. ``passes``: bytes that kernels between products (norms, activations,
the experts' gathering) read and write for a token. Constants are in ``data/serving/<engine>.toml``, fitted by
reports/fit/serving.py. Values are numbers, or arrays of one length.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shapes.cost.constants import sustained_share
from shapes.device import Device
from shapes.dtypes import MXFP4_BYTES
from shapes.frozen import Floats, Named, Names, frozen, replace
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.types import Cast, Collective, Elementwise, Gemm, Operator, RoutedGemm
from shapes.recipes import load_recipe
from shapes.toml_table import Amount, Share, Table, content, named, names
from shapes.workload import MERGED, Workload

#: Products by what their constants are: with a weight of its own, of experts, of experts in NVFP4.
DENSE, EXPERTS, NVFP4_EXPERTS = range(3)
#: Operators that are no kernels of their own in a step: engines fuse them, or their cost is counted apart.
FUSED = frozenset(("residual", "quantise", "moe", "grouped", "collective"))


@frozen
class ServingStack:
    """Constants of one engine on one architecture.

    ``dense``, ``experts`` and ``experts_nvfp4`` multiply a product's seconds of reading, ``attention`` and
    ``attention_fp8`` those of a cache in 16 and 8 bits; ``arithmetic`` seconds at peak (of experts
    ``experts_arithmetic``), ``communication`` those of a ring all-reduce at the link's bandwidth, ``passes`` those of
    activations at the memory's. ``padding``: rows that an expert with any token leaves empty. Others are seconds: a
    kernel, a layer of experts, an all-reduce, a request of a step (``batch_request_s``: of a run whose tokens nobody
    streams, which reports judge, and ``batch_step_s`` its host's of a step), what a layer of experts takes more for one
    token from each other data-parallel rank (small messages are slow: it grows with the root of their number); of a
    first token at all (``first_s``) and a token of its prompt. ``first_steps``: decode steps before it. ``reserved``:
    share of its output that a request holds memory for. ``graphs``: launches are replayed; else those of a prompt run
    ahead of its kernels. ``devices``: those that it was fitted on. ``intervals``: "dense" or "moe" -> metric ->
    measured over predicted, lower and upper, in ``coverage`` of cases.
    """

    name: str
    title: str
    tier: str
    coverage: Share
    source: str
    devices: Names
    dense: float
    experts: float
    experts_nvfp4: float
    attention: float
    attention_fp8: float
    arithmetic: float
    experts_arithmetic: float
    padding: Amount
    communication: float
    passes: float
    kernel_s: Amount
    moe_layer_s: Amount
    all_reduce_s: Amount
    request_s: Amount
    batch_request_s: Amount
    batch_step_s: Amount
    exchange_s: Amount
    first_s: Amount
    moe_first_s: Amount
    first_steps: Amount
    token_s: Amount
    reserved: Share
    of_free: bool
    graphs: bool
    intervals: Named


#: Names of the engines that serving is priced by, sorted.
SERVING_ENGINES = names("serving")


def load_serving_stack(name: str, architecture: str = "") -> ServingStack:
    """One of SERVING_ENGINES as it runs on ``architecture``. InputError for another name."""
    path = named("serving", name, "engine", SERVING_ENGINES)
    data = dict(content(path))
    return Table(data | data.pop("architecture", {}).get(architecture, {}), str(path)).record(ServingStack)


@frozen
class Load:
    """The least cost of a pass, by product and as a whole, of one device.

    ``products``: [..., product, 7]: its kind (DENSE and so on) and count; seconds to move its weights, those that a
    token adds and those of a token's FLOPs at peak; the share of the experts that a token is routed to; the share of a
    prompt's tokens that run it (the head: none of note). ``attention_s``: of one request's step, ``prompt_s`` of its
    prompt at peak; ``ring_s``: what all-reduces and experts move of a token at the link's bandwidth; ``passes_s``: of
    its activations at the memory's. ``spread``: data-parallel ranks that share the experts. ``layers``: the model's.
    """

    products: Any
    attention_s: Any
    prompt_s: Any
    ring_s: Any
    passes_s: Any
    kernels: Any
    all_reduces: Any
    moe_layers: Any
    fp8_cache: Any
    spread: Any
    layers: Any

    def products_s(self, stack: ServingStack, tokens: Any, prompt: Any = 0) -> Any:
        """Seconds of all products of ``tokens`` a rank and those of a ``prompt``."""
        kinds, counts, own_s, token_s, flops_s, chosen, joins = np.moveaxis(self.products, -1, 0)
        own, more, ranks = (np.asarray(one)[..., None] for one in (tokens, prompt, self.spread))
        ran = own + joins * more
        reading = np.choose(kinds.astype(int), (stack.dense, stack.experts, stack.experts_nvfp4))
        share, experts = touched(chosen, ran * ranks), kinds > DENSE
        busy = np.where(experts, stack.experts_arithmetic, stack.arithmetic)
        rows = ran + stack.padding * experts * share / (ranks * chosen)
        seconds = np.maximum(reading * (share * own_s + ran * token_s), busy * rows * flops_s)
        return (counts * (seconds + stack.passes * experts * ran * token_s)).sum(-1)

    def launches_s(self, stack: ServingStack) -> Any:
        """Seconds that a step takes whatever it runs."""
        return (
            stack.kernel_s * self.kernels + stack.moe_layer_s * self.moe_layers + stack.all_reduce_s * self.all_reduces
        )

    def step_s(self, stack: ServingStack, requests: Any, tokens: Any = 1) -> Any:
        """Seconds of one decode step of ``requests`` a rank, each of so many ``tokens``."""
        ran = requests * tokens
        attention = np.where(self.fp8_cache, stack.attention_fp8, stack.attention) * requests * self.attention_s
        step = self.products_s(stack, ran) + attention + self.launches_s(stack) + stack.request_s * requests
        exchange_s = stack.exchange_s * self.moe_layers * (self.spread - 1) * np.sqrt(ran)
        return step + ran * self.moved_s(stack) + exchange_s

    def prompt_adds_s(self, stack: ServingStack, tokens: Any, requests: Any = 0) -> Any:
        """Seconds that a prompt adds to a step of ``requests``, whose launches it shares."""
        added = self.products_s(stack, requests, tokens) - self.products_s(stack, requests)
        return added + stack.arithmetic * self.prompt_s + tokens * self.moved_s(stack)

    def moved_s(self, stack: ServingStack) -> Any:
        """Seconds of a token's communication between devices and of the passes over its activations."""
        return stack.communication * self.ring_s + stack.passes * self.passes_s


def touched(chosen: Any, tokens: Any) -> Any:
    """Share of the experts that any of ``tokens`` is routed to, each at random to ``chosen`` of them."""
    return 1.0 - (1.0 - np.minimum(1.0, chosen)) ** tokens


def serving_load(
    model: ModelShape, workload: Workload, device: Device, prompt: int, output: int, spread: int = 1
) -> Load:
    """The load of requests halfway through their ``output``, with experts over ``spread`` data-parallel ranks.

    Projections that engines merge are merged.
    """
    own = replace(workload, b=1, p=1, d=1, e=1, **MERGED)
    listed = operators(model, replace(own, phase="decode", s=1, context=prompt + output // 2))
    rate = device.memory.bandwidth_bytes_per_s
    products = [_product(one, device, spread) for one in listed if isinstance(one, Gemm | RoutedGemm)]
    reduces = [one for one in listed if isinstance(one, Collective) and one.what == "all_reduce"]
    grouped = [one for one in listed if isinstance(one, RoutedGemm)]
    gathered = load_recipe(grouped[0].recipe).gathered if grouped and grouped[0].recipe else 2.0
    layers = sum(one.count for one in grouped) / 2
    return Load(
        products=np.array(products, dtype=float),
        attention_s=sum(one.count * max(one.bytes / rate, _flops_s(device, one)) for one in _cores(listed)),
        prompt_s=sum(
            one.count * _flops_s(device, one)
            for one in _cores(operators(model, replace(own, phase="prefill", s=prompt, context=None)))
        ),
        ring_s=(
            sum(one.count * 2 * (1 - 1 / one.ranks) * one.bytes for one in reduces)
            # Data-parallel ranks gather the others' tokens before experts and hand sums back in 16 bits.
            + (2 + gathered) * (spread - 1) * layers * model.hidden
        )
        / device.link.intra_node_bytes_per_s,
        passes_s=sum(one.count * one.bytes for one in listed if type(one) in (Cast, Elementwise)) / rate,
        kernels=sum(one.count for one in listed if FUSED.isdisjoint((one.kind, getattr(one, "what", "")))),
        all_reduces=sum(one.count for one in reduces),
        moe_layers=layers,
        fp8_cache=workload.kv_dtype in ("fp8", "int8"),
        spread=spread,
        layers=model.layers,
    )


def _cores(listed: Iterable[Operator]) -> list[Any]:
    """Attention, and operators that stand for it (recurrences, sparse attention)."""
    # By type: a state's update is elementwise too, and is read once for a request's token, not for each of a prompt.
    return [one for one in listed if type(one) not in (Cast, Collective, Elementwise, Gemm, RoutedGemm)]


def _product(one: Gemm | RoutedGemm, device: Device, spread: int) -> Floats:
    """A product of one token, as a row of ``Load.products``."""
    rate, weights = device.memory.bandwidth_bytes_per_s, replace(one, m=0).bytes
    kind, held_s, chosen = DENSE, weights / rate, 1.0
    if isinstance(one, RoutedGemm):
        kind = NVFP4_EXPERTS if one.dtype == "nvfp4" else EXPERTS
        held_s, chosen = replace(one, m=0, groups=one.held).bytes / spread / rate, one.m / one.held
    more_s = (one.bytes - weights) / rate
    return kind, one.count, held_s, more_s, _flops_s(device, one), chosen, one.name != "lm_head"


def _flops_s(device: Device, one: Any) -> float:
    """Seconds of an operator's FLOPs at the sustained peak of its units: engines route from products of 16 bits.

    Where there are FP4 units they multiply weights in MXFP4 by 8-bit activations.
    """
    narrow = getattr(one, "weight_bytes", 0) == MXFP4_BYTES and "nvfp4" in device.peak_flops
    wanted = ("fp8",) * narrow + (one.dtype, "fp8") * (one.dtype != "fp32") + ("bf16", "fp16", "fp32")
    peak = next(device.peak_flops[own] for own in wanted if own in device.peak_flops)
    return float(getattr(one, "visible_flops", one.flops)) / peak / sustained_share(device)


class Served(NamedTuple):
    """Seconds to the first token and per output token, tokens a second of a rank, seconds of its step and a prompt."""

    first_s: Any
    token_s: Any
    tokens_per_s: Any
    step_s: Any
    prompt_s: Any


def served(
    stack: ServingStack,
    load: Load,
    running: Any,
    prompt: Any,
    output: Any,
    *,
    apart: Any = False,
    drafted: int = 0,
    acceptance: float = 0.0,
) -> Served:
    """``running`` requests a rank of ``prompt`` and ``output`` tokens in a steady state: as one ends, the next begins.

    ``apart``: other devices run the prompts. ``drafted`` tokens a step,
    each accepted with the probability ``acceptance`` where the one before was (Leviathan et al. 2211.17192, equation
    1), by a drafter of one layer.
    """
    step = load.step_s(stack, running, 1 + drafted) * (1 + drafted / load.layers)
    added = load.prompt_adds_s(stack, prompt, running) * (not apart)
    accepted = sum(acceptance**drawn for drawn in range(drafted + 1))
    token = step / accepted + (running - 1) * added / output
    launches, own = load.launches_s(stack), load.prompt_adds_s(stack, prompt)
    alone = launches + own if stack.graphs else np.maximum(launches, own)
    fixed = stack.first_s + stack.moe_first_s * (load.moe_layers > 0) + stack.token_s * prompt
    first = fixed + stack.first_steps * step + alone
    return Served(first, token, running * output / (output * token + added), step, alone)
