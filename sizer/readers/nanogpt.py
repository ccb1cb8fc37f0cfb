"""nanoGPT: a Python file of assignments (read, never run) or a saved GPTConfig."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import layer_count
from sizer.readers.reading import Reading

NAME = "nanogpt"

KEYS = {"vocab": "vocab_size", "hidden": "n_embd", "layers": "n_layer", "heads": "n_head"}
#: model.py's GPTConfig: the vocabulary is GPT-2's, padded to a multiple of 64.
DEFAULTS = {"block_size": 1024, "vocab_size": 50304, "n_layer": 12, "n_head": 12, "n_embd": 768, "bias": True}


def matches(config: Mapping[str, Any]) -> bool:
    """n_embd and n_head without Hugging Face's model_type or litgpt's own keys."""
    return "n_head" in config and "n_embd" in config and "padded_vocab_size" not in config


def parse_assignments(text: str, where: str) -> dict[str, Any]:
    """``n_layer = 12`` lines of a Python file; what is not a literal is passed over. Nothing is run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("expected Python assignments", where=where) from None
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                continue
    return found


def read(config: Mapping[str, Any], where: str) -> Reading:
    fields = Fields(config, where, defaults=DEFAULTS)
    hidden, heads, layers = fields.integer("n_embd"), fields.integer("n_head"), layer_count(fields, "n_layer")
    if hidden % heads:
        raise fields.error(f"expected a divisor of n_embd = {hidden}", "n_head")
    bias, positions = fields.flag("bias"), fields.integer("block_size")
    dropout = fields.number("dropout", default=0.0)
    attention = AttentionShape(
        heads, heads, hidden // heads, qkv_bias=bias, o_bias=bias, fused_qkv=True, dropout=dropout
    )
    weights = 2 if bias else 1
    block = Block(
        attention, MlpShape(4 * hidden, gated=False, bias=bias), norm_weights=weights, count=layers, dropout=dropout
    )
    stack = Stack("decoder", hidden, (block,), positions=positions, final_norm=weights)
    model = ModelShape("nanogpt", (stack,), vocab=fields.integer("vocab_size"), tied=True, max_positions=positions)
    batch = fields.optional("batch_size")
    return Reading(
        model,
        NAME,
        where,
        keys=KEYS,
        workload={"b": batch} if batch else {},
        config=config,
        asked=frozenset(fields.asked),
        longest=positions,
    )
