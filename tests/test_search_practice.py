"""What a search starts from, and that `check` accepts what it answers: published practice, never a strawman."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sizer
from shapes.errors import InputError
from sizer.searching import search
from sizer.searching.result import SearchResult
from sizer.searching.space import Limits, usual_model

BUDGETS = (1e8, 2e8, 5e8, 1e9, 2e9, 3e9, 5e9, 7e9, 8e9, 1e10, 1.3e10, 2e10, 3e10, 7e10, 1e11, 2e11, 4e11, 7e11, 1e12)
#: Those that the fast loop keeps; every run has each budget with a degree in turn besides.
FEW = {(1e8, 1), (3e9, 8), (7e10, 4), (1e12, 8)}
USUAL_HIDDEN = (1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192)


def answer(result: SearchResult) -> dict[str, int]:
    return dict(result.baseline.change if result.keep else result.best.change)


def llama(change: dict[str, int], *, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": change["hidden"],
        "num_hidden_layers": change["layers"],
        "num_attention_heads": change["heads"],
        "num_key_value_heads": change["kv_heads"],
        "head_dim": change["head_dim"],
        "intermediate_size": change["d_ff"],
        "vocab_size": change["vocab"],
        "tie_word_embeddings": tied,
    }


@pytest.mark.parametrize(
    ("budget", "t"),
    [
        pytest.param(
            budget,
            t,
            marks=() if (budget, t) in FEW else pytest.mark.slow if (at + place) % 3 == 0 else pytest.mark.exhaustive,
        )
        for place, t in enumerate((1, 4, 8))
        for at, budget in enumerate(BUDGETS)
    ],
)
def test_every_budget_has_an_answer_that_check_finds_clean(budget: float, t: int) -> None:
    result = search(params=budget, t=t, top=1)
    own, found = result.baseline, answer(result)
    assert own.parameters == pytest.approx(budget, rel=0.03)
    assert own.change["heads"] > own.change["kv_heads"] or t == 8 >= own.change["heads"]
    assert found["heads"] % t == found["kv_heads"] % t == found["d_ff"] % (64 * t) == found["vocab"] % (64 * t) == 0
    report = sizer.check(llama(found, tied=budget <= 4e9), t=t, b=4, s=4096, device="h100-sxm")
    assert report.ok, [one.message for one in report.findings if one.severity != "info"]


@pytest.mark.parametrize("h", USUAL_HIDDEN)
def test_usual_hidden_sizes_on_eight_shards_have_an_aligned_row(h: int) -> None:
    result = search(h=h, t=8)
    assert result.baseline.change["d_ff"] % 512 == 0
    assert result.candidates
    for one in result.candidates:
        assert one.change["d_ff"] % 512 == 0
        assert not one.breaks
    # The usual 1% holds nothing else: what is searched is wider, and says so.
    assert any("--tolerance 1%: it is" in note for note in result.notes)


@pytest.mark.parametrize("what", ["model", "heads"])
@pytest.mark.parametrize("h", [2880, 3840, 5376])  # gpt-oss, Gemma 3: no heads of 64 or 128 on 8 shards add up to them
def test_heads_need_not_add_up_to_h_to_split_over_eight_shards(h: int, what: str) -> None:
    result = search(h=h, what=what, t=8, top=1)
    own = result.baseline.change
    assert (own["heads"] % 8, own["kv_heads"] % 8, own["head_dim"]) == (0, 0, 128)
    assert own["heads"] > own["kv_heads"]
    assert not result.baseline.breaks


def test_a_tolerance_that_was_asked_for_is_kept() -> None:
    with pytest.raises(InputError, match=r"no candidate"):
        search(h=4096, t=8, limits=Limits(0.015))


@given(
    budget=st.floats(3e8, 2e12),
    t=st.sampled_from([1, 2, 4, 8]),
    p=st.sampled_from([1, 2, 3, 4, 8, 16]),
    vocab=st.sampled_from([32000, 49152, 128256, 151936]),
)
def test_the_usual_model_is_aligned_grouped_and_splits(budget: float, t: int, p: int, vocab: int) -> None:
    padded = -(-vocab // (64 * t)) * 64 * t
    model = usual_model(budget, 64 * t, t, p, padded)
    attention, mlp = model.attention, model.dense_mlp
    assert attention is not None
    assert mlp is not None
    assert model.layers % p == 0
    assert attention.head_dim in (64, 128)
    assert attention.heads % t == attention.kv_heads % t == attention.heads % attention.kv_heads == 0
    assert mlp.width % (64 * t) == 0
    assert model.parameters == pytest.approx(budget, rel=0.25)


def test_an_impossible_budget_says_so() -> None:
    with pytest.raises(InputError, match=r"^params = 20000000\.0: "):
        search(params=2e7, t=64)


def test_the_vocabulary_is_that_of_a_named_tokenizer() -> None:
    assert search(params=8e9, vocab="qwen3").baseline.change["vocab"] == 151680  # 151,669 tokens
    assert search(params=8e9, vocab="qwen3", t=8).baseline.change["vocab"] == 152064
    with pytest.raises(InputError, match="known tokenizer"):
        search(params=8e9, vocab="nobodys")


def test_a_verdict_names_no_seven_dimensions_where_the_table_does() -> None:
    result = search(params=2e9)
    assert result.keep
    assert len(result.baseline.change) == 7
    assert result.verdict.startswith("take the baseline: of what was tried the best is 1.")  # nobody typed it


def test_layers_are_whole_stages() -> None:
    result = search(params=7e9, p=6, top=3)
    assert {one.change["layers"] % 6 for one in (result.baseline, *result.candidates)} == {0}


def test_gains_are_over_the_nearest_aligned_width_and_over_what_was_typed() -> None:
    result = search(h=4096, d_ff=10922)
    assert result.aligned is not None
    assert result.aligned.change == {"d_ff": 10944}
    assert "as fast as the nearest aligned, 10944, and" in result.verdict
    best_is_nearest = search(h=2560, d_ff=6900)
    assert best_is_nearest.aligned is not None
    assert best_is_nearest.aligned.change == best_is_nearest.best.change
    assert "nearest aligned" not in best_is_nearest.verdict  # 1.00x as fast as itself
    assert search(h=4096).aligned is None
    assert search(h=4096).baseline.change == {"d_ff": 11008}  # LLaMA's


def test_the_books_ratio_is_within_the_interval_of_its_misaligned_width() -> None:
    # ML Engineering book, H100: 10922 at 273 TFLOPS, its neighbours at 395 to 398; GAC's kernels are 2.7 times apart.
    best = search(h=4096, d_ff=10922, gemm_only=True).best
    assert best.speedup_low < 1.46 < best.speedup < best.speedup_high
    aligned = search(h=4096, d_ff=11008, gemm_only=True).best
    assert aligned.speedup_low > 0.9


@pytest.mark.parametrize("tokens", [128, 256])
def test_products_shorter_than_their_launch_are_left_where_they_are(tokens: int) -> None:
    result = search(h=2048, d_ff=1090, gemm_only=True, tokens=tokens)
    assert result.keep
    assert result.verdict.startswith("keep 1090: its products are shorter than their launches")
    assert not search(h=2048, d_ff=1090, gemm_only=True, tokens=65536).keep


def test_what_nobody_typed_is_taken_and_not_kept() -> None:
    assert search(params=1e8, tp=8).verdict.startswith("take the baseline: its products are shorter")


def test_whole_models_stay_ready_for_the_shards_that_the_baseline_is_ready_for() -> None:
    config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    rest = {"num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256}
    for one in search({**config, **rest}, what="model", top=50).ranked:
        assert one.change["heads"] % 8 == one.change["kv_heads"] % 8 == 0
        assert one.change["head_dim"] in (64, 128)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "shards"), [(24, 6, 2), (40, 10, 2), (24, 3, 1), (24, 12, 4), (32, 1, 8)]
)
def test_key_value_heads_that_eight_do_not_divide_keep_the_hidden_size_they_have(heads, kv_heads, shards) -> None:
    """phi-4's 40/10: the baseline's own hidden size and heads are among what is tried."""
    sizes = {"hidden_size": 128 * heads, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    rest = {"num_hidden_layers": 32, "intermediate_size": 512 * heads, "vocab_size": 51200}
    found = search({"model_type": "llama", **sizes, **rest}, what="model", top=50).ranked[1:]
    tried = [one.change for one in found]
    assert any(one["hidden"] == 128 * heads and one["kv_heads"] == kv_heads for one in tried)
    assert all(one["heads"] % shards == 0 for one in tried)


def test_no_key_value_head_is_copied_that_the_baseline_splits() -> None:
    # h 1024 in heads of 128 would keep two query heads a key/value head with 4 of them.
    for parameters in (2.5e8, 4e8):
        assert answer(search(params=parameters, t=8))["kv_heads"] % 8 == 0
