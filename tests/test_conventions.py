"""What the tests themselves keep to, so that a busy machine fails none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import settings

FILES = sorted(Path(__file__).parent.glob("*.py"))
#: Clocks of any kind: processor time too doubles where caches and cores are shared. Speed is for reports/bench.
CLOCKS = {"perf_counter", "monotonic", "time", "process_time", "thread_time"}


def calls(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def clocks_asserted(source: str) -> list[int]:
    """Lines of assertions that read a clock."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            names = {call.func.attr for call in calls(node) if isinstance(call.func, ast.Attribute)}
            found += [node.lineno] if names & CLOCKS else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_test_asserts_on_a_clock(path: Path) -> None:
    assert clocks_asserted(path.read_text(encoding="utf-8")) == []


def test_an_assertion_on_a_clock_would_be_found() -> None:
    assert clocks_asserted("import time\nstart = 0\nassert time.perf_counter() - start < 5\n") == [3]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hypothesis_deadlines_are_the_profile_s_alone(path: Path) -> None:
    for call in calls(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call.func, ast.Name) and call.func.id == "settings":
            assert "deadline" not in {keyword.arg for keyword in call.keywords}


def test_the_profile_has_no_deadline() -> None:
    assert settings().deadline is None
