"""A search's answer: ranked candidates, a verdict in one sentence, and the best one under the file's own keys."""

from collections.abc import Sequence
from dataclasses import field

from shapes.cost import Timing
from shapes.errors import refuse
from shapes.frozen import AsJson, Names, Sizes, Words, frozen, in_words, replace
from shapes.model.resize import dimensions
from shapes.workload import Workload
from sizer.printing import Printable
from sizer.readers import Reading, Source
from sizer.subject import read_model


@frozen
class Ranked(AsJson):
    """One candidate. ``speedup`` > 1: faster than the baseline at equal tokens; its bounds hold the source's error.

    ``parameters``: those of the part that was searched (an MLP, a model). ``memory_change_bytes``: a device's peak over
    the baseline's, for candidates that are listed (None: only plotted). ``gain`` > 1: better than the baseline by the
    objective, with its bounds. ``breaks``: rules of `check` that it breaks and the baseline keeps, and ``why`` it is
    listed all the same. ``warns``: rules on a cost alone (a last wave, an occupancy) that make `check` warn here and
    not at the baseline. ``decode``: its decode step, if serving was asked for, and ``decode_speedup`` over the
    baseline's; ``gain`` is then the geometric mean of both. ``loss``: predicted loss over the baseline's, with its
    error (None: quality was not asked for). ``layout``: its split over the devices, if layouts were asked for.
    """

    change: Sizes
    timing: Timing
    tflops: float
    speedup: float
    speedup_low: float
    speedup_high: float
    parameters: int
    parameters_change: int
    memory_change_bytes: int | None = None
    gain: float = 1.0
    gain_low: float = 1.0
    gain_high: float = 1.0
    breaks: Names = ()
    why: str = ""
    warns: Names = ()
    decode: Timing | None = None
    decode_speedup: float = 1.0
    loss: float | None = None
    loss_error: float | None = None
    layout: Workload | None = None


#: Candidates in order.
Ranking = Sequence[Ranked]


@frozen
class SearchResult(Printable):
    """A search's answer: the baseline, the best candidates in order, a verdict in words.

    ``considered`` candidates were priced; ``excluded`` counts those that a constraint left out, by constraint.
    ``ranked``: all that have a time, baseline included, for plots.
    ``pareto``: no other candidate has fewer parameters and less time (model search). ``keys``: dimension -> the
    baseline file's own key for it (empty: there is no file). ``keep``: the baseline is the answer, nothing being better
    beyond the error. ``stack``: what runs the steps that are compared (None: kernels alone are).
    ``aligned``: where the baseline is misaligned, the aligned candidate nearest to it, which gains are over.
    ``front``: no other candidate is faster both to train and to serve as ``serving`` says (None: that was not asked);
    of a search at equal loss none has less loss, time and memory either.
    """

    COMMAND = "search"

    what: str
    objective: str
    tokens: int
    baseline: Ranked
    candidates: Ranking
    verdict: str
    source: str
    considered: int
    measurements: int
    elapsed_s: float
    excluded: Sizes
    pareto: Ranking = ()
    notes: Names = ()
    ranked: Ranking = ()
    keys: Words = field(default_factory=dict)
    keep: bool = False
    serving: Workload | None = None
    front: Ranking = ()
    stack: str | None = None
    aligned: Ranked | None = None

    @property
    def best(self) -> Ranked:
        """The first candidate; the baseline where none was timed."""
        return self.candidates[0] if self.candidates else self.baseline


def label(ranked: Ranked, than: Ranked | None = None) -> str:
    """A candidate's change in words: "10944", or "hidden 2560, heads 20"; only where it differs from ``than``'s."""
    if len(ranked.change) == 1:
        return str(next(iter(ranked.change.values())))
    other = than.change if than else {}
    told = {key: value for key, value in ranked.change.items() if other.get(key) != value}
    return in_words(told or ranked.change)


def objected(one: Ranked) -> str:
    """The rules that `check` finds broken in a candidate and not in the baseline, in brackets; "" for none."""
    said = [f"breaks {', '.join(one.breaks)}; {one.why}"] if one.breaks else []
    if one.warns:
        said.append(f"check warns of {', '.join(one.warns)}, a cost that is in this time")
    return f" ({'; '.join(said)})" if said else ""


def _gain_text(first: Ranked, baseline: Ranked, aligned: Ranked | None, than: str) -> str:
    """How much faster the first candidate is, and at how many parameters."""
    over, decoding = "", f" to train and {first.decode_speedup:.2f}x to decode" if first.decode else ""
    if aligned and aligned.change != first.change:
        times = aligned.timing.seconds / first.timing.seconds
        over = f"{times:.2f}x as fast as the nearest aligned, {label(aligned, first)}, and "
    if abs(first.gain - first.speedup) > 0.05 and not first.decode:
        decoding = f" ({first.gain:.2f}x by the objective)"
    share = first.parameters_change / baseline.parameters
    return f"{over}{first.speedup:.2f}x as fast{decoding}{than}, {share:+.2%} parameters"


def verdict(
    what: str, baseline: Ranked, best: Ranking, fixes: Names, aligned: Ranked | None, keep_it: str, *, launches: bool
) -> tuple[bool, str]:
    """Whether to keep the baseline, and which candidate to take.

    Also what is not statistically distinguishable from that one, at the source's own error. ``fixes``: rules of `check`
    that the first candidate keeps and the baseline breaks outright. ``aligned``: the candidate nearest to a misaligned
    baseline. ``keep_it``: what to do with a baseline that nothing beats. ``launches``: whether these take longer than
    the products.
    """
    of_many = len(baseline.change) > 1  # the table says which
    kept = f"{keep_it} the baseline" if of_many else f"keep {label(baseline)}"
    if launches:
        return True, f"{kept}: its products are shorter than their launches, so that no width near it is faster"
    fixes = fixes or ("the device's alignment",) * bool(aligned)
    if not best:
        return True, f"{kept}: no other {what} was found"
    first = best[0]
    # Nothing is better beyond the error, nor fixes what the baseline breaks.
    keep = first.gain_low <= 1 and not fixes
    gain = _gain_text(first, baseline, aligned, "" if keep else f" as {label(baseline, first)}")
    error = f"within the error of {(first.gain_high - first.gain_low) / 2 / first.gain:.1%}"
    if keep:
        if first.gain <= 1:
            return True, f"{kept}: nothing that was tried is better"
        the_best = f"of what was tried {'the best' if of_many else label(first)}"
        return True, f"{kept}: {the_best} is {gain}{objected(first)}, {error}"
    gain = f"{label(first, baseline)} is {gain}{objected(first)}"
    if first.gain_low <= 1 <= first.gain_high:
        return False, f"{gain}, {error}, but {label(baseline, first)} breaks {', '.join(fixes)}"
    alike = [label(one, first) for one in best[1:] if one.timing.seconds <= first.timing.high]
    tail = f"; not statistically distinguishable: {'; '.join(alike[:3])}" if alike else ""
    return False, gain + tail


def settings(result: SearchResult) -> Sizes:
    """The file's key (nested ones dotted) -> its new value, for changes that the file has a key for. Empty: keep."""
    if result.keep:
        return {}
    change = result.best.change
    return {
        result.keys.get(name, name): value for name, value in change.items() if not result.keys or name in result.keys
    }


def of_file(result: SearchResult, reading: Reading) -> SearchResult:
    """``result`` with the keys of ``reading``'s file; InputError where those cannot say what its best candidate is."""
    named = replace(result, keys=reading.keys)
    changed = settings(named)
    if not changed or not reading.config:
        return named
    model = read_model(Source(reading.config, changed), config_format=reading.format).model
    got, wanted = dimensions(model), result.best.change
    wrong = [f"{name} {value}" for name, value in wanted.items() if name in got and got[name] != value]
    cannot = f"expected a file whose keys can say {', '.join(wrong)}: {', '.join(map(str, changed))} cannot"
    refuse(wrong, cannot, "--emit", where=reading.source)
    return named
