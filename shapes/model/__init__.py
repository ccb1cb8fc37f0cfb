"""An architecture as data: its shape and parameters, what a shard and a stage hold, and the same shape resized."""

from shapes.model.layers import AttentionShape, Block, Linear, MlaShape, MlpShape, MoeShape, QkNorm, Shard, Stack
from shapes.model.parameters import ParameterTensor
from shapes.model.shape import ModelShape

__all__ = [
    "AttentionShape", "Block", "Linear", "MlaShape", "MlpShape", "ModelShape", "MoeShape", "ParameterTensor", "QkNorm",
    "Shard", "Stack",
]  # fmt: skip
