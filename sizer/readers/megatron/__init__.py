"""Megatron-LM: a launch script, a test's or a user's YAML file of arguments, or saved ``args``; names and defaults are

those of megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.recipes import RECIPES
from shapes.saving import modules
from sizer.readers.expressions import optimizer
from sizer.readers.fields import Config, Fields, Values, stated, table
from sizer.readers.megatron.arguments import is_script, normalised, parse_script
from sizer.readers.megatron.models import build
from sizer.readers.reading import Reading, Unread, is_harmless, reading

NAME = "megatron"

_TABLE = table("formats")[NAME]
_UNUSED = "is read and not used by the step"

#: Dimension -> the arguments it may have.
KEYS: dict[str, list[str]] = _TABLE["dimensions"]

__all__ = ["KEYS", "NAME", "is_script", "matches", "normalised", "parse_script", "read"]


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
    """(fields of Workload that the arguments give, notes on the rest)."""
    found, notes = fields.given(fields.optional, **_TABLE["degrees"]), list[str]()
    sequence, target = fields.optional("seq_length", "encoder_seq_length"), fields.optional("decoder_seq_length")
    if len(model.stacks) == 1 and target:
        sequence, target = target, None  # a vision-language model's: what its language model sees, images included
    found |= stated(s=sequence, decoder_s=target, sequence_parallel=fields.flag("sequence_parallel"))
    found |= fields.given(fields.optional, b="micro_batch_size", global_batch="global_batch_size")
    found |= stated(dtype=fields.switched_on("bf16", "fp16"))
    if fields.raw("fp8_format", "fp8", default=None):
        recipe = fields.text("fp8_recipe", default="delayed")
        found |= {"dtype": "fp8", **stated(recipe=recipe in RECIPES and recipe)}
        notes += [] if recipe in RECIPES else [f"fp8 recipe {recipe} {_UNUSED}"]
    found |= _sharding(fields) | _dispatch(fields, model)
    found |= _not_overlapped(fields, sharded=found.get("zero", 0) > 0)
    found |= optimizer(fields, "optimizer", momentum=True)
    # bf16's gradients are added up and reduced in fp32 unless told not to (arguments.py, validate_args).
    narrow, wide = fields.flag("grad_reduce_in_bf16"), fields.flag("accumulate_allreduce_grads_in_fp32")
    if (found.get("dtype") == "bf16" and not narrow) or wide:
        found["reduces"] = "fp32"
    eager = fields.text("attention_backend", default="auto") in ("unfused", "local")
    stages = _virtual_stages(fields, model, found.get("p", 1))
    found |= stated(checkpointing=_recomputation(fields), attention="eager" if eager else None, vpp=stages)
    own = fields.optional("expert_tensor_parallel_size")
    if model.moe is not None and own != found.get("t", 1):
        notes += [f"the experts' own tensor parallelism {own} {_UNUSED}"] if own else []
    return found, (*notes, *_data_parallel(fields, found))


def _sharding(fields: Fields) -> Values:
    """The distributed optimizer shards states alone (ZeRO 1); Megatron-FSDP as its strategy says; FSDP 2 everything."""
    distributed = fields.flag("use_distributed_optimizer")
    if stage := fields.count("zero_stage"):  # Megatron-DeepSpeed's
        return {"zero": min(stage, 3)}
    if fields.flag("use_torch_fsdp2"):
        return {"zero": 3}
    strategy = fields.text("data_parallel_sharding_strategy", default="no_shard")
    if fields.flag("use_megatron_fsdp") or fields.flag("use_custom_fsdp"):
        return {"zero": fields.choice(strategy, _TABLE["sharding"], "data_parallel_sharding_strategy")}
    return stated(zero=int(distributed))


def _not_overlapped(fields: Fields, *, sharded: bool) -> Values:
    """Communication that Megatron does not overlap unless told to; the pipeline's it does, unless told not to.

    FSDP 2 prefetches by itself. Gathers of updated weights are only overlapped where the gradients' reduction is. The
    backward has tensor parallelism's sends during a product of its own in any case (layers.py, async communication).
    """
    prefetches = fields.flag("use_torch_fsdp2")
    data, gather = (prefetches or fields.flag(f"overlap_{what}") for what in ("grad_reduce", "param_gather"))
    fields.flag("moe_shared_expert_overlap")  # the stacks' constant is of runs with it; the other flag: _dispatch
    off = {
        "tensor-forward": not fields.flag("tp_comm_overlap"),
        "data": not data,
        "gather": data and sharded and not gather,
        "pipeline": fields.flag("no_overlap_p2p_communication") or not fields.flag("overlap_p2p_comm", default=True),
    }
    return stated(no_overlap=",".join(group for group, alone in off.items() if alone))


def _dispatch(fields: Fields, model: ModelShape) -> Values:
    """How a mixture's tokens reach their experts: by NCCL, unless by a flexible dispatcher (DeepEP, HybridEP)."""
    kind, overlapped = fields.text("moe_token_dispatcher_type"), fields.flag("overlap_moe_expert_parallel_comm")
    if model.moe is None:
        return {}
    return stated(dispatcher=kind and ("flex" if kind == "flex" else "alltoall"), ep_overlap=overlapped)


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


def _virtual_stages(fields: Fields, model: ModelShape, p: int) -> int | None:
    """Model chunks a device holds under the interleaved schedule."""
    given = fields.optional("num_virtual_stages_per_pipeline_rank")
    each = fields.optional("num_layers_per_virtual_pipeline_stage")
    if given is None and each is not None:
        given = model.layers // p // each
    return given if given and given > 1 else None


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
