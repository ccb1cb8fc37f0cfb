"""Optimizers as files call them, in every format, under the names of ``shapes.model.states``."""

from __future__ import annotations

from typing import Any

from sizer.readers.fields import Fields

#: Lower case, without underscores and a suffix that says only which kernel runs. Those whose states are not known are
#: not here: their key is named as not read.
NAMES = {
    "adam": "adamw",
    "adamw": "adamw",
    "fusedadam": "adamw",
    "distributedfusedadam": "adamw",
    "cpuadam": "adamw",
    "deepspeedcpuadam": "adamw",
    "mcoredistributedoptim": "adamw",
    "adamwtorch": "adamw",
    "adamwhf": "adamw",
    "adamwapex": "adamw",
    "pagedadamw": "adamw",
    "pagedadamw32bit": "adamw",
    "stableadamw": "adamw",
    "adamwanyprecision": "adamw-bf16",
    "adamwbnb8bit": "adamw-8bit",
    "adamw8bit": "adamw-8bit",
    "pagedadamw8bit": "adamw-8bit",
    "adafactor": "adafactor",
    "lion": "lion",
    "lion32bit": "lion",
    "muon": "muon",
    "distmuon": "muon",
    "sgd": "sgd",
}


def optimizer(fields: Fields, name: str, *, momentum: bool = False, default: str = "") -> dict[str, Any]:
    """The workload's ``optimizer`` as ``fields`` say it under ``name``; empty where it is the usual one or unknown.

    ``momentum``: the framework's sgd has a moment. An unknown name leaves the key unread.
    """
    said = fields.config.get(name, default)
    plain = str(said).lower().replace("_", "").removesuffix("fused")
    known = NAMES.get(plain)
    if known is None:
        return {}
    fields.ignore(name)
    known = "sgd-momentum" if known == "sgd" and momentum else known
    return {} if known == "adamw" else {"optimizer": known}
