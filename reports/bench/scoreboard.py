"""Every public run judged, by source, device and year, apart from what a fit has used: reports/scoreboard.md.

E=../shared/evidence
L=reports/data/steps-llmq.csv  # IST-DASLab/llmq's logs
python reports/bench/scoreboard.py --data $E/steps.csv --data $E/steps_more.csv --data $E/mlperf.csv \\
    --data $E/cards.csv --data $L
... --write        # the page and README's sentence
... --rescale      # first: the intervals of fitted and of unknown stacks, by all runs here but MLPerf v5.1's
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from step_rows import MAX_BYTES, read_rows
from steps import Judged, figures, judged, say
from steps_fit import rewrite
from tabulate import tabulate

from shapes.errors import InputError, read_text
from shapes.step.stack import GRAPHS, list_stacks
from shapes.toml_table import shipped

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "reports" / "scoreboard.md", ROOT / "README.md"
#: What the fits used, by stack and source, with errors on rows that they left out: written by steps_fit.py.
HELD_OUT = ROOT / "reports" / "data" / "steps-held-out.json"
#: Why runs are missed, by source and stack.
REASONS = Path(__file__).parent / "scoreboard.toml"
#: How notes say that a run was not made to be fast; such runs are listed and in no mean.
UNTUNED = "not tuned for speed"
#: MLPerf's round that neither constants nor intervals have seen.
JUDGES = "5.1"
#: Share of a source's runs that the others' interval is to hold, all counting evenly; those of fewer runs count as one.
HELD, FEW = 0.9, 5
#: The least share that an architecture's interval is to hold, and by how much one changes at least to be written.
LEAST, CHANGED = 0.85, 0.05
WORST = 10
#: README's sentence.
SAID = r"[0-9.]+% off \(median [^;]*; [0-9]+% lie in the 90% interval"
NEVER, LEFT_OUT = "never used in a fit", "left out of it"


@dataclass(frozen=True)
class Run:
    """A judged run with what the table alone says of it."""

    judged: Judged
    year: str
    tuned: bool
    round: str

    @property
    def source(self) -> str:
        return self.judged.row.source + ("" if self.tuned else " (not tuned)")


def runs_of(path: Path, refused: list[tuple[str, str]]) -> list[Run]:
    rows, unpriced = judged(list(read_rows(path, refused)))
    refused += unpriced
    lines = {line["id"]: line for line in csv.DictReader(read_text(path, MAX_BYTES).splitlines(keepends=True))}
    return [
        Run(
            one,
            lines[one.row.id].get("year") or "-",
            UNTUNED not in (lines[one.row.id].get("notes") or ""),
            lines[one.row.id].get("round") or "",
        )
        for one in rows
    ]


def fitted_sources() -> dict[str, dict[str, Any]]:
    """Source -> rows, and errors in sample and left out by layout, of those that a fit has used."""
    recorded = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    found: dict[str, list[dict[str, Any]]] = {}
    for sources in recorded.values():
        for source, own in sources.items():
            if isinstance(own, dict) and "left out by layout" in own:
                found.setdefault(source, []).append(own)
    return {source: _pooled(many) for source, many in found.items()}


def _pooled(many: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = sum(own["rows"] for own in many)
    ways = ("in sample", "left out by layout")
    return {"rows": rows} | {
        way: {key: sum(own["rows"] * own[way][key] for own in many) / rows for key in ("bias", "mape")} for way in ways
    }


def grouped(runs: Iterable[Run], *keys: str) -> dict[tuple[str, ...], list[Run]]:
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        value = {
            "source": run.source,
            "device": run.judged.row.device.base,
            "year": run.year,
            "tier": run.judged.cost.tier,
        }
        found.setdefault(tuple(value[key] for key in keys), []).append(run)
    return dict(sorted(found.items()))


def board(runs: Sequence[Run], *keys: str) -> str:
    """A table: the runs by ``keys``, with their error, the interval's usual edges and how many it holds."""
    rows = []
    for names, own in grouped(runs, *keys).items():
        found = figures([run.judged for run in own])
        costs = [run.judged.cost for run in own]
        low, high = (np.median([getattr(cost, edge) / cost.seconds for cost in costs]) for edge in ("low", "high"))
        inside = f"{found['coverage']:.0%}"
        rows.append(
            [*names, len(own), f"{found['bias']:+.1%}", f"{found['mape']:.1%}", f"{low:.2f} to {high:.2f}", inside]
        )
    headers = [*keys, "rows", "bias", "MAPE", "interval", "covered"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def used(runs: Sequence[Run], fitted: dict[str, dict[str, Any]]) -> str:
    """The sources that a fit has used: errors on rows of layouts that it left out, next to those in sample."""
    rows = []
    for (source, device, year), own in grouped(runs, "source", "device", "year").items():
        known, inside = fitted[source], figures([run.judged for run in own])
        left = known["left out by layout"]
        errors = [f"{inside['bias']:+.1%}, {inside['mape']:.1%}", f"{left['bias']:+.1%}, {left['mape']:.1%}"]
        rows.append([source, device, year, len(own), *errors, f"{inside['coverage']:.0%}"])
    headers = ["source", "device", "year", "rows", "in sample", "left out of it (whole source)", "covered"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def ratios(runs: Sequence[Run]) -> str:
    """Errors of the ratio of two runs of one model, stack, element type and number of devices, as `plan` compares."""
    rows, pairs = [], dict[tuple[str, float], list[float]]()
    for (source, _), own in grouped(runs, "source", "device").items():
        for one, other in combinations([run.judged for run in own], 2):
            a, b = one.row, other.row
            if (a.config, a.stack_name, a.dtype, a.gpus) == (b.config, b.stack_name, b.dtype, b.gpus):
                off = abs(np.log1p(one.error) - np.log1p(other.error))
                pairs.setdefault((source, one.cost.ratio_error), []).append(float(off))
    for (source, said), errors in sorted(pairs.items()):
        if len(errors) >= FEW:
            middle, most = np.quantile(errors, [0.5, HELD])
            inside = f"{np.mean(np.less_equal(errors, np.log1p(said))):.0%}"
            rows.append([source, len(errors), f"{middle:.1%}", f"{most:.1%}", f"{said:.1%}", inside])
    headers = ["source", "pairs", "median", f"{HELD:.0%} within", "said", "covered"]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def worst(runs: Sequence[Run]) -> str:
    """The largest errors, one of each source, stack and device, with what is thought to be the reason."""
    with open(REASONS, "rb") as file:
        reasons = tomllib.load(file)["reason"]
    rows: list[list[Any]] = []
    for _, own in grouped(sorted(runs, key=lambda run: run.judged.row.stack_name), "source", "device").items():
        run = max(own, key=lambda one: abs(np.log1p(one.judged.error)))
        row, inside = run.judged.row, "in" if run.judged.covered else "out"
        why = next((one["why"] for one in reasons if _answers(run, one)), "not known")
        rows.append([row.id, row.stack_name, row.device.name, row.gpus, run.judged.error, inside, why])
    rows.sort(key=lambda own: -abs(np.log1p(own[4])))
    shown = [[*own[:4], f"{own[4]:+.0%}", *own[5:]] for own in rows[:WORST]]
    headers = ["run", "stack", "device", "devices", "error", "interval", "reason"]
    return tabulate(shown, headers, tablefmt="github", disable_numparse=True)


def position(run: Run) -> float:
    """By how much the tier's interval may be narrower, in log time, for the measured step to lie inside.

    What widens it further (operators' own errors, a network that nobody states) stays as wide.
    """
    cost, off = run.judged.cost, np.log(run.judged.row.step_s / run.judged.cost.seconds)
    side, intervals = "high" if off > 0 else "low", run.judged.row.stack.intervals
    architecture = run.judged.row.device.architecture if cost.tier == "fitted" else ""
    edge = np.log(getattr(intervals.get(architecture, intervals[cost.tier]), side))
    further = np.log(getattr(cost, side) / cost.seconds) ** 2 - edge**2
    return float(np.sqrt(np.maximum(off**2 - further, 0)) / abs(edge))


def scale(runs: Iterable[Run], share: float) -> float:
    """What intervals are to be raised to for ``share`` of the runs to lie inside, sources counting evenly."""
    each: dict[str, list[float]] = {}
    for (source,), own in grouped(runs, "source").items():
        each.setdefault(source if len(own) >= FEW else "", []).extend(map(position, own))
    return float(np.quantile([np.quantile(own, np.linspace(0.005, 0.995, 100)) for own in each.values()], share))


def left_out(runs: Sequence[Run], share: float) -> float:
    """Share of a source's runs that the interval of the others holds, the mean over sources."""
    inside = []
    for (source,), own in grouped(runs, "source").items():
        others = scale((run for run in runs if run.source != source), share)
        inside.append(np.mean([position(run) <= others for run in own]))
    return float(np.mean(inside))


def rescale(tuned: Sequence[Run]) -> None:
    """Intervals of unknown stacks as wide as takes in `HELD` of the runs, and of architectures `LEAST`, written.

    All sources count evenly, and MLPerf's round `JUDGES` not at all. An architecture has its own only if its sources,
    of which there are several, need more.
    """
    known = [run for run in tuned if run.round != JUDGES]
    fitted = [run for run in known if run.judged.cost.tier == "fitted"]
    for architecture in sorted({run.judged.row.device.architecture for run in fitted}):
        here = [run for run in fitted if run.judged.row.device.architecture == architecture]
        if len(grouped(here, "source")) == 1 or (factor := scale(here, LEAST)) <= 1 + CHANGED:
            continue
        say(f"{architecture}, fitted, times {factor:.3f}; a source by the others' {left_out(here, LEAST):.0%}")
        for name in {run.judged.row.stack.name.removesuffix(GRAPHS) for run in here}:
            path = shipped("stacks", name)
            interval = tomllib.loads(path.read_text(encoding="utf-8"))["interval"]
            interval[architecture] = _raised(interval.get(architecture, interval["fitted"]), factor)
            rewrite(path, {"interval": interval})
    unknown = [run for run in known if run.judged.cost.tier == "extrapolated"]
    share = next(one for one in (*np.arange(HELD, 1, 0.01), 1.0) if one == 1 or left_out(unknown, one) >= HELD)
    factor = scale(unknown, share)
    say(f"extrapolated, for {share:.0%} of the runs, times {factor:.3f}")
    for name in list_stacks() if abs(factor - 1) > CHANGED else ():
        path = shipped("stacks", name)
        interval = tomllib.loads(path.read_text(encoding="utf-8"))["interval"]
        interval["extrapolated"] = _raised(interval["extrapolated"], factor)
        rewrite(path, {"interval": interval})


def _raised(interval: dict[str, float], power: float) -> dict[str, float]:
    return interval | {edge: round(interval[edge] ** power, 3) for edge in ("low", "high")}


def _answers(run: Run, reason: dict[str, Any]) -> bool:
    row = run.judged.row
    return fnmatchcase(row.source, reason["source"]) and row.device.base in reason.get("device", [row.device.base])


def sentence(runs: Sequence[Run]) -> str:
    """What README says, of the runs that nothing was fitted on."""
    found = figures([run.judged for run in runs])
    middle = float(np.median([abs(run.judged.error) for run in runs]))
    return (
        f"{found['mape']:.1%} off (median {middle:.1%}) on {len(runs)} published runs of sources that no fit used,\n"
        f"MLPerf's among them; {found['coverage']:.0%} lie in the 90% interval"
    )


def page(runs: Sequence[Run], refused: Sequence[tuple[str, str]], command: str) -> str:
    fitted = fitted_sources()
    own = [run for run in runs if run.source in fitted]
    never = [run for run in runs if run.source not in fitted]
    tuned = [run for run in never if run.tuned]
    found = figures([run.judged for run in tuned])
    judging = [run.judged for run in tuned if run.round == JUDGES and run.judged.cost.tier == "fitted"]
    judged_inside = figures(judging)["coverage"]
    reasons: dict[str, int] = {}
    for _, reason in refused:
        reasons[reason] = reasons.get(reason, 0) + 1
    unread = "\n".join(f"- {number} rows: {reason}" for reason, number in sorted(reasons.items()))
    return f"""# Scoreboard: predicted steps against every public run

Predicted steps are {sentence(tuned)}. Their bias is {found["bias"]:+.1%}.

    {command}

Nothing here was measured by this project. A run is *{NEVER}* where its whole source is; of the others a fit
has used a part, and their error on layouts {LEFT_OUT} is given. MLPerf's submissions, v5.1 among them, are never
fitted, but the form knows CUDA graphs, adapters and networks because of them. *Interval*: the usual edges over the
prediction, which should hold 85 to 95%. Those of fitted stacks, and of unknown ones, were made as wide as takes in
{HELD:.0%} of the runs here, all sources counting evenly and MLPerf v{JUDGES} left out (`--rescale` before `--write`).
Blackwell's, of one source in the fit, are wider, to take in {LEAST:.0%} of its runs, some of which are of models of
other kinds of layers than were fitted. Of v{JUDGES}'s {len(judging)} runs on fitted stacks {judged_inside:.0%} lie
inside.
Runs that their source calls not tuned for speed are listed and in no mean. Some of the cards' tuned recipes are those
of other runs of megatron-bridge, which a fit has used.
FSDP 2's contention is FSDP 1's fitted figure, taken over after torchtitan's and torchao's rows had been seen.
llm.c's cross-entropy was taken from an fp32 copy's bytes to those of its own kernel, 6 a logit, after llmq's rows had
been seen, which are 12% off for 17% before, 91% for 74% inside (reports/data/steps-llmq.csv, with their pages).

## {NEVER.capitalize()}

{board(never, "source", "device", "year")}

By device:

{board(tuned, "device")}

By year:

{board(tuned, "year")}

By what the interval says of itself:

{board(tuned, "tier")}

Two runs of one model, stack, element type and number of devices, in other layouts or batches: errors of the ratio of
their times, which is all that `plan` compares, next to the error within which it calls layouts alike (*said*). Sources
of {FEW} such pairs and more:

{ratios(tuned)}

## Worst ten

Of each source and device the largest error, of runs {NEVER}, and what is thought to be the reason:

{worst(tuned)}

## Used in a fit

Bias and mean absolute error.

{used(own, fitted)}

## Not judged

{unread}

## Add a row

A run is a line of CSV with the columns of evidence/steps.csv; needed are
`id,stack,gpu,config,s,micro_batch,accumulation,dtype,t,p,d,step_s`, where `config` is the Hugging Face configuration as
JSON. `source`, `year`, `gpus`, `cp`, `ep`, `vpp`, `zero`, `replicas` (HSDP), `checkpointing`,
`finetune`, `lora_rank`, `lora_targets`, `optimizer`, `interconnect` (`domain=8; nics=8 x 400 Gb/s a node`) and `notes`
(`on: FULL_CUDA_GRAPH`, `recompute modules [moe_act, layernorm]`, `21 of 80 layers recomputed`) are read where they are
there. `sizer mfu CONFIG --gpus 64 --global-batch 1024 -b 1 --step-time 12.7 --row -o FILE` writes one of your run. Add
`--data FILE` to the command above.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, action="append", required=True, help="CSV with the columns of steps.csv")
    parser.add_argument("--write", action="store_true", help="write reports/scoreboard.md and README's sentence")
    parser.add_argument("--rescale", action="store_true", help="scale the intervals, written")
    options = parser.parse_args()
    refused: list[tuple[str, str]] = []
    try:
        runs = [run for path in options.data for run in runs_of(path, refused)]
    except InputError as error:
        sys.stderr.write(f"scoreboard.py: {error}\n")
        sys.exit(2)
    tuned = [run for run in runs if run.tuned and run.source not in fitted_sources()]
    if options.rescale:
        rescale(tuned)
        return
    data = " ".join(f"--data {path if 'data' in path.parts else f'$E/{path.name}'}" for path in options.data)
    found = page(runs, refused, f"E=../shared/evidence; python reports/bench/scoreboard.py {data} --write")
    if not options.write:
        say(found)
        return
    PAGE.write_text(found, encoding="utf-8", newline="\n")
    text = README.read_text(encoding="utf-8")
    changed = re.sub(SAID, lambda _: sentence(tuned).replace("\n", "\n  "), text, count=1)
    README.write_text(changed, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
