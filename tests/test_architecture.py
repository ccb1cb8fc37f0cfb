"""The import graph: no circles at all, and no place but two from which torch can be reached."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

#: A package -> what it may import torch or transformers for. Nothing else names them, not even inside a function.
MAY_LOAD_TORCH = {"shapes.trace": "runs a model on the meta device", "shapes.measure": "times kernels"}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Every import statement, at the top of a file, inside a function or under TYPE_CHECKING."""
    return grimp.build_graph("sizer", "shapes", include_external_packages=True, cache_dir=None)


def own(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Each of our modules -> those of ours that it imports. A package's file stands for itself alone."""
    modules = {module for module in graph.modules if module.split(".")[0] in ("sizer", "shapes")}
    return {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}


def a_circle(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_reaches_itself_by_any_import_however_late(graph: grimp.ImportGraph) -> None:
    # The command line finds its commands, and the registry of formats its renderers, by name: no import of ours waits.
    assert a_circle(own(graph)) == []


def test_a_circle_would_be_found_wherever_its_imports_stand(tmp_path, monkeypatch) -> None:
    package = tmp_path / "circular"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def late():\n    from circular import b\n")
    (package / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circular import a\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = grimp.build_graph("circular", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert set(a_circle(imports)) == {"circular.a", "circular.b"}


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_torch_is_named_nowhere_but_where_models_run(graph: grimp.ImportGraph, package: str) -> None:
    importers = graph.find_modules_that_directly_import(package)
    assert importers
    elsewhere = {name for name in importers if ".".join(name.split(".")[:2]) not in MAY_LOAD_TORCH}
    assert elsewhere == set()


ROOT = Path(__file__).parent.parent


def bound_twice(source: str) -> list[str]:
    """Names that the top level of a module binds more than once: the first value is lost to all who read it."""
    found: Counter[str] = Counter()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] += 1
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            found.update(part.id for part in parts if isinstance(part, ast.Name))
    return [name for name, times in found.items() if times > 1]


@pytest.mark.parametrize("package", ["sizer", "shapes"])
def test_no_module_binds_a_name_twice(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert {str(path): twice for path in files if (twice := bound_twice(path.read_text(encoding="utf-8")))} == {}


def test_a_name_bound_twice_would_be_found() -> None:
    assert bound_twice("A, B = 1, 2\nA, C = 3, 4\ndef B(): ...\nD = 1") == ["A", "B"]
