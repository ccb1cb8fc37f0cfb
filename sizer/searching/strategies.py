"""How candidates are tried when they are measured: racing.

It is best-arm identification by successive elimination, ordered by the predictions.

The cost model orders the candidates and its own error is the prior: log(time) of a candidate not yet looked at lies
around its prediction (Student's t with 8 degrees of freedom: models are sometimes far off), shifted by how the
predictions of those already measured were off. Candidates are looked at while the chance that any unseen one beats the
best by more than ``regret`` is above half of 1 - ``confidence``; then the likeliest to win are timed on, interleaved
with the baseline, until that chance of those seen is as small. On a device whose times do not repeat themselves nobody
is eliminated before twenty batches of samples.

The likeliest of each class of alike candidates is looked at before that, whatever is predicted of it: a class that was
priced wrong as a whole would else never be seen. After it those that are left are prepared anew a few times and judged
by that alone, since a kernel's buffers make it faster or slower for as long as they stay where they are.

Candidates are paired with the baseline: they are timed in small batches, a few after each batch of the baseline, and
what is kept is the logarithm of their ratio to it: clocks that drift through a search of minutes cancel. Predictions
err in two ways: each candidate by itself, and whole classes of candidates that are alike in structure (an alignment,
whole or partial waves) together. A measurement errs in a third: where its buffers lie makes a kernel faster or slower
by up to a percent for as long as it stays prepared.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from math import log, sqrt
from random import Random

import numpy as np

from shapes.columns import Array
from shapes.frozen import frozen
from shapes.measure.stats import correlation_length
from shapes.program import REQUESTS

#: ``sample(index, count)`` -> seconds of ``count`` more runs; CannotRunError where the candidate cannot run.
Sample = Callable[[int, int], Array]
#: ``renew(index)``: the candidate's kernels are prepared anew before its next run.
Renew = Callable[[int], None]

#: Runs of the baseline to start with; of a candidate at a time; of the baseline that these are paired with.
START, BATCH, BASELINE_BATCH = 12, 2, 1
#: Candidates that are timed after each batch of the baseline.
GROUP = 8
#: The baseline's level is the median of this many of its latest runs.
WINDOW = 12
#: A device is noisy where one in ten runs of the baseline deviates from the level before by over so many times the
#: regret.
NOISY = 2.0
#: There, and where the last are told apart, a round is one run of each. Kernels are prepared anew after so many rounds,
#: on a noisy device and on others.
BLOCK, FINAL_BLOCK = 16, 2
#: The mean of two candidates' differences by round is winsorised: the quarter at either end counts as its inner end. It
#: is as robust as a median, and has a smaller error.
TRIMMED = 0.25
#: From this many batches a candidate's own spread counts; before, it is taken to be no smaller than the others'.
OWN_SPREAD = 20
#: Below this relative spread nothing is trusted to be known.
LEAST_SPREAD = 0.001
#: The predictions' error is never believed to be smaller than this.
LEAST_ERROR = 0.005
#: Degrees of freedom of Student's t: predictions and clocks are far off more often than a normal distribution says.
FREEDOM = 8
#: The standard error of a median over that of a mean.
MEDIAN = 1.2533
#: Looks that tell how far predictions are off: one in so many candidates, and at most this many of unknown structure.
#: If a third of the candidates are off alike, a dozen looks miss it in one case of a hundred.
SCOUTED, SCOUTS = 4, 12
#: Standard deviation between preparations of a kernel, as believed before several were seen, and the weight of that
#: belief in looks. Candidates whose chances depend on twice that are prepared anew.
PREPARATION, PREPARATION_LOOKS = 0.005, 2
#: Rounds are repeated before anything is judged anew, so that each adds a GROWTH-th of the runs so far: asked after
#: every round, an interval is narrow enough by chance too.
GROWTH = 10
#: No candidate gets more runs: what is closer than they can tell stays open, and how sure the answer is says so.
MOST_SAMPLES = 10_000

#: A regret that tells nothing.
UNKNOWN = 0.5


class CannotRunError(RuntimeError):
    """A candidate cannot run; the text says why."""


class BaselineError(RuntimeError):
    """The baseline cannot run, without which no sample means anything; the text says why."""


@frozen
class Race:
    """Find the candidate of least seconds x weight; index 0 is the baseline, always measured.

    ``predicted_s`` order the candidates, ``error`` is their relative error (one standard deviation), ``weights`` turn
    seconds into the objective (default 1). ``regret``: a difference that does not matter; ``confidence``: how sure to
    be. ``progress(done, of, best)``. ``classes``: of each candidate, what the predictions may be off for as a whole
    (None: not known). ``renew``: prepares a candidate's kernels anew (None: nothing can).
    """

    predicted_s: Sequence[float]
    error: float
    sample: Sample
    weights: Sequence[float] | None = None
    regret: float = 0.01
    confidence: float = 0.95
    out_of_time: Callable[[], bool] = field(default=lambda: False)
    progress: Callable[[int, int, int], None] | None = None
    classes: Sequence[Hashable] | None = None
    renew: Renew | None = None


@frozen
class Outcome:
    """How a search ended. ``best`` indexes the candidates; index 0 is the baseline.

    ``ratios``: index of a candidate that was timed -> log(seconds / the baseline's at the same time) of each sample.
    ``errors``: index -> standard error of their median; with few samples by the others' spread. ``baseline_s``: all of
    the baseline's samples. ``sure``: the probability that no candidate beats ``best`` by more than the regret, if the
    stated error of predictions is right. ``within``: the regret at which that probability is the one asked for
    (UNKNOWN: none known). ``finished``: not cut short by time. ``failed``: index -> why it cannot run.
    """

    best: int
    ratios: Mapping[int, Array]
    errors: Mapping[int, float]
    baseline_s: Array
    samples: int
    sure: float
    finished: bool
    failed: Mapping[int, str]
    within: float = UNKNOWN


class PairedSamples:
    """The samples of a race so far, the baseline's first. BaselineError: the baseline cannot run."""

    def __init__(self, race: Race) -> None:
        self._race = race
        count = len(race.predicted_s)
        self._offsets: Array = np.log(race.weights or np.ones(count))
        self.prior: Array = np.log(race.predicted_s) + self._offsets
        codes = dict[Hashable, int]()
        self._classes = np.array([codes.setdefault(one, len(codes)) for one in race.classes or [0] * count])
        self.ratios = dict[int, Array]()
        #: For each candidate: the logarithm of its objective over the baseline's seconds, the spread of its batches,
        #: and their number. ``best``: the candidate with the least centre, which the others are compared with.
        self.centres: Array = np.full(count, np.inf)
        self._alone, self.best = self.centres.copy(), 0
        self._spreads: Array = np.zeros(count)
        self._batches = np.zeros(count, dtype=np.int64)
        self.failed = dict[int, str]()
        self.baseline_s = list[float]()
        #: How far each of the baseline's runs was from the level before.
        self._deviations = list[float]()
        self._level = 0.0
        self.noisy = False
        #: A round is one run of each candidate. Rounds of one preparation (0: none yet); number of rounds; for each
        #: candidate its rounds with log(seconds / the baseline's); and for each best that candidates were compared
        #: with, each one's difference in the rounds that both ran in, with its standard error.
        self.block = self._round_count = 0
        self._ran = dict[int, dict[int, float]]()
        self._anchor, self._paired = -1, dict[int, tuple[float, float]]()
        self._order = Random(0)
        self.samples = 0
        self._take_baseline(START)
        self._judge({0})

    @property
    def seen(self) -> Array:
        return np.flatnonzero(self._batches)

    @property
    def unseen(self) -> Array:
        """Candidates that were not looked at, and may run."""
        return np.setdiff1d(np.flatnonzero(self._batches == 0), list(self.failed))

    def scouts(self) -> list[int]:
        """Candidates to time whatever their predictions, to learn how far those are off; the likeliest classes first.

        They are the likeliest of each class, or without classes of equal parts of the candidates in predicted order.
        """
        order = np.argsort(self.prior[1:], kind="stable") + 1
        most = max(SCOUTED, len(order) // SCOUTED)
        if self._race.classes is not None:
            last = order[::-1]
            firsts = dict(zip(self._classes[last].tolist(), last.tolist(), strict=True))
            return sorted(firsts.values(), key=self.prior.__getitem__)[:most]
        return [int(part[0]) for part in np.array_split(order, min(SCOUTS, most)) if len(part)]

    def tell(self, still_open: Sequence[int] | Array) -> None:
        """Who is neither eliminated nor known well enough; the batches these had count for a part of their way."""
        if self._race.progress:
            done = int(np.minimum(self._batches[still_open], OWN_SPREAD - 1).sum())
            whole = len(self.prior) * OWN_SPREAD
            self._race.progress(whole - len(still_open) * OWN_SPREAD + done, whole, self.best)

    def take(self, indices: Sequence[int], count: int = BATCH, rounds: int = 1) -> bool:
        """``count`` runs of each candidate and round, in random order, a few after each batch of the baseline.

        False: time ran out before the end. BaselineError: the baseline cannot run.
        """
        others = [index for index in indices if index != 0]
        if self.block:
            complete = all(self._paired_round(others) for _ in range(rounds * count))
        else:
            complete = all(self._round(others, count) for _ in range(rounds))
        self._judge({0, *others})
        return complete

    def _round(self, others: list[int], count: int) -> bool:
        self._order.shuffle(others)
        for start in range(0, max(1, len(others)), GROUP):
            if REQUESTS or self._race.out_of_time():
                return False
            self._take_baseline(BASELINE_BATCH)
            for index in others[start : start + GROUP]:
                if REQUESTS or self._race.out_of_time():
                    return False
                if index not in self.failed:
                    self._try(index, count)
        return True

    def _paired_round(self, others: list[int]) -> bool:
        """A run of the baseline and of each of the others, next to each other: what lasts longer is in all of them."""
        renew = None if self._round_count % self.block else self._race.renew
        if renew:
            renew(0)
        self._order.shuffle(others)
        self._take_baseline(1)
        for index in (0, *others):
            if REQUESTS or self._race.out_of_time():
                return False
            if index == 0 or (index not in self.failed and self._try(index, 1, renew)):
                self._ran.setdefault(index, {})[self._round_count] = float(self.ratios[index][-1])
        self._round_count += 1
        return True

    def _take_baseline(self, count: int) -> None:
        """Runs of the baseline, whose level is that of a round's own run, or of the latest."""
        try:
            seconds = self._race.sample(0, count)
        except CannotRunError as failure:
            raise BaselineError(str(failure)) from failure
        runs = np.log(seconds)
        self._deviations.extend(np.abs(runs - (self._level if self.baseline_s else np.median(runs))))
        self.baseline_s.extend(seconds)
        self._level = float(np.median(np.log(self.baseline_s[-(count if self.block else WINDOW) :])))
        self._add(0, seconds)

    def _add(self, index: int, seconds: Array) -> None:
        self.samples += len(seconds)
        ratios = np.log(seconds) - self._level
        self.ratios[index] = np.concatenate((self.ratios[index], ratios)) if index in self.ratios else ratios

    def _try(self, index: int, count: int, renew: Renew | None = None) -> bool:
        """Runs of a candidate, prepared anew by ``renew`` where that is given; False: it cannot run."""
        try:
            if renew:
                renew(index)
            self._add(index, self._race.sample(index, count))
        except CannotRunError as failure:
            self.failed[index] = str(failure)
            self.ratios.pop(index, None)
            self._alone[index], self._batches[index] = np.inf, 0
            self._paired.pop(index, None)
            self._ran.pop(index, None)
            return False
        return True

    def _judge(self, indices: set[int]) -> None:
        """Bring what is known of the device and of these candidates up to date.

        The runs of a batch are autocorrelated, so that it is batches that count; their spread is by quartiles, as tails
        are heavy. Where successive batches are correlated too they count as fewer.
        """
        self.noisy = bool(np.quantile(self._deviations, 0.9) > NOISY * self._race.regret)
        for index in indices & self.ratios.keys():
            if len(ratios := self.ratios[index]) < BATCH:
                continue
            self._batches[index] = count = len(ratios) // BATCH
            batches = ratios[: count * BATCH].reshape(-1, BATCH).mean(axis=1)
            lower, upper = np.quantile(batches, (0.25, 0.75))
            self._alone[index] = np.median(ratios) + self._offsets[index]
            correlated = correlation_length(batches) if index else 1.0
            self._spreads[index] = max((upper - lower) / 1.349, LEAST_SPREAD) * sqrt(correlated)
        if self.block != FINAL_BLOCK:
            self.block = BLOCK if self.noisy else 0
        self.centres = self._alone.copy()
        self.best = int(np.argmin(self.centres))
        if self.block:
            self._settle(indices)
        else:
            self._anchor, self._paired = -1, {}

    def _settle(self, indices: set[int]) -> None:
        """The best is whom nobody beats that was compared with it, in a ring whom others beat by least.

        Placed by runs alone: placed by others, all would sink as the anchor goes round.
        """
        kept = self._paired.keys() - {0} and self._anchor not in self.failed
        been = {}
        best = self._anchor if kept else self.best
        while True:
            if best != self._anchor:
                self._anchor, self._paired, indices = best, {}, set(self._ran)
            for index in indices & self._ran.keys() - {best}:
                self._compare(index)
            if best in been:
                break
            ahead, beater = min([(0.0, best), *((apart, one) for one, (apart, _) in self._paired.items())])
            been[best], best = ahead, beater
            if best in been and (best := max(been, key=been.__getitem__)) == self._anchor:
                break
        self.best = best
        for index, (apart, _) in self._paired.items():
            self.centres[index] = self.centres[self.best] + apart

    def _compare(self, index: int) -> None:
        """How a candidate differs from the anchor in the rounds of both, if those are enough."""
        runs, others = self._ran[index], self._ran.get(self._anchor, {})
        common = np.array([number for number in runs if number in others])
        if len(common) < (BATCH * OWN_SPREAD if self.noisy else LEAST_PREPARED * self.block):
            return
        own = np.array([runs[number] - others[number] for number in common])
        own += self._offsets[index] - self._offsets[self._anchor]
        low, high = np.quantile(own, (TRIMMED, 1 - TRIMMED))
        own = own.clip(low, high)
        off = (own - own.mean()) / (1 - 2 * TRIMMED) / len(own)
        # Runs of one preparation share what it is worth.
        blocks = np.unique(common // self.block, return_inverse=True)[1]
        prepared = int(blocks[-1]) + 1
        alone = float((off**2).sum()) + bool(self._race.renew) * 2 * PREPARATION**2 / prepared
        seen = float((np.bincount(blocks, off) ** 2).sum()) * prepared
        error = sqrt((PREPARATION_LOOKS * alone + seen) / (PREPARATION_LOOKS + prepared - 1))
        self._paired[index] = float(own.mean()), error

    def errors(self) -> Array:
        """Standard error of each one's median, of few batches by what others' batches have for a spread."""
        many = self._batches >= min(START // BATCH, int(self._batches.max()))
        usual = float(np.median(self._spreads[many]))
        spreads = np.where(self._batches >= OWN_SPREAD, self._spreads, np.maximum(self._spreads, usual))
        return np.asarray(MEDIAN * spreads / np.sqrt(np.maximum(self._batches, 1)))

    def chances(self, regret: float | None = None) -> Array:
        """The chance of every candidate to beat the best seen by more than the regret; 0 of those that cannot run.

        A candidate not looked at lies around its prediction, shifted by how the predictions of those seen were off.
        Where the last are told apart, one that was not compared may be what preparing it anew does to it.
        """
        from scipy.special import stdtr  # a predicted search has no use for it

        seen, best = self.seen, self.best
        centres, widths = self._expected()
        errors = self.errors()
        moved = 2 * PREPARATION if self.block and not self.noisy else 0.0
        centres[seen], widths[seen] = self.centres[seen], np.hypot(errors[seen], moved)
        ahead = self.centres[best] + log(1 - (regret or self._race.regret)) - centres
        widths = np.hypot(widths, errors[best])
        if self._anchor == best:
            widths[list(self._paired)] = [max(error, LEAST_SPREAD) for _, error in self._paired.values()]
        chances: Array = stdtr(FREEDOM, ahead / widths)
        chances[best] = 0.0
        if self.noisy:
            chances[seen[self._batches[seen] < OWN_SPREAD]] = 0.5
        chances[list(self.failed)] = 0.0
        return chances

    def _expected(self) -> tuple[Array, Array]:
        """Where candidates not looked at lie, and how widely: what each class was off by, and each one in it.

        The stated error weighs as much as four looks against how far off the predictions were seen to be; a class is
        believed to be off by what its members were, the more of them were seen the more.
        """
        seen = self.seen
        of = self._classes[seen]
        off = self.centres[seen] - self.prior[seen]
        shift = float(np.median(off))
        off -= shift
        looks = np.bincount(of, minlength=int(self._classes.max()) + 1)
        means = np.bincount(of, off, minlength=len(looks)) / np.maximum(looks, 1)
        known = int((looks > 0).sum()) if len(looks) > 1 else 0
        alone = off - means[of] if known else off
        own = max((4 * self._race.error**2 + float((alone**2).sum())) / (4 + len(off) - known), LEAST_ERROR**2)
        if not known:
            return self.prior + shift, np.full(len(self.prior), sqrt(own))
        shared = (2 * self._race.error**2 + float((means**2).sum())) / (2 + known)
        left = 1 / (looks / own + 1 / shared)
        centres = self.prior + shift + (means * looks / own * left)[self._classes]
        return centres, np.sqrt(own + left[self._classes])

    def outcome(self, *, finished: bool) -> Outcome:
        errors = self.errors()
        return Outcome(
            self.best,
            self.ratios,
            {index: float(errors[index]) for index in self.ratios},
            np.asarray(self.baseline_s),
            self.samples,
            1 - any_of(self.chances()),
            finished,
            dict(sorted(self.failed.items())),
            self._within(),
        )

    def _within(self) -> float:
        """The least regret, in steps of a twentieth, at which the best is as sure as was asked for."""
        regret = self._race.regret
        while regret < UNKNOWN and any_of(self.chances(regret)) > 1 - self._race.confidence:
            regret *= 1.05
        return regret

    def may_run(self, index: int) -> bool:
        """Whether a candidate was not sampled and prepared as often as any is."""
        prepared = len(self._ran.get(index, ())) / max(self.block, 1)
        return len(self.ratios[index]) < MOST_SAMPLES and prepared < MOST_PREPARED

    def rounds(self, indices: Sequence[int]) -> int:
        """How many rounds to take before judging anew: a GROWTH-th of those that the least known one had."""
        return max(1, int(min(self._batches[list(indices)])) // GROWTH)


def any_of(chances: Array) -> float:
    """The chance that one of independent ones comes true."""
    return float(1 - np.prod(1 - chances))


#: Share of the allowed error that is left to candidates never timed; the rest goes to those that were.
UNSEEN = 0.5
#: How often the last candidates to be told apart are prepared anew, at least and at most.
LEAST_PREPARED, MOST_PREPARED = 3, 300


def racing(race: Race) -> Outcome:
    """Racing: best-arm identification by successive elimination, ordered by the predictions.

    BaselineError: the baseline cannot run.
    """
    paired = PairedSamples(race)
    paired.tell(paired.unseen)
    risk = 1 - race.confidence
    finished = paired.take(paired.scouts()) and _raced(paired, risk)
    if finished and race.renew and not paired.block:
        paired.block = FINAL_BLOCK
        finished = _raced(paired, risk)
    return paired.outcome(finished=finished)


def _raced(paired: PairedSamples, risk: float) -> bool:
    """Sample on until the chance that another than the best is, is ``risk``, or nobody may run more.

    False: time ran out.
    """
    while True:
        chances = paired.chances()
        unseen, seen = paired.unseen, paired.seen
        if any_of(chances[unseen]) > risk * UNSEEN:
            arms = [int(unseen[np.argmax(chances[unseen])])]
        elif any_of(chances[seen]) > risk * (1 - UNSEEN):
            first, *others = seen[np.argsort(-chances[seen])][: GROUP - 1]
            likely = {paired.best, first, *(one for one in others if chances[one] > risk / len(chances))}
            arms = [int(one) for one in likely if paired.may_run(one)]
        else:
            return True
        paired.tell(np.flatnonzero(chances > risk / len(chances)))
        if not arms:
            return True
        if not paired.take(arms, rounds=paired.rounds(arms)):
            return False
