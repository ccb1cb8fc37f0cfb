"""One global step: microbatches through a pipeline, what overlaps them, the gradients' reduction and the update.

`work` adds up seconds and runs of operators by class, before any software stack. The stack then makes a step of them:

    device    = sum over classes of factor x seconds             of layers and of ends, forward and backward
    exposed   = max(comm - hidden device, 0) + contention min(comm, hidden device)
    host      = launch_s x kernels + collective_s x collectives  a backward's times `backward`, where that is known
    micro     = sum of max(device, host), and exposed            launch-bound if the host is slower
              = sum of (device^q + host^q)^(1/q), and exposed    where it is not: forward and backward together
    step      = accumulation micro(stage) + (micro(all stages) - micro(stage)) / vpp + sends + data + update + fixed

``micro(all stages) - micro(stage)`` fills and drains a 1F1B pipeline: one microbatch goes through the other stages. An
interleaved schedule pays a ``vpp``-th of it. Gradients are reduced once a step, but in every microbatch with ZeRO 2 and
with FSDP (ZeRO 3 without a pipeline), which gathers the weights in each of them too.
``exposed`` adds to the host's time: a collective ends when its slowest rank has come to it, so that it does
not fill a wait for the host. Only the experts' own work hides an expert's dispatch in its microbatch.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shapes.device import Device
from shapes.dtypes import QUANTISED
from shapes.frozen import Function, Named, Values, frozen, replace
from shapes.model import ModelShape
from shapes.operators.types import Collective, Gemm, GroupedGemm, Operator, Product, kind_of

from .stack import ELEMENTWISE, EXPERTS, FACTS, GRAPHS, OVERLAPPED, PARTS, PRODUCTS, Overlap, SoftwareStack

#: Element types whose products a stack's ``kernels.gemm`` and ``kernels.grouped`` speak of; others have their own.
SIXTEEN_BITS = ("bf16", "fp16")
#: Megatron-LM's fused softmax takes sequences x heads a rank in multiples of this; else its framework's own runs
#: (megatron/model/fused_softmax.py, is_kernel_available: attn_batches % 4 == 0).
FUSED_SOFTMAX_MULTIPLE = 4


#: Detail of a batched 16-bit product with a dimension, and so a row of an operand, off 16 bytes.
MISALIGNED = "misaligned"


class Kind(NamedTuple):
    """A class of operators (``CLASSES`` of ``shapes.step.stack``) and what tells its kernels apart.

    ``detail``: a product's element type where it is not 16 bits, attention's head dimension, ``MISALIGNED``.
    ``backward``: dgrad and wgrad; what recomputation runs again is a forward, which comes from Python, too.
    """

    name: str
    detail: str | int = ""
    backward: bool = False


def _sums() -> dict[Any, Any]:
    return defaultdict(int)


@dataclass(slots=True)
class Region:
    """Operators of one microbatch that follow each other: ``seconds`` and ``runs`` (a group each) by kind.

    Collectives have no seconds. ``fallbacks``: attention layers whose shape Megatron's fused softmax does not take.
    """

    seconds: dict[Kind, Any] = field(default_factory=_sums)
    runs: dict[Kind, Any] = field(default_factory=_sums)
    fallbacks: Any = 0


@dataclass(slots=True)
class Work:
    """One device's work of one microbatch, in layers and ``ends`` (embedding, head, loss), and once a step.

    ``communication``: seconds of collectives by group (``GROUPS``) in one microbatch; "data" is one reduction of the
    gradients with the gathers that belong to it. ``PARTS`` are in their groups too. Those within layers (``WITHIN``)
    are among the regions' ``runs`` as well, since the host issues them.
    ``update_s``: moving the optimizer's bytes; ``priced_s``: the operators' own seconds; ``off_s``: their error.
    Values are numbers, or arrays of one length when many steps are fitted.
    """

    layers: Region = field(default_factory=Region)
    ends: Region = field(default_factory=Region)
    communication: Values = field(default_factory=_sums)
    update_s: Any = 0.0
    priced_s: Any = 0.0
    off_s: Any = 0.0


#: Name of the runs of collectives.
COLLECTIVE = "collective"
#: Groups that talk within layers.
WITHIN = ("tensor", "expert", OVERLAPPED, "context")


def class_of(operator: Operator) -> Kind:
    """The class that a stack's constants speak of."""
    known = kind_of(operator).work_class or str(getattr(operator, "what", ""))
    detail = getattr(operator, "head_dim", "") if known == "attention" else ""
    if isinstance(operator, Product) and known != "attention":
        off = known == "bmm" and (operator.n % 8 or operator.k % 8)
        detail = operator.dtype if operator.dtype not in SIXTEEN_BITS else MISALIGNED if off else ""
    return Kind(known, detail, operator.phase != "forward")


#: Groups of a rank that constants were fitted on (DeepSeek-V3 over e 8); the launches of further ones are not known.
MOST_GROUPS = 32


def work(operators: Iterable[Operator], each: Iterable[Any]) -> Work:
    """``operators`` of one microbatch (data parallelism's and the update once), added up; ``each``: a run's seconds."""
    total, groups_of = Work(), FACTS["groups"]
    for operator, alone in zip(operators, each, strict=True):
        count = operator.count
        seconds = alone * count
        kind = class_of(operator)
        if isinstance(operator, Collective):
            group = next((groups_of[word] for word in operator.name.split(".") if word in groups_of), "tensor")
            if group in WITHIN:
                total.layers.runs[kind._replace(name=COLLECTIVE)] += count
            for part in _parts(group, operator):
                total.communication[part] += seconds
        elif operator.phase == "optimizer":
            total.update_s += seconds
        else:
            region = total.layers if "layers" in operator.name else total.ends
            # Each group of a grouped product is launched, or at least quantised and described, on its own.
            groups = np.minimum(operator.groups, MOST_GROUPS) if isinstance(operator, GroupedGemm) else 1
            region.seconds[kind] += seconds
            region.runs[kind] += count * groups
            region.fallbacks += count * _falls_back(operator)
    return total


def _parts(group: str, operator: Collective) -> Iterator[str]:
    """A collective's group, and the parts of it that some trainers do not overlap."""
    yield group
    for part, told in FACTS["apart"].items():
        if {group, operator.what, operator.phase}.issuperset(told):
            yield part


def _falls_back(operator: Operator) -> bool:
    """Whether these are scores whose softmax the fused kernel does not take."""
    scores = operator.name.endswith(".scores") and operator.phase == "forward"
    return scores and isinstance(operator, Gemm) and operator.batch % FUSED_SOFTMAX_MULTIPLE != 0


def each_value(one: Any, function: Function) -> Any:
    """``one`` (work, a region, a mapping) with ``function`` of every value."""
    if isinstance(one, dict):
        return {key: each_value(value, function) for key, value in one.items()}
    if isinstance(one, Work | Region):
        return type(one)(*(each_value(getattr(one, key), function) for key in one.__slots__))
    return function(one)


def add(one: Any, other: Any, times: float) -> Any:
    """``one`` (work, a region, a mapping), which changes, with ``times`` of ``other`` in addition."""
    if isinstance(one, dict):
        for key, value in other.items():
            one[key] += value * times
        return one
    for key in one.__slots__:
        own, more = getattr(one, key), getattr(other, key)
        inner = isinstance(own, (dict, Region))
        setattr(one, key, add(own, more, times) if inner else own + more * times)
    return one


def slowest_stage(last: Work, model: ModelShape, p: int, stack: SoftwareStack, device: Device) -> Work:
    """The work of the slowest of ``p`` stages by ``stack``; ``last``: that of ceil(L / p) layers and the head.

    Layers that divide are spread evenly. Others go where they balance best (Megatron-LM's account-for-loss split and
    pipeline layouts: Llama 3's 126 layers over 16 stages, DeepSeek-V3's 61): the last stage, which has head, loss and
    the layers of multi-token prediction, holds so many others that the slowest stage is as fast as can be.
    """
    predicting = model.head_passes - 1
    layers = model.layers - predicting
    if layers % p == 0:
        return last
    held = -(-model.layers // p)
    layer_s, ends_s = layer_and_ends(last, held, stack, device)
    others, own, slowest = spread(layers, p, predicting + ends_s / layer_s)
    if others >= slowest:
        return with_layers(replace(last, ends=Region()), others / held)
    return with_layers(last, (own + predicting) / held)


def layer_and_ends(stage: Work, layers: Any, stack: SoftwareStack, device: Device) -> tuple[Any, Any]:
    """Seconds of one of the stage's ``layers`` as ``stack`` runs them, and seconds after the last layer."""
    found = microbatch(stage, stack, device)
    return (found.seconds - found.ends_s) / layers, found.ends_s


def spread(layers: Any, p: int, ends: Any) -> tuple[Any, Any, Any]:
    """(layers of each other stage, of the last, the slowest stage's worth) where that of ``p`` > 1 is the least.

    The last has ``ends`` layers' worth of time more. Numbers, or columns, where no row is compared with another.
    """

    def last(others: Any) -> Any:
        return np.maximum(0, layers - others * (p - 1))

    def slowest(others: Any) -> Any:
        return np.maximum(others, last(others) + ends)

    # Where all take as long, or one less each.
    more = np.maximum(1, np.minimum(np.ceil((layers + ends) / p), np.ceil(layers / (p - 1))))
    others = more - (slowest(more - 1) < slowest(more))
    return others, last(others), slowest(others)


def with_layers(stage: Work, share: float) -> Work:
    """``stage`` with this share of its layers and of the messages between them."""
    communication = {
        group: value * share if PARTS.get(group, group) in WITHIN else value
        for group, value in stage.communication.items()
    }
    return replace(stage, layers=add(Region(), stage.layers, share), communication=communication)


#: How sharply a region turns from device-bound to launch-bound: kernels of one layer differ in length, so that both are
#: partly paid near the balance. Chosen on the runs of one node; 1 would add, infinity take the longer.
SHARPNESS = 4.0


@frozen
class Schedule:
    """How a global step is cut: ``accumulation`` microbatches over ``p`` stages of ``vpp`` chunks each.

    ``every_microbatch``: data parallelism talks in every microbatch (ZeRO 3), not once; ``reduces_every_microbatch``:
    gradients are reduced in every one, since no rank keeps them whole (ZeRO 2). ``ranks``: devices. Numbers or arrays.
    """

    accumulation: Any = 1
    p: Any = 1
    vpp: Any = 1
    every_microbatch: Any = False
    reduces_every_microbatch: Any = False
    ranks: Any = 1


def factor(kind: Kind, stack: SoftwareStack, device: Device) -> float:
    """The stack's seconds over the tables' for one kind of operators."""
    if kind.name not in PRODUCTS:
        return stack.kernels.get(kind.name, stack.kernels["norm"])
    if kind.detail == MISALIGNED:
        own = stack.kernels["bmm"] * stack.misaligned_bmm
    elif kind.name == "attention":
        own = stack.attention_factor(device.architecture, int(kind.detail))
    else:
        # Tables of 16 bits and more are at what a device sustains: no grouped kernel is further below them than cuBLAS.
        least = 0 if kind.detail in QUANTISED else stack.kernels["gemm"]
        own = max(stack.kernels[kind.name], least) * stack.by_dtype.get(str(kind.detail), 1.0)
    return own * stack.by_device.get(device.base, 1.0)


def exposed(communication: Any, computing: Any, overlap: Overlap) -> Any:
    """Seconds of ``communication`` that is not overlapped with ``computing`` seconds of compute."""
    needed, cover = communication / overlap.speed, overlap.hidden * computing
    return np.maximum(needed - cover, 0.0) + overlap.contention * np.minimum(needed, cover)


def shown(communication: Named, group: str, computing: Any, stack: SoftwareStack) -> Any:
    """Seconds of a group's ``communication`` that show, parts of it by themselves where the stack tells them apart."""
    alone = [part for part, whole in PARTS.items() if whole == group and part in stack.overlap]
    apart = sum(communication.get(part, 0.0) for part in alone)
    overlap = stack.overlap[group]
    return exposed(communication.get(group, 0.0) - apart, computing, overlap) + apart / overlap.speed


@frozen
class Microbatch:
    """Seconds of one microbatch: on the device by class, communication that shows by group, and what the host adds.

    ``ends_s``: of those, what comes before and after the layers.
    """

    device: Named
    exposed: Named
    waiting_for_host: Any
    ends_s: Any

    @property
    def computing(self) -> Any:
        return sum(self.device.values())

    @property
    def seconds(self) -> Any:
        return self.computing + sum(self.exposed.values()) + self.waiting_for_host


def ran(region: Region, stack: SoftwareStack, device: Device) -> tuple[Named, Any]:
    """Seconds on the device by class, and those that it waits for the host to issue the forward, then the backward.

    Where a stack does not tell what its backward's launches take, both passes together turn softly.
    """
    host, found = stack.host, _sums()
    busy, issued = [0.0, 0.0], [host.softmax_fallback_s * region.fallbacks, 0.0]
    for kind, seconds in region.seconds.items():
        own = factor(kind, stack, device) * seconds
        found[kind.name] += own
        busy[kind.backward] += own
    for kind, runs in region.runs.items():
        each = host.collective_s if kind.name == COLLECTIVE else host.launch_s * host.kernels.get(kind.name, 1.0)
        issued[kind.backward] += each * runs
    if host.backward:
        return found, np.maximum(issued[0] - busy[0], 0.0) + np.maximum(host.backward * issued[1] - busy[1], 0.0)
    both = sum(busy)
    return found, (both**SHARPNESS + sum(issued) ** SHARPNESS) ** (1 / SHARPNESS) - both


def microbatch(work: Work, stack: SoftwareStack, device: Device) -> Microbatch:
    """One microbatch of ``work``: each region takes what the device or the host needs, whichever is longer.

    Exposed communication comes on top.
    """
    (layers, waits), (ends, end_waits) = (ran(one, stack, device) for one in (work.layers, work.ends))
    in_layers, in_ends = sum(layers.values()), sum(ends.values())
    # A dispatch waits for its router and its experts for it: what covers it, in chunks, is the mixture's own work.
    cover = {"expert": sum(layers[one] for one in EXPERTS)}
    shows = {
        group: shown(work.communication, group, cover.get(group, in_layers), stack)
        for group in WITHIN
        if group in work.communication
    }
    return Microbatch(add(layers, ends, 1), shows, waits + end_waits, in_ends + end_waits)


#: With graphs: so many devices wait for no slowest one, and doubled so often (512) as long as without. MLPerf's LoRA
#: runs of v4.1 and v5.0 with graphs on 64 to 1,024 devices are surrounded by 16 to 42 ms.
NODE, DOUBLINGS = 8, 6

#: Parts of a step that the device computes, by the classes of their operators.
DEVICE_PARTS = {**FACTS["parts"], "elementwise": [name for name in ELEMENTWISE if name != "softmax"]}


def step_parts(
    stage: Work, schedule: Schedule, stack: SoftwareStack, own: Microbatch, everything: Microbatch
) -> Values:
    """Seconds of one global step by part; they add up to the step.

    ``stage``: the slowest pipeline stage's work, ``own`` its microbatch; ``everything``: that of all stages.
    """
    times = schedule.accumulation
    parts = _sums()
    for name, classes in DEVICE_PARTS.items():
        parts[name] = times * sum(own.device.get(one, 0.0) for one in classes)
    for group, seconds in own.exposed.items():
        parts[f"{group.removeprefix('overlapped_')} parallelism"] += times * seconds
    parts["waiting for the host"] = times * own.waiting_for_host
    parts["pipeline bubble"] = np.maximum(everything.seconds - own.seconds, 0.0) / schedule.vpp
    sends = shown(stage.communication, "pipeline", own.computing, stack)
    parts["pipeline sends"] = (times + schedule.p - 1) * schedule.vpp * sends
    data = shown(stage.communication, "data", own.seconds, stack)
    reduction = stage.communication.get("data", 0.0) - stage.communication.get("gather", 0.0)
    earlier = shown({"data": reduction}, "data", own.seconds, stack)
    parts["data parallelism"] = (
        np.where(schedule.every_microbatch, times, 1) * data
        + np.where(schedule.reduces_every_microbatch, times - 1, 0) * earlier
    )
    parts["optimizer"] = stack.optimizer * stage.update_s
    # With graphs nobody waits for the host, only for the slowest rank: the longer, the more there are.
    waiting = np.log2(np.maximum(schedule.ranks / NODE, 1)) / DOUBLINGS if stack.name.endswith(GRAPHS) else 1.0
    # Inference has no update, and no seconds around one.
    parts["once a step"] = np.where(stage.update_s > 0, stack.fixed_s * waiting, 0.0)
    return parts
