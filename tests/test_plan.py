"""Plans: every split listed fits and multiplies out, and the rest is accounted for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape, Stack
from shapes.workload import Workload
from sizer.answers.plan import Plan, plan


def llama(layers: int = 32) -> ModelShape:
    block = Block(AttentionShape(32, 8, 128, rotary_dim=128), MlpShape(14336), count=layers)
    return ModelShape("llama", (Stack("decoder", 4096, (block,)),), vocab=128256)


@pytest.fixture(scope="module")
def eight() -> Plan:
    return plan(
        llama(8), load_device("h100-sxm"), gpus=8, global_batch=32, base=Workload(s=2048), implementation="megatron"
    )


def test_every_candidate_uses_all_devices_and_the_whole_global_batch(eight: Plan) -> None:
    assert eight.candidates
    for candidate in eight.candidates:
        w = candidate.workload
        assert w.t * w.p * w.d == 8
        assert w.b * w.d * candidate.microbatches == 32
        assert w.d % w.e == 0


def test_every_candidate_fits_and_the_list_is_sorted_by_time(eight: Plan) -> None:
    device = load_device("h100-sxm")
    seconds = [candidate.seconds for candidate in eight.candidates]
    assert seconds == sorted(seconds)
    for candidate in eight.candidates[::7]:
        used = memory(
            llama(8), candidate.workload, device=device, implementation="megatron", microbatches=candidate.microbatches
        )
        assert used.fits
        assert used.total_bytes == candidate.memory_bytes


def test_a_bubble_is_p_minus_1_slots_of_a_microbatch(eight: Plan) -> None:
    piped = [candidate for candidate in eight.candidates if candidate.workload.p > 1]
    assert piped
    for candidate in piped:
        p, m = candidate.workload.p, candidate.microbatches
        # Per-step work (update, gradient reduction) is outside the slots, so the share is a little under (p-1)/(m+p-1).
        assert 0 < candidate.bubble_s / candidate.seconds <= (p - 1) / (m + p - 1) + 1e-12
    assert all(candidate.bubble_s == 0 for candidate in eight.candidates if candidate.workload.p == 1)


def test_recomputing_costs_time_and_saves_memory(eight: Plan) -> None:
    found = {(candidate.workload, candidate.microbatches): candidate for candidate in eight.candidates}
    pairs = [
        (candidate, found.get((replace(candidate.workload, checkpointing="full"), candidate.microbatches)))
        for candidate in eight.candidates
        if candidate.workload.checkpointing == "none"
    ]
    assert any(full is not None for _, full in pairs)
    for plain, full in pairs:
        if full is not None:
            assert full.seconds > plain.seconds
            assert full.memory_bytes < plain.memory_bytes


def test_what_does_not_fit_is_named_with_its_reason() -> None:
    found = plan(llama(), load_device("a100-sxm"), gpus=8, global_batch=8, base=Workload(s=8192))
    reasons = dict(found.dropped)
    assert any("does not fit with t 1, p 1, ZeRO 0" in reason for reason in reasons)
    assert "ZeRO 2 and 3 are not run with a pipeline" in reasons


def test_a_mixture_may_be_spread_by_experts() -> None:
    block = Block(AttentionShape(16, 4, 64), MoeShape(8, 2, 1024), count=4)
    model = ModelShape("mixtral", (Stack("decoder", 1024, (block,)),), vocab=32000)
    found = plan(model, load_device("h100-sxm"), gpus=8, global_batch=16, base=Workload(s=1024))
    assert {candidate.workload.e for candidate in found.candidates} == {1, 2, 4, 8}


def test_a_model_that_nothing_fits_is_refused_with_the_commonest_reason() -> None:
    with pytest.raises(InputError, match=r"gpus = 1: expected a number of devices .* does not fit with t 1, p 1"):
        plan(llama(), load_device("t4"), gpus=1, global_batch=1, base=Workload(s=2048))
