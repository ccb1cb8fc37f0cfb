"""Each kind of thing is one file behind one registry: a file that nobody registered fails here."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import pytest

from shapes.engines import ENGINES
from shapes.kernels import KERNELS
from shapes.recipes import RECIPES
from shapes.toml_table import DATA
from sizer.cli import COMMANDS
from sizer.readers import READERS
from sizer.rules import RULES, TOPICS
from sizer.searching.spaces import SPACES
from sizer.searching.strategies import STRATEGIES


def has(*names: str) -> Callable[[ModuleType], bool]:
    return lambda module: all(hasattr(module, name) for name in names)


#: Package -> (what makes a module of it one of its kind, the modules registered).
REGISTRIES: dict[str, tuple[Callable[[ModuleType], bool], set[str]]] = {
    "sizer.rules": (has("rule"), {"sizer.rules.base", *(topic.__name__ for topic in TOPICS)}),
    "sizer.readers": (has("NAME", "matches", "read"), {f"sizer.readers.{name}" for name in READERS}),
    "sizer.searching.spaces": (has("NAME", "space"), {space.__name__ for space in SPACES.values()}),  # type: ignore[attr-defined]
    "sizer.searching.strategies": (has("NAME", "run"), {run.__module__ for run in STRATEGIES.values()}),
    "sizer.cli": (has("command"), {module for _, module, _ in COMMANDS}),
}


@pytest.mark.parametrize("package", REGISTRIES)
def test_every_file_of_a_kind_is_in_its_registry_and_nothing_else_is(package: str) -> None:
    is_one, registered = REGISTRIES[package]
    folder = import_module(package)
    modules = [import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(folder.__path__)]
    assert registered
    assert {module.__name__ for module in modules if is_one(module)} == registered


@pytest.mark.parametrize(("folder", "names"), [("engines", ENGINES), ("kernels", KERNELS), ("recipes", RECIPES)])
def test_every_data_file_of_a_kind_is_in_its_registry_and_nothing_else_is(folder: str, names: tuple[str, ...]) -> None:
    assert {path.stem for path in (DATA / folder).glob("*.toml")} == set(names)


def test_every_function_of_a_topic_that_answers_as_a_rule_is_one() -> None:
    answering = {
        function
        for topic in TOPICS
        for function in vars(topic).values()
        if getattr(function, "__annotations__", {}).get("return") == "Answer"
    }
    assert answering == {rule.check for rule in RULES}


@pytest.mark.parametrize("name", READERS)
def test_a_format_is_called_as_its_module(name: str) -> None:
    assert name == import_module(f"sizer.readers.{name}").NAME
