"""The moments of a training step at which memory can be fullest, and what is alive at each.

In a layer's forward its work is alive, too, and what was saved. At the loss everything that the forward saved
is, and no gradient unless gradients stay allocated from one microbatch to the next. In a layer's backward what was
saved shrinks from layer to layer while gradients grow. At the optimizer's step all gradients are there and no
activation is.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from shapes.frozen import Counts, Pair, frozen, replace
from shapes.model import (
    OPTIMIZERS,
    PRECISIONS,
    Block,
    ModelShape,
    MoeShape,
    Precision,
    Stack,
    Tensors,
    block_tensors,
    optimizer_state_bytes,
    parameter_count,
)
from shapes.model.stages import (
    ShardParameters,
    Stage,
    base_of,
    counted,
    layer_kinds,
    parameter_tensors,
    stage_kinds,
    stage_runs,
    trained_block,
    trained_ends,
    trained_tensors,
)
from shapes.operators import image_workloads, sequence_length
from shapes.operators.cores import whole_tokens
from shapes.workload import BASES, Implementation, Loss, Workload

from .modules import IMPLEMENTATIONS, Forward, Style, alibi_in_fp32, base_in_fp32, masked, style_of
from .tape import INPUT, Tape, peak_bytes


@frozen
class Moment:
    """One moment of forward and backward: bytes that the forward saved, of the head and loss, and of the rest.

    ``gradients``: the parameters whose gradients exist.
    """

    name: str
    saved: int
    logits: int
    temporary: int
    gradients: ShardParameters

    @property
    def bytes(self) -> int:
        """Bytes in addition to weights, gradients and states."""
        return self.saved + self.logits + self.temporary


@frozen
class Gradients:
    """``stay``: whether gradients stay allocated from one microbatch to the next, and ``why`` or why not."""

    stay: bool
    why: str


@frozen
class _Layer:
    """One layer of a kind: bytes it saves, its forward's and its backward's peak (saved and its input included).

    ``returned``: bytes that it hands on with its output and that autograd does not save. ``window``: that of its mask.
    ``unneeded``: the part of ``saved`` that it does not save if nothing before it trains. ``moved``: saved bytes that
    the host keeps in the meantime; they are on the device while a neighbour's operators run.
    """

    saved: int
    moved: int
    forward: int
    backward: int
    returned: int
    window: int | None
    gradients: ShardParameters
    unneeded: int


#: Tapes by their names, and the bytes of each that come, or (below 0) go.
Tapes = Iterable[tuple[Hashable, Sequence[Pair]]]
#: A stage's runs of equal layers in order: (which of its kinds, so many).
Runs = Sequence[Pair]


@frozen
class StageStep:
    """A training or inference step on one device of a ``stage``; ``in_flight`` microbatches at once.

    From ``precision`` on: the options of ``shapes.memory.memory``; ``mask``: bytes of a dropout mask's element;
    ``layouts``: in which a matrix quantised for training is kept.
    """

    model: ModelShape
    workload: Workload
    stage: Stage = "last"
    in_flight: int = 1
    precision: Precision = PRECISIONS["fp32"]
    optimizer: str = "adamw"
    implementation: Implementation = "huggingface"
    mask: int = 1
    loss: Loss | None = None
    layouts: int = 2
    gradients_stay: bool = False

    def __hash__(self) -> int:
        return hash((self.workload, self.stage, self.model.main.blocks[-1]))  # of a part, as a workload's

    @property
    def blocks(self) -> list[tuple[Stack, Block]]:
        """The kinds of layers, one after the other."""
        return [
            (stack, block) for stack, blocks in stage_kinds(self.model, self.workload.p, self.stage) for block in blocks
        ]

    @property
    def layers(self) -> int:
        return -(-self.model.layers // self.workload.p)

    @property
    def tensors(self) -> Tensors:
        return parameter_tensors(self.model, self.workload, self.stage)

    @property
    def megatron(self) -> bool:
        return self.implementation == "megatron"

    @property
    def sharded(self) -> bool:
        """Whether a rank keeps its share of the gradients alone."""
        return self.workload.zero == 2 or self.workload.regathers

    def gradient_bytes(self, there: ShardParameters) -> int:
        """One rank's bytes of these parameters' gradients, which ZeRO shards from stage 2 on."""
        each = self.precision.gradients
        if not self.sharded:
            return there.total * each
        share, _ = _over_ranks((there.dense * each, there.experts * each), self.workload, zero=2)
        # With the optimizer on the host they leave as they are made.
        return round((1 - self.workload.offload) * share)

    @property
    def fused_wgrad(self) -> bool:
        """Whether a layer's product adds its weight's gradient to the buffer itself (gradient accumulation fusion)."""
        return self.megatron and self.workload.zero < 3 and not self.workload.adapted

    @property
    def made_bytes(self) -> int:
        """Bytes of an element of a weight's gradient as a layer makes it."""
        return 0 if self.fused_wgrad else self.workload.activation_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of an element of a weight's gradient that stay; 0: added to what is there."""
        return 0 if self.gradients_stay else self.precision.gradients

    @property
    def quantised_bytes(self) -> float:
        """Bytes of an element that the weights' gradients are multiplied from, scales included; 0: not quantised."""
        low = self.workload.low_precision
        return low.quantise.bytes_per_element if low and "wgrad" in low.products else 0

    @property
    def style(self) -> Style:
        return style_of(self.model, self.implementation)

    @property
    def first(self) -> bool:
        return self.stage == "first" or self.workload.p == 1

    @property
    def last(self) -> bool:
        return self.stage == "last" or self.workload.p == 1

    @property
    def autocast(self) -> bool:
        """Whether each product casts fp32 weights and what it reads to 16 bits by itself."""
        frozen = self.wide_base and base_of(self.workload) == "fp32"
        return (self.precision.copies > 0 or frozen) and not self.megatron

    @property
    def element(self) -> int:
        """Bytes of a hidden state's element: fp32 under autocast, where embeddings and norms have fp32 weights."""
        return 4 if self.autocast or self.wide_base else self.workload.activation_bytes

    @property
    def wide_base(self) -> bool:
        return base_in_fp32(self.workload, self.style)

    def forward(self, s: int) -> Forward:
        """One device's modules on sequences of length ``s``, and an empty tape."""
        workload, rows, e = self.workload, self.workload.b * s, self.workload.activation_bytes
        whole = whole_tokens(rows, workload)
        # HF's eager path knows no fp8; Transformer Engine saves the quantised input of each product.
        stored = self.quantised_bytes or e
        return Forward(
            self.style.union(["autocast"] * self.autocast),
            workload,
            rows,
            whole,
            s,
            self.element,
            self.mask,
            stored,
            self.loss,
            self.precision.weights,
            e,
        )


def moments(step: StageStep) -> tuple[Moment, ...]:
    """The moments that can be the fullest, in the order of the step.

    New gradients of weights that are added to those of an earlier microbatch are temporary.
    """
    alike = step
    if step.gradients_stay and step.fused_wgrad:
        # How parameters are spread over ranks shows in their gradients alone, which are there all the time.
        alike = replace(step, workload=_not_spread(step.workload), optimizer="adamw")
    return _moments(alike, held(step).trained)


def _not_spread(workload: Workload) -> Workload:
    """Without the ranks that only share parameters, and as few that experts lie on as make a difference to a layer."""
    fewest = min(workload.e, 1 + (workload.expert_load > 1))
    return replace(replace(workload, e=fewest, etp=workload.expert_t).within_layers(), p=workload.p)


@lru_cache
def _moments(step: StageStep, everything: ShardParameters) -> tuple[Moment, ...]:
    """``moments``; ``everything``: the parameters that train."""
    model, (kinds, runs) = step.model, _kinds(step)
    saved = step.in_flight * sum(kinds[place].saved * count for place, count in runs) + _saved_by_ends(step)
    made = everything if step.gradients_stay else ShardParameters()
    found = [Moment("end of the forward", saved, 0, 0, made)]
    if step.last and model.head:
        found.append(Moment("at the loss", saved, _tail(_alone(step, "none")), 0, made))
    found += _of_layers(step, saved, made)
    if step.first and (size := _embedding_gradient(step)):
        # A tied matrix meets its head's gradient here: both and their sum, which is the one that stays.
        alive = size + 2 * _tied_head(step)
        there = made if step.gradients_stay else everything - counted(model.front_tensors(step.workload.t))
        found.append(_moment("gradient of the embedding", alive, saved, there))
    return *found, Moment("optimizer's step", 0, 0, 0, everything)


def _saved_by_ends(step: StageStep) -> int:
    """Bytes that tables, the embedding and a first stage's towers (for a microbatch's images) save.

    Less the bytes that its first layer does not save if nothing before it trains.
    """
    each = sum(
        _layer(replace(_alone(step, "none"), workload=own), block, tower.stack.hidden, patches).saved * block.count
        for tower, own, patches, _ in (image_workloads(step.model, step.workload) if step.first else ())
        for block in tower.stack.kinds
    )
    if step.first and step.workload.adapted and step.workload.checkpointing in ("none", "unknown"):
        # Checkpointing would ask for the embedding's gradient (enable_input_require_grads).
        kinds, runs = _kinds(step)
        each -= kinds[runs[0][0]].unneeded
    return step.in_flight * each + _tables(step) + _embedding(step)


def _embedding_gradient(step: StageStep) -> int:
    """Bytes of the token embedding's gradient; 0 where it does not train."""
    model, workload = step.model, step.workload
    if workload.adapted:
        return 0
    return -(-model.vocab // workload.t) * (model.embedding_dim or model.hidden) * workload.activation_bytes


def _tied_head(step: StageStep) -> int:
    """Bytes of a tied matrix's gradient of the head."""
    return _embedding_gradient(step) if step.model.tied and step.model.head and step.last else 0


def _moment(name: str, alive: int, saved: int, there: ShardParameters) -> Moment:
    """A moment with ``alive`` bytes; at most those that the forward ``saved`` count as saved."""
    return Moment(name, min(alive, saved), 0, max(0, alive - saved), there)


def _of_layers(step: StageStep, saved: int, made: ShardParameters) -> Iterator[Moment]:
    """The forward and backward of the ends of each run of layers, from the last.

    Saved bytes shrink from layer to layer. Gradients grow, unless they are added to ``made``, which exist all the time.
    """
    again = ", its forward run again" if step.workload.checkpointing not in ("none", "unknown", "fp8_act_input") else ""
    name = f"backward of a layer{again}: gradients of activations and of one weight"
    outlive, below, tied = _outlive(step), saved, _tied_head(step)
    grown = made if step.gradients_stay else counted(trained_ends(step.model, step.workload, step.stage))
    held = sum(_masks(step, outlive=False).values())
    kinds, runs = _kinds(step)
    for index, (place, count) in reversed(list(enumerate(runs))):
        layer = kinds[place]
        new = layer.gradients.times(not step.gradients_stay)
        # Within a run of equal layers both change evenly: its ends are the extremes.
        for done in sorted({0, count - 1}):
            alive = below - outlive[index] - (done + 1) * layer.saved + layer.backward + tied
            yield _moment(name, alive, saved, grown + new.times(done))
        previous = place if count > 1 else runs[index - 1][0]
        before = kinds[previous].returned if index or count > 1 else 0
        yield _moment("forward of a layer", below - layer.saved + layer.forward + before + held, saved, made)
        below -= layer.saved * count
        grown += new.times(count)


def _outlive(step: StageStep) -> list[int]:
    """Bytes of the masks that are gone when the backward is at each run: the last layer to read one has run."""
    masks, read, gone = _masks(step, outlive=True), set[int | None](), []
    kinds, runs = _kinds(step)
    for place, _ in runs:
        read.add(kinds[place].window)
        gone.append(sum(size for window, size in masks.items() if window not in read))
    return gone


@lru_cache(1)  # a step's moments ask for them, and what adds them up
def _kinds(step: StageStep) -> tuple[list[_Layer], Runs]:
    """The model's kinds of layers, and the stage's runs of equal layers in order: (which kind, so many)."""
    runs = stage_runs(step.model, step.workload.p, step.stage)
    policy, left = step.workload.saving.name, step.workload.saving.layers
    again = _seen(_alone(step, policy))
    if left is None:
        return again, runs
    parted = []
    for place, count in runs:
        more = min(left, count)
        parted += [(place, more), (place + len(again), count - more)]
        left -= more
    return again + _seen(_alone(step, "none")), tuple(run for run in parted if run[1])


@lru_cache(4096)
def _seen(step: StageStep) -> list[_Layer]:
    """The model's kinds of layers as a step ``_alone`` sees them; what has no experts is alike on all their ranks."""
    return [_layer(*each) for each in _each_kind(step)]


def _each_kind(step: StageStep) -> Iterator[tuple[StageStep, Block, int, int]]:
    """The arguments of ``_layer``."""
    dense = replace(step, workload=replace(step.workload, d=1, e=1))
    for stack, block in layer_kinds(step.model):
        s = sequence_length(step.model, stack, step.workload) + block.joint_tokens
        yield step if isinstance(block.mlp, MoeShape) else dense, block, stack.hidden, s


def _alone(step: StageStep, checkpointing: str) -> StageStep:
    """The step as its layers see it, without other ranks, stages and steps: a plan asks for those again and again."""
    own = step.workload.within_layers(checkpointing=checkpointing)
    return replace(
        step,
        workload=replace(own, zero=3) if step.workload.zero == 3 else own,
        optimizer="adamw",
        stage="last",
        in_flight=1,
    )


@lru_cache(2048)
def _tail(step: StageStep) -> int:
    """The fullest moment of the final norm, head and loss."""
    tape = _tail_tape(step)
    events = tape.backward(4, step.workload.activation_bytes, step.kept_bytes)
    return peak_bytes(events, sum(tape.saved(selective=True).values()))


def _tail_tape(step: StageStep) -> Tape:
    return step.forward(sequence_length(step.model, step.model.main, step.workload)).tail_tape(step.model)


def tapes_of_step(step: StageStep) -> Tapes:
    """A training step's tapes in the order in which they run; weights' gradients (below 0) stay.

    Tensors that the ends save exist from the start; those that the host keeps count as on the device.
    """
    element = step.workload.activation_bytes
    kept = 0 if step.sharded else step.kept_bytes
    layers = [*enumerate(_passes(step, kept))]
    yield "ends", [(0, max(0, _saved_by_ends(step)))]
    yield from (((one, at), forward) for one in range(step.in_flight) for at, (forward, _) in layers)
    for microbatch in range(step.in_flight):
        if step.last and step.model.head:
            tail = _tail_tape(_alone(step, "none"))
            yield "tail", [*tail.forward(tail.saved()), *tail.backward(4, element, kept)]
        yield from (((microbatch, at), backward) for at, (_, backward) in reversed(layers))
        if step.first:
            yield "embedding", [(-1, kept * _embedding_gradient(step) // element)]


def _passes(step: StageStep, kept: int) -> list[tuple[list[Pair], list[Pair]]]:
    """Each layer's forward and backward; of a weight's gradient ``kept`` bytes an element are left."""
    saving = step.workload.saving
    # As `_kinds` numbers them.
    passes = [
        ([*tape.forward(tape.saved(selective=True))], [*tape.backward(tape.storages[INPUT], step.made_bytes, kept)])
        for policy in (saving.name, *["none"] * (saving.layers is not None))
        for own, block, hidden, s in _each_kind(_alone(step, policy))
        for tape in [own.forward(s).layer_tape(block, hidden)]
    ]
    return [passes[place] for place, count in _kinds(step)[1] for _ in range(count)]


#: A plan goes through degrees of pipelines, and for each through the same experts, microbatches and policies.
@lru_cache(2**14)
def _layer(step: StageStep, block: Block, hidden: int, s: int) -> _Layer:
    workload = step.workload
    tape = step.forward(s).layer_tape(block, hidden)
    kept = tape.saved(selective=True)
    saved = sum(kept.values())
    moved = round(workload.offload_saved * saved)
    events = tape.backward(tape.storages[INPUT], step.made_bytes, step.kept_bytes)
    return _Layer(
        saved=saved - moved,
        moved=moved,
        forward=peak_bytes(tape.forward(kept)) + moved,
        backward=peak_bytes(events, saved) + moved,
        returned=tape.returned * workload.saving.everything,
        window=block.attention.window if block.attention else None,
        gradients=counted(trained_block(block, hidden, workload)),
        unneeded=tape.unneeded_bytes() if workload.adapted else 0,
    )


def _embedding(step: StageStep) -> int:
    """Bytes that the embedding's norm and dropout save, where the model has them.

    Checkpointing with a frozen embedding makes a leaf of its output (transformers' enable_input_require_grads), which
    stays in addition to what positions or dropout make of it.
    """
    if not step.first:
        return 0
    total, workload = 0, step.workload
    leaf = workload.adapted and workload.checkpointing == "full"
    for stack in step.model.stacks:
        channels = workload.b * sequence_length(step.model, stack, workload) * stack.hidden
        dropout = stack.blocks[0].dropout > 0
        kept = bool(stack.embedding_norm) + (leaf and (stack.positions > 0 or dropout))
        masks = dropout and "no-embedding-dropout" not in step.style
        total += channels * (masks * step.mask + kept * workload.activation_bytes)
    return total


def _tables(step: StageStep) -> int:
    """Rotary cosines and sines, and the masks that the backward reads."""
    attention = step.model.attention
    if not attention:
        return 0
    return 2 * step.workload.s * attention.rotary_dim * step.element + sum(_masks(step, outlive=True).values())


def _keeps_masks(step: StageStep) -> bool:
    """Whether dropout masks outlive the forward.

    Checkpointing keeps them to run a layer again; masked_fill and a fused core that is given a bias save them.
    """
    style, attention, policy = step.style, step.model.attention, step.workload.saving
    if policy.everything or "core_attn" in policy.again or not attention:
        return True
    if step.workload.attention == "eager":
        return "fills-mask" in style
    # One head's has no fused core.
    return alibi_in_fp32(style, attention) and attention.on_shard(step.workload.t)[1] > 1


def _masks(step: StageStep, *, outlive: bool) -> dict[int | None, int]:
    """Bytes of the masks that all layers share, by window: added to the scores, or of booleans.

    ``outlive``: those that outlive the forward, or those that do not. The fused core has one for all sequences;
    alibi's, in fp32, is one for each sequence and head.
    """
    if step.megatron or _keeps_masks(step) != outlive:
        return {}
    workload, cores = step.workload, [block.attention for _, block in step.model.all_blocks() if block.attention]
    eager = workload.attention == "eager"
    e = step.element
    each = 1
    if cores and alibi_in_fp32(step.style, cores[0]):
        each = workload.b * cores[0].on_shard(workload.t)[0] * e
    elif eager:
        each = workload.b * e ** ("fills-mask" not in step.style)  # a boolean where the scores are filled by it
    windows = {core.window for core in cores if eager or masked(step.style, core, workload.s)}
    return dict.fromkeys(windows, workload.s**2 * each)


#: DeepSpeed ZeRO's reduce and gather buckets, elements (deepspeed.ai/docs/config-json, reduce_bucket_size).
ZERO_BUCKET_ELEMENTS = 5 * 10**8


@frozen
class Component:
    """One component of a device's memory: bytes, the formula with its numbers, and bytes that the host has of it.

    The host has the activations of one microbatch.
    """

    name: str
    bytes: int
    formula: str
    hosted: int = 0


def gradients_of(implementation: Implementation, number: int | None) -> Gradients:
    """Whether gradients exist before a microbatch's backward: accumulation and frameworks' own buffers keep them."""
    if why := IMPLEMENTATIONS[implementation]["gradients"]:
        return Gradients(True, f"stay: {why}")
    if number is None or number > 1:
        many = "the microbatches that fill the pipeline" if number is None else f"{number} microbatches"
        return Gradients(True, f"stay: added up over {many}")
    return Gradients(False, "one microbatch a step, zero_grad(set_to_none=True): none before its backward")


def most_in_flight(workload: Workload, number: int | None) -> int:
    """How many of a step's ``number`` of microbatches (None: enough) a first stage keeps at once."""
    # Interleaved chunks keep (p - 1) / (p vpp) more of the stage in flight (Korthikanti et al. 2205.05198, 4.2.3).
    most = workload.p + (-(-(workload.p - 1) // workload.vpp) if workload.vpp > 1 else 0)
    return min(most, number or most)


def microbatches_of(workload: Workload, microbatches: int | None) -> int | None:
    """Microbatches a step: as given, by the global batch, else 1 (None: as many as fill the pipeline)."""
    if microbatches is not None:
        return microbatches
    return workload.accumulation if workload.global_batch or workload.p == 1 else None


class AtMoment(NamedTuple):
    """The bytes in use at one moment of a step."""

    name: str
    total_bytes: int


def training(
    step: StageStep, gradients: Gradients, overhead: tuple[Component, ...]
) -> tuple[tuple[Component, ...], tuple[str, tuple[AtMoment, ...], Gradients]]:
    """Components of one stage's step at its fullest moment, ``overhead`` the last of them.

    Also returned: that moment's name, every moment's total, and ``gradients``. InputError for an unknown optimizer.
    """
    workload, each = step.workload, step.precision.gradients
    _, states, dummies, _ = held(step)
    kinds, runs = _kinds(step) if workload.offload_saved else ([], ())
    moved = sum(kinds[place].moved * count for place, count in runs)
    if workload.offload or workload.offload_params:
        states = [_offloaded(part, step) for part in states]
    looked_at = [(moment, step.gradient_bytes(moment.gradients)) for moment in moments(step)]
    fullest, kept = max(looked_at, key=lambda one: one[0].bytes + one[1])
    exchanged, text = communication(step)
    always = sum(part.bytes for part in (*states, *dummies, *overhead)) + exchanged
    there, how = fullest.gradients.total, gradients.why
    if there:
        how = f"{there:,} x {each} bytes{_over_ranks((0, 0), workload, zero=2)[1]} ({how})"
    parts = (
        *states,
        Component("gradients", kept, how),
        *dummies,
        Component("activations", fullest.saved, _activations_formula(step), moved),
        Component("logits_and_loss", fullest.logits, _logits_formula(step, fullest)),
        Component("temporary", fullest.temporary, fullest.name),
        Component("communication", exchanged, text),
        *overhead,
    )
    totals = Counts()
    for moment, size in looked_at:
        totals[moment.name] = max(totals.get(moment.name, 0), always + moment.bytes + size)
    return parts, (fullest.name, tuple(map(AtMoment, totals, totals.values())), gradients)


def _offloaded(part: Component, step: StageStep) -> Component:
    """Weights or states without the host's share.

    Megatron-Core's HybridDeviceOptimizer updates a clone of the distributed optimizer's master weights.
    """
    workload, masters = step.workload, part.name == "master_weights"
    share = workload.offload if masters or part.name == "optimizer_states" else workload.offload_params
    own = round(share * part.bytes)
    return replace(part, bytes=part.bytes - own * (not (masters and step.megatron)), hosted=own)


class Held(NamedTuple):
    """What a stage holds all the time.

    The number of parameters that train, bytes of weights and states, bytes that Transformer Engine keeps, and the
    number of all parameters.
    """

    trained: ShardParameters
    states: list[Component]
    dummies: list[Component]
    parameters: int


@lru_cache(1)  # a step's memory asks for it several times
def held(step: StageStep) -> Held:
    # Whatever microbatches, schedules and recomputation.
    alike = replace(step.workload, b=1, checkpointing="none", vpp=1, gpus=None, global_batch=None)
    return _held(replace(step, workload=alike, in_flight=1))


#: A plan goes through the same split's microbatches and policies.
@lru_cache(2**10)
def _held(step: StageStep) -> Held:
    tensors, trained = step.tensors, trained_tensors(step.model, step.workload, step.stage)
    states = _states(step, tensors) if not step.workload.adapted else _tuned_states(step, tensors, trained)
    return Held(counted(trained), states, [*_dummy_wgrads(step)], parameter_count(tensors))


def _states(step: StageStep, tensors: Tensors) -> list[Component]:
    """Weights, master weights where there are some, and last the optimizer's states: of all ``tensors``."""
    n, found = parameter_count(tensors), []
    for name, zero in (("weights", 3), ("master_weights", 1), ("optimizer_states", 1)):
        split = (tuple(one for one in tensors if one.expert is expert) for expert in (False, True))
        sizes = [_state_bytes(name, own, step) for own in split]
        if not sum(sizes) and name == "master_weights":
            continue
        total, text = _over_ranks(sizes, step.workload, zero=zero)
        what = f" ({step.optimizer}: {OPTIMIZERS[step.optimizer]['note']})" if name == "optimizer_states" else ""
        found.append(Component(name, total, f"{n:,} parameters x {sum(sizes) / max(n, 1):.4g} bytes{text}{what}"))
    return found


def _tuned_states(step: StageStep, tensors: Tensors, trained: Tensors) -> list[Component]:
    """The frozen base and what trains with it; as ``_states``, the optimizer's states last.

    bitsandbytes quantises the layers' matrices that are nn.Linear, which transformers 5's packed experts are not;
    peft's ``prepare_model_for_kbit_training`` keeps the rest of such a base in fp32.
    """
    workload, base = step.workload, base_of(step.workload)
    frozen = [tensor for tensor in tensors if tensor not in trained]
    kept, rest = ("fp32", 4) if step.wide_base else ("16 bits", 2)
    sizes, lightning = [0, 0], "lightning" in step.style and workload.finetune == "qlora"
    roles = ("block", *["head"] * lightning)
    for one in frozen:
        each = BASES[base] * (step.layouts if base == "fp8" else 1)
        if not one.is_matrix or one.expert or one.role not in roles:
            each = rest << (lightning and one.role == "embedding")
        size = each * one.elements + 4 * one.shape[0] * (each == 1)  # a row's scale, in int8
        sizes[one.expert] += one.stored_bytes(rest) if base == "release" else ceil(one.copies * size)
    total, text = _over_ranks(sizes, workload, zero=3)
    experts = "experts, " * (base != "release" and any(one.expert for one in frozen))
    ends = "embeddings (and a gradient of theirs that nothing zeroes)" if lightning else "embeddings, head"
    note = f", {experts}{ends} and vectors in {kept}" * (base not in ("bf16", "fp32"))
    if base.startswith("int8"):
        text += " (LLM.int8()'s activations are not compared with torch's tracker)"
    weights = Component("weights", total, f"{parameter_count(frozen):,} frozen parameters in {base}{note}{text}")
    own, *others = _states(step, trained)
    return [weights, replace(own, name="trained_weights"), *others]


def _dummy_wgrads(step: StageStep) -> Iterator[Component]:
    """Tensors given to autograd where a product added its weight's gradient to the buffer: one tensor of each shape.

    get_dummy_wgrad in transformer_engine/pytorch/module/base.py, which keeps them.
    """
    if not step.fused_wgrad:
        return
    workload = step.workload
    found = set().union(
        *(_shapes_of(block, stack.hidden, workload.t, workload.expert_t) for stack, block in step.blocks)
    )
    total = sum(map(prod, found))
    text = f"one for each of {len(found)} shapes of matrices (Transformer Engine's get_dummy_wgrad)"
    yield Component("dummy_wgrads", total * workload.activation_bytes, text)


def _shapes_of(block: Block, hidden: int, t: int, etp: int) -> set[Pair]:
    """(out_features, in_features) of a layer's matrices on one rank."""
    cut = [linear.on_shard(t) for linear in block.linears(hidden, fused_qkv=True, fused_gate_up=True)]
    cut += [linear.on_shard(etp) for linear in block.expert_linears(hidden, fused=True)]
    return {(own.out_features, own.in_features) for own in cut}


def _state_bytes(name: str, tensors: Tensors, step: StageStep) -> int:
    """Bytes of one component of ``tensors``, ZeRO not applied."""
    precision = step.precision
    if name == "optimizer_states":
        return optimizer_state_bytes(tensors, step.optimizer, precision)
    n = parameter_count(tensors)
    if name == "master_weights":
        return precision.master * n
    matrices = parameter_count(tensor for tensor in tensors if tensor.is_matrix and tensor.role == "block")
    # fp8_model_init: what is no matrix of a layer stays in 16 bits.
    whole = precision.weights * n if precision.weights else 2 * (n - matrices)
    quantised = step.layouts * step.quantised_bytes if precision.matrix_copies else 0
    return whole + precision.copies * n + ceil(quantised * matrices)


def _over_ranks(sizes: Sequence[int], workload: Workload, *, zero: int) -> tuple[int, str]:
    """One rank's bytes of (what all d ranks hold, experts, which d/e of them do), where ZeRO ``zero`` shards them."""
    ranks = (workload.d, workload.expert_d) if workload.zero >= zero else (1, 1)
    total = sum(-(-size // share) for size, share in zip(sizes, ranks, strict=True))
    if max(ranks) == 1:
        return total, ""
    return total, f" / {ranks[0]}" + (f" (experts: / {ranks[1]})" if ranks[0] != ranks[1] else "")


def _activations_formula(step: StageStep) -> str:
    workload = step.workload
    how = "" if workload.checkpointing == "none" else f", {workload.checkpointing} checkpointing"
    many = f" x {step.in_flight} microbatches in flight" if step.in_flight > 1 else ""
    layers = f"{step.layers} layers x b {workload.b} x s {workload.s}, {workload.attention} attention{how}"
    return f"{layers}: what autograd saves{many}"


def _logits_formula(step: StageStep, peak: Moment) -> str:
    if not peak.logits:
        return "freed before the fullest moment"
    elements = step.workload.tokens * -(-step.model.vocab // step.workload.t)
    head = "; the head in 16 bits" if step.wide_base else ""
    kind = step.loss or ("in-place" if step.megatron else "fp32")
    return f"b x s x v = {elements:,} x {peak.logits / elements:.3g} bytes (cross-entropy {kind}{head})"


def communication(step: StageStep) -> tuple[int, str]:
    """Bytes of the buffers that devices exchange through, and which they are."""
    parts = tuple(_exchanged(step))
    return sum(size for size, _ in parts), "; ".join(text for _, text in parts) or "no buffers for exchanges"


def _exchanged(step: StageStep) -> Iterator[tuple[int, str]]:
    workload, precision = step.workload, step.precision
    hidden_state = workload.tokens * step.model.hidden * workload.activation_bytes
    if workload.t > 1 and workload.sequence_parallel:
        yield hidden_state, "gathered activations b x s x h"
    if workload.p > 1:
        yield 2 * hidden_state * step.model.main.residuals, "pipeline receive and send b x s x h"
    if workload.d == 1 and not workload.offload:
        return
    rest = held(step)
    if workload.d > 1 and not workload.zero and not step.megatron:
        # gradient_as_bucket_view False, torch's default: gradients are there in addition.
        size = rest.trained.total * precision.gradients
        yield size, "DistributedDataParallel's buckets, as large as all gradients together"
    # Megatron's distributed optimizer reduces and gathers where gradients and parameters lie: it has no buckets.
    if workload.zero in (1, 2) and not step.megatron:
        bucket = min(ZERO_BUCKET_ELEMENTS, rest.parameters) * (precision.gradients + precision.weights)
        yield bucket, "ZeRO's reduce and gather buckets"
    if workload.zero == 3:
        layer = max(
            parameter_count(block_tensors(block, stack.hidden, workload.t, workload.e, workload.expert_t))
            for stack, block in layer_kinds(step.model)
        )
        layers = 2 * layer, "two gathered layers (this one and the next)"
        number, text = (rest.parameters, "the stage's gathered weights") if workload.p > 1 else layers
        # A frozen base is gathered as it is kept.
        sent = (
            BASES[base_of(workload)] if rest.trained.total < rest.parameters else workload.sent_bytes(workload.gathers)
        )
        yield round(number * sent), text
