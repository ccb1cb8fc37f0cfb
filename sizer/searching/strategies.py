"""How candidates are tried when they are measured: racing, and exhaustively, which racing is judged by.

Racing is best-arm identification by successive elimination, ordered by the predictions.

The cost model orders the candidates and its own error is the prior: log(time) of a candidate not yet looked at lies
around its prediction (Student's t with 8 degrees of freedom: models are sometimes far off), shifted by how the
predictions of those already measured were off. Candidates are looked at while the chance that any unseen one beats the
best by more than ``regret`` is above half of 1 - ``confidence``; then the likeliest to win are timed on, interleaved
with the baseline, until that chance of those seen is as small. On a device whose times do not repeat themselves nobody
is eliminated before twenty batches of samples.

The likeliest of each class of alike candidates is looked at before that, whatever is predicted of it: a class that was
priced wrong as a whole would else never be seen. After it those that are left are prepared anew a few times and judged
by that alone, since a kernel's buffers make it faster or slower for as long as they stay where they are.

Exhaustive measures every candidate as a sweep does, in rounds of random order. Each sample is a ratio to the baseline
paired with it, from which clock states cancel, so that LEAST of them will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from sizer.searching.paired import (
    GROUP,
    MOST_SAMPLES,
    NOISY_PREPARED,
    START,
    Array,
    Outcome,
    PairedSamples,
    Race,
    Renew,
    any_of,
)

#: Samples of a candidate, at least, where all are measured.
LEAST = 20
#: Of what may go wrong, the part that is left to candidates never looked at; the rest to those that were.
UNSEEN = 0.5
#: Of an exhaustive search's time the share that finalists' first preparations may take, which says how many there are;
#: how many those are, and how often each is prepared anew at most.
FINALS, LEAST_PREPARED, MOST_PREPARED = 0.08, 3, 100
#: Finals that are held at most, where none of them is sure.
MOST_FINALS = 3


def racing(race: Race) -> Outcome:
    """Racing: best-arm identification by successive elimination, ordered by the predictions.

    BaselineError: the baseline cannot run.
    """
    paired = PairedSamples(race)
    risk = 1 - race.confidence
    finished = paired.take(paired.scouts())
    while finished:
        chances = paired.chances()
        unseen, seen = paired.unseen, paired.seen
        if any_of(chances[unseen]) > risk * UNSEEN:
            arms = [int(unseen[np.argmax(chances[unseen])])]
        elif any_of(chances[seen]) > risk * (1 - UNSEEN):
            likeliest = seen[np.argsort(-chances[seen])][: GROUP - 1]
            arms = [int(one) for one in {paired.best, *likeliest} if len(paired.ratios[one]) < MOST_SAMPLES]
        else:
            break
        paired.tell(np.flatnonzero(chances > risk / len(chances)))
        if not arms:
            break
        finished = paired.take(arms, rounds=paired.rounds(arms))
    if finished and race.renew is not None:
        finished = _finals(paired, race.renew, risk)
    return paired.outcome(finished=finished)


def _finals(paired: PairedSamples, renew: Renew, risk: float) -> bool:
    """Finals, again where one that left them may be near: their best was not as good as it looked.

    False: time ran out.
    """
    for _ in range(MOST_FINALS):
        if not _final(paired, renew, risk * (1 - UNSEEN)):
            return False
        if any_of(paired.chances()) <= risk:
            break
    return True


def _final(paired: PairedSamples, renew: Renew, risk: float) -> bool:
    """Prepare those that may be the best anew until the chance that another than the best is, is ``risk``.

    False: time ran out.
    """
    finalists = paired.finalists(risk, FINALS * LEAST * float(paired.seconds().sum()) / LEAST_PREPARED)
    rounds: list[Mapping[int, Array]] = []
    batches = NOISY_PREPARED if paired.noisy else 1
    while len(finalists) > 1 and len(rounds) < MOST_PREPARED:
        rounds.append(paired.take_anew(finalists, renew, batches))
        if not rounds[-1]:
            return False
        finalists = [index for index in finalists if index not in paired.failed]
        if len(rounds) >= LEAST_PREPARED and len(finalists) > 1:
            paired.settle(finalists, rounds)
            finalists = _open(paired, finalists, risk)
    return True


def _open(paired: PairedSamples, finalists: list[int], risk: float) -> list[int]:
    """The best and those that may still beat it; none where nobody is likely to."""
    chances = paired.chances()
    if any_of(chances[finalists]) <= risk:
        return []
    return [one for one in finalists if one == paired.best or chances[one] > risk / len(finalists)]


def exhaustive(race: Race) -> Outcome:
    """Exhaustive: every candidate measured as a sweep measures it, in rounds of random order. What racing is judged by.

    The likeliest first: time runs out on the unlikeliest.
    Classes change nothing where all are seen; nothing is prepared twice, as in a sweep.
    """
    paired = PairedSamples(replace(race, classes=None))
    finished = True
    for index in sorted(range(1, len(race.predicted_s)), key=paired.prior.__getitem__):
        if not (finished := paired.take([index], START)):
            break
        paired.tell(paired.unseen)
    while finished and (loose := _loose(paired, race.regret / 2)):
        paired.tell(loose)
        finished = paired.take(loose, rounds=paired.rounds(loose))
    return paired.outcome(finished=finished)


def _loose(paired: PairedSamples, precision: float) -> list[int]:
    errors = paired.errors()
    return [
        index
        for index, ratios in paired.ratios.items()
        if len(ratios) < MOST_SAMPLES and (len(ratios) < LEAST or 2 * errors[index] > precision)
    ]


#: Name -> how candidates are tried.
STRATEGIES: Mapping[str, Callable[[Race], Outcome]] = {"exhaustive": exhaustive, "racing": racing}
