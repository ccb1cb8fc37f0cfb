"""Kernels with a form of their own asked what `physics` asks products: whether any beats its device or grows for free.

    python reports/fit/served_physics.py --shapes 10000000

Sizes are drawn evenly over their logarithm, on every device that has the element type. Bytes beyond what caches hold
count against the data sheet's bandwidth where all of them move (states are written where they were read: a cache holds
both passes over what it holds). Query heads of decode attention are not asked to grow:
FlashAttention 2 splits keys among units where query heads share them, and not where each has its own. An indexer's
prompts have 4 tokens and more: its blocks of 4 queries walk the keys of as many prompts where these are shorter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.physics import ROUNDING, beyond_device
from shapes.cost.moving import moved_parts
from shapes.device import Device, list_devices, load_device
from shapes.dtypes import BYTES
from shapes.operators.types import (
    CachedAttention,
    Cast,
    Convolution,
    IndexScores,
    RoutedGemm,
    Scan,
    SparseAttention,
    StateUpdate,
    TopK,
)

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Kernels of one kind: how sizes are drawn (least, most), what is built of them, which may grow.

    ``moves``: the bytes of an operator that the bandwidth bounds (its rows of a layer of experts come from the cache).
    ``in_place``: half of them are written where the others are read, so that a cache holds both by holding one.
    """

    kernel: str
    drawn: dict[str, tuple[float, float]]
    built: Callable[[Sizes], Any]
    grows: tuple[str, ...]
    moves: Callable[[Any], Any] = lambda one: one.bytes
    in_place: bool = False


@dataclass(frozen=True)
class ServedCounts:
    """How many of ``shapes`` shapes of a kind of kernels break what no kernel can break, on ``devices`` devices."""

    kernels: str
    devices: int
    shapes: int
    above_peak: int
    above_bandwidth: int
    one_more_saves: int
    doubling_saves: int

    @property
    def broken(self) -> int:
        return self.above_peak + self.above_bandwidth + self.one_more_saves + self.doubling_saves


BATCH, KEYS, HEADS = (1, 2048), (1, 262144), (1, 128)
WIDTHS = {
    "bf16": {},
    "fp8": {"dtype": "fp8"},
    "fp8 in blocks": {"dtype": "fp8", "recipe": "blockwise"},
    "nvfp4": {"dtype": "nvfp4", "weight_bytes": 0.5625},
    "mxfp4": {"dtype": "mxfp4", "weight_bytes": 0.53125},
    "bf16 by 4 bits": {"weight_bytes": 0.53125},
    "bf16 by MXFP4": {"weight_bytes": 0.53125, "recipe": "mxfp4"},
    "fp8 by 4 bits": {"dtype": "fp8", "weight_bytes": 0.53125},
}


def _cached(kv: str, windowed: bool) -> Callable[[Sizes], Any]:
    def built(s: Sizes) -> CachedAttention:
        d = s["head_dim"]
        heads = s["kv_heads"] * s["group"]
        return CachedAttention(
            "", s["batch"], heads, s["kv_heads"], s["q_len"], s["keys"], d, d, kv_dtype=kv, windowed=windowed
        )

    return built


def _latent(kv: str) -> Callable[[Sizes], Any]:
    return lambda s: CachedAttention(
        "", s["batch"], s["heads"], 1, s["q_len"], s["keys"], 576, 512, latent=True, kv_dtype=kv
    )


def _scan(form: str, training: bool, phase: Any) -> Callable[[Sizes], Any]:
    return lambda s: Scan("", phase, form, s["batch"], s["tokens"], s["heads"], 1, 128, 128, 64, training=training)


def _experts(rest: Sizes) -> Callable[[Sizes], Any]:
    return lambda s: RoutedGemm(
        "", "forward", s["groups"], s["groups"] + s["m"], s["n"], s["k"], load=s["load"], **rest
    )


def _weights(one: RoutedGemm) -> Any:
    """Bytes of all experts' weights."""
    return one.groups * one.n * one.k * (one.weight_bytes or BYTES[one.dtype])


def _none(_: Any) -> float:
    """No bytes: of chosen keys, or of experts that may have no rows."""
    return 0.0


def _index(cached: bool) -> Callable[[Sizes], Any]:
    return lambda s: IndexScores(
        "", s["batch"], s["heads"], s["q_len"], s["past"] + s["q_len"], _pairs(s), 128, cached=cached
    )


def _pairs(s: Sizes) -> Any:
    """Pairs of a query and a key before it, of a sequence's last tokens."""
    return s["q_len"] * s["past"] + s["q_len"] * (s["q_len"] + 1) // 2


def _sparse(s: Sizes) -> Any:
    keys = s["past"] + s["q_len"]
    chosen = np.minimum(keys, 2048)
    return SparseAttention(
        "", "forward", s["batch"], s["heads"], 1, s["q_len"], keys, chosen, s["q_len"] * chosen, 576, 512
    )


def cases() -> Iterator[Case]:
    decoding = {
        "batch": BATCH,
        "kv_heads": (1, 64),
        "group": (1, 32),
        "q_len": (1, 8),
        "keys": KEYS,
        "head_dim": (32, 512),
    }
    grown = ("batch", "kv_heads", "q_len", "keys", "head_dim")
    for kv in ("bf16", "fp8"):
        for windowed in (False, True):
            yield Case("decode attention", decoding, _cached(kv, windowed), grown)
        latents = {"batch": BATCH, "heads": HEADS, "q_len": (1, 8), "keys": KEYS}
        yield Case("latents' decode attention", latents, _latent(kv), tuple(latents))
    for kind, rest in WIDTHS.items():
        sizes = {"groups": (1, 1024), "m": (1, 262144), "n": (16, 16384), "k": (16, 16384)}
        for load in (1, 20):  # of uneven ones, not all experts have rows
            drawn = sizes | {"load": (1, load)}
            yield Case(f"experts, {kind}", drawn, _experts(rest), ("m", "n", "k"), _weights if load == 1 else _none)
    for form in ("gated_delta", "kda"):
        for training, phase in ((False, "forward"), (True, "forward"), (True, "dgrad")):
            name = "scans, trained" if training else "scans, served"
            yield Case(name, {"batch": (1, 256), "tokens": KEYS, "heads": HEADS}, _scan(form, training, phase), SCANNED)
        yield Case("states", {"bytes": (1024, 1e11)}, lambda s, form=form: _state(form, s), ("bytes",), in_place=True)
    yield Case("casts", {"bytes": (1024, 1e11)}, lambda s: Cast("", "forward", "quantise", s["bytes"], 0), ("bytes",))
    yield Case("convolutions", {"rows": (1, 1e7), "tokens": KEYS}, _convolution, ("rows", "tokens"))
    queries = {"batch": (1, 512), "heads": HEADS, "q_len": (4, 8192), "past": KEYS}
    yield Case("index", queries, _index(False), tuple(queries))
    yield Case("index, decoding", queries | {"q_len": (1, 8)}, _index(True), tuple(queries))
    yield Case("top k", queries, _top_k, ("batch", "q_len", "past"))
    yield Case("sparse attention", queries, _sparse, tuple(queries), _none)


SCANNED = ("batch", "tokens", "heads")


def _state(form: str, s: Sizes) -> Any:
    return StateUpdate("", "forward", form, s["bytes"], 0, "bf16")


def _convolution(s: Sizes) -> Any:
    return Convolution(
        "", "forward", "conv", 4 * s["rows"] * s["tokens"], 0, "bf16", rows=s["rows"], tokens=s["tokens"]
    )


def _top_k(s: Sizes) -> Any:
    return TopK("", s["batch"], s["q_len"], s["past"] + s["q_len"], _pairs(s), 2048)


def drawn(case: Case, shapes: int, seed: int) -> Sizes:
    """Sizes as columns; ``load`` is no integer."""
    random = np.random.default_rng(seed)
    found: Sizes = {}
    for name, (least, most) in case.drawn.items():
        column = np.exp(random.uniform(np.log(least), np.log(most), shapes))
        found[name] = column if name == "load" else column.astype(np.int64)
    return found


def count(case: Case, device: Device, shapes: int, seed: int) -> NDArray[np.int64]:
    """Of ``shapes``: above the peak, above the bandwidth, faster by one more, faster by doubling."""
    sizes = drawn(case, shapes, seed)
    one = case.built(sizes)
    seconds = sum(moved_parts(one, device))
    flops = 0 if one.dtype == "fp32" else getattr(one, "flops", 0)  # fp32 has other units than the peak's
    held_twice = case.in_place * device.memory.last_level_cache_bytes
    beyond = beyond_device(device, one.dtype, seconds, flops, case.moves(one) - held_twice)
    more, doubled = (
        sum(
            int((sum(moved_parts(case.built(sizes | {key: grown(sizes[key])}), device)) < ROUNDING * seconds).sum())
            for key in case.grows
        )
        for grown in (lambda x: x + 1, lambda x: 2 * x)
    )
    return np.array([*beyond, more, doubled])


def served_against_physics(shapes: int, seed: int = 0) -> list[ServedCounts]:
    """Counts by kernel over all devices, ``shapes`` in all."""
    devices = [load_device(name) for name in list_devices()]
    pairs = [
        (case, device)
        for case in cases()
        for device in devices
        if case.built(dict.fromkeys(case.drawn, 1)).dtype in device.peak_flops
    ]
    each = max(100, -(-shapes // len(pairs)))
    found: dict[str, list[Any]] = {}
    for index, (case, device) in enumerate(pairs):
        found.setdefault(case.kernel, []).append((device.name, count(case, device, each, seed + index)))
    return [
        ServedCounts(
            kernel, len({name for name, _ in own}), each * len(own), *sum(counts for _, counts in own).tolist()
        )
        for kernel, own in found.items()
    ]


HEADERS = ["kernels", "devices", "shapes", "above peak", "above bandwidth", "one more saves", "doubling saves"]


def served_table(counts: list[ServedCounts]) -> str:
    """A row for each kernel, and their sum."""
    sums = [sum(column) for column in zip(*(astuple(one)[2:] for one in counts), strict=True)]
    return tabulate([*map(astuple, counts), ("all", "", *sums)], HEADERS, tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=1_000_000)
    sys.stdout.write(served_table(served_against_physics(parser.parse_args().shapes)) + "\n")


if __name__ == "__main__":
    main()
