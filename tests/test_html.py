"""Pages: self-contained, escaped, and drawn whole by a real browser without a complaint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import AUDIT, LOOKS, browser, draw, looked_at, missing, tab_of
from click.testing import CliRunner

from sizer.cli import main
from sizer.documents.charts import LOOKS as LOOKS_OF
from sizer.render import html as html_page
from sizer.render.vega import asset

CONFIGS = Path(__file__).parent / "data" / "configs"
LLAMA, GPT2, QWEN = (str(CONFIGS / f"{name}.json") for name in ("llama-3.1-8b", "gpt2", "qwen2.5-7b"))
SUITE = str(Path(__file__).parents[1] / "reports" / "suites" / "swiglu-4096.toml")
in_a_browser = pytest.mark.skipif(missing() is not None, reason=str(missing()))

#: A page of every command that has one: name -> (arguments, charts).
PAGES = {
    "check": (("check", LLAMA, "--fail-on", "never"), 1),
    "check-several": (("check", GPT2, QWEN, "--fail-on", "never"), 2),
    "check-pipeline": (("check", LLAMA, "--tp", "2", "--pp", "4", "--gpus", "64", "--global-batch", "128"), 1),
    "ops": (("ops", GPT2, "--phase", "decode", "--context", "512"), 1),
    "search": (("search", "--h", "1024", "--limit", "step=1"), 1),
    "search-model": (("search", GPT2, "--what", "model", "--device", "mi300x"), 1),
    "memory": (("memory", GPT2, "--dp", "8", "--zero", "3"), 0),
    "plan": (("plan", GPT2, "--gpus", "8", "--global-batch", "64"), 0),
    "diff": (("diff", GPT2, QWEN, "--device", "h100-sxm", "--device", "b200", "--fail-on", "never"), 0),
    "bench": (("bench", "-m", "8", "-n", "8", "-k", "7:10:1", "--device", "cpu", "--max-time", "0.02"), 0),
    "check-devices": (("check", GPT2, "--device", "a100-sxm", "--device", "b200", "--fail-on", "never"), 2),
    "ops --explain": (("ops", GPT2, "--explain", "lm_head"), 0),
    "memory-decode": (("memory", GPT2, "--phase", "decode", "-b", "4", "--context", "512"), 0),
    "plan --phase decode": (("plan", LLAMA, "--phase", "decode", "--gpus", "8", "-s", "2k", "--context", "3k"), 0),
    "mfu": (("mfu", LLAMA, "--step-time", "9.8", "--gpus", "8", "--global-batch", "64", "--explain"), 0),
    "deploy": (("deploy", LLAMA, "--tp", "8"), 0),
    "bench --dry-run": (("bench", "--suite", SUITE, "--device", "cpu", "--dry-run"), 0),
    "store list": (("store", "list"), 0),
    "devices": (("devices",), 0),
    "rules": (("rules",), 0),
    "explain": (("explain", "SZ101"), 0),
}


def write(path: Path, *call: str) -> Path:
    measured = path.with_name("bench.db")
    if call[0] == "store" and not measured.exists():
        write(path.with_name("bench.html"), *PAGES["bench"][0])
    if call[0] in ("bench", "store"):
        call = (call[0], "--store", str(measured), *call[1:])
    result = CliRunner().invoke(main, [*call, "--format", "html", "-o", str(path)], catch_exceptions=False)
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


def without_library(path: Path, monkeypatch: pytest.MonkeyPatch, *call: str) -> str:
    monkeypatch.setattr(html_page, "_library", lambda: "")
    return write(path, *call).read_text(encoding="utf-8")


def test_every_command_with_a_page_is_tried_here() -> None:
    """Every view that has pages, but two tables of what takes a device's minutes."""
    views = json.loads((Path(html_page.__file__).parent / "formats.json").read_text(encoding="utf-8"))
    paged = {view for view, (_, formats) in views.items() if "html" in formats.split()}
    assert paged - {"calibrate", "bench --self-test"} <= PAGES.keys()


@pytest.mark.parametrize("name", ["check", "memory", "diff"])
def test_a_page_is_small_and_loads_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = without_library(tmp_path / "page.html", monkeypatch, *PAGES[name][0])
    assert len(text.encode()) < 200_000
    assert not [attributes for _, attributes in Tags(text).found if {"src", "srcset"} & attributes.keys()]
    assert not [attributes for tag, attributes in Tags(text).found if tag in ("link", "iframe", "img", "object")]
    assert "default-src 'none'" in text


def test_names_from_files_are_text_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "<script>alert(1)</script>" / "\"'&.json"
    odd.parent.mkdir(parents=True)
    config = json.loads((CONFIGS / "gpt2.json").read_text())
    odd.write_text(json.dumps(config | {"a<b>": "</script><script>alert(2)</script>"}))
    never = ("--fail-on", "never")
    for call in (("check", str(odd), GPT2, *never), ("diff", GPT2, str(odd), *never), ("memory", str(odd))):
        text = without_library(tmp_path / "page.html", monkeypatch, *call)
        assert "&lt;script&gt;alert(1)" in text
        assert "<script>alert" not in text
        assert [tag for tag, _ in Tags(text).found].count(
            "script"
        ) == 2  # the data, and the library with the page's own


def test_every_operator_and_component_is_in_a_table_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sizer

    text = without_library(tmp_path / "page.html", monkeypatch, *PAGES["check"][0])
    for operator in sizer.ops(LLAMA).operators:
        assert f"<td>{operator.name}</td>" in text
    assert "<td>optimizer_states</td>" in text
    assert text.count("<th scope=col") == text.count("<button type=button>")


def test_without_the_library_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    html_page._library.cache_clear()
    result = CliRunner().invoke(main, ["ops", GPT2, "--format", "html"])
    assert result.exit_code == 2
    assert "vl-convert-python: pip install -e '" in result.output


#: Texts of charts that stick out of their pictures.
OUTSIDE = """() => [...document.querySelectorAll(".chart svg")].flatMap((svg) => {
  const whole = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < whole.left - 1 || box.right > whole.right + 1);
  }).map((text) => text.textContent); })"""
#: Tables that are wider than their room, the highest row of any, and how many tables are empty.
TABLES = """() => {
  const boxes = [...document.querySelectorAll(".scroll")];
  return {
    cut: boxes.filter((one) => one.scrollWidth > one.clientWidth + 1)
      .map((one) => `${one.getAttribute("aria-label")} ${one.scrollWidth - one.clientWidth}`),
    high: Math.max(...[...document.querySelectorAll("tr")].map((one) => one.getBoundingClientRect().height)),
    empty: boxes.filter((one) => !one.querySelector("td")).length,
  }; }"""
#: Of each chart: its marks, what it is called, and its picture's size.
DRAWN = """() => JSON.parse(document.querySelector("#charts").textContent).charts.map((chart, at) => {
  const place = document.querySelector(`#chart-${at + 1}[role="graphics-document"]`);
  const box = place.querySelector("svg").getBoundingClientRect();
  return {
    chart, label: place.getAttribute("aria-label"), width: box.width, height: box.height,
    marks: place.querySelectorAll("g.role-mark:not(.mark-line):not(.mark-group) > *").length,
  }; })"""


class Browsed:
    """Pages of commands in a browser: each is written once, and loaded once a look."""

    def __init__(self, chromium: Any, folder: Path) -> None:
        self.chromium, self.folder = chromium, folder
        self.tabs: dict[str, tuple[Any, list[str]]] = {}
        self.found: dict[tuple[str, str], dict[str, Any]] = {}

    def page(self, name: str) -> Path:
        path = self.folder / f"{name.replace(' ', '-')}.html"
        return path if path.exists() else write(path, *PAGES[name][0])

    def seen(self, name: str, look: str) -> dict[str, Any]:
        """What there is to see of the page of ``name``, and what the browser had to say of it."""
        if (name, look) not in self.found:
            path = self.page(name)
            if look not in self.tabs:
                self.tabs[look] = tab_of(self.chromium, look)
            tab, said = self.tabs[look]
            said.clear()
            draw(tab, path)
            looks = {"outside": tab.evaluate(OUTSIDE), "charts": tab.evaluate(DRAWN), "said": said.copy()}
            self.found[name, look] = {**tab.evaluate(AUDIT), **tab.evaluate(TABLES), **looks}
        return self.found[name, look]


@pytest.fixture(scope="module")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsed]:
    with browser() as chromium:
        yield Browsed(chromium, tmp_path_factory.mktemp("html"))


@pytest.fixture
def check_page(browsed: Browsed) -> Iterator[tuple[Any, list[str]]]:
    """`check`'s page in a tab of its own, and whatever the browser had to say."""
    tab, said = looked_at(browsed.chromium, browsed.page("check"), "wide")
    yield tab, said
    tab.close()


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("name", PAGES)
def test_chromium_draws_every_mark_of_every_chart_without_a_complaint_or_a_request(browsed: Browsed, name: str) -> None:
    found = browsed.seen(name, "wide")
    assert len(found["charts"]) == PAGES[name][1]
    for drawn in found["charts"]:
        chart = drawn["chart"]
        rows = sum(len(layer["data"]["values"]) for layer in chart["layer"] if layer["mark"]["type"] != "line")
        assert drawn["marks"] == rows, chart["description"]
        assert drawn["label"] == chart["description"]
        assert drawn["width"] > 600
        assert drawn["height"] > 80
    assert found["said"] == []


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_can_be_read(browsed: Browsed, name: str, look: str) -> None:
    found = browsed.seen(name, look)
    assert (found["overflow"], found["overlaps"], found["unnamed"], found["said"]) == (0, [], 0, [])
    assert found["smallest"] >= 11.9


def luminance(colour: Sequence[float]) -> float:
    """WCAG 2's relative luminance of red, green and blue from 0 to 1."""
    linear = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in colour)
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("paper", ["#ffffff", "#14181d"])
def test_colours_of_charts_have_a_contrast_of_3_on_light_and_dark_paper(paper: str) -> None:
    def parts(text: str) -> list[float]:
        return [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]

    assert f"--paper: {paper}" in asset("page.css")
    ground = parts(paper)
    for colour in {one for table in ("alignment", "families", "roles") for one in LOOKS_OF[table].values()}:
        mark = [
            LOOKS_OF["points"]["opacity"] * one + (1 - LOOKS_OF["points"]["opacity"]) * under
            for one, under in zip(parts(colour), ground, strict=True)
        ]
        low, high = sorted((luminance(mark), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 3, colour


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("look", ["wide", "phone"])
def test_labels_and_legends_lie_inside_their_charts(browsed: Browsed, look: str) -> None:
    for name in ("check", "check-pipeline", "search", "search-model"):
        assert browsed.seen(name, look)["outside"] == [], name


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("name", ["check-pipeline", "search-model", "plan", "deploy", "diff"])
def test_a_table_with_room_shows_every_column_and_texts_in_few_lines(browsed: Browsed, name: str) -> None:
    found = browsed.seen(name, "wide")
    assert (found["cut"], found["empty"]) == ([], 0)
    assert found["high"] < 100  # four lines


@pytest.mark.slow
@in_a_browser
def test_a_heading_sorts_its_table_by_the_keyboard_both_ways_with_empty_cells_last(check_page: Any) -> None:
    tab, _ = check_page
    table = tab.locator("table", has=tab.locator("th button", has_text="TFLOPS"))
    head = table.locator("th button", has_text="TFLOPS")
    values = "td => td.map(cell => cell.dataset.value === undefined ? null : Number(cell.dataset.value))"
    cells = table.locator("tbody td:nth-child(13)")
    head.focus()
    tab.keyboard.press("Enter")
    down = cells.evaluate_all(values)
    known = [value for value in down if value is not None]
    assert down == sorted(known, reverse=True) + [None] * (len(down) - len(known))
    assert known != sorted(known)
    tab.keyboard.press("Enter")
    assert cells.evaluate_all(values) == sorted(known) + [None] * (len(down) - len(known))
    assert head.locator("..").get_attribute("aria-sort") == "ascending"


@pytest.mark.slow
@in_a_browser
def test_marks_say_what_they_are_to_a_screen_reader(check_page: Any) -> None:
    tab, _ = check_page
    said = tab.locator("#chart-1 [aria-roledescription='point']").evaluate_all(
        "marks => marks.map(mark => mark.getAttribute('aria-label'))"
    )
    assert len(said) > 20
    assert any("layers.*.mlp.gate_proj, forward: " in text and "compute-bound" in text for text in said)


@pytest.mark.slow
@in_a_browser
def test_the_page_and_its_charts_go_dark_with_the_system_and_light_on_paper(check_page: Any) -> None:
    tab, complaints = check_page
    colours = """() => [getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector("#chart-1 .role-axis-label text")).fill]"""
    light = tab.evaluate(colours)
    tab.emulate_media(color_scheme="dark")
    dark = tab.evaluate(colours)
    tab.emulate_media(media="print", color_scheme="dark")
    assert light == ["rgb(255, 255, 255)", "rgb(29, 35, 43)"]
    assert dark == ["rgb(20, 24, 29)", "rgb(228, 232, 236)"]
    assert tab.evaluate(colours) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    assert complaints == []
