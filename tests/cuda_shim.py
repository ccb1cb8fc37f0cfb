"""torch.cuda without a GPU: tensors lie on the CPU, time is a clock of the device's own that operators move.

``installed()`` puts it in place: streams, events, graphs, properties, memory. What an operator takes is a formula of
its FLOPs and bytes, so that figures are the same each time. ``Cuda.fault`` is asked of each operator's arguments: it
may raise, as a kernel that ends the context does (``lose``), or hang. `SIZER_SHIM=1 python -m pytest -m gpu` runs
the tests of a GPU on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from shapes.measure import environment, in_process, timer
from shapes.measure.jobs import Job
from shapes.operators.types import Gemm

FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 5e13, 3e11, 20e-6
TOTAL = 64 * 2**30


class Cuda:
    """The module ``torch.cuda`` as the harness uses it."""

    def __init__(self, fault: Callable[[Any, tuple[Any, ...]], None] | None = None, name: str = "Shim 1") -> None:
        self.name = name
        self.clock_s, self.fault, self.lost = 0.0, fault, ""
        self.allocated = self.peak = self.slept = self.replays = 0
        self.capturable, self.l2_bytes = True, 2**12  # a few sets of inputs exceed it
        self.nvml = Nvml()
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_s = cuda.clock_s

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * (end.at_s - self.at_s)

        class CUDAGraph:
            seconds = 0.0

            def replay(self) -> None:
                cuda.replays += 1
                cuda.clock_s += self.seconds

        class Stream:
            def wait_stream(self, other: Any) -> None:
                assert isinstance(other, Stream)

        self.Event, self.CUDAGraph, self.Stream = Event, CUDAGraph, Stream

    def lose(self, why: str = "CUDA error: an illegal memory access was encountered") -> None:
        self.lost = why
        raise RuntimeError(why)

    def synchronize(self, *_: Any) -> None:
        if self.lost:
            raise RuntimeError(self.lost)

    @contextlib.contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        if not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing")
        before = self.clock_s
        yield
        graph.seconds, self.clock_s = self.clock_s - before, before

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext()

    def current_stream(self) -> Any:
        return self.Stream()

    def _sleep(self, cycles: int) -> None:
        self.slept += cycles

    def mem_get_info(self) -> tuple[int, int]:
        return 2**22, TOTAL  # so little that a few sets of inputs are made

    def memory_reserved(self) -> int:
        return self.allocated

    def memory_allocated(self) -> int:
        return self.allocated

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    def empty_cache(self) -> None:
        pass

    def set_device(self, device: str) -> None:
        assert str(device).startswith("cuda")

    def current_device(self) -> int:
        return 0

    def get_device_name(self, *_: Any) -> str:
        return self.name

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        return 9, 0

    def get_device_properties(self, *_: Any) -> Any:
        return SimpleNamespace(L2_cache_size=self.l2_bytes, uuid="shim", multi_processor_count=132, total_memory=TOTAL)


class Nvml:
    """The module ``pynvml``: ``throttle``, the reasons of the readings to come, 0 when they are used up.

    A reading that fails (``missing``, by NVML's name) is what a virtual card gives.
    """

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        self.throttle: list[int] = []
        self.missing: set[str] = set()
        self.readings = 0

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:  # noqa: N802  # NVML's own names
        if name != "GPU-shim":
            raise self.NVMLError("not found")
        self.readings += 1
        self.reasons = self.throttle.pop(0) if self.throttle else 0
        return name

    def nvmlDeviceGetCurrentClocksEventReasons(self, card: str) -> int:  # noqa: N802
        return self.reasons

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons  # noqa: N815

    def nvmlDeviceGetClockInfo(self, card: str, which: int) -> int:  # noqa: N802
        return {1: 1980, 2: 2619}[which]

    def nvmlDeviceGetPowerUsage(self, card: str) -> int:  # noqa: N802
        if "power" in self.missing:
            raise self.NVMLError("not supported")
        return 650_000

    def nvmlDeviceGetEnforcedPowerLimit(self, card: str) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetTemperature(self, card: str, sensor: int) -> int:  # noqa: N802
        return 61


class _Clock(TorchDispatchMode):
    def __init__(self, cuda: Cuda) -> None:
        super().__init__()
        self._cuda = cuda

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler for the first operator, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cuda = self._cuda
        if cuda.fault is not None:
            cuda.fault(func, args)
        out = func(*args, **(kwargs or {}))
        made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        moved = [one.nbytes for one in (*tree_leaves(args), *made) if isinstance(one, torch.Tensor)]
        counted = flop_registry.get(func._overloadpacket)
        flops = counted(*args, **(kwargs or {}), out_val=out) if counted is not None else 0
        if not func.is_view:
            cuda.clock_s += LAUNCH_S + flops / FLOPS_PER_S + sum(moved) / BYTES_PER_S
            cuda.peak += sum(one.nbytes for one in made)
        return out


@contextlib.contextmanager
def installed(fault: Callable[[Any, tuple[Any, ...]], None] | None = None, name: str = "Shim 1") -> Iterator[Cuda]:
    """torch sees one accelerator, "cuda:0", which is this."""
    # Torch lists the functions that a device's context redirects once, when it first needs them. Were that list made of
    # what is patched below, torch.empty under "meta" would take real memory ever after.
    _device_constructors()
    cuda = Cuda(fault, name)
    empty, module = torch.empty, torch.get_device_module
    there = {
        "is_available": lambda: True,
        "current_accelerator": lambda *_: torch.device("cuda"),
        "device_count": lambda: 1,
        "synchronize": cuda.synchronize,
    }
    with contextlib.ExitStack() as held:
        for name, value in there.items():
            held.enter_context(patch.object(torch.accelerator, name, value))
        held.enter_context(patch.object(torch.cuda, "is_available", lambda: True))
        held.enter_context(patch.object(torch.cuda, "get_device_capability", cuda.get_device_capability))
        held.enter_context(patch.object(torch.version, "cuda", "12.8"))
        made = torch.Generator
        held.enter_context(patch.object(torch, "Generator", lambda **_: made()))
        held.enter_context(patch.object(timer, "GRAPH_S", 2e-4))  # what a graph holds is run once
        held.enter_context(patch.object(environment, "_nvml", lambda: cuda.nvml))
        held.enter_context(patch.object(in_process, "COOL_S", 0.0))
        control = Job(Gemm("control", "forward", 128, 128, 128))
        held.enter_context(patch.object(in_process, "control_of", lambda *, cpu: control))
        held.enter_context(patch.object(torch, "empty", lambda *a, **k: empty(*a, **{**k, "device": _real(k)})))
        held.enter_context(
            patch.object(torch, "get_device_module", lambda d=None: cuda if str(d).startswith("cuda") else module(d))
        )
        held.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # threads wait for each other where the machine is busy
        held.enter_context(_Clock(cuda))
        yield cuda


def _real(options: dict[str, Any]) -> Any:
    device = options.get("device")
    return "cpu" if str(device).startswith("cuda") else device
