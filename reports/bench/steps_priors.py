"""Which constants of shapes/data/stacks are fitted, and what is thought of each before the rows: steps_fit.py."""

from __future__ import annotations

#: Megatron-Core's constants: (dotted key, centre, spread in logarithms). Of what recipes overlap little can be told.
CORE = (
    ("kernels.gemm", 1.0, 0.1),
    ("by_dtype.fp8", 1.0, 0.3),
    ("by_dtype.mxfp8", 1.0, 0.3),
    ("by_dtype.nvfp4", 1.0, 0.3),
    ("by_device.b300", 1.0, 0.15),
    ("by_device.gb200", 1.0, 0.15),
    ("by_device.gb300", 1.0, 0.15),
    ("kernels.grouped", 1.2, 0.3),
    ("attention.blackwell.64", 1.5, 0.25),
    ("attention.blackwell.128", 1.0, 0.15),
    ("attention.blackwell.192", 1.0, 0.3),
    ("attention.hopper.128", 1.0, 0.15),
    ("attention.hopper.192", 1.0, 0.3),
    ("kernels.elementwise", 2.0, 0.4),
    ("kernels.quantise", 1.2, 0.3),
    ("kernels.moe", 2.0, 0.5),
    ("host.launch_s", 4e-6, 0.5),
    ("host.kernels.moe", 100.0, 1.0),
    ("host.kernels.grouped", 4.0, 1.0),
    ("communication.tensor.hidden", 0.3, 0.4),
    ("communication.tensor.contention", 0.2, 0.7),
    ("communication.expert.hidden", 0.2, 0.2),
    ("communication.expert.speed", 0.8, 0.15),
    ("communication.expert.overlapped", 0.8, 0.2),
    ("communication.data.hidden", 0.6, 0.3),
    ("communication.data.speed", 0.7, 0.3),
    ("optimizer.fixed_s", 2e-2, 0.7),
)

#: Constants whose prior's centre is the ratio of two others: the B300 is to the B200 what the GB300 is to the GB200,
#: the same silicon at more power. Its three rows are mixtures of experts over several nodes and tell more of networks.
TIED = {"by_device.b300": ("by_device.gb300", "by_device.gb200")}

#: Releases of Megatron Bridge against the newest in low precision, which the stack means. Its runs in bf16 are
#: slower by their experts; GPT-OSS alone has heads of 64 on Blackwell, all in bf16, and its attention's prior is narrow
#: because rows of one model cannot tell the two apart.
RELEASES = tuple(
    (f"release.{release}.{what}", 1.0, spread)
    for release in ("bf16", "25", "26-02")
    for what, spread in (("kernels", 0.05), ("experts", 0.3))
)

#: Stack -> constants fitted, each (dotted key, centre, spread in logarithms).
FITTED: dict[str, tuple[tuple[str, float, float], ...]] = {
    "megatron-2021": (
        ("kernels.gemm", 1.0, 0.1),
        ("kernels.bmm", 1.5, 0.3),
        ("kernels.elementwise", 2.0, 0.15),
        ("kernels.softmax", 2.0, 0.4),
        ("kernels.cross_entropy", 3.0, 0.5),
        ("kernels.embedding", 2.0, 0.5),
        ("host.launch_s", 5e-5, 0.7),
        ("host.collective_s", 4e-5, 0.7),
        ("host.softmax_fallback_s", 1e-3, 0.7),
        ("host.backward", 0.7, 0.4),
        ("host.kernels.elementwise", 2.0, 0.3),
        ("host.kernels.cross_entropy", 13.0, 0.7),
        ("host.kernels.embedding", 10.0, 0.7),
        ("communication.tensor.speed", 0.8, 0.3),
        ("communication.tensor.hidden", 0.1, 0.7),
        ("communication.data.speed", 0.8, 0.3),
        ("communication.pipeline.speed", 0.8, 0.5),
        ("optimizer.update", 1.0, 0.5),
        ("optimizer.fixed_s", 5e-3, 0.7),
        ("release.2021.kernels", 1.0, 0.1),
        ("release.2022.kernels", 1.0, 0.1),
        ("release.mt-nlg.kernels", 1.0, 0.1),
    ),
    "pytorch-fsdp-2023": (
        ("kernels.gemm", 1.0, 0.1),
        ("by_dtype.fp8", 1.0, 0.3),
        ("attention.ampere.64", 1.0, 0.4),
        ("attention.ampere.128", 1.0, 0.4),
        ("attention.hopper.128", 1.0, 0.4),
        ("kernels.elementwise", 2.0, 0.4),
        ("host.launch_s", 8e-6, 0.5),
        ("communication.data.contention", 0.5, 0.5),
        ("communication.data.hidden", 0.7, 0.3),
        ("communication.data.speed", 0.8, 0.3),
        ("optimizer.update", 1.0, 0.5),
        ("optimizer.fixed_s", 2e-2, 0.7),
    ),
    "megatron-core-te": (*CORE, *RELEASES),
    "megatron-bridge-2026": CORE,
}
