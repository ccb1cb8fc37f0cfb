"""Cells: they speak of the tables' own sizes alone, help on k that nothing has seen, and let no growth save by them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fit.cells import fit_cells
from fit.grids import cells_of_array
from fit.physics import around_cells, celled
from fit.written import cells_table

from shapes.calibrate import Products
from shapes.cost import predict
from shapes.cost.constants import FITTED, GemmConstants, gemm_constants
from shapes.cost.corrections import Cells
from shapes.cost.explain import explain
from shapes.cost.gemm import predict_gemm
from shapes.device import load_device
from shapes.errors import InputError
from shapes.operators.types import Gemm, GroupedGemm

DATA = Path(__file__).parent / "data" / "products"
NAN = float("nan")
#: Two values of m, two of n, of which one pair was not measured; twice as slow as predicted at k 512, half at 2048.
CELLS = cells_of_array(
    np.array([33, 1024]),
    np.array([512, 4096]),
    (9.0, 11.0),
    np.array([[[0.6931, -0.6931]] * 2, [[NAN, NAN], [0.6931, -0.6931]]]),
)


def factor(m: int, n: int, k: int, batch: int = 1) -> float:
    return float(CELLS.corrected(np.ones(1), np.array([[m], [n], [k], [batch]]))[0])


def test_a_cell_speaks_of_its_own_size_unbatched_and_of_whole_steps_of_k() -> None:
    assert factor(1024, 4096, 512) == pytest.approx(2, rel=1e-3)
    assert factor(33, 512, 1024) == pytest.approx(1)  # half way in log2 k
    assert factor(1024, 4096, 65536) == pytest.approx(0.5, rel=1e-3)  # constant outside
    for size in (
        (1024, 4096, 448),
        (1024, 4096, 520),
        (1023, 4096, 512),
        (1024, 4095, 512),
        (1024, 512, 512),
        (1024, 2**20, 512),
        (2**20, 4096, 512),
        (1, 1, 512),
    ):
        assert factor(*size) == 1, size
    assert factor(1024, 4096, 512, batch=2) == 1


def test_cells_go_through_a_device_file_and_a_torn_table_is_named() -> None:
    assert Cells.from_table(cells_table(CELLS)) == CELLS
    torn = Cells.from_table({**cells_table(CELLS), "log_factor": "1 2 3\n"})
    with pytest.raises(InputError, match="expected 2 lines of 4 entries"):
        torn.hit(np.ones((4, 1), int))
    wrong = Cells.from_table({**cells_table(CELLS), "log_factor": "1 2 3 x\n1 2 3 4\n"})
    with pytest.raises(InputError, match="expected numbers"):
        wrong.hit(np.ones((4, 1), int))
    turned = Cells((1024, 33), CELLS.n, CELLS.log2_k, CELLS.entries)
    with pytest.raises(InputError, match=r"cells\.m: expected rising values"):
        turned.corrected(np.ones(1), np.array([[33], [512], [512], [1]]))


@pytest.mark.parametrize("device", [name for name in celled() if name in FITTED])
def test_cells_help_on_n_and_k_that_nothing_has_seen(device: str) -> None:
    lines = [line for line in (DATA / f"{device}.csv").read_text().splitlines() if not line.startswith("#")]
    rows = np.array([[float(row[name]) for name in ("m", "n", "k", "seconds")] for row in csv.DictReader(lines)])
    loaded = load_device(device)
    products = Products(*rows[np.isin(rows[:, 2], loaded.provenance["bf16"]["held_out_k"])].T)
    constants, _ = gemm_constants(loaded, "bf16")
    with_cells, without = (products.errors(one) for one in (constants, replace(constants, cells=None)))
    assert products.large.sum() > 50
    # Where kernels differ most by m and n; 5% to 20% less on A100 and L40S, which so few products hardly tell.
    gain = 0.75 if device in ("h100-sxm", "h200", "b200") else 1.0
    assert with_cells[products.large].mean() < gain * without[products.large].mean()
    large = load_device(device).errors["bf16"]["large_cell_consensus"]
    assert with_cells[products.large].mean() == pytest.approx(large, rel=0.35)


@pytest.mark.parametrize("device", celled())
def test_growth_from_and_to_every_cell_saves_no_more_than_the_constants_let_it(device: str) -> None:
    counts = around_cells(device, np.array([512, 3008, 65536]))
    assert counts.pairs > (15_000 if device == "b60" else 45_000)  # which has few cells
    # What the constants alone let save (doublings off multiples of 64) the cells leave no worse.
    assert counts.a_tile_saves + counts.doubling_saves <= counts.alone


def test_other_layouts_batches_groups_devices_and_calibrated_constants_have_no_cells() -> None:
    size = (4096, 4096, 4096)
    regimes = {
        layout: predict(Gemm("one", "forward", *size, layout=layout), "h100-sxm").regime  # type: ignore[arg-type]
        for layout in ("tn", "nn", "nt")
    }
    assert regimes == {"tn": "large_cell", "nn": "large", "nt": "large"}
    assert predict(Gemm("many", "forward", *size, batch=2), "h100-sxm").regime == "large"
    assert predict(Gemm("borrows", "forward", *size), "h100-pcie").regime == "large"
    assert predict(Gemm("half", "forward", *size, dtype="fp16"), "h100-sxm").regime == "large_cell"
    grouped = GroupedGemm("one group", "forward", 1, *size)
    parts = explain(grouped, predict(grouped, "h100-sxm"), "h100-sxm")
    assert "kernel choice for m and n" not in [part.what for part in parts]


def test_what_a_cell_adds_is_a_part_of_its_own_and_its_error_is_smaller() -> None:
    of_cell, neighbour = (Gemm("one", "forward", 4096, n, 4096) for n in (4096, 4160))
    costs = [predict(one, "h100-sxm") for one in (of_cell, neighbour)]
    assert costs[0].tier == costs[1].tier == "fitted"
    assert costs[0].error < costs[1].error
    parts = {part.what: part for part in explain(of_cell, costs[0], "h100-sxm")}
    constants, _ = gemm_constants(load_device("h100-sxm"), "bf16")
    assert constants.cells is not None
    dims = np.array([[4096], [4096], [4096], [1]])
    times = float(constants.cells.corrected(np.ones(1), dims)[0])
    assert parts["kernel choice for m and n"].seconds == pytest.approx(costs[0].seconds * (1 - 1 / times))
    assert "kernel choice for m and n" not in [part.what for part in explain(neighbour, costs[1], "h100-sxm")]


@pytest.mark.slow
def test_a_cell_that_is_served_oddly_is_learned_as_far_as_growth_allows() -> None:
    loaded = load_device("h100-sxm")
    bare = replace(gemm_constants(loaded, "bf16")[0], cells=None)
    m, n, k = (
        dims.ravel().astype(float)
        for dims in np.meshgrid([2048, 4096], [1024, 3072], 64 * np.arange(8, 128, 8), indexing="ij")
    )
    odd = (m == 4096) & (n == 3072)
    seconds = Products(m, n, k, m).predicted(bare)
    seen = Products(m, n, k, np.where(odd, 0.9, 1.0) * seconds)
    learned: GemmConstants = replace(bare, cells=fit_cells(seen, bare, loaded))
    factors = seen.predicted(learned) / seconds
    assert factors[~odd] == pytest.approx(np.ones((~odd).sum()), abs=0.01)
    # A tenth less: what 4096 x 2816 takes without a cell is the least that it may come to, less a percent.
    assert 0.9 <= factors[odd].min() < 0.98
    smaller = predict_gemm("h100-sxm", 4096, 2816, k[odd].astype(int)) / seconds[odd]
    assert (factors[odd] >= 0.99 * smaller - 1e-9).all()
