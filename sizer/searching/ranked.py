"""What a search answers: frozen results that formats only render."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from shapes.frozen import frozen
from shapes.json_form import AsJson, shown
from shapes.timing import Timing
from shapes.workload import Workload
from sizer.printing import Printable


@frozen
class Ranked(AsJson):
    """One candidate. ``speedup`` > 1: faster than the baseline at equal tokens; its bounds hold the source's error.

    ``parameters`` are of what was searched (an MLP, a model); ``losses``: device -> how much slower it is there than
    the best candidate on that device (several devices only). ``memory_change_bytes``: of a device's peak, worked out
    for candidates that are listed (None: of those that are only plotted). ``gain`` > 1: better than the baseline by the
    objective, with its bounds; ``breaks``: rules of `check` that it breaks and the baseline keeps, ``why`` it is listed
    all the same; ``warns``: rules on a cost alone (a last wave, an occupancy) that `check` will warn of and does not of
    the baseline. ``shards``: the most tensor-parallel shards, to 8, that it splits over with nothing broken outright
    (0: not looked at). ``decode``: its decode step where serving was asked for, ``decode_speedup`` over the baseline's;
    ``gain`` is then the geometric mean of both.
    """

    change: Mapping[str, int]
    timing: Timing
    tflops: float
    speedup: float
    speedup_low: float
    speedup_high: float
    parameters: int
    parameters_change: int
    memory_change_bytes: int | None
    value: float
    losses: Mapping[str, float]
    gain: float = 1.0
    gain_low: float = 1.0
    gain_high: float = 1.0
    breaks: tuple[str, ...] = ()
    why: str = ""
    warns: tuple[str, ...] = ()
    shards: int = 0
    decode: Timing | None = None
    decode_speedup: float = 1.0

    JSON = shown(
        "timing.seconds",
        "timing.source",
        "timing.tier",
        seconds_low="timing.low",
        seconds_high="timing.high",
        decode_seconds="decode.seconds",
        hidden=("value",),
    )

    @property
    def different(self) -> bool:
        """Whether the candidate differs from the baseline by more than the error, by the objective."""
        return self.gain_low > 1 or self.gain_high < 1


@frozen
class SearchResult(Printable):
    """A search's answer: the baseline, the best candidates in order, a verdict in words.

    ``considered`` candidates were priced; ``excluded`` counts those that a constraint left out, by constraint.
    ``ranked``: all that have a time, baseline included, for plots; ``tile``: every how many values of the searched
    dimension the device's tile ends there (None: several dimensions change, or no product has it for n); ``waves``:
    the values beyond which that product is a wave longer.
    ``pareto``: no other candidate has fewer parameters and less time (model search). ``keys``: dimension -> the
    baseline file's own key for it (empty: there is no file). ``keep``: the baseline is the answer, nothing being better
    beyond the error. ``devices``: of several, each one's source of times.
    ``stack``: what runs the steps that are compared (None: kernels alone are).
    ``front``: no other candidate is faster both to train and to serve as ``serving`` says (None: that was not asked).
    """

    COMMAND = "search"

    what: str
    objective: str
    tokens: int
    baseline: Ranked
    candidates: tuple[Ranked, ...]
    verdict: str
    strategy: str
    source: str
    considered: int
    measurements: int
    elapsed_s: float
    excluded: Mapping[str, int]
    pareto: tuple[Ranked, ...] = ()
    notes: tuple[str, ...] = ()
    ranked: tuple[Ranked, ...] = ()
    tile: int | None = None
    waves: tuple[int, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)
    serving: Workload | None = None
    front: tuple[Ranked, ...] = ()
    stack: str | None = None

    JSON = shown("best", hidden=("ranked", "tile", "waves", "keys"))

    @property
    def best(self) -> Ranked:
        """The first candidate; the baseline where none was timed."""
        return self.candidates[0] if self.candidates else self.baseline
