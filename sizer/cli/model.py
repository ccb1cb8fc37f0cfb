"""Commands that answer a question about one configuration: `sizer ops`, `memory`, `deploy`, `plan` and `mfu`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import sizer
from shapes.errors import refuse
from shapes.frozen import Names, given, replace
from shapes.workload import option_of
from sizer.process import PRICED, working

from .options import Asked, codes, read_standard_input, seconds, subcommand

if TYPE_CHECKING:
    from sizer.answers.mfu import StepTimes


@subcommand("ops", "CONFIG device stack ops workload config output")
def ops(asked: Asked) -> None:
    """List every operator CONFIG runs in a step: shapes, FLOPs, predicted time and what bounds it."""
    table = replace(asked.of(sizer.ops, asked.source()), **asked.named("sort", "top"))
    if asked.explain:
        asked.answer(table.named(asked.explain), " --explain")
    else:
        asked.answer(table)


@subcommand("memory", "CONFIG device stack memory workload config output")
def memory(asked: Asked) -> None:
    """Say what takes memory on one device, what fits it and the largest microbatch, any integer.

    Exit code 1: the workload does not fit the device.
    """
    found = asked.of(sizer.memory, asked.source())
    asked.answer(found)
    sys.exit(not found.ok)


@subcommand("deploy", "CONFIG device deploy config output")
def deploy(asked: Asked) -> None:
    """Say whether CONFIG fits so many ranks, and which engines load it, pad it, fall back or refuse it, with sources.

    Exit status: 0 if no engine refuses it, 1 if one does, 2 for what cannot be read.
    """
    found = asked.of(sizer.deploy, asked.source(), recipe=asked.runs_in, engines=codes(asked.engines))
    asked.answer(found)
    sys.exit(not found.ok)


@subcommand("plan", "CONFIG device stack plan further config output")
def plan(asked: Asked) -> None:
    """List the fastest ways to spread a training step over N devices, or with --phase decode to serve the model.

    --gpus is needed, to train --global-batch too.

    Serving: t, p, e and d by throughput, within --ttft and --tpot, or at --concurrency requests in flight; --sequence
    is the tokens of a prompt (1024), --context those with its output (twice as many).
    """
    from sizer.documents.plan import telling

    served = asked.workload.get("phase") == "decode"
    _demand(asked, "--gpus 64", *["--global-batch 1024"] * (not served))
    asked.demand(price="tokens", acceptance="drafted", drafted="acceptance")
    with working("pricing splits", PRICED) as tell:
        found = asked.of(sizer.plan, asked.source(), progress=telling(tell))
    asked.answer(found, " --phase decode" * served)


@subcommand("mfu", "[CONFIG] device stack mfu workload config output")
def mfu(asked: Asked) -> None:
    """Turn a measured step time into TFLOPS, MFU and HFU, by every usual way of counting.

    --gpus and --global-batch are needed; --explain asks for the layout (--microbatch, --tp, --pp, --zero) too.
    """
    model = [] if asked.config or asked.params is not None else ["CONFIG (or --params 8B)"]
    _demand(asked, *model, "--gpus 64", "--global-batch 1024", "--step-time 12.7")
    config = asked.config and asked.source()
    asked.explain |= asked.row
    asked.answer(asked.of(sizer.mfu, config, step_time=_times(asked.step_time)), " --row" * asked.row)


def _demand(asked: Asked, *words: str) -> None:
    """InputError that names all of ``words``, options with an example of their values, that were not said."""
    said = {option_of(key) for key in given(asked.workload | {"step_time": vars(asked).get("step_time") or None})}
    missing = [word for word in words if word.partition(" ")[0] not in said]
    refuse(missing, f"needs {' and '.join(missing)} too (values are examples)", where=asked.command)


def _times(every: Names) -> "float | StepTimes":
    """Seconds as they were given, or those that a log holds."""
    from shapes.measure.record import unpacked
    from sizer.answers.mfu import MAX_LOG_BYTES, read_step_times

    said, *more = every
    refuse(more, "expected one time, log or trace", "--step-time", ", ".join(every))
    if (found := seconds(said)) is not None:
        return found
    if said == "-":
        return read_step_times(read_standard_input(), "<stdin>")
    refuse(
        not Path(said).exists(), "expected a time (12.7, 800ms), or the log of a run: no such file", "--step-time", said
    )
    # torch.profiler packs its traces.
    return read_step_times(unpacked(said, MAX_LOG_BYTES).decode("utf-8", "replace"), said)
