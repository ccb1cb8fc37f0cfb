"""The tape's rules, a step's moments and what goes with them, each expectation worked out in view."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import isqrt
from typing import Any, get_args

import pytest

from shapes.memory import (
    Memory,
    divisors,
    largest_microbatch,
    largest_size,
    memory,
    memory_of_parameters,
    possible_savings,
    savings,
    smallest_pp,
    smallest_tp,
)
from shapes.memory.moments import (
    AtMoment,
    Component,
    Moment,
    StageStep,
    _keeps_masks,
    gradients_of,
    held,
    microbatches_of,
    moments,
    most_in_flight,
    tapes_of_step,
)
from shapes.memory.tape import DECLARED, Tape, line_of, listing, peak_bytes
from shapes.model import (
    PRECISIONS,
    AttentionShape,
    Block,
    MlpShape,
    ModelShape,
    MoeShape,
    Stack,
    parameter_count,
)
from shapes.model.stages import ShardParameters
from shapes.workload import BASES, Implementation, Workload

STAY, NEW = True, False
GIB = 2**30


def llama(layers: int = 4, *, tied: bool = False, vocab: int = 1000) -> ModelShape:
    block = Block(AttentionShape(8, 8, 32, rotary_dim=32), MlpShape(1024), count=layers)
    return ModelShape("llama", (Stack("decoder", 256, (block,)),), vocab=vocab, tied=tied)


def trained(workload: Workload, microbatches: int | None = None, **how: Any) -> StageStep:
    """A llama's step as ``memory`` has it: the microbatches in flight, and whether gradients stay."""
    one = StageStep(llama(), workload, **how)
    number = microbatches_of(workload, microbatches)
    most, stay = most_in_flight(workload, number), gradients_of(one.implementation, number).stay
    return replace(one, in_flight=1 if one.last else most, gradients_stay=stay)


def mixture() -> ModelShape:
    block = Block(AttentionShape(8, 8, 32), MoeShape(8, 2, 512), count=2)
    return ModelShape("qwen3_moe", (Stack("decoder", 256, (block,)),), vocab=1000)


def test_megatron_weights_what_activations_make_and_keeps_no_experts_outputs() -> None:
    # 2 of 8 experts a token: 1024 rows of 96 channels in 16 bits go in and come out. Both products keep what they read;
    # transformers' keeps what came out as well, since it is multiplied by the router's weights then.
    block = Block(AttentionShape(8, 8, 32), MoeShape(8, 2, 512, latent=96), count=2)
    model, routed = ModelShape("qwen3_moe", (Stack("decoder", 256, (block,)),), vocab=1000), 2 * 512 * 96 * 2
    kept = {
        name: list(step.forward(512).layer_tape(block, 256).saved().values()).count(routed)
        for name in ("huggingface", "megatron")
        for step in [StageStep(model, Workload(b=1, s=512), implementation=name)]  # type: ignore[arg-type]
    }
    assert kept["huggingface"] - kept["megatron"] == 1


def backward_peaks(tape: Tape, seed_bytes: int, *how: int) -> list[int]:
    """Where a running backward's bytes are more than just before and just after."""
    sizes = [sum(tape.saved(selective=True).values())]
    for _, size in tape.backward(seed_bytes, *how):
        sizes += [sizes[-1] + size] * bool(size)
    return [now for before, now, after in zip(sizes, sizes[1:], sizes[2:], strict=False) if before <= now > after]


def backward_peak(tape: Tape, seed_bytes: int, made_bytes: int = 2, kept_bytes: int = 0) -> int:
    return max(backward_peaks(tape, seed_bytes, made_bytes, kept_bytes))


def moments_of(step: StageStep, gradients_stay: bool, start: str) -> list[Moment]:
    found = moments(replace(step, gradients_stay=gradients_stay))
    return [moment for moment in found if moment.name.startswith(start)]


def fullest_of(step: StageStep, gradients_stay: bool, start: str) -> Moment:
    """Of a run of equal layers both ends are looked at."""
    return max(moments_of(step, gradients_stay, start), key=lambda one: one.bytes + step.gradient_bytes(one.gradients))


def bytes_of(found: Memory, name: str) -> int:
    return found.components[name]


# The tape.


@pytest.mark.parametrize(("views", "peak"), [(False, 210), (True, 300)])
def test_gradients_that_meet_need_a_third_tensor_where_the_first_is_a_view(views: bool, peak: int) -> None:
    tape = Tape()
    x = tape.tensor(100)
    parts = tuple(tape.op("product", (x,), 10, views_gradient=views) for _ in range(2))
    tape.op("sum", parts, 10, shares_gradient=True)
    # Backward: the seed of 10 goes to both products; each makes 100 of x's gradient. Added in place: 210. Out of place:
    # the seed is gone by then, and the two are there with their sum.
    assert backward_peak(tape, 10) == peak


def test_a_gradient_of_a_weight_is_there_while_it_is_made_and_stays_where_nothing_is_added_to() -> None:
    tape = Tape()
    x = tape.op("input", (tape.tensor(10),), 10)
    y = tape.op("product", (x,), 20, (x,), weights=100, work=7)
    tape.op("loss", (y,), 4, (y,))
    # Saved 10 + 20; the loss makes y's gradient (20) from its seed (4); y goes. The product makes 10 for x, 7 of work.
    assert backward_peak(tape, 4, made_bytes=2, kept_bytes=0) == 10 + 20 + 10 + 7 + 2 * 100
    assert backward_peak(tape, 4, made_bytes=2, kept_bytes=4) == 10 + 20 + 10 + 7 + (2 + 4) * 100
    assert backward_peak(tape, 4, made_bytes=4, kept_bytes=4) == 10 + 20 + 10 + 7 + 4 * 100


def test_selective_checkpointing_keeps_what_the_recomputed_part_starts_from() -> None:
    tape = Tape()
    x = tape.op("projection", (tape.tensor(1),), 10)
    with tape.marked(again=True):
        scores = tape.op("scores", (x,), 1000, (x,))
        out = tape.op("softmax", (scores,), 1000, saves_output=True)
    tape.op("product", (out,), 20, (out,))
    # x is read by the part that runs again; its scores go, its output stays, since the product saves it.
    assert sum(tape.saved().values()) == 10 + 1000
    x_alone = Tape()
    x = x_alone.op("projection", (x_alone.tensor(1),), 10)
    with x_alone.marked(again=True):
        x_alone.op("softmax", (x,), 1000, saves_output=True)
    assert sum(x_alone.saved().values()) == 1000
    assert sum(x_alone.saved(selective=True).values()) == 10


def test_a_tensor_of_the_forward_dies_at_its_last_use_unless_saved_or_named() -> None:
    def tape(*, held: bool = False, named: bool = False) -> Tape:
        made = Tape()
        a = made.op("a", (made.tensor(1),), 100)
        if named:
            made.named = (a,)
        b = made.op("b", (a,), 10)
        c = made.op("c", (b,), 100)
        if held:
            made.hold(a)
        made.op("d", (c,), 1)
        return made

    # a and b while b runs, b and c while c does; and a with them where c still finds it, by a name or saved.
    assert peak_bytes(tape().forward()) == 110
    assert peak_bytes(tape(held=True).forward()) == 210
    assert peak_bytes(tape(named=True).forward()) == 210
    assert peak_bytes(tape().forward({1})) == 210  # a's storage is the second


def test_a_forward_that_runs_again_stops_at_the_last_thing_it_saves() -> None:
    tape = Tape(part=1, dropping=True)
    x = tape.tensor(10)
    wide = tape.op("square", (x,), 100, (x,))
    z = tape.op("root", (tape.op("narrow", (wide,), 20),), 10, saves_output=True)
    tape.op("widened", (z,), 1000)
    # The last operator saves nothing, so it does not run again: seed, x and its own gradient. For the root's output all
    # before it runs again: its gradient and x are there while the wide one becomes narrow.
    assert backward_peaks(tape, 1000, 2, 0)[:2] == [1000 + 10 + 10, 10 + 10 + 100 + 20]
    nothing = Tape(part=1, dropping=True)
    nothing.op("widened", (nothing.tensor(1),), 5)
    assert backward_peak(nothing, 5) == 1 + 5 + 1


def test_a_part_that_runs_again_is_there_from_the_first_that_asks_for_it() -> None:
    tape = Tape()
    x = tape.tensor(10)
    with tape.marked(again=True):
        y = tape.op("inner", (tape.op("square", (x,), 300, saves_output=True),), 20)
    z = tape.op("root", (y,), 50, saves_output=True)
    tape.op("sum", (z,), 1)
    assert tape.saved(selective=True) == {0: 10, 3: 50}
    # x and z are there, with the gradients that each is given and makes; the inner one's backward asks for nothing, and
    # the square is made again for its own.
    assert backward_peaks(tape, 1, 2, 0) == [60 + 1 + 50, 60 + 50 + 20, 10 + 20 + 300, 10 + 300 + 300 + 10]


def test_what_goes_with_its_part_is_made_again_for_what_read_it() -> None:
    tape = Tape()
    x = tape.tensor(10)
    with tape.marked(again=True, drops=True):
        y = tape.op("norm", (x,), 100, (x,))
    tape.op("product", (y,), 5, (y,))
    assert tape.saved(selective=True) == {0: 10}
    # x, the seed, what went filled again next to what was made for it, and its gradient; then all but the filled one.
    assert backward_peaks(tape, 5, 2, 0) == [10 + 5 + 2 * 100 + 100, 10 + 100 + 100 + 10]


def test_nothing_before_the_first_trained_weight_is_saved() -> None:
    tape = Tape()
    x = tape.op("norm", (tape.tensor(1),), 100, saves_output=True)  # frozen, of an input without a gradient
    y = tape.op("adapter", (x,), 10, (x,), weights=5, saves_bytes=3)  # needs x for its gradient, not its weight's copy
    tape.op("times", (x, y), 7, (x, y))  # x for y's gradient; y would be for x's
    assert sum(tape.saved().values()) == 100 + 3 + 10
    assert tape.unneeded_bytes() == 3 + 10


def test_the_first_layer_of_a_base_saves_less_in_each_microbatch_in_flight() -> None:
    block = Block(AttentionShape(8, 8, 32), MlpShape(1024), count=4)
    model = ModelShape("llama", (Stack("decoder", 256, (block,)),), vocab=1000)
    w = Workload(b=1, s=512, p=2, finetune="lora", lora_targets="q_proj")
    step = StageStep(model, w, "first", in_flight=3)
    tape = step.forward(512).layer_tape(replace(block, count=1), 256)
    (whole,) = moments_of(step, STAY, "end of the forward")
    assert tape.unneeded_bytes() > 1
    assert whole.saved == 3 * (2 * sum(tape.saved(selective=True).values()) - tape.unneeded_bytes())


def test_replicas_have_buckets_as_large_as_their_gradients() -> None:
    one, two = (memory(llama(), Workload(b=1, s=64, d=d), implementation="huggingface") for d in (1, 2))
    assert two.allocated_bytes - one.allocated_bytes == 4 * llama().parameters == bytes_of(two, "gradients")
    formulas = {part.name: part.formula for part in one.parts}
    assert formulas["weights"] == f"{llama().parameters:,} parameters x 2 bytes"
    assert formulas["optimizer_states"].startswith(f"{llama().parameters:,} parameters x 8 bytes")
    again = memory(llama(), Workload(b=1, s=64, checkpointing="full"), implementation="huggingface")
    said = {part.name: part.formula for part in again.parts}["activations"]
    assert ", full checkpointing: " in said
    assert "none" not in formulas["activations"]


# modules.toml.


def test_every_module_declared_is_understood_and_every_word_of_a_family_means_something() -> None:
    lines = [line for module in DECLARED["modules"] for line in listing(module)]
    conditions = {word.lstrip("!") for line in lines for word in line.when.split()}
    # Words that modules.py and moments.py ask for themselves.
    asked = {"megatron", "layer", "wide-layer", "gelu_new", "no-pre-norms", "post-norms", "softmax-narrow"}
    asked |= {"returns-scores", "fills-mask", "clamped-gate", "fused-gate", "router-wide", "shared-last", "gemma"}
    asked |= {"logit-softcap", "fused-loss", "no-embedding-dropout", "joint-dropout", "buffer-mask", "buffer-table"}
    asked |= {"modulated", "norms-at-once"}
    said = [*DECLARED["families"].values(), *(one["words"] for one in DECLARED["implementations"].values())]
    assert {word for words in said for word in words.split()} <= conditions | asked
    assert DECLARED["implementations"].keys() == set(get_args(Implementation))


def test_a_clause_that_there_is_not_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"'y <- x \| 2 x \| saved x': 'saved' is no clause"):
        line_of("y <- x | 2 x | saved x")


# Moments.


def test_a_layers_backward_finds_what_the_layers_before_it_saved() -> None:
    model, w = llama(4), Workload(b=2, s=512)
    step = StageStep(model, w)
    hidden = 2 * 512 * 256 * 2
    tape = step.forward(512).layer_tape(model.main.blocks[0], 256)
    backward = fullest_of(step, STAY, "backward of a layer")
    rotary = 2 * 512 * 32 * 2
    # The last layer's, which comes first: its own and three more layers' tensors.
    assert backward.bytes == 3 * sum(tape.saved().values()) + backward_peak(tape, hidden) + rotary
    (end,) = moments_of(step, STAY, "end of the forward")
    assert end.bytes == 4 * sum(tape.saved().values()) + rotary


def test_new_gradients_grow_from_layer_to_layer_while_activations_go() -> None:
    # 16 tokens next to matrices of 256 x 1024: most bytes are gradients, so the first layer's is the fullest.
    model, w = llama(4), Workload(b=1, s=16)
    backward = fullest_of(StageStep(model, w), NEW, "backward of a layer")
    layer = 4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256
    assert backward.gradients == ShardParameters(1000 * 256 + 3 * layer)  # the head's and three layers'
    (last,) = moments_of(StageStep(model, w), NEW, "optimizer's step")
    assert last.gradients.dense == model.parameters
    assert moments_of(StageStep(model, w), NEW, "at the loss")[0].gradients == ShardParameters()
    assert moments_of(StageStep(model, w), STAY, "at the loss")[0].gradients.dense == model.parameters


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full", "full:3"])
@pytest.mark.parametrize("vocab", [8, 50_000])
def test_a_run_of_equal_layers_takes_what_the_same_layers_in_two_runs_do(
    microbatches: int, checkpointing: str, vocab: int
) -> None:
    whole = llama(6, vocab=vocab)
    (block,) = whole.main.blocks
    halves = (replace(block, count=4), replace(block, count=2))
    parted = replace(whole, stacks=(replace(whole.main, blocks=halves),))
    workload = Workload(b=2, s=256, checkpointing=checkpointing)
    found, expected = (memory(one, workload, microbatches=microbatches) for one in (parted, whole))
    assert found.total_bytes == expected.total_bytes


def test_inference_exchanges_nothing_between_replicas() -> None:
    served = Workload(s=512, phase="infer")
    apart, alone = (memory(llama(), one).components for one in (replace(served, d=4, zero=3), served))
    assert apart["communication"] == alone["communication"] == 0


def test_a_tied_embedding_meets_its_heads_gradient_and_their_sum() -> None:
    w = Workload(b=1, s=16)
    for tied, times in ((False, 1), (True, 3)):
        step = StageStep(llama(2, tied=tied, vocab=50000), w)
        (moment,) = moments_of(step, NEW, "gradient of the embedding")
        assert moment.bytes == times * 50000 * 256 * 2
    # The head's gradient is there through the layers' backward too.
    alone, both = (
        moments_of(StageStep(llama(2, tied=tied, vocab=50000), w), STAY, "backward of a layer")[0]
        for tied in (False, True)
    )
    assert both.bytes - alone.bytes == 50000 * 256 * 2


def test_an_embedding_that_is_frozen_has_no_gradient() -> None:
    for finetune, moments_there in (("full", 1), ("lora", 0)):
        step = StageStep(llama(2), Workload(b=1, s=16, finetune=finetune))  # type: ignore[arg-type]
        assert len(moments_of(step, NEW, "gradient of the embedding")) == moments_there


def test_a_mask_goes_when_the_last_layer_that_reads_it_has_run_backward() -> None:
    attention, mlp = AttentionShape(8, 8, 32), MlpShape(1024)
    local = Block(replace(attention, window=64), mlp)
    model = ModelShape("mistral", (Stack("decoder", 256, (local, Block(attention, mlp))),), vocab=1000)
    w = Workload(b=2, s=256, attention="eager", checkpointing="full")
    (end,) = moments_of(StageStep(model, w), STAY, "end of the forward")
    hidden, mask = 2 * 256 * 256 * 2, 2 * 256 * 256 * 2
    assert end.bytes == 2 * hidden + 2 * mask  # without rotary tables
    first, second = moments_of(StageStep(model, w), STAY, "backward of a layer")  # the last layer is the first
    assert first.bytes - second.bytes == hidden + mask


def test_masks_that_nothing_saves_are_there_in_the_forward_alone() -> None:
    block = Block(AttentionShape(8, 8, 32), MlpShape(1024), count=2)
    model = ModelShape("llama", (Stack("decoder", 256, (block,)),), vocab=1000)
    step = StageStep(model, Workload(b=2, s=256, attention="eager"))
    tape = step.forward(256).layer_tape(block, 256)
    (end,) = moments_of(step, STAY, "end of the forward")
    assert end.bytes == 2 * sum(tape.saved().values())
    (forward,) = moments_of(step, STAY, "forward of a layer")
    assert forward.bytes == sum(tape.saved().values()) + peak_bytes(tape.forward(tape.saved())) + 2 * 256 * 256 * 2


@pytest.mark.parametrize(
    ("kind", "attention", "saved"),
    [
        ("mpt", "eager", 2 * 256 * 256),  # masked_fill saves its booleans
        ("falcon", "eager", 0),
        ("falcon", "flash", 2 * 8 * 256 * 256 * 2),  # the fused core saves the bias that it is given
        ("bloom", "eager", 0),
    ],
)
def test_masks_that_an_operator_saves_are_there_to_the_backward(kind: str, attention: str, saved: int) -> None:
    block = Block(AttentionShape(8, 8, 32), MlpShape(1024, gated=False), count=2)
    model = ModelShape(kind, (Stack("decoder", 256, (block,)),), vocab=1000)
    step = StageStep(model, Workload(b=2, s=256, attention=attention))  # type: ignore[arg-type]
    (end,) = moments_of(step, STAY, "end of the forward")
    assert end.bytes - 2 * sum(step.forward(256).layer_tape(block, 256).saved().values()) == saved


def test_a_layer_that_returns_its_probabilities_leaves_them_to_the_next_ones_forward() -> None:
    # gpt-j's class hands them on; checkpointed, autograd keeps none of them.
    block = Block(AttentionShape(8, 8, 32), MlpShape(1024, gated=False), count=2)
    w = Workload(b=2, s=256, attention="eager", checkpointing="full")
    peaks = {}
    for layers in (1, 2):
        model = ModelShape("gptj", (Stack("decoder", 256, (replace(block, count=layers),)),), vocab=1000)
        (forward,) = moments_of(StageStep(model, w), STAY, "forward of a layer")
        peaks[layers] = forward.bytes
    hidden, probabilities = 2 * 256 * 256 * 2, 2 * 8 * 256 * 256 * 2
    assert peaks[2] - peaks[1] == hidden + probabilities


def test_a_forward_finds_what_the_layer_before_it_returned_and_not_its_own() -> None:
    many, few = (Block(AttentionShape(heads, heads, 32), MlpShape(1024, gated=False)) for heads in (8, 2))
    w = Workload(b=2, s=256, attention="eager", checkpointing="full")
    last = {}
    for name, first in (("many", many), ("few", few)):
        model = ModelShape("gptj", (Stack("decoder", 256, (first, few)),), vocab=1000)
        last[name] = moments_of(StageStep(model, w), STAY, "forward of a layer")[0].bytes
    assert last["many"] - last["few"] == 2 * (8 - 2) * 256 * 256 * 2
    # A run of two equal layers is as full as two runs of one: the second's forward finds the first's.
    one_run, two_runs = (
        max(moment.bytes for moment in moments_of(StageStep(model, w), STAY, "forward of a layer"))
        for blocks in ((few, replace(many, count=2)), (few, many, many))
        for model in [ModelShape("gptj", (Stack("decoder", 256, blocks),), vocab=1000)]
    )
    assert one_run == two_runs
    # What is saved anyway is there once.
    ends = {}
    for name, first in (("many", many), ("few", few)):
        model = ModelShape("gptj", (Stack("decoder", 256, (first, few)),), vocab=1000)
        step = StageStep(model, replace(w, checkpointing="none"))
        ends[name] = [moments_of(step, STAY, start)[0].bytes for start in ("forward of a layer", "end of the forward")]
    forward, end = (many - few for many, few in zip(ends["many"], ends["few"], strict=True))
    assert forward == end > 0


@pytest.mark.parametrize("fuller", ["backward", "forward run again"])
def test_a_checkpointed_layer_is_as_full_as_its_forward_run_again_or_its_backward(fuller: str) -> None:
    if fuller == "backward":
        model, rotary = llama(4), 2 * 512 * 32 * 2
        step = StageStep(model, Workload(b=2, s=512, checkpointing="full"))
        masks = 0
    else:  # falcon's eager core without rotary positions holds scores in fp32, of which it saves none
        block = Block(AttentionShape(8, 8, 32), MlpShape(256, gated=False), count=4)
        model, rotary = ModelShape("falcon", (Stack("decoder", 256, (block,)),), vocab=1000), 0
        step = StageStep(model, Workload(b=2, s=512, checkpointing="full", attention="eager"))
        masks = 2 * 8 * 512 * 512 * 2  # a bias of every head's own
    tape, hidden = step.forward(512).layer_tape(model.main.blocks[0], 256), 2 * 512 * 256 * 2
    moment = fullest_of(step, STAY, "backward of a layer, its forward run again")
    again = backward_peak(tape, hidden)
    assert moment.bytes == 3 * hidden + rotary + masks + again
    # Its input stays for it, whether or not its nodes save it: llama's norm saves its fp32 copy, falcon's the input.
    plain = replace(step, workload=replace(step.workload, checkpointing="none")).forward(512)
    alone = backward_peak(plain.layer_tape(model.main.blocks[0], 256), hidden)
    alone += hidden if fuller == "backward" else 0
    assert again > alone if fuller != "backward" else again == alone


def test_the_embeddings_norm_and_dropout_are_saved_on_the_first_stage() -> None:
    model, w = llama(2), Workload(b=2, s=512)
    normed = replace(model, stacks=(replace(model.main, embedding_norm=1),))
    dropped = replace(model, stacks=(replace(model.main, blocks=(replace(model.main.blocks[0], dropout=0.1),)),))
    plain, norm, dropout = (moments_of(StageStep(one, w), STAY, "end")[0].bytes for one in (model, normed, dropped))
    channels = 2 * 512 * 256
    assert norm - plain == 2 * channels
    assert dropout - plain == channels + 2 * 2 * channels  # a byte each: the embedding's and two of each layer
    later = [moments_of(StageStep(one, replace(w, p=2), stage="last"), STAY, "end")[0].bytes for one in (model, normed)]
    assert later[0] == later[1]


@pytest.mark.parametrize(("positions", "kept"), [(0, 0), (512, 512 * 256 * 2)])
def test_a_frozen_embeddings_output_stays_where_positions_are_added_to_it(positions: int, kept: int) -> None:
    block = Block(AttentionShape(8, 8, 32), MlpShape(1024), count=2)
    model = ModelShape("llama", (Stack("decoder", 256, (block,), positions=positions),), vocab=1000)
    step = StageStep(model, Workload(b=1, s=512, finetune="lora", checkpointing="full"))
    layer = sum(step.forward(512).layer_tape(replace(block, count=1), 256).saved(selective=True).values())
    (whole,) = moments_of(step, STAY, "end of the forward")
    assert whole.saved == 2 * layer + kept


def test_zero_2_divides_gradients_of_experts_over_the_ranks_that_hold_them() -> None:
    w = Workload(d=8, e=4, zero=2)
    # 100 x 4 bytes over 8 ranks, 80 x 4 over the 8 / 4 that hold the same experts.
    assert StageStep(mixture(), w).gradient_bytes(ShardParameters(100, 80)) == 50 + 160
    assert StageStep(mixture(), replace(w, zero=1)).gradient_bytes(ShardParameters(100, 80)) == 400 + 320


# A step's components.


@pytest.mark.parametrize(("p", "vpp", "in_flight"), [(4, 1, 4), (4, 2, 6), (4, 3, 5), (2, 2, 3)])
def test_interleaved_chunks_keep_more_microbatches_in_flight(p: int, vpp: int, in_flight: int) -> None:
    # Korthikanti et al. 2205.05198, 4.2.3: (p - 1) / (p vpp) more than p stages' worth, whole microbatches here.
    model, w = replace(llama(24), head=False), Workload(b=8, s=512, p=p, vpp=vpp)
    found = memory(model, w, implementation="megatron", microbatches=32)
    (end,) = moments_of(StageStep(model, w, "first", in_flight, implementation="megatron"), STAY, "end of the forward")
    assert (found.stage, bytes_of(found, "activations")) == ("first", end.saved)
    few = memory(model, w, implementation="megatron", microbatches=2)
    assert 3 * bytes_of(few, "activations") == pytest.approx(2 * 3 * end.saved / in_flight, rel=0.01)


def test_experts_states_are_divided_over_the_ranks_that_hold_them() -> None:
    model = mixture()
    experts = sum(one.copies * one.elements for one in model.tensors() if one.expert)
    dense = model.parameters - experts
    found = memory(model, Workload(b=1, s=64, d=8, e=4, zero=1))
    assert bytes_of(found, "optimizer_states") == 8 * dense // 8 + 8 * (experts // 4) // 2
    assert bytes_of(found, "weights") == 2 * dense + 2 * (experts // 4)
    assert "/ 8 (experts: / 2)" in next(part.formula for part in found.parts if part.name == "optimizer_states")


def test_experts_spread_over_more_ranks_save_as_much_of_as_many_tokens() -> None:
    # Even routing: a rank of e has an e-th of the experts and e times the tokens of each. 3 divides no power of two, so
    # that what holds for it was not told by a layer over 2 ranks whose experts are cut otherwise.
    block = Block(AttentionShape(8, 8, 32), MoeShape(12, 2, 512), count=2)
    model = ModelShape("qwen3_moe", (Stack("decoder", 256, (block,)),), vocab=1000)
    w = Workload(b=1, s=512, t=2, d=6, zero=1, sequence_parallel=True, global_batch=6, implementation="megatron")
    assert len({bytes_of(memory(model, replace(w, e=e)), "activations") for e in (1, 2, 3, 6)}) == 1


def test_of_layers_run_again_the_first_are_taken_of_whatever_kind() -> None:
    dense = Block(AttentionShape(8, 8, 32), MlpShape(1024), count=1)
    routed = replace(dense, mlp=MoeShape(8, 2, 512))

    def saved(blocks: tuple[Block, ...], checkpointing: str) -> int:
        model = ModelShape("qwen3_moe", (Stack("decoder", 256, blocks),), vocab=100)
        return bytes_of(memory(model, Workload(b=2, s=512, checkpointing=checkpointing)), "activations")

    for first, second in ((dense, routed), (routed, dense)):
        gone = saved((first, second), "none") - saved((first, second), "full:1")
        assert gone == saved((first,), "none") - saved((first,), "full") > 0


def test_gradients_are_new_where_a_global_batch_is_one_microbatch() -> None:
    for batch, stay in ((2, False), (4, True)):
        assert memory(llama(), Workload(b=2, s=64, global_batch=batch)).gradients.stay is stay


def test_fp8_weights_alone_leave_what_is_no_matrix_of_a_layer_in_16_bits() -> None:
    model = llama(2)
    matrices = 2 * (4 * 256 * 256 + 3 * 256 * 1024)
    for precision, expected in (
        ("fp8-weights", 2 * matrices + 2 * (model.parameters - matrices)),
        ("fp8", 2 * model.parameters + 2 * matrices),
    ):
        found = memory(model, Workload(b=1, s=64, dtype="fp8", precision=precision))
        assert bytes_of(found, "weights") == expected


def test_buffers_of_communication() -> None:
    model, w = llama(4), Workload(b=2, s=512)
    hidden = 2 * 512 * 256 * 2
    layer = 4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256
    for split, expected in (
        ({}, 0),
        ({"p": 2}, 2 * hidden),
        ({"t": 2, "sequence_parallel": True}, hidden),
        ({"sequence_parallel": True}, 0),
        ({"d": 2, "zero": 1}, model.parameters * (4 + 2)),  # fewer than a bucket's 5e8
        ({"d": 2, "zero": 2}, model.parameters * (4 + 2)),
        ({"d": 2, "zero": 3}, 2 * 2 * layer),
    ):
        found = memory(model, replace(w, **split))  # type: ignore[arg-type]
        if split.get("p"):
            own = memory(model, replace(w, **split), microbatches=1)  # type: ignore[arg-type]
            assert bytes_of(own, "communication") == expected
        assert bytes_of(found, "communication") == expected, split
    wide = llama(1, tied=True, vocab=3_000_000)
    assert bytes_of(memory(wide, Workload(b=1, s=64, d=2, zero=1)), "communication") == 5 * 10**8 * (4 + 2)
    # Megatron's distributed optimizer exchanges where gradients and parameters lie: it has none of DeepSpeed's buckets.
    for zero in (1, 2):
        assert bytes_of(memory(model, replace(w, d=2, zero=zero), implementation="megatron"), "communication") == 0


def test_megatron_keeps_a_dummy_gradient_of_each_shape_of_matrix() -> None:
    model, w = llama(4), Workload(b=2, s=512)
    found = memory(model, w, implementation="megatron")
    shapes = {(3 * 256, 256), (256, 256), (2 * 1024, 256), (256, 1024)}
    assert bytes_of(found, "dummy_wgrads") == 2 * sum(rows * columns for rows, columns in shapes)
    experts = memory(mixture(), w, implementation="megatron")
    shapes = {(3 * 256, 256), (256, 256), (8, 256), (2 * 512, 256), (256, 512)}
    assert bytes_of(experts, "dummy_wgrads") == 2 * sum(rows * columns for rows, columns in shapes)
    assert "dummy_wgrads" not in memory(model, replace(w, d=2, zero=3), implementation="megatron").components
    assert "dummy_wgrads" not in memory(model, w).components


def test_inference_holds_logits_of_the_last_position_and_decode_of_the_steps() -> None:
    model = llama(2)
    prefill = memory(model, Workload(b=4, s=512, phase="prefill"))
    assert bytes_of(prefill, "logits") == 4 * 1000 * (2 + 4)
    decode = memory(model, Workload(b=4, s=512, phase="decode", speculative=2, context=512))
    assert bytes_of(decode, "logits") == 4 * 3 * 1000 * (2 + 4)
    headless = replace(model, head=False, tied=False)
    assert bytes_of(memory(headless, Workload(b=4, s=512, phase="prefill")), "logits") == 0


@pytest.mark.parametrize(("dtype", "element"), [("fp64", 8), ("fp32", 4), ("tf32", 4), ("bf16", 2), ("fp16", 2)])
def test_weights_of_inference_are_as_wide_as_what_they_multiply(dtype: str, element: int) -> None:
    model, w = llama(2), Workload(b=1, s=64, phase="infer", dtype=dtype)  # type: ignore[arg-type]
    assert bytes_of(memory(model, w), "weights") == element * parameter_count(model.tensors())
    least, half = (memory_of_parameters(10**10, replace(w, dtype=one)) for one in (dtype, "bf16"))  # type: ignore[arg-type]
    assert least - half == pytest.approx((element - 2) * 10**10, rel=1e-4)


def test_nccl_takes_its_share_only_where_there_is_more_than_one_device() -> None:
    model, w = mixture(), Workload(b=1, s=64)
    for split, context, expected in (
        ({}, GIB, GIB),
        ({"d": 2}, GIB, 2 * GIB),
        ({"d": 2, "e": 2}, GIB, 2 * GIB),
        ({"t": 2}, GIB, 2 * GIB),
        ({"d": 2}, 0, 0),
    ):
        found = memory(model, replace(w, **split), context_bytes=context)  # type: ignore[arg-type]
        assert bytes_of(found, "framework") == expected
        assert found.allocated_bytes == found.total_bytes - expected - found.components.get("allocator", 0)


def test_the_fuller_of_a_pipelines_ends_is_the_answer() -> None:
    # Many tokens of few layers: the loss fills the last; a long pipeline's activations the first.
    w = Workload(b=4, s=1024, p=4)
    wide, deep = llama(4, vocab=200000), llama(64, vocab=100)
    assert memory(wide, w, microbatches=8).stage == "last"
    assert memory(deep, w, microbatches=8).stage == "first"
    assert max(size for _, size in memory(wide, w, microbatches=8).moments) == memory(wide, w).total_bytes


def test_an_int8_base_has_an_fp32_scale_a_row() -> None:
    model = llama(2)
    w = Workload(b=1, s=64, finetune="qlora", base="int8")
    matrices = 2 * (4 * 256 * 256 + 3 * 256 * 1024)
    rows = 2 * (4 * 256 + 2 * 1024 + 256)
    assert bytes_of(memory(model, w), "weights") == matrices + 4 * rows + 4 * (model.parameters - matrices)


def test_a_frozen_base_is_divided_by_zero_3_alone_and_has_no_row_of_what_it_does_not_keep() -> None:
    model = llama(2)
    whole, two, three = (memory(model, Workload(b=1, s=64, d=4, zero=zero, finetune="lora")) for zero in (0, 2, 3))
    assert bytes_of(two, "weights") == bytes_of(whole, "weights") == 2 * model.parameters
    assert bytes_of(three, "weights") == 2 * model.parameters / 4
    narrow = memory(model, Workload(b=1, s=64, precision="bf16"))
    assert narrow.components.keys() & {"weights", "master_weights"} == {"weights"}


@pytest.mark.parametrize(("finetune", "element"), [("lora", 2), ("qlora", 4)])
def test_rotary_tables_are_in_fp32_where_hidden_states_are(finetune: str, element: int) -> None:
    with_tables, without = (
        ModelShape("llama", (Stack("decoder", 256, (Block(core, MlpShape(1024), count=4),)),), vocab=1000)
        for core in (AttentionShape(8, 8, 32, rotary_dim=32), AttentionShape(8, 8, 32))
    )
    run = Workload(b=1, s=64, checkpointing="full", finetune=finetune)
    # Layers keep their inputs alone; what the rotation adds is cosines and sines of every position.
    found = [bytes_of(memory(model, run), "activations") for model in (with_tables, without)]
    assert found[0] - found[1] == 2 * 64 * 32 * element


def test_the_fullest_expert_s_rank_keeps_more_the_more_uneven_the_routing_is() -> None:
    even, uneven = (
        memory(mixture(), Workload(b=1, s=512, e=2, d=2, expert_load=load)).components["activations"]
        for load in (1.0, 2.0)
    )
    assert uneven > even


@pytest.mark.parametrize(("recipe", "bytes_each"), [("tensorwise", 1), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16)])
def test_matrices_quantised_for_training_are_kept_in_two_layouts_with_their_scales(
    recipe: str, bytes_each: float
) -> None:
    # A scale for 32 elements, or for 16 of 4 bits: of 4 layers' matrices, attention's 4 x 256 x 256 and the MLP's 3.
    matrices = 4 * (4 * 256 * 256 + 3 * 256 * 1024)
    plain, quantised = (
        memory(llama(), Workload(b=1, s=64, **said)).components["weights"]  # type: ignore[arg-type]
        for said in ({}, {"recipe": recipe})
    )
    assert quantised - plain == 2 * bytes_each * matrices


def test_a_bias_of_each_head_is_kept_for_backward_where_a_fused_core_takes_it() -> None:
    """Falcon without rotary positions: torch's fused core wants more than one key/value head on a device."""
    kept = []
    for kv_heads in (1, 2):
        core = AttentionShape(8, kv_heads, 32)
        model = ModelShape("falcon", (Stack("decoder", 256, (Block(core, MlpShape(1024, False)),)),), vocab=1000)
        kept.append(_keeps_masks(StageStep(model, Workload(b=1, s=512), implementation="huggingface")))
    assert kept == [False, True]


def test_activations_over_a_base_in_four_bits_are_in_fp32() -> None:
    """As PEFT prepares such a model; over a base of 16 bits they have the workload's type."""
    said = {"finetune": "lora", "lora_targets": "all-linear", "b": 1, "s": 64}
    steps = (StageStep(llama(), Workload(**said, base=base)) for base in ("nf4", "bf16"))  # type: ignore[arg-type]
    assert [step.forward(64).element for step in steps] == [4, 2]


def test_litgpt_quantises_the_head_too_and_leaves_the_rest_in_16_bits() -> None:
    """BitsandbytesPrecision replaces every nn.Linear; finetune/lora.py's StableEmbedding collects a gradient."""
    said = {"finetune": "qlora", "lora_targets": "all-linear", "b": 1, "s": 64}
    model = replace(llama(), model_type="litgpt")
    step = StageStep(model, Workload(**said))  # type: ignore[arg-type]
    assert step.forward(64).element == 2
    vocab = model.vocab * model.hidden
    vectors = sum(one.copies * one.elements for one in step.tensors if not one.is_matrix)
    layers = model.parameters - vocab * (1 + (not model.tied)) - vectors
    expected = BASES["nf4"] * (layers + vocab * (not model.tied)) + 4 * vocab + 2 * vectors
    assert held(step).states[0].bytes == pytest.approx(expected, abs=64)
    assert "nothing zeroes" in held(step).states[0].formula


def test_a_base_is_in_fp32_under_autocast_and_without_16_bits() -> None:
    for own, expected in (({"precision": "amp"}, 4), ({"dtype": "fp32"}, 4), ({}, 2), ({"base": "fp32"}, 4)):
        found = memory(llama(), Workload(b=1, s=64, finetune="lora", **own))  # type: ignore[arg-type]
        assert bytes_of(found, "weights") == expected * llama().parameters


def played(step: StageStep) -> tuple[int, int]:
    """The most bytes that are there while a step's tapes run one after the other, and what is left."""
    sizes = [size for _, events in tapes_of_step(step) for _, size in events]
    return max(accumulate(sizes)), sum(sizes)


@pytest.mark.parametrize(
    ("how", "asked"),
    [
        ({}, {}),
        ({"implementation": "megatron"}, {}),
        ({"implementation": "megatron"}, {"zero": 3, "d": 4}),
        ({}, {"checkpointing": "full:2"}),
        ({}, {"zero": 2, "d": 4}),
        ({"microbatches": 4}, {}),
        ({"microbatches": 4, "stage": "first"}, {"p": 2}),
        ({"microbatches": 4, "stage": "last"}, {"p": 2}),
        ({"microbatches": 4, "stage": "first", "implementation": "megatron"}, {"p": 2}),
    ],
)
def test_what_tapes_play_one_after_the_other_is_as_full_as_the_fullest_moment(
    how: dict[str, Any], asked: dict[str, Any]
) -> None:
    """Moments skip equal layers, the tapes that the allocator is given run each of them."""
    one = trained(Workload(b=2, s=512, **asked), precision=PRECISIONS["mixed"], **how)
    found = moments(one)
    new = 0 if one.gradients_stay else one.gradient_bytes(found[-1].gradients)
    there = 0 if one.gradients_stay or one.sharded else 1
    fullest = max(each.bytes + there * one.gradient_bytes(each.gradients) for each in found)
    most, left = played(one)
    assert most == fullest
    # Cosines and sines of 32 channels stay, in 16 bits, and gradients where nothing else holds them (norms' apart).
    assert left == pytest.approx(2 * 512 * 32 * 2 + there * new, rel=1e-3 * there)
    names = [where for where, _ in tapes_of_step(one)]
    layers, each = range(4 if one.workload.p == 1 else 2), range(one.in_flight)
    ends = ["tail"] * one.last, ["embedding"] * one.first
    backward = [own for number in each for own in (*ends[0], *((number, at) for at in reversed(layers)), *ends[1])]
    assert names == ["ends", *((number, at) for number in each for at in layers), *backward]


def test_what_is_saved_at_the_end_of_the_forward_is_there_at_the_loss_and_gone_at_the_update() -> None:
    end, loss, *_, update = moments(StageStep(llama(), Workload(b=1, s=64)))
    assert (end.logits, end.temporary, loss.temporary) == (0, 0, 0)
    assert end.saved == loss.saved
    assert loss.logits > 0
    assert update.bytes == 0
    assert update.gradients == ShardParameters(llama().parameters)
    # No rank of a pipeline's end has the other end's tables or tensors.
    plain = Block(AttentionShape(8, 8, 32), MlpShape(1024), dropout=0.1, count=4)
    bert = ModelShape("bert", (Stack("encoder", 256, (plain,), embedding_norm=True, positions=64),), vocab=1000)
    first, last = (StageStep(bert, Workload(b=1, s=64, p=2), stage=stage) for stage in ("first", "last"))  # type: ignore[arg-type]
    assert moments(first)[0].saved - moments(last)[0].saved == 64 * 256 * (2 + 1)


def test_an_embeddings_gradient_finds_those_of_all_others_or_the_buffers_of_all() -> None:
    for microbatches, missing in ((None, 1000 * 256), (2, 0)):
        one = trained(Workload(b=1, s=64), microbatches)
        (found,) = (each for each in moments(one) if each.name == "gradient of the embedding")
        assert found.gradients == ShardParameters(llama().parameters - missing)


def test_largest_sizes_are_found_whatever_grows() -> None:
    for limit in range(130):
        found = largest_size(lambda b: b * b, limit, most=11)
        assert found == (isqrt(limit) if limit < 121 else None)
        assert largest_size(lambda b: 7 * b + 3, limit, most=100, least=2) == (0 if limit < 17 else (limit - 3) // 7)


def test_a_straight_line_is_followed_at_once_and_no_size_is_tried_twice() -> None:
    tried: list[int] = []

    def needs(size: int, each: int) -> int:
        tried.append(size)
        return 10**9 + each * size

    most = 2**20 + 1
    assert largest_size(partial(needs, each=7), 10**9 + 7 * 12345, most) == 12345
    # Both ends, where the line meets the limit, halfway to what does not fit, and the next size.
    assert tried == [1, most, 12345, (12345 + most) // 2, 12346]
    # So near the upper end that the share rounds to all: the guess stays below it.
    tried.clear()
    assert largest_size(partial(needs, each=2**50), 10**9 + 2**50 * most - 1, most) == most - 1
    assert tried == [1, most, most - 1]


@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize("implementation", ["huggingface", "megatron"])
def test_every_moment_is_of_tensors_of_whole_rows(implementation: Any, checkpointing: Any, attention: Any) -> None:
    """Each has a row a token, or a column of 16 bits an element of the vocabulary."""
    asked = Workload(b=1, s=64, checkpointing=checkpointing, attention=attention)
    for moment in moments(StageStep(llama(), asked, implementation=implementation)):
        assert (moment.saved % 64, moment.logits % 64, moment.temporary % 64) == (0, 0, 0), moment.name


def test_divisors_go_up_to_the_largest_that_is_asked_for() -> None:
    assert (divisors(12, 12), divisors(12, 6), divisors(12, 5)) == ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6], [1, 2, 3, 4])
    assert divisors(0, 3) == [1, 2, 3]


def test_the_smallest_degrees_are_divisors_of_heads_and_layers_that_fit() -> None:
    model, run = llama(6), Workload(b=1, s=64)
    for smallest, key, degrees in ((smallest_tp, "t", (1, 2, 4, 8)), (smallest_pp, "p", (1, 2, 3, 6))):
        for degree in degrees:
            needed = memory(model, replace(run, **{key: degree}), context_bytes=0).total_bytes
            assert smallest(model, run, needed, context_bytes=0) == degree
        least = memory(model, replace(run, **{key: degrees[-1]}), context_bytes=0).total_bytes
        assert smallest(model, run, least - 1, context_bytes=0) is None
    many = 64 * 65
    block = Block(AttentionShape(many, many, 1), MlpShape(many))
    heads = ModelShape("llama", (Stack("decoder", many, (block,)),), vocab=many)
    # No more ranks than 64, whatever divides.
    most = memory(heads, replace(run, t=64), context_bytes=0).total_bytes
    assert (smallest_tp(heads, run, most, context_bytes=0), smallest_tp(heads, run, most - 1, context_bytes=0)) == (
        64,
        None,
    )


def test_a_saving_is_the_workload_with_its_change() -> None:
    model, run = llama(), Workload(b=2, s=64, d=2)
    limit = memory(model, replace(run, zero=3), context_bytes=0).total_bytes
    found = {one.name: one for one in savings(model, run, limit, context_bytes=0)}
    assert found.keys() == {name for name, _ in possible_savings(run)}
    for one in found.values():
        changed = replace(run, **one.change)
        needed = memory(model, changed, context_bytes=0).total_bytes
        assert (one.total_bytes, one.fits) == (needed, needed <= limit)
        assert one.largest_microbatch == largest_microbatch(model, changed, limit, context_bytes=0)
    assert found["ZeRO 3 / FSDP"].fits
    on_device = [name for name, _ in possible_savings(run, host=False)]
    assert on_device == [name for name in found if "host" not in name]
    assert len(on_device) < len(found)
    # AdamW is the optimizer where none is said.
    assert [*possible_savings(replace(run, optimizer="adamw"))] == [*possible_savings(run)]


def test_a_step_may_fit_that_takes_all_there_is() -> None:
    parts = (Component("weights", 100, ""), Component("framework", 20, ""), Component("allocator", 3, ""))
    served = Memory(parts, "last", 1, "bf16", "adamw", "huggingface", 123)
    assert (served.total_bytes, served.allocated_bytes) == (123, 100)
    assert served.may_fit
    assert not served.fits
    assert not replace(served, device_bytes=122).may_fit
    trained = replace(served, moments=(AtMoment("x", 123),))
    assert [replace(trained, device_bytes=size).may_fit for size in (113, 114)] == [False, True]


@pytest.mark.parametrize(("asked", "devices"), [({"t": 2}, 2), ({"p": 2}, 2), ({"cp": 2}, 2), ({"d": 2}, 2), ({}, 1)])
def test_a_process_group_takes_a_gib_on_each_of_its_ranks(asked: dict[str, int], devices: int) -> None:
    found = memory(llama(), Workload(b=1, s=64, **asked))  # type: ignore[arg-type]
    (framework,) = (part for part in found.parts if part.name == "framework")
    assert framework.bytes == devices * GIB
    assert ("torch.distributed" in framework.formula) == (devices > 1)
    assert found.stage == ("first" if "p" in asked else "last")


def test_parameters_alone_say_what_zero_divides() -> None:
    parameters, found = 2**20, []
    for zero in range(4):
        found.append(memory_of_parameters(parameters, Workload(b=1, s=1, d=4, zero=zero)) - GIB)
    # bf16-mixed: 4 bytes of master weights and 8 of states, 4 of gradients, 2 of weights.
    assert [each / parameters for each in found] == [18, 12 / 4 + 6, 12 / 4 + 4 / 4 + 2, 18 / 4]


def test_an_encoder_has_no_cache_and_says_so() -> None:
    core = AttentionShape(8, 8, 32, causal=False)
    encoder = ModelShape("bert", (Stack("encoder", 256, (Block(core, MlpShape(1024), count=2),)),), vocab=1000)
    for model, said in ((encoder, "no causal attention"), (llama(2), "2 layers x b 1 x")):
        parts = memory(model, Workload(b=1, s=64, phase="infer")).parts
        (cache,) = (part for part in parts if part.name == "kv_cache")
        assert cache.formula.startswith(said)


def formulas(model: ModelShape, asked: dict[str, Any], **options: Any) -> dict[str, str]:
    return {part.name: part.formula for part in memory(model, Workload(**({"b": 1, "s": 64} | asked)), **options).parts}


def test_formulas_say_what_was_counted() -> None:
    plain = formulas(llama(), {})
    assert plain["communication"] == "no buffers for exchanges"
    assert plain["activations"] == "4 layers x b 1 x s 64, auto attention: what autograd saves"
    assert plain["optimizer_states"].split("bytes")[0].endswith(" parameters x 8 ")
    many = formulas(llama(), {"p": 2, "checkpointing": "full"}, microbatches=4)["activations"]
    assert many.startswith("2 layers")
    assert many.endswith("full checkpointing: what autograd saves x 2 microbatches in flight")
    assert "microbatches in flight" not in plain["activations"]
    count = llama().parameters
    gradients = formulas(llama(), {"d": 4, "zero": 2}, microbatches=2)["gradients"]
    assert gradients.startswith(f"{count:,} x 4 bytes / 4 (stay: added up over 2 microbatches)")
    cut = formulas(mixture(), {"d": 4, "e": 4, "zero": 1})["optimizer_states"]
    assert " / 4 (experts: / 1)" in cut
    assert "experts" not in formulas(mixture(), {"d": 4, "zero": 1})["optimizer_states"]
    for own, kind in (({"implementation": "megatron"}, "in-place"), ({}, "fp32"), ({"loss": "fused"}, "fused")):
        text = formulas(llama(vocab=100_000), {"s": 512}, **own)["logits_and_loss"]
        assert text.startswith("b x s x v = 51,200,000 x ")
        assert text.endswith(f"bytes (cross-entropy {kind})")
    for base, said in (("int8", True), ("nf4", False)):
        weights = formulas(llama(), {"finetune": "qlora", "base": base})["weights"]
        assert ("LLM.int8()" in weights) == said


def test_one_rank_has_no_buckets_and_the_largest_layer_is_gathered_twice() -> None:
    alone = formulas(llama(), {"offload": 1.0}, implementation="huggingface")
    assert alone["communication"] == "no buffers for exchanges"
    core = AttentionShape(8, 8, 32)
    kinds = Block(core, MlpShape(512), count=3), Block(core, MlpShape(4096), count=1)
    model = ModelShape("llama", (Stack("decoder", 256, kinds),), vocab=1000)
    gathered = bytes_of(memory(model, Workload(b=1, s=64, d=4, zero=3)), "communication")
    largest = 4 * 256 * 256 + 3 * 256 * 4096 + 2 * 256
    assert gathered == 2 * largest * 2
    # A frozen base is gathered as it is kept: 4 bits and their constants (FSDP's QLoRA; its time is priced so, too).
    tuned = bytes_of(memory(model, Workload(b=1, s=64, d=4, zero=3, finetune="qlora")), "communication")
    assert tuned == round(2 * largest * BASES["nf4"])


def test_weights_that_zero_3_shards_have_new_gradients_in_megatrons_kernels_too() -> None:
    """Else the product adds its gradient to the buffer itself, and there is no tensor of it."""

    def backward(zero: int) -> int:
        one = trained(Workload(b=1, s=64, d=4, zero=zero), implementation="megatron")
        return max(each.bytes for each in moments(one) if each.name.startswith("backward"))

    assert backward(0) == backward(1) == backward(2) < backward(3)


def test_what_runs_fused_holds_the_scores_once_more_than_their_own_16_bits() -> None:
    """Megatron's softmax reads and writes 16 bits; transformers' eager one goes through fp32."""
    run = Workload(b=1, s=512, phase="infer", attention="eager")
    fused, eager = (
        memory(llama(), run, implementation=own).components["activations"]
        for own in ("megatron", "huggingface")  # type: ignore[arg-type]
    )
    scores, hidden = 8 * 512**2 * 2, 512 * 256 * 2
    assert fused == 2 * scores + 2 * hidden
    assert eager > 5 * scores


@pytest.mark.parametrize(
    ("asked", "stored"),
    [({}, 2), ({"finetune": "qlora", "base": "nf4"}, 2), ({"recipe": "tensorwise"}, 1), ({"recipe": "mxfp8"}, 33 / 32)],
)
def test_inputs_of_products_are_saved_as_they_are_unless_they_are_quantised(
    asked: dict[str, Any], stored: float
) -> None:
    assert StageStep(llama(), Workload(b=1, s=64, **asked)).forward(64).stored == stored
