"""What a trace of a configuration is asked, and what a trace answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from shapes.frozen import frozen
from shapes.operators.types import Operator
from shapes.workload import RunPhase


@frozen
class Settings:
    """The options of ``trace_config``, which describes them."""

    b: int
    s: int
    phase: RunPhase
    attention: str
    dtype: str
    expert_load: float
    plan: Mapping[str, str] | None
    t: int
    decoder_s: int | None
    architecture: str | None
    experts: str | None
    repeats: bool
    fused_qkv: bool | None
    fused_gate_up: bool | None
    recipe: str | None

    @property
    def train(self) -> bool:
        return self.phase == "train"


@frozen
class Traced:
    """The operators of one step of a module, as torch's dispatcher saw them, equal ones merged.

    ``parameters`` counts every ``nn.Parameter`` once (tied ones too); ``active_parameters`` leaves out the experts a
    token does not visit (None: the module has no experts that the trace can tell). ``opaque`` names custom operators
    the trace cannot see into; ``notes`` the assumptions made, one sentence each. ``unused`` lists the largest modules
    that hold parameters and were never called. ``dimensions`` are sizes by name (``DIMENSIONS``) and ``keys`` what
    the configuration calls them; both empty for a module of one's own.
    """

    operators: tuple[Operator, ...]
    parameters: int
    active_parameters: int | None
    model_type: str
    opaque: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dimensions: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    path: Literal["trace"] = "trace"

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole step."""
        return sum(operator.flops * operator.count for operator in self.operators)
