"""A search's answer in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from sizer.searching.ranked import Ranked


def label(ranked: Ranked) -> str:
    """A candidate's change in words: "10944", or "hidden 2560, heads 20"."""
    if len(ranked.change) == 1:
        return str(next(iter(ranked.change.values())))
    return ", ".join(f"{key} {value}" for key, value in ranked.change.items())


def objected(one: Ranked) -> str:
    """What `check` has against a candidate and not against the baseline, in brackets; "" where that is nothing."""
    said = [f"breaks {', '.join(one.breaks)}; {one.why}"] if one.breaks else []
    if one.warns:
        said.append(f"check warns of {', '.join(one.warns)}, a cost that is in this time")
    return f" ({'; '.join(said)})" if said else ""


def keeps(best: Sequence[Ranked], fixes: Sequence[str]) -> bool:
    """Whether the baseline is the answer: nothing is better beyond the error, nor fixes what it breaks."""
    return not best or (best[0].gain_low <= 1 and not fixes)


def verdict(what: str, baseline: Ranked, best: Sequence[Ranked], fixes: Sequence[str] = ()) -> str:
    """Which candidate to take and what is not statistically distinguishable from it, at the source's own error.

    ``fixes``: rules of `check` that the first candidate keeps and the baseline breaks outright.
    """
    if not best:
        return f"no other {what} was found"
    first = best[0]
    share = first.parameters_change / baseline.parameters if baseline.parameters else 0.0
    decoding = f" to train and {first.decode_speedup:.2f}x to decode" if first.decode is not None else ""
    keep = keeps(best, fixes)
    than = "" if keep else f" as {label(baseline)}"
    gain = f"{label(first)} is {first.speedup:.2f}x as fast{decoding}{than}, {share:+.2%} parameters"
    error = f"within the error of {(first.gain_high - first.gain_low) / 2 / first.gain:.1%}"
    gain += objected(first)
    if keep:
        if first.gain <= 1:
            return f"keep {label(baseline)}: nothing that was tried is faster"
        return f"keep {label(baseline)}: of what was tried {gain}, {error}"
    if not first.different:
        return f"{gain}, {error}, but {label(baseline)} breaks {', '.join(fixes)}"
    alike = [label(one) for one in best[1:] if one.timing.seconds <= first.timing.high]
    tail = f"; not statistically distinguishable: {'; '.join(alike[:3])}" if alike else ""
    return gain + tail
