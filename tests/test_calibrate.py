"""Calibration: what is read, held out, fitted, refined and written."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fit.alignment import alignment_table, fit_alignment
from fit.correction import Case, fit_correction
from fit.gemm import first_guess
from fit.run import read_published
from measure_fakes import ENVIRONMENT, measurement

from shapes.calibrate import (
    Products,
    Record,
    bounds,
    calibrate,
    consensus,
    fit_closed_form,
    held_out,
    products,
    refine,
    stored_products,
    write_tables,
)
from shapes.cost.constants import GemmConstants, alignment_constants, gemm_constants
from shapes.cost.corrections import AlignmentConstants, misaligned_seconds, moved_bytes
from shapes.cost.gemm import aligned_seconds, predict_gemm, throttled
from shapes.device import load_device
from shapes.errors import InputError
from shapes.measure.jobs import Job, MemoryBound
from shapes.measure.store import Store
from shapes.operators.types import Gemm, Layout

PRODUCTS = Path(__file__).parent / "data" / "products"


def read_csv(name: str) -> tuple[Record, ...]:
    """The sample of published products of a device."""
    with (PRODUCTS / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return tuple(
        Record(
            *(int(row.get(size) or 1) for size in ("m", "n", "k", "batch")),
            row["dtype"],
            row.get("layout") or "tn",  # type: ignore[arg-type]
            float(row["seconds"]),
            row.get("source") or row.get("framework") or "",
        )
        for row in rows
    )


def random_products(constants: GemmConstants, count: int, seed: int = 0, noise: float = 0.0) -> Products:
    """Products timed by ``constants`` with log-normal noise."""
    random = np.random.default_rng(seed)
    m, n, k = (64.0 * random.integers(8, 200, count) for _ in range(3))
    dims = np.array([m, n, k, np.ones(count)])
    seconds = aligned_seconds(dims, moved_bytes(dims, 2, 2), constants) * np.exp(random.normal(0, noise, count))
    return Products(m, n, k, seconds)


def test_the_consensus_is_the_median_over_sources_of_each_sources_median() -> None:
    # a: median of 1, 2, 9 is 2; b: 4; c: 5. Their median is 4, whatever the number of a's runs.
    values = [((1,), "a", 1.0), ((1,), "a", 2.0), ((1,), "a", 9.0), ((1,), "b", 4.0), ((1,), "c", 5.0)]
    assert consensus(values) == {(1,): 4.0}


def test_whole_values_are_held_out_on_both_sides_of_the_border_and_the_seed_decides() -> None:
    values = np.repeat([64.0, 128, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536], 5)
    hidden = held_out(values)
    # 30% of 3 small ones is 1, of 7 large ones 2; each with all of its 5 rows.
    assert len(set(values[hidden])) == 3
    assert hidden.sum() == 15
    assert np.array_equal(hidden, held_out(values))
    assert any(not np.array_equal(hidden, held_out(values, seed)) for seed in range(1, 5))


def test_known_constants_are_found_again_from_noisy_times() -> None:
    device = load_device("h100-sxm")
    truth = replace(
        first_guess(device, "bf16"), flops_per_s=8e14, launch_s=5e-6, prologue_steps=120.0, quantization=0.8
    )
    seen, unseen = random_products(truth, 1000, noise=0.02), random_products(truth, 500, seed=1)
    found = fit_closed_form(seen, first_guess(device, "bf16"), bounds(device, "bf16"), (2, 2), starts=1)
    assert unseen.errors(found).mean() < 0.01
    assert unseen.errors(first_guess(device, "bf16")).mean() > 0.05


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_pairs")
def test_the_correction_learns_what_the_closed_form_cannot_and_time_does_not_fall() -> None:
    device = load_device("a100-sxm")
    plain = first_guess(device, "bf16")
    data = random_products(plain, 4000)
    # A library that loses a tenth wherever k is long, and a fifth up to two waves.
    waves = np.ceil(data.m / 128) * np.ceil(data.n / 256) / device.compute.units
    slow = replace(data, seconds=data.seconds * np.where(data.k > 6000, 1.1, 1.0) * np.where(waves < 2, 1.2, 1.0))
    fitted = fit_correction(slow, Case(plain, 2, 2))
    assert slow.errors(plain).mean() > 0.05
    assert slow.errors(fitted).mean() < 0.02
    steps = 256.0 * np.arange(2, 60)
    dims = np.array([steps, np.full(58, 2048.0), np.full(58, 4096.0), np.ones(58)])
    seconds = aligned_seconds(dims, moved_bytes(dims, 2, 2), fitted)
    # Where the library itself jumps, less than a percent may be lost.
    assert np.all(seconds[1:] / seconds[:-1] > 0.99)


def test_fifty_products_correct_borrowed_constants_that_are_off_by_a_quarter() -> None:
    device = load_device("h100-pcie")
    borrowed, _ = gemm_constants(device, "bf16")
    truth = replace(borrowed, flops_per_s=0.75 * borrowed.flops_per_s, launch_s=2 * borrowed.launch_s)
    unseen = random_products(truth, 500, seed=1)
    assert unseen.errors(borrowed).mean() > 0.2
    assert unseen.errors(refine(random_products(truth, 50, noise=0.02), device, "bf16")).mean() < 0.05


def test_a_sweep_over_misaligned_dimensions_gives_back_the_ceilings_of_its_kernels() -> None:
    device = load_device("h200")
    constants, _ = gemm_constants(device, "bf16")
    before = alignment_constants(device, "bf16")
    odd, narrow, _ = before.ceiling
    truth = replace(before, ceiling=(0.7 * odd, 0.8 * narrow, float("inf")), c_share=(0.2, 0.1, 0.0))
    sizes = (4096, 4097, 4098, 4100, 4104, 6144)
    records = [
        timed(m, n, k, layout, constants, truth)
        for layout in ("tn", "nn", "nt")
        for m in sizes
        for n in sizes
        for k in sizes
    ]
    found = fit_alignment(records, constants, before)
    assert found.ceiling[:2] == pytest.approx(truth.ceiling[:2], rel=0.02)
    # 16 bytes cost nothing in the sweep: its kernel is found to be no slower than the aligned ones.
    assert found.ceiling[2] > 0.65 * constants.flops_per_s
    assert found.c_share == pytest.approx(truth.c_share, abs=0.02)
    assert found.tier == "measured"
    again = AlignmentConstants.from_table(alignment_table(found, device), device, "bf16")
    assert again.ceiling == pytest.approx(found.ceiling, rel=1e-3)
    assert again.c_share == pytest.approx(found.c_share, abs=1e-4)


def timed(m: int, n: int, k: int, layout: Layout, constants: GemmConstants, truth: AlignmentConstants) -> Record:
    dims = tuple(np.array([value], dtype=np.int64) for value in (m, n, k, 1))
    sizes = np.array(dims, dtype=float)
    aligned = aligned_seconds(sizes, moved_bytes(sizes, 2, 2), constants)
    extra = misaligned_seconds(
        dims, (2, 2, 2), layout, aligned, constants.launch_s, truth, partial(throttled, c=constants)
    )
    return Record(m, n, k, 1, "bf16", layout, float((aligned + sum(extra))[0]), "sweep")


def test_without_ceilings_a_sweep_gives_shares() -> None:
    # AMD's kernels lose a share of their time, not their ceiling: 30% for odd k, which is A's and B's forward.
    device = load_device("mi250x")
    constants, _ = gemm_constants(device, "bf16")
    before = alignment_constants(device, "bf16")
    truth = replace(before, share=(0.15, 0.05, 0.0))
    records = [
        timed(m, n, k, layout, constants, truth)
        for layout in ("tn", "nn")
        for m in (4096, 2048)
        for n in (4096, 4097, 4098)
        for k in (4096, 4097, 4098, 4104)
    ]
    assert fit_alignment(records, constants, before).share == pytest.approx(truth.share, abs=0.02)


def test_published_tables_are_in_milliseconds_and_named_by_framework(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"m": [64], "n": [64], "k": [64], "gemm_dtype": ["bfloat16"], "latency": [0.5], "framework": ["SGLang"]}
    pq.write_table(pa.table(table), tmp_path / "gemm_perf.parquet")
    assert read_published(tmp_path) == (Record(64, 64, 64, 1, "bf16", "tn", 0.0005, "SGLang"),)


def stored(path: Path, records: Iterable[Record], device: str = "NVIDIA H200", status: str = "ok") -> None:
    """A store with ``records`` as if they had been measured on ``device``."""
    environment = replace(ENVIRONMENT, device=device)
    with Store.open(path) as store:
        for one in records:
            job = Job(Gemm("x", "forward", one.m, one.n, one.k, dtype=one.dtype))
            store.add([measurement(job, np.full(12, one.seconds), environment=environment, status=status)])


def test_the_store_s_products_of_a_device_are_fitted_and_nothing_else_of_it(tmp_path: Path) -> None:
    path, own = tmp_path / "s.db", Record(64, 128, 64, 1, "bf16", "tn", 1e-5, "")
    stored(path, [own])
    stored(path, [replace(own, k=128)], device="NVIDIA A100-SXM4-80GB")
    stored(path, [replace(own, k=256)], status="oom")
    with Store.open(path) as store:
        store.add([measurement(Job(MemoryBound("norm", 64, 64)), np.full(12, 1e-5))])
        found = stored_products(store, load_device("h200"))
    assert found == (replace(own, source="measured:NVIDIA H200 torch 0.0"),)


def test_seconds_are_as_where_the_control_shape_takes_its_median(tmp_path: Path) -> None:
    # A tenth slower in an hour in which the control shape was a tenth slower is no slower.
    environment = replace(ENVIRONMENT, device="NVIDIA H200")
    with Store.open(tmp_path / "s.db") as store:
        for n, slower, control_s in ((64, 1.0, 1e-3), (128, 1.0, 1e-3), (192, 1.1, 1.1e-3), (256, 1.0, None)):
            samples = np.full(12, slower * 1e-5)
            job = Job(Gemm("x", "forward", 64, n, 64))
            store.add([measurement(job, samples, environment=environment, control_s=control_s)])
        found = stored_products(store, load_device("h200"))
    assert [one.seconds for one in found] == pytest.approx([1e-5] * 4)


@pytest.mark.parametrize("changes", [{"dtype": "bf17"}, {"layout": "xx"}, {"k": 0}])
def test_a_stored_row_that_is_no_product_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    one = measurement(Job(Gemm("x", "forward", 64, 64, 64)), np.full(12, 1e-5))
    with Store.open(tmp_path / "s.db") as store:
        store.add([replace(one, description={**one.description, **changes})])
        with pytest.raises(InputError, match="expected positive sizes, a known dtype and layout"):
            stored_products(store, replace(load_device("h200"), torch_names=("Fake 1",)))


def test_writing_touches_only_the_owned_tables(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    shutil.copy(load_device("h200").origin, path)
    before, device = path.read_text(), load_device(str(path))
    write_tables(path, {"error": {"bf16": {"large": 0.5}}, "provenance": {"data": 'a "quoted" \\ name'}})
    after = load_device(str(path))
    assert after.errors == {"bf16": {"large": 0.5}}
    assert after.provenance == {"data": 'a "quoted" \\ name'}
    assert after.cost == device.cost
    # What comes before the first owned table is the same, byte for byte.
    head = before[: before.index("[cost")]
    assert path.read_text().startswith(head)
    with pytest.raises(InputError, match="expected one of cost, error, provenance"):
        write_tables(path, {"memory": {"bytes": 1}})


def test_a_few_measurements_refine_a_data_sheet_device_and_the_file_predicts_better(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    shutil.copy(load_device("gb200").origin, path)
    # The sample's n are few: those held out are judged, the rest refines.
    result = calibrate(load_device(str(path)), read_csv("gb200"))
    write_tables(path, result.tables)
    data = products(read_csv("gb200"), "bf16")
    m, n, k = (getattr(data, axis).astype(int) for axis in "mnk")
    refined = np.abs(predict_gemm(str(path), m, n, k) / data.seconds - 1)
    borrowed = np.abs(predict_gemm("gb200", m, n, k) / data.seconds - 1)
    assert refined[data.large].mean() <= borrowed[data.large].mean() + 0.002
    assert result.provenance["bf16"]["shapes"] == len(data)


def test_a_device_that_power_does_not_slow_is_refined_too() -> None:
    device = load_device("rtx-pro-6000-server")
    before, _ = gemm_constants(device, "bf16")
    assert before.throttle == 0
    m, n, k = (512.0 * side for side in np.random.default_rng(0).integers(2, 16, (3, 40)))
    slower = Products(m, n, k, np.ones(40))
    slower = replace(slower, seconds=1.1 * slower.predicted(before))
    refined = refine(slower, device, "bf16")
    assert slower.errors(refined).mean() < 0.7 * slower.errors(before).mean()


def test_the_command_reports_and_writes_only_when_told(tmp_path: Path) -> None:
    from sizer.cli.measuring import calibrate as command

    path = tmp_path / "mine.toml"
    shutil.copy(load_device("h200").origin, path)
    before = path.read_bytes()
    kept = tmp_path / "s.db"
    stored(kept, read_csv("h200")[::20])
    arguments = ["--device", str(path), "--store", str(kept)]
    dry = CliRunner().invoke(command, arguments)
    assert dry.exit_code == 0, dry.output
    assert "nothing written" in dry.output
    assert path.read_bytes() == before
    wet = CliRunner().invoke(command, [*arguments, "--write"])
    assert wet.exit_code == 0, wet.output
    assert load_device(str(path)).provenance["data"] == "measured:NVIDIA H200 torch 0.0"


def test_a_store_without_products_of_the_device_says_how_to_measure_some(tmp_path: Path) -> None:
    from sizer.cli.measuring import calibrate as command

    stored(tmp_path / "s.db", [])
    outcome = CliRunner().invoke(command, ["--device", "h200", "--store", str(tmp_path / "s.db")])
    assert isinstance(outcome.exception, InputError)
    assert "expected measured products of h200: `sizer bench --suite FILE` measures some" in str(outcome.exception)


def test_without_a_device_it_is_the_one_here_which_a_cpu_is_not(tmp_path: Path) -> None:
    from sizer.cli.measuring import calibrate as command

    outcome = CliRunner().invoke(command, ["--store", str(tmp_path / "store.db")])
    assert isinstance(outcome.exception, InputError)
    assert "--device: expected a device's name or .toml file: here is CPU" in str(outcome.exception)
