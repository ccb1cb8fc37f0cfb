"""The registry of output formats: every renderer is in it, and the command line offers what it holds."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

import sizer.documents
import sizer.render
from shapes.errors import InputError
from sizer.cli import COMMANDS, main
from sizer.render import FORMATS, formats, render

#: Modules of sizer/render that render nothing themselves.
SHARED = {
    "annotations",
    "excerpt",
    "findings_markdown",
    "html_page",
    "markdown",
    "measurements",
    "page",
    "picture",
    "spreadsheet",
    "vega",
}
MODULES = {module.name for module in pkgutil.iter_modules(sizer.render.__path__)}
REGISTERED = {module for known in FORMATS.values() for name, module in known.items() if name != "html"}
PAGES = {known["html"] for known in FORMATS.values() if "html" in known}


def test_every_file_of_the_report_package_is_registered_or_shared() -> None:
    assert MODULES - SHARED == REGISTERED


@pytest.mark.parametrize("module", sorted(REGISTERED))
def test_a_registered_module_renders_or_makes_a_page(module: str) -> None:
    found = import_module(f"sizer.render.{module}")
    assert callable(found.render)
    assert found.__doc__


@pytest.mark.parametrize("module", sorted(PAGES))
def test_a_registered_page_is_made(module: str) -> None:
    assert callable(import_module(f"sizer.documents.{module}").document)


@pytest.mark.parametrize("module", sorted(SHARED))
def test_what_is_shared_holds_no_renderer_that_nobody_could_ask_for(module: str) -> None:
    found = import_module(f"sizer.render.{module}")
    assert not hasattr(found, "render")


def commands() -> dict[str, click.Command]:
    """Every command and subcommand by the name a person types."""
    found: dict[str, click.Command] = {}
    for name, _, _ in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
    return found


WITH_FORMATS = [name for name, one in commands().items() if any(option.name == "format_" for option in one.params)]


@pytest.mark.parametrize("name", WITH_FORMATS)
def test_format_offers_what_the_registry_holds_the_first_being_the_default(name: str) -> None:
    option = next(parameter for parameter in commands()[name].params if parameter.name == "format_")
    assert tuple(option.type.to_info_dict()["choices"]) == formats(name)
    assert option.default == formats(name)[0]


def test_every_command_of_the_registry_is_one_of_the_command_line() -> None:
    for name in FORMATS:
        base, _, option = name.partition(" --")
        assert base in commands()
        if option:
            assert f"--{option}" in [text for p in commands()[base].params for text in p.opts]
        plotted = "--plot" in [text for p in commands()[base].params for text in p.opts]
        assert plotted == ("html" in FORMATS[base])


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="expected one of text, json, csv"):
        render("search", "yaml", None)


def test_parquet_asks_for_a_file_instead_of_writing_bytes_to_a_terminal(tmp_path) -> None:
    store = str(tmp_path / "s.db")
    (tmp_path / "empty.jsonl").write_text("")
    assert CliRunner().invoke(main, ["store", "--store", store, "import", str(tmp_path / "empty.jsonl")]).exit_code == 0
    result = CliRunner().invoke(main, ["store", "--store", store, "export", "--format", "parquet"])
    assert result.exit_code == 2
    assert "parquet is binary" in result.output


def test_every_json_document_carries_the_schema_s_version() -> None:
    config = "tests/data/configs/gpt2.json"
    calls = (
        ["check", config],
        ["ops", config],
        ["memory", config],
        ["devices", "h200"],
        ["search", "--h", "1024"],
        ["mfu", config, "--step-time", "1", "--gpus", "8", "--global-batch", "64"],
        ["plan", config, "--gpus", "2", "--global-batch", "8"],
        ["deploy", config],
    )
    for call in calls:
        result = CliRunner().invoke(main, [*call, "--format", "json"])
        assert result.exit_code in (0, 1), result.output
        assert json.loads(result.output)["schema_version"] == 1
