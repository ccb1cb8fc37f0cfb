"""`search --quality`: predicted loss by published fits, and candidates of equal loss."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shapes.device import load_device
from shapes.errors import InputError
from shapes.step import Pricer
from sizer.cli import main
from sizer.searching import search
from sizer.searching.quality import FITS, MADE, PRACTICE, at_equal_loss, losses, wide
from sizer.searching.space import EQUAL, Baseline, Candidates, Limits, Space
from sizer.searching.spaces import make_space

PRICER = Pricer(load_device("h100-sxm"))


@lru_cache(maxsize=2)
def space_of(budget: float, tokens: float) -> Space:
    baseline = Baseline.from_dimensions(None, parameters=budget, step=64)
    return make_space("model", baseline, PRICER.device, wide(Limits(), baseline.model, tokens, 64))


def test_a_baseline_has_its_own_loss() -> None:
    space = space_of(3e9, 1e11)
    loss, band, notes = losses(space, Candidates.of([space.baseline]), 1e11)
    assert (loss.tolist(), band.tolist()) == ([1.0], [0.0])
    assert not [note for note in notes if "not made for" in note]


@given(first=st.integers(64, 200), second=st.integers(64, 200))
def test_more_parameters_have_less_loss_where_a_fit_speaks_of_them(first: int, second: int) -> None:
    space = space_of(3e9, 1e11)
    widths = [{**space.baseline, "d_ff": 128 * one} for one in (first, second)]
    loss, _, notes = losses(space, Candidates.of(widths), 1e11)
    assert "loss by Chinchilla, replicated" in notes[0]
    assert np.sign(loss[1] - loss[0]) == np.sign(first - second)


def test_what_a_fit_was_not_made_for_is_said_and_left_out() -> None:
    space = space_of(3e9, 1e11)
    more = Candidates.of([{**space.baseline, "d_ff": 2 * space.baseline["d_ff"]}])
    loss, _, notes = losses(space, more, 1e14)
    assert loss.tolist() == [1.0]
    assert any("was not made for tokens 1e+14" in note for note in notes)
    assert wide(Limits(), space.model, 1e14, 64).tolerance == 0.01 < wide(Limits(), space.model, 1e11, 64).tolerance


@pytest.mark.parametrize("budget", [1e9, pytest.param(7e9, marks=pytest.mark.slow)])
def test_candidates_are_within_practice_and_a_bound_has_a_price(budget: float) -> None:
    space = space_of(budget, 1e11)
    kept = at_equal_loss(space, PRICER, 1e11)
    loss, _, _ = losses(kept, kept.candidates, 1e11)
    columns, own = kept.candidates.columns, kept.baseline
    aspect = columns["hidden"] / columns["layers"] / (own["hidden"] / own["layers"])
    assert 0 < len(kept.candidates) < len(space.candidates)
    assert (loss <= 1 + EQUAL).all()
    assert (np.abs(np.log(aspect)) <= np.log(PRACTICE) + 1e-6).all()
    assert PRACTICE < MADE
    costs = [float(note.partition(": costs ")[2].partition("%")[0]) for note in kept.notes if ": costs " in note]
    assert len(costs) >= 3
    assert min(costs) >= 0


def test_every_fit_says_its_source_and_range() -> None:
    for fit in [*FITS["size"][:1], *FITS["term"]]:
        assert fit["source"]
        assert fit["read"]
        assert all(low < high for low, high in fit["ranges"].values())


def test_a_search_at_equal_loss_lists_no_worse_candidate_and_a_front_of_loss_time_and_memory() -> None:
    found = search(params=1e9, quality=1e11, serving={"b": 8, "context": 1024})
    assert found.objective == "step-time"
    listed = [*found.candidates, *found.front]
    assert all(one.loss is not None and one.loss <= 1 + EQUAL for one in listed)
    assert found.baseline.loss == 1.0
    amounts = [(one.loss or 0, one.timing.seconds, one.memory_change_bytes or 0, one.decode) for one in found.front]
    for first, second in pairwise(amounts):
        better = [a < b for a, b in zip(first[:3], second[:3], strict=True)]
        assert first[3] is not None
        assert second[3] is not None
        assert any(better) or first[3].seconds < second[3].seconds


@pytest.mark.parametrize("tokens", [None, 1e11])
def test_a_note_says_how_far_widths_were_moved(tokens: float | None) -> None:
    found = search(params=1e9, quality=tokens)
    (note,) = [one for one in found.notes if "d_ff/h within a factor" in one]
    factor = float(note.split("d_ff/h within a factor ")[1].split()[0])
    shapes = [one.change["d_ff"] / one.change["hidden"] for one in (found.baseline, *found.ranked)]
    furthest = max(max(one / shapes[0], shapes[0] / one) for one in shapes)
    assert 1 + (factor - 1) / 2 < furthest <= factor * 1.05  # to the next multiple


def test_quality_is_of_whole_models_and_of_tokens() -> None:
    with pytest.raises(InputError, match="--what model"):
        search(h=4096, quality=1e11)
    with pytest.raises(InputError, match=r"^quality = 0: "):
        search(params=1e9, quality=0)
    run = CliRunner().invoke(main, ["search", "--params", "1e9", "--quality", "100B"])
    assert run.exit_code == 0
    said = " ".join(run.output.split())
    for words in ("arXiv 2404.10102), made for parameters", ": costs", "no published fit prices head_dim", "+-"):
        assert words in said


@pytest.mark.parametrize("granularity", [2, 4, 8, 16])
def test_the_granularity_term_is_krajewskis_law(granularity: int) -> None:
    def law(g: int) -> float:
        return float(0.47 + (2.1 / g**0.58 + 18.1) / 3.7e9**0.115 + 30.8 / 1.3e11**0.147)

    (fit,) = (one for one in FITS["term"] if one["of"] == "granularity")
    log = np.log(granularity)
    share = fit["log"] * log + fit["squared_log"] * log**2
    assert share == pytest.approx(law(granularity) / law(1) - 1, abs=0.002)


def test_the_term_of_shared_key_value_heads_is_shazeers_pair_of_perplexities() -> None:
    (fit,) = (one for one in FITS["term"] if one["of"] == "query heads a key/value head")
    shared = np.log(30.2) / np.log(29.9) - 1
    assert fit["log"] * np.log(8) == pytest.approx(shared, abs=1e-4)
    found = search("meta-llama/Llama-3.1-8B", what="model", quality=1e11, limits=Limits(vary=("kv-ratio",)))
    own = found.baseline.change
    for one in found.ranked:
        sharing = one.change["heads"] / one.change["kv_heads"] / (own["heads"] / own["kv_heads"])
        if sharing > 1 and one.change["layers"] == own["layers"] and one.parameters <= found.baseline.parameters:
            assert one.loss is not None
            assert one.loss > 1


@pytest.mark.parametrize(("every", "perplexity"), [(1, 5.77), (2, 5.66), (4, 5.65), (8, 5.70), (16, 5.82)])
def test_the_term_of_hybrids_is_kimi_linears_perplexities(every: int, perplexity: float) -> None:
    (fit,) = (one for one in FITS["term"] if one["of"] == "layers to a full one, recurrent")
    log = np.log(every / fit["around"])
    share = fit["log"] * log + fit["squared_log"] * log**2
    assert share == pytest.approx(np.log(perplexity) / np.log(5.65) - 1, abs=0.0015)


def test_fewer_full_layers_of_a_recurrent_hybrid_cost_loss_and_windows_an_uncertainty_alone() -> None:
    limits = Limits(step=1024, aspect=(70, 100), head_dims=(256,), vary=("hybrid",))
    kept = search("Qwen/Qwen3.5-27B", what="model", quality=1e11, limits=limits, top=100)
    assert {one.change["full_every"] for one in kept.ranked} == {4}, "0.5% more loss with 8, 0.2% with 2"
    limits = Limits(step=1024, aspect=(100, 120), head_dims=(128,), vary=("hybrid", "window"))
    found = search("google/gemma-3-27b-it", what="model", quality=1e11, limits=limits, top=100)
    fewer_full = [one for one in found.ranked if one.change["full_every"] == 12]
    pairs = [
        (one, fewer)
        for one in found.ranked
        for fewer in fewer_full
        if one.change["full_every"] == 6 and fewer.change == {**one.change, "full_every": 12}
    ]
    assert pairs
    for one, fewer in pairs:
        assert fewer.loss == pytest.approx(one.loss)
        assert fewer.loss_error - one.loss_error == pytest.approx(0.003 * np.log(2), abs=4e-4)


def test_heads_stay_ready_for_shards_where_one_device_serves() -> None:
    found = search("allenai/OLMo-2-1124-7B", what="model", quality=4e12, serving={"b": 8, "context": 1024})
    assert {one.change["heads"] % 8 for one in found.ranked} == {0}


@pytest.mark.slow
def test_a_width_that_is_no_multiple_of_256_has_candidates_of_its_own() -> None:
    found = search("openai/gpt-oss-20b", what="model", quality=1e13, limits=Limits(aspect=(116, 126)))
    assert found.considered > 50
    assert {one.change["hidden"] % 64 for one in found.ranked} == {0}
