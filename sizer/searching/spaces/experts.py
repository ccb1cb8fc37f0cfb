"""A mixture's experts at equal total and active parameters: width, number, top-k and shared experts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.columns import Table, rows_by
from shapes.errors import InputError
from shapes.model import Block, MlpShape, ModelShape, MoeShape
from shapes.model.parameters import block_tensors, parameter_count
from shapes.model.resize import resize
from shapes.workload import Workload
from sizer.searching.space import Candidates, Request, Space, layers_named

Array = NDArray[Any]
#: Experts are a multiple of what a node's devices share evenly, as far as the baseline's are.
NODE = 8
#: Experts' width from and to, over the baseline's: DeepSeekMoE's and Mixtral's granularities are 16 apart.
WIDTH_FACTOR = 4


def experts(request: Request) -> Space:
    """A mixture's experts at equal total and active parameters: width, number, top-k and shared experts together.

    Finer and coarser experts, each as many and as many a token as keep both counts of parameters.
    """
    model, limits, moe = request.model, request.limits, request.model.moe
    if moe is None:
        raise InputError("expected a mixture of experts", key="--what", value=request.what)
    multiple, shared = whole(moe, request.workload), moe.shared.width if moe.shared else 0
    total, active = moe.experts * moe.width + shared, moe.top_k * moe.width + shared
    widths = limits.values(moe.width // WIDTH_FACTOR, moe.width * WIDTH_FACTOR, request.step)
    pairs = [(width, one) for width in widths for one in shared_widths(moe, width)]
    _, tried = mixtures(moe, np.array([total]), np.array([active]), pairs, multiple)
    candidates = Candidates(tried)
    own = {"experts": moe.experts, "top_k": moe.top_k, "expert_d_ff": moe.width, "shared_d_ff": shared}
    candidates = candidates[~candidates.equal(own)]
    near = off_by(model, candidates.columns, model.parameters, model.active_parameters) <= limits.tolerance
    reason = f"--tolerance {limits.tolerance:.2%} of total and of active parameters"
    return request.space(
        candidates.where({reason: near}, request.excluded),
        "total and active parameters stay within the tolerance; what finer or coarser experts do to quality is yours",
        f"experts in multiples of {multiple}; router, experts, shared and dense MLPs are timed",
        timed=partial(layers_named, (".moe.", ".mlp.")),
        measured_parts=(),
    )


def whole(moe: MoeShape, workload: Workload) -> int:
    """What numbers of experts are multiples of."""
    return lcm(workload.e, gcd(moe.experts, NODE))


def shared_widths(moe: MoeShape, width: int) -> tuple[int, ...]:
    """Widths of the shared MLP of experts of ``width``: none, or one, two or four experts'.

    A model that has none gets none: that would be another architecture. One that is no whole number of experts wide, or
    that has a gate of its own, stays as it is.
    """
    if moe.shared is None:
        return (0,)
    if moe.shared_gate or moe.shared.width % moe.width:
        return (moe.shared.width,)
    return (0, width, 2 * width, 4 * width)


def mixtures(
    moe: MoeShape, total: Array, active: Array, widths: Sequence[tuple[int, int]], multiple: int
) -> tuple[Array, dict[str, Array]]:
    """Experts, top_k, width and shared width that are ``total`` wide together, ``active`` of it for a token.

    As near as whole experts come, below and above; how near is for the caller to judge. ``widths``: of an expert and of
    the shared MLP. The first array says which of ``total`` each mixture is of.

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


def off_by(model: ModelShape, change: Mapping[str, Array], total: float, active: float) -> Array:
    """How far parameters with each ``change`` are from ``total``, or active ones from ``active``, the larger share."""
    if not len(change["experts"]):
        return np.zeros(0)

    def counted(table: Table) -> tuple[int, int]:
        changed = resize(model, **table)
        return changed.parameters, changed.active_parameters

    found = rows_by(Table(change), counted, 2)
    return np.asarray(np.abs(found / [[total], [active]] - 1).max(axis=0))


def room(model: ModelShape) -> tuple[int, int]:
    """(parameters outside the mixtures, those of one column of width of all layers' mixtures).

    What a router has for each expert is small, and counted with the mixture.
    """
    moe = model.moe
    assert moe is not None
    sparse = sum(block.count for block in model.main.blocks if isinstance(block.mlp, MoeShape))
    mixture, column = (
        parameter_count(block_tensors(Block(None, mlp, norms=0), model.hidden)) for mlp in (moe, MlpShape(1, moe.gated))
    )
    return model.parameters - sparse * mixture, sparse * column
