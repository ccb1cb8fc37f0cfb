"""ModelShape + Workload -> the operators one device runs for one microbatch, forward and backward.

Conventions, each checked against torch's dispatcher in tests/test_parity.py and tests/test_operators.py:

* Tensor parallelism splits as Megatron does: column-parallel into the block, row-parallel out of it, the vocabulary
  by columns, key/value heads replicated once t exceeds them, one whole head a rank. A router and MLA's
  down-projections are not split.
* Pipeline parallelism: the operators of the last stage, which holds ceil(L/p) layers, the final norm and the head.
* Expert parallelism lives inside data parallelism (e divides d): each device holds experts/e experts and, routing being
  even over devices, meets as many routed tokens as it sends out.
* Context parallelism: a rank holds s/cp tokens of each sequence, for causal attention in two chunks from both ends, so
  that all ranks see as many keys (Megatron-Core's and torch's load balancing).
* ``checkpointing="full"`` runs every block's forward twice, "selective" the attention core's only.
* A decode step runs 1 + speculative tokens of each request through the decoder alone, attention over the KV cache; of a
  mixture at most as many experts as tokens are routed.
* A prompt (prefill) runs the head at the last position of each sequence alone.
* A step is one microbatch with one optimizer update. Collectives are listed; whether they overlap is for the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from shapes.dtypes import QUANTISED
from shapes.errors import InputError
from shapes.finetune import BASES
from shapes.model import AttentionShape, Block, Linear, MlaShape, ModelShape, MoeShape, Stack
from shapes.model.parameters import optimizer_state_bytes, parameter_count, precision_named
from shapes.model.stages import ShardParameters, shard_parameters, stage_kinds
from shapes.model.trainable import (
    adapters,
    base_of,
    check_finetune,
    has_adapters,
    layers_train,
    trained_shard,
    trained_tensors,
)
from shapes.operators.cores import (
    attention_operators,
    block_elementwise,
    decode_operators,
    model_elementwise,
    optimizer_update,
    recurrent_operators,
)
from shapes.operators.parallel import (
    block_collectives,
    check_split,
    end_collectives,
    frozen_collectives,
    gradient_collectives,
    pipeline_collectives,
)
from shapes.operators.quantise import apply_recipe
from shapes.operators.types import (
    LAYOUT_OF_PHASE,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    Operator,
    Phase,
    counted_once,
)
from shapes.workload import Workload

#: An operator's tensors, together: past it the cost model's 64-bit integers overflow (4 EiB, 20 million H100s').
MAX_BYTES = 2**62


def operators(model: ModelShape, workload: Workload) -> tuple[Operator, ...]:
    """Every operator of one step on one device; equal ones are merged and their ``count`` added up.

    Raises InputError where the model cannot be split as asked (heads by t, experts by e, layers by p), and for an
    operator of sizes that no device counts to.
    """
    check_split(model, workload)
    check_finetune(model, workload)
    if workload.decode:
        _check_decodes(model)
    return _merged(_all(model, workload), workload)


def layer_operators(model: ModelShape, workload: Workload) -> tuple[Operator, ...]:
    """Those of ``operators`` that are of the layers: a search of parts prices a hundred thousand models."""
    check_split(model, workload)
    return _merged(_layers(model, workload), workload)


def _merged(listed: Iterator[Operator], workload: Workload) -> tuple[Operator, ...]:
    """``listed`` as the workload's recipe and compiler have them, equal ones merged; InputError past ``MAX_BYTES``."""
    merged: dict[Operator, list[Any]] = {}
    recipe = workload.low_precision
    for operator in apply_recipe(listed, recipe, workload.train) if recipe else listed:
        merged.setdefault(counted_once(operator), [operator, 0])[1] += operator.count
    for operator in merged:
        if operator.bytes > MAX_BYTES:
            raise InputError(
                f"expected sizes that a device can hold: {operator.name} moves {operator.bytes:.3g} bytes at once",
                key="operator",
                value=operator.name,
            )
    found = [one if one.count == count else replace(one, count=count) for one, count in merged.values()]
    if not workload.compiled:
        return tuple(found)
    return tuple(replace(one, pads=True) if isinstance(one, Gemm) else one for one in found)


def _check_decodes(model: ModelShape) -> None:
    kinds = [(block.attention, block.cross) for block in model.main.kinds]
    decodes = model.head and all((own is None or own.causal) and cross is None for own, cross in kinds)
    decodes = decodes and any(block.attention or block.mixer for block in model.main.kinds)
    if not decodes:
        expected = f"expected a decoder alone, each layer with causal attention; {model.model_type} is none"
        raise InputError(expected, key="phase", value="decode")


def sequence_length(model: ModelShape, stack: Stack, workload: Workload) -> int:
    """Tokens of one sequence in ``stack``."""
    if stack.length is not None:
        return stack.length
    is_target = len(model.stacks) > 1 and stack == model.main
    return workload.decoder_s if is_target and workload.decoder_s is not None else workload.s


def linear_operators(
    linear: Linear,
    tokens: int,
    workload: Workload,
    *,
    count: int = 1,
    name: str | None = None,
    forwards: int = 1,
    trains: bool = False,
) -> Iterator[Gemm]:
    """A linear layer's forward, dgrad and wgrad on one tensor-parallel shard (``tokens`` rows).

    Of a frozen layer there is no wgrad, unless this one ``trains``; its adapters are products of their own.
    """
    dtype = linear.dtype or workload.dtype
    out_dtype = "bf16" if dtype in QUANTISED else None
    for phase, m, n, k, times in _three(linear, tokens, workload, count, forwards, trains):
        yield Gemm(
            name=name or linear.name,
            phase=phase,
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            out_dtype=out_dtype,
            layout=LAYOUT_OF_PHASE[phase],
            count=times,
            kind=linear.kind,
        )
    for adapter in adapters(linear, workload) if not trains else ():
        yield from linear_operators(
            adapter,
            tokens,
            workload,
            count=count,
            forwards=forwards,
            trains=True,
            name=(name or linear.name) + adapter.name[len(linear.name) :],
        )


def _three(
    linear: Linear, tokens: int, workload: Workload, count: int, forwards: int, trains: bool = False
) -> Iterator[tuple[Phase, int, int, int, int]]:
    """(phase, m, n, k, times) of the products of ``tokens`` rows on one tensor-parallel shard."""
    own = linear.on_shard(workload.t)
    out, inner = own.out_features, own.in_features
    yield "forward", tokens, out, inner, count * forwards
    if workload.train and linear.grad_input:
        yield "dgrad", tokens, inner, out, count
    if workload.train and (trains or layers_train(workload)):
        yield "wgrad", out, inner, tokens, count


def _layers(model: ModelShape, workload: Workload) -> Iterator[Operator]:
    """The layers' operators and what is before the first (patch embeddings)."""
    for stack, blocks in stage_kinds(model, workload.p):
        prefix = f"{stack.name}." if len(model.stacks) > 1 else ""
        if workload.decode and stack != model.main:
            continue  # an image's tower ran with the prompt
        s = sequence_length(model, stack, workload)
        if workload.p == 1:
            for linear in stack.front:
                rows = workload.own_tokens(linear.rows if linear.rows is not None else s)
                yield from linear_operators(linear, rows, workload, name=prefix + linear.name)
        for block in blocks:
            # Where only the head trains nothing runs backward through the layers.
            runs = replace(workload, phase="infer", finetune=None) if workload.finetune == "frozen-base" else workload
            yield from _block(model, block, stack, s, runs, prefix)


def _all(model: ModelShape, workload: Workload) -> Iterator[Operator]:
    first_stage = workload.p == 1
    yield from _layers(model, workload)
    s = sequence_length(model, model.main, workload)
    yield from _ends(model, workload, first_stage=first_stage)
    yield from model_elementwise(model, workload, s)
    if first_stage:
        yield from end_collectives(model, workload, s, first=True)
    yield from end_collectives(model, workload, s, first=False)
    if workload.train:
        held = trained_shard(model, workload)
        yield optimizer_update(held, workload, _states_each(model, workload))
        yield from gradient_collectives(held, workload, _number_of_layers(model, workload))
        if workload.finetune not in (None, "full"):
            yield from _of_a_frozen_base(model, workload, held)
    yield from pipeline_collectives(model, workload, s)


def _number_of_layers(model: ModelShape, workload: Workload) -> int:
    return sum(block.count for _, blocks in stage_kinds(model, workload.p) for block in blocks)


def _of_a_frozen_base(model: ModelShape, workload: Workload, held: ShardParameters) -> Iterator[Operator]:
    """What a frozen base and the adapters beside it send: ZeRO 3's gathers, and sums over tensor-parallel ranks of the

    gradients of the adapters that each rank holds whole.
    """
    whole = shard_parameters(model, workload)
    frozen = ShardParameters(whole.dense - held.dense, whole.experts) if not has_adapters(workload) else whole
    yield from frozen_collectives(frozen, BASES[base_of(workload)], workload, _number_of_layers(model, workload))
    if workload.t == 1:
        return
    kept_whole = sum(
        block.count * adapter.out_features * adapter.in_features
        for stack, blocks in stage_kinds(model, workload.p)
        for block in blocks
        for linear in block.linears(stack.hidden)
        for adapter in adapters(linear, workload)
        if linear.shard != "none" and adapter.shard == "none"
    )
    if kept_whole:
        size = kept_whole * workload.activation_bytes
        yield Collective("adapters.tensor_parallel.all_reduce", "wgrad", "all_reduce", size, workload.t, workload.dtype)


def _states_each(model: ModelShape, workload: Workload) -> float | None:
    """Bytes of the named optimizer's states a parameter; None for AdamW's two moments."""
    if workload.optimizer in (None, "adamw"):
        return None
    tensors = trained_tensors(model, workload)
    precision = precision_named(workload.precision or "mixed")
    return optimizer_state_bytes(tensors, str(workload.optimizer), precision) / max(1, parameter_count(tensors))


def _ends(model: ModelShape, workload: Workload, *, first_stage: bool) -> Iterator[Operator]:
    length = sequence_length(model, model.main, workload)
    tokens = workload.own_tokens(length)
    head = (model.head_linear,) if model.head_linear else ()
    for linear in (*(model.after_embedding if first_stage else ()), *model.before_head, *head):
        rows = tokens if linear.rows is None else workload.b * linear.rows
        rows = workload.b if linear in head and workload.phase == "prefill" else rows
        alone = workload.finetune == "frozen-base" and linear in head
        yield from linear_operators(
            replace(linear, grad_input=False) if alone else linear,
            rows,
            workload,
            trains=alone,
            count=model.head_passes if linear in head and workload.train else 1,
        )
    if model.pooling is not None:
        # torch.nn.MultiheadAttention, asked for its weights, writes the products out; the head is whole on each rank.
        plain = replace(workload, t=1, attention="eager", checkpointing="none")
        yield from attention_operators(model.pooling, plain, 1, length, "head.attention", 1)


def _block(
    model: ModelShape, block: Block, stack: Stack, s: int, workload: Workload, prefix: str
) -> Iterator[Operator]:
    tokens = workload.own_tokens(s)
    forwards = 2 if workload.train and workload.checkpointing == "full" else 1
    encoder_s = sequence_length(model, model.stacks[0], workload)
    named = f"{prefix}layers.*."
    for linear in block.linears(stack.hidden, fused_qkv=workload.fused_qkv, fused_gate_up=workload.fused_gate_up):
        if workload.decode and linear.name == "attention.kv_b_proj":
            continue  # absorbed: decode_operators
        from_encoder = linear.name in ("cross_attention.k_proj", "cross_attention.v_proj")
        rows = workload.own_tokens(encoder_s) if from_encoder else tokens
        yield from linear_operators(
            linear, rows, workload, count=block.count, name=named + linear.name, forwards=forwards
        )
    cores: list[tuple[AttentionShape | MlaShape, str, int]] = []
    if block.attention is not None:
        cores.append((block.attention, "attention", s))
    if block.cross is not None:
        cores.append((block.cross, "cross_attention", encoder_s))
    for attention, label, kv_len in cores:
        if workload.decode:
            yield from decode_operators(attention, workload, named + label, block.count)
            continue
        yield from attention_operators(attention, workload, s, kv_len, named + label, block.count)
    if block.mixer is not None:
        yield from recurrent_operators(block.mixer, workload, s, f"{named}mixer", block.count, forwards)
    yield from _dequantised(block, stack.hidden, workload, named, forwards)
    if isinstance(block.mlp, MoeShape):
        yield from expert_operators(block.mlp, stack.hidden, tokens, workload, block.count, named, forwards)
    yield from chain(
        block_elementwise(block, stack.hidden, s, workload, named, forwards),
        block_collectives(block, stack.hidden, s, workload, named, forwards),
    )


def _dequantised(block: Block, hidden: int, workload: Workload, prefix: str, forwards: int) -> Iterator[Elementwise]:
    """A quantised base's matrices written out in 16 bits before each product that reads them (bitsandbytes)."""
    if not has_adapters(workload) or base_of(workload) == "bf16":
        return
    each = BASES[base_of(workload)]
    for linear in block.linears(hidden):
        own = linear.on_shard(workload.t)
        n = own.out_features * own.in_features
        runs: tuple[tuple[Phase, int], ...] = (("forward", forwards), ("dgrad", 1))
        for phase, times in runs:
            yield Elementwise(
                f"{prefix}{linear.name}.dequantise",
                phase,
                "quantise",
                round(each * n),
                2 * n,
                "bf16",
                block.count * times,
            )


def expert_operators(
    moe: MoeShape, hidden: int, tokens: int, workload: Workload, count: int, prefix: str, forwards: int
) -> Iterator[GroupedGemm]:
    """The experts' grouped products: ``tokens`` x top_k routed rows over the experts this device holds."""
    groups, routed = moe.experts // workload.e, tokens * moe.top_k
    groups = min(groups, routed) if workload.decode else groups
    for linear in moe.expert_linears(hidden, fused=workload.fused_gate_up):
        for phase, m, n, k, times in _three(linear, routed, workload, count, forwards):
            yield GroupedGemm(
                name=prefix + linear.name,
                phase=phase,
                groups=groups,
                m=m,
                n=n,
                k=k,
                ragged="k" if phase == "wgrad" else "m",
                dtype=workload.dtype,
                layout=LAYOUT_OF_PHASE[phase],
                count=times,
                load=workload.expert_load,
            )
