"""Racing: best-arm identification by successive elimination, ordered by the predictions.

The cost model orders the candidates and its own error is the prior: log(time) of a candidate not yet looked at lies
around its prediction (Student's t with 8 degrees of freedom: models are sometimes far off), shifted by how the
predictions of those already measured were off. Candidates are looked at while the chance that any unseen one beats the
best by more than ``regret`` is above half of 1 - ``confidence``; then the likeliest to win are timed on, interleaved
with the baseline, until that chance of those seen is as small. On a device whose times do not repeat themselves nobody
is eliminated before twenty batches of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sizer.searching.strategies.paired import GROUP, MOST_SAMPLES, Outcome, PairedSamples, Sample, any_of

NAME = "racing"
#: Of what may go wrong, the part that is left to candidates never looked at; the rest to those that were.
UNSEEN = 0.5


def run(
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
) -> Outcome:
    """Find the candidate of least ``seconds x weight``; index 0, the baseline, is always measured.

    ``predicted_s`` order the candidates, ``error`` is their relative error (one standard deviation), ``weights`` turn
    seconds into the objective (default 1). ``progress(done, of)``. BaselineError: the baseline cannot run.
    """
    paired = PairedSamples(sample, predicted_s, error, weights, regret, progress, out_of_time)
    finished, risk = True, 1 - confidence
    while finished:
        chances = paired.chances()
        unseen, seen = paired.unseen, paired.seen
        if any_of(chances[unseen]) > risk * UNSEEN:
            arms = [int(unseen[np.argmax(chances[unseen])])]
        elif any_of(chances[seen]) > risk * (1 - UNSEEN):
            likeliest = seen[np.argsort(-chances[seen])][: GROUP - 1]
            arms = [int(one) for one in {paired.best, *likeliest} if len(paired.ratios[one]) < most_samples]
        else:
            break
        paired.tell(np.flatnonzero(chances > risk / len(chances)))
        if not arms:
            break
        finished = paired.take(arms, rounds=paired.rounds(arms))
    return paired.outcome(finished=finished)
