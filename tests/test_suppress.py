"""Which rules are kept: the command line's choice, [tool.sizer], and per file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from shapes.errors import InputError
from sizer.checking.project import Suppression, load_suppression
from sizer.cli import main

GPT2 = Path(__file__).parent / "data" / "configs" / "gpt2.json"
#: Of the command line.
NOTHING_SAID: dict[str, tuple[str, ...]] = {"select": (), "ignore": (), "extend_select": ()}


def project(folder: Path, toml: str, *places: str) -> Path:
    """A folder with this pyproject.toml and GPT-2's configuration at each of ``places``."""
    (folder / "pyproject.toml").write_text(toml)
    for place in places or ("gpt2.json",):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(GPT2, folder / place)
    return folder


def keeps_sz101(folder: Path, place: str) -> bool:
    path = str(folder / place)
    return load_suppression(path, **NOTHING_SAID).keeps("SZ101", path)


@pytest.mark.parametrize(
    ("select", "ignore", "kept"),
    [
        ((), (), {"SZ101", "SZ111"}),
        (("SZ101",), (), {"SZ101"}),
        (("SZ10",), (), {"SZ101"}),
        ((), ("SZ101",), {"SZ111"}),
        (("SZ1",), ("SZ11",), {"SZ101"}),  # the longer prefix decides
        (("SZ111",), ("SZ11", "SZ101"), {"SZ111"}),
        (("SZ1",), ("SZ1",), set()),  # of equal ones what is ignored
        (("ALL",), ("vocab-multiple",), {"SZ111"}),
        ((), ("SZ",), set()),
    ],
)
def test_codes_and_their_prefixes_select_and_ignore(
    select: tuple[str, ...], ignore: tuple[str, ...], kept: set[str]
) -> None:
    suppression = Suppression(select, ignore)
    assert {code for code in ("SZ101", "SZ111") if suppression.keeps(code, "config.json")} == kept


def test_pyproject_ignores_a_rule_for_everything_below_it(tmp_path: Path) -> None:
    project(tmp_path, '[tool.sizer]\nignore = ["SZ101"]\n', "gpt2.json", "deep/down/gpt2.json")
    assert not keeps_sz101(tmp_path, "gpt2.json")
    assert not keeps_sz101(tmp_path, "deep/down/gpt2.json")


def test_the_command_lines_select_replaces_the_files_and_its_ignore_adds_to_it(tmp_path: Path) -> None:
    path = str(project(tmp_path, '[tool.sizer]\nselect = ["SZ101"]\nignore = ["SZ112"]\n') / "gpt2.json")
    suppression = load_suppression(path, select=("SZ11",), ignore=("SZ113",), extend_select=())
    kept = [code for code in ("SZ101", "SZ111", "SZ112", "SZ113") if suppression.keeps(code, path)]
    assert kept == ["SZ111"]


def test_a_nearer_pyproject_without_the_table_is_passed_over(tmp_path: Path) -> None:
    project(tmp_path, '[tool.sizer]\nignore = ["SZ101"]\n', "inner/gpt2.json")
    (tmp_path / "inner" / "pyproject.toml").write_text('[project]\nname = "inner"\n')
    assert not keeps_sz101(tmp_path, "inner/gpt2.json")


@pytest.mark.parametrize(
    ("pattern", "place", "ignored"),
    [
        ("gpt2.json", "gpt2.json", True),
        ("gpt2.json", "a/b/gpt2.json", True),  # a name alone: in any folder
        ("gpt2.json", "not-gpt2.json", False),
        ("gpt*.json", "a/gpt2.json", True),
        ("a/*.json", "a/gpt2.json", True),
        ("a/*.json", "a/b/gpt2.json", False),  # * stays within a folder
        ("a/*.json", "b/a/gpt2.json", False),  # a path starts at pyproject.toml
        ("a/*.json", "extra/gpt2.json", False),
        ("./a/*.json", "a/gpt2.json", True),
        ("a/**/*.json", "a/gpt2.json", True),
        ("a/**/*.json", "a/b/c/gpt2.json", True),
        ("**/a/*", "b/a/gpt2.json", True),
        ("a/**", "b/gpt2.json", False),
    ],
)
def test_a_per_file_pattern_matches_its_files_and_no_others(
    tmp_path: Path, pattern: str, place: str, ignored: bool
) -> None:
    toml = f'[[tool.sizer.per-file]]\npath = "{pattern}"\nignore = ["SZ101"]\nreason = "released"\n'
    assert keeps_sz101(project(tmp_path, toml, place), place) is not ignored


def test_a_per_file_pattern_holds_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = '[[tool.sizer.per-file]]\npath = "a/*.json"\nignore = ["SZ101"]\nreason = "released"\n'
    project(tmp_path, toml, "a/gpt2.json")
    monkeypatch.chdir(tmp_path / "a")
    assert not load_suppression("gpt2.json", **NOTHING_SAID).keeps("SZ101", "gpt2.json")


def test_what_is_suppressed_is_named_in_the_report(tmp_path: Path) -> None:
    folder = project(tmp_path, '[tool.sizer]\nignore = ["SZ101"]\n')
    ran = CliRunner().invoke(main, ["check", str(folder / "gpt2.json"), "--format", "json"])
    assert ran.exit_code == 0
    assert '"SZ101"' in ran.output.split('"suppressed"')[1]


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("[tool]\nsizer = 3\n", "tool.sizer = 3"),
        ("[tool.sizer]\nignore = 3\n", "tool.sizer.ignore = 3"),
        ('[tool.sizer]\nignore = "SZ101"\n', "tool.sizer.ignore"),
        ('[tool.sizer]\nignore = ["SZ999"]\n', "'SZ999'"),
        ('[tool.sizer]\nselect = [""]\n', "tool.sizer.select"),
        ("[tool.sizer]\nselect = [1]\n", "tool.sizer.select"),
        ("[tool.sizer]\nselct = []\n", "tool.sizer.selct"),
        ("[tool.sizer]\nper-file = 3\n", "tool.sizer.per-file = 3"),
        ("[tool.sizer]\nper-file = [3]\n", "tool.sizer.per-file"),
        ('[[tool.sizer.per-file]]\npath = "a"\nignore = ["SZ101"]\n', "tool.sizer.per-file[0].reason"),
        ('[[tool.sizer.per-file]]\nignore = ["SZ101"]\nreason = "why"\n', "tool.sizer.per-file[0].path"),
        ('[[tool.sizer.per-file]]\npath = "a"\nignore = [1]\nreason = "why"\n', "tool.sizer.per-file[0].ignore"),
        ('[[tool.sizer.per-file]]\npath = "a"\nignroe = []\nreason = "why"\n', "tool.sizer.per-file[0].ignroe"),
        ("tool.sizer = [\n", "expected TOML"),
        ("sizer = " + "[" * 100_000, "expected TOML"),
    ],
)
def test_a_bad_table_is_one_line_naming_file_and_key_and_exit_2(tmp_path: Path, toml: str, named: str) -> None:
    folder = project(tmp_path, toml)
    ran = CliRunner().invoke(main, ["check", str(folder / "gpt2.json")])
    assert ran.exit_code == 2
    (line,) = ran.output.splitlines()
    assert "pyproject.toml" in line
    assert named in line


@pytest.mark.parametrize("toml", ["tool = 3\n", "no toml at all"])
def test_another_tools_oddity_in_pyproject_is_not_ours(tmp_path: Path, toml: str) -> None:
    project(tmp_path, toml)
    assert keeps_sz101(tmp_path, "gpt2.json")


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_an_unknown_code_on_the_command_line_is_refused(option: str) -> None:
    ran = CliRunner().invoke(main, ["check", str(GPT2), option, "SZ999"])
    assert ran.exit_code == 2
    (line,) = ran.output.splitlines()
    assert option in line
    assert "SZ999" in line


def test_an_unknown_code_is_an_input_error_in_the_library() -> None:
    with pytest.raises(InputError, match="XX1"):
        Suppression(select=("XX1",))


def test_a_pattern_of_many_asterisks_is_matched_without_going_through_every_way() -> None:
    from sizer.checking.project import _matches

    deep = "/".join(map(str, range(40)))
    assert _matches(f"{deep}/a.json", "**/" * 20 + "a.json", ".")
    assert not _matches(f"{deep}/a.json", "**/" * 20 + "b.json", ".")
