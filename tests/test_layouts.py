"""`search --layouts`: whole models, each with a plan of its own over the splits that are the fastest for the first."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from shapes import program
from shapes.device import load_device
from shapes.errors import InputError
from shapes.model.resize import resize
from shapes.operators import operators
from shapes.step import Pricer
from shapes.step.stack import load_stack
from sizer.answers.plan import Plan
from sizer.cli import main
from sizer.searching import search
from sizer.searching.pricing import estimates
from sizer.searching.run import SPLITS
from sizer.searching.space import Baseline, Limits
from sizer.searching.spaces import make_space

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "intermediate_size": 8192,
    "vocab_size": 32000,
}
ASKED: dict[str, Any] = {"s": 2048, "stack": "megatron-core-te"}
GPUS, BATCH = 8, 128


@lru_cache(maxsize=1)
def plan() -> Plan:
    found = sizer.plan(CONFIG, gpus=GPUS, global_batch=BATCH, **ASKED)
    assert isinstance(found, Plan)
    return found


@pytest.mark.slow
def test_the_baseline_and_each_candidate_take_what_a_plan_of_their_own_finds() -> None:
    found = search(CONFIG, what="model", layouts=plan, s=ASKED["s"])
    assert found.stack == ASKED["stack"], "the plan's"
    assert len(found.candidates) >= 2
    assert found.baseline.timing.seconds == pytest.approx(plan().candidates[0].seconds)
    for one in found.candidates:
        hf = {"hidden": "hidden_size", "d_ff": "intermediate_size", "layers": "num_hidden_layers"}
        hf |= {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads"}
        config = CONFIG | {key: one.change[name] for name, key in hf.items()} | {"head_dim": one.change["head_dim"]}
        own = sizer.plan(config, gpus=GPUS, global_batch=BATCH, **ASKED)
        assert isinstance(own, Plan)
        assert one.layout == own.candidates[0].workload
        assert one.timing.seconds == pytest.approx(own.candidates[0].seconds)


def test_the_shortlist_is_of_each_candidates_fastest_layout() -> None:
    ways, device = plan().ways()[:3], load_device("h100-sxm")
    assert len({(one.t, one.cp, one.p, one.e) for one in ways}) == 3
    space = make_space("model", Baseline.from_config(CONFIG, **ASKED), device, Limits())
    pricer, changes = Pricer(device, stack=load_stack(ASKED["stack"])), space.candidates[:4]
    best = estimates(space, changes, pricer, ways=ways)
    for at, change in enumerate(changes):
        model = resize(space.model, **change)
        steps = [pricer.step(operators(model, way), way, model).seconds for way in ways]
        assert best.seconds[at] == pytest.approx(min(steps))


def test_a_stop_keeps_the_baseline_and_what_was_planned_until_then() -> None:
    ways, said = plan().ways()[:SPLITS], list[tuple[int, int, str]]()

    def stop(done: int, of: int, best: str) -> None:
        said.append((done, of, best))
        program.REQUESTS[:] = [2] * (len(said) == len(ways) + 2)

    try:
        found = search(CONFIG, what="model", layouts=plan(), progress=stop, **ASKED)
    finally:
        program.REQUESTS.clear()
    assert [one[:2] for one in said[: len(ways)]] == [(done, len(ways)) for done in range(1, 1 + len(ways))]
    assert len(said) == len(ways) + 2
    assert found.baseline.layout == plan().candidates[0].workload
    assert 1 < len(found.ranked) <= 3


def test_layouts_need_a_configuration_devices_and_a_batch() -> None:
    run = CliRunner().invoke(main, ["search", "--params", "1e9", "--layouts", "--gpus", "8"])
    assert run.exit_code == 2
    assert "expected CONFIG, --what model, --gpus, --global-batch" in run.output
    llama = str(Path(__file__).parent / "data" / "configs" / "llama-3.1-8b.json")
    widths = CliRunner().invoke(main, ["search", llama, "--layouts", "--gpus", "8", "--global-batch", "64"])
    assert (widths.exit_code, "--what model" in widths.output) == (2, True)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"serving": {"contxt": 4096}}, "contxt"),
        ({"serving": {"b": 0, "context": 4096}}, "b = 0"),
        ({"serving": {"b": 1, "context": 4096, "t": 3}}, "--serving t = 3"),
        ({"training_budget": 0.0}, "--limit training-budget"),
        ({"limits": Limits(vary=("window",))}, "--limit vary"),
        ({"top": 0}, "^top = 0"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_planned(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        search(CONFIG, what="model", layouts=lambda: pytest.fail("planned"), **asked)
