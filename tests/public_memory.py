"""Published peaks of memory (tests/data/public_memory.toml) next to what sizer says of the same runs.

Used by tests/test_memory.py and reports/bench/memory_peaks.py.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shapes.memory import memory
from shapes.workload import Workload
from sizer.readers import read_config

PEAKS = Path(__file__).parent / "data" / "public_memory.toml"
GIB = 2**30
#: Of a run what its source says, or what no split is.
SETTINGS = (
    "gib",
    "reserved",
    "gathers",
    "reduces",
    "checkpointing",
    "finetune",
    "base",
    "lora_rank",
    "lora_dropout",
    "lora_targets",
)


@dataclass(frozen=True)
class Peak:
    """One run: allocated GiB, sizer's and the published, at which moment sizer has it, and how far off it may be.

    ``reserved``: GiB that torch's allocator held of the device, published and as sizer simulates it.
    """

    source: str
    model: str
    split: str
    ours: float
    published: float
    moment: str
    within: float
    reserved: tuple[float, float] | None = None

    @property
    def off(self) -> float:
        return self.ours / self.published - 1


def sources() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(PEAKS.read_text(encoding="utf-8"))["source"]
    return found


@dataclass(frozen=True)
class Run:
    """One run as its ``source`` describes it: ``model``'s name there, and what of it is no other run's."""

    source: dict[str, Any]
    model: str
    own: dict[str, Any]

    @property
    def split(self) -> str:
        said = {key: value for key, value in self.own.items() if key not in SETTINGS}
        return ", ".join(value if key == "device" else f"{key} {value}" for key, value in said.items())

    def peak(self) -> Peak:
        source, run = self.source, self.own
        own = {key: value for key, value in run.items() if key not in ("gib", "reserved", "device")}
        fields = {**source["workload"], **own}
        workload = Workload(**fields, sequence_parallel=fields.get("t", 1) > 1)
        model = read_config(source["models"][self.model]).model
        # What the caching allocator hands out: no context, no rounding. To simulate it takes most of the time.
        how = {"device": run.get("device"), "simulate": "reserved" in run, **source["options"]}
        answer = memory(model, workload, context_bytes=0, **how)
        held = (run["reserved"], (answer.reserved_bytes or 0) / GIB) if "reserved" in run else None
        ours = answer.total_bytes / GIB
        return Peak(source["name"], self.model, self.split, ours, run["gib"], answer.moment, source["within"], held)


def runs() -> Iterator[Run]:
    """Every run of every source; none is worked out yet."""
    for source in sources():
        for name, listed in source["runs"].items():
            yield from (Run(source, name, one) for one in listed)


def peaks() -> Iterator[Peak]:
    return (one.peak() for one in runs())
