"""The command line end to end: what a person types, what is printed, how it exits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import jsonschema
import pytest
from click.testing import CliRunner, Result
from schemas import load_schema

import sizer
from shapes.keywords import WorkloadKeywords
from shapes.workload import OPTIONS, WORDS, WORKLOAD_FIELDS, Workload, option_of
from sizer.cli import COMMANDS, main, options

CONFIGS = Path(__file__).parent / "data" / "configs"


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin, catch_exceptions=False)


def check_json(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("check", "--format", "json", *arguments).stdout)
    jsonschema.validate(document, load_schema("check"))
    return document


def write(path: Path, **config: Any) -> str:
    path.write_text(json.dumps(config))
    return str(path)


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    } | changes


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage:")


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("plan", "a.json"), ("--gpus", "--global-batch")),
        (("plan", "a.json", "--gpus", "8"), ("--global-batch",)),
        (("mfu",), ("CONFIG", "--gpus", "--global-batch", "--step-time")),
        (("mfu", "--params", "8B", "--step-time", "1"), ("--gpus", "--global-batch")),
    ],
)
def test_all_that_is_missing_is_asked_for_at_once(arguments: tuple[str, ...], missing: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    named = [word for word in ("CONFIG", "--gpus", "--global-batch", "--step-time") if word in result.stderr]
    assert named == list(missing)


def test_several_devices_are_columns_of_one_configuration_and_reports_of_the_document() -> None:
    devices = ("--device", "h100-sxm", "--device", "b200")
    config = str(CONFIGS / "gpt2.json")
    reports = check_json(config, *devices)["reports"]
    assert [one["device"] for one in reports] == ["h100-sxm", "b200"]
    text = run("check", config, *devices).stdout
    first, head = [line for line in text.splitlines() if "b200" in line][:2]
    assert first.startswith(f"{config}: fastest on b200, ")
    assert head.split() == ["h100-sxm", "b200"]
    row = next(line for line in text.splitlines() if line.startswith("SZ101"))
    assert row.count("%") == 2
    assert row.count("warning") == 2  # not its cost alone
    hours = next(line for line in text.splitlines() if line.startswith("device hours of 1e9 tokens"))
    tokens = 4 * 1024  # gpt2 has so many positions
    expected = [f"{one['step']['seconds'] / tokens * 1e9 / 3600:,.1f}" for one in reports]
    assert hours.split()[-2:] == expected
    listed = [one["price_usd_per_h"] * one["step"]["seconds"] / tokens * 1e9 / 3600 for one in reports]
    costs = next(line for line in text.splitlines() if line.startswith("USD of them, by list prices"))
    assert costs.split()[-2:] == [f"{one:,.0f}" for one in listed]
    assert text.count("-> vocab_size 50304") == 1  # said once, not a device
    refused = run("check", config, *devices, "--fix")
    assert (refused.exit_code, "expected one" in refused.stderr) == (2, True)


@pytest.mark.parametrize("name", ["google/gemma-2-9b", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"])
@pytest.mark.parametrize("phase", ["train", "decode"])
def test_rows_of_unlike_layers_are_told_apart(name: str, phase: Any) -> None:
    rows = sizer.ops(name, phase=phase, b=1).folded
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    cores = [one for one in names if "attention.core (" in one]
    assert [one.partition("(")[2][:6] for one in sorted(cores)] in ([], ["12 lay", "window"], ["21 lay", "window"])


def test_operators_are_folded_sorted_and_cut() -> None:
    config = str(CONFIGS / "gpt2.json")

    def listed(*more: str) -> list[list[str]]:
        lines = run("ops", config, *more).stdout.split("share of their sum:\n")[1].split("\n\n")[0].splitlines()
        return [line.split() for line in lines[2:]]

    rows, names = (
        listed(),
        [row["name"] for row in json.loads(run("ops", config, "--format", "json").stdout)["operators"]],
    )
    assert {row[0] for row in rows} == set(names)
    assert len(rows) == len(set(names)) < len(names)
    shares = [float(next(word for word in row if word.endswith("%"))[:-1]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=2)  # rounded
    assert [row[0] for row in listed("--sort", "model")] == list(dict.fromkeys(names))
    assert [row[0] for row in listed("--sort", "name")] == sorted(set(names))
    assert listed("--top", "2") == [*rows[:2], ["…", "and", f"{len(rows) - 2}", "more"]]


def test_gpt2_s_vocabulary_is_found_with_its_padding_and_price() -> None:
    report = check_json(str(CONFIGS / "gpt2.json"))["reports"][0]
    assert report["model"]["parameters"] == 124_439_808
    finding = next(item for item in report["findings"] if item["code"] == "SZ101")
    assert (finding["field"], finding["value"], finding["severity"]) == ("vocab_size", 50257, "warning")
    padded = next(item for item in finding["suggestions"] if item["change"] == {"vocab_size": 50304})
    assert padded["step_seconds_change"] < 0
    assert padded["parameters_change"] == 47 * 768  # the tied embedding grows once
    # Padding adds work, so all of the saving counts.
    assert finding["step_seconds"] == pytest.approx(-padded["step_seconds_change"])


def test_gpt3_2_7b_s_head_dim_of_80_is_found_with_heads_that_keep_the_hidden_size(tmp_path: Path) -> None:
    config = write(tmp_path / "config.json", model_type="gpt2", n_embd=2560, n_head=32, n_layer=32, n_positions=2048)
    findings = check_json(config)["reports"][0]["findings"]
    finding = next(item for item in findings if item["code"] == "SZ102")
    changes = [suggestion["change"] for suggestion in finding["suggestions"]]
    assert {"n_head": 20} in changes  # 128
    assert {"n_head": 40} in changes  # 64


def test_a_swiglu_width_of_8h_over_3_is_found(tmp_path: Path) -> None:
    config = write(tmp_path / "config.json", **llama_config(intermediate_size=10922))
    findings = check_json(config)["reports"][0]["findings"]
    finding = next(item for item in findings if item["code"] == "SZ108")
    assert (finding["field"], finding["value"], finding["severity"]) == ("intermediate_size", 10922, "warning")
    assert all(s["change"]["intermediate_size"] % 64 == 0 for s in finding["suggestions"])


def test_llama_3_1_8b_has_no_warning() -> None:
    result = run("check", str(CONFIGS / "llama-3.1-8b.json"))
    assert result.exit_code == 0, result.output
    report = check_json(str(CONFIGS / "llama-3.1-8b.json"))["reports"][0]
    assert report["model"]["parameters"] == 8_030_261_248
    assert [item for item in report["findings"] if item["severity"] != "info"] == []


def test_several_configurations_in_one_call_and_standard_input() -> None:
    text = (CONFIGS / "gpt2.json").read_text()
    result = run("check", "-", str(CONFIGS / "llama-3.1-8b.json"), "--format", "json", stdin=text)
    reports = json.loads(result.stdout)["reports"]
    assert [report["model"]["model_type"] for report in reports] == ["gpt2", "llama"]
    assert reports[0]["path"] == "<stdin>"


@pytest.mark.parametrize(("fail_on", "code"), [("warning", 1), ("error", 0), ("never", 0), ("info", 1)])
def test_the_exit_code_follows_fail_on(fail_on: str, code: int) -> None:
    assert run("check", str(CONFIGS / "gpt2.json"), "--fail-on", fail_on).exit_code == code


def test_select_and_ignore_choose_rules_by_code_or_prefix() -> None:
    gpt2 = str(CONFIGS / "gpt2.json")
    selected = check_json(gpt2, "--select", "SZ101")["reports"][0]
    assert {item["code"] for item in selected["findings"]} == {"SZ101"}
    ignored = check_json(gpt2, "--ignore", "SZ101,SZ109")["reports"][0]
    assert not {"SZ101", "SZ109"} & {item["code"] for item in ignored["findings"]}
    assert {"SZ101", "SZ109"} <= set(ignored["suppressed"])


def test_output_goes_to_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    result = run("check", str(CONFIGS / "gpt2.json"), "--format", "json", "--output", str(target))
    assert (result.exit_code, result.stdout) == (1, "")
    jsonschema.validate(json.loads(target.read_text()), load_schema("check"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    refused = run("check", str(CONFIGS / "gpt2.json"), "--output", str(tmp_path / "no" / "out.txt"))
    assert refused.exit_code == 2
    assert "no/out.txt" in refused.stderr


def test_text_names_key_value_price_and_suggestion() -> None:
    lines = run("check", str(CONFIGS / "gpt2.json")).stdout.splitlines()
    assert "124.4 M parameters" in lines[1]
    finding = next(line for line in lines if "SZ101" in line)
    assert finding.startswith("warning SZ101 vocab_size = 50257")
    assert any("-> vocab_size 50304: saves" in line for line in lines)
    assert "1 warning; step" in lines[0]
    assert "MFU" in lines[0]
    assert "predicted; stack" in lines[0]


def test_ops_lists_every_operator_in_text_and_json() -> None:
    config = str(CONFIGS / "llama-3.1-8b.json")
    document = json.loads(run("ops", config, "--format", "json").stdout)
    jsonschema.validate(document, load_schema("ops"))
    names = {row["name"] for row in document["operators"]}
    assert {"lm_head", "optimizer", "layers.*.mlp.down_proj", "layers.*.attention.core"} <= names
    assert sum(document["step_parts"].values()) == pytest.approx(document["step_seconds"])
    assert document["step_seconds_low"] < document["step_seconds"] < document["step_seconds_high"]
    assert document["stack"] == "transformers-eager"
    text = run("ops", config).stdout
    assert all(name in text for name in names)


def test_ops_explain_adds_up_to_the_operators_time() -> None:
    text = run("ops", str(CONFIGS / "llama-3.1-8b.json"), "--explain", "down_proj").stdout
    assert "forward" in text
    assert "tile" in text
    # Rounding is no part of a time: parts of 1e-14 us are told as nothing.
    assert "e-1" not in run("ops", str(CONFIGS / "gpt2.json"), "--explain", "lm_head").stdout
    missing = run("ops", str(CONFIGS / "llama-3.1-8b.json"), "--explain", "nonesuch")
    assert missing.exit_code == 2
    assert "nonesuch" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "now"),
    [
        (("search", "--h", "1024", "--infer"), "--infer is now --phase infer"),
        (("search", "--h", "1024", "--train"), "--train is now --phase train"),
        (("search", "--h", "1024", "--tokens", "4096"), "--tokens is now -b and -s"),
        (("search", "--config", str(CONFIGS / "gpt2.json")), "--config is now the CONFIG argument"),
        (("search", "--h", "1024", "--misaligned"), "--misaligned is now --limit step=1"),
        (("check", str(CONFIGS / "gpt2.json"), "--exit-zero"), "--exit-zero is now --fail-on never"),
        (("search", "--h", "1024", "--aspect", "60:100"), "--aspect is now --limit aspect=VALUE"),
        (("check", "a.json", "--expert-load", "2"), "--expert-load is --workload expert-load=VALUE of check, diff"),
        (("diff", "a.json", "b.json", "--max-memory", "90%"), "--max-memory is now --budget max-memory=BYTES"),
        (("mfu", "a.json", "--log", "log.txt"), "--log is now --step-time FILE"),
        (("diff", "a.json", "b.json", "--extend-ignore", "SZ101"), "--extend-ignore is now --ignore"),
    ],
)
def test_a_spelling_that_went_says_the_new_one(arguments: tuple[str, ...], now: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert now in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def options_of(command: click.Command, path: str = "") -> Iterator[tuple[str, str]]:
    """(command, option) of every command there is."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context := click.Context(command)):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options_of(inner, f"{path} {name}".strip())
    yield from ((path, one.opts[-1]) for one in command.params if isinstance(one, click.Option))


BRIEF = json.loads(Path(options.__file__).with_name("options.json").read_text("utf-8"))["brief"]


@pytest.mark.parametrize("command", sorted(BRIEF))
def test_help_shows_the_ten_options_that_matter_and_help_all_the_rest(command: str) -> None:
    of = Counter(command for command, _ in options_of(main))
    brief, whole = (run(command, word).output.partition("\nOptions:\n")[2] for word in ("--help", "--help-all"))
    shown, listed = ([line for line in text.splitlines() if line.startswith("  -")] for text in (brief, whole))
    assert len(shown) == len(set(BRIEF[command])) + 2 <= 12  # and --help, --help-all
    assert len(listed) == of[command] + 2
    assert all(any(option in line for line in shown) for option in BRIEF[command])
    assert "\nOutput:\n" in whole
    assert ("\nWorkload:\n" in whole) is (command != "deploy")


def test_every_field_of_a_workload_is_an_option_and_a_typed_keyword() -> None:
    hints = get_type_hints(Workload)
    typed = {name: hints[name] for name in WORKLOAD_FIELDS} | {word: hints[name] for name, word in WORDS.items()}
    assert get_type_hints(WorkloadKeywords) == typed
    offered = {option for command, option in options_of(main) if command == "check"}
    said = {option_of(name).partition(" ")[0] for name in WORKLOAD_FIELDS}
    assert said - offered == {"--compiled", "--vocab-rows"}  # a stack's, not a person's


def test_a_rarer_field_is_said_by_key_and_value() -> None:
    further = [option_of(name).partition(" ")[2] for name, one in OPTIONS.items() if one.further]
    listed = "".join(run("check", "--help-all").output.split())  # lines break after hyphens
    assert all(name in listed for name in further)
    gpt2 = str(CONFIGS / "gpt2.json")
    said = run("ops", gpt2, "--workload", "fused-qkv=false", "--workload", "base=int8", "--finetune", "qlora")
    assert said.exit_code == 0
    for wrong, expected in (
        ("dispatcher=pigeon", "flex"),
        ("ep-overlap=perhaps", "true or false"),
        ("x=1", "expert_load"),
    ):
        result = run("ops", gpt2, "--workload", wrong)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert expected in result.stderr


@pytest.mark.parametrize("command", ["check", "memory"])
def test_a_hybrid_says_over_how_many_ranks_it_shards(command: str) -> None:
    asked = (command, str(CONFIGS / "gpt2.json"), "--gpus", "64", "--zero", "3", "--replicas", "8")
    assert "dp 64, " in (said := run(*asked).stdout)
    assert "ZeRO 3, HSDP over 8" in said
    assert "HSDP" not in run(*asked[:-2]).stdout


BAD: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("a device that does not exist", ("--device", "h1000"), ("h1000", "h100")),
    ("a sequence longer than the learned positions", ("-s", "4096"), ("--sequence = 4096", "1024")),
    ("a power that it never takes", ("--power-limit", "50"), ("--power-limit = 50", "175 to 700 W")),
    ("cards without a rate", ("--nics", "4"), ("--nics = '4'", "--nic-gbps together")),
    ("no cards", ("--nics", "0", "--nic-gbps", "400"), ("nics = '0x400Gb'",)),
    ("cards of a negative rate", ("--nics", "8", "--nic-gbps", "-5"), ("'--nic-gbps': -5 is not in the range",)),
    ("cards of no rate", ("--nics", "8", "--nic-gbps", "0"), ("'--nic-gbps': 0 is not in the range",)),
    ("cards that are no number", ("--nics", "many", "--nic-gbps", "400"), ("nics = 'manyx400Gb'", "8x400Gb")),
    ("a word that no network has", ("--nics", "8:spine4", "--nic-gbps", "400"), ("nics = 'spine4'", "leaf32, 2to1")),
    ("an empty switch", ("--nics", "8:leaf0", "--nic-gbps", "400"), ("nics = 'leaf0'",)),
    ("oversubscribed by nothing", ("--nics", "8:leaf4:2to0", "--nic-gbps", "400"), ("nics = '2to0'",)),
    ("oversubscribed, but where", ("--nics", "8:2to1", "--nic-gbps", "400"), ("nics = '8x400Gb:2to1'", "leaf32")),
    ("a microbatch of zero", ("-b", "0"), ("--microbatch = 0",)),
    ("experts where there are none", ("--ep", "2"), ("--ep = 2",)),
    ("an unknown rule", ("--select", "SZ999"), ("SZ999",)),
    ("an unknown format", ("--config-format", "tex"), ("tex",)),
]


@pytest.mark.parametrize(("arguments", "expected"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_options_are_one_line_and_exit_2(arguments: tuple[str, ...], expected: tuple[str, ...]) -> None:
    result = run("check", str(CONFIGS / "gpt2.json"), *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert all(part in result.stderr for part in expected)


BAD_FILES: list[tuple[str, bytes | None, tuple[str, ...]]] = [
    ("missing", None, ("config.json",)),
    ("empty", b"", ("config.json", "empty")),
    ("not JSON", b"{", ("config.json",)),
    ("a list", b"[1]", ("config.json", "object")),
    ("not UTF-8", b'{"model_type": "\xff"}', ("config.json", "UTF-8")),
    ("zero heads", b'{"model_type": "llama", "num_attention_heads": 0}', ("num_attention_heads = 0",)),
    ("negative", b'{"model_type": "llama", "hidden_size": -4}', ("hidden_size = -4",)),
    ("NaN", b'{"model_type": "llama", "hidden_size": NaN}', ("hidden_size",)),
    ("huge", b'{"model_type": "llama", "hidden_size": 1e30}', ("hidden_size = 1e+30",)),
    ("boolean", b'{"model_type": "llama", "hidden_size": true}', ("hidden_size = True",)),
    ("string", b'{"model_type": "llama", "hidden_size": "4096"}', ("hidden_size = '4096'",)),
    ("heads that do not share", b'{"model_type": "llama", "num_key_value_heads": 5}', ("num_key_value_heads = 5",)),
    ("unknown type", b'{"model_type": "nonesuch"}', ("model_type = 'nonesuch'",)),
    ("nothing known", b'{"a": 1}', ("config.json",)),
    ("brackets", b"[" * 2_000_000, ("config.json",)),
]


@pytest.mark.parametrize(("content", "expected"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_bad_files_are_one_line_and_exit_2(tmp_path: Path, content: bytes | None, expected: tuple[str, ...]) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    result = run("check", str(path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert all(part in result.stderr for part in expected), result.stderr


def test_a_directory_is_not_a_configuration(tmp_path: Path) -> None:
    result = run("check", str(tmp_path))
    assert result.exit_code == 2
    assert tmp_path.name in result.stderr


def test_names_from_a_configuration_cannot_forge_output(tmp_path: Path) -> None:
    config = write(tmp_path / "config.json", model_type="a\x1b[31m\nsizer: all fine")
    result = run("check", config)
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
