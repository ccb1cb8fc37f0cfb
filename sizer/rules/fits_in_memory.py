"""A step has to fit the device's memory.

Weights, gradients, optimizer states, activations, the logits with their fp32 copy, communication buffers and the
framework's own share add up to more than the device has. Ways out, each by itself enough, are listed from the cheapest
in step time: what ZeRO's communication, an extra forward of checkpointing, or a larger t's all-reduces cost is priced.
Shards stay inside the devices that are linked, and within the devices given.

Memory is that of `sizer memory` as the workload says. It is an error where the layout was said (the
devices, or the data-parallel ranks, of a training run; any degree of a serving one). Elsewhere one line says what a
single device would need, since how a model is spread is not the configuration's affair. A degree alone (`--tp 16`) is
a part of a layout: the line says which, and what is missing.

Bad: `sizer check config.json -b 4 --dp 8` for an 8B model on 80 GB devices.
Good: the same with `--zero 3 --checkpointing full`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shapes.device import Device
from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import ModelShape
from shapes.workload import Workload
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ121"
SLUG = "fits-in-memory"
SOURCE = "Machine Learning Engineering book, 'Anatomy of model's memory usage'"

GIB = 2**30
#: What says how a training run is spread, and how a serving one is.
LAYOUT = ("gpus", "d")
SERVING_LAYOUT = ("gpus", "d", "t", "p")
#: Degrees of a training run that leave open how many data-parallel ranks there are.
SPLITS = {"t": "--tp", "p": "--pp", "cp": "--cp"}
#: How cards of workstations and inference servers are linked: few are at hand, and fewer fit a large model together.
CARD_LINK = "PCIe"
#: Parallel degrees tried: one node's eight devices, then whole nodes.
DEGREES = (2, 4, 8, 16, 32, 64)


def check(context: Context) -> Answer:
    model, workload, device = context.model, context.workload, context.device
    if model is None:
        return NotApplicable("memory needs a model with named sizes, not a trace")
    if not context.divides:
        return NotApplicable("the model does not divide over its devices (SZ105, SZ110, SZ117)")
    needed = memory(model, workload, device=device, implementation=context.implementation)
    if needed.fits:
        return []
    largest = max(needed.parts, key=lambda part: part.bytes)
    gib, most = round(needed.total_bytes / GIB, 2), f"{largest.name.replace('_', ' ')}, {largest.bytes / GIB:.1f} GiB"
    has = f"{gib:.1f} GiB of {device.memory.bytes / GIB:.1f} GiB on {device.name}"
    if not context.sets_any(*(LAYOUT if workload.train else SERVING_LAYOUT)):
        said = "--gpus or --dp" if workload.train else "--tp, --pp or --gpus"
        message = (
            f"would need {has} as it is split here, most of it {most}; {_unsaid(context)} ({said}): times "
            "are of one device's share, and `sizer plan` finds a split"
        )
        return [Finding("memory", gib, message)]
    limit = device.memory.bytes
    suggestions = tuple(
        Suggestion(change, f"fits with {total / GIB:.1f} GiB")
        for change in _ways_out(model, workload, device.link.domain_devices)
        if (total := _total(context, model, change)) is not None and total <= limit
    )
    message = f"needs {has}; most of it {most}{_beside(workload, device)}"
    return [Finding("memory", gib, message, _smallest_degrees(suggestions), error=True)]


def _unsaid(context: Context) -> str:
    """What of the layout was not said, of a training run that names some degrees of it."""
    degrees = [f"{option} {getattr(context.workload, key)}" for key, option in SPLITS.items() if context.sets_any(key)]
    if not context.workload.train or not degrees:
        return "how it is spread was not said"
    return f"{', '.join(degrees)} is a part of a layout, its devices or data-parallel ranks were not said"


def _beside(workload: Workload, device: Device) -> str:
    """What else saves memory and is no field of a workload, by kind of hardware."""
    if not workload.train:
        return "; narrower weights (`sizer memory --weights`) help too"
    few = workload.gpus == 1 or CARD_LINK in device.link.intra_node
    ways = ["LoRA or QLoRA for fine-tuning", "an 8-bit optimizer"] if few else ["an 8-bit optimizer", "more devices"]
    return f"; {' and '.join(ways)} help too (`sizer memory`)"


def _ways_out(model: ModelShape, workload: Workload, domain: int) -> Iterator[Mapping[str, int | str]]:
    if workload.attention == "eager":
        yield {"attention": "auto"}
    if workload.decode and workload.cache_dtype in ("bf16", "fp16", "fp32"):
        yield {"kv_dtype": "fp8"}
    if workload.train and workload.d > 1:
        for stage in range(workload.zero + 1, 4):
            yield {"zero": stage}
    if workload.train and workload.checkpointing != "full":
        yield {"checkpointing": "full"}
        if workload.d > 1 and workload.zero < 3:
            yield {"checkpointing": "full", "zero": 3}
    if workload.b > 1:
        yield {"b": 1}
        if workload.train and workload.d > 1:
            for stage in range(workload.zero + 1, 4):
                yield {"b": 1, "zero": stage}
    shards = [{"t": degree} for degree in DEGREES if workload.t < degree <= domain]
    stages = [{"p": degree} for degree in DEGREES if degree > workload.p and model.layers % degree == 0]
    for split in (*shards, *stages):
        change = _within(workload, split)
        if change is not None:
            yield change
            if workload.train and workload.checkpointing != "full":
                yield {**change, "checkpointing": "full"}


def _within(workload: Workload, split: dict[str, int]) -> dict[str, int | str] | None:
    """``split`` with the data-parallel ranks that the given devices leave; None where they do not."""
    if workload.gpus is None:
        return {**split}
    ranks = split.get("t", workload.t) * split.get("p", workload.p) * workload.cp
    return {**split, "d": workload.gpus // ranks} if workload.gpus % ranks == 0 else None


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
