"""What is installed: the packages as they are now and their data, from a clone, a wheel or an sdist."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build reads, where an older version was built before."""
    made: Path = tmp_path_factory.mktemp("clone")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made)
    for name in ("sizer", "shapes"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    stale = made / "build" / "lib" / "sizer" / "gone"
    stale.mkdir(parents=True)
    (stale / "__init__.py").write_text("")
    return made


def built(clone: Path, kind: str, folder: Path) -> Path:
    """The file that setuptools makes, as pip has it made."""
    folder.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(folder)!r}))"
    said = subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, text=True, check=True)
    return folder / said.stdout.splitlines()[-1]


def expected() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for name in ("sizer", "shapes")
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_a_wheel_holds_the_packages_of_now_and_all_their_data(clone: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    with ZipFile(built(clone, "wheel", tmp_path / "dist")) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert held == expected()
        wheel.extractall(tmp_path / "installed")
    run = [sys.executable, "-P", "-m", "sizer", "check", str(ROOT / "tests/data/configs/gpt2.json")]
    found = subprocess.run(
        run, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "installed")}, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (1, "")
    assert "warning SZ101" in found.stdout


@pytest.mark.slow
def test_an_sdist_builds_the_same_wheel(clone: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    with tarfile.open(built(clone, "sdist", tmp_path / "dist")) as source:
        source.extractall(tmp_path / "source", filter="data")
    (unpacked,) = (tmp_path / "source").iterdir()
    with ZipFile(built(unpacked, "wheel", tmp_path / "dist")) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected()
