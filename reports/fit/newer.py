"""Constants of the kernels with a form of their own, judged on tables of releases that no fit has seen.

    python reports/fit/newer.py --tables .../aisimulate_core/systems/data --seen .../aiconfigurator_core/systems/data

aisimulate (0.13, Apache-2.0) is aiconfigurator's successor: its wheel has the tables of aiconfigurator-core 0.12, and
those of newer releases of vLLM and SGLang. Judged are files that ``--seen`` does not have, of the kernels that the
fits name; nothing is fitted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fit import decode, experts
from shapes.cost.decode import cached_parts
from shapes.device import load_device
from shapes.toml_table import DATA, content

Array = NDArray[np.float64]


def unseen(tables: Path, seen: Path, into: Path) -> int:
    """Links into a folder every table that ``seen`` lacks; how many."""
    found = [path.relative_to(tables) for path in tables.rglob("*.parquet")]
    new = [path for path in found if not (seen / path).exists()]
    for path in new:
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).symlink_to((tables / path).resolve())
    return len(new)


def decoding(folder: Path, form: str, name: str) -> Array:
    """Predicted over measured, less 1, of a device's decode attention."""
    c = content(DATA / "decode.toml")[form][name] | decode.sizes_of(load_device(name))
    off = []
    for one, seconds in decode.rows(folder, form, name).items():
        off.append(sum(cached_parts(one, c)) / seconds - 1)
    return np.array(off)


def routed(folder: Path, form: str, name: str) -> Array:
    """Predicted over measured, less 1, of a device's layers of experts; of the ranks' own tokens alone."""
    device, c = load_device(name), dict(content(DATA / "experts.toml")[form][name])
    found = experts.layers(folder, form, name)
    alone = np.flatnonzero(found.remote_bytes == 0)
    if not alone.size:
        return np.array([])
    some = found.only(alone)
    return np.asarray(some.seconds_by(c | dict.fromkeys(experts.REMOTE, 1.0), device) / some.seconds - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--seen", type=Path, required=True)
    given = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as at:
        sys.stderr.write(f"{unseen(given.tables, given.seen, Path(at))} tables\n")
        for kernels, judged in ((decode.KERNELS, decoding), (experts.KERNELS, routed)):
            for form, devices in kernels.items():
                for name in devices:
                    try:
                        off = judged(Path(at), form, name)
                    except (ValueError, IndexError):  # no row of the kernel
                        continue
                    if off.size:
                        size = np.abs(off)
                        figures = (size.mean(), off.mean(), np.quantile(size, 0.95))
                        lines.append((form, name, off.size, *(f"{100 * x:.1f}%" for x in figures)))
    headers = ["kernels", "device", "rows", "MAPE", "bias", "95th percentile"]
    sys.stdout.write(tabulate(lines, headers, tablefmt="github") + "\n")


if __name__ == "__main__":
    main()
