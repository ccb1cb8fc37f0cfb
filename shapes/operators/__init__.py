"""Operators: what a model runs, forward and backward (see ``shapes.operators.types`` for the conventions)."""

from shapes.operators.lower import layer_operators, operators
from shapes.operators.parallel import check_split, runnable_split, split_problems
from shapes.operators.types import (
    LAYOUT_OF_PHASE,
    Attention,
    CachedAttention,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    IndexScores,
    Layout,
    Operator,
    Phase,
    Product,
    Scan,
    SparseAttention,
    TopK,
    counted_once,
    needed_flops,
)

__all__ = [
    "LAYOUT_OF_PHASE",
    "Attention",
    "CachedAttention",
    "Collective",
    "Elementwise",
    "Gemm",
    "GroupedGemm",
    "IndexScores",
    "Layout",
    "Operator",
    "Phase",
    "Product",
    "Scan",
    "SparseAttention",
    "TopK",
    "check_split",
    "counted_once",
    "layer_operators",
    "needed_flops",
    "operators",
    "runnable_split",
    "split_problems",
]
