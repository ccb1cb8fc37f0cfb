"""The generator of skeletons: what it writes, what it refuses, and what the registries then say is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sizer.readers import reading
from sizer.rules import RULES, TOPICS
from tests.tools import kinds, new

ROOT = Path(__file__).parents[1]
TOPIC = TOPICS[-1].__name__.rpartition(".")[2]
NEXT = f"SZ{int(RULES[-1].code[2:]) + 1}"
#: Kind -> what the generator is asked for.
ASKED = {
    "rule": (NEXT, "wide_enough", TOPIC),
    "reader": ("another_format",),
    "layout": ("another_layout",),
    "family": ("another_type",),
    "format": ("another_output",),
    "device": ("h300-sxm",),
    "stack": ("another-stack",),
    "engine": ("another-engine",),
    "kernel": ("fa9",),
    "recipe": ("another-recipe",),
    "space": ("another_space",),
    "operator": ("Another",),
    "command": ("another",),
}
ROW = "write its row: python reports/bench/reference.py (reports/reference.md)"
DEFAULTS = "write its defaults to sizer/readers/hf_defaults.json: python tests/tools/make_hf_defaults.py"


def test_every_kind_has_skeletons() -> None:
    assert set(new.STEPS) == set(kinds.KINDS) == set(ASKED)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_piece_that_is_forgotten_is_named_with_its_file(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = sorted(kinds.KINDS[kind].registered())[0]
    assert kinds.missing(kind, name) == []
    for piece in kinds.KINDS[kind].pieces:
        whole = kinds.text
        with monkeypatch.context() as patch:
            patch.setattr(
                kinds, "text", lambda paths, gone=piece.paths, whole=whole: "" if paths == gone else whole(paths)
            )
            assert any(f"({piece.paths})" in line for line in kinds.missing(kind, name))


@pytest.mark.parametrize(
    ("kind", "name", "data", "said"),
    [
        ("family", "llama", "hf_defaults", "sizer/readers/hf_defaults.json: python tests/tools/make_hf_defaults.py"),
        ("reader", "gpt_neox", "formats", "add its keys to sizer/readers/formats.json"),
    ],
)
def test_defaults_and_keys_that_are_forgotten_are_named_with_their_file(
    kind: str, name: str, data: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reading.table
    monkeypatch.setattr(reading, "table", lambda asked: {} if asked == data else whole(asked))
    (line,) = kinds.missing(kind, name)
    assert line.endswith(said)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_is_there_is_refused(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = sorted(kinds.KINDS[kind].registered())[0]
    assert new.main([kind, name]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rule", "SZ999"), f"expected {NEXT}"),
        (("rule", NEXT, "x", "nowhere"), "is not there"),
        (("device", "../x"), "no name"),
        (("toy", "x"), "kinds: "),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new.main(list(words)) in (1, 2)
    assert said in capsys.readouterr().err


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shapes" / "data" / "engines").mkdir(parents=True)
    like = "shapes/data/engines/torchao.toml"
    shutil.copy(ROOT / like, tmp_path / like)
    (tmp_path / "shapes" / "engines.py").write_text("nothing that is known\n")
    monkeypatch.setattr(new, "ROOT", tmp_path)
    with pytest.raises(new.RefusedError, match="mend STEPS"):
        new.write("engine", "another")
    assert [path.name for path in (tmp_path / "shapes" / "data" / "engines").iterdir()] == ["torchao.toml"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that the generator and the registries look at."""
    ignored = shutil.ignore_patterns("__pycache__", "data")
    for room in ("sizer", "shapes"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
    (tmp_path / "reports" / "bench").mkdir(parents=True)
    for path in (
        "README.md",
        "pyproject.toml",
        "reports/reference.md",
        "reports/rules.md",
        "reports/bench/reference.py",
    ):
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def run(copy: Path, *words: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what one process compiles, the next four need
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_after_every_kinds_skeleton_the_registries_name_what_is_left_and_nothing_else(copy: Path) -> None:
    script = f"from tests.tools.new import write\nfor kind, words in {ASKED!r}.items():\n    write(kind, *words)\n"
    run(copy, "-c", script)
    for path in copy.rglob("*.py"):
        compile(path.read_text("utf-8"), str(path), "exec")
    said = run(copy, "-m", "tests.tools.kinds")
    left = {line for line in said if kinds.SKELETON not in line}
    states = {
        f"{name}: add a key that no other file has to `states` of sizer/readers/formats.json"
        for name in ("another_format", "another_layout")
    }
    rows = {f"{words[0]}: {ROW}" for kind, words in ASKED.items() if kind != "rule"}
    functions = {
        "Another: write another_operators in shapes/operators/cores.py",
        "Another: write another_costs in shapes/cost/__init__.py",
        "Another: write another_terms in shapes/cost/explain.py",
    }
    rules = "sizer rules --format markdown > reports/rules.md"
    assert left == rows | functions | states | {f"another_type: {DEFAULTS}", f"{NEXT}: run {rules} (reports/rules.md)"}
    marked = {line.partition(":")[0] for line in said if kinds.SKELETON in line}
    assert {f"sizer/rules/{TOPIC}.py", "sizer/readers/another_format.py", "shapes/data/devices/h300-sxm.toml"} <= marked

    run(copy, "reports/bench/reference.py")
    (copy / "reports" / "rules.md").write_text("\n".join(run(copy, "-m", "sizer", "rules", "--format", "markdown")))
    left = {line for line in run(copy, "-m", "tests.tools.kinds") if kinds.SKELETON not in line}
    assert left == functions | states | {f"another_type: {DEFAULTS}"}
