"""What the prices of a device are off by, kernel class by kernel class: every error that a user meets in one table."""

from __future__ import annotations

from collections.abc import Iterator

from shapes.cost.alignment import CLASSES
from shapes.cost.constants import Origin, alignment_constants, gemm_constants
from shapes.cost.error import IN_CELL, MISALIGNED_AS, Expected, expected
from shapes.cost.fused_attention import PHASES, constants_of
from shapes.device import Device
from shapes.frozen import frozen
from shapes.kernels import KERNELS, load_kernel
from shapes.recipes import RECIPES, load_recipe


@frozen
class ClassError:
    """One class of kernels; ``kernel``: "product", a fused attention's name, "elementwise" or "collective"."""

    kernel: str
    dtype: str
    regime: str
    expected: Expected


def expected_errors(device: Device) -> tuple[ClassError, ...]:
    """Products by element type, size and alignment, grouped ones, attention by kernel and phase, what only moves."""
    return (*_products(device), *_attention(device), *_moved(device))


def _products(device: Device) -> Iterator[ClassError]:
    for dtype in device.peak_flops:
        for recipe in (None, *(name for name in RECIPES if load_recipe(name).dtype == dtype)):
            constants, origin = gemm_constants(device, dtype, recipe)
            if recipe is not None and origin.table != f"{dtype}_{recipe}":
                continue
            served = alignment_constants(device, dtype).served if recipe is None else (False,) * len(CLASSES)
            off = (MISALIGNED_AS + name for name, own in zip(CLASSES, served, strict=True) if own)
            cells = ("large" + IN_CELL, "small" + IN_CELL) if constants.cells is not None else ()
            for regime in ("large", "small", *cells, *off):
                yield _error("product", device, origin, regime, dtype, recipe)
    yield _error("product", device, gemm_constants(device, _sixteen_bits(device))[1], "grouped", _sixteen_bits(device))


def _error(
    kernel: str, device: Device, origin: Origin, regime: str, dtype: str, recipe: str | None = None
) -> ClassError:
    named = f"{dtype} {recipe}" if recipe else dtype
    return ClassError(kernel, named, regime, expected(device, origin, regime, dtype))


def _attention(device: Device) -> Iterator[ClassError]:
    dtype = _sixteen_bits(device)
    for kernel in KERNELS:
        if kernel != "eager" and load_kernel(kernel).runs_on(device.architecture):
            c = constants_of(kernel, device, dtype)
            for phase, own, error, p95, tier in zip(PHASES, c.phases, c.errors, c.p95s, c.tiers, strict=True):
                if phase != "training":
                    yield ClassError(kernel, dtype, phase, Expected(error, p95, tier))
                elif own != c.forward:
                    yield ClassError(kernel, dtype, "forward, training", Expected(error, p95, tier))


def _moved(device: Device) -> Iterator[ClassError]:
    dtype = _sixteen_bits(device)
    _, origin = gemm_constants(device, dtype)
    for kernel, regime in (("elementwise", "memory_bound"), ("collective", "collective")):
        yield _error(kernel, device, origin, regime, dtype)


def _sixteen_bits(device: Device) -> str:
    return "bf16" if "bf16" in device.peak_flops else "fp16"
