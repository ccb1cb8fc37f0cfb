"""Published degrees of parallelism among what `plan` finds for the same devices and batch.

    python reports/bench/published_layouts.py             # under a minute or two: seven plans of up to 8,192 devices
    python reports/bench/published_layouts.py "GPT-3"     # those whose model begins so

The ratio is the time of the fastest candidate with the published degrees over that of plan's fastest, both predicted on
one stack: microbatch, chunks of a stage and recomputation are plan's for both. It says how far plan's order is from
what was run, not that either is right.
"""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from tabulate import tabulate

from shapes.device import load_device
from shapes.step.stack import SPREAD_STACK
from shapes.workload import Workload
from sizer.answers.plan import Candidate, plan
from sizer.readers import read_config

LAYOUTS = Path(__file__).with_suffix(".toml")
DEGREES = ("t", "cp", "p", "e")


def judged(said: dict[str, Any]) -> list[Any]:
    """A row: the model, both layouts, the ratio of their times, and what the plan took in processor seconds."""
    base = Workload(s=said["s"], dtype=said.get("dtype", "bf16"), **said.get("base", {}))
    begun = time.process_time()
    found = plan(
        read_config(said["config"]).model,
        load_device(said["device"]),
        gpus=said["gpus"],
        global_batch=said["global_batch"],
        base=base,
        stack=said.get("stack", SPREAD_STACK),
        implementation="megatron",
    ).candidates
    took = time.process_time() - begun
    wanted = {name: said["degrees"].get(name, 1) for name in DEGREES}
    # They ran, however little of the device they left.
    alike = (one for one in found if {name: getattr(one.workload, name) for name in DEGREES} == wanted)
    own = min(alike, key=lambda one: one.seconds, default=None)
    ratio = f"{own.seconds / found[0].seconds:.2f}" if own else "does not fit"
    published = layout(own) if own else ", ".join(f"{name} {value}" for name, value in said["degrees"].items())
    return [said["model"], f"{said['gpus']} {said['device']}", published, layout(found[0]), ratio, f"{took:.0f}"]


def layout(candidate: Candidate) -> str:
    w = candidate.workload
    degrees = {"t": w.t, "p": w.p, "vpp": w.vpp, "cp": w.cp, "e": w.e, "d": w.d, "b": w.b}
    said = [f"{name} {value}" for name, value in degrees.items() if value > 1 or name == "b"]
    return ", ".join([*said, f"ZeRO {w.zero}", f"recomputes {w.checkpointing}", f"{candidate.seconds:.1f} s"])


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    listed = tomllib.loads(LAYOUTS.read_text(encoding="utf-8"))["layout"]
    rows = [judged(said) for said in listed if said["model"].startswith(wanted)]
    headers = ["model", "devices", "published degrees", "plan's fastest", "ratio", "CPU s"]
    print(tabulate(rows, headers, tablefmt="github", disable_numparse=True))  # noqa: T201 - its purpose


if __name__ == "__main__":
    main()
