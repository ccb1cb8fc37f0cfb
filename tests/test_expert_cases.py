"""Would an expert sign it? `check` on published layouts and known defects (tests/data/expert_cases.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from test_public_models import shape
from tiers import every_run

import sizer
from shapes.device import load_device
from shapes.frozen import replace
from sizer.checking.findings import PricedFinding
from sizer.subject import read_subject

NAMES = ["expert", "held", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
NAMES += ["eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth"]
NAMES += ["nineteenth", "twentieth", "twenty_first", "twenty_second", "twenty_third", "twenty_fourth"]
NAMES += [
    "twenty_fifth",
    "twenty_sixth",
    "twenty_seventh",
    "twenty_eighth",
    "twenty_ninth",
    "thirtieth",
    "thirty_first",
    "thirty_second",
    "thirty_third",
]
TABLE, *HELD = (
    tomllib.loads((Path(__file__).parent / "data" / f"{name}_cases.toml").read_text(encoding="utf-8")) for name in NAMES
)
SHAPES: dict[str, Any] = {name: sizes for one in (TABLE, *HELD) for name, sizes in one.get("shapes", {}).items()}
CASES: list[dict[str, Any]] = TABLE["cases"]
#: One of each code that is expected, and the first layouts: what the fast loop runs.
FIRST = {code: case for case in reversed(CASES) for code in case["warns"] if len(case["warns"]) == 1}


#: By the case that they are of.
FOUND: dict[int, list[PricedFinding]] = {}


def warned(case: dict[str, Any]) -> list[PricedFinding]:
    """Warnings and errors on a case; two tests ask of most layouts."""
    if id(case) not in FOUND:
        model = case.get("model")
        known = shape(SHAPES[model]) if isinstance(model, str) and model in SHAPES else model
        with TemporaryDirectory() as folder:
            if "file" in case:
                known = Path(folder) / case["file"]
                known.write_text(case["text"], encoding="utf-8")
            report = sizer.check(known, device=case["device"], **case["with"])
        FOUND[id(case)] = [finding for finding in report.findings if finding.severity != "info"]
    return FOUND[id(case)]


def named(case: dict[str, Any]) -> str:
    return f"{case.get('model') or case['why']} on {case['device']} with {case['with']}"


def test_the_table_covers_layouts_releases_serving_and_defects() -> None:
    kinds = [case["kind"] for case in CASES]
    assert len(CASES) >= 200
    assert all(kinds.count(kind) >= 20 for kind in ("layout", "released", "served", "defect"))
    assert all(bool(case["warns"]) for case in CASES if case["kind"] == "defect")
    assert len(FIRST) >= 15


@pytest.mark.parametrize("code", sorted(FIRST))
def test_a_known_defect_is_warned_of_and_nothing_else(code: str) -> None:
    findings = warned(FIRST[code])
    assert [code in finding.codes for finding in findings] == [True], named(FIRST[code])


#: The first table, that of layouts, and of those that were held out until they were written the latest three; the
#: earlier are further draws of the same.
LATEST = {"expert", *NAMES[-3:]}


@pytest.mark.slow
@pytest.mark.parametrize("name", every_run(NAMES, *(name for name in NAMES if name in LATEST)))
def test_precision_and_recall_of_warnings_are_at_least_95_percent(name: str) -> None:
    cases: list[dict[str, Any]] = dict(zip(NAMES, (TABLE, *HELD), strict=True))[name]["cases"]
    right, false, found, missed = 0, [], 0, []
    for case in cases:
        wanted, findings = {*case["warns"]}, warned(case)
        codes = {code for finding in findings for code in finding.codes}
        wrong = [finding for finding in findings if not wanted & {*finding.codes}]
        right += len(findings) - len(wrong)
        false += [f"{named(case)}: {finding.code} {finding.message}" for finding in wrong]
        found += len(wanted & codes)
        missed += [f"{named(case)}: {code}" for code in wanted - codes]
    assert right / (right + len(false)) >= 0.95, false
    assert found / (found + len(missed)) >= 0.95, missed


def test_logits_to_be_fused_forbid_no_larger_microbatch() -> None:
    asked: dict[str, Any] = {"gpus": 8, "zero": 3, "b": 1, "s": 2048, "global_batch": 1024, "checkpointing": "full"}
    (found,) = [one for one in sizer.check("meta-llama/Llama-3.1-8B", **asked).findings if "SZ107" in one.codes]
    assert found.severity == "warning"


@pytest.mark.parametrize("model_type", ["llama", "mixtral", "gpt_neox"])
def test_a_width_that_t_does_not_divide_is_an_error_with_ways_out(model_type: str) -> None:
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 8, "vocab_size": 32000}
    report = sizer.check({"model_type": model_type, "intermediate_size": 14340, **sizes}, t=8, s=2048)
    (found,) = [one for one in report.findings if one.severity == "error"]
    assert ("SZ109" in found.codes, found.field) == (True, "intermediate_size")
    offered = [one.change for one in found.suggestions]
    assert {"tp": 4} in offered
    assert {"intermediate_size": 14336} in offered
    assert {one.severity for one in report.findings[1:]} <= {"info"}


def test_a_width_that_is_odd_besides_is_mended_before_the_split_is() -> None:
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 8, "vocab_size": 32000}
    report = sizer.check({"model_type": "llama", "intermediate_size": 14339, **sizes}, t=8, s=2048)
    (found,) = [one for one in report.findings if one.severity == "error"]
    assert found.codes == ("SZ109", "SZ108")
    assert [*found.suggestions[0].change] == ["intermediate_size"]
    assert found.suggestions[-1].change == {"tp": 1}


def test_what_does_not_fit_for_its_gradients_is_offered_16_bits_of_them() -> None:
    asked: dict[str, Any] = {"gpus": 256, "t": 4, "d": 64, "b": 8, "s": 1024, "zero": 1, "checkpointing": "full"}
    turing = shape(SHAPES["turing-nlg"])
    report = sizer.check(turing, device="v100-sxm", dtype="fp16", stack="megatron-2021", **asked)
    (found,) = [one for one in report.findings if one.code == "SZ121"]
    assert {"precision": "mixed-16"} in [one.change for one in found.suggestions]
    then = sizer.check(turing, device="v100-sxm", dtype="fp16", stack="megatron-2021", precision="mixed-16", **asked)
    assert not [one for one in then.findings if one.code == "SZ121"]


def test_adapters_run_in_16_bits_whatever_recipe_the_base_runs_in() -> None:
    asked: dict[str, Any] = {"gpus": 8, "t": 4, "d": 2, "b": 1, "s": 4096, "finetune": "lora", "checkpointing": "full"}
    report = sizer.check("meta-llama/Llama-3.1-8B", dtype="fp8", lora_rank=8, sequence_parallel=True, **asked)
    assert not [one for one in report.findings if "SZ109" in one.codes and one.severity != "info"]
    odd = sizer.check("meta-llama/Llama-3.1-8B", dtype="fp8", lora_rank=12, sequence_parallel=True, **asked)
    (found,) = [one for one in odd.findings if "SZ109" in one.codes]
    assert (found.severity, found.suggestions[0].change) == ("warning", {"lora_rank": 16})


@pytest.mark.slow
def test_published_layouts_are_not_warned_of() -> None:
    layouts = [case for case in CASES if case["kind"] == "layout" and not case["warns"]]
    assert [named(case) for case in layouts if warned(case)] == []


def test_what_sequence_parallelism_would_share_is_not_held_against_t_where_nobody_said_it() -> None:
    # Falcon-40B: t 2 saves 15%, most of it norms and residuals that eight ranks compute whole.
    asked: dict[str, Any] = {"t": 8, "p": 4, "d": 12, "gpus": 384, "b": 1, "s": 2048, "global_batch": 1152, "zero": 1}
    asked |= {"device": "a100-sxm-40", "checkpointing": "full", "stack": "megatron-core-te"}
    severities = [
        [one.severity for one in sizer.check("tiiuae/falcon-40b", **asked, **said).findings if "SZ106" in one.codes]
        for said in ({}, {"sequence_parallel": False})
    ]
    assert severities == [["info"], ["warning"]]


def test_messages_that_a_stack_may_hide_are_no_saving() -> None:
    # torchtitan's runs of 70 B: asynchronous tensor parallelism hides what a smaller t would save, or does not.
    asked: dict[str, Any] = {"gpus": 256, "t": 8, "d": 32, "b": 16, "s": 8192, "global_batch": 512, "zero": 3}
    asked |= {"checkpointing": "full", "sequence_parallel": True, "stack": "pytorch-fsdp-2025"}
    (found,) = [one for one in sizer.check("meta-llama/Llama-3.1-70B", **asked).findings if "SZ106" in one.codes]
    assert (found.severity, found.suggestions[0].within_error) == ("info", True)


def test_a_quantised_release_is_judged_in_the_blocks_that_it_is_kept_in() -> None:
    report = sizer.check("Qwen/Qwen3-30B-A3B-FP8", phase="decode", t=4, b=16, s=4096)
    (cut,) = [one for one in report.findings if one.code == "SZ124"]
    assert "768/4 = 192 is no multiple of 128 (fp8 in blocks of 128)" in cut.message
    assert {"ep": 4} in [one.change for one in cut.suggestions], "whole experts, and faster than tp 2"
    whole = sizer.check("Qwen/Qwen3-30B-A3B-FP8", phase="decode", t=2, b=16, s=4096)
    assert not [one for one in whole.findings if one.code == "SZ124"]


def test_cut_blocks_that_every_engine_pads_are_told_at_the_width_that_they_run_at() -> None:
    report = sizer.check("openai/gpt-oss-20b", phase="decode", t=8, b=16, s=4096)
    (cut,) = [one for one in report.findings if one.code == "SZ124"]
    assert cut.severity == "warning"
    assert "2880/8 = 360 is no multiple of 32 (MXFP4): engines pad it; padded to 384 it is 6.7% more" in cut.message


def test_engines_spread_experts_over_the_tensor_parallel_ranks_first() -> None:
    """`--tp 8 --ep 8` of a server is eight devices (vLLM, SGLang, TensorRT-LLM), of a trainer 64 (Megatron-LM)."""
    served, trained = (read_subject("Qwen/Qwen3-235B-A22B-FP8", phase=phase, t=8, e=8) for phase in ("decode", "train"))
    assert (served.workload.d, served.workload.expert_t) == (1, 1)
    assert (trained.workload.d, trained.workload.expert_t) == (8, 8)
    assert read_subject("Qwen/Qwen3-235B-A22B-FP8", phase="decode", t=1, e=8).workload.d == 8
    said = {one.code for one in sizer.check("Qwen/Qwen3-235B-A22B-FP8", phase="decode", t=8, e=8).findings}
    assert not said & {"SZ124", "SZ117"}


def test_experts_of_a_release_that_lie_whole_on_tensor_parallel_ranks_cut_no_blocks() -> None:
    asked: dict[str, Any] = {"phase": "decode", "t": 8, "b": 64, "s": 4096}
    cut, whole = (sizer.check("Qwen/Qwen3-235B-A22B-FP8", **asked, **ep) for ep in ({}, {"e": 8, "d": 1}))
    assert [one.code for one in cut.findings if one.severity == "warning"] == ["SZ124"]
    assert whole.ok
    assert whole.step is not None
    assert cut.step is not None
    assert whole.step.seconds < cut.step.seconds


def test_experts_folded_over_tensor_parallel_ranks_are_no_error() -> None:
    report = sizer.check("mistralai/Mixtral-8x7B-v0.1", t=4, e=8, gpus=8, s=4096)
    (folded,) = [one for one in report.findings if one.code == "SZ117"]
    assert folded.severity == "info"
    assert "parallel folding" in folded.message
    # Priced as it runs: whole experts, a quarter of the tokens each.
    assert report.step == sizer.check("mistralai/Mixtral-8x7B-v0.1", t=4, e=8, etp=1, gpus=8, s=4096).step
    assert not {"SZ118", "SZ123"} & {*report.not_applicable}
    refused = sizer.check("mistralai/Mixtral-8x7B-v0.1", t=1, e=8, d=4, s=4096)
    assert [one.severity for one in refused.findings if one.code == "SZ117"] == ["error"]


def test_a_default_microbatch_is_not_held_against_the_global_batch() -> None:
    default = sizer.check("meta-llama/Llama-3.1-8B", d=1024, global_batch=2048, zero=3, s=4096, checkpointing="full")
    (finding,) = [one for one in default.findings if one.code == "SZ120"]
    assert finding.severity == "info"
    said = sizer.check("meta-llama/Llama-3.1-8B", b=4, d=1024, global_batch=2048, zero=3, s=4096, checkpointing="full")
    assert [one.severity for one in said.findings if one.code == "SZ120"] == ["error"]


def test_a_split_that_fits_with_fused_kernels_is_no_finding() -> None:
    layout: dict[str, Any] = {"t": 4, "p": 4, "cp": 2, "vpp": 5, "gpus": 64, "b": 1, "s": 8192, "global_batch": 128}
    report = sizer.check("meta-llama/Meta-Llama-3.1-70B", zero=1, sequence_parallel=True, **layout)
    assert not [one for one in report.findings if one.code == "SZ121"]
    modules = sizer.check("meta-llama/Meta-Llama-3.1-70B", zero=1, implementation="huggingface", **layout)
    assert [one.severity for one in modules.findings if one.code == "SZ121"] == ["error"]


def test_a_smaller_t_hands_its_devices_to_data_parallelism() -> None:
    report = sizer.check("meta-llama/Llama-3.1-8B", t=8, gpus=64, zero=1, checkpointing="full", b=1, s=4096)
    (smaller,) = [one for one in report.findings if "SZ106" in one.codes]
    assert smaller.suggestions[0].change == {"tp": 1, "dp": 64}


@pytest.mark.parametrize(("model", "cp", "severities"), [("7B", 8, ["warning"]), ("7B", 4, []), ("32B", 40, [])])
def test_ulysses_hands_out_whole_heads(model: str, cp: int, severities: list[str]) -> None:
    layout: dict[str, Any] = {"gpus": cp, "cp": cp, "d": 1, "b": 1, "s": 81920, "zero": 3, "cp_comm": "a2a"}
    report = sizer.check(f"Qwen/Qwen2.5-{model}", checkpointing="full", **layout)
    found = [one for one in report.findings if one.code == "SZ127"]
    assert [one.severity for one in found] == severities
    for one in found:
        # Rings ask for no heads.
        assert [change.change for change in one.suggestions] == [{"cp_comm": "p2p"}]
    ring = sizer.check(f"Qwen/Qwen2.5-{model}", checkpointing="full", **{**layout, "cp_comm": "p2p"})
    assert not [one for one in ring.findings if one.code == "SZ127"]


def test_a_degree_alone_is_no_layout_whose_t_could_be_smaller() -> None:
    report = sizer.check("meta-llama/Llama-3.1-8B", t=8, zero=1, checkpointing="full", b=1, s=4096)
    assert not [one for one in report.findings if "SZ106" in one.codes]
    (note,) = [one for one in report.model.notes if "tensor parallelism" in one]
    assert note.startswith("tensor parallelism of 8 where 1 fits in memory; --tp 8 is a part of a layout")


def test_a_smaller_t_that_fits_with_fewer_sequences_is_offered_at_the_same_tokens() -> None:
    asked: dict[str, Any] = {"t": 8, "d": 8, "gpus": 64, "b": 12, "s": 8192, "zero": 3, "sequence_parallel": True}
    fsdp: dict[str, Any] = {"checkpointing": "every-second-product", "stack": "pytorch-fsdp-2025"}
    report = sizer.check("meta-llama/Llama-3.1-8B", device="h100-sxm-96", **asked, **fsdp)
    (smaller,) = [one for one in report.findings if "SZ106" in one.codes]
    change = smaller.suggestions[0].change
    assert (int(change["tp"]) * int(change["dp"]), int(change["microbatch"]) * int(change["dp"])) == (64, 12 * 8)


def test_what_is_served_fits_only_where_its_weights_and_cache_do() -> None:
    # 671 GB in eight parts is 79.3 GiB of an H100's 79.6, and the cache of 16 requests 4.3 more.
    report = sizer.check("deepseek-ai/DeepSeek-V3.1-Terminus", phase="decode", t=8, b=16, s=4096)
    assert [one.severity for one in report.findings if one.code == "SZ121"] == ["error"]


def test_one_key_value_head_is_held_by_every_rank_and_no_fault() -> None:
    case = {"model": "gemma-2b", "device": "h100-sxm", "with": {"t": 4, "s": 4096}}
    assert not [one for one in warned(case) if one.code == "SZ115"]


def test_the_head_is_aligned_in_the_type_that_it_runs_in() -> None:
    # 202048 / 8 = 25256 = 8 x 3157: 16 bytes of bf16, which recipes leave the head in, and not of fp8.
    report = sizer.check("meta-llama/Llama-4-Scout-17B-16E-Instruct", phase="decode", t=8, b=8, s=4096, dtype="fp8")
    assert [one.severity for one in report.findings if one.code == "SZ101"] in ([], ["info"])


def test_mfu_of_a_recipe_is_told_over_each_products_own_peak() -> None:
    report = sizer.check("meta-llama/Llama-3.1-8B", dtype="fp8", b=1, s=4096, checkpointing="full")
    (note,) = [one for one in report.model.notes if "own peak" in one]
    assert note.startswith("its FLOPs are of fp8, bf16: MFU ")
    own = float(note.split("MFU ")[1].split("%")[0]) / 100
    # bf16's peak is half of fp8's: between the MFU over fp8's peak alone and twice it.
    assert report.step.mfu is not None
    assert report.step.mfu < own < 2 * report.step.mfu
    plain = sizer.check("meta-llama/Llama-3.1-8B", b=1, s=4096, checkpointing="full")
    assert not [one for one in plain.model.notes if "own peak" in one]


@pytest.mark.parametrize(("layers", "severities"), [(72, ["info"]), (84, ["error"])])
def test_a_step_that_is_over_by_what_memory_is_off_by_may_fit(layers: int, severities: list[str]) -> None:
    bloom = shape({"h": 14336, "a": 64, "L": layers, "f": 57344, "v": 250880, "gated": False})
    asked: dict[str, Any] = {
        "gpus": 384,
        "t": 8,
        "p": 2,
        "d": 24,
        "b": 2,
        "s": 2048,
        "zero": 1,
        "checkpointing": "full",
    }
    report = sizer.check(bloom, device="a100-sxm", stack="megatron-2021", **asked)
    found = [one for one in report.findings if one.code == "SZ121"]
    assert [one.severity for one in found] == severities
    assert ["it may fit" in one.message for one in found] == [one == "info" for one in severities]


def test_logits_that_do_not_fit_name_a_fused_loss() -> None:
    report = sizer.check("google/gemma-3-12b-pt", gpus=64, zero=3, b=4, s=8192, checkpointing="full")
    (found,) = [one for one in report.findings if one.code == "SZ121"]
    assert "fused cross-entropy (SZ133)" in found.message


@pytest.mark.parametrize(("asked", "severity"), [({"global_batch": 2}, "warning"), ({}, "info")])
def test_muon_that_takes_a_fifth_of_a_step_is_warned_of_where_its_sequences_are_said(
    asked: dict[str, Any], severity: str
) -> None:
    report = sizer.check("meta-llama/Llama-3.1-8B", device="b300", gpus=1, b=2, s=2048, optimizer="muon", **asked)
    assert [one.severity for one in report.findings if one.code == "SZ134"] == [severity]


@pytest.mark.parametrize("device", ["v100-sxm", "t4", "h100-sxm"])
def test_muon_is_checked_on_devices_without_bf16(device: str) -> None:
    report = sizer.check("openai-community/gpt2", device=device, dtype="fp16", optimizer="muon", b=1)
    assert "SZ134" not in report.not_applicable
    assert report.step is not None


def test_what_may_fit_is_no_warning_where_a_way_out_is_faster() -> None:
    report = sizer.check("Qwen/Qwen3-32B", device="mi300x", phase="decode", t=1, b=64, s=8192)
    (found,) = [one for one in report.findings if one.code == "SZ121"]
    assert ("it may fit" in found.message, found.severity) == (True, "info")
    assert found.suggestions[0].step_seconds_change is not None
    assert found.suggestions[0].step_seconds_change < 0


def test_over_slow_links_the_t_between_is_offered() -> None:
    # Over PCIe without peer access, as NCCL 2.27 was timed on a machine with L40S (aiconfigurator-core 0.12), gradients
    # of one rank each take longer than the messages of two.
    asked: dict[str, Any] = {"gpus": 8, "t": 4, "d": 2, "b": 1, "s": 4096, "zero": 1, "checkpointing": "full"}
    l40s = load_device("l40s")
    kinds = {kind: dict(table) for kind, table in l40s.cost["collective"].items()}
    for kind, shares in {
        "all_reduce": [0.6364, 0.1598, 0.04784],
        "all_gather": [0.6213, 0.1467, 0.03997],
        "reduce_scatter": [0.5913, 0.156, 0.05206],
    }.items():
        kinds[kind]["bandwidth_share"] = shares
    slow = replace(l40s, cost={**l40s.cost, "collective": kinds})
    report = sizer.check("internlm/internlm2_5-1_8b-chat", device=slow, stack="megatron-core-te", **asked)
    (smaller,) = [one for one in report.findings if "SZ106" in one.codes]
    offered = [one.change for one in smaller.suggestions]
    assert (smaller.severity, offered) == ("warning", [{"tp": 2, "dp": 4}])
    assert report.step is not None
    whole = sizer.check(
        "internlm/internlm2_5-1_8b-chat", device=slow, stack="megatron-core-te", **asked | {"t": 1, "d": 8}
    )
    assert whole.step is not None
    assert whole.step.seconds / 4 > report.step.seconds


def test_what_data_parallelism_saves_over_a_network_that_nobody_stated_is_no_fault_of_t() -> None:
    asked: dict[str, Any] = {"gpus": 2048, "t": 8, "d": 256, "s": 2048, "global_batch": 2048, "zero": 3}
    asked |= {"checkpointing": "full", "sequence_parallel": True, "stack": "megatron-core-te"}
    report = sizer.check(shape(SHAPES["llama-65b"]), device="a100-sxm", **asked)
    (smaller,) = [one for one in report.findings if "SZ106" in one.codes]
    assert (smaller.severity, smaller.suggestions[0].within_error) == ("info", True)


def test_what_waits_for_memory_is_charged_with_no_messages() -> None:
    asked: dict[str, Any] = {"gpus": 64, "d": 64, "b": 1, "s": 4096, "zero": 3, "checkpointing": "full"}
    report = sizer.check("arcee-ai/Trinity-Mini", device="b200", stack="pytorch-fsdp-2025", **asked)
    (slow,) = [one for one in report.findings if "SZ118" in one.codes]
    # A tenth of the step is such products; a larger microbatch also gathers weights half as often.
    assert report.step is not None
    assert slow.step_seconds is not None
    assert slow.step_seconds < 0.1 * report.step.seconds < -(slow.suggestions[0].step_seconds_change or 0)


def test_a_change_that_two_rules_offer_is_worth_what_it_saves_of_the_larger_cause() -> None:
    asked: dict[str, Any] = {"t": 8, "e": 8, "p": 2, "b": 1}
    report = sizer.check("zai-org/GLM-4.5-Air", device="b200", **asked)
    (slow,) = [one for one in report.findings if {"SZ118", "SZ123"} <= {*one.codes}]
    assert report.step is not None
    waits_s = report.step.parts["waiting for the host"]
    # The device waits for the host longer than products wait for memory.
    assert slow.step_seconds == pytest.approx(waits_s)
    assert not slow.suggestions[0].within_error
