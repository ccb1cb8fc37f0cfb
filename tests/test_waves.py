"""Waves, overlap and the power limit: one set of formulas for products and attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapes.cost.constants import gemm_constants
from shapes.cost.fused_attention import constants_of
from shapes.cost.gemm import compute_seconds, overlapped, paid_waves, throttled, wave_seconds
from shapes.device import load_device

shares = st.floats(0.0, 1.0)


@dataclass(frozen=True)
class Constants:
    units: int = 100
    quantization: float = 0.5
    overlap: float = 2.0
    throttle: float = 0.1
    throttle_s: float = 1e-3
    throttle_width: float = 0.5


@given(st.integers(1, 100), shares)
def test_a_first_wave_is_paid_whole_however_few_blocks_it_has(blocks: int, quantization: float) -> None:
    assert paid_waves(np.float64(blocks), Constants(quantization=quantization)) == pytest.approx(1.0)


def test_a_partly_filled_last_wave_is_paid_by_the_share_of_quantization() -> None:
    # 150 blocks on 100 units: two waves whole, one and a half balanced, half way between at one half.
    blocks = np.float64(150)
    paid = [float(paid_waves(blocks, Constants(quantization=share))) for share in (1.0, 0.0, 0.5)]
    assert paid == [2.0, 1.5, 1.75]


def test_a_product_that_does_not_fill_the_device_takes_as_long_as_one_tile() -> None:
    # 512 x 512 is 64 tiles of 64 x 64 or 8 of 128 x 256: fewer than H100's 132 units whichever it is.
    constants, _ = gemm_constants(load_device("h100-sxm"), "bf16")
    m, n, k, batch = (np.array([value]) for value in (512.0, 512.0, 4096.0, 1.0))
    one_wave = min(float(wave_seconds(k, tile, constants)[0]) for tile in constants.tiles)
    assert float(compute_seconds(np.array([m, n, k, batch]), constants)[0]) == pytest.approx(one_wave)


@given(st.floats(1e-7, 1.0), st.floats(1e-7, 1.0), st.floats(1.0, 12.0))
def test_two_that_hide_each_other_take_between_the_longer_and_their_sum(one: float, two: float, q: float) -> None:
    together = float(overlapped(np.float64(one), np.float64(two), Constants(overlap=q)))
    assert max(one, two) * (1 - 1e-12) <= together <= (one + two) * (1 + 1e-12)
    assert float(overlapped(np.float64(two), np.float64(one), Constants(overlap=q))) == pytest.approx(together)


def test_the_power_limit_is_half_felt_at_its_onset_and_wholly_long_after() -> None:
    felt = [float(throttled(np.float64(t), Constants())) / t - 1 for t in (1e-6, 1e-3, 1.0)]
    assert felt == pytest.approx([0.0, 0.05, 0.1], abs=1e-5)
    assert float(throttled(np.float64(2.0), Constants(throttle=0.0))) == 2.0


@pytest.mark.parametrize("device", ["a100-sxm", "h100-sxm", "b200"])
def test_products_and_attention_both_bring_constants_for_every_formula(device: str) -> None:
    constants = (
        gemm_constants(load_device(device), "bf16")[0],
        constants_of("sdpa", load_device(device), "bf16").phases[0],
    )
    for c in constants:
        assert float(paid_waves(np.float64(1), c)) == pytest.approx(1.0)
        assert float(throttled(overlapped(np.float64(1e-3), np.float64(0.0), c), c)) >= 1e-3
