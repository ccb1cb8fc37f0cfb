"""Relations that hold of any model: what the metamorphic campaigns looked for, drawn anew each night.

The nightly workflow's seed is its date (SIZER_SEED=YYYYMMDD draws a day's again); a failure prints it. Elsewhere the
seed stays, so that a change is not refused for what another day's draw finds, and fewer are drawn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, reject, seed, settings
from hypothesis import strategies as st

import sizer
from shapes.device import load_device
from shapes.step import Step
from shapes.workload import WORDS, WORKLOAD_FIELDS, workload_fields
from sizer.checking.checks import CheckRequest, Settled, report_of
from sizer.checking.findings import PricedSuggestion
from sizer.checking.fixes import ConfigText, fix_of
from sizer.checking.grading import equal_work
from sizer.searching.space import NothingLeftError
from sizer.subject import Subject

SEED = int(os.environ.get("SIZER_SEED", "20261123"))
DEVICES = ("a100-sxm-80gb", "h100-sxm", "h200", "b200", "a10", "mi300x")


@pytest.fixture(autouse=True)
def said() -> None:
    """What a failure shows."""
    sys.stdout.write(f"SIZER_SEED={SEED} python -m pytest tests/test_relations.py draws the same\n")


def relation(*, draws: int = 6, **drawn: Any) -> Callable[[Callable[..., None]], Any]:
    """A property drawn by the day's seed; half as often where none was given."""
    chosen = settings(max_examples=draws if "SIZER_SEED" in os.environ else -(-draws // 2), database=None)
    return lambda function: seed(SEED)(chosen(given(**drawn)(function)))


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """A llama or a Mixtral whose sizes need be no multiples of anything."""
    kv = draw(st.sampled_from((1, 2, 4, 8)))
    heads, head_dim = kv * draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((32, 64, 80, 96, 128)))
    made = {
        "model_type": "llama",
        "hidden_size": draw(st.integers(4, 48)) * draw(st.sampled_from((8, 50, 64, 128))),
        "intermediate_size": draw(st.integers(512, 12000)),
        "num_hidden_layers": draw(st.integers(1, 12)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "vocab_size": draw(st.integers(1000, 130000)),
        "max_position_embeddings": 65536,
        "tie_word_embeddings": draw(st.booleans()),
    }
    if draw(st.integers(0, 3)) == 0:
        made |= {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}
    return made


SIZES = {
    "b": st.integers(1, 8),
    "s": st.sampled_from((512, 1000, 1024, 2048, 4096)),
    "device": st.sampled_from(DEVICES),
}


#: Degrees over which the models divide, with 16 layers.
DEGREES = {"t": st.sampled_from((1, 2, 4)), "p": st.sampled_from((1, 2, 4)), "cp": st.sampled_from((1, 2))}
OPTIMIZERS = (None, "sgd", "muon", "adamw-8bit")


def step(config: dict[str, Any], **asked: Any) -> float:
    found = sizer.check(config, **asked).step
    assert found is not None
    return float(found.seconds)


def seconds(config: dict[str, Any], **asked: Any) -> float:
    """Those of ``step``, without the advice: `check` and `ops` price the same, below."""
    return float(sizer.ops(config, **asked).step.seconds)


@relation(config=models(), **SIZES)
def test_check_and_ops_price_the_same_step(config: dict[str, Any], b: int, s: int, device: str) -> None:
    own = step(config, b=b, s=s, device=device)
    assert sizer.ops(config, b=b, s=s, device=device).step.seconds == pytest.approx(own)


@pytest.mark.slow
@relation(draws=2, config=models(), **SIZES)
def test_a_search_starts_from_the_step_of_check(config: dict[str, Any], b: int, s: int, device: str) -> None:
    config = {**config, "hidden_size": 1024 + config["hidden_size"], "num_hidden_layers": 8}
    try:
        result = sizer.search(config, what="model", b=b, s=s, device=device)
    except NothingLeftError:  # no other model is near this one
        reject()
    assert result.baseline.timing.seconds == pytest.approx(step(config, b=b, s=s, device=device))


@pytest.mark.slow
@relation(draws=4, config=models(), s=SIZES["s"], device=st.sampled_from(DEVICES[:4]))
def test_check_prices_what_plan_lists(config: dict[str, Any], s: int, device: str) -> None:
    found = sizer.plan(config, device=device, gpus=8, global_batch=16, s=s)
    assume(found.candidates)
    for candidate in {found.candidates[0], found.candidates[-1]}:
        names = ("b", "s", "t", "p", "d", "e", "zero", "cp", "vpp", "checkpointing", "sequence_parallel", "no_overlap")
        asked = {name: getattr(candidate.workload, name) for name in names}
        asked |= {"implementation": found.implementation}
        report = sizer.check(config, device=device, gpus=8, global_batch=16, **asked)
        assert report.step is not None
        assert report.stack == found.stack  # named it would pad the vocabulary, in both
        assert report.step.seconds == pytest.approx(candidate.seconds), asked


#: Fields of a layout that a plan decides.
FOUND = ("b", "s", "t", "p", "d", "e", "zero", "replicas", "cp", "vpp", "checkpointing", "sequence_parallel")


@relation(
    draws=5,
    config=models(),
    s=SIZES["s"],
    device=st.sampled_from(DEVICES),
    optimizer=st.sampled_from(OPTIMIZERS),
    stack=st.sampled_from((None, "megatron-core-te", "megatron-2021", "pytorch-fsdp-2023")),
)
def test_check_memory_and_plan_count_the_same_bytes(
    config: dict[str, Any], s: int, device: str, optimizer: str | None, stack: str | None
) -> None:
    asked: dict[str, Any] = {"device": device, "gpus": 8, "global_batch": 16, "optimizer": optimizer, "stack": stack}
    found = sizer.plan(config, s=s, **asked)
    kinds = {(one.workload.t, one.workload.p, one.workload.cp): one for one in found.candidates}
    for candidate in kinds.values():
        layout = {name: getattr(candidate.workload, name) for name in FOUND}
        counted = sizer.memory(config, **asked, **layout)
        assert counted.memory.total_bytes == candidate.memory_bytes, layout
        report = sizer.check(config, **asked, **layout)
        assert report.implementation == counted.memory.implementation, layout
        assert report.step is not None
        assert report.step.seconds == pytest.approx(candidate.seconds), layout
        assert not [one for one in report.findings if one.code == "SZ121"], layout


@relation(draws=8, config=models(), **SIZES, **DEGREES)
def test_check_finds_too_large_what_memory_does(
    config: dict[str, Any], b: int, s: int, device: str, **degrees: int
) -> None:
    config = {**config, "num_hidden_layers": 16, "hidden_size": 8192, "intermediate_size": 28672}
    config |= {"num_attention_heads": 64, "num_key_value_heads": 8}
    asked: dict[str, Any] = {"b": b, "s": 16 * s, "device": device, "d": 2, **degrees}
    counted = sizer.memory(config, **asked).memory
    report = sizer.check(config, **asked)
    sizes = [one.value for one in report.findings if one.code == "SZ121"]
    assert sizes == ([] if counted.fits else [round(counted.total_bytes / 2**30, 2)])
    assert (report.worst() == "error") >= (not counted.may_fit)


@relation(config=models(), **SIZES)
def test_more_tokens_layers_or_words_are_never_faster(config: dict[str, Any], b: int, s: int, device: str) -> None:
    own = seconds(config, b=b, s=s, device=device)
    more = {
        "tokens": seconds(config, b=2 * b, s=s, device=device),
        "sequence": seconds(config, b=b, s=2 * s, device=device),
        "layers": seconds({**config, "num_hidden_layers": 2 * config["num_hidden_layers"]}, b=b, s=s, device=device),
        "words": seconds({**config, "vocab_size": 2 * config["vocab_size"]}, b=b, s=s, device=device),
    }
    assert {name for name, other in more.items() if other < own} == set()


@pytest.mark.slow
@relation(
    draws=24,
    config=models(),
    p=st.sampled_from((2, 3, 5)),
    more=st.sampled_from(({"intermediate_size": 1024}, {"vocab_size": 8192})),
    accumulation=st.sampled_from((1, 16)),
    **SIZES,
)
def test_wider_layers_and_more_words_are_never_faster_where_stages_differ(
    config: dict[str, Any], p: int, more: dict[str, int], accumulation: int, b: int, s: int, device: str
) -> None:
    assume(config["num_hidden_layers"] > p and config["num_hidden_layers"] % p)
    config |= {key: 128 * (config[key] // 128 + 1) for key in more}  # aligned, so that more of it has no faster kernel
    own, wider = (
        seconds(one, p=p, b=b, s=s, device=device, global_batch=b * accumulation)
        for one in (config, config | {key: config[key] + size for key, size in more.items()})
    )
    assert wider > 0.995 * own


@relation(config=models(), **SIZES)
def test_each_layer_adds_the_same(config: dict[str, Any], b: int, s: int, device: str) -> None:
    n = config["num_hidden_layers"]
    one, two, three = (seconds({**config, "num_hidden_layers": n * k}, b=b, s=s, device=device) for k in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=1e-6)


@relation(config=models(), t=st.sampled_from((1, 2, 4)), p=st.sampled_from((1, 2)), **SIZES)
def test_a_split_conserves_parameters_and_flops(
    config: dict[str, Any], t: int, p: int, b: int, s: int, device: str
) -> None:
    even = {"num_hidden_layers": 2 * config["num_hidden_layers"], "vocab_size": 64 * (config["vocab_size"] // 64)}
    config = {**config, **even, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632}
    whole, part = sizer.check(config, b=b, s=s, device=device), sizer.check(config, b=b, s=s, device=device, t=t, p=p)
    assert part.model.parameters == whole.model.parameters

    def flops(**split: int) -> int:
        listed = sizer.ops(config, b=b, s=s, device=device, **split).operators
        kinds = ("gemm", "bmm", "grouped_gemm", "attention")
        products = (one for one in listed if one.kind in kinds and "router" not in one.name)
        return sum(one.flops * one.count for one in products)

    assert flops(t=t) * t == flops()


@relation(draws=4, config=models(), **SIZES)
def test_a_suggestion_that_is_applied_changes_what_it_said(config: dict[str, Any], b: int, s: int, device: str) -> None:
    text = ConfigText("config.json", json.dumps(config), CheckRequest(device=device, workload={"b": b, "s": s}))
    settled = text.settle()
    before = settled.propose().step
    for finding in report_of(settled.propose()).findings:
        for suggestion in finding.suggestions:
            edits = fix_of(suggestion, text, settled.subject)
            if not edits or suggestion.step_seconds_change is None:
                continue
            after = text.edited(edits).settle()
            if after.subject.dimensions["head_dim"] != settled.subject.dimensions["head_dim"]:
                # A stack's factor of attention is by head_dim: both are priced by the present one's, which is said.
                assert "attention factor of head_dim" in suggestion.note or _priced(suggestion, before, after)
                continue
            assert after.subject.parameters - settled.subject.parameters == suggestion.parameters_change
            assert _priced(suggestion, before, after), suggestion


def _priced(suggestion: PricedSuggestion, before: Step, after: Settled) -> bool:
    change = after.propose().step.seconds - before.seconds
    return bool(change == pytest.approx(suggestion.step_seconds_change, abs=1e-9 * before.seconds))


@relation(draws=4, config=models(), t=st.sampled_from((2, 4)), **SIZES)
def test_a_suggestion_for_the_workload_that_is_applied_has_its_price(
    config: dict[str, Any], b: int, s: int, t: int, device: str
) -> None:
    config = {**config, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632}

    def read(**fields: Any) -> tuple[Subject, Step]:
        settled = CheckRequest(device=device, workload={"b": b, "s": s, "t": t, **fields}).settle("config.json", config)
        return settled.subject, settled.propose().step

    before, report = read(), sizer.check(config, device=device, b=b, s=s, t=t)
    for suggestion in (one for finding in report.findings for one in finding.suggestions):
        if suggestion.change.keys() <= {*WORDS.values(), *WORKLOAD_FIELDS}:
            after = read(**workload_fields(suggestion.change))
            change = after[1].seconds * equal_work(*before, *after) - before[1].seconds
            assert change == pytest.approx(suggestion.step_seconds_change, abs=1e-9 * before[1].seconds), suggestion


@relation(draws=4, old=models(), new=models(), **SIZES)
def test_a_difference_the_other_way_round_is_the_inverse(
    old: dict[str, Any], new: dict[str, Any], b: int, s: int, device: str
) -> None:
    pairs = (sizer.diff(*pair, device=device, b=b, s=s) for pair in ((old, new), (new, old)))
    there, back = (one.to_dict()["files"][0]["devices"][0] for one in pairs)
    assert (there["old"], there["new"]) == (back["new"], back["old"])
    assert there["ratio"] * back["ratio"] == pytest.approx(1.0)
    assert there["exceeds_error"] is back["exceeds_error"]
    assert (len(there["findings_added"]), len(there["findings_fixed"])) == (
        len(back["findings_fixed"]),
        len(back["findings_added"]),
    )


@relation(draws=6, config=models(), **SIZES, **DEGREES, stack=st.sampled_from(("megatron-core-te", "pytorch-ddp")))
def test_check_memory_diff_and_mfu_answer_alike(
    config: dict[str, Any], b: int, s: int, device: str, stack: str, **degrees: int
) -> None:
    config |= {"num_hidden_layers": 16, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 2}
    config |= {"hidden_size": 2048, "head_dim": 64}
    ranks = degrees["t"] * degrees["p"] * degrees["cp"] * 2
    asked: dict[str, Any] = {"b": b, "s": s, "device": device, "d": 2, "stack": stack, "gpus": ranks, **degrees}
    asked["global_batch"] = 8 * b
    report, counted = sizer.check(config, **asked), sizer.memory(config, **asked)
    assert report.step is not None
    (seen,) = sizer.diff(config, config, **asked).files[0].devices
    assert seen.old is not None
    assert (seen.old.step_s, seen.old.memory_bytes) == (report.step.seconds, counted.memory.total_bytes)
    assert counted.times == () or counted.times[0] == report.step.seconds
    found = sizer.mfu(config, step_time=report.step.seconds, explain=True, **asked)
    assert found.explanation is not None
    assert found.explanation.predicted.seconds == pytest.approx(report.step.seconds)
    assert found.rows[0].mfu == pytest.approx(report.step.mfu, rel=1e-4)
    # Megatron's rows of the vocabulary are held as they are computed: memory and step are the padded model's.
    rows = 128 * degrees["t"] if stack.startswith("megatron") else 1
    padded = {**config, "vocab_size": -(-config["vocab_size"] // rows) * rows}
    assert sizer.memory(padded, **asked).memory == counted.memory
    assert sizer.check(padded, **asked).step.seconds == report.step.seconds  # type: ignore[union-attr]


@relation(
    draws=6,
    config=models(),
    window=st.sampled_from((None, 128, 4096)),
    s=st.sampled_from((512, 8192, 65536, 1048576)),
    b=st.sampled_from((1, 8, 64)),
    dtype=st.sampled_from(("bf16", "fp32")),
    phase=st.sampled_from(("train", "prefill", "decode")),
    device=st.sampled_from((*DEVICES, "l4", "a30", "v100-sxm")),
    stack=st.sampled_from((None, "megatron-bridge-2026", "pytorch-ddp")),
)
def test_no_utilisation_is_over_100_percent(
    config: dict[str, Any], window: int | None, s: int, phase: str, stack: str | None, **asked: Any
) -> None:
    config |= {"max_position_embeddings": 2**20}
    if window is not None and "num_local_experts" not in config:
        config |= {"model_type": "mistral", "sliding_window": window}
    asked |= {"stack": stack} if phase == "train" else {}
    found = sizer.check(config, phase=phase, **{"context" if phase == "decode" else "s": s}, **asked).step
    assert found is not None
    assert max(found.mfu or 0.0, found.mbu or 0.0) <= 1 + 1e-9
    if phase == "train":
        counted = sizer.mfu(config, step_time=found.seconds, gpus=1, global_batch=asked["b"], s=s, **_of_device(asked))
        assert counted.rows[0].mfu == pytest.approx(found.mfu, rel=1e-4)
        assert all(row.mfu <= 1 for row in counted.rows)


def _of_device(asked: dict[str, Any]) -> dict[str, Any]:
    return {"device": asked["device"], "dtype": asked["dtype"]}


def test_a_window_is_not_counted_as_a_square_that_no_device_could_run() -> None:
    """Mistral's full square at a million tokens would be many times the peak, what its window leaves is under it."""
    asked = {"device": "mi355x", "b": 8, "s": 2**20, "dtype": "bf16"}
    config = {"model_type": "mistral", "sliding_window": 4096, "hidden_size": 4096, "intermediate_size": 14336}
    config |= {"num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    found = sizer.check({**config, "max_position_embeddings": 2**20}, **asked).step
    assert found is not None
    assert found.mfu is not None
    assert found.flops > 5 * found.seconds * load_device("mi355x").peak("bf16")
    assert 0.2 < found.mfu < 1


@pytest.mark.parametrize("b", [2, 8])
def test_a_decode_step_waits_for_memory_that_the_tables_caches_held(b: int) -> None:
    found = sizer.check("tests/data/configs/gpt2.json", device="l4", b=b, phase="decode", context=1024)
    assert found.step is not None
    assert found.step.mbu == pytest.approx(1.0)
    shown = sizer.ops("tests/data/configs/gpt2.json", device="l4", b=b, phase="decode", context=1024)
    assert shown.step.seconds == found.step.seconds
