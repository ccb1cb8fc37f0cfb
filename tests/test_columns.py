"""Columns: many models priced as arrays are each priced as it is alone."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import draws

from shapes.columns import Column, IntegerTable, Split, each_part
from shapes.device import load_device
from shapes.errors import InputError
from shapes.model.resize import dimensions
from shapes.step import Pricer
from shapes.step.stack import load_stack
from sizer.searching.pricing import estimates, price
from sizer.searching.space import Baseline, Space
from sizer.subject import run_by

CONFIGS = Path(__file__).parent / "data" / "configs"
TABLE = {"a": np.array([3, 1, 3, 2]), "b": np.array([5, 5, 7, 7]), "same": np.array([4, 4, 4, 4])}


def test_a_column_holds_a_value_for_each_combination_of_what_it_depends_on() -> None:
    table = IntegerTable(TABLE)
    assert table["same"] == 4
    assert table["a"].values.tolist() == [1, 2, 3]
    product = table["a"] * table["b"] + 1
    assert table.rows_of(product).tolist() == [16, 6, 22, 15]
    assert len(product.values) == 4
    assert table.rows_of(-(-table["a"] // 2) * 2).tolist() == [4, 2, 4, 2]
    assert table.rows_of(round(table["a"] / 2)).tolist() == [2, 0, 2, 1]  # as Python rounds: to even


def test_rows_that_go_different_ways_are_run_apart() -> None:
    def halved(table: IntegerTable) -> Any:
        return table.rows_of(table["a"] // 2 if table["a"] % 2 == 0 else table["a"] * 10)

    found = np.zeros(4)
    for part, values in each_part(IntegerTable(TABLE), halved):
        found[part.rows] = values
    assert found.tolist() == [30, 10, 30, 1]


def test_a_column_left_in_a_cache_is_equal_to_no_number() -> None:
    """Keys of one hash, as those of layers are that differ between the first and the last: a search never ended."""

    class Key:
        def __init__(self, size: Any) -> None:
            self.size = size

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Key) and bool(self.size == other.size)

    cache: dict[Key, Any] = {}

    def kept(part: IntegerTable) -> int:
        cache.setdefault(Key(part["a"]), part.size)
        return part.size

    for size in (2, 1, 3):
        for rows in (TABLE, {"a": np.array([size])}):
            assert sum(found for _, found in each_part(IntegerTable(rows), kept)) == len(rows["a"])


def test_where_a_plain_number_is_needed_rows_are_told_apart_by_it() -> None:
    parts = [
        (part.rows.tolist(), found)
        for part, found in each_part(IntegerTable(TABLE), lambda table: list(range(table["a"])))
    ]
    assert sorted(parts) == [([0, 2], [0, 1, 2]), ([1], [0]), ([3], [0, 1])]


def test_what_64_bits_do_not_hold_is_worked_out_for_each_row() -> None:
    large = IntegerTable({"a": np.array([2**40, 2**41]), "b": np.array([1, 1])})
    with pytest.raises(Split):
        large["a"] * large["a"]
    found = {part.rows[0]: value for part, value in each_part(large, lambda table: table["a"] * table["a"])}
    assert found == {0: 2**80, 1: 2**82}


def test_columns_are_equal_where_every_row_is_and_unlike_numbers_of_another_table() -> None:
    table = IntegerTable(TABLE)
    assert table["a"] == table["a"]
    assert hash(table["a"]) == hash(table["a"])
    assert table["a"] != IntegerTable(TABLE)["a"]
    assert table["a"] is not None
    assert isinstance(table["a"], Column)
    assert table["a"] != "3"


#: Ways of running that models of each kind are split.
RUNS: tuple[dict[str, Any], ...] = (
    {},
    {"phase": "infer", "t": 2},
    {"t": 2, "sequence_parallel": True, "checkpointing": "full"},
    {"d": 4, "e": 2, "zero": 3},
    {"t": 2, "p": 2, "d": 2, "zero": 1, "global_batch": 32, "checkpointing": "selective"},
    {"cp": 2, "dtype": "fp8"},
    {"attention": "eager", "optimizer": "muon"},
    {"phase": "decode", "b": 16, "context": 4096, "t": 2},
)
STACKS = (None, "transformers-eager", "megatron-core-te", "transformers-compile")


@pytest.mark.slow
@draws(100)
@given(st.integers(0, 10**6), st.sampled_from(sorted(path.stem for path in CONFIGS.glob("*.json"))))
def test_random_spaces_cost_what_each_of_their_candidates_costs_alone(seed: int, name: str) -> None:
    draw = random.Random(seed)
    run = {"b": 2, "s": 512, **draw.choice(RUNS)}
    stack, device = draw.choice(STACKS), load_device(draw.choice(("h100-sxm", "mi300x", "b200", "a100-sxm-80gb")))
    try:
        start = Baseline.from_config(str(CONFIGS / f"{name}.json"), stack=stack, **run)
    except InputError:
        return  # a dense model has no experts to spread
    if start.workload.dtype not in device.peak_flops:
        return
    own = dimensions(start.model)
    varied = draw.sample(
        sorted(own.keys() & _OTHERS.keys()), k=draw.randint(1, min(4, len(own.keys() & _OTHERS.keys())))
    )
    changes = [{name: draw.choice(_OTHERS[name])(own) for name in varied} for _ in range(8)]
    runs = load_stack(stack) if stack else None
    as_run = partial(run_by, runs, start.given) if runs else None
    space = Space("model", start.model, start.workload, tuple(changes), changes[0], as_run=as_run)
    pricer = Pricer(device, stack=runs)
    found = estimates(space, changes, pricer)
    for index, change in enumerate(changes):
        try:
            (exact,) = price(replace(space, baseline=change), [change], pricer)
        except InputError:
            assert np.isnan(found.seconds[index])
            continue
        assert found.seconds[index] == pytest.approx(exact.timing.seconds, rel=1e-9)
        assert (found.flops[index], found.layers[index], found.parameters[index]) == pytest.approx(
            (exact.flops, exact.layers, exact.parameters), rel=1e-12
        )


def _times(name: str, numerator: int, denominator: int) -> Any:
    return lambda own: max(1, own[name] * numerator // denominator)


#: Dimension -> ways to another value of it.
_OTHERS: dict[str, tuple[Any, ...]] = {
    name: tuple(_times(name, *share) for share in ((1, 1), (2, 1), (1, 2), (3, 2)))
    for name in ("layers", "heads", "d_ff", "vocab", "experts", "top_k", "expert_d_ff", "kv_lora_rank", "window")
}
_OTHERS["hidden"] = tuple(_times("hidden", *share) for share in ((1, 1), (2, 1), (1, 2)))
_OTHERS["d_ff"] += (lambda own: own["d_ff"] + 1,)
_OTHERS["shared_d_ff"] = (lambda own: own["shared_d_ff"], lambda own: 0, lambda own: own["shared_d_ff"] * 2)
