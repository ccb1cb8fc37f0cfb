"""`sizer plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from shapes.errors import InputError
from sizer.cli.options import config_argument, device_option, output_options, write_output

if TYPE_CHECKING:
    from sizer.answers.plan import Candidate, Plan


@click.command()
@click.argument("config")
@device_option
@click.option("--gpus", type=int, required=True, help="Devices.")
@click.option("--global-batch", type=int, required=True, help="Sequences a step, over all devices.")
@click.option("-s", "--sequence", "s", type=int, help="Tokens a sequence. [default: the file's, or 4096]")
@click.option("--dtype", default="bf16", show_default=True, help="Of the products.")
@click.option("--attention", type=click.Choice(["flash", "eager"]), default="flash", show_default=True, help="Kernel.")
@click.option("--optimizer", default="adamw", show_default=True, metavar="NAME", help="Optimizer, e.g. lion.")
@click.option("--precision", metavar="NAME", help="Recipe, e.g. mixed-16. [default: by --dtype]")
@click.option(
    "--implementation",
    type=click.Choice(["huggingface", "megatron"]),
    default="megatron",
    show_default=True,
    help="Whose kernels save activations.",
)
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="How many to list.")
@click.option("--config-format", metavar="NAME", help="The file's format. [default: detected]")
@output_options("text", "json")
def command(
    config: str,
    device: str,
    gpus: int,
    global_batch: int,
    s: int | None,
    dtype: str,
    attention: str,
    optimizer: str,
    precision: str | None,
    implementation: str,
    top: int,
    config_format: str | None,
    format_: str,
    output: str | None,
) -> None:  # fmt: skip
    """List the fastest ways to spread a training step over N devices, as far as the cost model can tell."""
    from shapes.device import load_device
    from sizer.answers.plan import plan
    from sizer.subject import read_subject

    # What the file says of its own split does not bind a plan.
    asked: dict[str, Any] = {"t": 1, "p": 1, "d": 1, "e": 1, "zero": 0, "b": 1, "dtype": dtype, "attention": attention}
    if s is not None:
        asked["s"] = s
    subject = read_subject(config_argument(config, config_format), config_format=config_format, **asked)
    if subject.model is None:
        raise InputError("expected a model type that sizer reads: a plan needs named sizes", where=config)
    found = plan(
        subject.model, load_device(device), gpus=gpus, global_batch=global_batch, base=subject.workload,
        optimizer=optimizer, precision=precision, implementation=implementation,
    )  # fmt: skip
    text = json.dumps(_dict(found, top), indent=2) if format_ == "json" else _text(found, top)
    write_output(text, output)


def _text(found: Plan, top: int) -> str:
    from tabulate import tabulate

    w = found.candidates[0].workload
    rows = [_row(candidate) for candidate in found.candidates[:top]]
    headers = [
        "t",
        "p",
        "d",
        "e",
        "ZeRO",
        "b",
        "microbatches",
        "checkpointing",
        "step s",
        "comm.",
        "bubble",
        "GiB",
        "MFU",
    ]
    lines = [
        f"{found.gpus} x {found.device}, global batch {found.global_batch} x {w.s} tokens, {w.dtype}, "
        f"{w.attention} attention",
        f"{len(found.candidates)} splits fit; {found.source}, advice within the cost model's error",
        "",
        tabulate(rows, headers, disable_numparse=True),
        "",
        f"the first {found.indistinguishable} are within the prediction's error of the fastest"
        if found.indistinguishable > 1
        else "the fastest is ahead by more than the prediction's error",
    ]
    if found.dropped:
        lines += ["", "not listed:"] + [f"  {number:4d}  {reason}" for reason, number in found.dropped[:12]]
    lines += ["", "assumed:"] + [f"  {text}" for text in found.assumptions]
    return "\n".join(lines)


def _row(candidate: Candidate) -> list[str]:
    w, half = candidate.workload, (candidate.high_s - candidate.low_s) / 2
    return [
        *(str(value) for value in (w.t, w.p, w.d, w.e, w.zero, w.b, candidate.microbatches)), w.checkpointing,
        f"{candidate.seconds:.3f} ± {half:.3f}", f"{candidate.communication_s / candidate.seconds:.0%}",
        f"{candidate.bubble_s / candidate.seconds:.0%}", f"{candidate.memory_bytes / 2**30:.1f}",
        "-" if candidate.mfu is None else f"{candidate.mfu:.1%}",
    ]  # fmt: skip


def _dict(found: Plan, top: int) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "gpus": found.gpus,
        "global_batch": found.global_batch,
        "device": found.device,
        "device_bytes": found.device_bytes,
        "source": found.source,
        "fitting": len(found.candidates),
        "indistinguishable": found.indistinguishable,
        "candidates": [
            {
                "workload": candidate.workload.to_dict(),
                "microbatches": candidate.microbatches,
                "step_seconds": candidate.seconds,
                "step_seconds_low": candidate.low_s,
                "step_seconds_high": candidate.high_s,
                "communication_seconds": candidate.communication_s,
                "bubble_seconds": candidate.bubble_s,
                "memory_bytes": candidate.memory_bytes,
                "mfu": candidate.mfu,
            }
            for candidate in found.candidates[:top]
        ],
        "dropped": [{"reason": reason, "count": number} for reason, number in found.dropped],
        "assumptions": list(found.assumptions),
    }
