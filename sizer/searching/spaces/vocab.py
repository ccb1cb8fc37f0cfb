"""Padding the vocabulary: the embedding and the head grow, the tokenizer does not change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.operators import Operator, operators
from shapes.workload import Workload
from sizer.searching.baseline import Baseline
from sizer.searching.space import Candidates, Limits, Space, nothing_left

NAME = "vocab"
LIMITS = frozenset({"misaligned", "tp_ready"})

#: Multiples of the alignment beyond the vocabulary that are worth a look.
PADDINGS = 8


def space(baseline: Baseline, device: Device, limits: Limits) -> Space:
    """The next multiples of the alignment times t above the vocabulary (never below: tokens would be lost)."""
    model, workload = baseline.model, baseline.workload
    if not model.head:
        raise InputError("expected a model with an LM-head", key="--what", value=NAME)
    step = device.alignment_elements(workload.dtype) * limits.shards(workload.t)
    highest = min(model.vocab + PADDINGS * step, int(model.vocab * (1 + limits.tolerance)) + step)
    values = [value for value in limits.values(model.vocab, highest, step) if value > model.vocab]
    if not values:
        raise nothing_left(NAME, {"padding (larger than the vocabulary)": 1})
    return Space(
        NAME,
        model,
        workload,
        Candidates({"vocab": np.array(values)}),
        {"vocab": model.vocab},
        timed=_head,
        measured_parts=("head",),
        notes=("the head and the loss are timed",),
    )


def _head(model: ModelShape, workload: Workload) -> Iterator[Operator]:
    return (operator for operator in operators(model, workload) if operator.name in ("lm_head", "cross_entropy"))
