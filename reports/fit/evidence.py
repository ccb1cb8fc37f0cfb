"""Measurements that others published, as CSV with the columns of their README: rows, and how each source timed.

A source's harness is part of its rows: what it adds to a kernel's own time is written down here, by source, sweep and
device, and is never part of a device's constants.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, cast

import numpy as np
from numpy.typing import NDArray

from shapes.cost.constants import gemm_constants
from shapes.cost.corrections import LEADING, operand_classes
from shapes.cost.gemm import predict_gemm, throttled
from shapes.device import load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.kernels import KERNELS
from shapes.operators.types import Attention, Layout

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Row = dict[str, str]

#: Host seconds of one torch.mm call in GAC's H100 runs: through a TMA kernel (it encodes tensor maps), and without.
#: The flat level of its 2048-wide sweeps, where 200 calls in a row take as long whatever their size.
GAC_H100_HOST_S = (17.8e-6, 15.3e-6)
#: On its A100 the host is never the longer; what a single call between two events adds there.
GAC_A100_HOST_S = (5e-6, 5e-6)
#: Host seconds of one call in NeuSight's rows, before the kernel on an idle device: torch.bmm (nn) and a linear layer
#: (tn), where products of a microsecond all take this long.
NEUSIGHT_HOST_S = {"nn": 31e-6, "tn": 52e-6}
#: Found with T4's constants (plain_cores.py), which are of sustained work.
NEUSIGHT_FELT_S = 1.3e-3
NEUSIGHT_V100_HOST_S = {"nn": 39e-6, "tn": 64e-6}


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a harness makes of a kernel's time.

    ``host_s``: host seconds a call, aligned and misaligned. ``queued``: many calls in a row hide host and device behind
    each other, the longer counts; else a call is timed on an idle device, and the host's time comes before the
    kernel's. ``multiple``: dimensions are padded to it before timing; ``recipe``: whose kernels were timed. ``felt_s``:
    of what lasts longer the power limit is felt on plain cores, where an idle device has saved up for shorter work.
    """

    host_s: tuple[float, float] = (0.0, 0.0)
    queued: bool = True
    multiple: int = 1
    recipe: str | None = None
    felt_s: float = 0.0


def protocol(row: Row) -> Protocol:
    """How ``row``'s source timed it."""
    if row["source"] == "gac":
        host = GAC_H100_HOST_S if row["device"].startswith("h") else GAC_A100_HOST_S
        # scripts/tensor_core_alignment_sweep.py: two events around each call, synchronised; profile_alignment.py: 200.
        return Protocol(host, queued=not row.get("sweep", "").startswith("tc_"))
    if row["source"] == "neusight":
        host_s = (NEUSIGHT_V100_HOST_S if row["device"].startswith("v100") else NEUSIGHT_HOST_S).get(row["layout"], 0.0)
        return Protocol((host_s, host_s), queued=False, felt_s=NEUSIGHT_FELT_S)
    if row["source"] == "pipeweave":
        # Its dataset counts tiles of 128 x 128 throughout, and every k is a multiple of 128.
        return Protocol(recipe="blockwise")
    if row["source"] == "deepbench":
        return Protocol(multiple=8)
    return Protocol()


@dataclass(frozen=True, slots=True)
class Measured:
    """Products of one device, dtype, layout and protocol: dimensions and seconds, arrays of one length."""

    device: str
    dtype: str
    layout: str
    protocol: Protocol
    m: Integers
    n: Integers
    k: Integers
    batch: Integers
    seconds: Array
    rows: tuple[Row, ...]

    def classes(self) -> Integers:
        """Index into shapes.cost.corrections.CLASSES of the worse of A and B; the last where nothing asks for more."""
        size = BYTES[self.dtype]
        layout = cast(Layout, self.layout)
        a, b, _ = operand_classes((self.m, self.n, self.k), (size, size, max(size, 2)), layout)
        return cast(Integers, np.minimum(a, b))

    def rows_of(self, which: NDArray[np.bool_]) -> Measured:
        """The rows that ``which`` says, alone."""
        arrays = (array[which] for array in (self.m, self.n, self.k, self.batch, self.seconds))
        rows = tuple(row for row, kept in zip(self.rows, which.tolist(), strict=True) if kept)
        return Measured(self.device, self.dtype, self.layout, self.protocol, *arrays, rows)

    def as_timed(self, kernel_s: Array) -> Array:
        """What this harness would report of kernels that take ``kernel_s``."""
        p = self.protocol
        if not any(p.host_s):
            return kernel_s
        host = np.where(self.classes() < 2, p.host_s[1], p.host_s[0])
        if p.queued:
            return cast(Array, np.maximum(kernel_s, host))
        c = gemm_constants(load_device(self.device), self.dtype)[0]
        body = kernel_s - c.launch_s
        if p.felt_s and c.throttle:
            body = throttled(body / (1 + c.throttle), replace(c, throttle_s=p.felt_s))
        return cast(Array, body + host)

    def predicted(self) -> Array:
        """Seconds that the device's constants give, as this harness would report them."""
        padded = [-(-dims // self.protocol.multiple) * self.protocol.multiple for dims in (self.m, self.n, self.k)]
        kernel = predict_gemm(
            self.device,
            *padded,
            batch=self.batch,
            dtype=self.dtype,
            layout=cast(Layout, self.layout),
            recipe=self.protocol.recipe,
        )
        return self.as_timed(kernel)


def read_rows(path: Path, columns: Iterable[str] = ()) -> list[Row]:
    """The rows of a CSV file, compressed or not, with ``columns`` and others.

    InputError: it cannot be read, lacks a column, or has a value that is none of its column's (the line is named).
    """
    try:
        with cast(TextIO, gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8")) as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    for column in columns:
        if rows and column not in rows[0]:
            raise InputError("expected the columns of the evidence", where=str(path), key=column)
    for line, row in enumerate(rows, 2):
        for column in row.keys() & COLUMNS.keys():
            fits, expected = COLUMNS[column]
            # A line that ends early has no value there.
            if not fits(row[column] or ""):
                raise InputError(f"expected {expected}", where=f"{path}:{line}", key=column, value=row[column])
    return rows


def _positive(value: str) -> bool:
    try:
        return not value or 0 < float(value) < math.inf
    except ValueError:
        return False


def _count(value: str) -> bool:
    return value.isdecimal() and int(value) > 0


#: What a column holds wherever a file has it, and how that is said.
COLUMNS: dict[str, tuple[Callable[[str], bool], str]] = {
    **dict.fromkeys(("us", "tflops", "efficiency_percent"), (_positive, "a number above 0, or nothing")),
    **dict.fromkeys(
        ("m", "n", "k", "batch", "b", "s_q", "s_kv", "heads", "kv_heads", "d_qk", "d_v"),
        (_count, "a whole number above 0"),
    ),
    "window": (lambda value: not value or _count(value), "a whole number above 0, or nothing"),
    "layout": (LEADING.__contains__, f"one of {', '.join(LEADING)}"),
    "phase": (("fwd", "bwd").__contains__, "fwd or bwd"),
    "causal": (lambda value: value.lower() in ("true", "false", "1", "0"), "true or false"),
}


def grouped(rows: Iterable[Row], where: str) -> list[Measured]:
    """Timed products by device, dtype, layout and protocol; rows without seconds are left out."""
    groups: dict[tuple[str, str, str, Protocol], list[Row]] = {}
    try:
        for row in rows:
            if row["us"]:
                groups.setdefault((row["device"], row["dtype"], row["layout"], protocol(row)), []).append(row)
        return [_measured(key, group) for key, group in sorted(groups.items(), key=lambda item: repr(item[0]))]
    except KeyError as error:
        raise InputError("expected the columns of the evidence", where=where, key=str(error)) from None
    except ValueError as error:
        raise InputError(f"expected numbers: {error}", where=where) from None


def _measured(key: tuple[str, str, str, Protocol], rows: list[Row]) -> Measured:
    m, n, k, batch = (np.array([int(row[name]) for row in rows], dtype=np.int64) for name in ("m", "n", "k", "batch"))
    seconds = np.array([float(row["us"]) for row in rows]) * 1e-6
    return Measured(*key, m, n, k, batch, seconds, tuple(rows))


def attention_of(row: Row) -> Attention:
    """The attention that a row of attention.csv timed, by our name of its kernel: alone, as training runs it."""
    b, heads, kv_heads, s_q, s_kv, d_qk, d_v = (
        int(row[name]) for name in ("b", "heads", "kv_heads", "s_q", "s_kv", "d_qk", "d_v")
    )
    return Attention(
        row["source"],
        "forward" if row["phase"] == "fwd" else "dgrad",
        b,
        heads,
        kv_heads,
        s_q,
        s_kv,
        d_qk,
        d_v,
        row["causal"].lower() in ("true", "1"),
        int(row["window"]) if row["window"] else None,
        row["dtype"],
        kernel=kernel_of(row["kernel"]),
        training=True,
        deterministic="deterministic" in row["note"],
    )


def kernel_of(name: str) -> str:
    """Our name of the kernel that a source names: "torch sdpa (fa2)" is sdpa, "cudnn 9.22.0" cudnn."""
    words = name.lower().split()
    return next((word for word in words if word in KERNELS), words[0])
