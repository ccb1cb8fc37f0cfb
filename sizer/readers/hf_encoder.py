"""Encoders of transformers: what encoders.toml cannot say of BERT and its kin, marian, ViT and SAM 2."""

from shapes.frozen import replace
from shapes.model import AttentionShape, Block, Linear, Linears, MlpShape, Stack, run_lengths

from .hf_blocks import (
    POSITIONS,
    architecture_of,
    head_matrices,
    hidden_size,
    matrices,
    positions,
    section,
    total,
    vectors,
)
from .reading import FORMATS, Fields, Names

_HIERA = FORMATS["huggingface"]["hiera"]


def learned(fields: Fields, padding: int = 0) -> int | None:
    """Learned positions but ``padding`` rows that are none, as those to the padding index; None: alibi's."""
    rows = positions(fields)
    fields.refuse(rows <= padding, f"expected more than {padding} positions", *POSITIONS)
    return None if fields.text("position_embedding_type") == "alibi" else rows - padding


def own_head(fields: Fields, of: str) -> Linears:
    """The matrices of the head that ``architectures`` names, as the table ``of`` has them."""
    architecture = architecture_of(fields)
    kind = next(one for one in FORMATS["huggingface"][of] if architecture.endswith(one))
    return head_matrices(fields, of, kind, hidden_size(fields))


def has_vocabulary(fields: Fields, of: str) -> bool:
    return any(one.name == "head_transform" for one in own_head(fields, of))


def head_norm(fields: Fields, of: str, weights: int = 2) -> int:
    """A norm behind the head's first matrix."""
    return weights * sum(one.out_features for one in own_head(fields, of) if one.name.startswith("head"))


def hiera(fields: Fields, within: Names = ()) -> list[Stack]:
    """SAM 2's image encoder: the first layer of a stage reads the one before's tokens and pools its queries, wider.

    All others see windows of an image, but those of some numbers. Behind each stage its tokens come to one width.
    """
    outer, stacks = section(fields, within), list[Stack]()
    own = section(outer, ["backbone_config"])
    counts, whole = own.integers("blocks_per_stage"), own.integers("global_attention_blocks")
    widths, heads, windows = (own.integers(name, length=len(counts)) for name in _HIERA["stages"])
    single = [outer.count(name) for name in _HIERA["single"]] == [1, 1, 0]
    outer.refuse(not single, "expected 1: convolutions of each token", *_HIERA["single"])
    channels = outer.integers("backbone_channel_list")
    outer.refuse(channels != widths[::-1], f"expected {widths[::-1]}", "backbone_channel_list")
    side, extra = total(own, _HIERA["side"]), vectors(own, _HIERA["extra"])
    front, extra = matrices(own, _HIERA["front"]), (*extra, ("window_positions", windows[0] ** 2 * widths[0]))
    for stage, width in enumerate(widths):
        blocks, reads = list[Block](), widths[stage - 1] * (stage > 0)
        for layer in range(sum(counts[:stage]), sum(counts[: stage + 1])):
            pool = own.integer("query_stride") if 0 < stage <= own.count("num_query_pool_stages") and reads else 1
            window = side if layer in whole else windows[stage - (reads > 0)] or side
            blocks.append(_hiera_layer(own, width, heads[stage], reads, side, window, pool))
            side, reads = side // pool, 0
        neck = Linear("neck", outer.integer("fpn_hidden_size"), width, True, kind="conv", rows=side**2)
        blocks[-1] = replace(blocks[-1], before=(*blocks[-1].before, neck))
        stacks.append(Stack(f"stage{stage}", width, run_lengths(blocks), side**2, front, final_norm=0, extra=extra))
        front = extra = ()
    return stacks


def _hiera_layer(own: Fields, width: int, heads: int, reads: int, side: int, window: int, pool: int) -> Block:
    """A layer on side x side tokens; ``reads``: of so many channels, where they are another stage's."""
    across, new = -(-side // window), reads > 0
    dim = own.quotient(width, heads, f"embed_dim_per_stage = {width}", "num_attention_heads_per_stage")
    tiles = across**2, (across * (window // pool)) ** 2, (across * window) ** 2
    core = AttentionShape(heads, heads, dim, reads=reads or None, tiles=tiles, **_HIERA["attention"])
    mlp = MlpShape(int(width * own.number("mlp_ratio", default=4.0)), **_HIERA["mlp"])
    entry = (Linear("proj", width, reads, True, rows=side**2),) * (reads not in (0, width))
    return Block(core, mlp, norms=2 - new, norm_weights=2, extra=(("norm", 2 * reads),) * new, before=entry)


def patches(fields: Fields, more: int = 0) -> int:
    """The patches of an image, and ``more`` tokens."""
    image, patch = fields.integer("image_size"), fields.integer("patch_size")
    fields.refuse(patch > image, f"expected at most image_size = {image}", "patch_size")
    return (image // patch) ** 2 + more
