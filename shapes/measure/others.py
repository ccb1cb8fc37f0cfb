"""Products that other programs timed, as rows of the store: data/others.toml says what each program writes.

The programs are torch's profiler (export_chrome_trace), nvbench (CSV), hipblaslt-bench, superbench's cublaslt_gemm,
triton's perf_report (CSV) and mamf-finder. The rows have harness 0, so that no command takes one for its own result.
Their method and message name the program and the file; `sizer calibrate` counts each program as a source.
"""

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.errors import DAMAGED, InputError, refuse, within
from shapes.frozen import Named, Values, first_of, given
from shapes.operators.types import Gemm
from shapes.toml_table import DATA, content

from .dataset import Dataset
from .environment import Environment
from .jobs import Job
from .record import Measurement, checked_row, outcome, summary_fields
from .suite import PHASES

KNOWN = content(DATA / "others.toml")


def read_others(text: str, where: str, asked: Named) -> tuple[Dataset, ...]:
    """Products that another program timed, by device; none if ``text`` is no known program's.

    ``asked``: "device" and "dtype" for rows that name none. InputError if either is not known.
    """
    program = first_of(name for name, how in KNOWN["formats"].items() if re.search(how["claim"], text, re.M))
    if program is None:
        return ()
    try:
        times = _times(text, program, given(asked))
    except DAMAGED as error:
        expected = f"expected sizes, times, a known --dtype and --device as {program} writes them"
        raise InputError(f"{expected} ({error})", where=where) from None
    refuse(not times, "expected products with their sizes (torch.profiler: record_shapes=True) and times", where=where)
    found = []
    for device, products in times.items():
        environment = Environment(device, (("program", program),), harness=0)
        rows = (_row(environment, work, np.array(seconds), where) for work, seconds in products.items())
        found.append(Dataset(Path(where), environment, tuple(rows)))
    return tuple(found)


def _times(text: str, program: str, asked: Named) -> Mapping[str, Mapping[Gemm, list[float]]]:
    """Seconds by device and product."""
    how, times = KNOWN["formats"][program], dict[str, dict[Gemm, list[float]]]()
    said = {key: found[1] for key in ("device", "dtype") if (found := re.search(how.get(key, "$^"), text))}
    for row in traced_products(json.loads(text)["traceEvents"]) if "operators" in how else _lines(text, how):
        named = {ours: row[its] for ours, its in how.get("columns", {}).items() if its in row}
        own = {**said, **asked, **row, **named}
        for work, seconds in _products(own, how):
            times.setdefault(own["device"], {}).setdefault(work, []).append(seconds)
    return times


def _row(environment: Environment, work: Gemm, samples: NDArray[np.float64], where: str) -> Measurement:
    ((_, program),) = environment.versions
    bare = outcome(Job(work), environment, "ok", flops=work.flops, bytes=work.bytes, stop="samples", method=program)
    own = hashlib.sha256(f"{environment.device}{bare.key}".encode() + samples.tobytes()).hexdigest()
    said = {"samples": samples.tolist(), "message": f"{program}: {Path(where).name}", "uid": own, "label": "imported"}
    with within(where):
        return checked_row(bare.row() | said | summary_fields(samples))


def _products(row: Named, how: Named) -> Iterator[tuple[Gemm, float]]:
    """A row's product and its seconds, by each column of times."""
    m, n, k = (int(float(row[key])) for key in "mnk")
    batch = max(1, int(float(row.get("batch") or 1)))
    letters = "".join(row[one] for one in how.get("letters", ())).lower()
    layout: Any = letters or row.get("layout", how.get("layout"))
    dtype = KNOWN["dtypes"].get(row["dtype"].lower(), row["dtype"])
    out = "bf16" if dtype == "fp8" else None
    work = Gemm("", PHASES[layout], m, n, k, batch, dtype, layout, kind="bmm" if batch > 1 else "gemm", out_dtype=out)
    for column, value in row.items():
        if found := re.search(how["time"], column):
            each = float(value) * KNOWN["units"][found[1]]
            yield work, work.flops / each if "flops" in found[1] else each


def _lines(text: str, how: Named) -> Iterator[Values]:
    """The lines of a pattern by its groups, and those under a line that names their columns."""
    header = []
    for line in re.split(r"[\r\n]+", text):  # progress is overwritten by carriage returns
        fields = next(csv.reader([line.strip()]), [])
        if found := re.match(how["row"], line):
            columns: Values = found.groupdict()
            header = columns.pop("header", "").lower().split(",")
            yield from [columns] if columns else []
        elif len(fields) == len(header) > 1:
            yield dict(zip(header, fields, strict=True))


def traced_products(events: Sequence[Named]) -> Iterator[Values]:
    """Products among a trace's ``events`` by their kernels' time; those without kernels or strides say nothing."""
    kernels, operators = Counter[object](), KNOWN["formats"]["torch-profiler"]["operators"]
    for one in events:
        if one.get("cat") == "kernel":
            kernels[one.get("args", {}).get("External id")] += one["dur"]
    for one in events:
        said, first = one.get("args") or {}, operators.get(one.get("name"))
        took, strides = kernels[said.get("External id")], said.get("Input Strides")
        if first is not None and took and strides:
            (*lead, m, k), (*_, n) = said["Input Dims"][first : first + 2]
            second, other = ("n" if strides[first + place][-1] == 1 else "t" for place in (1, 0))
            sizes = {"m": m, "n": n, "k": k, "batch": prod(lead)}
            yield {**sizes, "layout": second + other, "dtype": said["Input type"][first], "us": took}
