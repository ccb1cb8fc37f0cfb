"""Accelerators as text: a table of all, or all that is known of those named, with its sources."""

from __future__ import annotations

from tabulate import tabulate

from shapes.cost.constants import gemm_constants
from shapes.cost.error import expected
from shapes.cost.expected_errors import expected_errors
from shapes.device import Device
from shapes.dtypes import DTYPES
from sizer.answers.devices import Devices
from sizer.documents.units import percent_text
from sizer.render.page import Page


def render(answer: Devices, page: Page) -> str:
    return "\n\n".join(map(_details, answer.devices)) if answer.in_full else _table(answer.devices)


def _table(devices: tuple[Device, ...]) -> str:
    headers = ("device", "architecture", "units", "GiB", "TB/s", "fp16", "bf16", "fp8", "16-bit products")
    rows = [
        (
            device.name,
            device.architecture,
            device.compute.units,
            f"{device.memory.bytes / 2**30:.0f}",
            f"{device.memory.bandwidth_bytes_per_s / 1e12:.2f}",
            *(_tflops(device, dtype) for dtype in ("fp16", "bf16", "fp8")),
            _fitted(device),
        )
        for device in devices
    ]
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", *("right",) * 6, "left"))
    legend = (
        "fp16, bf16, fp8: dense peak TFLOPS with fp32 accumulation; -: no fast path. 16-bit products: what their "
        "prices rest on, mean error and 95th percentile of large ones. `sizer devices NAME` shows all."
    )
    return f"{table}\n\n{legend}"


def _tflops(device: Device, dtype: str) -> str:
    return f"{device.peak_flops[dtype] / 1e12:.0f}" if dtype in device.peak_flops else "-"


def _fitted(device: Device) -> str:
    """Tier of the large 16-bit products, whose constants, and how far off they are."""
    dtype = "bf16" if "bf16" in device.peak_flops else "fp16"
    _, origin = gemm_constants(device, dtype)
    off = expected(device, origin, "large", dtype)
    whose = "" if origin.own_device else f" from {origin.device}"
    return f"{off.tier}{whose}, +-{percent_text(off.error)}, 95% within {percent_text(off.p95)}"


def _details(device: Device) -> str:
    documents = list(dict.fromkeys(device.sources.values()))
    rows = [(key, value, _reference(device, documents, key)) for key, value in _leaves(device)]
    also = ", ".join(dict.fromkeys((*device.torch_names, *device.aliases))) or "-"
    return "\n".join(
        (
            f"{device.title} ({device.name})",
            f"also known as: {also}",
            f"16-bit products: {_fitted(device)}",
            f"fitted: {', '.join(dtype for dtype in DTYPES if dtype in device.cost) or 'nothing, data sheet only'}",
            "",
            tabulate(rows, ("field", "value", "source"), disable_numparse=True, colalign=("left", "right", "left")),
            "",
            "What predictions are off by, against single frameworks where several were timed:",
            _errors(device),
            "",
            *(f"[{number}] {document}" for number, document in enumerate(documents, 1)),
        )
    )


def _errors(device: Device) -> str:
    """Mean error and 95th percentile of each class of kernels, with what they rest on."""
    rows = [
        (
            one.kernel,
            one.dtype,
            one.regime.replace("_", "-"),
            one.expected.tier,
            f"+-{percent_text(one.expected.error)}",
            percent_text(one.expected.p95),
        )
        for one in expected_errors(device)
    ]
    headers = ("kernel", "dtype", "class", "tier", "mean error", "95% within")
    return tabulate(rows, headers, disable_numparse=True, colalign=(*("left",) * 4, "right", "right"))


def _leaves(device: Device) -> list[tuple[str, str]]:
    """Dotted field and value of everything in the file but names, sources and fitted constants."""
    skipped = {"name", "title", "aliases", "torch_names", "sources", "cost", "error", "provenance"}

    def walk(prefix: str, value: object) -> list[tuple[str, str]]:
        if isinstance(value, dict):
            return [leaf for key, item in value.items() for leaf in walk(f"{prefix}.{key}", item)]
        if isinstance(value, list):
            return [(prefix, ", ".join(map(str, value)) or "-")]
        if isinstance(value, (int, float)):
            return [(prefix, f"{value:.7g}" if value >= 1e9 else f"{value:,}")]
        return [(prefix, str(value))]

    return [leaf for key, value in device.to_dict().items() if key not in skipped for leaf in walk(key, value)]


def _reference(device: Device, documents: list[str], field: str) -> str:
    """The number of the document behind ``field``, or behind the nearest table around it."""
    while field and field not in device.sources:
        field = field.rpartition(".")[0]
    return f"[{documents.index(device.sources[field]) + 1}]" if field else ""
