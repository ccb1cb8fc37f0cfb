"""A mixture's experts at equal total and active parameters: width, number, top-k and shared experts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.columns import Table, rows_by
from shapes.dtypes import next_multiple
from shapes.model import Block, MlpShape, ModelShape, MoeShape, block_tensors, parameter_count
from shapes.model.resize import dimensions, resize
from sizer.searching.space import Candidates, Request, Space, layers_named

Array = NDArray[Any]
#: Experts are a multiple of what a node's devices share evenly, as far as the baseline's are.
NODE = 8
#: How far experts' width and a token's experts may move from the baseline's.
EXPERT_FACTOR = 2.0


def experts(request: Request) -> Space:
    """A mixture's experts at equal total and active parameters: width, number and top-k together.

    Finer and coarser experts, each as many and as many a token as keep both counts of parameters.
    """
    model = request.model
    fixed = Candidates.of([{"layers": model.layers}])
    found = mixtures_around(request, model.parameters, fixed, request.step)
    candidates = Candidates({name: column for name, column in found.columns.items() if name != "layers"})
    return request.space(
        candidates[~candidates.equal(dimensions(model))] if len(candidates) else candidates,
        f"total and active parameters stay within the tolerance, experts' width and top_k within a factor "
        f"{EXPERT_FACTOR:g}; what finer or coarser experts do to quality is yours",
        "router, experts, shared and dense MLPs are timed",
        timed=partial(layers_named, (".moe.", ".mlp.")),
        measured_parts=(),
    )


def mixtures_around(request: Request, target: float, around: Candidates, step: int) -> Candidates:
    """What is ``around`` with experts in each width, as many of them, and a token's, as come nearest to ``target``

    parameters and the baseline's share of active ones. Shared experts stay as many as they are; where they are no whole
    number, as wide.
    """
    model, moe, tolerance = request.model, request.model.moe, request.limits.tolerance
    assert moe is not None
    shared, factor = moe.shared.width if moe.shared else 0, request.limits.spread or EXPERT_FACTOR
    widths = [
        (width, shared // moe.width * width if shared % moe.width == 0 else shared)
        for width in range(next_multiple(int(moe.width / factor), step) or step, int(moe.width * factor) + 1, step)
    ]
    active_target = target * model.active_parameters / model.parameters
    multiple = lcm(request.workload.e, gcd(moe.experts, NODE))
    outside, column = rows_by(Table(around.columns), lambda part: room(resize(model, **part)), 2)
    around, outside, column = around[column > 0], outside[column > 0], column[column > 0]
    active = (active_target - outside) / column
    of, mixture = mixtures(moe, (target - outside) / column, active, widths, multiple)
    wide = mixture["top_k"] * mixture["expert_d_ff"] + mixture.get("shared_d_ff", 0)
    more = mixture["top_k"] / moe.top_k
    near = (more >= 1 / factor) & (more <= factor)
    near &= abs(wide - active[of]) * column[of] <= 2 * tolerance * active_target
    columns = dict(around[of[near]].columns)
    layers = columns.pop("layers")
    tried = Candidates({**columns, **Candidates(mixture)[near].columns, "layers": layers})
    found: Candidates = tried[off_by(model, tried.columns, target, active_target) <= tolerance]
    if left_out := len(of) - len(found):
        request.excluded[f"--tolerance {tolerance:.2%} of total and active parameters, top_k"] += left_out
    return found


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
    return np.asarray(np.abs(counts(model, change) / [[total], [active]] - 1).max(axis=0))


def counts(model: ModelShape, change: Mapping[str, Array]) -> Array:
    """Parameters, and active ones, with each ``change``."""

    def counted(table: Table) -> tuple[int, int]:
        changed = resize(model, **table)
        return changed.parameters, changed.active_parameters

    return rows_by(Table(change), counted, 2)


def room(model: ModelShape) -> tuple[int, int]:
    """(parameters outside the mixtures, those of one column of width of all layers' mixtures).

    What a router has for each expert is small, and counted with the mixture. Shared experts count as wide as routed
    tokens are; what they have more, and the projections to that width, is outside.
    """
    moe = model.moe
    assert moe is not None
    sparse = sum(block.count for block in model.main.blocks if isinstance(block.mlp, MoeShape))
    mixture, column = (
        parameter_count(block_tensors(Block(None, mlp, norms=0), moe.routed_width(model.hidden)))
        for mlp in (replace(moe, latent=None), MlpShape(1, moe.gated))
    )
    return model.parameters - sparse * mixture, sparse * column
