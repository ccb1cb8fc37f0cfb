"""Rules on memory: what fits, and what need not be split or kept small because it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shapes.device import Device
from shapes.errors import InputError
from shapes.memory import largest_microbatch as largest_that_fits
from shapes.memory import memory, smallest_tp
from shapes.model import ModelShape
from shapes.workload import Workload
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion, rule, suggest


def _counted(context: Context) -> ModelShape | NotApplicable:
    """The model whose memory can be counted, or why it cannot."""
    if context.model is None:
        return NotApplicable("memory needs a model with named sizes, not a trace")
    if not context.divides:
        return NotApplicable("the model does not divide over its devices (SZ105, SZ110, SZ117)")
    return context.model


@rule(
    "SZ106",
    source="Machine Learning Engineering book, shape recommendation 5; Megatron-LM (2205.05198)",
    of_costs=True,
)
def smallest_tensor_parallel(context: Context) -> Answer:
    """Tensor parallelism should be as small as memory allows.

    Every layer pays two all-reduces forward and two backward over t devices, and its products shrink to 1/t of their
    width. When the step's memory fits with a smaller t, the devices it frees do more as data parallelism.

    Memory is that of `sizer memory` as the workload says; a smaller t must divide the attention heads.

    Bad: `sizer check config.json --tp 8` on a model whose step fits one device.
    Good: the smallest `--tp` that `sizer memory config.json` names.
    """
    model, workload, device, implementation = (
        _counted(context),
        context.workload,
        context.device,
        context.implementation,
    )
    if workload.serving:
        return NotApplicable("in serving a larger t buys latency for throughput, which is a choice")
    if isinstance(model, NotApplicable):
        return model
    t = workload.t
    if t == 1:
        return NotApplicable("no tensor parallelism")
    whole = replace(workload, sequence_parallel=False)
    smallest = smallest_tp(model, whole, device, largest=t, implementation=implementation)
    if smallest is None or smallest >= t:
        return []
    needed = memory(model, replace(whole, t=smallest), device=device, implementation=implementation).total_bytes
    note = f"fills {needed / device.memory.bytes:.0%} of {device.name}; the devices freed become data parallelism"
    change = {"t": smallest} if smallest > 1 or not workload.sequence_parallel else {"t": 1, "sequence_parallel": 0}
    message = f"tensor parallelism of {t} where {smallest} fits in memory"
    return [Finding("t", t, message, (Suggestion(change, note),))]


@rule("SZ107", source="Machine Learning Engineering book, shape recommendation 2 and 'Batch sizes'", of_costs=True)
def largest_microbatch(context: Context) -> Answer:
    """The microbatch should be as large as memory allows.

    A larger microbatch makes every product taller and each weight's bytes serve more tokens. Any integer will do: of
    the microbatches that fit, 7 beats 4, and no power of two is asked of b.

    Memory is that of `sizer memory` as the workload says. The sequences of a step are the training's choice: without a
    global batch the rule has nothing to say, and with one it asks for a microbatch that the ranks' share is made of.
    Suggestions are priced per token; a communication of gradients that runs once a step is charged once.

    Bad: `sizer check config.json -b 4 --global-batch 512` where 8 sequences fit.
    Good: the largest divisor of the global batch's share that `sizer memory config.json` finds to fit.
    """
    model, workload = _counted(context), context.workload
    if isinstance(model, NotApplicable):
        return model
    if not context.sets_any("b"):
        return NotApplicable("no microbatch given (-b)")
    if not workload.train:
        return NotApplicable("a serving batch is as large as the requests that wait")
    if workload.global_batch is None:
        return NotApplicable("no global batch given (--global-batch): how many sequences a step may take is not known")
    largest = largest_that_fits(model, workload, context.device, implementation=context.implementation)
    if largest < workload.b:
        return NotApplicable("the workload does not fit the device (SZ121)")
    share = workload.global_batch // workload.d
    whole = max((b for b in range(1, min(largest, share) + 1) if share % b == 0), default=0)
    if whole <= workload.b:
        return []
    note = f"priced per token; the largest of a rank's {share} that fits"
    return [Finding("b", workload.b, f"a microbatch of {workload.b} where {whole} fits", suggest("b", [whole], note))]


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


@rule("SZ121", source="Machine Learning Engineering book, 'Anatomy of model's memory usage'", of_costs=True)
def fits_in_memory(context: Context) -> Answer:
    """A step has to fit the device's memory.

    Weights, gradients, optimizer states, activations, the logits with their fp32 copy, communication buffers and the
    framework's own share add up to more than the device has. Ways out, each by itself enough, are listed from the
    cheapest in step time: what ZeRO's communication, an extra forward of checkpointing, or a larger t's all-reduces
    cost is priced. Shards stay inside the devices that are linked, and within the devices given.

    Memory is that of `sizer memory` as the workload says. It is an error where the layout was said (the devices, or the
    data-parallel ranks, of a training run; any degree of a serving one). Elsewhere one line says what a single device
    would need, since how a model is spread is not the configuration's affair. A degree alone (`--tp 16`) is a part of a
    layout: the line says which, and what is missing.

    Bad: `sizer check config.json -b 4 --dp 8` for an 8B model on 80 GB devices.
    Good: the same with `--zero 3 --checkpointing full`.
    """
    model, workload, device = _counted(context), context.workload, context.device
    if isinstance(model, NotApplicable):
        return model
    needed = memory(model, workload, device=device, implementation=context.implementation)
    if needed.fits:
        return []
    largest = max(needed.parts, key=lambda part: part.bytes)
    gib, limit = round(needed.total_bytes / GIB, 2), device.memory.bytes
    most = f"most of it {largest.name.replace('_', ' ')}, {largest.bytes / GIB:.1f} GiB"
    has = f"{gib:.1f} GiB of {limit / GIB:.1f} GiB on {device.name}"
    if not context.sets_any(*(LAYOUT if workload.train else SERVING_LAYOUT)):
        said = "--gpus or --dp" if workload.train else "--tp, --pp or --gpus"
        message = (
            f"would need {has} as it is split here, {most}; {_unsaid(context)} ({said}): times "
            "are of one device's share, and `sizer plan` finds a split"
        )
        return [Finding("memory", gib, message)]
    # Of changes to the same fields the first that fits: the smallest degree or stage.
    ways: dict[frozenset[str], Suggestion] = {}
    for change in _ways_out(model, workload, device.link.domain_devices):
        total = _total(context, model, change)
        if total is not None and total <= limit:
            ways.setdefault(frozenset(change), Suggestion(change, f"fits with {total / GIB:.1f} GiB"))
    message = f"needs {has}; {most}{_more_ways(workload, device)}"
    return [Finding("memory", gib, message, tuple(ways.values()), error=True)]


def _unsaid(context: Context) -> str:
    """What of the layout was not said, of a training run that names some degrees of it."""
    degrees = [f"{option} {getattr(context.workload, key)}" for key, option in SPLITS.items() if context.sets_any(key)]
    if not context.workload.train or not degrees:
        return "how it is spread was not said"
    return f"{', '.join(degrees)} is a part of a layout, its devices or data-parallel ranks were not said"


def _more_ways(workload: Workload, device: Device) -> str:
    """What else saves memory and is no field of a workload, by kind of hardware."""
    if not workload.train:
        return "; narrower weights (`sizer memory --weights`) help too"
    few = workload.gpus == 1 or CARD_LINK in device.link.intra_node
    ways = "LoRA or QLoRA for fine-tuning and an 8-bit optimizer" if few else "an 8-bit optimizer and more devices"
    return f"; {ways} help too (`sizer memory`)"


def _ways_out(model: ModelShape, workload: Workload, domain: int) -> Iterator[Mapping[str, int | str]]:
    """What may save enough, from the cheapest in step time."""
    if workload.attention == "eager":
        yield {"attention": "auto"}
    if workload.decode and workload.cache_dtype in ("bf16", "fp16", "fp32"):
        yield {"kv_dtype": "fp8"}
    stages = range(workload.zero + 1, 4) if workload.train and workload.d > 1 else ()
    yield from ({"zero": stage} for stage in stages)
    recompute: tuple[Mapping[str, int | str], ...] = ()
    if workload.train and workload.checkpointing != "full":
        recompute = ({"checkpointing": "full"},)
        yield from recompute
        if stages:
            yield {"checkpointing": "full", "zero": 3}
    if workload.b > 1:
        yield {"b": 1}
        yield from ({"b": 1, "zero": stage} for stage in stages)
    shards = [{"t": degree} for degree in DEGREES if workload.t < degree <= domain]
    pipelines = [{"p": degree} for degree in DEGREES if degree > workload.p and model.layers % degree == 0]
    for split in (*shards, *pipelines):
        if (change := _within(workload, split)) is not None:
            yield change
            yield from ({**change, **more} for more in recompute)


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
