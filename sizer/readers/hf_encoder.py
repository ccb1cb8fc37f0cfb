"""Encoders and encoder-decoders of transformers: BERT, RoBERTa, T5, BART, Whisper, ViT, SigLIP."""

from __future__ import annotations

from shapes.model import AttentionShape, Block, Linear, MlpShape, ModelShape, Stack
from sizer.readers.fields import Fields
from sizer.readers.hf_blocks import HEADS, HIDDEN, POSITIONS, attention, head_dim, layer_count


def bert(fields: Fields) -> ModelShape:
    """bert and roberta. ``architectures`` says which head; without one it is the base model with its pooler.

    RoBERTa's positions begin after the padding index, so two of its rows are no position.
    """
    hidden, rows = fields.integer(*HIDDEN), fields.integer(*POSITIONS)
    offset = 2 if fields.text("model_type") == "roberta" else 0
    if rows <= offset:
        raise fields.error(f"expected more than {offset} positions", *POSITIONS)
    heads = fields.integer(*HEADS)  # the class has no grouped queries: a stray num_key_value_heads is ignored
    core = attention(fields, kv_heads=heads, qkv_bias=True, o_bias=True, causal=False, rotary_share=0.0)
    mlp = MlpShape(fields.integer("intermediate_size"), gated=False, bias=True)
    dropout = fields.number("hidden_dropout_prob", default=0.1)
    block = Block(core, mlp, norm_weights=2, count=layer_count(fields), dropout=dropout)
    types = (("token_type_embeddings", fields.count("type_vocab_size") * hidden),)
    stack = Stack("encoder", hidden, (block,), positions=rows, embedding_norm=2, final_norm=0, extra=types)
    named = fields.raw("architectures", default=None)
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    pooler = Linear("pooler", hidden, hidden, True, rows=1)
    transform = Linear("head_transform", hidden, hidden, True)
    masked, pretraining = architecture.endswith("ForMaskedLM"), architecture.endswith("ForPreTraining")
    has_head = masked or pretraining
    before = (*(() if masked else (pooler,)), *((transform,) if has_head else ()))
    if pretraining:
        before += (Linear("next_sentence", 2, hidden, True, rows=1),)
    return ModelShape(
        fields.text("model_type"),
        (stack,),
        vocab=fields.integer("vocab_size"),
        tied=fields.flag("tie_word_embeddings", default=True),
        head=has_head,
        head_bias=has_head,
        before_head=before,
        max_positions=rows - offset,
        extra=(("head_norm", 2 * hidden),) if has_head else (),
    )


def t5(fields: Fields) -> ModelShape:
    """T5: a x d_kv need not be h; ``feed_forward_proj`` "gated-…" makes the MLP gated; the first layer of each stack

    learns relative position biases.
    """
    hidden, heads = fields.integer(*HIDDEN), fields.integer(*HEADS)
    gated = fields.text("feed_forward_proj", default="relu").startswith("gated-")
    mlp = MlpShape(fields.integer("d_ff"), gated=gated)
    biases = (("relative_attention_bias", fields.integer("relative_attention_num_buckets", default=32) * heads),)
    dropout, dim = fields.number("dropout_rate", default=0.1), fields.integer("head_dim", "d_kv")

    def core(*, causal: bool, cross: bool = False) -> AttentionShape:
        return AttentionShape(heads, heads, dim, causal=causal, cross=cross, dropout=dropout)

    layers = layer_count(fields)
    # Absent, the class takes num_layers (not its alias), whatever the table of defaults (made from default num_layers)
    # holds.
    decoder_layers = (
        fields.optional("num_decoder_layers") if "num_decoder_layers" in fields.config else None
    ) or layer_count(fields, "num_layers")
    encoder = Block(core(causal=False), mlp, count=layers, dropout=dropout)
    decoder = Block(
        core(causal=True), mlp, cross=core(causal=False, cross=True), norms=3, count=decoder_layers, dropout=dropout
    )
    return ModelShape(
        "t5",
        (Stack("encoder", hidden, (encoder,), extra=biases), Stack("decoder", hidden, (decoder,), extra=biases)),
        # transformers 5's T5Config sets tie_word_embeddings to True whatever the file says; it scales the output by it.
        vocab=fields.integer("vocab_size"),
        tied=True,
    )


def bart(fields: Fields) -> ModelShape:
    """BART: learned positions (two rows more than positions) and a norm after each embedding, none at the end."""
    positions = fields.integer(*POSITIONS)
    stacks = tuple(
        Stack(
            side,
            fields.integer(*HIDDEN),
            (_bart_block(fields, side),),
            positions=positions + 2,
            embedding_norm=2,
            final_norm=0,
        )
        for side in ("encoder", "decoder")
    )
    tied = fields.flag("tie_word_embeddings", default=True)
    # Untied, the class keeps a table for each side beside the shared one, which then nothing reads.
    return ModelShape(
        "bart",
        stacks,
        vocab=fields.integer("vocab_size"),
        tied=tied,
        max_positions=positions,
        embedding_tables=1 if tied else 3,
    )


def whisper(fields: Fields) -> ModelShape:
    """Whisper: two convolutions turn 3,000 frames into 1,500 positions; keys have no bias."""
    hidden, frames = fields.integer(*HIDDEN), fields.integer("max_source_positions")
    mels, targets = fields.integer("num_mel_bins"), fields.integer("max_target_positions")
    front = (
        Linear("conv1", hidden, 3 * mels, True, kind="conv", rows=2 * frames, grad_input=False),
        Linear("conv2", hidden, 3 * hidden, True, kind="conv", rows=frames),
    )
    encoder = Stack(
        "encoder",
        hidden,
        (_bart_block(fields, "encoder", k_bias=False),),
        length=frames,
        front=front,
        positions=frames,
        final_norm=2,
    )
    decoder = Stack("decoder", hidden, (_bart_block(fields, "decoder", k_bias=False),), positions=targets, final_norm=2)
    return ModelShape(
        "whisper",
        (encoder, decoder),
        vocab=fields.integer("vocab_size"),
        tied=fields.flag("tie_word_embeddings", default=True),
        max_positions=targets,
    )


def _bart_block(fields: Fields, side: str, *, k_bias: bool = True) -> Block:
    # The general names are the encoder's (attribute_map of BartConfig and WhisperConfig) and come first.
    decoder = side == "decoder"
    head_names = (f"{side}_attention_heads",) if decoder else ("num_attention_heads", "encoder_attention_heads")
    layer_names = (f"{side}_layers",) if decoder else ("num_hidden_layers", "encoder_layers")
    hidden, heads = fields.integer(*HIDDEN), fields.integer(*head_names)
    if hidden % heads:
        raise fields.error(f"expected a divisor of {fields.key_of(*HIDDEN)} = {hidden}", *head_names)
    dropout = fields.number("attention_dropout")

    def core(*, causal: bool, cross: bool = False) -> AttentionShape:
        return AttentionShape(
            heads,
            heads,
            hidden // heads,
            qkv_bias=True,
            k_bias=k_bias,
            o_bias=True,
            causal=causal,
            cross=cross,
            dropout=dropout,
        )

    return Block(
        core(causal=decoder),
        MlpShape(fields.integer(f"{side}_ffn_dim"), gated=False, bias=True),
        cross=core(causal=False, cross=True) if decoder else None,
        norms=3 if decoder else 2,
        norm_weights=2,
        count=layer_count(fields, *layer_names),
        dropout=fields.number("dropout", default=0.1),
    )


def vit(fields: Fields) -> ModelShape:
    """ViT: the patches and a class token; the base model's pooler."""
    hidden, patches, patch = _patches(fields)
    stack = _vision_stack(fields, patches + 1, patch, qkv_bias=fields.flag("qkv_bias", default=True), class_token=True)
    pooled = fields.optional("pooler_output_size") or hidden
    named = fields.raw("architectures", default=None)
    classifies = isinstance(named, list) and named[:1] == ["ViTForImageClassification"]
    if classifies:
        labels = fields.raw("id2label", default=None)
        number = len(labels) if isinstance(labels, dict) and labels else fields.count("num_labels", default=2)
        head = (Linear("classifier", number, hidden, True, rows=1),)
    else:
        head = (Linear("pooler", pooled, hidden, True, rows=1),)
    return ModelShape("vit", (stack,), head=False, before_head=head)


def siglip(fields: Fields) -> ModelShape:
    """SigLIP's vision tower: patches only, and a head that attends over them with one learned query."""
    hidden, patches, patch = _patches(fields)
    stack = _vision_stack(fields, patches, patch, qkv_bias=True, class_token=False)
    width = fields.integer("intermediate_size")
    if not fields.flag("vision_use_head", default=True):
        return ModelShape("siglip_vision_model", (stack,), head=False, part="vision tower")
    head = (
        Linear("head.q_proj", hidden, hidden, True, rows=1),
        Linear("head.kv_proj", 2 * hidden, hidden, True),
        Linear("head.o_proj", hidden, hidden, True, rows=1),
        Linear("head.up_proj", width, hidden, True, rows=1),
        Linear("head.down_proj", hidden, width, True, rows=1),
    )
    extra = (("head.probe", hidden), ("head.norm", 2 * hidden))
    heads = fields.integer(*HEADS)
    pooling = AttentionShape(heads, heads, hidden // heads, causal=False, cross=True)
    return ModelShape(
        "siglip_vision_model", (stack,), head=False, before_head=head, extra=extra, part="vision tower", pooling=pooling
    )


def _patches(fields: Fields) -> tuple[int, int, int]:
    image, patch = fields.integer("image_size"), fields.integer("patch_size")
    if patch > image:
        raise fields.error(f"expected at most image_size = {image}", "patch_size")
    return fields.integer(*HIDDEN), (image // patch) ** 2, patch


def _vision_stack(fields: Fields, tokens: int, patch: int, *, qkv_bias: bool, class_token: bool) -> Stack:
    hidden = fields.integer(*HIDDEN)
    core = attention(
        fields,
        head_dim=head_dim(fields),
        kv_heads=fields.integer(*HEADS),
        qkv_bias=qkv_bias,
        o_bias=True,
        causal=False,
        rotary_share=0.0,
    )
    mlp = MlpShape(fields.integer("intermediate_size"), gated=False, bias=True)
    block = Block(core, mlp, norm_weights=2, count=layer_count(fields))
    inputs = fields.integer("num_channels", default=3) * patch * patch
    embedding = Linear(
        "patch_embedding", hidden, inputs, True, kind="conv", rows=tokens - class_token, grad_input=False
    )
    extra = (("class_token", hidden),) if class_token else ()
    return Stack(
        "encoder", hidden, (block,), length=tokens, front=(embedding,), positions=tokens, final_norm=2, extra=extra
    )
