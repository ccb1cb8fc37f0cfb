"""Collectives of tensor, sequence, context, expert, pipeline and data parallelism, by message size.

Ranks are numbered as Megatron-LM numbers them, tensor parallelism's first: ``stride`` is the distance between two
neighbours of a group.
`split_problems` says whether a model divides over its devices at all, `runnable_split` leaves out what does not.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, starmap

from shapes.errors import InputError
from shapes.frozen import Ints, replace
from shapes.model import Block, ModelShape, MoeShape, SharedKeyShape
from shapes.model.layers import Attention
from shapes.model.stages import ShardParameters
from shapes.workload import Workload

from .cores import Lowering, is_sparse, passed_numbers
from .types import Collective, Listed

#: A degree that does not divide: what was expected, its name, and its value.
Problem = tuple[str, str, int]


def split_problems(model: ModelShape, workload: Workload) -> tuple[InputError, ...]:
    """Splits that do not divide: layers by p, heads and widths by t, experts by e, d by e and replicas: InputErrors."""
    degrees = workload.t, workload.p, workload.e, workload.cp, workload.vpp, workload.replicas, workload.etp
    if {1, None}.issuperset(degrees):
        return ()
    of_heads = _of_heads(model, workload.t, workload.expert_t, workload.train)
    found = chain(_of_layers(model, workload), of_heads, _of_experts(model, workload))
    return tuple(starmap(InputError, dict.fromkeys(found)))


def _of_layers(model: ModelShape, workload: Workload) -> Iterator[Problem]:
    p, ranks = workload.p, workload.d * workload.cp
    if p > model.layers:
        yield f"expected at most the {model.layers} layers there are", "p", p
    elif p > 1:
        # Chunks of a layer each, or of the embedding or the head alone, which Megatron-Core's layouts place as layers
        # (account_for_embedding_in_pipeline_split).
        chunks = (model.layers + 2) // p
        if any(block.shared for _, block in model.all_blocks()):
            yield "expected 1: layers of several stages would share their weights", "p", p
        elif workload.vpp > chunks:
            yield f"expected at most {chunks} chunks of the {model.layers} layers over p = {p}", "vpp", workload.vpp
    if workload.zero == 3 and ranks % workload.replicas:
        yield f"expected a divisor of the {ranks} data-parallel ranks", "replicas", workload.replicas
    if workload.cp > 1 and workload.attention == "eager":
        yield "expected 1: eager attention does not share a sequence", "cp", workload.cp


@lru_cache
def _of_heads(model: ModelShape, t: int, etp: int, train: bool = False) -> list[Problem]:
    found = []
    for heads, named, shared, kept in _sharded(model, train):
        if heads % t:
            found.append((f"expected a divisor of the {heads} {named}", "t", t))
        elif shared % t and t % shared:  # each rank holds whole ones: a share of them, or a copy of one
            found.append((f"expected a divisor or a multiple of the {shared} {kept}", "t", t))
    for width, expert in mlp_widths(model):
        if width % (ranks := etp if expert else t):
            found.append((f"expected a divisor of the {width} features of an MLP", "t" if ranks == t else "etp", ranks))
    return found


def _of_experts(model: ModelShape, workload: Workload) -> Iterator[Problem]:
    e, etp, ranks = workload.e, workload.expert_t, workload.stage_ranks
    for experts in expert_counts(model):
        if experts % e:
            yield f"expected a divisor of the {experts} experts", "e", e
    if not model.moe:
        for key, degree in (("e", e), ("etp", workload.etp or 1)):
            if degree > 1:
                yield "expected 1: the model has no experts to spread", key, degree
    elif ranks % etp:
        yield f"expected a divisor of the {ranks} ranks of a stage", "etp", etp
    elif ranks // etp % e:
        yield f"expected a divisor of the {ranks // etp} ranks that experts are spread over", "e", e


def check_split(model: ModelShape, workload: Workload) -> None:
    """Raise InputError if the model does not divide over the workload's devices."""
    for problem in split_problems(model, workload):
        raise problem


def runnable_split(model: ModelShape, workload: Workload) -> Workload:
    """``workload`` without the degrees that the model does not divide over: 1 in the place of each."""
    failing = {problem.key for problem in split_problems(model, workload) if problem.key}
    chunks = {"vpp"} if "p" in failing else set()
    degrees = dict.fromkeys(failing | chunks, 1)
    found = replace(workload, **degrees)
    # Experts may be spread over ranks of a degree that is gone.
    return found if found == workload else runnable_split(model, found)


def divides_over(model: ModelShape, t: int) -> bool:
    """Whether every attention's and recurrence's heads and every width divide over ``t`` ranks."""
    return not _of_heads(model, t, t)


@lru_cache
def expert_counts(model: ModelShape) -> Ints:
    """The different numbers of experts of the model's blocks."""
    return tuple(dict.fromkeys(block.mlp.experts for _, block in model.all_blocks() if isinstance(block.mlp, MoeShape)))


def head_counts(model: ModelShape) -> Ints:
    """The different numbers of attention heads: a vision tower's, an encoder's and the decoder's."""
    return tuple(dict.fromkeys(attention.heads for attention in _attentions(model)))


@lru_cache
def mlp_widths(model: ModelShape) -> set[tuple[int, bool]]:
    """The different widths of MLPs, experts and shared experts, and whether they are a routed expert's.

    Megatron-Core and engines cut them evenly or refuse.
    """
    mlps = (mlp for _, block in model.all_blocks() for mlp in (block.mlp, getattr(block.mlp, "shared", None)))
    return {(mlp.width, isinstance(mlp, MoeShape)) for mlp in mlps if mlp}


@lru_cache
def _attentions(model: ModelShape) -> tuple[Attention, ...]:
    found = (one for _, block in model.all_blocks() for one in (block.attention, block.cross) if one)
    return tuple(dict.fromkeys(found))


def _sharded(model: ModelShape, train: bool) -> Iterator[tuple[int, str, int, str]]:
    """Dimensions that tensor parallelism cuts: heads, their name, what they share and is never cut, and its name.

    No rank has a copy of a state's group (Megatron-LM, core/ssm/mamba_mixer.py:250-274), but engines copy a single one
    (vLLM, mamba_mixer2.py). Convolutions have none.
    """
    for attention in _attentions(model):
        yield attention.heads, "attention heads", attention.kv_heads, "key/value heads, which are not cut"
        if isinstance(attention, SharedKeyShape):
            yield attention.out_groups, "groups of the output projection", 1, "key head"
    for mixer in dict.fromkeys(block.mixer for _, block in model.all_blocks() if block.mixer):
        heads = mixer.groups if "groups" in mixer.form.named.values() and (train or mixer.groups > 1) else mixer.heads
        yield heads, "heads of the recurrent layers, or groups of them", mixer.groups, "groups of recurrent heads"


def block_collectives(block: Block, hidden: int, s: int, run: Lowering) -> Listed:
    """One layer's collectives: of tensor, context and expert parallelism."""
    workload = run.workload
    tokens, size = workload.own_tokens(s), workload.activation_bytes
    times = 1 if block.parallel else len(block.parts)
    runs = "sequence_parallel" if workload.sequence_parallel else "tensor_parallel"
    moe = block.mlp if isinstance(block.mlp, MoeShape) else None
    if moe and not moe.shared and workload.expert_t != workload.t:
        times -= 1  # ranks that cut experts gather their own tokens alone
        gathered = workload.expert_tokens(tokens) * hidden * size
        yield from run.sends("tensor_parallel", gathered, workload.expert_t, runs)
    yield from run.sends("tensor_parallel", tokens * hidden * size, workload.t, runs, times)
    for attention in (block.attention, block.cross):
        if attention and (workload.cp_comm != "a2a" or is_sparse(attention, s)):
            buffer = workload.b * passed_numbers(attention, workload.t, s) * size
            yield from run.sends("context_parallel", buffer, workload.cp, "context_parallel", stride=workload.t)
    if moe:
        yield from _expert_parallel(moe, hidden, tokens, run)


def _expert_parallel(moe: MoeShape, hidden: int, tokens: int, run: Lowering) -> Listed:
    """Tokens to their experts and back."""
    workload = run.workload
    # A rank routes 1/t of the tokens: Megatron-LM asks for sequence parallelism where t and e meet.
    routed = -(-tokens // workload.t) * moe.routed_width(hidden) * workload.activation_bytes * moe.top_k
    name = "overlapped_moe" if workload.ep_overlap else "moe"
    copies = moe.top_k if workload.dispatcher == "flex" else 1
    yield from run.sends(name, routed, workload.e, "all_to_alls", 2, workload.expert_t, copies, moe.groups)


def end_collectives(model: ModelShape, workload: Workload, s: int) -> Listed:
    """Tensor parallelism's of the vocabulary: behind the embedding, and around the head."""
    size = workload.own_tokens(s) * workload.activation_bytes
    split = "_split" if workload.sequence_parallel else ""
    if model.vocab and workload.p == 1:
        buffer = size * (model.embedding_dim or model.hidden)
        yield from Lowering(workload).sends("embedding.tensor_parallel", buffer, workload.t, f"embedding{split}")
    if model.head:
        times = model.heads * (model.head_passes if workload.train else 1)
        buffer = size * model.hidden
        yield from Lowering(workload).sends("lm_head.tensor_parallel", buffer, workload.t, f"head{split}", times)


def pipeline_collectives(model: ModelShape, workload: Workload, s: int) -> Listed:
    """The activations that the last stage receives and the gradients that it sends back.

    Each tensor-parallel rank sends its share; where activations are not split anyway (sequence parallelism), the
    receiving ranks gather them (Narayanan et al. 2104.04473, section 4.1, the scatter-gather optimization).
    """
    if workload.p == 1:
        return
    whole = workload.own_tokens(s) * model.hidden * model.main.residuals * workload.activation_bytes
    if not workload.sequence_parallel:
        yield from Lowering(workload).sends("pipeline", whole, workload.t, "pipeline")
    boundary, stride = -(-whole // workload.t), workload.stage_ranks
    for phase in Lowering(workload).runs():
        name = "pipeline.receive" if phase == "forward" else "pipeline.send"
        yield Collective(name, phase, "send_recv", boundary, 2, workload.dtype, stride=stride)


def frozen_collectives(frozen: ShardParameters, bytes_each: float, workload: Workload, layers: int) -> Listed:
    """ZeRO 3's gathers of a frozen base, in the type it is kept in: each layer for the forward and for the backward.

    A pipeline keeps what the first microbatch gathered.
    """
    pieces = max(1, layers)
    for whose, parameters, _, shard, stride in _data_parallel(frozen, workload):
        if workload.zero == 3 and parameters:
            buffer = round(parameters * bytes_each / pieces)
            name, times = f"data_parallel.frozen{whose}", (1 + workload.regathers) * pieces
            yield from Lowering(workload).sends(name, buffer, shard, "parameters", times, stride)


def _data_parallel(held: ShardParameters, workload: Workload) -> Iterator[tuple[str, int, int, int, int]]:
    """Groups of ranks that hold the same parameters: all d cp ranks, and for experts those that hold the same ones.

    Each is (end of the name, parameters, ranks, those of them that share what ZeRO shards, stride).
    """
    dense, experts, cut = workload.d * workload.cp, workload.expert_d, workload.expert_t
    groups = [("", held.dense, dense, workload.t), (".experts", held.experts, experts, cut * workload.e)]
    if dense == experts:
        groups = [("", held.total, dense, workload.t)]
    for whose, parameters, ranks, stride in groups:
        shared = ranks // workload.replicas if workload.zero == 3 and ranks % workload.replicas == 0 else ranks
        yield whose, parameters, ranks, shared, stride


def gradient_collectives(held: ShardParameters, workload: Workload, layers: int) -> Listed:
    """Data parallelism's gradient reduction and ZeRO's parameter gathers, once; ZeRO 3's in every microbatch.

    Under a pipeline it does so once, too (``Workload.regathers``). Over all d cp ranks, and for experts over the
    d cp / e ranks that hold the same ones: two collectives where e > 1. With ``replicas`` (HSDP) ZeRO 3 shards over a
    replica's ranks, and replicas add up their shards of the gradients. It
    sends each of the ``layers`` by itself (FSDP wraps blocks), the weights of embedding and head spread over them.
    """
    run, sent = Lowering(workload), (workload.reduces, workload.gathers)
    # ZeRO-1 and -2 gather the updated weights once; ZeRO-3 gathers them for the forward and for the backward.
    pieces, gathers = (max(1, layers), 1 + workload.regathers) if workload.zero == 3 else (1, 1)
    for whose, parameters, ranks, shared, stride in _data_parallel(held, workload):
        if not parameters:
            continue
        name = f"data_parallel{whose}"
        shard = shared if workload.zero else 1  # without ZeRO every rank is a replica of all the weights
        reduced, gathered = (-(-parameters * workload.sent_bytes(one) // pieces) for one in sent)
        yield from run.sends(name, reduced, shard, "gradients", pieces, stride)
        yield from run.sends(name, gathered, shard, "parameters", gathers * pieces, stride)
        own, replicas = -(-parameters * workload.sent_bytes(workload.reduces) // shard), ranks // shard
        yield from run.sends(name, own, replicas, "replicas", stride=stride * shard)
