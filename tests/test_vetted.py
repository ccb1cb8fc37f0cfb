"""Suggestions are vetted whole: applied, none leaves a worse finding, and those of one report go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tiers import draws

import sizer
from shapes.device import Device, load_device
from shapes.errors import InputError
from shapes.workload import WORKLOAD_FIELDS, workload_fields
from sizer.checking.checks import check_subject
from sizer.checking.findings import SEVERITIES, PricedSuggestion, Report
from sizer.checking.grading import TIE, grade, propose
from sizer.readers.reading import Source, table
from sizer.rules import find_rule
from sizer.subject import Subject, read_subject

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}


@st.composite
def configurations(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dense models and mixtures, trained, over stages, prefilled and decoded, in bf16 and fp8, on four devices."""
    dim = draw(st.sampled_from([64, 72, 80, 96, 100, 128, 160]))
    kv = draw(st.sampled_from([1, 2, 4, 8, 5]))
    heads = kv * draw(st.sampled_from([1, 2, 4, 7, 8]))
    hidden = heads * dim
    assume(256 <= hidden <= 8192)
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "num_hidden_layers": draw(st.sampled_from([12, 24, 32, 40])),
        "intermediate_size": draw(st.sampled_from([8 * hidden // 3, 4 * hidden, 11008, 13653])),
        "vocab_size": draw(st.sampled_from([32000, 50257, 128256])),
    }
    if draw(st.booleans()):
        config |= {
            "model_type": "mixtral",
            "num_local_experts": draw(st.sampled_from([8, 60])),
            "num_experts_per_tok": 2,
        }
    asked = {"t": draw(st.sampled_from([1, 2, 8])), "b": draw(st.sampled_from([1, 4])), "s": 2048}
    layout = {"p": draw(st.sampled_from([1, 4, 8])), "gpus": 256, "global_batch": 1024, "zero": 1}
    run: list[dict[str, Any]] = [{}, layout, {"phase": "decode"}, {"phase": "prefill"}, {"dtype": "fp8"}]
    device = draw(st.sampled_from(["h100-sxm", "a100-sxm", "mi300x", "b200"]))
    return config, {**asked, **draw(st.sampled_from(run)), "device": device}


def worst(report: Report) -> dict[str, int]:
    """Of what is broken outright; a cost alone weighs more in a step that is shorter."""
    found: dict[str, int] = {}
    for finding in report.findings:
        if finding.violated or finding.severity == "error":
            for code in (one for one in finding.codes if finding.severity == "error" or not find_rule(one).of_costs):
                found[code] = min(found.get(code, 2), SEVERITIES.index(finding.severity))
    return found


def said_next(one: PricedSuggestion) -> set[str]:
    """Rules that a suggestion says are to be kept next."""
    return {*one.note.partition("then fix ")[2].partition(";")[0].split(", ")}


def unsaid(subject: Subject, device: Device) -> dict[str, float]:
    """Code -> seconds that mending it saves, told or not worth a line."""
    own = propose(subject, device)
    found: dict[str, float] = {}
    for rule, finding in own.findings():
        saved = [offer.saving for offer in grade(rule, finding, own, own).offers]
        found[rule.code] = max([found.get(rule.code, 0.0), *saved])
    return found


RUNS: list[dict[str, Any]] = [
    {},
    {"gpus": 256, "global_batch": 1024, "zero": 1, "p": 4, "checkpointing": "full"},
    {"gpus": 64, "global_batch": 1024, "zero": 3, "checkpointing": "full"},
    {"gpus": 64, "global_batch": 512, "zero": 1, "e": 8},
    {"phase": "decode", "b": 16},
    {"phase": "prefill"},
    {"dtype": "fp8"},
]
#: Sizes that released files are given other values of, and by how much.
MOVED = ["hidden", "heads", "kv_heads", "d_ff", "expert_d_ff", "experts", "vocab", "layers"]


@pytest.mark.slow
@draws(60)
@given(
    name=st.sampled_from(sorted(table("released"))),
    device=st.sampled_from(["h100-sxm", "a100-sxm", "b200", "mi300x", "h200", "l40s", "v100-sxm", "rtx-4090"]),
    split=st.fixed_dictionaries({"t": st.sampled_from([1, 2, 4, 8]), "b": st.sampled_from([1, 4])}),
    run=st.sampled_from(RUNS),
    moved=st.none() | st.tuples(st.sampled_from(MOVED), st.sampled_from([-64, -8, -2, -1, 1, 2, 4, 8, 12, 64, 128])),
)
@example(name="EleutherAI/pythia-14m", device="h100-sxm", split={"t": 2, "b": 1}, run=RUNS[1], moved=None)
def test_what_is_offered_of_a_released_file_is_applied_as_it_was_priced_and_leaves_nothing_worse_unsaid(
    name: str, device: str, split: dict[str, int], run: dict[str, Any], moved: tuple[str, int] | None
) -> None:
    asked, sizes, on = {"s": 2048, **split, **run}, dict[str, int](), load_device(device)

    def checked(change: dict[str, Any], fields: dict[str, Any]) -> tuple[Subject, Report]:
        subject = read_subject(Source(name, {**sizes, **change}), nearest=True, **{**asked, **fields})
        return subject, check_subject(subject, on)

    try:
        subject, report = checked({}, {})
        keys = subject.reading.keys if subject.reading is not None else {}
        if moved is not None and moved[0] in keys and "." not in keys[moved[0]]:
            sizes[keys[moved[0]]] = max(1, subject.dimensions[moved[0]] + moved[1])
            subject, report = checked({}, {})
    except InputError:
        return
    names = {subject.name_of(field): field for field in WORKLOAD_FIELDS}
    before: dict[str, int] = {}
    for found in report.findings:
        for code in found.codes:
            before[code] = min(before.get(code, 2), SEVERITIES.index(found.severity))
    saved = unsaid(subject, on)
    for one in [*(one for found in report.findings for one in found.suggestions), report.joint]:
        if one is None or one.step_seconds_change is None:
            continue
        fields = {names[key]: value for key, value in one.change.items() if key in names}
        then, after = checked({key: value for key, value in one.change.items() if key not in names}, fields)
        assert report.step is not None
        assert after.step is not None
        runs = [each.asked or each.workload for each in (subject, then)]
        tokens = [each.tokens * each.accumulation / each.model_ranks for each in runs]
        scale = 1.0 if subject.workload.serving else tokens[0] / tokens[1]
        part = TIE * report.step.seconds + 1e-9
        for found in after.findings:
            was = min(before.get(code, 2) for code in found.codes)
            if SEVERITIES.index(found.severity) < was and said_next(one).isdisjoint(found.codes):
                assert found.severity != "error", (found, one)
                assert not found.violated, (found, one)
                # A cost alone weighs more in a step that is shorter.
                cost, known = found.step_seconds or 0.0, max(saved.get(code, 0.0) for code in found.codes)
                assert subject.asked is not None or cost * scale <= known + 2 * part, (found, one)
        # Steps of two head dimensions are compared by one's attention factor, which is said.
        if subject.asked is None and not fields and "attention factor" not in one.note:
            gained = after.step.seconds - report.step.seconds
            assert gained == pytest.approx(one.step_seconds_change, abs=2 * part)


def applied(config: dict[str, Any], asked: dict[str, Any], one: PricedSuggestion) -> tuple[dict[str, Any], Report]:
    sizes = {key: value for key, value in one.change.items() if key in config}
    fields = workload_fields({key: value for key, value in one.change.items() if key not in config})
    return {**config, **sizes}, sizer.check({**config, **sizes}, **{**asked, **fields})


@pytest.mark.slow
@draws(30)
@given(drawn=configurations())
def test_no_suggestion_leaves_a_worse_finding_and_practice_is_kept(
    drawn: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    config, asked = drawn
    try:
        report = sizer.check(config, **asked)
    except InputError:
        return
    before = worst(report)
    offered = [one for finding in report.findings for one in finding.suggestions]
    for one in [*offered, *([report.joint] if report.joint is not None else [])]:
        new, then = applied(config, asked, one)
        if 0 not in before.values():  # what cannot run hides what else there is to say
            worse = {code for code, level in worst(then).items() if level < before.get(code, 2)}
            assert worse <= said_next(one), one
        heads, kv_heads, dim = "num_attention_heads", "num_key_value_heads", "head_dim"
        kept = {
            "query heads": config[heads] * new[kv_heads] == new[heads] * config[kv_heads],
            "8 shards": config[heads] % 8 or not new[heads] % 8,
            "power of two": config[dim] & (config[dim] - 1) or not new[dim] & (new[dim] - 1),
        }
        assert all(same or what in one.note for what, same in kept.items()), one


def test_what_saves_is_said_though_more_is_to_be_saved_after_it() -> None:
    # Fewer stages save 10 ms of 60, and then a larger microbatch 13: each was hushed for what it leaves.
    asked: dict[str, Any] = {"t": 2, "b": 1, "s": 2048, "gpus": 256, "global_batch": 1024, "zero": 1, "p": 4}
    report = sizer.check("EleutherAI/pythia-14m", device="h100-sxm", checkpointing="full", **asked)
    (uneven,) = [one for one in report.findings if "SZ110" in one.codes]
    assert uneven.severity == "warning"
    assert uneven.suggestions[0].change == {"pp": 1, "dp": 128}
    assert said_next(uneven.suggestions[0]) >= {"SZ107"}
    said = json.loads(report.to_json())["reports"][0]["findings"]  # numbers of numpy's have no JSON
    assert [one["step_seconds"] for one in said if one["code"] == "SZ110"] == [uneven.step_seconds]


def test_what_is_joined_is_no_other_model() -> None:
    # Experts of 1024 in place of 1408 would be 27 B parameters less, with ZeRO 2.
    asked: dict[str, Any] = {"gpus": 64, "t": 8, "b": 1, "s": 4096, "zero": 1, "sequence_parallel": True}
    report = sizer.check("zai-org/GLM-4.5-Air", device="a100-sxm", stack="megatron-core-te", **asked)
    assert [one.change for finding in report.findings for one in finding.suggestions if one.parameters_change]
    assert report.joint is None or abs(report.joint.parameters_change or 0) <= 0.02 * report.model.parameters


def test_the_joint_saving_is_no_less_than_the_best_and_no_more_than_the_sum() -> None:
    config = {**GPT2, "n_inner": 3070, "n_embd": 760, "n_head": 10}
    report = sizer.check(config, b=8, s=1024)
    assert report.joint is not None
    saved = [-(one.suggestions[0].step_seconds_change or 0) for one in report.findings if one.suggestions]
    assert len(saved) > 1
    joint = -(report.joint.step_seconds_change or 0)
    assert max(saved) <= joint <= 1.05 * sum(saved)
    assert "if fixed: step " in str(report)


def test_what_fits_by_itself_alone_is_not_joined() -> None:
    # Recomputing nothing fits, so does t 2, and both do not.
    layout: dict[str, Any] = {"gpus": 64, "t": 8, "p": 2, "b": 2, "s": 2048, "global_batch": 512, "zero": 1}
    report = sizer.check("tiiuae/falcon-40b", device="a100-sxm", checkpointing="full", **layout)
    alone = [one.change for found in report.findings for one in found.suggestions]
    assert {"checkpointing": "none"} in alone
    assert any("tp" in one for one in alone)
    assert report.joint is None


def test_one_suggestion_has_no_joint_saving() -> None:
    report = sizer.check(GPT2)
    assert len([one for one in report.findings if one.suggestions]) <= 1 or report.joint is not None
    assert sizer.check({**GPT2, "vocab_size": 50304}, b=8).joint is None


def test_no_smaller_split_is_offered_that_its_memory_does_not_fit() -> None:
    # 80 B in 16 bits fill four devices of 80 GB, and two of 141.
    asked: dict[str, Any] = {"phase": "decode", "t": 4, "b": 32, "s": 4096}
    for device, offered in (("h100-sxm", []), ("h200", [{"tp": 2}])):
        report = sizer.check("Qwen/Qwen3-Next-80B-A3B-Instruct", device=device, **asked)
        (copied,) = [one for one in report.findings if "SZ115" in one.codes]
        assert [one.change for one in copied.suggestions] == offered


def test_no_change_is_offered_that_cannot_fit_where_what_runs_now_may() -> None:
    # t 8 needs 33.5 GiB of 32 and may fit; t 4 needs 40.8, and 29 with half the microbatch.
    asked: dict[str, Any] = {"t": 8, "e": 8, "b": 4, "s": 2048, "gpus": 64, "global_batch": 512, "zero": 1}
    report = sizer.check("Alibaba-NLP/Tongyi-DeepResearch-30B-A3B", device="v100-sxm", **asked)
    (copied,) = [one for one in report.findings if "SZ115" in one.codes]
    assert [one.change for one in copied.suggestions] == [{"tp": 4, "microbatch": 2, "dp": 16}]


def test_layers_that_run_again_on_more_stages_are_no_more_than_those_hold() -> None:
    # Twelve of 48 layers were offered with eight stages of six, which is refused.
    asked: dict[str, Any] = {"b": 4, "s": 2048, "gpus": 64, "global_batch": 512, "zero": 1, "e": 8}
    report = sizer.check("LGAI-EXAONE/K-EXAONE-236B", device="h20", **asked)
    (full,) = [one for one in report.findings if "SZ121" in one.codes]
    assert any("pp" in one.change for one in full.suggestions)
    for one in full.suggestions:
        then = sizer.check("LGAI-EXAONE/K-EXAONE-236B", device="h20", **{**asked, **workload_fields(dict(one.change))})
        assert "SZ121" not in {code for each in then.findings if each.severity == "error" for code in each.codes}


def test_a_suggestion_has_its_own_price_where_its_finding_is_worth_less() -> None:
    asked: dict[str, Any] = {"gpus": 128, "global_batch": 1024, "b": 1, "s": 4096, "checkpointing": "full"}
    report = sizer.check("mosaicml/mpt-7b", t=16, d=8, **asked)
    assert report.step is not None
    (idle,) = [one for one in report.findings if "SZ113" in one.codes]
    halved = next(one for one in idle.suggestions if one.change == {"tp": 8, "dp": 16})
    then = sizer.check("mosaicml/mpt-7b", t=8, d=16, **asked)
    assert then.step is not None
    assert halved.step_seconds_change is not None
    assert report.step.seconds + halved.step_seconds_change == pytest.approx(then.step.seconds, rel=1e-3)
    assert idle.step_seconds is not None
    assert idle.step_seconds < -halved.step_seconds_change


def test_a_vocabulary_that_is_padded_as_it_is_loaded_is_no_finding() -> None:
    odd: dict[str, Any] = {**GPT2, "vocab_size": 32001}
    for asked in ({"phase": "decode"}, {"stack": "megatron-core-te"}, {"stack": "megatron-core-te", "t": 4}):
        assert not [one for one in sizer.check(odd, s=1024, **asked).findings if "SZ101" in one.codes]
    assert [one for one in sizer.check(odd, s=1024).findings if "SZ101" in one.codes]


def test_a_way_out_of_two_errors_of_one_cause_leaves_neither() -> None:
    asked: dict[str, Any] = {"b": 2, "s": 4096, "p": 4, "gpus": 64, "global_batch": 256}
    report = sizer.check("tiiuae/Falcon-H1-0.5B-Instruct", t=16, **asked)
    (cut,) = [one for one in report.findings if one.severity == "error"]
    assert {"SZ105", "SZ129"} <= {*cut.codes}
    assert cut.suggestions
    for one in cut.suggestions:
        then = sizer.check("tiiuae/Falcon-H1-0.5B-Instruct", **{**asked, **workload_fields(dict(one.change))})
        assert then.worst() != "error", one.change


def test_no_way_out_leaves_an_error_of_the_same_cause_or_none_that_it_hid() -> None:
    # 5973 is odd: with 16 heads the split would still not run. A sequence of 2048 does not divide over 12 ranks.
    neox = {"model_type": "gpt_neox", "hidden_size": 2240, "num_attention_heads": 20, "num_hidden_layers": 61}
    cut = sizer.check({**neox, "vocab_size": 32000, "intermediate_size": 5973}, phase="prefill", t=8, b=32, s=8192)
    assert [one.change for one in cut.findings[0].suggestions] == [{"tp": 1}]
    asked: dict[str, Any] = {"t": 3, "cp": 4, "d": 8, "sequence_parallel": True, "s": 2050, "b": 4}
    ranks = sizer.check({**GPT2, "vocab_size": 50304, "n_positions": 8192}, **asked)
    (cut_sequence,) = [one for one in ranks.findings if "SZ127" in one.codes]
    assert all(int(one.change["sequence"]) % 24 == 0 for one in cut_sequence.suggestions)


def test_of_values_of_one_field_the_one_that_mends_most_is_offered() -> None:
    mixtral = {"model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 2}
    experts = {"intermediate_size": 1408, "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 40}
    layout: dict[str, Any] = {
        "t": 8,
        "p": 2,
        "d": 8,
        "gpus": 128,
        "zero": 3,
        "checkpointing": "full",
        "b": 4,
        "s": 2048,
    }
    report = sizer.check({**mixtral, **experts, "vocab_size": 128256}, device="b200", **layout)
    (split,) = [one for one in report.findings if "SZ115" in one.codes]
    assert (split.codes, [one.change for one in split.suggestions]) == (("SZ115", "SZ106"), [{"tp": 1, "dp": 64}])


def test_nothing_is_said_of_blocks_over_ranks_that_cannot_run() -> None:
    report = sizer.check("mosaicml/mpt-7b-chat", device="mi300x", t=3, b=1, s=2048, dtype="fp8")
    assert [one.codes for one in report.findings if one.severity != "info"] == [("SZ105",)]


def test_no_width_is_offered_that_the_file_has_no_key_for() -> None:
    # MPT says its width as a multiple of the hidden size.
    mpt = {"model_type": "mpt", "d_model": 4112, "n_heads": 16, "n_layers": 32, "vocab_size": 50432}
    report = sizer.check({**mpt, "expansion_ratio": 4}, t=8, b=1, s=2048, dtype="fp8")
    offered = {key for found in report.findings for one in found.suggestions for key in one.change}
    assert offered
    assert "d_ff" not in offered


def test_devices_that_do_not_come_out_keep_degrees_or_take_powers_of_two() -> None:
    report = sizer.check(GPT2, gpus=264, t=2, p=2, cp=4, d=16, b=1, s=1024)
    (devices,) = [one for one in report.findings if one.code == "SZ120"]
    assert [one.change for one in devices.suggestions] == [{"cp": 2, "dp": 33}]
    twelve = sizer.check("meta-llama/Llama-3.1-8B", gpus=96, t=2, p=12, d=8, b=1, s=1024)
    assert [one.suggestions[0].change for one in twelve.findings if one.code == "SZ120"] == [{"dp": 4}]


def test_shared_experts_follow_the_width_that_their_key_says() -> None:
    mixture = {"model_type": "deepseek_v3", "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 4}
    experts = {"n_routed_experts": 64, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}
    ranks = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    config = {**mixture, **experts, **ranks, "first_k_dense_replace": 1, "vocab_size": 102400}
    asked: dict[str, Any] = {"b": 4, "s": 4096}
    report = sizer.check({**config, "intermediate_size": 10944, "moe_intermediate_size": 1412}, **asked)
    (found,) = [one for one in report.findings if one.code == "SZ117"]
    (best, *_) = found.suggestions
    assert best.change == {"moe_intermediate_size": 1408}
    then = sizer.check({**config, "intermediate_size": 10944, **best.change}, **asked)
    assert then.model.parameters - report.model.parameters == best.parameters_change
    assert then.step_s - report.step_s == pytest.approx(best.step_seconds_change, rel=0.01)


#: Heads of 80, 100 and 32, a latent without a kernel, waves that idle, cut blocks, copied heads: as released.
SERVED = [
    ("facebook/opt-2.7b", "a100-sxm", {"phase": "prefill", "b": 1, "s": 2048}),
    ("openlm-research/open_llama_3b", "l4", {"phase": "decode", "b": 8, "s": 2048}),
    ("intfloat/e5-small-v2", "l4", {"phase": "infer", "b": 32, "s": 512}),
    ("openbmb/MiniCPM3-4B", "h100-sxm", {"phase": "decode", "b": 16, "s": 4096}),
    ("meta-llama/Llama-3.1-8B", "a100-sxm", {"phase": "decode", "t": 4, "b": 16, "s": 2048}),
    ("openai/gpt-oss-120b", "h100-sxm", {"phase": "decode", "t": 8, "b": 64, "s": 4096}),
    ("Qwen/Qwen3.5-397B-A17B", "h200", {"phase": "decode", "t": 8, "b": 16, "s": 4096}),
]


@pytest.mark.parametrize(("model", "device", "asked"), SERVED)
def test_of_weights_that_are_served_nothing_is_advised_but_to_run_them_otherwise(
    model: str, device: str, asked: dict[str, Any]
) -> None:
    report = sizer.check(model, device=device, **asked)
    for finding in report.findings:
        for one in finding.suggestions:
            assert workload_fields(one.change).keys() <= {*WORKLOAD_FIELDS}
        # A breach that only other weights mend is a note; blocks that ranks cut, engines take or refuse.
        assert finding.severity == "info" or finding.suggestions or "SZ124" in finding.codes


def test_who_serves_a_design_of_his_own_may_choose_its_widths() -> None:
    own = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 30}
    report = sizer.check({**own, "intermediate_size": 10922, "vocab_size": 32000}, phase="prefill", b=1, s=4096)
    (width,) = [one for one in report.findings if "SZ108" in one.codes]
    assert width.severity == "warning"
    assert [*width.suggestions[0].change] == ["intermediate_size"]


def test_weights_next_to_a_configuration_are_served_as_they_are(tmp_path: Path) -> None:
    own = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 30}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**own, "intermediate_size": 10922, "head_dim": 100, "vocab_size": 32000}), "utf-8")
    designed = sizer.check(path, phase="prefill", b=1, s=4096)
    (tmp_path / "model.safetensors").touch()
    served = sizer.check(path, phase="prefill", b=1, s=4096)
    heads = [[one for one in report.findings if "SZ114" in one.codes] for report in (designed, served)]
    assert [[one.severity for one in found] for found in heads] == [["warning"], ["info"]]
    assert [bool(found[0].suggestions) for found in heads] == [True, False]


def test_copied_heads_are_a_warning_in_decoding_where_fewer_ranks_are_faster() -> None:
    found = [
        [
            one
            for one in sizer.check("meta-llama/Llama-3.1-8B", phase="decode", t=t, b=16).findings
            if one.code == "SZ115"
        ]
        for t in (8, 16)
    ]
    assert found[0] == []
    (copied,) = found[1]
    assert (copied.severity, copied.suggestions[0].change) == ("warning", {"tp": 8})
    (slower,) = sizer.check("Qwen/Qwen3.5-397B-A17B", device="h200", phase="decode", t=8, b=16, s=4096).findings
    assert (slower.code, slower.severity, slower.suggestions) == ("SZ115", "info", ())
