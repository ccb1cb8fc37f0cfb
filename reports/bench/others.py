"""Products that other programs timed, as lines for `sizer store import`: others.toml says what each program writes.

    python reports/bench/others.py FILE… [--device NAME] [--dtype bf16] > rows.jsonl
    sizer store import rows.jsonl

Of torch's profiler (export_chrome_trace), nvbench (CSV, JSON), hipblaslt-bench, superbench's cublaslt_gemm, triton's
perf_report (CSV) and mamf-finder. --device, --dtype: of what a file names none of. The rows are nobody's own: their
harness is 0, so that no command here takes one for a result of its own, and their method and message name the program
and the file; `sizer calibrate` counts each program as a source. What a data sheet rules out is left out, and said.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shapes.errors import InputError, read_text
from shapes.frozen import Named
from shapes.measure.dataset import objection
from shapes.measure.jobs import Job
from shapes.measure.record import MAX_IMPORT, Measurement, checked_row, summary_fields
from shapes.measure.suite import PHASES
from shapes.operators.types import Gemm
from shapes.toml_table import content

KNOWN = content(Path(__file__).with_suffix(".toml"))
Row = dict[str, Any]


def read_others(path: str, asked: Named) -> tuple[list[Measurement], list[str]]:
    """(what another program timed, why rows were refused), of the file at ``path``.

    ``asked``: "device" and "dtype" of what the file names none of. InputError where one is not known, or the program.
    """
    text = read_text(path, MAX_IMPORT)
    program = next((name for name, how in KNOWN["formats"].items() if re.search(how["claim"], text, re.M)), None)
    if program is None:
        raise InputError(f"expected what one of these writes: {', '.join(KNOWN['formats'])}", where=path)
    how, times = KNOWN["formats"][program], defaultdict(list)
    said: Row = {key: found[1] for key in ("device", "dtype") if (found := re.search(how.get(key, "$^"), text))}
    said |= {key: value for key, value in asked.items() if value is not None}
    try:
        for row in READERS.get(program, _lines)(text, how):
            named = {ours: row[its] for ours, its in how.get("columns", {}).items() if its in row}
            own = {**said, **row, **named}
            for work, seconds in _products(own, how):
                times[own["device"], Job(work)].append(seconds)
    except (ArithmeticError, AttributeError, IndexError, LookupError, RecursionError, TypeError, ValueError) as error:
        expected = f"expected sizes, times, a known --dtype and --device as {program} writes them"
        raise InputError(f"{expected} ({error!r})", where=path) from None
    judged = [_judged(device, job, seconds, program, path) for (device, job), seconds in times.items()]
    return [one for one, why in judged if why is None], [why for _, why in judged if why is not None]


def _judged(device: str, job: Job, seconds: list[float], program: str, path: str) -> tuple[Measurement, str | None]:
    """A product's times as a row, and why it cannot be true."""
    samples = np.array(seconds)
    row = {
        "description": job.describe(),
        "environment": {"device": device, "versions": {"program": program}, "harness": 0},
        **{"status": "ok", "flops": job.work.flops, "bytes": job.work.bytes, "stop": "samples"},
        **{"method": program, "message": f"{program}: {Path(path).name}", "label": "imported"},
        **{"samples": seconds, "created": time.time(), **summary_fields(samples)},
        "uid": hashlib.sha256(f"{device}{job.key}".encode() + samples.tobytes()).hexdigest(),
    }
    one = checked_row(row, path)
    return one, objection(one, one.environment.accelerator, None)


def _products(row: Row, how: Named) -> Iterator[tuple[Gemm, float]]:
    """A row's product and its seconds, by each column of times."""
    m, n, k = (int(float(row[key])) for key in "mnk")
    batch = max(1, int(float(row.get("batch") or 1)))
    layout = (
        "".join(row[one] for one in how["letters"]).lower()
        if "letters" in how
        else row.get("layout", how.get("layout"))
    )
    dtype = KNOWN["dtypes"].get(row["dtype"].lower(), row["dtype"])
    out = "bf16" if dtype == "fp8" else None
    work = Gemm("", PHASES[layout], m, n, k, batch, dtype, layout, kind="bmm" if batch > 1 else "gemm", out_dtype=out)
    for column, value in row.items():
        if found := re.search(how["time"], column):
            each = float(value) * KNOWN["units"][found[1]]
            yield work, work.flops / each if "flops" in found[1] else each


def _lines(text: str, how: Named) -> Iterator[Row]:
    """The lines of a pattern by its groups, and those under a line that names their columns."""
    header: list[str] = []
    for line in re.split(r"[\r\n]+", text):  # progress is overwritten by carriage returns
        fields = next(csv.reader([line.strip()]), [])
        if found := re.match(how["row"], line):
            columns = found.groupdict()
            header = columns.pop("header", "").lower().split(",")
            yield from [columns] if columns else []
        elif len(fields) == len(header) > 1:
            yield dict(zip(header, fields, strict=True))


def _trace(text: str, how: Named) -> Iterator[Row]:
    """Products of a trace by their kernels' time; those without kernels or strides say nothing."""
    events = json.loads(text)["traceEvents"]
    kernels: Counter[Any] = Counter()
    for one in events:
        if one.get("cat") == "kernel":
            kernels[one["args"].get("External id")] += one["dur"]
    for one in events:
        said, first = one.get("args") or {}, how["operators"].get(one.get("name"))
        took, strides = kernels[said.get("External id")], said.get("Input Strides")
        if first is not None and took and strides:
            (*lead, m, k), (*_, n) = said["Input Dims"][first : first + 2]
            layout = "".join("n" if each[-1] == 1 else "t" for each in reversed(strides[first : first + 2]))
            sizes = {"m": m, "n": n, "k": k, "batch": lead[0] if lead else 1}
            yield {**sizes, "layout": layout, "dtype": said["Input type"][first], "us": took}


def _nvbench(text: str, how: Named) -> Iterator[Row]:
    known = json.loads(text)
    names = {one["id"]: one["name"] for one in known["devices"]}
    for state in (state for one in known["benchmarks"] for state in one["states"]):
        row = {one["name"].lower(): one["value"] for one in state["axis_values"]}
        for one in state["summaries"] or ():
            if one["tag"] == "nv/cold/time/gpu/mean":
                yield {**row, "sec": one["data"][0]["value"], "device": names[state["device"]]}


READERS = {"torch-profiler": _trace, "nvbench-json": _nvbench}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    asked = parser.parse_args()
    failed = False
    for path in asked.files:
        try:
            found, refused = read_others(path, {"device": asked.device, "dtype": asked.dtype})
        except InputError as error:
            sys.exit(f"{error}")
        for one in found:
            sys.stdout.write(json.dumps(one.row(), sort_keys=True) + "\n")
        for why, count in Counter(refused).items():
            sys.stderr.write(f"{path}: {count} refused: {why}\n")
        failed |= bool(refused)
    sys.exit(failed)


if __name__ == "__main__":
    main()
