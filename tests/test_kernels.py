"""Which head dimensions fused attention kernels are built for, and what runs where one refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapes.device import list_devices, load_device
from shapes.errors import InputError
from shapes.kernels import CHOICES, KERNELS, load_kernel, resolve, run_of

ARCHITECTURES = sorted({load_device(name).architecture for name in list_devices()})


@pytest.mark.parametrize(
    ("kernel", "generation", "d_qk", "d_v", "training", "runs", "computed"),
    [
        # FlashAttention 2 since April 2025 (static_switch.h): no kernels for 160 and 224 any more.
        ("fa2", "ampere", 160, 160, True, "fa2", (192, 192)),
        ("fa2", "ampere", 132, 132, True, "fa2", (192, 192)),
        ("fa2", "ampere", 64, 64, True, "fa2", (64, 64)),
        # torch carries an older copy of it, which has 160.
        ("sdpa", "ampere", 136, 136, False, "sdpa", (160, 160)),
        ("fa3", "hopper", 160, 160, True, "fa3", (192, 192)),
        ("fa3", "hopper", 32, 32, True, "fa3", (64, 64)),
        # Forward alone takes DeepSeek's pair as it is; the backward pads both to the larger.
        ("fa3", "hopper", 192, 128, False, "fa3", (192, 128)),
        ("fa3", "hopper", 192, 128, True, "fa3", (192, 192)),
        ("fa4", "blackwell", 192, 128, True, "fa4", (192, 128)),
        ("fa4", "blackwell", 192, 192, True, "sdpa", (192, 192)),
        ("fa4", "blackwell", 224, 224, True, "sdpa", (256, 256)),
        ("cudnn", "blackwell", 192, 192, True, "sdpa", (192, 192)),
        ("cudnn", "blackwell", 192, 128, True, "cudnn", (192, 128)),
        # Without a backward cuDNN takes it, which torch's dispatcher tries first there.
        ("flashinfer", "blackwell", 192, 192, False, "cudnn", (192, 192)),
        ("sdpa", "blackwell", 128, 128, True, "cudnn", (128, 128)),
        ("sdpa", "blackwell", 192, 192, True, "sdpa", (192, 192)),
        # Beyond 256 torch's memory-efficient kernel has no largest one (sdp_utils.cpp).
        ("fa2", "ampere", 512, 512, False, "mem_efficient", (512, 512)),
        ("sdpa", "hopper", 512, 512, True, "mem_efficient", (512, 512)),
        ("mem_efficient", "turing", 516, 516, False, "eager", (516, 516)),
        # AOTriton has its own list, Gaudi none that is public: neither gets CUDA's.
        ("auto", "cdna3", 80, 80, True, "sdpa", (80, 80)),
        ("auto", "cdna3", 72, 72, True, "sdpa", (80, 80)),
        # Composable Kernel has fewer for the backward pass.
        ("fa2", "cdna3", 80, 80, False, "fa2", (80, 80)),
        ("fa2", "cdna3", 80, 80, True, "fa2", (128, 128)),
        ("auto", "gaudi3", 132, 132, True, "fused_sdpa", (132, 132)),
    ],
)
def test_a_head_dimension_runs_in_what_the_kernels_own_checks_say(
    kernel: str, generation: str, d_qk: int, d_v: int, training: bool, runs: str, computed: tuple[int, int]
) -> None:
    ran = run_of(kernel, generation, "bf16", d_qk, d_v, training)
    assert (ran.kernel, (ran.d_qk, ran.d_v)) == (runs, computed)


def test_a_refusal_says_who_refused_and_why() -> None:
    ran = run_of("fa4", "blackwell", "bf16", 192, 192, True)
    assert ran.refused == (
        ("fa4", "takes head dimensions up to 128 or (192, 128), (256, 256), (64, 512), (512, 512)"),
        # torch's dispatcher, which takes over, tries cuDNN before its own.
        ("cudnn", "takes head dimensions up to 128 or (192, 128), (256, 256) in training"),
    )


def test_a_dimension_off_the_multiple_is_copied_where_the_wrapper_pads_and_refused_where_it_does_not() -> None:
    padded = run_of("fa2", "ampere", "fp16", 125, 125, True)
    assert (padded.kernel, padded.copied, padded.d_qk) == ("fa2", 128, 128)
    refused = run_of("fa3", "hopper", "bf16", 125, 125, True)
    assert (refused.kernel, refused.refused[0]) == ("sdpa", ("fa3", "takes multiples of 8"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("training", [True, False])
def test_every_shipped_generation_has_a_usual_kernel_that_runs_there(architecture: str, training: bool) -> None:
    name = resolve("auto", architecture, training)
    assert name == resolve("flash", architecture, training)
    assert load_kernel(name).runs_on(architecture)


def test_a_kernel_asked_for_where_it_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InputError, match="attention = 'fa3': expected a kernel that runs on ampere: fa2, cudnn"):
        resolve("fa3", "ampere", True)
    with pytest.raises(InputError, match="expected one of auto, flash, fa2"):
        resolve("fa5", "ampere", True)


def test_a_users_own_generation_is_not_refused() -> None:
    ran = run_of("auto", "abacus", "bf16", 100, 100)
    assert (ran.kernel, ran.d_qk, ran.verified) == ("sdpa", 100, False)


@pytest.mark.parametrize("name", KERNELS)
def test_every_file_names_its_kernel_and_a_source_for_every_clause(name: str) -> None:
    kernel = load_kernel(name)
    assert kernel.name == name
    assert kernel.takes
    assert kernel.fallback is None or kernel.fallback in KERNELS
    assert kernel.costs in KERNELS
    assert set(kernel.first.values()) <= set(KERNELS)
    for clause in kernel.takes:
        assert clause.source
        assert list(clause.built) == sorted(clause.built)
        assert set(clause.generations) <= set(ARCHITECTURES)


@given(
    kernel=st.sampled_from(CHOICES),
    architecture=st.sampled_from(ARCHITECTURES),
    training=st.booleans(),
    dtype=st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    d_qk=st.integers(1, 600),
    d_v=st.integers(1, 600),
)
def test_what_runs_computes_at_least_what_was_asked(
    kernel: str, architecture: str, training: bool, dtype: str, d_qk: int, d_v: int
) -> None:
    try:
        ran = run_of(kernel, architecture, dtype, d_qk, d_v, training)
    except InputError:
        assert not load_kernel(kernel).runs_on(architecture)
        return
    assert ran.d_qk >= d_qk
    assert ran.d_v >= d_v
    assert ran.copied is None or ran.copied >= max(d_qk, d_v)
    assert ran.kernel not in {name for name, _ in ran.refused}
