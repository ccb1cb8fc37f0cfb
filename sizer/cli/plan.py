"""`sizer plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from shapes.errors import InputError
from sizer.cli.numbers import QUANTITY
from sizer.cli.options import (
    Asked,
    config_options,
    device_option,
    option,
    output_options,
    price_option,
    several,
    stack_option,
    subcommand,
    workload_option,
    write_answer,
)

#: Fields of the workload that a plan does not find itself.
_TAKEN = ("s", "dtype", "attention", "optimizer", "precision", "implementation", "finetune")
#: What the file says of its own split does not bind a plan.
_FOUND: dict[str, Any] = dict.fromkeys(("t", "p", "d", "e", "b", "cp", "vpp"), 1) | {
    "zero": 0,
    "dtype": "bf16",
    "attention": "auto",
}


@subcommand()
@click.argument("config")
@device_option
@workload_option("gpus", required=True, help="Devices.")
@workload_option("global_batch", required=True, help="Sequences a step, over all devices.")
@stack_option
@option("--tokens", type=QUANTITY, metavar="N", help="Tokens of a whole training: days, device hours, kWh.")
@price_option
@option("--top", type=click.IntRange(1), default=8, show_default=True, help="How many to list.")
@several(*(workload_option(field) for field in _TAKEN))
@workload_option("phase", hidden=True)
@config_options
@output_options("plan")
def command(asked: Asked) -> None:
    """List the fastest ways to spread a training step over N devices, as far as the cost model can tell."""
    from shapes.device import load_device
    from shapes.step.stack import load_stack
    from sizer.answers.plan import PLAN_STACK, plan
    from sizer.subject import read_subject

    chosen = asked.workload
    if chosen.pop("phase", "train") != "train":
        expected = "expected training: how serving is spread is what `sizer check --phase decode --tp N` prices, N by N"
        raise InputError(expected, key="--phase")
    split = {name: chosen.pop(name) for name in ("gpus", "global_batch")}
    memory = {name: chosen.pop(name, None) for name in ("optimizer", "precision", "implementation")}
    # Without a stack named memory is counted as `memory` and `check` count it for the same file.
    subject = read_subject(
        asked.source(asked.config), config_format=asked.config_format, stack=asked.stack, **_FOUND | chosen
    )
    if subject.model is None:
        raise InputError("expected a model type that sizer reads: a plan needs named sizes", where=asked.config)
    memory["implementation"] = memory["implementation"] or subject.implementation
    found = plan(
        subject.model,
        load_device(asked.device),
        base=subject.workload,
        stack=asked.stack or PLAN_STACK,
        tokens=asked.tokens,
        price=asked.price,
        loss=None if asked.stack is None else load_stack(asked.stack).loss,
        **split,
        **memory,
    )
    write_answer("plan", replace(found, top=asked.top), asked.format_, asked.output)
