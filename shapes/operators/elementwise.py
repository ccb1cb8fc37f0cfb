"""Memory-bound operators and the bytes they move: each input read once, each output written once.

Norms, activations, rotary embedding and residual additions are counted as one fused kernel each, as Megatron and
Liger run them; plain eager PyTorch moves more (an fp32 RMSNorm written out makes about four passes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shapes.model import AttentionShape, Block, MlaShape, ModelShape, MoeShape
from shapes.model.adapters import layers_train
from shapes.model.stages import ShardParameters
from shapes.model.states import PRECISIONS
from shapes.operators.types import Elementwise, Phase
from shapes.workload import Workload


def emit(
    name: str,
    what: str,
    elements: int,
    counts: tuple[int, int, int, int],
    workload: Workload,
    times: int,
    forwards: int,
) -> Iterator[Elementwise]:
    """A memory-bound kernel; ``counts``: tensors of ``elements`` read and written, forward, then backward."""
    size = workload.activation_bytes
    phases: list[tuple[Phase, int, int, int]] = [("forward", counts[0], counts[1], times * forwards)]
    if workload.train:
        phases.append(("dgrad", counts[2], counts[3], times))
    for phase, read, written, count in phases:
        yield Elementwise(
            name=name,
            phase=phase,
            what=what,
            bytes_read=read * elements * size,
            bytes_written=written * elements * size,
            dtype=workload.dtype,
            count=count,
        )


def block_elementwise(
    block: Block, hidden: int, s: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Elementwise]:
    """One layer's norms, residual additions, rotary embedding, softmax, activation and dropout, x ``block.count``."""
    tokens, count = workload.own_tokens(s), block.count
    # Sequence parallelism splits exactly the parts that tensor parallelism leaves whole.
    whole = -(-tokens // workload.t) if workload.sequence_parallel else tokens
    for index in range(block.norms):
        name = f"{prefix}norm.{index}" if block.norms > 1 else f"{prefix}norm"
        yield from emit(name, "norm", whole * hidden, (1, 1, 2, 1), workload, count, forwards)
    for part in (block.attention, block.cross):
        if part is not None:
            yield from _attention_elementwise(part, s, workload, prefix, count, forwards)
    additions = 1 if block.parallel else len(block.parts)
    if additions:
        yield from emit(
            f"{prefix}residual", "residual", whole * hidden, (2, 1, 2, 1), workload, count * additions, forwards
        )
    if block.dropout:
        yield from emit(
            f"{prefix}dropout",
            "dropout",
            whole * hidden,
            (1, 2, 2, 1),
            workload,
            min(2, len(block.parts)) * count,
            forwards,
        )
    yield from _mlp_elementwise(block, hidden, tokens, workload, prefix, forwards)


def _mlp_elementwise(
    block: Block, hidden: int, tokens: int, workload: Workload, prefix: str, forwards: int
) -> Iterator[Elementwise]:
    mlps = []
    if isinstance(block.mlp, MoeShape):
        mlps.append(("moe.activation", tokens * block.mlp.top_k * block.mlp.width, block.mlp.gated))
        # Tokens are sorted by expert before the products and put back behind them, a row for each of top_k experts.
        rows = -(-tokens * block.mlp.top_k // workload.t)
        yield from emit(
            f"{prefix}moe.permute",
            "moe",
            rows * block.mlp.routed_width(hidden),
            (2, 2, 2, 2),
            workload,
            block.count,
            forwards,
        )
        if block.mlp.shared:
            mlps.append(("mlp.activation", tokens * block.mlp.shared.width, block.mlp.shared.gated))
    elif block.mlp is not None:
        mlps.append(("mlp.activation", tokens * block.mlp.width, block.mlp.gated))
    for name, elements, gated in mlps:
        counts = (2, 1, 3, 2) if gated else (1, 1, 2, 1)
        yield from emit(
            prefix + name, "activation", -(-elements // workload.t), counts, workload, block.count, forwards
        )


def _attention_elementwise(
    attention: AttentionShape | MlaShape, s: int, workload: Workload, prefix: str, count: int, forwards: int
) -> Iterator[Elementwise]:
    heads, kv_heads = attention.on_shard(workload.t)
    tokens = workload.own_tokens(s)
    if attention.rotary_dim:
        elements = tokens * (heads + kv_heads) * attention.rotary_dim
        yield from emit(f"{prefix}attention.rotary", "rotary", elements, (1, 1, 1, 1), workload, count, forwards)
    if isinstance(attention, AttentionShape) and attention.qk_norm != "none":
        elements = tokens * (heads + kv_heads) * attention.head_dim
        yield from emit(f"{prefix}attention.qk_norm", "norm", elements, (1, 1, 2, 1), workload, count, forwards)
    if isinstance(attention, AttentionShape) and attention.gated:
        elements = tokens * heads * attention.v_dim
        yield from emit(f"{prefix}attention.gate", "activation", elements, (2, 1, 3, 2), workload, count, forwards)
    if isinstance(attention, MlaShape):
        elements = tokens * sum(number for _, number in attention.vectors())
        yield from emit(f"{prefix}attention.latent_norm", "norm", elements, (1, 1, 2, 1), workload, count, forwards)
    if workload.attention == "eager":
        square = tokens * s * heads
        again = 2 if workload.train and workload.checkpointing != "none" else 1
        yield from emit(f"{prefix}attention.softmax", "softmax", square, (1, 1, 2, 1), workload, count, again)
        if attention.dropout:
            yield from emit(f"{prefix}attention.dropout", "dropout", square, (1, 2, 2, 1), workload, count, again)


def model_elementwise(model: ModelShape, workload: Workload, s: int) -> Iterator[Elementwise]:
    """Token embedding, last norm and cross-entropy over fp32 logits."""
    tokens = workload.own_tokens(s)
    width = model.embedding_dim or model.hidden
    if model.vocab and workload.p == 1:
        frozen = workload
        if workload.train:
            frozen = replace(workload, phase="infer", finetune=None, lora_targets=None, base=None)
        learned = workload if layers_train(workload) else frozen
        yield from emit("embedding", "embedding", tokens * width, (1, 1, 2, 1), learned, 1, 1)
    if model.main.final_norm:
        whole = -(-tokens // workload.t) if workload.sequence_parallel else tokens
        yield from emit("final_norm", "norm", whole * model.hidden, (1, 1, 2, 1), workload, 1, 1)
    if workload.train and model.head:
        logits, size = tokens * -(-model.vocab // workload.t), workload.activation_bytes
        # Forward: 16-bit logits in, an fp32 copy out, read again by log-softmax. Backward: the copy in, 16 bits out.
        moved: tuple[tuple[Phase, int, int], ...] = (("forward", size + 4, 4), ("dgrad", 4, size))
        for phase, read, written in moved:
            yield Elementwise(
                "cross_entropy",
                phase,
                "cross_entropy",
                logits * read,
                logits * written,
                workload.dtype,
                model.head_passes,
            )


def optimizer_update(held: ShardParameters, workload: Workload, states: float | None = None) -> Elementwise:
    """The optimizer on this device's share of parameters.

    AdamW in mixed precision: fp32 gradient, master weight and two moments in (16 bytes a parameter); the latter three
    and the 16-bit weight out (14). ``states``: bytes of moments a parameter, of another optimizer.
    """
    share, kept = held.updated(workload), PRECISIONS[workload.precision or "mixed"]
    always = kept.master + (2 * kept.moments if states is None else states)
    read = always + kept.gradients + (0 if kept.master else kept.weights)
    return Elementwise(
        "optimizer", "optimizer", "optimizer", round(share * read), round(share * (always + kept.weights)), "fp32"
    )
