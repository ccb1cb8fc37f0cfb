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

            def capture_begin(self) -> None:
                assert cuda.stream_now is not cuda.default_stream, (
                    "CUDA graphs must be captured on a non-default stream"
                )
                assert cuda.sync_debug == "error"
                cuda.capturing, self.begun_s = cuda.stream_now, cuda.clock_s

            def capture_end(self) -> None:
                assert cuda.stream_now is cuda.capturing, "Capture must end on the same stream it began on"
                cuda.capturing = None
                self.seconds, cuda.clock_s = cuda.clock_s - self.begun_s, self.begun_s
                if not cuda.capturable:
                    raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

            def replay(self) -> None:
                cuda.replays += 1
                cuda.clock_s += self.seconds

        class Stream:
            def wait_stream(self, other: Any) -> None:
                assert isinstance(other, Stream)

        self.Event, self.CUDAGraph, self.Stream = Event, CUDAGraph, Stream
        self.default_stream = self.stream_now = Stream()
        self.capturing: Any = None
        self.sync_debug = "default"

    def lose(self, why: str = "CUDA error: an illegal memory access was encountered") -> None:
        self.lost = why
        raise RuntimeError(why)

    def synchronize(self, *_: Any) -> None:
        if self.lost:
            raise RuntimeError(self.lost)

    def set_sync_debug_mode(self, mode: str) -> None:
        self.sync_debug = mode

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    def current_stream(self) -> Any:
        return self.stream_now

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
    """NVML's library as ctypes gives it: ``throttle``, the reasons of the readings to come, 0 when they are used up.

    A function that is ``missing`` says "not supported", as of a virtual card.
    """

    def __init__(self) -> None:
        self.throttle: list[int] = []
        self.missing: set[str] = set()
        self.readings = 0

    def _say(self, value: int, out: Any) -> int:
        out._obj.value = value
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, card: Any) -> int:  # noqa: N802  # NVML's own names
        if name != b"GPU-shim":
            return 6  # NVML_ERROR_NOT_FOUND
        self.readings += 1
        self.reasons = self.throttle.pop(0) if self.throttle else 0
        return self._say(1, card)

    def nvmlDeviceGetCurrentClocksEventReasons(self, card: Any, out: Any) -> int:  # noqa: N802
        return self._say(self.reasons, out)

    def nvmlDeviceGetClockInfo(self, card: Any, which: int, out: Any) -> int:  # noqa: N802
        return self._say({1: 1980, 2: 2619}[which], out)

    def nvmlDeviceGetPowerUsage(self, card: Any, out: Any) -> int:  # noqa: N802
        return 3 if "power" in self.missing else self._say(650_000, out)

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Any, out: Any) -> int:  # noqa: N802
        return self._say(700_000, out)

    def nvmlDeviceGetTemperature(self, card: Any, sensor: int, out: Any) -> int:  # noqa: N802
        return self._say({0: 61}[sensor], out)


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
        # What bitsandbytes looks for as it is imported.
        held.enter_context(patch.object(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, create=True))
        held.enter_context(patch.object(torch, "Generator", _Generator))
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


class _Generator(torch.Generator):
    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls)


def _real(options: dict[str, Any]) -> Any:
    device = options.get("device")
    return "cpu" if str(device).startswith("cuda") else device
