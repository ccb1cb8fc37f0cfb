"""The element type has tensor cores on the device.

bf16 came with Ampere, fp8 with Ada and Hopper. A type without tensor cores runs on the plain cores, an order of
magnitude slower, or is refused by the libraries.

Bad: bf16 on V100 or T4; fp8 on A100.
Good: fp16 on V100; bf16 on A100; fp8 on H100.

Suggestion: the closest type that the device's tensor cores know. The report's times are then of that type.
"""

from __future__ import annotations

from sizer.rules.base import Answer, Context, Finding, Suggestion

CODE = "SZ119"
SLUG = "dtype-on-device"
SOURCE = "NVIDIA architecture whitepapers (Volta, Turing, Ampere, Hopper): tensor-core data types."

#: What to take instead, best first.
ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "fp8": ("bf16", "fp16"),
    "mxfp8": ("fp8", "bf16", "fp16"),
    "nvfp4": ("mxfp8", "fp8", "bf16", "fp16"),
    "int8": ("bf16", "fp16"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("bf16", "fp16", "fp32"),
    "fp64": ("fp32",),
    "fp32": ("bf16", "fp16"),
}


def check(context: Context) -> Answer:
    dtype, peaks = context.workload.dtype, context.device.peak_flops
    if dtype in peaks:
        return ()
    instead = next((other for other in ALTERNATIVES[dtype] if other in peaks), None)
    message = f"{context.device.name} has no tensor cores for {dtype}"
    suggestions = (Suggestion({"dtype": instead}),) if instead is not None and context.workload.recipe is None else ()
    return [Finding("dtype", dtype, message, suggestions, error=True)]
