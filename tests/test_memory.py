"""Memory by component: the literature's equations and the documents' own numbers, derived in view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from public_memory import Run, runs

from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import (
    CONTEXT_BYTES,
    divisors,
    largest_microbatch,
    largest_size,
    memory,
    memory_of_parameters,
    possible_savings,
    savings,
    smallest_pp,
    smallest_tp,
    weight_bytes,
)
from shapes.memory.moments import Moment, StageStep, moments
from shapes.memory.tape import Tape, peak_bytes
from shapes.model import (
    PRECISIONS,
    AttentionShape,
    Block,
    MlaShape,
    MlpShape,
    ModelShape,
    MoeShape,
    Stack,
    optimizer_state_bytes,
)
from shapes.model.stages import Stage, parameter_tensors
from shapes.operators import operators
from shapes.workload import Workload, check_batch
from sizer.readers import read_config

GIB = 2**30


def gpt(hidden: int, layers: int, heads: int, *, vocab: int = 51200, dropout: float = 0.0) -> ModelShape:
    attention = AttentionShape(heads, heads, hidden // heads, fused_qkv=True, dropout=dropout)
    block = Block(attention, MlpShape(4 * hidden, gated=False), norm_weights=2, count=layers, dropout=dropout)
    return ModelShape("gpt2", (Stack("decoder", hidden, (block,), final_norm=2),), vocab=vocab, tied=True)


def llama_8b() -> ModelShape:
    block = Block(AttentionShape(32, 8, 128, rotary_dim=128), MlpShape(14336), count=32)
    return ModelShape("llama", (Stack("decoder", 4096, (block,)),), vocab=128256)


def mixtral() -> ModelShape:
    block = Block(AttentionShape(32, 8, 128, rotary_dim=128), MoeShape(8, 2, 14336), count=32)
    return ModelShape("mixtral", (Stack("decoder", 4096, (block,)),), vocab=32000)


def activation_peak(model: ModelShape, workload: Workload, in_flight: int = 1, stage: Stage = "last") -> Moment:
    """Megatron's fullest moment next to weights, gradients and states, whose gradients stay."""
    step = StageStep(model, workload, stage, in_flight, implementation="megatron")
    return max(moments(replace(step, gradients_stay=True)), key=lambda moment: moment.bytes)


def layer_bytes(model: ModelShape, workload: Workload, *, selective: bool = False) -> int:
    """What Megatron saves of one layer, without the norms' means and deviations, which the paper leaves out."""
    workload = replace(workload, checkpointing="selective" if selective else "none")
    rows = workload.tokens
    whole = rows // workload.t if workload.sequence_parallel else rows
    run = StageStep(model, workload, implementation="megatron").forward(workload.s)
    tape = run.layer_tape(model.main.blocks[0], model.hidden)
    return sum(tape.saved(selective=selective).values()) - 2 * (2 * 2 * whole)


# Korthikanti et al. 2205.05198, table 2: bytes of activations a layer, and equations 1, 2 and 4.
@pytest.mark.parametrize(("h", "a", "s", "b"), [(6144, 64, 2048, 4), (12288, 96, 2048, 1), (2048, 16, 1024, 2)])
@pytest.mark.parametrize("t", [1, 8])
def test_activations_of_a_layer_are_korthikantis_equations(h: int, a: int, s: int, b: int, t: int) -> None:
    model, sbh, square = gpt(h, 1, a, dropout=0.1), s * b * h, 5 * a * s / h
    plain = Workload(b=b, s=s, t=t, attention="eager")
    assert layer_bytes(model, plain) == pytest.approx(sbh * (10 + 24 / t + square / t), rel=1e-9)
    sequence = replace(plain, sequence_parallel=True)
    assert layer_bytes(model, sequence) == pytest.approx(sbh / t * (34 + square), rel=1e-9)
    assert layer_bytes(model, plain, selective=True) == pytest.approx(sbh * (10 + 24 / t), rel=1e-9)
    assert layer_bytes(model, sequence, selective=True) == pytest.approx(sbh / t * 34, rel=1e-9)


def test_full_checkpointing_keeps_two_bytes_of_hidden_state_a_layer() -> None:
    model, w = gpt(2048, 24, 16), Workload(b=2, s=2048, checkpointing="full")
    assert activation_peak(model, w).saved == 24 * 2 * w.tokens * 2048


def test_the_first_pipeline_stage_holds_a_microbatch_for_every_stage() -> None:
    # Korthikanti, section 4.2.2: L/p layers x p microbatches in flight is L layers' worth.
    model, w = gpt(2048, 24, 16), Workload(b=1, s=1024)
    whole = activation_peak(model, w).saved
    stage = activation_peak(model, replace(w, p=4), 4, "first").saved
    assert stage == whole


@pytest.mark.parametrize(("microbatches", "in_flight"), [(1, 1), (2, 2), (4, 4), (32, 4), (None, 4)])
def test_no_more_microbatches_are_in_flight_than_a_step_has(microbatches: int | None, in_flight: int) -> None:
    # Without a head the first stage, which has the embedding, is the fullest.
    model, w = replace(gpt(2048, 24, 16), head=False), Workload(b=8, s=2048, p=4)
    found = memory(model, w, implementation="megatron", microbatches=microbatches)
    assert found.stage == "first"
    saved = activation_peak(model, w, in_flight, "first").saved
    assert found.components["activations"] == saved
    assert saved == pytest.approx(in_flight * activation_peak(model, w, 1, "first").saved, rel=1e-3)


def test_the_smallest_pipeline_degree_divides_the_layers_and_fits() -> None:
    # 6 stages of 4 layers fit where 4 of 6 do not; 5, of uneven stages, is passed over.
    model, w = gpt(2048, 24, 16), Workload(b=1, s=1024)
    used = {p: memory(model, replace(w, p=p), context_bytes=0).total_bytes for p in range(1, 25)}
    assert used[4] > used[5]
    for limit in (used[5], used[6], used[1], used[24] - 1):
        fitting = [p for p in range(1, 25) if 24 % p == 0 and used[p] <= limit]
        assert smallest_pp(model, w, limit, context_bytes=0) == (fitting[0] if fitting else None)


def test_mixed_precision_adamw_takes_18_bytes_a_parameter_or_16_with_16_bit_gradients() -> None:
    model = llama_8b()
    for precision, each in (("mixed", 18), ("mixed-16", 16), ("amp", 18), ("fp32", 16), ("bf16", 8)):
        parts = memory(model, Workload(b=1, s=128, precision=precision), microbatches=2).components
        names = ("weights", "master_weights", "gradients", "optimizer_states")
        assert sum(parts.get(name, 0) for name in names) == each * model.parameters


def test_gradients_are_there_at_the_loss_only_where_something_keeps_them() -> None:
    # One microbatch, zero_grad(set_to_none=True): none before the backward, where the logits of 2 x 4096 tokens are.
    model, w = llama_8b(), Workload(b=2)
    alone = memory(model, w)
    assert (alone.moment, alone.components["gradients"]) == ("at the loss", 0)
    assert alone.gradients is not None
    assert "set_to_none" in alone.gradients.why
    kept = memory(model, w, microbatches=2)
    assert kept.components["gradients"] == 4 * model.parameters
    assert kept.total_bytes - alone.total_bytes == 4 * model.parameters
    assert memory(model, replace(w, global_batch=4)).total_bytes == kept.total_bytes
    assert memory(model, w, implementation="megatron").components["gradients"] == 4 * model.parameters
    # The moments in order: gradients grow in the backward, and all of them are there for the optimizer.
    names = [name for name, _ in alone.moments]
    assert names[0] == "end of the forward"
    assert names[-1] == "optimizer's step"
    assert max(size for _, size in alone.moments) == alone.total_bytes


def test_a_fused_loss_takes_4_bytes_a_logit_where_transformers_takes_12() -> None:
    # b 2 x s 4096 x v 128256 logits: in 16 bits with their gradient, or an fp32 softmax with two fp32 gradients, and
    # only the last norm's tensors.
    model, w, n = llama_8b(), Workload(b=2), 2 * 4096 * 128256
    taken = {loss: memory(model, w, loss=loss).components["logits_and_loss"] for loss in ("fused", "fp32")}  # type: ignore[arg-type]
    hidden = 2 * 4096 * 4096 * 2
    assert 0 < taken["fp32"] - 12 * n < 6 * hidden
    assert 0 < taken["fused"] - 4 * n < 6 * hidden + 2 * 4096 * 128256 * 4  # and the head's gradient, which stays
    with pytest.raises(InputError, match="loss = 'liger': expected one of fp32, in-place, fused"):
        memory(model, w, loss="liger")  # type: ignore[arg-type]


def test_ddp_keeps_its_buckets_next_to_the_gradients() -> None:
    model, w = llama_8b(), Workload(b=2, d=8)
    one, two = memory(model, w), memory(model, w, microbatches=2)
    assert one.components["communication"] == two.components["communication"] == 4 * model.parameters  # the buckets
    assert one.components["gradients"] == 0  # at the loss no gradient is outside them
    assert two.components["gradients"] == 4 * model.parameters


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [("adamw", 8), ("adamw-bf16", 4), ("sgd", 0), ("sgd-momentum", 4), ("lion", 4), ("adamw-master", 12)],
)
def test_optimizer_states_in_bytes_a_parameter(optimizer: str, each: int) -> None:
    model = llama_8b()
    tensors = parameter_tensors(model, Workload())
    assert optimizer_state_bytes(tensors, optimizer, PRECISIONS["mixed"]) == each * model.parameters


def test_a_3b_model_takes_24_12_and_6_gb_of_states() -> None:
    # 3 x 8, 3 x 4 (Adafactor "a little more") and 3 x 2 GB; the guide rounds the constants of the last two away.
    block = Block(AttentionShape(32, 32, 96), MlpShape(12288, gated=False), norm_weights=2, count=25)
    model = ModelShape("gpt2", (Stack("decoder", 3072, (block,)),), vocab=50304, tied=True)
    tensors, mixed = parameter_tensors(model, Workload()), PRECISIONS["mixed"]
    billions = model.parameters / 1e9
    assert billions == pytest.approx(3, rel=0.03)
    for optimizer, gigabytes in (("adamw", 8), ("adafactor-momentum", 4), ("adamw-8bit", 2)):
        states = optimizer_state_bytes(tensors, optimizer, mixed) / 1e9
        assert states == pytest.approx(gigabytes * billions, rel=0.02)
        assert states >= gigabytes * billions


def states_of(model: ModelShape, optimizer: str) -> int:
    return optimizer_state_bytes(parameter_tensors(model, Workload()), optimizer, PRECISIONS["mixed"])


def test_adafactor_keeps_a_row_and_a_column_of_each_matrix_and_whole_vectors() -> None:
    model = gpt(64, 2, 4, vocab=1000)
    # Per layer: QKV 192 x 64, out 64 x 64, up 256 x 64, down 64 x 256, two norms of 2 x 64 (no biases here).
    layer = (192 + 64) + (64 + 64) + (256 + 64) + (64 + 256) + 4 * 64
    expected = 4 * (2 * layer + (1000 + 64) + 2 * 64)  # embedding and final norm
    assert states_of(model, "adafactor") == expected


def test_8_bit_adamw_has_a_constant_a_block_and_leaves_small_tensors_in_fp32() -> None:
    model = gpt(64, 1, 4, vocab=1000)
    # 192x64, 64x64, 256x64, 64x256 and 1000x64 in blocks of 256 with two fp32 constants each; norms (64) in fp32.
    matrices = [192 * 64, 64 * 64, 256 * 64, 64 * 256, 1000 * 64]
    expected = sum(2 * n + 2 * 4 * (n // 256) for n in matrices) + 8 * (6 * 64)
    assert states_of(model, "adamw-8bit") == expected


def test_muon_keeps_one_moment_of_hidden_matrices_and_adamw_two_of_the_rest() -> None:
    model = gpt(64, 1, 4, vocab=1000)
    hidden = 12 * 64 * 64
    rest = model.parameters - hidden
    assert states_of(model, "muon") == 4 * hidden + 8 * rest


def test_llama_3_8b_at_32768_tokens_has_the_books_hidden_state_checkpoints_and_logits() -> None:
    model, w = llama_8b(), Workload(b=1, s=32768, checkpointing="full")
    hidden = 32768 * 4096 * 2
    assert hidden == 0.25 * GIB
    rotary = 2 * 32768 * 128 * 2
    parts = memory(model, w).components
    assert parts["activations"] == 32 * hidden + rotary  # 8 GiB of checkpoints
    fp32_logits = 32768 * 128256 * 4
    assert fp32_logits / GIB == pytest.approx(15.7, abs=0.05)
    # Softmax, its gradient and the loss's gradient are alive together: three of them, next to the last norm's tensors.
    tail = parts["logits_and_loss"] - 3 * fp32_logits
    assert 0 < tail < 5 * hidden
    without = memory(model, replace(w, checkpointing="none")).components["activations"] / GIB
    assert 170 < without < 224  # the book's 224 is 28 hidden states a layer made, not all of them kept


def test_eager_attention_saves_about_half_as_much_again_at_512_tokens() -> None:
    flash = memory(llama_8b(), Workload(b=1, s=512), microbatches=2).components["activations"]
    eager = memory(llama_8b(), Workload(b=1, s=512, attention="eager"), microbatches=2).components["activations"]
    # Scores' softmax in fp32 and its 16-bit copy: 6 a s^2 b, next to about 24.5 hidden states of 2 s b h.
    assert eager - flash == pytest.approx(32 * (6 * 32 * 512**2 + 2 * 6144 * 512), rel=0.02)
    assert 1.4 < eager / flash < 1.6


@pytest.mark.parametrize("model", [llama_8b(), mixtral(), gpt(768, 12, 12, vocab=50257)])
def test_parameter_tensors_add_up_to_the_models_parameters(model: ModelShape) -> None:
    assert sum(x.copies * x.elements for x in parameter_tensors(model, Workload())) == model.parameters


def test_pipeline_stages_hold_the_whole_model_between_them() -> None:
    model = llama_8b()
    w = Workload(p=2)
    both = sum(x.copies * x.elements for stage in ("first", "last") for x in parameter_tensors(model, w, stage))  # type: ignore[arg-type]
    assert both == model.parameters


@pytest.mark.parametrize(
    ("zero", "divided"),
    [
        (0, ()),
        (1, ("master_weights", "optimizer_states")),
        (2, ("master_weights", "optimizer_states", "gradients")),
        (3, ("master_weights", "optimizer_states", "gradients", "weights")),
    ],
)
def test_zero_divides_states_then_gradients_then_weights(zero: int, divided: tuple[str, ...]) -> None:
    whole = memory(llama_8b(), Workload(d=8), microbatches=2).components
    parts = memory(llama_8b(), Workload(d=8, zero=zero), microbatches=2).components
    for name in ("weights", "master_weights", "optimizer_states", "gradients"):
        assert parts[name] == whole[name] // (8 if name in divided else 1)


def test_inference_weights_by_type_and_the_cache_by_kind_of_attention() -> None:
    model, w = llama_8b(), Workload(b=2, s=1000, phase="infer")
    parts = memory(model, w, weight_dtype="bf16").components
    assert parts["weights"] == 2 * model.parameters
    stored = {dtype: memory(model, w, weight_dtype=dtype).components["weights"] for dtype in ("mixed", "fp32", "fp8")}
    assert stored["mixed"] == 6 * model.parameters == 1.5 * stored["fp32"]
    assert stored["fp8"] < parts["weights"]
    block_fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    said = {"model_type": "llama", **sizes, "vocab_size": 512, "quantization_config": block_fp8}
    quantised = read_config(said).model
    held = memory(quantised, w).components["weights"]
    assert held == sum(tensor.stored_bytes(2) for tensor in quantised.tensors()) < 2 * quantised.parameters
    assert memory(quantised, w, weight_dtype="bf16").components["weights"] == 2 * quantised.parameters
    assert parts["kv_cache"] == 32 * 2 * 1000 * (2 * 8 * 128) * 2  # layers x b x s x keys and values x bytes
    block = replace(model.main.blocks[0], attention=AttentionShape(32, 8, 128, window=256))
    windowed = replace(model, stacks=(replace(model.main, blocks=(block,)),))
    assert memory(windowed, w).components["kv_cache"] == parts["kv_cache"] * 256 // 1000
    latent = replace(block, attention=MlaShape(32, 512, 128, 64, 128))
    mla = replace(model, stacks=(replace(model.main, blocks=(latent,)),))
    assert memory(mla, w).components["kv_cache"] == 32 * 2 * 1000 * (512 + 64) * 2


def test_4_bit_weights_are_half_a_byte_and_a_scale_for_128_in_matrices_only() -> None:
    model = llama_8b()
    tensors = parameter_tensors(model, Workload())
    matrices = sum(x.copies * x.elements for x in tensors if x.is_matrix and x.role == "block")
    rest = model.parameters - matrices
    assert weight_bytes(tensors, "int4") == matrices // 2 + 2 * (matrices // 128) + 2 * rest
    assert weight_bytes(tensors, "fp8") == weight_bytes(tensors, "int8") == matrices + 2 * rest
    assert weight_bytes(tensors, "fp32") == 4 * model.parameters


@pytest.mark.slow
@settings(max_examples=60)
@given(
    h=st.sampled_from([256, 512]),
    layers=st.integers(1, 6),
    vocab=st.integers(100, 5000),
    s=st.integers(8, 512),
    attention=st.sampled_from(["flash", "eager"]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
    room=st.floats(1.001, 40),
)
def test_the_largest_microbatch_fits_and_one_more_does_not(
    h: int, layers: int, vocab: int, s: int, attention: str, checkpointing: str, room: float
) -> None:
    model = gpt(h, layers, 8, vocab=vocab)
    w = Workload(b=1, s=s, attention=attention, checkpointing=checkpointing)  # type: ignore[arg-type]
    limit = int(memory(model, w, context_bytes=0).total_bytes * room)
    b = largest_microbatch(model, w, limit, context_bytes=0)
    assert memory(model, replace(w, b=b), context_bytes=0).total_bytes <= limit
    assert memory(model, replace(w, b=b + 1), context_bytes=0).total_bytes > limit


@given(
    fixed=st.integers(0, 1000),
    each=st.integers(1, 50),
    bend=st.integers(0, 3),
    limit=st.integers(0, 9000),
    most=st.integers(2, 90),
)
def test_the_largest_size_is_the_one_that_trying_all_finds(
    fixed: int, each: int, bend: int, limit: int, most: int
) -> None:
    def needs(size: int) -> int:
        return fixed + each * size + bend * size * size

    fitting = [size for size in range(1, most + 1) if needs(size) <= limit]
    expected = None if len(fitting) == most else max(fitting, default=0)
    assert largest_size(needs, limit, most) == expected


@pytest.mark.parametrize(("fixed", "each", "bend", "most"), [(10**9, 7, 0, 5), (0, 1, 0, 5), (5, 3, 1, 13)])
def test_a_largest_size_is_found_in_few_guesses(fixed: int, each: int, bend: int, most: int) -> None:
    asked = []

    def needs(size: int) -> int:
        asked.append(size)
        return fixed + each * size + bend * size * size

    limit = needs(700_001) - 1
    asked.clear()
    assert largest_size(needs, limit) == 700_000
    assert len(asked) <= most  # a straight line: its ends, the guess, a half, the guess again


def test_a_largest_microbatch_is_of_the_memory_that_the_options_say() -> None:
    model, limit = gpt(256, 2, 8, vocab=5000), 2 * 2**30
    alone, reserved = (largest_microbatch(model, Workload(s=128), limit, context_bytes=of) for of in (0, 2**30))
    assert 0 < reserved < 0.6 * alone


def test_what_leaves_eight_percent_fits_and_up_to_as_much_over_may_fit() -> None:
    found = memory(llama_8b(), Workload())
    sizes = [int(found.total_bytes * share) for share in (1.09, 1.08, 0.93, 0.91)]
    seen = [replace(found, device_bytes=size) for size in sizes]
    assert [(one.fits, one.may_fit) for one in seen] == [(True, True), (False, True), (False, True), (False, False)]


def test_every_stage_of_zero_that_is_left_is_a_saving_where_ranks_share() -> None:
    for zero, left in ((0, [1, 2, 3]), (2, [3]), (3, [])):
        found = [change["zero"] for _, change in possible_savings(Workload(d=8, zero=zero)) if "zero" in change]
        assert found == left
    assert not any("zero" in change for _, change in possible_savings(Workload()))


@pytest.mark.parametrize(
    ("now", "more"), [("none", ["selective", "full"]), ("selective", ["full"]), ("layernorm", ["full"]), ("full", [])]
)
def test_more_recomputation_than_there_is_is_offered(now: str, more: list[str]) -> None:
    found = [change for _, change in possible_savings(Workload(checkpointing=now))]
    assert [change["checkpointing"] for change in found if "checkpointing" in change] == more


def test_nothing_fits_where_not_one_sequence_does() -> None:
    assert largest_microbatch(llama_8b(), Workload(), load_device("t4").memory.bytes) == 0


def test_the_smallest_tensor_parallel_degree_divides_the_heads_and_fits() -> None:
    w = Workload(b=1, s=2048)
    t = smallest_tp(llama_8b(), w, load_device("h100-sxm").memory.bytes)
    assert t is not None
    limit = load_device("h100-sxm").memory.bytes
    fitting = [memory(llama_8b(), replace(w, t=other)).total_bytes <= limit for other in (1, 2, 4, 8) if other <= t]
    assert fitting == [*[False] * (len(fitting) - 1), True]


def test_every_saving_takes_less_than_doing_without_it() -> None:
    w = Workload(b=2, s=2048, d=8, t=2, attention="eager")
    plain = memory(llama_8b(), w).total_bytes
    found = [*savings(llama_8b(), w, load_device("h100-sxm").memory.bytes)]
    assert {saved.name for saved in found} >= {
        "fused attention",
        "ZeRO 1",
        "ZeRO 3 / FSDP",
        "full checkpointing",
        "saved tensors on the host",
        "optimizer on the host",
    }
    assert all(saved.total_bytes < plain for saved in found)


@pytest.mark.parametrize(
    ("optimizer", "offered"), [(None, True), ("adamw", True), ("muon", False), ("adafactor", False)]
)
def test_lighter_optimizers_are_offered_in_place_of_adamw_alone(optimizer: Any, offered: bool) -> None:
    found = savings(llama_8b(), Workload(optimizer=optimizer), load_device("h100-sxm").memory.bytes)
    assert ({"adamw-8bit", "adafactor"} <= {saved.name for saved in found}) is offered


@pytest.mark.parametrize(
    ("workload", "offered"), [({"t": 2}, True), ({"t": 1}, False), ({"t": 2, "sequence_parallel": True}, False)]
)
def test_sequence_parallelism_is_offered_where_a_tensor_split_lacks_it(workload: dict[str, Any], offered: bool) -> None:
    found = savings(llama_8b(), Workload(**workload), load_device("h100-sxm").memory.bytes)
    assert ("sequence parallelism" in {saved.name for saved in found}) is offered


def test_layers_beyond_those_checkpointed_save_all_that_they_would_without() -> None:
    def activations(checkpointing: str) -> int:
        model = gpt(512, 8, 8, vocab=64)
        return memory(model, Workload(b=4, s=1024, checkpointing=checkpointing)).components["activations"]

    full, six, five, four, none = (activations(how) for how in ("full", "full:6", "full:5", "full:4", "none"))
    layer = five - six
    assert four - five == layer > (none - full) / 10
    assert full < six < none - layer


def test_a_model_of_which_only_parameters_are_known_has_their_bytes_and_the_contexts() -> None:
    square = 2**30  # elements: a matrix of 32,768 a side
    # bf16 weights and gradients, fp32 master copy and moments: 18 bytes a parameter; ZeRO 1 divides twelve of them.
    mixed = Workload(precision="mixed")
    assert memory_of_parameters(square, mixed) == CONTEXT_BYTES + 18 * square
    assert memory_of_parameters(square, replace(mixed, d=4, zero=1)) == CONTEXT_BYTES + (6 + 3) * square
    assert memory_of_parameters(square, replace(mixed, d=4, zero=3)) == CONTEXT_BYTES + 18 * square // 4
    assert memory_of_parameters(4 * square, replace(mixed, t=2, p=2)) == CONTEXT_BYTES + 18 * square
    assert memory_of_parameters(4 * square, replace(mixed, d=4, e=4)) == CONTEXT_BYTES + 18 * square
    assert memory_of_parameters(square, Workload(phase="infer")) == CONTEXT_BYTES + 2 * square


def test_inference_holds_the_activations_of_the_layer_that_needs_most() -> None:
    narrow, wide = (Block(AttentionShape(8, 8, 64), MlpShape(width), count=2) for width in (512, 8192))

    def held(*blocks: Block) -> int:
        model = ModelShape("llama", (Stack("decoder", 512, blocks),), vocab=64)
        return memory(model, Workload(b=2, s=256, phase="infer")).components["activations"]

    assert held(narrow) < held(wide) == held(narrow, wide) == held(wide, narrow)


def test_a_model_without_a_head_has_no_logits_and_a_split_head_a_shard_of_them() -> None:
    bare = replace(llama_8b(), head=False)
    served = Workload(b=2, s=64, phase="infer")
    assert not memory(bare, served).components.get("logits")
    assert memory(llama_8b(), replace(served, t=4)).components["logits"] == 2 * 128256 // 4 * (2 + 4)


def test_unknown_names_list_the_known_ones() -> None:
    for options, known in (({"optimizer": "adam"}, "adamw, adamw-bf16"), ({"precision": "fp4"}, "fp32, mixed")):
        with pytest.raises(InputError, match=known):
            memory(llama_8b(), Workload(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "t", "p", "d", "global_batch"),
    [(8, 1, 1, 8, 32), (8, 2, 2, 2, 8), (8, 1, 1, 8, 128), (None, 2, 1, 3, None)],
)
def test_batches_and_devices_that_agree_are_taken(
    gpus: int | None, t: int, p: int, d: int, global_batch: int | None
) -> None:
    check_batch(Workload(b=4, t=t, p=p, d=d, gpus=gpus, global_batch=global_batch))


def test_batches_and_devices_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="gpus = 9: expected a multiple of TP x PP = 2 x 2 = 4"):
        check_batch(Workload(gpus=9, t=2, p=2))
    with pytest.raises(InputError, match="global_batch = 100: expected a multiple of MBS x DP = 4 x 8 = 32"):
        check_batch(Workload(d=8, b=4, global_batch=100))
    with pytest.raises(InputError, match="d = 3: expected GPUs"):
        check_batch(Workload(gpus=8, t=2, cp=2, d=3))


def test_a_saved_view_keeps_its_whole_storage_and_a_shared_gradient_is_counted_once() -> None:
    tape = Tape()
    x = tape.tensor(100)
    y = tape.op("twice", (x,), 100)
    half = tape.view(y, 50)
    z = tape.op("square", (half,), 50, (half,))
    tape.op("sum", (z, z), 50, shares_gradient=True)
    assert sum(tape.saved().values()) == 100
    # Backward: seed 50 next to 100 saved; sum hands the seed on; square makes 50 more (200 together).
    assert peak_bytes(tape.backward(50), 100) == 200


def test_the_allocators_component_is_a_device_s() -> None:
    model, w = llama_8b(), Workload(b=1, s=128)
    assert "allocator" not in memory(model, w, context_bytes=0).components
    assert memory(model, w).components["allocator"] == 11 * 2**20


@pytest.mark.parametrize("run", runs(), ids=lambda run: f"{run.model}, {run.split}")
def test_published_peaks_of_memory_are_as_near_as_their_source_allows(run: Run) -> None:
    peak = run.peak()
    assert abs(peak.off) <= peak.within


def test_a_fused_wgrad_has_one_stand_in_for_each_shape_of_matrix() -> None:
    # h 4096, 32 heads of 128, 8 of keys: qkv 6144 x 4096, out 4096 x 4096, gate and up 28672 x 4096, down 4096 x 14336.
    parts = memory(llama_8b(), Workload(), implementation="megatron").components
    assert parts["dummy_wgrads"] == 2 * 4096 * (6144 + 4096 + 28672 + 14336)
    for other in (Workload(phase="infer"), Workload(d=8, zero=3)):
        assert "dummy_wgrads" not in memory(llama_8b(), other, implementation="megatron").components


def test_the_microbatches_of_a_step_are_those_of_the_data_parallel_ranks_alone() -> None:
    # 64 sequences over d 8: eight microbatches of one, whatever ranks share a sequence.
    workload = Workload(b=1, d=8, cp=2, global_batch=64, implementation="huggingface")
    assert "8 microbatches" in memory(llama_8b(), workload).gradients.why  # type: ignore[union-attr]


FP8 = Workload(b=1, s=1024, dtype="fp8", d=8, zero=1, global_batch=64)


def test_weights_gathered_in_fp8_are_kept_in_nothing_else_and_once_where_products_read_either_layout() -> None:
    parts = {
        (device, gathers): memory(
            llama_8b(), replace(FP8, gathers=gathers), device=device, implementation="megatron"
        ).components["weights"]
        for device in ("h100-sxm", "b200")
        for gathers in (None, "fp8")
    }
    model = llama_8b()
    matrices = sum(
        t.copies * t.elements for t in parameter_tensors(model, FP8, "last") if t.is_matrix and t.role == "block"
    )
    rest = 2 * (model.parameters - matrices)
    assert parts["h100-sxm", "fp8"] == rest + 2 * matrices
    assert parts["b200", "fp8"] == rest + matrices
    assert parts["h100-sxm", None] == rest + 4 * matrices
    assert parts["b200", None] == rest + 3 * matrices


def test_gradients_of_megatron_lie_in_the_type_that_they_are_reduced_in() -> None:
    sizes = [
        memory(llama_8b(), replace(FP8, reduces=dtype), implementation=whose).components["gradients"]
        for whose in ("megatron", "huggingface")
        for dtype in ("bf16", "fp32", None)
    ]
    n = llama_8b().parameters
    assert sizes == [2 * n, 4 * n, 4 * n, *3 * [4 * n]]


def test_an_activation_s_input_kept_in_fp8_takes_half_of_its_bytes() -> None:
    model, fused = llama_8b(), {"implementation": "megatron", "context_bytes": 0}
    plain, narrow = (
        memory(model, replace(FP8, checkpointing=policy), **fused).components["activations"]  # type: ignore[arg-type]
        for policy in ("none", "fp8_act_input")
    )
    gate_and_up = model.layers * FP8.tokens * 2 * 14336
    assert plain - narrow == gate_and_up * (2 - 1)


@pytest.mark.parametrize(("device", "layouts"), [("b200", 1), ("h100-sxm", 2)])
def test_a_frozen_base_in_fp8_is_multiplied_as_it_is(device: str, layouts: int) -> None:
    # Hopper's fp8 products read rows along k alone, so that dgrad has a transposed copy; Blackwell's read both.
    tuned = replace(FP8, finetune="lora", implementation="megatron")
    parts = {base: memory(llama_8b(), replace(tuned, base=base), device=device).components for base in ("bf16", "fp8")}
    matrices = sum(
        t.copies * t.elements for t in parameter_tensors(llama_8b(), FP8, "last") if t.is_matrix and t.role == "block"
    )
    assert 0 <= parts["fp8"]["weights"] - (parts["bf16"]["weights"] - (2 - layouts) * matrices) < 0.001 * matrices
    assert parts["fp8"]["activations"] == parts["bf16"]["activations"]
    assert operators(llama_8b(), replace(tuned, base="fp8")) == operators(llama_8b(), replace(tuned, base="bf16"))


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8"])
def test_selective_checkpointing_by_operator_keeps_no_quantised_copies(dtype: str) -> None:
    sizes = {
        one: memory(llama_8b(), Workload(b=1, dtype=one, checkpointing="every-second-product")).components[
            "activations"
        ]  # type: ignore[arg-type]
        for one in ("bf16", dtype)
    }
    assert sizes[dtype] == sizes["bf16"]


def test_the_layers_that_fsdp_gathers_are_in_the_type_that_they_are_sent_in() -> None:
    sharded = Workload(b=1, d=8, zero=3, precision="fp32")
    wide, narrow = (
        memory(llama_8b(), replace(sharded, gathers=one)).components["communication"] for one in ("fp32", None)
    )
    assert wide == 2 * narrow


def test_a_bert_s_dropout_of_attention_is_kept_with_its_mask() -> None:
    config = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 128}
    dropped, kept = (
        memory(
            read_config(config | {"attention_probs_dropout_prob": share}).model,
            Workload(b=1, s=128, dtype="fp32", attention="eager"),
        ).components["activations"]
        for share in (0.1, 0.0)
    )
    assert dropped - kept == 2 * (4 * 128**2) * (4 + 1)


def test_every_dropout_keeps_a_mask_of_so_many_bytes_an_element() -> None:
    hidden, layers, heads, s = 64, 2, 4, 128
    model, workload = gpt(hidden, layers, heads, dropout=0.1), Workload(b=1, s=s, attention="eager")
    narrow, wide = (memory(model, workload, dropout_mask_bytes=size).components["activations"] for size in (1, 4))
    # Behind the embedding, attention and MLP, and of a layer's scores.
    assert wide - narrow == 3 * s * (hidden + layers * (2 * hidden + heads * s))


def test_all_degrees_are_tried_where_no_heads_are_to_divide() -> None:
    assert [divisors(0, 3), divisors(12, 5)] == [[1, 2, 3], [1, 2, 3, 4]]


@pytest.mark.parametrize("finetune", [None, "qlora"])
def test_the_head_of_a_quantised_base_is_said_to_run_in_16_bits(finetune: str | None) -> None:
    found = memory(llama_8b(), Workload(b=1, s=1024, finetune=finetune))
    parts = {part.name: part.formula for part in found.parts}
    assert ("head in 16 bits" in parts["logits_and_loss"]) is (finetune == "qlora")


@pytest.mark.parametrize(("model", "experts"), [(llama_8b(), False), (mixtral(), True)], ids=["dense", "mixture"])
def test_experts_of_a_quantised_base_are_said_to_stay_wide_where_there_are_some(
    model: ModelShape, experts: bool
) -> None:
    parts = {part.name: part.formula for part in memory(model, Workload(b=1, finetune="qlora")).parts}
    assert ("experts, embeddings" in parts["weights"]) is experts
