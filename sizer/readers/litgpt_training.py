"""litgpt's recipes (``litgpt pretrain --config``, ``litgpt finetune --config``): a model by its name, and its training.

Sizes of the named models are in litgpt_models.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shapes.errors import InputError
from sizer.readers import layouts
from sizer.readers.fields import Fields, stated, table
from sizer.readers.reading import Reading, did_you_mean
from sizer.readers.training import optimizer

NAME = "litgpt_training"

_TABLE = table("formats")[NAME]


def read(config: Mapping[str, Any], where: str) -> Reading:
    fields = Fields(config, where)
    settings = fields.nested("model_config") if config.get("model_config") else None
    fields.ignore("model_config")
    # Queries, keys and values have adapters of their own, so the projections are listed apart.
    adapted = fields.optional("lora_r") is not None
    sizes = settings.config if settings is not None else _sizes(fields)
    reading = layouts.read("litgpt", {**sizes, "fused_qkv": not adapted}, where)
    train = fields.nested("train")
    workload = train.given(train.optional, **_TABLE["workload"])
    gpus = fields.devices() or 0
    workload |= stated(gpus=gpus, zero=3 if gpus > 1 else 0) | _TABLE["precisions"].get(fields.text("precision"), {})
    if adapted:
        workload |= _adapters(fields)
        workload.pop("precision", None)  # of the base, which is frozen
    elif "checkpoint_dir" in config:
        workload["finetune"] = "full"
    if gpus > 1 and "finetune" in workload:
        workload["checkpointing"] = "full"  # finetune/*.py: FSDPStrategy(activation_checkpointing_policy={Block})
    section = config.get("optimizer")
    kind = section.get("class_path") if isinstance(section, Mapping) else section
    own = Fields({"optimizer": str(kind).rpartition(".")[2]}, where, asked=fields.asked)
    workload |= optimizer(own, "optimizer")
    return replace(
        reading,
        format=NAME,
        workload=workload,
        keys={},
        asked=frozenset(fields.asked),
        unread=(),
        longest=train.optional("max_seq_length") or reading.longest,
    )


def _sizes(fields: Fields) -> dict[str, Any]:
    """The settings of the model named, or of the checkpoint whose folder is called as the model is."""
    key = "model_name" if fields.text("model_name") else "checkpoint_dir"
    name = fields.text(key).rstrip("/").rpartition("/")[2].lower()
    models = table("litgpt_models")["models"]
    if name not in models:
        near = did_you_mean(name, models)
        guess = f": did you mean {near}?" if near else "; give model_config"
        raise InputError(f"is not a model of litgpt's that is known{guess}", where=fields.where, key=key, value=name)
    return {"norm_class_name": "LayerNorm", **models[name], "name": name}


def _adapters(fields: Fields) -> dict[str, Any]:
    chosen = [
        names
        for key, names in _TABLE["targets"].items()
        if fields.flag(key, default=key in ("lora_query", "lora_value"))
    ]
    if not chosen:
        raise fields.error("expected an adapter that is on", "lora_query")
    quantised = fields.text("quantize")
    base = fields.choice(quantised, _TABLE["bases"], "quantize") if quantised else None
    method = {"finetune": "qlora", "base": base} if base else {"finetune": "lora"}
    return {**method, "lora_rank": fields.integer("lora_r"), "lora_targets": ",".join(chosen)}
