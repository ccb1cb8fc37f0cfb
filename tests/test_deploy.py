"""`sizer deploy`: what engines are known to do with published models, and the files that their facts are in."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from schemas import load_schema

import sizer
from shapes.device import load_device
from shapes.engines import ENGINES, FORMATS, load_engine
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.resize import resize, sides
from sizer.answers.deploy import VERDICTS, Deployment, deploy
from sizer.cli import main
from sizer.readers import read_config
from sizer.readers.reading import table

CONFIGS = Path(__file__).parent / "data" / "configs"
SERVING = ("vllm", "sglang")


def run(name: str, *arguments: str) -> Result:
    words, wide = ["deploy", str(CONFIGS / f"{name}.json"), *arguments], {"COLUMNS": "100"}
    return CliRunner().invoke(main, words, catch_exceptions=False, env=wide)


def verdicts(found: Deployment) -> dict[str, str]:
    return {one.engine: one.verdict for one in found.engines}


def messages(found: Deployment, engine: str, verdict: str) -> list[str]:
    return [
        f"{fact.topic}: {fact.message}"
        for one in found.engines
        if one.engine == engine
        for fact in one.outcomes
        if fact.verdict == verdict
    ]


def qwen3_235b() -> ModelShape:
    """Qwen3-30B-A3B's kind with the dimensions of Qwen3-235B-A22B that blocks are cut of."""
    small = read_config(str(CONFIGS / "qwen3-30b-a3b.json")).model
    return resize(small, hidden=4096, heads=64, kv_heads=4, head_dim=128, expert_d_ff=1536)


def test_deepseek_v3_loads_at_tp_16_in_blocks_of_128() -> None:
    # 18432/16 = 1152 = 9 x 128, experts and the shared one 2048/16 = 128: what its authors and vLLM's recipes run.
    found = deploy(str(CONFIGS / "deepseek-v3.json"), tp=16, recipe="blockwise")
    assert {engine for engine, verdict in verdicts(found).items() if verdict != "loads"} == {"megatron-core"}
    assert messages(found, "megatron-core", "pads") == [
        "vocabulary, to 128 t: vocab 129280: not a multiple of 2048, padded to 131072 (1.39% more)"
    ]


def test_an_engine_that_refuses_says_at_which_degrees_it_does_not() -> None:
    # Llama 3.1 8B has 32 heads and 8 key/value heads: vLLM takes what divides the heads, copying keys over 16 and 32.
    found = deploy(str(CONFIGS / "llama-3.1-8b.json"), tp=3)
    taken = {one.engine: one.taken_at for one in found.engines if one.verdict == "refused"}
    assert taken["vllm"] == (1, 2, 4, 8, 16, 32)
    assert taken["torchtitan"] == (1, 2, 4, 8)
    assert all(deploy(str(CONFIGS / "llama-3.1-8b.json"), tp=tp, engines=["vllm"]).ok for tp in taken["vllm"])
    assert re.search(r"vLLM .* refused +1, 2, 4, 8, 16, 32 ", run("llama-3.1-8b", "--tp", "3").output)
    assert "taken at" not in run("llama-3.1-8b", "--tp", "8").output


def test_deepseek_v3_is_refused_at_tp_32_as_users_met_it() -> None:
    # vLLM issue 12256, SGLang issues 3345 and 4791: "output_partition_size = 576 is not divisible by ... block_n = 128"
    found = deploy(str(CONFIGS / "deepseek-v3.json"), tp=32, recipe="blockwise")
    for engine in SERVING:
        assert verdicts(found)[engine] == "refused"
        assert any("18432/32 = 576" in text for text in messages(found, engine, "refused"))
    # TensorRT-LLM splits the dense MLP over fewer ranks (pull request 3695); it refuses the experts.
    assert any("MLP" in text for text in messages(found, "tensorrt-llm", "falls back"))
    # 64 a rank is finer than 128, which vLLM now runs in Triton (pull request 55867); the dense MLP it refuses.
    assert any("2048/32 = 64" in text for text in messages(found, "vllm", "falls back"))
    # 32 ranks that hold experts whole cut none, but the shared expert is still 64 a rank (vLLM issue 52997).
    spread = deploy(str(CONFIGS / "deepseek-v3.json"), tp=32, ep=32, recipe="blockwise")
    assert not any("experts.gate_up_proj" in text for text in messages(spread, "vllm", "refused"))
    assert any("2048/32 = 64" in text for text in messages(spread, "vllm", "refused"))


def test_qwen3_235b_is_refused_at_tp_8_and_loads_at_tp_4() -> None:
    # vLLM issue 17569: "The output_size of gate's and up's weight = 192 is not divisible by ... block_n = 128"; since
    # September 2026 (pull request 55867) scales of 64 x 64 run in Triton.
    refused = deploy(qwen3_235b(), tp=8, recipe="blockwise")
    for engine, verdict in (("vllm", "falls back"), ("sglang", "refused"), ("tensorrt-llm", "refused")):
        assert any("1536/8 = 192" in text for text in messages(refused, engine, verdict))
    fits = verdicts(deploy(qwen3_235b(), tp=4, recipe="blockwise"))
    assert [fits[engine] for engine in SERVING] == ["loads", "loads"]
    odd = deploy(resize(qwen3_235b(), expert_d_ff=1600), tp=8, recipe="blockwise", engines=("vllm",))
    assert any("1600/8 = 200" in text for text in messages(odd, "vllm", "refused"))


#: Those that split heads over ``tp`` and need them whole.
SPLITS_HEADS = {
    *("vllm", "tensorrt-llm", "sglang", "transformer-engine", "megatron-core", "nemo", "torchtitan", "maxtext")
}


def test_heads_that_do_not_divide_are_refused_by_every_engine_that_splits_them() -> None:
    found = deploy(str(CONFIGS / "llama-3.1-8b.json"), tp=6)
    assert {engine for engine, verdict in verdicts(found).items() if verdict == "refused"} == SPLITS_HEADS
    assert found.memory is None
    # vLLM: "Total number of attention heads (28) must be divisible by tensor parallel size (8)" (issue 11797).
    assert verdicts(deploy(str(CONFIGS / "qwen2.5-7b.json"), tp=8))["vllm"] == "refused"


def test_key_value_heads_fewer_than_ranks_are_copied() -> None:
    found = deploy(str(CONFIGS / "llama-3.1-8b.json"), tp=16, engines=SERVING)
    assert set(verdicts(found).values()) == {"copies"}
    assert "each on 2 of 16 ranks" in messages(found, "vllm", "copies")[0]


def test_gpt_2_s_vocabulary_is_padded_and_by_how_much() -> None:
    found = deploy(str(CONFIGS / "gpt2.json"), tp=2, engines=("vllm", "tensorrt-llm"))
    padded = {one.engine: next(fact for fact in one.outcomes if fact.verdict == "pads") for one in found.engines}
    assert padded["vllm"].padded_share == pytest.approx(47 / 50257)  # to 64
    assert padded["tensorrt-llm"].padded_share == pytest.approx(1 / 50257)  # to the ranks


def test_nvfp4_experts_of_160_a_rank_are_refused() -> None:
    # vLLM pull request 48624 (Step-3.7, 1280/8) and SGLang issue 30887 (Gemma 4, 704/2 = 352); vLLM pads by now.
    for width, tp in ((1280, 8), (704, 2)):
        found = deploy(resize(qwen3_235b(), expert_d_ff=width), tp=tp, recipe="nvfp4", device="b200", engines=SERVING)
        assert any("experts in NVFP4" in text for text in messages(found, "vllm", "pads"))
        assert verdicts(found)["sglang"] == "refused"
    padded = deploy(resize(qwen3_235b(), expert_d_ff=704), tp=2, recipe="nvfp4", device="b200")
    assert verdicts(padded)["tensorrt-llm"] == "pads"  # 352 to 384


def test_a_device_without_the_format_falls_back_or_is_refused() -> None:
    found = verdicts(deploy(str(CONFIGS / "llama-3.1-8b.json"), recipe="fp8", device="a100"))
    assert (found["vllm"], found["transformer-engine"]) == ("falls back", "refused")
    assert verdicts(deploy(str(CONFIGS / "llama-3.1-8b.json"), recipe="mxfp8"))["transformer-engine"] == "refused"
    named = deploy(str(CONFIGS / "llama-3.1-8b.json"), recipe="int4", engines=("transformer-engine", "training"))
    assert verdicts(named) == {"transformer-engine": "refused", "torchao": "loads"}


@pytest.mark.parametrize(
    ("engine", "recipe", "device", "topic", "verdict"),
    [
        ("vllm", "nvfp4", "h100-sxm", "NVFP4 on the device", "falls back"),
        ("vllm", "nvfp4", "b200", "NVFP4 on the device", "loads"),
        ("vllm", "nvfp4", "v100-sxm", "quantised weights below compute capability 7.5", "refused"),
        ("vllm", "fp8", "v100-sxm", "quantised weights below compute capability 7.5", "refused"),
        ("vllm", "fp8", "t4", "quantised weights below compute capability 7.5", "loads"),
        ("vllm", "mxfp8", "t4", "MXFP8 below compute capability 8.0", "refused"),
        ("vllm", "mxfp4", "t4", "MXFP4 below compute capability 8.0", "refused"),
        ("vllm", "mxfp4", "a100-sxm", "MXFP4 below compute capability 8.0", "loads"),
        ("vllm", "int4", "v100-sxm", "int4 on the device", "falls back"),
        ("vllm", "int8", "b200", "int8 on the device", "refused"),
        ("vllm", "int8", "rtx-5090", "int8 on the device", "refused"),
        ("vllm", "int8", "h100-sxm", "int8 on the device", "loads"),
        ("vllm", "bf16", "t4", "bf16 on the device", "falls back"),
        ("sglang", "bf16", "v100-sxm", "compute capability of the device", "refused"),
        ("sglang", "bf16", "t4", "bf16 on the device", "falls back"),
        ("sglang", "fp8", "t4", "fp8 below compute capability 8.0", "refused"),
        ("sglang", "nvfp4", "h100-sxm", "NVFP4 on the device", "falls back"),
        ("sglang", "nvfp4", "mi300x", "NVFP4 below compute capability 8.0, and on AMD", "refused"),
        ("sglang", "mxfp4", "t4", "MXFP4 below compute capability 8.0", "refused"),
        ("sglang", "int4", "t4", "Marlin on the device", "falls back"),
        ("sglang", "int8", "b200", "int8 on the device", "refused"),
        ("sglang", "int8", "h100-sxm", "int8 products", "loads"),
        ("tensorrt-llm", "bf16", "mi300x", "the device", "refused"),
        ("tensorrt-llm", "bf16", "v100-sxm", "the device", "refused"),
        ("tensorrt-llm", "mxfp4", "a100-sxm", "MXFP4 on the device", "refused"),
        ("tensorrt-llm", "mxfp4", "h100-sxm", "MXFP4 on the device", "loads"),
        ("torchao", "fp8", "a100-sxm", "fp8 on the device", "refused"),
        ("torchao", "blockwise", "l40s", "fp8 blocks on the device", "refused"),
        ("torchao", "nvfp4", "h100-sxm", "NVFP4 on the device", "refused"),
        ("bitsandbytes", "int8", "v100-sxm", "LLM.int8 on the device", "refused"),
    ],
)
def test_what_a_device_runs(engine: str, recipe: str, device: str, topic: str, verdict: str) -> None:
    (found,) = deploy(str(CONFIGS / "llama-3.1-8b.json"), recipe=recipe, device=device, engines=(engine,)).engines
    assert {fact.verdict for fact in found.outcomes if fact.topic == topic} == {verdict}


def test_torchtitan_filters_odd_widths_for_fp8_and_not_for_mxfp8() -> None:
    # Its MXFP8 converter takes every linear layer, and torchao asks that blocks of 32 fit each shard: 14352/8 = 1794.
    odd = resize(read_config(str(CONFIGS / "llama-3.1-8b.json")).model, d_ff=14352)
    titan = {one: deploy(odd, tp=8, recipe=one, device="b200", engines=("torchtitan",)) for one in ("fp8", "mxfp8")}
    assert {one: verdicts(found)["torchtitan"] for one, found in titan.items()} == {
        "fp8": "falls back",
        "mxfp8": "refused",
    }


def test_heads_of_recurrent_layers_divide_over_the_ranks() -> None:
    # Qwen3-Next: 16 key and 32 value heads in its gated delta layers, 16 in attention.
    block = {"linear_num_key_heads": 4, "linear_num_value_heads": 12, "linear_key_head_dim": 128}
    config = {
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 151936,
        "num_experts": 12,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    found = deploy(config | block, tp=8)
    for engine in ("vllm", "sglang", "megatron-core", "nemo", "torchtitan"):
        assert any("linear_value_heads 12: does not divide" in one for one in messages(found, engine, "refused"))
    assert any("linear_key_heads 4: does not divide" in one for one in messages(found, "megatron-core", "refused"))
    assert not any("linear" in one for one in messages(deploy(config | block, tp=4), "megatron-core", "refused"))
    # Mamba-2's one group of states: vLLM copies it, Megatron-Core and TensorRT-LLM do not.
    small = {"hidden_size": 1024, "num_hidden_layers": 2, "vocab_size": 32000, "head_dim": 64, "expand": 2}
    mamba = deploy(small | {"model_type": "mamba2", "num_heads": 32, "n_groups": 1, "state_size": 128}, tp=8)
    for engine in ("megatron-core", "nemo", "tensorrt-llm"):
        assert any("state_groups 1: does not divide" in one for one in messages(mamba, engine, "refused"))
    assert not messages(mamba, "vllm", "refused")
    # No model of these has state-space layers; gated delta nets (Qwen3-Next's) both have.
    for engine in ("torchtitan", "maxtext"):
        (said,) = messages(mamba, engine, "refused")
        assert said.startswith("state-space layers: state_heads 32: not taken; none of its ")
        assert not any("state-space" in one for one in messages(deploy(config | block), engine, "refused"))
    # Twelve experts over eight ranks: vLLM gives some one more, the others want them to divide.
    spread = deploy(config | block, tp=8, ep=8)
    assert any("experts 12" in one for one in messages(spread, "vllm", "falls back"))
    assert any("experts 12" in one for one in messages(spread, "sglang", "refused"))


def test_transformer_engine_wants_16_and_torchao_leaves_16_bits() -> None:
    model = ModelShape("llama", (Stack("decoder", 2048, (Block(AttentionShape(16, 16, 128), MlpShape(5640)),)),), 32000)
    found = verdicts(deploy(model, recipe="fp8"))
    assert (found["transformer-engine"], found["torchao"], found["vllm"]) == ("refused", "falls back", "falls back")


def test_vllm_lets_merged_matrices_off_the_check_and_not_what_is_cut_by_rows() -> None:
    model = ModelShape("llama", (Stack("decoder", 4096, (Block(AttentionShape(64, 4, 64), MlpShape(14336)),)),), 32000)
    found = deploy(model, tp=4, recipe="blockwise", engines=("vllm",))  # keys and values of 64 a rank
    assert verdicts(found)["vllm"] == "unknown"
    narrow = deploy(resize(model, d_ff=14400), tp=8, recipe="blockwise", engines=("vllm",))  # down_proj reads 1800
    assert any("d_ff" in one or "mlp" in one for one in messages(narrow, "vllm", "refused"))


#: Dimensions of recurrent layers that facts ask for.
RECURRENT = ("linear_key_heads", "linear_value_heads", "state_heads", "state_groups", "recurrent_inputs")


@pytest.mark.parametrize("name", ENGINES)
def test_every_fact_names_its_source_and_asks_something(name: str) -> None:
    engine = load_engine(name)
    assert engine.name == name
    known = {
        side.dimension
        for config in ("deepseek-v3", "qwen3-30b-a3b", "llama-3.1-8b")
        for side in sides(read_config(str(CONFIGS / f"{config}.json")).model, 1, 1)
    }
    for fact in engine.facts:
        assert fact.source.startswith("https://github.com/")
        # A file as it was read, not as it is today; what only a pull request or an issue says shows that itself.
        read = re.split("blob/", fact.source)[1:]
        assert all(re.match(r"[0-9a-f]{40}/|v\d+\.\d+\.\d+/", rest) for rest in read), fact.source
        assert bool(fact.quote) == bool(read), fact.source
        assert fact.otherwise != "loads"
        asked = {"generation": fact.generations, "unpacked": fact.formats}.get(fact.check, fact.of)
        assert asked, fact
        types = {*table("hf_defaults")} if fact.check == "absent" else set()  # which an engine may not take whole
        assert set(fact.of) <= known | {"vocab", "heads", "kv_heads", "experts", "decoder", *RECURRENT, *types}
        assert (fact.multiple > 1) == (fact.check in ("multiple", "whole", "shards"))
    assert re.fullmatch(r"202\d-\d\d-\d\d", engine.read)


def test_the_engine_files_name_generations_that_devices_have() -> None:
    from shapes.device import list_devices

    generations = {load_device(name).architecture for name in list_devices()}
    for name in ENGINES:
        for fact in load_engine(name).facts:
            assert set(fact.generations) <= generations


def test_the_text_says_what_and_why_with_numbered_sources_and_exits_1_for_a_refusal() -> None:
    result = run("qwen3-30b-a3b", "--tp", "4", "--recipe", "blockwise")
    assert result.exit_code == 1
    assert "768/4 = 192: not a multiple of 128" in " ".join(result.stdout.split())
    assert "[1] https://github.com/vllm-project/vllm/blob/" in result.stdout
    assert run("deepseek-v3", "--tp", "16", "--recipe", "blockwise").exit_code == 0
    assert run("qwen3-30b-a3b", "--tp", "4", "--recipe", "blockwise", "--engine", "torchao").exit_code == 1


def test_the_json_is_what_its_schema_says() -> None:
    for recipe in FORMATS:
        document: dict[str, Any] = json.loads(
            run("qwen3-30b-a3b", "--tp", "8", "--recipe", recipe, "--format", "json").stdout
        )
        jsonschema.validate(document, load_schema("deploy"))
        for engine in document["engines"]:
            worst = max((fact["verdict"] for fact in engine["facts"]), key=VERDICTS.index, default="unknown")
            assert engine["verdict"] == worst


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--recipe", "fp7"), "expected one of bf16, tensorwise, blockwise"),
        (("--engine", "vlmm"), "expected one of vllm, tensorrt-llm"),
        (("--engine", "vllm", "--engine", "servnig"), "expected one of vllm, tensorrt-llm"),
        (("--tp", "0"), "expected"),
        (("--tp", "6", "--ep", "4"), "expected a divisor or a multiple of tp = 6"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_2(arguments: tuple[str, ...], said: str) -> None:
    result = run("gpt2", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_library_answers_as_the_command_does() -> None:
    found = sizer.deploy(str(CONFIGS / "gpt2.json"), tp=2, engines=["serving"])
    assert found.ok
    assert str(found).splitlines() == run("gpt2", "--tp", "2", "--engine", "serving").stdout.splitlines()
    with pytest.raises(InputError, match="ep"):
        sizer.deploy(str(CONFIGS / "gpt2.json"), tp=2, ep=3)


@given(heads=st.integers(1, 64), width=st.integers(64, 20000), t=st.sampled_from([1, 2, 4, 8]), fused=st.booleans())
def test_the_sides_of_matrices_are_those_of_the_shard_itself(heads: int, width: int, t: int, fused: bool) -> None:
    attention, mlp = AttentionShape(heads, heads, 64), MlpShape(width)
    model = ModelShape("llama", (Stack("decoder", 512, (Block(attention, mlp),)),), 32000)
    found = sides(model, t, t, fused=fused)
    for linear in (*attention.linears(512, fused=fused), *mlp.linears(512, fused=fused)):
        own, of = linear.on_shard(t), [side for side in found if side.matrix == linear.name]
        parts = [side for side in of if side.output]
        copies = len(linear.units) // len({side.dimension for side in parts}) if linear.units and fused else 1
        assert {side.features for side in of if not side.output} == {own.in_features}
        if heads % t == 0 and width % t == 0:
            merged = sum(side.features for side in parts) * (copies if linear.name.endswith("gate_up_proj") else 1)
            assert linear.name.endswith("qkv_proj") or merged == own.out_features


def small_72b() -> dict[str, Any]:
    """Qwen2.5-72B's dimensions, released in groups of 128."""
    config = json.loads((CONFIGS / "qwen2.5-7b.json").read_text())
    return config | {
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 80,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
    }


def test_a_group_that_two_ranks_would_share_is_refused_where_no_kernel_takes_it() -> None:
    # 29568/8 = 3696 = 28.9 groups: what Qwen's own page warns of; at tp 4 it is 57.75 groups, at tp 1 231.
    at_8 = deploy(small_72b(), tp=8, engines=("vllm", "tensorrt-llm", "sglang"))
    assert at_8.recipe == "int4"
    assert verdicts(at_8) == dict.fromkeys(("vllm", "tensorrt-llm", "sglang"), "refused")
    for engine in verdicts(at_8):
        assert any("29568/8 = 3696" in text for text in messages(at_8, engine, "refused"))
    # Experts of 200 a rank: halved groups end at 32, of which they are no multiple; 192 a rank holds groups of 64.
    for width, verdict in ((1600, "refused"), (1536, "falls back")):
        experts = deploy(resize(qwen3_235b(), expert_d_ff=width), tp=8, recipe="int4", engines=SERVING)
        assert set(verdicts(experts).values()) == {verdict}
    whole = verdicts(deploy(small_72b(), tp=1, engines=("vllm", "tensorrt-llm", "sglang")))
    assert set(whole.values()) == {"loads"}


def test_key_value_heads_that_neither_divide_nor_are_divided_are_refused() -> None:
    phi = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    phi |= {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10, "intermediate_size": 17920}
    found = verdicts(deploy(phi, tp=4))  # phi-4: ten key/value heads over four ranks
    refuse = {"vllm", "tensorrt-llm", "sglang", "megatron-core", "nemo", "torchtitan", "transformer-engine", "maxtext"}
    assert {engine for engine, verdict in found.items() if verdict == "refused"} == refuse
    assert found["deepspeed"] == "falls back"  # uneven shards


def test_memory_comes_before_every_other_question() -> None:
    found = deploy(str(CONFIGS / "deepseek-v3.json"), device="l4")
    assert found.recipe == "blockwise"  # the file's own
    assert found.memory is not None
    assert found.memory.weight_bytes == pytest.approx(671e9, rel=0.01)
    assert not found.memory.fits
    assert {one.verdict for one in found.engines if one.use == "serving"} == {"refused"}
    result = run("deepseek-v3", "--device", "l4")
    assert result.exit_code == 1
    assert "does not fit" in result.stdout
    fits = deploy(str(CONFIGS / "llama-3.1-8b.json"), recipe="fp8", engines=("vllm",))
    assert fits.memory is not None
    assert fits.memory.fits
    assert fits.ok
    narrower = [deploy(str(CONFIGS / "llama-3.1-8b.json"), recipe=one).memory for one in ("bf16", "mxfp8", "nvfp4")]
    weights = [one.weight_bytes for one in narrower if one is not None]
    assert weights == sorted(weights, reverse=True)


def test_what_is_not_known_is_told_from_what_loads() -> None:
    found = deploy(str(CONFIGS / "llama-3.1-8b.json"), recipe="int8", engines=("tensorrt-llm", "vllm"))
    assert verdicts(found) == {"tensorrt-llm": "unknown", "vllm": "loads"}
    assert messages(found, "tensorrt-llm", "unknown") == ["format: nothing is known of int8 here"]


def test_experts_spread_over_more_ranks_than_tensors_are_cut_over_fold() -> None:
    # Megatron-Core needs PP x max(TP CP, EP ETP) devices (parallel folding), so that ep 8 at tp 4 is legal.
    mixtral = str(CONFIGS / "mixtral-8x7b.json")
    assert verdicts(deploy(mixtral, tp=4, ep=8, engines=("megatron-core",)))["megatron-core"] != "refused"
    refused = deploy(mixtral, tp=4, ep=16, engines=("training",))
    for engine in ("megatron-core", "nemo", "torchtitan", "deepspeed", "maxtext"):
        assert any("experts 8: does not divide over 16" in text for text in messages(refused, engine, "refused"))


def test_fsdp_cuts_rows_and_no_products() -> None:
    # 28 heads over 8 ranks are no matter; 50257 rows are padded to 50264.
    qwen = deploy(str(CONFIGS / "qwen2.5-7b.json"), tp=8, engines=("fsdp",))
    assert verdicts(qwen) == {"fsdp": "loads"}
    padded = deploy(str(CONFIGS / "gpt2.json"), tp=8, engines=("fsdp",))
    assert any("padded to 50264" in text for text in messages(padded, "fsdp", "pads"))


def test_fine_tuning_says_what_becomes_of_experts_and_odd_widths() -> None:
    found = deploy(str(CONFIGS / "qwen3-30b-a3b.json"), recipe="int4", engines=("fine-tuning",))
    assert verdicts(found) == {"peft": "falls back", "bitsandbytes": "falls back"}
    assert "target_parameters" in messages(found, "peft", "falls back")[0]
    odd = ModelShape("llama", (Stack("decoder", 2080, (Block(AttentionShape(16, 16, 128), MlpShape(5640)),)),), 32000)
    slow = deploy(odd, recipe="int4", engines=("bitsandbytes",))
    assert any("5640: not a multiple of 64" in text for text in messages(slow, "bitsandbytes", "falls back"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A wheel of SGLang, as far as its facts quote it: each line below a first one."""
    for fact in load_engine("sglang").facts:
        if place := re.search(r"blob/[^/]+/(?:python/)?([^\s#]+)", fact.source):
            file = tmp_path / place[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            old = file.read_text(encoding="utf-8") if file.exists() else "first\n"
            file.write_text(f"{old}    {fact.quote} and more\n", encoding="utf-8")
    return tmp_path


def test_facts_are_looked_up_again_in_a_clone(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from reports.bench.engine_facts import looked_up, main

    found = list(looked_up("sglang", [clone]))
    assert len(found) == sum(bool(fact.quote) for fact in load_engine("sglang").facts)
    assert all(one.line is not None and one.state != "gone" for one in found)
    assert main(["sglang", str(clone)]) == 0
    moved = clone / "sglang/srt/layers/moe/fused_moe_triton/layer.py"
    moved.write_text("rewritten\n", encoding="utf-8")
    assert main(["sglang", str(clone)]) == 1
    said = capsys.readouterr().out
    assert "gone: experts' width" in said
    assert "now at line 2" in said


@pytest.mark.parametrize(("tp", "recipe", "verdict"), [(1, "int4", "falls back"), (3, "int8", "loads")])
def test_llama_cpp_cuts_no_matrix_and_wants_rows_of_whole_blocks(tp: int, recipe: str, verdict: str) -> None:
    # Qwen2.5-0.5B: 896 = 3.5 x 256 = 28 x 32.
    found = deploy("Qwen/Qwen2.5-0.5B", tp=tp, recipe=recipe, engines=("llama-cpp",))
    assert verdicts(found) == {"llama-cpp": verdict}


@pytest.mark.parametrize("name", ["openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"])
def test_trainers_unpack_a_release_whose_format_they_do_not_train(name: str) -> None:
    assert verdicts(deploy(name, engines=("torchtitan", "fsdp"))) == {"torchtitan": "falls back", "fsdp": "falls back"}
    assert deploy(name, tp=16, engines=("torchtitan",)).ok == (name != "openai/gpt-oss-20b")  # eight key/value heads
    assert verdicts(deploy(name, recipe="mxfp4", engines=("torchtitan",))) == {"torchtitan": "refused"}
    # Groups of 4 bits are not unpacked.
    assert verdicts(deploy("Qwen/Qwen3-8B-AWQ", engines=("torchtitan",))) == {"torchtitan": "refused"}


ANSWERS = tomllib.loads((Path(__file__).parent / "data" / "engine_answers.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("engine", "asked"), [(engine, one) for engine, rows in ANSWERS["answers"].items() for one in rows]
)
def test_engines_do_what_their_sources_say(engine: str, asked: dict[str, Any]) -> None:
    small = {"model_type": "qwen2", "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 4}
    sizes = ANSWERS["shapes"].get(asked["model"])
    model = {"vocab_size": 32000} | small | sizes if sizes else asked["model"]
    options = {key: asked[key] for key in ("tp", "ep", "recipe") if key in asked}
    found = deploy(model, device=asked.get("device", "h200"), engines=(engine,), **options)
    said = [fact.verdict for fact in found.engines[0].outcomes if asked["of"] in f"{fact.topic}: {fact.message}"]
    assert max(said, key=VERDICTS.index) == asked["verdict"], asked["source"]
