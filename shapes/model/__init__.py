"""An architecture as data: its shape, and the same shape with dimensions changed (``shapes.model.resize``)."""

from shapes.model.shape import (
    AttentionShape,
    Block,
    Linear,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    QkNorm,
    Shard,
    Stack,
)

__all__ = [
    "AttentionShape", "Block", "Linear", "MlaShape", "MlpShape", "ModelShape", "MoeShape", "QkNorm", "Shard", "Stack",
]  # fmt: skip
