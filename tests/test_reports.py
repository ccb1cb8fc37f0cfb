"""Reports begin with their answer, computed from the figures that they hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reports.bench.opening import OPENINGS, with_answer

REPORTS = Path(__file__).parents[1] / "reports"


@pytest.mark.parametrize("path", sorted(REPORTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_report_begins_with_its_answer_in_a_paragraph(path: Path) -> None:
    title, first = re.sub(r"<!--.*?-->\n", "", path.read_text(encoding="utf-8")).split("\n\n")[:2]
    assert title.startswith("# ")
    assert re.match(r"\w", first), f"{path.name} begins with no paragraph: say its answer with the main figures first"
    sentences = re.findall(r"[.:?](?=\s|$)", first)
    assert 2 <= len(sentences) <= 6, first
    assert re.search(r"\d", first)


@pytest.mark.parametrize("name", OPENINGS)
def test_the_answer_is_what_the_report_s_own_figures_say(name: str) -> None:
    text = (REPORTS / f"{name}.md").read_text(encoding="utf-8")
    assert text == with_answer(name, text), f"run python reports/bench/opening.py reports/{name}.md"


def test_a_changed_figure_changes_the_answer() -> None:
    text = (REPORTS / "trace-coverage.md").read_text(encoding="utf-8")
    changed = with_answer("trace-coverage", re.sub(r"\| causal LM \| \d+ \| \d+ ", "| causal LM | 200 | 100 ", text))
    assert changed != text
    assert " trace on the meta device" in changed
