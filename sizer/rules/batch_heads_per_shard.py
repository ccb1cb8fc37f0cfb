"""(b x a)/t is an integer, and so is a/t: every tensor-parallel shard holds whole heads.

Bad: a 20 at t 8: two and a half heads a device.
Good: a 32 at t 8: four heads a device.

Suggestion: the nearest powers of two that divide the heads as t, or the nearest number of heads that t divides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd

from shapes.operators.split import head_counts, nearest_t
from sizer.rules.arithmetic import degrees_beside, neighbours
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ105"
SLUG = "batch-heads-per-shard"
SOURCE = "ML Engineering book, shape recommendation 4; arXiv 2401.14489."

#: A hidden size farther away than this share is another model's.
FARTHEST = 0.1


def _with_heads(dims: Mapping[str, int], heads: int, t: int) -> Iterator[Suggestion]:
    """So many heads of the same hidden size, else of the same head dimension where that is no other model."""
    hidden, dim, kv = dims.get("hidden"), dims.get("head_dim"), dims.get("kv_heads", dims["heads"])
    if hidden is None or hidden % heads == 0:
        yield Suggestion({"heads": heads})
        return
    alike = kv == dims["heads"] and t & (t - 1) == 0
    if alike and dim is not None and dims["heads"] * dim == hidden and abs(heads * dim - hidden) <= FARTHEST * hidden:
        yield Suggestion({"hidden": heads * dim, "heads": heads})


def check(context: Context) -> Answer:
    t, dims = context.workload.t, context.dimensions
    if t == 1:
        return NotApplicable("no tensor parallelism")
    known = head_counts(context.model) if context.model else tuple({dims["heads"]} if "heads" in dims else ())
    if not known:
        return NotApplicable("no attention heads known")
    split = [heads for heads in known if heads % t]
    if not split:
        return ()

    def divides(degree: int) -> bool:
        whole = gcd(*known) % degree == 0
        return whole and (context.model is None or nearest_t(context.model, degree) == degree)

    suggestions = [Suggestion({"t": one}) for one in degrees_beside(t, divides)]
    if split == [dims.get("heads")]:
        suggestions += [change for value in neighbours(split[0], t) for change in _with_heads(dims, value, t)]
    heads = " and ".join(map(str, split))
    message = f"{heads} heads do not divide over t {t}: Megatron-style tensor parallelism cannot shard them"
    return [Finding("t", t, message, tuple(suggestions), error=True)]
