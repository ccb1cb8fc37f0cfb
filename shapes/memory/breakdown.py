"""What a step takes on one device, by component, and what fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shapes.device import Device, load_device
from shapes.dtypes import BYTES
from shapes.errors import InputError
from shapes.memory.saved import MEGATRON, Implementation, Sizes, layer_tape, style_of, tail_tape
from shapes.memory.tape import INPUT, Tape
from shapes.model import AttentionShape, MlaShape, ModelShape
from shapes.model.parameters import ParameterTensor, block_tensors, parameter_count
from shapes.model.stages import Stage, parameter_tensors, shard_parameters, stage_kinds, stage_runs
from shapes.model.states import (
    OPTIMIZER_NOTES,
    Precision,
    default_precision,
    optimizer_state_bytes,
    precision_named,
)
from shapes.operators.lower import sequence_length
from shapes.operators.split import check_split
from shapes.workload import Workload

GIB = 2**30

#: What a process takes on the device before the first tensor: the CUDA context with its kernels, 0.5 to 2 GiB by device
#: and library (Machine Learning Engineering book, "Anatomy of model's memory usage"; huggingface.co/docs/transformers
#: perf_train_gpu_one measured 1.3 GB). The middle of the range.
CONTEXT_BYTES = GIB
#: What torch.distributed with NCCL takes more, 1 to 2 GiB (the same chapter); the lower end.
DISTRIBUTED_BYTES = GIB
#: DDP's gradient bucket (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb=25).
DDP_BUCKET_BYTES = 25 * 2**20
#: DeepSpeed ZeRO's reduce and gather buckets, elements (deepspeed.ai/docs/config-json, reduce_bucket_size).
ZERO_BUCKET_ELEMENTS = 5 * 10**8
#: 4-bit weights: a 16-bit scale for each group of 128 (GPTQ, AWQ); embeddings and norms stay in 16 bits.
INT4_GROUP = 128
WEIGHT_DTYPES: tuple[str, ...] = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Component:
    """Bytes of one component, and the formula with its numbers."""

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What one device holds at the fullest moment of a step.

    ``stage``: the pipeline stage that holds most. ``device_bytes`` and ``fits`` are None where no device was named.
    """

    parts: tuple[Component, ...]
    stage: Stage
    parameters: int
    precision: str
    optimizer: str
    implementation: str
    device_bytes: int | None

    @property
    def components(self) -> Mapping[str, int]:
        return {part.name: part.bytes for part in self.parts}

    @property
    def total_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def fits(self) -> bool | None:
        return None if self.device_bytes is None else self.total_bytes <= self.device_bytes


@dataclass(frozen=True, slots=True)
class Peak:
    """The fullest moment of forward and backward: what the forward saved, the head's and loss's share, the rest."""

    saved: int
    logits: int
    temporary: int
    moment: str

    @property
    def bytes(self) -> int:
        return self.saved + self.logits + self.temporary


def memory(
    model: ModelShape,
    workload: Workload,
    *,
    device: str | Device | None = None,
    optimizer: str = "adamw",
    precision: str | None = None,
    implementation: Implementation = "huggingface",
    microbatches: int | None = None,
    weight_dtype: str | None = None,
    context_bytes: int = CONTEXT_BYTES,
    dropout_mask_bytes: int = 1,
    fused_optimizer: bool = True,
) -> Memory:
    """Bytes of one device by component, for training or inference as ``workload.phase`` says.

    ``precision``: a name of ``PRECISIONS`` (None: by the workload's dtype). ``implementation``: what saves activations,
    transformers' eager modules or Megatron's fused kernels. ``microbatches`` a step (None: enough to fill the
    pipeline). ``weight_dtype``: of inference weights. ``dropout_mask_bytes``: 1 as CUDA's kernels, the element's own
    size on the CPU. Raises InputError for an unknown name or a split that the model does not allow.
    """
    check_split(model, workload)
    workload = workload.without_context_parallelism()
    limit = _device_bytes(device)
    names = precision or default_precision(workload)
    chosen = precision_named(names)
    stages: tuple[Stage, ...] = ("last",) if workload.p == 1 else ("first", "last")
    best: Memory | None = None
    for stage in stages:
        tensors = parameter_tensors(model, workload, stage)
        if workload.train:
            parts = tuple(
                _training(model, workload, stage, tensors, chosen, optimizer, implementation, microbatches,
                          dropout_mask_bytes, fused_optimizer)
            )  # fmt: skip
        else:
            parts = tuple(_inference(model, workload, stage, tensors, weight_dtype, implementation))
        parts += tuple(_overhead(workload, context_bytes))
        found = Memory(
            parts, stage, parameter_count(tensors), names, optimizer, implementation,
            limit,
        )  # fmt: skip
        if best is None or found.total_bytes > best.total_bytes:
            best = found
    assert best is not None
    return best


def _device_bytes(device: str | Device | None) -> int | None:
    if device is None:
        return None
    return (load_device(device) if isinstance(device, str) else device).memory.bytes


def _training(
    model: ModelShape, workload: Workload, stage: Stage, tensors: tuple[ParameterTensor, ...], precision: Precision,
    optimizer: str, implementation: Implementation, microbatches: int | None, mask: int, fused_optimizer: bool,
) -> Iterator[Component]:  # fmt: skip
    n = parameter_count(tensors)
    parts = (("weights", 3), ("master_weights", 1), ("gradients", 2), ("optimizer_states", 1))
    for name, zero in parts:
        sizes = [
            _state_bytes(name, [tensor for tensor in tensors if tensor.expert is expert], precision, optimizer)
            for expert in (False, True)
        ]
        if not sum(sizes) and name == "master_weights":
            continue
        total, text = _over_ranks(sizes, workload, zero=zero)
        what = f" ({optimizer}: {OPTIMIZER_NOTES[optimizer]})" if name == "optimizer_states" else ""
        each = "parameters x" if name == "weights" else "x"
        yield Component(name, total, f"{n:,} {each} {sum(sizes) / n:.4g} bytes{text}{what}")
    in_flight = 1
    if workload.p > 1 and stage == "first":
        # Interleaved chunks keep (p - 1) / (p vpp) more of the stage in flight (Korthikanti et al. 2205.05198, 4.2.3).
        interleaved = -(-(workload.p - 1) // workload.vpp) if workload.vpp > 1 else 0
        in_flight = min(workload.p + interleaved, microbatches or workload.p + interleaved)
    peak = activation_peak(model, workload, implementation, stage=stage, in_flight=in_flight, mask=mask)
    many = f" x {in_flight} microbatches in flight" if in_flight > 1 else ""
    yield Component("activations", peak.saved, f"{_layers(model, workload, stage)}: what autograd saves{many}")
    yield Component("logits_and_loss", peak.logits, _logits_formula(model, workload, peak))
    update = 0 if fused_optimizer else 4 * shard_parameters(model, workload, stage).updated(workload)
    spare = max(0, update - peak.saved - peak.logits)
    yield Component("temporary", max(peak.temporary, spare), peak.moment)
    yield Component("communication", *_communication(model, workload, precision, n))


def _state_bytes(name: str, tensors: Sequence[ParameterTensor], precision: Precision, optimizer: str) -> int:
    """Bytes of one component of ``tensors``, ZeRO not applied."""
    n = parameter_count(tensors)
    if name == "master_weights":
        return precision.master * n
    if name == "gradients":
        return precision.gradients * n
    if name == "optimizer_states":
        return optimizer_state_bytes(tensors, optimizer, precision)
    matrices = parameter_count(tensor for tensor in tensors if tensor.is_matrix and tensor.role == "block")
    # fp8_model_init: what is no matrix of a layer stays in 16 bits.
    whole = precision.weights * n if precision.weights else 2 * (n - matrices)
    return whole + precision.copies * n + precision.matrix_copies * matrices


def _over_ranks(sizes: Sequence[int], workload: Workload, *, zero: int) -> tuple[int, str]:
    """One rank's bytes of (what all d ranks hold, experts, which d/e of them do), where ZeRO ``zero`` shards them."""
    ranks = (workload.d, workload.expert_d) if workload.zero >= zero else (1, 1)
    total = sum(-(-size // share) for size, share in zip(sizes, ranks, strict=True))
    if max(ranks) == 1:
        return total, ""
    return total, f" / {ranks[0]}" + (f" (experts: / {ranks[1]})" if ranks[0] != ranks[1] else "")


def _layers(model: ModelShape, workload: Workload, stage: Stage) -> str:
    count = sum(block.count for _, blocks in stage_kinds(model, workload.p, stage) for block in blocks)
    how = "" if workload.checkpointing == "none" else f", {workload.checkpointing} checkpointing"
    return f"{count} layers x b {workload.b} x s {workload.s}, {workload.attention} attention{how}"


def _logits_formula(model: ModelShape, workload: Workload, peak: Peak) -> str:
    if not peak.logits:
        return "freed before the fullest moment"
    elements = workload.tokens * -(-model.vocab // workload.t)
    return f"b x s x v = {elements:,} x {peak.logits / elements:.3g} bytes (fp32 softmax and gradients)"


def activation_peak(
    model: ModelShape, workload: Workload, implementation: Implementation = "huggingface", *, stage: Stage = "last",
    in_flight: int = 1, mask: int = 1,
) -> Peak:  # fmt: skip
    """The fullest moment of a training step's forward and backward on one device.

    It is one of: the loss, with everything saved; the last layers' backward; or, of short batches, the embedding's
    gradient. New gradients of weights count as temporary until they are added to the accumulated ones.
    """
    style, e = style_of(model, implementation), workload.activation_bytes
    kinds, runs = stage_runs(model, workload.p, stage)
    tapes: list[tuple[Tape, int]] = []
    for stack, block in kinds:
        sizes = _sizes(model, workload, implementation, sequence_length(model, stack, workload), mask)
        tapes.append((layer_tape(block, stack.hidden, sizes), sizes.whole * stack.hidden * e))
    full, selective = workload.checkpointing == "full", workload.checkpointing == "selective"
    kept = [x if full else tape.saved_bytes(selective=selective) for tape, x in tapes]
    tables = _tables(model, workload, e, eager_mask=full and style is not MEGATRON)
    saved = in_flight * sum(one * block.count for one, (_, block) in zip(kept, kinds, strict=True)) + tables
    saved += _embedding_dropout(model, workload, stage, mask)
    first, last = stage == "first" or workload.p == 1, stage == "last" or workload.p == 1
    width = model.embedding_dim or model.hidden
    embedding = -(-model.vocab // workload.t) * width * e
    tied_head = embedding if model.tied and model.head and last else 0
    peaks = [Peak(saved, 0, 0, "end of the forward")]
    if last and model.head:
        sizes = _sizes(model, workload, implementation, sequence_length(model, model.main, workload), mask)
        peaks.append(Peak(saved, tail_tape(model, sizes, loss=True).backward_peak_bytes(4), 0, "at the loss"))
    below, waiting = saved, set(range(len(kinds)))
    for place, count in reversed(runs):
        if place not in waiting:  # less is saved by now than at this kind's last layers
            below -= kept[place] * count
            continue
        waiting.remove(place)
        (tape, x), one = tapes[place], kept[place]
        # A checkpointed layer's input stays whether or not its own nodes save it.
        own = 0 if full and INPUT not in tape.saved() else one
        peak = below - own + tape.backward_peak_bytes(x) + tied_head
        again = ", its forward run again" if full or selective else ""
        moment = f"backward of a layer{again}: gradients of activations and of one weight"
        peaks.append(Peak(saved, 0, max(0, peak - saved), moment))
        below -= one * count
        if not waiting:
            break
    if first and model.vocab:
        # A tied matrix meets its head's gradient here: both and their sum.
        total = embedding * (3 if tied_head else 1)
        peaks.append(Peak(min(saved, total), 0, max(0, total - saved), "gradient of the embedding"))
    return max(peaks, key=lambda peak: peak.bytes)


def _embedding_dropout(model: ModelShape, workload: Workload, stage: Stage, mask: int) -> int:
    """The mask of the embedding's dropout, where the model drops out at all."""
    if stage == "last" and workload.p > 1:
        return 0
    return sum(
        workload.b * sequence_length(model, stack, workload) * stack.hidden * mask
        for stack in model.stacks
        if stack.blocks[0].dropout
    )


def _sizes(model: ModelShape, workload: Workload, implementation: Implementation, s: int, mask: int) -> Sizes:
    rows = workload.b * s
    whole = -(-rows // workload.t) if workload.sequence_parallel else rows
    e = workload.activation_bytes
    # HF's eager path knows no fp8; Transformer Engine saves the quantised input of each product.
    stored = 1 if workload.dtype in ("fp8", "mxfp8", "nvfp4") else e
    kv = s
    return Sizes(style_of(model, implementation), workload, rows, whole, s, kv, e, mask, stored)


def _tables(model: ModelShape, workload: Workload, e: int, *, eager_mask: bool) -> int:
    """Rotary cosines and sines, and the additive masks that checkpointing keeps for running a layer again."""
    attention = model.attention
    if attention is None:
        return 0
    total = 2 * workload.s * attention.rotary_dim * e
    if eager_mask and workload.attention == "eager":
        kinds = {block.attention.window for _, block in model.all_blocks() if block.attention}
        total += len(kinds) * workload.b * workload.s**2 * e
    return total


def _communication(model: ModelShape, workload: Workload, precision: Precision, n: int) -> tuple[int, str]:
    e = workload.activation_bytes
    parts: list[tuple[int, str]] = []
    if workload.t > 1 and workload.sequence_parallel:
        parts.append((workload.tokens * model.hidden * e, "gathered activations b x s x h"))
    if workload.p > 1:
        parts.append((2 * workload.tokens * model.hidden * e, "pipeline receive and send b x s x h"))
    if workload.d > 1 and workload.zero == 0:
        parts.append((min(DDP_BUCKET_BYTES, n * precision.gradients), "DDP's gradient bucket"))
    if workload.d > 1 and workload.zero in (1, 2):
        bucket = min(ZERO_BUCKET_ELEMENTS, n) * (precision.gradients + precision.weights)
        parts.append((bucket, "ZeRO's reduce and gather buckets"))
    if workload.d > 1 and workload.zero == 3:
        layer = max(
            parameter_count(block_tensors(replace(block, count=1), stack.hidden, workload.t, workload.e))
            for stack, block in model.all_blocks()
        )
        gathered = 2 * layer * max(precision.weights, 2)
        parts.append((gathered, "two gathered layers (this one and the next)"))
    if not parts:
        return 0, "one device"
    return sum(size for size, _ in parts), "; ".join(text for _, text in parts)


def _overhead(workload: Workload, context_bytes: int) -> Iterator[Component]:
    devices = workload.t * workload.p * max(workload.d, workload.e)
    distributed = DISTRIBUTED_BYTES if devices > 1 else 0
    text = "CUDA context and kernels (0.5 to 2 GiB)" + (" and torch.distributed (1 to 2 GiB)" if distributed else "")
    yield Component("framework", context_bytes + distributed, text)


def _inference(
    model: ModelShape, workload: Workload, stage: Stage, tensors: tuple[ParameterTensor, ...], weight_dtype: str | None,
    implementation: Implementation,
) -> Iterator[Component]:  # fmt: skip
    dtype = weight_dtype or ("bf16" if workload.dtype == "tf32" else workload.dtype)
    if dtype not in WEIGHT_DTYPES:
        raise InputError(f"expected one of {', '.join(WEIGHT_DTYPES)}", key="weight_dtype", value=dtype)
    n = parameter_count(tensors)
    yield Component("weights", weight_bytes(tensors, dtype), f"{n:,} parameters in {dtype}")
    yield Component("kv_cache", *_kv_cache(model, workload, stage))
    e = workload.activation_bytes
    forward = 0
    for stack, blocks in stage_kinds(model, workload.p, stage):
        sizes = _sizes(model, workload, implementation, sequence_length(model, stack, workload), 1)
        forward = max(forward, *(layer_tape(block, stack.hidden, sizes).forward_peak_bytes() for block in blocks))
    yield Component("activations", forward, f"one layer at a time, b {workload.b} x s {workload.s}, nothing saved")
    rows = workload.b * -(-model.vocab // workload.t) if model.head else 0
    yield Component("logits", rows * (e + 4), "the last position's, b x v, and their fp32 copy")
    yield Component("communication", *_communication(model, replace(workload, zero=0, d=1), precision_named("bf16"), n))


def weight_bytes(tensors: tuple[ParameterTensor, ...], dtype: str) -> int:
    """Bytes of weights stored in ``dtype``; embeddings, head and vectors stay in 16 bits where it is narrower."""
    sizes = {**BYTES, "int4": 1}
    if sizes[dtype] >= 2:
        return sum(tensor.copies * tensor.elements * sizes[dtype] for tensor in tensors)
    total = 0
    for tensor in tensors:
        n = tensor.copies * tensor.elements
        if not (tensor.is_matrix and tensor.role == "block"):
            total += 2 * n
        elif dtype == "int4":
            total += -(-n // 2) + 2 * -(-n // INT4_GROUP)
        else:
            total += n
    return total


def _kv_cache(model: ModelShape, workload: Workload, stage: Stage) -> tuple[int, str]:
    """Keys and values of every layer: grouped heads, a window's worth of them, or MLA's latent vector."""
    e, total, texts = workload.activation_bytes, 0, []
    for stack, blocks in stage_kinds(model, workload.p, stage):
        s = sequence_length(model, stack, workload)
        for block in blocks:
            attention = block.attention
            if attention is None or not attention.causal:
                continue
            if isinstance(attention, MlaShape):
                per_token, what = attention.kv_lora_rank + attention.qk_rope_head_dim, "latent"
            else:
                assert isinstance(attention, AttentionShape)
                _, kv = attention.on_shard(workload.t)
                per_token, what = kv * (attention.head_dim + attention.v_dim), f"{kv} kv heads"
            length = min(s, attention.window or s)
            total += block.count * workload.b * length * per_token * e
            texts.append(f"{block.count} layers x b {workload.b} x {length} tokens x {per_token} ({what}) x {e}")
    return total, "; ".join(texts) or "no causal attention"
