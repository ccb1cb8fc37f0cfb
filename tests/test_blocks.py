"""Every command block of README.md and the pages runs, ends as it says and prints what it shows.

Words are compared exactly, figures nearly: these change with every fit.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from sizer.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "reports" / "docs" / "pages"
FIX, LIBRARY = ((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("fix", "api"))
#: Every page of the site, but the tutorial: its commands are played as the site is built (tests/test_docs.py).
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "reports").glob("*.md")),
    *(one for one in sorted(DOCS.glob("*.md")) if one.stem != "tutorial"),
]
#: A command and what it prints, "…" standing for what follows; or a script, the code it exits with, what it prints.
BLOCK = re.compile(
    r"^```(?:console)?\n\$ (?P<command>sizer [^\n]+)\n(?P<shown>.*?)^```$"
    r"|^```sh\n(?P<script>[^`]*?)^```\n<!-- runs, exits (?P<code>\d) -->\n```text\n(?P<printed>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: A line of the README's recipes and below it the first line of what it prints.
RECIPE = re.compile(r"^(?P<command>sizer [^\n#]+?)(?: # [^\n]*)?\n#> (?P<shown>[^\n]*\n)", re.MULTILINE)
#: What stands for lines that are not shown.
MORE = "…\n"


class Block(NamedTuple):
    page: Path
    script: str
    code: int | None
    shown: str
    span: tuple[int, int]


def blocks(page: Path) -> list[Block]:
    """The commands of a page with what they print and where in its text that stands."""
    text = page.read_text(encoding="utf-8")
    found = []
    for one in BLOCK.finditer(text):
        script, shown = ("script", "printed") if one["script"] else ("command", "shown")
        if page.stem != "fix":  # whose file is on the page: below
            code = int(one["code"]) if one["code"] else None
            found.append(Block(page, one[script].strip(), code, one[shown], one.span(shown)))
    if page == README:
        found += [
            Block(page, one["command"], None, one["shown"] + MORE, one.span("shown")) for one in RECIPE.finditer(text)
        ]
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "sizer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sizer "$@"\n', encoding="utf-8")
    (folder / "sizer").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "140"}
    environment.pop("GITHUB_ACTIONS", None)
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def called(block: Block, folder: Path, monkeypatch: Any) -> subprocess.CompletedProcess[str]:
    """The README's as processes; of other pages what needs no shell in this one: to start is most of its time."""
    if block.page == README or re.search(r"[|&;<>$\n]|^(?!sizer )", block.script):
        return run(block.script, folder)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "140")
    done = CliRunner().invoke(main, shlex.split(block.script)[1:])
    return subprocess.CompletedProcess([], done.exit_code, done.stdout, done.stderr)


def words(text: str) -> list[str]:
    """Without figures and the lines under heads, which are as wide as they are."""
    return re.sub(r"-{2,}", "--", re.sub(r"\d[\d,.]*", "#", text)).split()


def figures(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"(?<![\w-])\d+\.\d+", text)]


def printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    return (done.stderr + done.stdout).splitlines(keepends=True)


def test_every_command_of_a_page_is_run_and_says_what_it_prints() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        run_here = {line for one in blocks(page) for line in one.script.splitlines()}
        for block in re.findall(r"(?ms)^```(?:sh|console)\n(.*?)^```$", text):
            for line in re.findall(r"(?m)^(?:\$ )?(sizer [^\n#]*?)(?: #.*)?$", block):
                assert line in run_here or page.stem == "fix", (page.name, line)
    how_to = (DOCS / "how-to.md").read_text(encoding="utf-8")
    assert how_to.count("\n```sh\n") == sum(one.page.stem == "how-to" for one in BLOCKS) >= 8
    assert len(re.findall(r"(?m)^## ", how_to)) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=[f"{one.page.stem}: {one.script[:60]}" for one in BLOCKS])
def test_a_command_of_a_page_prints_what_the_page_shows(block: Block, tmp_path: Path, monkeypatch: Any) -> None:
    """Its words exactly, its figures within 3%: a change of those says so, `python tests/tools/make_blocks.py`."""
    done = called(block, tmp_path, monkeypatch)
    assert done.stdout.strip(), done.stderr
    assert done.returncode in ((0, 1) if block.code is None else (block.code,)), done.stderr
    assert "Traceback" not in done.stderr
    shown, lines = block.shown.removesuffix(MORE), printed(done)
    if block.shown.endswith(MORE):
        lines = lines[: len(shown.splitlines())]
    assert words(shown) == words("".join(lines))
    assert figures(shown) == pytest.approx(figures("".join(lines)), rel=0.03)


def test_the_readme_s_python_runs() -> None:
    (code,) = re.findall(r"(?ms)^```python\n(.*?)^```$", README.read_text(encoding="utf-8"))
    code = re.sub(r"(?m)^(\w+) = .*# (\d+)$", r"\g<0>\nassert \1 == \2", code)
    assert "assert vocab_size == 50304" in code
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_page_on_fixes_shows_the_patch_of_its_file(tmp_path: Path) -> None:
    (config,) = re.findall(r'(?ms)^```json title="config.json"\n(.*?)^```$', FIX)
    ((command, shown),) = re.findall(r"(?ms)^```console\n\$ ([^\n]*)\n(.*?)^```$", FIX)
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    done = run(f"cd {tmp_path} && {command}", tmp_path)
    assert words(done.stderr + done.stdout) == words(shown)
    assert done.stdout == shown.partition("\n")[2]


def test_the_page_on_the_library_shows_what_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"(?ms)^```pycon\n(.*?)^```$", LIBRARY)
    examples = doctest.DocTestParser().get_doctest(code, {}, "api.md", "api.md", 0)
    failures: list[str] = []
    doctest.DocTestRunner().run(examples, out=failures.append)
    assert not failures, "".join(failures)
