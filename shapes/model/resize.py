"""A model's named dimensions: the same model with some changed, and the sides of matrices that have each."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from shapes.errors import positive_int, refuse
from shapes.frozen import Counts, Pair, Values, among, first_of, frozen, replace, stated
from shapes.recipes import WeightFormat
from shapes.toml_table import DATA, content

from . import AttentionShape, Block, Linear, Linears, ModelShape, MoeShape, Stack
from .layers import MOST_LAYERS, Blocks, each_layer, run_lengths

#: Dimension -> its old and its new size.
_Sizes = dict[str, Pair]

_TABLES = content(DATA / "models.toml")
#: Each dimension's place in a model.
_PLACES: dict[str, str] = _TABLES["places"]
DIMENSIONS = (*_PLACES, "window", "full_every")
#: Dimension -> its neighbours are multiples of this: widths by whole tiles, a vocabulary as rules ask.
MULTIPLES = _TABLES["multiples"]


def dimensions(model: ModelShape) -> Counts:
    """The dimensions of ``model`` by name; of its main stack, if stacks differ.

    A recurrent layer's are named for rules, and ``resize`` does not change them; a short convolution is as wide as the
    hidden size.
    """
    found = {}
    for name, place in _PLACES.items():
        size: Any = model
        for attribute in place.split("."):
            size = getattr(size, attribute, None)
        found[name] = size
    cores = (block.attention for block in model.main.blocks)
    found["window"] = first_of(one.window for one in cores if one and one.window)
    found["full_every"] = full_every(model.main.blocks)
    return stated(**found) | (model.mixer.sizes if model.mixer else {})


def full_every(blocks: Blocks) -> int | None:
    """Every how many layers one attends to all tokens; None where the layers are no such hybrid.

    The others, alike, attend to a window or are a recurrence. The last layer may be one more (Kimi Linear).
    """
    if len({replace(block, mlp=None, count=1) for block in {*blocks}}) != 2:
        return None
    full = [*map(_full, each_layer(blocks))]
    if len({*full}) < 2:
        return None
    first = full.index(True)
    tried = range(max(2, first + 1), len(full) + 1)
    return first_of(one for one in tried if [at % one == first for at in range(len(full) - 1)] == full[:-1])


def _full(block: Block) -> bool:
    return block.attention is not None and block.mixer is None and block.attention.window is None


def resize(model: ModelShape, **changes: int) -> ModelShape:
    """``model`` with the named dimensions changed, everywhere they had the main stack's old value.

    Key/value heads of plain multi-head attention follow ``heads``. ``head_dim`` follows ``heads`` and ``hidden`` if
    head_dim x heads was the hidden size and no new head_dim is given.
    ``shared_d_ff`` 0 takes the shared experts away. Raises InputError for an unknown dimension, one the model lacks, or
    a result that is no model.

    >>> from shapes.model import AttentionShape, Block, Linear, MlpShape, ModelShape, Stack
    >>> block = Block(AttentionShape(32, 32, 80), MlpShape(10240, gated=False), count=32)
    >>> gpt3 = ModelShape("gpt2", (Stack("decoder", 2560, (block,)),), vocab=50257)
    >>> dimensions(resize(gpt3, heads=20))["head_dim"]
    128
    """
    old = among(dimensions(model), DIMENSIONS)
    for name, value in changes.items():
        refuse(name not in old, f"expected one of {', '.join(old)}", name, value)
        if (name, value) != ("shared_d_ff", 0):
            positive_int(value, name)
    new = _completed(model, old, changes)
    sizes = {name: (old[name], new[name]) for name in old}
    return replace(
        model,
        stacks=tuple(_resized_stack(stack, sizes, main=stack is model.main) for stack in model.stacks),
        vocab=new.get("vocab", model.vocab),
        after_embedding=_resized_linears(model.after_embedding, sizes),
        before_head=_resized_linears(model.before_head, sizes),
        pooling=_resized_attention(model.pooling, sizes),
    )


def _completed(model: ModelShape, old: Counts, changes: Counts) -> Counts:
    new = old | changes
    if "heads" not in old:
        return new
    if "kv_heads" not in changes and old["heads"] == old["kv_heads"]:
        new["kv_heads"] = new["heads"]
    square = isinstance(model.attention, AttentionShape) and old["heads"] * old["head_dim"] == old["hidden"]
    if square and "head_dim" not in changes:
        hidden, heads = new["hidden"], new["heads"]
        refuse(hidden % heads, f"expected a divisor of the hidden size {hidden}", "heads", heads)
        new["head_dim"] = hidden // heads
    return new


def _resized_stack(stack: Stack, sizes: _Sizes, *, main: bool) -> Stack:
    if not main and stack.hidden != sizes["hidden"][0]:
        return stack
    resized = {block: _resized_block(block, sizes) for block in {*stack.blocks}}
    blocks = tuple(resized[block] for block in stack.blocks)
    before, layers = sizes["layers"]
    old, every = sizes.get("full_every", (0, 0))
    # Columns of layers are not told apart by whether they are as many as before: that many make the same blocks.
    if main and (layers is not before or every != old):
        blocks = _hybrid(blocks, layers, old, every) if old else _with_layers(blocks, layers)
    return replace(stack, hidden=sizes["hidden"][1], blocks=blocks, front=_resized_linears(stack.front, sizes))


def _with_layers(blocks: Blocks, layers: int) -> Blocks:
    """The pattern of ``blocks`` cut or repeated to ``layers`` layers."""
    positive_int(layers, "layers", MOST_LAYERS)
    pattern = each_layer(blocks)
    # Longer than the old model: go on with the last quarter's pattern, where the leading dense layers are behind.
    repeated = -(-len(pattern) // 4)
    leading = len(pattern) - blocks[-1].count
    if leading <= len(pattern) - repeated and layers > leading:
        return *run_lengths(pattern[:leading]), replace(blocks[-1], count=layers - leading)
    more = -(-(int(layers) - len(pattern)) // repeated)
    return run_lengths((pattern + pattern[::-1][:repeated] * more)[: int(layers)])


def _hybrid(blocks: Blocks, layers: Any, old: int, every: int) -> Blocks:
    """Full attention in one layer of ``every``, placed as it was among ``old``.

    Each layer keeps its MLP, and the last one is full where it was. Columns of layers with one MLP are two blocks, in
    no order.
    """
    kinds, ends = {_full(block): block for block in blocks}, _full(blocks[-1])
    place = -(-([*map(_full, each_layer(blocks))].index(True) + 1) * every // old) - 1
    alike = _with_layers(run_lengths(replace(kinds[True], mlp=one.mlp, count=one.count) for one in blocks), layers)
    if len(alike) > 1 or isinstance(layers * every, int):
        return run_lengths(
            replace(kinds[bool(at % every == place or (ends and at == layers - 1))], mlp=one.mlp, count=1)
            for at, one in enumerate(each_layer(alike))
        )
    full = (layers - 1 - place) // every + 1 + (ends and (layers - 1) % every != place)
    first, counts = bool(place == 0), {True: full, False: layers - full}
    return tuple(replace(kinds[own], count=counts[own]) for own in (first, not first) if counts[own] != 0)


def _renewed(part: Any, sizes: _Sizes, **names: str) -> Any:
    """``part``, if any, with each field that had the old size of the dimension it ``names`` at its new size."""
    if part is None:
        return None
    changed = {
        field: sizes[name][1]
        for field, name in (names or _TABLES["fields"][type(part).__name__]).items()
        if name in sizes and getattr(part, field) == sizes[name][0]
    }
    return replace(part, **changed)


def _resized_block(block: Block, sizes: _Sizes) -> Block:
    attention, mlp, mixer = _renewed(block.attention, sizes), _renewed(block.mlp, sizes), block.mixer
    if isinstance(attention, AttentionShape):
        attention = _resized_attention(attention, sizes)
    if attention and attention.indexer and attention.indexer.query_rank:
        attention = replace(attention, indexer=replace(attention.indexer, query_rank=attention.q_lora_rank))
    if isinstance(mlp, MoeShape) and mlp.shared:
        shared = _renewed(mlp.shared, sizes, width="shared_d_ff") if sizes.get("shared_d_ff", (1, 1))[1] else None
        mlp = replace(mlp, shared=shared, shared_gate=mlp.shared_gate and shared is not None)
    if getattr(mixer, "kind", "") == "short_conv":
        mixer = _renewed(mixer, sizes, heads="hidden")
    return replace(block, attention=attention, cross=_resized_attention(block.cross, sizes), mlp=mlp, mixer=mixer)


def _resized_attention(attention: AttentionShape | None, sizes: _Sizes) -> AttentionShape | None:
    heads, (old, new) = sizes.get("heads", (0, 0)), sizes.get("head_dim", (0, 0))
    if not attention or (attention.heads, attention.head_dim) != (heads[0], old):
        return attention
    resized: AttentionShape = _renewed(attention, sizes, heads="heads", kv_heads="kv_heads", head_dim="head_dim")
    return replace(
        resized,
        rotary_dim=attention.rotary_dim if attention.rotary_fixed else attention.rotary_dim * new // old,
        v_head_dim=None if attention.v_head_dim == old else attention.v_head_dim,
    )


def _resized_linears(linears: Linears, sizes: _Sizes) -> Linears:
    return tuple(_renewed(linear, sizes) for linear in linears)


#: The dimensions of a matrix's outputs and inputs.
_SIDES: dict[str, Values] = _TABLES["sides"]


@frozen
class Side:
    """The outputs (or a part of them that is cut by itself) or the inputs of a weight matrix.

    ``features`` are one shard's, of the fullest rank; ``whole`` the model's; ``shards`` how many share them (1: each
    rank has all). ``merged``: the matrix has several such parts in one. ``output`` False: the inputs. ``kept``: the
    format of a quantised release that the matrix is kept in.
    """

    dimension: str
    matrix: str
    features: int
    whole: int
    shards: int
    output: bool = True
    merged: bool = False
    kept: WeightFormat | None = None

    @property
    def share(self) -> str:
        """One shard's features, and what they are cut of."""
        return f"{self.whole}/{self.shards} = {self.features}" if self.shards > 1 else str(self.features)

    @property
    def block(self) -> int:
        """Features along this side that share a scale in what the matrix is kept in."""
        return (self.kept.block[not self.output] if self.kept else 0) or 1


@lru_cache(256)  # asked with every workload whose memory is counted
def sides(model: ModelShape, t: int, expert_t: int, *, fused: bool | None = None) -> tuple[Side, ...]:
    """Every side of every kind of weight matrix in the layers, cut over ``t`` ranks, experts over ``expert_t``.

    ``fused``: projections of the same input in one matrix, as serving engines have them (None: as the model class
    does). Matrices that are never quantised (routers, gates, embedding and head) are left out.
    """
    found = list[Side]()
    for stack, block in model.all_blocks():
        width = "shared_d_ff" if isinstance(block.mlp, MoeShape) else "d_ff"
        for linear in block.linears(stack.hidden, fused_qkv=fused, fused_gate_up=fused):
            found += _of(linear, t, width)
        for linear in block.expert_linears(stack.hidden, fused=fused):
            found += _of(linear, expert_t, "expert_d_ff")
    return tuple(dict.fromkeys(found))


def _of(linear: Linear, t: int, width: str) -> Iterator[Side]:
    name = linear.name.rpartition(".")[2]
    if name not in _SIDES:
        return
    outs, inner = _SIDES[name]["outputs"], _SIDES[name]["inputs"]
    cut = t if linear.shard == "column" else 1
    parts = linear.units or ((linear.out_features, 1),)
    for dimension, (number, size) in zip(outs, parts, strict=True):
        own, whole = -(-number // cut) * size, number * size
        yield Side(dimension or width, linear.name, own, whole, cut, merged=len(parts) > 1, kept=linear.weights)
    cut = t if linear.shard == "row" else 1
    own, whole = -(-linear.in_features // cut), linear.in_features
    yield Side(inner or width, linear.name, own, whole, cut, output=False, kept=linear.weights)
