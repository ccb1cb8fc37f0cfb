"""Kernels as others measured them: reports/kernels.md.

    python reports/bench/kernels.py --data FOLDER [--format json] [--out FILE]

FOLDER holds any of the files named in reports/fit/judging.py, compressed or not; what is missing is passed over with a
line. Prints the figures and writes reports/kernels.md (text), or prints JSON and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import on_path  # noqa: F401  # reports/fit
from fit.aiter import FITTED, TABLES, hidden, rows_of
from fit.evidence import read_rows
from fit.judging import TALL, Figure, judge
from fit.physics import CellCounts, Counts, against_physics, around_cells, celled
from fit.served_physics import ServedCounts, served_against_physics, served_table
from opening import with_answer
from tabulate import tabulate

from shapes.cost.constants import CARRY
from shapes.device import load_device
from shapes.errors import InputError
from shapes.toml_table import DATA, content

REPORTS = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).parent / "kernels_template.md"
AITER = "gemm_aiter.csv"
#: What runs -> beginnings of the forms of its tables.
FORMS = {
    "decode attention": ("decode_",),
    "decode attention of latents (MLA)": ("latent_decode_",),
    "experts": ("experts_",),
    "GDN, served": ("state_gated_delta", "serving_gated_delta"),
    "KDA, served": ("state_kda", "serving_kda"),
    "Mamba-2's and other convolutions": ("convolution",),
    "GDN, KDA, trained (chunked)": ("training_",),
    "casts to fp8, served": ("cast",),
    "DSA: index, top k, sparse attention": ("index_", "top_k", "sparse_attention"),
}
#: Whether a table's weights are shuffled (None: either) -> how figures say so.
KINDS = {True: (", shuffled",), False: ("",), None: ("", ", shuffled")}


def figures_table(figures: list[Figure]) -> str:
    rows = [
        (one.device, one.what, one.rows, *(f"{100 * value:.1f}%" for value in (one.mape, one.bias, one.p95)))
        for one in figures
    ]
    return tabulate(rows, ["device", "rows of", "rows", "MAPE", "bias", "95th percentile"], tablefmt="github")


def sections(figures: list[Figure]) -> str:
    files = dict.fromkeys(one.file for one in figures)
    return "\n\n".join(f"### {file}\n{figures_table([f for f in figures if f.file == file])}" for file in files)


def left_out_table(folder: Path, figures: list[Figure]) -> str:
    """aiter's (n, k) left out, all dtypes of a device pooled; rows that nothing was fitted on count whole."""
    path = next((folder / name for name in (AITER, f"{AITER}.gz") if (folder / name).exists()), None)
    if path is None:
        return ""
    rows, lines = read_rows(path), []
    for name, tables in FITTED.items():
        device, line = load_device(name), [name]
        fitted = {f"{TABLES[table][0]}{kind}" for table in tables for kind in KINDS[TABLES[table][2]]}
        products = {table: rows_of(rows, device, table) for table in tables}
        for size, sign in (("large", ">="), ("small", "<")):
            of = [one for one in figures if (one.file, one.device) == (AITER, name)]
            ending = f", m {sign} {TALL}"
            found = [
                (one.rows, one.mape)
                for one in of
                if one.what.endswith(ending) and one.what.removesuffix(ending) not in fitted
            ]
            for table, own in products.items():
                out = hidden(own, device.provenance[table]["seed"]) & ((own.m >= TALL) == (size == "large"))
                found.append((int(out.sum()), device.errors[table][size]))
            number = sum(many for many, _ in found)
            line += [number, f"{sum(many * error for many, error in found) / number:.1%}"]
        lines.append(line)
    headers = ["device", f"rows, m >= {TALL}", "MAPE, left out", f"rows, m < {TALL}", "MAPE, left out, small"]
    return tabulate(lines, headers, tablefmt="github")


def forms_table() -> str:
    """Errors on shapes left out that the fits of reports/fit state, by what runs: means over devices and tables."""
    rows = []
    for what, forms in FORMS.items():
        tables = [
            (f"{form} {device}", one["error"], one["error_p95"])
            for name in CARRY.files
            for form, devices in content(DATA / f"{name}.toml").items()
            if form.startswith(forms)
            for device, one in devices.items()
        ]
        names, errors, p95 = zip(*tables, strict=True)
        worst = names[errors.index(max(errors))]
        rows.append(
            (what, len(names), *(f"{100 * x:.1f}%" for x in (fmean(errors), max(errors))), worst, f"{fmean(p95):.1%}")
        )
    headers = ["kernels", "tables", "mean error, left out", "worst table", "which", "within, of 95% (mean)"]
    return tabulate(rows, headers, tablefmt="github")


def physics_table(counts: list[Counts]) -> str:
    """The sum over all devices and dtypes, then each that breaks anything."""
    broken = [one for one in counts if one.broken]
    numbers = zip(*(list(asdict(one).values())[2:] for one in counts), strict=True)
    rows = [["all", f"{len(counts)} pairs", *map(sum, numbers)], *(list(asdict(one).values()) for one in broken)]
    headers = [
        "device",
        "dtype",
        "shapes",
        "above peak",
        "above bandwidth",
        "a tile more saves over 1%",
        "doubling saves",
    ]
    return tabulate(rows, headers, tablefmt="github")


def cells_table(counts: list[CellCounts]) -> str:
    headers = ["device", "cells", "pairs", "a tile more saves over 1%", "doubling saves", "saved before cells, too"]
    return tabulate([list(asdict(one).values()) for one in counts], headers, tablefmt="github")


def report(
    figures: list[Figure],
    lines: list[str],
    counts: list[Counts],
    served: list[ServedCounts],
    cells: list[CellCounts],
    left_out: str,
) -> str:
    from kernels_examples import examples

    text = TEMPLATE.read_text(encoding="utf-8")
    values = {
        "figures": sections(figures),
        "left_out": left_out,
        "forms": forms_table(),
        "passed_over": "\n".join(f"- {line}" for line in lines) or "Nothing.",
        "physics": physics_table(counts),
        "served": served_table(served),
        "cells": cells_table(cells),
        "examples": examples(),
    }
    for key, value in values.items():
        text = text.replace("{{" + key + "}}", value)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    shapes = (
        "shapes that physics is asked about, of products and of other kernels each; 0: none, and no page is written"
    )
    parser.add_argument("--shapes", type=int, default=1_000_000, help=shapes)
    parser.add_argument("--out", type=Path, default=REPORTS / "kernels.md")
    options = parser.parse_args()
    try:
        if not options.data.is_dir():
            raise InputError("expected a folder", key="--data", value=str(options.data))
        figures, lines = judge(options.data)
        left_out = left_out_table(options.data, figures)
        counts = against_physics(options.shapes) if options.shapes else []
        served = served_against_physics(options.shapes) if options.shapes else []
        cells = [around_cells(name) for name in celled()] if options.shapes else []
    except InputError as error:
        print(f"kernels.py: {error}", file=sys.stderr)  # noqa: T201  # a script's one line
        sys.exit(2)
    if options.format == "json":
        print(  # noqa: T201  # a script whose output is its purpose
            json.dumps(
                {
                    "figures": [asdict(one) for one in figures],
                    "passed_over": lines,
                    "physics": [asdict(one) for one in counts],
                    "served": [asdict(one) for one in served],
                    "cells": [asdict(one) for one in cells],
                    "left_out": left_out,
                },
                indent=2,
            )
        )
        return
    tables = [physics_table(counts), served_table(served), cells_table(cells)]
    print("\n\n".join([sections(figures), left_out, "\n".join(lines), *tables]))  # noqa: T201  # the same
    if counts:  # a page without physics would not be this one
        options.out.write_text(
            with_answer("kernels", report(figures, lines, counts, served, cells, left_out)), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
