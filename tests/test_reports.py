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


def test_readme_says_of_steps_what_the_scoreboard_says() -> None:
    said = r"([0-9.]+% off \(median [^;]*; [0-9]+% lie in the 90% interval)"
    pages = [
        (REPORTS / "scoreboard.md").read_text(encoding="utf-8"),
        (REPORTS.parent / "README.md").read_text(encoding="utf-8"),
    ]
    board, readme = (re.sub(r"\s+", " ", re.findall(said, page)[0]) for page in pages)
    assert board == readme, "run python reports/bench/scoreboard.py --write"


def test_the_readme_and_a_version_s_changes_are_read_at_once() -> None:
    root = REPORTS.parent
    assert len((root / "README.md").read_text(encoding="utf-8").splitlines()) <= 90
    for version in (root / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        lines = version.splitlines()
        assert len(lines) <= 100
        assert max(map(len, lines)) <= 120


def test_a_changed_figure_changes_the_answer() -> None:
    text = (REPORTS / "trace-coverage.md").read_text(encoding="utf-8")
    changed = with_answer("trace-coverage", re.sub(r"\| causal LM \| \d+ \| \d+ ", "| causal LM | 200 | 100 ", text))
    assert changed != text
    assert " trace on the meta device" in changed


PAGES = sorted(REPORTS.glob("*.md")) + [REPORTS.parent / name for name in ("CONTRIBUTING.md", "README.md")]
#: A path of this repository, and that it is of an earlier commit or part of somebody else's path.
NAMED = re.compile(
    r"(?<![\w./-])((?:sizer|shapes|reports|tests)/[\w./-]*\w\.(?:py|toml|json|md|csv))(?![\w/])"
    r"(.{0,120}?(?:of commit \w{7}))?",
    re.DOTALL,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    gone = {
        path for path, earlier in named if not earlier and "NAME" not in path and not (REPORTS.parent / path).exists()
    }
    assert not gone, f"{page.name} names what has moved"
