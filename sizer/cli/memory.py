"""`sizer memory`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shapes.errors import InputError
from sizer.cli.options import (
    config_argument,
    device_option,
    given,
    option_error,
    output_options,
    workload_options,
    write_output,
)

if TYPE_CHECKING:
    from sizer.answers.memory_breakdown import Anatomy


@click.command()
@click.argument("config")
@device_option
@workload_options
@click.option(
    "--optimizer", default="adamw", show_default=True, metavar="NAME", help="Optimizer (an unknown name lists them)."
)
@click.option(
    "--precision", metavar="NAME", help="Precision recipe (an unknown name lists them). [default: by --dtype]"
)
@click.option(
    "--implementation",
    type=click.Choice(["huggingface", "megatron"]),
    default="huggingface",
    show_default=True,
    help="Whose kernels save activations: transformers' eager modules or Megatron's fused ones.",
)
@click.option("--weights", "weight_dtype", metavar="DTYPE", help="Weights' type with --phase infer (int4 too).")
@click.option("--gpus", type=int, help="Devices; --dp follows as GPUs / (TP x PP).")
@click.option("--global-batch", type=int, help="Sequences a step; gradient accumulation follows.")
@click.option("--config-format", metavar="NAME", help="The file's format. [default: detected]")
@click.option("--plot", metavar="FILE", help="Draw a bar chart (needs sizer[plot]).")
@output_options("text", "json")
def command(
    config: str,
    device: str,
    optimizer: str,
    precision: str | None,
    implementation: Any,
    weight_dtype: str | None,
    gpus: int | None,
    global_batch: int | None,
    config_format: str | None,
    plot: str | None,
    format_: str,
    output: str | None,
    **workload: Any,
) -> None:  # fmt: skip
    """Say what takes memory on one device, what fits it and the largest microbatch, any integer."""
    from shapes.device import load_device
    from sizer.answers.memory_breakdown import anatomy
    from sizer.batch import batch
    from sizer.subject import read_subject

    asked = given(workload)
    options: dict[str, Any] = {"optimizer": optimizer, "precision": precision, "implementation": implementation}
    if weight_dtype is not None:
        options["weight_dtype"] = weight_dtype
    try:
        subject = read_subject(config_argument(config, config_format), config_format=config_format, **asked)
        if subject.model is None:
            raise InputError("expected a model type that sizer reads: memory needs named sizes", where=config)
        settled = subject.workload
        if gpus is not None:
            plan = batch(gpus, settled.b, t=settled.t, p=settled.p, global_batch=global_batch)
            if "d" in asked and settled.d != plan.d:
                raise InputError(f"expected GPUs / (TP x PP) = {plan.d}", key="d", value=settled.d)
            settled = replace(settled, d=plan.d)
            options["microbatches"] = plan.microbatches if global_batch is not None else None
        found = anatomy(subject.model, settled, load_device(device), subject.where, **options)
    except InputError as error:
        raise option_error(error) from None
    if plot is not None:
        from sizer.report.memory_plot import draw

        draw(found, plot)
    write_output(json.dumps(found.to_dict(), indent=2) if format_ == "json" else _text(found), output)


def _text(found: Anatomy) -> str:
    from tabulate import tabulate

    gib, memory, w = 2**30, found.memory, found.workload
    head = [
        f"{found.path}: {found.model_type}, {found.parameters:,} parameters ({memory.parameters:,} on one device)",
        f"{w.phase}: b {w.b}, s {w.s}, {w.dtype}, {w.attention} attention, checkpointing {w.checkpointing}, "
        f"t {w.t}, p {w.p}, d {w.d}, e {w.e}, ZeRO {w.zero}; {memory.precision}, {memory.optimizer}, "
        f"{memory.implementation}'s kernels",
        "",
    ]
    rows = [[part.name, f"{part.bytes / gib:.3f}", part.formula] for part in memory.parts]
    rows.append(["total", f"{memory.total_bytes / gib:.3f}", "" if w.p == 1 else f"{memory.stage} pipeline stage"])
    lines = [
        *head,
        tabulate(rows, ["component", "GiB", "how"], disable_numparse=True, colalign=("left", "right", "left")),
        "",
    ]
    left = found.device_bytes - memory.total_bytes
    verdict = (
        f"fits with {left / gib:.2f} GiB to spare" if left >= 0 else f"does not fit: {-left / gib:.2f} GiB too much"
    )
    lines.append(f"{found.device} ({found.device_bytes / gib:.2f} GiB): {verdict}")
    largest = found.largest_microbatch
    lines.append(f"largest microbatch: {largest or 'none, not even one sequence fits'}")
    lines.append(f"smallest tensor-parallel degree that fits: {found.smallest_tp or 'none up to 64'}")
    lines.append(f"smallest pipeline-parallel degree that fits: {found.smallest_pp or 'none'}")
    if found.savings:
        table = []
        for saved in found.savings:
            fits = "yes" if saved.total_bytes <= found.device_bytes else "no"
            table.append([saved.saving.name, f"{saved.total_bytes / gib:.3f}", fits, saved.largest_microbatch or "-"])
        lines += ["", tabulate(table, ["with, by itself", "GiB", "fits", "largest microbatch"], disable_numparse=True)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)
