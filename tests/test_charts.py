"""What charts and verdicts of pages say, without a browser: places of points and bars, worked out here by hand."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sizer
from sizer.answers.operator_table import ops
from sizer.checking.findings import Checked
from sizer.documents import seconds_text
from sizer.documents.charts import Chart
from sizer.documents.ops import roofline
from sizer.documents.search import document, front
from sizer.render import render
from sizer.searching import search
from sizer.searching.space import Limits

CONFIGS = Path(__file__).parent / "data" / "configs"
ODD = {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "num_hidden_layers": 8}
ODD |= {"model_type": "llama", "intermediate_size": 13333, "vocab_size": 100277}


def points(chart: Chart) -> list[dict[str, Any]]:
    return [dict(row) for layer in chart.layers if layer.mark == "point" for row in layer.rows]


def test_operators_that_only_move_memory_are_under_the_roof_by_their_bandwidth() -> None:
    table = ops(str(CONFIGS / "gpt2.json"))
    (chart,) = roofline(table)
    drawn = points(chart)
    assert len(drawn) == len(table.rows)
    left = min(row["x"] for row in drawn)
    moved = [row for row in drawn if "TB/s" in row["what"]]
    assert moved
    assert {row["x"] for row in moved} == {left}
    for row in moved:
        said = float(re.search(r"([\d.]+) TB/s", row["what"])[1])  # type: ignore[index]
        assert row["y"] / row["x"] == pytest.approx(said, abs=0.006)
        assert said <= table.device.memory.bandwidth_bytes_per_s / 1e12


@pytest.mark.parametrize(
    ("config", "what", "axis"),
    [("llama-3.1-8b", "heads", "head_dim"), ("qwen3-30b-a3b", "experts", "expert_d_ff"), ("gpt2", "vocab", "vocab")],
)
def test_a_search_is_drawn_over_its_own_dimension(config: str, what: str, axis: str) -> None:
    found = sizer.search(str(CONFIGS / f"{config}.json"), device="h100-sxm", what=what)
    part = next(one for one in document(found).sections[0].parts if type(one).__name__ == "Charts")
    (chart,) = part.make()  # type: ignore[union-attr]
    assert chart.x.title == axis
    assert len({row["x"] for row in points(chart)}) > 1


def test_the_verdict_says_the_step_if_fixed_on_pages_and_where_several_go_together() -> None:
    several, one = sizer.check(ODD), sizer.check(str(CONFIGS / "gpt2.json"))
    joint = several.joint
    assert joint is not None
    assert joint.step_seconds_change is not None
    after = (several.step_s or 0) + joint.step_seconds_change
    text = render("check", "text", Checked((several,)))
    (line,) = [line for line in text.splitlines() if line.startswith("if fixed: ")]
    assert line.startswith(f"if fixed: step {seconds_text(after)}, by intermediate_size")
    assert "if fixed" not in render("check", "text", Checked((one,)))
    page = render("check", "html", Checked((one,)))
    assert "if fixed: step 21.6 ms, by vocab_size 50304: saves 4.68 ms" in page


def test_headings_of_several_files_follow_each_other() -> None:
    page = render("check", "html", Checked((sizer.check(ODD), sizer.check(str(CONFIGS / "gpt2.json")))))
    levels = [int(found) for found in re.findall(r"<h([1-6])>", page)]
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.slow
def test_a_front_has_a_line_for_each_share_of_full_attention() -> None:
    limits = Limits(step=512, head_dims=(256,), vary=("hybrid",))
    # Longer than the window, so that full attention takes longer.
    found = search(str(CONFIGS / "gemma-2-9b.json"), what="model", limits=limits, b=1, s=8192)
    lines = [layer.rows for layer in front(found).layers if layer.mark == "line"]
    own: dict[int, list[float]] = {}
    for one in found.pareto:
        own.setdefault(one.change["full_every"], []).append(one.parameters / 1e9)
    assert len(own) > 1
    assert sorted([row["x"] for row in line] for line in lines) == sorted(map(sorted, own.values()))
