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
    """The leading two sizes (b, s) of token numbers, else of the first tensor that has them."""
    found = (one for one in arguments if len(getattr(one, "shape", ())) >= 2)
    # Neither is a mask of booleans.
    first = min(found, key=lambda one: one.dim() > 2 or one.is_floating_point() or one.itemsize < 2, default=None)
    if first is None:
        return 1, 1
    b, s, *more = first.shape
    # Neither an image nor rows of features are a sequence.
    return int(b), 1 if more[1:] or (not more and first.is_floating_point()) else int(s)
