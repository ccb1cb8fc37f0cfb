"""An architecture as data: its shape and parameters, what a shard and a stage hold, and the same shape resized."""

from shapes.model.layers import Augment, Block, MlpShape, MoeShape, Stack, Tower, run_lengths
from shapes.model.mixers import (
    AttentionShape,
    Compressor,
    Gate,
    Indexer,
    Linear,
    MlaShape,
    QkNorm,
    SharedKeyShape,
    Streams,
)
from shapes.model.parameters import ModelShape, ParameterTensor
from shapes.model.recurrences import DELTA_CHUNK, RecurrentShape

__all__ = [
    "DELTA_CHUNK",
    "AttentionShape",
    "Augment",
    "Block",
    "Compressor",
    "Gate",
    "Indexer",
    "Linear",
    "MlaShape",
    "MlpShape",
    "ModelShape",
    "MoeShape",
    "ParameterTensor",
    "QkNorm",
    "RecurrentShape",
    "SharedKeyShape",
    "Stack",
    "Streams",
    "Tower",
    "run_lengths",
]
