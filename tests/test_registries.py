"""A member of a kind without its registration, test, row or keys fails here, with the file to add or edit."""

from __future__ import annotations

import dataclasses
import pkgutil
from importlib import import_module
from typing import get_args, get_type_hints

import pytest

from reports.bench.reference import PAGE, page
from shapes.measure.kernels import PLANS
from shapes.operators.types import KINDS as OPERATOR_KINDS
from shapes.operators.types import Operator
from shapes.step.stack import CLASSES
from sizer.readers import MODULES, READERS, read_config
from sizer.readers.huggingface import BUILDERS, DEFAULTS_OF
from sizer.readers.reading import table
from sizer.rules import RULES, TOPICS
from sizer.rules.base import Answer
from sizer.searching import spaces
from sizer.searching.space import Limits
from tests.tools.kinds import KINDS, ROOT, members, missing, skeletons
from tests.tools.make_stubs import STUBS

MEMBERS = [(kind, name) for kind in KINDS for name in members(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_members_and_each_is_written_where_it_is_registered(kind: str) -> None:
    assert set(KINDS[kind].registered()) == set(KINDS[kind].found()), missing(kind)
    assert KINDS[kind].registered()


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_member_has_its_test_its_row_and_its_keys(kind: str, name: str) -> None:
    lacks = missing(kind, name)
    assert not lacks, f"a {kind} is not finished; " + "; ".join(lacks)


def test_a_name_that_nothing_knows_lacks_its_file_and_its_registration() -> None:
    assert missing("engine", "nobody") == [
        "nobody: write shapes/data/engines/nobody.toml",
        "nobody: register it in ENGINES of shapes/engines.py",
    ]


def test_every_folder_of_facts_is_a_kind_s_and_every_file_of_constants_a_kernel_s() -> None:
    kinds = {kind.file.split("/")[2] for kind in KINDS.values() if kind.file.startswith("shapes/data/")}
    found = {path.name for path in (ROOT / "shapes" / "data").iterdir() if path.is_dir()}
    assert found == {*kinds, "attention", "serving"}, "add a Kind for the folder to tests/tools/kinds.py"
    constants = {path.stem for path in (ROOT / "shapes" / "data" / "attention").glob("*.toml")}
    assert constants <= set(KINDS["kernel"].registered()), "add them to KERNELS of shapes/kernels.py"


def test_no_skeleton_of_the_generator_is_left() -> None:
    assert skeletons() == []


@pytest.mark.slow
def test_the_reference_is_what_its_generator_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python reports/bench/reference.py"


def test_every_topic_of_rules_is_registered() -> None:
    folder = import_module("sizer.rules")
    modules = [import_module(f"sizer.rules.{found.name}") for found in pkgutil.iter_modules(folder.__path__)]
    with_rules = {module.__name__ for module in modules if hasattr(module, "rule")}
    assert with_rules == {"sizer.rules.base", *(topic.__name__ for topic in TOPICS)}, "add it to TOPICS"


def test_every_function_of_a_topic_that_answers_as_a_rule_is_one() -> None:
    answering = {
        function
        for topic in TOPICS
        for name, function in vars(topic).items()
        if not name.startswith("_")  # a step of a rule, which may give the rule's answer
        and getattr(function, "__annotations__", {}).get("return") == Answer
    }
    assert answering == {rule.judge for rule in RULES}


def test_every_limit_that_a_space_takes_is_one() -> None:
    known = {field.name for field in dataclasses.fields(Limits)}
    for name, takers in spaces.TAKEN_BY.items():
        assert name in known
        assert set(takers) <= set(spaces.SPACES.values())


def test_every_operator_kind_says_who_lowers_prices_explains_and_measures_it() -> None:
    types = get_args(Operator)
    declared = {(one.type, one.kind) for one in OPERATOR_KINDS}
    lacking = {(cls, kind) for cls in types for kind in get_args(get_type_hints(cls)["kind"])} ^ declared
    assert not lacking, f"add it to kinds of shapes/data/operators.toml (or take it out): {lacking}"
    for one in OPERATOR_KINDS:
        named = f"kinds of shapes/data/operators.toml, {one.type.__name__} {one.kind}"
        assert one.work_class in (None, "", *CLASSES), f"{named}: work_class is none of CLASSES in shapes/step/stack.py"
        for path in filter(None, (one.lowered, one.priced, one.explained, one.measured)):
            module, _, name = path.partition(":")
            assert hasattr(import_module(module), name), f"{named}: write {name} in {module}"
        plan = PLANS.get(one.type)
        path = plan and f"{plan.__module__}:{plan.__name__}"
        assert path == one.measured, f"{named}: measured is not its plan in shapes/measure/kernels/__init__.py"


@pytest.mark.parametrize("name", MODULES)
def test_a_format_is_called_as_its_module(name: str) -> None:
    assert name == import_module(f"sizer.readers.{name}").NAME


@pytest.mark.parametrize("name", READERS)
def test_a_format_declares_its_tables_and_the_keys_it_does_not_read(name: str) -> None:
    assert {"claim", "known"} <= table("formats").get(name, {}).keys(), f"add {name} to sizer/readers/formats.json"


@pytest.mark.parametrize("model_type", BUILDERS)
def test_a_model_type_has_its_defaults(model_type: str) -> None:
    known = table("hf_defaults")
    assert DEFAULTS_OF.get(model_type, model_type) in known, "run python tests/tools/make_hf_defaults.py"
    if model_type in ("nemotron-nas", "openelm"):
        return  # every file lists its layers
    settings = {
        "num_experts_per_tok": 1,
        "num_experts": 8,
        "head_dim": 128,
        "n_routed_experts": 8,
        "moe_intermediate_size": 64,
        "mlp_hidden_size": 64,
        "share_q_dim": 64,
    }
    if model_type != "llada":
        del settings["mlp_hidden_size"]  # LLaDA's own name
    if model_type == "hunyuan_v1_moe":
        del settings["moe_intermediate_size"]  # one width under two keys
    if model_type == "mamba2":
        settings["num_heads"] = 64  # whose product with head_dim the class checks
    if model_type == "zamba2":
        settings["intermediate_size"] = 64  # which its adapters' widths say, and the class writes into every file
    if model_type == "longcat_flash":
        settings["zero_expert_num"] = 0  # of 256 and 8 experts a token has no whole number
    assert read_config({"model_type": model_type, **settings}).model.layers


@pytest.mark.parametrize("name", STUBS)
def test_what_type_checkers_read_follows_from_the_code(name: str) -> None:
    assert (ROOT / name).read_text("utf-8") == STUBS[name], "python tests/tools/make_stubs.py"
