"""Megatron-LM: a launch script, a test's or a user's YAML file of arguments, or saved ``args``; names and defaults are

those of megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.model.resize import dimensions
from sizer.readers.fields import Fields, table
from sizer.readers.megatron.arguments import SCRIPT_KEYS, flat_arguments, is_script, parse_script
from sizer.readers.megatron.layout import workload
from sizer.readers.megatron.models import build
from sizer.readers.reading import Reading, reading
from sizer.readers.unread import Unread, is_harmless

NAME = "megatron"

#: Dimension -> the arguments it may have.
KEYS: dict[str, list[str]] = table("formats")[NAME]["dimensions"]

__all__ = ["KEYS", "NAME", "is_script", "matches", "normalised", "parse_script", "read"]


def matches(config: Mapping[str, Any]) -> bool:
    """Megatron says hidden_size, num_attention_heads and a number of layers, and never model_type."""
    if "_program" in config:
        return True  # a script that was parsed here
    keys = flat_arguments(config)
    layers = ("num_layers", "encoder_num_layers", "hybrid_layer_pattern", "hybrid_override_pattern")
    own = "hidden_size" in keys and "num_attention_heads" in keys and any(key in keys for key in layers)
    return own and "mlp_type" not in keys and "no_weight_tying" not in keys


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a file's sections by name: no leading dashes, underscores inside."""
    return flat_arguments(config)


def read(config: Mapping[str, Any], where: str) -> Reading:
    """Absent keys take Megatron's defaults: ffn 4h, or 64 floor(8h/3/64) with swiglu; MHA; tied embeddings."""
    flat = flat_arguments(config)
    unknown: Mapping[str, str] = flat.get("_unknown", {})
    # In a script a flag stands for itself: what follows it, and has no value there, is something else.
    present = frozenset(unknown) if "_program" in flat else frozenset()
    fields = Fields({key: value for key, value in flat.items() if key not in SCRIPT_KEYS}, where, present=present)
    try:
        model, notes = build(fields, flat)
        settled, layout_notes = workload(fields, model, flat)
    except InputError as error:
        if error.key is not None and error.key in unknown:
            tested = "".join(f"--set {name}=... or " for name in flat.get("_tested", ())[:3])
            said = f"its value is {unknown[error.key]}, which the file does not hold; {tested}--set {error.key}=N"
            raise InputError(said, where=where, key=error.key) from None
        raise
    lacks = "the layout or the model, and the file does not hold its value"
    left = [
        Unread(key, value, changes=lacks)
        for key, value in unknown.items()
        if key in fields.asked and key not in fields.flags and not is_harmless(key, NAME)
    ]
    left += [Unread(f"${name}", "further options", changes=lacks) for name in flat.get("_further", ())]
    return reading(
        fields,
        NAME,
        model,
        keys=_keys(flat, model),
        workload=settled,
        longest=fields.optional("seq_length", "encoder_seq_length"),
        notes=(*notes, *layout_notes, *flat.get("_notes", ())),
        unread=tuple(left),
    )


def _keys(flat: Mapping[str, Any], model: ModelShape) -> dict[str, str]:
    present = {name: next((key for key in keys if key in flat), keys[0]) for name, keys in KEYS.items()}
    drop = [] if model.moe is not None else ["experts", "top_k", "expert_d_ff"]
    if model.dense_mlp is None:
        drop.append("d_ff")
    if model.moe is None or model.moe.shared is None:
        drop.append("shared_d_ff")
    drop += [name for name in KEYS if name.startswith(("linear_", "state_")) and name not in dimensions(model)]
    return {name: key for name, key in present.items() if name not in drop} | {"vocab": "vocab_size"}
