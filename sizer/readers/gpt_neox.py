"""GPT-NeoX YAML: dashes and underscores both occur, and a gated MLP is cut to two thirds, as transformer.py does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shapes.errors import shorten
from shapes.model.resize import dimensions
from sizer.readers import layouts
from sizer.readers.fields import Fields, stated, table, vocabulary
from sizer.readers.reading import Reading, Unread
from sizer.readers.training import optimizer, zero_optimization

NAME = "gpt_neox"

_TABLE = table("formats")[NAME]
#: Kinds of attention in which a query sees all keys before it.
DENSE = ("global", "flash")


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every key with underscores; sections are GPT-NeoX's own mappings and stay."""
    return {str(key).replace("-", "_"): value for key, value in config.items()}


def read(config: Mapping[str, Any], where: str) -> Reading:
    """Without vocab_size the named tokenizer's is taken, else GPT-2's, and padded; a note says so."""
    fields = Fields(config, where)
    left = _attention_kinds(fields, fields.layers("num_layers"))
    vocab, notes = vocabulary(fields, "model_parallel_size", lambda: _tokenizers(fields))
    experts = fields.count("moe_num_experts", default=1) > 1
    sizes = {
        **config,
        "vocab_size": vocab,
        "mixed": experts or None,
        "plain_size": fields.optional("intermediate_size"),
    }
    reading = layouts.read(NAME, sizes, where)
    mlp, keys = reading.model.dense_mlp, dict(_TABLE["dimensions"])
    if mlp is not None and mlp.gated:  # half of two thirds is no key of the file, which holds another number
        del keys["d_ff"]
        notes += (f"gated: gate and up share two thirds of the width, as GPT-NeoX builds it: {mlp.width} each",)
    return replace(
        reading,
        keys={name: key for name, key in keys.items() if name in dimensions(reading.model)},
        workload=_workload(fields),
        longest=fields.optional("seq_length"),
        notes=(*reading.notes, *notes),
        unread=left,
        asked=reading.asked | fields.asked,
    )


def _attention_kinds(fields: Fields, layers: int) -> tuple[Unread, ...]:
    """What is not read of ``attention_config``: [[["global", "local"], 6]], "all" to the last."""
    listed = fields.raw("attention_config", default=None)
    if listed is None:
        return ()
    kinds: list[str] = []
    try:
        for entry in listed:
            names, times = entry if isinstance(entry, list) else ([entry], 1)
            names = [names] if isinstance(names, str) else names
            kinds += names * (layers // len(names) if times == "all" else min(times, layers))
    except (TypeError, ValueError, ArithmeticError):
        kinds = []
    strange = next((kind for kind in kinds if kind in _TABLE["no_attention"]), None)
    if strange is not None:
        raise fields.error(f"has no formula here: {strange} layers", "attention_config")
    if len(kinds) != layers or not all(isinstance(kind, str) for kind in kinds):
        raise fields.error(f"expected the attention of {layers} layers", "attention_config")
    sparse = sorted({kind for kind in kinds if kind not in DENSE})
    left = [Unread("attention_config", shorten(listed), f"which keys a query sees ({', '.join(sparse)})")]
    return tuple(left) if sparse else ()


def _tokenizers(fields: Fields) -> tuple[str, ...]:
    kind, file = fields.text("tokenizer_type", default="GPT2BPETokenizer"), str(fields.raw("vocab_file", default=""))
    # An HFTokenizer without a name is GPT-NeoX-20B's, which Pythia has too.
    return file.rpartition("/")[2], file, kind, "gpt-neox-20b" if kind == "HFTokenizer" else ""


def _workload(fields: Fields) -> dict[str, Any]:
    # A pipeline of 0 stages is DeepSpeed's way of saying none.
    found = fields.given(fields.count, **_TABLE["workload"])
    found |= zero_optimization(fields.nested("zero_optimization"))
    found |= optimizer(fields.nested("optimizer"), "type", momentum=True)
    recomputed, each = fields.flag("checkpoint_activations"), fields.count("checkpoint_num_layers", default=1)
    full = "full" if recomputed and each == 1 else None
    found |= stated(sequence_parallel=fields.flag("sequence_parallel"), checkpointing=full)
    precision = fields.text("precision")
    for dtype, name in (("bf16", "bfloat16"), ("fp16", "fp16")):
        section = fields.raw(dtype, default=None)
        on = isinstance(section, Mapping) and section.get("enabled", dtype == "bf16") is True
        if precision == name or (on and not precision):
            return {**found, "dtype": dtype}
    return found
