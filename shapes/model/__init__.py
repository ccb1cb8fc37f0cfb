"""An architecture as data: its shape and parameters, what a shard and a stage hold, and the same shape resized."""

from shapes.model.layers import Block, MlpShape, MoeShape, Stack, run_lengths
from shapes.model.mixers import DELTA_CHUNK, AttentionShape, Linear, MlaShape, QkNorm, RecurrentShape, Shard
from shapes.model.parameters import ModelShape, ParameterTensor

__all__ = [
    "DELTA_CHUNK",
    "AttentionShape",
    "Block",
    "Linear",
    "MlaShape",
    "MlpShape",
    "ModelShape",
    "MoeShape",
    "ParameterTensor",
    "QkNorm",
    "RecurrentShape",
    "Shard",
    "Stack",
    "run_lengths",
]
