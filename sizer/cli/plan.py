"""`sizer plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from shapes.errors import InputError
from shapes.finetune import METHODS
from shapes.kernels import CHOICES
from sizer.cli.numbers import COUNT, QUANTITY
from sizer.cli.options import config_argument, config_options, device_option, output_options, write_answer


@click.command()
@click.argument("config")
@device_option
@click.option("--gpus", type=COUNT, required=True, help="Devices.")
@click.option("--global-batch", type=COUNT, required=True, help="Sequences a step, over all devices.")
@click.option("-s", "--sequence", "s", type=COUNT, help="Tokens a sequence. [default: the file's, or 4096]")
@click.option("--dtype", default="bf16", show_default=True, help="Of the products.")
@click.option(
    "--attention",
    type=click.Choice(CHOICES),
    default="auto",
    show_default=True,
    metavar="KERNEL",
    help=f"Attention kernel: {', '.join(CHOICES)}.",
)
@click.option("--stack", metavar="NAME", help="Software stack that runs the step. [default: megatron-core-te]")
@click.option("--tokens", type=QUANTITY, metavar="N", help="Tokens of a whole training: days, device hours, kWh.")
@click.option("--price", type=float, metavar="AMOUNT", help="With --tokens: the price of a device hour.")
@click.option("--optimizer", metavar="NAME", help="Optimizer, e.g. lion. [default: the file's, or adamw]")
@click.option("--precision", metavar="NAME", help="Recipe, e.g. mixed-16. [default: by --dtype]")
@click.option(
    "--implementation",
    type=click.Choice(["huggingface", "megatron"]),
    help="Whose kernels save activations: transformers' modules or Megatron's. [default: --stack's, else the file's]",
)
@click.option(
    "--finetune", metavar="METHOD", help=f"Fine-tuning: {', '.join(METHODS)}. [default: the file's, or from scratch]"
)
@click.option("--phase", metavar="PHASE", hidden=True)
@click.option("--top", type=click.IntRange(1), default=8, show_default=True, help="How many to list.")
@config_options
@output_options("plan")
def command(
    config: str,
    device: str,
    gpus: int,
    global_batch: int,
    s: int | None,
    dtype: str,
    attention: str,
    stack: str | None,
    tokens: float | None,
    price: float | None,
    optimizer: str | None,
    precision: str | None,
    implementation: str | None,
    finetune: str | None,
    phase: str | None,
    top: int,
    config_format: str | None,
    format_: str,
    output: str | None,
) -> None:
    """List the fastest ways to spread a training step over N devices, as far as the cost model can tell."""
    from shapes.device import load_device
    from shapes.step.stack import load_stack
    from sizer.answers.plan import PLAN_STACK, plan
    from sizer.subject import read_subject

    if phase not in (None, "train"):
        expected = "expected training: how serving is spread is what `sizer check --phase decode --tp N` prices, N by N"
        raise InputError(expected, key="--phase", value=phase)
    # What the file says of its own split does not bind a plan.
    asked: dict[str, Any] = {"t": 1, "p": 1, "d": 1, "e": 1, "zero": 0, "b": 1, "cp": 1, "vpp": 1}
    asked |= {"dtype": dtype, "attention": attention}
    asked |= {key: value for key, value in (("s", s), ("finetune", finetune)) if value is not None}
    # Without a stack named memory is counted as `memory` and `check` count it for the same file.
    subject = read_subject(config_argument(config), config_format=config_format, stack=stack, **asked)
    if subject.model is None:
        raise InputError("expected a model type that sizer reads: a plan needs named sizes", where=config)
    found = plan(
        subject.model,
        load_device(device),
        gpus=gpus,
        global_batch=global_batch,
        base=subject.workload,
        stack=stack if stack is not None else PLAN_STACK,
        tokens=tokens,
        price=price,
        optimizer=optimizer,
        precision=precision,
        implementation=implementation or subject.implementation,
        loss=None if stack is None else load_stack(stack).loss,
    )
    write_answer("plan", replace(found, top=top), format_, output)
