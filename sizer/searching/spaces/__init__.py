"""The search spaces. Adding one is a file of this folder and its place in ``SPACES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from shapes.device import Device
from shapes.errors import InputError
from sizer.searching.baseline import Baseline
from sizer.searching.space import Limits, Space
from sizer.searching.spaces import heads, hidden, microbatch, model, swiglu, vocab


class SpaceMaker(Protocol):
    """The module of one space: its ``--what``, what limits it takes besides range, step and tolerance, candidates."""

    NAME: str
    LIMITS: frozenset[str]

    def space(self, baseline: Baseline, device: Device, limits: Limits) -> Space: ...


SPACES: Mapping[str, SpaceMaker] = {
    one.NAME: one for one in cast(tuple[SpaceMaker, ...], (swiglu, heads, vocab, hidden, microbatch, model))
}
#: Limits that not every space takes -> the command line's option, and how it is typed.
OPTIONS = {"aspect": ("--aspect", ":"), "head_dims": ("--head-dim", ","), "seq_lens": ("--seq-lens", ",")}


def make_space(what: str, baseline: Baseline, device: Device, limits: Limits) -> Space:
    """The space named ``what`` around a baseline. InputError: no such space, or a limit it would take no notice of."""
    if what not in SPACES:
        raise InputError(f"expected one of {', '.join(SPACES)}", key="--what", value=what)
    for name, (option, separator) in OPTIONS.items():
        value = getattr(limits, name)
        if value is not None and name not in SPACES[what].LIMITS:
            others = " or ".join(other for other, space in SPACES.items() if name in space.LIMITS)
            typed = separator.join(f"{one:g}" for one in value)
            raise InputError(f"expected --what {others} with it", key=option, value=typed)
    if baseline.scope == "product" and what != swiglu.NAME:
        raise InputError(f"expected --what {swiglu.NAME} with it", key="--gemm-only")
    return SPACES[what].space(baseline, device, limits)
