"""Decoding: what one step of generating runs, reads, holds and takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import load_schema

import sizer
from shapes.cost import predict
from shapes.cost.explain import explain
from shapes.errors import InputError
from shapes.memory import memory
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.types import CachedAttention, Gemm, GroupedGemm
from shapes.workload import Workload
from sizer import check
from sizer.cli import main
from sizer.readers import read_config

LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
WINDOWED = {**LLAMA_70B, "model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096}


def shape(config: dict[str, Any]) -> ModelShape:
    return read_config(config).model


def cores(config: dict[str, Any], workload: Workload) -> list[CachedAttention]:
    return [one for one in operators(shape(config), workload) if isinstance(one, CachedAttention)]


def decode(**fields: Any) -> Workload:
    return Workload(**{"phase": "decode", "b": 64, "context": 8192, **fields})


def run(path: Path, *arguments: str) -> Result:
    path.write_text(json.dumps(LLAMA_70B))
    return CliRunner().invoke(main, [arguments[0], str(path), *arguments[1:]])


@pytest.mark.parametrize(("kv_dtype", "size"), [("bf16", 2), ("fp8", 1)])
def test_a_decode_step_of_llama_70b_reads_more_of_its_cache_than_of_its_weights(kv_dtype: str, size: int) -> None:
    workload = decode(t=8, dtype="fp8", kv_dtype=kv_dtype)
    listed = operators(shape(LLAMA_70B), workload)
    cache = sum(one.cache_bytes * one.count for one in listed if isinstance(one, CachedAttention))
    # Keys and values of 80 layers: 8 heads of 128, one head a device; 64 requests with 8192 tokens each.
    assert 8 * cache == 2 * 80 * 8 * 128 * 64 * 8192 * size
    weights = sum(one.n * one.k * one.count for one in listed if isinstance(one, Gemm))  # fp8: a byte each
    layers = 80 * (8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672)
    assert 8 * weights == layers + 8192 * 128256
    assert cache > weights
    parts = memory(shape(LLAMA_70B), workload).components
    assert parts["kv_cache"] == cache


@settings(max_examples=25)
@given(b=st.integers(1, 512), drafted=st.integers(0, 8), context=st.integers(16, 100_000))
def test_products_have_a_row_for_each_token_of_the_step_and_the_cache_grows_with_the_context(
    b: int, drafted: int, context: int
) -> None:
    workload = decode(b=b, speculative=drafted, context=context)
    model = shape(WINDOWED | {"sliding_window": None})
    listed = operators(model, workload)
    assert {one.m for one in listed if isinstance(one, Gemm)} == {b * (1 + drafted)}
    (core,) = (one for one in listed if isinstance(one, CachedAttention))
    assert (core.q_len, core.kv_len) == (1 + drafted, context)
    assert core.cache_bytes == 2 * b * 8 * 128 * context * 2
    assert memory(model, workload).components["kv_cache"] == core.count * core.cache_bytes


def test_a_sliding_window_caps_what_is_read_and_held() -> None:
    (core,) = cores(WINDOWED, decode(context=100_000))
    assert core.kv_len == 4096
    (drafting,) = cores(WINDOWED, decode(context=100_000, speculative=3))
    assert drafting.kv_len == 4096 + 3  # the first of four tokens sees 4096 keys, and so does the last
    (short,) = cores(WINDOWED, decode(context=1000))
    assert short.kv_len == 1000


def test_mla_reads_its_compressed_cache_once_whatever_the_heads() -> None:
    workload = decode(b=32, context=4096, t=8)
    found = cores(DEEPSEEK, workload)
    # 512 latent values and 64 rotary ones a token and layer, whole on every rank, two bytes each.
    assert sum(one.cache_bytes * one.count for one in found) == 61 * 32 * 4096 * (512 + 64) * 2
    assert memory(shape(DEEPSEEK), workload).components["kv_cache"] == 61 * 32 * 4096 * 576 * 2
    (cache,) = (part for part in memory(shape(DEEPSEEK), workload).parts if part.name == "kv_cache")
    assert cache.formula == "61 layers x b 32 x 4096 tokens x 576 (latent) x 2"  # dense layers and mixtures are alike
    # Absorbed, kv_b_proj's weights are read and multiplied all the same, a head's share at a time.
    products = [one for one in operators(shape(DEEPSEEK), workload) if isinstance(one, Gemm)]
    assert not [one for one in products if one.name.endswith("kv_b_proj")]
    absorbed = [one for one in products if "absorbed" in one.name]
    assert sum(one.batch * one.n * one.k * one.count for one in absorbed) == 61 * 16 * (128 + 128) * 512


def test_as_many_experts_run_as_tokens_routed_at_random_reach() -> None:
    """64 tokens with 8 of 256 experts each reach 222 of them on average, not all: reading those takes the time."""

    def groups(b: int) -> set[int]:
        return {one.groups for one in operators(shape(DEEPSEEK), decode(b=b)) if isinstance(one, GroupedGemm)}

    assert groups(1) == {8}
    assert groups(64) == {round(256 * (1 - (1 - 8 / 256) ** 64))} == {222}
    assert groups(1024) == {256}


def test_a_narrower_cache_and_a_shorter_context_take_less_time_and_the_parts_add_up() -> None:
    seconds = {}
    for kv_dtype, context in (("bf16", 8192), ("fp8", 8192), ("bf16", 4096)):
        (core,) = cores(LLAMA_70B, decode(t=8, kv_dtype=kv_dtype, context=context))
        cost = predict(core, "h100-sxm")
        assert sum(part.seconds for part in explain(core, cost, "h100-sxm")) == pytest.approx(cost.seconds)
        # Never faster than the cache crosses the data sheet's 3.35 TB/s.
        assert cost.seconds > core.cache_bytes / 3.35e12
        assert (cost.bound, cost.tier) == ("memory", "fitted")
        seconds[kv_dtype, context] = cost.seconds
    # An 8-bit cache gains less than half its bytes: FlashAttention 3 reaches less of the bandwidth with it.
    assert seconds["bf16", 4096] < seconds["fp8", 8192] < 0.8 * seconds["bf16", 8192]


def test_check_gives_tokens_a_second_and_bandwidth_utilisation() -> None:
    report = check(LLAMA_70B, phase="decode", microbatch=64, context=8192, tp=8, dp=2, dtype="fp8")
    step = report.step
    assert step.tokens_per_s == pytest.approx(2 * 64 / step.seconds)
    listed = operators(shape(LLAMA_70B), report.workload)
    moved = sum(one.bytes * one.count for one in listed if isinstance(one, Gemm | CachedAttention))
    assert step.mbu == pytest.approx(moved / step.seconds / 3.35e12)
    assert step.mfu < step.mbu < 1
    assert (step.phase, step.tier, report.stack) == ("decode", "extrapolated", "")


def test_a_pipeline_s_token_passes_every_stage() -> None:
    whole = check(LLAMA_70B, phase="decode", b=64, context=8192, t=4).step.seconds
    assert check(LLAMA_70B, phase="decode", b=64, context=8192, t=4, p=4).step.seconds == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("context", [512, 8192, 300_000])
@pytest.mark.parametrize("b", [1, 7, 64])
def test_nobody_is_told_to_have_more_requests_or_another_batch(b: int, context: int) -> None:
    report = check(LLAMA_70B, phase="decode", b=b, context=context, tp=8)
    assert {"SZ104", "SZ106", "SZ107", "SZ113", "SZ118", "SZ123"} <= set(report.not_applicable)
    for finding in report.findings:
        assert not [one for one in finding.suggestions if one.change.get("microbatch", 0) > b]  # type: ignore[operator]  # numbers


def test_a_cache_that_does_not_fit_is_offered_a_narrower_element_type() -> None:
    report = check(LLAMA_70B, phase="decode", b=64, context=44_000, tp=8)
    (finding,) = (one for one in report.findings if one.code == "SZ121")
    assert {"kv_dtype": "fp8"} in [dict(one.change) for one in finding.suggestions]


def test_a_context_beyond_the_positions_is_a_note() -> None:
    report = check(LLAMA_70B, phase="decode", b=1, context=131_073, tp=8)
    assert "the context of 131,073 is beyond the model's 131,072 positions" in report.model.notes
    assert not any("beyond" in note for note in check(LLAMA_70B, phase="decode", context=131_072).model.notes)
    trained = check(LLAMA_70B, b=1, s=262_144, tp=8, checkpointing="full")
    assert "the context of 262,144 is beyond the model's 131,072 positions" in trained.model.notes
    assert not any("beyond" in note for note in check(LLAMA_70B, b=1, s=131_072, tp=8).model.notes)


def test_the_sequence_is_the_context_where_none_is_given() -> None:
    workload = check(LLAMA_70B, phase="decode", sequence=2048).workload
    assert (workload.s, workload.context) == (1, 2048)
    assert check(LLAMA_70B, phase="decode").workload.context == 4096


def test_an_equal_model_read_again_runs_the_same() -> None:
    # The layers of each stage are remembered by equality, so what they belong to must not be asked by identity.
    whisper = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    first, second = (operators(shape(whisper), Workload(phase="infer", b=1, s=1500, decoder_s=32)) for _ in range(2))
    assert first == second
    assert cores(LLAMA_70B, decode()) == cores(LLAMA_70B, decode())


def test_prefill_is_a_forward_pass_with_the_last_positions_logits_and_gives_the_time_to_the_first_token() -> None:
    prefill, infer = (check(LLAMA_70B, phase=phase, b=2, s=1024, tp=8) for phase in ("prefill", "infer"))
    head = 2 * 8192 * 128256 // 8
    assert infer.step.flops - prefill.step.flops == (2 * 1024 - 2) * head
    # No stack of training software, and its interval, stands for a serving engine.
    assert (prefill.step.tier, prefill.stack, prefill.step.seconds < infer.step.seconds) == ("extrapolated", "", True)
    assert any(
        "host time, launches and other requests' prompts are not in them" in note for note in prefill.model.notes
    )
    assert {"SZ106", "SZ123"} <= set(prefill.not_applicable)
    assert prefill.step.tokens_per_s == pytest.approx(2 * 1024 / prefill.step.seconds)
    assert not cores(LLAMA_70B, Workload(phase="prefill"))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"phase": "train", "context": 4096}, "context"),
        ({"phase": "infer", "speculative": 2}, "speculative"),
        ({"phase": "train", "kv_dtype": "fp8"}, "kv_dtype"),
        ({"phase": "decode", "kv_dtype": "fp4"}, "kv_dtype"),
        ({"phase": "decode", "context": 0}, "context"),
        ({"phase": "decode", "context": 3, "speculative": 3}, "context"),
        ({"phase": "decode", "speculative": -1}, "speculative"),
        ({"phase": "decode", "attention": "eager"}, "attention"),
        ({"phase": "decode", "cp": 2}, "cp"),
        ({"phase": "decode", "s": 10, "context": 10}, "s"),
    ],
)
def test_what_cannot_be_decoded_is_one_line(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        check(LLAMA_70B, **fields)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "architecture"), [("bert", "BertForMaskedLM"), ("t5", "T5ForConditionalGeneration")]
)
def test_what_is_no_decoder_alone_is_refused(model_type: str, architecture: str) -> None:
    with pytest.raises(InputError, match="expected a decoder alone"):
        check({"model_type": model_type, "architectures": [architecture]}, phase="decode")


def test_the_command_line_has_the_same_words_in_text_and_json(tmp_path: Path) -> None:
    options = ("--phase", "decode", "-b", "64", "--context", "8k", "--tp", "8", "--dtype", "fp8", "--kv-dtype", "fp8")
    config = tmp_path / "config.json"
    text = run(config, "check", *options)
    assert text.exit_code == 0, text.output
    assert "time per token" in text.output
    assert "bandwidth utilisation (MBU)" in text.output
    for command in ("check", "ops"):
        document = json.loads(run(config, command, *options, "--format", "json").stdout)
        jsonschema.validate(document, load_schema(command))
    assert document["tokens_per_s"] == pytest.approx(64 / document["step_seconds"])
    held = json.loads(run(config, "memory", *options, "--format", "json").stdout)
    assert held["components"]["kv_cache"] == 2 * 80 * 128 * 64 * 8192
    first = run(config, "check", "--phase", "prefill", "-b", "1", "-s", "8k", "--tp", "8", "--fail-on", "never")
    assert "time to first token" in first.output
    refused = run(config, "search", "--phase", "decode")
    assert refused.exit_code == 2
    measured = run(config, "mfu", "--phase", "decode", "--step-time", "1", "--gpus", "8", "--global-batch", "64")
    assert measured.exit_code == 2
    assert "expected train" in measured.output


def test_serving_is_compared_by_tokens_a_second(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    both = (str(tmp_path / "config.json"),) * 2
    decode = CliRunner().invoke(main, ["diff", *both, "--phase", "decode", "-b", "8", "--context", "4k", "--tp", "8"])
    assert "tokens/s a device" in decode.output
    drafted = (
        sizer.diff(LLAMA_70B, LLAMA_70B, phase="decode", b=8, context=4096, t=8, speculative=3).files[0].devices[0]
    )
    step = check(LLAMA_70B, phase="decode", b=8, context=4096, t=8, speculative=3).step
    assert drafted.new is not None
    # a drafted token that was not accepted is none
    assert drafted.new.tokens_per_s == pytest.approx(8 / 8 / step.seconds)


def test_a_context_beyond_the_models_positions_is_said_by_memory_and_plan_too() -> None:
    def notes(answer: object) -> tuple[str, ...]:
        return tuple(note for note in answer.notes if "beyond" in note)  # type: ignore[attr-defined]

    # Llama-3.1's are 131,072; one request of a 70B's shard on an H200 has room for more.
    held = sizer.memory(LLAMA_70B, device="h200", phase="decode", b=1, context=4096, t=8)
    assert notes(held) == (f"the context of {held.engine.longest_context:,} is beyond the model's 131,072 positions",)
    assert not notes(sizer.memory(LLAMA_70B, device="h200", phase="decode", b=64, context=4096, t=8))
    planned = [
        sizer.plan(LLAMA_70B, device="h200", phase="decode", gpus=8, s=s, context=s + 1072) for s in (130_000, 131_000)
    ]
    assert [len(notes(one)) for one in planned] == [0, 1]


def test_a_model_that_no_split_holds_is_said() -> None:
    with pytest.raises(InputError, match=r"weights and a request take 132\.\d GiB, l4 has 20\.\d: 7 or more"):
        sizer.plan(LLAMA_70B, device="l4", phase="decode", gpus=4)
