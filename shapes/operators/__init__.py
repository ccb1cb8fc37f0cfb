"""Operators: what a model runs, forward and backward (see ``shapes.operators.types`` for the conventions)."""

from shapes.operators.lower import check_split, operators
from shapes.operators.types import (
    LAYOUT_OF_PHASE,
    Attention,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    Layout,
    Operator,
    Phase,
    counted_once,
)

__all__ = [
    "LAYOUT_OF_PHASE",
    "Attention",
    "Collective",
    "Elementwise",
    "Gemm",
    "GroupedGemm",
    "Layout",
    "Operator",
    "Phase",
    "check_split",
    "counted_once",
    "operators",
]
