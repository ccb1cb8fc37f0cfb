"""A mixture's experts at equal total and active parameters: width, number, top-k and shared experts together."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np

from shapes.device import Device
from shapes.errors import InputError
from sizer.searching.baseline import Baseline
from sizer.searching.mixtures import WIDTH_FACTOR, baseline_of, mixtures, off_by, shared_widths, whole
from sizer.searching.space import Candidates, Limits, Space, layers_named, nothing_left

NAME = "experts"
LIMITS = frozenset({"tp_ready"})


def space(baseline: Baseline, device: Device, limits: Limits) -> Space:
    """Finer and coarser experts, each as many and as many a token as keep both counts of parameters."""
    model, workload, moe = baseline.model, baseline.workload, baseline.model.moe
    if moe is None:
        raise InputError("expected a mixture of experts", key="--what", value=NAME)
    step, multiple = device.alignment_elements(workload.dtype) * limits.shards(workload.t), whole(moe, workload)
    shared = moe.shared.width if moe.shared else 0
    total, active = moe.experts * moe.width + shared, moe.top_k * moe.width + shared
    widths = limits.values(moe.width // WIDTH_FACTOR, moe.width * WIDTH_FACTOR, step)
    pairs = [(width, one) for width in widths for one in shared_widths(moe, width)]
    own, excluded = baseline_of(moe), Counter[str]()
    _, tried = mixtures(moe, np.array([total]), np.array([active]), pairs, multiple)
    candidates = Candidates(tried)
    candidates = candidates[~candidates.equal(own)]
    if len(candidates):
        near = off_by(model, candidates.columns, model.parameters, model.active_parameters) <= limits.tolerance
        reason = f"--tolerance {limits.tolerance:.2%} of total and of active parameters"
        candidates = candidates.where({reason: near}, excluded)
    if not len(candidates):
        raise nothing_left(NAME, excluded)
    notes = (
        "total and active parameters stay within the tolerance; what finer or coarser experts do to quality is yours",
        f"experts in multiples of {multiple}; router, experts, shared and dense MLPs are timed",
    )
    return Space(
        NAME,
        model,
        workload,
        candidates,
        own,
        timed=partial(layers_named, (".moe.", ".mlp.")),
        measured_parts=(),
        excluded=excluded,
        notes=notes,
    )
