"""The rule catalogue: its registry, and every rule on a bad, a good and a not-applicable example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sizer
from shapes.cost import predict_many
from shapes.device import load_device
from shapes.dtypes import next_multiple
from shapes.errors import InputError
from shapes.frozen import replace
from shapes.model import AttentionShape, Block, MlaShape, MlpShape, ModelShape, MoeShape, Stack, Unproven
from shapes.model.resize import dimensions, resize
from shapes.operators import operators
from shapes.step.stack import load_stack
from shapes.workload import WORKLOAD_FIELDS, Workload
from sizer.checking.findings import PricedFinding, Report
from sizer.render import render
from sizer.rules import MERGED, RULES, find_rule
from sizer.rules.base import Context, Finding, NotApplicable, largest_power_of_two, shard_text

REPORT = Path(__file__).parent.parent / "reports" / "rules.md"
CONFIGS = Path(__file__).parent / "data" / "configs"

Change = dict[str, int | str]


def model(
    *,
    hidden: int = 2048,
    heads: int = 16,
    kv: int | None = None,
    head_dim: int | None = None,
    d_ff: int = 5632,
    gated: bool = True,
    vocab: int = 32000,
    layers: int = 4,
    moe: MoeShape | None = None,
    head: bool = True,
    length: int | None = None,
) -> ModelShape:
    """A small Llama: every dimension aligned unless asked otherwise (5632 = 44 x 128, 32000 = 500 x 64)."""
    attention = AttentionShape(heads, kv or heads, head_dim or hidden // heads)
    block = Block(attention, moe or MlpShape(d_ff, gated=gated), count=layers)
    return ModelShape("llama", (Stack("decoder", hidden, (block,), length=length),), vocab=vocab, head=head)


def experts(*, count: int = 8, top_k: int = 2, width: int = 1408, **shared: Any) -> ModelShape:
    return model(moe=MoeShape(count, top_k, width, **shared))


def latent(rank: int = 512, rope: int = 64, heads: int = 16) -> ModelShape:
    """Multi-head latent attention with DeepSeek's heads of 128 + rope and values of 128."""
    block = Block(MlaShape(heads, rank, 128, rope, 128), MlpShape(5632), count=4)
    return ModelShape("deepseek_v3", (Stack("decoder", 2048, (block,)),), vocab=32000)


NO_ATTENTION = ModelShape("mlp", (Stack("tower", 2048, (Block(None, MlpShape(5632), count=4),)),), vocab=32000)


#: Of a context whose workload was given whole, and of which nothing else is known.
UNSAID: Any = {"given": frozenset(WORKLOAD_FIELDS), "kept": {}, "step": None, "unread": ()}
UNSAID |= {"stack": load_stack("transformers-eager"), "parameters": 0, "unproven": ()}


def context(shape: ModelShape, device: str = "h100-sxm", **workload: Any) -> Context:
    """What `check` would show a rule. Splits that cannot run have no operators, which a rule of errors needs not."""
    settled, target = Workload(**{"s": 2048, **workload}), load_device(device)
    try:
        found = operators(shape, settled)
    except InputError:
        found = ()
    costs = predict_many(found, target) if settled.dtype in target.peak_flops else ()
    found = found if costs else ()
    return Context(shape, settled, target, found, costs, dimensions(shape), dtype=settled.dtype, **UNSAID)


WIDE = model(hidden=4096, heads=32, kv=8, d_ff=14336, vocab=128_256)

#: rule, model, workload, the field found, its value, changes proposed (each derived next to it).
BAD: list[tuple[str, ModelShape, dict[str, Any], str, int | str, list[Change]]] = [
    ("SZ101", model(vocab=50257), {}, "vocab", 50257, [{"vocab": 50304}]),  # 786 x 64
    # Each of two shards wants a multiple of 64: 50257 / 128 = 392.6, so 393 x 128.
    ("SZ101", model(vocab=50257), {"t": 2}, "vocab", 50257, [{"vocab": 50304}]),
    ("SZ101", model(vocab=50304), {"t": 4}, "vocab", 50304, [{"vocab": 50432}]),  # 197 x 256
    # 2560 = 20 x 128 = 40 x 64; 32 heads of 64 are 2048, a fifth away, of 128 4096: no neighbour.
    ("SZ102", model(hidden=2560, heads=32), {}, "head_dim", 80, [{"heads": 20}, {"heads": 40}]),
    # 2568 = 8 x 3 x 107; head_dim is not h/a here, so only the alignment counts: 40 x 64, 41 x 64 and 21 x 128.
    (
        "SZ103",
        model(hidden=2568, heads=16, head_dim=128),
        {},
        "hidden",
        2568,
        [{"hidden": 2560}, {"hidden": 2624}, {"hidden": 2688}],
    ),
    # Halves of 2112 = 16 x 132 are 1056 = 32 x 33; 16 heads of 128 are 2048, and so are 32 of 64.
    (
        "SZ103",
        model(hidden=2112, heads=16),
        {"t": 2},
        "hidden",
        2112,
        [{"hidden": 2048}, {"hidden": 2048, "heads": 32}],
    ),
    # 4090 lies between 63 x 64 and 64 x 64.
    ("SZ104", model(), {"b": 1, "s": 4090}, "s", 4090, [{"s": 4032}, {"s": 4096}]),
    # 2080 = 32 x 65.
    ("SZ104", model(), {"b": 1, "s": 2080}, "s", 2080, [{"s": 2048}, {"s": 2112}]),
    ("SZ105", model(hidden=2560, heads=20), {"t": 8}, "t", 8, [{"t": 4}, {"heads": 16}]),  # 2560 % 24 != 0
    ("SZ106", model(), {"t": 8, "b": 1}, "t", 8, [{"t": 1, "d": 8}, {"t": 2}, {"t": 4}]),
    ("SZ110", model(layers=30, vocab=1024), {"p": 4}, "p", 4, [{"p": 2}, {"p": 1}]),
    # 8h/3 = 10922.67; 170 x 64 = 10880, 171 x 64 = 10944, 86 x 128 = 11008.
    (
        "SZ108",
        model(hidden=4096, heads=32, d_ff=10922),
        {},
        "d_ff",
        10922,
        [{"d_ff": 10944}, {"d_ff": 10880}, {"d_ff": 11008}, {"d_ff": 10752}],
    ),  # 42 x 256 is as near as 10944 + 2 x 64
    ("SZ109", model(d_ff=10230, gated=False), {}, "d_ff", 10230, [{"d_ff": 10176}, {"d_ff": 10240}]),  # 159, 160 x 64
    # 16 heads x 2 blocks of 128 queries = 32 of H100's 132; 132 / 32 = 4.1, so five sequences.
    ("SZ113", model(), {"b": 1, "s": 256}, "b", 1, [{"b": 5}]),
    # FlashAttention 3 takes multiples of 8; torch's attention pads 132 to 136 and runs it as 160.
    ("SZ114", model(head_dim=132), {}, "head_dim", 132, [{"head_dim": 128}]),
    ("SZ115", model(kv=4), {"t": 8}, "kv_heads", 4, [{"t": 4}]),
    ("SZ115", model(hidden=1536, heads=12, kv=6), {"t": 4}, "kv_heads", 6, [{"t": 2}, {"kv_heads": 4}]),
    (
        "SZ115",
        model(hidden=6144, heads=48, kv=6),
        {"t": 8},
        "kv_heads",
        6,
        [{"t": 2}, {"kv_heads": 8}, {"kv_heads": 16}],
    ),
    (
        "SZ115",
        model(hidden=3584, heads=28, kv=7),
        {"t": 2},
        "kv_heads",
        7,
        [{"t": 1}, {"kv_heads": 4}, {"kv_heads": 2}],
    ),
    # 6 divides the 24 heads, but not the 4 key/value heads.
    ("SZ115", model(hidden=3072, heads=24, kv=4), {"t": 8}, "kv_heads", 4, [{"t": 4}]),
    ("SZ116", model(heads=64), {}, "heads", 64, [{"heads": 32}]),  # 2048 / 64
    ("SZ117", experts(width=1400), {}, "expert_d_ff", 1400, [{"expert_d_ff": 1344}, {"expert_d_ff": 1408}]),
    # 256 tokens x 2 of 8 experts = 64 each; a tile's 128 want twice the batch.
    ("SZ117", experts(), {"b": 1, "s": 256}, "b", 1, [{"b": 2}]),
    ("SZ117", experts(), {"e": 3}, "e", 3, [{"e": 2, "d": 2}, {"e": 4, "d": 4}, {"experts": 6}, {"experts": 9}]),
    ("SZ110", model(layers=4), {"p": 6}, "p", 6, [{"p": 4}]),
    ("SZ118", model(), {"b": 1, "s": 64}, "b", 1, [{"b": 2}]),
    # 512 x 2048: at most 410 FLOPs a byte however many tokens, below Gaudi 3's ridge of 453.
    ("SZ118", model(hidden=512, heads=8, layers=6, vocab=50304), {"b": 4, "s": 4096, "device": "gaudi3"}, "b", 4, []),
    # Scores of 1024 x 1024 over 64: less than 128 FLOPs a byte in any batch, so the kernel is what helps.
    (
        "SZ118",
        model(heads=32),
        {"b": 4, "s": 1024, "attention": "eager"},
        "attention",
        "eager",
        [{"attention": "auto"}],
    ),
    ("SZ120", model(), {"t": 4, "p": 2, "d": 7, "gpus": 64}, "d", 7, [{"d": 8}]),  # 64 / (4 x 2)
    ("SZ120", model(), {"b": 4, "d": 8, "global_batch": 1000}, "b", 4, [{"b": 1}]),  # 1000 / 8 = 125 is odd: 1, not 3
    (
        "SZ120",
        model(layers=16),
        {"p": 4, "vpp": 2, "d": 4, "b": 4, "global_batch": 32},
        "vpp",
        2,
        [{"vpp": 1}],
    ),  # 2
    ("SZ122", model(length=197), {}, "s", 197, []),
    # 1536 / 8 = 192 = 1.5 x 128: what vLLM and SGLang refuse of Qwen3-235B; at t 4 it is 384 = 3 x 128.
    (
        "SZ124",
        experts(width=1536),
        {"t": 8, "recipe": "blockwise"},
        "expert_d_ff",
        1536,
        [{"expert_d_ff": 1024}, {"expert_d_ff": 2048}, {"t": 4}],
    ),
    # 5640 = 176 x 32 + 8.
    ("SZ124", model(d_ff=5640), {"dtype": "mxfp8"}, "d_ff", 5640, [{"d_ff": 5632}, {"d_ff": 5664}]),
    # Four key/value heads of 64 over t 4 are 64 a shard: half a block.
    ("SZ124", model(heads=32, kv=4), {"t": 4, "recipe": "blockwise"}, "kv_heads", 4, [{"t": 2}]),
    ("SZ124", model(), {"b": 1, "s": 4000, "recipe": "blockwise"}, "s", 4000, [{"s": 3968}, {"s": 4096}]),
    # 32 x 127/2 = 2032 rows; 5% of them are 40,640 routed, 2.5 times the 16,384 there are.
    ("SZ125", experts(count=32, top_k=8), {"b": 1, "recipe": "blockwise"}, "b", 1, [{"b": 3}]),
    ("SZ126", latent(384, 32), {}, "kv_lora_rank", 384, []),
    ("SZ126", latent(), {"phase": "decode", "context": 4096, "t": 4}, "t", 4, []),
    # Two ranks take two parts each, of 4098 / 4 = 1024.5; 64 x 64 and 65 x 64 are aligned as well.
    ("SZ127", model(), {"cp": 2, "s": 4098}, "s", 4098, [{"s": 4096}, {"s": 4160}, {"cp": 1}]),
    ("SZ127", model(), {"t": 8, "sequence_parallel": True, "s": 4100}, "s", 4100, [{"s": 4096}, {"s": 4160}]),
    ("SZ127", model(), {"cp": 3, "s": 4096}, "s", 4096, [{"s": 4032}, {"s": 4224}, {"cp": 2}]),  # 21, 22 x 192
    ("SZ110", model(layers=12, vocab=128_000), {"p": 4}, "p", 4, [{"p": 2}, {"p": 1}]),
    # b s v = 8 x 2048 x 128000 numbers of 12.1 bytes, as `sizer memory` counts them.
    ("SZ133", model(vocab=128_000), {"b": 8}, "logits", 23.7, []),
    # 33 rows of three tiles of 16.
    ("SZ135", WIDE, {"phase": "decode", "context": 4096, "b": 33, "device": "h20"}, "b", 33, []),
    # 512 tokens in 16 parts of 32; at cp 4 of 64, a tile.
    # 7 / 8 on top of the step; a layer a chunk are 4 chunks a stage, 7 / 32.
    (
        "SZ138",
        model(layers=32),
        {"p": 8, "b": 1, "global_batch": 8},
        "vpp",
        1,
        [{"vpp": 4}, {"p": 4}, {"p": 2}, {"p": 1}],
    ),
    # 28 layers over 8 stages make no equal chunks.
    ("SZ138", model(layers=28), {"p": 8, "b": 1, "global_batch": 8}, "vpp", 1, [{"p": 4}, {"p": 2}, {"p": 1}]),
    # An interleaved pipeline goes through p microbatches at a time, and 12 are no two rounds of 8.
    ("SZ138", model(layers=32), {"p": 8, "b": 1, "global_batch": 12}, "vpp", 1, [{"p": 4}, {"p": 2}, {"p": 1}]),
    (
        "SZ139",
        model(layers=4),
        {"b": 1, "checkpointing": "full"},
        "checkpointing",
        "full",
        [{"checkpointing": "none"}, {"checkpointing": "selective"}],
    ),
    (
        "SZ139",
        model(layers=4),
        {"b": 1, "checkpointing": "selective"},
        "checkpointing",
        "selective",
        [{"checkpointing": "none"}],
    ),
    ("SZ137", model(), {"b": 1, "s": 32768, "cp": 8, "document": 512}, "cp", 8, [{"cp": 4}]),
    # 4,096 tokens padded to 64 x 8 = 512, 255.5 on average: 6%; parts of 32 fill half a tile.
    (
        "SZ137",
        model(),
        {"s": 65536, "cp": 64, "t": 8, "sequence_parallel": True, "document": 4096},
        "cp",
        64,
        [{"cp": 32}],
    ),
]

GOOD: list[tuple[str, ModelShape, dict[str, Any]]] = [
    ("SZ101", model(vocab=50304), {}),
    ("SZ102", model(hidden=2560, heads=20), {}),
    ("SZ102", model(heads=32), {"dtype": "fp8"}),  # head_dim 64: the core of an fp8 recipe runs in bf16
    ("SZ103", model(), {"t": 8}),  # 256 each
    ("SZ104", model(), {"b": 1, "s": 4096}),
    ("SZ105", model(), {"t": 8}),
    ("SZ106", model(hidden=8192, heads=64, d_ff=28672, layers=8), {"t": 2}),
    ("SZ108", model(hidden=4096, heads=32, d_ff=11008), {}),
    ("SZ109", model(d_ff=8192, gated=False), {}),
    # A shared expert's gate is one number a token: a dot product, which no tensor core is asked for.
    ("SZ109", experts(shared=MlpShape(1408, prefix="moe.shared"), shared_gate=True), {}),
    ("SZ110", model(layers=32), {"p": 4}),
    ("SZ111", model(), {}),
    ("SZ113", model(), {}),
    ("SZ114", model(), {}),
    ("SZ115", model(kv=8), {"t": 8}),
    ("SZ116", model(), {}),
    ("SZ117", experts(), {"b": 4}),
    ("SZ118", model(), {"b": 8}),
    ("SZ119", model(), {"dtype": "fp8"}),
    ("SZ120", model(), {"t": 4, "p": 2, "d": 8, "b": 4, "gpus": 64, "global_batch": 1024}),
    ("SZ120", model(layers=16), {"p": 4, "vpp": 2, "d": 4, "b": 4, "global_batch": 64}),
    ("SZ121", model(), {}),
    ("SZ122", model(length=256), {}),
    ("SZ124", experts(width=1536), {"t": 4, "recipe": "blockwise"}),
    ("SZ124", latent(), {"recipe": "blockwise"}),  # the latent projection's 576 are 4.5 blocks
    ("SZ124", model(), {"dtype": "fp8"}),
    ("SZ125", experts(count=32, top_k=8), {"b": 4, "recipe": "blockwise"}),
    ("SZ125", experts(), {}),
    ("SZ126", latent(), {}),
    ("SZ127", model(), {"cp": 4, "t": 8, "sequence_parallel": True, "s": 8192}),
    ("SZ133", model(), {"b": 8}),
    ("SZ134", model(), {"optimizer": "muon", "b": 8, "d": 8, "zero": 1, "global_batch": 4096}),
    ("SZ135", WIDE, {"phase": "decode", "context": 4096, "b": 48, "device": "h20"}),
    ("SZ135", WIDE, {"phase": "decode", "context": 4096, "b": 33}),
    ("SZ138", model(layers=32), {"p": 8, "b": 1, "global_batch": 64}),
    ("SZ138", model(layers=32), {"p": 8, "b": 1, "global_batch": 8, "vpp": 4}),
    ("SZ139", model(layers=200), {"b": 8, "checkpointing": "full"}),  # no room
    ("SZ137", model(), {"b": 1, "s": 32768, "cp": 2, "document": 512}),
    ("SZ110", model(layers=80, hidden=8192, heads=64, d_ff=28672), {"p": 4}),
    ("SZ110", model(layers=126, hidden=16384, heads=128, kv=8, d_ff=53248, vocab=128_256), {"p": 16, "t": 8}),
    ("SZ110", model(layers=94, hidden=4096, heads=64, d_ff=12288, vocab=151_936), {"p": 8}),
]

NOT_APPLICABLE: list[tuple[str, ModelShape, dict[str, Any]]] = [
    ("SZ101", model(vocab=50257, head=False), {}),
    ("SZ102", NO_ATTENTION, {}),
    ("SZ104", model(), {"phase": "infer", "s": 2047}),
    ("SZ105", model(), {}),
    ("SZ106", model(), {}),
    ("SZ107", model(), {"phase": "infer"}),
    ("SZ108", model(gated=False, d_ff=10922), {}),
    ("SZ110", model(layers=30), {}),
    ("SZ138", model(layers=32), {"p": 8}),
    ("SZ138", model(), {"global_batch": 8}),
    ("SZ139", model(), {}),
    ("SZ112", model(), {}),  # H100's kernels are persistent
    ("SZ113", model(), {"attention": "eager"}),
    ("SZ114", model(head_dim=132), {"attention": "eager"}),
    ("SZ115", model(kv=4), {}),
    ("SZ115", model(), {"t": 8}),
    ("SZ116", NO_ATTENTION, {}),
    ("SZ117", model(), {}),
    ("SZ120", model(), {}),
    ("SZ122", model(), {"s": 197}),
    ("SZ124", model(d_ff=5640), {}),
    ("SZ125", model(), {"recipe": "blockwise"}),
    ("SZ126", model(), {}),
    ("SZ127", model(), {"s": 4097, "t": 8}),
    ("SZ129", model(), {}),
    ("SZ132", model(), {}),
    ("SZ133", model(), {"phase": "infer"}),
    ("SZ134", model(), {}),
    ("SZ135", model(), {}),
    ("SZ136", model(), {}),
    ("SZ137", model(), {"s": 32768, "document": 512}),
    ("SZ137", model(), {"s": 32768, "cp": 8}),
]


def found(code: str, seen: Context) -> list[Finding]:
    answer = find_rule(code).check(seen)
    assert not isinstance(answer, NotApplicable), answer
    return list(answer)


def test_codes_run_on_from_sz101_in_order_and_slugs_are_unique() -> None:
    assert len(RULES) >= 22
    numbers = [f"SZ{101 + place}" for place in range(len(RULES) + len(MERGED))]
    assert sorted([rule.code for rule in RULES] + list(MERGED)) == numbers
    assert all(find_rule(old).code == new for old, new in MERGED.items())
    assert len({rule.slug for rule in RULES}) == len(RULES)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.slug) for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rules_page_says_what_it_asks_with_a_bad_and_a_good_example_and_a_source(rule: Any) -> None:
    text = str(render("explain", None, rule))
    assert rule.judge.__name__ == rule.slug.replace("-", "_")
    assert text.startswith(f"## {rule.code} {rule.slug}\n")
    assert rule.summary.endswith(".")
    for part in ("\nBad: ", "\nGood: ", "\nSource: "):
        assert part in text
    assert rule.source.strip()
    assert find_rule(rule.code.lower()) is find_rule(rule.slug) is rule


def test_the_report_of_the_rules_is_generated_from_their_docstrings() -> None:
    assert REPORT.read_text(encoding="utf-8") == render("rules", "markdown", RULES)


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(InputError, match="vocab-multiple"):
        find_rule("vocab-multiples")


@pytest.mark.parametrize(("code", "shape", "workload", "field", "value", "changes"), BAD)
def test_a_bad_example_is_found_with_its_field_value_and_suggestions(
    code: str, shape: ModelShape, workload: dict[str, Any], field: str, value: int | str, changes: list[Change]
) -> None:
    (finding,) = [one for one in found(code, context(shape, **workload)) if one.field == field]
    assert finding.value == value
    assert [dict(suggestion.change) for suggestion in finding.suggestions] == changes
    assert finding.message


@pytest.mark.parametrize(("code", "shape", "workload"), GOOD)
def test_a_good_example_has_no_finding(code: str, shape: ModelShape, workload: dict[str, Any]) -> None:
    assert found(code, context(shape, **workload)) == []


@pytest.mark.parametrize(("code", "shape", "workload"), NOT_APPLICABLE)
def test_where_the_premise_fails_the_answer_is_not_applicable(
    code: str, shape: ModelShape, workload: dict[str, Any]
) -> None:
    answer = find_rule(code).check(context(shape, **workload))
    assert isinstance(answer, NotApplicable)
    assert answer.reason


def test_the_microbatch_that_fits_is_the_memory_models_largest() -> None:
    from shapes.memory import largest_microbatch

    seen = context(model(), b=1, global_batch=64)
    largest = largest_microbatch(model(), seen.workload, seen.device.memory.bytes)
    (finding,) = found("SZ107", seen)
    assert 32 <= largest < 64
    assert (finding.field, finding.value, dict(finding.suggestions[0].change)) == ("b", 1, {"b": 32})
    assert found("SZ107", context(model(), b=32, global_batch=64)) == []
    # A rank's share of 2 x 3 sequences is made of microbatches of 1, 2, 3 or 6, whatever fits.
    (finding,) = found("SZ107", context(model(), b=1, d=2, global_batch=6))
    assert dict(finding.suggestions[0].change) == {"b": 3}
    # What fills the device to the brim is not said to fit.
    full = context(model(), b=1, global_batch=largest)
    (finding,) = found("SZ107", full)
    offered = int(finding.suggestions[0].change["b"])
    assert largest_microbatch(model(), full.workload, full.room_bytes) >= offered
    assert offered < largest
    # How large a step may be is the training's choice.
    assert isinstance(find_rule("SZ107").check(context(model(), b=1)), NotApplicable)


def test_tile_quantization_blames_the_dimension_that_is_wasted() -> None:
    # 272 columns fill at most 272 / 320 = 85% of tiles of 64, the narrowest; the 8192 rows are whole tiles.
    small = model(hidden=1024, heads=8, d_ff=272, gated=False, vocab=512, layers=16)
    (finding,) = found("SZ111", context(small))
    assert (finding.field, finding.value) == ("d_ff", 272)
    assert [dict(suggestion.change) for suggestion in finding.suggestions] == [{"d_ff": 256}, {"d_ff": 384}]


def test_tile_quantization_does_not_blame_the_sequence_for_a_head_dimension() -> None:
    # Values of eager attention: 2056 x 96 x 2056. The 96 columns are what tiles of 128 waste, and SZ102's to say.
    fields = {one.field for one in found("SZ111", context(model(hidden=1536), s=2056, attention="eager"))}
    assert "head_dim" not in fields
    assert not any(
        "values forward" in one.message
        for one in found("SZ111", context(model(hidden=1536), s=2056, attention="eager"))
    )


def test_wave_quantization_speaks_on_a100_of_a_wave_that_is_nearly_empty() -> None:
    findings = found("SZ112", context(model(gated=False, d_ff=5632), "a100-sxm", b=1, s=1024))
    for finding in findings:
        assert finding.field == "d_ff"
        assert all(int(one.change["d_ff"]) % 128 == 0 and one.change["d_ff"] != 5632 for one in finding.suggestions)
    assert findings


@pytest.mark.parametrize(
    ("device", "dtype", "instead"), [("v100", "bf16", "fp16"), ("t4", "bf16", "fp16"), ("a100", "fp8", "bf16")]
)
def test_a_type_without_tensor_cores_is_an_error_with_the_nearest_type(device: str, dtype: str, instead: str) -> None:
    (finding,) = found("SZ119", context(model(), device, dtype=dtype))
    assert (finding.field, finding.value, finding.error) == ("dtype", dtype, True)
    assert dict(finding.suggestions[0].change) == {"dtype": instead}


def test_what_does_not_fit_is_an_error_and_every_way_out_fits() -> None:
    from dataclasses import replace

    from shapes.memory import memory

    large = model(hidden=8192, heads=64, d_ff=28672, layers=16)
    seen = context(large, b=8, d=8)
    (finding,) = found("SZ121", seen)
    assert finding.error
    assert finding.suggestions
    for suggestion in finding.suggestions:
        changed = replace(seen.workload, **suggestion.change)  # type: ignore[arg-type]  # fields of Workload by name
        assert memory(large, changed, device=seen.device).fits


def test_a_key_that_nobody_knows_is_a_warning_that_names_a_known_one_which_it_resembles() -> None:
    report = sizer.check(
        {"model_type": "llama", "hiden_size": 3072, "walrus": True, "seal": False}, device="h100-sxm", s=512
    )
    said = {one.field: (one.severity, one.message) for one in report.findings if one.code == "SZ131"}
    assert said["hiden_size"] == ("warning", "is an unknown key, ignored: did you mean hidden_size?")
    assert said["walrus"] == ("warning", "is an unknown key, ignored")
    assert "seal" not in said  # what is off changes nothing
    # Another word more is another key; and no key is a misspelling of one that the file has.
    config = {"model_type": "llama", "num_attention_head": 16, "swa_num_attention_heads": 8, "hidden_size": 2048}
    config |= {"hidden_sizes": 1, "attn_head_dim": 128}
    report = sizer.check(config, device="h100-sxm", s=512)
    said = {one.field: (one.severity, one.message) for one in report.findings if one.code == "SZ131"}
    assert said.pop("num_attention_head") == (
        "warning",
        "is an unknown key, ignored: did you mean num_attention_heads?",
    )
    assert {message for _, message in said.values()} == {"is an unknown key, ignored"}
    # Where the class's own number clashes with the file's, the misspelt key is named, not the other alone.
    with pytest.raises(InputError, match=r"num_key_value_heads = 40: .*did you mean num_attention_heads\?"):
        sizer.check({"model_type": "llama", "num_attention_head": 40, "num_key_value_heads": 40})
    assert found("SZ131", context(model(hidden=64, heads=4))) == []


def test_every_rule_has_a_bad_example() -> None:
    alone = {
        "SZ107",
        "SZ111",
        "SZ112",
        "SZ119",
        "SZ121",
        "SZ123",
        "SZ129",
        "SZ131",
        "SZ132",
        "SZ134",
        "SZ136",
    }  # the tests above, and test_steps.py
    assert {code for code, *_ in BAD} | alone == {rule.code for rule in RULES}


NAMED = ("vocab", "hidden", "heads", "kv_heads", "head_dim", "d_ff")


@pytest.mark.slow
@given(
    names=st.sets(st.sampled_from(NAMED)), t=st.sampled_from([1, 2, 4]), attention=st.sampled_from(["auto", "eager"])
)
@settings(max_examples=60)
def test_a_trace_whose_caller_named_only_some_dimensions_is_checked_by_every_rule(
    names: set[str], t: int, attention: str
) -> None:
    shape = model(hidden=2568, heads=24, kv=4, head_dim=107, d_ff=6850, vocab=50257)
    whole = context(shape, t=t, attention=attention)
    dims = {name: size for name, size in whole.dimensions.items() if name in names}
    traced = replace(whole, model=None, dimensions=dims)
    for rule in RULES:
        answer = rule.check(traced)
        assert isinstance(answer, NotApplicable) or all(isinstance(one, Finding) for one in answer)


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("fused", [False, True])
def test_alignment_does_not_repeat_what_the_rules_of_width_and_head_say(t: int, fused: bool) -> None:
    # 10936 is SZ108's and head_dim 80 SZ102's, whole, doubled (gate and up in one) or divided by t.
    shape = model(hidden=2560, heads=32, kv=8, d_ff=10936)
    assert found("SZ109", context(shape, t=t, fused_qkv=fused, fused_gate_up=fused)) == []


def test_a_width_that_several_products_share_is_one_finding() -> None:
    (finding,) = found("SZ109", context(model(d_ff=10230, gated=False), t=2))
    assert (finding.field, finding.value) == ("d_ff", 10230)
    assert "mlp.down_proj" in finding.message
    assert "mlp.up_proj" in finding.message


@given(value=st.integers(1, 10**9), t=st.integers(1, 64))
def test_a_shards_text_is_true(value: int, t: int) -> None:
    text = shard_text("v", value, t, 64)
    if value % t:
        assert "does not divide" in text
    elif value // t % 2:
        assert "is odd" in text
    else:
        assert f"divisible by {largest_power_of_two(value // t)}," in text


@given(vocab=st.integers(1000, 300_000), t=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=40)
def test_a_vocabulary_is_padded_to_the_next_multiple_of_64_t_and_no_further(vocab: int, t: int) -> None:
    findings = found("SZ101", context(model(vocab=vocab), t=t))
    if vocab % (64 * t) == 0:
        assert findings == []
        return
    padded = int(findings[0].suggestions[0].change["vocab"])
    assert padded == next_multiple(vocab, 64 * t)
    assert vocab < padded < vocab + 64 * t


SHAPES = st.builds(
    lambda heads, dim, d_ff, vocab: model(hidden=heads * dim, heads=heads, d_ff=d_ff, vocab=vocab, layers=2),
    heads=st.integers(2, 32),
    dim=st.sampled_from([40, 64, 72, 80, 96, 128]),
    d_ff=st.integers(1000, 12000),
    vocab=st.integers(1000, 100_000),
)

#: Rules about alignment alone: what fixes a finding is known without pricing it.
ALIGNMENT_RULES = ("SZ101", "SZ102", "SZ103", "SZ108")


@given(shape=SHAPES, t=st.sampled_from([1, 2]))
@settings(max_examples=40)
def test_a_suggestion_applied_is_not_found_again_by_the_same_rule(shape: ModelShape, t: int) -> None:
    from dataclasses import replace

    seen = context(shape, t=t)
    for code in ALIGNMENT_RULES:
        answer = find_rule(code).check(seen)
        for finding in () if isinstance(answer, NotApplicable) else answer:
            for suggestion in finding.suggestions:
                sizes = {key: int(value) for key, value in suggestion.change.items() if key != "t"}
                after = resize(shape, **sizes) if sizes else shape
                degrees = {"t": suggestion.change["t"]} if "t" in suggestion.change else {}
                again = replace(
                    seen,
                    model=after,
                    dimensions=dimensions(after),
                    workload=replace(seen.workload, **degrees),  # type: ignore[arg-type]  # t by name
                )
                assert list(find_rule(code).check(again)) == [], (code, suggestion)  # type: ignore[arg-type]


@pytest.mark.slow
@given(shape=SHAPES)
@settings(max_examples=15)
def test_the_parameters_a_suggestion_adds_are_the_difference_of_exact_counts(shape: ModelShape) -> None:
    report = sizer.check(shape, s=1024)
    assert report.model.parameters == shape.parameters
    for finding in report.findings:
        for suggestion in finding.suggestions:
            names = dimensions(shape)
            sizes = {key: int(value) for key, value in suggestion.change.items() if key in names}
            assert suggestion.parameters_change == resize(shape, **sizes).parameters - shape.parameters


def by_code(report: Report) -> dict[str, PricedFinding]:
    return {finding.code: finding for finding in report.findings}


def test_gpt2_is_told_50304_and_what_it_saves() -> None:
    finding = by_code(sizer.check(str(CONFIGS / "gpt2.json")))["SZ101"]
    assert (finding.severity, finding.field, finding.value) == ("warning", "vocab_size", 50257)
    (suggestion,) = finding.suggestions
    assert dict(suggestion.change) == {"vocab_size": 50304}
    assert suggestion.parameters_change == 47 * 768  # tied: one matrix of h 768
    assert suggestion.step_seconds_change < 0


def test_gpt3_2_7b_is_told_of_its_head_dimension_of_80() -> None:
    gpt3 = model(hidden=2560, heads=32, d_ff=10240, gated=False, vocab=50304, layers=32)
    finding = by_code(sizer.check(gpt3, s=2048))["SZ102"]
    assert finding.value == 80
    assert finding.severity == "warning"
    assert finding.codes == ("SZ102", "SZ114")  # one cause, one finding
    assert [suggestion.change["heads"] for suggestion in finding.suggestions] == [20, 40]  # of 128 and 64


def test_llamas_width_of_8h_over_3_is_told_and_llama_3_1_is_left_in_peace() -> None:
    finding = by_code(sizer.check(model(hidden=4096, heads=32, d_ff=10922)))["SZ108"]
    assert finding.value == 10922
    assert "8h/3" in finding.message
    assert sizer.check(str(CONFIGS / "llama-3.1-8b.json")).worst() in (None, "info")


@pytest.mark.parametrize(
    ("device", "head_dim", "workload", "said"),
    [
        ("h100-sxm", 160, {}, "head_dim 160 runs as 192 in FlashAttention 3: 17% of it is padding"),
        (
            "b200",
            192,
            {},
            "cuDNN fused attention takes head dimensions up to 128 or (192, 128), (256, 256) in training",
        ),
        ("b200", 192, {"attention": "sdpa"}, "cuDNN fused attention takes head dimensions up to 128"),
        ("b200", 192, {"attention": "fa4"}, "FlashAttention 4 (CuTe) takes head dimensions up to 128"),
        ("b200", 160, {"phase": "infer"}, "FlashInfer is built for 64, 128, 256 alone"),
        ("a100-sxm", 160, {}, "runs as 192 in FlashAttention 2"),
        ("a100-sxm", 100, {}, "it is no multiple of 8, so that Q, K and V are padded with a copy first"),
        ("a100-sxm", 512, {}, "runs as 512 in torch memory-efficient attention"),
    ],
)
def test_the_head_dimension_is_judged_by_the_kernel_of_the_device(
    device: str, head_dim: int, workload: dict[str, Any], said: str
) -> None:
    findings = found("SZ114", context(model(head_dim=head_dim), device, **workload))
    assert [one.value for one in findings] == [head_dim]
    assert said in findings[0].message


@pytest.mark.parametrize(("device", "head_dim"), [("mi300x", 80), ("b200", 128), ("h100-sxm", 192), ("a100-sxm", 96)])
def test_a_head_dimension_that_the_devices_kernel_is_built_for_passes(device: str, head_dim: int) -> None:
    assert found("SZ114", context(model(head_dim=head_dim), device)) == []


def test_nothing_is_said_of_head_dimensions_where_the_kernels_are_not_public() -> None:
    answer = find_rule("SZ114").check(context(model(head_dim=132), "gaudi3"))
    assert isinstance(answer, NotApplicable)
    assert "Gaudi FusedSDPA" in answer.reason


def test_modules_that_are_not_understood_are_named_the_largest_first() -> None:
    from dataclasses import replace

    unproven = (Unproven("layers.*.indexer", 0.34, "bmm without a role"), Unproven("layers.*.gate", 0.01, "a vector"))
    seen = replace(context(model()), model=None, unproven=unproven)
    (finding,) = found("SZ132", seen)
    assert finding.violated
    assert "layers.*.indexer (34.0% of FLOPs), layers.*.gate (1.0% of FLOPs): bmm without a role" in finding.message
    assert isinstance(find_rule("SZ132").check(replace(seen, unproven=())), NotApplicable)


def test_parameters_alone_say_what_does_not_fit() -> None:
    from dataclasses import replace

    # 18 bytes a parameter with AdamW and mixed precision: 2 for weights, 4 master, 4 gradients, 8 states.
    large = replace(context(model(), "l4", t=1), model=None, parameters=397 * 10**9)
    (finding,) = found("SZ121", large)
    assert finding.error
    assert finding.value == pytest.approx(397e9 * 18 / 2**30 + 1, rel=1e-3)
    unsaid = find_rule("SZ121").check(replace(large, given=frozenset()))
    assert isinstance(unsaid, NotApplicable)
    assert unsaid.note
    assert find_rule("SZ121").check(replace(large, parameters=10**9)) == ()
    answer = find_rule("SZ118").check(large)
    assert isinstance(answer, NotApplicable)
    assert answer.reason == "the time of a step is not known"


def recurrent(**dims: int) -> Context:
    """A traced model of which only a recurrence's dimensions and the operators of something else are known."""
    from dataclasses import replace

    workload = dims.pop("t", 1), dims.pop("s", 2048), "infer" if dims.pop("infer", 0) else "train"
    seen = context(model(), t=workload[0], s=workload[1], phase=workload[2])
    return replace(seen, model=None, dimensions=dims)


@pytest.mark.parametrize(
    ("dims", "field", "said", "changes"),
    [
        ({"linear_value_heads": 32, "linear_key_heads": 16, "t": 32}, "t", "16 key heads do not divide", [{"t": 16}]),
        ({"linear_value_heads": 32, "linear_key_dim": 96}, "linear_key_dim", "runs it as 128", []),
        ({"linear_value_heads": 32, "linear_key_dim": 320}, "linear_key_dim", "none above 256", []),
        ({"state_heads": 128, "state_groups": 8, "t": 16}, "t", "8 groups do not divide", [{"t": 8}]),
        ({"state_heads": 128, "chunk": 256, "s": 1100}, "s", "holds 76 tokens: 14%", [{"s": 1024}, {"s": 1280}]),
    ],
)
def test_a_recurrence_is_judged_by_its_heads_groups_and_chunks(
    dims: dict[str, int], field: str, said: str, changes: list[Change]
) -> None:
    (finding,) = found("SZ129", recurrent(**dims))
    assert finding.field == field
    assert said in finding.message
    assert [dict(one.change) for one in finding.suggestions] == changes


def test_a_recurrence_of_published_models_passes() -> None:
    qwen = {"linear_value_heads": 32, "linear_key_heads": 16, "linear_key_dim": 128}
    assert found("SZ129", recurrent(**qwen, t=8)) == []
    assert found("SZ129", recurrent(state_heads=128, state_groups=8, chunk=128, t=8, s=4096)) == []
    assert found("SZ129", recurrent(state_heads=128, state_groups=1, t=8, infer=1)) == []  # engines copy the group


def test_a_head_run_again_for_predicted_tokens_is_counted_with_the_last_stage() -> None:
    def worth(mtp: int) -> float:
        block = Block(AttentionShape(16, 16, 128), MlpShape(5632), count=8)
        shape = ModelShape("llama", (Stack("decoder", 2048, (block,)),), vocab=128_000, head_passes=1 + mtp)
        (finding,) = found("SZ110", context(shape, p=4))
        (layers,) = re.findall(r"worth ([\d.]+) of them", finding.message)
        return float(layers)

    assert worth(1) == pytest.approx(2 * worth(0), abs=0.11)  # two figures of one decimal; the last norm runs once


def test_an_expert_width_off_16_bytes_is_said_to_be_refused_by_grouped_products() -> None:
    (finding,) = [one for one in found("SZ117", context(experts(width=1025))) if one.field == "expert_d_ff"]
    assert finding.violated
    assert "grouped products refuse rows off 16 bytes" in finding.message


@pytest.mark.parametrize(("s", "said"), [(4095, []), (2048, ["b"])])
def test_a_tile_but_for_a_row_is_full(s: int, said: list[str]) -> None:
    # 8 of 256 experts: 127.97 rows of 128, and 64.
    routed = found("SZ117", context(experts(count=256, top_k=8, width=2048), b=1, s=s))
    assert [one.field for one in routed] == said


def test_experts_that_cut_blocks_are_priced_and_told_the_width_and_the_degree_that_do_not() -> None:
    qwen = experts(count=128, top_k=8, width=1536)
    report = sizer.check(qwen, tp=8, recipe="blockwise", s=4096)
    (finding,) = [one for one in report.findings if "SZ124" in one.codes]
    assert (finding.severity, finding.field, finding.value) == ("warning", "expert_d_ff", 1536)
    assert {"tp": 4} in [dict(one.change) for one in finding.suggestions]
    assert finding.tier


def test_padding_of_expert_groups_is_priced_by_what_the_grouped_products_take() -> None:
    report = sizer.check(experts(count=64, top_k=8), b=1, s=1024, recipe="blockwise", global_batch=64)
    (finding,) = [one for one in report.findings if "SZ125" in one.codes]
    assert 0 < finding.step_seconds < report.step.seconds


@pytest.mark.parametrize("whole", [32, 2**31 - 2, 2**30])
def test_a_microbatch_of_billions_names_the_largest_that_divides(whole: int) -> None:
    asked = Workload(b=2**31 - 1, s=1024, global_batch=whole)
    given = replace(context(model()), workload=asked, operators=(), costs=(), dimensions={})
    (finding,) = find_rule("SZ120").check(given)
    divisor = finding.suggestions[0].change["b"]
    assert whole % divisor == 0
    assert all(whole % other for other in range(divisor + 1, min(whole, divisor + 1000)) if other < 2**31 - 1)


def test_muons_update_is_counted_by_the_shapes_of_matrices() -> None:
    # Llama 3.1 8B: 32 layers of two 4096 x 4096, two 1024 x 4096 and three 4096 x 14336 matrices, five iterations of
    # 4 r r c + 2 r r r FLOPs: 6.7e14, which take 0.67 s at 989 TFLOPS, and more at what products reach.
    square, keys, wide = 6 * 4096**3, 4 * 1024**2 * 4096 + 2 * 1024**3, 4 * 4096**2 * 14336 + 2 * 4096**3
    flops = 32 * 5 * (2 * square + 2 * keys + 3 * wide)
    asked: dict[str, Any] = {"b": 4, "s": 4096, "optimizer": "muon", "checkpointing": "full"}
    report = sizer.check(str(CONFIGS / "llama-3.1-8b.json"), select=["SZ134"], **asked)
    (finding,) = report.findings
    assert f"{flops:.1e} FLOPs" in finding.message
    assert flops / 989e12 < (finding.step_seconds or 0.0) < 1.7 * flops / 989e12
    # Sixteen times the tokens, and a quarter of the matrices a rank.
    accumulated = sizer.check(
        str(CONFIGS / "llama-3.1-8b.json"), select=["SZ134"], d=4, zero=1, global_batch=256, **asked
    )
    assert not accumulated.findings


def test_a_named_megatron_stack_is_priced_with_the_rows_that_it_adds() -> None:
    asked: dict[str, Any] = {"b": 4, "s": 1024, "t": 4, "d": 2, "stack": "megatron-core-te"}
    gpt2 = json.loads((CONFIGS / "gpt2.json").read_text())
    written, padded = (sizer.check({**gpt2, "vocab_size": v}, **asked) for v in (50257, 50688))  # 99 x 128 x 4
    assert written.step.seconds == padded.step.seconds
    assert written.step.flops < padded.step.flops  # MFU is of the model as written
    assert written.model.parameters < padded.model.parameters


def test_the_rows_that_megatron_adds_to_a_vocabulary_are_told() -> None:
    asked: dict[str, Any] = {"s": 1024, "select": ["SZ136"]}
    report = sizer.check(str(CONFIGS / "gpt2.json"), t=4, stack="megatron-core-te", **asked)
    assert not report.findings  # 50688 is 0.9% more
    (finding,) = sizer.check(str(CONFIGS / "mistral-7b.json"), t=8, stack="megatron-core-te", **asked).findings
    assert "32768, a multiple of 128 t: 2.4% more" in finding.message


def test_copied_key_value_heads_are_said_to_hold_the_cache_as_often() -> None:
    report = sizer.check(str(CONFIGS / "llama-3.1-8b.json"), phase="decode", t=16, b=8, s=4096)
    (finding,) = [one for one in report.findings if one.code == "SZ115"]
    assert "the cache held 2 times" in finding.message


@pytest.mark.parametrize(("device", "severity"), [("h800", "info"), ("h200", "warning")])
def test_key_value_heads_copied_for_want_of_room_are_no_fault(device: str, severity: str) -> None:
    # Four of them: t 4 needs 83 GiB in two stages and more over two ranks of data, which an H200 has.
    layout: dict[str, Any] = {"gpus": 8, "t": 8, "d": 1, "b": 16, "s": 1024, "zero": 0, "global_batch": 64}
    asked: dict[str, Any] = {"checkpointing": "full", "sequence_parallel": True, "select": ["SZ115"]}
    (finding,) = sizer.check("sarvamai/sarvam-30b", device=device, **layout, **asked).findings
    assert finding.severity == severity


@pytest.mark.parametrize("spread", [{}, {"gpus": 64, "e": 64, "zero": 1}])
def test_an_experts_tokens_are_known_where_its_ranks_were_said(spread: dict[str, int]) -> None:
    report = sizer.check("deepseek-ai/DeepSeek-V3", b=1, s=4096, **spread)
    assert [one.code for one in report.findings if one.code == "SZ118" and one.severity == "warning"] == []
