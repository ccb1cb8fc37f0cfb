"""The search spaces. Adding one is a function of a ``Request`` and its place in ``SPACES``."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, product
from math import gcd, lcm
from operator import attrgetter
from typing import Any

import numpy as np

from shapes.columns import Array, IntegerTable, rows_by
from shapes.device import Device
from shapes.dtypes import next_multiple
from shapes.errors import one_of, refuse
from shapes.frozen import Function, Ints, Named, Pair, Sizes, replace
from shapes.model import (
    AttentionShape,
    Block,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    Stack,
    block_tensors,
    parameter_count,
)
from shapes.model.resize import dimensions
from shapes.operators import operators
from shapes.operators.types import Gemm, Operator, Operators
from shapes.workload import Workload

from .space import (
    TOLERANCE,
    VARIABLE,
    WIDER,
    Baseline,
    Candidates,
    Limits,
    NothingLeftError,
    Request,
    Space,
    layers_named,
    nothing_left,
    resized,
    whole_heads,
)

#: Numbers of experts divide over a node's devices, as far as the baseline's does.
NODE = 8
#: How far experts' width and a token's experts may move from the baseline's.
EXPERT_FACTOR = 2.0


def experts(request: Request) -> Space:
    """A mixture's experts at equal total and active parameters: width, number and top-k together.

    Finer and coarser experts, each as many and as many a token as keep both counts of parameters.
    """
    model = request.model
    found = mixtures_around(request, model.parameters, Candidates.of([{"layers": model.layers}]), request.step)
    columns, own = {**found.columns}, dimensions(model)
    del columns["layers"]
    return request.space(
        Candidates(columns)[np.any([column != own[name] for name, column in columns.items()], axis=0)],
        f"total and active parameters stay within the tolerance, experts' width and top_k within a factor "
        f"{EXPERT_FACTOR:g}; what finer or coarser experts do to quality is yours",
        "router, experts, shared and dense MLPs are timed",
        timed=partial(layers_named, (".moe.", ".mlp.")),
        measured_parts=(),
    )


def mixtures_around(request: Request, target: float, around: Candidates, step: int) -> Candidates:
    """``around`` with experts of each width: as many experts, and experts a token, as come nearest to ``target``.

    ``target`` is in parameters; the baseline's share of active parameters is kept. The number of shared experts stays;
    if it is not whole, their width does.
    """
    model, moe, tolerance = request.model, request.model.moe, request.limits.tolerance
    assert moe
    shared, factor = moe.shared.width if moe.shared else 0, request.limits.spread or EXPERT_FACTOR
    widths = [
        (width, shared // moe.width * width if shared % moe.width == 0 else shared)
        for width in range(next_multiple(int(moe.width / factor), step) or step, int(moe.width * factor) + 1, step)
    ]
    active_target = target * model.active_parameters / model.parameters
    multiple = lcm(request.workload.e, gcd(moe.experts, NODE))
    outside, column = rows_by(IntegerTable(around.columns), lambda part: room(resized(model, part)), 2)
    around, outside, column = around[column > 0], outside[column > 0], column[column > 0]
    active = (active_target - outside) / column
    of, mixture = mixtures(moe, (target - outside) / column, active, widths, multiple)
    more = mixture["top_k"] / moe.top_k
    near = (more >= 1 / factor) & (more <= factor)
    for name, aim, slack in (("top_k", active_target, tolerance), ("experts", target, TOLERANCE)):
        wide = mixture[name] * mixture["expert_d_ff"] + mixture.get("shared_d_ff", 0)
        near &= abs(outside[of] + wide * column[of] - aim) <= (tolerance + slack) * aim
    tried = Candidates({**around[of[near]].columns, **Candidates(mixture)[near].columns})
    off = abs(counts(model, tried.columns) / [[target], [active_target]] - 1).max(axis=0)
    found: Candidates = tried[off <= tolerance]
    if left_out := len(of) - len(found):
        request.excluded[f"--tolerance {tolerance:.2%} of total and active parameters, top_k"] += left_out
    return found


def mixtures(
    moe: MoeShape, total: Array, active: Array, widths: Sequence[Pair], multiple: int
) -> tuple[Array, dict[str, Array]]:
    """Experts, top_k, width and shared width that together are ``total`` wide, and ``active`` wide for a token.

    The nearest whole numbers of experts below and above; the caller judges how near they are. ``widths``: of an expert
    and of the shared MLP. The first array returned is each mixture's index into ``total``.

    >>> of, found = mixtures(MoeShape(128, 8, 768), np.array([128 * 768]), np.array([8 * 768]), [(1536, 0)], 8)
    >>> {name: values.tolist() for name, values in found.items()}
    {'experts': [64], 'top_k': [4], 'expert_d_ff': [1536]}
    """
    width, shared = np.array(widths).reshape(-1, 2).T
    exact, top_k = (total[:, None] - shared) / width, np.rint((active[:, None] - shared) / width).astype(np.int64)
    below = (exact // multiple).astype(np.int64) * multiple
    experts = np.stack([below, below + multiple], axis=-1)
    fits = (top_k >= 1)[..., None] & (top_k[..., None] <= experts)
    fits[..., 1] &= exact % multiple != 0
    of, place, which = np.nonzero(fits)
    change = {"experts": experts[of, place, which], "top_k": top_k[of, place], "expert_d_ff": width[place]}
    return of, {**change, "shared_d_ff": shared[place]} if moe.shared else change


def counts(model: ModelShape, change: Mapping[str, Array]) -> Array:
    """Parameters, and active ones, with each ``change``."""
    counted = attrgetter("parameters", "active_parameters")
    return rows_by(IntegerTable(change), lambda part: counted(resized(model, part)), 2)


def room(model: ModelShape) -> Pair:
    """(parameters outside the mixtures, those of one column of width of all layers' mixtures).

    A router's parameters for each expert are few, and counted with the mixture. Shared experts count at the width of
    routed tokens; the rest of them, and projections to that width, are outside.
    """
    moe = model.moe
    if not moe:  # of so few layers all are dense
        return model.parameters, 0
    sparse = sum(block.count for block in model.main.blocks if isinstance(block.mlp, MoeShape))
    mixture, column = (
        parameter_count(block_tensors(Block(None, mlp, norms=0), moe.routed_width(model.hidden)))
        for mlp in (replace(moe, latent=None), MlpShape(1, moe.gated))
    )
    return model.parameters - sparse * mixture, sparse * column


#: Elements that a mixture's hidden sizes and experts' widths are multiples of, as far as its own hidden size is, so
#: that not each of too many is tried.
COARSE = 128
#: Latent attention's heads are tried in multiples of the largest power of two in the baseline's, to this.
MOST_HEADS_STEP = 16
#: Bounds that keep a model's shape near the baseline's: a factor on h/L, head dimensions, a factor on d_ff/h.
ASPECT_FACTOR, HEAD_DIMS, WIDTH_FACTOR = 1.5, (64, 128), 1.1
#: d_ff/h within it where quality is predicted: published models lie within it of one another.
WIDER_FACTOR = 1.4
#: Shards that numbers of heads stay ready for where the baseline's are.
READY = 8


def model(request: Request) -> Space:
    """Whole models at a parameter budget: (h, L, a, kv, d_ff, v) together, in bounds that leave quality to the person.

    Every combination of aligned dimensions whose parameters are within the tolerance of the budget.
    """
    own, limits = request.model, request.limits
    _refuse(request)
    target = request.baseline.parameters or float(own.parameters)
    candidates = (_mixtures if own.moe else _dense)(request, target)
    low, high = aspect_bounds(own, limits)
    bounds = [
        f"h/L from {low:.0f} to {high:.0f} (--limit aspect)",
        f"d_ff/h within a factor {_width_factor(limits)} of the baseline's"
        if not own.moe
        else f"experts' width and top_k within a factor {limits.spread or EXPERT_FACTOR:g} of the baseline's, "
        "active parameters within the tolerance too",
    ]
    if isinstance(own.attention, AttentionShape):
        bounds.append(f"head_dim in {', '.join(map(str, _head_dims(own.attention, limits)))} (--limit head-dim)")
    judged = ": quality inside these bounds is yours to judge" if limits.spread is None else ""
    return request.space(candidates, f"{', '.join(bounds)}{judged}")


def alike(model: ModelShape) -> bool:
    """Whether it is a decoder, its experts alike in all layers that have some, else its MLPs alike in all layers."""
    mlps = {block.mlp for block in model.main.blocks}
    kinds = {mlp for mlp in mlps if isinstance(mlp, MoeShape)} or mlps
    return len(model.stacks) == len(kinds) == 1 and None not in (model.attention, model.vocab or None, *kinds)


def _refuse(request: Request) -> None:
    """InputError for a limit that the model has no use for."""
    model, limits = request.model, request.limits
    latent = isinstance(model.attention, MlaShape)
    refuse(
        limits.head_dims is not None and latent, "expected attention of one head dimension with it", "--limit head-dim"
    )
    lacks, sizes = "kv-ratio" if latent else "mla-heads", {**dimensions(model), "s": 1}
    for name in limits.vary or ():
        refuse(
            name == lacks or not sizes.keys() >= set(VARIABLE[name]),
            "expected a model that has such a dimension",
            "--limit vary",
            name,
        )


def _head_dims(attention: AttentionShape, limits: Limits) -> Ints:
    return limits.head_dims or tuple(sorted({*HEAD_DIMS, attention.head_dim}))


def _dense(request: Request, target: float) -> Candidates:
    """Dense models: an MLP's width, then the layers that come nearest."""
    model, limits, step, p = request.model, request.limits, request.step, request.workload.p
    assert model.dense_mlp
    around = Candidates.of(list(_around(request, step)))
    if not around:
        return around
    usual = around.columns["hidden"] * (model.dense_mlp.width / model.hidden)
    factor = _width_factor(limits)
    least = np.maximum(np.ceil(np.floor(usual / factor) / step), 1) * step
    of, width = _stepped(least, usual * factor, limits.step or step)
    ends, rest, each = rows_by(IntegerTable(around.columns), lambda part: parameters_by(model, part), 3)[:, of]
    layer = rest + width * each
    # Layers within the tolerance, or those that come closest.
    first = np.ceil((target * (1 - limits.tolerance) - ends) / layer)
    last = np.floor((target * (1 + limits.tolerance) - ends) / layer)
    nearest = np.maximum(np.rint((target - ends) / layer), 1)
    row, layers = _stepped(
        np.maximum(np.where(last < first, nearest, first), 1), np.where(last < first, nearest, last), 1
    )
    tried = Candidates({**around[of[row]].columns, "d_ff": width[row], "layers": layers})
    shape, parameters = tried.columns["hidden"] / layers, counts(model, tried.columns)[0]
    low, high = aspect_bounds(model, limits)
    return tried.where(
        {
            f"layers divisible by pp {p}": layers % p == 0,
            f"h/L within {low:.0f}..{high:.0f} (--limit aspect)": (low <= shape) & (shape <= high),
            f"--tolerance {limits.tolerance:.2%}": abs(parameters / target - 1) <= limits.tolerance,
        },
        request.excluded,
    )


def _mixtures(request: Request, target: float) -> Candidates:
    """Mixtures of experts: layers, then their experts."""
    model, step = request.model, request.step
    mlp, (low, high) = model.dense_mlp, aspect_bounds(model, request.limits)
    coarse = request.limits.step or lcm(step, gcd(COARSE, model.hidden))
    around = Candidates.of(list(_around(request, coarse)))
    if not around:
        return around
    hidden = around.columns["hidden"]
    if mlp:
        widths = np.rint(mlp.width * hidden / model.hidden / step).astype(np.int64)
        around = Candidates({**around.columns, "d_ff": np.maximum(step, widths * step)})
    of, layers = _stepped(np.maximum(1, np.ceil(hidden / high)), hidden / low, 1)
    fixed = Candidates({**around[of].columns, "layers": layers})[layers % request.workload.p == 0]
    return mixtures_around(request, target, fixed, coarse) if len(fixed) else Candidates({})


def _stepped(first: Array, last: Array, step: int) -> tuple[Array, Array]:
    """Rows and numbers: each row's numbers from ``first`` to ``last``, ``step`` apart, each next to its row's index."""
    many = np.maximum((last - first) // step + 1, 0).astype(np.int64)
    of = np.repeat(np.arange(len(many)), many)
    return of, first[of].astype(np.int64) + step * (np.arange(len(of)) - (np.cumsum(many) - many)[of])


def _width_factor(limits: Limits) -> float:
    """How far d_ff/h may be from the baseline's."""
    return WIDTH_FACTOR if limits.spread is None else WIDER_FACTOR


def aspect_bounds(model: ModelShape, limits: Limits) -> tuple[float, float]:
    """h/L from and to: as asked for, else within a factor of the baseline's."""
    own = model.hidden / model.layers
    factor = limits.spread or ASPECT_FACTOR
    return limits.aspect or (own / factor, own * factor)


def _around(request: Request, coarse: int) -> Iterator[Sizes]:
    """Hidden sizes around the baseline's with their heads, padded vocabulary and what is to vary."""
    model, step = request.model, request.step
    reach = (request.limits.spread or ASPECT_FACTOR) ** (2 / 3)  # h moves by less than h/L: L gives way
    vocab = next_multiple(model.vocab, step)
    for hidden in request.limits.values(int(model.hidden / reach), int(model.hidden * reach), coarse):
        for heads in _heads(request, hidden):
            for varied in _varied(request, heads):
                yield {"hidden": hidden, **varied, "vocab": vocab}


def _heads(request: Request, hidden: int) -> Iterable[Sizes]:
    """Heads of each allowed dimension; of latent attention as many a width as now."""
    attention = request.model.attention
    if isinstance(attention, AttentionShape):
        # Shards that heads split over: those asked for, else those to READY that the baseline's split over, and its
        # key/value heads, unless they divide READY: such are copied.
        whole = READY % attention.kv_heads and attention.kv_heads
        ready = 1 if request.limits.tp_ready else gcd(attention.heads, whole, READY)
        return whole_head_counts(request, hidden, _head_dims(attention, request.limits), lcm(request.shards, ready))
    assert attention
    step = lcm(request.shards, gcd(attention.heads, MOST_HEADS_STEP))
    return [{"heads": max(step, round(attention.heads * hidden / request.model.hidden / step) * step)}]


def whole_head_counts(request: Request, hidden: int, dims: Iterable[int], shards: int) -> Iterator[Sizes]:
    """Heads of each of ``dims``, as many query heads to a key/value head as now, that ``shards`` divide.

    They keep their share of the hidden size; of another one heads that do not add up to theirs (qwen3's, gemma's) keep
    it as nearly as whole groups do.
    """
    attention, excluded, own = request.model.attention, request.excluded, request.model.hidden
    assert isinstance(attention, AttentionShape)
    width, group = attention.heads * attention.head_dim, attention.heads // attention.kv_heads
    step = lcm(group, shards)
    for dim in dims:
        heads, left = divmod(hidden * width, own * dim)
        if width != own != hidden:
            heads, left = step * max(1, round(heads / step)), 0
        if left or heads % group or not _splits(request, heads, heads // group, shards):
            excluded["whole heads on every shard"] += 1
        else:
            yield {"heads": heads, "head_dim": dim, "kv_heads": heads // group}


def _splits(request: Request, heads: int, kv_heads: int, shards: int) -> bool:
    """Whether ``shards`` split the heads, and hold a key/value head once where they do the baseline's (SZ115)."""
    copied = kv_heads % request.shards > 0 == getattr(request.model.attention, "kv_heads", 1) % request.shards
    return whole_heads(heads, kv_heads, shards) and not copied


def _varied(request: Request, heads: Sizes) -> Iterator[Sizes]:
    """``heads`` with each dimension that is to vary at its value, halved and doubled."""
    sizes = {**dimensions(request.model), "s": request.workload.s, **heads}
    names = [*chain(*map(VARIABLE.__getitem__, request.limits.vary or ()))]
    choices = (filter(None, (sizes[name], sizes[name] // 2, sizes[name] * 2)) for name in names)
    for chosen in product(*choices):
        one = {**heads, **dict(zip(names, chosen, strict=True))}
        count, kv_heads = one.get("heads", sizes["heads"]), one.get("kv_heads", 0)
        if kv_heads and (count % kv_heads or not _splits(request, count, kv_heads, request.shards)):
            request.excluded["whole heads on every shard"] += 1
        else:
            yield one


def parameters_by(model: ModelShape, fixed: Named | IntegerTable) -> tuple[Any, Any, Any]:
    """Parameters by layers and d_ff at fixed other dimensions, linear in both.

    Ends, rest and each of ends + layers (rest + d_ff x each), from three resized models.
    """
    # Only as many layers as there are: a hybrid may have few of one kind.
    own = model.layers
    one, wide, two = (
        resized(model, {**fixed, "layers": layers, "d_ff": width}).parameters
        for layers, width in ((own, 1), (own, 2), (2 * own, 1))
    )
    each = (wide - one) // own
    return 2 * one - two, (two - one) // own - each, each


#: Head dimensions that fused kernels take.
SMALLEST_HEAD, LARGEST_HEAD = 32, 256
#: Multiples of the alignment beyond the vocabulary that are worth a look.
PADDINGS = 8


def swiglu(request: Request) -> Space:
    """The width of a gated MLP near 8h/3: the real MLP forward and backward, or the book's single product.

    Widths within the tolerance of the baseline's, of all MLPs of its model where that is known.
    """
    model, limits, scope = request.model, request.limits, request.baseline.scope
    assert model.dense_mlp
    width, share = model.dense_mlp.width, f"--tolerance {limits.tolerance:.2%}"
    slack = int(width * limits.tolerance)
    found = limits.values(width - slack, width + slack, request.step)
    step, values = found.step, np.array(found, dtype=np.int64)
    if not len(values):
        raise nothing_left(request.what, {f"widths a multiple of {step} within {share}": 1})
    others = Candidates({"d_ff": values[values != width]})
    others = others.where({share: abs(others.columns["d_ff"] - width) <= slack}, request.excluded)
    alone = ModelShape(
        "swiglu", (Stack("decoder", model.hidden, (Block(None, MlpShape(width), norms=0),), final_norm=0),), head=False
    )
    if scope == "product":
        note = "one batched product (b, s, d_ff) x (b, d_ff, h): d_ff is the reduction dimension"
        return request.space(others, note, model=alone, timed=_single_product, measured_parts=(), ruled=False)
    # One MLP or all of them: the candidates are the same, the parameters the whole model's.
    return request.space(
        others,
        "gate, up and down with the activation; in training forward, dgrad and wgrad",
        model=model if scope == "model" else alone,
        timed=partial(layers_named, (".mlp.",)),
        measured_parts=("mlp",),
    )


def _single_product(model: ModelShape, workload: Workload) -> Operators:
    assert model.dense_mlp
    sizes = model.hidden, model.dense_mlp.width
    return (
        Gemm("layers.*.mlp.down_proj", "forward", workload.s, *sizes, workload.b, workload.dtype, "nn", kind="bmm"),
    )


def heads(request: Request) -> Space:
    """The number of heads at constant hidden size: head dimension and key/value heads follow.

    Every number that divides the hidden size with a head_dim of 32..256, a multiple of 8.
    """
    model, limits, shards = request.model, request.limits, request.shards
    attention = model.attention
    assert isinstance(attention, AttentionShape)
    dims = limits.head_dims or range(max(SMALLEST_HEAD, limits.step or 0), LARGEST_HEAD + 1, limits.step or 8)
    whole = whole_head_counts(request, model.hidden, dims, shards)
    tried = Candidates.of([one for one in whole if one["head_dim"] != attention.head_dim])
    count = tried.columns.get("heads", np.zeros(0))
    found = tried.where(
        {"--range": (count >= (limits.low or 1)) & (count <= (limits.high or np.inf))}, request.excluded
    )
    return request.space(
        found,
        "attention with its projections is timed; what other heads do to quality is yours",
        timed=partial(layers_named, (".attention.",)),
        measured_parts=("self_attention",),
    )


def vocab(request: Request) -> Space:
    """Padding the vocabulary: the embedding and the head grow, the tokenizer does not change.

    To the next multiples of the alignment times t above it (never below: tokens would be lost).
    """
    model, step = request.model, request.step
    highest = min(model.vocab + PADDINGS * step, int(model.vocab * (1 + request.limits.tolerance)) + step)
    sizes = [{"vocab": size} for size in request.limits.values(model.vocab, highest, step) if size > model.vocab]
    return request.space(sizes, "the head and the loss are timed", timed=_head, measured_parts=("head",))


def _head(model: ModelShape, workload: Workload) -> Iterator[Operator]:
    return (operator for operator in operators(model, workload) if operator.name in ("lm_head", "cross_entropy"))


#: ``--what`` -> who makes the space.
SPACES: Mapping[str, Callable[[Request], Space]] = {one.__name__: one for one in (swiglu, experts, heads, vocab, model)}
#: The part of a model that each space varies, and whether a model has it.
NEEDS: Mapping[str, tuple[str, Function]] = {
    "swiglu": ("a dense MLP", attrgetter("dense_mlp")),
    "experts": ("a mixture of experts", attrgetter("moe")),
    "heads": ("keys and values of heads", lambda model: isinstance(model.attention, AttentionShape)),
    "vocab": ("an LM-head", attrgetter("head")),
    "model": ("layers of one decoder whose MLPs (in a mixture, experts) are all alike", alike),
}
#: Limits that not every space takes -> those that do. All take a range, a step and a tolerance.
TAKEN_BY = {"aspect": (model,), "head_dims": (heads, model), "vary": (model,)}


def make_space(what: str, baseline: Baseline, device: Device, limits: Limits) -> Space:
    """The space named ``what`` around a baseline. InputError: no such space, or a limit it would take no notice of."""
    refuse(
        what == "microbatch",
        "expected a part of a model: `sizer memory` says the largest microbatch, `sizer plan` prices others",
        "what",
        what,
    )
    one_of(what, SPACES, "what")
    own = baseline.model
    lacks, known = NEEDS[what]
    others = " or ".join(name for name, (_, has) in NEEDS.items() if has(own))
    refuse(not known(own), f"expected --what {others}: {own.model_type} lacks {lacks}", "what", what)
    for name, takers in TAKEN_BY.items():
        others = " or ".join(taker.__name__ for taker in takers)
        refuse(
            getattr(limits, name) is not None and SPACES[what] not in takers,
            f"expected --what {others} with it, not {what}",
            f"--limit {name.removesuffix('s').replace('_', '-')}",
        )
    refuse(baseline.scope == "product" and what != "swiglu", "expected --what swiglu with it", "--gemm-only")
    return _widened(Request(what, baseline, device, limits))


def _widened(request: Request) -> Space:
    """The space asked for; where the usual tolerance leaves nothing, of the next one that does, which a note says."""
    make, usual = SPACES[request.what], request.limits.tolerance
    try:
        return make(request)
    except NothingLeftError as nothing:
        for tolerance in WIDER if usual == TOLERANCE else ():
            with suppress(NothingLeftError):
                wider = replace(request, limits=replace(request.limits, tolerance=tolerance), excluded=Counter())
                space = make(wider)
                note = f"nothing aligned is within --tolerance {usual:.0%}: it is {tolerance:.0%} here"
                return replace(space, notes=(note, *space.notes))
        raise nothing
