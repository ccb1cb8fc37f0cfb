"""What `sizer bench --self-test` answers: whether measuring works on this device, a check a line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from shapes.cost import predict
from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.measure.executor import Executor, Settings
from shapes.measure.jobs import Job, MemoryBound, Part
from shapes.measure.record import Measurement
from shapes.measure.runner import measure
from shapes.measure.suite import load_suite

#: What is measured: jobs of priority 1 must run. On a processor they are smaller, and show that the harness works.
SUITE, ON_A_CPU = Path(__file__).with_name("self-test.toml"), 1 / 16
#: A time further from its prediction than this, times or over, is no measurement of what it names.
FACTOR = 2.5
#: Timing's own error: a rate so much over a limit is not over it.
ROOM = 1.02
#: Seconds after which no check is begun.
LIMIT_S = 60.0


@frozen
class Check:
    """``passed`` None: this device or library has no such thing, or none is asked of it; ``said``: what was seen."""

    name: str
    passed: bool | None
    said: str


@frozen
class SelfTest:
    """Every check."""

    device: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(one.passed is not False for one in self.checks)


def self_test(executor: Executor) -> SelfTest:
    """Measure a job of each kind on ``executor``'s device, anew, and judge what comes out."""
    environment, device = executor.environment, executor.environment.accelerator
    suite = load_suite(SUITE, ON_A_CPU if environment.cpu else 1.0)
    settings = Settings(**suite.settings)
    sweep = measure(suite.jobs, executor=executor, settings=settings, time_limit_s=LIMIT_S)
    checks = [_judged(job, sweep.results.get(job.key), device) for job in suite.jobs]
    drift = sweep.drift
    steady = drift.steady or (None if environment.cpu else False)  # a processor is shared: its figures are no evidence
    checks.append(Check("control shape", steady, f"spread {drift.spread:.1%}, change {drift.change:+.1%}"))
    clocks = next((one.clocks for one in sweep.results.values() if one.clocks), {})
    named = ", ".join(f"{key} {value}" for key, value in clocks.items())
    checks.append(Check("clocks", True if clocks else None, named or "not read: no NVML (pip install nvidia-ml-py)"))
    return SelfTest(environment.source.removeprefix("measured:"), tuple(checks))


def _judged(job: Job, one: Measurement | None, device: Device | None) -> Check:
    name = f"{job.label} {job.kernel}".rstrip()
    if one is None:
        return Check(name, False, f"not reached in {LIMIT_S:.0f} s")
    if one.seconds is None:
        missing = one.status == "unsupported" and job.priority > 1
        return Check(name, None if missing else False, f"{one.status}: {one.message}")
    rate = f"{one.tflops:.4g} TFLOPS" if one.tflops else f"{one.bytes / one.seconds / 1e9:.4g} GB/s"
    said = f"{1e6 * one.seconds:.4g} us, {rate}"
    if one.kernel_s is not None:
        said += f", {one.seconds / one.kernel_s - 1:+.1%} to the profiler's kernels"
    if device is None:
        return Check(name, True, said)
    moves, dtype = isinstance(job.work, MemoryBound), str(one.description["dtype"])
    done, limit = (
        (one.bytes, device.memory.bandwidth_bytes_per_s) if moves else (one.flops, device.peak_flops.get(dtype))
    )
    if limit is not None and done / one.seconds > limit * ROOM:
        return Check(name, False, f"{said}, above the {'bandwidth' if moves else 'peak'} of {limit:.4g}")
    ratio = 1.0
    with suppress(InputError):  # a dtype that the device's file has no figures for
        if not isinstance(job.work, Part | MemoryBound) and not job.kernel:
            ratio = one.seconds / predict(job.work, device).seconds
            said += f", {ratio:.2f} times its prediction"
    return Check(name, 1 / FACTOR < ratio < FACTOR, said)
