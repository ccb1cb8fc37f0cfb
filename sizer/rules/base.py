"""What a rule is, what it sees and what it answers.

A rule is one module of ``sizer/rules/``: its docstring is its page (``sizer explain``, reports/rules.md), ``CODE`` and
``SLUG`` name it, ``SOURCE`` says where it comes from, ``check(context)`` answers ``NotApplicable`` or the findings
(none: pass). Rules do no I/O, parse nothing and assert no speed-up: they propose, ``sizer.check`` prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from shapes.cost import Cost
from shapes.cost.step import StepCost
from shapes.device import Device
from shapes.frozen import frozen
from shapes.memory import Implementation
from shapes.model import ModelShape
from shapes.operators import Operator, split_problems
from shapes.workload import Workload


@frozen
class Suggestion:
    """A change that would fix the finding: dimensions and fields of ``Workload``, new values."""

    change: Mapping[str, int | str]
    note: str = ""


@frozen
class Finding:
    """What a rule found, before pricing.

    ``field`` is a dimension (``DIMENSIONS``), a field of Workload, or an operator's name; ``value`` what it is.
    ``error`` marks what cannot run or cannot be sharded. ``violated``: it breaks what a kernel requires or the rule's
    source recommends outright, and is a warning whatever its price. Every other severity follows from the price.
    ``cause``: what it comes from, where that is not ``field``; findings of one cause are reported as one.
    ``at_most_s``: seconds of a step that the cause can take, where the rule knows: no suggestion is credited with more.
    """

    field: str
    value: int | float | str
    message: str
    suggestions: tuple[Suggestion, ...] = ()
    error: bool = False
    violated: bool = False
    cause: str = ""
    at_most_s: float | None = None


@frozen
class NotApplicable:
    """The rule's premise does not hold (no tensor parallelism, no gated MLP …), which is not a pass."""

    reason: str


@frozen
class Context:
    """What a rule may look at.

    ``model`` is None for a traced model, of which only the operators are known. ``costs`` holds one ``Cost`` an
    operator, in the order of ``operators``; ``step_s`` is their sum over counts. ``given`` names the workload's fields
    that the person or the file set, the rest being defaults (None: all of them). ``priced_dtype`` is the element type
    the costs are of, where the device does not know the workload's. ``implementation``: whose kernels save activations.
    ``step``: the global step as software stack ``stack`` runs it (None: prices were measured, not a stack's).
    """

    model: ModelShape | None
    workload: Workload
    device: Device
    operators: Sequence[Operator]
    costs: Sequence[Cost]
    dimensions: Mapping[str, int] = field(default_factory=dict)
    given: frozenset[str] | None = None
    priced_dtype: str | None = None
    implementation: Implementation = "huggingface"
    step: StepCost | None = None
    stack: str = ""

    @property
    def divides(self) -> bool:
        """Whether the model divides over the workload's devices, so that its step's memory can be counted."""
        return self.model is None or not split_problems(self.model, self.workload)

    def sets_any(self, *fields: str) -> bool:
        """Whether one of these workload fields was set, so that advice on it is asked for."""
        return self.given is None or not self.given.isdisjoint(fields)

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
