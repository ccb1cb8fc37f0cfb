"""Mixtures of experts of about equal total and active width: the arithmetic of searching them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import gcd, lcm

from shapes.frozen import frozen
from shapes.model import MlpShape, ModelShape, MoeShape
from shapes.model.parameters import block_tensors, linear_tensors, parameter_count
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
    """Widths of the shared MLP beside experts of ``width``: none, or one, two or four experts'.

    A model that has none gets none: that would be another architecture. One that is no whole number of experts wide, or
    that has a gate of its own, stays as it is.
    """
    if moe.shared is None:
        return (0,)
    if moe.shared_gate or moe.shared.width % moe.width:
        return (moe.shared.width,)
    return (0, width, 2 * width, 4 * width)


def mixtures(
    moe: MoeShape,
    total: float,
    active: float,
    widths: Iterable[int],
    multiple: int,
    shared_of: Callable[[int], Iterable[int]],
) -> Iterator[dict[str, int]]:
    """Experts, top_k, width and shared width that are ``total`` wide together, ``active`` of it for a token.

    As near as whole experts come, above and below; how near is for the caller to judge. ``shared_of``: an expert's
    width -> widths of the shared MLP.

    >>> next(mixtures(MoeShape(128, 8, 768), 128 * 768, 8 * 768, [1536], 8, lambda width: (0,)))
    {'experts': 64, 'top_k': 4, 'expert_d_ff': 1536}
    """
    for width in widths:
        for shared in shared_of(width):
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


@frozen
class MixtureCount:
    """Total and active parameters of a model by layers and its mixture, at fixed other dimensions.

    ``rest``: of what is no layer, ``layer`` of one of each kind but its mixture. ``moe``: the mixture, whose experts
    and shared MLP are ``hidden`` wide outside. What a router has for each expert is small, and counted exactly.
    """

    model: ModelShape
    moe: MoeShape
    rest: int
    layer: Mapping[int, int]

    @classmethod
    def of(cls, model: ModelShape, fixed: Mapping[str, int]) -> MixtureCount:
        resized = resize(model, **fixed)
        moe = resized.moe
        assert moe is not None
        blocks, hidden = resized.main.blocks, resized.hidden
        whole_blocks = sum(parameter_count(block_tensors(block, hidden)) for block in blocks)
        layer = {
            index: parameter_count(
                block_tensors(
                    replace(block, count=1, mlp=None if isinstance(block.mlp, MoeShape) else block.mlp), hidden
                )
            )
            for index, block in enumerate(blocks)
        }
        return cls(resized, moe, resized.parameters - whole_blocks, layer)

    def outside(self, layers: Mapping[int, int]) -> int:
        """Parameters outside the mixtures of so many layers of each kind."""
        return self.rest + sum(count * self.layer[index] for index, count in layers.items())

    def mixture(self, change: Mapping[str, int]) -> tuple[int, int]:
        """(total, active) parameters of one layer's mixture."""
        hidden, shared = self.model.hidden, change.get("shared_d_ff", 0)
        moe = replace(
            self.moe,
            experts=change["experts"],
            top_k=change["top_k"],
            width=change["expert_d_ff"],
            shared=replace(self.moe.shared, width=shared) if self.moe.shared and shared else None,
            shared_gate=self.moe.shared_gate and bool(shared),
        )
        always = sum(parameter_count(linear_tensors(linear)) for linear in moe.linears(hidden)) + moe.router_parameters
        expert = sum(parameter_count(linear_tensors(linear)) for linear in moe.expert_linears(hidden))
        return always + moe.experts * expert, always + moe.top_k * expert

    def off_by(self, change: Mapping[str, int], outside: int, sparse: int, targets: tuple[float, float]) -> float:
        """How far total or active parameters are from ``targets``, the larger share."""
        own = (outside + sparse * parameters for parameters in self.mixture(change))
        return max(abs(found / target - 1) for found, target in zip(own, targets, strict=True))

    @property
    def unit(self) -> int:
        """Parameters of one column of an expert's width."""
        one = MlpShape(1, self.moe.gated).linears(self.model.hidden)
        return sum(parameter_count(linear_tensors(linear)) for linear in one)


def kinds_by_layers(model: ModelShape, layers: int) -> tuple[dict[int, int], int]:
    """(layers of each of the baseline's blocks in a model of so many, how many of them have experts)."""
    own = model.main.blocks
    counts: Counter[int] = Counter()
    sparse = 0
    for block in resize(model, layers=layers).main.blocks:
        place = next(index for index, one in enumerate(own) if replace(one, count=1) == replace(block, count=1))
        counts[place] += block.count
        sparse += block.count if isinstance(block.mlp, MoeShape) else 0
    return counts, sparse
