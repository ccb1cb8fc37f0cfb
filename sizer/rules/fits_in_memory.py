"""A step has to fit the device's memory.

Weights, gradients, optimizer states, activations, the logits with their fp32 copy, communication buffers and the
framework's own share add up to more than the device has. Ways out, each by itself enough, are listed from the cheapest
in step time: what ZeRO's communication, an extra forward of checkpointing, or a larger t's all-reduces cost is priced.

Memory is that of `sizer memory` with AdamW in the default precision; an 8-bit optimizer saves too, at no cost in time.
Where nothing was said of how the model runs (microbatch, degrees, ZeRO, checkpointing) the rule does not apply.

Bad: `sizer check config.json -b 4 --dp 8` for an 8B model on 80 GB devices.
Good: the same with `--zero 3 --checkpointing full`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import ModelShape
from shapes.workload import Workload
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ121"
SLUG = "fits-in-memory"
SOURCE = "Machine Learning Engineering book, 'Anatomy of model's memory usage'"

GIB = 2**30
#: Parallel degrees tried: one node's eight devices, then whole nodes.
DEGREES = (2, 4, 8, 16, 32, 64)


def check(context: Context) -> Answer:
    model, workload, device = context.model, context.workload, context.device
    if model is None:
        return NotApplicable("memory needs a model with named sizes, not a trace")
    if not context.divides:
        return NotApplicable("the model does not divide over its devices (SZ105, SZ110, SZ117)")
    if not context.sets_any("b", "t", "p", "d", "e", "zero", "checkpointing"):
        return NotApplicable("nothing said of how it runs (-b, --tp, --pp, --dp, --ep, --zero, --checkpointing)")
    needed = memory(model, workload, device=device, implementation=context.implementation)
    if needed.fits:
        return []
    largest = max(needed.parts, key=lambda part: part.bytes)
    message = (
        f"needs {needed.total_bytes / GIB:.1f} GiB of {device.memory.bytes / GIB:.1f} GiB on {device.name}; "
        f"most of it {largest.name.replace('_', ' ')}, {largest.bytes / GIB:.1f} GiB"
    )
    limit = device.memory.bytes
    suggestions = tuple(
        Suggestion(change, f"fits with {total / GIB:.1f} GiB")
        for change in _ways_out(model, workload)
        if (total := _total(context, model, change)) is not None and total <= limit
    )
    return [Finding("memory", round(needed.total_bytes / GIB, 2), message, _smallest_degrees(suggestions), error=True)]


def _ways_out(model: ModelShape, workload: Workload) -> Iterator[Mapping[str, int | str]]:
    if workload.attention == "eager":
        yield {"attention": "auto"}
    if workload.train and workload.d > 1:
        for stage in range(workload.zero + 1, 4):
            yield {"zero": stage}
    if workload.train and workload.checkpointing != "full":
        yield {"checkpointing": "full"}
        if workload.d > 1 and workload.zero < 3:
            yield {"checkpointing": "full", "zero": 3}
    if workload.b > 1:
        yield {"b": 1}
    yield from ({"t": degree} for degree in DEGREES if degree > workload.t)
    yield from ({"p": degree} for degree in DEGREES if degree > workload.p and model.layers % degree == 0)
    if workload.train:
        for degree in DEGREES:
            if degree > workload.t:
                yield {"t": degree, "checkpointing": "full"}


def _total(context: Context, model: ModelShape, change: Mapping[str, Any]) -> int | None:
    try:
        return memory(model, replace(context.workload, **change), implementation=context.implementation).total_bytes
    except InputError:  # a degree that the model does not divide by
        return None


def _smallest_degrees(suggestions: tuple[Suggestion, ...]) -> tuple[Suggestion, ...]:
    """Of suggestions that change the same fields, the first: the smallest degree or stage."""
    seen: set[frozenset[str]] = set()
    kept = []
    for suggestion in suggestions:
        fields = frozenset(suggestion.change)
        if fields not in seen:
            seen.add(fields)
            kept.append(suggestion)
    return tuple(kept)
