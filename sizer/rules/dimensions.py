"""Rules on widths, what else a product's leading dimension is, its element type and its low-precision recipe."""

from collections import defaultdict
from functools import partial

from shapes.dtypes import next_multiple
from shapes.engines import cut_blocks, padded_to, scaled_by
from shapes.frozen import replace
from shapes.model import AttentionShape, ModelShape, named
from shapes.operators.parallel import divides_over, head_counts, mlp_widths, runnable_split
from shapes.operators.types import Product
from shapes.recipes import RECIPES, Recipe, load_recipe
from shapes.toml_table import DATA, content
from shapes.workload import MEGATRON_ROWS, Workload

from .base import (
    NEIGHBOURHOOD,
    Answer,
    Context,
    Finding,
    Findings,
    Suggestions,
    nearest_first,
    neighbours,
    power_text,
    powers_near,
    rule,
    shard_text,
    square,
    suggest,
    unaligned_shards,
    whole_heads_near,
)

#: Stacks whose names begin so pad the vocabulary.
PADS = "megatron"


@rule("SZ101", "ML Engineering book, shape recommendation 1; arXiv 2401.14489, section VI; Megatron-LM pads to 128 t.")
def vocab_multiple(context: Context) -> Answer:
    """The vocabulary of one shard is a multiple of the device's alignment.

    The LM-head is one of the largest products of a step, and the vocabulary is its n forward, its k in dgrad and its m
    in wgrad. Off the tensor cores' requirement (128 bytes on A100 and later: 64 elements of bf16) the rows of the
    logits and of their gradient start at addresses that wide vector loads cannot use. Off 16 bytes it is a warning
    whatever the price; a multiple of 32 (GPT-J's 50400) costs what it is predicted to. Engines pad it as they load
    a model (vLLM and SGLang to 64), Megatron-LM where its stack is named (SZ136): nothing is lost there.

    Bad: vocab_size 50257 (GPT-2): odd.
    Good: vocab_size 50304 = 786 x 64.

    Suggestion: pad the embedding and the head to the next multiple of the alignment times t; the tokenizer does not
    change.
    """
    vocab = context.dimensions.get("vocab")
    if vocab is None or (context.model and not context.model.head):
        return "no LM-head"
    if context.workload.serving or (context.sets_any("stack") and context.stack.name.startswith(PADS)):
        return "engines and Megatron-LM pad the vocabulary themselves"
    said = "the vocabulary: {}; the head's products lose aligned rows"
    # Recipes keep the head in 16 bits.
    head = next((op.dtype for op in context.operators if op.name == "lm_head"), context.dtype)
    return unaligned_shards(
        replace(context, dtype=head), "vocab", "v", vocab, said, lambda value, step: [next_multiple(value, step)]
    )


#: A share of padding worth a line.
NOTABLE_ROWS = 0.01


@rule("SZ136", "Megatron-LM, core/tokenizers/utils/build_tokenizer.py:138 (make_vocab_size_divisible_by).")
def megatron_vocabulary(context: Context) -> Answer:
    """The rows that Megatron adds to a vocabulary, up to a multiple of 128 t, are few.

    The embedding and the head are padded when training starts, and a checkpoint has the padded rows: another t makes
    other shapes. With large t and small vocabularies they are a notable part of both.

    Bad: 50257 at t 8: padded to 51200, 1.9% more.
    Good: 128256 at t 8: 129024, 0.6% more; or a vocabulary that 128 t divides.

    Suggestion: none that a model sets: --make-vocab-size-divisible-by of 128 over t, or less.
    """
    vocab, step = context.dimensions.get("vocab"), MEGATRON_ROWS * context.workload.t
    if vocab is None or not context.stack.name.startswith(PADS):
        return "no vocabulary, or no Megatron stack"
    padded = next_multiple(vocab, step)
    if padded - vocab < NOTABLE_ROWS * vocab:
        return ()
    return Finding(
        "vocab",
        f"Megatron pads the vocabulary to {padded}, a multiple of 128 t: {padded / vocab - 1:.1%} more rows",
        cause="padded vocabulary",
    )


#: Elements that the sources ask h to be a multiple of, whatever the device asks beyond (Gaudi: 128).
RECOMMENDED_HIDDEN = 64


@rule("SZ103", "ML Engineering book, shape recommendation 3; arXiv 2401.14489, section VI.")
def hidden_per_shard(context: Context) -> Answer:
    """
    The hidden size, and the heads' share of it on one tensor-parallel shard, are multiples of the device's alignment.

    h is the n or k of every projection; h/t, where the heads add up to h, that of the split ones, which a head
    dimension off the alignment spoils. The sources ask for a multiple of 64, which nearly every published model keeps:
    another h is a warning whatever its price.

    Bad: h 2568 at t 1: divisible by 8 only. h 4160 of 40 heads (104) at t 8: h/t = 520, divisible by 8 only.
    Good: h 4096 at t 8: h/t = 512.

    Suggestion: the nearest hidden size with whole heads of 64 or 128, or a smaller t.
    """
    dims, t = context.dimensions, context.workload.t
    if "hidden" not in dims:
        return "no hidden size known"
    hidden, step = dims["hidden"], context.alignment
    # Heads that are cut are SZ105's; heads that do not add up to h leave it whole on every shard.
    shards = t if square(context) and dims["heads"] % t == 0 else 1
    if hidden % (step * shards) == 0:
        return ()
    if square(context):
        suggestions = whole_heads_near(context)
    else:
        near = {*neighbours(hidden, step), *neighbours(hidden, 2 * step)}
        close = sorted(value for value in near if abs(value - hidden) <= NEIGHBOURHOOD * hidden)
        suggestions = suggest("hidden", nearest_first(close, hidden))
    return Finding(
        "hidden",
        shard_text("h", hidden, shards, step),
        suggestions,
        violated=hidden % min(step, RECOMMENDED_HIDDEN) != 0,
        cause="hidden" if hidden % step else "head_dim",
    )


@rule("SZ108", "ML Engineering book, shape recommendation 6 and the SwiGLU search.", "model")
def swiglu_width(context: Context) -> Answer:
    """A gated MLP's width, per shard, is a multiple of the device's alignment.

    A gated MLP has three matrices instead of two, so its width is cut to two thirds of 4h, and 8h/3 is rarely a good
    number: it is n of gate and up, k of down, forward; and the reverse in both gradients.

    Bad: h 4096, d_ff 10922 = 8h/3 rounded: divisible by 2 only.
    Good: 10944, 11008 (Llama 2): multiples of 64 and of 256.

    Suggestion: the neighbouring multiples of the alignment times t, of twice and of four times that; `sizer search --h
    H` looks wider.
    """
    mlp = context.whole.dense_mlp
    if not mlp or not mlp.gated:
        return "no gated dense MLP"

    def near(width: int, step: int) -> list[int]:
        return nearest_first({value for times in (1, 2, 4) for value in neighbours(width, times * step)}, width)[:4]

    origin = " (8h/3 rounded)" if abs(mlp.width - 8 * context.dimensions["hidden"] / 3) <= 1 else ""
    return unaligned_shards(context, "d_ff", "d_ff", mlp.width, f"the width{origin}: {{}}", near)


#: Below this share of the step a product is not worth a line.
NOTABLE_PRODUCT = 0.001
#: Nor, below this, is one whose dimension no configuration sets a fault.
NOTABLE_GATE = 0.01
#: Elements of 16 bytes.
LEAST_WIDTH = 8


@rule("SZ109", "NVIDIA Matrix Multiplication Background User's Guide, tensor-core requirements.", "products")
def tensor_core_alignment(context: Context) -> Answer:
    """
    Every leading dimension of every product meets the tensor cores' requirement: forward, dgrad and wgrad, per shard.

    16 bytes on V100 and T4 (8 elements of fp16), 128 bytes on A100 and later (64 of bf16, 32 of tf32, 128 of fp8).
    Which of m, n, k is a leading dimension depends on the layout: k of both operands forward, k and n in dgrad, m and n
    in wgrad, n of the result always. Dimensions that another rule covers (vocabulary, head_dim, hidden size, tokens,
    gated width, experts) are handled there; what remains here are plain MLP widths, latent ranks and whatever a trace
    finds. A width that t does not divide cannot be split at all: Megatron-Core and serving engines refuse it.

    Bad: a plain MLP of width 10230: divisible by 2 only. A width of 14342 at t 4.
    Good: 10240.

    Suggestion: the nearest aligned value of the dimension, where it is one that a configuration sets.
    """
    return [*_cut(context), *_misaligned(context)]


def _cut(context: Context) -> Findings:
    """Widths that are not cut into equal shards, which no framework runs; heads that are not are other rules'."""
    workload, model = context.workload, context.model
    if not model or any(heads % workload.t for heads in head_counts(model)):
        return
    names = {context.dimensions.get(name): name for name in _WIDTHS}
    for width, expert in mlp_widths(model):
        if width % (t := workload.expert_t if expert else workload.t):
            name = names.get(width, "t")
            changes = suggest(name, neighbours(width, context.alignment * t)) * (name != "t" and t & (t - 1) == 0)
            changes += suggest("t", powers_near(t, partial(divides_over, model)))
            yield Finding(name, f"a width of {width} does not divide over t {t}", changes, error=True)


def _misaligned(context: Context) -> Findings:
    """One finding a dimension, however many products have it: fixing it fixes them all."""
    step_s = context.step_s
    for (dtype, value), by_name in sorted(_lost_seconds(context).items(), key=lambda item: -sum(item[1].values())):
        seconds = sum(by_name.values())
        if seconds < NOTABLE_PRODUCT * step_s:
            continue
        names = sorted(by_name, key=by_name.__getitem__, reverse=True)
        own = replace(context, dtype=dtype)
        more = f" and {len(names) - 2} more" * (len(names) > 2)
        message = (
            f"{' and '.join(names[:2])}{more}: a dimension of {value} is {power_text(value)}, not a multiple of "
            f"{own.alignment}"
        )
        if context.model:
            message += f": misaligned operands take {seconds / step_s:.1%} of the step"
        field, whole, suggestions = _configured(own, names[0], value)
        # Widths that no configuration sets are a cost and no fault if they are small gates, streams fewer than a vector
        # holds (AltUp's), or part of a served model.
        fault = bool(suggestions) or (
            value > LEAST_WIDTH and seconds >= NOTABLE_GATE * step_s and context.workload.train
        )
        yield Finding(
            field,
            message,
            suggestions,
            violated=own.off_vector(value) and fault,
            at_most_s=seconds * context.workload.accumulation,
            value=whole,
        )


def _lost_seconds(context: Context) -> dict[tuple[str, int], dict[str, float]]:
    """(Element type, misaligned dimension that no other rule covers) -> product -> seconds that misalignment takes.

    Recipes leave the head and adapters in 16 bits.
    """
    covered = _covered(context)
    lost = defaultdict[tuple[str, int], dict[str, float]](lambda: defaultdict(float))
    for op, cost, _ in context.timed():
        seconds = op.count * sum(penalty for _, penalty in cost.alignment_s)
        if isinstance(op, Product) and seconds:
            name = op.name.removeprefix("layers.*.") or "the model"
            # One output or input is a dot product (a shared expert's gate): tensor cores are not asked.
            for value in {op.m, op.n, op.k} - covered - {1}:
                if value % context.device.alignment_elements(op.dtype):
                    lost[op.dtype, value][name] += seconds
    return lost


def _covered(context: Context) -> set[int]:
    """Sizes that other rules judge, whole and as shards hold them."""
    dims, workload, model = context.dimensions, context.workload, context.model
    names = ["vocab", "hidden", "head_dim", "experts", "expert_d_ff", "shared_d_ff"]
    if model and model.dense_mlp is not None and model.dense_mlp.gated:
        names.append("d_ff")
    values = {*filter(None, map(dims.get, names))} | _of_heads(model, workload)
    # Gate and up may be one product of twice the width.
    values |= {-(-value // workload.t) for value in values}
    values |= {2 * value for value in values}
    if not model:
        return values
    lengths = {stack.length for stack in model.stacks if stack.length}
    return values | {workload.tokens, workload.s} | lengths | {length * workload.b for length in lengths}


def _of_heads(model: ModelShape | None, workload: Workload) -> set[int]:
    """Widths that heads of a misaligned head_dim add up to, whole and on a shard: SZ102 reports them."""
    return {
        own.out_features if linear.shard == "column" else own.in_features
        for stack, block in (model.all_blocks() if model else ())
        if isinstance(block.attention, AttentionShape)
        for linear in block.attention.linears(stack.hidden, fused=workload.fused_qkv)
        for own in (linear, linear.on_shard(workload.t))
    }


def _configured(context: Context, name: str, value: int) -> tuple[str, int, Suggestions]:
    """The configuration's field behind ``value`` with its whole value and its neighbours; else the product's name."""
    t, width = context.workload.t, context.dimensions.get("d_ff")
    if width is not None and value in (width, -(-width // t)):
        return "d_ff", width, suggest("d_ff", neighbours(width, context.alignment * t))
    if ".lora_" in name and value == context.workload.lora_rank:
        # The multiple that loads require: wider steps are not worth the parameters of a larger rank.
        return "lora_rank", value, suggest("lora_rank", [next_multiple(value, context.vector)])
    return name, value, ()


#: Element type -> what to take instead, best first.
ALTERNATIVES = content(DATA / "alternatives.toml")


@rule("SZ119", "NVIDIA architecture whitepapers (Volta, Turing, Ampere, Hopper): tensor-core data types.")
def dtype_on_device(context: Context) -> Answer:
    """The element type has tensor cores on the device, and the low-precision recipe has kernels there.

    bf16 came with Ampere, fp8 with Ada and Hopper. A type without tensor cores runs on the plain cores, an order of
    magnitude slower, or is refused by the libraries. A recipe needs kernels of its own: Ada multiplies fp8, and no
    library that shapes/recipes names trains it there in blocks of 128.

    Bad: bf16 on V100 or T4; fp8 on A100; blocks of 128 on L40S.
    Good: fp16 on V100; bf16 on A100; fp8 on H100; blocks of 128 on H100.

    Suggestion: the closest type that the device's tensor cores know (the report's times are then of that type), or a
    recipe of the same type that the device has.
    """
    dtype, peaks = context.workload.dtype, context.device.peak_flops
    if dtype in peaks:
        return _recipe(context)
    instead = [other for other in ALTERNATIVES[dtype] if other in peaks][:1]
    return Finding(
        "dtype",
        f"{context.device.name} has no tensor cores for {dtype}",
        suggest("dtype", instead) * (context.workload.recipe is None),
        error=True,
    )


def _recipe(context: Context) -> Answer:
    """The recipe on a generation that has none of its kernels, of those that any recipe's file knows."""
    recipe, generation = context.workload.low_precision, context.device.architecture
    if not recipe or generation in recipe.generations:
        return ()
    others = [one for name in RECIPES if generation in (one := load_recipe(name)).generations]
    if not others:
        return ()
    return Finding(
        "recipe",
        f"no kernels are known on {generation} for {recipe.title}, only on {', '.join(recipe.generations)}",
        suggest("recipe", [one.name for one in others if one.dtype == recipe.dtype][:1]),
        violated=True,
        value=recipe.name,
    )


#: Dimensions that a configuration sets as one number.
_WIDTHS = ("hidden", "d_ff", "expert_d_ff", "shared_d_ff")


@rule(
    "SZ124",
    "Transformer Engine, docs/features/low_precision_training and pytorch/utils.py:609-624; vLLM issues 17569, "
    "54178 and SGLang issue 3345 (blocks of 128); shapes/recipes names each recipe's.",
    "model",
)
def low_precision_shards(context: Context) -> Answer:
    """Every shard of every quantised matrix is made of whole blocks of the low-precision recipe.

    A scale belongs to a block of elements: 128 x 128 in block-wise fp8, 32 in MXFP8, 16 in NVFP4 (whose kernels
    load 32); fp8 per tensor wants multiples of 16. What counts is what one tensor-parallel shard holds, of experts
    and shared experts too, and in training the tokens. A quantised release is judged in the formats that it is kept
    in (groups of 128 of AWQ and GPTQ too), unless a recipe is given. Where a block is cut some engines refuse the
    model, some pad the shard with zeros and compute on them, some take finer scales or leave the matrix in 16 bits:
    `sizer deploy` says which. Where all that are known pad (a release's experts in MXFP4) it is told at their width.
    What every kernel of the recipe refuses is an error. The latent projection of MLA
    ends in a partial block of its own (DeepSeek-V3's 512 + 64), which every engine takes.

    Bad: experts of 1536 at t 8 in blocks of 128: 192 a shard. Padded to 256 they are a third more work.
    Good: the same at t 4: 384 = 3 x 128; or DeepSeek-V3's 2048 at t 16: 128.

    Suggestion: the neighbouring widths that cut into whole blocks, or a smaller t that cuts none. Experts may lie whole
    on the ranks that would cut each (--ep, engines' expert parallelism).
    """
    recipe = context.workload.low_precision
    if not recipe:
        return _cut_features(context) if context.whole.formats else "no low-precision format"
    return [*_cut_features(context), *_cut_tokens(context, recipe)]


def _cut_features(context: Context) -> Findings:
    model, workload = context.whole, runnable_split(context.whole, context.workload)
    recipe = workload.low_precision

    def whole(dimension: str, ranks: int) -> bool:
        return divides_over(model, ranks) and dimension not in cut_blocks(model, replace(workload, t=ranks))

    for dimension, side in cut_blocks(model, workload).items():
        step, kept = scaled_by(side, recipe), recipe or side.kept
        pads = not recipe and padded_to(side)
        padded = pads or next_multiple(side.features, step)
        near = neighbours(side.whole, step * side.shards) * (dimension in _WIDTHS)
        changes = suggest(dimension, near) + suggest("t", powers_near(workload.t, partial(whole, dimension))[:1])
        changes += suggest("e", [workload.t] * (workload.serving and dimension == "expert_d_ff"))
        otherwise = (
            recipe.alignment.otherwise
            if recipe
            else "engines pad it"
            if pads
            else "engines refuse it, pad it or take finer scales (`sizer deploy`)"
        )
        yield Finding(
            dimension,
            f"{side.matrix}: {side.share} is no multiple of {step} ({kept.title if kept else ''}): "
            f"{otherwise}; padded to {padded} it is {padded / side.features - 1:.1%} more",
            changes,
            violated=True,
            error=otherwise == "refused",
            value=context.dimensions.get(dimension, side.whole),
        )


def _cut_tokens(context: Context, recipe: Recipe) -> Findings:
    """Tokens of a training step's microbatch, over which wgrad's blocks run."""
    workload, rows = context.workload, recipe.alignment.rows
    tokens = workload.own_tokens(workload.s)
    if workload.train and "wgrad" in recipe.products and tokens % rows:
        yield Finding(
            "s",
            f"{tokens} tokens are no multiple of {rows} ({recipe.title}): {recipe.alignment.otherwise}",
            suggest("s", neighbours(workload.s, rows * workload.cp)),
            violated=True,
            error=recipe.alignment.otherwise == "refused",
        )


@rule("SZ131", "the reader's own keys: the model's class, Megatron's arguments, the format's documentation")
def unknown_key(context: Context) -> Answer:
    """Every key of the file is one that its format knows.

    A key that nobody knows is not read, and the model is sized without it. A misspelt one leaves its default in force.
    What is off (null, false, 0, empty) changes nothing and is left out, unless it is a known key misspelt.

    Bad: hiden_size 3072 in a llama's config.json, which is sized with a hidden size of 4096.
    Good: hidden_size 3072.
    """
    return [
        Finding(
            one.key,
            f"is an unknown key, ignored{f': did you mean {one.meant}?' if one.meant else ''}",
            violated=True,
            value=one.value,
        )
        for one in context.unread
        if one.changes is None
    ]


@rule("SZ132", "sizer: a step is priced where its class is proven to be what it was recognised as.")
def modules_not_understood(context: Context) -> Answer:
    """Every module of a class without a reader is understood, so that a step can be priced.

    A model type that no reader knows, or a module of one's own, is recognised in the products that its class runs, and
    proven against torch: parameters to the digit, products and attention forward and backward. What is left over is
    named here with its part of the forward pass's FLOPs. Its price is not known: eager Python's time is not what a
    kernel would take. So the step, its MFU and what a suggestion saves are not known either (null in JSON). Rules on
    dimensions and on the memory of parameters still hold.

    Bad: a class with a sparse-attention indexer that nobody described.
    Good: the same class with attention, MLPs, experts and norms of known forms.

    Suggestion: none. A reader of the type (CONTRIBUTING.md, `family`) prices it.
    """
    if not context.unproven:
        return "the model is understood"
    todo = "compare parameters and dimensions alone, or size its layers as a known type of the same parts"
    return Finding(
        "model_type",
        f"{named(context.unproven)}; the time of a step is not known: {todo}",
        violated=True,
        value=context.unproven[0].name,
    )
