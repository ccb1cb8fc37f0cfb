"""The rule catalogue. Adding a rule is a file of this folder and its line in ``_FILES``."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from shapes.errors import InputError
from sizer.rules.base import Rule

__all__ = ["RULES", "Rule", "find_rule", "summary_line"]

#: The files of this folder that are rules, by code.
_FILES = (
    "vocab_multiple",
    "head_dim_power_of_two",
    "hidden_per_shard",
    "tokens_power_of_two",
    "batch_heads_per_shard",
    "smallest_tensor_parallel",
    "largest_microbatch",
    "swiglu_width",
    "tensor_core_alignment",
    "layers_per_stage",
    "tile_quantization",
    "wave_quantization",
    "attention_occupancy",
    "flash_head_dim",
    "kv_heads_per_shard",
    "heads_large_enough",
    "expert_shapes",
    "memory_bound_gemm",
    "dtype_on_device",
    "batch_arithmetic",
    "fits_in_memory",
    "odd_sequence",
    "launch_bound",
    "low_precision_shards",
    "expert_group_padding",
    "mla_shape",
    "sequence_shards",
    "pipeline_ends",
    "recurrence_shape",
    "device_variants",
)

RULES: tuple[Rule, ...] = tuple(cast(Rule, import_module(f"sizer.rules.{name}")) for name in _FILES)


def find_rule(name: str) -> Rule:
    """The rule with this code or slug; an unknown one is an InputError naming the nearest."""
    for rule in RULES:
        if name.upper() == rule.CODE or name.lower() == rule.SLUG:
            return rule
    raise InputError(f"expected a rule's code or slug{nearest(name)}; `sizer rules` lists them", key="rule", value=name)


def nearest(name: str) -> str:
    """The codes and slugs that ``name`` resembles, in brackets after a blank; nothing where there is none."""
    from difflib import get_close_matches  # only an unknown name pays for it

    near = get_close_matches(name, [rule.CODE for rule in RULES] + [rule.SLUG for rule in RULES], n=3, cutoff=0.4)
    return f" (nearest: {', '.join(near)})" if near else ""


def summary_line(rule: Rule) -> str:
    """What a rule asks, in its docstring's first line."""
    return (rule.__doc__ or "").strip().splitlines()[0]
