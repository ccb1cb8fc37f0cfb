"""The microbatch: any b up to the largest that fits, at the sequence lengths allowed; time is compared a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shapes.device import Device
from shapes.memory import largest_microbatch
from sizer.searching.baseline import Baseline
from sizer.searching.space import Candidates, Limits, Space, nothing_left

NAME = "microbatch"
LIMITS = frozenset({"misaligned", "seq_lens"})
#: Of large b only those of so many significant bits are tried: every one to 256, then each within a 128th of the next.
BITS = 8


def space(baseline: Baseline, device: Device, limits: Limits) -> Space:
    """b from 1 to twice the baseline's tokens, as far as memory allows, for its s and each of ``limits.seq_lens``."""
    model, workload = baseline.model, baseline.workload
    own = {"b": workload.b, "s": workload.s} if limits.seq_lens else {"b": workload.b}
    found: list[Mapping[str, int]] = []
    excluded: dict[str, int] = {}
    fits: dict[int, int] = {}
    for s in dict.fromkeys((workload.s, *(limits.seq_lens or ()))):
        fits[s] = largest_microbatch(model, replace(workload, s=s), device)
        wanted = max(1, 2 * workload.tokens // s)
        highest = min(wanted, fits[s]) if fits[s] else wanted
        if highest < wanted:
            excluded[f"memory of {device.name} (the largest that fits is {fits[s]} at s {s})"] = wanted - highest
        every = limits.values(1, highest, 1)
        whole = [b for b in every if workload.global_batch is None or workload.global_batch % (b * workload.d) == 0]
        kept = [b for b in whole if limits.misaligned or limits.step is not None or _is_round(b)]
        found += [{key: {"b": b, "s": s}[key] for key in own} for b in kept]
        if len(whole) < len(every):
            excluded[f"--global-batch {workload.global_batch} in whole microbatches at s {s}"] = len(every) - len(whole)
        if len(kept) < len(whole):
            reason = f"b of more than {BITS} significant bits at s {s} (--step 1 takes them all)"
            excluded[reason] = len(whole) - len(kept)
    candidates = Candidates.of([change for change in found if change != own])
    if not len(candidates):
        raise nothing_left(NAME, excluded)
    notes = [
        f"the largest microbatch that fits {device.name} is {most} at s {s}"
        if most
        else f"nothing fits {device.name} at s {s}: times only"
        for s, most in fits.items()
    ]
    notes.append("times are compared a token")
    return Space(NAME, model, workload, candidates, own, excluded=excluded, notes=tuple(notes))


def _is_round(b: int) -> bool:
    return b % (1 << max(0, b.bit_length() - BITS)) == 0
