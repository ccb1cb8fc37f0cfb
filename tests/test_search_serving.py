"""Two budgets side by side: each candidate's training step and decode step, and the front of both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from measure_fakes import FakeExecutor

import sizer
from shapes.device import load_device
from shapes.errors import InputError
from shapes.operators import operators
from shapes.step import Pricer
from shapes.step.stack import load_stack
from shapes.workload import Workload
from sizer.cli import main
from sizer.readers import Source
from sizer.searching import search
from sizer.searching.pricing import estimates, rebuilt
from sizer.searching.run import decode_gain, training_gain
from sizer.searching.space import TIE, Baseline, Limits
from sizer.searching.spaces import make_space
from sizer.subject import run_by

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA = str(CONFIGS / "llama-3.1-8b.json")
SERVING = {"b": 64, "context": 8192, "tp": 8}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["search", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("what", ["heads", "model", "vocab"])
def test_each_candidate_is_decoded_as_check_prices_a_decode_step(what: str) -> None:
    result = search(LLAMA, what=what, limits=Limits(0.02), serving=SERVING, device="h100-sxm")
    own = result.baseline
    assert own.decode is not None
    checked = sizer.check(LLAMA, device="h100-sxm", phase="decode", **SERVING).step.seconds
    assert own.decode.seconds == pytest.approx(checked, rel=1e-9)
    for one in result.ranked:
        assert one.decode is not None
        assert one.decode_speedup == pytest.approx(own.decode.seconds / one.decode.seconds)
        assert training_gain(one) * decode_gain(one) == pytest.approx(one.gain**2)


def test_the_gain_of_serving_is_the_geometric_mean_of_both_speedups() -> None:
    # Twice as fast in one and half as fast in the other is no gain; an arithmetic mean would have it at 1.25.
    result = search(LLAMA, what="vocab", limits=Limits(0.02), serving=SERVING, objective="step-time", top=2)
    for one in result.candidates:
        assert one.decode_speedup != pytest.approx(one.speedup, rel=1e-4)
        assert one.gain == pytest.approx((one.speedup * one.decode_speedup) ** 0.5, rel=1e-12)


def test_no_candidate_beats_the_front_in_both() -> None:
    result = search(LLAMA, what="model", limits=Limits(0.02, vary=("kv-ratio",)), serving=SERVING)
    assert len(result.front) > 1
    for one in result.ranked:
        better = [
            kept
            for kept in result.front
            if training_gain(kept) >= training_gain(one) * (1 - 2 * TIE)
            and decode_gain(kept) >= decode_gain(one) * (1 - 2 * TIE)
        ]
        assert better, one.change
    # It is a front: what trains faster decodes slower.
    assert sorted(result.front, key=training_gain) == sorted(result.front, key=decode_gain, reverse=True)


@pytest.mark.slow
def test_the_shortlist_keeps_what_decodes_best_of_a_large_space(monkeypatch: pytest.MonkeyPatch) -> None:
    words: dict[str, Any] = {"what": "model", "limits": Limits(0.02, tp_ready=1), "serving": {"b": 64, "context": 8192}}
    short = search({"model_type": "gpt2", "n_embd": 2560, "n_head": 32, "n_layer": 32}, **words)
    assert short.considered > len(short.ranked)
    monkeypatch.setattr("sizer.searching.pricing.SHOWN", 10_000)
    every = search({"model_type": "gpt2", "n_embd": 2560, "n_head": 32, "n_layer": 32}, **words)
    assert max(map(decode_gain, short.ranked)) == pytest.approx(max(map(decode_gain, every.ranked)), rel=TIE)
    assert max(map(training_gain, short.ranked)) == pytest.approx(max(map(training_gain, every.ranked)), rel=TIE)


@pytest.mark.slow
def test_candidates_split_as_they_are_to_be_served() -> None:
    result = search(
        str(CONFIGS / "deepseek-v3.json"),
        what="experts",
        limits=Limits(0.02),
        serving={"b": 64, "context": 4096, "ep": 64, "dp": 64},
    )
    assert all(one.change["experts"] % 64 == 0 for one in result.ranked)
    heads = search(LLAMA, what="heads", serving=SERVING).ranked
    assert all(one.change["heads"] % 8 == 0 for one in heads)


@pytest.mark.slow
def test_a_training_budget_leaves_out_what_takes_longer() -> None:
    free = search(LLAMA, what="model")
    bound = search(LLAMA, what="model", training_budget=0.99)
    assert {one.speedup >= 1 / 0.99 for one in bound.ranked[1:]} == {True}
    assert len(bound.ranked) < len(free.ranked)
    # Of all candidates, shown or not.
    assert bound.excluded["--limit training-budget=99%"] == bound.considered - len(bound.ranked[1:])


@pytest.mark.slow
def test_text_and_json_have_the_front() -> None:
    words = (
        LLAMA,
        "--what",
        "heads",
        "--serving",
        "microbatch=64,context=8k,tp=8,kv-dtype=fp8",
        "--limit",
        "training-budget=120%",
    )
    document = json.loads(run(*words, "--format", "json").stdout)
    assert document["serving"]["context"] == 8192
    assert document["serving"]["kv_dtype"] == "fp8"
    assert {one["decode_seconds"] > 0 for one in (document["baseline"], *document["front"])} == {True}
    text = run(*words).stdout
    assert "decode: 64 requests of 8,192 keys, tp 8" in text
    assert "a token" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--h", "4096", "--serving", "b=1,context=8k"), "--serving"),
        ((LLAMA, "--serving", "b=1"), "context=TOKENS"),
        ((LLAMA, "--serving", "64"), "KEY=VALUE"),
        ((LLAMA, "--serving", "context=8k,widht=3"), "widht"),
        ((LLAMA, "--serving", "context=8k,phase=train"), "phase"),
        ((LLAMA, "--limit", "training-budget=0"), "--limit training-budget"),
        ((LLAMA, "--limit", "training-budget=much"), "--limit training-budget"),
        ((LLAMA, "--serving", "context=8k", "--device", "h100-sxm", "--device", "b200"), "--device"),
        ((LLAMA, "--what", "heads", "--serving", "context=8k,tp=3"), "--serving t = 3"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_serving_is_predicted_only() -> None:
    with pytest.raises(InputError, match="--predict"):
        search(LLAMA, what="heads", serving=SERVING, measure=FakeExecutor(lambda job: 1.0))


def test_a_served_search_times_whole_steps() -> None:
    result = search(LLAMA, what="heads", serving=SERVING, b=1, s=512)
    device = load_device("h100-sxm")
    space = make_space("heads", Baseline.from_config(LLAMA, b=1, s=512), device, Limits())
    assert result.stack is not None
    stack = load_stack(result.stack)
    model, workload = rebuilt(space, result.best.change)
    workload = run_by(stack, (), workload, device)
    whole = Pricer(device, stack=stack).step(operators(model, workload), workload, model).seconds
    assert result.best.timing.seconds == pytest.approx(whole)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
def test_estimates_of_a_decode_step_equal_pricing_it_operator_by_operator(name: str) -> None:
    device = load_device("h100-sxm")
    start = Baseline.from_config(str(CONFIGS / f"{name}.json"), b=1, s=512)
    space = make_space("model", start, device, Limits(0.02, step=512))
    changes, pricer = space.candidates[:: max(1, len(space.candidates) // 5)], Pricer(device)
    serving = Workload(b=32, context=4096, phase="decode")
    found = estimates(replace(space, workload=serving), changes, pricer)
    exact = [pricer.step(operators(rebuilt(space, change)[0], serving), serving) for change in changes]
    assert found.seconds == pytest.approx([step.seconds for step in exact], rel=1e-9)


def test_half_of_deepseek_v3s_heads_are_the_inference_flops_that_kimi_k2s_report_counted() -> None:
    # arXiv 2507.20534, section 2.3: 128 heads in place of 64, with 384 experts, 83% more FLOPs at 128k.
    flops = [
        sizer.check(
            Source(str(CONFIGS / "deepseek-v3.json"), {"n_routed_experts": 384, "num_attention_heads": heads}),
            phase="prefill",
            b=1,
            s=131072,
        ).step.flops
        for heads in (128, 64)
    ]
    assert flops[0] / flops[1] == pytest.approx(1.83, abs=0.05)


@pytest.mark.slow
def test_a_training_budget_counts_all_that_it_leaves_out_of_a_large_space() -> None:
    # The shortlist is of what is left: 256 candidates and more are shown, and what took longer was priced and counted.
    words: dict[str, Any] = {
        "params": 1.3e9,
        "limits": Limits(0.05, aspect=(8, 800), tp_ready=1, head_dims=(64, 96, 128), step=16),
    }
    free, bound = search(**words), search(**words, training_budget=0.9)
    left_out = bound.excluded["--limit training-budget=90%"]
    assert bound.considered == free.considered
    assert left_out > free.considered - len(free.ranked) > 256
    assert len(bound.ranked) - 1 <= bound.considered - left_out
    assert {one.speedup >= 1 / 0.9 for one in bound.ranked[1:]} == {True}
