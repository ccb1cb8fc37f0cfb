"""The documentation site builds with every link and anchor checked, its tutorial's commands run as it is built."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from sizer.checking.project import FILE_KEYS, KEYS
from sizer.cli import main
from sizer.readers.reading import table
from sizer.render.findings import RULES_URL_VARIABLE, rule_url
from sizer.rules import RULES

DOCS = Path(__file__).parents[1] / "reports" / "docs"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("repository", DOCS / "repository.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(DOCS.parents[1])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link_and_rules_are_where_their_addresses_say(tmp_path, monkeypatch) -> None:
    done = built(DOCS / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    tutorial = (tmp_path / "tutorial" / "index.html").read_text()
    assert "SZ108" in tutorial  # what `sizer check` answered
    assert "&lt;!-- sizer diff --&gt;" in tutorial  # and `sizer diff --format markdown`
    assert "predict_gemm" in (tmp_path / "api" / "index.html").read_text()
    rules = (tmp_path / "reports" / "rules" / "index.html").read_text()
    monkeypatch.setenv(RULES_URL_VARIABLE, "https://docs.example/reports/rules/")
    for rule in RULES:
        anchor = str(rule_url(rule.code)).partition("#")[2]
        assert f'id="{anchor}"' in rules, rule.code


ROOT = DOCS.parents[1]
EXAMPLES = [
    ".".join(one.relative_to(ROOT).with_suffix("").parts)
    for package in ("sizer", "shapes")
    for one in sorted((ROOT / package).rglob("*.py"))
    if "\n    >>> " in one.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", EXAMPLES)
def test_an_example_of_a_docstring_answers_as_it_says(module: str) -> None:
    if module.startswith("shapes.measure.kernels"):
        pytest.importorskip("torch")
    found = doctest.testmod(importlib.import_module(module.removesuffix(".__init__")))
    assert found.attempted
    assert not found.failed


def test_the_glossary_is_a_table_whose_options_exist_and_whose_files_do(hook: ModuleType) -> None:
    text = hook.glossary()
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert text.startswith("# Glossary\n")
    assert len(rows) > 30
    words = [row.split("|")[1].strip() for row in rows]
    assert len(words) == len(set(words))
    options = every_option()
    for option in re.findall(r"--[a-z][a-z-]+", text):
        assert option in options, option
    for file in re.findall(r"`((?:sizer|shapes)/[\w/.]+)`", text):
        assert (DOCS.parents[1] / file).exists(), file


def every_option() -> set[str]:
    context = click.Context(main)
    commands = (main.get_command(context, name) for name in main.list_commands(context))
    return {opt for command in commands if command is not None for one in command.params for opt in one.opts}


def test_the_reference_has_every_key_of_a_project_and_every_dimension_of_a_file() -> None:
    text = (DOCS.parent / "reference.md").read_text(encoding="utf-8")
    for key in (*KEYS, *FILE_KEYS):
        assert f"\n| `{key}` | " in text, key
    for name, row in table("formats").items():
        for dimension in row.get("dimensions", {}) if isinstance(row, dict) else ():
            assert f"\n| `{dimension}` | " in text, (name, dimension)


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# Home\n\n[gone](gone.md)\n")
    text = (DOCS / "mkdocs.yml").read_text()
    kept = text[: text.index("hooks:")] + text[text.index("validation:") : text.index("plugins:")]
    (tmp_path / "mkdocs.yml").write_text(kept)
    done = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    assert "gone.md" in done.stdout + done.stderr


def test_a_tutorial_that_answers_otherwise_than_it_says_is_no_tutorial(hook: ModuleType) -> None:
    file = '```json title="a/config.json"\n{"name": 1}\n```\n\n'
    page = file + "```sh\ncat a/config.json && exit 3\n```\n<!-- runs, exits 3 -->"
    assert '```text\n{"name": 1}\n```' in hook.played(page)
    with pytest.raises(SystemExit, match="exits 3, not 0"):
        hook.played(page.replace("exits 3", "exits 0"))


def test_a_link_to_what_is_no_page_is_its_name_and_one_that_leads_nowhere_stays(hook: ModuleType) -> None:
    class Files:
        def get_file_from_path(self, path: str) -> object:
            return object() if path == "reports/steps.md" else None

    class Page:
        class file:  # noqa: N801
            src_uri = "index.md"

    class Config:
        repo_url = ""

    def shown(text: str) -> str:
        return str(hook.on_page_markdown(text, Page, Config, Files()))

    assert shown("[steps](reports/steps.md)") == "[steps](reports/steps.md)"
    assert (
        shown("[schema](sizer/render/schemas/check.schema.json)") == "schema (`sizer/render/schemas/check.schema.json`)"
    )
    assert shown("[gone](reports/gone.md)") == "[gone](reports/gone.md)"
    Config.repo_url = "https://git.example/sizer/"
    assert shown("[it](LICENSE)") == "[it](https://git.example/sizer/blob/main/LICENSE)"
