"""The published JSON Schemas: one of every command's JSON, none that lets anything through unseen."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from schemas import FOLDER, load_schema
from tools.make_schemas import WRITTEN, made

from shapes.toml_table import DATA, content
from sizer.cli import main
from sizer.render import COMMANDS, formats

CONFIGS = Path(__file__).parent / "data" / "configs"
GPT2, LLAMA, QWEN = (str(CONFIGS / f"{name}.json") for name in ("gpt2", "llama-3.1-8b", "qwen2.5-7b"))
BENCH = ("bench", "-m", "8", "-n", "8", "-k", "8", "--device", "cpu", "--max-time", "0.01", "--precision", "0.9")
SUITE = str(Path(__file__).parents[1] / "reports" / "suites" / "control.toml")
MFU = ("mfu", GPT2, "--step-time", "1", "--gpus", "8", "--global-batch", "64")

#: Schema -> calls whose output it describes.
CALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "check": (("check", GPT2), ("check", LLAMA, "--tp", "3")),
    "diff": (("diff", GPT2, QWEN),),
    "ops": (("ops", GPT2), ("ops", LLAMA, "--phase", "decode", "--context", "64")),
    "search": (
        ("search", "--h", "1024"),
        ("search", GPT2, "--what", "model"),
        ("search", "--h", "1024", "--device", "mi300x"),
    ),
    "memory": (
        ("memory", GPT2),
        ("memory", QWEN, "--finetune", "qlora", "-b", "1"),
        ("memory", LLAMA, "--pp", "4", "--tp", "2"),
        ("memory", LLAMA, "--phase", "decode", "--context", "128"),
    ),
    "plan": (
        ("plan", GPT2, "--gpus", "2", "--global-batch", "8"),
        ("plan", GPT2, "--gpus", "4", "--global-batch", "8", "--tokens", "1e9", "--price", "2", "--top", "3"),
    ),
    "serving-plan": (
        ("plan", LLAMA, "--phase", "decode", "--gpus", "8", "--tpot", "50ms"),
        ("plan", QWEN, "--phase", "decode", "--gpus", "3", "--engine", "transformers"),
    ),
    "mfu": (MFU, (*MFU, "--explain")),
    "devices": (("devices",), ("devices", "h200", "gaudi3")),
    "deploy": (("deploy", LLAMA), ("deploy", QWEN, "--tp", "8", "--recipe", "blockwise")),
    "rules": (("rules",),),
    "measurements": (BENCH, ("store", "list")),
    "rows": (
        ("ops", GPT2, "--explain", "mlp"),
        ("explain", "SZ101"),
        ("bench", "--suite", SUITE, "--dry-run"),
    ),
}
CASES = [(name, call) for name, calls in CALLS.items() for call in calls]


def document(call: tuple[str, ...], folder: Path) -> Any:
    store = ("--store", str(folder / "store.db"))
    if call[0] == "store":
        CliRunner().invoke(main, [*BENCH, *store], catch_exceptions=False)
        call, store = ("store", *store, *call[1:]), ()
    result = CliRunner().invoke(
        main, [*call, *(store if call[0] == "bench" else ()), "--format", "json"], catch_exceptions=False
    )
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("name", "call"), CASES)
def test_a_command_s_json_follows_its_schema(name: str, call: tuple[str, ...], tmp_path: Path) -> None:
    jsonschema.validate(document(call, tmp_path), load_schema(name))


def test_every_json_has_a_schema_and_every_schema_a_call_here() -> None:
    assert {path.name.removesuffix(".schema.json") for path in FOLDER.glob("*.schema.json")} == {*CALLS}
    # A patch of a configuration is in that file's words, not ours.
    with_json = {name for name in COMMANDS if "json" in formats(name)} - {"search --emit", "store export"}
    # The command, or that and the option or subcommand that asks for another view.
    called = {max((name for name in COMMANDS if {*name.split()} <= {*call}), key=len) for _, call in CASES}
    assert called == with_json


def objects(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that a schema describes by its fields."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield where, schema
        for key, inner in schema.items():
            yield from objects(inner, f"{where}/{key}")
    elif isinstance(schema, list):
        for at, inner in enumerate(schema):
            yield from objects(inner, f"{where}/{at}")


@pytest.mark.parametrize("name", CALLS)
def test_a_schema_is_a_valid_one_of_a_version_that_closes_its_objects(name: str) -> None:
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    if name != "rules":  # a list, as it has been from the first
        assert schema["properties"]["schema_version"] == {"const": 1}
    # A device's own file may grow; all else that is output is described.
    open_ = {"/$defs/device", "/$defs/device/properties/compute", "/$defs/device/properties/memory"}
    assert {where for where, one in objects(schema) if one.get("additionalProperties") is not False} <= open_
    for _, one in objects(schema):
        assert set(one.get("required", ())) <= set(one["properties"])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_schema_follows_from_the_classes_that_are_written(name: str) -> None:
    text = (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert text == made(name, WRITTEN[name]), "run python tests/tools/make_schemas.py"


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("measurements", "rules")])
def test_a_schema_notices_what_is_missing_and_what_is_new(name: str, tmp_path: Path) -> None:
    schema, good = load_schema(name), document(CALLS[name][0], tmp_path)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(good)
    for key in schema["required"]:
        assert not validator.is_valid({field: value for field, value in good.items() if field != key}), key
    assert not validator.is_valid({**good, "unheard_of": 1})
    older = copy.deepcopy(good) | {"schema_version": 2}
    assert not validator.is_valid(older)


def test_every_kind_of_operator_is_in_the_schema() -> None:
    kinds = [row["kind"] for row in content(DATA / "operators.toml")["kinds"]]
    assert set(kinds) == set(load_schema("ops")["$defs"]["operator"]["properties"]["kind"]["enum"])


@pytest.mark.parametrize(("name", "shown"), content(DATA / "json.toml").items())
def test_what_json_shows_otherwise_is_of_a_class_that_there_is(name: str, shown: dict[str, Any]) -> None:
    module, _, cls = name.rpartition(".")
    found = getattr(import_module(module), cls)
    paths = [path for one in shown.values() for path in (one.values() if isinstance(one, dict) else [one])]
    lacking = [path for path in paths if path and not hasattr(found, path.partition(".")[0].removesuffix("?"))]
    assert lacking == []
    assert all(hasattr(found, key) for key, path in shown.items() if path is False)
