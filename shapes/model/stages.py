"""Which layers and parameters a pipeline stage holds, and which of those a fine-tuned model trains.

The embedding is on the first stage, the head on the last. All of a fine-tuned model trains, or adapters that are added
to frozen matrices.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Literal

from shapes.dtypes import next_multiple
from shapes.errors import InputError, refuse
from shapes.frozen import Pair, frozen, replace
from shapes.toml_table import DATA, content
from shapes.workload import Workload

from . import (
    EachTensor,
    Linears,
    ModelShape,
    ParameterTensor,
    Tensors,
    block_tensors,
    linear_tensors,
    parameter_count,
    stack_end,
    stack_front,
)
from .layers import Block, Stack, kinds_of
from .mixers import Linear

#: The two stages that can hold most: the first has the embedding and most microbatches in flight, the last the head.
Stage = Literal["first", "last"]
#: Each stack that a stage has layers of, with those blocks.
Kinds = tuple[tuple[Stack, tuple[Block, ...]], ...]


def as_held(model: ModelShape, workload: Workload) -> ModelShape:
    """``model`` with the rows of the vocabulary that what runs it adds: Megatron's padding of each shard."""
    if workload.vocab_rows == 1:
        return model
    return replace(model, vocab=next_multiple(model.vocab, workload.vocab_rows * workload.t))


def blocks_between(model: ModelShape, start: int, stop: int) -> Kinds:
    """Layers ``start`` to ``stop`` (exclusive) of all stacks in order, as the blocks of each stack that has some."""
    found = []
    at = 0
    for stack in model.stacks:
        blocks = []
        for block in stack.blocks:
            own = min(at + block.count, stop) - max(at, start)
            if own > 0:
                blocks.append(block if own == block.count else replace(block, count=own))
            at += block.count
        if blocks:
            found.append((stack, tuple(blocks)))
    return tuple(found)


# A plan asks for the same split at every microbatch and way of checkpointing.
@lru_cache(256)
def stage_kinds(model: ModelShape, p: int, stage: Stage = "last") -> Kinds:
    """As ``stage_blocks``, equal blocks of a stack merged: for what the layers' order is nothing to."""
    if p == 1:
        return tuple((stack, stack.kinds) for stack in model.stacks)
    return tuple((stack, kinds_of(blocks)) for stack, blocks in stage_blocks(model, p, stage))


def stage_blocks(model: ModelShape, p: int, stage: Stage) -> Kinds:
    """The first or last of ``p`` stages' blocks, in order.

    Either has ceil(L/p) layers: where p does not divide the layers, the last stage's is the bound of the fullest one.
    """
    most = -(-model.layers // p)
    start = 0 if stage == "first" else model.layers - most
    return blocks_between(model, start, start + most)


def layer_kinds(model: ModelShape) -> tuple[tuple[Stack, Block], ...]:
    """A layer of each kind that the model has, with its stack."""
    return tuple(dict.fromkeys((stack, replace(block, count=1)) for stack in model.stacks for block in stack.blocks))


@lru_cache(256)
def stage_runs(model: ModelShape, p: int, stage: Stage) -> tuple[Pair, ...]:
    """A stage's runs of equal layers in order: (which of ``layer_kinds``, so many)."""
    places = {kind: place for place, kind in enumerate(layer_kinds(model))}
    return tuple(
        (places[stack, replace(block, count=1)], block.count)
        for stack, blocks in stage_blocks(model, p, stage)
        for block in blocks
    )


def parameter_tensors(model: ModelShape, workload: Workload, stage: Stage = "last") -> Tensors:
    """Every parameter of a stage on one tensor- and expert-parallel rank (ZeRO not applied).

    A tied embedding is counted once, or on both ends of a pipeline, where each needs its copy.
    """
    return _tensors(model, workload.t, workload.e, workload.expert_t, workload.p, stage)


@lru_cache(256)
def _tensors(model: ModelShape, t: int, e: int, etp: int, p: int, stage: Stage) -> Tensors:
    first, last = stage == "first" or p == 1, stage == "last" or p == 1
    found = list[ParameterTensor]()
    for stack, blocks in stage_kinds(model, p, stage):
        # A stage of an encoder-decoder may hold the end of one stack and the front of the next.
        whole = sum(block.count for block in blocks) == stack.layers
        for block in blocks:
            found += block_tensors(block, stack.hidden, t, e, etp)
        found += stack_front(stack, t) if first or whole else ()
        found += stack_end(stack) if last or whole else ()
    if first:
        found += model.front_tensors(t)
    elif model.tied and model.head:
        found += model.embedding_tensors(t)
    found += model.end_tensors(t) if last else ()
    return tuple(found)


@frozen
class ShardParameters:
    """Parameters of one tensor- and expert-parallel rank.

    ``experts`` are held by d/e data-parallel ranks, ``dense``, everything else, by all d.
    """

    dense: int = 0
    experts: int = 0

    def __add__(self, other: "ShardParameters") -> "ShardParameters":
        return ShardParameters(self.dense + other.dense, self.experts + other.experts)

    def __sub__(self, other: "ShardParameters") -> "ShardParameters":
        return self + other.times(-1)

    def times(self, number: int) -> "ShardParameters":
        return ShardParameters(self.dense * number, self.experts * number)

    @property
    def total(self) -> int:
        return self.dense + self.experts

    def updated(self, workload: Workload) -> int:
        """Those whose optimizer states one rank holds: all of them, or its share under ZeRO."""
        if not workload.zero:
            return self.total
        return -(-self.dense // (workload.d * workload.cp)) + -(-self.experts // workload.expert_d)


def counted(tensors: Iterable[ParameterTensor]) -> "ShardParameters":
    """``tensors``' elements, ZeRO not applied."""
    found = [0, 0]
    for tensor in tensors:
        found[tensor.expert] += tensor.copies * tensor.elements
    return ShardParameters(*found)


#: peft's targets where nobody says, of all but a few model types: queries and values, or the fused projection
#: (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING in peft/utils/constants.py, 0.21).
USUAL = ("q_proj", "v_proj", "qkv_proj")
#: Targets of adapters for model types for which peft has others than the usual ones.
USUAL_OF = {"phi": "q_proj,v_proj,up_proj,down_proj", "nemotron_h": "q_proj,k_proj,v_proj,o_proj"}
ALL_LINEAR = "all-linear"
#: Names that model classes give to the same matrices.
_ALSO: dict[str, str] = content(DATA / "models.toml")["matrix_names"]


def base_of(workload: Workload) -> str:
    """How frozen matrices are kept: without 16 bits, and under autocast, in fp32."""
    wide = workload.precision == "amp" or workload.activation_bytes > 2
    return workload.base or ("nf4" if workload.finetune == "qlora" else "fp32" if wide else "bf16")


def is_quantised(linear: Linear, workload: Workload) -> bool:
    """Whether a frozen layer's matrix is kept in fewer bits than products read."""
    base = base_of(workload)
    return linear.weights is not None if base == "release" else base not in ("bf16", "fp32", "fp8")


def widened(workload: Workload) -> bool:
    """Whether all but the quantised matrices is in fp32, so that hidden states are."""
    return workload.adapted and base_of(workload) in ("nf4", "int8", "fp32")


def adapter_rank(linear: Linear, workload: Workload) -> int:
    """The rank of ``linear``'s adapter, 0 where it has none. Experts and routers have none: they are no nn.Linear."""
    own = linear.name.rsplit(".", 1)[-1]
    if not workload.adapted or "router" in own or ".experts." in linear.name:
        return 0
    targets = set(USUAL)
    if workload.lora_targets is not None:
        # Under both names: what attention's class calls out_proj is o_proj here, a recurrent layer's is out_proj.
        said = set(re.findall(r"[\w-]+", workload.lora_targets))
        targets = said | {_ALSO.get(one, one) for one in said}
    return workload.lora_rank if own in targets or ALL_LINEAR in targets else 0


def adapters(linear: Linear, workload: Workload) -> Linears:
    """A [r, in] and B [out, r] of ``linear``; tensor parallelism cuts the one that meets the cut side (empty: none)."""
    rank = adapter_rank(linear, workload)
    if not rank:
        return ()
    a = Linear(f"{linear.name}.lora_A", rank, linear.in_features)
    b = Linear(f"{linear.name}.lora_B", linear.out_features, rank)
    if linear.shard == "row":
        return replace(a, shard="row"), b
    return a, replace(b, shard=linear.shard, units=linear.units)


def check_finetune(model: ModelShape, workload: Workload) -> None:
    """InputError where no matrix is a target, and for a release's own format where it has none."""
    if not workload.adapted:
        return
    refuse(workload.base == "release" and not model.formats, "expected a quantised release", "base", workload.base)
    linears = list(chain.from_iterable(block.linears(stack.hidden) for stack, block in model.all_blocks()))
    if not any(adapter_rank(linear, workload) for linear in linears):
        known = sorted({linear.name.rsplit(".", 1)[-1] for linear in linears if "router" not in linear.name})
        raise InputError(
            f"expected some of {', '.join(known)} or all-linear: no matrix is called so",
            "lora_targets",
            workload.lora_targets,
        )


def trained_block(block: Block, hidden: int, workload: Workload) -> EachTensor:
    """Trained parameters of ``block.count`` layers on one tensor- and expert-parallel rank."""
    if not workload.adapted:
        yield from block_tensors(block, hidden, workload.t, workload.e, workload.expert_t)
        return
    for linear in block.linears(hidden):
        yield from linear_tensors(adapters(linear, workload), workload.t, block.count, "block")


def trained_tensors(model: ModelShape, workload: Workload, stage: Stage = "last") -> Tensors:
    """Every parameter of a stage on one rank that has a gradient (ZeRO not applied)."""
    if not workload.adapted:
        return parameter_tensors(model, workload, stage)
    kinds = stage_kinds(model, workload.p, stage)
    found = (trained_block(block, stack.hidden, workload) for stack, blocks in kinds for block in blocks)
    return tuple(chain.from_iterable(found))


def trained_ends(model: ModelShape, workload: Workload, stage: Stage) -> Tensors:
    """Trained parameters behind the layers."""
    if (stage == "first" and workload.p > 1) or workload.adapted:
        return ()
    return tuple(model.end_tensors(workload.t))


def trained_parameters(model: ModelShape, workload: Workload) -> int:
    """Parameters of the whole model that train.

    Source: as peft counts ``requires_grad`` parameters.
    """
    whole = {key: getattr(workload, key) for key in ("finetune", "lora_rank", "lora_targets", "base")}
    return parameter_count(trained_tensors(model, Workload(**whole)))
