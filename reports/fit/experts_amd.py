"""aiter's tuned experts (moe_aiter.csv of the evidence) -> AMD's tables of shapes/data/experts.toml.

    python reports/fit/experts_amd.py --data .../evidence/moe_aiter.csv.gz --write

Run it after experts.py, which writes the file anew. Times are of both products' kernels alone, under random even
routing: experts meet tokens as a Poisson number does. Shapes that repeat one time at several numbers of tokens, in one
file or in two, are left out, and those faster than the peak. Errors are of 30% of the models' shapes, left out; the
form is that of shapes/cost/experts.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit.evidence import Row, read_rows
from fit.experts import REMOTE, SIZES, TILES, Layers, as_line, fit, held_out
from shapes.device import load_device
from shapes.operators.types import RoutedGemm
from shapes.toml_table import DATA

#: The file's names of devices by their units.
UNITS = {"/80": "mi308x", "/304": "mi300x", "/256": "mi355x"}
#: Types of activations and weights, and how they are scaled -> form, bytes an element of the weights.
KINDS = {
    ("bfloat16", "bfloat16", "No"): ("experts_bf16", None),
    ("float8", "float8", "per_1x128"): ("experts_fp8_blockwise", None),
    ("float8", "float8", "per_Token"): ("experts_fp8", None),
    ("float8", "float8", "per_Tensor"): ("experts_fp8", None),
    ("float4", "float4", "per_1x32"): ("experts_mxfp4", 0.53125),
    ("float8", "float4", "per_1x32"): ("experts_fp8_4bit", 0.53125),
    ("bfloat16", "float4", "per_1x32"): ("experts_bf16_4bit", 0.53125),
    ("bfloat16", "int4", "per_1x32"): ("experts_bf16_4bit", 0.53125),
}
#: Rows from which a device has a table of a form.
ENOUGH = 50
#: Tiles from 16 rows on: too few rows to tell 8 from 16 by (MI308X's bf16 18.0% off left out, 17.4% with 16).
SMALLEST = (TILES[1:],)


def kind_of(row: Row) -> tuple[str, float | None] | None:
    a, w = (re.match(r"torch\.([a-z]+\d+)", row[f"q_dtype_{side}"]) for side in "aw")
    return KINDS.get((a[1], w[1], row["q_type"].partition(".")[2])) if a and w else None


def usable(rows: Iterable[Row]) -> list[Row]:
    """Rows of a known form, but for shapes that repeat one time at several numbers of tokens, in one file or two."""
    known = [row for row in rows if kind_of(row) and float(row["us"]) > 0 and int(row["top_k"]) > 0 and possible(row)]
    times = Counter((row["device"], row["file"], row["us"]) for row in known)
    tokens = defaultdict(set)
    for row in known:
        tokens[row["device"], row["us"]].add(row["tokens"])
    return [
        row
        for row in known
        if times[row["device"], row["file"], row["us"]] == 1 == len(tokens[row["device"], row["us"]])
    ]


def possible(row: Row) -> bool:
    """Whether the row's device, where it is known, can multiply as fast."""
    name = UNITS.get(row["device"], row["device"])
    if name not in UNITS.values():
        return True
    gate_up = layer_of(row)
    return bool(1.5 * gate_up.flops / load_device(name).peak(gate_up.dtype) <= float(row["us"]) * 1e-6)


def layer_of(row: Row) -> RoutedGemm:
    """The first product of a row, gated but where its activation is not."""
    form, weights = kind_of(row) or ("experts_bf16", None)
    tokens, hidden, width, experts, top_k = (
        int(row[name]) for name in ("tokens", "hidden", "width", "experts", "top_k")
    )
    rows = tokens * top_k
    met = max(1.0, experts * -np.expm1(-rows / experts))
    recipe = "blockwise" if form.endswith("blockwise") else None
    kind = form.split("_")[1]
    return RoutedGemm(
        "",
        "forward",
        met,
        rows,
        2 * width,
        hidden,
        dtype=kind,
        recipe=recipe,
        weight_bytes=weights,  # type: ignore[arg-type] # a mean
        held=experts,
    )


def down_of(gate_up: RoutedGemm) -> RoutedGemm:
    return replace(gate_up, n=gate_up.k, k=gate_up.n // 2)


def columns(rows: list[Row]) -> Layers:
    found = [layer_of(row) for row in rows]
    sizes: dict[str, Any] = {name: np.array([getattr(one, name) for one in found], dtype=float) for name in SIZES}
    gate_up, none = replace(found[0], **sizes), np.zeros(len(rows))
    seconds = np.array([float(row["us"]) * 1e-6 for row in rows])
    shapes = tuple(" ".join(row[name] for name in ("hidden", "width", "experts", "top_k")) for row in rows)
    return Layers(gate_up, down_of(gate_up), none, none, seconds, shapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in usable(read_rows(options.data)):
        groups.setdefault((kind_of(row)[0], UNITS.get(row["device"], row["device"])), []).append(row)  # type: ignore[index]
    text = ""
    for (form, name), rows in sorted(groups.items()):
        if len(rows) < ENOUGH or name not in UNITS.values():
            continue
        found, device = columns(rows), load_device(name)
        out = held_out(found.shapes)
        if not 0 < out.sum() < len(out):
            continue
        # No router was timed, nor other ranks' tokens.
        known = {"pads": 1.0, "held_s": 0.0, "choice_s": 0.0} | dict.fromkeys(REMOTE, 1.0)
        constants, wrong = fit(found, device, form.split("_")[1], out, known, SMALLEST)
        off = np.abs(wrong[out])
        sys.stdout.write(f"{form} {name}: {len(rows)} {out.sum()} {off.mean():.1%} {np.quantile(off, 0.95):.1%}\n")
        for key in REMOTE:
            constants.pop(key)
        errors = {"error": float(off.mean()), "error_p95": float(np.quantile(off, 0.95))}
        # Too few rows to tell MXFP4's kernels from int4's; one kernel, whether ranks share the experts or not.
        alike = form.replace("bf16_4bit", "bf16_mxfp4"), form.replace("blockwise", "blockwise_spread")
        for own in dict.fromkeys((form, *alike)):
            text += f"\n[{own}.{name}]\n# {len(rows)} rows of ROCm/aiter @ e4048607\n" + "".join(
                map(as_line, (constants | errors).items())
            )
    if options.write:
        path = DATA / "experts.toml"
        kept = re.sub(r"\n\[\w+\.mi\d+x\]\n(?:[^\[\n].*\n)*", "", path.read_text(encoding="utf-8"))
        path.write_text(kept + text, encoding="utf-8")


if __name__ == "__main__":
    main()
