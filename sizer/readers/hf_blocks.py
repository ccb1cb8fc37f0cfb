"""The parts that declare Hugging Face's families: attention, MLPs and experts, layers in order.

A part reads its fields and answers a layer's shape by its index. Any trait of a part or a family may be a function of
the fields, called when a file is read.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import shapes.model
from shapes.frozen import Texts, replace
from shapes.model import (
    AttentionShape,
    Block,
    Linear,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    SharedKeyShape,
    Stack,
    Vectors,
)
from shapes.model.layers import each_layer
from shapes.model.mixers import Linears

from .expressions import sized
from .reading import FORMATS, MAX_LAYERS, Fields, Names, Values, table

_TABLE = FORMATS["huggingface"]
#: By what names a file says a dimension, or a key of one class, which takes the last for it.
NAMES = _TABLE["dimensions"] | _TABLE["derived"]
HIDDEN, LAYERS, HEADS = NAMES["hidden"], NAMES["layers"], NAMES["heads"]
EXPERTS, TOP_K = NAMES["experts"], NAMES["top_k"]
POSITIONS, DROPOUT = NAMES["positions"], _TABLE["dropouts"]

#: Rows of a table, as texts.
Rows = Sequence[Sequence[str]]
Attention = AttentionShape | MlaShape | SharedKeyShape
Mlp = MlpShape | MoeShape
#: Functions of a layer's number: how far it sees (None: everything), whether it is of a kind, its attention, its MLP.
Window = Callable[[int], int | None]
Chosen = Callable[[int], bool]
Core = Callable[[int], Attention]
Dense = Callable[[int], Mlp]


def rotary_share(fields: Fields, share: float, key: str = "partial_rotary_factor") -> float:
    """The ``share`` of a head's channels that is rotated, which a file may say in ``rope_parameters``."""
    nested = fields.raw("rope_parameters")
    there = isinstance(nested, dict) and "partial_rotary_factor" in nested
    said = fields.nested("rope_parameters") if there else fields
    return min(said.number(key, "partial_rotary_factor", default=share), 1.0)


def shared_heads(fields: Fields, shared: str) -> int:
    """Key/value heads, which divide the heads: as many where the key is absent."""
    return fields.kv_heads(all_heads(fields), shared)


def total(fields: Fields, total: str) -> int:
    """A sum of products of numbers, dimensions and keys, which the file or its class has; 0 of an absent ``_key``.

    ``part__key``: of a part of the file.
    """

    def size(name: str) -> float:
        *path, key = name.split("__")
        own, names = section(fields, path), NAMES.get(key, [key.lstrip("_")])
        value = own.raw(*names) if name[0] == "_" else own.required(*names)
        read = own.number if isinstance(value, float) else own.integer
        return value if isinstance(value, bool) else read(*names) if value else 0

    return sized(total, size)


def section(fields: Fields, path: Sequence[str]) -> Fields:
    """The part of a file under these keys, each in the one before, with its class's defaults."""
    for key in path:
        part = fields.nested(key)
        known = table("hf_defaults").get(_TABLE["sections"].get(key), {})
        # "outer" is a tower's word for the file that it is in.
        fields = replace(part, defaults=known, prefix=part.prefix * (key != "outer"))
    return fields


def matrices(fields: Fields, matrices: Rows) -> Linears:
    """The matrices of a table's rows: name, outputs, inputs (as ``total``), rows a sequence (none: its tokens), words.

    Behind these may be how many of them there are.
    Words are "bias"; "conv"; "given": its input learns nothing; "idle": it does not run backward; "shared": another
    matrix has its parameters; "column", "row": how it is sharded.
    """
    return tuple(
        Linear(
            name,
            outputs,
            total(fields, inputs),
            "bias" in how,
            "column" if "column" in how else "row" if "row" in how else "none",
            "conv" if "conv" in how else "gemm",
            total(fields, tokens) if tokens else None,
            "given" not in how,
            learns="idle" not in how,
            shared="shared" in how,
        )
        for name, out, inputs, tokens, how, *times in matrices
        if (outputs := total(fields, out))
        for _ in range(total(fields, *times) if times else 1)
    )


def made(_fields: Fields, of: str, **traits: Any) -> Any:
    """A part of shapes.model of these traits."""
    return getattr(shapes.model, of)(**traits)


def hidden_size(fields: Fields) -> int:
    return fields.integer(*HIDDEN)


def all_heads(fields: Fields) -> int:
    """Key/value heads of classes that have one for every head and read no key for it."""
    return fields.integer(*HEADS)


def positions(fields: Fields) -> int:
    """Learned positions."""
    return fields.integer(*POSITIONS)


def layer_count(fields: Fields, names: Sequence[str] = LAYERS) -> int:
    return fields.layers(*names)


def head_dim(fields: Fields) -> int:
    """The declared head_dim, never re-derived; where absent h / a, which must be whole."""
    return fields.optional("head_dim") or head_share(fields, HEADS, ", or a head_dim of its own")


def head_share(fields: Fields, names: Sequence[str], more: str = "") -> int:
    """The hidden size by the heads that the first of ``names`` gives."""
    hidden = hidden_size(fields)
    return fields.quotient(hidden, fields.integer(*names), f"{fields.key_of(*HIDDEN)} = {hidden}{more}", *names)


def listed(fields: Fields, name: str, *names: str) -> Texts:
    """A word a layer, of those that its class knows, as transformers 5 calls them; absent: empty."""
    words = _TABLE["layer_words"][name]
    own = words.get(fields.text("model_type"), words[""])
    given = [_TABLE["layer_words_before"].get(one, one) for one in fields.strings(name, *names)]
    fields.refuse({*given}.difference(own), f"expected layers of {', '.join(own)}", name, *names)
    return given[: layer_count(fields)]  # some files go on with those of multi-token prediction


def sliding_where(fields: Fields, near: Chosen, given: int | None = None) -> Window:
    """The layers that ``layer_types`` names slide, else those ``near``; a ``given`` window, or the file's."""
    window = given or fields.count("sliding_window", "attention_chunk_size") or None
    kinds = listed(fields, "layer_types")

    def of(layer: int) -> int | None:
        slides = kinds[layer] != "full_attention" if kinds else near(layer)
        return window if slides else None

    return of


def all_but_every(fields: Fields, every: int, keys: Sequence[str] = (), first: bool = False) -> Window:
    """All layers slide but the last of each period (or its ``first``), which ``keys`` may give, or spell (LLLG)."""
    given = fields.raw(*keys)
    if isinstance(given, str) and set(given) == {"L", "G"}:
        return sliding_where(fields, lambda layer: given[layer % len(given)] == "L")
    period = fields.count(*keys) or every
    return sliding_where(fields, lambda layer: (layer + (not first)) % period != 0)


def said(of: Any, trait: Any) -> Any:
    """A trait, worked out where it is a function of the fields, or a layer's where it is one of layers."""
    return trait(of) if callable(trait) else trait


def told(fields: Fields, traits: Values) -> Values:
    """Traits with those that are functions of the fields worked out."""
    return {name: said(fields, trait) for name, trait in traits.items()}


def attention(
    fields: Fields,
    *,
    windows: Any = None,
    bias: Any = None,
    rotates: Any = None,
    local: Values | None = None,
    whole: Values | None = None,
    each: Any = None,
    **traits: Any,
) -> Core:
    """Self-attention from the usual fields.

    ``bias``: of all projections; ``rotates``: fields -> (layer, its window) -> whether it rotates at all; ``local`` and
    ``whole``: traits of the layers that slide, and of those that do not; ``each``: fields -> layer -> changes of its
    AttentionShape; ``traits``: of AttentionShape, and ``rotary``, the share of a head's channels that is rotated (most
    classes read no key for it).
    """
    if bias is not None:
        traits = {"qkv_bias": bias, "o_bias": bias, **traits}
    near, far = (_attention(fields, {**traits, **(others or {})}) for others in (local, whole))
    window = windows or (lambda _: None)
    rotated = rotates or (lambda *_: True)
    own: Any = each or (lambda _: {})

    def of(layer: int) -> Attention:
        sees = window(layer)
        shape = far if sees is None else near
        return replace(shape, window=sees, rotary_dim=shape.rotary_dim if rotated(layer, sees) else 0, **own(layer))

    return of


def _attention(fields: Fields, traits: Values) -> AttentionShape:
    usual = {
        "heads": all_heads,
        "head_dim": head_dim,
        "rotary": 1.0,
        "dropout": lambda fields: fields.number("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"),
    }
    said = told(fields, usual | traits)
    kv_heads = said.pop("kv_heads", None) or fields.kv_heads(said["heads"], "num_key_value_heads")
    return AttentionShape(kv_heads=kv_heads, rotary_dim=int(said["head_dim"] * said.pop("rotary")), **said)


def mlp(fields: Fields, width: Any = None, **traits: Any) -> Dense:
    """An MLP in every layer; ``traits`` are further fields of MlpShape. Its width may be a function of the layer."""
    widths = fields.integer("intermediate_size") if width is None else width
    return lambda layer: MlpShape(said(layer, widths), **traits)


def experts(
    fields: Fields,
    elsewhere: Values,
    *,
    sparse: Any = True,
    width: Any = lambda fields: fields.integer("moe_intermediate_size"),
    shared: Any = 0,
    shared_number: Any = 0,
    router_scalars: Any = False,
    **traits: Any,
) -> Dense:
    """Experts of ``width`` in the layers that ``sparse`` says (all, a list, or fields -> layer -> whether).

    ``elsewhere``: traits of the MLP that the others have. ``shared``: the width of the MLP that all tokens meet, or
    ``shared_number`` experts'. ``router_scalars``: the router learns one number an expert and its matrix. ``traits``:
    of MoeShape.
    """
    where = said(fields, sparse)
    each = where if isinstance(where, list) else [said(layer, where) for layer in range(layer_count(fields))]
    has = [one in (True, "moe") for one in each]
    other = None if all(has) else mlp(fields, **told(fields, elsewhere))
    if not other:
        fields.ignore("intermediate_size")  # the width of dense layers, and there are none
    elif not any(has):
        fields.ignore(*EXPERTS, *TOP_K, "moe_intermediate_size", "n_shared_experts")
        return other
    own = told(fields, {"width": width, **traits})
    if together := said(fields, shared) or said(fields, shared_number) * own["width"]:
        own["shared"] = MlpShape(**{**told(fields, elsewhere), "width": together})
    if said(fields, router_scalars):
        own["router_parameters"] = fields.integer(*EXPERTS)
    number = own.pop("experts", None) or fields.integer(*EXPERTS)
    own["groups"] = tuple(fields.count(one) or 1 for one in ("n_group", "topk_group"))
    moe = MoeShape(number, own.pop("top_k", None) or fields.top_k(number, *TOP_K), **own)
    return lambda layer: moe if has[layer] or not other else other(layer)


def latent(fields: Fields, still: str = "qk_nope_head_dim", turned: str = "qk_rope_head_dim", **traits: Any) -> Core:
    """DeepSeek's multi-head latent attention (plain where ``use_mla`` is false); ``traits``: of MlaShape.

    ``still`` and ``turned``: what the file calls a head's channels that are not rotated, and those that are.
    """
    heads = all_heads(fields)
    usual = hidden_size(fields) // heads
    if not fields.flag("use_mla", default=True):
        return attention(fields, head_dim=usual)
    core = MlaShape(
        heads,
        fields.integer("kv_lora_rank"),
        fields.integer(still),
        fields.integer(turned),
        fields.optional("v_head_dim") or usual,
        fields.optional("q_lora_rank"),
        bias=fields.flag("attention_bias"),
        dropout=fields.number("attention_dropout"),
        **traits,
    )
    return lambda _: core


#: Traits that each layer has, and what they usually are.
_OF_BLOCK: Values = {**_TABLE["of_block"], "dropout": lambda fields: fields.number(*DROPOUT)}


def layers(
    fields: Fields,
    attention: Callable[[Fields], Core],
    mlp: Callable[[Fields], Dense],
    *,
    number: Any = layer_count,
    crosses: Any = None,
    layer_before: Any = (),
    layer_extra: Any = (),
    mixer: Any = None,
    kinds: Any = "attention",
    alone: bool = False,
    sparse_before: Any = (),
    sparse_extra: Any = (),
    **traits: Any,
) -> list[Block]:
    """A ``number`` of layers (none: 0), one by one.

    ``crosses``: they also attend to the stack before theirs (or "itself", or as an AttentionShape). ``layer_before``:
    further matrices of each layer; ``layer_extra``: further vectors; ``sparse_``: those of layers with experts.
    ``kinds``: a word for all layers, or fields -> a word each: "attention", "recurrent" (a ``mixer`` instead), "both";
    if each part is a layer ``alone`` (only "both" has an MLP) also "mlp", "moe". ``traits``: of Block.
    """
    common = told(fields, _OF_BLOCK | traits)
    common |= {"before": said(fields, layer_before), "extra": vectors(fields, layer_extra)}
    words = _words(fields, kinds, number)
    core = _where(attention, {"attention", "both"}, words, fields)
    dense = _where(mlp, {"mlp", "moe", "both"} if alone else {*words}, words, fields)
    recurrent = _where(mixer, {"recurrent", "both"}, words, fields)
    more = told(fields, {"before": sparse_before, "extra": vectors(fields, sparse_extra)})
    blocks, other = [], said(fields, crosses)
    for layer, kind in enumerate(words):
        mlps = dense(layer, kind)
        further = mlps if alone else isinstance(mlps, MoeShape)
        own = {name: (*common[name], *more[name]) for name in more} if further else {}
        own["shared"] = said(layer, common["shared"])
        attends = core(layer, kind)
        cross = replace(attends, causal=False, cross=other is True) if other in (True, "itself") else other
        blocks.append(Block(attends, mlps, cross, mixer=recurrent(layer, kind), **common | own))
    return blocks


def _words(fields: Fields, kinds: Any, number: Any) -> Texts:
    """A word a layer: those of ``kinds``, or its one word for a ``number`` of layers."""
    words: str | Texts = said(fields, kinds)
    if not isinstance(words, str):
        return words
    count = said(fields, number)
    fields.refuse(count > MAX_LAYERS, f"expected at most {MAX_LAYERS} layers", *LAYERS)
    return [words] * count


def vectors(fields: Fields, rows: Any) -> Vectors:
    """Names and sizes (texts as of ``total``), without those of none."""
    told = ((name, total(fields, one) if isinstance(one, str) else one) for name, one in said(fields, rows))
    return tuple((name, size) for name, one in told if (size := said(fields, one)))


def _where(part: Any, kinds: set[str], words: Texts, fields: Fields) -> Callable[[int, str], Any]:
    """A layer's part by its number and its kind; fields are read where some layer has it."""
    made = part(fields) if part and kinds & {*words} else None
    return lambda layer, kind: made(layer) if made and kind in kinds else None


#: Traits of a family that are its layers', and its stack's.
OF_LAYERS = {*(layers.__kwdefaults__ or ()), *_OF_BLOCK}
OF_STACK = {"name", "hidden", "final_norm", "positions", "embedding_norm", "front", "length"}


def model_of(fields: Fields, *stacks: Stack, **traits: Any) -> ModelShape:
    """A language model of these stacks; ``traits`` are further fields of ModelShape."""
    traits.setdefault("tied", lambda own: own.flag("tie_word_embeddings"))
    traits.setdefault("vocab", lambda own: own.integer("vocab_size"))
    traits["extra"] = vectors(fields, traits.get("extra", ()))
    return ModelShape(fields.text("model_type"), stacks, **told(fields, traits))


def architecture_of(fields: Fields) -> str:
    """The class that the file names, "" where it names none; InputError where it names some with different heads."""
    named = fields.raw("architectures")
    names = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
    fields.refuse(
        len({head_of(one) for one in names}) > 1, "expected one class: these have different heads", "architectures"
    )
    return names[0] if names else ""


def head_of(architecture: str) -> str:
    """The table's name of a draft or head; "" for a language model's, the class's own name if it is not known."""
    found = next((one for one in _TABLE["drafts"] if re.search(rf"{one}(?!\d)", architecture)), "")
    if found or architecture.endswith(tuple(_TABLE["language_heads"])):
        return found
    return next((one for one in _TABLE["heads"] if architecture.endswith(one)), architecture)


def head_matrices(fields: Fields, of: str, head: str, hidden: int) -> Linears:
    """The matrices of a head of the table ``of``; "inner" is the ``hidden`` size."""
    # Labels of a classifier: two where the file says nothing, as in transformers.
    labels = fields.raw("id2label")
    labels = (isinstance(labels, dict) and len(labels)) or fields.count("num_labels", default=2)
    own = replace(fields, config={**fields.config, "labels": labels, "inner": hidden})
    return matrices(own, _TABLE[of][head])


def with_head(fields: Fields, model: ModelShape) -> tuple[ModelShape, Names]:
    """``model``, read with a language model's head, with the one that the file's ``architectures`` names, and notes."""
    architecture = architecture_of(fields)
    head = head_of(architecture)
    if not head:
        return model, ()
    if row := _TABLE["drafts"].get(head):
        return _draft(fields, model, row), (f"{architecture}: a draft model, {row['note']}",)
    fields.refuse(
        architecture.endswith(("DraftModel", "Speculator")),
        f"expected a draft of {', '.join(_TABLE['drafts'])}",
        "architectures",
    )
    if architecture.endswith("EncoderModel"):
        model = replace(model, stacks=model.stacks[:1])
    if head not in _TABLE["heads"] or (model.stacks[1:] and head != "Model"):
        return model, (f"{architecture} is not known: read with a language model's head",)
    linears = head_matrices(fields, "heads", head, model.embedding_dim or model.hidden)
    said = ", ".join(f"{one.name} [{one.out_features}, {one.in_features}]" for one in linears) or "none"
    before = *model.before_head, *linears
    return replace(model, head=False, head_bias=False, before_head=before), (f"head of {architecture}: {said}",)


def _draft(fields: Fields, model: ModelShape, row: Values) -> ModelShape:
    """A draft model as its table's ``row`` has it: what one matrix makes of states of the target, then its layers.

    ``inputs``: hidden sizes that the first attention reads. ``again``: matrices that each layer also runs over the
    target's states (DFlash: its keys and values). ``norms``: more of the first layer's. ``before_head``: what corrects
    its logits, by the kind of head that the file says (DSpark's), or that there is.
    """
    stack, hidden = model.main, model.hidden
    fields.defaults = fields.config.get("transformer_layer_config", {})  # speculators'
    first, *others = each_layer(stack.blocks)
    if isinstance(core := first.attention, AttentionShape):
        first = replace(first, attention=replace(core, inputs=row["inputs"]))
        again = tuple(
            replace(one, name=f"target.{one.name}", shared=True)
            for one in core.linears(hidden, fused=False)
            if one.name in row["again"]
        )
        first, *others = (replace(one, before=again) for one in (first, *others))
    elif row["heads"]:
        raise fields.error("expected a draft with keys and values of heads", "architectures")
    inner = fields.nested("dflash_config")
    head = inner.choice(inner.text("markov_head_type", default="vanilla"), row["before_head"], "markov_head_type")
    chosen = inner.integers("target_layer_ids")
    aux = fields.integers("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
    states = len(chosen or aux) or row["reads"] or model.layers
    width = fields.optional("target_hidden_size") or hidden
    first = replace(first, norms=first.norms + row["norms"])
    return replace(
        model,
        stacks=(replace(stack, blocks=(first, *others), final_norm=row["final_norm"]),),
        vocab=(row["final_norm"] and fields.optional("draft_vocab_size")) or model.vocab,
        **row["model"],
        extra=(*model.extra, *vectors(fields, row["extra"])),
        before_head=matrices(fields, head),
        after_embedding=(Linear("fc", hidden, states * width, fields.flag("bias", default=row["bias"])),),
    )
