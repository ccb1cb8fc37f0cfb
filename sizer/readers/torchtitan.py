"""torchtitan's TOML: a model by its name and flavor (sizes in torchtitan.json), and how it is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shapes.errors import InputError
from shapes.saving import ALTERNATE
from sizer.readers import huggingface
from sizer.readers.fields import Fields, table
from sizer.readers.reading import Reading, did_you_mean
from sizer.readers.training import optimizer

NAME = "torchtitan"


def read(config: Mapping[str, Any], where: str) -> Reading:
    fields = Fields(config, where)
    model, training = fields.nested("model"), fields.nested("training")
    reading = huggingface.read(_sizes(model), where)
    workload = training.given(training.optional, b=("local_batch_size", "batch_size"), s="seq_len")
    total = training.raw("global_batch_size", default=-1)
    workload |= {"global_batch": total} if type(total) is int and total > 0 else {}
    workload |= _layout(fields)
    workload |= optimizer(fields.nested("optimizer"), "name")
    if training.config.get("mixed_precision_param") in (None, "bfloat16"):
        training.ignore("mixed_precision_param")
    if training.text("mixed_precision_reduce", default="float32") == "float32" and workload.get("zero") == 3:
        workload["reduces"] = "fp32"
    section = fields.nested("activation_checkpoint")
    recomputed, option = section.text("mode", default="selective"), section.raw("selective_ac_option", default="op")
    if recomputed == "selective" and str(option).isdecimal():  # every so many-th layer
        workload["checkpointing"] = f"full:{max(1, reading.model.layers // max(1, int(option)))}"
    elif recomputed in ("selective", "full"):
        workload["checkpointing"] = ALTERNATE if recomputed == "selective" else recomputed
    converters = model.raw("converters", default=None)
    if isinstance(converters, list) and any("float8" in str(one) for one in converters):
        workload["dtype"] = "fp8"
    notes = ("bf16 by FSDP's mixed precision",) if "dtype" not in workload else ()
    return replace(
        reading,
        format=NAME,
        workload=workload,
        notes=(*reading.notes, *notes),
        keys={},
        unread=(),
        asked=frozenset(fields.asked),
        longest=None,
    )


def _layout(fields: Fields) -> dict[str, Any]:
    """Degrees; parameters are sharded over the shard degree (-1: over all devices that are left)."""
    section = fields.nested("parallelism", "experimental")
    degrees = section.given(section.count, **table("formats")[NAME]["degrees"])
    found = {key: value for key, value in degrees.items() if value > 1}
    shard = section.raw("data_parallel_shard_degree", default=-1)
    replicas = section.count("data_parallel_replicate_degree", default=1)
    if shard != 1:
        found["zero"] = 3
    if type(shard) is int and shard > 0 and shard * replicas > 1:
        found["d"] = shard * replicas
        found |= {"replicas": replicas} if replicas > 1 and shard > 1 else {}
    return found


def _sizes(model: Fields) -> dict[str, Any]:
    name, flavor = model.text("name"), model.text("flavor")
    flavors = model.choice(name, table("torchtitan")["models"], "name")
    base = re.sub("(_(flex|varlen)(_attn)?)+$", "", flavor)
    if base not in flavors:
        near = did_you_mean(flavor, flavors)
        guess = f": did you mean {near}?" if near else f": expected one of {', '.join(flavors)}"
        raise InputError(
            f"is not a flavor of {name} that is known{guess}", where=model.where, key="model.flavor", value=flavor
        )
    return dict(flavors[base])
