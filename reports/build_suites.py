"""Pages about the suites' results: reports/data/<device>/<suite>.jsonl -> reports/data/<device>/<suite>.md and .svg.

    python reports/build_suites.py [FOLDER]

Every figure on a page comes from the data file next to it. Plots need matplotlib.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

HERE = Path(__file__).parent
Row = dict[str, Any]
#: Misaligned sizes are compared with the nearest row of the same suite whose sizes are multiples of this.
ALIGNED = 128


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "data"
    pages = sorted((*root.glob("**/*.jsonl"), *root.glob("**/*.jsonl.gz")))
    for path in pages:
        packed = path.suffix == ".gz"
        text = zlib.decompressobj(31).decompress(path.read_bytes()).decode() if packed else path.read_text("utf-8")
        rows = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        if rows:
            (path.with_suffix("") if packed else path).with_suffix(".md").write_text(page(path, rows), encoding="utf-8")
    sys.stdout.write(f"{len(pages)} pages\n")


def page(path: Path, rows: list[Row]) -> str:
    """The Markdown page of one data file."""
    environment = rows[0]["environment"]
    known = sorted(environment["versions"].items())
    versions = ", ".join(
        f"{name} {version}" for name, version in [("driver", environment["driver"]), *known] if version
    )
    lines = [
        f"# {path.stem} on {environment['device']}",
        "",
        f"Generated from `{path.name}` by `python reports/build_suites.py`; {versions}.",
        "",
        *outcomes(rows),
    ]
    timed = [row for row in rows if row["status"] == "ok"]
    if path.stem == "misalignment":
        lines += misalignment(timed)
    elif path.stem == "control":
        lines += control(timed)
    elif path.stem == "layers":
        lines += parts(timed)
        timed = []
    plotted = plot(path, timed)
    lines += ["", f"![rates]({plotted})"] if plotted else []
    return "\n".join([*lines, "", *tables(timed), ""])


def outcomes(rows: list[Row]) -> list[str]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row["status"]] += 1
    widths = [(row["high"] - row["low"]) / 2 / row["seconds"] for row in rows if row["status"] == "ok"]
    line = "; ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    return [f"{line}. Median half-width of the 95% intervals: {100 * median(widths):.2f}%." if widths else line + "."]


def misalignment(rows: list[Row]) -> list[str]:
    """Time per FLOP of moved sizes over that of the aligned base, by what moved, its power of two and layout."""
    base = {key(row, "m", "n", "k"): row for row in rows if all(row[axis] % ALIGNED == 0 for axis in "mnk")}
    slower: dict[tuple[str, int, str, str], list[float]] = defaultdict(list)
    for row in rows:
        moved = "".join(axis for axis in "mnk" if row[axis] % ALIGNED)
        nearest = (row["dtype"], row["layout"], *(row[axis] // ALIGNED * ALIGNED for axis in "mnk"))
        if moved and nearest in base:
            power = min(row[axis] & -row[axis] for axis in moved)
            aligned = base[nearest]
            ratio = (row["seconds"] / row["flops"]) / (aligned["seconds"] / aligned["flops"])
            slower[moved, power, row["layout"], row["dtype"]].append(ratio)
    table = [(*group, len(ratios), f"{median(ratios):.3f}") for group, ratios in sorted(slower.items())]
    headers = ("moved", "largest power of two", "layout", "dtype", "shapes", "median slowdown per FLOP")
    return ["", tabulate(table, headers, tablefmt="github", disable_numparse=True)]


def key(row: Row, *axes: str) -> tuple[Any, ...]:
    return (row["dtype"], row["layout"], *(row[axis] for axis in axes))


def control(rows: list[Row]) -> list[str]:
    """Our time over each framework's of the same shape."""
    reference = json.loads((HERE / "suites" / "control.reference.json").read_text(encoding="utf-8"))
    known = {(one["m"], one["n"], one["k"]): one["milliseconds"] for one in reference}
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for framework, milliseconds in known.get((row["m"], row["n"], row["k"]), {}).items():
            ratios[framework].append(row["seconds"] * 1e3 / milliseconds)
    table = [
        (name, len(each), f"{median(each):.3f}", f"{100 * median(abs(one - 1) for one in each):.1f}%")
        for name, each in sorted(ratios.items())
    ]
    headers = ("against", "shapes", "median ratio of ours", "median difference")
    return ["", tabulate(table, headers, tablefmt="github", disable_numparse=True)]


def parts(rows: list[Row]) -> list[str]:
    """Layers, heads and MLPs in one table: time per parameter is what compares shapes of other sizes."""
    table = []
    for row in rows:
        weights, description = weights_of(row["description"]), row["description"]
        attention = (description.get("block") or {}).get("attention") or {}
        table.append(
            (
                row["label"],
                row["m"],
                row["k"],
                attention.get("heads", "-"),
                attention.get("head_dim", "-"),
                row["n"],
                f"{weights / 1e6:.1f}",
                f"{row['seconds'] * 1e3:.4g}",
                f"{row['seconds'] / weights * 1e12:.4g}",
                f"{row['tflops'] or 0:.4g}",
                f"{row['peak_bytes'] / 2**30:.2f}" if row["peak_bytes"] else "-",
            )
        )
    headers = (
        "part",
        "tokens",
        "h",
        "a",
        "head_dim",
        "d_ff or v",
        "M weights",
        "ms",
        "ps per weight",
        "TFLOPS",
        "peak GiB",
    )
    return ["", tabulate(table, headers, tablefmt="github", disable_numparse=True)]


def weights_of(description: Row) -> int:
    """Elements of the weight matrices of a part (biases and norms are under a thousandth of them)."""
    hidden = int(description["hidden"])
    if description["kind"] == "head":
        return hidden * int(description["vocab"])
    block = description.get("block") or {"mlp": description["mlp"]}
    total = hidden * int(block["mlp"]["width"]) * (3 if block["mlp"]["gated"] else 2)
    attention = block.get("attention")
    if attention:
        queries, keys = attention["heads"] * attention["head_dim"], attention["kv_heads"] * attention["head_dim"]
        total += 2 * hidden * (queries + keys)
    return total


def tables(rows: list[Row]) -> Iterator[str]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[f"{row['label']} {row['kernel']} {row['phase']} {row['dtype']}"].append(row)
    for label, group in groups.items():
        ranked = sorted(group, key=lambda row: -(row["tflops"] or 0))[:20]
        table = [
            (
                row["m"],
                row["n"],
                row["k"],
                row["layout"] or "-",
                f"{row['seconds'] * 1e3:.4g}",
                f"{row['tflops'] or 0:.4g}",
                f"{row['peak_bytes'] / 2**30:.2f}" if row["peak_bytes"] else "-",
            )
            for row in ranked
        ]
        headers = ("m", "n", "k", "layout", "ms", "TFLOPS", "peak GiB")
        yield f"## {label}\n\nThe {len(ranked)} fastest of {len(group)}.\n"
        yield tabulate(table, headers, tablefmt="github", disable_numparse=True) + "\n"


def plot(path: Path, rows: list[Row]) -> str | None:
    """Rate over whichever size varies most in each label; None without matplotlib or rates."""
    try:
        import matplotlib as mpl

        mpl.use("svg")
        from matplotlib import pyplot
    except ImportError:
        return None
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["tflops"]:
            groups[f"{row['label']} {row['kernel']} {row['phase']}"].append(row)
    lines = {label: group for label, group in groups.items() if axis_of(group) is not None}
    if not lines:
        return None
    figure, axes = pyplot.subplots(len(lines), 1, figsize=(9, 2.6 * len(lines)), squeeze=False)
    for axis, (label, group) in zip(axes[:, 0], lines.items(), strict=True):
        name = axis_of(group)
        points = sorted((row[name], row["tflops"]) for row in group)
        axis.plot(*zip(*points, strict=True), ".", markersize=4)
        axis.set_title(label, fontsize=9)
        axis.set_xlabel(name)
        axis.set_ylabel("TFLOPS")
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    pyplot.close(figure)
    return path.with_suffix(".svg").name


def axis_of(group: list[Row]) -> str | None:
    counts = {name: len({row[name] for row in group}) for name in ("k", "n", "m")}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > 2 else None


if __name__ == "__main__":
    main()
