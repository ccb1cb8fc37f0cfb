"""A trace's result (torch-free)."""

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from shapes.frozen import Names, Pair, Sizes, Words, frozen
from shapes.operators.types import Operators


@frozen
class Traced:
    """The products and attention cores of one step of a module, as torch's dispatcher saw them, equal ones merged.

    ``parameters`` counts every ``nn.Parameter`` once (tied ones too); ``active_parameters`` leaves out the experts a
    token does not visit (None: the module has no experts that the trace can tell). ``opaque`` names custom operators
    the trace cannot see into; ``notes`` the assumptions made, one sentence each. ``dimensions`` are sizes by name
    (``DIMENSIONS``) and ``keys`` what the configuration calls them; both empty for a module of one's own. Memory-bound
    operators are not listed: eager PyTorch's are not what a software stack runs.
    """

    operators: Operators
    parameters: int
    active_parameters: int | None
    model_type: str
    opaque: Names = ()
    notes: Names = ()
    dimensions: Sizes = field(default_factory=dict)
    keys: Words = field(default_factory=dict)

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole step."""
        return sum(operator.flops * operator.count for operator in self.operators)


def batch_and_sequence(arguments: Iterable[Any]) -> Pair:
    """The leading two sizes of the first tensor that has them: (b, s) of token numbers or of embeddings."""
    for argument in arguments:
        shape = tuple(getattr(argument, "shape", ()))
        if len(shape) >= 2:
            # Neither an image nor rows of features are a sequence.
            single = len(shape) > 3 or (len(shape) == 2 and argument.is_floating_point())
            return int(shape[0]), 1 if single else int(shape[1])
    return 1, 1
