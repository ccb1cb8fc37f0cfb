"""Seconds of a recurrence's scan: chunks one after the other, heads side by side, and the bytes that move meanwhile.

    seconds = launch + ((chunks x step + start) x waves)^q (+) (bytes / bandwidth)^q, each to the root of q

A thread block (or ``share`` of one SM) carries one head of one sequence through its chunks, so that a wave lasts as
long as its sequence; ``whole`` is the share of waves that run to their end. Kernels that write the states of every
chunk (fla's, which training runs) move those bytes too. Constants were fitted on published tables by device and
kernel (reports/fit/scans.py); a chunk's seconds are in proportion to its products' FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import hypot
from typing import Any

import numpy as np

from shapes.cost.constants import relative
from shapes.cost.error import P95_OVER_MEAN, SAME_ARCHITECTURE, SAME_VENDOR, Expected
from shapes.cost.predict import Cost, Term, cost_of
from shapes.device import Device, load_device
from shapes.frozen import frozen
from shapes.operators.types import Scan
from shapes.toml_table import DATA, content

_TABLES = content(DATA / "scans.toml")
#: FLOPs of the chunk that ``step_s`` was fitted on: 64 tokens, keys and values of 128, of the delta rule.
FITTED_CHUNK = Scan("", "forward", "gated_delta", 1, 64, 1, 1, 128, 128, 64).flops
#: Mean error of a kernel that nobody measured: another recurrence by the delta rule's constants, and a backward as two
#: and a half forwards. They are guesses, wide on purpose.
UNMEASURED, BACKWARD = 0.6, 2.5


@frozen
class ScanConstants:
    """Of one kernel on one device; ``source``: whose they are, ``expected``: what they may be off by."""

    launch_s: float
    step_s: float
    start_s: float
    share: float
    bandwidth_bytes_per_s: float
    whole: float
    q: float
    writes_states: bool
    source: str
    expected: Expected


@lru_cache(maxsize=256)
def scan_constants(device: Device, form: str, training: bool) -> ScanConstants:
    """The kernel's that serves or trains ``form`` on ``device``: its own, its nearest relative's, H100's at last."""
    known = _TABLES["training" if training else "serving"]
    kernels = known.get(form, known["gated_delta"])
    kin = next(name for name in (device.base, relative(device).base, "h100-sxm") if name in kernels)
    table, other = kernels[kin], load_device(kin)
    errors = [table["error"]]
    if kin != device.base:
        errors.append(SAME_ARCHITECTURE if other.architecture == device.architecture else 2 * SAME_VENDOR)
    if form not in known:
        errors.append(UNMEASURED)
    mean = hypot(*errors)
    fitted = len(errors) == 1
    numbers = {key: float(value) for key, value in table.items() if key not in ("error", "error_p95")}
    numbers["bandwidth_bytes_per_s"] *= device.memory.bandwidth_bytes_per_s / other.memory.bandwidth_bytes_per_s
    p95 = table["error_p95"] if fitted else P95_OVER_MEAN * mean
    source = f"predicted:{device.name}" + ("" if kin == device.base else f" (constants of {kin}, scaled)")
    own = Expected(mean, p95, "fitted" if fitted else "borrowed" if form in known else "extrapolated")
    return ScanConstants(**numbers, writes_states=training, source=source, expected=own)


def scan_parts(scan: Scan, device: Device) -> tuple[Any, Any, Any]:
    """Seconds of the launch, of the chunks and of what moving takes beyond them, of one run."""
    return parts_of(scan, scan_constants(device, scan.form, scan.training), device.compute.units)


def parts_of(scan: Scan, c: ScanConstants, units: int) -> tuple[Any, Any, Any]:
    """The same by these constants on so many SMs; the scan's sizes may be arrays."""
    times = BACKWARD if scan.phase != "forward" else 1.0
    chunk = scan.flops / (scan.batch * scan.heads * scan.chunks) / (1 if scan.phase == "forward" else 2)
    waves = scan.batch * scan.heads / (c.share * units)
    waves = c.whole * np.ceil(waves) + (1 - c.whole) * np.maximum(1.0, waves)
    walked = (scan.chunks * c.step_s * chunk / FITTED_CHUNK + c.start_s) * waves
    # The state is read and written once in fp32, or for every chunk in 16 bits.
    states = 4 * scan.batch * scan.heads * scan.head_dim * scan.state * (scan.chunks if c.writes_states else 2)
    read = scan.bytes / (1 if scan.phase == "forward" else 2)
    moved = (read + states) / c.bandwidth_bytes_per_s
    together = (walked**c.q + moved**c.q) ** (1 / c.q)
    return c.launch_s, times * walked, times * (together - walked)


def scan_costs(scans: Sequence[Scan], device: Device) -> list[Cost]:
    """Costs of scans; a backward was measured by nobody."""
    found = []
    for scan in scans:
        device.peak(scan.dtype)
        c = scan_constants(device, scan.form, scan.training)
        off = c.expected
        if scan.phase != "forward":
            error = hypot(off.error, UNMEASURED)
            off = Expected(error, P95_OVER_MEAN * error, "extrapolated")
        launch, walked, moved = map(float, scan_parts(scan, device))
        bound = "overhead" if launch > walked + moved else "memory" if moved > walked else "compute"
        found.append(cost_of(launch + walked + moved, c.source, off, "scan", bound))
    return found


def scan_terms(scan: Scan, cost: Cost, device: Device) -> Iterator[Term]:
    heads = scan.batch * scan.heads
    said = (
        ("launch", "fixed cost of the kernels"),
        ("chunks", f"{scan.chunks} chunks of {scan.chunk} one after the other, {heads} heads side by side"),
        ("bytes", "moving queries, keys, values and states, beyond what the chunks hide"),
    )
    for (what, why), seconds in zip(said, scan_parts(scan, device), strict=True):
        yield Term(what, float(seconds), why)
