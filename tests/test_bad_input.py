"""Every wrong configuration is one line naming file, key and value; never a traceback, never a guess."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from shapes.errors import InputError
from sizer.readers import Reading, UnknownModelType, read_config
from sizer.readers.loading import MAX_BYTES, parse_mapping
from tests.texts import read_text

CONFIGS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "data" / "configs").glob("*.json"))
}
LLAMA = CONFIGS["llama-3.1-8b"]
WRONG = [0, -1, 1e30, 10**60, 4096.5, math.nan, math.inf, True, "4096", [4096], {"a": 1}, None]


def refused(source: object, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_config(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_wrong_number_names_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, key: value}))
    message = refused(file)
    assert str(file) in message
    assert key in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "expected JSON"),
        (b"[1]", "expected an object"),
        (b"12", "expected an object"),
        (b"a: [", "expected JSON or YAML"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[" * 200_000, "nesting"),
        (b"a: &a [1, *a]", "alias"),
        (b"a: *b", "alias"),
        (b'a: !!int ""', "tag int (line 1)"),
        (b'a: !!float ""', "tag float"),
        (b"a: !!bool x", "tag bool"),
        (b"a: !!python/object/apply:os.system [echo]", "no tag"),
        (b"a: !thing 1", "no tag"),
        (b"? [1]\n: 2", "text as a key"),
        (b"a: 1\n---\nb: 2", "one document"),
        (b"a: " + b"1:" * 50_000 + b"1", "tag int"),
        (b"- " * 50_000 + b"1", "nesting"),
        (b"a:\n" + b"  - 1\n" * 200_000, "KiB"),
        (b'{"a": ' * 101 + b"1" + b"}" * 101, "nesting"),
        (b"{}", "model_type"),
        (b" " * (MAX_BYTES + 1), "16 MiB"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    message = refused(file)
    assert str(file) in message
    assert expected in message


#: Each level ten times the one before; the anchors begin with what no regular expression for words finds.
BOMBS = {
    "lists": "a0: &-a0 [x]\n" + "".join(f"a{n}: &-a{n} [{', '.join([f'*-a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
    "merges": "a0: &a0 {x: 1}\n"
    + "".join(f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]\n  y{n}: 1\n" for n in range(1, 25)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_aliases_cost_what_they_stand_for(tmp_path: Path, bomb: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        BOMBS[bomb] + "hidden_size: *a24\n" * (bomb == "merges") + "hidden_size: *-a8\n" * (bomb == "lists")
    )
    assert "100000 values" in refused(file)


YAML = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text("abc:#&*!{}[],'\"\n -<>|%@`0123456789.é", max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab:&* ", max_size=4), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@draws(300)
@given(value=st.dictionaries(st.text("abc", min_size=1, max_size=4), YAML, max_size=4), flow=st.booleans())
def test_yaml_is_read_as_pyyaml_reads_it(value: dict[str, Any], flow: bool) -> None:
    shared = {"first": value, "second": value}  # dumped with an anchor and an alias
    text = "---\n" + yaml.safe_dump(shared, default_flow_style=flow)  # else flow style is taken for JSON
    assert parse_mapping(text, "x.yaml") == yaml.safe_load(text)


def test_yaml_merges_keys_as_pyyaml_does() -> None:
    text = "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nmerged:\n  a: 9\n  <<: [*base, *other]\n  d: 5\n"
    assert parse_mapping(text, "x.yaml") == yaml.safe_load(text)


def test_text_that_only_looks_like_an_anchor_or_nesting_is_none() -> None:
    assert parse_mapping("a: 1  # see *this* and &that\n", "x.yaml") == {"a": 1}
    assert parse_mapping(json.dumps({"a": "[" * 500}), "x.json") == {"a": "[" * 500}


def test_the_value_in_an_error_is_short_however_large_it_is() -> None:
    assert len(str(InputError("expected", key="a", value=[["x" * 10**6] * 10**5] * 10**5))) < 100


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    assert "nowhere.json" in refused(tmp_path / "nowhere.json")
    assert "found a directory" in refused(tmp_path)  # and no configuration in it


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert read_config(file).model == read_config(LLAMA).model


def test_an_unknown_model_type_is_refused_and_never_guessed() -> None:
    with pytest.raises(UnknownModelType) as caught:
        read_config({**LLAMA, "model_type": "llamma"})
    assert caught.value.value == "llamma"


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize(("field", "value"), [("b", 0), ("zero", 9), ("checkpointing", "some"), ("lora_rank", 4)])
def test_a_wrong_option_is_refused_before_a_class_is_built(
    monkeypatch: pytest.MonkeyPatch, field: str, value: object, trace: bool
) -> None:
    pytest.importorskip("transformers")
    import shapes.trace
    from sizer.answers.deploy import deploy
    from sizer.subject import read_subject

    for builds in ("recognise_config", "trace_config", "longest_sequence"):
        monkeypatch.setattr(shapes.trace, builds, lambda *_, **__: pytest.fail("a class is loaded"))
    config = {"model_type": "jetmoe", "hidden_size": 64}
    with pytest.raises(InputError, match=f"^<dict>: {field} = {value!r}: expected"):
        read_subject(config, trace=trace, **{field: value})
    for key, wrong in (("engine", {"engines": ["none"]}), ("recipe", {"recipe": "none"})):
        with pytest.raises(InputError, match=f"^{key} = 'none': expected one of"):
            deploy(config, **wrong)  # type: ignore[arg-type]


def test_an_unknown_format_lists_the_known_ones() -> None:
    assert "megatron" in refused(LLAMA, config_format="keras")


def test_heads_that_do_not_divide_are_refused() -> None:
    assert "num_key_value_heads = 5" in refused({**LLAMA, "num_key_value_heads": 5})
    without = {key: value for key, value in LLAMA.items() if key != "head_dim"}
    assert "num_attention_heads" in refused({**without, "num_attention_heads": 33, "num_key_value_heads": 33})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=6,
)


@pytest.mark.slow
@draws(500)
@given(name=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_a_mutated_configuration_is_read_or_refused_cleanly(name: str, data: st.DataObject) -> None:
    config = dict(CONFIGS[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        if data.draw(st.booleans()):
            config[key] = data.draw(JSON | st.sampled_from(WRONG))
        else:
            config.pop(key, None)
    try:
        answer: object = read_config(config)
    except InputError as error:
        answer = error
    assert isinstance(answer, Reading) or "\n" not in str(answer)


@settings(max_examples=300)
@given(text=st.text(max_size=200), suffix=st.sampled_from(["config.json", "args.yaml", "train.py", "run.sh"]))
def test_arbitrary_text_is_read_or_refused_cleanly(text: str, suffix: str) -> None:
    try:
        answer: object = read_text(text, where=suffix)
    except InputError as error:
        answer = error
    assert isinstance(answer, Reading) or "\n" not in str(answer)


def test_work_that_grows_with_what_a_file_says_is_bounded(tmp_path: Path) -> None:
    words, branch = " ".join(map(str, range(6000))), "\n".join("A=1" for _ in range(1000))
    launch = "python pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8"
    script = f"for x in {words}; do\nif [ $x = b ]; then\n{branch}\nfi\ndone\n{launch}\n"
    with pytest.raises(InputError, match="goes through at most"):
        read_text(script, where="train.sh")
    with pytest.raises(InputError, match="at most 1000 keys that huggingface does not have"):
        read_config({**LLAMA, **{f"strange{number}": 1 for number in range(30_000)}})


def test_mutants_of_the_readers_files_are_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of the 200,000 that reports/bench/fuzz_readers.py draws."""
    script = Path(__file__).parents[1] / "reports" / "bench" / "fuzz_readers.py"
    monkeypatch.setattr("sys.argv", [str(script), "--mutants", "400", "--seed", "2", "--most", "1e9"])
    assert runpy.run_path(str(script))["main"]() == 0


def test_an_infinite_batch_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("model_args: {model_name: Qwen/Qwen3-0.6B}\ntraining_parameters: {micro_batch_size: .inf}\n")
    assert "expected an integer" in refused(file)


@pytest.mark.filterwarnings("error")
def test_a_python_files_own_backslashes_are_no_warnings_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text('pattern = "\\d"\nn_layer = 2\nn_head = 2\nn_embd = 64\n')
    assert read_config(file).model.layers == 2
