"""What a rule is, what it sees and what it answers.

A rule is one module of ``sizer/rules/``: its docstring is its page (``sizer explain``, reports/rules.md), ``CODE`` and
``SLUG`` name it, ``SOURCE`` says where it comes from, ``check(context)`` answers ``NotApplicable`` or the findings
(none: pass). Rules do no I/O, parse nothing and assert no speed-up: they propose, ``sizer.check`` prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shapes.cost import Cost
from shapes.device import Device
from shapes.model import ModelShape
from shapes.operators import Operator
from shapes.workload import Workload


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that would mend the finding: dimensions of ``shapes.resize`` and fields of ``Workload``, new values."""

    change: Mapping[str, int | str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found, before pricing.

    ``field`` is a dimension of ``shapes.resize``, a field of Workload, or an operator's name; ``value`` what it is.
    ``error`` marks what cannot run or cannot be sharded; every other severity follows from the price.
    """

    field: str
    value: int | float | str
    message: str
    suggestions: tuple[Suggestion, ...] = ()
    error: bool = False


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The rule's premise does not hold (no tensor parallelism, no gated MLP …), which is not a pass."""

    reason: str


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at.

    ``model`` is None for a traced model, of which only the operators are known. ``costs`` holds one ``Cost`` an
    operator, in the order of ``operators``; ``step_s`` is their sum over counts. ``memory`` is what fits, if known.
    """

    model: ModelShape | None
    workload: Workload
    device: Device
    operators: Sequence[Operator]
    costs: Sequence[Cost]
    dimensions: Mapping[str, int] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        return sum(cost.seconds * operator.count for operator, cost in zip(self.operators, self.costs, strict=True))


Answer = NotApplicable | Iterable[Finding]


class Rule(Protocol):
    """The module of one rule."""

    __doc__: str | None
    CODE: str
    SLUG: str
    SOURCE: str

    def check(self, context: Context) -> Answer: ...
