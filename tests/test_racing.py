"""Racing on landscapes whose best is known: quality against what measuring everything costs."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtr

from reports.suites.everything import LEAST, exhaustive
from sizer.searching.strategies import (
    BASELINE_BATCH,
    BATCH,
    OWN_SPREAD,
    SCOUTS,
    START,
    WINDOW,
    BaselineError,
    CannotRunError,
    Outcome,
    PairedSamples,
    Race,
    Sample,
    racing,
)


@pytest.mark.parametrize("freedom", [2, 8, 20])
def test_chances_without_scipy_are_student_s_t(freedom: int) -> None:
    bare = run_path(str(Path(__file__).parents[1] / "reports/suites/bare.py"), run_name="bare")
    values = np.concatenate((np.linspace(-60, 60, 10001), (-1e9, 1e9)))
    np.testing.assert_allclose(bare["student"](freedom, values), stdtr(freedom, values), rtol=1e-9, atol=1e-15)


def race(*arguments: Any, **options: Any) -> Outcome:
    return racing(Race(*arguments, **options))


def sweep(*arguments: Any, **options: Any) -> Outcome:
    return exhaustive(Race(*arguments, **options))


CANDIDATES, NOISE, ERROR = 100, 0.01, 0.04
#: Samples a candidate when everything is measured to half a percent: (2 x 1.25 x 0.01 / 0.005)^2.
EXHAUSTIVE = 25


def landscape(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """True times with tile steps, and predictions that are off by ERROR."""
    size = np.arange(CANDIDATES)
    truth = 1e-3 * (1 + 0.002 * size) * (1 + 0.08 * (size % 8 != 0)) * np.exp(rng.normal(0, 0.03, CANDIDATES))
    return truth, truth * np.exp(rng.normal(0, ERROR, CANDIDATES))


def trial(seed: int) -> tuple[float, float, float]:
    """(loss against the true best, share of an exhaustive search's time, stated certainty)."""
    rng = np.random.default_rng(seed)
    truth, predicted = landscape(rng)

    spent_s: list[float] = []

    def sample(index: int, count: int) -> np.ndarray:
        # Timing noise only ever adds: a heavy right tail on a narrow core.
        taken: np.ndarray = truth[index] * (1 + NOISE * np.abs(rng.standard_t(3, count)))
        spent_s.extend(taken)
        return taken

    result = race(list(predicted), ERROR, sample)
    return truth[result.best] / truth.min() - 1, sum(spent_s) / (EXHAUSTIVE * truth.sum()), result.sure


@pytest.mark.slow
def test_racing_finds_a_candidate_within_one_percent_nearly_always_and_cheaply() -> None:
    outcomes = [trial(seed) for seed in range(100)]
    good = sum(loss <= 0.01 for loss, _, _ in outcomes)
    assert good >= 95
    assert np.mean([share for _, share, _ in outcomes]) <= 0.10


def test_the_stated_certainty_is_the_confidence_asked_for() -> None:
    assert all(sure >= 0.94 for _, _, sure in map(trial, range(20)))


def test_a_perfect_prior_is_confirmed_with_a_handful_of_looks() -> None:
    truth = np.linspace(1, 2, 50)
    result = race(list(truth), 0.005, lambda index, count: np.full(count, truth[index]))
    assert result.best == 0
    assert result.samples <= START + (SCOUTS + 4) * (BATCH + BASELINE_BATCH)


def test_a_candidate_that_cannot_run_is_named_and_passed_over() -> None:
    truth = [3.0, 1.0, 2.0]

    def sample(index: int, count: int) -> np.ndarray:
        if index == 1:
            raise CannotRunError("oom: out of memory")
        return np.full(count, truth[index])

    result = race(truth, 0.1, sample)
    assert (result.best, result.failed) == (2, {1: "oom: out of memory"})


def test_out_of_time_is_said_and_the_best_so_far_given() -> None:
    truth = [3.0, 1.0, 2.0]
    result = race(truth, 0.5, lambda index, count: np.full(count, truth[index]), out_of_time=lambda: True)
    assert (result.best, result.finished) == (0, False)
    assert result.sure < 0.95


def test_weights_turn_seconds_into_another_objective() -> None:
    # Twice the work in 1.5 times the time is better by TFLOPS and worse by time.
    seconds = [1.0, 1.5]
    sample = lambda index, count: np.full(count, seconds[index])  # noqa: E731
    assert race(seconds, 0.05, sample).best == 0
    assert race(seconds, 0.05, sample, weights=[1.0, 0.5]).best == 1


def refuse(index: int, count: int) -> np.ndarray:
    raise CannotRunError("wrong: relative error 0.5")


def test_a_baseline_that_cannot_run_is_an_error_of_its_own_that_says_why() -> None:
    for run in (race, sweep):
        with pytest.raises(BaselineError, match=r"wrong: relative error 0\.5"):
            run([1.0, 2.0], 0.1, refuse)


def test_an_error_of_the_samples_is_not_taken_for_a_baseline_that_cannot_run() -> None:
    def broken(index: int, count: int) -> np.ndarray:
        return np.ones(3) + np.ones(count)  # operands could not be broadcast together

    for run in (race, sweep):
        with pytest.raises(ValueError, match="broadcast"):
            run([1.0, 2.0], 0.1, broken)


def test_a_baseline_that_stops_running_ends_the_search() -> None:
    # A GPU lost half-way: without its baseline no further sample means anything, and waiting would have no end.
    for run in (race, sweep):
        left = iter(range(2))

        def sample(index: int, count: int, left=left) -> np.ndarray:
            return refuse(index, count) if index == 0 and next(left, None) is None else np.ones(count)

        with pytest.raises(BaselineError):
            run([1.0] * 20, 0.1, sample)


def test_a_round_ends_when_the_time_does() -> None:
    # Forty candidates that nothing tells apart: one round over all of them is long.
    for run in (race, sweep):
        spent, rng = [0.0], np.random.default_rng(0)

        def sample(index: int, count: int, spent=spent, rng=rng) -> np.ndarray:
            spent[0] += count
            return 1 + 0.05 * np.abs(rng.standard_normal(count))

        result = run([1.0] * 40, 0.5, sample, regret=0.001, out_of_time=lambda spent=spent: spent[0] >= 1000)
        assert not result.finished
        assert len(result.ratios) == 40
        assert spent[0] < 1020


def test_a_drifting_clock_cancels_against_the_baseline() -> None:
    # Everything slows by 30% through the search: told by its time alone, whatever is looked at last would lose.
    truth, taken = np.array([1.0, 0.97, 0.96, 0.93, 0.9, 0.95]), [0]
    predicted = [1.0, 0.95, 0.9, 0.96, 0.98, 0.97]
    rng = np.random.default_rng(1)

    def sample(index: int, count: int) -> np.ndarray:
        taken[0] += count
        return truth[index] * (1 + 0.3 * taken[0] / 400) * (1 + 0.002 * np.abs(rng.standard_normal(count)))

    result = race(predicted, 0.05, sample)
    assert result.best == 4
    assert np.exp(np.median(result.ratios[4])) == pytest.approx(0.9, rel=0.02)


def test_exhaustive_measures_every_candidate_to_half_the_regret() -> None:
    rng = np.random.default_rng(0)
    truth = np.linspace(1.0, 1.2, 12)[::-1].copy()
    noisy = lambda index, count: truth[index] * (1 + 0.01 * np.abs(rng.standard_normal(count)))  # noqa: E731
    result = sweep(list(truth), 0.05, noisy, regret=0.02)
    assert (result.best, result.finished, set(result.ratios)) == (11, True, set(range(12)))
    assert all(len(ratios) >= LEAST for ratios in result.ratios.values())
    assert result.sure > 0.9


@pytest.mark.slow
def test_candidates_that_cannot_be_told_apart_are_not_said_to_be() -> None:
    rng = np.random.default_rng(3)
    noisy = lambda index, count: 1 + 0.5 * rng.standard_t(2, count) ** 2  # noqa: E731
    result = race([1.0] * 6, 0.05, noisy, regret=0.001)
    assert result.sure < 0.9


def autocorrelated(truth: np.ndarray, rng: np.random.Generator) -> Sample:
    """As on a busy CPU: what a round shares lasts, a batch is off by 6% and each of its runs by 4%; some by a half."""
    state = 0.0

    def sample(index: int, count: int) -> np.ndarray:
        nonlocal state
        if index == 0:
            state = 0.1 * rng.standard_normal()
        batch = state + 0.06 * rng.standard_normal() + 0.4 * (rng.random() < 0.03)
        return truth[index] * np.exp(batch + 0.04 * rng.standard_normal(count))

    return sample


def test_the_errors_of_autocorrelated_runs_are_what_they_are_said_to_be() -> None:
    centres, errors = [], []
    for seed in range(10):
        sample = autocorrelated(np.ones(9), np.random.default_rng(seed))
        paired = PairedSamples(Race([1.0] * 9, 0.1, sample))
        assert paired.take(range(1, 9), rounds=50)
        centres.extend(paired.centres[1:])
        errors.extend(paired.errors()[1:])
    assert 0.7 < np.std(centres) / np.median(errors) < 1.4
    # A hundred runs that knew nothing of each other would have a third of that.
    assert np.median(errors) > 2 * np.hypot(0.06, 0.04) / np.sqrt(50 * BATCH)


@pytest.mark.slow
def test_a_search_on_a_noisy_device_goes_on_until_it_is_sure() -> None:
    losses, told = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = np.exp(rng.normal(0, 0.05, 20))
        tell = lambda done, of, best, told=told: told.append((done, of))  # noqa: E731
        result = race([1.0] * 20, 0.1, autocorrelated(truth, rng), regret=0.02, progress=tell)
        assert result.finished
        assert result.sure >= 0.95
        assert min(map(len, result.ratios.values())) >= BATCH * OWN_SPREAD
        losses.append(truth[result.best] / truth.min() - 1)
    assert sum(loss <= 0.02 for loss in losses) >= 18
    assert all(0 <= done <= whole for done, whole in told)
    assert len({whole for _, whole in told}) == 1


def slow(truth: np.ndarray, rng: np.random.Generator) -> Sample:
    """As on two shared cores: what lasts for a hundred runs is off by 15%, each run by 5%, one in thirty by half."""
    state = 0.0

    def sample(index: int, count: int) -> np.ndarray:
        nonlocal state
        taken = []
        for _ in range(count):
            state = 0.99 * state + 0.15 * np.sqrt(1 - 0.99**2) * rng.standard_normal()
            taken.append(state + 0.05 * rng.standard_normal() + 0.4 * (rng.random() < 1 / 30))
        return truth[index] * np.exp(taken)

    return sample


def test_what_lasts_longer_than_a_round_cancels_between_two_runs_of_it() -> None:
    off = []
    for seed in range(10):
        truth = np.exp(np.random.default_rng(seed).normal(0, 0.02, 6))
        paired = PairedSamples(Race([1.0] * 6, 0.1, slow(truth, np.random.default_rng(seed))))
        paired.take(range(1, 6))
        assert paired.noisy
        assert paired.take(range(1, 6), rounds=100)
        best = paired.best
        told = paired.centres - paired.centres[best] - np.log(truth / truth[best])
        off.extend(told[index] / error for index, (_, error) in paired._paired.items())
        # 200 pairs of runs, each 7% off: what lasts would make them 22%, and the error three times as large.
        assert np.median([error for _, error in paired._paired.values()]) < 0.008
    assert 0.6 < np.std(off) < 1.4


@pytest.mark.slow
def test_nobody_sinks_as_candidates_that_are_alike_take_turns_as_the_best(monkeypatch) -> None:
    # Such differences go round in circles (a beats b beats c beats a): placed by where others had been placed, those
    # compared sank 30 to 60% below whoever was timed no more, which said that these were beaten.
    races = []

    class Kept(PairedSamples):
        def __init__(self, one: Race) -> None:
            super().__init__(one)
            races.append(self)

    monkeypatch.setattr("sizer.searching.strategies.PairedSamples", Kept)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth, left = np.exp(rng.normal(0, 0.005, 30)), iter(range(4000))
        late = lambda left=left: next(left, None) is None  # noqa: E731
        race([1.0] * 30, 0.02, autocorrelated(truth, rng), regret=0.005, out_of_time=late)
        assert races[seed].best == races[seed]._anchor
        assert np.ptp(races[seed].centres - np.log(truth)) < 0.12


def test_of_a_ring_whom_others_beat_by_least_is_the_best() -> None:
    # 2 beats 1, 3 beats 2, and 1 beats 3 by far: not whom the way round the ring meets last.
    paired = PairedSamples(Race([1.0] * 4, 0.02, lambda index, count: np.ones(count)))
    paired.block, paired._anchor, paired._paired = 1, 1, {3: (0.05, 0.001)}
    for start, (winner, loser, apart) in enumerate([(2, 1, 0.001), (3, 2, 0.002), (1, 3, 0.05)]):
        for number in range(50 * start, 50 * start + 50):
            paired._ran.setdefault(winner, {})[number] = -apart
            paired._ran.setdefault(loser, {})[number] = 0.0
    paired.centres[1:] = 0.0
    paired._settle({1, 2, 3})
    assert paired.best == paired._anchor == 1
    assert paired.centres[3] - paired.centres[1] == pytest.approx(0.05)


def test_out_of_time_the_best_is_said_to_be_within_what_is_known() -> None:
    known = []
    for seed in range(10):
        truth = np.exp(np.random.default_rng(seed).normal(0, 0.002, 6))
        left = iter(range(600))
        late = lambda left=left: next(left, None) is None  # noqa: E731
        sample = slow(truth, np.random.default_rng(seed))
        result = race([1.0] * 6, 0.1, sample, regret=0.001, out_of_time=late)
        assert (result.finished, result.sure < 0.95) == (False, True)
        assert 0.001 < result.within < 0.06
        known.append(truth[result.best] / truth.min() - 1 <= result.within)
    assert all(known)


def test_out_of_time_on_a_noisy_device_nothing_is_sure_of_those_seen_once() -> None:
    left = iter(range(25))
    rng = np.random.default_rng(0)
    result = race([1.0] * 5, 0.1, autocorrelated(np.ones(5), rng), out_of_time=lambda: next(left, None) is None)
    assert not result.finished
    assert result.sure < 0.1


def test_a_candidate_is_paired_with_the_baselines_latest_runs_and_not_with_all_of_them() -> None:
    # Half-way the clock falls to a half: ratios after it are those of before, but for the runs that tell the new level.
    clock = {"factor": 1.0}
    sample = lambda index, count: np.full(count, clock["factor"] * (0.9 if index else 1.0))  # noqa: E731
    paired = PairedSamples(Race([1.0, 1.0], 0.1, sample))
    assert paired.take([1], rounds=100)
    clock["factor"] = 2.0
    assert paired.take([1], rounds=100)
    assert not paired.noisy
    assert paired.ratios[1][-2 * (100 - WINDOW) :] == pytest.approx(np.log(0.9))


def wrong_class(seed: int) -> tuple[np.ndarray, list[float], list[int]]:
    """Times of which a third, a class of their own, is predicted a quarter too slow: with the best among them."""
    rng = np.random.default_rng(seed)
    classes = [index % 3 for index in range(120)]
    truth = (1 + 0.003 * np.arange(120)) * np.exp(rng.normal(0, 0.03, 120))
    off = np.where(np.array(classes) == 1, 1.25, 1.0)
    truth[1::3] *= 0.97
    return truth, list(truth * off * np.exp(rng.normal(0, ERROR, 120))), classes


class Biased:
    """Samples of kernels that are off by a percent for as long as they stay prepared."""

    def __init__(self, truth: np.ndarray, seed: int, bias: float = 0.01) -> None:
        self.truth, self.bias, self.rng = truth, bias, np.random.default_rng(seed)
        self.renewed: list[int] = []
        self.off = self.rng.normal(0, bias, len(truth))
        self.spent_s = 0.0

    def sample(self, index: int, count: int) -> np.ndarray:
        noise = 1 + 0.005 * np.abs(self.rng.standard_t(3, count))
        taken: np.ndarray = self.truth[index] * np.exp(self.off[index]) * noise
        self.spent_s += taken.sum()
        return taken

    def renew(self, index: int) -> None:
        self.renewed.append(index)
        self.off[index] = self.rng.normal(0, self.bias)


@pytest.mark.parametrize("told", [True, False])
def test_a_class_that_is_predicted_a_quarter_too_slow_is_found_out(told: bool) -> None:
    losses, looks = [], []
    for seed in range(10):
        truth, predicted, classes = wrong_class(seed)
        result = race(predicted, ERROR, Biased(truth, seed, bias=0).sample, classes=classes if told else None)
        losses.append(truth[result.best] / truth.min() - 1)
        looks.append(len(result.ratios))
    assert sum(loss <= 0.01 for loss in losses) >= 9
    assert not told or np.mean(looks) < 80


def test_one_of_each_class_is_looked_at_whatever_is_predicted_of_it() -> None:
    truth = np.concatenate((np.ones(20), np.full(20, 3.0)))
    result = race(list(truth), 0.005, lambda index, count: np.full(count, truth[index]), classes=[0] * 20 + [1] * 20)
    assert max(result.ratios) >= 20


@pytest.mark.slow
def test_finalists_are_prepared_anew_and_the_best_of_biased_kernels_is_found_cheaply() -> None:
    losses, shares = [], []
    for seed in range(30):
        truth, predicted, classes = wrong_class(seed)
        device, swept = Biased(truth, seed), Biased(truth, seed)
        result = race(predicted, ERROR, device.sample, classes=classes, renew=device.renew)
        assert not device.renewed or result.best in device.renewed  # one far ahead of the others is not in doubt
        losses.append(truth[result.best] / truth.min() - 1)
        sweep(predicted, ERROR, swept.sample)
        shares.append(device.spent_s / swept.spent_s)
    assert sum(loss <= 0.01 for loss in losses) >= 28
    assert np.mean(shares) <= 0.15


def test_where_no_preparation_could_change_the_answer_nothing_is_prepared_anew() -> None:
    truth = np.linspace(1, 2, 30)
    device = Biased(truth, 0)
    assert race(list(truth), 0.005, device.sample, renew=device.renew, regret=0.2).finished
    assert device.renewed == []


def test_a_finalist_that_cannot_be_prepared_anew_is_named_and_passed_over() -> None:
    truth = np.array([1.0, 0.9, 0.901])
    device = Biased(truth, 0, bias=0.001)

    def renew(index: int) -> None:
        if index == 1:
            raise CannotRunError("oom: out of memory")
        device.renew(index)

    result = race(list(truth), 0.02, device.sample, renew=renew)
    assert (result.best, result.failed) == (2, {1: "oom: out of memory"})


def test_on_a_noisy_device_preparing_anew_goes_on_until_it_is_sure_too() -> None:
    # Preparations of two runs each never told anything there: nobody is judged by fewer than twenty batches.
    truth = np.array([1.0, 1.0, 1.2])
    for seed in range(4):
        anew: list[int] = []
        sample = autocorrelated(truth, np.random.default_rng(seed))
        result = race([1.0] * 3, 0.02, sample, renew=anew.append, regret=0.02)
        assert (result.finished, result.best in (0, 1)) == (True, True)
        assert result.sure >= 0.95
        assert len(anew) >= 9
