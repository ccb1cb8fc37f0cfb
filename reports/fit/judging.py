"""Predictions next to others' measurements, by device and class: errors that name what they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import numpy as np

from fit.evidence import Array, Measured, Row, attention_of, grouped, read_rows
from fit.experts_amd import UNITS, down_of, layer_of, usable
from shapes.cost import predict
from shapes.cost.corrections import CLASSES, LEADING, operand_classes
from shapes.cost.gemm import LARGE, ProductKernels, gemm_seconds, predict_gemm
from shapes.device import load_device
from shapes.errors import InputError
from shapes.recipes import load_recipe

#: Squares whose best time gemm_squares.csv holds.
SQUARES = np.array([1024 * size for size in range(1, 11)])
#: AMD's tuned sizes: how far (in log size) an aligned neighbour may lie, and how many of them count.
NEAR, NEIGHBOURS = 0.06, 8
#: In the name of a class whose rows are in others too.
POOLED = ", together: "
#: Element types on plain cores, whose misaligned products are to be no worse than aligned ones (to 16 bytes).
PLAIN = ("fp32",)
#: Smallest side of the products whose ratio to aligned neighbours is judged: below, launches decide.
SMALLEST = 256


@dataclass(frozen=True, slots=True)
class Figure:
    """Errors of one file's rows of one device and class: relative, of predicted seconds (or a ratio) to measured."""

    file: str
    device: str
    what: str
    rows: int
    mape: float
    bias: float
    p95: float

    @classmethod
    def of(cls, file: str, device: str, what: str, errors: Array) -> Figure:
        off = np.abs(errors)
        return cls(
            file,
            device,
            what,
            len(errors),
            *(round(float(value), 4) for value in (off.mean(), errors.mean(), np.quantile(off, 0.95))),
        )


#: (device, class, relative errors) of a file's rows, and a line for each kind of row that has no prediction.
Judged = tuple[list[tuple[str, str, Array]], list[str]]


def judge(folder: Path) -> tuple[list[Figure], list[str]]:
    """Figures of every file in ``folder`` that is known, and lines on what was passed over."""
    figures: list[Figure] = []
    lines: list[str] = []
    for name, (how, columns) in FILES.items():
        path = next((folder / (name + ending) for ending in ("", ".gz") if (folder / (name + ending)).exists()), None)
        if path is None:
            lines.append(f"{name}: not there")
            continue
        judged, unpriced = how(path.name, read_rows(path, columns))
        lines += unpriced or ([] if judged else [f"{name}: no rows to judge"])
        by_class: dict[tuple[str, str], list[Array]] = {}
        for device, what, errors in judged:
            for key in ((device, what), *(() if POOLED in what else ((device, "all"),))):
                by_class.setdefault(key, []).append(errors)
        figures += [Figure.of(name, *key, np.concatenate(parts)) for key, parts in sorted(by_class.items())]
    return figures, lines


def _products(name: str, rows: list[Row]) -> Judged:
    judged, lines = [], []
    for group in grouped(rows, name):
        try:
            errors = group.predicted() / group.seconds - 1
        except InputError as error:
            lines.append(f"{name}: {group.device}: {len(group.seconds)} rows not priced: {error}")
            continue
        classes = _classes(group)
        judged += [(group.device, f"{group.dtype} {what}", errors[classes == what]) for what in np.unique(classes)]
        if group.dtype in PLAIN:
            off = group.classes() < len(CLASSES) - 2
            judged += [
                (group.device, f"{group.dtype}{POOLED}{what}", errors[which])
                for what, which in (("aligned", ~off), ("misaligned", off))
                if which.any()
            ]
    return judged, lines


def _classes(group: Measured) -> np.ndarray:
    """Alignment of A and B (odd, narrow, vector, free), and large or small."""
    least = np.minimum(np.minimum(group.m, group.n), group.k)
    return np.array(
        [
            f"{CLASSES[index]}, {'large' if large else 'small'}"
            for index, large in zip(group.classes(), least >= LARGE, strict=True)
        ]
    )


def _squares(name: str, rows: list[Row]) -> Judged:
    judged, lines = [], []
    for row in filter(itemgetter("tflops"), rows):
        dtype, layout = row["dtype"], row["layout"]
        try:
            seconds = predict_gemm(row["device"], SQUARES, SQUARES, SQUARES, dtype=dtype, layout=layout)  # type: ignore[arg-type]
        except InputError as error:
            lines.append(f"{name}: {row['device']}: one row not priced: {error}")
            continue
        best = float((2 * SQUARES.astype(float) ** 3 / seconds).max()) / 1e12
        judged.append((row["device"], f"{dtype} best square", np.array([float(row["tflops"]) / best - 1])))
    return judged, lines


def _ratios(name: str, rows: list[Row]) -> Judged:
    """Time of misaligned products over that of aligned neighbours of the same family, per FLOP: predicted to measured.

    The peak that efficiencies are of is not stated, so that they are compared with one another alone.
    """
    families: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["efficiency_percent"] and min(int(row[axis]) for axis in "mnk") >= SMALLEST:
            key = tuple(row[column] for column in ("device", "family", "dtype", "layout", "batch"))
            families.setdefault(key, []).append(row)
    judged: list[tuple[str, str, Array]] = []
    unpriced: Counter[str] = Counter()
    for (device, _, dtype, layout, _), family in families.items():
        try:
            judged += _family_ratios(device, dtype, layout, family)
        except InputError as error:
            unpriced[f"{name}: {device}: not priced: {error}"] += len(family)
    return judged, [f"{key} ({count} rows)" for key, count in unpriced.items()]


def _family_ratios(device: str, dtype: str, layout: str, rows: list[Row]) -> Iterator[tuple[str, str, Array]]:
    m, n, k, batch = (np.array([int(row[axis]) for row in rows]) for axis in ("m", "n", "k", "batch"))
    speed = np.array([float(row["efficiency_percent"]) for row in rows])
    in_a, in_b, in_c = operand_classes((m, n, k), (2, 2, 2), layout)  # type: ignore[arg-type]
    worse = np.minimum(in_a, in_b)
    free = np.minimum(worse, in_c) == len(CLASSES) - 1
    if not free.any():
        return
    sizes = np.log(np.stack([m, n, k], axis=1))
    per_flop = predict_gemm(device, m, n, k, batch=batch, dtype=dtype, layout=layout) / (m * n * k)  # type: ignore[arg-type]
    own = LEADING[layout]  # type: ignore[index]
    for row in np.flatnonzero(~free):
        away = np.abs(sizes[free] - sizes[row])
        near = np.flatnonzero(away.max(axis=1) < NEAR)
        near = np.flatnonzero(free)[near[np.argsort(away[near].sum(axis=1))[:NEIGHBOURS]]]
        if near.size:
            measured = np.median(speed[near]) / speed[row]
            # The neighbours' own alignment is free, so theirs is the model's aligned time at this very size.
            padded = [-(-dim // 16) * 16 if axis in own else dim for axis, dim in enumerate((m[row], n[row], k[row]))]
            aligned = predict_gemm(device, *padded, batch=batch[row], dtype=dtype, layout=layout)  # type: ignore[arg-type]
            predicted = per_flop[row] / (float(aligned) / np.prod(np.array(padded, dtype=float)))
            what = CLASSES[worse[row]] if worse[row] < 3 else f"C alone {CLASSES[in_c[row]]}"
            yield device, f"ratio, {what}", np.array([predicted / measured - 1])


#: aiter's names of what its kernels multiply: our dtype and recipe.
AITER = {
    "bf16": ("bf16", None),
    "int8": ("int8", None),
    "fp8-rowwise": ("fp8", None),
    "fp8-block128": ("fp8", "blockwise"),
    "mxfp4": ("mxfp4", None),
}
#: Rows of m from which its products are called tall.
TALL = 512


def _aiter(name: str, rows: list[Row]) -> Judged:
    """Kernels alone, by recipe, shuffled weights apart; rows faster than the device's peak are mistakes, left out."""
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in filter(itemgetter("us"), rows):
        groups.setdefault((row["device"], row["dtype"], "bpreshuffle" in row["file"]), []).append(row)
    judged, lines = [], []
    for (where, what, shuffled), group in sorted(groups.items()):
        *dims, batch = (np.array([int(row[key]) for row in group]) for key in ("m", "n", "k", "batch"))
        seconds = np.array([float(row["us"]) for row in group]) * 1e-6
        try:
            device = load_device(where)
            dtype, recipe = AITER[what]
            # Shuffled weights have kernels of their own.
            if shuffled and f"{dtype}_{recipe}-shuffled" in device.cost:
                recipe = f"{recipe}-shuffled"
            weights = load_recipe(dtype).quantise.bytes_per_element if dtype == "mxfp4" else None
            by = ProductKernels(device, dtype, "tn", recipe, weights=weights)
            predicted = gemm_seconds(np.array([*dims, batch]), by)
        except (InputError, KeyError) as error:
            lines.append(f"{name}: {where} {what}: {len(group)} rows not priced: {error}")
            continue
        possible = 2.0 * batch * dims[0] * dims[1] * dims[2] / seconds <= device.peak(dtype)
        for size, tall in ((f"m >= {TALL}", dims[0] >= TALL), (f"m < {TALL}", dims[0] < TALL)):
            kept = possible & tall
            if kept.any():
                kind = f"{what}{', shuffled' if shuffled else ''}, {size}"
                judged.append((where, kind, (predicted / seconds - 1)[kept]))
    return judged, lines


def _experts(name: str, rows: list[Row]) -> Judged:
    """aiter's fused experts: both products' kernels, by what they multiply; repeated and impossible rows left out."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in usable(rows):
        named = f"{row['q_dtype_a']} x {row['q_dtype_w']}, {row['q_type']}".replace("torch.", "").replace(
            "QuantType.", ""
        )
        groups.setdefault((UNITS.get(row["device"], row["device"]), named), []).append(row)
    judged, lines = [], []
    for (device, what), group in sorted(groups.items()):
        try:
            load_device(device)
        except InputError as error:
            lines.append(f"{name}: {what}: {len(group)} rows not priced: {error}")
            continue
        made = [layer_of(row) for row in group]
        seconds = [predict(one, device).seconds + predict(down_of(one), device).seconds for one in made]
        measured = np.array([float(row["us"]) * 1e-6 for row in group])
        judged.append((device, what, np.array(seconds) / measured - 1))
    return judged, lines


def _attention(name: str, rows: list[Row]) -> Judged:
    judged, unpriced = [], Counter[str]()
    for row in filter(itemgetter("us"), rows):
        try:
            predicted = predict(attention_of(row), row["device"]).seconds
        except InputError as error:
            unpriced[f"{name}: {row['device']} {row['kernel']} {row['dtype']}: not priced: {error}"] += 1
            continue
        what = f"{row['kernel']} {row['dtype']} {row['phase']}"
        judged.append((row["device"], what, np.array([predicted / (float(row["us"]) * 1e-6) - 1])))
    return judged, [f"{key} ({count} rows)" for key, count in unpriced.items()]


_TIMED = ("source", "device", "dtype", "layout", "batch", "m", "n", "k", "us")
_TUNED = ("device", "family", "dtype", "layout", "batch", "m", "n", "k", "efficiency_percent")
_ATTENTION = (
    "source",
    "device",
    "kernel",
    "dtype",
    "b",
    "s_q",
    "s_kv",
    "heads",
    "kv_heads",
    "d_qk",
    "d_v",
    "causal",
    "window",
    "phase",
    "us",
    "note",
)

#: File -> how its rows are judged, and the columns that are looked at.
FILES: dict[str, tuple[Callable[[str, list[Row]], Judged], tuple[str, ...]]] = {
    "gemm_misaligned.csv": (_products, _TIMED),
    "gemm_amd.csv": (_ratios, _TUNED),
    "gemm_fp32.csv": (_products, _TIMED),
    "gemm_fp8.csv": (_products, _TIMED),
    "gemm_v100_t4.csv": (_products, _TIMED),
    "gemm_vidur.csv": (_products, _TIMED),
    "gemm_squares.csv": (_squares, ("device", "dtype", "layout", "tflops")),
    "gemm_aiter.csv": (_aiter, (*_TIMED, "file")),
    "moe_aiter.csv": (_experts, ("device", "tokens", "hidden", "width", "experts", "top_k", "q_type", "us", "file")),
    "attention.csv": (_attention, _ATTENTION),
}
