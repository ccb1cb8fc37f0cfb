"""Devices as the timer sees them: synchronise, time a batch of calls, flush the caches, capture a graph.

One class for every GPU that torch knows (CUDA, ROCm, XPU) through ``torch.accelerator`` and the device's own module,
and one for the CPU; tests put a third in their place with a clock of its own. torch is imported inside functions.
"""

import contextlib
import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from shapes.errors import InputError, refuse
from shapes.program import install

from .stats import Array

Call = Callable[[], object]
Calls = Sequence[Call]

#: A batch is queued behind a wait on the device of this many times what queueing it took before, at least and at most
#: so many seconds: otherwise the device waits for the host inside the first calls' times.
LEAD_FACTOR, LEAST_LEAD_S, MOST_LEAD_S = 2.0, 20e-6, 5e-3
#: ``torch.cuda._sleep`` counts clock cycles; at a lower clock than this the wait is a little longer.
WAIT_HZ = 2e9

#: Calls that the profiler sees of a kernel.
PROFILED = 8

#: Bytes taken for a device's last-level cache where neither torch nor the device's file tells it.
UNKNOWN_CACHE_BYTES = 128 * 2**20


def open_backend(device: str | None) -> "Backend":
    """The backend of ``device`` ("cpu", "cuda", "cuda:1" …; None: the accelerator at hand, else the CPU).

    InputError without torch, with one before 2.6, or where torch does not see the device.
    """
    try:
        import torch

        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    except (ImportError, AttributeError):
        raise InputError(f"expected torch 2.6 or later to be installed: {install('torch')}", "measuring") from None
    try:
        wanted = torch.device(device or accelerator or "cpu")
    except (RuntimeError, ValueError):
        raise InputError("expected a torch device such as cpu, cuda or cuda:1", "device", device) from None
    if wanted.type == "cpu":
        return Backend()
    many = torch.accelerator.device_count() if wanted.type == getattr(accelerator, "type", None) else 0
    refuse(
        (wanted.index or 0) >= many,
        f"expected cpu, or one of the {many} of this type that torch sees",
        "device",
        device,
    )
    index = wanted.index if wanted.index is not None else torch.get_device_module(wanted).current_device()
    return AcceleratorBackend(f"{wanted.type}:{index}")


class Backend:
    """A device as timing needs it: the processor this runs on, timed by ``time.perf_counter``, or an accelerator.

    ``device``: torch's name of it, "cuda:0", "cpu"; ``threads``: of the processor (None: torch's).
    Times are seconds, one a call.
    """

    device = "cpu"
    timed_by = "host clock"
    threads: int | None = None

    def __init__(self) -> None:
        self.cache_bytes = cpu_cache_bytes()

    @property
    def free_bytes(self) -> int:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))

    def now(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        pass  # calls on the CPU return when they are done

    def time_batch(self, calls: Calls, flush: Call | None = None) -> Array:
        seconds = np.empty(len(calls))
        for index, call in enumerate(calls):
            if flush:
                flush()
            start = self.now()
            call()
            seconds[index] = self.now() - start
        return seconds

    def flusher(self) -> Call:
        buffer = np.zeros(2 * self.cache_bytes // 8)

        def flush() -> None:
            buffer.fill(1.0)

        return flush

    def capture(self, calls: Calls) -> Call | None:
        return None

    def peak_bytes(self, call: Call) -> int | None:
        return None

    def kernel_s(self, calls: Calls) -> float | None:
        return None

    def release(self) -> None:
        pass


class OneThread(Backend):
    """One thread of the processor by its own clock, which stands still while others have the processor."""

    timed_by, threads = "one thread's clock", 1

    def now(self) -> float:
        return time.thread_time()

    def time_batch(self, calls: Calls, flush: Call | None = None) -> Array:
        import torch

        usual = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return super().time_batch(calls, flush)
        finally:
            torch.set_num_threads(usual)


class AcceleratorBackend(Backend):
    """An accelerator, timed by its own events, queued without a synchronisation a call."""

    timed_by = "events"

    def __init__(self, device: str) -> None:
        import torch

        self.device = device
        self._module: Any = torch.get_device_module(device)
        self._module.set_device(device)
        # One for all captures: libraries keep a workspace for each stream.
        self._side = self._module.Stream()
        self._queueing_s = dict[str, float]()
        self.cache_bytes = self._read_cache_bytes()

    def _read_cache_bytes(self) -> int:
        from shapes.device import load_device

        l2 = getattr(self._module.get_device_properties(self.device), "L2_cache_size", 0)
        # A memory-side cache behind the L2 (AMD) is known only to the device's file, if there is one.
        with contextlib.suppress(InputError):
            l2 = max(l2, load_device(self._module.get_device_name(self.device)).memory.last_level_cache_bytes)
        return int(l2) or UNKNOWN_CACHE_BYTES

    @property
    def free_bytes(self) -> int:
        free, _ = self._module.mem_get_info()
        # Memory that torch's allocator holds but does not use is free to us.
        return int(free) + int(self._module.memory_reserved()) - int(self._module.memory_allocated())

    def synchronize(self) -> None:
        import torch

        torch.accelerator.synchronize()

    def time_batch(self, calls: Calls, flush: Call | None = None) -> Array:
        event = self._module.Event
        starts = [event(enable_timing=True) for _ in calls]
        ends = [event(enable_timing=True) for _ in calls]
        # The time to queue a call depends on its kind: autograd takes ten times as long as a product.
        kind = getattr(calls[0], "__qualname__", "") if calls else ""
        # The device is kept busy while the host queues a batch; devices without a sleep go without.
        queueing_s = LEAD_FACTOR * self._queueing_s.get(kind, 0.0) * len(calls)
        sleep = getattr(self._module, "_sleep", None) or (lambda _: None)
        sleep(int(WAIT_HZ * min(MOST_LEAD_S, max(LEAST_LEAD_S, queueing_s))))
        begun = time.perf_counter()
        for call, start, end in zip(calls, starts, ends, strict=True):
            if flush:
                flush()
            start.record()
            call()
            end.record()
        self._queueing_s[kind] = (time.perf_counter() - begun) / max(1, len(calls))
        self.synchronize()
        return np.array([start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]) * 1e-3

    def flusher(self) -> Call:
        import torch

        return torch.empty(2 * self.cache_bytes // 4, dtype=torch.int32, device=self.device).zero_

    def capture(self, calls: Calls) -> Call | None:
        """One replay that runs all ``calls`` back to back, or None where the device or a kernel cannot be captured.

        Not by ``torch.cuda.graph``: of a failed capture that leaves its stream the current one, and collects garbage.
        """
        graph_type = getattr(self._module, "CUDAGraph", None)
        if graph_type is None:
            return None
        graph, here = graph_type(), self._module.current_stream()
        self.release()  # a capture cannot
        self._side.wait_stream(here)
        try:
            with self._module.stream(self._side), warnings.catch_warnings(action="ignore"):
                # Libraries make their workspaces; what waits for the host is found before it breaks a capture.
                self._module.set_sync_debug_mode("error")
                calls[0]()
                graph.capture_begin()
                try:
                    for call in calls:
                        call()
                finally:
                    graph.capture_end()
            here.wait_stream(self._side)
        except RuntimeError:
            self.synchronize()
            return None
        finally:
            self._module.set_sync_debug_mode("default")
        replay: Call = graph.replay
        return replay

    def peak_bytes(self, call: Call) -> int | None:
        """Most bytes allocated during ``call`` beyond those before it: others' buffers are not in it."""
        self.synchronize()
        self._module.reset_peak_memory_stats()
        before = int(self._module.memory_allocated())
        call()
        self.synchronize()
        return int(self._module.max_memory_allocated()) - before

    def kernel_s(self, calls: Calls) -> float | None:
        """Seconds of one call's kernels, by the device's own records (CUPTI), without the gaps between them."""
        from torch._C._autograd import DeviceType
        from torch.profiler import profile

        with profile() as seen:
            for call in calls[:PROFILED]:
                call()
            self.synchronize()
        # An operator of the host holds its kernels' times once more, a named range of the device those of its own.
        microseconds = sum(
            one.self_device_time_total
            for one in seen.key_averages()
            if one.device_type != DeviceType.CPU and not getattr(one, "is_user_annotation", False)
        )
        return float(microseconds) * 1e-6 / len(calls[:PROFILED]) or None

    def release(self) -> None:
        self._module.empty_cache()


def cpu_cache_bytes(root: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """The processor's largest cache, from Linux's sysfs; a generous guess elsewhere."""
    texts = (entry.read_text(encoding="ascii").strip() for entry in Path(root).glob("index*/size"))
    found = [re.fullmatch(r"(\d+)([KMG]?)", text) for text in texts]
    sizes = [int(one[1]) * 1024 ** " KMG".index(one[2] or " ") for one in found if one]
    return max(sizes, default=0) or UNKNOWN_CACHE_BYTES


#: Device files of NVIDIA's and AMD's drivers.
DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd")


def driver_here() -> bool:
    """Whether a driver of an accelerator is loaded."""
    return any(map(os.path.exists, DRIVERS))


def accelerator_here() -> bool:
    """Whether torch is installed and sees an accelerator."""
    if not driver_here() or not find_spec("torch"):
        return False
    import torch

    return bool(torch.cuda.is_available())
