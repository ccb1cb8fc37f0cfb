"""Every command block of README.md and the pages runs, ends as it says and prints what it shows.

Figures change with every fit, so that what is shown is compared without them.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ROOT / "reports" / "docs" / "pages"
HOW_TO, FIX, LIBRARY = ((PAGES / f"{name}.md").read_text(encoding="utf-8") for name in ("how-to", "fix", "api"))


def commands() -> list[tuple[str, int | None]]:
    """(a command, its exit code where the page says one)."""
    recipes = re.findall(r"(?ms)^```sh\n(.*?)^```$", README)
    lines = [line for block in recipes for line in block.splitlines() if line.startswith("sizer ")]
    told = re.findall(r"(?ms)^```sh\n([^`]*?)^```\n<!-- runs, exits (\d) -->$", HOW_TO)
    return [*((line, None) for line in lines), *((script.strip(), int(code)) for script, code in told)]


COMMANDS = commands()


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "sizer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sizer "$@"\n', encoding="utf-8")
    (folder / "sizer").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "140"}
    environment.pop("GITHUB_ACTIONS", None)
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_no_how_to_is_left_out() -> None:
    blocks = HOW_TO.count("\n```sh\n")
    assert blocks == sum(code is not None for _, code in COMMANDS) >= 8
    assert len(re.findall(r"(?m)^## ", HOW_TO)) >= 8


@pytest.mark.slow
@pytest.mark.parametrize(("script", "code"), COMMANDS, ids=[script[:60] for script, _ in COMMANDS])
def test_a_command_of_the_pages_runs_and_ends_as_it_says(script: str, code: int | None, tmp_path: Path) -> None:
    done = run(script, tmp_path)
    assert done.stdout.strip(), done.stderr
    assert done.returncode in ((0, 1) if code is None else (code,)), done.stderr
    assert "Traceback" not in done.stderr


def words(text: str) -> list[str]:
    return re.sub(r"\d[\d,.]*", "#", text).split()


def test_the_readme_shows_what_its_first_command_prints(tmp_path: Path) -> None:
    shown = re.search(r"(?ms)^```\n\$ (sizer [^\n]+)\n(.*?)^```$", README)
    assert shown is not None
    done = run(shown[1], tmp_path)
    assert done.returncode == 1
    assert words(shown[2]) == words(done.stdout)
    figures = [[float(one) for one in re.findall(r"(?<![\w-])\d+\.\d+", text)] for text in (shown[2], done.stdout)]
    assert figures[0] == pytest.approx(figures[1], rel=0.01)


def test_the_readme_s_python_runs() -> None:
    (code,) = re.findall(r"(?ms)^```python\n(.*?)^```$", README)
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
