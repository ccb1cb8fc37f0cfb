"""The deliberate bugs of tests/tools/mutants.py count only where the tests pass without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import mutants


def test_tests_that_fail_without_a_mutant_end_the_count_before_one_is_planted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_red.py").write_text("def test_red():\n    assert 1 == 2\n")
    (tmp_path / "tests" / "test_green.py").write_text("def test_green():\n    assert 1 == 1\n")
    assert mutants.failure(tmp_path, ("test_green.py",)) is None
    assert "assert 1 == 2" in (mutants.failure(tmp_path, ("test_red.py",)) or "")
    monkeypatch.setattr(mutants, "failure", lambda *_: "1 failed")
    monkeypatch.setattr("sys.argv", ["mutants.py", "--room", "steps", "--count", "1"])
    with pytest.raises(SystemExit, match=r"the tests of steps fail without a mutant.*\n1 failed"):
        mutants.main()
