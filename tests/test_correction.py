"""Correction tables: every product is spoken of once by each table, files give them back, tails are learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fit.correction import TAIL_TILES, Case, fitted
from fit.gemm import first_guess
from fit.written import correction_table, grid_size
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from shapes.calibrate import Products
from shapes.cost.constants import FITTED, gemm_constants
from shapes.cost.corrections import REFERENCE_TILE, Correction, Grid, moved_bytes, waves_of
from shapes.cost.gemm import aligned_seconds
from shapes.device import load_device

GRID = Grid((-2.0, 0.0, 1.5, 3.0), (9.0, 11.0, 14.0), ((128, 256), (128, 128)), 3, (0.0, 0.5, 1.0), (9.0, 12.0))


@settings(max_examples=200)
@given(*[st.integers(1, 2**18)] * 3, st.integers(1, 512), st.integers(1, 200))
def test_each_table_speaks_of_every_product_with_weight_one(m: int, n: int, k: int, batch: int, units: int) -> None:
    shape = np.array([[float(value)] for value in (m, n, k, batch)])
    index, weight = (np.array(part) for part in zip(*GRID.corners(shape, units), strict=True))
    assert ((weight >= 0) & (weight <= 1)).all()
    tables = [weight[(index >= low) & (index < high)].sum() for low, high in ((0, 12), (12, 30), (30, 48))]
    np.testing.assert_allclose(tables, 1.0)
    assert grid_size(GRID) == 48


def test_tables_go_through_a_device_file_unchanged() -> None:
    values = tuple(np.round(np.random.default_rng(0).normal(0, 0.1, grid_size(GRID)), 4).tolist())
    correction = Correction(GRID, values)
    assert Correction.from_table(correction_table(correction)) == correction
    # A file of before the tails has no table of them.
    untailed = Correction(Grid(GRID.log2_waves, GRID.log2_k, (), 0, (), ()), values[:12])
    without = {key: value for key, value in correction_table(untailed).items() if key != "tail"}
    assert Correction.from_table(without) == untailed


def test_the_shipped_tables_are_read_whole() -> None:
    for name in ("a100-sxm", "h100-sxm", "b200"):
        constants, _ = gemm_constants(load_device(name), "bf16")
        assert constants.correction is not None
        assert len(constants.correction.log_factors) == grid_size(constants.correction.grid)


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_pairs")
def test_a_library_that_dislikes_idle_tails_is_learned() -> None:
    device = load_device("h100-sxm")
    plain = first_guess(device, "bf16")
    random = np.random.default_rng(0)
    m, n, k = (128.0 * random.integers(4, 100, 1200) for _ in range(3))
    blank = Products(m, n, k, np.ones_like(m))
    waves = waves_of((128, 256), blank.sizes, device.compute.units)
    # From the second wave on: in the first, time would fall as work is added.
    idle = np.where(waves > 1, np.ceil(waves) - waves, 0.0)
    even = replace(blank, seconds=blank.predicted(plain))
    slow = replace(blank, seconds=even.seconds * (1 + 0.05 * idle))
    case = Case(plain, 2, 2)
    errors = {
        (tiles, bool(bound)): slow.errors(fitted(slow, case, (tiles, (2.0, 2.0)), bound)).mean()
        for tiles, bound in (((), ()), (TAIL_TILES, ()), (TAIL_TILES, (case,)))
    }
    assert slow.errors(plain).mean() > 0.02
    assert errors[(), False] > 0.01
    assert errors[TAIL_TILES, False] < 0.002
    # This library's time falls where a tile fills a wave: bound to times that do not, half of what it loses is learned.
    assert errors[TAIL_TILES, True] < 0.01


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fewer_pairs")
def test_bound_tables_let_no_time_fall_however_noisy_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    # Twice the fixture's pairs and rounds: by those alone 2 of 2,000 times of this noise fall by up to 1.4%.
    for name, value in (("PAIRS", 120_000), ("NEAR_PAIRS", 30_000), ("ROUNDS", 60)):
        monkeypatch.setattr(f"fit.correction.{name}", value)
    device = load_device("h100-sxm")
    plain = first_guess(device, "bf16")
    random = np.random.default_rng(1)
    m, n, k = (64.0 * random.integers(8, 300, 2000) for _ in range(3))
    blank = Products(m, n, k, np.ones_like(m))
    noisy = replace(blank, seconds=blank.predicted(plain) * np.exp(random.normal(0, 0.2, 2000)))
    constants = fitted(noisy, Case(plain, 2, 2), (TAIL_TILES, (2.0, 2.0)), (Case(plain, 2, 2),))
    one = np.ones_like(m)

    def seconds(*dims: np.ndarray) -> np.ndarray:
        rows = np.array([*dims, one])
        return aligned_seconds(rows, moved_bytes(rows, 2, 2), constants)

    before = seconds(m, n, k)
    assert np.abs(before / blank.predicted(plain) - 1).mean() > 0.01
    for doubled in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert (seconds(*doubled) >= before).all()
    for grown in ((m + 256, n, k), (m, n + 256, k), (m, n, k + 64)):
        assert (seconds(*grown) > 0.99 * before).all()


@pytest.mark.parametrize("device", [name for name in FITTED if "correction" in load_device(name).cost.get("bf16", {})])
def test_a_factor_is_what_scipys_interpolation_of_the_tables_says(device: str) -> None:
    constants, _ = gemm_constants(load_device(device), "bf16")
    random = np.random.default_rng(3)
    m, n, k = (np.floor(np.exp(random.uniform(0, np.log(200_000), 2000))) for _ in range(3))
    dims = np.array([m, n, k, random.integers(1, 64, 2000).astype(float)])
    assert constants.small is not None
    for one in (constants, constants.small):
        assert one.correction is not None
        grid, values = one.correction.grid, np.asarray(one.correction.log_factors)

        def told(table: np.ndarray, *axes: tuple[tuple[float, ...], np.ndarray]) -> np.ndarray:
            knots, at = zip(*axes, strict=True)
            inside = [np.clip(own, each[0], each[-1]) for each, own in zip(knots, at, strict=True)]
            return RegularGridInterpolator(knots, table)(np.stack(inside, axis=-1))

        ends = len(grid.log2_waves), len(grid.log2_k)
        waves = np.log2(waves_of(REFERENCE_TILE, dims, one.units))
        by_waves, by_tail = np.split(values, [ends[0] * ends[1]])
        total = told(by_waves.reshape(ends), (grid.log2_waves, waves), (grid.log2_k, np.log2(k)))
        sizes = len(grid.tail_tiles), grid.tail_waves, len(grid.tail_idle), len(grid.tail_log2_k)
        for tile, layers in zip(grid.tail_tiles, by_tail.reshape(sizes), strict=True):
            waves = waves_of(tile, dims, one.units)
            idle = (grid.tail_idle, np.ceil(waves) - waves), (grid.tail_log2_k, np.log2(k))
            of = np.minimum(np.ceil(waves), grid.tail_waves)
            total += sum((of == at) * told(layer, *idle) for at, layer in enumerate(layers, 1))
        assert np.allclose(one.correction.factor(one.units, dims), np.exp(total), rtol=1e-9)
