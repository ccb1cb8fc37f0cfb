"""The page: self-contained, escaped, and drawn by a real browser without a complaint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import browser, missing
from click.testing import CliRunner

from sizer.cli import main
from sizer.report import html_page

CONFIGS = Path(__file__).parent / "data" / "configs"
in_a_browser = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def page(path: Path, *configs: str) -> Path:
    call = ["check", *(configs or (str(CONFIGS / "llama-3.1-8b.json"),)), "--format", "html", "-o", str(path)]
    result = CliRunner().invoke(main, [*call, "--fail-on", "never"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return path


class Tags(HTMLParser):
    """Every tag with its attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def without_library(path: Path, monkeypatch: pytest.MonkeyPatch, *configs: str) -> str:
    monkeypatch.setattr(html_page, "_plotly", lambda: "")
    return page(path, *configs).read_text(encoding="utf-8")


def test_the_page_is_small_and_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = without_library(tmp_path / "page.html", monkeypatch)
    assert len(text.encode()) < 1_000_000
    assert not [attributes for _, attributes in Tags(text).found if {"src", "srcset"} & attributes.keys()]
    assert not [attributes for tag, attributes in Tags(text).found if tag in ("link", "iframe", "img", "object")]
    assert "default-src 'none'" in text


def test_names_from_files_are_text_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "<script>alert(1)</script>" / "\"'&.json"
    odd.parent.mkdir(parents=True)
    config = json.loads((CONFIGS / "gpt2.json").read_text())
    odd.write_text(json.dumps(config | {"a<b>": "</script><script>alert(2)</script>"}))
    text = without_library(tmp_path / "page.html", monkeypatch, str(odd))
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert [tag for tag, _ in Tags(text).found].count("script") == 3  # the data, the library and the page's own


def test_every_operator_and_component_is_in_a_table_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sizer

    text = without_library(tmp_path / "page.html", monkeypatch)
    table = sizer.ops(str(CONFIGS / "llama-3.1-8b.json"))
    for operator in table.operators:
        assert f"<td>{operator.name}</td>" in text
    assert 'role="img"' in text
    assert text.count('<th scope="col"') == text.count('<button type="button">')


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[str]]]:
    path = page(tmp_path_factory.mktemp("html") / "page.html")
    with browser() as chromium:
        tab, complaints = chromium.new_page(color_scheme="light"), []
        tab.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: complaints.append(request.url) if "http" in request.url[:5] else None)
        tab.goto(path.as_uri())
        yield tab, complaints


@pytest.mark.slow
@in_a_browser
def test_chromium_draws_every_chart_without_a_complaint_or_a_request(shown: tuple[Any, list[str]]) -> None:
    tab, complaints = shown
    charts = json.loads(tab.locator("#charts").text_content())
    assert len(charts) == 3
    for name, chart in charts.items():
        assert tab.locator(f"#{name} .main-svg").count() >= 1
        marks = tab.locator(f"#{name} .bars .point, #{name} .scatter .point").count()
        assert marks >= sum(len(trace["x"]) for trace in chart["data"] if trace.get("mode") != "lines")
    assert complaints == []


@in_a_browser
def test_a_heading_sorts_its_table_by_the_keyboard_both_ways(shown: tuple[Any, list[str]]) -> None:
    tab, _ = shown
    head = tab.locator("th button", has_text="GFLOP")
    values = "td => td.map(cell => Number(cell.dataset.value))"
    cells = tab.locator("table").last.locator("tbody td:nth-child(9)")
    head.focus()
    tab.keyboard.press("Enter")
    down = cells.evaluate_all(values)
    assert down == sorted(down, reverse=True) != sorted(down)
    tab.keyboard.press("Enter")
    assert cells.evaluate_all(values) == sorted(down)
    assert head.locator("..").get_attribute("aria-sort") == "ascending"


@in_a_browser
def test_the_page_goes_dark_with_the_system(shown: tuple[Any, list[str]]) -> None:
    tab, complaints = shown
    colour = "() => getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(colour)
    tab.emulate_media(color_scheme="dark")
    assert (light, tab.evaluate(colour)) == ("rgb(255, 255, 255)", "rgb(20, 24, 29)")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate(colour) == "rgb(255, 255, 255)"
    assert complaints == []
