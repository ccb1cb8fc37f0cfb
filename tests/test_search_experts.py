"""Searching mixtures of experts: at equal parameters, what is priced and measured, what a file can say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from measure_fakes import FakeExecutor

from shapes.device import load_device
from shapes.errors import InputError
from shapes.measure.jobs import Job
from shapes.model.resize import dimensions, resize
from shapes.operators import operators
from shapes.operators.types import GroupedGemm
from shapes.step import Pricer
from shapes.workload import MERGED, Workload
from sizer.cli import main
from sizer.readers import Source, read_config
from sizer.searching import search
from sizer.searching.measuring import weighted_jobs
from sizer.searching.pricing import price
from sizer.searching.result import of_file, settings
from sizer.searching.space import Baseline, Limits
from sizer.searching.spaces import make_space
from sizer.subject import read_model, read_subject, run_by

CONFIGS = Path(__file__).parent / "data" / "configs"
MIXTURES = ("deepseek-v3", "qwen3-30b-a3b", "mixtral-8x7b")
TINY = {
    "model_type": "qwen3_moe",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "moe_intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "intermediate_size": 256,
}


def config(name: str) -> str:
    return str(CONFIGS / f"{name}.json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["search", *arguments], catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_searched_at_equal_total_and_active_parameters(name: str) -> None:
    model = read_config(config(name)).model
    result = search(config(name), what="experts", e=8, d=8, top=100)
    assert result.baseline.change == {key: dimensions(model)[key] for key in result.baseline.change}
    assert {one.change["top_k"] for one in result.ranked} > {result.baseline.change["top_k"]}
    for one in result.ranked[1:]:
        changed = resize(model, **one.change)
        assert abs(changed.parameters / model.parameters - 1) <= 0.01
        assert abs(changed.active_parameters / model.active_parameters - 1) <= 0.01
        assert one.change["experts"] % 8 == 0  # whole on each of the expert-parallel ranks
        assert one.change["expert_d_ff"] % 64 == 0


def test_finer_experts_take_longer_as_their_products_are_smaller() -> None:
    # maxtext issue 1256: 8 to 56 experts at equal active parameters fell from 50% to 25-28% MFU.
    found = {one.change["expert_d_ff"]: one.speedup for one in search(config("mixtral-8x7b"), what="experts").ranked}
    assert found[7168] < found[14336] == 1
    assert min(found) == 7168  # within a factor of two of what is published


#: gpt-oss-20b: a hidden size that 128 does not divide.
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "vocab_size": 201088,
}
#: Layers of Nemotron-H: a recurrence, attention, experts of a narrower width or an MLP, each by itself.
HYBRID = {
    "model_type": "nemotron_h",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "head_dim": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "mamba_num_heads": 32,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 64,
    "vocab_size": 8192,
}
LATENT = {
    **HYBRID,
    "hybrid_override_pattern": "MEM*EMEME",
    "num_hidden_layers": 9,
    "moe_intermediate_size": 512,
    "moe_latent_size": 256,
    "moe_shared_expert_intermediate_size": 1024,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
}


@pytest.mark.parametrize(("settings", "what"), [(GPT_OSS, "model"), (LATENT, "experts"), (LATENT, "model")])
def test_mixtures_of_odd_hidden_sizes_and_of_latent_experts_have_candidates(
    settings: dict[str, Any], what: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))
    model = read_config(str(path)).model
    result = search(str(path), what=what, limits=Limits(0.02))
    assert len(result.ranked) > 2
    for one in result.ranked:
        changed = resize(model, **one.change)
        assert abs(changed.parameters / model.parameters - 1) <= 0.02
        assert abs(changed.active_parameters / model.active_parameters - 1) <= 0.02


def test_heads_that_do_not_add_up_to_an_odd_hidden_size_keep_their_share_as_whole_groups_do() -> None:
    model = read_model(Source("Qwen/Qwen3-30B-A3B", {"hidden_size": 3000})).model
    baseline = Baseline(model, Workload(t=4), scope="model")
    space = make_space("model", baseline, load_device("h100-sxm"), Limits())
    found = space.candidates.columns
    assert {*(found["heads"] % 4)} == {0}
    assert {*(found["heads"] // found["kv_heads"])} == {8}
    share = found["heads"] * found["head_dim"] / found["hidden"] / (4096 / 3000)
    assert (abs(share - 1) < 8 * 128 / 4096).all()
    said = CliRunner().invoke(main, ["search", "Qwen/Qwen3-30B-A3B", "--set", "hidden_size=3000", "--what", "model"])
    assert said.exit_code == 0
    head = next(line.split() for line in said.output.splitlines() if " hidden " in line and "time" in line)
    # What no row differs in is said once, above.
    assert head[:5] == ["hidden", "layers", "experts", "top_k", "expert_d_ff"]
    assert "in every row: heads 32, head_dim 128, kv_heads 4, vocab 151936" in said.output


def test_a_whole_model_of_layers_with_and_without_an_mlp_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**HYBRID, "hybrid_override_pattern": "M-M*-M-M-", "num_hidden_layers": 9}))
    done = run(str(path), "--what", "model")
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "swiglu or heads or vocab: nemotron_h lacks layers" in done.output


@pytest.mark.slow
def test_shared_experts_stay_as_many_as_they_are() -> None:
    shares = {
        one.change["shared_d_ff"] / one.change["expert_d_ff"]
        for one in search(config("deepseek-v3"), what="experts", limits=Limits(0.02)).ranked
    }
    assert shares == {1}
    assert all("shared_d_ff" not in one.change for one in search(config("qwen3-30b-a3b"), what="experts").ranked)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("split", [{}, {"e": 8, "d": 8}, {"t": 2}, {"phase": "infer"}])
def test_measured_are_the_products_that_are_priced(name: str, split: dict[str, Any]) -> None:
    device = load_device("h100-sxm")
    space = make_space("experts", Baseline.from_config(config(name), b=1, s=512, **split), device, Limits(0.02))
    for change in (space.baseline, space.candidates[0]):
        jobs = weighted_jobs(space, change)
        assert any(isinstance(job.work, GroupedGemm) for job, _ in jobs)
        timed = sum(count * job.work.flops for job, count in jobs)
        assert timed == pytest.approx(price(space, [change], Pricer(device))[0].flops, rel=1e-12)


def test_a_measured_search_finds_the_grouped_products_that_are_fastest(tmp_path: Path) -> None:
    def seconds_of(job: Job) -> float:
        # A device that likes few groups, whatever is predicted.
        return 1e-3 * (job.work.groups if isinstance(job.work, GroupedGemm) else 1)

    result = search(
        TINY,
        what="experts",
        b=1,
        s=512,
        limits=Limits(0.05),
        measure=FakeExecutor(seconds_of),
        store=str(tmp_path / "store.db"),
        top=10,
    )
    assert result.source.startswith("measured:Fake")
    assert result.best.change == {"experts": 8, "top_k": 2, "expert_d_ff": 256}
    assert any("one by one" in note for note in result.notes)


@pytest.mark.slow
def test_experts_are_measured_on_this_cpu(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    words = (
        "--what",
        "experts",
        "-b",
        "1",
        "-s",
        "64",
        "--tolerance",
        "5%",
        "--limit",
        "step=64",
        "--measure",
        "--limit",
        "regret=50%",
        "--time-limit",
        "20",
        "--store",
        str(tmp_path / "store.db"),
        "--format",
        "json",
    )
    found = json.loads(run(str(path), *words).stdout)
    assert found["source"].startswith("measured:CPU")
    assert found["measurements"] > 0
    assert found["baseline"]["seconds"] > 0


@pytest.mark.slow
def test_a_patch_says_experts_and_shared_ones_follow() -> None:
    text = json.loads(Path(config("deepseek-v3")).read_text())
    reading = read_config(text)
    found = search(config("deepseek-v3"), what="experts", e=8, d=8, limits=Limits(0.02))
    after = read_config({**text, **settings(of_file(replace(found, keep=False), reading))}).model
    assert after != reading.model
    assert {key: dimensions(after)[key] for key in found.best.change} == found.best.change


@pytest.mark.slow
def test_a_patch_that_the_file_cannot_take_is_refused() -> None:
    # llama4's shared expert is as wide as the others by definition.
    reading = read_config({"model_type": "llama4_text", "intermediate_size": 4096, "num_hidden_layers": 8})
    found = search(reading, what="experts", limits=Limits(0.05), top=100)
    wider = replace(found.best, change={**found.best.change, "shared_d_ff": 2 * found.best.change["expert_d_ff"]})
    with pytest.raises(InputError, match="shared_d_ff"):
        of_file(replace(found, keep=False, candidates=(wider,)), reading)


@pytest.mark.parametrize(
    ("name", "vary"),
    [("qwen3-30b-a3b", None), pytest.param("deepseek-v3", ("mla-heads", "mla-ranks"), marks=pytest.mark.slow)],
)
def test_whole_mixtures_are_searched_at_both_counts_of_parameters(name: str, vary: tuple[str, ...] | None) -> None:
    model = read_config(config(name)).model
    result = search(config(name), what="model", limits=Limits(0.005, step=512, vary=vary), top=100)
    for one in result.ranked[1:]:
        changed = resize(model, **one.change)
        assert abs(changed.parameters / model.parameters - 1) <= 0.005
        assert abs(changed.active_parameters / model.active_parameters - 1) <= 0.005
        assert one.parameters == changed.parameters
    if vary is not None:
        own = dimensions(model)
        tried = {one.change["heads"] / one.change["hidden"] for one in result.ranked}
        assert min(tried) < own["heads"] / own["hidden"] < max(tried)
        assert {512, 1024} <= {one.change["kv_lora_rank"] for one in result.ranked}


@pytest.mark.slow
def test_windows_and_key_value_groups_vary_where_that_is_asked() -> None:
    limits = Limits(head_dims=(256,), vary=("window", "kv-ratio"))
    found = search(config("gemma-2-9b"), what="model", limits=limits).ranked
    assert {one.change["window"] for one in found} == {2048, 4096, 8192}
    assert {one.change["heads"] / one.change["kv_heads"] for one in found} == {1, 2, 4}
    kept = search(config("gemma-2-9b"), what="model", limits=Limits(head_dims=(256,))).ranked
    assert {one.change["heads"] / one.change["kv_heads"] for one in kept} == {2}
    assert all("window" not in one.change for one in kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Qwen/Qwen3.5-27B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "google/gemma-3-27b-it"])
def test_the_share_of_full_attention_varies_at_exact_parameters(name: str) -> None:
    model = read_model(name).model
    own, shape = dimensions(model)["full_every"], model.hidden / model.layers
    limits = Limits(
        step=512, aspect=(0.9 * shape, 1.1 * shape), head_dims=(dimensions(model)["head_dim"],), vary=("hybrid",)
    )
    found = search(name, what="model", limits=limits, top=100)
    assert {one.change["full_every"] for one in found.ranked} == {own // 2, own, 2 * own}
    for one in found.ranked:
        assert one.parameters == resize(model, **one.change).parameters
        assert abs(one.parameters / model.parameters - 1) <= 0.01
    shares = {one.change["full_every"] for one in found.pareto}
    assert own // 2 in shares, "more full attention has a place of its own on the front"


def test_contexts_are_compared_at_equal_tokens_and_served_as_long() -> None:
    asked = {"limits": Limits(step=1024, vary=("context",)), "b": 2, "s": 4096, "global_batch": 8}
    serving = {"b": 4, "context": 8192}
    found = search(config("llama-3.1-8b"), what="model", top=100, serving=serving, **asked)
    longer = next(one for one in found.ranked if one.change["s"] == 8192)
    subject = read_subject(config("llama-3.1-8b"), b=2, s=8192, global_batch=8)
    model = resize(subject.model, **{name: size for name, size in longer.change.items() if name != "s"})
    pricer = Pricer(load_device("h100-sxm"), stack=subject.stack)
    workload = run_by(subject.stack, subject.given, subject.workload, pricer.device)
    alone = pricer.step(operators(model, workload), workload, model)
    assert longer.timing.seconds == pytest.approx(alone.seconds / 2)  # a step of twice the tokens
    decode = Workload(b=4, context=16384, phase="decode", **MERGED)
    assert longer.decode is not None
    assert longer.decode.seconds == Pricer(load_device("h100-sxm")).step(operators(model, decode), decode).seconds
    assert {one.change["s"] for one in found.front} == {2048, 4096, 8192}, "no context is beaten by a shorter one"


@pytest.mark.parametrize(
    ("name", "limits", "named"),
    [
        ("llama-3.1-8b", {"vary": ("window",)}, "--limit vary"),
        ("mistral-7b", {"vary": ("mla-heads",)}, "--limit vary"),
        ("deepseek-v3", {"vary": ("kv-ratio",)}, "--limit vary"),
        ("deepseek-v3", {"head_dims": (128,)}, "--limit head-dim"),
        ("gemma-2-9b", {"vary": ("depth",)}, "depth"),
        ("llama-3.1-8b", {"vary": ("hybrid",)}, "--limit vary"),
        ("falcon-7b", {"vary": ("mla-ranks",)}, "--limit vary"),
    ],
)
def test_what_a_model_has_not_is_not_searched(name: str, limits: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        search(config(name), what="model", limits=Limits(**limits))


def test_a_dense_model_has_no_experts_to_search() -> None:
    with pytest.raises(InputError, match="mixture of experts"):
        search(config("mistral-7b"), what="experts")


def test_experts_are_of_classes_by_their_own_products_and_not_by_the_routers() -> None:
    baseline = Baseline.from_config(str(CONFIGS / "qwen3-30b-a3b.json"), b=1, s=4096)
    device = load_device("h100-sxm")
    space = make_space("experts", baseline, device, Limits(0.05))
    rows = price(space, [space.baseline, {"experts": 312, "top_k": 19, "expert_d_ff": 320}], Pricer(device))
    # 768 = 3 x 256; 320 = 5 x 64, whose experts have 4096 x 19 / 312 = 249 rows each: less than a tile of 256.
    # The router's 312 columns (8 x 39) make no class of their own.
    assert [one.structure for one in rows] == [(256, True, False), (64, True, True)]
