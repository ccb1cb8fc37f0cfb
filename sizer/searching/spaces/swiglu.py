"""The width of a gated MLP near 8h/3: the real MLP forward and backward, or the book's single product."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from shapes.device import Device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.model import Block, MlpShape, ModelShape, Stack
from shapes.operators import Gemm, Operator
from shapes.workload import Workload
from sizer.searching.baseline import Baseline
from sizer.searching.space import Candidates, Limits, Space, layers_named, nothing_left

NAME = "swiglu"
LIMITS = frozenset({"misaligned", "tp_ready"})

#: What a kernel loads at once: a leading dimension off it is served by another, slower kernel on every generation.
VECTOR_BYTES = 16


def space(baseline: Baseline, device: Device, limits: Limits) -> Space:
    """Widths within the tolerance of the baseline's: of the MLPs of its model, of one MLP, or of the book's product."""
    if baseline.scope == "product":
        note = "one batched product (b, s, d_ff) x (b, d_ff, h): d_ff is the reduction dimension"
        return replace(_alone(baseline, device, limits, note), operators_of=_single_product)
    note = "gate, up and down with the activation; in training forward, dgrad and wgrad"
    found = _alone(baseline, device, limits, note)
    # One MLP or all of them: the candidates are the same, the parameters the whole model's.
    return replace(found, model=baseline.model, parameters_of=None) if baseline.scope == "model" else found


def _alone(baseline: Baseline, device: Device, limits: Limits, note: str) -> Space:
    mlp, hidden, workload = baseline.model.dense_mlp, baseline.model.hidden, baseline.workload
    if mlp is None:
        raise InputError("expected a model with a dense MLP", key="--what", value=NAME)
    width = mlp.width
    stack = Stack("decoder", hidden, (Block(None, MlpShape(width), norms=0),), final_norm=0)
    slack = int(width * limits.tolerance)
    vector = min(VECTOR_BYTES // BYTES[workload.dtype], device.alignment_elements(workload.dtype)) * limits.shards(
        workload.t
    )
    found = limits.values(width - slack, width + slack, vector)
    values = np.arange(found.start, found.stop, found.step)
    near = values[(abs(values - width) <= slack) & (values != width)]
    step = found.step
    low, high = max(width - slack, limits.low or 1), min(width + slack, limits.high or width + slack)
    misaligned = max(0, high - low + 1) - len(range(-(-low // step) * step, high + 1, step))
    excluded = {
        f"--tolerance {limits.tolerance:.2%}": len(found) - len(near) - (width in found),
        f"multiples of {step}" + ("" if limits.step else " (--step 1 takes every integer)"): misaligned,
    }
    if not len(near):
        if not len(found):
            raise nothing_left(NAME, {f"widths a multiple of {step} within --tolerance {limits.tolerance:.2%}": 1})
        raise nothing_left(NAME, excluded)
    return Space(
        NAME,
        ModelShape("swiglu", (stack,), head=False),
        workload,
        Candidates({"d_ff": near}),
        {"d_ff": width},
        timed=partial(layers_named, (".mlp.",)),
        measured_parts=("mlp",),
        parameters_of=lambda changed: 3 * changed.hidden * (changed.dense_mlp.width if changed.dense_mlp else 0),
        excluded={key: number for key, number in excluded.items() if number},
        notes=(note,),
    )


def _single_product(model: ModelShape, workload: Workload) -> tuple[Operator, ...]:
    mlp = model.dense_mlp
    assert mlp is not None
    return (
        Gemm(
            "layers.*.mlp.down_proj",
            "forward",
            m=workload.s,
            n=model.hidden,
            k=mlp.width,
            batch=workload.b,
            dtype=workload.dtype,
            layout="nn",
            kind="bmm",
        ),
    )
