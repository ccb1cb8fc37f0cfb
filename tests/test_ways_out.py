"""What a refusal tells a person to type gets past that refusal, with a value in the place of its N or NAME."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from shapes.errors import InputError
from sizer.cli import main
from sizer.readers import READERS, parse_setting, read_config
from tests.test_readers_formats import SMALLEST
from tests.texts import read_text

ROOT = Path(__file__).parents[1]
#: What stands in a printed command's place -> values of the kinds that it may be, of which one is the key's.
PLACES: dict[str, list[Any]] = {"N": [1024, 64, 8, 2, 1], "NAME": ["Qwen/Qwen3-0.6B"], "VALUE": [1024, 8, 1, True, "x"]}
_SET = re.compile(r"--set ([^\s=]+)=([^\s,;)]+)")
Case = tuple[str, str]


@cache
def fuzzed() -> Any:
    """The module that makes mutants of every reader's files."""
    spec = importlib.util.spec_from_file_location("fuzz_readers", ROOT / "reports" / "bench" / "fuzz_readers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts() -> list[Case]:
    """(file name, content) of every reader's files but headers of weights."""
    held = ((name, content.decode()) for name, content in sorted(fuzzed().seeds().items()) if "." in name)
    return [(name, text) for name, text in held if not name.endswith((".gguf", ".safetensors"))]


def without_a_key() -> Iterator[Case]:
    """Configurations without each of their keys, and with a word in its place."""
    odd = json.loads((ROOT / "tests" / "data" / "odd_files.json").read_text("utf-8"))
    smallest = (json.loads(text) for name, text in SMALLEST.values() if name.endswith("json"))
    for config in (*smallest, *(one["config"] for one in odd.values())):
        for key in config:
            yield "config.json", json.dumps({name: value for name, value in config.items() if name != key})
            yield "config.json", json.dumps(config | {key: "x"})


def mutants(number: int) -> Iterator[Case]:
    held = texts()
    others = [text.encode() for _, text in held]
    for count in range(number):
        draw = random.Random(f"ways.{count}")
        name, text = draw.choice(held)
        yield name, fuzzed().mutated(text.encode(), draw, others).decode("utf-8", "replace")


def refusal(where: str, text: str, **said: Any) -> InputError | None:
    try:
        read_text(text, where=where, **said)
    except InputError as error:
        return error
    return None


def same(one: InputError, other: InputError | None) -> bool:
    """Whether another refusal is the same one, of the same key, whatever its value is now."""
    return other is not None and (one.key, one.expected[:40]) == (other.key, other.expected[:40])


def dead_ends(cases: list[Case], folder: Path) -> tuple[int, list[str]]:
    """(how many commands were printed and tried, the refusals that they did not get past)."""
    tried, left = 0, []
    for name, text in cases:
        where = str(folder / name)
        if (error := refusal(where, text)) is None:
            continue
        for key, value in _SET.findall(error.expected):
            listed = re.search(r"recipes \((\w+)", error.expected)
            values = [listed[1]] if listed else PLACES.get(value, [parse_setting(f"key={value}")[1]])
            again = [refusal(where, text, settings={key: one}) for one in values]
            left += [str(error)] * all(same(error, one) for one in again)
            tried += 1
        for spoken in re.findall(r"sizer check (\S+/[^\s,;]+)(?![^\s,;]| --download)", error.expected):
            tried += 1
            assert read_config(spoken).model.parameters > 0
        for chosen in re.findall(r"has the keys of (\w+) and of .* --config-format", error.expected):
            assert chosen in READERS
            tried += 1
            left += [str(error)] * same(error, refusal(where, text, config_format=chosen))
    return tried, left


@pytest.mark.slow
def test_a_file_without_one_of_its_keys_is_mended_as_its_refusal_says(tmp_path: Path) -> None:
    tried, left = dead_ends([*texts(), *without_a_key()], tmp_path)
    assert left == []
    assert tried > 20


@pytest.mark.parametrize("number", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_mutant_is_mended_as_its_refusal_says(number: int, tmp_path: Path) -> None:
    tried, left = dead_ends(list(mutants(number)), tmp_path)
    assert left == []
    assert tried > number // 60


def test_settings_name_a_recipes_key_as_the_refusal_spells_it(tmp_path: Path) -> None:
    """A section's keys keep their dashes, which a top-level key of such files may be without."""
    held = (
        "backend: {sglang_config: {decode: {served-model-name: acme/x, tp-size: 8}}}\nmodel: {path: x}\nresources: {}\n"
    )
    name = str(tmp_path / "r.yaml")
    error = refusal(name, held)
    assert error is not None
    ((key, _),) = _SET.findall(error.expected)
    assert key == "backend.sglang_config.decode.served-model-name"
    assert refusal(name, held, settings={key: "Qwen/Qwen3-0.6B"}) is None


#: A file's way to name what it builds on, and what that holds.
BASES = {
    "extends": ("extends: {}\nnum_layers: 3\n", "base.yaml"),
    "bases": ("bases: [{}]\nnum_layers: 3\n", "base.yaml"),
    "_base_": ("_base_: {}\nnum_layers: 3\n", "base.yaml"),
    "base_config": ("base_config: {}\nnum_layers: 3\n", "base.yaml"),
    "defaults": ("defaults: [{}]\nnum_layers: 3\n", "base"),
}


@pytest.mark.parametrize("way", BASES)
@pytest.mark.parametrize("above", ["", "../"])
def test_a_base_that_is_elsewhere_is_read_below_the_root_that_its_refusal_asks_for(
    way: str, above: str, tmp_path: Path
) -> None:
    child = tmp_path / "tree" / "recipes" / "child.yaml"
    child.parent.mkdir(parents=True)
    text, name = BASES[way]
    child.write_text(text.format(above + name), "utf-8")
    (tmp_path / "tree" / "base.yaml").write_text(
        "hidden_size: 64\nnum_attention_heads: 4\nvocab_size: 320\nseq_length: 32\nnum_layers: 9\n", "utf-8"
    )
    with pytest.raises(InputError, match=r"(?:not there|not opened): --root DIR"):
        read_config(child)
    assert read_config(child, root=tmp_path / "tree").model.layers == 3


@pytest.mark.parametrize("held", ["acme/own", "model_name_or_path: acme/own\noutput_dir: o\n"])
def test_a_name_that_nobody_knows_is_read_once_its_refusals_command_has_fetched_it(
    held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's own download is a stand-in here, which puts a config.json where the hub's client does."""
    hub = ModuleType("huggingface_hub")

    def snapshot_download(name: str, allow_patterns: list[str]) -> None:
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("abc")
        (folder / "snapshots" / "abc").mkdir(parents=True)
        (folder / "snapshots" / "abc" / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 3}')

    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    asked = held
    if "\n" in held:
        asked = str(tmp_path / "r.yaml")
        Path(asked).write_text(held, "utf-8")
    with pytest.raises(InputError) as error:
        read_config(asked)
    command = re.search(r"sizer check (\S+) --download", error.value.expected)
    spoken = ["check", command[1], "--download"] if command else ["check", held, "--download"]
    assert "--download" in error.value.expected
    assert CliRunner().invoke(main, spoken).exit_code == 0
    assert read_config(asked).model.layers == 3
