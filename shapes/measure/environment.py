"""Where a measurement was made: device, driver and library versions, clocks; and what the device says of throttling."""

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, field
from functools import cache
from importlib import metadata
from statistics import median
from typing import Any

from shapes.device import Device, load_device
from shapes.errors import InputError
from shapes.frozen import Named, Values, among, frozen, given
from shapes.toml_table import DATA, content

from .backend import Backend

#: Raise when a change makes new figures differ from old ones of the same work: old results are then not reused.
HARNESS_VERSION = 1

#: How a device is loaded while it is timed, where nothing else is asked for.
BURST = "burst"


#: The values of NVML, and the packages, that are read.
TIMING = content(DATA / "timing.toml")


@frozen
class Environment:
    """The facts that must match before a stored result is reused (``identity``), and those only recorded.

    ``threads``: of the CPU when it is the device measured. ``versions``: torch, cuda, cublas, cudnn, triton …
    ``load``: "burst" (short batches, other work between) or "sustained" (seconds of the same, at the power limit).
    """

    device: str
    versions: tuple[tuple[str, str], ...]
    uuid: str | None = None
    driver: str | None = None
    threads: int | None = None
    harness: int = HARNESS_VERSION
    host: Values = field(default_factory=dict, compare=False)
    load: str = BURST

    @property
    def identity(self) -> str:
        """Hash of device name, driver, versions, threads, harness, load; another card of the same name is the same."""
        known = {"device": self.device, "driver": self.driver, "threads": self.threads, "versions": self.versions}
        if self.load != BURST:
            known["load"] = self.load
        known["harness"] = self.harness
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def cpu(self) -> bool:
        """Whether the processor is the device measured, and not only its host."""
        return self.threads is not None

    @property
    def accelerator(self) -> Device | None:
        """The shipped device of that name, if there is one; a name is never taken for a file's."""
        if self.device.lower().endswith(".toml"):
            return None
        with contextlib.suppress(InputError):
            return load_device(self.device)
        return None

    @property
    def source(self) -> str:
        """The source that a ``Timing`` states: "measured:NVIDIA H200 torch 2.11.0", or imported:… ."""
        versions = dict(self.versions)
        if not self.harness:
            return f"imported:{self.device} {versions.get('program', '?')}"
        return f"measured:{self.device} torch {versions.get('torch', '?')}"

    def to_dict(self) -> Values:
        return {**asdict(self), "versions": dict(self.versions)}

    @staticmethod
    def from_dict(data: Values) -> "Environment":
        known = among(given(data), Environment.__match_args__)
        versions = sorted((key, str(value)) for key, value in dict(data["versions"]).items())
        return Environment(**known | {"versions": tuple(versions)})


def read_environment(backend: Backend) -> "Environment":
    """The environment of ``backend``'s device in this process."""
    import torch

    versions = {"torch": str(torch.__version__)}
    host: Values = {
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "node": platform.node(),
    }
    if backend.device == "cpu":
        threads = backend.threads or torch.get_num_threads()
        return Environment(f"CPU {cpu_name()}", tuple(versions.items()), threads=threads, host=host)
    module: Any = torch.get_device_module(backend.device)
    properties = module.get_device_properties(backend.device)
    cuda = torch.version.cuda
    cudnn: Any = torch.backends.cudnn
    for label, value in (("cuda", cuda), ("hip", torch.version.hip), ("cudnn", cuda and cudnn.version())):
        if value:
            versions[label] = str(value)
    for package, name in TIMING["packages"].items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(package)
    uuid = getattr(properties, "uuid", None)
    host["multiprocessors"] = getattr(properties, "multi_processor_count", None)
    host |= {"memory_bytes": properties.total_memory, "cache_bytes": backend.cache_bytes}
    card, known = str(module.get_device_name(backend.device)), str(uuid) if uuid is not None else None
    return Environment(card, tuple(sorted(versions.items())), known, kernel_module_driver(), host=host)


@cache
def cpu_name() -> str:
    """The processor's model as Linux tells it, else what Python's platform module knows."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"


@cache
def _nvml() -> Any:
    """NVIDIA's management library, started, or None. It comes with the driver: no package is needed."""
    try:
        library = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


def kernel_module_driver(path: str = "/proc/driver/nvidia/version") -> str | None:
    """The NVIDIA driver's version as its Linux kernel module tells it, or None; needs no further package."""
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            first = lines.readline()
    except OSError:
        return None
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", first)
    return found and found.group()


def _readings(nvml: Any, uuid: str) -> Values:
    """NVML's readings of a card: a virtual or partitioned one, or an older driver's, not everything."""
    card = ctypes.c_void_p()
    # torch writes the uuid without NVML's "GPU-" in front.
    name = uuid if uuid.startswith("MIG-") else f"GPU-{uuid}"
    if nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(card)):
        return {}
    found = {}
    for key, function, *which in TIMING["nvml"]["readings"]:
        value = ctypes.c_uint64()  # 32 bits of it, but for the reasons
        if not getattr(nvml, function, lambda *_: 1)(card, *which, ctypes.byref(value)):
            found[key] = round(value.value / 1000, 1) if key.startswith("power") else value.value
    return found


def clocks(environment: "Environment") -> Values:
    """SM and memory clock (MHz), power, its limit (W), temperature (C), throttle reasons now; empty without NVML.

    ``power_capped``: 1 where the power limit alone holds the clock down, which is normal work and no throttling.
    """
    nvml = _nvml()
    found = _readings(nvml, environment.uuid) if nvml is not None and environment.uuid else {}
    if (bits := found.get("throttle")) is not None:
        named = [name for name, bit in TIMING["nvml"]["throttles"].items() if bits & bit]
        found |= {"throttle": named, "power_capped": int(bool(bits & TIMING["nvml"]["power_cap"]))}
    return found


def typical(seen: Sequence[Named]) -> Values:
    """Medians of `clocks` while a job was measured, and the throttle reasons that stayed to the end."""
    return {
        name: last if isinstance(last, list) else median(one[name] for one in seen if name in one)
        for name, last in (seen[-1] if seen else {}).items()
    }
