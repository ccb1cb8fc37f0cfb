"""Published designs among whole models of equal predicted loss: reports/rederived.md.

    python reports/bench/rederived.py

Each design is the baseline of a space of whole models within published practice (`search --quality`). It is on the
front where no candidate has no more loss, step, decode step and memory; where one has, by how much says whether prices
can tell.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from opening import with_answer
from tabulate import tabulate

from shapes.device import load_device
from shapes.memory import memory
from shapes.model.resize import dimensions
from shapes.step import Pricer
from shapes.workload import Workload
from sizer.searching.pricing import estimates, price, rebuilt
from sizer.searching.quality import FITS, at_equal_loss, losses, wide
from sizer.searching.space import Baseline, Candidates, Limits, Space
from sizer.searching.spaces import make_space

REPORTS = Path(__file__).resolve().parents[1]
DEVICE = "h100-sxm"
#: Name -> the tokens it was trained on, of its report.
DESIGNS = {"meta-llama/Llama-3.1-8B": 15e12, "Qwen/Qwen3-8B": 36e12, "allenai/OLMo-2-1124-7B": 4e12}
FRAME, FROM_FRAME, TOKENS = "deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct", 15.5e12
TRAINED = {"b": 1, "s": 4096}
SERVED = {"b": 64, "context": 8192, "phase": "decode"}


def amounts(space: Space, changes: Candidates, pricer: Pricer, tokens: float, split: Mapping[str, int]) -> np.ndarray:
    """Rows of step seconds, decode seconds and loss over the baseline's, of each candidate."""
    served = replace(space, workload=Workload(dtype="bf16", **SERVED, **split))  # type: ignore[arg-type]
    step, decode = (estimates(one, changes, pricer).seconds for one in (space, served))
    return np.array([step, decode, losses(space, changes, tokens)[0]])


def judged(name: str, tokens: float, pricer: Pricer) -> tuple[list[str], list[str]]:
    """A design's row, and what each of its bounds costs."""
    baseline = Baseline.from_config(name, **TRAINED)
    space = make_space("model", baseline, pricer.device, wide(Limits(), baseline.model, tokens, 64))
    kept = at_equal_loss(space, pricer, tokens)
    own = amounts(kept, Candidates.of([kept.baseline]), pricer, tokens, {})
    found = amounts(kept, kept.candidates, pricer, tokens, {})
    better = np.flatnonzero((found <= own).all(axis=0) & (found < own).any(axis=0))
    peak = memory(kept.model, kept.workload).total_bytes
    smaller = [one for one in better.tolist() if memory(*rebuilt(kept, kept.candidates[one])).total_bytes <= peak]
    notes = [note for note in kept.notes if ": costs " in note or "not made for" in note]
    if not smaller:
        return [name, f"{len(kept.candidates):,}", "on the front", "", ""], notes
    first = min(smaller, key=lambda one: found[0, one])
    change, ratio = kept.candidates[first], found[:, first] / own[:, 0]
    (timed,) = price(kept, [change], pricer)
    error = (timed.timing.high - timed.timing.low) / 2 / timed.timing.seconds
    said = ", ".join(f"{key} {value}" for key, value in change.items() if value != kept.baseline[key])
    verdict = "on the front within the error" if 1 - ratio[:2].min() <= error else "behind"
    gains = f"step {ratio[0] - 1:+.1%} (+-{error:.1%}), decode {ratio[1] - 1:+.1%}, loss {ratio[2] - 1:+.2%}"
    return [name, f"{len(kept.candidates):,}", verdict, said, gains], notes


def kimi(pricer: Pricer) -> list[list[str]]:
    """What Kimi K2 changes in DeepSeek-V3's frame, one by one, in step, decode step, loss and memory."""
    frame, target = (Baseline.from_config(name, **TRAINED, e=8, d=8) for name in (FRAME, FROM_FRAME))
    old, new = dimensions(frame.model), dimensions(target.model)
    names = [name for name in ("heads", "experts") if old[name] != new[name]]
    base = {name: old[name] for name in ("hidden", "layers", "heads", "experts", "top_k", "expert_d_ff")}
    steps = [("as it is", base), *((f"{name} {new[name]}", {**base, name: new[name]}) for name in names)]
    steps.append(("both", {**base, **{name: new[name] for name in names}}))
    changes = Candidates.of([change for _, change in steps])
    space = Space("model", frame.model, frame.workload, changes, base)
    found = amounts(space, changes, pricer, TOKENS, {"e": 8, "d": 8})
    peaks = [memory(*rebuilt(space, change)).total_bytes for _, change in steps]
    return [
        [
            what,
            *(f"{value / own - 1:+.1%}" for value, own in zip(found[:2, at], found[:2, 0], strict=True)),
            f"{found[2, at] / found[2, 0] - 1:+.2%}",
            f"{peaks[at] / peaks[0] - 1:+.0%}",
        ]
        for at, (what, _) in enumerate(steps)
    ]


def main() -> None:
    pricer = Pricer(load_device(DEVICE))
    rows = [(judged(name, tokens, pricer)) for name, tokens in DESIGNS.items()]
    fits = [*FITS["size"], *FITS["term"]]
    lines = [
        "# Published designs among models of equal predicted loss",
        "",
        "    python reports/bench/rederived.py",
        "",
        f"On {DEVICE}, kernels alone: a training step of 4,096 tokens, a decode step of 64 requests of 8,192 keys.",
        "Candidates are whole models of equal parameters within a factor of two of published practice, at no more than",
        "0.1% more loss by the fits below, as far as they were made for such models.",
        "",
        tabulate(
            [row for row, _ in rows],
            ["design", "candidates", "verdict", "what is no worse in anything", "by how much"],
            tablefmt="github",
        ),
        "",
        "What bounds cost, of the shortest step:",
        "",
        *(f"- {row[0]}: {'; '.join(notes)}" for row, notes in rows),
        "",
        f"## {FROM_FRAME} from {FRAME}'s frame, expert-parallel over 8",
        "",
        tabulate(kimi(pricer), ["change", "step", "decode step", "loss", "memory"], tablefmt="github"),
        "",
        "## Fits",
        "",
        tabulate([[fit["name"], fit["source"]] for fit in fits], ["fit", "source"], tablefmt="github"),
        "",
    ]
    text = "\n".join(lines)
    (REPORTS / "rederived.md").write_text(with_answer("rederived", text), encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
