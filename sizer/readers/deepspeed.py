"""DeepSpeed's ZeRO section, in its own ds_config.json and in the files of trainers that hand it on."""

from __future__ import annotations

from typing import Any

from sizer.readers.fields import Fields


def zero_optimization(section: Fields, stage_name: str = "stage") -> dict[str, Any]:
    """The workload's ZeRO stage, and whether the gradients' reduction runs beside the backward.

    ``overlap_comm`` is on with stage 3 and off with the others unless told (deepspeed/runtime/zero/config.py).
    """
    stage = 0 if section.raw(stage_name, default=None) == "auto" else section.count(stage_name)
    said = section.raw("overlap_comm", default=None)
    overlaps = said if isinstance(said, bool) else stage >= 3
    return {**({"zero": min(stage, 3)} if stage else {}), **({} if overlaps else {"no_overlap": "data"})}
