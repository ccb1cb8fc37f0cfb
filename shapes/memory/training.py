"""A training step's bytes on one device by component, at its fullest moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, prod

from shapes.frozen import frozen
from shapes.frozen import replaced as replace
from shapes.memory.moments import Gradients, Moment, Step, moments
from shapes.model.parameters import (
    OPTIMIZERS,
    ParameterTensor,
    block_tensors,
    optimizer_state_bytes,
    parameter_count,
)
from shapes.model.stages import (
    ShardParameters,
    base_of,
    layers_train,
    trained_tensors,
    widened,
)
from shapes.workload import BASES, Workload

#: DeepSpeed ZeRO's reduce and gather buckets, elements (deepspeed.ai/docs/config-json, reduce_bucket_size).
ZERO_BUCKET_ELEMENTS = 5 * 10**8


@frozen
class Component:
    """Bytes of one component of a device's memory, and the formula with its numbers."""

    name: str
    bytes: int
    formula: str


def gradients_of(step: Step) -> Gradients:
    """Whether gradients exist before a microbatch's backward: accumulation and frameworks' own buffers keep them."""
    each = step.recipe.precision.gradients
    number = microbatches_of(step.workload, step.recipe.microbatches)
    if step.megatron:
        return Gradients(True, "stay: Megatron's gradient buffers are allocated once", each)
    if number is None or number > 1:
        many = "the microbatches that fill the pipeline" if number is None else f"{number} microbatches"
        return Gradients(True, f"stay: added up over {many}", each)
    return Gradients(False, "one microbatch a step, zero_grad(set_to_none=True): none before its backward", each)


def microbatches_of(workload: Workload, microbatches: int | None = None) -> int | None:
    """Microbatches a step: as given, by the global batch, else 1 (None: as many as fill the pipeline)."""
    if microbatches is not None:
        return microbatches
    if workload.global_batch is not None:
        return max(1, workload.global_batch // (workload.b * workload.d))
    return None if workload.p > 1 else 1


def training(step: Step) -> tuple[tuple[Component, ...], str, list[tuple[str, int]], Gradients]:
    """Components of one stage's step at its fullest moment, that one's name, every moment's total, and gradients.

    Raises InputError for an unknown optimizer.
    """
    workload = step.workload
    tensors, trained = step.tensors, trained_tensors(step.model, workload, step.stage)
    states = (_states if layers_train(workload) else _tuned_states)(step, tensors, trained)
    step, gradients = replace(step, in_flight=_in_flight(step)), gradients_of(step)
    looked_at = {moment: step.gradient_bytes(moment.gradients) for moment in moments(step, gradients)}
    fullest, kept = max(looked_at.items(), key=lambda one: one[0].bytes + one[1])
    exchanged, text = communication(step, parameter_count(tensors))
    # DistributedDataParallel's buckets are as large as all gradients together. gradient_as_bucket_view False, torch's
    # default, keeps gradients in addition.
    buckets = 0
    if workload.d > 1 and not workload.zero and not step.megatron:
        buckets = parameter_count(trained) * step.recipe.precision.gradients
    dummies = tuple(_dummy_wgrads(step))
    always = sum(part.bytes for part in (*states, *dummies)) + exchanged + buckets
    how = _gradients_formula(fullest.gradients, workload, gradients)
    if buckets:
        text, exchanged = f"gradients outside DDP's buckets (gradient_as_bucket_view=False), {how}", exchanged + kept
        how = f"{parameter_count(trained):,} x {gradients.bytes} bytes: DistributedDataParallel's buckets, always there"
    parts = (
        *states[:-1],
        Component("gradients", buckets or kept, how),
        *dummies,
        states[-1],
        Component("activations", fullest.saved, _activations_formula(step)),
        Component("logits_and_loss", fullest.logits, _logits_formula(step, fullest)),
        Component("temporary", fullest.temporary, fullest.name),
        Component("communication", exchanged, text),
    )
    totals = [(moment.name, always + moment.bytes + size) for moment, size in looked_at.items()]
    return parts, fullest.name, totals, gradients


def _in_flight(step: Step) -> int:
    """Microbatches whose activations the stage holds at once."""
    workload = step.workload
    if step.last:
        return 1
    # Interleaved chunks keep (p - 1) / (p vpp) more of the stage in flight (Korthikanti et al. 2205.05198, 4.2.3).
    most = workload.p + (-(-(workload.p - 1) // workload.vpp) if workload.vpp > 1 else 0)
    return min(most, microbatches_of(workload, step.recipe.microbatches) or most)


def _gradients_formula(there: ShardParameters, workload: Workload, gradients: Gradients) -> str:
    if not there.total:
        return gradients.why
    _, text = _over_ranks((0, 0), workload, zero=2)
    return f"{there.total:,} x {gradients.bytes} bytes{text} ({gradients.why})"


def _states(step: Step, tensors: Sequence[ParameterTensor], trained: Sequence[ParameterTensor]) -> list[Component]:
    """Weights, master weights where there are some, and last the optimizer's states: of all ``tensors``."""
    recipe = step.recipe
    n, found = parameter_count(tensors), []
    for name, zero in (("weights", 3), ("master_weights", 1), ("optimizer_states", 1)):
        split = ([tensor for tensor in tensors if tensor.expert is expert] for expert in (False, True))
        sizes = [_state_bytes(name, own, step) for own in split]
        if not sum(sizes) and name == "master_weights":
            continue
        total, text = _over_ranks(sizes, step.workload, zero=zero)
        what = f" ({recipe.optimizer}: {OPTIMIZERS[recipe.optimizer]['note']})" if name == "optimizer_states" else ""
        each = "parameters x" if name == "weights" else "x"
        found.append(Component(name, total, f"{n:,} {each} {sum(sizes) / max(n, 1):.4g} bytes{text}{what}"))
    return found


def _tuned_states(
    step: Step, tensors: Sequence[ParameterTensor], trained: Sequence[ParameterTensor]
) -> list[Component]:
    """The frozen base and what trains with it; as ``_states``, the optimizer's states last.

    bitsandbytes quantises the layers' matrices that are nn.Linear, which transformers 5's packed experts are not;
    peft's ``prepare_model_for_kbit_training`` keeps the rest of such a base in fp32.
    """
    workload, base = step.workload, base_of(step.workload)
    frozen = [tensor for tensor in tensors if tensor not in trained]
    kept, rest = ("fp32", 4) if widened(workload) else ("16 bits", 2)
    sizes = [0, 0]
    for one in frozen:
        each = BASES[base] * (step.recipe.layouts if base == "fp8" else 1)
        sizes[one.expert] += one.stored_bytes(rest) if base == "release" else _base_bytes(one, each, rest)
    total, text = _over_ranks(sizes, workload, zero=3)
    experts = "experts, " if base != "release" and any(one.expert for one in frozen) else ""
    note = "" if base == "bf16" else f", {experts}embeddings, head and vectors in {kept}"
    if base.startswith("int8"):
        text += " (LLM.int8()'s activations are not compared with torch's tracker)"
    weights = Component("weights", total, f"{parameter_count(frozen):,} frozen parameters in {base}{note}{text}")
    own, *others = _states(step, trained, trained)
    return [weights, replace(own, name="trained_weights"), *others]


def _base_bytes(tensor: ParameterTensor, quantised: float, rest: int) -> int:
    """Bytes of a frozen tensor: a layer's matrix as the base keeps it, with a scale a row in int8."""
    each = quantised if tensor.is_matrix and tensor.role == "block" and not tensor.expert else rest
    scales = 4 * tensor.copies * tensor.shape[0] if each == 1 else 0
    return ceil(each * tensor.copies * tensor.elements) + scales


def _dummy_wgrads(step: Step) -> Iterator[Component]:
    """Tensors given to autograd where a product added its weight's gradient to the buffer: one tensor of each shape.

    get_dummy_wgrad in transformer_engine/pytorch/module/base.py, which keeps them.
    """
    if not step.fused_wgrad:
        return
    workload, found = step.workload, set()
    for stack, block in ((stack, block) for stack, blocks in step.kinds for block in blocks):
        linears = block.linears(stack.hidden, fused_qkv=True, fused_gate_up=True)
        for linear in (*linears, *block.expert_linears(stack.hidden, fused=True)):
            own = linear.on_shard(workload.t)
            found.add((own.out_features, own.in_features))
    total = sum(map(prod, found))
    text = f"one for each of {len(found)} shapes of matrices (Transformer Engine's get_dummy_wgrad)"
    yield Component("dummy_wgrads", total * workload.activation_bytes, text)


def _state_bytes(name: str, tensors: Sequence[ParameterTensor], step: Step) -> int:
    """Bytes of one component of ``tensors``, ZeRO not applied."""
    n, recipe, precision = parameter_count(tensors), step.recipe, step.recipe.precision
    if name == "master_weights":
        return precision.master * n
    if name == "optimizer_states":
        return optimizer_state_bytes(tensors, recipe.optimizer, precision)
    matrices = parameter_count(tensor for tensor in tensors if tensor.is_matrix and tensor.role == "block")
    # fp8_model_init: what is no matrix of a layer stays in 16 bits.
    whole = precision.weights * n if precision.weights else 2 * (n - matrices)
    quantised = recipe.layouts * step.quantised_bytes if precision.matrix_copies else 0
    return whole + precision.copies * n + ceil(quantised * matrices)


def _over_ranks(sizes: Sequence[int], workload: Workload, *, zero: int) -> tuple[int, str]:
    """One rank's bytes of (what all d ranks hold, experts, which d/e of them do), where ZeRO ``zero`` shards them."""
    ranks = (workload.d, workload.expert_d) if workload.zero >= zero else (1, 1)
    total = sum(-(-size // share) for size, share in zip(sizes, ranks, strict=True))
    if max(ranks) == 1:
        return total, ""
    return total, f" / {ranks[0]}" + (f" (experts: / {ranks[1]})" if ranks[0] != ranks[1] else "")


def _activations_formula(step: Step) -> str:
    workload, count = step.workload, sum(block.count for _, blocks in step.kinds for block in blocks)
    how = "" if workload.checkpointing == "none" else f", {workload.checkpointing} checkpointing"
    many = f" x {step.in_flight} microbatches in flight" if step.in_flight > 1 else ""
    layers = f"{count} layers x b {workload.b} x s {workload.s}, {workload.attention} attention{how}"
    return f"{layers}: what autograd saves{many}"


def _logits_formula(step: Step, peak: Moment) -> str:
    if not peak.logits:
        return "freed before the fullest moment"
    elements = step.workload.tokens * -(-step.model.vocab // step.workload.t)
    head = "; the head in 16 bits" if widened(step.workload) else ""
    kind = step.recipe.loss or ("in-place" if step.megatron else "fp32")
    return f"b x s x v = {elements:,} x {peak.logits / elements:.3g} bytes (cross-entropy {kind}{head})"


def communication(step: Step, n: int) -> tuple[int, str]:
    """Bytes of the buffers that devices exchange through, ``n`` parameters on each, and which they are."""
    parts = tuple(_exchanged(step, n))
    return sum(size for size, _ in parts), "; ".join(text for _, text in parts) or "one device"


def _exchanged(step: Step, n: int) -> Iterator[tuple[int, str]]:
    workload, precision = step.workload, step.recipe.precision
    hidden_state = workload.tokens * step.model.hidden * workload.activation_bytes
    if workload.t > 1 and workload.sequence_parallel:
        yield hidden_state, "gathered activations b x s x h"
    if workload.p > 1:
        yield 2 * hidden_state * step.model.main.residuals, "pipeline receive and send b x s x h"
    if workload.d == 1:
        return
    # Megatron's distributed optimizer reduces and gathers where gradients and parameters lie: it has no buckets.
    if workload.zero == 2 or (workload.zero == 1 and not step.megatron):
        bucket = min(ZERO_BUCKET_ELEMENTS, n) * (precision.gradients + precision.weights)
        yield bucket, "ZeRO's reduce and gather buckets"
    if workload.zero == 3:
        layer = max(
            parameter_count(block_tensors(replace(block, count=1), stack.hidden, workload.t, workload.e))
            for stack, block in step.model.all_blocks()
        )
        yield 2 * layer * workload.sent_bytes(workload.gathers), "two gathered layers (this one and the next)"
