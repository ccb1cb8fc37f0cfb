"""Statistics on synthetic noise whose truth is known: coverage, drift, clock states, stopping, comparing."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from bench.compare import compare
from hypothesis import given
from hypothesis import strategies as st
from tiers import every_run

from shapes.measure.stats import (
    LEAST_SAMPLES,
    LEAST_STRETCHES,
    Stopping,
    _lower_rank,
    control_drift,
    correlation_length,
    summarise,
)

TRIALS = 1500
#: Nominal coverage, and the two points about it that are asked for. The binomial noise of 1500 trials is 0.56 points.
NOMINAL, POINTS = 95.0, 2.0


def heavy_tail(random: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    """A floor and a lognormal delay: interrupts and queueing. The lognormal's median is 1."""
    return 1 + 0.004 * random.lognormal(0, 1.2, n), 1.004


def drift(random: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    """2% slower at the end than at the beginning; the truth is the middle of the measuring."""
    return 1 + 0.02 * (np.arange(n) / (n - 1) - 0.5) + 0.004 * random.standard_normal(n), 1.0


def bimodal(random: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    """Two clocks 1% apart, either as likely at any sample."""
    return 1 + 0.01 * (random.random(n) < 0.5) + 0.004 * random.standard_normal(n), 1.005


def lasting_states(random: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    """Two clocks 1% apart that each last five samples on average: samples are not independent."""
    state = (np.cumsum(random.random(n) < 0.2) + random.integers(2)) % 2
    return 1 + 0.01 * state + 0.004 * random.standard_normal(n), 1.005


def long_states(random: np.random.Generator, n: int) -> tuple[np.ndarray, float]:
    """The same with ten samples each. Of a row of 30 every tenth meets one of the states only: no interval helps it."""
    state = (np.cumsum(random.random(n) < 0.1) + random.integers(2)) % 2
    return 1 + 0.01 * state + 0.004 * random.standard_normal(n), 1.005


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "n"),
    every_run(
        [
            (heavy_tail, 12),
            (heavy_tail, 20),
            (heavy_tail, 60),
            (heavy_tail, 200),
            (bimodal, 12),
            (bimodal, 60),
            (bimodal, 200),
            (drift, 30),
            (drift, 60),
            (drift, 200),
            (lasting_states, 60),
            (lasting_states, 120),
            (lasting_states, 400),
            (long_states, 200),
            (long_states, 400),
        ],
        (heavy_tail, 12),
        (bimodal, 60),
        (drift, 30),
        (lasting_states, 60),
        (long_states, 200),
    ),
)
def test_the_interval_covers_the_truth_at_its_nominal_rate(noise, n) -> None:
    random = np.random.default_rng(n)
    covered = 0
    for _ in range(TRIALS):
        samples, truth = noise(random, n)
        summary = summarise(samples)
        covered += summary.low <= truth <= summary.high
    assert abs(100 * covered / TRIALS - NOMINAL) <= POINTS


@pytest.mark.slow
@pytest.mark.parametrize("noise", every_run([heavy_tail, bimodal], heavy_tail))
def test_stopping_at_a_precision_does_not_spoil_the_coverage(noise) -> None:
    random = np.random.default_rng(7)
    stopping = Stopping(precision=0.002, most_samples=400)
    covered = 0
    for _ in range(600):
        samples, truth = noise(random, 400)
        taken = stopping.least_samples
        while (reason := stopping.reason(summarise(samples[:taken]), out_of_time=False)) is None:
            taken = stopping.next_look(taken)
        summary = summarise(samples[:taken])
        assert reason == ("precision" if summary.half_width <= 0.002 else "samples")
        covered += summary.low <= truth <= summary.high
    assert 100 * covered / 600 >= NOMINAL - 2 * POINTS  # 600 trials: 0.9 points of noise on top of the two


def test_a_row_of_lasting_states_is_not_called_precise_before_it_has_shown_them_often() -> None:
    random = np.random.default_rng(3)
    samples, _ = long_states(random, 400)
    short = summarise(samples[:100])
    assert short.correlation > 100 / LEAST_STRETCHES
    assert Stopping(precision=0.9).reason(short, out_of_time=False) is None
    assert Stopping(precision=0.9).reason(short, out_of_time=True) == "time"


def test_a_row_that_holds_four_fifths_of_one_state_is_as_correlated_as_one_that_holds_both_alike() -> None:
    random = np.random.default_rng(4)
    noise = 0.001 * random.standard_normal(200)
    even = 1 + 0.01 * (np.arange(200) // 20 % 2) + noise
    mostly = 1 + 0.01 * (np.arange(200) // 20 % 5 == 0) + noise
    assert correlation_length(mostly) > 5
    assert correlation_length(even) > 5


def test_a_drift_is_reported_with_its_size_and_a_steady_series_has_none() -> None:
    random = np.random.default_rng(0)
    noise = 0.001 * random.standard_normal(200)
    rising = 1 + np.linspace(-0.01, 0.01, 200) + noise
    assert summarise(rising).drift == pytest.approx(0.02, rel=0.1)
    assert summarise(1 + noise).drift == 0.0


def test_independent_signs_have_correlation_length_one_and_runs_of_five_have_about_four() -> None:
    random = np.random.default_rng(0)
    assert correlation_length(random.random(4000)) < 1.3
    # A state that flips with probability 0.2 has correlation 0.6**lag: 1 + 2 x 0.6/0.4 = 4.
    state = np.cumsum(random.random(20000) < 0.2) % 2
    assert correlation_length(state) == pytest.approx(4.0, rel=0.25)


@pytest.mark.parametrize("n", [6, 9, 17, 40])
def test_ranks_lie_between_the_whole_ranks_whose_exact_coverages_enclose_the_nominal(n: int) -> None:
    rank = _lower_rank(n, 0.95)

    def coverage(r: int) -> float:  # 1 - 2 P[Binomial(n, 1/2) <= r]
        return 1 - 2 * sum(comb(n, i) for i in range(r + 1)) / 2**n

    outer, inner = int(rank), int(rank) + 1
    assert coverage(outer) >= 0.95 >= coverage(inner)


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=80))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    summary = summarise(samples)
    assert summary.low <= summary.seconds * (1 + 1e-12)
    assert summary.high >= summary.seconds * (1 - 1e-12)


def test_fewer_samples_than_can_bound_a_median_give_an_interval_wider_than_their_range() -> None:
    summary = summarise([1.0, 1.1, 1.2])
    assert len([1.0, 1.1, 1.2]) < LEAST_SAMPLES
    assert summary.low < 1.0
    assert summary.high > 1.2


@pytest.mark.parametrize("samples", [[], [float("nan")], [[1.0]]])
def test_what_is_no_row_of_seconds_is_refused(samples: list) -> None:
    with pytest.raises(ValueError, match="finite seconds"):
        summarise(samples)


def interleaved(random: np.random.Generator, n: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Two candidates in the same rounds: common drift and clock states of 1%, own heavy-tailed noise of 0.5%."""
    common = np.exp(np.cumsum(random.normal(0, 0.002, n))) * (1 + 0.01 * (np.cumsum(random.random(n) < 0.2) % 2))
    own = [1 + 0.005 * random.lognormal(0, 1, n) for _ in range(2)]
    return ratio * common * own[0], common * own[1]


@pytest.mark.slow
@pytest.mark.parametrize("n", every_run([8, 20, 60, 120], 20))
def test_equal_candidates_are_called_different_in_fewer_than_one_of_twenty(n: int) -> None:
    random = np.random.default_rng(n)
    wrong = sum(compare(*interleaved(random, n, 1.0)).significant for _ in range(TRIALS))
    assert 100 * wrong / TRIALS < 5.0


@pytest.mark.slow
def test_equal_candidates_that_meet_lasting_clock_states_each_for_itself_are_not_told_apart_either() -> None:
    random = np.random.default_rng(5)
    pairs = ((lasting_states(random, 120)[0], lasting_states(random, 120)[0]) for _ in range(TRIALS))
    assert 100 * sum(compare(one, two).significant for one, two in pairs) / TRIALS < 5.0


def test_candidates_half_a_percent_apart_are_told_apart_and_rightly() -> None:
    random = np.random.default_rng(0)
    verdicts = [compare(*interleaved(random, 120, 1.005)).verdict for _ in range(300)]
    assert verdicts.count("slower") >= 0.95 * 300
    assert verdicts.count("faster") == 0


@pytest.mark.slow
def test_the_ratios_interval_covers_the_truth() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(TRIALS):
        result = compare(*interleaved(random, 30, 1.02))
        covered += result.low <= 1.02 <= result.high
    assert abs(100 * covered / TRIALS - NOMINAL) <= POINTS


def test_five_pairs_cannot_be_significant() -> None:
    result = compare([2.0] * 5, [1.0] * 5)
    assert result.verdict == "no significant difference"
    assert result.ratio == 2.0


def test_a_long_row_is_thinned_and_keeps_its_ratio() -> None:
    random = np.random.default_rng(2)
    result = compare(*interleaved(random, 5000, 1.01))
    assert result.verdict == "slower"
    assert result.low <= 1.01 <= result.high


def test_a_control_that_slows_down_by_three_percent_is_not_steady() -> None:
    assert not control_drift(np.linspace(1.0, 1.03, 100)).steady
    assert control_drift(np.full(100, 1.0)).steady
    assert control_drift([]).timings == 0


def test_stopping_says_precision_time_or_samples() -> None:
    stopping = Stopping(precision=0.01, most_samples=100)
    # Out of order: in order it would be a drift, which is taken out.
    spread = np.random.default_rng(0).permutation(np.linspace(1, 2, 100))
    tight, loose = summarise(np.full(60, 1.0)), summarise(spread[:60])
    assert stopping.reason(tight, out_of_time=True) == "precision"
    assert stopping.reason(loose, out_of_time=True) == "time"
    assert stopping.reason(loose, out_of_time=False) is None
    assert stopping.reason(summarise(spread), out_of_time=False) == "samples"
