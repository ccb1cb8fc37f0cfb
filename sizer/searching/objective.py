"""What a search minimises: seconds times a weight. Adding an objective is an entry of ``OBJECTIVES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from shapes.errors import InputError
from shapes.frozen import frozen

#: Values of an objective that differ by less than this share are a tie: no device tells them apart.
TIE = 0.005


class Weighed(Protocol):
    """A candidate, or many of them as arrays: FLOPs of what is timed, layers and parameters."""

    @property
    def flops(self) -> Any: ...

    @property
    def layers(self) -> Any: ...

    @property
    def parameters(self) -> Any: ...


@frozen
class Objective:
    """``weight``: what a second of a candidate counts, positive, so that the least product is the best."""

    name: str
    weight: Callable[[Weighed], Any]


OBJECTIVES: Mapping[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective("step-time", lambda one: 1.0),
        Objective("layer-time", lambda one: 1 / one.layers),
        Objective("time-per-parameter", lambda one: 1 / one.parameters),
        Objective("tflops", lambda one: 1 / one.flops),
    )
}


#: Time at equal parameters: what more of them are worth is taken off, and doing less work is no gain.
DEFAULT_OBJECTIVE = "time-per-parameter"


def find_objective(name: str) -> Objective:
    """The objective of this name; InputError lists the known ones."""
    if name not in OBJECTIVES:
        raise InputError(f"expected one of {', '.join(OBJECTIVES)}", key="--objective", value=name)
    return OBJECTIVES[name]
