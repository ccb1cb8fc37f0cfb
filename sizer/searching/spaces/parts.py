"""Spaces of one part of a model: the MLP's width, heads, the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from shapes.dtypes import next_multiple
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.operators import operators
from shapes.operators.types import Gemm, Operator
from shapes.workload import Workload
from sizer.searching.space import Candidates, Request, Space, layers_named, nothing_left
from sizer.searching.spaces.model import whole_head_counts

#: Head dimensions that fused kernels take.
SMALLEST_HEAD, LARGEST_HEAD = 32, 256
#: Multiples of the alignment beyond the vocabulary that are worth a look.
PADDINGS = 8


def swiglu(request: Request) -> Space:
    """The width of a gated MLP near 8h/3: the real MLP forward and backward, or the book's single product.

    Widths within the tolerance of the baseline's, of all MLPs of its model where that is known.
    """
    model, limits, scope = request.model, request.limits, request.baseline.scope
    assert model.dense_mlp is not None
    width, share = model.dense_mlp.width, f"--tolerance {limits.tolerance:.2%}"
    slack = int(width * limits.tolerance)
    found = limits.values(width - slack, width + slack, request.step)
    step, values = found.step, np.array(found, dtype=np.int64)
    if not len(values):
        raise nothing_left(request.what, {f"widths a multiple of {step} within {share}": 1})
    others = Candidates({"d_ff": values[values != width]})
    others = others.where({share: abs(others.columns["d_ff"] - width) <= slack}, request.excluded)
    low, high = max(width - slack, limits.low or 1), min(width + slack, limits.high or width + slack)
    misaligned = max(0, high - low + 1) - len(range(next_multiple(low, step), high + 1, step))
    if misaligned:
        request.excluded[f"multiples of {step}" + ("" if limits.step else " (--step 1 takes every integer)")] = (
            misaligned
        )
    block = Block(None, MlpShape(width), norms=0)
    alone = ModelShape("swiglu", (Stack("decoder", model.hidden, (block,), final_norm=0),), head=False)
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


def _single_product(model: ModelShape, workload: Workload) -> tuple[Operator, ...]:
    assert model.dense_mlp is not None
    return (
        Gemm(
            "layers.*.mlp.down_proj",
            "forward",
            m=workload.s,
            n=model.hidden,
            k=model.dense_mlp.width,
            batch=workload.b,
            dtype=workload.dtype,
            layout="nn",
            kind="bmm",
        ),
    )


def heads(request: Request) -> Space:
    """The number of heads at constant hidden size: head dimension and key/value heads follow.

    Every number that divides the hidden size with a head_dim of 32..256, a multiple of 8.
    """
    model, limits, shards = request.model, request.limits, request.shards
    attention = model.attention
    assert isinstance(attention, AttentionShape)
    low, high = max(SMALLEST_HEAD, limits.step or 0), LARGEST_HEAD + 1
    dims = limits.head_dims or range(low, high, limits.step or 8)
    whole = whole_head_counts(request, model.hidden, dims, shards)
    tried = Candidates.of([one for one in whole if one["head_dim"] != attention.head_dim])
    count = tried.columns.get("heads", np.zeros(0))
    found = tried.where(
        {"--range": (count >= (limits.low or 1)) & (count <= (limits.high or count.max(initial=1)))}, request.excluded
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
    if not sizes:
        request.excluded["padding (larger than the vocabulary)"] = 1
    return request.space(sizes, "the head and the loss are timed", timed=_head, measured_parts=("head",))


def _head(model: ModelShape, workload: Workload) -> Iterator[Operator]:
    return (operator for operator in operators(model, workload) if operator.name in ("lm_head", "cross_entropy"))
