"""One weight matrix, from which parameters and operators both follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from shapes.frozen import frozen

Shard = Literal["column", "row", "none"]


@frozen
class Linear:
    """One weight matrix [out_features, in_features], and how tensor parallelism splits it.

    ``units``: a column-parallel matrix's outputs in parts that are cut each by itself, as (whole units, size of one):
    heads are not cut, and a fused projection's queries, keys and values each go to every rank. ``rows`` is the rows a
    sequence feeds it where that is not the stack's length (convolutions in front of a tower). ``grad_input`` is False
    where the input needs no gradient (pixels), so no dgrad runs.
    """

    name: str
    out_features: int
    in_features: int
    bias: bool = False
    shard: Shard = "none"
    kind: Literal["gemm", "conv"] = "gemm"
    rows: int | None = None
    grad_input: bool = True
    dtype: str | None = None
    units: tuple[tuple[int, int], ...] = ()

    def on_shard(self, t: int) -> Linear:
        """The fullest of ``t`` ranks' share, itself not split further.

        The bias follows the outputs: cut with them if column-parallel, whole on each rank if row-parallel (Megatron's
        RowParallelLinear adds it once, after the reduction). With fewer units than ranks each rank holds a whole one.
        """
        if t == 1 or self.shard == "none":
            return self
        out, inner = self.out_features, self.in_features
        if self.shard == "row":
            inner = -(-inner // t)
        elif self.units:
            out = sum(-(-number // t) * size for number, size in self.units)
        else:
            out = -(-out // t)
        return replace(self, out_features=out, in_features=inner, shard="none", units=())
