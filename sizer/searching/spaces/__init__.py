"""The search spaces. Adding one is a function of a ``Request`` in a file of this folder and its place in ``SPACES``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from shapes.device import Device
from shapes.errors import InputError, one_of, refuse
from shapes.model import AttentionShape, ModelShape
from sizer.searching.baseline import Baseline
from sizer.searching.space import TOLERANCE, WIDER, Limits, NothingLeftError, Request, Space
from sizer.searching.spaces.experts import experts
from sizer.searching.spaces.model import alike, model
from sizer.searching.spaces.parts import heads, swiglu, vocab

#: ``--what`` -> who makes the space.
SPACES: Mapping[str, Callable[[Request], Space]] = {one.__name__: one for one in (swiglu, experts, heads, vocab, model)}
#: What a model has that each is of, and whether one does.
NEEDS: Mapping[str, tuple[str, Callable[[ModelShape], object]]] = {
    "swiglu": ("a dense MLP", lambda model: model.dense_mlp),
    "experts": ("a mixture of experts", lambda model: model.moe),
    "heads": ("keys and values of heads", lambda model: isinstance(model.attention, AttentionShape)),
    "vocab": ("an LM-head", lambda model: model.head),
    "model": ("layers of a decoder, its experts, else its MLPs, alike in all", alike),
}
#: Limits that not every space takes -> those that do. All take a range, a step and a tolerance.
TAKEN_BY = {
    "aspect": (model,),
    "head_dims": (heads, model),
    "vary": (model,),
}


def make_space(what: str, baseline: Baseline, device: Device, limits: Limits) -> Space:
    """The space named ``what`` around a baseline. InputError: no such space, or a limit it would take no notice of."""
    refuse(
        what == "microbatch",
        "expected a part of a model: `sizer memory` says the largest microbatch, `sizer plan` prices others",
        "--what",
        what,
    )
    one_of(what, SPACES, "--what")
    own = baseline.model
    if not NEEDS[what][1](own):
        others = " or ".join(name for name, (_, has) in NEEDS.items() if has(own))
        raise InputError(f"expected --what {others}: {own.model_type} lacks {NEEDS[what][0]}", key="--what", value=what)
    for name, takers in TAKEN_BY.items():
        if getattr(limits, name) is not None and SPACES[what] not in takers:
            others = " or ".join(taker.__name__ for taker in takers)
            option = f"--limit {name.removesuffix('s').replace('_', '-')}"
            raise InputError(f"expected --what {others} with it, not {what}", key=option)
    refuse(baseline.scope == "product" and what != "swiglu", "expected --what swiglu with it", "--gemm-only")
    return _widened(Request(what, baseline, device, limits))


def _widened(request: Request) -> Space:
    """The space asked for; where the usual tolerance leaves nothing, of the next one that does, which a note says."""
    make, usual = SPACES[request.what], request.limits.tolerance
    try:
        return make(request)
    except NothingLeftError as nothing:
        for tolerance in WIDER if usual == TOLERANCE else ():
            with suppress(NothingLeftError):
                wider = replace(request, limits=replace(request.limits, tolerance=tolerance), excluded=Counter())
                space = make(wider)
                note = f"nothing aligned is within --tolerance {usual:.0%}: it is {tolerance:.0%} here"
                return replace(space, notes=(note, *space.notes))
        raise nothing
