"""How candidates are tried when they are measured. Adding one is a file here and its place in ``STRATEGIES``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from sizer.searching.strategies import exhaustive, racing
from sizer.searching.strategies.paired import MOST_SAMPLES, Outcome, Renew, Sample


class Strategy(Protocol):
    """Finds the candidate of least seconds x weight; index 0, the baseline, is always measured (see ``racing.run``)."""

    def __call__(
        self,
        predicted_s: Sequence[float],
        error: float,
        sample: Sample,
        *,
        weights: Sequence[float] | None = None,
        regret: float = 0.01,
        confidence: float = 0.95,
        out_of_time: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] | None = None,
        most_samples: int = MOST_SAMPLES,
        classes: Sequence[Hashable] | None = None,
        renew: Renew | None = None,
    ) -> Outcome: ...


STRATEGIES: Mapping[str, Strategy] = {strategy.NAME: strategy.run for strategy in (exhaustive, racing)}
