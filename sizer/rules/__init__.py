"""The rule catalogue. Adding a rule is a file of this folder and its place in ``RULES``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import cast

from shapes.errors import InputError
from sizer.rules import (
    attention_occupancy,
    batch_arithmetic,
    batch_heads_per_shard,
    dtype_on_device,
    expert_shapes,
    fits_in_memory,
    flash_head_dim,
    head_dim_power_of_two,
    heads_large_enough,
    hidden_per_shard,
    kv_heads_per_shard,
    largest_microbatch,
    layers_per_stage,
    memory_bound_gemm,
    odd_sequence,
    smallest_tensor_parallel,
    swiglu_width,
    tensor_core_alignment,
    tile_quantization,
    tokens_power_of_two,
    vocab_multiple,
    wave_quantization,
)
from sizer.rules.base import Rule

__all__ = ["RULES", "Rule", "find_rule", "summary_line"]

RULES: tuple[Rule, ...] = cast(
    tuple[Rule, ...],
    (
        vocab_multiple,
        head_dim_power_of_two,
        hidden_per_shard,
        tokens_power_of_two,
        batch_heads_per_shard,
        smallest_tensor_parallel,
        largest_microbatch,
        swiglu_width,
        tensor_core_alignment,
        layers_per_stage,
        tile_quantization,
        wave_quantization,
        attention_occupancy,
        flash_head_dim,
        kv_heads_per_shard,
        heads_large_enough,
        expert_shapes,
        memory_bound_gemm,
        dtype_on_device,
        batch_arithmetic,
        fits_in_memory,
        odd_sequence,
    ),
)


def find_rule(name: str) -> Rule:
    """The rule with this code or slug; an unknown one is an InputError naming the nearest."""
    for rule in RULES:
        if name.upper() == rule.CODE or name.lower() == rule.SLUG:
            return rule
    known = [rule.CODE for rule in RULES] + [rule.SLUG for rule in RULES]
    near = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f" (nearest: {', '.join(near)})" if near else ""
    raise InputError(f"expected a rule's code or slug{hint}; `sizer rules` lists them", key="rule", value=name)


def summary_line(rule: Rule) -> str:
    """What a rule asks, in its docstring's first line."""
    return (rule.__doc__ or "").strip().splitlines()[0]
