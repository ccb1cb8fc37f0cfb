"""`sizer devices`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sizer.cli.options import output_options, write_output

if TYPE_CHECKING:
    from shapes.device import Device

SCHEMA_VERSION = 1


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@output_options("text", "json")
def command(names: tuple[str, ...], format_: str, output: str | None) -> None:
    """List the known accelerators, or show all that is known of those named, with its sources.

    NAME is a device's name in any spelling, what torch.cuda.get_device_name says, or a path to a device file (.toml).
    """
    from shapes.device import list_devices, load_device

    devices = [load_device(name) for name in names or list_devices()]
    if format_ == "json":
        write_output(_json(devices), output)
    elif names:
        write_output("\n\n".join(map(_details, devices)), output)
    else:
        write_output(_table(devices), output)


def _json(devices: list[Device]) -> str:
    import json

    return json.dumps({"schema_version": SCHEMA_VERSION, "devices": [device.to_dict() for device in devices]}, indent=2)


def _table(devices: list[Device]) -> str:
    from tabulate import tabulate

    headers = ("device", "architecture", "units", "GiB", "TB/s", "fp16", "bf16", "fp8", "cost constants")
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
        "fp16, bf16, fp8: dense peak TFLOPS with fp32 accumulation; -: no fast path. `sizer devices NAME` shows all."
    )
    return f"{table}\n\n{legend}"


def _tflops(device: Device, dtype: str) -> str:
    return f"{device.peak_flops[dtype] / 1e12:.0f}" if dtype in device.peak_flops else "-"


def _fitted(device: Device) -> str:
    from shapes.dtypes import DTYPES

    fitted = [dtype for dtype in DTYPES if dtype in device.cost]
    return f"fitted: {', '.join(fitted)}" if fitted else "data sheet only"


def _details(device: Device) -> str:
    from tabulate import tabulate

    documents = list(dict.fromkeys(device.sources.values()))
    rows = [(key, value, _reference(device, documents, key)) for key, value in _leaves(device)]
    also = ", ".join(dict.fromkeys((*device.torch_names, *device.aliases))) or "-"
    return "\n".join(
        (
            f"{device.title} ({device.name})",
            f"also known as: {also}",
            f"cost constants: {_fitted(device)}",
            "",
            tabulate(rows, ("field", "value", "source"), disable_numparse=True, colalign=("left", "right", "left")),
            "",
            *(f"[{number}] {document}" for number, document in enumerate(documents, 1)),
        )
    )


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
