"""`sizer check` and `sizer ops` on traced models: configurations without a reader, modules of one's own, bad input."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import sizer
from shapes.errors import InputError
from shapes.operators.types import GroupedGemm
from sizer.cli import main
from sizer.subject import read_subject

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402 # after the skip

pytestmark = pytest.mark.slow

#: A type that no reader knows, with a vocabulary and a hidden size that tensor cores dislike.
BITNET = {
    "model_type": "bitnet",
    "hidden_size": 540,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "vocab_size": 50257,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
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


def test_a_type_without_a_reader_is_traced_and_the_report_says_so(tmp_path: Path) -> None:
    result = run("check", write(tmp_path, BITNET), "-b", "2", "-s", "256", "--format", "json", "--fail-on", "never")
    document = json.loads(result.stdout)
    (report,) = document.get("reports", [document])
    assert report["model"]["path"] == "trace"
    assert any("traced on torch's meta device" in note for note in report["model"]["notes"])


def test_a_traced_configuration_s_suggestions_are_priced_by_tracing_the_changed_one() -> None:
    report = sizer.check(BITNET, b=2, s=256, select=["SZ101"])
    (finding,) = report.findings
    assert (finding.field, finding.value) == ("vocab_size", 50257)
    padded = next(suggestion for suggestion in finding.suggestions if suggestion.change == {"vocab_size": 50304})
    # 47 more rows of the embedding, to which the head is tied; the head's three products grow by as much.
    assert padded.parameters_change == 47 * 540
    assert padded.flops_change == 3 * 2 * (2 * 256) * 47 * 540
    assert padded.step_seconds_change != 0


def test_heads_changed_on_a_trace_keep_plain_multi_head_attention_plain() -> None:
    subject = read_subject(BITNET, b=1, s=64)
    assert subject.retrace is not None
    assert subject.dimensions["head_dim"] == 540 // 6
    changed = subject.retrace({"heads": 10})
    assert (changed.dimensions["kv_heads"], changed.dimensions["head_dim"]) == (10, 54)
    assert changed.parameters == subject.parameters


def test_a_workload_changed_on_a_trace_runs_the_new_workload() -> None:
    subject = read_subject(BITNET, b=1, s=64)
    assert subject.retrace is not None
    doubled = subject.retrace({"b": 2})
    assert sum(op.flops * op.count for op in doubled.operators if op.kind == "gemm") == 2 * sum(
        op.flops * op.count for op in subject.operators if op.kind == "gemm"
    )


def test_the_pytorch_names_of_gpt2_are_its_file_s_keys() -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 2, "vocab_size": 50257}
    subject = read_subject(gpt2, trace=True, s=64)
    assert [subject.name_of(key) for key in ("hidden", "heads", "layers")] == ["n_embd", "n_head", "n_layer"]
    assert subject.retrace is not None
    assert subject.retrace({"hidden": 192}).dimensions["hidden"] == 192


def test_a_dimension_the_configuration_has_no_key_for_is_not_invented() -> None:
    subject = read_subject(BITNET, s=64)
    assert subject.retrace is not None
    with pytest.raises(InputError, match="top_k = 4: bitnet has no key for it"):
        subject.retrace({"top_k": 4})


@pytest.mark.parametrize("trace", [False, True])
def test_the_routing_assumed_is_said_on_both_paths(trace: bool, tmp_path: Path) -> None:
    path = write(tmp_path, MIXTRAL)
    flags = ["--trace"] if trace else []
    for command in ("ops", "check"):
        even = run(command, path, "-s", "256", *flags)
        skewed = run(command, path, "-s", "256", "--workload", "expert-load=1.7", *flags)
        assert "routing: even, every expert is routed as many tokens" in even.stdout
        assert "routing: uneven, the fullest expert is routed 1.7 x the mean of the tokens" in skewed.stdout


@pytest.mark.parametrize("trace", [False, True])
def test_a_skewed_routing_takes_longer_and_no_more_arithmetic(trace: bool) -> None:
    if trace and transformers.__version__.startswith("4."):
        pytest.skip("its experts are a loop")
    even, skewed = (sizer.ops(MIXTRAL, b=8, s=2048, expert_load=load, trace=trace) for load in (1.0, 4.0))
    assert skewed.step.flops == even.step.flops
    assert {op.load for op in skewed.operators if isinstance(op, GroupedGemm)} == {4.0}
    assert skewed.step.seconds > even.step.seconds


@pytest.mark.parametrize("load", ["0.5", "nan", "inf"])
def test_an_expert_load_that_is_no_ratio_is_refused(load: str, tmp_path: Path) -> None:
    result = run("ops", write(tmp_path, MIXTRAL), "--workload", f"expert-load={load}")
    assert result.exit_code == 2
    assert "--workload expert-load = " in result.stderr
    assert "expected a number from 1 to 1048576 (max/mean)" in result.stderr


@pytest.mark.parametrize("trace", [False, True])
def test_fused_projections_are_one_product_on_both_paths(trace: bool, tmp_path: Path) -> None:
    path = write(
        tmp_path, {key: value for key, value in MIXTRAL.items() if "expert" not in key} | {"model_type": "llama"}
    )
    flags = ["--trace"] if trace else []
    table = json.loads(
        run(
            "ops",
            path,
            "-s",
            "256",
            "--workload",
            "fused-qkv",
            "--workload",
            "fused-gate-up",
            "--format",
            "json",
            *flags,
        ).stdout
    )
    forward = {row["name"].split(".")[-1]: row["n"] for row in table["operators"] if row["phase"] == "forward"}
    assert (forward["qkv_proj"], forward["gate_up_proj"]) == (3 * 512, 2 * 1024)
    assert not {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"} & forward.keys()


@pytest.mark.parametrize(
    "dims", [None, {"vocab": 50257}, {"vocab": 50257, "hidden": 96}, {"vocab": 50257, "hidden": 96, "d_ff": 256}]
)
def test_a_module_of_one_s_own_is_checked_with_the_names_one_gives(dims: dict[str, int] | None) -> None:
    report = sizer.check(Mlp().to(torch.bfloat16), example_inputs=torch.zeros(2, 64, dtype=torch.long), dims=dims)
    assert (report.workload.b, report.workload.s, report.workload.dtype) == (2, 64, "bf16")
    assert ("SZ101" in {finding.code for finding in report.findings}) == (dims is not None)
    assert ("SZ101" in report.not_applicable) == (dims is None)
    assert any("changes are not priced" in note for note in report.model.notes)


def test_a_module_s_gate_and_up_can_be_fused_too() -> None:
    subject = read_subject(Mlp(), example_inputs=torch.zeros(1, 8, dtype=torch.long), fused_gate_up=True)
    assert {op.name: op.n for op in subject.operators if op.kind == "gemm" and op.phase == "forward"} == {
        "gate_up_proj": 512,
        "down_proj": 96,
        "head": 50257,
    }


PLAN = {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}


def test_a_module_is_split_by_the_plan_one_gives_and_left_as_it_was() -> None:
    module = Mlp()
    subject = read_subject(module, example_inputs=torch.zeros(2, 8, dtype=torch.long), t=4, plan=PLAN)
    forward = {op.name: (op.n, op.k) for op in subject.operators if op.kind == "gemm" and op.phase == "forward"}
    # 256 / 4 = 64 columns of the first two, and as many rows of the third; the head is not in the plan.
    assert forward == {"gate_proj": (64, 96), "up_proj": (64, 96), "down_proj": (96, 64), "head": (50257, 96)}
    assert module.gate_proj.weight.shape == (256, 96)
    assert subject.parameters == 3 * 256 * 96 + 50257 * 96


def test_a_plan_is_followed_by_a_traced_configuration_and_its_suggestions() -> None:
    plan = {"model.layers.*.mlp.gate_proj": "colwise", "*.up_proj": "colwise", "*.down_proj": "rowwise"}
    # bitnet norms its MLP's own channels, which a split would have to follow.
    subject = read_subject(BITNET | {"model_type": "internlm3"}, s=64, t=2, plan=plan)
    assert subject.retrace is not None
    for one, width in ((subject, 1536), (subject.retrace({"d_ff": 2048}), 2048)):
        ups = {op.n for op in one.operators if op.name.endswith("up_proj") and op.phase == "forward" and op.flops}
        assert ups == {width // 2}


def test_a_plan_is_given_on_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, MIXTRAL)
    plan = (
        "--tp",
        "2",
        "--tp-plan",
        "*.q_proj=colwise",
        "--tp-plan",
        "*.k_proj=colwise",
        "--tp-plan",
        "*.v_proj=colwise",
    )
    split = ("--trace", *plan, "--tp-plan", "*.o_proj=rowwise")
    table = json.loads(run("ops", path, "-s", "64", "--format", "json", *split).stdout)
    forward = {
        row["name"].split(".")[-1]: (row["n"], row["k"]) for row in table["operators"] if row["phase"] == "forward"
    }
    assert (forward["q_proj"], forward["o_proj"], forward["lm_head"]) == ((256, 512), (512, 256), (1024, 512))
    for command, arguments in (("check", plan), ("ops", ("--trace", "--tp", "2", "--tp-plan", "q_proj"))):
        result = run(command, path, "-s", "64", *arguments)
        assert result.exit_code == 2
        assert "plan" in result.stderr


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            "module",
            {"t": 2},
            r"Mlp: its class has no tensor-parallel plan: pass plan=\{path glob: colwise \| rowwise\}",
        ),
        ("module", {"t": 2, "plan": {"gate": "colwise"}}, "Mlp: gate = 'colwise': matches no module of the model"),
        ("module", {"t": 2, "plan": {"head": "up"}}, "Mlp: head = 'up': expected colwise or rowwise"),
        ("config", {"t": 2, "plan": PLAN}, "<dict>: plan: expected a traced model: pass trace=True"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_one_line(source: str, options: dict[str, Any], message: str) -> None:
    ids = torch.zeros(2, 8, dtype=torch.long)
    with pytest.raises(InputError, match=f"^{message}"):
        read_subject(Mlp() if source == "module" else MIXTRAL, example_inputs=ids, s=8, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Mlp: expected example_inputs: the arguments of one forward call"),
        ({"b": 4}, "Mlp: b = 4: expected 2, as in example_inputs"),
        ({"s": 4096}, "Mlp: s = 4096: expected 64, as in example_inputs"),
        ({"dtype": "fp8"}, "Mlp: dtype = 'fp8': expected fp32, which the module is in, or bf16 or fp16"),
        ({"dims": {"vocabulary": 3}}, r"Mlp: dims\['vocabulary'\] = 3: expected one of vocab, hidden"),
        ({"dims": {"vocab": 0}}, r"Mlp: dims\['vocab'\] = 0: expected an integer between 1"),
        ({"width": 3}, "width = 3: expected one of "),
    ],
)
def test_what_a_module_cannot_be_checked_with_is_one_line(options: dict[str, Any], message: str) -> None:
    inputs = None if not options else torch.zeros(2, 64, dtype=torch.long)
    with pytest.raises(InputError, match=f"^{message}") as caught:
        sizer.check(Mlp(), example_inputs=inputs, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "never_heard_of"}, "model_type = 'never_heard_of': expected a model_type that transformers"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "x.py--X"}}, "code that a configuration names is never run"),
        ({"model_type": "bitnet", "hidden_size": "wide"}, "transformers "),
        # Its forward refuses images without channels: that and the module it came from.
        ({"model_type": "resnet", "num_channels": 0}, "resnet.embedder: cannot be traced"),
    ],
)
def test_a_configuration_that_cannot_be_traced_exits_2_with_one_line(
    config: dict[str, Any], message: str, trace: bool, tmp_path: Path
) -> None:
    path = write(tmp_path, config)
    for command in ("check", "ops"):
        result = run(command, path, "-s", "64", *(["--trace"] if trace else []))
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
    path = write(tmp_path, BITNET)
    unread, asked = run("check", path), run("ops", path, "--trace")
    assert (unread.exit_code, asked.exit_code) == (2, 2)
    for result in (unread, asked):
        (line,) = result.stderr.strip().splitlines()
        assert f"tracing needs {missing}, which is not installed: pip install 'sizer[trace]'" in line
        assert line.startswith(f"sizer: {path}: ")
    assert "model_type = 'bitnet'" in unread.stderr


def test_options_that_a_trace_cannot_follow_are_named() -> None:
    subject = read_subject(BITNET, s=64, p=2, checkpointing="full")
    assert "the trace is of one whole pass: p, checkpointing change none of its operators" in subject.notes
