"""`plan`: the fastest ways to spread a training step over N devices, or to serve a model on them.

Splits whose predicted times differ by less than the ratio of two steps has been off by are alike: of those the
simplest is recommended, the one with the fewest kinds of parallelism. Each way to serve is priced at 1 to as many
requests a rank as its memory holds, and listed at the number that makes most tokens a second within the limits.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from itertools import starmap, takewhile
from math import gcd, inf
from operator import attrgetter
from typing import Any, Unpack

import numpy as np

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.engines import as_run
from shapes.errors import one_of, positive_int, refuse
from shapes.frozen import Items, Named, Names, Pair, Values, frozen, given, replace
from shapes.keywords import WorkloadKeywords
from shapes.memory import ROOM, divisors, largest_microbatch, memory
from shapes.memory.engine import UTILIZATION, engine_bytes, most_requests, share_of_free
from shapes.model import ModelShape
from shapes.model.resize import dimensions, resize
from shapes.operators.parallel import split_problems
from shapes.operators.types import possible_mfu
from shapes.program import REQUESTS
from shapes.step import Pricer
from shapes.step.serving import Load, ServingStack, load_serving_stack, served, serving_load
from shapes.step.stack import SPREAD_STACK, SoftwareStack, load_stack
from shapes.toml_table import check_bounds, table_of
from shapes.workload import Implementation, Workload, option_of, workload_fields
from sizer.printing import Printable
from sizer.subject import modules_in, read_subject, run_on

from .mfu import operator_count

#: The degrees that identify a split.
_DEGREES = attrgetter("t", "cp", "p", "e")
#: Assumptions that are printed; modules that run again in next to no time; chunks of a stage; the workload to begin
#: from; commands that start engines; what people call metrics of published rows.
ASSUMPTIONS, CHEAP, CHUNKS, _FOUND, START, METRICS, _LIMITS = table_of(__file__, "plan.toml").values()
#: Limits of what is tried: the file says what of.
LARGEST_MICROBATCH, MOST_TOKENS, TALL_TOKENS, LEAST_TOKENS, PROMPT, MOST_RUN, MOST_BUSY = _LIMITS.values()


@frozen
class Candidate:
    """One way to run the step that fits: ``workload`` of one microbatch, ``microbatches`` of them a device.

    ``low_s`` and ``high_s`` bound ``seconds`` by what the stack's predictions have been off by. ``communication_s``
    (not overlapped with compute) and ``bubble_s`` are parts of ``seconds``.
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

    @property
    def complexity(self) -> Pair:
        """Kinds of parallelism and of saving that have to be set up, then the ranks that share one model.

        ZeRO 1 (the distributed optimizer) and the pipeline's schedule are switches, not kinds.
        """
        w = self.workload
        kinds = sum(degree > 1 for degree in (w.t, w.p, w.cp, w.e, w.replicas))
        return kinds + (w.zero > 1) + (w.checkpointing != "none"), w.model_ranks


@frozen
class TrainingRun:
    """Time, energy and cost of so many tokens; energy at the devices' rated power, without hosts and cooling."""

    tokens: float
    days: float
    device_hours: float
    kwh: float
    cost: float | None


@frozen
class Dropped:
    """How many splits are not listed for one reason."""

    reason: str
    count: int


@frozen
class Plan(Printable):
    """Candidates from the fastest, those that fit before those that may; reports show ``top`` of them.

    ``dropped`` counts the others by reason. ``implementation``: whose kernels save activations (None: the split
    decides, ``Workload.saved_by``). ``ratio_error``: candidates whose times differ by less are alike. ``power_w``: one
    device's. ``tokens`` and ``price`` (USD a device hour; by default the list price): a whole training's, if asked for.
    ``again(model, splits=)``: the plan of another model over the splits of these workloads alone.
    """

    COMMAND = "plan"

    gpus: int
    global_batch: int
    device: str
    device_bytes: int
    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]
    assumptions: Names
    source: str
    implementation: Implementation | None
    stack: str
    ratio_error: float
    power_w: float
    tokens: float | None
    price: float | None
    again: Any
    top: int = 8
    notes: Names = ()

    @property
    def fitting(self) -> int:
        """Splits that fit."""
        return sum(one.memory_bytes <= ROOM * self.device_bytes for one in self.candidates)

    @property
    def shown(self) -> tuple[Candidate, ...]:
        """The first ``top`` candidates, which JSON has (shapes/data/json.toml)."""
        return self.candidates[: self.top]

    def ways(self) -> list[Workload]:
        """The fastest candidate of each split, the fastest first."""
        found = dict[object, Workload]()
        for one in self.candidates:
            found.setdefault(_DEGREES(one.workload), one.workload)
        return [*found.values()]

    def best(self, model: ModelShape, ways: Sequence[Workload]) -> Workload:
        """The fastest way to run another model, of the splits of ``ways``. InputError: it does not fit in any."""
        found: Plan = self.again(model, splits=ways, base=replace(self.again.keywords["base"], s=ways[0].s))
        return found.candidates[0].workload

    @property
    def indistinguishable(self) -> int:
        """How many of those that fit (may, where none does) lie within the error of a ratio from the fastest."""
        alike = self.candidates[: self.fitting or None]
        return sum(one.seconds <= alike[0].seconds * (1 + self.ratio_error) for one in alike)

    @property
    def recommended(self) -> Candidate:
        """The simplest of the candidates that are alike, the fastest of equally simple ones."""
        # The first of those alike.
        return min(self.candidates[: self.indistinguishable], key=attrgetter("complexity"))

    @property
    def training(self) -> TrainingRun | None:
        """The cost of ``tokens`` by the recommended split; None where nobody asked."""
        if self.tokens is None:
            return None
        one = self.recommended
        seconds = self.tokens / (self.global_batch * one.workload.s) * one.seconds
        hours = seconds / 3600 * self.gpus
        cost = None if self.price is None else hours * self.price
        return TrainingRun(self.tokens, seconds / 86400, hours, hours * self.power_w / 1000, cost)


@frozen
class ServingRequest:
    """What a plan for serving is asked for.

    Tokens of a prompt and its output, the engine, the longest times in seconds (None: any), the engine's share of a
    device, tokens drafted a step, the probability that one is accepted, and requests in flight (None: as many as do
    best within the limits).
    """

    prompt_tokens: int
    output_tokens: int
    engine: str = "vllm"
    ttft: float | None = None
    tpot: float | None = None
    memory_utilization: float = UTILIZATION
    drafted: int = 0
    acceptance: float = 0.0
    concurrency: int | None = None


@frozen
class Way:
    """One way to serve: ``d`` ranks of ``t`` x ``p`` devices; every ``e`` of them share their experts.

    ``prefill``: ranks that run prompts alone and pass their caches on (0: every rank runs both). ``requests`` are in
    flight over all ranks; memory holds ``most_requests``, and those beyond wait for others' outputs before their first
    token. ``memory_bytes``: one device's. ``missed``: the largest ratio of a time to its limit, or of prompts to what
    their ranks run; at most 1 if all limits are kept.
    """

    t: int
    p: int
    e: int
    d: int
    prefill: int
    requests: int
    most_requests: int
    memory_bytes: int
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    tokens_per_s_a_device: float
    missed: float


@frozen
class ServingPlan(Printable):
    """Ways to serve within the limits, from the most tokens a second.

    ``tier``: fitted on this engine and device, borrowed (the engine on others) or extrapolated (another engine, vendor
    or kind of layers). ``intervals``: metric -> measured over predicted, lower and upper, in ``coverage`` of published
    figures. ``weights``: formats of a quantised release. ``notes``: on a context that the model was not made for.
    """

    COMMAND = "plan --phase decode"

    gpus: int
    device: str
    serving: ServingRequest
    workload: Workload
    tier: str
    coverage: float
    intervals: Named
    ways: tuple[Way, ...]
    dropped: tuple[Dropped, ...]
    weights: Names
    notes: Names = ()


#: Called with how many splits are priced, of how many, and the best so far.
Progress = Callable[[int, int, Candidate], None]
#: A split's bytes of a device.
Sized = Callable[[Workload], int]


def plan_config(
    config: object,
    *,
    device: str | Device = DEFAULT_DEVICE,
    stack: str | SoftwareStack | None = None,
    tokens: float | None = None,
    price: float | None = None,
    engine: str | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    memory_utilization: float | None = None,
    drafted: int | None = None,
    acceptance: float | None = None,
    concurrency: int | None = None,
    top: int = 8,
    config_format: str | None = None,
    progress: Progress | None = None,
    **workload: Unpack[WorkloadKeywords],
) -> Plan | ServingPlan:
    """The fastest ways to spread a training step of ``config`` (as for ``check``) over ``gpus`` of ``device``.

    ``workload``: fields of ``Workload``, ``gpus`` and ``global_batch`` among them; a plan finds the degrees and the
    microbatch. ``stack`` (None: that of `sizer check` of such a split), ``tokens`` of a whole training and the
    ``price`` of a device hour as for ``plan``; ``top``: how many are shown; ``progress(splits, of, best)``.
    InputError where no split fits.

    The phase decode plans serving: ``engine`` (None: vllm) is one of ``shapes.step.serving``, ``ttft`` and ``tpot`` the
    most seconds to a first token and per output token, ``memory_utilization`` as for ``memory``; ``drafted``
    tokens a step, each accepted with the probability ``acceptance``; ``concurrency``: requests in flight, over all
    devices (None: the number that makes most tokens a second within the limits); ``sequence``: tokens of a prompt
    (1024), ``context``: with its output (twice as many).
    """
    asked = workload_fields(workload)
    phase = one_of(asked.pop("phase", "train"), ("train", "decode"), "phase")
    serving = {
        "engine": engine,
        "ttft": ttft,
        "tpot": tpot,
        "memory_utilization": memory_utilization,
        "drafted": drafted,
        "acceptance": acceptance,
        "concurrency": concurrency,
    }
    training = {"stack": stack, "tokens": tokens, "price": price, "global_batch": asked.get("global_batch")}
    other, fields = ("decode", serving) if phase == "train" else ("train", training)
    for name, one in fields.items():
        refuse(one is not None, f"expected the phase {other} with it", name, one)
    for name in _FOUND:
        refuse(name in asked, "expected none: a plan finds it", name, asked.get(name))
    gpus = positive_int(asked.pop("gpus", None), "gpus", 2**20)
    # A step is read as `memory` and `check` read it over as many devices: what runs it follows.
    target, found = load_device(device), _FOUND | {"d": gpus if phase == "train" else 1} | asked
    served_as = None if phase == "train" else _asked(found, serving)
    if served_as:
        found |= {"phase": phase, "context": served_as.prompt_tokens + served_as.output_tokens}
    else:
        global_batch = positive_int(found.pop("global_batch", None), "global_batch", 2**31)
    subject = run_on(read_subject(config, config_format=config_format, stack=stack, **found), target)
    model, notes = subject.whole(), subject.left_out
    if served_as:
        target.peak(subject.workload.dtype)  # InputError for a type that it has no figures for
        return replace(plan_serving(model, target, gpus, subject.workload, served_as, top), notes=notes)
    answer = plan(
        model,
        target,
        gpus=gpus,
        global_batch=global_batch,
        base=replace(subject.workload, d=1),
        stack=subject.stack,
        tokens=tokens,
        price=price,
        progress=progress,
        **subject.kept | {"microbatches": None},
    )
    return replace(answer, top=top, notes=notes)


def _asked(found: Values, serving: Values) -> ServingRequest:
    """The request to serve; its lengths are taken out of ``found``, the workload's fields."""
    prompt = positive_int(found.pop("s", PROMPT), "s", 2**31)
    context = positive_int(found.pop("context", 2 * prompt), "context", 2**31)
    refuse(context <= prompt, f"expected more than the prompt's {prompt} tokens", "context", context)
    check_bounds(**serving)
    return ServingRequest(prompt, context - prompt, **given(serving))


def plan(
    model: ModelShape,
    device: Device,
    *,
    gpus: int,
    global_batch: int,
    base: Workload,
    stack: str | SoftwareStack = SPREAD_STACK,
    tokens: float | None = None,
    price: float | None = None,
    progress: Progress | None = None,
    splits: Collection[Workload] = (),
    **options: Any,
) -> Plan:
    """Every split of one step over ``gpus`` that fits, from the fastest.

    ``base`` gives s, dtype and the attention kernel; ``options`` are those of ``shapes.memory.memory``. ``tokens`` asks
    what a whole training takes, ``price`` being USD a device hour. ``splits``: only those of these workloads
    (none: all). Raises InputError where no split of the devices and the global batch exists at all.
    """
    check_bounds(tokens=tokens, price=price)
    again = partial(plan, device=device, gpus=gpus, global_batch=global_batch, base=base, stack=stack, **options)
    wanted = {*map(_DEGREES, splits)}
    saved_by = options.pop("implementation", base.implementation)
    base = replace(base, phase="train", sequence_parallel=False, implementation=saved_by)
    dropped = Counter[str]()
    runs = load_stack(stack)
    pricer = Pricer(device, stack=runs)
    spread = memory(model, replace(base, b=1, d=gpus, zero=3), **options).components
    # The less, the more devices there are.
    states = gpus * sum(spread.get(name, 0) for name in ("weights", "master_weights", "optimizer_states"))
    least = -(-states // device.memory.bytes)
    refuse(
        least > gpus,
        f"expected at least {least} devices: weights and optimizer states alone take {states / 2**30:,.0f} GiB",
        "gpus",
        gpus,
    )
    base = replace(base, global_batch=global_batch, gpus=gpus)
    needed = [operator_count(model, base, causal=one).model_flops for one in (False, True)]
    policies = lru_cache(partial(_policies, model, base))
    sized = lru_cache(lambda one: memory(model, one, **options).total_bytes)
    every = [one for one in _splits(model, device, gpus, base, dropped) if not splits or _DEGREES(one) in wanted]
    tried = sorted(every, key=lambda one: _odd(model.layers, one.p))
    found = list[Candidate]()
    for at, split in enumerate(takewhile(lambda _: not REQUESTS, tried), 1):  # until somebody asks to stop
        if found and _odd(model.layers, split.p):
            dropped["pp is a power of two, or divides the layers (fours of them with the ends as layers)"] += 1
            continue
        fitting = _fitting(model, device, split, runs, policies, sized, dropped)
        pricer.prepare(model, [one for one, _ in fitting])
        for workload, used in takewhile(lambda _: not REQUESTS, fitting):
            one = _priced(model, workload, used, needed, pricer)
            insort(found, one, key=lambda own: (own.memory_bytes > ROOM * device.memory.bytes, own.seconds))
        if found and progress:
            progress(at, len(tried), found[0])
    _some(found, gpus, dropped)
    return Plan(
        gpus,
        global_batch,
        device.name,
        device.memory.bytes,
        tuple(found),
        tuple(starmap(Dropped, dropped.most_common())),
        tuple(ASSUMPTIONS),
        f"predicted:{device.name}",
        implementation=base.implementation,
        stack=runs.name,
        ratio_error=pricer.cost(model, found[0].workload).ratio_error,
        power_w=device.power_w,
        tokens=tokens,
        price=device.price_usd_per_h if price is None else price,
        again=again,
    )


def _some(found: object, gpus: int, dropped: Counter[str]) -> None:
    """InputError where nothing was ``found``, saying what most were dropped for."""
    most = max(reversed(dropped), key=lambda reason: ("even at b 1" in reason, dropped[reason]), default="")
    why = f"; most often: {most}" * bool(most)
    refuse(not found, f"expected a number of devices that some split of the model fits{why}", "gpus", gpus)


def _fitting(
    model: ModelShape,
    device: Device,
    split: Workload,
    runs: SoftwareStack,
    policies: Callable[[Implementation], Names],
    sized: Sized,
    dropped: Counter[str],
) -> list[tuple[Workload, int]]:
    """Workloads of a split that fit, with their bytes."""
    if (split.global_batch or 1) % split.d:
        dropped[f"the global batch is no multiple of DP = {split.d}"] += 1
        return []
    fits = list[tuple[Workload, int]]()
    for one in _schedules(model, split, device.link.domain_devices, dropped):
        if lacking := [option_of(field) for field in runs.without if getattr(one, field) > _FOUND[field]]:
            dropped[f"{runs.name} has no {lacking[0]}"] += 1
            continue
        before = [fit.checkpointing for fit, _ in fits if fit.zero < 2]
        if one.p > 1 and one.zero == 2 and (not before or "none" in before):
            break  # reducing every microbatch's gradients buys room to run less again, and nothing else
        fits += _microbatches(
            one, -(-model.layers // one.p), device.memory.bytes, policies(one.saved_by), sized, dropped
        )
    return fits


def _policies(model: ModelShape, base: Workload, implementation: Implementation) -> Names:
    """Policies besides none and full: modules that Megatron-Core runs again in mixtures, whose norms are kernels."""
    if base.attention == "eager":
        return ("selective",)  # fused attention saves next to nothing that its core makes again
    if not model.moe or implementation != "megatron":
        return ()
    has = [*filter(modules_in(model).__contains__, CHEAP)]
    return tuple(map(",".join, [has, [*has, "fp8_act_input"]][: 1 + bool(base.low_precision)]))


def _microbatches(
    split: Workload, layers: int, limit: int, some: Names, sized: Sized, dropped: Counter[str]
) -> Iterator[tuple[Workload, int]]:
    """For each microbatch the least recomputation that leaves room, and less of it that fills the device.

    ``layers``: a stage's; ``some``: policies of some modules; ``sized``: a function that gives bytes of a device.
    """
    share, room, tall, left = (split.global_batch or 1) // split.d, ROOM * limit, False, ["none", *some]
    for b in divisors(share, min(LARGEST_MICROBATCH, max(1, MOST_TOKENS * split.cp // split.s))):
        full, enough = replace(split, b=b, checkpointing="full"), b * split.s // split.cp >= TALL_TOKENS
        if split.vpp > 1 and full.accumulation % split.p:
            # Megatron-LM asks interleaved schedules for it.
            dropped["the microbatches of an interleaved pipeline are no multiple of p"] += 1
            continue
        least = sized(replace(full, vpp=1))  # interleaving takes more
        if least > limit or (least := sized(full)) > limit:
            never = f"does not fit with tp {split.t}, pp {split.p}, ZeRO {split.zero} even at b 1"
            dropped["a larger microbatch does not fit" if b > 1 else never] += 1
            if split.saved_by == "megatron":
                return  # others' gradients may go where one microbatch is all
            continue
        whole = least
        for policy in tuple(left):
            own = replace(full, checkpointing=policy)
            used = sized(own)
            whole = max(whole, used)
            if used <= limit:
                yield own, used
            elif policy != "none":  # nor does it fit with a larger microbatch
                left.remove(policy)
            if used <= room and not own.offload_saved:  # copies may outlast what runs again
                tall = enough
                break
            if tall:  # a larger microbatch gains less than it recomputes
                return
        else:
            bounds = min(limit, whole - 1), room
            yield from dict.fromkeys(_of_layers(full, layers, (least, whole), most, sized) for most in bounds)


def _of_layers(full: Workload, layers: int, sizes: Pair, most: float, sized: Sized) -> tuple[Workload, int]:
    """All of some layers run again, as few as ``most`` bytes allow; ``sizes``: of all of them and of none."""
    (least, whole), step = sizes, max(1, layers // 8)
    kept = min(layers - 1, max(0, int(layers * (most - least) / max(1, whole - least)) // step * step))
    fewer = replace(full, checkpointing=f"full:{layers - kept}")
    # All but falls with their number.
    return (fewer, used) if kept and (used := sized(fewer)) <= most else (full, least)


def _splits(model: ModelShape, device: Device, gpus: int, base: Workload, dropped: Counter[str]) -> Iterator[Workload]:
    """Degrees whose product is ``gpus`` and that the model divides over; t in a node, p at most the layers."""
    # A ring's ranks have two equal parts of the sequence each (SZ127).
    longest_ring = 1 if base.s % 2 else max(1, base.s // LEAST_TOKENS)
    for t in divisors(gpus, device.link.domain_devices):
        if problems := split_problems(model, replace(base, t=t)):
            dropped[f"tp {t}: {problems[0].expected}"] += 1
            continue
        for cp in divisors(gcd(gpus // t, base.s // 2), longest_ring):
            scattered = base.train and t > 1 and base.s % (t * cp) == 0
            for p in divisors(gpus // (t * cp), model.layers):
                one = replace(base, t=t, cp=cp, p=p, d=gpus // (t * cp * p), sequence_parallel=scattered)
                # Experts lie over the stage's other ranks too, tensor-parallel ones whole (Megatron-Core's folding).
                for e in divisors(one.stage_ranks if base.train else one.d, model.moe.experts if model.moe else 1):
                    if not split_problems(model, split := replace(one, e=e)):
                        yield split


def _odd(layers: int, p: int) -> bool:
    """Whether published practice has no such pipeline (Nemotron-4 has 96 layers over 12, BLOOM 70 and its ends)."""
    return p & (p - 1) > 0 and layers % p > 0 and (p % 4 > 0 or (layers + 2) % p > 0)


def _schedules(model: ModelShape, split: Workload, node: int, dropped: Counter[str]) -> Iterator[Workload]:
    """Ways to shard over data parallelism, and to interleave a pipeline."""
    stages = range(1 + 3 * (split.d > 1))
    if split.p > 1:
        dropped.update(["ZeRO 3 is not run with a pipeline"] * (split.d > 1))
        # A pipeline's trainers shard the optimizer by a switch, which takes less memory and no more time.
        # Embedding and head may be chunks of their own (split_problems).
        for zero in stages[1:3] or stages:
            one = replace(split, zero=zero)
            for vpp in range(1, min(CHUNKS, (model.layers + 2) // split.p) + 1):
                if not vpp & (vpp - 1) or not model.layers % (split.p * vpp):
                    yield replace(one, vpp=vpp)
        return
    yield from (replace(split, zero=zero) for zero in stages)
    # Hybrid sharding: within a node, replicas between nodes.
    within = node // split.t
    if split.cp == split.e == 1 < within < split.d and split.d % within == 0:
        yield replace(split, zero=3, replicas=split.d // within)


def _priced(model: ModelShape, workload: Workload, used: int, needed: Sequence[float], pricer: Pricer) -> Candidate:
    """The candidate of ``used`` bytes. ``needed``: FLOPs, whole squares and masked."""
    cost = pricer.cost(model, workload)
    parts = cost.parts
    peak = pricer.device.peak_flops.get(workload.dtype)
    return Candidate(
        workload,
        workload.accumulation,
        cost.seconds,
        cost.low,
        cost.high,
        sum(seconds for name, seconds in parts.items() if name.endswith(("parallelism", "sends"))),
        parts.get("pipeline bubble", 0.0),
        used,
        possible_mfu(needed, cost.seconds * workload.model_ranks * workload.d * peak) if peak else None,
    )


def plan_serving(
    model: ModelShape, device: Device, gpus: int, base: Workload, asked: ServingRequest, top: int
) -> ServingPlan:
    """The ``top`` ways to serve on ``gpus`` devices.

    InputError where no split fits, or none keeps the limits: the nearest is named.
    """
    stack = load_serving_stack(asked.engine, device.architecture)
    dropped = Counter[str]()
    ways = _ways(model, device, gpus, base, stack, asked, dropped)
    _some(ways, gpus, dropped)
    near = min(ways, key=attrgetter("missed"))
    refuse(
        near.missed > 1,
        f"expected limits that some way keeps; the nearest (tp {near.t}, pp {near.p}, ep {near.e}, dp {near.d}) misses "
        f"by {near.missed - 1:.0%}: TTFT {near.ttft_s * 1e3:.3g} ms, TPOT {near.tpot_s * 1e3:.3g} ms with "
        f"{near.requests} in flight",
        "gpus",
        gpus,
    )
    kept = sorted((way for way in ways if way.missed <= 1), key=lambda way: -way.tokens_per_s)
    dropped["the limits hold at no number of requests"] = len(ways) - len(kept)
    return ServingPlan(
        gpus,
        device.name,
        asked,
        base,
        _tier(model, device, stack),
        stack.coverage,
        stack.intervals["moe" if model.moe else "dense"],
        tuple(kept[: positive_int(top, "top")]),
        tuple(starmap(Dropped, (+dropped).most_common())),
        tuple(one.title for one in model.formats),
    )


def _tier(model: ModelShape, device: Device, stack: ServingStack) -> str:
    """Engines were fitted on some of NVIDIA's devices, and on models of dense attention in every layer."""
    if model.mixer or getattr(model.attention, "indexer", None) or device.vendor != "nvidia":
        return "extrapolated"
    return "borrowed" if stack.tier == "fitted" and device.name not in stack.devices else stack.tier


def _ways(
    model: ModelShape,
    device: Device,
    gpus: int,
    base: Workload,
    stack: ServingStack,
    asked: ServingRequest,
    dropped: Counter[str],
) -> list[Way]:
    """Every split at its best number of requests, pipelines where nothing less fits."""
    ways = list[Way]()
    used, room = engine_bytes(model, base), asked.memory_utilization * device.memory.bytes
    for split in _splits(model, device, gpus, base, dropped):
        if split.t * split.e > device.link.domain_devices:
            dropped["experts are priced within a node's fast links alone"] += 1
        elif split.p > 1 and (split.t, split.e) in ((way.t, way.e) for way in ways):
            dropped["fits with fewer pipeline stages: replicas serve as much, and sooner"] += 1
        elif not (runs := as_run(model, split, asked.engine)):
            dropped["ranks would cut blocks of the weights, which the engine is not known to pad (SZ124)"] += 1
        elif found := _of_split(runs, device, split, stack, asked):
            ways += found
        else:
            dropped[
                f"weights and a request take {used / 2**30:,.1f} GiB, {device.name} has {room / 2**30:.1f}: "
                f"{used // room + 1:.0f} or more"
            ] += 1
    return ways


def _of_split(
    model: ModelShape, device: Device, split: Workload, stack: ServingStack, asked: ServingRequest
) -> list[Way]:
    """The split with ranks that are all alike, and with the best share of them for prompts; none where none fits."""
    context = asked.prompt_tokens + round(stack.reserved * asked.output_tokens)
    rank = replace(split, context=context, speculative=asked.drafted)
    share, holds = asked.memory_utilization, model
    if stack.of_free:
        share = share_of_free(model, rank, device, share)
        if "window" in dimensions(model):
            # TensorRT-LLM without max_attention_window: layers with a window hold all of a request, as others do.
            holds = resize(model, window=context)
    held = most_requests(holds, rank, device, share)
    # What a check of the way counts besides: the driver's context, and that of ranks that communicate.
    room = largest_microbatch(holds, rank, device.memory.bytes)
    most = min(MOST_RUN, (room if held is None else min(held, room)) // split.p)
    if not most:
        return []
    running = np.unique(np.minimum(np.round(2 ** np.arange(0, 11.5, 1 / 16)), most))
    load = serving_load(model, split, device, asked.prompt_tokens, asked.output_tokens, split.e)
    # The longest that a request's cache takes from rank to rank; attention_s is the time to read it from memory.
    passed_s = load.attention_s * device.memory.bandwidth_bytes_per_s / device.link.intra_node_bytes_per_s
    ways = []
    for prefill in range(0, split.d, split.e):
        ranks = split.d - prefill
        many = ranks * split.p
        each = -(-(asked.concurrency or 0) // many)
        requests, first, token, rate, over = _at_best(running, each, stack, load, asked, prefill / ranks, passed_s)
        flying = asked.concurrency or requests * many
        rate *= min(flying / requests, many)
        ways.append(
            Way(
                split.t,
                split.p,
                split.e,
                split.d,
                prefill,
                flying,
                most * many,
                engine_bytes(holds, replace(rank, b=requests * split.p)),
                first,
                token,
                rate,
                rate / split.d / split.model_ranks,
                over,
            )
        )
    return ways[:1] + sorted(ways[1:], key=lambda way: (max(way.missed, 1), -way.tokens_per_s))[:1]


def _at_best(
    running: Any, each: int, stack: ServingStack, load: Load, asked: ServingRequest, prefill: float, passed_s: float
) -> Items:
    """Requests, times, tokens a second and what is missed, ``prefill`` ranks running prompts for one that does not.

    ``each``: requests that it has; those beyond the last of ``running`` wait (0: as many of ``running`` as do best).
    """
    if each:
        running = np.minimum(each, running[-1:])
    found = served(
        stack,
        load,
        running,
        asked.prompt_tokens,
        asked.output_tokens,
        apart=prefill,
        drafted=asked.drafted,
        acceptance=asked.acceptance,
    )
    first = found.first_s + np.maximum(0, each / running - 1) * asked.output_tokens * found.token_s
    busy = 0 * running
    if prefill:
        busy = found.tokens_per_s / asked.output_tokens * found.prompt_s / prefill
        # They come at random, and each takes as long.
        queue = np.minimum(busy, MOST_BUSY)
        first = first + found.prompt_s * queue / (1 - queue) / 2 + passed_s
    missed = np.maximum.reduce((first / (asked.ttft or inf), found.token_s / (asked.tpot or inf), busy / MOST_BUSY))
    at = int(np.argmax(np.where(missed <= 1, found.tokens_per_s, -missed)))
    return int(running[at]), *(float(one[at]) for one in (first, found.token_s, found.tokens_per_s, missed))
