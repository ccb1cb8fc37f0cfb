"""`sizer check` and `sizer ops` on traced models: configurations without a reader, modules of one's own, bad input."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from schemas import load_schema

import sizer
from shapes.errors import InputError
from shapes.program import install
from sizer.cli import main
from sizer.subject import read_subject

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402 # after the skip

pytestmark = pytest.mark.slow

#: A type that no reader knows, with a mixture of attention heads, and sizes that tensor cores dislike.
DIFF = {
    "model_type": "jetmoe",
    "hidden_size": 540,
    "intermediate_size": 1530,
    "num_hidden_layers": 5,
    "vocab_size": 50257,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "pad_token_id": 0,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def write(folder: Path, config: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


class Mlp(nn.Module):
    """Embedding, a gated MLP and a head tied to the embedding: 50257 x 96."""

    def __init__(self, vocab: int = 50257) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, 96)
        self.gate_proj, self.up_proj = nn.Linear(96, 256, bias=False), nn.Linear(96, 256, bias=False)
        self.down_proj = nn.Linear(256, 96, bias=False)
        self.head = nn.Linear(96, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids)
        return self.head(x + self.down_proj(torch.relu(self.gate_proj(x)) * self.up_proj(x)))


def test_what_is_not_understood_has_no_price_and_is_named(tmp_path: Path) -> None:
    result = run("check", write(tmp_path, DIFF), "-b", "2", "-s", "256", "--format", "json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    jsonschema.validate(document, load_schema("check"))
    (report,) = document["reports"]
    assert (report["operator_path"], report["step"], report["stack"]) == ("trace", None, "")
    (unproven,) = report["model"]["unproven"]
    assert unproven["module"] == "model.layers.*"
    assert 0 < unproven["share"] < 1
    finding = next(one for one in report["findings"] if one["code"] == "SZ132")
    assert (finding["severity"], finding["value"], finding["step_seconds"]) == ("warning", "model.layers.*", None)
    vocabulary = next(one for one in report["findings"] if one["code"] == "SZ101")
    assert {"vocab_size": 50304} in [one["change"] for one in vocabulary["suggestions"]]
    assert {one["step_seconds_change"] for one in vocabulary["suggestions"]} == {None}
    text = run("check", write(tmp_path, DIFF), "-b", "2", "-s", "256").stdout
    assert "model.layers.*" in text
    assert "step not known, MFU not known" in text
    assert "what it saves is not known" in text


def test_products_outside_of_what_is_not_understood_keep_their_time(tmp_path: Path) -> None:
    path = write(tmp_path, DIFF)
    table = json.loads(run("ops", path, "-s", "64", "-b", "1", "--format", "json").stdout)
    jsonschema.validate(table, load_schema("ops"))
    assert (table["operator_path"], table["step_seconds"]) == ("trace", None)
    known = {row["name"] for row in table["operators"] if row["seconds"] is not None}
    assert known == {"lm_head"}
    assert {row["n"] for row in table["operators"] if row["name"].endswith("mlp.input_linear")} == {3060, 540}
    assert "step not known" in run("ops", path, "-s", "64").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("memory",),
        ("plan", "--gpus", "8", "--global-batch", "64"),
        ("deploy",),
        ("search",),
        ("mfu", "--step-time", "1", "--gpus", "8", "--global-batch", "64"),
        ("check", "--phase", "decode"),
    ],
)
def test_commands_that_need_the_whole_model_refuse_in_a_line_that_names_the_module(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    result = run(command[0], write(tmp_path, DIFF), *command[1:])
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert "not understood: model.layers.* (" in line
    assert "sizer check" in line


def test_parameters_alone_that_do_not_fit_a_layout_are_an_error() -> None:
    large = DIFF | {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 40}
    report = sizer.check(large, device="l4", s=64, dp=1)
    assert ("SZ121", "error") in {(finding.code, finding.severity) for finding in report.findings}


@pytest.mark.parametrize("load", ["0.5", "nan", "inf"])
def test_an_expert_load_that_is_no_ratio_is_refused(load: str, tmp_path: Path) -> None:
    result = run("ops", write(tmp_path, MIXTRAL), "--workload", f"expert-load={load}")
    assert result.exit_code == 2
    assert "--workload expert-load = " in result.stderr
    assert "expected a number from 1 to 1048576 (max/mean)" in result.stderr


def test_a_trace_next_to_a_formula_lists_products_and_prices_no_step() -> None:
    formula, traced = (sizer.ops(MIXTRAL, b=2, s=64, trace=trace) for trace in (False, True))
    assert formula.step is not None
    assert traced.step is None
    assert traced.model.unproven == ()
    assert any("routing: even" in note for note in traced.model.notes)
    kinds = ("gemm", "grouped_gemm", "attention")
    mine, theirs = (
        sum(op.flops * op.count for op in table.operators if op.kind in kinds) for table in (formula, traced)
    )
    assert mine == theirs
    seconds = [
        sum(
            cost.seconds * op.count
            for op, cost in zip(table.operators, table.costs, strict=True)
            if cost is not None and op.kind in kinds
        )
        for table in (formula, traced)
    ]
    assert seconds[1] == pytest.approx(seconds[0], rel=0.03)


@pytest.mark.parametrize(
    "dims", [None, {"vocab": 50257}, {"vocab": 50257, "hidden": 96}, {"vocab": 50257, "hidden": 96, "d_ff": 256}]
)
def test_a_module_of_one_s_own_is_checked_with_the_names_one_gives(dims: dict[str, int] | None) -> None:
    report = sizer.check(Mlp().to(torch.bfloat16), example_inputs=torch.zeros(2, 64, dtype=torch.long), dims=dims)
    assert (report.workload.b, report.workload.s, report.workload.dtype) == (2, 64, "bf16")
    assert ("SZ101" in {finding.code for finding in report.findings}) == (dims is not None)
    assert ("SZ101" in report.not_applicable) == (dims is None)
    assert report.step is None
    assert "SZ132" in {finding.code for finding in report.findings}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Mlp: expected example_inputs: the arguments of one forward call"),
        ({"b": 4}, "Mlp: b = 4: expected 2, as in example_inputs"),
        ({"s": 4096}, "Mlp: s = 4096: expected 64, as in example_inputs"),
        ({"dtype": "fp8"}, "Mlp: dtype = 'fp8': expected fp32, which the module is in, or bf16 or fp16"),
        ({"dims": {"vocabulary": 3}}, r"Mlp: dims\['vocabulary'\] = 3: expected one of vocab, hidden"),
        ({"dims": {"vocab": 0}}, r"Mlp: dims\['vocab'\] = 0: expected an integer between 1"),
        ({"width": 3}, r"width = 3: no argument that help\(sizer\.check\) lists"),
    ],
)
def test_what_a_module_cannot_be_checked_with_is_one_line(options: dict[str, Any], message: str) -> None:
    inputs = None if not options else torch.zeros(2, 64, dtype=torch.long)
    with pytest.raises(InputError, match=f"^{message}") as caught:
        sizer.check(Mlp(), example_inputs=inputs, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "never_heard_of"}, "model_type = 'never_heard_of': expected a model_type that transformers"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "x.py--X"}}, "code that a configuration names is never run"),
        ({"model_type": "jetmoe", "hidden_size": "wide"}, "transformers "),
        # Its forward refuses images without channels: that and the module it came from.
        ({"model_type": "resnet", "num_channels": 0}, "resnet.embedder: cannot be traced"),
        # What it reads no configuration says.
        (
            {"model_type": "informer", "prediction_length": 8},
            "'past_observed_mask': pass the module and its arguments, sizer.check(module,",
        ),
    ],
)
def test_a_configuration_that_cannot_be_traced_exits_2_with_one_line(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, config)
    for command in (("check",), ("ops",), ("ops", "--trace")):
        result = run(command[0], path, "-s", "64", *command[1:])
        assert result.exit_code == 2
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith(f"sizer: {path}: ")
        assert message in line


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra_a_line_says_how_to_install_it(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else find_spec(name, *rest)
    )
    path = write(tmp_path, DIFF)
    unread, asked = run("check", path), run("ops", path, "--trace")
    assert (unread.exit_code, asked.exit_code) == (2, 2)
    for result in (unread, asked):
        (line,) = result.stderr.strip().splitlines()
        assert f"tracing needs {missing}, which is not installed: {install('trace')}" in line
        assert line.startswith(f"sizer: {path}: ")
    assert "model_type = 'jetmoe'" in unread.stderr


def test_options_that_a_trace_cannot_follow_are_named() -> None:
    subject = read_subject(DIFF, s=64, p=2, checkpointing="full")
    assert "the products are of one whole pass: p, checkpointing change none of them" in subject.notes
