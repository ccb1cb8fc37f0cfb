"""Bytes of a step on one device by component, and what fits: largest microbatch, smallest degrees, savings."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from math import ceil, gcd, inf, isqrt
from typing import Any

from shapes.device import Device, load_device
from shapes.dtypes import BYTES, dtype_bytes
from shapes.engines import as_run
from shapes.errors import InputError, one_of
from shapes.frozen import Named, Numbers, Sizes, frozen, replace
from shapes.model import (
    PRECISIONS,
    Block,
    ModelShape,
    ParameterTensor,
    Stack,
    Tensors,
    default_precision,
    optimizer_state_bytes,
    parameter_count,
)
from shapes.model.stages import Stage, as_held, check_finetune
from shapes.operators import image_workloads, sequence_length
from shapes.operators.cores import cached_numbers, is_sparse, state_bytes
from shapes.operators.parallel import check_split, head_counts
from shapes.toml_table import DATA, content
from shapes.workload import LOSSES, Implementation, Loss, Workload

from .modules import IMPLEMENTATIONS, buffer_bytes
from .moments import (
    AtMoment,
    Component,
    Gradients,
    StageStep,
    communication,
    gradients_of,
    held,
    microbatches_of,
    most_in_flight,
    training,
)
from .tape import peak_bytes

GIB = 2**30
#: How full of a device's memory a step is said to fit: what the caching allocator's fragmentation takes is unknown, and
#: published peaks have been predicted off by as much as the rest (reports/memory-peaks.md).
ROOM = 0.92

#: Bytes of a process on the device before the first tensor: the CUDA context with its kernels, 0.5 to 2 GiB by device
#: and library (Machine Learning Engineering book, "Anatomy of model's memory usage"; huggingface.co/docs/transformers
#: perf_train_gpu_one measured 1.3 GB). The middle of the range.
CONTEXT_BYTES = GIB
#: Further bytes of torch.distributed with NCCL, 1 to 2 GiB (the same chapter); the lower end.
DISTRIBUTED_BYTES = GIB
#: Free bytes in the last segments of the caching allocator's two pools (20 and 2 MiB: kLargeBuffer and kSmallBuffer of
#: c10/cuda/CUDACachingAllocator.cpp): half of them is free on average.
OPEN_SEGMENTS = 11 * 2**20
#: Bytes of an element with its share of a block's scale.
STORED: Numbers = content(DATA / "models.toml")["stored"]


@frozen
class Memory:
    """Bytes of one device at the fullest moment of a step.

    ``stage``: the pipeline stage that holds most. ``device_bytes`` and ``fits`` are None where no device was named.
    ``moment`` is the fullest one's name, ``moments`` the total bytes of each that was looked at (training only), and
    ``gradients`` says whether gradients stay allocated between microbatches. ``reserved_bytes``: what torch's allocator
    holds of the device for them, in use, cached and in pieces (None: not simulated).
    """

    parts: tuple[Component, ...]
    stage: Stage
    parameters: int
    precision: str
    optimizer: str
    implementation: str
    device_bytes: int | None
    moment: str = ""
    moments: tuple[AtMoment, ...] = ()
    gradients: Gradients | None = None
    reserved_bytes: int | None = None

    @property
    def components(self) -> Sizes:
        return {part.name: part.bytes for part in self.parts}

    @property
    def total_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of tensors, what torch.cuda.max_memory_allocated says."""
        return sum(part.bytes for part in self.parts if part.name not in ("framework", "allocator"))

    @property
    def fits(self) -> bool | None:
        """Whether it leaves the room that is asked of a device; None without one."""
        return None if self.device_bytes is None else self.total_bytes <= ROOM * self.device_bytes

    @property
    def may_fit(self) -> bool:
        """Whether it may fit: it is over the room (in training: the device) by no more than the error of peaks.

        Weights and cache of a served model are known to the byte, and have to fit whole.
        """
        room = ROOM if self.moments else 1.0
        return self.device_bytes is None or room * self.total_bytes <= self.device_bytes


def memory(
    model: ModelShape,
    workload: Workload,
    *,
    device: str | Device | None = None,
    implementation: Implementation | None = None,
    microbatches: int | None = None,
    weight_dtype: str | None = None,
    context_bytes: int = CONTEXT_BYTES,
    dropout_mask_bytes: int = 1,
    loss: Loss | None = None,
    simulate: bool = False,
) -> Memory:
    """Bytes of one device by component, for training or inference as ``workload.phase`` says.

    ``implementation``: what saves activations, transformers' eager modules or Megatron's fused kernels; None: the
    workload's, else by its split (``Workload.saved_by``). ``microbatches`` a step (None: by the global batch, else one,
    or enough to fill the pipeline): with more than one, gradients stay allocated between them. ``weight_dtype``: of
    inference's.
    ``context_bytes``: of a process on the device before its first tensor (0: tensors alone are counted, as
    torch.cuda.max_memory_allocated does). ``dropout_mask_bytes``: 1 as CUDA's kernels, the element's own size on the
    CPU. ``loss``: of ``LOSSES`` (None: the implementation's). ``simulate``: torch's allocator too, in training.
    InputError: an unknown name, a split not allowed.
    """
    check_split(model, workload)
    check_finetune(model, workload)
    kept_in = workload.precision or default_precision(workload)
    on, low = None if device is None else load_device(device), workload.low_precision
    one_of(loss or LOSSES[0], LOSSES, "loss")
    saved_by, bits = implementation or workload.saved_by, PRECISIONS[kept_in]
    if workload.reduces and saved_by == "megatron":  # its gradients are reduced where they are added up
        bits = replace(bits, gradients=dtype_bytes(workload.reduces))
    copies = 1 if low and on and on.architecture in low.either_layout else 2
    microbatches = microbatches_of(workload, microbatches)
    gradients = gradients_of(saved_by, microbatches)
    how = bits, workload.optimizer or "adamw", saved_by, dropout_mask_bytes, loss, copies, gradients.stay
    # Chunks show in what is in flight alone, and add nothing to it on the last stage.
    if workload.serving and not weight_dtype:
        model = as_run(model, workload) or model
    model, whole = as_held(model, workload), replace(workload.without_context_parallelism(), vpp=1)
    limit = on.memory.bytes if on else None
    steps = [StageStep(model, whole, "last", 1, *how)]
    if workload.p > 1:
        steps.insert(0, StageStep(model, whole, "first", most_in_flight(workload, microbatches), *how))
    found = ((_of_step(step, gradients, kept_in, limit, context_bytes, weight_dtype), step) for step in steps)
    most, step = max(found, key=lambda one: one[0].total_bytes)
    if simulate and workload.train and not workload.offload_saved:
        from .allocator import reserved_bytes  # its moves of every block are asked for seldom

        reserved = reserved_bytes(step, most.components, limit or inf)
        return replace(most, reserved_bytes=max(most.allocated_bytes, reserved))
    return most


@lru_cache  # a plan asks for the same last stage with each number of chunks
def _of_step(
    step: StageStep, gradients: Gradients, kept_in: str, limit: int | None, context_bytes: int, weight_dtype: str | None
) -> Memory:
    n = held(step).parameters if step.workload.train else parameter_count(step.tensors)
    overhead = tuple(_overhead(step, context_bytes))
    named = step.stage, n, kept_in, step.optimizer, step.implementation, limit
    if not step.workload.train:
        return Memory((*_inference(step, weight_dtype), *overhead), *named)
    parts, found = training(step, gradients, overhead)
    return Memory(parts, *named, *found)


def memory_of_parameters(parameters: int, workload: Workload) -> int:
    """The least bytes of one device for a model known by its parameters alone, spread as evenly as can be.

    Weights, and in training their master copies, gradients and optimizer states, with the framework's own.
    """
    side = isqrt(parameters // (workload.t * workload.p * workload.e))
    tensors = (ParameterTensor("parameters", (side, side), 1, "block"),)
    precision = PRECISIONS[workload.precision or default_precision(workload)]
    if not workload.train:
        return weight_bytes(tensors, workload.dtype) + CONTEXT_BYTES
    states = optimizer_state_bytes(tensors, workload.optimizer or "adamw", precision) + side * side * precision.master
    sizes = (states, 1), (side * side * precision.gradients, 2), (side * side * precision.weights, 3)
    return CONTEXT_BYTES + sum(size // (workload.d if workload.zero >= stage else 1) for size, stage in sizes)


def _overhead(step: StageStep, context_bytes: int) -> Iterator[Component]:
    """Components in addition to a step's own tensors."""
    workload = step.workload
    distributed = DISTRIBUTED_BYTES if workload.model_ranks * workload.d > 1 and context_bytes else 0
    context_bytes = context_bytes and max(context_bytes, IMPLEMENTATIONS[step.implementation]["context_mib"] << 20)
    text = "CUDA context and kernels (0.5 to 2 GiB, most if CUDA_MODULE_LOADING=EAGER)"
    text += " and torch.distributed (1 to 2 GiB)" * (distributed > 0)
    yield Component("framework", context_bytes + distributed, text)
    if buffers := buffer_bytes(step.model, step.style, step.layers):
        yield Component("buffers", buffers, f"the class's own, of {step.model.max_positions} positions")
    if context_bytes:  # without a device there is no caching allocator
        yield Component("allocator", OPEN_SEGMENTS, "segments half used (torch's caching allocator)")


def _inference(step: StageStep, weight_dtype: str | None) -> Iterator[Component]:
    model, workload = step.model, step.workload
    dtype = weight_dtype or ("fp32" if workload.dtype == "tf32" else workload.dtype)
    if weight_dtype:
        one_of(dtype, STORED, "weight_dtype")
    n, size = parameter_count(step.tensors), weight_bytes(step.tensors, dtype)
    formats = () if weight_dtype else dict.fromkeys(one.weights.title for one in step.tensors if one.weights)
    if formats:
        dtype = f"{', '.join(formats)}, the rest in {dtype}"
        size = sum(tensor.stored_bytes(workload.activation_bytes) for tensor in step.tensors)
    yield Component("weights", size, f"{n:,} parameters in {dtype}")
    cached, alike = 0, Counter[str]()
    for stack, block in step.blocks:
        for each, how in _cached(step, stack, block):
            cached += block.count * workload.b * each
            alike[how] += block.count
    layers_of = (f"{count} layers x b {workload.b} x {how}" for how, count in alike.items())
    yield Component("kv_cache", cached, "; ".join(layers_of) or "no causal attention")
    plain = StageStep(model, workload, implementation=step.implementation)
    layers = [
        (stack.hidden, block, plain.forward(sequence_length(model, stack, workload) + block.joint_tokens))
        for stack, block in step.blocks
    ] + [
        (tower.stack.hidden, block, replace(plain, workload=own).forward(patches))
        for tower, own, patches, _ in image_workloads(model, workload)
        for block in tower.stack.kinds
    ]
    tapes = (run.layer_tape(block, hidden) for hidden, block, run in layers)
    forward = max(peak_bytes((tape.compiled() if step.megatron else tape).forward()) for tape in tapes)
    yield Component("activations", forward, f"one layer at a time, b {workload.b} x s {workload.s}, nothing saved")
    positions = workload.b * (workload.s if workload.decode else 1)
    rows = positions * model.head * -(-model.vocab // workload.t)
    which = "the step's" if workload.decode else "the last position's"
    yield Component("logits", rows * (workload.activation_bytes + 4), f"{which}, b x v, and their fp32 copy")
    yield Component("communication", *communication(replace(step, workload=replace(workload, d=1))))


def weight_bytes(tensors: Tensors, dtype: str) -> int:
    """Bytes of weights stored in ``dtype``; embeddings, head and vectors stay in 16 bits where it is narrower."""
    narrow = STORED.get(dtype) or BYTES[dtype]
    sizes = {True: narrow, False: max(2, narrow)}
    return sum(ceil(one.copies * one.elements * sizes[one.is_matrix and one.role == "block"]) for one in tensors)


def _cached(step: StageStep, stack: Stack, block: Block) -> Iterator[tuple[int, str]]:
    """Keys and values of one layer and sequence: grouped heads, a window's worth of them, or MLA's latent vector."""
    workload, attention = step.workload, block.attention
    if block.mixer:
        state = state_bytes(block.mixer, workload)
        yield state, f"a state of {state} bytes"
    if not attention or not attention.causal or attention.keys_values == "borrowed":
        return
    s = sequence_length(step.model, stack, workload)
    length = workload.cached(s, attention.window)
    if is_sparse(attention, length):
        length = workload.cached(s, None)
    numbers, what = cached_numbers(attention, workload.t, length)
    e = BYTES[workload.cache_dtype]
    yield numbers * e, f"{what} x {e}"


#: No microbatch is searched beyond this: a million sequences fill no device usefully.
LARGEST_SEARCHED = 2**20


def largest_size(needs: Callable[[int], int], limit: float, most: int = LARGEST_SEARCHED, least: int = 1) -> int | None:
    """The largest size whose ``needs`` are within ``limit``; 0 where those of ``least`` are not, None where all are.

    Bytes grow nearly in a straight line, which a few guesses follow; every other time what is left is halved.
    """
    low, high, halves = (least, needs(least)), (most, needs(most)), False
    if low[1] > limit:
        return 0
    if high[1] <= limit:
        return None
    while high[0] - low[0] > 1:
        share = 0.5 if halves else (limit - low[1]) / (high[1] - low[1])
        middle = min(low[0] + max(1, int(share * (high[0] - low[0]))), high[0] - 1)
        found = middle, needs(middle)
        low, high = (found, high) if found[1] <= limit else (low, found)
        halves = not halves
    return low[0]


def largest_microbatch(model: ModelShape, workload: Workload, limit_bytes: float, **options: Any) -> int:
    """The largest b that fits ``limit_bytes``, any integer up to a million; 0 where not even one sequence does.

    ``options`` are those of ``memory``.
    """
    # As many microbatches a step at every b: whether gradients stay is not to change with it.
    options = {**options, "microbatches": microbatches_of(workload, options.get("microbatches"))}
    found = largest_size(lambda b: memory(model, replace(workload, b=b), **options).total_bytes, limit_bytes)
    return LARGEST_SEARCHED if found is None else found


@frozen
class Saved:
    """A ``change`` of the workload (field -> value) that takes less memory.

    It holds the bytes that the change leaves at the workload's b, the largest microbatch it allows, and seconds of the
    step with it (None: not priced).
    """

    name: str
    change: Named
    total_bytes: int
    fits: bool
    largest_microbatch: int
    step_seconds: float | None = None


def possible_savings(workload: Workload, host: bool = True) -> Iterator[tuple[str, Named]]:
    """(name, change) of the savings not yet in use that this workload allows, cheapest in time first as a rule.

    ``host``: those too that leave something with the device's host.
    """
    said = replace(workload, optimizer=workload.optimizer or "adamw")
    for one in content(DATA / "savings.toml")["saving"] if workload.train else ():
        if said.holds(one["when"]) and (host or "host" not in one):
            yield one["name"], one["change"]


def savings(
    model: ModelShape, workload: Workload, limit_bytes: float, *, host: bool = True, **options: Any
) -> Iterator[Saved]:
    """Each possible saving by itself: what it leaves and the largest microbatch with it."""
    for name, change in possible_savings(workload, host):
        changed = replace(workload, **change)
        total = memory(model, changed, **options).total_bytes
        largest = largest_microbatch(model, changed, limit_bytes, **options)
        yield Saved(name, change, total, total <= limit_bytes, largest)


def _smallest(key: str, model: ModelShape, workload: Workload, limit_bytes: float, **options: Any) -> int | None:
    """The smallest degree that fits; None where none does. ``options`` are those of ``memory``."""
    # Whole heads on every rank, as many layers on every stage; an engine's stages may differ by one.
    whole, most = (model.layers * workload.train, model.layers) if key == "p" else (gcd(*head_counts(model)), 64)
    for degree in divisors(whole, most):
        with suppress(InputError):
            if memory(model, replace(workload, **{key: degree}), **options).total_bytes <= limit_bytes:
                return degree
    return None


#: The smallest t that the model's heads divide by and that fits, and the smallest p at the workload's t.
smallest_tp, smallest_pp = partial(_smallest, "t"), partial(_smallest, "p")


@cache
def divisors(whole: int, largest: int) -> list[int]:
    """Divisors of ``whole`` up to ``largest`` and the most ranks, ascending; of 0, which everything divides, all."""
    return [one for one in range(1, min(largest, 2**20) + 1) if whole % one == 0]
