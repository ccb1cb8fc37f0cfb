"""Plant deliberate bugs, one at a time, and say which the module's own fast tests let through.

    python tests/tools/mutants.py --seed 1 --count 30

A mutant is one change of one expression of a room's code: a factor left out, + for -, < for <=, a condition turned
round, a number off by one, a keyword dropped. It is planted in a copy of HEAD; the room's fast tests run there until
one fails. A survivor is printed with its place: it is a missing test, or a change that changes nothing (say which).
Those tests have to pass without a mutant first: where one fails anyway, every mutant would seem to die.
"""

from __future__ import annotations

import argparse
import ast
import copy
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Files of a room -> the tests that are its own.
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "steps": (
        ("shapes/step/seconds.py", "shapes/step/__init__.py", "shapes/step/stack.py"),
        ("test_step_seconds.py", "test_steps.py", "test_plan.py", "test_offload.py"),
    ),
    "memory": (
        ("shapes/memory/moments.py", "shapes/memory/__init__.py"),
        (
            "test_memory_moments.py",
            "test_memory.py",
            "test_memory_experts.py",
            "test_saving.py",
            "test_recurrent.py",
            "test_allocator.py",
            "test_offload.py",
            "test_towers.py",
        ),
    ),
    "collectives": (
        ("shapes/operators/parallel.py", "shapes/cost/moving.py"),
        ("test_collectives.py", "test_shards.py", "test_splits.py", "test_step_seconds.py"),
    ),
    "serving": (
        ("shapes/step/serving.py", "shapes/cost/decode.py", "shapes/cost/experts.py", "shapes/memory/engine.py"),
        ("test_serving.py", "test_decode_prices.py", "test_experts.py", "test_decode.py"),
    ),
}

_SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def changes(node: ast.AST) -> Iterator[Callable[[ast.AST], None]]:
    """What may be done to a node; each takes the copy of it that it changes."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield _without_a_factor
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPPED:
        yield _another_operator
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        yield _another_comparison
    elif isinstance(node, ast.If | ast.IfExp):
        yield _condition_turned
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield _off_by_one
    elif isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg != "strict":
        yield _keyword_dropped
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        yield _other_extreme


def _without_a_factor(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.right = ast.Constant(1)


def _another_operator(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp | ast.BoolOp)
    node.op = _SWAPPED[type(node.op)]()


def _another_comparison(node: ast.AST) -> None:
    assert isinstance(node, ast.Compare)
    node.ops[0] = _SWAPPED[type(node.ops[0])]()


def _condition_turned(node: ast.AST) -> None:
    assert isinstance(node, ast.If | ast.IfExp)
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _off_by_one(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    node.value += 1


def _keyword_dropped(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    del node.keywords[-1]


def _other_extreme(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    node.func.id = {"max": "min", "min": "max"}[node.func.id]


def inside(tree: ast.Module) -> list[ast.AST]:
    """Expressions and conditions of functions' bodies, without docstrings, annotations and messages of errors."""
    found: list[ast.AST] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Raise | ast.AnnAssign | ast.JoinedStr):
            return
        found.append(node)
        for child in ast.iter_child_nodes(node):
            walk(child)

    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                walk(statement)
    return list(dict.fromkeys(found))


def mutants(path: Path) -> list[tuple[int, str, str]]:
    """(line, what the code says, the module's text with one change) of every change that can be made."""
    tree = ast.parse(path.read_text("utf-8"))
    made = []
    for place, node in enumerate(inside(tree)):
        for change in changes(node):
            other = copy.deepcopy(tree)
            target = inside(other)[place]
            before = ast.unparse(target).splitlines()[0]
            change(target)
            after = ast.unparse(target).splitlines()[0]
            text = ast.unparse(ast.fix_missing_locations(other))
            made.append((getattr(node, "lineno", 0), f"{before}  ->  {after}", text))
    return made


def failure(copied: Path, tests: tuple[str, ...]) -> str | None:
    """What pytest says last where a test fails, none where every test passes."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--no-header"]
    try:
        ran = subprocess.run(
            [*command, *(f"tests/{name}" for name in tests)],
            cwd=copied,
            env=os.environ | {"PYTHONPATH": str(copied)},
            capture_output=True,
            check=False,
            text=True,
            timeout=900,
        )
    except subprocess.TimeoutExpired:  # a loop that no longer ends
        return "timed out"
    return None if ran.returncode == 0 else (ran.stdout + ran.stderr)[-2000:]


def say(line: str) -> None:
    sys.stdout.write(f"{line[:200]}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30, help="mutants in all, the same number a room")
    parser.add_argument("--room", choices=tuple(ROOMS), action="append")
    asked = parser.parse_args()
    rooms = asked.room or list(ROOMS)
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(folder, filter="data")
        copied, died, planted = Path(folder), 0, 0
        for room in rooms:
            files, tests = ROOMS[room]
            if red := failure(copied, tests):
                sys.exit(f"the tests of {room} fail without a mutant: no death would say anything\n{red}")
            every = [(name, *one) for name in files for one in mutants(copied / name)]
            for name, line, what, text in random.Random(asked.seed).sample(every, asked.count // len(rooms)):
                path = copied / name
                whole = path.read_text("utf-8")
                path.write_text(text, "utf-8")
                lives = failure(copied, tests) is None
                path.write_text(whole, "utf-8")
                planted, died = planted + 1, died + (not lives)
                say(f"{'SURVIVED' if lives else 'died    '} {name}:{line}  {what}")
    say(f"{died} of {planted} mutants died in the fast tests of their room")


if __name__ == "__main__":
    main()
