"""Measuring shared by check, search and bench: the device at hand, and what of a step can be timed alone."""

from __future__ import annotations

from typing import Literal

from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.measure.environment import Environment
from shapes.measure.jobs import Job, MemoryBound
from shapes.operators import CachedAttention, Elementwise, Operator
from sizer.subject import Subject


def jobs_of_subject(subject: Subject) -> tuple[dict[Operator, Job], tuple[str, ...]]:
    """(each operator's job, a line for every operator that cannot be timed alone and why)."""
    jobs: dict[Operator, Job] = {}
    notes: list[str] = []
    for operator in subject.operators:
        if operator.kind == "collective":
            notes.append(f"{operator.name}: communication needs several devices: not measured")
        elif isinstance(operator, CachedAttention):
            notes.append(f"{operator.name}: attention over a KV cache is priced, not timed")
        elif isinstance(operator, Elementwise):
            bound = elementwise_shape(operator, subject)
            if bound is None:
                notes.append(f"{operator.name} ({operator.phase}): no kernel of its own here: not measured")
            else:
                jobs[operator] = Job(bound, label=operator.name)
        else:
            jobs[operator] = Job(operator, label=operator.name)
    return jobs, tuple(dict.fromkeys(notes))


def elementwise_shape(operator: Elementwise, subject: Subject) -> MemoryBound | None:
    """The kernel with rows and columns that moves an operator's bytes; None where torch has no single one for it."""
    if subject.model is None or operator.phase not in ("forward", "dgrad"):
        return None
    size = max(2, BYTES[operator.dtype])
    dtype = operator.dtype if BYTES[operator.dtype] > 1 else "bf16"
    model = subject.model
    backward = operator.phase == "dgrad"
    if operator.what == "norm" and "qk_norm" not in operator.name and "latent" not in operator.name:
        columns, elements = model.hidden, operator.bytes_written // size
    elif operator.what == "activation" and model.dense_mlp is not None and model.dense_mlp.gated:
        columns, elements = model.dense_mlp.width, operator.bytes_written // size // (2 if backward else 1)
    elif operator.what == "softmax":
        columns, elements = subject.workload.s, operator.bytes_written // size
    elif operator.what == "residual" and not backward:
        columns, elements = model.hidden, operator.bytes_written // size
    elif operator.what == "cross_entropy":
        columns, elements = -(-model.vocab // subject.workload.t), operator.bytes_written // (size if backward else 4)
    else:
        return None
    rows = elements // columns
    if not rows:
        return None
    phase: Literal["forward", "dgrad"] = "dgrad" if backward else "forward"
    return MemoryBound(operator.what, rows, columns, phase, dtype)


def device_of(environment: Environment) -> Device | None:
    """The known accelerator behind an environment's device name, if there is one."""
    return environment.accelerator


def device_at_hand(environment: Environment, named: str | Device | None) -> Device | None:
    """The device measured on, where it is known or ``named`` is a file of its own; None: unknown (a CPU).

    InputError where another is named: its constants and limits are not those of what is timed.
    """
    if isinstance(named, str) and named.endswith(".toml"):
        return load_device(named)
    here = device_of(environment)
    wanted = load_device(named) if named is not None else None
    if here is not None and wanted is not None and here.name != wanted.name:
        raise InputError(f"measuring is on {environment.device} ({here.name})", key="--device", value=wanted.name)
    return here
