"""What people pass: directories, globs, several files, one of them bad, changed keys, trainers' files, objects."""

from __future__ import annotations

import json
import subprocess
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from click.testing import CliRunner
from schemas import load_schema

import sizer
from shapes.errors import InputError
from shapes.model import OPTIMIZERS, PRECISIONS
from shapes.workload import Optimizer, PrecisionName
from sizer.cli import main
from sizer.cli.diff import of_git
from sizer.readers import Source, read_config
from sizer.readers.expressions import OPTIMIZER_NAMES
from sizer.readers.loading import expand
from sizer.subject import read_subject

CONFIGS = Path(__file__).parent / "data" / "configs"
GPT2 = CONFIGS / "gpt2.json"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["check", *arguments])


def saved(folder: Path, name: str, content: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / name)


def test_a_directory_stands_for_its_configuration_or_for_those_inside_it(tmp_path: Path) -> None:
    saved(tmp_path / "a", "config.json", LLAMA)
    saved(
        tmp_path / "deep" / "b",
        "params.json",
        {"dim": 512, "n_layers": 2, "n_heads": 8, "vocab_size": 32000, "norm_eps": 1e-5},
    )
    saved(tmp_path / ".hidden", "config.json", LLAMA)
    assert read_config(tmp_path / "a").model.hidden == 512
    answer = run(str(tmp_path))
    assert answer.output.count("MFU") == 2
    assert "params.json" in answer.output
    assert ".hidden" not in answer.output


def test_a_hidden_folder_s_files_count_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sizer.readers.loading.MAX_FOUND", 2)
    for number in range(9):
        saved(tmp_path / ".git" / str(number), "object", "")
    saved(tmp_path / "a", "config.json", LLAMA)
    assert run(str(tmp_path)).output.count("MFU") == 1
    saved(tmp_path / "b" / "c", "config.json", LLAMA)
    assert "expected at most 2 folders" in run(str(tmp_path)).stderr


def test_a_glob_stands_for_its_files(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        saved(tmp_path, name, LLAMA)
    assert run(str(tmp_path / "*.json")).output.count("MFU") == 2
    answer = run(str(tmp_path / "*.yaml"))
    assert answer.exit_code == 2
    assert "matches no file" in answer.stderr


def test_one_unreadable_file_among_several_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    bad = saved(tmp_path, "app.json", {"port": 80})
    good = saved(tmp_path, "config.json", LLAMA)
    answer = run(bad, good, str(tmp_path / "none.json"), "--format", "json", "--fail-on", "never")
    assert answer.exit_code == 2
    document = json.loads(answer.stdout)
    jsonschema.validate(document, load_schema("check"))
    assert [report["path"] for report in document["reports"]] == [good]
    assert [line.split(":")[1].strip() for line in answer.stderr.splitlines()] == [bad, str(tmp_path / "none.json")]


def test_a_key_can_be_set_on_any_format(tmp_path: Path) -> None:
    neox = saved(tmp_path, "n.yml", "{num-layers: 2, hidden-size: 64, num-attention-heads: 4, pos-emb: none}")
    script = saved(
        tmp_path,
        "t.sh",
        "python p.py --num-layers $L --hidden-size 64 --num-attention-heads 4 "
        "--max-position-embeddings 8 --vocab-size 128",
    )
    assert read_config(neox, settings={"num_layers": 3, "vocab_size": 128}).model.layers == 3
    assert read_config(neox, settings={"num-layers": 4}).model.layers == 4
    assert read_config(script, settings={"L": 5}).model.layers == 5
    assert read_config(script, settings={"num_layers": 6}).model.layers == 6
    assert read_config(LLAMA, settings={"num_hidden_layers": 7}).model.layers == 7
    nested = {"model_type": "llava", "text_config": LLAMA}
    assert read_config(nested, settings={"text_config.num_hidden_layers": 8}).model.layers == 8


@pytest.mark.parametrize(("key", "guess"), [("num_hidden_layer", "num_hidden_layers"), ("xyz", "vocab_size")])
def test_setting_an_unknown_key_is_refused_with_what_there_is(key: str, guess: str) -> None:
    with pytest.raises(InputError, match=guess) as caught:
        read_config(LLAMA, settings={key: 3})
    assert f"--set {key}" in str(caught.value)


def test_set_and_training_on_the_command_line(tmp_path: Path) -> None:
    trainer = saved(
        tmp_path,
        "args.json",
        {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "bf16": True,
            "optim": "adafactor",
            "learning_rate": 1e-4,
        },
    )
    processes = saved(
        tmp_path,
        "accelerate.yaml",
        "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
    )
    answer = run(
        str(GPT2),
        "--set",
        "vocab_size=50304",
        "--training",
        processes,
        "--training",
        trainer,
        "--format",
        "json",
        "--fail-on",
        "never",
    )
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)["reports"][0]
    assert report["model"]["dimensions"]["vocab"] == 50304
    expected = {"b": 2, "gpus": 4, "d": 4, "zero": 2, "global_batch": 2 * 8 * 4, "optimizer": "adafactor"}
    assert {key: report["workload"][key] for key in expected} == expected
    assert report["model"]["unread"] == []
    assert run(str(GPT2), "--set", "vocab_size").exit_code == 2
    assert "trainer's settings" in run(str(GPT2), "--training", str(GPT2)).stderr


def test_a_deepspeed_file_gives_the_workload_and_auto_leaves_it(tmp_path: Path) -> None:
    file = saved(
        tmp_path,
        "ds_config.json",
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": 8,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}},
        },
    )
    reading = read_config(Source(LLAMA, training=(file,)))
    assert reading.workload == {"b": 8, "zero": 3, "dtype": "bf16", "offload": 1, "accumulated": 2}
    assert {one.key for one in reading.unread} == {"optimizer.type"}
    assert any("16 x data parallelism" in note for note in reading.notes)


def test_the_library_takes_the_same_words(tmp_path: Path) -> None:
    file = saved(tmp_path, "ds.json", {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}})
    report = sizer.check(Source(LLAMA, {"vocab_size": 50304}, (file,)))
    assert report.model.dimensions["vocab"] == 50304
    assert (report.workload.b, report.workload.zero) == (8, 2)


def test_check_counts_memory_with_the_optimizer_precision_and_kernels_that_it_is_told() -> None:
    asked = ("--gpus", "1", "-b", "1", "-s", "2048", "--checkpointing", "full", "--select", "SZ121", "--format", "json")

    def gib(*more: str) -> float:
        answer = run(str(CONFIGS / "qwen2.5-7b.json"), *asked, *more)
        report = json.loads(answer.stdout)["reports"][0]
        # Within what such predictions have been off by it is no warning.
        assert (answer.exit_code == 1) == any(one["severity"] != "info" for one in report["findings"])
        return float(report["findings"][0]["value"]) if report["findings"] else 0.0

    usual, eight_bit, bf16 = gib(), gib("--optimizer", "adamw-8bit"), gib("--precision", "bf16")
    parameters = 7_615_616_512
    # two fp32 moments, or two of 8 bits with a constant per 256; the rest is the same
    assert usual - eight_bit == pytest.approx(parameters * (8 - 2 - 2 * 4 / 256) / 2**30, rel=0.01)
    assert bf16 == 0.0  # 2 + 2 + 4 bytes a parameter: it fits
    assert gib("--implementation", "megatron") != usual
    assert "expected one of adamw, adamw-bf16" in run(str(GPT2), "--optimizer", "adm").stderr
    assert sizer.check(GPT2, optimizer="lion", precision="mixed-16").workload.optimizer == "lion"


def test_names_of_optimizers_and_precisions_are_those_whose_states_are_known() -> None:
    assert set(get_args(Optimizer)) == OPTIMIZERS.keys()
    assert set(get_args(PrecisionName)) == PRECISIONS.keys()
    assert set(OPTIMIZER_NAMES.values()) <= OPTIMIZERS.keys()


@dataclass
class Settings:
    hidden_size: int = 512
    num_layers: int = 2
    num_attention_heads: int = 8
    vocab_size: int = 32000
    max_position_embeddings: int = 64


def test_a_dataclass_a_namespace_and_an_object_with_the_usual_names_are_read() -> None:
    assert read_config(Settings()).model.hidden == 512
    assert read_config(types.SimpleNamespace(**LLAMA)).model == read_config(LLAMA).model
    with pytest.raises(InputError, match="found int"):
        read_config(3)


@pytest.mark.slow
def test_a_transformers_model_is_read_by_its_configuration() -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    subject = read_subject(model)
    assert subject.path == "formula"
    assert subject.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_ranks_of_the_experts_lie_inside_data_parallelism() -> None:
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    assert read_subject(mixtral, e=8).workload.d == 8
    assert read_subject(mixtral, e=8, d=16).workload.d == 16


@pytest.mark.slow
def test_a_module_in_fp32_is_checked_as_autocast_runs_it() -> None:
    torch = pytest.importorskip("torch")

    class Mlp(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(1000, 50257, bias=False)

        def forward(self, x: Any) -> Any:
            return self.head(x)

    with torch.device("meta"):
        module, inputs = Mlp(), torch.zeros(2, 512, 1000)
    report = sizer.check(module, example_inputs=inputs, dims={"vocab": 50257}, dtype="bf16")
    assert report.workload.dtype == "bf16"
    assert any("autocast" in note for note in report.model.notes)
    assert "SZ101" in {finding.code for finding in report.findings}
    with pytest.raises(InputError, match="bf16 or fp16"):
        sizer.check(module, example_inputs=inputs, dtype="fp8")


def test_a_configuration_whose_layers_differ_in_a_dimension_is_traced() -> None:
    from shapes.trace.dimensions import named_dimensions

    class Heterogeneous(types.SimpleNamespace):
        @property
        def num_key_value_heads(self) -> int:
            raise RuntimeError("a per-layer attribute")

    sizes, keys = named_dimensions(Heterogeneous(hidden_size=64, num_attention_heads=4, vocab_size=128))
    assert sizes == {"vocab": 128, "hidden": 64, "heads": 4, "head_dim": 16}
    assert "kv_heads" not in keys


def test_a_directory_of_files_of_other_names_stands_for_those_that_state_a_model(tmp_path: Path) -> None:
    saved(tmp_path, "small.json", LLAMA)
    saved(
        tmp_path, "neox.yml", "{num-layers: 2, hidden-size: 64, num-attention-heads: 4, vocab_size: 128, pos-emb: none}"
    )
    saved(tmp_path, "package.json", {"name": "web", "version": "1.0"})
    answer = run(str(tmp_path), "--fail-on", "never")
    assert answer.exit_code == 0, answer.output
    assert ("small.json" in answer.output, "neox.yml" in answer.output) == (True, True)
    assert "package.json" not in answer.output + answer.stderr
    (tmp_path / "none").mkdir()
    assert "or files that state a model" in run(str(tmp_path / "none")).stderr


def test_a_folder_holds_the_files_that_a_diff_of_its_repository_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "empty")
    script = "python p.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 8 --vocab-size 128"
    models = {
        saved(tmp_path / "hf" / "a", "config.json", LLAMA),
        saved(tmp_path / "hf" / "a", "small.json", LLAMA),
        saved(tmp_path / "runs" / "deep", "train.sh", f"{script} --max-position-embeddings 8"),
        saved(tmp_path / "runs", "gpt.py", "n_layer = 2\nn_head = 4\nn_embd = 64\nvocab_size = 128\nblock_size = 8\n"),
    }
    saved(tmp_path / "hf" / "a", "generation_config.json", {"_from_model_config": True})
    for folder in ("web", ".hidden", "node_modules/x", "venv/lib/python3.11/site-packages/x"):
        saved(tmp_path / folder, "config.json", LLAMA if folder != "web" else {"port": 80})
    seeming = saved(tmp_path / "runs", "data.yaml", "columns: [model_type, seconds]\n")
    git("add", "-f", ".")
    monkeypatch.chdir(tmp_path)
    looked_at = {str(tmp_path / pair.path) for pair in of_git("HEAD", (), models_only=False)}
    assert looked_at == set(expand(str(tmp_path))) == {*models, seeming}
    answer = run(str(tmp_path), "--fail-on", "never")
    assert (answer.exit_code, answer.output.count("MFU")) == (0, len(models))
    assert f"sizer: {seeming}: no model configuration, passed over\n" in answer.output
    assert run(str(seeming)).exit_code == 2  # named by a person
    for path in models:
        Path(path).unlink()
    assert run(str(tmp_path)).exit_code == 2  # nothing was checked


@dataclass
class Own:
    hidden_size: int = 512
    intermediate_size: int = 1408
    num_layers: int = 2
    num_attention_heads: int = 8
    n_kv_heads: int = 2
    vocab_size: int = 32000


def test_a_dataclass_in_llamas_names_is_a_llama_and_says_so() -> None:
    reading = read_config(Own())
    assert reading.model == read_config({**LLAMA, "num_key_value_heads": 2}).model
    assert reading.notes[0].startswith("read as a llama")


def test_memory_is_a_library_call_with_the_same_words() -> None:
    tuned = sizer.memory(GPT2, finetune="lora", lora_rank=16, microbatch=1, sequence=128, device="rtx-4090")
    assert (tuned.workload.lora_rank, tuned.memory.fits) == (16, True)
    served = sizer.memory(GPT2, phase="decode", b=8, context=512)
    assert served.memory.components["kv_cache"] == 12 * 8 * 512 * 2 * 768 * 2
    # context parallelism takes devices as tensor parallelism does
    assert sizer.memory(GPT2, gpus=8, cp=2, b=1).workload.d == 4
    with pytest.raises(InputError, match="TP x PP x CP"):
        sizer.memory(GPT2, gpus=8, tp=2, dp=8)


def test_tokens_are_typed_as_people_do() -> None:
    words = ["plan", str(GPT2), "--gpus", "1", "--global-batch", "8", "-s", "512", "--format", "json", "--tokens"]
    days = [json.loads(CliRunner().invoke(main, [*words, typed]).stdout) for typed in ("2T", "2e12")]
    assert days[0]["training"] == days[1]["training"]
    assert days[0]["training"]["tokens"] == 2e12
    gone = CliRunner().invoke(main, ["diff", str(GPT2), str(GPT2), "--tokens", "2T"])
    assert gone.exit_code == 2
    assert "plan --tokens" in gone.output


def test_a_model_that_is_read_again_is_the_same_object() -> None:
    """What was worked out of it is found without comparing all of its parts."""
    config = {"model_type": "llama", "num_hidden_layers": 2}
    one, other = (read_subject(dict(config)).model for _ in range(2))
    assert one is other
    assert read_subject({**config, "num_hidden_layers": 3}).model != one
