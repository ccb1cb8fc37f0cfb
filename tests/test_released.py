"""Models by their names: the bundled table, the local cache, and what is offered where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shapes.errors import InputError
from sizer.readers import NoModel, Source, UnknownModelType, load_mapping, read_config, read_text
from sizer.readers.fields import table

CONFIGS = Path(__file__).parent / "data" / "configs"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("openai-community/gpt2", "gpt2"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("LLAMA-3.1-8B", "llama-3.1-8b"),
        ("google/gemma-2-9b", "gemma-2-9b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("falcon-7b", "falcon-7b"),
    ],
)
def test_a_name_reads_as_the_models_configuration(name: str, file: str) -> None:
    named, whole = read_config(name), read_config(CONFIGS / f"{file}.json")
    assert named.model == whole.model
    assert named.source == name
    assert any("from the table" in note for note in named.notes)
    assert read_config(Source(name, {"num_hidden_layers" if "gpt2" not in name else "n_layer": 2})).model.layers == 2


def test_every_model_of_the_table_is_read_or_left_to_its_class() -> None:
    read = 0
    for name in table("released")["models"]:
        try:
            found = read_config(name)
            read += found.model.parameters > 10**8
            # A release has no typing errors, and what nobody reads is said of one alone.
            assert all(one.changes and one.key.endswith("attn_res_block_size") for one in found.unread), name
        except UnknownModelType:
            assert load_mapping(name)["model_type"]
    assert read >= 60


def test_what_the_table_lacks_is_looked_for_in_the_cache_and_then_nearest_names_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"nearest are .*qwen/qwen3-8b"):
        read_config("Qwen/Qwen3-8C")
    saved = tmp_path / "models--acme--own" / "snapshots" / "abc" / "config.json"
    saved.parent.mkdir(parents=True)
    saved.write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    (tmp_path / "models--acme--own" / "refs").mkdir()
    (tmp_path / "models--acme--own" / "refs" / "main").write_text("abc")
    assert read_config("acme/own").model.layers == 3
    (tmp_path / "models--acme--own" / "refs" / "main").write_text("../../../etc")
    with pytest.raises(InputError, match="no model of this name"):
        read_config("acme/own")


def test_a_file_that_is_missing_is_no_name() -> None:
    for path in ("config.json", "a/b/c", "./x", "train.yaml"):
        with pytest.raises(InputError, match="cannot be read"):
            read_config(path)


@pytest.mark.parametrize(
    ("recipe", "workload"),
    [
        (
            "{base_model: Qwen/Qwen3-8B, datasets: [], micro_batch_size: 2, sequence_len: 2048, adapter: qlora, "
            "lora_r: 16, load_in_4bit: true, bf16: auto, model_type: AutoModelForCausalLM}",
            {"b": 2, "s": 2048, "finetune": "qlora", "lora_rank": 16},
        ),
        (
            "{model_name_or_path: Qwen/Qwen3-8B, stage: sft, finetuning_type: full, per_device_train_batch_size: 4, "
            "cutoff_len: 1024, bf16: true}",
            {"b": 4, "s": 1024, "dtype": "bf16"},
        ),
        (
            "{policy: {model_name: Qwen/Qwen3-8B, train_micro_batch_size: 1, max_total_sequence_length: 512}}",
            {"b": 1, "s": 512},
        ),
        (
            "{model: {pretrained_model_name_or_path: Qwen/Qwen3-8B}, step_scheduler: {local_batch_size: 8}}",
            {"b": 8},
        ),
        (
            "{base_model_name_or_path: Qwen/Qwen3-8B, peft_type: LORA, r: 64, target_modules: [q_proj, v_proj]}",
            {"finetune": "lora", "lora_rank": 64, "lora_targets": "q_proj,v_proj"},
        ),
        ("{actor_rollout_ref: {model: {path: Qwen/Qwen3-8B}}, data: {}}", {}),
    ],
)
def test_a_recipe_that_names_a_model_is_that_model_with_its_own_workload(
    recipe: str, workload: dict[str, object]
) -> None:
    reading = read_text(recipe, where="recipe.yaml")
    assert reading.model == read_config("Qwen/Qwen3-8B").model
    assert {key: reading.workload[key] for key in workload} == workload
    assert reading.source == "recipe.yaml"
    with pytest.raises(NoModel, match="a path is not followed"):
        read_text(recipe.replace("Qwen/Qwen3-8B", "/etc/hosts"), where="recipe.yaml")
    with pytest.raises(NoModel, match=r"acme/none.*no model of this name"):
        read_text(recipe.replace("Qwen/Qwen3-8B", "acme/none"), where="recipe.yaml")


def test_of_litgpts_sizes_it_is_said_what_a_tied_head_would_take_off() -> None:
    reading = read_config("meta-llama/Llama-3.2-1B")
    assert any(f"{128256 * 2048:,} parameters less where they are tied" in note for note in reading.notes)


def test_a_whole_float_is_an_integer_and_a_marked_utf_16_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(json.dumps({"model_type": "gpt2", "n_layer": 3.0}).encode("utf-16"))
    assert read_config(file).model.layers == 3
