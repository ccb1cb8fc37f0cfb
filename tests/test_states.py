"""Decode steps of recurrences: the form against its published tables, physics, and what a model's step runs."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from shapes.cost import predict
from shapes.cost.explain import explain
from shapes.cost.moving import moved_parts
from shapes.device import load_device
from shapes.operators.types import StateUpdate
from shapes.toml_table import DATA

TABLES = tomllib.loads((DATA / "states.toml").read_text(encoding="utf-8"))
#: 64 sequences of 32 heads of 128 x 128 in fp32.
STATE = StateUpdate("state", "forward", "gated_delta", 1 << 27, 1 << 27)


@pytest.mark.parametrize("form", TABLES)
def test_a_table_prices_its_recurrence_and_states_what_it_was_judged_by(form: str) -> None:
    one = replace(STATE, what=form.removeprefix("state_"))
    for name, table in TABLES[form].items():
        cost, device = predict(one, name), load_device(name)
        assert (cost.tier, cost.error, cost.p95) == ("fitted", table["error"], table["error_p95"])
        assert table["bandwidth_bytes_per_s"] <= 1.001 * device.memory.bandwidth_bytes_per_s
        assert sum(term.seconds for term in explain(one, cost, name)) == pytest.approx(cost.seconds)


@pytest.mark.parametrize("form", TABLES)
def test_more_bytes_take_longer(form: str) -> None:
    moved = np.exp(np.linspace(np.log(1e3), np.log(1e11), 2000))
    one = replace(STATE, what=form.removeprefix("state_"), bytes_read=moved, bytes_written=moved)  # type: ignore[arg-type]
    for name in TABLES[form]:
        assert (np.diff(sum(moved_parts(one, load_device(name)))) >= 0).all()


def test_a_recurrence_that_nobody_measured_is_extrapolated() -> None:
    cost = predict(replace(STATE, what="mamba2"), "h100-sxm")
    assert cost.tier == "extrapolated"
    assert cost.seconds == predict(STATE, "h100-sxm").seconds


@pytest.mark.parametrize(("device", "form"), [("h100-sxm", "gated_delta"), ("b200", "gated_delta"), ("h200", "kda")])
def test_a_long_state_moves_at_nearly_the_memorys_rate(device: str, form: str) -> None:
    many = 64 * (STATE.bytes_read)
    seconds = predict(replace(STATE, what=form, bytes_read=many, bytes_written=many), device).seconds
    share = 2 * many / seconds / load_device(device).memory.bandwidth_bytes_per_s
    assert 0.6 < share <= 1.0
