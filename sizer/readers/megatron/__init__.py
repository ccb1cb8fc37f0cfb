"""Megatron-LM: a launch script, a test's or a user's YAML file of arguments, or saved ``args``; names and defaults are

those of megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.recipes import RECIPES
from shapes.saving import modules
from sizer.readers import expressions
from sizer.readers.expressions import check_allowed
from sizer.readers.megatron.arguments import is_script, normalised, parse_script
from sizer.readers.megatron.models import build
from sizer.readers.reading import Config, Fields, Reading, Unread, Values, is_harmless, reading, stated, table

NAME = "megatron"

_TABLE = table("formats")[NAME]
_UNUSED = "is read and not used by the step"

#: Dimension -> the arguments it may have.
KEYS: dict[str, list[str]] = _TABLE["dimensions"]

__all__ = ["KEYS", "NAME", "is_script", "normalised", "parse_script", "read"]


def read(config: Config, where: str) -> Reading:
    """Absent keys take Megatron's defaults: ffn 4h, or 64 floor(8h/3/64) with swiglu; MHA; tied embeddings."""
    unknown: Mapping[str, str] = config.get("_unknown", {})
    # In a script a flag has no value: what follows it is something else.
    present = frozenset(unknown) if "_program" in config else frozenset()
    fields = Fields(config, where, present=present)
    try:
        model, notes = build(fields)
        # What sizes the model is not left to a default; dropouts, lengths and degrees change no size.
        sizes = {key for key in unknown if key in fields.asked - fields.flags and not is_harmless(key, NAME)}
        for key in sorted(key for key in sizes if not key.endswith(("dropout", "seq_length", "parallel_size"))):
            raise InputError("expected this key", where=where, key=key)
        settled, layout_notes = workload(fields, model)
    except InputError as error:
        if error.key is not None and error.key in unknown:
            tested = "".join(f"--set {name}=... or " for name in config.get("_tested", ())[:3])
            said = f"its value is {unknown[error.key]}, which the file does not hold; {tested}--set {error.key}=N"
            raise InputError(said, where=where, key=error.key) from None
        raise
    lacks = "the layout or the model, and the file does not hold its value"
    left = [
        Unread(key, value, changes=lacks)
        for key, value in unknown.items()
        if key in fields.asked and key not in fields.flags and not is_harmless(key, NAME)
    ]
    left += [Unread(f"${name}", "further options", changes=lacks) for name in config.get("_further", ())]
    return reading(
        fields,
        NAME,
        model,
        keys={name: fields.key_of(*keys) for name, keys in KEYS.items()},
        workload=settled,
        longest=fields.optional("seq_length", "encoder_seq_length"),
        notes=(*notes, *layout_notes, *config.get("_notes", ())),
        unread=tuple(left),
    )


def workload(fields: Fields, model: ModelShape) -> tuple[Values, tuple[str, ...]]:
    """(fields of Workload that the arguments give, as the table says, notes on the rest)."""
    row, notes = table("trainers")[NAME], list[str]()
    read = {key: getattr(fields, kind)(key) for kind, keys in row["checked"].items() for key in keys}
    held = {key: value for key, value in read.items() if value is not None}
    # In a pipeline a device holds so many layers; of communication the pipeline's overlaps unless told otherwise.
    held |= {"_layers": model.layers // held.get("pipeline_model_parallel_size", 1), "_stacks": len(model.stacks)}
    held |= {"_p2p": fields.flag("overlap_p2p_comm", default=True), "_experts": model.moe is not None}
    held["_fp8"] = bool(fields.raw("fp8_format", "fp8", default=None))
    check_allowed(row["allowed"], row, held, fields)
    found, _ = expressions.workload(row, held, fields)
    if held["_fp8"]:
        recipe = fields.text("fp8_recipe", default="delayed")
        found |= stated(recipe=recipe in RECIPES and recipe)
        notes += [] if recipe in RECIPES else [f"fp8 recipe {recipe} {_UNUSED}"]
    found |= expressions.optimizer(fields, "optimizer", momentum=True) | stated(checkpointing=_recomputation(fields))
    own = held.get("expert_tensor_parallel_size")
    if model.moe is not None and own != found.get("t", 1):
        notes += [f"the experts' own tensor parallelism {own} {_UNUSED}"] if own else []
    return found, (*notes, *_data_parallel(fields, found))


def _recomputation(fields: Fields) -> str:
    granularity, activations = fields.text("recompute_granularity"), fields.flag("recompute_activations")
    fields.refuse(granularity not in ("", "full", "selective"), "expected full or selective", "recompute_granularity")
    if not granularity and fields.flag("checkpoint_activations"):  # before 2022 there was no other granularity
        granularity = "full"
    listed = fields.raw("recompute_modules", default=None) or []
    words = listed.replace(",", " ").split() if isinstance(listed, str) else listed
    if not isinstance(words, list) or not set(words).issubset(modules()):
        raise fields.error(f"expected some of {', '.join(modules())}", "recompute_modules")
    words += ["moe"] * fields.flag("moe_layer_recompute")
    most, first = fields.optional("recompute_num_layers"), fields.text("recompute_method") == "block"
    if granularity == "full":
        # "uniform" divides all layers in chunks, of which the inputs are kept; "block" takes the first of each stage.
        return f"full:{most}" if most and first else granularity
    return ",".join(words) or granularity or "selective" * activations


def _data_parallel(fields: Fields, found: Values) -> list[str]:
    """Data parallelism from the number of devices that the script starts."""
    devices = fields.config.get("_devices")
    split = found.get("t", 1) * found.get("p", 1) * found.get("cp", 1)
    experts = found.get("e", 1) * (fields.optional("expert_tensor_parallel_size") or found.get("t", 1))
    if not isinstance(devices, int):
        return []
    taken = "data parallelism is not taken from it"
    if devices % split:
        return [f"the script starts {devices} devices, which tp x pp x cp = {split} does not divide: {taken}"]
    d = devices // split
    if found.get("e", 1) > 1 and devices // found.get("p", 1) % experts:
        return [f"the script starts {devices} devices, too few for pp x {experts} ranks of the experts: {taken}"]
    if d > 1:
        found["d"] = d
    return []
