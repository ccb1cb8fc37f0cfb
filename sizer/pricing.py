"""Step times: operators priced by one cost source, each distinct operator once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shapes.cost import Cost, predict_many
from shapes.device import Device
from shapes.operators import Operator, counted_once

#: Operators -> one cost each: the one seam between advice and where seconds come from.
CostSource = Callable[[Sequence[Operator], Device], Sequence[Cost]]


@dataclass(frozen=True, slots=True)
class Step:
    """The operators of one step with their costs; no overlap of computing and communicating is assumed."""

    operators: tuple[Operator, ...]
    costs: tuple[Cost, ...]

    @property
    def seconds(self) -> float:
        return sum(cost.seconds * operator.count for operator, cost in zip(self.operators, self.costs, strict=True))

    @property
    def low(self) -> float:
        return sum(cost.low * operator.count for operator, cost in zip(self.operators, self.costs, strict=True))

    @property
    def high(self) -> float:
        return sum(cost.high * operator.count for operator, cost in zip(self.operators, self.costs, strict=True))

    @property
    def flops(self) -> int:
        return sum(operator.flops * operator.count for operator in self.operators)

    @property
    def source(self) -> str:
        """Where the seconds come from; each source once."""
        return "; ".join(dict.fromkeys(cost.source for cost in self.costs))


class Pricer:
    """Prices operators on one device and remembers each, since a suggestion changes only a few of them."""

    def __init__(self, device: Device, source: CostSource = predict_many) -> None:
        self.device = device
        self._source = source
        self._known: dict[Operator, Cost] = {}

    def step(self, operators: Sequence[Operator]) -> Step:
        keys = [counted_once(operator) for operator in operators]
        missing = [key for key in dict.fromkeys(keys) if key not in self._known]
        if missing:
            self._known.update(zip(missing, self._source(missing, self.device), strict=True))
        return Step(tuple(operators), tuple(self._known[key] for key in keys))

    def error_s(self, before: Step, after: Step) -> float:
        """Seconds by which the prediction may be off in the operators of ``before`` that ``after`` runs otherwise."""
        kept: Mapping[Operator, int] = {counted_once(op): op.count for op in after.operators}
        changed = 0.0
        for operator, cost in zip(before.operators, before.costs, strict=True):
            gone = operator.count - kept.get(counted_once(operator), 0)
            changed += max(0, gone) * max(cost.high - cost.seconds, cost.seconds - cost.low)
        return changed
