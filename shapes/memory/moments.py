"""The moments of a training step at which memory can be fullest, and what is alive at each.

In a layer's forward what it works with is alive beside what was saved. At the loss everything that the forward saved
is, and no gradient unless gradients stay allocated from one microbatch to the next. In a layer's backward what was
saved shrinks from layer to layer while gradients grow. At the optimizer's step all gradients are there and no
activation is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from shapes.frozen import frozen
from shapes.json_form import shown
from shapes.memory.modules import Loss, Sizes, Style, alibi_in_fp32, layer_tape, masked, style_of, tail_tape
from shapes.memory.tape import INPUT, Tape
from shapes.model import Block, ModelShape
from shapes.model.stages import (
    ShardParameters,
    Stage,
    counted,
    has_adapters,
    layers_train,
    stage_runs,
    trained_block,
    trained_ends,
    trained_tensors,
    widened,
)
from shapes.operators.lower import sequence_length
from shapes.workload import Implementation, Workload


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
        """Bytes beside weights, gradients and states."""
        return self.saved + self.logits + self.temporary


@frozen
class Gradients:
    """``stay``: whether gradients stay allocated from one microbatch to the next, and ``why`` or why not.

    ``bytes``: of one gradient's element.
    """

    stay: bool
    why: str
    bytes: int

    JSON = shown(hidden=("bytes",))


@frozen
class _Layer:
    """One layer of a kind: bytes it saves, its forward's and its backward's peak (saved and its input included).

    ``returned``: what it hands on beside its output that autograd does not save. ``window``: whose mask it reads.
    ``unneeded``: of what it saves, what it does not where nothing before it trains.
    """

    saved: int
    forward: int
    backward: int
    returned: int
    window: int | None
    gradients: ShardParameters
    unneeded: int


@frozen
class Step:
    """What decides a training step's activations on one device.

    ``in_flight`` microbatches at once (pipelines); ``mask``: bytes of a dropout mask's element;
    ``trained_element``: of a trained weight's.
    """

    model: ModelShape
    workload: Workload
    implementation: Implementation = "huggingface"
    stage: Stage = "last"
    in_flight: int = 1
    mask: int = 1
    gradient_element: int = 4
    loss: Loss | None = None
    trained_element: int = 4

    def gradient_bytes(self, there: ShardParameters) -> int:
        """One rank's bytes of these parameters' gradients, which ZeRO shards from stage 2 on."""
        workload, each = self.workload, self.gradient_element
        d, expert_d = (workload.d, workload.expert_d) if workload.zero >= 2 else (1, 1)
        return -(-there.dense * each // d) - (-there.experts * each // expert_d)

    @property
    def fused_wgrad(self) -> bool:
        """Whether a layer's product adds its weight's gradient to the buffer itself (gradient accumulation fusion)."""
        return self.implementation == "megatron" and self.workload.zero < 3 and layers_train(self.workload)

    @property
    def style(self) -> Style:
        return style_of(self.model, self.implementation)

    @property
    def first(self) -> bool:
        return self.stage == "first" or self.workload.p == 1

    @property
    def last(self) -> bool:
        return self.stage == "last" or self.workload.p == 1

    def sizes(self, s: int) -> Sizes:
        """One device's sizes of sequences of length ``s``."""
        workload, rows, e = self.workload, self.workload.b * s, self.workload.activation_bytes
        whole = -(-rows // workload.t) if workload.sequence_parallel else rows
        # HF's eager path knows no fp8; Transformer Engine saves the quantised input of each product.
        stored = 1 if workload.dtype in ("fp8", "mxfp8", "nvfp4") else e
        wide = 4 if widened(workload) else e
        return Sizes(
            self.style,
            workload,
            rows,
            whole,
            s,
            wide,
            self.mask,
            wide if stored == e else stored,
            self.loss,
            self.trained_element,
            e,
        )


def moments(step: Step, gradients: Gradients, *, updated: int = 0) -> tuple[Moment, ...]:
    """The moments that can be the fullest, in the order of the step.

    ``updated``: bytes that the optimizer's step takes beside gradients and states. New gradients of weights that are
    added to those of an earlier microbatch are temporary.
    """
    kinds, runs = _kinds(step, gradients)
    saved = step.in_flight * sum(kinds[place].saved * count for place, count in runs) + _tables(step)
    saved += _embedding(step)
    if step.first and has_adapters(step.workload) and step.workload.checkpointing == "none":
        # Checkpointing would ask for the embedding's gradient (enable_input_require_grads).
        saved -= step.in_flight * kinds[runs[0][0]].unneeded
    model, workload = step.model, step.workload
    everything = counted(trained_tensors(model, workload, step.stage))
    made = everything if gradients.stay else ShardParameters()
    found = [Moment("end of the forward", saved, 0, 0, made)]
    if step.last and model.head:
        found.append(Moment("at the loss", saved, _tail(_alone(step), gradients), 0, made))
    update = Moment("optimizer's step", 0, 0, updated, everything)
    if workload.finetune == "frozen-base":
        return (*found, update)
    embedding = -(-model.vocab // workload.t) * (model.embedding_dim or model.hidden) * workload.activation_bytes
    tied_head = embedding if model.tied and model.head and step.last and layers_train(workload) else 0
    found += _of_layers(step, kinds, runs, saved, made, gradients, tied_head)
    if step.first and model.vocab and layers_train(workload):
        # A tied matrix meets its head's gradient here: both and their sum, which is the one that stays.
        total = embedding * (3 if tied_head else 1)
        there = made if gradients.stay else everything - counted(model.front_tensors(workload.t))
        found.append(_moment("gradient of the embedding", total, saved, there))
    return (*found, update)


def _moment(name: str, alive: int, saved: int, there: ShardParameters) -> Moment:
    """Of the bytes ``alive``, no more than the forward ``saved`` are said to be saved."""
    return Moment(name, min(alive, saved), 0, max(0, alive - saved), there)


def _of_layers(
    step: Step,
    kinds: Sequence[_Layer],
    runs: Sequence[tuple[int, int]],
    saved: int,
    made: ShardParameters,
    gradients: Gradients,
    tied_head: int,
) -> Iterator[Moment]:
    """The fullest forward and backward of a layer of each kind: what is saved shrinks from layer to layer, gradients

    grow, unless they are added to those that are there all the time, ``made``. ``tied_head``: bytes of a tied matrix's
    gradient of the head.
    """
    masks, keeps = _masks(step), _keeps_masks(step)
    again = ", its forward run again" if step.workload.checkpointing != "none" else ""
    name = f"backward of a layer{again}: gradients of activations and of one weight"
    below, none = saved, ShardParameters()
    grown = none if gradients.stay else counted(trained_ends(step.model, step.workload, step.stage))
    fullest: dict[tuple[str, int], tuple[int, int, ShardParameters]] = {}

    def look(name: str, place: int, alive: int, there: ShardParameters) -> None:
        size = alive + step.gradient_bytes(there)
        if (name, place) not in fullest or size > fullest[name, place][0]:
            fullest[name, place] = size, alive, there

    for index, (place, count) in reversed(list(enumerate(runs))):
        layer = kinds[place]
        new = none if gradients.stay else layer.gradients
        # A mask goes when the last layer has read it: those that outlive the forward in the backward.
        read = {kinds[one].window for one, _ in runs[: index + 1]} if keeps else masks
        gone = sum(size for window, size in masks.items() if window not in read)
        # Within a run of equal layers both change evenly: its ends are the extremes.
        for done in sorted({0, count - 1}):
            alive = below - gone - (done + 1) * layer.saved + layer.backward + tied_head
            look(name, place, alive, grown + new.times(done))
        before = kinds[runs[index - 1][0] if count == 1 else place].returned if index or count > 1 else 0
        held = 0 if keeps else sum(masks.values())
        look("forward of a layer", place, below - layer.saved + layer.forward + before + held, none)
        below -= layer.saved * count
        grown += new.times(count)
    for (name, _), (_, alive, there) in fullest.items():
        yield _moment(name, alive, saved, made + there)


def _kinds(step: Step, gradients: Gradients) -> tuple[list[_Layer], tuple[tuple[int, int], ...]]:
    """The stage's kinds of layers, and its runs of equal layers in order: (which kind, so many)."""
    kinds, runs = stage_runs(step.model, step.workload.p, step.stage)
    alone = _alone(step)
    layers = [
        _layer(
            alone, replace(block, count=1), stack.hidden, sequence_length(step.model, stack, step.workload), gradients
        )
        for stack, block in kinds
    ]
    return layers, runs


def _alone(step: Step) -> Step:
    """The step as its layers see it, without other ranks, stages and steps: a plan asks for those again and again."""
    return replace(
        step,
        workload=replace(
            step.workload,
            d=step.workload.e,
            p=1,
            vpp=1,
            replicas=1,
            zero=3 if step.workload.zero == 3 else 0,
            gpus=None,
            global_batch=None,
        ),
        stage="last",
        in_flight=1,
    )


@lru_cache(maxsize=256)
def _tail(step: Step, gradients: Gradients) -> int:
    """The fullest moment of the final norm, head and loss."""
    sizes = step.sizes(sequence_length(step.model, step.model.main, step.workload))
    return _backward(tail_tape(step.model, sizes, loss=True), 4, step, gradients)


@lru_cache(maxsize=1024)
def _layer(step: Step, block: Block, hidden: int, s: int, gradients: Gradients) -> _Layer:
    workload, sizes = step.workload, step.sizes(s)
    tape = layer_tape(block, hidden, sizes)
    x = sizes.whole * hidden * sizes.element
    alone = workload.finetune == "frozen-base"  # then nothing runs backward here
    full, selective = workload.checkpointing == "full", workload.checkpointing == "selective"
    kept = {} if full or alone else tape.saved(selective=selective)
    backward = _backward(tape, x, step, gradients, made=0 if step.fused_wgrad else None)
    if full:
        # A checkpointed layer's input stays whether or not its own nodes save it.
        backward = max(backward + (0 if INPUT in tape.saved() else x), tape.recomputed_peak_bytes(x))
    return _Layer(
        saved=x if full and not alone else sum(kept.values()),
        forward=tape.forward_peak_bytes(kept),
        backward=backward,
        returned=tape.returned if full else 0,
        window=block.attention.window if block.attention else None,
        gradients=counted(trained_block(block, hidden, workload)),
        unneeded=tape.unneeded_bytes(),
    )


def _backward(tape: Tape, seed: int, step: Step, gradients: Gradients, *, made: int | None = None) -> int:
    """The peak of one tape's backward; new gradients of weights stay, or are added to the old ones and go.

    ``made``: bytes of a new gradient's element (None: as an activation's).
    """
    kept = 0 if gradients.stay else gradients.bytes
    made = step.workload.activation_bytes if made is None else made
    return tape.backward_peak_bytes(seed, made_bytes=made, kept_bytes=kept)


def _embedding(step: Step) -> int:
    """What the embedding's norm and dropout save, where the model has them.

    Checkpointing beside a frozen embedding makes a leaf of its output (transformers' enable_input_require_grads), which
    stays beside what positions or dropout make of it.
    """
    if not step.first:
        return 0
    total, workload = 0, step.workload
    leaf = has_adapters(workload) and workload.checkpointing == "full"
    for stack in step.model.stacks:
        channels = workload.b * sequence_length(step.model, stack, workload) * stack.hidden
        if stack.blocks[0].dropout and "no-embedding-dropout" not in step.style:
            total += channels * step.mask
        total += channels * workload.activation_bytes if stack.embedding_norm else 0
        total += channels * workload.activation_bytes if leaf and (stack.positions or stack.blocks[0].dropout) else 0
    return total


def _tables(step: Step) -> int:
    """Rotary cosines and sines, and the masks that the backward reads."""
    attention = step.model.attention
    if attention is None:
        return 0
    element = 4 if widened(step.workload) else step.workload.activation_bytes
    rotary = 2 * step.workload.s * attention.rotary_dim * element
    return rotary + (sum(_masks(step).values()) if _keeps_masks(step) else 0)


def _keeps_masks(step: Step) -> bool:
    """Whether masks outlive the forward: checkpointing keeps them for running a layer again, masked_fill and a

    fused core given a bias save them.
    """
    style, attention = step.style, step.model.attention
    if step.workload.checkpointing == "full" or attention is None:
        return True
    if step.workload.attention == "eager":
        return "fills-mask" in style
    return (
        alibi_in_fp32(style, attention) and attention.on_shard(step.workload.t)[1] > 1
    )  # one head's has no fused core


def _masks(step: Step) -> dict[int | None, int]:
    """Bytes of the masks that all layers share, by window: added to the scores, or of booleans."""
    if step.implementation == "megatron":
        return {}
    workload, eager = step.workload, step.workload.attention == "eager"
    style = step.style
    cores = [block.attention for _, block in step.model.all_blocks() if block.attention]
    windows = {core.window for core in cores if eager or masked(style, core, workload.s)}
    # The fused core's is one for all sequences.
    element = workload.b * (1 if "fills-mask" in style else workload.activation_bytes) if eager else 1
    if cores and alibi_in_fp32(style, cores[0]):
        element = workload.b * cores[0].on_shard(workload.t)[0] * workload.activation_bytes
    return dict.fromkeys(windows, workload.s**2 * element)
