"""Advice that was once wrong: silent, noisy, counted twice, contradicting itself (what users met, each case a test)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_public_models import DEVICES, MODELS, shape
from tiers import every_run

import sizer
from shapes.device import load_device
from shapes.errors import InputError
from shapes.frozen import replace
from shapes.model import ModelShape
from sizer.checking.findings import PricedFinding, Report
from sizer.cli import main

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA = str(CONFIGS / "llama-3.1-8b.json")
BERT = MODELS["bert-large"]


def named(report: Report, code: str) -> list[PricedFinding]:
    return [finding for finding in report.findings if code in finding.codes]


def codes(report: Report, *severities: str) -> set[str]:
    return {code for one in report.findings if one.severity in severities for code in one.codes}


@pytest.mark.parametrize("device", ["v100", "a100-sxm", "h100-sxm", "rtx-4090", "mi300x", "gaudi2", "gaudi3"])
def test_the_most_famous_vocabulary_is_a_warning_on_every_device(device: str) -> None:
    dtype = "fp16" if device == "v100" else "bf16"
    (finding,) = named(sizer.check(shape(MODELS["gpt2-xl"]), device=device, s=1024, dtype=dtype), "SZ101")
    assert finding.severity == "warning"
    assert finding.suggestions[0].change["vocab"] in (50264, 50304)  # V100 asks for 16 bytes: 6283 x 8


@pytest.mark.parametrize(
    ("hidden", "heads", "then"), [(5000, 40, (5120, 40)), (4100, 41, (4096, 32)), (2000, 20, (2048, 16))]
)
def test_a_hidden_size_of_odd_heads_is_told_the_whole_model_next_to_it(
    hidden: int, heads: int, then: tuple[int, int]
) -> None:
    entry = {"h": hidden, "a": heads, "L": 24, "f": 8192, "v": 32000}
    report = sizer.check(shape(entry), s=4096)
    offered = [one.change for finding in report.findings for one in finding.suggestions]
    assert then in [(change.get("hidden", hidden), change.get("heads", heads)) for change in offered]
    # One change fixes both findings, and is priced once.
    assert len([one for one in report.findings if one.step_seconds]) == 1


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize(
    ("hidden", "heads", "kv"), [(4000, 40, 8), (3000, 30, 6), (2880, 36, 4), (3600, 36, 6), (1000, 10, 10)]
)
def test_odd_heads_of_any_groups_are_told_a_whole_model_that_is_clean(hidden: int, heads: int, kv: int, t: int) -> None:
    # No number of heads near has as many query heads a group; the last file says the groups of its plain heads.
    config = json.loads(Path(LLAMA).read_text(encoding="utf-8")) | {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": hidden // heads,
    }
    asked: dict[str, Any] = {"s": 4096, "b": 1, "device": "h200", "t": t}
    (finding,) = named(sizer.check(config, **asked), "SZ102")
    first = finding.suggestions[0]
    assert (kv == heads) == ("does not keep" not in first.note)
    after = sizer.check(config | dict(first.change), **asked)
    assert not codes(after, "warning", "error") & {"SZ102", "SZ103", "SZ105"}
    assert first.step_seconds_change == pytest.approx(after.step.seconds - sizer.check(config, **asked).step.seconds)


def test_a_sequence_off_the_alignment_is_not_charged_with_the_batch() -> None:
    report = sizer.check(shape(BERT), s=500)
    for finding in named(report, "SZ104"):
        assert finding.severity == "info"
        assert finding.step_seconds < 0.05 * report.step.seconds
        assert all("microbatch" not in one.change for one in finding.suggestions)


@pytest.mark.parametrize("asked", [{"b": 64}, {"b": 1, "dp": 256}])
def test_a_microbatch_below_the_largest_is_no_finding_where_no_global_batch_says_it_may_grow(
    asked: dict[str, int],
) -> None:
    assert not named(sizer.check(shape(BERT), s=512, **asked), "SZ107")


def test_an_all_reduce_of_gradients_is_not_a_microbatchs() -> None:
    config = {"b": 1, "dp": 64, "global_batch": 4096, "checkpointing": "full", "zero": 1}
    report = sizer.check(shape(MODELS["llama-3_2-1b"]), s=4096, **config)
    for finding in named(report, "SZ107"):
        # Each of 64 accumulated microbatches was once charged with it.
        assert finding.step_seconds < 0.3 * report.step.seconds


def test_decoding_is_bound_by_memory_by_nature() -> None:
    report = sizer.check(LLAMA, phase="infer", b=64, s=1)
    assert "SZ118" in report.not_applicable
    assert not codes(report, "warning", "error") & {"SZ107", "SZ113", "SZ118", "SZ123"}


def noted(report: Report) -> str:
    """The note on memory; no finding says the same."""
    assert named(report, "SZ121") == []
    (note,) = [one for one in report.model.notes if one.startswith("memory: ")]
    return note


@pytest.mark.parametrize("asked", [{}, {"b": 4}, {"b": 1}, {"tp": 2}, {"checkpointing": "full"}])
def test_memory_is_a_note_until_the_layout_is_said(asked: dict[str, Any]) -> None:
    assert "`sizer plan`" in noted(sizer.check(LLAMA, device="rtx-4090", **asked))


def test_a_degree_alone_is_a_part_of_a_layout_and_the_note_says_what_is_missing() -> None:
    # Full is with the devices: ZeRO over them decides what a device holds.
    note = noted(sizer.check(shape(MODELS["llama-3_1-405b"]), tp=16))
    assert "--tp 16 is a part of a layout" in note
    assert "--gpus or --dp" in note
    (whole,) = named(sizer.check(shape(MODELS["llama-3_1-405b"]), tp=16, gpus=64), "SZ121")
    assert whole.severity == "error"


def test_one_card_is_told_of_lora_and_never_of_sixteen_shards() -> None:
    (finding,) = named(sizer.check(LLAMA, device="rtx-4090", gpus=1), "SZ121")
    assert finding.severity == "error"
    assert "LoRA" in finding.message
    assert all(not {"tp", "pp"} & one.change.keys() for one in finding.suggestions)


def test_a_node_is_told_of_zero_and_checkpointing_within_its_devices() -> None:
    (finding,) = named(sizer.check(LLAMA, gpus=8), "SZ121")
    both = next(dict(one.change) for one in finding.suggestions if {"checkpointing", "zero"} == one.change.keys())
    # A quarter of the 32 layers less, or a stage less, does not fit.
    assert both == {"checkpointing": "full:24", "zero": 3}
    room = load_device("h100-sxm").memory.bytes * 0.92
    for how, zero, fits in (("full:24", 3, True), ("full:16", 3, False), ("full:24", 2, False)):
        assert (sizer.memory(LLAMA, gpus=8, checkpointing=how, zero=zero).memory.total_bytes <= room) == fits
    for one in finding.suggestions:
        split = {"tp": 1, "pp": 1, "dp": 8, **one.change}
        assert int(split["tp"]) * int(split["pp"]) * int(split["dp"]) == 8


def test_a_pipeline_is_not_told_of_zero_3_nor_zero_3_of_a_pipeline() -> None:
    model = shape(MODELS["llama-3_1-405b"])
    (piped,) = named(sizer.check(model, tp=8, pp=16, dp=8, b=1, s=8192, vpp=8, global_batch=1024), "SZ121")
    assert [dict(one.change) for one in piped.suggestions] == [{"checkpointing": "full", "zero": 1}]
    (gathered,) = named(sizer.check(LLAMA, dp=8, b=2, s=8192, zero=3), "SZ121")
    assert [one.change.keys() for one in gathered.suggestions if "pp" in one.change] == []


def test_what_does_not_fit_split_over_tensors_is_told_of_sequence_parallelism() -> None:
    """What every rank holds whole is cut for no further message, and the step is shorter: it comes first."""
    model = shape(MODELS["mistral-small-24b"])
    asked = {"tp": 4, "dp": 64, "b": 2, "s": 8192, "global_batch": 768}
    (finding,) = named(sizer.check(model, zero=1, **asked), "SZ121")
    way = finding.suggestions[0]
    assert way.change == {"sequence_parallel": True, "zero": 2}
    applied = sizer.check(model, sequence_parallel=True, zero=2, **asked)
    assert named(applied, "SZ121") == []
    before, after = (one.step_s or 0.0 for one in (sizer.check(model, zero=1, **asked), applied))
    assert after - before == pytest.approx(way.step_seconds_change)
    assert after < before
    assert "another split (`sizer plan`)" in finding.message


def test_a_node_is_told_of_a_smaller_microbatch_before_recomputation() -> None:
    (finding,) = named(sizer.check(LLAMA, gpus=8, global_batch=1024), "SZ121")
    assert finding.suggestions[0].change == {"microbatch": 1, "zero": 2}  # accumulated, for a third of the cost


def test_what_does_not_fit_its_layout_is_not_told_a_larger_microbatch() -> None:
    report = sizer.check(str(CONFIGS / "deepseek-v3.json"), tp=8, dp=8, gpus=64)
    assert named(report, "SZ121")[0].severity == "error"
    assert all(int(one.change.get("microbatch", 1)) <= 4 for found in report.findings for one in found.suggestions)


@pytest.mark.parametrize("b", [1, 3])
def test_where_no_microbatch_is_large_enough_the_largest_doubling_that_fits_is_told(b: int) -> None:
    # It was told 9,973 sequences, as many as fit: a prime number of them makes no batch.
    small = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
    config = small | {"num_attention_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512}
    (finding,) = named(sizer.check(config, b=b, s=128), "SZ123")
    told = int(finding.suggestions[0].change["microbatch"])
    assert told // b & (told // b - 1) == told % b == 0
    assert told <= sizer.memory(config, b=b, s=128).largest_microbatch < 2 * told


def test_a_sane_vocabulary_is_not_offered_a_padding_that_costs() -> None:
    for name in ("gpt-j-6b", "opt-1_3b"):
        assert not sizer.check(shape(MODELS[name]), s=2048).findings[1:]  # but for the memory line of a large one


def test_small_experts_small_attention_and_memory_bound_products_are_one_finding() -> None:
    report = sizer.check(str(CONFIGS / "qwen3-30b-a3b.json"), b=1, s=512, ep=8)
    fields = [finding.field for finding in report.findings]
    assert fields.count("microbatch") <= 1


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_head_dim_80_at_any_t_is_not_told_160(tp: int) -> None:
    for device in ("h100-sxm", "a100-sxm"):
        report = sizer.check(shape(MODELS["pythia-2_8b"]), device=device, s=2048, tp=tp)
        assert all(one.change.get("head_dim") != 160 for found in report.findings for one in found.suggestions)


def test_a_pipeline_is_not_told_to_drop_layers() -> None:
    report = sizer.check(str(CONFIGS / "deepseek-v3.json"), pp=16)
    assert not named(report, "SZ110")  # 61 layers and a head over 16 stages: four each, but the last
    report = sizer.check(shape({"h": 4096, "a": 32, "L": 30, "f": 11008, "v": 1024}), pp=4)
    (finding,) = named(report, "SZ110")
    assert (finding.severity, finding.suggestions) == ("warning", ())
    assert "in the best layout 8.0, 7% over the mean: take fewer stages" in finding.message


def after(model: ModelShape, change: dict[str, int | str], report: Report, device: str, **asked: Any) -> Report:
    """What check says of ``model`` with a suggestion applied."""
    from shapes.model.resize import DIMENSIONS, resize

    sizes = {key: int(value) for key, value in change.items() if key in DIMENSIONS}
    other = {key: value for key, value in change.items() if key not in DIMENSIONS}
    return sizer.check(resize(model, **sizes) if sizes else model, device=device, **{**asked, **other})


#: A kind each: several heads and one for keys and values, experts, windows, learned positions, an encoder.
ONE_OF_EACH = (
    "gpt2-xl",
    "gpt3-175b",
    "bert-base",
    "llama-3-8b",
    "llama-2-70b",
    "gemma-2-9b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
)


#: Each model on a device, in turn; those of a kind each on every device.
PAIRS = [
    (name, device)
    for at, name in enumerate(MODELS)
    for place, device in enumerate(DEVICES)
    if name in ONE_OF_EACH or at % len(DEVICES) == place
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "device"), every_run([(name, one) for name in MODELS for one in DEVICES], *PAIRS))
def test_nothing_is_found_twice_no_suggestion_is_slower_and_none_is_then_reported(name: str, device: str) -> None:
    entry = MODELS[name]
    model, asked = shape(entry), {"s": entry.get("s", 4096), "tp": entry.get("tp", 1)}
    report = sizer.check(model, device=device, **asked)
    causes = [finding.field for finding in report.findings]
    found = [code for finding in report.findings for code in finding.codes]
    changes = [frozenset(one.change.items()) for finding in report.findings for one in finding.suggestions]
    assert len(set(causes)) == len(causes)
    assert len(set(found)) == len(found)
    assert len(set(changes)) == len(changes)
    assert sum(finding.step_seconds or 0.0 for finding in report.findings) < report.step.seconds
    for finding in report.findings:
        assert len(finding.suggestions) <= 3
        for one in finding.suggestions:
            slower = one.step_seconds_change > 0
            said = any(why in one.note for why in ("nothing faster", "not the one priced"))
            assert not slower or finding.severity == "error" or said, one
            left = codes(after(model, dict(one.change), report, device, **asked), "warning", "error")
            assert not left & set(finding.codes), one
            assert left <= codes(report, "warning", "error"), one


@pytest.mark.slow
@pytest.mark.parametrize("what", ["swiglu", "experts", "heads", "vocab", "model"])
@pytest.mark.parametrize("name", every_run(MODELS, *ONE_OF_EACH))
def test_what_search_proposes_check_has_nothing_new_against_or_it_says_what_and_why(name: str, what: str) -> None:
    model, asked = shape(MODELS[name]), {"s": MODELS[name].get("s", 4096), "tp": MODELS[name].get("tp", 1)}
    device = DEVICES[(list(MODELS).index(name) + len(what)) % len(DEVICES)]  # each space on each device
    try:
        result = sizer.search(model, what=what, device=device, top=3, **asked)
    except InputError:  # what a model has not, or no other size within the limits
        return
    before = sizer.check(model, device=device, **asked)
    for one in result.candidates:
        assert bool(one.why) == bool(one.breaks)
        new = codes(after(model, dict(one.change), before, device, **asked), "warning", "error")
        # A cost alone (the last wave's, SZ112) breaks no rule on shapes and is in the time that the search compared;
        # that check will warn of it is said next to the proposal.
        new -= codes(before, "warning", "error")
        assert {*one.warns} <= new <= {*one.breaks, *one.warns}, (device, one.change)


#: What an expert calls wrong whatever the accelerator: the dimensions that are warned of.
WRONG = {
    "a head dimension of 125": ({"h": 5000, "a": 40, "L": 32, "f": 13824, "v": 32000}, {"hidden", "head_dim"}),
    "41 heads of 100": ({"h": 4100, "a": 41, "L": 32, "f": 11008, "v": 32000}, {"hidden", "head_dim"}),
    "a hidden size of 4100": ({"h": 4100, "a": 32, "d": 128, "L": 32, "f": 11008, "v": 32000}, {"hidden"}),
    "8h/3 as it is": ({"h": 4096, "a": 32, "L": 32, "f": 10922, "v": 32000}, {"d_ff"}),
    "experts of 1025": ({"h": 2048, "a": 16, "L": 4, "f": 1025, "v": 32000, "experts": 8, "top_k": 2}, {"expert_d_ff"}),
    "GPT-3 2.7B": (MODELS["gpt3-2_7b"], {"head_dim", "vocab"}),
    "GPT-2 XL": (MODELS["gpt2-xl"], {"vocab"}),
}


@pytest.mark.parametrize("device", ["h100-sxm", "mi300x", "gaudi2", "gaudi3"])
@pytest.mark.parametrize("name", WRONG)
def test_the_same_breaches_warn_on_every_makers_device_with_the_tier_of_their_price(name: str, device: str) -> None:
    entry, fields = WRONG[name]
    report = sizer.check(shape(entry), device=device, s=entry.get("s", 4096))
    warned = [one for one in report.findings if one.severity != "info"]
    assert {one.field for one in warned} == fields
    assert not report.ok
    for one in warned:
        assert (one.tier in ("fitted", "borrowed", "extrapolated")) if one.step_seconds else one.tier == ""
        assert device == "h100-sxm" or one.tier in ("", "extrapolated")


@pytest.mark.parametrize(
    ("config", "asked", "code", "change"),
    [
        ("qwen2.5-7b", ("--tp", "3"), "SZ105", {"tp": 2}),  # 28 heads, 4 key/value heads
        ("qwen2.5-7b", ("--tp", "3"), "SZ105", {"tp": 4}),
        ("qwen2.5-7b", ("--tp", "8"), "SZ105", {"tp": 4}),
        ("falcon-7b", ("--tp", "2"), "SZ105", {"tp": 1}),  # 71 heads
        ("qwen3-30b-a3b", ("--ep", "3"), "SZ117", {"num_experts": 126}),  # 42 each
        ("qwen3-30b-a3b", ("--ep", "8", "--dp", "12"), "SZ117", {"dp": 16}),
        ("qwen3-30b-a3b", ("--ep", "3"), "SZ117", {"ep": 4, "dp": 4}),
        ("llama-3.1-8b", ("--pp", "40"), "SZ110", {"pp": 32}),
        ("llama-3.1-8b", ("--tp", "16"), "SZ115", {"tp": 8}),
        ("llama-3.1-8b", ("--gpus", "64", "--tp", "4", "--pp", "2", "--dp", "7"), "SZ120", {"dp": 8}),
        ("llama-3.1-8b", ("--gpus", "8", "--global-batch", "1001"), "SZ120", {"global_batch": 992}),
        ("llama-3.1-8b", ("--cp", "3", "-s", "4096"), "SZ127", {"cp": 2}),
        ("qwen3-30b-a3b", ("--tp", "4", "--recipe", "blockwise"), "SZ124", {"tp": 2}),  # 768 / 4 = 192
    ],
)
def test_what_does_not_divide_is_a_finding_with_its_neighbours_and_exit_1(
    config: str, asked: tuple[str, ...], code: str, change: dict[str, int]
) -> None:
    path = str(CONFIGS / f"{config}.json")
    result = CliRunner().invoke(main, ["check", path, *asked, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 1
    (finding,) = [one for one in json.loads(result.stdout)["reports"][0]["findings"] if code in one["codes"]]
    assert finding["severity"] in ("error", "warning")
    assert change in [one["change"] for one in finding["suggestions"]]


def test_a_head_is_worth_as_many_layers_as_the_stack_takes_time_for() -> None:
    # Small experts wait for the host, the head does not: its products are three layers', its time is less than one's.
    config = {"model_type": "qwen3_moe", "hidden_size": 2304, "num_hidden_layers": 32, "num_attention_heads": 18}
    config |= {"num_key_value_heads": 6, "head_dim": 96, "intermediate_size": 6144, "moe_intermediate_size": 768}
    config |= {"num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151680, "tie_word_embeddings": False}
    asked = {"s": 4096, "tp": 2, "pp": 2, "dp": 16, "ep": 4, "b": 1, "global_batch": 256}
    table = sizer.ops(config, **asked)
    head_s, layers_s = (
        sum(row["count"] * row["seconds"] for row in table.rows if row["name"].startswith(name))
        for name in ("lm_head", "layers.")
    )
    assert head_s > 2 * layers_s / 16
    assert table.step.parts["waiting for the host"] > 0.5 * table.step.seconds
    assert not named(sizer.check(config, **asked), "SZ110")


def test_an_uneven_pipeline_is_warned_of_where_fewer_stages_are_faster() -> None:
    # 80 layers over 32: three where 2.5 are the mean.
    for recomputed, change in (("full", {"pp": 8, "dp": 32}), ("none", {"pp": 8, "tp": 4, "dp": 8})):
        asked = {"p": 32, "d": 8, "gpus": 256, "b": 1, "global_batch": 1024, "zero": 1, "checkpointing": recomputed}
        (finding,) = named(sizer.check("meta-llama/Llama-2-70b-hf", s=4096, **asked), "SZ110")
        # Without running layers again fewer stages do not fit, but with more tensor parallelism.
        assert (finding.severity, change in [one.change for one in finding.suggestions]) == ("warning", True)
    # 24 layers and a head of 1.7 over 8 wait as long, but gradients of fewer stages take longer over a node's 25 Gb/s.
    asked = {"gpus": 24, "p": 8, "vpp": 2, "d": 3, "b": 1, "s": 2048, "global_batch": 48, "zero": 1}
    device = load_device("l40s")
    slow = replace(device, link=replace(device.link, inter_node_bytes_per_s=25e9 / 8 / 8))
    assert sizer.check("HuggingFaceTB/SmolLM2-1.7B", device=slow, **asked).ok
    assert not sizer.check("HuggingFaceTB/SmolLM2-1.7B", device=device, **asked).ok


def test_devices_that_are_said_stay_as_many_where_experts_do_not_divide() -> None:
    report = sizer.check("openai/gpt-oss-120b", gpus=48, e=48, d=48, b=1, s=4096, zero=1, checkpointing="full")
    (finding,) = named(report, "SZ117")
    offered = [one.change for one in finding.suggestions]
    assert {"ep": 16} in offered  # divides 128 experts and 48 ranks
    assert not [change for change in offered if "dp" in change]


def test_what_mends_one_of_two_errors_says_that_the_split_needs_the_other() -> None:
    sizes = {"hidden_size": 2560, "num_attention_heads": 20, "num_key_value_heads": 10, "intermediate_size": 7001}
    config = {"model_type": "llama", "num_hidden_layers": 24, "vocab_size": 32000, **sizes}
    report = sizer.check(config, tp=4)
    offered = {
        str(one.change): one.note for found in report.findings if found.severity == "error" for one in found.suggestions
    }
    # 7001 is odd, so that tp 2 does not run either: the times here are not of it.
    assert set(offered) >= {"{'tp': 2}", "{'intermediate_size': 7168}", "{'num_key_value_heads': 4}"}
    assert all("needs the other errors mended too" in note for note in offered.values())
    assert sizer.check(config | {"intermediate_size": 7168, "num_key_value_heads": 4}, tp=4).findings == ()


def test_the_split_that_the_times_are_of_saves_nothing_over_them() -> None:
    (finding,) = named(sizer.check(str(CONFIGS / "falcon-7b.json"), tp=2), "SZ105")
    first = finding.suggestions[0]
    assert (first.step_seconds_change, first.note) == (0.0, "the times here are of it")
    assert finding.step_seconds == 0  # it was once charged with the stack's attention kernel, against another


def test_a_prime_number_of_heads_is_told_the_hidden_sizes_of_one_more_and_one_fewer() -> None:
    report = sizer.check(shape({"h": 1600, "a": 25, "L": 48, "f": 6400, "v": 50304, "gated": False}), s=1024, tp=2)
    offered = [dict(one.change) for one in named(report, "SZ105")[0].suggestions]
    assert offered[0] == {"tp": 1}
    sizes = [(one["hidden"], one["heads"], one["kv_heads"]) for one in offered[1:]]
    assert sorted(sizes) == [(1536, 24, 24), (1664, 26, 26)]  # GPT-2 XL's heads of 64


def test_nothing_is_said_of_shards_of_a_split_that_cannot_run() -> None:
    report = sizer.check(str(CONFIGS / "qwen2.5-7b.json"), tp=3)  # 18944 does not divide over three either
    assert {code for one in report.findings for code in one.codes} == {"SZ105", "SZ115"}
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    config |= {"hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 6, "vocab_size": 151643}
    report = sizer.check(config, tp=4, b=2, s=4096)  # six key/value heads over four
    (vocabulary,) = named(report, "SZ101")
    assert vocabulary.suggestions[0].change["vocab_size"] == 151680  # 2370 x 64: of the model as it is unsplit
    assert vocabulary.severity == "warning"
    offered = [dict(one.change) for one in named(report, "SZ115")[0].suggestions]
    assert {"tp": 2} in offered
    assert {"num_key_value_heads": 8} in offered


def test_a_way_out_of_what_cannot_run_is_offered_though_other_findings_come_of_it() -> None:
    config = {"model_type": "qwen3_moe", "hidden_size": 3000, "num_hidden_layers": 4, "num_attention_heads": 24}
    config |= {"num_key_value_heads": 6, "head_dim": 120, "vocab_size": 151669, "intermediate_size": 8000}
    config |= {"num_experts": 96, "num_experts_per_tok": 6, "moe_intermediate_size": 1000}
    # Shards of 1,000 wide experts are misaligned at every t that is left.
    asked: dict[str, Any] = {"b": 2, "s": 4096, "tp": 4, "dp": 16, "ep": 8}
    (finding,) = named(sizer.check(config, **asked), "SZ115")
    assert dict(finding.suggestions[0].change) == {"tp": 2}
    assert all("SZ117" in one.note.partition("then fix ")[2] for one in finding.suggestions)
    for one in finding.suggestions:
        degrees = {key: value for key, value in one.change.items() if key == "tp"}
        sizes = {key: value for key, value in one.change.items() if key != "tp"}
        after = sizer.check({**config, **sizes}, **{**asked, **degrees})
        assert not codes(after, "error")
        assert "SZ117" in codes(after, "warning")


def test_what_a_recipe_s_kernels_refuse_is_an_error_without_a_price() -> None:
    result = CliRunner().invoke(main, ["check", LLAMA, "--dtype", "fp8", "-b", "1", "-s", "4095"])
    (line,) = [line for line in result.output.splitlines() if line.startswith("error")]
    assert (result.exit_code, line) == (1, "error   SZ124, SZ104 sequence = 4095")
    padded = sizer.check(LLAMA, recipe="blockwise", b=1, s=4095)  # which some pad
    assert [one.severity for one in padded.findings if "SZ124" in one.codes] == ["warning"]


def test_lora_that_does_not_fit_is_told_qlora_and_of_no_8_bit_states() -> None:
    # litgpt's config_hub/finetune/README.md: LoRA runs out of A10G's memory, QLoRA takes 20.9 GB.
    asked: dict[str, Any] = {"gpus": 1, "b": 1, "s": 512, "finetune": "lora", "lora_targets": "all-linear"}
    (found,) = named(sizer.check("google/gemma-2-9b", device="a10", **asked), "SZ121")
    assert (found.severity, found.suggestions[0].change) == ("error", {"finetune": "qlora"})
    assert "8-bit" not in found.message


@pytest.mark.parametrize("t", [3, 6, 7])
def test_no_model_is_made_over_for_a_degree_that_nobody_runs(t: int) -> None:
    errors = [one for one in sizer.check(str(CONFIGS / "qwen2.5-7b.json"), tp=t).findings if one.severity == "error"]
    assert errors
    assert {key for one in errors for offer in one.suggestions for key in offer.change} == {"tp"}


def test_of_fewer_stages_those_that_the_devices_make_are_tried() -> None:
    # 48 layers over 20: three where 2.5 are the mean. 16 stages make no 40 devices, and eight are slower.
    asked = {"gpus": 40, "p": 20, "d": 2, "b": 1, "s": 4096, "zero": 1, "checkpointing": "full"}
    (finding,) = named(sizer.check("Qwen/Qwen2.5-14B", stack="megatron-core-te", **asked), "SZ110")
    assert (finding.severity, [one.change for one in finding.suggestions]) == ("warning", [{"pp": 4, "dp": 10}])


def test_a_long_bubble_of_few_microbatches_is_offered_half_the_replicas() -> None:
    # Six microbatches over eight stages; Megatron's padding for t 8 (1.6% of the vocabulary) forbade twelve.
    asked: dict[str, Any] = {"gpus": 128, "t": 4, "p": 8, "b": 1, "s": 4096, "global_batch": 24, "zero": 1}
    asked |= {"sequence_parallel": True, "stack": "megatron-core-te", "vpp": 1}
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text()) | {"vocab_size": 32256, "head_dim": 128}
    config |= {"hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80, "intermediate_size": 28672}
    (filling,) = named(sizer.check(config, **asked), "SZ138")
    assert (filling.severity, [one.change for one in filling.suggestions]) == ("warning", [{"tp": 8, "dp": 2}])


def test_a_sequence_that_a_wrong_degree_cuts_is_of_that_degree_s_finding() -> None:
    asked: dict[str, Any] = {"t": 3, "cp": 2, "d": 4, "sequence_parallel": True, "s": 8192, "b": 1}
    (cut,) = [one for one in sizer.check(LLAMA, **asked).findings if one.severity == "error"]
    assert {"SZ105", "SZ115", "SZ127"} <= {*cut.codes}
    assert {"tp": 4} in [one.change for one in cut.suggestions]


def test_a_cache_that_does_not_fit_is_told_of_as_many_requests_as_fit() -> None:
    asked: dict[str, Any] = {"device": "h200", "phase": "decode", "t": 16, "context": 32768}
    (finding,) = named(sizer.check("moonshotai/Kimi-K2-Thinking", b=64, **asked), "SZ121")
    fewer = [one.change["microbatch"] for one in finding.suggestions if "microbatch" in one.change]
    assert fewer == [32]
    assert not named(sizer.check("moonshotai/Kimi-K2-Thinking", b=32, **asked), "SZ121")
