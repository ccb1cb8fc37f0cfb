"""Device files: figures that agree with their parts, with each other and with what vendors publish, all sourced."""

from __future__ import annotations

from pathlib import Path

import pytest

from shapes.device import list_devices, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError

ALL = list_devices()

#: Dense tensor-core TFLOPS (fp16, or bf16 where there is no fp16 figure) as the vendors' sheets print them,
#: with fp32 accumulation: independent of the clocks and rates in the device files.
PUBLISHED_TFLOPS = {
    "v100-sxm": 125,
    "v100-sxm-16": 125,
    "v100-pcie": 112,
    "v100-pcie-16": 112,
    "t4": 65,
    "a10": 125,
    "a30": 165,
    "a40": 149.7,
    "a100-sxm": 312,
    "a100-sxm-40": 312,
    "a100-pcie": 312,
    "a100-pcie-40": 312,
    "rtx-3090": 71,
    "rtx-4090": 165.2,
    "rtx-5090": 209.5,
    "rtx-pro-6000": 503.8,
    "rtx-pro-6000-server": 467.8,
    "l4": 242 / 2,
    "l40s": 362.05,
    "h100-sxm": 1979 / 2,
    "h100-sxm-96": 1979 / 2,
    "h800": 1979 / 2,
    "h100-pcie": 1513 / 2,
    "h100-nvl": 1671 / 2,
    "h20": 148,
    "h200": 1979 / 2,
    "h200-nvl": 1671 / 2,
    "gh200": 1979 / 2,
    "b200": 4500 / 2,
    "b300": 4500 / 2,
    "gb200": 5000 / 2,
    "gb300": 5000 / 2,
    "mi250x": 383 / 2,
    "mi300x": 1307.4,
    "mi308x": 344.1,
    "mi325x": 1307.4,
    "mi350x": 2306.9,
    "mi355x": 2516.6,
    "mi455x": 5033.2,
    "b60": 197 / 2,
    "gaudi2": 432,
    "gaudi3": 1678,
}


@pytest.mark.parametrize("name", ALL)
def test_peak_is_clock_times_units_times_flops_per_clock(name: str) -> None:
    device = load_device(name)
    compute = device.compute
    for dtype, per_clock in compute.flops_per_clock_per_unit.items():
        clock_mhz = compute.clock_mhz_of.get(dtype, compute.clock_mhz)
        assert clock_mhz is not None
        parts = clock_mhz * 1e6 * compute.units * per_clock
        assert parts == pytest.approx(device.peak_flops[dtype], rel=0.02), dtype


@pytest.mark.parametrize(
    ("name", "clock_mhz", "fma_per_clock_per_core", "cores", "tflops"),
    [
        ("h100-sxm", 1830, 512, 528, 989.4),
        ("a100-sxm", 1410, 256, 432, 311.9),
        ("mi300x", 2100, 256, 1216, 1307.4),
        ("mi355x", 2400, 512, 1024, 2516.6),
        ("gaudi2", 1650, 65536, 2, 432.5),
    ],
)
def test_the_books_worked_peaks_are_reproduced(
    name: str, clock_mhz: int, fma_per_clock_per_core: int, cores: int, tflops: float
) -> None:
    # clock x multiply-adds a clock and core x 2 FLOPs x cores, as the Machine Learning Engineering book writes it out.
    assert clock_mhz * 1e6 * fma_per_clock_per_core * 2 * cores == pytest.approx(tflops * 1e12, rel=1e-3)
    assert load_device(name).peak("bf16") == pytest.approx(tflops * 1e12, rel=1e-3)


def test_the_published_table_names_every_device() -> None:
    assert set(PUBLISHED_TFLOPS) == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_peak_is_the_vendors_dense_figure(name: str) -> None:
    device = load_device(name)
    peak = device.peak_flops.get("fp16", device.peak_flops.get("bf16"))
    assert peak == pytest.approx(PUBLISHED_TFLOPS[name] * 1e12, rel=0.015)


#: Peak over bf16's (or fp16's) that hardware without sparsity has: a sparse figure would show as twice one of these.
PLAUSIBLE_RATIOS = {
    "fp8": {2.0, 1.0, 4.0},  # 1: Gaudi 3's engines run both at one rate; 4: gfx1250's, 16 cycles of bf16 in 4
    "int8": {2.0, 4.0, 1.0},  # 4: GeForce, where bf16 with fp32 accumulation runs at half rate; 1: MI250X
    "tf32": {0.5},
}


@pytest.mark.parametrize("name", ALL)
def test_no_sparse_figure_is_taken_for_dense(name: str) -> None:
    device = load_device(name)
    half = device.peak_flops.get("fp16", device.peak_flops.get("bf16"))
    assert half is not None
    for dtype, ratios in PLAUSIBLE_RATIOS.items():
        if dtype == "int8" and device.compute_capability == "10.3":
            continue  # Blackwell Ultra cut int8 down; its own test is below
        if dtype in device.peak_flops:
            ratio = device.peak_flops[dtype] / half
            assert any(ratio == pytest.approx(known, rel=0.03) for known in ratios), (dtype, ratio)


def test_blackwell_ultra_gave_up_int8_and_fp64() -> None:
    for name, plain in (("b300", "b200"), ("gb300", "gb200")):
        for dtype in ("int8", "fp64"):
            assert load_device(name).peak(dtype) < 0.05 * load_device(plain).peak(dtype)


@pytest.mark.parametrize("name", ALL)
def test_bf16_and_fp16_run_at_one_rate_where_both_exist(name: str) -> None:
    peaks = load_device(name).peak_flops
    if "bf16" in peaks and "fp16" in peaks:
        assert peaks["bf16"] == peaks["fp16"]


@pytest.mark.parametrize(
    ("names", "dtypes"),
    [
        (("v100-sxm", "v100-sxm-16", "v100-pcie", "v100-pcie-16"), ("bf16", "tf32", "fp8", "int8")),
        (("t4",), ("bf16", "tf32", "fp8")),
        (("a100-sxm", "a100-pcie", "a10", "a30", "a40", "rtx-3090"), ("fp8",)),
        (("mi250x", "mi355x"), ("tf32",)),
        (("mi250x",), ("fp8",)),
    ],
)
def test_a_dtype_without_matrix_hardware_is_absent(names: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    for name in names:
        for dtype in dtypes:
            assert not load_device(name).has_matrix_units(dtype)
            with pytest.raises(InputError, match=rf"dtype = '{dtype}': {name} has fp64, fp32"):
                load_device(name).peak(dtype)


def test_fp32_has_a_peak_but_no_tensor_cores_on_nvidia() -> None:
    for name in ALL:
        device = load_device(name)
        if device.vendor == "nvidia":
            assert "fp32" in device.peak_flops
            assert not device.has_matrix_units("fp32")


@pytest.mark.parametrize("name", ALL)
def test_capacity_and_bandwidth_are_in_the_range_of_accelerators(name: str) -> None:
    # A factor of 8 or 1000 (bits for bytes, GB for GiB times two, MB for bytes) falls out of these.
    memory = load_device(name).memory
    assert 8 * 2**30 < memory.bytes <= 432 * 2**30
    assert 0.3e12 <= memory.bandwidth_bytes_per_s <= 23.3e12
    assert 4 * 2**20 <= memory.l2_bytes <= 192 * 2**20
    assert memory.last_level_cache_bytes == max(memory.l2_bytes, memory.l3_bytes or 0)


@pytest.mark.parametrize("name", ALL)
def test_maximum_achievable_matmul_is_below_the_peak(name: str) -> None:
    device = load_device(name)
    for dtype, flops in device.mamf_flops.items():
        assert 0.5 * device.peak(dtype) < flops < device.peak(dtype)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("a100-sxm", "bf16", 271.2),
        ("a100-pcie", "bf16", 252.9),
        ("h100-sxm", "bf16", 794.5),
        ("h200", "bf16", 794.5),
        ("gh200", "bf16", 828.6),
        ("b200", "bf16", 1745),
        ("b300", "bf16", 1769),
        ("mi300x", "bf16", 668.4),
        ("mi325x", "bf16", 784.9),
        ("mi355x", "bf16", 1565),
        ("gaudi2", "bf16", 418.7),
        ("gaudi3", "bf16", 1243),
        ("h200", "fp8", 1453),
        ("h100-sxm", "fp8", 1403),
        ("b200", "fp8", 3433),
    ],
)
def test_published_achievable_figures_are_carried(name: str, dtype: str, tflops: float) -> None:
    assert load_device(name).mamf_flops[dtype] == tflops * 1e12


def test_spec_figures_agree_with_aiconfigurators() -> None:
    core = pytest.importorskip("aiconfigurator_core", reason="the fit extra is not installed")
    yaml = pytest.importorskip("yaml")
    ours = {
        "a100_sxm": "a100-sxm",
        "a100_pcie": "a100-pcie",
        "a30": "a30",
        "l4": "l4",
        "l40s": "l40s",
        "h100_sxm": "h100-sxm",
        "h100_pcie": "h100-pcie",
        "h200_sxm": "h200",
        "b200_sxm": "b200",
        "b300_sxm": "b300",
        "gb200": "gb200",
        "gb300": "gb300",
        "rtx_pro_6000_server": "rtx-pro-6000-server",
    }
    for theirs, name in ours.items():
        gpu = yaml.safe_load((Path(core.__file__).parent / "systems" / f"{theirs}.yaml").read_text())["gpu"]
        device = load_device(name)
        assert device.peak("bf16") == pytest.approx(gpu["bfloat16_tc_flops"], rel=0.01), name
        assert device.memory.bandwidth_bytes_per_s == pytest.approx(gpu["mem_bw"], rel=0.02), name
        # They take 141 GiB for the H200's 141 GB, and 24 GiB where the driver shows 22.5 (ECC).
        assert device.memory.bytes == pytest.approx(gpu["mem_capacity"], rel=0.07), name
        assert device.power_w == gpu["power"], name
        assert device.compute_capability == f"{gpu['sm_version'] / 10:.1f}", name


@pytest.mark.parametrize(
    ("names", "elements"),
    [
        (("v100-sxm", "t4"), {"fp16": 8}),
        (("t4",), {"int8": 16}),
        (("a100-sxm",), {"fp64": 16, "tf32": 32, "bf16": 64, "fp16": 64, "int8": 128}),
        (("h100-sxm", "h200", "b200"), {"fp64": 16, "tf32": 32, "bf16": 64, "fp16": 64, "fp8": 128, "int8": 128}),
    ],
)
def test_alignment_is_16_bytes_before_a100_and_128_bytes_after(
    names: tuple[str, ...], elements: dict[str, int]
) -> None:
    for name in names:
        for dtype, expected in elements.items():
            assert load_device(name).alignment_elements(dtype) == expected


@pytest.mark.parametrize("name", ALL)
def test_every_dtype_with_matrix_units_has_an_alignment_of_whole_elements(name: str) -> None:
    device = load_device(name)
    for dtype in device.peak_flops:
        assert (dtype in device.alignment_bytes) == device.has_matrix_units(dtype)
        assert device.alignment_elements(dtype) * BYTES[dtype] == device.alignment_bytes.get(dtype, BYTES[dtype])


def test_a_dtype_without_matrix_units_asks_for_no_alignment() -> None:
    assert load_device("h100-sxm").alignment_elements("fp32") == 1
    assert load_device("v100-sxm").alignment_elements("bf16") == 1


@pytest.mark.parametrize("name", ALL)
def test_every_field_names_its_source(name: str) -> None:
    device = load_device(name)
    data = device.to_dict()
    ours = {"name", "aliases", "sources", "cost", "error", "provenance"}  # our own words, or sourced by [provenance]
    for table in data.keys() - ours:
        subfields = [f"{table}.{key}" for key in data[table]] if isinstance(data[table], dict) else []
        for field in subfields or ([table] if data[table] not in ({}, []) else []):
            assert field in device.sources or table in device.sources, field


@pytest.mark.parametrize("name", ALL)
def test_no_source_speaks_of_a_field_that_is_not_there(name: str) -> None:
    device = load_device(name)
    data = device.to_dict()
    for field in device.sources:
        value: object = data
        for key in field.split("."):
            assert isinstance(value, dict)
            assert key in value, field
            value = value[key]


@pytest.mark.parametrize("name", ALL)
def test_every_source_is_a_document_or_says_that_it_is_none(name: str) -> None:
    for field, document in load_device(name).sources.items():
        says_so = ("public logs", "nvidia-smi", "assumed", "inferred", "aiconfigurator", "taken as", "clock x units")
        titled = ("http", "product brief", "datasheet", "whitepaper", "white paper", "deviceQuery", "full GH100")
        assert any(word in document for word in (*says_so, *titled)), (field, document)
