"""`plan`: the fastest ways to spread a training step over N devices, priced by the cost model.

Advice within the cost model's error: no computing hides any communication here, though frameworks overlap some of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shapes.cost import Cost
from shapes.device import Device
from shapes.errors import InputError, positive_int
from shapes.memory import memory
from shapes.model import ModelShape
from shapes.operators import Collective, Operator, operators
from shapes.workload import Checkpointing, Workload
from sizer.answers.mfu import exact_count
from sizer.pricing import Pricer

CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")
#: Microbatches beyond this many sequences are not tried: products are long since tall enough.
LARGEST_MICROBATCH = 64

ASSUMPTIONS = (
    "1F1B pipeline without interleaving: bubble (p - 1) / (microbatches + p - 1), every stage as slow as the last "
    "(its layers and the head)",
    "nothing overlaps: collectives are added to computing",
    "tensor parallelism within one node's fast links, with sequence parallelism",
    "ZeRO 2 and 3 not with a pipeline (gradients would be reduced every microbatch)",
    "expert parallelism inside the data-parallel group, routing even",
    "sustained clocks; loading data, logging and checkpoints to disk take no time",
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the step that fits: ``workload`` of one microbatch, ``microbatches`` of them a device.

    ``low_s`` and ``high_s`` bound ``seconds`` by the cost model's held-out errors. ``communication_s`` and
    ``bubble_s`` are parts of ``seconds``.
    """

    workload: Workload
    microbatches: int
    seconds: float
    low_s: float
    high_s: float
    communication_s: float
    bubble_s: float
    memory_bytes: int
    mfu: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Candidates from the fastest, of which reports show ``top``; ``dropped`` counts the others by reason."""

    gpus: int
    global_batch: int
    device: str
    device_bytes: int
    candidates: tuple[Candidate, ...]
    dropped: tuple[tuple[str, int], ...]
    assumptions: tuple[str, ...]
    source: str
    top: int = 8
    implementation: str = "huggingface"

    @property
    def indistinguishable(self) -> int:
        """How many of the first candidates lie within the cost model's error of the fastest."""
        if not self.candidates:
            return 0
        best = self.candidates[0]
        half = (best.high_s - best.low_s) / 2
        return sum(candidate.seconds <= best.seconds + half for candidate in self.candidates)

    def to_dict(self) -> dict[str, Any]:
        return {
            "gpus": self.gpus,
            "global_batch": self.global_batch,
            "device": self.device,
            "device_bytes": self.device_bytes,
            "source": self.source,
            "implementation": self.implementation,
            "fitting": len(self.candidates),
            "indistinguishable": self.indistinguishable,
            "candidates": [
                {
                    "workload": candidate.workload.to_dict(),
                    "microbatches": candidate.microbatches,
                    "step_seconds": candidate.seconds,
                    "step_seconds_low": candidate.low_s,
                    "step_seconds_high": candidate.high_s,
                    "communication_seconds": candidate.communication_s,
                    "bubble_seconds": candidate.bubble_s,
                    "memory_bytes": candidate.memory_bytes,
                    "mfu": candidate.mfu,
                }
                for candidate in self.candidates[: self.top]
            ],
            "dropped": [{"reason": reason, "count": number} for reason, number in self.dropped],
            "assumptions": list(self.assumptions),
        }


def plan(model: ModelShape, device: Device, *, gpus: int, global_batch: int, base: Workload, **options: Any) -> Plan:
    """Every split of one step over ``gpus`` that fits, from the fastest.

    ``base`` gives s, dtype and the attention kernel; ``options`` are those of ``shapes.memory.memory``. Raises
    InputError where no split of the devices and the global batch exists at all.
    """
    positive_int(gpus, "gpus", maximum=2**20)
    positive_int(global_batch, "global_batch", maximum=2**31)
    dropped: Counter[str] = Counter()
    pricer = Pricer(device)
    needed = exact_count(model, base.s, global_batch).model_flops
    found = [
        _priced(model, workload, microbatches, used, needed, pricer)
        for workload, microbatches, used in _fitting(model, device, gpus, global_batch, base, options, dropped)
    ]
    if not found:
        why = f"; most often: {dropped.most_common(1)[0][0]}" if dropped else ""
        raise InputError(f"expected a number of devices that some split of the model fits{why}", key="gpus", value=gpus)
    found.sort(key=lambda candidate: candidate.seconds)
    return Plan(
        gpus, global_batch, device.name, device.memory.bytes, tuple(found), tuple(dropped.most_common()), ASSUMPTIONS,
        f"predicted:{device.name}", implementation=options.get("implementation", "huggingface"),
    )  # fmt: skip


def _fitting(
    model: ModelShape, device: Device, gpus: int, global_batch: int, base: Workload, options: dict[str, Any],
    dropped: Counter[str],
) -> Iterator[tuple[Workload, int, int]]:  # fmt: skip
    for split in _splits(model, device, gpus, base, dropped):
        if global_batch % split.d:
            dropped[f"the global batch is no multiple of DP = {split.d}"] += 1
            continue
        share = global_batch // split.d
        for checkpointing in CHECKPOINTING:
            for b in (b for b in range(1, min(share, LARGEST_MICROBATCH) + 1) if share % b == 0):
                workload = replace(split, b=b, checkpointing=checkpointing)
                used = memory(model, workload, microbatches=share // b, **options).total_bytes
                if used > device.memory.bytes:
                    # Memory grows with b: no larger microbatch fits either.
                    dropped[_reason(workload, b)] += 1
                    break
                yield workload, share // b, used


def _reason(workload: Workload, b: int) -> str:
    if b > 1:
        return "a larger microbatch does not fit"
    return f"does not fit with t {workload.t}, p {workload.p}, ZeRO {workload.zero} even at b 1"


def _splits(model: ModelShape, device: Device, gpus: int, base: Workload, dropped: Counter[str]) -> Iterator[Workload]:
    """Degrees whose product is ``gpus``: t in a node and dividing the heads, p the layers, e the experts."""
    attention, experts = model.attention, model.moe.experts if model.moe else 1
    heads = attention.heads if attention else 1
    for t in _divisors(gpus):
        if t > device.link.domain_devices:
            continue
        if heads % t:
            dropped[f"t {t} does not divide the {heads} attention heads"] += 1
            continue
        for p in _divisors(gpus // t):
            if p > model.layers:
                continue
            if model.layers % p:
                dropped[f"p {p} does not divide the {model.layers} layers"] += 1
                continue
            d = gpus // (t * p)
            for e in _divisors(d):
                if experts % e or (experts == 1 and e > 1):
                    continue
                for zero in range(4) if d > 1 else (0,):
                    if zero > 1 and p > 1:
                        dropped["ZeRO 2 and 3 are not run with a pipeline"] += 1
                        continue
                    yield replace(base, t=t, p=p, d=d, e=e, zero=zero, sequence_parallel=t > 1, phase="train")


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _priced(
    model: ModelShape, workload: Workload, microbatches: int, used: int, needed_flops: float, pricer: Pricer
) -> Candidate:
    step = pricer.step(operators(model, workload))
    each, once = _Seconds(), _Seconds()
    for operator, cost in zip(step.operators, step.costs, strict=True):
        (once if _once_a_step(operator, workload) else each).add(operator, cost)
    slots = microbatches + workload.p - 1
    seconds = each.seconds * slots + once.seconds
    peak = pricer.device.peak_flops.get(workload.dtype)
    gpus = workload.t * workload.p * workload.d
    return Candidate(
        workload, microbatches, seconds, each.low * slots + once.low, each.high * slots + once.high,
        communication_s=each.communication * microbatches + once.communication,
        bubble_s=each.seconds * (workload.p - 1), memory_bytes=used,
        mfu=needed_flops / (seconds * gpus * peak) if peak else None,
    )  # fmt: skip


@dataclass(slots=True)
class _Seconds:
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    communication: float = 0.0

    def add(self, operator: Operator, cost: Cost) -> None:
        self.seconds += cost.seconds * operator.count
        self.low += cost.low * operator.count
        self.high += cost.high * operator.count
        if isinstance(operator, Collective):
            self.communication += cost.seconds * operator.count


def _once_a_step(operator: Operator, workload: Workload) -> bool:
    """Whether it runs once a step and not once a microbatch: the update, and what data parallelism exchanges.

    ZeRO 2 reduces gradients every microbatch, ZeRO 3 gathers the weights every microbatch too.
    """
    if operator.phase == "optimizer":
        return True
    if not operator.name.startswith("data_parallel."):
        return False
    return workload.zero < 2 or (workload.zero == 2 and operator.name.endswith("all_gather"))
