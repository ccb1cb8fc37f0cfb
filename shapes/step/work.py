"""What a step consists of before any software stack has its say: seconds and runs of operators, added up by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shapes.cost.predict import Cost
from shapes.model import ModelShape
from shapes.operators.types import Attention, CachedAttention, Collective, Gemm, GroupedGemm, Operator, Product, kind_of
from shapes.step.stack import OVERLAPPED, PARTS

#: Element types whose products a stack's ``kernels.gemm`` and ``kernels.grouped`` speak of; others have their own.
SIXTEEN_BITS = ("bf16", "fp16")
#: Megatron-LM's fused softmax takes sequences x heads a rank in multiples of this; else its framework's own runs
#: (megatron/model/fused_softmax.py, is_kernel_available: attn_batches % 4 == 0).
FUSED_SOFTMAX_MULTIPLE = 4


class Kind(NamedTuple):
    """A class of operators (``CLASSES`` of ``shapes.step.stack``) and what tells its kernels apart.

    ``detail``: a product's element type where it is not 16 bits, attention's head dimension.
    """

    name: str
    detail: str | int = ""


@dataclass(slots=True)
class Region:
    """Operators of one microbatch that follow each other: ``seconds`` and ``runs`` (a group each) by kind.

    ``fallbacks``: attention layers whose shape Megatron's fused softmax does not take.
    """

    seconds: dict[Kind, Any] = field(default_factory=dict)
    runs: dict[Kind, Any] = field(default_factory=dict)
    fallbacks: Any = 0

    def mapped(self, function: Callable[[Any], Any]) -> Region:
        """With ``function`` of every value."""
        return Region(_mapped(self.seconds, function), _mapped(self.runs, function), function(self.fallbacks))

    def add(self, kind: Kind, seconds: float, runs: int) -> None:
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.runs[kind] = self.runs.get(kind, 0) + runs


@dataclass(slots=True)
class Work:
    """One device's work of one microbatch, in layers and ``ends`` (embedding, head, loss), and once a step.

    ``communication`` and ``messages``: seconds and number of collectives by group (``GROUPS``) in one microbatch;
    "data" is one reduction of the gradients with the gathers that belong to it. ``PARTS`` are in their groups too.
    ``update_s``: moving the optimizer's bytes. Values are numbers, or arrays of one length when many steps are fitted.
    """

    layers: Region = field(default_factory=Region)
    ends: Region = field(default_factory=Region)
    communication: dict[str, Any] = field(default_factory=dict)
    messages: dict[str, Any] = field(default_factory=dict)
    update_s: Any = 0.0


#: Groups that talk within layers.
WITHIN = ("tensor", "expert", OVERLAPPED, "context")
#: A collective's group by the first word of its name. Adapters' gradients are summed over tensor-parallel ranks where
#: all gradients are reduced: once a step.
_GROUP_OF = {
    "tensor_parallel": "tensor",
    "moe": "expert",
    "overlapped_moe": OVERLAPPED,
    "context_parallel": "context",
    "pipeline": "pipeline",
    "data_parallel": "data",
    "adapters": "data",
}


def group_of(operator: Collective) -> str:
    """What a collective serves: one of ``GROUPS``."""
    for word in operator.name.split("."):
        if word in _GROUP_OF:
            return _GROUP_OF[word]
    return "tensor"


def _part_of(group: str, operator: Collective) -> str | None:
    """Of ``PARTS``: the gathers of updated weights, and what tensor parallelism sends in the forward."""
    if group == "data":
        return "gather" if operator.what == "all_gather" else None
    return "tensor-forward" if group == "tensor" and operator.phase == "forward" else None


def class_of(operator: Operator) -> Kind:
    """The class that a stack's constants speak of."""
    known = kind_of(operator).work_class
    if isinstance(operator, Attention | CachedAttention):
        return Kind(str(known), operator.head_dim)
    if isinstance(operator, Product):
        return Kind(str(known), "" if operator.dtype in SIXTEEN_BITS else operator.dtype)
    return Kind(known or str(getattr(operator, "what", "")))


def work(operators: Iterable[Operator], costs: Iterable[Cost]) -> Work:
    """``operators`` of one microbatch (data parallelism's and the update once) with their costs, added up."""
    total = Work()
    for operator, cost in zip(operators, costs, strict=True):
        count, seconds = operator.count, cost.seconds * operator.count
        if isinstance(operator, Collective):
            group = group_of(operator)
            total.communication[group] = total.communication.get(group, 0.0) + seconds
            total.messages[group] = total.messages.get(group, 0) + count
            if part := _part_of(group, operator):
                total.communication[part] = total.communication.get(part, 0.0) + seconds
        elif operator.phase == "optimizer":
            total.update_s += seconds
        else:
            region = total.layers if "layers" in operator.name else total.ends
            # Each group of a grouped product is launched, or at least quantised and described, on its own.
            launches = count * operator.groups if isinstance(operator, GroupedGemm) else count
            region.add(class_of(operator), seconds, launches)
            if isinstance(operator, Gemm) and _falls_back(operator):
                region.fallbacks += count
    return total


def each_value(one: Work, function: Callable[[Any], Any]) -> Work:
    """``one`` with ``function`` of every value."""
    return Work(
        one.layers.mapped(function),
        one.ends.mapped(function),
        _mapped(one.communication, function),
        _mapped(one.messages, function),
        function(one.update_s),
    )


def _mapped(values: Mapping[Any, Any], function: Callable[[Any], Any]) -> dict[Any, Any]:
    return {key: function(value) for key, value in values.items()}


def _falls_back(operator: Gemm) -> bool:
    return (
        operator.kind == "bmm"
        and operator.phase == "forward"
        and operator.name.endswith(".scores")
        and operator.batch % FUSED_SOFTMAX_MULTIPLE != 0
    )


def slowest_stage(last: Work, model: ModelShape, p: int) -> Work:
    """The work of the slowest of ``p`` stages, ``last`` being of ceil(L / p) layers and the head.

    Layers that divide are spread evenly. Others go where they balance best (Megatron-LM's account-for-loss split and
    pipeline layouts: Llama 3's 126 layers over 16 stages, DeepSeek-V3's 61): the last stage, which has head, loss and
    the layers of multi-token prediction, holds so many others that the slowest stage is as fast as can be.
    """
    predicting = model.head_passes - 1
    layers = model.layers - predicting
    if p == 1 or layers % p == 0:
        return last
    held = -(-model.layers // p)
    layer, ends = sum(last.layers.seconds.values()) / held, sum(last.ends.seconds.values())

    def slowest(own: int) -> float:
        return float(max(-(-(layers - own) // (p - 1)) * layer, (own + predicting) * layer + ends))

    own = min(range(layers - p + 2), key=slowest)
    others = -(-(layers - own) // (p - 1))
    if others * layer >= (own + predicting) * layer + ends:
        return with_layers(replace(last, ends=Region()), others / held)
    return with_layers(last, (own + predicting) / held)


def with_layers(stage: Work, share: float) -> Work:
    """``share`` of the stage's layers, and of what they send each other."""
    within = {*WITHIN, *(part for part, whole in PARTS.items() if whole in WITHIN)}
    communication, messages = (
        {group: value * share if group in within else value for group, value in values.items()}
        for values in (stage.communication, stage.messages)
    )
    layers = stage.layers.mapped(lambda value: value * share)
    return replace(stage, layers=layers, communication=communication, messages=messages)
