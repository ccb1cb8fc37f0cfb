"""This harness and torch.utils.benchmark and, on a CUDA device, triton.testing.do_bench: medians and repeatability.

    python reports/bench/measure_vs_peers.py [--device cuda] [--repeats 10]

Each tool times each shape ``--repeats`` times, the tools in turns so that drift meets all alike. Printed: the median of
the repeats' medians, its ratio to ours, and the repeats' coefficient of variation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from tabulate import tabulate

from shapes.measure import InProcess
from shapes.measure.jobs import Job
from shapes.measure.runner import measure
from shapes.operators.types import Gemm

Tool = Callable[[Job], float]


def ours(session: InProcess) -> Tool:
    def run(job: Job) -> float:
        return measure([job], executor=session, settings=session.settings).results[job.key].seconds or float("nan")

    return run


def operands(job: Job, device: str) -> Callable[[], object]:
    """The plain call a user of the peers would time: one set of inputs, a fresh output."""
    import torch

    one = job.work
    assert isinstance(one, Gemm)
    dtype = torch.float32 if one.dtype == "fp32" else torch.bfloat16
    a, b = torch.randn(one.m, one.k, device=device, dtype=dtype), torch.randn(one.n, one.k, device=device, dtype=dtype)
    return lambda: a @ b.T


def torch_timer(device: str) -> Tool:
    import torch
    from torch.utils.benchmark import Timer

    def run(job: Job) -> float:
        call = operands(job, device)
        # Left to itself it times one thread, on a CPU with more.
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        return float(timer.blocked_autorange(min_run_time=0.2).median)

    return run


def do_bench(device: str) -> Tool:
    from triton.testing import do_bench as bench

    def run(job: Job) -> float:
        return float(bench(operands(job, device), return_mode="median")) * 1e-3

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device")
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    session = InProcess(arguments.device)
    device = session.backend.device
    tools = {"sizer": ours(session), "torch.utils.benchmark": torch_timer(device)}
    if device.startswith("cuda"):
        tools["triton do_bench"] = do_bench(device)
    sizes = ((1024,) * 3, (512, 2048, 768)) if device == "cpu" else ((4096,) * 3, (8192,) * 3, (16384, 4096, 10944))
    dtype = "fp32" if device == "cpu" else "bf16"
    rows = []
    for m, n, k in sizes:
        job = Job(Gemm("peer", "forward", m, n, k, dtype=dtype))
        taken: dict[str, list[float]] = {name: [] for name in tools}
        wall = dict.fromkeys(tools, 0.0)
        for _ in range(arguments.repeats):
            for name, tool in tools.items():
                start = time.perf_counter()
                taken[name].append(tool(job))
                wall[name] += time.perf_counter() - start
        reference = float(np.median(taken["sizer"]))
        for name, seconds in taken.items():
            median, spread = float(np.median(seconds)), float(np.std(seconds) / np.mean(seconds))
            rows.append(
                (
                    f"{m} x {n} x {k}",
                    name,
                    f"{median * 1e3:.4g}",
                    f"{median / reference:.3f}",
                    f"{100 * spread:.2f}%",
                    f"{wall[name] / arguments.repeats:.2f}",
                )
            )
    print(f"{session.environment.source}, {dtype}, {arguments.repeats} repeats in turns\n")  # noqa: T201  # a script whose output is its purpose
    headers = ("shape", "tool", "median ms", "to sizer", "variation", "wall s a repeat")
    print(tabulate(rows, headers, tablefmt="github", disable_numparse=True))  # noqa: T201  # a script whose output is its purpose


if __name__ == "__main__":
    main()
