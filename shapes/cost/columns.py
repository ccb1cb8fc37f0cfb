"""Seconds of operators whose sizes are columns (`shapes.columns`): `predict_many` without an object for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.columns import spread
from shapes.cost.constants import collective_constants, gemm_constants, number
from shapes.cost.fused_attention import attention_times, constants_of, phase_of, work_of
from shapes.cost.gemm import CHUNK, gemm_seconds
from shapes.cost.moving import cached_attention_parts, collective_parts, elementwise_parts
from shapes.cost.predict import Alike, alike, per_group, run_for
from shapes.device import Device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.operators.cores import written_out
from shapes.operators.types import Attention, CachedAttention, Collective, Elementwise, Gemm, Operator, Product

Array = NDArray[np.float64]


def seconds_of(operators: Sequence[Operator], device: Device) -> list[Any]:
    """Predicted seconds of one run of each operator: a column where sizes are. InputError as of `predict_many`."""
    found: list[Any] = [None] * len(operators)
    groups: dict[tuple[Alike, float], dict[tuple[Any, ...], list[int]]] = {}
    for place, operator in enumerate(operators):
        if isinstance(operator, Product):
            # The fullest group's longer reduction outlasts the others, in wgrad.
            load = 1.0 if isinstance(operator, Gemm) or operator.ragged == "m" else operator.load
            equal = groups.setdefault((alike(operator, device), load), {})
            equal.setdefault(per_group(operator), []).append(place)
        else:
            found[place] = _alone(operator, device)
    for key, equal in groups.items():
        packs, sizes = zip(*(spread(*one) for one in equal), strict=True)
        seconds = _products(np.concatenate(sizes, axis=1), *key, device)
        ends = np.cumsum([one.shape[1] for one in sizes])
        for places, pack, own in zip(equal.values(), packs, np.split(seconds, ends[:-1]), strict=True):
            for place in places:
                found[place] = pack(own)
    return found


def _products(sizes: NDArray[np.int64], shared: Alike, load: float, device: Device) -> Array:
    """Seconds of products that are ``shared`` alike; ``load``: the fullest group's."""
    by, compute = shared.kernels(device), np.zeros(1)
    if not shared.pads and load == 1.0:
        seconds = gemm_seconds(sizes, by)
    else:
        starts = range(0, sizes.shape[1], CHUNK)
        times = [shared.times(sizes[:, start : start + CHUNK], device) for start in starts]
        seconds, compute = (np.concatenate([getattr(one, name) for one in times]) for name in ("seconds", "compute_s"))
    if shared.grouped:
        slower = number(device, "grouped", "slowdown")
        seconds = seconds + (seconds - by.constants.launch_s) * (slower - 1) + (load - 1) / sizes[3] * compute
    return seconds


def _alone(operator: Operator, device: Device) -> Any:
    """Seconds of what is no product."""
    if isinstance(operator, Attention):
        return _attention(operator, device)
    if isinstance(operator, CachedAttention):
        constants, _ = gemm_constants(device, operator.dtype)
        launch, memory, compute = cached_attention_parts(operator, constants, device)
        return launch + np.maximum(memory, compute)
    # Bytes do not care for the matrix units, as in `predict`.
    constants, _ = gemm_constants(device, "bf16" if "bf16" in device.peak_flops else "fp16")
    if isinstance(operator, Elementwise):
        return sum(elementwise_parts(operator, constants))
    if isinstance(operator, Collective):
        return sum(collective_parts(operator, device, collective_constants(device, operator.what)))
    raise InputError("expected an operator of shapes.operators.types; no cost is known", key="kind", value=operator)


def _attention(operator: Attention, device: Device) -> Any:
    """Seconds of a fused attention: kernels are chosen, and fitted, by the head dimensions, which rows are told apart

    by.
    """
    fixed = replace(operator, head_dim=int(operator.head_dim), v_head_dim=int(operator.v_head_dim))
    run, backward = run_for(fixed, device), operator.phase != "forward"
    if run.kernel == "eager":
        return sum(seconds_of(written_out(operator), device))
    sizes = (operator.batch, operator.heads, operator.kv_heads, operator.q_len, operator.kv_len, operator.window or 0)
    pack, rows = spread(*sizes)
    same = work_of([replace(fixed, batch=1, heads=1, kv_heads=1, q_len=1, kv_len=1, window=None)], [run])
    batch, heads, kv_heads, q_len, kv_len, window = rows.astype(float)
    work = replace(
        same[np.zeros(rows.shape[1], np.intp)],
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        window=window,
    )
    phase = constants_of(run.kernel, device, operator.dtype).phases[phase_of(backward, operator.trains)]
    return pack(attention_times(work, phase, backward, BYTES[operator.dtype]).seconds)
