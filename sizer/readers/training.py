"""Trainers' settings (``--training FILE``): they give the workload and nothing of the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shapes.errors import InputError
from sizer.readers.expressions import flat, workload
from sizer.readers.fields import Config, Fields, Values, stated, table
from sizer.readers.loading import load_text, parse_mapping
from sizer.readers.reading import Reading, unread

#: accelerate's sharding strategies as ZeRO stages, and its names of parallel degrees.
_TABLE = table("formats")["accelerate"]


def with_training(reading: Reading, files: tuple[str, ...]) -> Reading:
    """``reading`` with the workload of ``files`` over its own, the later file over the earlier."""
    for file in files:
        reading = with_settings_of(reading, parse_mapping(load_text(Path(file)), file), file)
    return reading


def with_settings_of(reading: Reading, config: Config, where: str) -> Reading:
    """``reading`` with the workload of a trainer's settings, those of the file ``where``, over its own."""
    name = _trainer(config, where)
    fields = Fields(config, where)
    given = accelerate(fields) if name == "accelerate" else _of_table(name, fields)
    if name == "deepspeed" and "no_overlap" in reading.workload:
        # Of communication it is data parallelism's alone that it decides.
        kept = [one for one in reading.workload["no_overlap"].split(",") if one not in ("data", "gather", "none")]
        given["no_overlap"] = ",".join([*kept, *(["data"] if "no_overlap" in given else [])]) or "none"
    settled = {**reading.workload, **given}
    notes = (f"workload from {Path(where).name} ({name})", *_accumulated(settled))
    return replace(
        reading,
        workload=settled,
        notes=(*reading.notes, *notes),
        unread=(*reading.unread, *unread(config, fields.asked, name, where)),
    )


def _accumulated(workload: Values) -> tuple[str, ...]:
    """Microbatches that accumulate make the global batch, where data parallelism is known; else a note."""
    steps, b = workload.pop("accumulated", None), workload.get("b")
    if not steps or not b or "global_batch" in workload:
        return ()
    d = workload.get("d")
    if d is None and "gpus" in workload:
        d = workload["gpus"] // (workload.get("t", 1) * workload.get("p", 1) * workload.get("cp", 1))
    if d:
        workload["global_batch"] = steps * b * d
        return ()
    return (
        (f"{steps} microbatches accumulate: the global batch is {steps * b} x data parallelism",) if steps > 1 else ()
    )


def _trainer(config: Config, where: str) -> str:
    claims = table("trainers")["claims"]
    for name, keys in claims:
        if not config.keys().isdisjoint(keys):
            return str(name)
    raise InputError(f"expected a trainer's settings ({', '.join(dict(claims))})", where=where)


def _of_table(name: str, fields: Fields) -> Values:
    """The workload that the table ``name`` of trainers.json makes of a trainer's settings."""
    row = table("trainers")[name]
    for key, kind in row["checked"].items():
        getattr(fields, kind)(key)
    fields.ignore(*(key for key, other in row.get("moot", {}).items() if not fields.config.get(other)))
    return workload(row, flat({**row["defaults"], **fields.config}), fields)[0]


def accelerate(fields: Fields) -> Values:
    """accelerate's configuration: processes, precision and FSDP's sharding."""
    found = fields.given(fields.automatic, gpus="num_processes")
    precision = fields.text("mixed_precision", default="no")
    found |= {"dtype": precision} if precision in ("bf16", "fp16", "fp8") else {}
    fsdp = _section(fields, "fsdp_config")
    if fsdp.config:
        names = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
        strategy = str(fsdp.raw(*names, default="FULL_SHARD")).upper()
        found["zero"] = fsdp.choice(strategy, _TABLE["sharding"], names[0])
        if fsdp.raw("fsdp_activation_checkpointing", default=False) is True:
            found["checkpointing"] = "full"
    deep = _section(fields, "deepspeed_config")
    if "zero_stage" in deep.config:
        stage = min(deep.count("zero_stage"), 3)
        found |= stated(zero=stage, no_overlap="data" * (stage < 3))
    megatron = _section(fields, "megatron_lm_config")
    found |= megatron.given(megatron.automatic, **_TABLE["megatron"])
    mesh = _section(fields, "parallelism_config")
    sizes = mesh.given(mesh.automatic, **_TABLE["mesh"])
    ranks = sizes.pop("shard", 1) * sizes.get("replicas", 1)
    return found | {key: size for key, size in sizes.items() if size > 1} | ({"d": ranks} if ranks > 1 else {})


def _section(fields: Fields, name: str) -> Fields:
    """A section of accelerate's, which writes empty ones, or null, for what is not used."""
    held = fields.config.get(name)
    return fields.nested(name) if isinstance(held, Mapping) and held else Fields({}, fields.where)
