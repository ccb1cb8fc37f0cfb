"""Mixtures of experts of about equal total and active width: the arithmetic of searching them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd, lcm

from shapes.model import ModelShape, MoeShape
from shapes.model.resize import resize
from shapes.workload import Workload

#: Experts are a multiple of what a node's devices share evenly, as far as the baseline's are.
NODE = 8
#: Experts' width from and to, over the baseline's: DeepSeekMoE's and Mixtral's granularities are 16 apart.
WIDTH_FACTOR = 4


def whole(moe: MoeShape, workload: Workload) -> int:
    """What numbers of experts are multiples of."""
    return lcm(workload.e, gcd(moe.experts, NODE))


def shared_widths(moe: MoeShape, width: int) -> tuple[int, ...]:
    """Widths of the shared MLP beside experts of ``width``: none, as it is, or one, two or four experts'.

    A model that has none gets none: that would be another architecture. One scaled by a gate of its own stays.
    """
    if moe.shared is None:
        return (0,)
    if moe.shared_gate:
        return (moe.shared.width,)
    return tuple(dict.fromkeys((0, width, 2 * width, 4 * width)))


def mixtures(
    moe: MoeShape, total: float, active: float, widths: Iterable[int], multiple: int
) -> Iterator[dict[str, int]]:
    """Experts, top_k, width and shared width that are ``total`` wide together, ``active`` of it for a token.

    As near as whole experts come, above and below; how near is for the caller to judge.

    >>> next(mixtures(MoeShape(128, 8, 768), 128 * 768, 8 * 768, [1536], 8))
    {'experts': 64, 'top_k': 4, 'expert_d_ff': 1536}
    """
    for width in widths:
        for shared in shared_widths(moe, width):
            exact, top_k = (total - shared) / width, round((active - shared) / width)
            below = int(exact // multiple) * multiple
            for experts in (below, below + multiple) if exact % multiple else (below,):
                if 1 <= top_k <= experts:
                    change = {"experts": experts, "top_k": top_k, "expert_d_ff": width}
                    yield {**change, "shared_d_ff": shared} if moe.shared else change


def baseline_of(moe: MoeShape) -> dict[str, int]:
    """The mixture's own dimensions, under the names that a candidate changes."""
    own = {"experts": moe.experts, "top_k": moe.top_k, "expert_d_ff": moe.width}
    return {**own, "shared_d_ff": moe.shared.width} if moe.shared else own


def off_by(model: ModelShape, change: dict[str, int]) -> float:
    """How far total or active parameters with ``change`` are from the model's, the larger share."""
    changed = resize(model, **change)
    return max(
        abs(changed.parameters / model.parameters - 1), abs(changed.active_parameters / model.active_parameters - 1)
    )
