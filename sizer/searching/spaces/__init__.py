"""The search spaces. Adding one is a file of this folder and its place in ``SPACES``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

import numpy as np

from shapes.device import Device
from shapes.errors import InputError
from shapes.model.resize import dimensions
from sizer.searching.baseline import Baseline
from sizer.searching.space import KEEPABLE, Limits, Space, nothing_left
from sizer.searching.spaces import experts, heads, hidden, microbatch, model, swiglu, vocab


class SpaceMaker(Protocol):
    """The module of one space: its ``--what``, what limits it takes besides range, step and tolerance, candidates."""

    NAME: str
    LIMITS: frozenset[str]

    def space(self, baseline: Baseline, device: Device, limits: Limits) -> Space: ...


SPACES: Mapping[str, SpaceMaker] = {
    one.NAME: one for one in cast(tuple[SpaceMaker, ...], (swiglu, experts, heads, vocab, hidden, microbatch, model))
}
#: Limits that not every space takes -> the command line's option.
OPTIONS = {
    "misaligned": "--misaligned",
    "aspect": "--limit aspect",
    "head_dims": "--limit head-dim",
    "seq_lens": "--limit seq-lens",
    "tp_ready": "--limit tp-ready",
    "keep": "--limit keep",
    "vary": "--limit vary",
}


def make_space(what: str, baseline: Baseline, device: Device, limits: Limits) -> Space:
    """The space named ``what`` around a baseline. InputError: no such space, or a limit it would take no notice of."""
    if what not in SPACES:
        raise InputError(f"expected one of {', '.join(SPACES)}", key="--what", value=what)
    for name, option in OPTIONS.items():
        if getattr(limits, name) not in (None, False) and name not in SPACES[what].LIMITS:
            others = " or ".join(other for other, space in SPACES.items() if name in space.LIMITS)
            raise InputError(f"expected --what {others} with it, not {what}", key=option)
    if baseline.scope == "product" and what != swiglu.NAME:
        raise InputError(f"expected --what {swiglu.NAME} with it", key="--gemm-only")
    return _keeping(SPACES[what].space(baseline, device, limits), limits.keep or ())


def _keeping(space: Space, names: Sequence[str]) -> Space:
    """``space`` without the candidates that change what is to be kept."""
    if not names:
        return space
    own, excluded = dimensions(space.model), Counter[str]()
    sizes = {**own, **space.candidates.columns}
    every = np.ones(len(space.candidates), dtype=bool)
    kept = space.candidates.where(
        {f"--limit keep={name}": every & KEEPABLE[name](own, sizes) for name in names}, excluded
    )
    if not len(kept):
        raise nothing_left(space.what, excluded)
    return replace(space, candidates=kept, excluded={**space.excluded, **excluded})
