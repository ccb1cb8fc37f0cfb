"""The settings of a trace of a configuration, and a trace's result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.operators import Attention, Gemm, GroupedGemm, Operator
from shapes.workload import RunPhase

#: Element types that torch.autocast runs the products of a module in fp32 in.
AUTOCAST = ("bf16", "fp16")


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

    @property
    def main_dtype(self) -> str:
        """The element type of most of the FLOPs: a module runs in its own, whatever the default workload says."""
        flops: dict[str, int] = {}
        for operator in self.operators:
            flops[operator.dtype] = flops.get(operator.dtype, 0) + operator.flops * operator.count
        return max(flops, key=lambda dtype: flops[dtype], default="fp32")

    def under_autocast(self, dtype: str) -> Traced:
        """A module in fp32 as torch.autocast runs it; InputError for what autocast does not make of it."""
        runs_in = self.main_dtype
        if runs_in != "fp32" or dtype not in AUTOCAST:
            said = f"expected {runs_in}, which the module is in" + (", or bf16 or fp16" if runs_in == "fp32" else "")
            raise InputError(said, key="dtype", value=dtype)
        cast = (
            replace(one, dtype=dtype)
            if isinstance(one, Gemm | GroupedGemm | Attention) and one.dtype == "fp32"
            else one
            for one in self.operators
        )
        return replace(self, operators=tuple(cast))


def batch_and_sequence(arguments: Iterable[Any]) -> tuple[int, int]:
    """The leading two sizes of the first tensor that has them: (b, s) of token numbers or of embeddings."""
    for argument in arguments:
        shape = tuple(getattr(argument, "shape", ()))
        if len(shape) == 2 and argument.is_floating_point():
            return int(shape[0]), 1  # rows of features
        if len(shape) >= 2:
            return int(shape[0]), int(shape[1]) if len(shape) < 4 else 1  # an image is no sequence
    return 1, 1
