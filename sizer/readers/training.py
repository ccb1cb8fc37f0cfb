"""Trainers' settings (``--training FILE``): they give the workload and nothing of the architecture."""

from dataclasses import replace
from pathlib import Path

from shapes.errors import InputError
from sizer.readers.expressions import check_allowed, flat, workload
from sizer.readers.loading import load_text, parse_mapping
from sizer.readers.reading import Config, Fields, Names, Reading, Values, table, unread


def with_training(reading: Reading, files: Names) -> Reading:
    """``reading`` with the workload of ``files`` over its own, the later file over the earlier."""
    for file in files:
        reading = with_settings_of(reading, parse_mapping(load_text(Path(file)), file), file)
    return reading


def with_settings_of(reading: Reading, config: Config, where: str) -> Reading:
    """``reading`` with the workload of a trainer's settings, those of the file ``where``, over its own."""
    name = _trainer(config, where)
    fields = Fields(config, where)
    given = _of_table(name, fields)
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


def _accumulated(workload: Values) -> Names:
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
    held = flat({**row["defaults"], **fields.config})
    check_allowed(row.get("allowed", {}), row, held, Fields(held, fields.where))
    fields.ignore(*(key for key, other in row.get("moot", {}).items() if not fields.config.get(other)))
    return workload(row, held, fields)[0]
