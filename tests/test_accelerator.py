"""An accelerator's own branches, on tests/cuda_shim.py: events, streams, graphs, caches, memory, and how it is lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cuda_shim  # noqa: E402  # needs torch
from torch.autograd import DeviceType  # noqa: E402
from torch.autograd.profiler_util import EventList, FunctionEvent  # noqa: E402
from torch.utils._device import _device_constructors  # noqa: E402

from shapes.errors import InputError  # noqa: E402
from shapes.measure import (  # noqa: E402
    InProcess,
    Settings,
    environment,
    workers,
)
from shapes.measure.backend import AcceleratorBackend, Backend, open_backend  # noqa: E402
from shapes.measure.environment import clocks  # noqa: E402
from shapes.measure.executor import Executor  # noqa: E402
from shapes.measure.in_process import MOST_THROTTLED  # noqa: E402
from shapes.measure.jobs import Job, swiglu  # noqa: E402
from shapes.measure.runner import measure  # noqa: E402
from shapes.measure.workers import Child, Workers  # noqa: E402
from shapes.operators.types import Gemm  # noqa: E402

FAST = Settings(precision=0.5, time_s=1e-3, batch_s=1e-4, warm_up_s=1e-4, most_warm_up_s=2e-2)


def product(k: int = 32, **changes: Any) -> Job:
    return Job(Gemm("x", "forward", 32, 32, k, **changes))


def test_a_device_says_what_it_is_and_others_are_refused() -> None:
    with cuda_shim.installed():
        found = InProcess().environment
        assert (found.device, found.uuid, found.cpu, found.host["multiprocessors"]) == ("Shim 1", "shim", False, 132)
        assert dict(found.versions)["cuda"] == "12.8"
        for name in ("cuda:7", "xpu"):
            with pytest.raises(InputError):
                open_backend(name)
    with cuda_shim.installed(name="NVIDIA H200"):
        assert InProcess("cuda:0").backend.cache_bytes == 60 * 2**20  # the device's file knows more than torch says


def test_the_shim_leaves_torch_as_it_was() -> None:
    _device_constructors.cache_clear()
    with cuda_shim.installed(), torch.device("meta"):
        torch.zeros(1)
    with torch.device("meta"):
        assert torch.empty(1).is_meta


def test_a_short_kernel_is_replayed_from_a_graph_behind_a_wait_and_a_part_has_a_peak() -> None:
    with cuda_shim.installed() as cuda:
        session = InProcess("cuda")
        prepared = session.prepare(product(), FAST)
        assert prepared.handle.stopwatch.per_sample > 1
        assert session.sample(prepared, 3) == pytest.approx([prepared.handle.stopwatch.estimate_s] * 3, rel=0.2)
        assert cuda.replays > 3
        assert cuda.slept > 0
        cuda.capturable = False
        assert session.prepare(product(), FAST).handle.stopwatch.per_sample == 1
        assert (cuda.stream_now, cuda.sync_debug) == (cuda.default_stream, "default")
        peak = session.prepare(Job(swiglu(16, 16, 32)), FAST).handle.stopwatch.peak_bytes()
        assert peak is not None
        assert peak > 0


def test_the_kernels_time_of_torchs_profiler_is_in_rows_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(name: str, took_us: float, device: Any, **more: Any) -> Any:
        kinds = {"device_type": device, "use_device": "cuda", "stack": [], **more}
        return FunctionEvent(id=0, name=name, thread=0, start_us=0.0, end_us=took_us, **kinds)

    with cuda_shim.installed() as cuda:

        @contextlib.contextmanager
        def profile() -> Iterator[Any]:
            before = cuda.clock_s
            seen = SimpleNamespace()
            yield seen
            took = 0.45e6 * (cuda.clock_s - before)
            # As torch has them: the host's operator holds its two kernels' times once more, and a compiled graph's
            # named range spans them. A tenth of the time is gaps between.
            operator = event("aten::mm", 0.0, DeviceType.CPU)
            kernels = [event(name, took, DeviceType.CUDA) for name in ("first", "second")]
            for one in kernels:
                operator.append_kernel(one.name, 0, took)
            named = event("## Call CompiledFxGraph", 2 * took, DeviceType.CUDA, is_user_annotation=True)
            events = EventList([operator, *kernels, named], use_device="cuda")
            events._build_tree()
            seen.key_averages = events.key_averages

        monkeypatch.setattr(torch.profiler, "profile", profile)
        settings = replace(FAST, load="sustained", profiled=True)
        sweep = measure([product(32), product(40)], executor=InProcess("cuda"), settings=settings)
        first, second = sweep.results.values()
        assert first.seconds is not None
        assert first.kernel_s == pytest.approx(0.9 * first.seconds, rel=0.05)
        assert second.kernel_s is not None
        (plain,) = measure([product(48)], executor=InProcess("cuda"), settings=FAST).results.values()
        assert plain.kernel_s is None
        assert first.method.startswith("graphs of ")
        assert first.method.endswith("calls, normal inputs (int8: uniform)")
        assert first.row()["load"] == "sustained"


def test_a_device_without_graphs_and_waits_is_timed_call_by_call() -> None:
    with cuda_shim.installed() as cuda:
        del cuda.CUDAGraph
        cuda._sleep = None  # type: ignore[assignment,method-assign]
        session = InProcess("cuda")
        prepared = session.prepare(product(), FAST)
        assert (prepared.handle.stopwatch.per_sample, prepared.handle.stopwatch.timed_by) == (1, "events")
        assert (session.sample(prepared, 3) > 0).all()
    assert Backend().kernel_s([print]) is None  # a processor runs no kernels that a profiler would name


def test_a_kernel_that_waits_for_the_host_is_not_captured() -> None:
    with cuda_shim.installed() as cuda:

        def wait() -> None:
            assert cuda.capturing is None  # it would break the capture, and torch's allocator with it
            if cuda.sync_debug == "error":
                raise RuntimeError("called a synchronizing CUDA operation")

        assert AcceleratorBackend("cuda:0").capture([wait]) is None
        assert (cuda.stream_now, cuda.sync_debug) == (cuda.default_stream, "default")


def test_an_old_torch_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator")
    with pytest.raises(InputError, match=r"expected torch 2\.6 or later"):
        open_backend(None)


def test_inputs_that_fit_the_cache_are_timed_with_a_flush_before_each_call() -> None:
    with cuda_shim.installed() as cuda:
        cuda.l2_bytes = 2**21
        prepared = InProcess("cuda").prepare(product(), FAST)
        assert prepared.handle.stopwatch.per_sample == 1
        before = cuda.clock_s
        taken = InProcess.sample(InProcess("cuda"), prepared, 4)
        assert cuda.clock_s - before > 2 * taken.sum()  # what was flushed is no part of the samples


def faulty(func: Any, args: tuple[Any, ...]) -> None:
    """Depth 48: no memory; 56: an illegal access; 64: a hang; 72: the process is killed."""
    k = args[0].shape[-1] if str(func).startswith("aten.mm") else 0
    if k == 48:
        raise torch.OutOfMemoryError("CUDA out of memory")
    if k == 56:
        cuda_of_child[0].lose()
    if k == 64:
        time.sleep(3600)
    if k == 72:
        os.kill(os.getpid(), signal.SIGKILL)


cuda_of_child: list[cuda_shim.Cuda] = []
held: list[Any] = []


def shimmed(device: str | None) -> Executor:
    """What a child process drives: the shim, for as long as it lives."""
    held.append(cuda_shim.installed(faulty))
    cuda_of_child.append(held[0].__enter__())
    return InProcess("cuda")


@pytest.mark.slow  # a hang is waited for twice
def test_a_sweep_survives_what_a_device_does_and_names_who_did_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Seven processes, each of which would import torch for two seconds: they are forked from one that has.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda kind: context)
    said: list[str] = []
    jobs = [product(k) for k in (32, 40, 48, 56, 64, 72, 80)]
    executor = Workers([Child(None, shimmed)], said.append, silent_s=6.0)
    sweep = measure(jobs, executor=executor, settings=FAST)
    failed = {one.description["k"]: (one.status, one.message) for one in sweep.results.values() if not one.ok}
    assert {one.description["k"] for one in sweep.results.values() if one.ok} == {32, 40, 80}, said
    assert failed == {
        48: ("oom", "CUDA out of memory"),
        56: ("error", "the device was lost with it: CUDA error: an illegal memory access was encountered"),
        64: ("error", "the device was lost with it: answered nothing for 6 s"),
        72: ("error", "the device was lost with it: its process died (SIGKILL)"),
    }


def test_a_device_that_does_not_answer_is_lost_whatever_the_kernel_said() -> None:
    with cuda_shim.installed() as cuda:
        backend = AcceleratorBackend("cuda:0")
        with pytest.raises(RuntimeError, match="illegal"):
            cuda.lose()
        with pytest.raises(RuntimeError, match="illegal"):
            backend.synchronize()


def test_throttled_samples_are_taken_again_and_what_nvml_said_is_in_the_row() -> None:
    with cuda_shim.installed() as cuda:
        session = InProcess("cuda")
        prepared = session.prepare(product(), FAST)
        cuda.nvml.throttle = [0x40, 0x8 | 0x4, 0x4]  # thermal, slowdown, then the power limit alone
        taken = session.sample(prepared, 3)
        assert (len(taken), len(prepared.samples)) == (3, 3)
        assert cuda.nvml.readings == 3
        row = session.finish(prepared).row()
        assert row["clocks"] == {
            **{"sm_mhz": 1980, "memory_mhz": 2619, "power_w": 650.0, "power_limit_w": 700.0, "temperature_c": 61},
            **{"throttle": [], "power_capped": 1, "throttled": 2},
        }


def test_a_device_that_stays_throttled_is_measured_and_its_rows_say_so() -> None:
    with cuda_shim.installed() as cuda:
        session = InProcess("cuda")
        prepared = session.prepare(product(), FAST)
        cuda.nvml.throttle, cuda.nvml.missing = [0x20] * 1000, {"power"}
        session.sample(prepared, 3)
        clocks = session.finish(prepared).clocks
        assert (clocks["throttle"], clocks["throttled"]) == (["software thermal slowdown"], MOST_THROTTLED)
        assert "power_w" not in clocks


def test_a_card_that_nvml_does_not_know_has_no_clocks() -> None:
    with cuda_shim.installed() as cuda:
        found = InProcess("cuda").environment
        assert clocks(replace(found, uuid="another")) == {}
        assert clocks(found)["sm_mhz"] == 1980
        assert cuda.nvml.readings == 1


@pytest.mark.parametrize(("code", "there"), [(0, True), (9, False), (None, False)])
def test_nvml_is_the_drivers_own_library(monkeypatch: pytest.MonkeyPatch, code: int | None, there: bool) -> None:
    def load(name: str) -> Any:
        if code is None:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(nvmlInit_v2=lambda: code)

    monkeypatch.setattr(environment.ctypes, "CDLL", load)
    assert (environment._nvml.__wrapped__() is not None) is there


@pytest.mark.slow  # a process imports torch and collects what has such tests
def test_the_tests_of_a_gpu_pass_on_the_shim() -> None:
    folder = Path(__file__).parent
    files = [str(one) for one in folder.glob("test_*.py") if re.search(r"mark\.gpu\b", one.read_text(encoding="utf-8"))]
    assert files
    asked = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files]
    ran = subprocess.run(
        asked, check=False, env={**os.environ, "SIZER_SHIM": "1"}, cwd=folder.parent, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert " skipped" not in ran.stdout.splitlines()[-1]
