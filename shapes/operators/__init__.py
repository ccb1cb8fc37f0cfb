"""ModelShape + Workload -> the operators one device runs for one microbatch, forward and backward.

Conventions, each checked against torch's dispatcher in tests/test_parity.py and tests/test_operators.py:

* Tensor parallelism splits as Megatron does: column-parallel into the block, row-parallel out of it, the vocabulary
  by columns, key/value heads replicated once t exceeds them, one whole head a rank. A router and MLA's
  down-projections are not split.
* Pipeline parallelism: the operators of the last stage, which holds ceil(L/p) layers, the final norm and the head.
* Experts have a grid of their own: e etp divides t cp d. Each device holds experts/e experts, cut by etp (the same t
  unless said otherwise), and, routing being even over devices, meets as many routed tokens as it sends out.
* Context parallelism: a rank holds s/cp tokens of each sequence, for causal attention in two chunks from both ends, so
  that all ranks see as many keys (Megatron-Core's and torch's load balancing).
* ``checkpointing``: "full" runs every block's forward twice, "selective" the attention core's only (shapes.workload).
* A decode step runs 1 + speculative tokens of each request through the decoder alone, attention over the KV cache; of a
  mixture at most as many experts as tokens are routed.
* A prompt (prefill) runs the head at the last position of each sequence alone.
* A step is one microbatch with one optimizer update. Collectives are listed; whether they overlap is for the caller.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from math import ceil
from operator import attrgetter
from typing import Any

from shapes.dtypes import MXFP4_BLOCK, MXFP4_BYTES, QUANTISED
from shapes.errors import InputError, refuse
from shapes.frozen import replace
from shapes.model import (
    OPTIMIZERS,
    PRECISIONS,
    Block,
    Linear,
    ModelShape,
    MoeShape,
    Stack,
    Tower,
    optimizer_state_bytes,
    parameter_count,
)
from shapes.model.layers import Attention
from shapes.model.stages import (
    adapters,
    as_held,
    base_of,
    check_finetune,
    counted,
    is_quantised,
    parameter_tensors,
    stage_kinds,
    trained_tensors,
)
from shapes.recipes import Recipe, load_recipe
from shapes.workload import BASES, Saving, Workload

from .cores import (
    Lowering,
    attended,
    attention_operators,
    block_elementwise,
    decode_operators,
    index_operators,
    is_sparse,
    model_elementwise,
    newton_schulz,
    optimizer_update,
    parameter_copies,
    predicted_streams,
    recurrent_operators,
    sparse_operators,
)
from .parallel import (
    block_collectives,
    check_split,
    end_collectives,
    frozen_collectives,
    gradient_collectives,
    pipeline_collectives,
)
from .types import (
    LAYOUT_OF_PHASE,
    Cast,
    Elementwise,
    Gemm,
    GroupedGemm,
    Listed,
    Operator,
    Operators,
    Phase,
    RoutedGemm,
    work_key,
)

#: An operator's tensors, together: past it the cost model's 64-bit integers overflow (4 EiB, 20 million H100s').
MAX_BYTES = 2**62
#: Operators as they run, and so many times.
Repeated = Iterable[tuple[Operators, int]]


def operators(model: ModelShape, workload: Workload) -> Operators:
    """Every operator of one step on one device; equal ones are merged and their ``count`` added up.

    Raises InputError where the model cannot be split as asked (heads by t, experts by e, layers by p), and for an
    operator of sizes that no device counts to.
    """
    return _merged(in_parts(model, workload))


@lru_cache(2**8)
def in_parts(model: ModelShape, workload: Workload) -> Repeated:
    """``operators`` before equal ones are merged: each kind of layer once, as a plan prices it."""
    check_split(model, workload)
    check_finetune(model, workload)
    if workload.decode:
        _check_decodes(model)
    _check_images(model, workload)
    model = as_held(model, workload)
    images = _images(model, workload) if workload.p == 1 else ()
    layers = _each_layer(model, workload)
    return *images, *layers, (_around_layers(model, replace(workload, vpp=1, checkpointing="none")), 1)


def layer_operators(model: ModelShape, workload: Workload) -> Operators:
    """The ``operators`` of the layers alone, as a search of parts prices a hundred thousand models."""
    check_split(model, workload)
    return _merged(_each_layer(model, workload))


def _merged(listed: Repeated) -> Operators:
    """``listed`` with equal ones as one."""
    merged = dict[object, list[Any]]()
    for own, times in listed:
        for operator in own:
            merged.setdefault(work_key(operator), [operator, 0])[1] += operator.count * times
    return tuple(one if one.count == count else replace(one, count=count) for one, count in merged.values())


def _as_run(listed: Iterable[Operator], workload: Workload) -> Operators:
    """``listed`` as the workload's recipe and compiler have them; InputError past ``MAX_BYTES``."""
    found = tuple(apply_recipe(listed, workload))
    for operator in found:
        if operator.bytes > MAX_BYTES:
            raise InputError(
                f"expected sizes that a device can hold: {operator.name} moves {operator.bytes:.3g} bytes at once",
                "operator",
                operator.name,
            )
    return tuple(replace(one, pads=True) if workload.compiled and isinstance(one, Gemm) else one for one in found)


def _check_decodes(model: ModelShape) -> None:
    kinds = model.main.kinds
    other = any(one.cross or (one.attention and not one.attention.causal) for one in kinds)
    refuse(
        other or not (model.head and any(one.attention or one.mixer for one in kinds)),
        f"expected a decoder alone, each layer with causal attention; {model.model_type} is none",
        "phase",
        "decode",
    )


def _check_images(model: ModelShape, workload: Workload) -> None:
    if not workload.image_sizes:
        return
    refuse(
        not any(tower.patch for tower in model.towers),
        "expected a model with a vision tower that is known",
        "images",
        workload.images,
    )
    tokens = sum(tokens for *_, tokens in image_workloads(model, workload)) // workload.b
    expected = f"expected images of at most the sequence's {workload.s} tokens: these are {tokens}"
    refuse(tokens > workload.s and not workload.decode, expected, "images", workload.images)


def sequence_length(model: ModelShape, stack: Stack, workload: Workload) -> int:
    """Tokens of one sequence in ``stack``."""
    if stack.length is not None:
        return stack.length
    is_target = len(model.stacks) > 1 and stack == model.main
    return workload.decoder_s if is_target and workload.decoder_s is not None else workload.s


def linear_operators(
    linear: Linear, tokens: int, run: Lowering, *, name: str | None = None, trains: bool = False
) -> Listed:
    """A linear layer's forward, dgrad and wgrad on one tensor-parallel shard (``tokens`` rows).

    A frozen layer has no wgrad, unless this one ``trains``; its adapters are products of their own.
    """
    name = name or run.prefix + linear.name
    dtype, recipe, weight_bytes = _runs_in(linear, run.workload)
    out_dtype = "bf16" if dtype in QUANTISED else None
    groups = linear.on_shard(run.workload.t).groups
    kind = "bmm" if groups > 1 else linear.kind
    for phase, m, n, k in _three(linear, tokens, run, run.workload.t, trains):
        rest = LAYOUT_OF_PHASE[phase], 1, kind, out_dtype, recipe
        yield Gemm(name, phase, m, n, k, groups, dtype, *rest, weight_bytes=weight_bytes)
    for adapter in adapters(linear, run.workload) if not trains else ():
        yield from linear_operators(adapter, tokens, run, name=name + adapter.name[len(linear.name) :], trains=True)


def _runs_in(linear: Linear, workload: Workload) -> tuple[str, str | None, float | None]:
    """(element type, recipe, bytes an element of the weights) of a layer's products.

    As a quantised release has them where nothing trains; a frozen base is written out in 16 bits first.
    """
    kept = None if workload.train else linear.weights
    if not kept:
        return linear.dtype or workload.dtype, None, None
    dtype = load_recipe(kept.recipe).dtype if kept.recipe else linear.dtype or workload.dtype
    return dtype, kept.recipe, kept.read_bytes(linear.out_features, linear.in_features)


def _three(
    linear: Linear, tokens: int, run: Lowering, t: int, trains: bool = False
) -> Iterator[tuple[Phase, int, int, int]]:
    """(phase, m, n, k) of the products of ``tokens`` rows on one of ``t`` shards."""
    own = linear.on_shard(t)
    out, inner = own.out_features // own.groups, own.in_features
    for phase in run.runs(*(("forward", "dgrad", "wgrad") if linear.learns else ("forward",))):
        if phase == "forward":
            yield phase, tokens, out, inner
        elif phase == "dgrad" and linear.grad_input:
            yield phase, tokens, inner, out
        elif phase == "wgrad" and (trains or not run.workload.adapted):
            yield phase, out, inner, tokens


def _each_layer(model: ModelShape, workload: Workload) -> Repeated:
    """The layers' operators and what is before the first (patch embeddings), on one of p stages."""
    left = workload.saving.layers or model.layers
    for parts, layers in _by_kind(model, workload.p, workload.within_layers(checkpointing=workload.saving.name)):
        again = min(left, layers)
        left -= again
        yield from zip(parts, (max(1, layers), again))  # noqa: B905 - what is before the layers never runs again


#: A plan goes through schedules, ZeRO's stages and so many layers' recomputation for the same layers.
@lru_cache
def _by_kind(model: ModelShape, p: int, workload: Workload) -> list[tuple[list[Operators], int]]:
    """``_of_layer`` of each kind of layer, and how many a stage has; 0: what is before the first."""
    encoder_s, found = sequence_length(model, model.stacks[0], workload), []
    for stack, blocks in stage_kinds(model, p):
        prefix = f"{stack.name}." * (len(model.stacks) > 1)
        if workload.decode and stack != model.main:
            continue  # an image's tower ran with the prompt
        s = sequence_length(model, stack, workload)
        for linear in stack.front if p == 1 else ():
            rows = workload.own_tokens(s if linear.rows is None else linear.rows)
            found.append(([_as_run(linear_operators(linear, rows, Lowering(workload, prefix)), workload)], 0))
        run = Lowering(workload, f"{prefix}layers.*.")
        dense = replace(run, workload=replace(workload, d=1, e=1, etp=None))  # alike on all experts' ranks
        for block in blocks:
            own = run if isinstance(block.mlp, MoeShape) else dense
            found.append((_of_layer(replace(block, count=1), stack.hidden, s, encoder_s, own), block.count))
    return found


#: A plan goes through stages, schedules and so many layers' recomputation for the same layer.
@lru_cache(2**11)
def _of_layer(block: Block, hidden: int, s: int, encoder_s: int, run: Lowering) -> list[Operators]:
    """One layer's operators, and those that recomputation runs once more."""
    listed = tuple(_block(block, hidden, s, encoder_s, run))
    again = _run_again(listed, isinstance(block.mlp, MoeShape), run.workload.saving)
    return [_as_run(part, run.workload) for part in (listed, again)]


def _run_again(listed: Operators, mixture: bool, saving: Saving) -> Listed:
    """The operators of a layer's forward that run again (``Saving``); ``mixture``: whether the layer has experts."""
    products = 0
    for one in listed:
        if one.phase != "forward":
            continue
        products += (product := isinstance(one, Gemm) and one.kind == "gemm")
        kept = products % 2 == 1 if product else one.kind == "attention" or one.name.endswith("reduce_scatter")
        if saving.modules_of(one.name, mixture=mixture) or (saving.everything and not (saving.alternate and kept)):
            yield one


def _images(model: ModelShape, workload: Workload) -> Repeated:
    """The towers' operators over a microbatch's images; each image attends to itself.

    A merger that is cut adds up its tokens over ranks, a fifteenth of the layers' messages: that is left out.
    """
    for tower, own, patches, tokens in image_workloads(model, workload):
        stack, prefix = tower.stack, f"{tower.stack.name}."
        ends = *((linear, own.b * patches) for linear in stack.front), *((linear, tokens) for linear in tower.behind)
        for linear, rows in ends:
            yield _as_run(linear_operators(linear, rows, Lowering(own, prefix)), own), 1
        layers = Lowering(own, f"{prefix}layers.*.")
        for block in stack.kinds:
            for part in _of_layer(replace(block, count=1), stack.hidden, patches, patches, layers):
                yield part, block.count


def image_workloads(model: ModelShape, workload: Workload) -> Iterator[tuple[Tower, Workload, int, int]]:
    """(tower, its workload, patches of a piece of an image, tokens of all images) of those that a step runs.

    While generating a tower has run already.
    """
    sizes = workload.image_sizes
    if not sizes or workload.decode:
        return
    for tower in filter(attrgetter("patch"), model.towers):
        pieces, patches, tokens = tower.cut(*sizes[1:])
        b = workload.b * sizes[0]
        own = replace(
            workload,
            b=b * pieces,
            s=patches,
            t=tower.ranks(workload.t),
            cp=1,
            p=1,
            sequence_parallel=False,
            images=None,
        )
        yield tower, own, patches, b * tokens


#: Chunks of a pipeline run the same operators, whatever layers run again.
@lru_cache
def _around_layers(model: ModelShape, workload: Workload) -> Operators:
    s = sequence_length(model, model.main, workload)
    listed = [one for end in (_ends, model_elementwise, end_collectives) for one in end(model, workload, s)]
    if workload.train:
        trained = trained_tensors(model, workload)
        held = counted(trained)
        layers = -(-model.layers // workload.p)
        listed += parameter_copies(held, workload)
        listed += optimizer_update(held, workload, _states_each(model, workload)), *newton_schulz(trained, workload)
        listed += gradient_collectives(held, workload, layers)
        if workload.adapted:
            listed += _frozen_base(model, workload, layers)
    return _as_run((*listed, *pipeline_collectives(model, workload, s)), workload)


def _frozen_base(model: ModelShape, workload: Workload, layers: int) -> Listed:
    """Collectives of a frozen base.

    They are ZeRO 3's gathers, and sums over tensor-parallel ranks of the gradients of the adapters that each rank holds
    whole.
    """
    tensors = parameter_tensors(model, workload)
    each = BASES[base_of(workload)]
    if workload.base == "release":
        each = sum(tensor.stored_bytes(each) for tensor in tensors) / parameter_count(tensors)
    yield from frozen_collectives(counted(tensors), each, workload, layers)
    kept_whole = sum(
        block.count * adapter.out_features * adapter.in_features
        for stack, blocks in stage_kinds(model, workload.p)
        for block in blocks
        for linear in block.linears(stack.hidden)
        for adapter in adapters(linear, workload)
        if linear.shard != "none" == adapter.shard
    )
    if kept_whole:
        size = kept_whole * workload.activation_bytes
        yield from Lowering(workload).sends("adapters.tensor_parallel", size, workload.t, "replicas")


def _states_each(model: ModelShape, workload: Workload) -> float | None:
    """Bytes of the named optimizer's states and temporaries a parameter; None for AdamW's two moments."""
    if workload.optimizer in (None, "adamw"):
        return None
    tensors = trained_tensors(model, workload)
    precision = PRECISIONS[workload.precision or "mixed"]
    passes: float = OPTIMIZERS[workload.optimizer].get("passes", 0)
    return passes + optimizer_state_bytes(tensors, workload.optimizer, precision) / max(1, parameter_count(tensors))


def _ends(model: ModelShape, workload: Workload, s: int) -> Listed:
    """The products after the embedding and around the head, which the last stage runs."""
    tokens, run = workload.own_tokens(s), Lowering(workload)
    if model.main.streams:
        yield from linear_operators(model.main.streams.head(model.hidden), tokens, run)
    for linear in (*(model.entry_linears if workload.p == 1 else ()), *model.before_head):
        yield from linear_operators(linear, tokens if linear.rows is None else workload.b * linear.rows, run)
    if model.head_linear:
        rows = workload.b if workload.phase == "prefill" else tokens
        for _ in range(model.heads * (model.head_passes if workload.train else 1)):
            yield from linear_operators(model.head_linear, rows, run)
    if model.pooling:
        # torch.nn.MultiheadAttention, asked for its weights, writes the products out; the head is whole on each rank.
        plain = replace(workload, t=1, attention="eager", checkpointing="none")
        yield from attention_operators(model.pooling, Lowering(plain, "head.attention"), 1, s)


#: Projections of the sequence that cross attention reads.
_OF_ENCODER = tuple(f"cross_attention.{part}_proj" for part in ("k", "v", "kv"))


def _block(block: Block, hidden: int, s: int, encoder_s: int, run: Lowering) -> Listed:
    workload = run.workload
    both, encoder_s = s + block.joint_tokens, block.context or encoder_s
    tokens = workload.own_tokens(s if block.apart else both)
    latent = workload.decode or (block.attention is not None and is_sparse(block.attention, s))
    merged = workload.fused_qkv and workload.phase
    for linear in block.linears(hidden, fused_qkv=merged, fused_gate_up=workload.fused_gate_up):
        if latent and linear.name == "attention.kv_b_proj":
            continue  # absorbed_operators
        from_encoder = block.crosses and linear.name in _OF_ENCODER
        rows = encoder_s if from_encoder else linear.rows
        yield from linear_operators(linear, tokens if rows is None else workload.own_tokens(rows), run)
    if block.augment and block.augment.streams > 1:
        yield from predicted_streams(block.augment.streams, hidden, run, tokens)
    seen = encoder_s if block.crosses else s
    for attention, label, q_len, kv_len in (
        (block.attention, "attention", both, both),
        (block.cross, "cross_attention", s, seen),
    ):
        if attention:
            yield from _core(attention, replace(run, prefix=run.prefix + label), q_len, kv_len)
    if block.mixer:
        yield from recurrent_operators(block.mixer, replace(run, prefix=f"{run.prefix}mixer"), s)
    yield from _dequantised(block, hidden, run)
    yield from expert_operators(block, hidden, tokens, run.of_experts())
    yield from block_elementwise(block, hidden, both, run)
    yield from block_collectives(block, hidden, both, run)


def _core(attention: Attention, run: Lowering, q_len: int, kv_len: int) -> Listed:
    """Operators of an attention between its projections."""
    workload = run.workload
    seen = workload.cached(workload.s, None) if workload.decode else kv_len
    yield from index_operators(attention, run, q_len, seen)
    sparse = is_sparse(attention, seen)
    if workload.decode:
        yield from decode_operators(attention, run, attended(attention, 1, seen)[1] if sparse else None)
    else:
        yield from (sparse_operators if sparse else attention_operators)(attention, run, q_len, kv_len)


def _dequantised(block: Block, hidden: int, run: Lowering) -> Listed:
    """A quantised base's matrices written out in 16 bits before each product that reads them (bitsandbytes)."""
    if not run.workload.adapted:
        return
    for linear in block.linears(hidden):
        if not is_quantised(linear, run.workload):
            continue
        own = linear.on_shard(run.workload.t)
        n, each = own.out_features * own.in_features, BASES[base_of(run.workload)]
        if own.weights and run.workload.base == "release":
            each = own.weights.stored_bytes(own.out_features, own.in_features) / n
        for phase in run.runs():
            name = f"{run.prefix}{linear.name}.dequantise"
            yield Elementwise(name, phase, "quantise", round(each * n), 2 * n, "bf16")


def expert_operators(block: Block, hidden: int, tokens: int, run: Lowering) -> Listed:
    """The experts' grouped products: ``tokens`` x top_k routed rows over the experts this device holds."""
    workload, moe = run.workload, block.mlp
    if not isinstance(moe, MoeShape):
        return
    held, own = moe.experts // workload.e, workload.expert_tokens(tokens)
    routed, groups = own * moe.top_k, held
    if workload.decode:  # of few tokens, each routed at random, not every expert has one
        groups = round(held * (1 - (1 - moe.top_k / moe.experts) ** (own * workload.e)))
    kind = GroupedGemm if workload.train else partial(RoutedGemm, held=held, choices=moe.experts + moe.empty)
    for linear in block.expert_linears(hidden, fused=workload.fused_gate_up):
        dtype, recipe, weight_bytes = _runs_in(linear, workload)
        if linear.weights and (weight_bytes, linear.weights.block[1]) == (MXFP4_BYTES, MXFP4_BLOCK):
            recipe = recipe or "mxfp4"
        for phase, m, n, k in _three(linear, routed, run, workload.expert_t):
            yield kind(
                run.prefix + linear.name,
                phase,
                groups,
                m,
                n,
                k,
                "k" if phase == "wgrad" else "m",
                dtype,
                LAYOUT_OF_PHASE[phase],
                1,
                workload.expert_load,
                recipe,
                weight_bytes,
            )


#: Bytes an element has before a low-precision recipe quantises it.
WIDE = 2


def apply_recipe(operators: Iterable[Operator], workload: Workload) -> Listed:
    """``operators`` whose linear layers were lowered in their own or the workload's recipe's type, as it runs them.

    Activations are quantised before each product that reads them, by rows and, where wgrad runs in the recipe, by
    columns; gradients of outputs once for dgrad and wgrad; weights once a step, which training's update makes
    necessary.
    """
    usual = workload.low_precision
    for operator in operators:
        if not isinstance(operator, Gemm | GroupedGemm):
            yield operator
            continue
        recipe = load_recipe(operator.recipe) if operator.recipe else usual
        if not recipe or operator.dtype != recipe.dtype:
            yield operator
            continue
        products = recipe.products
        if operator.recipe is None and operator.name.rsplit(".", 1)[-1] in recipe.keeps:
            products = ()
        else:
            yield from _quantised(operator, recipe, workload.train)
        if operator.phase in products:
            yield replace(operator, recipe=recipe.name)
        elif isinstance(operator, Gemm):
            yield replace(operator, dtype="bf16", out_dtype=None)
        else:
            yield replace(operator, dtype="bf16")


def _quantised(operator: Gemm | GroupedGemm, recipe: Recipe, training: bool) -> Listed:
    """The casts of a product's operands, which the other products of its layer share."""
    grouped = isinstance(operator, GroupedGemm)
    # A forward quantises X (m tokens by k features), a wgrad dY (m features by k tokens).
    tensor = (1 if grouped else operator.batch) * operator.m * operator.k
    again = {phase: phase in recipe.products for phase in ("dgrad", "wgrad")}
    quantised = list[tuple[Phase, int, int, str]]()
    if operator.phase == "forward":
        # Read by rows now and by columns in wgrad.
        quantised = [("forward", tensor, 1 + (training and again["wgrad"]), "")]
    elif operator.phase == "wgrad":
        weights = operator.batch * operator.m * operator.n
        quantised = [("dgrad", tensor, sum(again.values()), ""), ("optimizer", weights, 1 + again["dgrad"], ".weight")]
    for phase, elements, layouts, part in quantised:
        if layouts:
            read = elements * WIDE * recipe.quantise.passes
            written = ceil(elements * layouts * recipe.quantise.bytes_per_element)
            name = f"{operator.name}{part}.quantise"
            # Training's steps and served experts were fitted with the price by bytes.
            kind = Elementwise if training or grouped else Cast
            yield kind(name, phase, "quantise", read, written, "bf16", operator.count)
