"""Each kind of thing is one file behind one registry: a file that nobody registered fails here."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import get_args, get_type_hints

import pytest

from shapes.engines import ENGINES
from shapes.kernels import KERNELS
from shapes.measure.kernels import PLANS
from shapes.operators import Operator
from shapes.operators.types import KINDS
from shapes.recipes import RECIPES
from shapes.step.stack import CLASSES
from shapes.toml_table import DATA
from sizer.cli import COMMANDS
from sizer.readers import READERS, read_config
from sizer.readers.fields import table
from sizer.readers.huggingface import BUILDERS, DEFAULTS_OF
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
    "sizer.cli": (has("command"), {module for _, module, _ in COMMANDS if ":" not in module}),
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


def test_every_operator_kind_says_who_lowers_prices_explains_and_measures_it() -> None:
    types = get_args(Operator)
    declared = {(one.type, one.kind) for one in KINDS}
    missing = {(cls, kind) for cls in types for kind in get_args(get_type_hints(cls)["kind"])} ^ declared
    assert not missing, f"add an OperatorKind to KINDS in shapes/operators/types.py (or take it out): {missing}"
    for one in KINDS:
        named = f"KINDS of shapes/operators/types.py, {one.type.__name__} {one.kind}"
        assert one.work_class in (None, "", *CLASSES), f"{named}: work_class is none of CLASSES in shapes/step/stack.py"
        for path in filter(None, (one.lowered, one.priced, one.explained, one.measured)):
            module, _, name = path.partition(":")
            assert hasattr(import_module(module), name), f"{named}: write {name} in {module.replace('.', '/')}.py"
        plan = PLANS.get(one.type)
        path = plan and f"{plan.__module__}:{plan.__name__}"
        assert path == one.measured, f"{named}: measured is not its plan in shapes/measure/kernels/__init__.py"


@pytest.mark.parametrize("name", READERS)
def test_a_format_is_called_as_its_module(name: str) -> None:
    assert name == import_module(f"sizer.readers.{name}").NAME


@pytest.mark.parametrize("name", READERS)
def test_a_format_declares_its_tables_and_the_keys_it_does_not_read(name: str) -> None:
    for data in ("formats", "known_keys"):
        assert name in table(data), f"add {name} to sizer/readers/{data}.json"


@pytest.mark.parametrize("model_type", BUILDERS)
def test_a_model_type_has_its_defaults(model_type: str) -> None:
    known = table("hf_defaults")
    assert DEFAULTS_OF.get(model_type, model_type) in known, "run python tests/tools/make_hf_defaults.py"
    assert read_config({"model_type": model_type, "num_experts_per_tok": 1, "head_dim": 128}).model.layers
