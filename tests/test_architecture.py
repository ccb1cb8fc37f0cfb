"""The import graph: no circles at all, and no place but two from which torch can be reached."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

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
