"""Models of ten thousand layers, of sides no device holds, and degrees of millions: answered quickly or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shapes.errors import InputError
from shapes.measure.store import Store
from shapes.memory import divisors, memory
from shapes.memory.modules import Forward
from shapes.memory.tape import Tape
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.operators import operators
from shapes.workload import Workload
from sizer.answers.bench import jobs_of_op
from sizer.cli import main

LOCAL = Block(AttentionShape(4, 4, 16, window=8), MlpShape(128))
GLOBAL = Block(AttentionShape(4, 4, 16), MlpShape(192))


def alternating(pairs: int) -> ModelShape:
    return ModelShape("test", (Stack("decoder", 64, (LOCAL, GLOBAL) * pairs),), 1000)


def test_ten_thousand_alternating_layers_are_two_kinds_of_layer() -> None:
    model, pair = alternating(5000), alternating(1)
    assert model.layers == 10_000
    assert [block.count for block in model.main.kinds] == [5000, 5000]
    counts = {operator.name: operator.count for operator in operators(pair, Workload(b=1, s=32))}
    many = operators(model, Workload(b=1, s=32))
    assert len(many) == len(operators(pair, Workload(b=1, s=32)))
    assert all(one.count == counts[one.name] * (5000 if "layers" in one.name else 1) for one in many)
    ends = 2 * 1000 * 64 + 64  # embedding, head and the last norm
    assert model.parameters - ends == 5000 * (pair.parameters - ends)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_the_fullest_moment_is_that_of_the_layers_in_their_order(
    monkeypatch: pytest.MonkeyPatch, checkpointing: str
) -> None:
    workload = Workload(b=2, s=32, checkpointing=checkpointing)  # type: ignore[arg-type]
    made: list[Block] = []
    tape = Forward.layer_tape

    def counted(run: Forward, block: Block, hidden: int) -> Tape:
        made.append(block)
        return tape(run, block, hidden)

    monkeypatch.setattr(Forward, "layer_tape", counted)
    peaks = [memory(alternating(pairs), workload).total_bytes for pairs in (1000, 2000, 3000, 5000)]
    assert len(made) == 8  # two kinds a model, however many layers
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0]
    assert peaks[3] - peaks[2] == 2 * (peaks[1] - peaks[0])


def test_equal_layers_are_one_object_and_models_of_them_are_equal() -> None:
    apart = tuple(replace(LOCAL) for _ in range(100))
    stack = Stack("decoder", 64, apart)
    assert len({id(block) for block in stack.blocks}) == 1
    assert stack == Stack("decoder", 64, (LOCAL,) * 100)
    assert hash(stack) == hash(Stack("decoder", 64, (LOCAL,) * 100))
    assert stack != Stack("decoder", 64, (*(LOCAL,) * 50, GLOBAL, *(LOCAL,) * 49))


HUGE = [
    {"num_attention_heads": 2**31, "head_dim": 2**33},
    {"hidden_size": 2**47, "intermediate_size": 2**47},
    {"vocab_size": 2**48, "hidden_size": 2**40},
]


@pytest.mark.parametrize("change", HUGE)
@pytest.mark.parametrize("command", ["check", "ops", "memory"])
def test_sizes_past_64_bits_are_one_line(tmp_path: Path, change: dict[str, int], command: str) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 64,
        **change,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    result = CliRunner().invoke(main, [command, str(file)], catch_exceptions=False)
    assert result.exit_code in (0, 1, 2)
    assert "inf" not in result.stdout.replace("infer", "").replace("info", "")
    assert result.exit_code != 2 or len(result.stderr.splitlines()) == 1


def test_an_operator_that_no_device_holds_is_named() -> None:
    model = ModelShape("test", (Stack("decoder", 2**40, (Block(None, MlpShape(2**40)),)),), 1000)
    with pytest.raises(InputError, match=r"mlp\.\w+ moves"):
        operators(model, Workload(b=1, s=32))


OUT_OF_BOUNDS: list[tuple[str, ...]] = [
    ("check", "{}", "--tp", "2097152"),
    ("check", "{}", "--pp", "2147483648"),
    ("check", "{}", "--workload", "expert-load=1.7e308"),
    ("search", "{}", "--layers", "4294967296", "--predict"),
    ("search", "--h", "4096", "--range", "1:9999999999", "--limit", "step=1", "--predict"),
    ("search", "--h", "4096", "--params=-inf", "--what", "model", "--predict"),
    ("search", "--h", "4096", "--params", "nan", "--what", "model", "--predict"),
    ("store", "list", "--top", "9223372036854775808"),
    ("store", "--store", "{store}", "list", "--device", "\udcff"),
    ("store", "--store", "{store}", "export", "--device", "\udcff"),
]


@pytest.mark.parametrize("command", OUT_OF_BOUNDS, ids=" ".join)
def test_options_without_bounds_are_refused_at_once(tmp_path: Path, command: tuple[str, ...]) -> None:
    gpt2 = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")
    store = tmp_path / "s.db"
    with Store.open(store):
        pass
    result = CliRunner().invoke(main, [part.format(gpt2, store=store) for part in command], catch_exceptions=False)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_walked_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "rglob", gone)
    result = CliRunner().invoke(
        main, ["store", "--store", str(tmp_path / "s.db"), "import", str(tmp_path)], catch_exceptions=False
    )
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


@given(whole=st.integers(1, 5000), largest=st.integers(1, 6000))
def test_divisors_are_those_that_trial_finds(whole: int, largest: int) -> None:
    assert divisors(whole, largest) == [one for one in range(1, min(whole, largest) + 1) if whole % one == 0]


def test_a_sweep_of_a_billion_products_is_refused_before_it_is_listed() -> None:
    sizes = {"m": tuple(range(1, 10**4)), "n": tuple(range(1, 10**4)), "k": (64,)}
    asked = {"batch": 1, "phase": "forward", "layouts": (), "kernels": (), "kv_heads": None, "compiled": False}
    with pytest.raises(InputError, match="at most 1000000 jobs"):
        jobs_of_op("gemm", sizes, ("bf16",), asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_labels": 10**9}, "num_labels = 1000000000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ({"text_config": {"num_experts": 10**6}}, "num_experts = 1000000"),
        ({"depths": [2, 10**7]}, "depths = 10000000"),
    ],
)
def test_a_trace_of_objects_without_number_is_refused_before_they_are_made(change: dict[str, Any], named: str) -> None:
    pytest.importorskip("transformers")
    from shapes.trace.config import load_config

    with pytest.raises(InputError, match=f"{named}: expected at most 100,000 to be traced"):
        load_config({"model_type": "qwen2", **change})


@pytest.mark.slow
def test_a_model_of_too_many_modules_is_left_while_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from shapes.trace import guards, trace_config

    config = {
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 20,
        "n_head": 2,
        "vocab_size": 64,
        "architectures": ["BloomForCausalLM"],
    }
    assert trace_config(config, b=1, s=8).operators
    monkeypatch.setattr(guards, "MOST_MODULES", 50)
    with pytest.raises(InputError, match="expected a model of at most 50 modules to be traced"):
        trace_config(config, b=1, s=8)
