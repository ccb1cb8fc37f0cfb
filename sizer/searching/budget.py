"""A plain model of so many parameters: the baseline of a search that names nothing else."""

from __future__ import annotations

from dataclasses import replace

from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.parameters import block_tensors, parameter_count


def plain_model(parameters: float, *, vocab: int = 50304) -> ModelShape:
    """A gated decoder of about ``parameters``.

    An even number of heads of 128, d_ff 8h/3 rounded up to 64, untied, and h/L between 48 and 128 as published models
    have it.
    """
    if not 1e7 <= parameters <= 1e14:
        raise InputError("expected between 1e7 and 1e14 parameters", key="--params", value=parameters)
    best: tuple[float, int, int] | None = None
    for heads in range(2, 400, 2):  # an odd number splits over no t
        hidden = heads * 128
        layer = parameter_count(block_tensors(_plain_block(heads), hidden))
        layers = max(1, round((parameters - (2 * vocab + 1) * hidden) / layer))
        if 48 <= hidden / layers <= 128:
            miss = abs(layer * layers + (2 * vocab + 1) * hidden - parameters)
            best = min(best or (miss, heads, layers), (miss, heads, layers))
    if best is None:
        raise InputError("no plain model has so many parameters; give --config", key="--params", value=parameters)
    _, heads, layers = best
    return ModelShape(
        "llama", (Stack("decoder", heads * 128, (replace(_plain_block(heads), count=layers),)),), vocab=vocab
    )


def _plain_block(heads: int) -> Block:
    width = -(-8 * heads * 128 // 3 // 64) * 64
    return Block(AttentionShape(heads, heads, 128, rotary_dim=128), MlpShape(width))
