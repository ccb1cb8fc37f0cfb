"""Models by their names: the bundled table, the local cache, and what is offered where there is none."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from shapes.errors import InputError
from sizer.cli import main
from sizer.readers import NoModel, Source, UnknownModelType, load_mapping, read_config
from sizer.readers.reading import table
from sizer.readers.released import released
from sizer.subject import read_subject
from tests.texts import read_text

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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen2_5_72b", "Qwen/Qwen2.5-72B"),
        ("llama3-1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Llama2-70b", "meta-llama/Llama-2-70b-hf"),
        ("opt-1-3b", "facebook/opt-1.3b"),
        ("Mixtral-8x22B", "mistralai/Mixtral-8x22B-v0.1"),
        ("Llama 3.3 70B Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "Qwen3-8B-GGUF-Q4_K_M"),
        ("qwen3:8b-q8_0", "Qwen3-8B-Q8_0"),
        ("mistralai/mixtral-8x7b-instruct-v01", "mistralai/Mixtral-8x7B-Instruct-v0.1"),  # a NIM's image
    ],
)
def test_a_name_is_known_whatever_separates_its_words(name: str, meant: str) -> None:
    assert read_config(name).model == read_config(meant).model


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("mistralai/Mistral-7B-v0.1", 4096),
        ("mistralai/Mistral-Nemo-Instruct-2407", None),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", None),
        ("unsloth/Magistral-Small-2506", None),
    ],
)
def test_a_release_has_a_window_where_its_own_file_has_one(name: str, window: int | None) -> None:
    # transformers' MistralConfig has 4096 where a file leaves it out; releases since 2024 state null.
    attentions = {block.attention for _, block in read_config(name).model.all_blocks()}
    assert {one.window for one in attentions if one is not None} == {window}


@pytest.mark.parametrize("name", ["opt-67b", "qwen257-2b", "Mistral-7B"])
def test_a_name_that_a_separator_makes_another_models_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="no model of this name"):
        read_config(name)


@pytest.mark.slow
def test_every_model_of_the_table_is_read_or_left_to_its_class() -> None:
    read, known = 0, set()
    for name, row in table("released").items():
        if "as" in row:  # another row's dimensions, but for those that it states
            assert row["source"]
            found, differs, base = released(name)[0], row.get("with", {}), table("released")[row["as"]]
            lost = {key: None for key in differs if key not in found}
            assert "as" in base or {**base["config"], **differs} == {**found, **lost}
            assert set(lost) == {key for key, value in differs.items() if value is None}  # a key that is taken away
            if (same := str(sorted(map(str, found.items())))) not in known:
                known.add(same)
                with suppress(UnknownModelType):  # left to its class, as its release is
                    read_config(name)
            continue
        try:
            found = read_config(name)
            read += found.model.parameters > 10**8
            # A release has no typing errors, and what nobody reads is said of one alone.
            assert all(one.changes and one.key.endswith("attn_res_block_size") for one in found.unread), name
        except UnknownModelType:
            assert load_mapping(name)["model_type"]
    assert read >= 300


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", 8_767_123_696),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8_292_166_656),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 73_410_777_344),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("Qwen/Qwen3-Embedding-8B", 7_567_295_488),
        ("Qwen/Qwen3-Reranker-8B", 8_188_515_328),
    ],
)
def test_a_name_counts_its_vision_tower_and_its_head(name: str, parameters: int) -> None:
    """Parameters as the hub publishes them."""
    found = read_config(name)
    assert found.model.parameters == parameters
    assert bool(found.model.towers) == ("VL" in name)


def test_published_sizes_give_the_published_parameters() -> None:
    file = Path(__file__).parent / "tools" / "released_written.json"
    rows = json.loads(file.read_text("utf-8"))["models"]
    held = table("released")
    for name, row in rows.items():
        assert name in held
        if "as" in row:
            assert row["from"]
            continue
        assert ("parameters" in row) or row["from"] != "published sizes"
        if row["from"].endswith("its class is traced"):
            assert load_mapping(name)["model_type"] == row["config"]["model_type"]
            continue
        assert read_config(row["config"]).model.parameters == row.get("parameters", read_config(name).model.parameters)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("microsoft/deberta-v3-base", 183_831_552),
        ("google/t5gemma-2b-2b-ul2", 5_596_853_760),
        ("openai/clip-vit-large-patch14", 427_616_513),
        ("facebook/dinov2-large", 304_368_640),
        ("facebook/dinov3-vit7b16-pretrain-lvd1689m", 6_716_035_072),
    ],
)
def test_a_release_that_no_reader_knows_is_traced_by_its_name(name: str, parameters: int) -> None:
    asked = ["check", name, "--device", "h100-sxm", "--format", "json"]
    model = json.loads(CliRunner().invoke(main, asked).stdout)["reports"][0]["model"]
    assert model["parameters"] == parameters
    assert not [one for one in model["notes"] if one.startswith("left out")]


@pytest.mark.parametrize(
    ("recipe", "rounds"),
    [
        ("{actor_rollout_ref: {model: {path: Qwen/Qwen3-8B}, rollout: {name: vllm}}}", True),
        ("{policy: {model_name: Qwen/Qwen3-8B, generation: {backend: vllm}}}", True),
        ("{policy: {model_name: Qwen/Qwen3-8B}}", False),  # NeMo-RL's fine-tuning
        ("{hf_checkpoint: Qwen/Qwen3-8B, rollout_batch_size: 32}", True),
    ],
)
def test_a_recipe_of_reinforcement_learning_says_what_else_a_round_runs(recipe: str, rounds: bool) -> None:
    notes = read_text(recipe, where="r.yaml").notes
    assert any("a round also decodes its rollouts (--phase decode" in note for note in notes) is rounds


def test_what_the_table_lacks_is_looked_for_in_the_cache_and_then_nearest_names_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"nearest are Qwen/Qwen3-8B, "):
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
    with pytest.raises(NoModel, match=r"hosts.*no model of this name"):
        read_text(recipe.replace("Qwen/Qwen3-8B", "/etc/hosts"), where="recipe.yaml")
    with pytest.raises(NoModel, match=r"acme/none.*no model of this name"):
        read_text(recipe.replace("Qwen/Qwen3-8B", "acme/none"), where="recipe.yaml")


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("unsloth/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("nvidia/Cosmos-Reason1-7B", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
        ("google/gemma-3-27b-pt", "google/gemma-3-27b-it"),
        ("yoshitomo-matsubara/bert-base-uncased-mnli", "google-bert/bert-base-uncased"),
        ("unsloth/Nemotron-3-Nano-30B-A3B", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
        ("Qwen/Qwen3-30B-A3B-merge", "Qwen/Qwen3-30B-A3B"),
        ("PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT", "Qwen/Qwen3-0.6B"),
        (
            "nv-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
            "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
        ),
    ],
)
def test_a_variant_and_a_mirror_have_the_releases_sizes(name: str, of: str) -> None:
    assert read_config(name).model == read_config(of).model


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B-GPTQ", "acme/Qwen3-8B-wide", "Qwen/Qwen3-8B-v2", "Qwen/Qwen3-9B"])
def test_a_name_that_may_be_another_models_is_not_guessed(name: str) -> None:
    with pytest.raises(InputError, match=r"nearest are .*Qwen/Qwen3-8B.*--download"):
        read_config(name)


@pytest.mark.parametrize(
    ("script", "name", "workload"),
    [
        ("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 8 --max-model-len 4096", "Qwen/Qwen3-8B", {"t": 8}),
        ("M=Qwen/Qwen3-8B\npython -m sglang.launch_server --model-path $M --tp 2 --port 1", "Qwen/Qwen3-8B", {"t": 2}),
        ("A=(--hf-checkpoint /root/Qwen3-4B --micro-batch-size 2)\npython train.py ${A[@]}", "Qwen3-4B", {"b": 2}),
        (
            "deepspeed --module openrlhf.cli.train_sft --pretrain meta-llama/Llama-3.1-8B --max_len 2048",
            "meta-llama/Llama-3.1-8B",
            {"s": 2048},
        ),
        (
            "python -m verl.main actor_rollout_ref.model.path=${M:-Qwen/Qwen3-8B} "
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
            "Qwen/Qwen3-8B",
            {"b": 4},
        ),
        # A folder of its own, then a release.
        (
            "python train.py --model_name_or_path ./out/mine --per_device_train_batch_size 2\n"
            "python train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 4",
            "Qwen/Qwen3-8B",
            {"b": 4},
        ),
    ],
)
def test_a_script_that_names_a_model_is_that_model(script: str, name: str, workload: dict[str, int]) -> None:
    reading = read_text(script, where="run.sh")
    assert reading.model == read_config(name).model
    assert {key: reading.workload[key] for key in workload} == workload


@pytest.mark.parametrize(
    ("script", "name", "published"),
    [
        # Sizes of the files: TheBloke/Llama-2-7B-Chat-GGUF, Qwen/Qwen3-8B-GGUF.
        ("llama-server -m $HOME/m/llama-2-7b-chat.Q4_K_M.gguf -c 4096", "meta-llama/Llama-2-7b-hf", 4.08e9),
        ("./main -m llama-2-7b-chat.Q8_0.gguf -p hi", "meta-llama/Llama-2-7b-hf", 7.16e9),
        ("./main -m llama-2-7b-chat.Q6_K.gguf -p hi", "meta-llama/Llama-2-7b-hf", 5.53e9),
        ("llama-cli -hf Qwen/Qwen3-8B-GGUF:Q8_0 --port 1", "Qwen/Qwen3-8B", 8.71e9),
        ("llama-bench -hf unsloth/Qwen3-8B-GGUF:UD-Q8_0 -ngl 99", "Qwen/Qwen3-8B", 8.71e9),
        ("llama-server --model q/Qwen3-8B-f16.gguf", "Qwen/Qwen3-8B", 16.4e9),
    ],
)
def test_a_gguf_is_the_release_of_its_name_in_the_bits_of_its_name(script: str, name: str, published: float) -> None:
    reading = read_text(script, where="run.sh")
    assert reading.workload == {"phase": "decode"}
    assert reading.model.parameters == read_config(name).model.parameters
    assert any("released model of its name" in note or "bits as it is called" in note for note in reading.notes)
    formats = reading.model.formats
    bits = sum((one.bits + one.scale_bits / one.block[1]) * number for one, number in formats.items())
    held = bits / 8 + 2 * (reading.model.parameters - sum(formats.values()))
    assert held == pytest.approx(published, rel=0.08)  # the embedding is counted in 16 bits


@pytest.mark.parametrize(
    ("script", "workload"),
    [
        (
            "swift sft --model Qwen/Qwen3-8B --tuner_type lora --lora_rank 8 --max_length 512 "
            "--per_device_train_batch_size 2 --gradient_accumulation_steps $(expr 16 / $N)",
            {"b": 2, "s": 512, "finetune": "lora"},
        ),
        ("python -m skyrl.main trainer.policy.model.path=Qwen/Qwen3-8B", {}),
        # The server is the teacher's.
        (
            "sglang serve --model-path Qwen/Qwen3-32B --port 1\npython t.py --hf-checkpoint /root/Qwen3-8B",
            {},
        ),
    ],
)
def test_a_value_that_only_running_tells_is_not_there(script: str, workload: dict[str, object]) -> None:
    reading = read_text(script, where="run.sh")
    assert reading.model == read_config("Qwen/Qwen3-8B").model
    assert {key: reading.workload[key] for key in workload} == workload


def test_a_section_called_model_is_no_name() -> None:
    with pytest.raises(NoModel, match="known formats"):
        read_text("{model: {kind: x}, torch_dtype: bf16}", where="a.yaml")


def test_a_degree_that_only_running_would_tell_is_said_and_not_taken_for_one() -> None:
    script = "TP=$1\nvllm serve Qwen/Qwen3-8B --tensor-parallel-size {} --port 80"
    found = read_config(Source("run.sh", text=script.format("$TP")))
    assert [(one.key, one.value) for one in found.unread] == [("tensor_parallel_size", "$1")]
    assert "t" not in found.workload
    for known in ("4", "${SIZE:-4}"):
        settled = read_config(Source("run.sh", text=script.format(known)))
        assert (settled.unread, settled.workload["t"]) == ((), 4)


def test_a_server_decodes_a_release_in_its_own_formats() -> None:
    subject = read_subject(Source("run.sh", text="vllm serve deepseek-ai/DeepSeek-V3 --tp 8 --port 80"))
    assert subject.workload.decode
    assert subject.model is not None
    assert subject.model.formats


def test_results_of_a_server_are_of_decoding_and_an_evaluation_is_said_to_be_none_of_training() -> None:
    result = '{"model_id": "Qwen/Qwen3-8B", "request_throughput": 0.9, "total_output_tokens": 4}'
    assert read_text(result, where="raw.json").workload["phase"] == "decode"
    evaluated = read_text("python /train/eval_spider.py --model-path Qwen/Qwen3-8B", where="run.sh")
    assert [one.changes for one in evaluated.unread] == [
        "what is run (its program evaluates or prepares: --phase prefill, decode)"
    ]
    assert not read_text("python /eval/train_sft.py --model-path Qwen/Qwen3-8B", where="run.sh").unread


def test_a_folder_that_is_called_as_a_model_is_taken_for_it_and_said() -> None:
    recipe = "{model: {_component_: torchtune.models.x}, checkpointer: {checkpoint_dir: /tmp/Qwen3-8B/}, batch_size: 2}"
    reading = read_text(recipe, where="recipe.yaml")
    assert reading.model == read_config("Qwen/Qwen3-8B").model
    assert reading.workload["b"] == 2
    assert "/tmp/Qwen3-8B/ is taken for the released model of its name" in reading.notes
    mirrored = read_text("{model_path: /data/Qwen--Qwen2.5-14B-Instruct, lr: 1}", where="recipe.yaml")
    assert mirrored.model == read_config("Qwen/Qwen2.5-14B-Instruct").model
    with pytest.raises(NoModel, match="no model of this name"):
        read_text("{model_path: /data/run--Qwen3-8B/step-10, lr: 1}", where="recipe.yaml")
    with pytest.raises(NoModel, match=r"\$DIR, which the file does not hold"):
        read_text("python train.py --hf-checkpoint $DIR", where="run.sh")
    with pytest.raises(NoModel, match=r"hf_checkpoint = '\$HOME/none'\): no such file"):
        read_text("python train.py --hf-checkpoint $HOME/none", where="run.sh")


def test_only_download_asks_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def snapshot_download(name: str, allow_patterns: list[str]) -> None:
        asked.append(name)
        if name == "acme/none":
            raise OSError("404")
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        (folder / "snapshots" / "abc").mkdir(parents=True)
        (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")

    hub = ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    refused = CliRunner().invoke(main, ["ops", "acme/own"])
    assert (refused.exit_code, asked) == (2, [])
    assert CliRunner().invoke(main, ["ops", "acme/own", "--download"]).exit_code == 0
    none = CliRunner().invoke(main, ["ops", "acme/none", "--download"])
    assert (none.exit_code, asked) == (2, ["acme/own", "acme/none"])
    assert "the hub has no configuration of it" in none.output
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "[hub]" in CliRunner().invoke(main, ["ops", "acme/other", "--download"]).output


def test_of_litgpts_sizes_it_is_said_that_their_head_is_a_matrix_of_its_own() -> None:
    assert "head is a matrix of its own" in read_config("tiiuae/falcon-40b").notes[0]


def test_a_whole_float_is_an_integer_and_a_marked_utf_16_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(json.dumps({"model_type": "gpt2", "n_layer": 3.0}).encode("utf-16"))
    assert read_config(file).model.layers == 3


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # 49,122,681,728 with a bias for each expert of 26 layers, which a router's balance is kept by.
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 49_122_681_728 - 26 * 256),
        ("Qwen/Qwen3.5-4B", 4_539_265_536),  # with its own vision tower, which is smaller than the 9B's
        ("Qwen/Qwen1.5-14B-Chat", 14_167_290_880),
        ("internlm/internlm2-chat-20b", 19_861_149_696),
        ("THUDM/chatglm3-6b", 6_243_584_000),
        ("unsloth/Qwen3-4B-Instruct-2507-GGUF", 4_022_468_096),
        ("PrimeIntellect/Qwen3-0.6B", 596_049_920),
        ("baichuan-inc/Baichuan-13B-Chat", 13_264_901_120),
        ("deepseek-ai/deepseek-moe-16b-base", 16_375_728_128),
        ("deepseek-ai/DeepSeek-V2.5", 235_741_434_880),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 15_706_484_224),
        # 228,689,764,864 with a bias for each expert of 62 layers.
        ("MiniMaxAI/MiniMax-M2.1", 228_689_764_864 - 62 * 256),
        # The base of GLM-4.5-Air without its layer of the next token but one; a bias for each expert of 45 layers.
        ("PrimeIntellect/INTELLECT-3", 106_852_251_264 - 45 * 128),
        ("zai-org/GLM-4.7", 358_337_791_296 - 5_539_962_272 - 89 * 160),
        ("google/paligemma-3b-mix-224", 2_923_466_480),
        ("google/paligemma2-3b-pt-448", 3_033_127_152),
        # Without SAM's encoder with what shortens its tokens, CLIP's, their projection and the two marks of lines.
        ("deepseek-ai/DeepSeek-OCR", 3_336_106_240 - 95_569_152 - 303_177_728 - 2_622_720 - 2_560),
        ("unsloth/embeddinggemma-300m", 302_863_104),
        ("state-spaces/mamba2-130m", 128_989_632),
        ("state-spaces/mamba2-2.7b", 2_702_599_680),
        ("google/vit-base-patch16-224", 86_567_656),
        # Its GGUF header's count holds a bias for each expert of 22 layers.
        ("LiquidAI/LFM2.5-8B-A1B", 8_467_856_832 - 22 * 32),
        # Its weights have 55,562,855,904 bytes, with a layer of predicted tokens.
        ("Qwen/Qwen3.8-27B", 55_562_855_904 // 2 - 424_699_392),
        ("instructlab/granite-7b-lab", 6_738_415_616 + 2 * 8 * 4096),  # Llama-2-7B with eight words more
    ],
)
def test_a_release_has_its_published_parameters(name: str, parameters: int) -> None:
    assert read_config(name).model.parameters == parameters


@pytest.mark.parametrize(
    ("name", "unit", "published"),
    [
        ("ibm-granite/granite-4.0-h-small", 2**29, "59.99"),  # GiB of its weights, and of the next one's
        ("ibm-granite/granite-4.0-h-tiny", 2**29, "12.92"),  # 12.93 with the headers of its files
        ("granite-4.0-micro", 10**9, "3.40"),
        ("Trinity-Mini", 10**9, "26.12"),
        ("Hunyuan-A13B", 10**9, "80.39"),
        ("MiniMaxAI/MiniMax-Text-01", 10**9, "456.09"),
        ("Mistral-Large-3", 10**9, "673.42"),  # "a 673B language model and a 2.5B vision encoder"
        ("Kimi-Linear-48B", 10**9, "49.12"),  # of 48B-A3B, where nothing else is called so
    ],
)
def test_a_release_of_late_has_its_published_size(name: str, unit: int, published: str) -> None:
    assert f"{read_config(name).model.parameters / unit:.2f}" == published


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("deepseek-ai/DeepSeek-V4", "nearest are deepseek-ai/DeepSeek-V4-Pro, deepseek-ai/DeepSeek-V4-Flash, "),
        ("tencent/Hunyuan-Large", "nearest are tencent/Hunyuan-A13B-Pretrain, "),
        ("Mistarl-7B-v0.1", "nearest are mistralai/Mistral-7B-v0.1, "),
        ("facebook/esm2_t6_8M_UR50D", "is known here; --download"),  # none of that family
        ("llama3", "meta-llama/Meta-Llama-3-8B"),
        ("qwen3:8b", "is ollama's, in bits that its name does not hold: give its base's, as qwen3-8b"),
    ],
)
def test_nearest_are_what_a_name_begins_else_its_family(name: str, near: str) -> None:
    with pytest.raises(InputError, match=near):
        read_config(name)


def test_the_layer_that_glm_is_published_with_and_not_read_is_one_more_layer_with_copies_of_the_head() -> None:
    """358,337,791,296 are published of GLM-4.5; 4.6 is published without the copies of embedding and head."""
    model = read_config("zai-org/GLM-4.5").model
    experts = 161 * 3 * 5120 * 1536 + 160 * 5120 + 160
    attention = 5120 * 128 * (96 + 8 + 8 + 96) + 128 * (96 + 8 + 8) + 2 * 128
    layer = experts + attention + 2 * 5120 + 2 * 5120 * 5120 + 3 * 5120
    copies = 2 * 151_552 * 5120
    assert model.parameters + 89 * 160 + layer + copies == 358_337_791_296
    assert model.parameters + 89 * 160 + layer == 356_785_898_816


@pytest.mark.parametrize(
    ("name", "of", "bits"),
    [
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B-Instruct", 8),
        ("RedHatAI/DeepSeek-R1-Distill-Llama-70B-FP8-dynamic", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", 8),
        ("TheBloke/Llama-2-7B-GPTQ", "meta-llama/Llama-2-7b-hf", 4),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct", 4),
        ("hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16", "meta-llama/Llama-3.1-405B", 4),
    ],
)
def test_a_quantised_release_has_the_sizes_of_its_base_and_fewer_bits(name: str, of: str, bits: int) -> None:
    model, base = read_config(name).model, read_config(of).model
    assert (model.parameters, model.layers) == (base.parameters, base.layers)
    assert [one.bits for one in model.formats] == [bits]
    assert not base.formats


@pytest.mark.parametrize(
    "name",
    [
        "acme/Mistral-7B-v0.1-GPTQ",
        *("unsloth/gpt-oss-20b-unsloth-bnb-4bit", "amd/Kimi-K2.5-MXFP4"),
        # whose experts are linear layers there, and in 4 bits
        *("axolotl-quants/DeepSeek-V2.5-bnb-nf4-bf16", "axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16"),
    ],
)
def test_a_quantised_release_that_nobody_listed_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"no model of this name.*--download"):
        read_config(name)


def test_what_mlx_quantises_is_refused_for_that() -> None:
    with pytest.raises(InputError, match="is quantised as MLX does"):
        read_config("mlx-community/Qwen3-8B-4bit")


@pytest.mark.parametrize(
    ("name", "of", "bits", "block"),
    [
        ("TheBloke/Mistral-7B-v0.1-AWQ", "mistralai/Mistral-7B-v0.1", 4, (1, 128)),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4", "meta-llama/Llama-3.1-8B-Instruct", 4, (1, 128)),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "Qwen/Qwen3-8B", 4, (1, 128)),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B", 8, (1, 0)),
        ("Qwen/Qwen3-14B-FP8", "Qwen/Qwen3-14B", 8, (128, 128)),
        ("nvidia/Qwen3-8B-FP4", "Qwen/Qwen3-8B", 4, (1, 16)),
        ("zai-org/GLM-4.5-Air-FP8", "zai-org/GLM-4.5-Air", 8, (1, 0)),
        ("RedHatAI/Qwen3-8B-FP8-block", "Qwen/Qwen3-8B", 8, (128, 128)),
        ("Intel/Qwen3-8B-int4-AutoRound", "Qwen/Qwen3-8B", 4, (1, 128)),
        ("Qwen/Qwen-7B-Chat-Int4", "Qwen/Qwen-7B-Chat", 4, (1, 128)),
    ],
)
def test_a_release_called_by_a_method_with_its_bits_has_those_of_its_base(
    name: str, of: str, bits: int, block: tuple[int, int]
) -> None:
    found, base = read_config(name), read_config(of).model
    assert (found.model.parameters, found.model.layers) == (base.parameters, base.layers)
    assert [(one.bits, one.block) for one in found.model.formats] == [(bits, block)]
    assert any("bits as it is called" in note for note in found.notes)


@pytest.mark.parametrize("name", ["zai-org/GLM-5.3-Flash", "nvidia/GLM-5.3-Flash-NVFP4", "Qwen/Qwen3.8-Flash-Next"])
def test_a_release_without_a_formula_is_refused_as_that_and_offers_no_other(name: str) -> None:
    with pytest.raises(InputError, match="has layers that no formula here counts"):
        read_config(name)


@pytest.mark.parametrize("name", ["google/gemma-4-E2B-it", "google/gemma-3n-E4B", "openbmb/MiniCPM-o-2_6"])
def test_a_tower_of_sound_that_a_source_leaves_out_is_said_to_be(name: str) -> None:
    assert any("left out" in note and "audio tower" in note for note in read_config(name).notes)


@pytest.mark.parametrize(
    "name",
    [
        "black-forest-labs/FLUX.1-dev",
        "openai/whisper-large-v3",
        "facebook/wav2vec2-base",
        "google/vit-large-patch16-224",
        "o3-mini",
        "gpt-5",
    ],
)
def test_what_is_no_model_of_text_or_nobodys_to_size_is_refused_as_that(name: str) -> None:
    with pytest.raises(InputError, match=r"of which the table has few|nobody publishes"):
        read_config(name)


def test_what_a_name_says_of_weights_is_never_taken_in_silence() -> None:
    assert not read_config("deepseek-ai/DeepSeek-V3-0324-BF16").model.formats
    assert not read_config("PrimeIntellect/MiniMax-M2.5-bf16").model.formats
    assert read_config("deepseek-ai/DeepSeek-V3.1").model == read_config("deepseek-ai/DeepSeek-V3").model
    notes = read_config("unsloth/Qwen3-4B-Instruct-2507-GGUF").notes
    assert any("from the table" in note and "in 16 bits: a .gguf has its own" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "release", "parameters"),
    [
        ("somebody/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),  # a copy
        ("hkust-nlp/Qwen-2.5-7B-SimpleRL-Zoo", "Qwen/Qwen2.5-7B", 7_615_616_512),  # by its card
        ("somebody/Qwen2.5-7B-Instruct_GRPOv00.05", "Qwen/Qwen2.5-7B", 7_615_616_512),  # methods of training
        ("somebody/Llama-3.2-3B-sft-mixture", "meta-llama/Llama-3.2-3B", 3_212_749_824),
        ("somebody/qwen3-4b-dpo-step-300", "Qwen/Qwen3-4B", 4_022_468_096),
        ("unsloth/llama-3-8b-bnb-4bit", "meta-llama/Meta-Llama-3-8B", 8_030_261_248),
        ("WizardLM/WizardLM-70B-V1.0", "meta-llama/Llama-2-70b-hf", 68_976_648_192 + 2 * 8192),  # 32,001 words
        ("google/flan-t5-xxl", "google/flan-t5-xxl", 11_135_332_352),
        ("state-spaces/mamba-370m-hf", "state-spaces/mamba-370m-hf", 371_516_416),
    ],
)
def test_copies_fine_tunes_and_bits_have_the_sizes_of_their_release(name: str, release: str, parameters: int) -> None:
    assert read_config(name).model.parameters == parameters
    assert release in released(name)[1]


@pytest.mark.parametrize(
    "name",
    [
        *("somebody/Qwen2.5-7B-vision", "somebody/Llama-3.1-8B-Instruct-AQLM-2Bit", "somebody/Qwen2.5-7B-lora"),
        *(
            "somebody/Llama-3-8B-pruned",
            "somebody/opt-1.3b-medusa",
            "somebody/Qwen3-7B",
            "somebody/gpt2-moe",
            "somebody/Qwen3-8B-v2",
        ),
    ],
)
def test_a_name_with_a_word_that_may_change_the_sizes_is_no_variant(name: str) -> None:
    with pytest.raises(InputError, match="no model of this name is known here"):
        read_config(name)


@pytest.mark.parametrize(
    "path", ["https://huggingface.co/Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B/tree/main"]
)
def test_an_address_on_the_hub_names_its_model(path: str) -> None:
    assert read_text(f"{{model_name_or_path: '{path}', stage: sft}}", where="r.yaml").model.parameters == 8_190_735_360


def test_a_row_says_its_vocabulary_where_its_class_has_another() -> None:
    rows = {name: row["config"] for name, row in table("released").items() if "as" not in row}
    seen = {name for name, config in rows.items() if "image_size" in config}  # of pictures alone, without words
    silent = {name for name, config in rows.items() if not re.search("vocab", json.dumps(config))} - seen
    assert silent == {"google/gemma-2-27b", "google/gemma-2-2b"}  # 256000 as the class
    assert read_config("allenai/Olmo-3-32B-Think").model.vocab == 100278


@pytest.mark.parametrize(
    ("strategy", "zero", "said"),
    [
        ("FULL_SHARD", 3, []),
        ("shard_grad_op", 2, []),
        ("NO_SHARD", 0, []),
        ("_HYBRID_SHARD_ZERO2", 0, ["fsdp_config.sharding_strategy"]),
    ],
)
def test_how_a_recipe_shards_is_named_where_it_is_not_read(strategy: str, zero: int, said: list[str]) -> None:
    recipe = (
        "{model: {name: hf_causal_lm, pretrained_model_name_or_path: facebook/opt-1.3b}, max_seq_len: 1024, "
        f"global_train_batch_size: 16, fsdp_config: {{sharding_strategy: {strategy}}}}}"
    )
    reading = read_text(recipe, where="recipe.yaml")
    assert reading.workload.get("zero", 0) == zero
    assert [one.key for one in reading.unread if one.changes == "how it is spread"] == said


def test_olmo_cores_own_1b_is_not_the_released_one() -> None:
    """OLMo-core's olmo2_1B has 18 layers, its olmo2_1B_v2 the 16 of the release."""
    layers = [read_config(name).model.layers for name in ("olmo2_1B", "olmo2_1B_v2", "allenai/OLMo-2-0425-1B")]
    assert layers == [18, 16, 16]
