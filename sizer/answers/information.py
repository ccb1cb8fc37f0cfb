"""Which cells of a suite to measure next: where the cost model's error, times its use in the rules, is largest.

* **Error** of a job: what the cost model states of its own prediction for it (held-out, by regime and tier).
* **Use** of a cell: the rules are run on models that people train; each suggestion is judged by the price of what it
  takes away and puts in its place, so every such operator adds its share of the step to its cell. What resembles it in
  layout and alignment, but not in size, counts less, what is only of its kind little.
* Jobs of one cell tell of each other: the n-th lowers the error by 1/sqrt(n) - 1/sqrt(n+1) of it. What the store has
  counts as measured.

The order is by what is learnt a second of device time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import inf, log2, sqrt
from typing import Any

from shapes.cost import Cost, predict_many
from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.measure.executor import Settings
from shapes.measure.jobs import Job, MemoryBound, Part
from shapes.operators import Attention, Elementwise, Gemm, GroupedGemm, Operator, counted_once, operators
from sizer.checking.proposals import propose
from sizer.subject import read_subject

Cell = tuple[Any, ...]

#: Models whose dimensions the rules have something to say about, as people train them: public ones (GPT-2 XL,
#: Pythia-2.8B with its heads of 80, Llama-3.1-8B, Qwen2.5-7B), and the usual slips: 8h/3 as it comes out, a tokenizer's
#: vocabulary as it is. Hidden, heads, KV heads, d_ff, layers, vocabulary, gated, tensor-parallel degree.
MODELS: tuple[tuple[int, int, int, int, int, int, bool, int], ...] = (
    (1600, 25, 25, 6400, 48, 50257, False, 1),
    (2560, 32, 32, 10240, 32, 50257, False, 1),
    (4096, 32, 32, 10922, 32, 32000, True, 1),
    (4096, 32, 8, 14336, 32, 128256, True, 8),
    (3584, 28, 4, 18944, 28, 151665, True, 4),
    (2048, 16, 16, 5461, 24, 50257, True, 1),
    (5120, 40, 40, 13653, 40, 32001, True, 8),
    (1024, 16, 16, 4096, 24, 50257, False, 1),
)
#: What an operator adds to cells that share its layout and alignment, and to those of its kind.
ALIKE, OF_KIND = 0.2, 0.01
#: Preparing a kernel, beside its samples; samples that are enough for most.
PREPARE_S, SAMPLES = 0.05, 60
#: What an operator's prediction is off by where the cost model says nothing of it.
UNKNOWN = 0.5


@frozen
class Planned:
    """``jobs`` in the order to be measured, the most telling a second first; ``expected_s``: when each will be through.

    ``within``: how many of them fit the budget.
    """

    jobs: tuple[Job, ...]
    expected_s: tuple[float, ...]
    within: int


def by_information(
    jobs: Sequence[Job], device: Device, settings: Settings, budget_s: float, known: Collection[str] = ()
) -> Planned:
    """``jobs`` by what is learnt of the cost model a second on ``device``; ``known``: keys of what is measured already.

    The order is also their priority. Equal ones keep their order.
    """
    priced = _priced(jobs, device)
    cells = [cell_of(job) for job in jobs]
    seen = Counter(cell for job, cell in zip(jobs, cells, strict=True) if job.key in known)
    waiting: dict[Cell, list[tuple[float, int]]] = {}
    seconds: list[float] = []
    for index, (job, cell, (worth, once)) in enumerate(zip(jobs, cells, priced, strict=True)):
        there = job.key in known
        seconds.append(0.0 if there else PREPARE_S + min(settings.time_s, SAMPLES * once))
        waiting.setdefault(cell, []).append((inf if there else worth / seconds[-1], index))
    order = _greedy(waiting, seen)
    through, expected = 0.0, []
    for index in order:
        through += seconds[index]
        expected.append(through)
    ranked = tuple(replace(jobs[index], priority=place) for place, index in enumerate(order))
    return Planned(ranked, tuple(expected), sum(one <= budget_s for one in expected))


def _greedy(waiting: Mapping[Cell, list[tuple[float, int]]], seen: Mapping[Cell, int]) -> list[int]:
    """Indices by falling value, that of a cell's jobs less each time one of it is taken."""
    queues = {cell: sorted(listed, key=lambda one: (-one[0], one[1])) for cell, listed in waiting.items()}
    taken = {cell: seen.get(cell, 0) for cell in queues}

    def entry(cell: Cell) -> tuple[float, int, Cell]:
        value, index = queues[cell][0]
        n = taken[cell] + 1
        return -value * (1 / sqrt(n) - 1 / sqrt(n + 1)), index, cell

    heap = [entry(cell) for cell in queues]
    heapq.heapify(heap)
    order = []
    while heap:
        _, index, cell = heapq.heappop(heap)
        order.append(index)
        value, _ = queues[cell].pop(0)
        taken[cell] += int(value < inf)
        if queues[cell]:
            heapq.heappush(heap, entry(cell))
    return order


def use_of(cell: Cell, uses: Mapping[Cell, float]) -> float:
    """How much of the rules' prices rests on ``cell``, and, for less, on what is like it."""
    return uses.get(cell, 0.0) + ALIKE * uses.get(cell[:-1], 0.0) + OF_KIND * uses.get(cell[:1], 0.0)


@lru_cache(maxsize=8)
def uses_of(device: Device) -> Mapping[Cell, float]:
    """Cell, cell without size, and kind -> the sum of shares of a step that rules' suggestions turn on there."""
    uses: dict[Cell, float] = {}
    for model in MODELS:
        proposals = propose(read_subject(_config(model), t=model[-1]), device)
        before = {counted_once(one): one for one in proposals.subject.operators}
        for changed in proposals.changed_subjects():
            after = {counted_once(one): one for one in changed.operators}
            turned = [before[key] for key in before.keys() - after.keys()]
            turned += [after[key] for key in after.keys() - before.keys()]
            for operator, cost in zip(turned, predict_many(turned, device), strict=True):
                cell = cell_of_operator(operator)
                share = cost.seconds * operator.count / proposals.step.seconds
                for level in dict.fromkeys((cell, cell[:-1], cell[:1])):
                    uses[level] = uses.get(level, 0.0) + share
    return uses


def _config(model: tuple[int, int, int, int, int, int, bool, int]) -> dict[str, Any]:
    h, a, kv, d_ff, layers, v, gated, _ = model
    if not gated:
        return {
            "model_type": "gpt_neox",
            "hidden_size": h,
            "num_attention_heads": a,
            "intermediate_size": d_ff,
            "num_hidden_layers": layers,
            "vocab_size": v,
            "max_position_embeddings": 2048,
        }
    return {
        "model_type": "llama",
        "hidden_size": h,
        "num_attention_heads": a,
        "num_key_value_heads": kv,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "vocab_size": v,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }


def cell_of(job: Job) -> Cell:
    """What errors are shared by: kind, then what kernel and alignment, last the size."""
    work = job.work
    if isinstance(work, Part):
        model = work.model
        return "part", work.part, work.direction, work.workload.dtype, _size(model.hidden)
    if isinstance(work, MemoryBound):
        return "elementwise", work.what, work.phase, _size(work.rows * work.columns)
    cell = cell_of_operator(work)
    return (*cell[:-1], job.kernel, cell[-1]) if job.kernel else cell


def cell_of_operator(operator: Operator) -> Cell:
    """See ``cell_of``."""
    if isinstance(operator, Gemm | GroupedGemm):
        aligned = tuple(min(64, size & -size) // 8 * 8 for size in (operator.m, operator.n, operator.k))
        return operator.kind, operator.layout, aligned, _size(operator.m * operator.n * operator.k)
    if isinstance(operator, Attention):
        head = operator.head_dim
        return operator.kind, operator.phase, min(64, head & -head), _size(operator.q_len * operator.kv_len * head)
    if isinstance(operator, Elementwise):
        return operator.kind, operator.what, operator.phase, _size(operator.bytes)
    return operator.kind, operator.phase, 0


def _size(elements: int) -> int:
    """A step for every factor of eight: twice a side of a product."""
    return round(log2(max(1, elements)) / 3)


def _priced(jobs: Sequence[Job], device: Device) -> list[tuple[float, float]]:
    """(error times use, predicted seconds) of each job; of a part of a model by its operators' shares of its time."""
    uses = uses_of(device)
    found = [_operators(job) for job in jobs]
    costs = _costs({counted_once(one) for listed in found for one in listed}, device)
    priced = []
    for job, listed in zip(jobs, found, strict=True):
        rows = [(one, costs[counted_once(one)]) for one in listed if counted_once(one) in costs]
        seconds = sum(cost.seconds * one.count for one, cost in rows)
        if not seconds:
            # The device has no units for it, or it is a kernel that the cost model knows by a model's operators only.
            priced.append((0.0 if listed else UNKNOWN * use_of(cell_of(job), uses), 0.0))
            continue
        worth = 0.0
        for one, cost in rows:
            cell = cell_of(job) if one is job.work else cell_of_operator(one)
            worth += cost.seconds * one.count / seconds * cost.error * use_of(cell, uses)
        priced.append((worth, seconds))
    return priced


def _costs(wanted: Collection[Operator], device: Device) -> dict[Operator, Cost]:
    """Prices of what the cost model has one for."""
    priceable = [one for one in wanted if getattr(one, "dtype", None) in device.peak_flops]
    with suppress(InputError):
        return dict(zip(priceable, predict_many(priceable, device), strict=True))
    found = {}
    for one in priceable:  # a kernel that does not take one of the shapes
        with suppress(InputError):
            (found[one],) = predict_many([one], device)
    return found


def _operators(job: Job) -> Sequence[Operator]:
    """What the cost model prices of a job; nothing of a memory-bound kernel, which it knows by a model's operators."""
    work = job.work
    if isinstance(work, MemoryBound):
        return ()
    if not isinstance(work, Part):
        return (work,)
    workload = replace(work.workload, phase="train", checkpointing="none", p=1, d=1, zero=0)
    names = {"mlp": ("mlp.",), "self_attention": (".attention.",), "layer": ("layers.",), "head": ("lm_head",)}
    return [
        one
        for one in operators(work.model, workload)
        if one.kind != "collective"
        and one.phase != "optimizer"
        and (one.phase == "forward" or work.direction != "forward")
        and any(name in one.name for name in names[work.part])
    ]
