"""Recipes that name a model, in the files of trainers; what is laid over a recipe; files of sections in sections."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import sizer
from shapes.errors import InputError
from shapes.memory import memory
from shapes.workload import Workload
from sizer.readers import NoModel, megatron, read_config
from sizer.readers.reading import FORMATS
from sizer.subject import read_subject

QWEN = "Qwen/Qwen3-0.6B"
TRL = f"model_name_or_path: {QWEN}\ntemplate: qwen\n"


def read(tmp_path: Path, text: str, name: str = "recipe.yaml") -> Any:
    file = tmp_path / name
    file.write_text(text, "utf-8")
    return read_config(file)


#: NeMo-RL's two backends, of which one is on.
BACKENDS = f"""cluster: {{{{gpus_per_node: 8, num_nodes: 2}}}}
policy:
  model_name: {QWEN}
  dtensor_cfg: {{{{enabled: {{}}, tensor_parallel_size: 2, context_parallel_size: 2}}}}
  megatron_cfg: {{{{enabled: {{}}, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2,
    context_parallel_size: 1, activation_checkpointing: true, optimizer: {{{{use_distributed_optimizer: true}}}}}}}}"""

#: What a trainer's file says, and the workload that it gives.
RECIPES = {
    "open-unlearning": (
        """model: {model_args: {pretrained_model_name_or_path: "${of}/Qwen3-0.6B"}}
of: Qwen
trainer: {handler: NPO, args: {per_device_train_batch_size: 4, gradient_checkpointing: true}}""",
        {"b": 4, "checkpointing": "full", "finetune": None},
    ),
    "fsdp_qlora": (
        f"{{model_name: {QWEN}, train_type: qlora, context_length: 256, use_cpu_offload: false}}",
        {"b": 1, "s": 256, "checkpointing": "full", "lora_rank": 64, "finetune": "qlora", "zero": 3, "offload": None},
    ),
    "mlx-lm": (  # of its layers 16 have adapters
        f"""{{model: {QWEN}, train: true, fine_tune_type: lora, num_layers: 16, batch_size: 2, max_seq_length: 512,
lora_parameters: {{keys: [self_attn.q_proj], rank: 4}}, grad_checkpoint: false}}""",
        {"b": 2, "s": 512, "lora_rank": 4, "finetune": "lora", "checkpointing": None},
    ),
    # FSDP over every device; its trainer packs one sequence a microbatch unless told otherwise.
    "prime-rl over nodes": (
        f"""max_steps: 10
model: {{name: {QWEN}, ep: 8, cp: 4, ac: {{freq: 1}}}}
data: {{seq_len: 4096, batch_size: 32}}
deployment: {{type: multi_node, num_train_nodes: 2}}""",
        {"b": 1, "s": 4096, "cp": 4, "e": 8, "zero": 3, "gpus": 16, "global_batch": 32, "checkpointing": "full"},
    ),
    "roll's fine-tuning": (
        f"""pretrain: {QWEN}
sequence_length: 2048
sft_train:
  training_args: {{per_device_train_batch_size: 2, gradient_accumulation_steps: 16}}
  strategy_args: {{strategy_name: megatron_train, strategy_config:
    {{tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, use_distributed_optimizer: true}}}}""",
        {"b": 2, "s": 2048, "t": 2, "p": 2, "zero": 1},
    ),
    "oumi": (
        f"""model: {{model_name: {QWEN}, model_max_length: 2048}}
training: {{per_device_train_batch_size: 2, enable_gradient_checkpointing: true, use_peft: true}}
peft: {{lora_r: 16, q_lora: true}}""",
        {"b": 2, "s": 2048, "checkpointing": "full", "lora_rank": 16, "finetune": "qlora"},
    ),
    "sections of one's own": (
        f"model: {{name: {QWEN}}}\nlora: {{r: 8, target_modules: all-linear}}\n"
        "sft: {per_device_train_batch_size: 4, max_seq_length: 512}",
        {"b": 4, "s": 512, "lora_rank": 8, "finetune": "lora", "lora_targets": "all-linear"},
    ),
    "axolotl's FSDP, which recomputes whatever gradient_checkpointing says": (
        f"{{base_model: {QWEN}, sequence_len: 512, micro_batch_size: 2, gradient_checkpointing: false,\n"
        "dp_shard_size: 4, fsdp_config: {activation_checkpointing: true, sharding_strategy: FULL_SHARD}}",
        {"b": 2, "s": 512, "checkpointing": "full", "d": 4, "zero": 3},
    ),
    "axolotl's plugin, whose loss is fused": (
        f"base_model: {QWEN}\nsequence_len: 512\nplugins: [a.cut_cross_entropy.CutCrossEntropyPlugin]",
        {"s": 512, "loss": "fused"},
    ),
    "swift's megatron": (
        f"model: {QWEN}\ntuner_type: full\nmicro_batch_size: 1\nglobal_batch_size: 4",
        {"b": 1, "global_batch": 4},
    ),
    "axolotl's FSDP that offloads": (
        f"{{base_model: {QWEN}, sequence_len: 512, fsdp: [full_shard], fsdp_config: {{fsdp_offload_params: true}}}}",
        {"s": 512, "zero": 3, "offload": 1, "offload_params": 1},
    ),
    "prime-rl of 2025": (
        f"{{model_name: {QWEN}, train: {{micro_bs: 2, ac_ckpt: true}}, data: {{seq_length: 512}}, optim: {{lr: 1}}}}",
        {"b": 2, "s": 512, "checkpointing": "full", "zero": 3},
    ),
    "torchforge that recomputes": (
        f"{{model: {QWEN}, prompt: 256, trainer: {{model: {{name: qwen3}}, training: {{local_batch_size: 4,\n"
        'seq_len: "${sum:${prompt},256}"}, activation_checkpoint: {mode: full},\n'
        "parallelism: {data_parallel_replicate_degree: 2, data_parallel_shard_degree: 4}}}",
        {"b": 4, "s": 512, "checkpointing": "full", "d": 8, "zero": 3},
    ),
    "a length that only running would tell": (
        f"{{model_name_or_path: {QWEN}, template: qwen, per_device_train_batch_size: 2, cutoff_len: '${{len:a}}'}}",
        {"b": 2, "s": None},
    ),
    "nemo_rl on DTensor": (
        BACKENDS.format("true", "false"),
        {"t": 2, "cp": 2, "p": None, "d": 4, "zero": 3, "checkpointing": None},
    ),
    "nemo_rl on Megatron": (
        BACKENDS.format("false", "true"),
        {"t": 4, "p": 2, "d": 2, "zero": 1, "checkpointing": "full"},
    ),
    "nemo_rl with devices of its own for the rollouts": (
        BACKENDS.format("true", "false") + "\n  generation: {colocated: {enabled: false, resources: {num_nodes: 1}}}",
        {"t": 2, "d": None, "zero": 3},
    ),
    "unsloth's word where nobody looks": (
        f"model: {{name: {QWEN}, max_seq_length: 512}}\nlora: {{r: 8, gradient_checkpointing: unsloth}}\n"
        "training: {per_device_train_batch_size: 4}",
        {"b": 4, "s": 512, "lora_rank": 8, "checkpointing": "full"},
    ),
    "a server of adapters": (
        f"model: {{name: {QWEN}, lora_rank: 64, max_seq_length: 512}}\ngeneration: {{max_new_tokens: 64}}",
        {"phase": "decode", "finetune": None},
    ),
    "verl's generation of so many tokens": (
        f"model: {{path: {QWEN}}}\nrollout: {{prompt_length: 1536, response_length: 512}}",
        {"phase": "decode", "context": 2048},
    ),
    "bentoml": (f"args: {{name: a, tp: 2, model_id: {QWEN}}}", {"phase": "decode", "t": 2}),
    "oumi's inference": (f"model: {{model_name: {QWEN}}}\nengine: VLLM", {"phase": "decode"}),
    "areal": (
        f"experiment_name: x\nactor: {{path: {QWEN}, gradient_checkpointing: true}}\nrollout: {{}}",
        {"checkpointing": "full"},
    ),
    "veomni": (
        f"model: {{model_path: {QWEN}}}\ndata: {{max_seq_len: 512}}\n"
        "train: {micro_batch_size: 3, accelerator: {ulysses_size: 2}}",
        {"b": 3, "s": 512, "cp": 2},
    ),
    "torchforge": (
        f"model: {QWEN}\nsteps: 16\ntrainer:\n  model: {{name: qwen3}}\n"
        "  training: {local_batch_size: '${steps}', seq_len: 2048}",
        {"b": 16, "s": 2048},
    ),
    "dolomite": (f"model_args: {{model_name: {QWEN}}}\ntraining_parameters: {{micro_batch_size: 5}}", {"b": 5}),
    "rlinf": (f"actor: {{model: {{model_path: {QWEN}}}}}\nrunner: {{seq_length: 1024}}", {"s": 1024}),
    "roll": (
        f"pretrain: {QWEN}\nsequence_length: 4096\nactor_train:\n  training_args: {{per_device_train_batch_size: 2}}\n"
        "  strategy_args: {strategy_config: {tensor_model_parallel_size: 4}}",
        {"b": 2, "s": 4096, "t": 4},
    ),
    "easyr1": (
        "worker: {actor: {micro_batch_size_per_device_for_update: 2, ulysses_size: 2, "
        f"model: {{model_path: {QWEN}}}}}}}",
        {"b": 2, "cp": 2},
    ),
    "verl's fine-tuning": (
        f"data: {{max_length: 1024, micro_batch_size_per_gpu: 4}}\nmodel: {{partial_pretrain: {QWEN}, lora_rank: 8}}",
        {"b": 4, "s": 1024, "lora_rank": 8},
    ),
    "verl's generation": (
        f"model: {{path: {QWEN}}}\nrollout: {{name: vllm, tensor_model_parallel_size: 2}}",
        {"phase": "decode", "t": 2},
    ),
    "srt-slurm": (
        f"model: {{path: qwen}}\nresources: {{}}\nbackend: {{sglang_config: {{decode: {{served-model-name: {QWEN}, "
        "tensor-parallel-size: 4}}}",
        {"phase": "decode", "t": 4},
    ),
    "maxtext's command": (
        "model_name: qwen3-0.6b\nper_device_batch_size: 2\nmax_target_length: 512",
        {"b": 2, "s": 512},
    ),
    "maxtext's server": (
        "model_name: qwen3-0.6b\nper_device_batch_size: 2\nmax_prefill_predict_length: 512",
        {"phase": "decode"},
    ),
    "prime's hosted training": (f"model: {QWEN}\nmax_steps: 100\nrollouts_per_example: 8", {}),
    "a server's values": (f"model: {{id: {QWEN}}}\nsglang: {{tp-size: 4}}", {"phase": "decode", "t": 4}),
    "vllm-ascend's tests": (
        f"model_name: {QWEN}\nmodel_type: vllm\nserve: {{tensor_parallel_size: 2}}\ntasks: []",
        {"phase": "decode", "t": 2},
    ),
    "a type that is a server's": (f"model_name: {QWEN}\nmodel_type: hf", {}),
    "arctic": (
        f"type: sft\nmicro_batch_size: 1\nsequence_parallel_size: 4\nmodel: {{name_or_path: {QWEN}}}\n"
        "data: {sources: [x], max_length: 1_200}\ndeepspeed: {zero_optimization: {stage: 3}}",
        {"b": 1, "s": 1200, "cp": 4, "zero": 3},
    ),
    "autotrain, which recomputes unless told not to": (
        f"{{base_model: {QWEN}, project_name: x, params: {{batch_size: 2, block_size: 512, peft: true, "
        "quantization: int4, lora_r: 4}}",
        {"b": 2, "s": 512, "checkpointing": "full", "finetune": "qlora", "lora_rank": 4},
    ),
    "autotrain told not to": (
        f"{{base_model: {QWEN}, project_name: x, params: {{disable_gradient_checkpointing: true}}}}",
        {"checkpointing": None, "finetune": None},
    ),
    "ludwig": (
        f"model_type: llm\nbase_model: {QWEN}\nadapter: {{type: lora, r: 4}}\ntrainer: {{batch_size: 3}}",
        {"b": 3, "finetune": "lora", "lora_rank": 4},
    ),
    "h2o-llmstudio": (
        f"llm_backbone: {QWEN}\ntraining: {{batch_size: 3, lora: true, lora_r: 4}}\ntokenizer: {{max_length: 144}}",
        {"b": 3, "s": 144, "finetune": "lora", "lora_rank": 4},
    ),
    "transformers": (
        f"model_name: {QWEN}\nper_device_train_batch_size: 2\noptim: adafactor",
        {"b": 2, "optimizer": "adafactor"},
    ),
    "openrlhf": (
        f"pretrain: {QWEN}\nmicro_train_batch_size: 2\nzero_stage: 3\ngradient_checkpointing: true\nbf16: true",
        {"b": 2, "zero": 3, "checkpointing": "full", "dtype": "bf16"},
    ),
    "tgi": (f"model_id: {QWEN}\nnum_shard: 2", {"phase": "decode", "t": 2}),
    "lm-evaluation-harness": (f"pretrained: {QWEN}\ntasks: mmlu", {"phase": "decode"}),
    "llmc": (f"model: {{type: Qwen, path: {QWEN}}}\nquant: {{method: Awq}}", {}),
    "autotrain": (
        f"base_model: {QWEN}\nbackend: local\nparams: {{batch_size: 2, block_size: 2048, peft: true, lora_r: 4}}",
        {"b": 2, "s": 2048, "finetune": "lora", "lora_rank": 4},
    ),
    "realhf": (
        f"exp_ctrl: {{}}\nallocation_mode: manual\nmodel: {{path: {QWEN}}}\ndataset: {{max_seqlen: 1024}}\n"
        "allocation: {parallel: {model_parallel_size: 2, pipeline_parallel_size: 2, data_parallel_size: 4}}",
        {"s": 1024, "t": 2, "p": 2, "d": 4},
    ),
    "triton's charts": (
        f"model: {{name: {QWEN}, tensorrtLlm: {{parallelism: {{tensor: 2}}}}}}",
        {"phase": "decode", "t": 2},
    ),
    "llama_factory's inference": (f"model_name_or_path: {QWEN}\ninfer_backend: vllm", {"phase": "decode"}),
    "chatlearn": (
        f"models: {{policy: {{load: {QWEN}}}, policy_trainer: {{tensor_model_parallel_size: 2}}}}",
        {"t": 2},
    ),
    "truss": (
        f"model_name: Mine\nmodel_metadata: {{repo_id: no/such}}\ntrt_llm: {{build: {{tensor_parallel_count: 2, "
        f"checkpoint_repository: {{repo: {QWEN}}}}}}}",
        {"phase": "decode", "t": 2},
    ),
    "truss of a hub's model": (f"model_name: Mine\nmodel_metadata: {{repo_id: {QWEN}}}", {"phase": "decode"}),
    "hyperpod": (
        f"model_config: {{model_name_or_path: {QWEN}, peft_config: {{r: 4}}}}\n"
        "training_args: {micro_train_batch_size: 3, max_len: 144}",
        {"b": 3, "s": 144, "finetune": "lora", "lora_rank": 4},
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_trainers_recipe_is_read_as_the_model_that_it_names(name: str, tmp_path: Path) -> None:
    text, workload = RECIPES[name]
    found = read(tmp_path, text)
    assert found.model.parameters == 596_049_920
    assert {key: found.workload.get(key) for key in workload} == workload


def test_swift_trains_lora_where_its_command_does_not_say(tmp_path: Path) -> None:
    """BaseArguments of ms-swift: tuner_type "lora" of rank 8; Megatron-SWIFT's is full."""
    said = f"--model {QWEN} --torch_dtype bfloat16 --per_device_train_batch_size 1"
    own, full, megatron = (
        read(tmp_path, f"A=1 {command}", "train.sh").workload
        for command in (f"swift sft {said}", f"swift sft --tuner_type full {said}", f"megatron sft {said}")
    )
    assert (own["finetune"], own["lora_rank"], own["lora_targets"]) == ("lora", 8, "all-linear")
    assert full.keys() | megatron.keys() >= {"b"}
    assert "finetune" not in full.keys() | megatron.keys()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"swift sft --model {QWEN} --tuner_type full", {"checkpointing": "full"}),
        (f"swift sft --model {QWEN} --tuner_type full --gradient_checkpointing false", {"checkpointing": None}),
        (f"swift sft --model {QWEN} --torch_dtype bfloat16 --gradient_checkpointing", {"checkpointing": "full"}),
        (f"python train.py --model_name {QWEN} --train_type custom_qlora --context_length 512", {"finetune": "qlora"}),
        (f"python train.py --model_name {QWEN} --train_type custom_lora --context_length 512", {"finetune": "lora"}),
        (f'Z=$2\n[ -z "$Z" ] && Z=3\npython x.py --model_name_or_path {QWEN} --zero_stage $Z', {"zero": 3}),
        (
            f'Z=$2\nif [ "$Z" == "" ]; then Z=2; fi\npython x.py --model_name_or_path {QWEN} --zero_stage $Z',
            {"zero": 2},
        ),
        (f"python train.py --hf-checkpoint {QWEN} --loss-type sft_loss --tensor-model-parallel-size 2", {"zero": 1}),
        (
            f"train.py --hf-checkpoint {QWEN} --loss-type sft_loss --tensor-model-parallel-size 2 --optimizer muon",
            {"zero": None, "optimizer": "muon"},
        ),
        (f"python train.py --hf-checkpoint /root/{QWEN} --loss-type sft_loss --num-layers 28", {"zero": None}),
    ],
)
def test_what_a_trainers_command_says_of_its_step_is_taken(command: str, said: Any, tmp_path: Path) -> None:
    found = read(tmp_path, f"{command} --lr 1\n", "run.sh")
    assert ({key: found.workload.get(key) for key in said}, found.rounds, found.unread) == (said, {}, ())


def test_deepspeed_chats_reward_model_is_trained_on_pairs(tmp_path: Path) -> None:
    found = read(
        tmp_path, "deepspeed main.py --model_name_or_path gpt2 --num_padding_at_beginning 1 --lr 1\n", "run.sh"
    )
    assert [(one.key, one.changes[:25]) for one in found.unread if one.changes] == [
        ("num_padding_at_beginning", "the sequences of a step (")
    ]


def test_a_trainer_that_says_how_many_layers_train_states_no_model_of_its_own(tmp_path: Path) -> None:
    reading = read(tmp_path, f"mlx_lm.lora --model {QWEN} --train --num-layers 8 --batch-size 2 --iters 9", "run.sh")
    assert (reading.model.layers, reading.workload["finetune"], reading.workload["b"]) == (28, "lora", 2)
    assert any("on its last layers alone" in note for note in reading.notes)


def test_an_adapters_configuration_in_a_script_is_the_adapter_that_it_trains(tmp_path: Path) -> None:
    text = f"""model = AutoModelForCausalLM.from_pretrained("{QWEN}")
config = LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
model = get_peft_model(model, config)
trainer = Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=4))
"""
    found = read(tmp_path, text, "train.py").workload
    assert (found["b"], found["lora_rank"], found["lora_targets"]) == (4, 16, "q_proj,v_proj")


def test_commands_that_name_different_models_are_said(tmp_path: Path) -> None:
    runs = (f"python train.py --model_name {one} --train_type lora --context_length 64" for one in (QWEN, "gpt2"))
    reading = read(tmp_path, "\n".join(runs), "run.sh")
    assert any(note.startswith("several models") and QWEN in note and "gpt2" in note for note in reading.notes)


def test_a_degree_of_zero_is_none(tmp_path: Path) -> None:
    arctic = (
        "{type: sft, micro_batch_size: 1, sequence_parallel_size: 0, data: {sources: [x]}, model: {name_or_path: %s}}"
    )
    arctic %= QWEN
    assert "cp" not in read(tmp_path, arctic).workload


@pytest.mark.parametrize(
    ("name", "said"), [("???", "is empty; --set"), ("/base_model", "known here; --set"), ("acme/x", "--download")]
)
def test_a_name_that_is_none_is_not_asked_of_the_hub(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(NoModel, match=re.escape(said)) as error:
        read(tmp_path, f"name_or_path: {name}\nblock_name: QWenBlock\n")
    assert ("--download" in str(error.value)) is (name == "acme/x")


def test_a_model_that_is_built_of_its_own_classes_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(NoModel, match="known formats"):
        read(tmp_path, "model: {_target_: based.GPT, config: {_target_: based.Config, alt_mixer_layers: [1]}}")


def test_prime_rls_toml_is_read_and_torchtitans_is_no_such_file(tmp_path: Path) -> None:
    text = f'seq_len = 2048\n[model]\nname = "{QWEN}"\n[trainer.model.lora]\nrank = 32\n[orchestrator]\nx = 8\n'
    found = read(tmp_path, text, "rl.toml")
    assert (found.model.layers, found.workload["s"], found.workload["lora_rank"]) == (28, 2048, 32)
    titan = read(tmp_path, '[model]\nname = "llama3"\nflavor = "8B"\n[trainer]\n', "train.toml")
    assert titan.format == "torchtitan"


def test_xtuners_python_is_read_and_what_is_changed_in_place_counts(tmp_path: Path) -> None:
    text = f"""
pretrained_model_name_or_path = "{QWEN}"
max_length: int = 2048
batch_size = 1
accumulative_counts = 16
sequence_parallel_size = 4
accumulative_counts *= sequence_parallel_size
model = dict(type=Tuner, llm=dict(quantization_config=dict(type=Bits, load_in_4bit=True)), lora=dict(type=Lora, r=64))
"""
    found = read(tmp_path, text, "recipe.py")
    said = {"b": 1, "s": 2048, "cp": 4, "lora_rank": 64, "finetune": "qlora"}
    assert {key: found.workload[key] for key in said} == said
    assert any("64 microbatches accumulate" in one for one in found.notes)
    assert found.workload["checkpointing"] == "full"  # SupervisedFinetune's default
    without = text.replace("model = dict(", "model = dict(use_activation_checkpointing=False, ")
    assert "checkpointing" not in read(tmp_path, without, "recipe.py").workload


def test_what_is_changed_to_something_unknown_is_not_what_it_was_before(tmp_path: Path) -> None:
    found = read(
        tmp_path, "n_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 64\nblock_size *= scale\n", "train.py"
    )
    assert found.longest == 1024  # GPTConfig's


@pytest.mark.parametrize("key", ["model_id", "model.name_or_path", "policy.model_path"])
def test_a_file_of_no_format_is_read_as_the_model_that_a_usual_key_names(key: str, tmp_path: Path) -> None:
    found: Any = QWEN
    for part in reversed(key.split(".")):
        found = {part: found}
    assert read(tmp_path, json.dumps({"steps": 3, **found})).model.layers == 28


@pytest.mark.parametrize("key", ["tokenizer", "reward", "teacher_model", "image_processor", "schemas.model.example"])
def test_a_tokenizers_or_a_teachers_name_is_no_model_of_the_file(key: str, tmp_path: Path) -> None:
    with pytest.raises(NoModel, match="known formats"):
        read(tmp_path, json.dumps({"steps": 3, key: {"model_name_or_path": QWEN}}))


def test_a_recipe_that_states_another_size_than_the_model_it_names_is_refused(tmp_path: Path) -> None:
    text = f"model: {QWEN}\nmax_model_len: 64\nnum_hidden_layers: %s\n"
    assert read(tmp_path, text % 28).model.layers == 28
    with pytest.raises(InputError, match=r"num_hidden_layers = 24: expected the 28 of Qwen/Qwen3-0.6B"):
        read(tmp_path, text % 24)
    with pytest.raises(InputError, match=r"model\.override\.hidden_size = 512"):
        read(tmp_path, f"model: {{model_name: {QWEN}, override: {{hidden_size: 512}}}}\ntraining: {{}}\n")


MEGATRON = """
system: {tensor_model_parallel_size: 2, precision: {bf16: true}}
model: {num_layers: 2, hidden_size: 1024, num_attention_heads: 8, seq_length: 512, swiglu: true, multiple_of: 256%s}
data: {tokenizer: {tokenizer_type: X, vocab_size: 1000, make_vocab_size_divisible_by: 1}}
"""


def test_sections_in_sections_of_megatrons_arguments_are_opened(tmp_path: Path) -> None:
    found = read(tmp_path, MEGATRON % "")
    assert (found.workload["t"], found.workload["dtype"], found.model.vocab) == (2, "bf16", 1000)
    assert found.model.dense_mlp.width == 2816  # 2730 to the next multiple
    assert read(tmp_path, MEGATRON % ", hidden_dim_multiplier: 1.3").model.dense_mlp.width == 3584
    assert read(tmp_path, MEGATRON % ", ffn_hidden_size: 640").model.dense_mlp.width == 640


def test_an_old_scripts_method_of_recomputation_recomputes(tmp_path: Path) -> None:
    script = (
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
        "--vocab-size 128 --max-position-embeddings 64 --activations-checkpoint-method uniform\n"
    )
    assert read(tmp_path, script, "train.sh").workload["checkpointing"] == "full"


def test_llm_foundrys_own_model_is_no_name_of_another(tmp_path: Path) -> None:
    text = "dataset: {}\nscheduler: {}\nmodel: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, %s}\n"
    assert read(tmp_path, text % "expansion_ratio: 4, max_seq_len: 64, vocab_size: 128").format == "llm_foundry"


CONTAINER = """apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - image: {image}
          {command}
"""
ARGS = f'"--model", {QWEN}, --tensor-parallel-size, 4, --port, "8000"'


@pytest.mark.parametrize(
    ("text", "t"),
    [
        (CONTAINER.format(image="vllm/vllm-openai", command=f"args: [{ARGS}]"), 4),
        ("apiVersion: v1\nkind: Service\n---\n" + CONTAINER.format(image="x", command=f"command: [srv, {ARGS}]"), 4),
        (CONTAINER.format(image="x", command=f'command: [sh, -c, "set -e\\nvllm serve {QWEN} --port 1 --tp 2"]'), 2),
        (f"kind: Model\napiVersion: kubeai.org/v1\nspec: {{url: 'hf://{QWEN}', args: [--tensor-parallel-size=2]}}", 2),
        (f"servingEngineSpec: {{modelSpec: [{{modelURL: {QWEN}, vllmConfig: {{tensorParallelSize: 2}}}}]}}", 2),
        (f"deployment: [{{server_cmd: vllm serve {QWEN} --port 80 --tensor-parallel-size 4}}]", 4),
        (f"docker_server: {{start_command: sh -c 'vllm serve {QWEN} --tensor-parallel-size 4'}}", 4),
        (f"envs: {{M: {QWEN}, N: 2}}\nrun: |\n  vllm serve $M --tensor-parallel-size $N", 2),
        (f"env: {{T: {{secret: T}}, M: {QWEN}}}\nrun: [{{command: 'vllm serve $M --tensor-parallel-size 2'}}]", 2),
        (f"services: {{m: {{environment: ['M={QWEN}', D], command: --model $M --port 80}}}}", 1),
        (f"apiVersion: a/v1\nspec: [{{image: m, env: [{{name: MODEL_NAME, value: {QWEN}}}]}}]", 1),
        (f"vllm: {{replicaCount: 1, model: {{name: {QWEN}}}, tensorParallelSize: 2}}", 2),
        (f"run: lmdeploy serve api_server {QWEN} --tp 2 --server-port 80", 2),
        (f"services: {{vllm: {{image: vllm/vllm-openai, command: --model {QWEN} --port 8000}}}}", 1),
        (f"services: {{m: {{type: vllm, model: {QWEN}, tensor_parallel_size: 4}}}}", 4),
        (f"nodeSelector: {{}}\nbackend: {{vllmArgs: [--model={QWEN}, --tensor-parallel-size=2]}}", 2),
        (
            f"type: service\ncommands: [pip list, vllm serve {QWEN} --tp 2]\nmodel: {{name: facebook/opt-125m}}",
            2,
        ),
        (
            f"recipe_id: x\nrecipe_container_command_args: [--model, {QWEN}, --tensor-parallel-size, '2', --port, '1']",
            2,
        ),
        (
            f"sampleApplication: {{model: {{modelArtifactURI: 'pvc://claim/{QWEN}', modelName: q}}, "
            "decode: {extraArgs: [--tensor-parallel-size, '4']}}",
            4,
        ),
        (f"services: {{w: {{command: [python3, -m, dynamo.vllm], args: [--model, {QWEN}]}}}}", 1),
        (
            "kind: RayService\napiVersion: ray.io/v1\nspec:\n  serveConfigV2: |\n    applications:\n"
            f"    - {{import_path: s:d, runtime_env: {{env_vars: {{MODEL_ID: {QWEN}}}}}}}",
            1,
        ),
        (f"tgi: {{enabled: false}}\nvllm: {{LLM_MODEL_ID: {QWEN}, extraCmdArgs: [--tensor-parallel-size, '4']}}", 4),
        (f"kind: VLLMRuntime\napiVersion: a/v1\nspec: {{tensorParallelSize: 2, model: {{modelURL: {QWEN}}}}}", 2),
        ("services: {nim: {image: 'nvcr.io/nim/qwen/qwen3-0.6b:1.2'}}", 1),
        ("apiVersion: a/v1\nspec: {modelPuller: nvcr.io/nim/qwen/qwen3-0.6b, model: {tensorParallelism: '2'}}", 2),
        (
            f"scenario: [{{common: {{model: {{name: m, huggingfaceId: {QWEN}}}}}, "
            "modelservice: {decode: {parallelism: {tensor: 4}}}}]",
            4,
        ),
        (f"services: {{w: {{entrypoint: [python3, serve.py, --model-path, '${{A:-{QWEN}}}', --port, '1']}}}}", 1),
        (
            CONTAINER.format(
                image="ghcr.io/huggingface/text-generation-inference:3",
                command=f"env: [{{name: MODEL_ID, value: {QWEN}}}, {{name: NUM_SHARD, value: '2'}}]",
            ),
            2,
        ),
        (
            CONTAINER.format(
                image="x",
                command=f"args: [--model=$(MODEL_ID), --tp=$(N), --port=1]\n          env: [{{name: N, value: '8'}}, "
                f"{{name: SECRET, valueFrom: {{}}}}, {{name: MODEL_ID, value: {QWEN}}}]",
            ),
            8,
        ),
    ],
)
def test_a_manifest_is_read_as_the_server_that_its_containers_run(text: str, t: int, tmp_path: Path) -> None:
    reading = read(tmp_path, text)
    assert reading.model.layers == 28
    assert (reading.workload["phase"], reading.workload.get("t", 1)) == ("decode", t)


def test_what_an_image_serves_may_be_quantised_and_that_is_said(tmp_path: Path) -> None:
    reading = read(tmp_path, "services: {nim: {image: 'nvcr.io/nim/qwen/qwen3-0.6b:1.2'}}")
    assert any("may be quantised as they load" in one for one in reading.notes)


def test_of_a_sweep_what_its_runs_share_is_read_and_the_rest_is_named(tmp_path: Path) -> None:
    """W&B's: program, method and parameters, each with a value or with several."""
    text = f"""program: train.py
method: grid
parameters: {{model_id: {{value: {QWEN}}}, micro_batch_size: {{value: 2}}, max_seq_len: {{values: [512, 1024]}}}}
"""
    found = read(tmp_path, text)
    assert (found.model.layers, found.workload) == (28, {"b": 2})
    assert any(one.key == "sweep" and "max_seq_len" in one.value for one in found.unread)
    with pytest.raises(NoModel, match="speaks of a released model"):
        read(tmp_path, text.replace(f"value: {QWEN}", f"values: [{QWEN}, facebook/opt-125m]"))
    # Another program's method has parameters of its own.
    assert read(tmp_path, f"model_id: {QWEN}\nmethod: lora\nparameters: {{r: 8}}\nlr: 1\n").model.layers == 28


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("teacher_model: {_component_: torchtune.models.llama3_1.llama3_1_8b}", "teacher_model._component_"),
        ("teachers: [{model_name: Qwen/Qwen3-8B}]", "teachers"),
        (f"critic: {{model_name_or_path: {QWEN}}}", "critic.model_name_or_path"),
        ("adv_estimator: gae", "adv_estimator"),
        ("kl_loss_coef: 0.1", "kl_loss_coef"),
        ("training: {method: rlhf}", "training.method"),
        ("trainer: {ac: Offload}", "trainer.ac"),
        ("enable_expert_parallel: true", "enable_expert_parallel"),
        ("training: {ppo_epochs: 4}", "training.ppo_epochs"),
        ("use_dora: true", "use_dora"),
        ("peft: {exclude_modules: ['*out_proj*']}", "peft.exclude_modules"),
        ("megatron_cfg: {num_layers_in_last_pipeline_stage: 9}", "megatron_cfg.num_layers_in_last_pipeline_stage"),
        ("ray_num_workers: 4", "ray_num_workers"),
        ("dist_config: {name: fsdp2}", "dist_config.name"),
        ("generation: {vllm_cfg: {precision: fp8}}", "generation.vllm_cfg.precision"),
        ("loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}", "loss._component_"),
    ],
)
def test_what_a_recipe_runs_besides_its_step_is_named(text: str, key: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"{TRL}learning_rate: 1\n{text}\n")
    assert key in [one.key for one in found.unread]


def test_unsloths_recomputation_is_full_and_what_it_moves_is_said(tmp_path: Path) -> None:
    found = read(tmp_path, f"{TRL}stage: sft\nfinetuning_type: full\nuse_unsloth_gc: true\n")
    assert found.workload["checkpointing"] == "full"
    assert any("use_unsloth_gc" in one for one in found.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pure_bf16: true", {"precision": "bf16", "optimizer": "adamw-bf16"}),
        ("use_muon: true", {"optimizer": "muon"}),
        ("enable_liger_kernel: true", {"loss": "fused"}),
        ("optim: adamw_torch_8bit", {"optimizer": "adamw-8bit"}),
        ("attn_implementation: eager", {"attention": "eager"}),
        ("flash_attn: disabled", {"attention": "eager"}),
        ("flash_attn: fa2", {}),
        ("per_device_train_batch_size: '2'", {"b": 2}),  # as SageMaker's hyperparameters are
    ],
)
def test_a_trainers_switch_is_read_as_the_workload_that_it_makes(text: str, said: Any, tmp_path: Path) -> None:
    assert read(tmp_path, f"{TRL}learning_rate: 1\n{text}\n").workload == said


@pytest.mark.parametrize(
    "model", ["model: {model_id: %s}", "model: %s\nmax_model_len: 512", "generation: {model_name: %s}"]
)
def test_a_file_that_trains_is_no_servers_whatever_names_its_model(model: str, tmp_path: Path) -> None:
    said = f"{model % QWEN}\n"
    assert read(tmp_path, said).workload["phase"] == "decode"
    found = read(tmp_path, f"{said}stage: {{per_device_train_batch_size: 2}}\n")
    assert (found.workload["b"], "phase" in found.workload) == (2, False)


def test_all_arguments_of_megatron_are_read_with_their_environment(tmp_path: Path) -> None:
    """Of a dump of every argument those of images and of Mamba layers say nothing without such layers."""
    text = MEGATRON % ", mamba_head_dim: 64, num_classes: 1000, img_h: 224, vision_pretraining: false"
    found = read(tmp_path, f"{text}env: {{NCCL_NET_GDR_LEVEL: 2, ARCH: x}}\n")
    assert (found.model.layers, found.format) == (2, "megatron")
    assert not any("vision tower" in one for one in found.notes)
    with pytest.raises(InputError, match=r"num_classes = 1000.* --set num_classes=null"):
        read(tmp_path, MEGATRON % ", num_classes: 1000")
    file = tmp_path / "recipe.yaml"
    assert read_config(file, settings={"num_classes": None}).model.layers == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (  # of older files, whose microbatch is that of all that are no copies' parts
            f"""trainer: {{n_gpus_per_node: 8, nnodes: 1}}
actor_rollout_ref: {{model: {{path: {QWEN}}}, actor: {{ppo_micro_batch_size: 64, ppo_mini_batch_size: 256,
  megatron: {{tensor_model_parallel_size: 4, pipeline_model_parallel_size: 1, sequence_parallel: true}}}}}}""",
            {"t": 4, "d": 2, "b": 32, "global_batch": 256, "sequence_parallel": True, "zero": 1},
        ),
        (
            f"""actor_rollout_ref: {{model: {{path: {QWEN}}}, rollout: {{n: 4}},
  actor: {{ppo_micro_batch_size_per_gpu: 2, ppo_mini_batch_size: 64}}}}
trainer: {{n_gpus_per_node: 8, nnodes: 1}}""",
            {"d": 8, "b": 2, "global_batch": 256, "zero": 3},
        ),
        (
            f"""model: {{partial_pretrain: {QWEN}}}
data: {{micro_batch_size_per_gpu: 4, train_batch_size: 256}}
trainer: {{n_gpus_per_node: 8, nnodes: 2}}""",
            {"d": 16, "b": 4, "global_batch": 256, "zero": 3},
        ),
    ],
)
def test_verls_batches_are_split_over_its_devices(text: str, said: Any, tmp_path: Path) -> None:
    workload = read(tmp_path, text).workload
    assert {key: workload.get(key) for key in said} == said


def test_torchtunes_ppo_is_read_by_its_checkpoint_with_what_runs_besides(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """policy_model: {_component_: torchtune.models.mistral.mistral_7b}
reward_and_value_model: {_component_: torchtune.models.mistral.mistral_classifier}
checkpointer: {checkpoint_dir: /tmp/Mistral-7B-Instruct-v0.2/}
dtype: bf16
ppo_batch_size: 64
gradient_accumulation_steps: 4
forward_batch_size: 32
tokenizer: {max_seq_len: 512}
max_generated_tokens: 58
""",
    )
    assert (found.model.layers, found.workload["precision"]) == (32, "bf16")
    assert {key: found.workload[key] for key in ("b", "s")} == {"b": 16, "s": 570}
    assert found.rounds["decode"] == {"context": 570, "b": 32}
    assert any("a value model trains" in one for one in found.notes)


def test_a_recipe_whose_quantisation_is_a_section_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, f"model: {QWEN}\nmax_model_len: 64\nquantization: {{bits: 4}}\n")
    assert found.model.layers == 28


def test_of_several_served_models_the_first_is_read_and_that_is_said(tmp_path: Path) -> None:
    text = f"servingEngineSpec: {{modelSpec: [{{modelURL: {QWEN}}}, {{modelURL: facebook/opt-125m}}]}}"
    reading = read(tmp_path, text)
    assert reading.model.layers == 28
    assert any("several models" in note and "opt-125m" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: v1\nkind: Service\n", "known formats"),
        ("apiVersion: v1\n---\na: 1\n", "one document"),
        (CONTAINER.format(image="x", command="args: [--port, '80']"), "states a model"),
        (CONTAINER.format(image="x", command="args: [--model=$(MODEL_ID), --port=1]"), "a path is not followed"),
        ("apiVersion: v1\nspec: {url: https://example.org/a/b}\n", "known formats"),
        ("apiVersion: v1\nspec: {args: [ollama, pull, 'mistral:7b-instruct']}\n", "speaks of ollama's mistral:7b"),
        ("{{- if .Values.on }}\napiVersion: v1\n{{- end }}\n", "it is a template: give the values that fill it"),
    ],
)
def test_a_manifest_without_a_model_is_refused_in_a_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"curl localhost/v1/completions -d '{{model: {QWEN}}}'\n", "run.sh"),
        (f"queue: [a]\nnote: of {QWEN}\n", "jobs.yaml"),
        (f"M=${{M:-{QWEN}}}\n", "run.sh"),
        (f"STEPS = 10\nprint('{QWEN}')\n", "train.py"),
    ],
)
def test_a_refusal_names_the_released_model_that_the_file_speaks_of(text: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"speaks of a released model: sizer check {QWEN}$"):
        read(tmp_path, text, name)


def test_of_several_nodes_a_script_runs_what_the_first_does(tmp_path: Path) -> None:
    run = f"python -m lightllm.server.api_server --model_dir {QWEN} --tp 8 --port 1"
    text = f'if [ "$NODE_RANK" -eq 0 ]; then\n  {run}\nfi\n'
    found = read(tmp_path, text, "run.sh")
    assert (found.model.layers, found.workload["t"]) == (28, 8)
    with pytest.raises(InputError, match="states a model"):
        read(tmp_path, text.replace("NODE_RANK", "STAGE"), "run.sh")


@pytest.mark.parametrize("asked", ['"${BASH_SOURCE[0]}" == "${0}"', '"$BASH_SOURCE" = "$0"'])
def test_a_script_that_asks_whether_it_is_the_one_run_is(asked: str, tmp_path: Path) -> None:
    text = f'main() {{\n  vllm serve {QWEN} --port 1\n}}\nif [[ {asked} ]]; then main "$@"; fi\n'
    assert read(tmp_path, text, "run.sh").workload["phase"] == "decode"
    with pytest.raises(InputError, match="states a model"):
        read(tmp_path, text.replace("==", "!=").replace(" = ", " != "), "run.sh")


def test_a_script_that_another_one_reads_in_is_not_the_one_run(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text(
        f'if [[ "${{BASH_SOURCE[0]}}" == "${{0}}" ]]; then vllm serve {QWEN} --port 1 -tp 4; fi\n'
    )
    own = f'if [[ "${{BASH_SOURCE[0]}}" == "$0" ]]; then vllm serve {QWEN} --port 1 -tp 2; fi\n'
    assert read(tmp_path, f"source common.sh\n{own}", "run.sh").workload["t"] == 2


@pytest.mark.parametrize("test", ["true", "[ $turn -lt 3 ]", ":"])
def test_what_a_loop_runs_is_followed_where_its_test_holds(test: str, tmp_path: Path) -> None:
    text = f"turn=0\nwhile {test}; do\n  vllm serve {QWEN} --port 1 -tp 2\n  turn=$((turn + 1))\ndone\n"
    found = read(tmp_path, text, "run.sh")
    assert (found.workload["t"], [one for one in found.notes if "only running" in one]) == (2, [])
    for other in ("false", "[ $turn -gt 3 ]", "read line"):
        with pytest.raises(InputError, match="states a model"):
            read(tmp_path, text.replace(test, other, 1), "run.sh")


SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --port 1 --tp 8"


def test_an_expert_of_a_server_is_cut_over_the_ranks_that_hold_it(tmp_path: Path) -> None:
    found = read(tmp_path, f"{SGLANG} --ep-size 4\n", "run.sh")
    assert {key: found.workload[key] for key in ("t", "e", "etp")} == {"t": 8, "e": 4, "etp": 2}
    assert "etp" not in read(tmp_path, f"{SGLANG}\n", "run.sh").workload
    assert "etp" not in read(tmp_path, f"{SGLANG} --ep-size 1\n", "run.sh").workload
    spread = read(tmp_path, f"{SGLANG} --ep-size 1 --dp 4 --enable-dp-attention\n", "run.sh").workload
    assert {key: spread[key] for key in ("t", "d", "etp")} == {"t": 2, "d": 4, "etp": 8}


def test_the_type_of_a_servers_cache_is_read_and_an_unknown_one_named(tmp_path: Path) -> None:
    found = read(tmp_path, f"{SGLANG} --kv-cache-dtype fp8_e5m2\n", "run.sh")
    assert (found.workload["kv_dtype"], found.unread) == ("fp8", ())
    assert read(tmp_path, f"{SGLANG} --kv-cache-dtype auto\n", "run.sh").unread == ()
    found = read(tmp_path, f"{SGLANG} --kv-cache-dtype fp4_e2m1\n", "run.sh")
    assert ([one.key for one in found.unread], "kv_dtype" in found.workload) == (["kv_cache_dtype"], False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tp 8 --dp 8", {"t": 1, "d": 8, "etp": 8}),
        ("--tp 8 --dp 4 --enable_ep_moe", {"t": 2, "d": 4, "e": 8, "etp": 1}),
        ("--tp 4", {"t": 4}),
    ],
)
def test_lightllms_attention_runs_on_its_ranks_split_by_dp(options: str, said: dict[str, int], tmp_path: Path) -> None:
    run = f"python -m lightllm.server.api_server --model_dir Qwen/Qwen3-30B-A3B --port 1 {options}\n"
    workload = read(tmp_path, run, "run.sh").workload
    assert {key: workload[key] for key in ("t", "d", "e", "etp") if key in workload} == said


def test_openrlhfs_actor_has_its_devices_ring_and_offload(tmp_path: Path) -> None:
    run = f"python -m openrlhf.cli.train_ppo_ray --pretrain {QWEN} --zero_stage 3 --micro_train_batch_size 2"
    workload = read(tmp_path, f"{run} --actor_num_nodes 2 --actor_num_gpus_per_node 8\n", "run.sh").workload
    assert (workload["gpus"], "cp" in workload, "offload" in workload) == (16, False, False)
    workload = read(tmp_path, f"{run} --ring_attn_size 2 --adam_offload\n", "run.sh").workload
    assert (workload["cp"], workload["offload"], "gpus" in workload) == (2, 1, False)


def test_openrlhfs_dotted_options_say_what_its_plain_ones_said(tmp_path: Path) -> None:
    run = f"""python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path {QWEN} --actor.num_nodes 1 \\
  --actor.num_gpus_per_node 8 --actor.gradient_checkpointing_enable --ds.zero_stage 2 --ds.packing_samples \\
  --train.batch_size 1024 --train.micro_batch_size 2 --data.max_len 9216 --rollout.max_new_tokens 8192 \\
  --rollout.batch_size 512 --rollout.n_samples_per_prompt 1 --vllm.num_engines 8 --vllm.tensor_parallel_size 2\n"""
    found = read(tmp_path, run, "run.sh")
    said = {"b": 2, "s": 9216, "zero": 2, "global_batch": 1024, "checkpointing": "full", "gpus": 8}
    assert {key: found.workload.get(key) for key in said} == said
    decode = found.rounds["decode"]
    assert (decode["b"], decode["context"], decode["t"]) == (64, 9216, 2)
    judges = f"deepspeed --module openrlhf.cli.train_rm --model.model_name_or_path {QWEN} --ds.zero_stage 3\n"
    assert [one.key for one in read(tmp_path, judges, "run.sh").unread] == ["module"]


@pytest.mark.parametrize(
    "options",
    [
        f"--hf-checkpoint {QWEN} --tensor-model-parallel-size 2",
        "--num-rollout 8 --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --vocab-size 1000",
    ],
)
def test_slime_always_turns_the_distributed_optimizer_on(options: str, tmp_path: Path) -> None:
    run = f"python3 train.py --micro-batch-size 1 --seq-length 2048 --position-embedding-type rope {options}\n"
    assert read(tmp_path, run, "run.sh").workload["zero"] == 1
    run = f"python3 train.py --micro-batch-size 1 --hf-checkpoint {QWEN} --train-backend fsdp\n"
    found = read(tmp_path, run, "run.sh")
    assert "zero" not in found.workload
    assert "train_backend" in [one.key for one in found.unread]


def test_a_recipes_fused_loss_keeps_no_logits_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "l.yaml"
    path.write_text(f"{TRL}learning_rate: 1\nper_device_train_batch_size: 4\nenable_liger_kernel: true\n")
    fused, asked = sizer.memory(path), sizer.memory(path, loss="fp32")
    assert sizer.check(path).step
    assert fused.memory.total_bytes < asked.memory.total_bytes


def test_openrlhfs_generation_is_decoding_and_comes_after_its_training(tmp_path: Path) -> None:
    run = f"python -m openrlhf.cli.batch_inference --eval_task generate_vllm --pretrain {QWEN} --tp_size 4\n"
    found = read(tmp_path, run, "run.sh").workload
    assert (found["phase"], found["t"]) == ("decode", 4)
    trains = f"deepspeed --module openrlhf.cli.train_dpo --pretrain {QWEN} --max_len 512 --micro_train_batch_size 2\n"
    found = read(tmp_path, run + trains, "run.sh").workload
    assert (found.get("phase"), found["s"], found["b"]) == (None, 512, 2)


def test_verls_devices_hold_its_experts(tmp_path: Path) -> None:
    actor = "actor_rollout_ref.actor.megatron."
    run = f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B trainer.nnodes=4 {actor}"
    run += f"tensor_model_parallel_size=2 {actor}expert_model_parallel_size=8 trainer.n_gpus_per_node=8"
    run += f" {actor}pipeline_model_parallel_size=1"
    workload = read(tmp_path, f"{run} {actor}expert_tensor_parallel_size=1\n", "run.sh").workload
    assert {key: workload[key] for key in ("gpus", "t", "e", "etp")} == {"gpus": 32, "t": 2, "e": 8, "etp": 1}
    assert "etp" not in read(tmp_path, f"{run} {actor}expert_tensor_parallel_size=null\n", "run.sh").workload
    few = run.replace("n_gpus_per_node=8", "n_gpus_per_node=0")  # of the environment, which has others
    assert "gpus" not in read(tmp_path, f"{few}\n", "run.sh").workload


def test_a_command_whose_time_is_taken_is_followed(tmp_path: Path) -> None:
    text = f"serve() {{\n  vllm serve {QWEN} --port 1\n}}\ntime serve\n"
    assert read(tmp_path, text, "run.sh").workload["phase"] == "decode"


def test_verls_microbatch_of_all_devices_is_each_ones_share(tmp_path: Path) -> None:
    run = f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path={QWEN} trainer.n_gpus_per_node=8"
    found = read(tmp_path, f"{run} trainer.nnodes=2 actor_rollout_ref.actor.ppo_micro_batch_size=64\n", "run.sh")
    assert (found.workload["b"], [one.key for one in found.unread]) == (4, [])


def test_of_commands_that_merge_and_that_train_the_one_that_trains_is_read(tmp_path: Path) -> None:
    merged = f"python merge_lora.py --model_path {QWEN} --output out/merged\n"
    assert read(tmp_path, f"{merged}python train.py{TRAINS}\n", "run.sh").workload["b"] == 2
    with pytest.raises(InputError, match=r"model_path = 'out/merged'.* no model of this name is known"):
        read(tmp_path, f"{merged}python train.py --model_path out/merged --learning_rate 1e-4\n", "run.sh")
    with pytest.raises(InputError, match="it exports a model"):
        read(tmp_path, merged, "run.sh")


def test_a_snapshot_of_the_hubs_cache_is_the_model_that_it_is_of(tmp_path: Path) -> None:
    text = "vllm serve $HF_HUB_CACHE/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12 --port 1\n"
    assert read(tmp_path, text, "serve.sh").model.layers == 28


def test_what_a_script_downloads_is_not_what_it_runs(tmp_path: Path) -> None:
    run = f"python run.py --model_name models/{QWEN} --temperature 0.6 --max_new_tokens 100 --top_p 1\n"
    found = read(tmp_path, f"python download.py --model_name {QWEN}\n{run}", "run.sh")
    assert found.workload == {"phase": "decode"}


def test_one_of_a_scripts_list_is_taken_by_its_number(tmp_path: Path) -> None:
    loop = "for ((i=0; i<${#M[@]}; i++)); do\n  vllm serve ${M[$i]} --port 1 --tp $((${#M[@]}))\ndone\n"
    found = read(tmp_path, f"M=({QWEN} facebook/opt-125m)\n{loop}", "serve.sh")
    assert (found.model.layers, found.workload["t"]) == (28, 2)
    found = read(tmp_path, f"M=(facebook/opt-125m {QWEN})\nvllm serve ${{M[2 - 1]}} --port 1\n", "serve.sh")
    assert found.model.layers == 28


@pytest.mark.parametrize(
    "command",
    [
        "env TP=2 bash run.sh {}",
        "TP=2 exec scripts/run.sh {}",
        "export TP=2; srun -N 1 bash ./run.sh {}",
        "f() {{ TP=2; bash run.sh $@; }}; f {}",
    ],
)
def test_a_script_that_another_runs_is_followed_with_its_arguments(command: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text('PORT=$2\nvllm serve "$@" --tensor-parallel-size ${TP:-4}')
    asked = f"{QWEN} --pipeline-parallel-size 2"
    found = read(tmp_path, command.format(asked) + "\necho $PORT\n", "launch.sh")
    assert found.model == read_config(QWEN).model
    assert found.workload == {"phase": "decode", "t": 2, "p": 2}


def test_what_a_script_that_another_runs_sets_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "one.sh").write_text("MODEL=Qwen/Qwen3-8B\nbash one.sh\n")  # and it runs itself
    text = f"./one.sh a b\nvllm serve ${{MODEL:-{QWEN}}} $1 --port 8000\n"
    assert read(tmp_path, text, "launch.sh").model == read_config(QWEN).model


def test_of_several_commands_of_one_model_one_is_read_and_that_is_said(tmp_path: Path) -> None:
    run = f"python train.py --model_name_or_path {QWEN} --per_device_train_batch_size "
    notes = [read(tmp_path, text, "run.sh").notes for text in (f"{run}1\n{run}2\n", f"{run}1\n{run}1\n")]
    said = "several commands name it, with other options; the first is read"
    assert [any(one.startswith(said) for one in each) for each in notes] == [True, False]


def test_a_section_whose_key_has_dots_is_a_section(tmp_path: Path) -> None:
    """As LightningCLI's files have it."""
    inner = f"{{model: {{model_config: {{hf_path: {QWEN}, enable_gradient_checkpointing: true}}}}}}"
    found = read(tmp_path, f"model: {{init_args.config: {inner}}}\ndata: {{max_length: 256}}\noptimizer: {{lr: 1}}")
    assert (found.model.layers, found.workload) == (28, {"s": 256, "checkpointing": "full"})
    text = f"model: {{True: {{x.hf_path: {QWEN}}}}}\noptimizer: {{lr: 1}}\n"  # a key that is no text
    assert read(tmp_path, text).model.layers == 28


def test_a_tokenizers_longest_sequence_is_the_trainers_where_nothing_else_is(tmp_path: Path) -> None:
    text = f"model_cfgs: {{model_path: {QWEN}, tokenizer_args: {{model_max_length: 512}}}}\nlearning_rate: 1\n"
    assert read(tmp_path, text).workload == {"s": 512}
    assert read(tmp_path, f"{text}tokenizer: {{max_new_tokens: 5}}\nmax_seq_length: 512\n").workload == {"s": 512}


def test_torchtunes_qlora_has_a_base_of_four_bits(tmp_path: Path) -> None:
    text = "model: {{_component_: torchtune.models.llama3_1.{}lora_llama3_1_8b, lora_rank: 8}}\n"
    text += "checkpointer: {{checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}}\nbatch_size: 2\n"
    said = [read(tmp_path, text.format(q)).workload for q in ("", "q")]
    assert [(one["finetune"], one["b"], one["lora_rank"]) for one in said] == [("lora", 2, 8), ("qlora", 2, 8)]
    assert said[1]["base"] == "nf4-16"  # TorchAO's: what is not in 4 bits stays as it is loaded


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("torch.optim.AdamW", "adamw-bf16"),
        ("bitsandbytes.optim.PagedAdamW", "adamw-fp32"),
        ("torchao.optim.AdamW8bit", None),
    ],
)
def test_torchtunes_dtype_is_that_of_weights_and_moments(optimizer: str, said: str | None, tmp_path: Path) -> None:
    """Bitsandbytes' moments are fp32 whatever the weights are in."""
    text = f"""model: {{_component_: torchtune.models.llama3_1.llama3_1_8b}}
checkpointer: {{checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}}
optimizer: {{_component_: {optimizer}}}
optimizer_in_bwd: true
dtype: bf16
"""
    found = read(tmp_path, text)
    known = {"torchao.optim.AdamW8bit": "adamw-8bit"}.get(optimizer, said)
    assert (found.workload["precision"], found.workload.get("optimizer")) == ("bf16", known)
    each = {"adamw-bf16": 4.0, "adamw-fp32": 8.0}.get(known or "")
    states = memory(found.model, Workload(**found.workload)).components["optimizer_states"]
    assert each is None or states == each * found.model.parameters
    assert any("optimizer_in_bwd" in one for one in found.notes)
    plain = read(tmp_path, text.replace("dtype: bf16", "dtype: fp32")).workload
    assert (plain["precision"], plain["dtype"]) == ("fp32", "fp32")
    half = read(tmp_path, text.replace("dtype: bf16", "dtype: fp16"))
    assert half.workload["dtype"] == "fp16"
    assert any("weights and moments in fp16 alone (dtype)" in one for one in half.notes)


@pytest.mark.parametrize("name", ["adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"])
def test_transformers_trainer_keeps_an_embeddings_moments_in_fp32(name: str, tmp_path: Path) -> None:
    """Its trainer.py registers ``optim_bits`` 32 for each nn.Embedding; bitsandbytes by itself does not, nor LoRA."""
    text = f"model_name_or_path: {QWEN}\nstage: sft\nfinetuning_type: {{}}\noptim: {name}\n"
    full, lora = (read(tmp_path, text.format(how)) for how in ("full", "lora"))
    assert [one.workload["optimizer"] for one in (full, lora)] == ["adamw-8bit-trainer", "adamw-8bit"]
    states = [
        memory(full.model, Workload(precision="bf16", optimizer=how)).components["optimizer_states"]
        for how in ("adamw-8bit-trainer", "adamw-8bit")
    ]
    embedding = full.model.vocab * full.model.hidden
    assert states[0] - states[1] == embedding * 6 - embedding // 256 * 8


@pytest.mark.parametrize(
    "text",
    [
        f"model_name_or_path: {QWEN}\nstage: sft\nfinetuning_type: lora\nlora_dropout: P\n"
        "disable_gradient_checkpointing: true",
        f"base_model: {QWEN}\nadapter: lora\nlora_r: 8\nlora_dropout: P\nmicro_batch_size: 1",
        "model: {_component_: torchtune.models.qwen2_5.lora_qwen2_5_7b_instruct, lora_rank: 8, lora_dropout: P}\n"
        f"checkpointer: {{checkpoint_dir: /tmp/{QWEN}}}\nbatch_size: 1",
        "checkpoint_dir: checkpoints/microsoft/phi-2\nlora_r: 8\nlora_dropout: P\ntrain: {micro_batch_size: 1}",
    ],
)
def test_a_recipes_dropout_of_adapters_is_in_what_they_save(text: str, tmp_path: Path) -> None:
    """An adapter's dropout saves what is left of its input, and a mask."""
    with_it, without = (read(tmp_path, text.replace("P", p)) for p in ("0.05", "0.0"))
    assert (with_it.workload["lora_dropout"], without.workload.get("lora_dropout")) == (0.05, None)
    saved = [memory(one.model, Workload(**one.workload)).components["activations"] for one in (with_it, without)]
    assert saved[0] > saved[1]


def test_a_training_scripts_degree_does_not_make_it_a_server(tmp_path: Path) -> None:
    found = read(tmp_path, f"torchrun train.py --model_path {QWEN} --tp_size 2 --train_batch_size 1\n", "train.sh")
    assert "phase" not in found.workload
    with pytest.raises(InputError, match="states a model"):
        read(tmp_path, "optimum-cli neuron serve -m ${MODEL_ID} --tensor_parallel_size 8\n", "serve.sh")


def test_a_command_of_no_trainer_is_read_as_the_model_that_a_usual_option_names(tmp_path: Path) -> None:
    found = read(tmp_path, f"torchrun finetune.py --model_id {QWEN} --max_steps 3 --zero_1\n", "train.sh")
    assert found.model.layers == 28
    assert any("of the recipe's keys model_id are read, and no others" in note for note in found.notes)
    with pytest.raises(InputError, match="states a model"):
        read(tmp_path, "swift sft --model_name swift-robot --max_steps 3\n", "train.sh")


@pytest.mark.parametrize(
    ("said", "rank", "told"),
    [
        ("--use_lora", 8, True),
        ("--lora_enable True", 8, True),
        ("--use_peft", 16, True),
        ("--use_lora False --lora_r 4", None, False),
        ("--lora_dim 128", 128, False),
        ("--lora_dim 0", None, False),
        ("--use_llm_lora 16", 16, False),
        ("--use_lora --lora_r 4", 4, False),
        ("", None, False),
    ],
)
def test_lora_is_read_as_programs_spell_it_and_a_rank_that_they_leave_out_is_told(
    said: str, rank: int | None, told: bool, tmp_path: Path
) -> None:
    found = read(tmp_path, f"python train.py --model_name_or_path {QWEN} --output_dir o {said}\n", "train.sh")
    assert found.workload.get("lora_rank") == rank
    assert found.workload.get("finetune") == ("lora" if rank else None)
    assert any("LoRA without a rank" in note for note in found.notes) is told


def test_qlora_without_loras_own_switch_is_no_full_fine_tuning(tmp_path: Path) -> None:
    found = read(tmp_path, f"python train.py --model_name_or_path {QWEN} --output_dir o --use_qlora 1\n", "train.sh")
    assert (found.workload["finetune"], found.workload["lora_rank"]) == ("qlora", 8)
    found = read(tmp_path, f"python q.py --model_name_or_path {QWEN} --output_dir o --bits 4 --lora_r 64\n", "train.sh")
    assert (found.workload["finetune"], found.workload["lora_rank"]) == ("qlora", 64)


def test_the_samples_of_a_ppo_update_are_no_finding_and_trls_minibatch_is(tmp_path: Path) -> None:
    own = f"actor_rollout_ref: {{model: {{path: {QWEN}}}, actor: {{ppo_mini_batch_size: 256}}}}"
    assert not [one for one in read(tmp_path, own, "a.yaml").unread if "mini_batch" in one.key]
    trl = f"{{model_name_or_path: {QWEN}, learning_rate: 1e-5, mini_batch_size: 4}}"
    assert [one.key for one in read(tmp_path, trl, "b.yaml").unread] == ["mini_batch_size"]


#: Recipes of reinforcement learning that say a round of 1,024 tokens of prompt and 3,072 new ones.
ROUNDS = {
    "verl": f"""data: {{max_prompt_length: 1024, max_response_length: 3072, train_batch_size: 64}}
actor_rollout_ref:
  model: {{path: {QWEN}}}
  actor: {{use_kl_loss: true, ppo_micro_batch_size_per_gpu: 2}}
  rollout: {{n: 8, tensor_model_parallel_size: 2}}
trainer: {{n_gpus_per_node: 8, nnodes: 2}}""",
    "easyr1": f"""data: {{max_prompt_length: 1024, max_response_length: 3072, rollout_batch_size: 64}}
worker:
  actor: {{model: {{model_path: {QWEN}}}, micro_batch_size_per_device_for_update: 2}}
  rollout: {{n: 8, tensor_parallel_size: 2}}
trainer: {{n_gpus_per_node: 8, nnodes: 2}}""",
    "nemo_rl": f"""policy:
  {{model_name: {QWEN}, max_total_sequence_length: 4096, train_micro_batch_size: 2,
    generation: {{max_new_tokens: 3072, vllm_cfg: {{tensor_parallel_size: 2}}}}}}
grpo: {{num_prompts_per_step: 64, num_generations_per_prompt: 8}}
cluster: {{gpus_per_node: 8, num_nodes: 2}}""",
    "openrlhf": f"""pretrain: {QWEN}
prompt_max_len: 1024
generate_max_len: 3072
rollout_batch_size: 64
n_samples_per_prompt: 8
vllm_num_engines: 8
vllm_tensor_parallel_size: 2
micro_train_batch_size: 2""",
    "slime": f"""hf_checkpoint: {QWEN}
rollout_max_prompt_len: 1024
rollout_max_response_len: 3072
rollout_batch_size: 64
n_samples_per_prompt: 8
rollout_num_gpus_per_engine: 2
actor_num_nodes: 2
actor_num_gpus_per_node: 8
micro_batch_size: 2""",
    "skyrl": f"""trainer:
  {{policy: {{model: {{path: {QWEN}}}}}, train_batch_size: 64, micro_train_batch_size_per_gpu: 2}}
generator:
  {{max_input_length: 1024, sampling_params: {{max_generate_length: 3072}}, n_samples_per_prompt: 8,
    num_inference_engines: 8, inference_engine_tensor_parallel_size: 2}}""",
}


@pytest.mark.parametrize("name", ROUNDS)
def test_a_recipe_of_reinforcement_learning_answers_each_workload_with_its_share(name: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(ROUNDS[name], "utf-8")
    train, decode, prefill = sizer.check(file), sizer.check(file, phase="decode"), sizer.check(file, phase="prefill")
    # 64 prompts x 8 answers on 8 engines of 2 devices: 64 requests at once in each.
    assert (decode.workload.t, decode.workload.b, decode.workload.context) == (2, 64, 4096)
    assert (train.workload.b, train.workload.s, prefill.workload.s) == (2, 4096, 4096)
    assert train.step_s
    assert decode.step_s
    assert prefill.step_s
    passes = 1 if name == "slime" else 2
    took = (
        train.step_s / 2,
        decode.step_s * 2 / 64 * 3072,
        prefill.step_s / prefill.workload.b * passes,
    )
    training, rollouts, forward = (f"{one / sum(took):.0%}" for one in took)
    told = next(note for note in train.model.notes if "of a round's device time" in note)
    assert told.endswith(
        f"4,096 tokens, 3,072 of them new, this training is {training}, rollouts {rollouts}, "
        f"forward passes ({passes}) {forward}"
    )
    assert not any("of a round's" in note for note in decode.model.notes)


def test_a_round_of_slime_s_has_shares_where_the_prompts_length_is_not_said(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(ROUNDS["slime"].replace("rollout_max_prompt_len: 1024\n", ""), "utf-8")
    notes = sizer.check(file).model.notes
    assert any("of a round's device time at 3,072 tokens, 3,072 of them new" in note for note in notes)
    assert sizer.check(file, phase="decode").workload.context == 3072


@pytest.mark.parametrize("length", ["$LENGTH", "0", "-1", "[1]", "null", ".inf", "9999999999999999"])
def test_a_recipe_that_does_not_hold_its_lengths_has_no_shares(length: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(ROUNDS["verl"].replace("max_response_length: 3072", f"max_response_length: {length}"), "utf-8")
    assert not any("of a round's device time" in note for note in sizer.check(file).model.notes)
    assert sizer.check(file, phase="decode").workload.decode


def test_a_rollouts_split_that_the_model_does_not_run_in_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(ROUNDS["verl"].replace("parallel_size: 2", "parallel_size: 3"), "utf-8")
    assert not any("of a round's device time" in note for note in sizer.check(file).model.notes)


@pytest.mark.parametrize(
    ("said", "finetune", "rank"),
    [
        ("{lora: {rank: 32}}", "lora", 32),
        ("{lora_config: {enabled: true, dim: 4}}", "lora", 4),
        ("{use_lora: true}", "lora", 8),
        ("{peft_method: LoRA}", "lora", 8),
        ("{lora_config: {enabled: false, dim: 4}}", None, None),
        ("{lora: {rank: 0}}", None, None),
        ("{lora_alpha: 16}", None, None),
    ],
)
def test_lora_trains_by_whatever_key_a_recipe_says_so(
    tmp_path: Path, said: str, finetune: str | None, rank: int | None
) -> None:
    found = read(tmp_path, f"worker: {{actor: {{model: {{model_path: {QWEN}}}}}, tuning: {said}}}")
    assert (found.workload.get("finetune"), found.workload.get("lora_rank")) == (finetune, rank)


def test_a_type_that_is_no_word_is_refused_in_a_line(tmp_path: Path) -> None:
    assert read(tmp_path, f"model_name: {QWEN}\nmodel_type: [hf]").model.layers == 28
    with pytest.raises(InputError, match="model_type"):
        read(tmp_path, "model_type: [hf]\nhidden_size: 64")


def test_a_service_s_model_is_no_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="whose sizes nobody publishes"):
        read(tmp_path, "model_name: nova-lite-2/prod")


@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        ("num_key_value_layers: 15", "the model"),
        ("config_overrides: num_hidden_layers:4", "the model"),
        ("freeze_backbone: true", "what of it trains"),
        ("teacher_model: {path: a/teacher}", "the models that run with it"),
        ("seq_parallel_size: 8", "how it is spread"),
        ("seq_parallel_size: 1", ""),
        ("data: {max_trajectory_length: 2400}", "the tokens or the bytes of its step"),
        ("num_generations: 8", "the sequences of a step (pairs, answers to compare, and a model to compare with)"),
        ("actor_rollout_ref: {max_token_len_per_gpu: 24000}", "the tokens or the bytes of its step"),
        ("train_lora_layers: all", "what of it trains"),
        ("lora_alpha: 16", ""),
        ("per_device_max_tokens: 524288", "the tokens or the bytes of its step"),
        ("stage: dpo", "the sequences of a step (pairs, answers to compare, and a model to compare with)"),
        ("eval: {batch_size: 4}", ""),
        ("rng_seed: 4", ""),
    ],
)
def test_keys_of_no_recipe_whose_names_say_that_they_change_something_are_named(
    keys: str, changes: str, tmp_path: Path
) -> None:
    found = read(tmp_path, f"model_name_or_path: {QWEN}\nlearning_rate: 1\n{keys}")
    assert [one.changes for one in found.unread] == [changes] * bool(changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"model_name_or_path: {QWEN}\ntrain_group_size: 8", "trains a retriever or a reranker"),
        (f"model: {{name_or_path: {QWEN}}}\nattention: {{feature_map: softmax}}", "trains other attention"),
        (f"model_name: {QWEN}\nprogram: train_eagle3.py", "trains a draft of speculative decoding"),
    ],
)
def test_what_trains_another_kind_of_model_than_the_one_it_names_is_refused(
    text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


def test_a_command_s_program_and_other_options_are_looked_at_too(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun rerank/train.py --model_name {QWEN} --lr 1")
    with pytest.raises(InputError, match=r"program = 'rerank/train.py': trains a retriever"):
        read_config(script)
    script.write_text(f"torchrun train.py --model_name {QWEN} --context_parallel 2")
    assert [(one.key, one.value) for one in read_config(script).unread] == [("context_parallel", "2")]


@pytest.mark.parametrize(("degree", "way"), [(4, "a2a"), (1, None)])
def test_ulysses_sends_heads_for_tokens(degree: int, way: str | None, tmp_path: Path) -> None:
    keys = f"model: {{partial_pretrain: {QWEN}}}\nulysses_sequence_parallel_size: {degree}"
    found = read(tmp_path, keys).workload
    assert (found["cp"], found.get("cp_comm")) == (degree, way)


@pytest.mark.parametrize(
    ("text", "phase", "said"),
    [
        (f"model: {QWEN}\nevaluation: {{evaluations: [{{name: arc, script: olmes.py}}]}}\n", None, True),
        (f"model: {QWEN}\ntraining: {{learning_rate: 0.1}}\nevaluation: {{evaluations: []}}\n", None, False),
        (f"model: {QWEN}\nbase_url: http://localhost:8000\n", "decode", False),  # a client's of a server
        (f"model: {QWEN}\nusage: {{completion_tokens: 5}}\n", "decode", False),  # a server's answer
        # LLaMA-Factory's predictions hold the stage and the adapter of what was trained before.
        (f"{TRL}stage: sft\ndo_predict: true\nfinetuning_type: lora\ncutoff_len: 2048\n", "decode", False),
        (f"{TRL}cutoff_len: 2048\n", None, True),
        (f"{TRL}do_train: true\ncutoff_len: 2048\n", None, False),
        (f"models: []\nmodel: {{pretrained_model_name_or_path: {QWEN}}}\nicl_tasks: a.yaml\n", "decode", False),
    ],
)
def test_a_file_that_names_a_model_and_trains_nothing_is_not_taken_for_training_unsaid(
    tmp_path: Path, text: str, phase: str | None, said: bool
) -> None:
    reading = read(tmp_path, text)
    assert reading.workload.get("phase") == phase
    assert any("nothing in it says that it trains" in note for note in reading.notes) is said
    assert "s" not in reading.workload or phase is None


def test_a_script_whose_program_trains_nothing_says_so(tmp_path: Path) -> None:
    reading = read(tmp_path, f"python -m heads.identify --model {QWEN} --pairs 8\n", "identify.sh")
    assert any("nothing in it says that it trains" in note for note in reading.notes)


def test_an_evaluation_s_file_is_priced_as_decoding(tmp_path: Path) -> None:
    keys = f"model_parameters: {{model_name: {QWEN}, generation_parameters: {{top_p: 0.9}}}}"
    assert read(tmp_path, keys).workload["phase"] == "decode"
    assert "phase" not in read(tmp_path, f"{keys}\nlearning_rate: 1e-5").workload


def test_a_base_in_4_bits_is_the_one_that_the_recipe_loads_in_4_bits(tmp_path: Path) -> None:
    keys = "base_model: unsloth/Qwen3-8B-unsloth-bnb-4bit\ndatasets: []\nadapter: qlora"
    assert read(tmp_path, f"{keys}\nload_in_4bit: true").model == read_config("Qwen/Qwen3-8B").model
    held = read(tmp_path, keys)  # in the bits that the name says
    assert held.model.parameters == read_config("Qwen/Qwen3-8B").model.parameters
    assert any("bits as it is called" in note for note in held.notes)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("LLM360/AmberChat", "huggyllama/llama-7b"),
        ("PRIME-RL/Eurus-2-7B-SFT", "Qwen/Qwen2.5-Math-7B"),
        ("google/gemma_2b_it", "google/gemma-2b"),
    ],
)
def test_a_tuned_release_has_the_sizes_of_what_it_was_tuned_from(name: str, base: str) -> None:
    assert read_config(name).model == read_config(base).model


def test_supervised_fine_tuning_has_no_rollouts(tmp_path: Path) -> None:
    keys = f"python -m oat.run --pretrain {QWEN} --rollout_batch_size 32 --zero-stage 2"
    assert any("decodes its rollouts" in note for note in read(tmp_path, keys, "rl.sh").notes)
    found = read(tmp_path, f"{keys} --algo SFT", "sft.sh")
    assert not any("decodes its rollouts" in note for note in found.notes)
    assert found.workload["zero"] == 2


ZERO_3 = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2}
AXOLOTL = "base_model: {}\nmicro_batch_size: 1\nsequence_len: 512\noptimizer: adamw_torch\ndeepspeed: {}\n"


def test_the_deepspeed_settings_that_a_recipe_names_are_read(tmp_path: Path) -> None:
    """Next to the recipe, or from a folder above it in its repository; what the recipe says itself wins."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "settings").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "settings" / "zero3.json").write_text(json.dumps(ZERO_3))
    text = AXOLOTL.format(QWEN, "settings/zero3.json")
    reading = read(tmp_path, text + "gradient_accumulation_steps: 4\n", "recipes/a.yaml")
    assert reading.workload["zero"] == 3
    assert reading.workload["b"] == 1
    assert reading.unread == ()
    assert any("optimizer, deepspeed are read" in note for note in reading.notes)
    assert any("4 microbatches accumulate" in note for note in reading.notes)


def test_deepspeed_settings_that_are_elsewhere_are_said_not_to_be_read(tmp_path: Path) -> None:
    reading = read(tmp_path, AXOLOTL.format(QWEN, "zero3.json"))
    assert "zero" not in reading.workload
    assert [one.key for one in reading.unread] == ["deepspeed"]
    (tmp_path / "zero3.json").write_text("{")
    with pytest.raises(InputError, match=r"zero3.json"):
        read(tmp_path, AXOLOTL.format(QWEN, "zero3.json"))


@pytest.mark.parametrize("settings", [None, {**ZERO_3, "zero_optimization": {"stage": 1, "mics_shard_size": 2}}])
def test_memory_is_no_error_where_what_is_kept_where_is_not_read(tmp_path: Path, settings: object) -> None:
    """The settings are elsewhere, or shard states otherwise than sizer counts them."""
    if settings is not None:
        (tmp_path / "zero.json").write_text(json.dumps(settings))
    file = tmp_path / "a.yaml"
    file.write_text(AXOLOTL.format("Qwen/Qwen3-32B", "zero.json"))
    (memory,) = (one for one in sizer.check(file, gpus=2).findings if one.code == "SZ121")
    assert memory.severity != "error"
    assert "which is not read, may change it" in memory.message
    file.write_text(AXOLOTL.format("Qwen/Qwen3-32B", "").replace("deepspeed: \n", ""))
    assert [one.severity for one in sizer.check(file, gpus=2).findings if one.code == "SZ121"] == ["error"]


def test_an_export_is_no_training(tmp_path: Path) -> None:
    """LLaMA-Factory's merge_lora recipes name a model, and train nothing."""
    for key in ("export_dir: out", "export_size: 5"):
        text = f"model_name_or_path: {QWEN}\ntemplate: qwen\n{key}\n"
        with pytest.raises(InputError, match=r"export_.*trains nothing \(it exports a model\)"):
            read(tmp_path, text)


@pytest.mark.parametrize(
    ("command", "t", "d", "e"),
    [
        ("vllm serve {} --tensor-parallel-size 8 --enable-expert-parallel", 8, 1, 8),
        ("vllm serve {} -tp 4 -dp 2 --enable-expert-parallel", 4, 2, 8),
        ("vllm serve {} --data-parallel-size 16 --enable-expert-parallel", 1, 16, 16),
        ("vllm serve {} -tp 4", 4, 1, 1),
        ("python -m sglang.launch_server --model-path {} --tp 8 --ep-size 8", 8, 1, 8),
        ("trtllm-serve {} --tp_size 8 --ep_size 4", 8, 1, 4),
        # SGLang cuts the tensor-parallel ranks into data-parallel ones for attention.
        (
            "python -m sglang.launch_server --model-path {} --tp 8 --dp-size 8 --enable-dp-attention --ep-size 8",
            1,
            8,
            8,
        ),
        # And all of them cut or hold the experts.
        ("python -m sglang.launch_server --model-path {} --tp 8 --dp 4 --enable-dp-attention", 2, 4, 8),
        ("python -m sglang.launch_server --model-path {} --tp 4 --dp 2", 4, 2, 1),
        # Of a job's devices a server runs on those that it splits over.
        ("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nvllm serve {} -tp 4", 4, 1, 1),
    ],
)
def test_servers_that_spread_experts(command: str, t: int, d: int, e: int, tmp_path: Path) -> None:
    found = read(tmp_path, command.format("Qwen/Qwen3-235B-A22B-FP8"), "serve.sh")
    workload = read_subject(found).workload
    assert (workload.phase, workload.t, workload.d, workload.e) == ("decode", t, d, e)
    assert not [one for one in found.unread if "parallel" in one.key or "ep" in one.key]
    assert ("enable_expert_parallel" in found.notes[0]) is ("--enable-expert" in command)


def test_dashes_of_vllms_own_file_are_read(tmp_path: Path) -> None:
    """`vllm serve --config FILE` takes its options' names as they are typed."""
    reading = read(tmp_path, f"model: {QWEN}\ntensor-parallel-size: 2\nmax-model-len: 4096\n")
    assert reading.workload["t"] == 2
    assert (reading.longest, reading.unread) == (4096, ())
    for key in ("tensor-parallel-size", "tensor_parallel_size"):  # --set meets it in either spelling
        assert read_config(tmp_path / "recipe.yaml", settings={key: 4}).workload["t"] == 4


@pytest.mark.parametrize(
    ("said", "targets"),
    [
        ("lora_target_linear: true", "all-linear"),
        ("lora_target_modules: [q_proj, v_proj]", "q_proj,v_proj"),
        ("lora_target_linear: false", None),
    ],
)
def test_axolotls_adapters_are_where_its_file_says(tmp_path: Path, said: str, targets: str | None) -> None:
    reading = read(tmp_path, f"base_model: {QWEN}\nadapter: lora\nlora_r: 32\nmicro_batch_size: 1\n{said}\n")
    assert reading.workload["lora_rank"] == 32
    assert reading.workload.get("lora_targets") == targets


@pytest.mark.parametrize(
    ("program", "phase", "noted"),
    [
        ("scripts/vllm_infer.py --max_new_tokens 64", "decode", False),
        ("scripts/pissa_init.py", None, True),
        ("src/train.py", None, False),
        ("grpo_ref_logprob.py", "decode", False),  # a reference's probabilities
    ],
)
def test_a_command_s_program_says_whether_it_trains(
    tmp_path: Path, program: str, phase: str | None, noted: bool
) -> None:
    reading = read(tmp_path, f"python {program} --model_name_or_path {QWEN} --output_dir out\n", "run.sh")
    assert reading.workload.get("phase") == phase
    assert any("nothing in it says that it trains" in note for note in reading.notes) is noted
    assert ("program" in [one.key for one in reading.unread]) is bool(
        {"init", "logprob"} & {*re.split("[_.]", program)}
    )


def test_a_program_that_merges_adapters_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"program = 'src/merge_lora.py': trains nothing \(it exports a model\)"):
        read(tmp_path, f"python src/merge_lora.py --base-model {QWEN} --output out\n", "merge.sh")


def test_a_file_of_settings_that_a_command_takes_is_said_not_to_be_read(tmp_path: Path) -> None:
    text = f"accelerate launch src/train.py configs/grpo.yaml model_name_or_path={QWEN} output_dir=out 1>>$out 2>>$err"
    (one,) = read(tmp_path, text, "train.sh").unread
    assert (one.key, one.value, one.changes) == (
        "settings_file",
        "'configs/grpo.yaml'",
        "what is run as other files say (--training FILE)",
    )


def test_where_an_output_goes_is_no_option_s_value(tmp_path: Path) -> None:
    args = f"--model_name_or_path {QWEN} --output_dir o --gradient_checkpointing \\\n"
    assert (
        read(tmp_path, f"ARGS='{args}'\n$CMD train.py $ARGS 1>>$o 2>$e", "train.sh").workload["checkpointing"] == "full"
    )


def test_an_adapter_that_is_no_lora_is_no_full_fine_tuning(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="finetuning_type = 'oft': has no formula here: of adapters LoRA alone"):
        read(tmp_path, f"{TRL}do_train: true\nfinetuning_type: oft\n")


def test_a_classifier_s_stage_is_named(tmp_path: Path) -> None:
    (one,) = read(tmp_path, f"{TRL}do_train: true\nstage: cls\n").unread
    assert (one.key, one.changes) == ("stage", "the model")


def test_llm_foundrys_lengths_and_adapters_are_read(tmp_path: Path) -> None:
    text = f"""max_seq_len: 512
model: {{name: hf_causal_lm, pretrained_model_name_or_path: {QWEN}, peft_config: {{r: 64, target_modules: all-linear}}}}
train_loader: {{name: finetuning}}
device_train_microbatch_size: 2
fsdp_config: {{activation_checkpointing: true}}"""
    found = {"b": 2, "s": 512, "checkpointing": "full", "finetune": "lora", "lora_rank": 64}
    assert read(tmp_path, text).workload == {**found, "lora_targets": "all-linear"}


@pytest.mark.parametrize(("program", "finetune"), [("qlora.py", "qlora"), ("src/finetune_lora.py", "lora")])
def test_a_program_called_lora_is_no_full_fine_tuning(tmp_path: Path, program: str, finetune: str) -> None:
    """qlora.py quantises and adapts unless it is told not to."""
    text = f"python {program} --model_name_or_path {QWEN} --output_dir o --per_device_train_batch_size 4\n"
    assert read(tmp_path, text, "run.sh").workload["finetune"] == finetune


def test_a_value_that_says_qlora_quantises_the_base(tmp_path: Path) -> None:
    text = f"model_name_or_path: {QWEN}\nlearning_rate: 1\noutput_dir: o\npeft_method: qlora\n"
    assert read(tmp_path, text).workload["finetune"] == "qlora"


@pytest.mark.parametrize("program", ["scripts/check_data_sft.py", "-m tools.ckpt_conversion.to_hf"])
def test_a_check_or_a_conversion_is_no_training(tmp_path: Path, program: str) -> None:
    text = f"python {program} --model-path {QWEN} --max-length 64\n"
    if "conversion" in program:
        with pytest.raises(InputError, match="trains nothing"):
            read(tmp_path, text, "run.sh")
    else:
        assert any("nothing in it says that it trains" in one for one in read(tmp_path, text, "run.sh").notes)


def test_verls_trainer_of_one_model_has_its_engines_split(tmp_path: Path) -> None:
    text = f"""torchrun -m verl.trainer.sft_trainer model=hf_model model.path={QWEN} data.max_length=512 \\
  data.micro_batch_size_per_gpu=1 optim=megatron engine=megatron engine.tensor_model_parallel_size=4 \\
  engine.pipeline_model_parallel_size=2 model.lora_rank=8\n"""
    found = {"b": 1, "s": 512, "t": 4, "p": 2, "lora_rank": 8, "finetune": "lora", "lora_targets": "all-linear"}
    assert read(tmp_path, text, "run.sh").workload == found


def test_axolotls_pairs_are_named(tmp_path: Path) -> None:
    text = f"base_model: {QWEN}\nrl: dpo\nmicro_batch_size: 1\n"
    assert [one.key for one in read(tmp_path, text).unread] == ["rl"]
    assert read(tmp_path, f"model: {{hf_model_ckpt: {QWEN}}}\ntraining: {{}}\n").format == "huggingface"


@pytest.mark.parametrize(
    "command", ["python judge_eval.py --model_name", "uv run vllm serve", "python -m a.eval.sft_generation --model"]
)
def test_a_program_that_evaluates_or_serves_decodes(tmp_path: Path, command: str) -> None:
    assert read(tmp_path, f"{command} {QWEN}\n", "run.sh").workload["phase"] == "decode"


@pytest.mark.parametrize(("enabled", "finetune"), [("true", "lora"), ("false", None)])
def test_a_trainers_arguments_in_a_section_of_its_own_are_read(
    tmp_path: Path, enabled: str, finetune: str | None
) -> None:
    text = f"""model: {{name_or_path: {QWEN}, max_seq_length: 512}}
training: {{per_device_train_batch_size: 2, gradient_checkpointing: true}}
lora: {{enabled: {enabled}, r: 32}}"""
    found = read(tmp_path, text).workload
    assert (found["b"], found["s"], found["checkpointing"]) == (2, 512, "full")
    assert found.get("finetune") == finetune


def test_a_value_that_is_null_is_as_good_as_not_there(tmp_path: Path) -> None:
    text = f"model_name_or_path: {QWEN}\noutput_dir: o\nlearning_rate: 1\nfp16: null\nbf16: true\nlora_r: null\n"
    assert read(tmp_path, text).workload["dtype"] == "bf16"
    text = (
        "checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3-8B\nquantize:\nlora_r: 32\ntrain: {micro_batch_size: 1}\n"
    )
    assert read(tmp_path, text).workload["finetune"] == "lora"


@pytest.mark.parametrize(
    ("command", "targets"),
    [
        ("swift sft --model {} --tuner_type lora --target_modules q_proj v_proj", "q_proj v_proj"),
        ("swift sft --model {} --tuner_type lora --per_device_train_batch_size 1", "all-linear"),
        ("llamafactory-cli train --model_name_or_path {} --stage sft --finetuning_type lora", "all-linear"),
        ("python sft.py --model_name_or_path {} --use_peft true --lora_r 8 --learning_rate 1e-5", None),
        (
            "python -m openrlhf.cli.train_sft --pretrain {} --lora_rank 8 --target_modules q_proj k_proj",
            "q_proj k_proj",
        ),
        ("python -m verl.x actor_rollout_ref.model.path={} actor_rollout_ref.model.lora_rank=8", "all-linear"),
    ],
)
def test_where_adapters_are_is_what_the_file_or_its_trainer_says(
    tmp_path: Path, command: str, targets: str | None
) -> None:
    workload = read(tmp_path, command.format(QWEN) + "\n", "run.sh").workload
    assert (workload["finetune"], workload.get("lora_targets")) == ("lora", targets)


def test_swifts_quantised_base_and_llavas_parts_that_train_are_read_or_named(tmp_path: Path) -> None:
    text = f"swift sft --model {QWEN} --tuner_type lora --quant_bits 4 --mm_tunable_parts mm_mlp_adapter\n"
    reading = read(tmp_path, text, "run.sh")
    assert reading.workload["finetune"] == "qlora"
    assert "mm_tunable_parts" in [one.key for one in reading.unread]


def test_what_a_shell_in_a_command_runs_has_the_script_s_variables(tmp_path: Path) -> None:
    text = f"""export SIZE=8
srun --nodes=2 bash -c 'torchrun --nnodes $NNODES train.py --model_name_or_path {QWEN} \\
  --per_device_train_batch_size ${{SIZE}} --bf16 True'\n"""
    assert read(tmp_path, text, "run.sh").workload["b"] == 8


def test_keys_that_trainers_spell_alike_are_read_wherever_a_file_has_them(tmp_path: Path) -> None:
    text = f"""model: {{hf_model_ckpt: {QWEN}, bitsandbytes: {{load_in_4bit: true}}}}
lora: {{r: 32, target_modules: [q_proj, v_proj]}}
training: {{args: {{per_device_train_batch_size: 4, gradient_checkpointing: true, optim: adafactor}}}}
sft: {{max_seq_length: 1024}}
eval: {{max_seq_length: 64, per_device_train_batch_size: 9}}
engine: {{tensor_model_parallel_size: 2}}
"""
    reading = read(tmp_path, text)
    wanted = {"b": 4, "s": 1024, "t": 2, "checkpointing": "full", "optimizer": "adafactor"}
    wanted |= {"finetune": "qlora", "lora_rank": 32, "lora_targets": "q_proj,v_proj"}
    assert {key: reading.workload[key] for key in wanted} == wanted
    assert "training.args.per_device_train_batch_size" in reading.notes[0]


def test_a_usual_key_that_two_parts_say_differently_is_named_and_not_read(tmp_path: Path) -> None:
    text = f"a: {{model_name: {QWEN}, micro_batch_size: 2}}\nb: {{micro_batch_size: 4}}\nlearning_rate: 1\n"
    reading = read(tmp_path, text)
    assert "b" not in reading.workload
    assert {"a.micro_batch_size", "b.micro_batch_size"} <= {one.key for one in reading.unread}


def test_weights_that_load_in_4_bits_without_an_adapter_are_said_to_be_taken_in_16(tmp_path: Path) -> None:
    reading = read(tmp_path, f"{TRL}load_in_4bit: true\nlearning_rate: 1\n")
    assert any("no LoRA on them trains" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.yaml", f"trainer: {{worker: {{actor: {{model: {{path: {QWEN}, micro_batch_size: 4}}}}}}}}"),
        ("run.sh", f"python -m rl.main worker.actor_model.model.path={QWEN} worker.actor_model.micro_batch_size=4"),
    ],
)
def test_the_one_released_model_that_a_file_names_deep_in_it_is_read(name: str, text: str, tmp_path: Path) -> None:
    reading = read(tmp_path, text, name)
    assert (reading.model.parameters, reading.workload["b"]) == (596_049_920, 4)


def test_of_two_models_that_are_named_deep_none_is_taken_and_in_usual_keys_the_other_is_said(tmp_path: Path) -> None:
    deep = "x: {{y: {{actor: {{path: {}}}, policy: {{path: {}}}}}}}"
    with pytest.raises(NoModel, match=f"speaks of a released model: sizer check {QWEN}"):
        read(tmp_path, deep.format(QWEN, "Qwen/Qwen3-8B"))
    reading = read(tmp_path, f"a: {{model_name: {QWEN}}}\nb: {{model_name: Qwen/Qwen3-8B}}\n")
    assert any("another model too (b.model_name)" in note for note in reading.notes)


def test_what_is_saved_whole_with_an_adapter_and_merged_models_are_said(tmp_path: Path) -> None:
    text = (
        f"model: {{name: {QWEN}}}\nlora: {{r: 8, modules_to_save: [lm_head], target_parameters: [x]}}\ntraining: {{}}"
    )
    assert {one.key for one in read(tmp_path, text).unread} >= {"lora.modules_to_save", "lora.target_parameters"}
    with pytest.raises(InputError, match="exports a model"):
        read(tmp_path, f"base_model: {QWEN}\nmerge_method: ties\n")


@pytest.mark.parametrize(
    ("said", "layout"),
    [
        ("", (8, 3)),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", (4, 3)),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4", (2, 1)),
        ("actor_rollout_ref.actor.megatron.expert_model_parallel_size=4", (None, 1)),
    ],
)
def test_verl_shards_over_its_devices(said: str, layout: tuple[int | None, int | None], tmp_path: Path) -> None:
    """FSDP shards everything, Megatron's optimizer its states; how experts divide devices is not told here."""
    text = f"python -m verl.x actor_rollout_ref.model.path={QWEN} trainer.n_gpus_per_node=8 trainer.nnodes=1 {said}\n"
    found = read(tmp_path, text, "run.sh")
    assert (found.workload.get("d"), found.workload.get("zero")) == layout
    assert "train" not in found.rounds


def test_a_server_whose_users_have_an_algorithm_trains_nothing(tmp_path: Path) -> None:
    text = "user: {algorithm: HS256}\nmodel: {path: deepseek-ai/DeepSeek-V2-Lite-Chat, max_new_tokens: 500}\n"
    assert read(tmp_path, text).workload == {"phase": "decode"}


def test_a_command_s_adam_of_another_kind_is_no_adamw(tmp_path: Path) -> None:
    said = f"python sft.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 --optimizer"
    reading = read(tmp_path, f"{said} adam_mini\n", "run.sh")
    assert "optim" in {one.key for one in reading.unread}
    assert not read(tmp_path, f"{said} fused_adam\n", "run.sh").unread
    assert read(tmp_path, f"{said} lion\n", "run.sh").workload["optimizer"] == "lion"


def test_a_name_in_the_environment_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an environment's"):
        read(tmp_path, "pretrain: ${oc.env:SNAPSHOT}\nactor_train: {}\n")


def test_a_list_without_elements_is_no_word(tmp_path: Path) -> None:
    text = f"""A=()\nG=(--gradient_checkpointing true)
swift sft --model {QWEN} --sequence_parallel_size 2 "${{G[@]}}" "${{A[@]}}" "${{A[@]}}" --fsdp full_shard
"""
    workload = read(tmp_path, text, "run.sh").workload
    assert (workload["checkpointing"], workload["zero"], workload["cp"]) == ("full", 3, 2)


def test_results_of_a_way_to_train_are_not_taken_for_training_unsaid(tmp_path: Path) -> None:
    text = f"stages: {{sft: {{model: {{model_name_or_path: {QWEN}}}, f1: 0.4}}}}\n"
    assert any("nothing in it says that it trains" in note for note in read(tmp_path, text).notes)


def test_a_folder_in_a_text_is_no_organisation(tmp_path: Path) -> None:
    with pytest.raises(NoModel, match=f"sizer check {QWEN}"):
        read(tmp_path, f"#!/bin/bash\npython get.py /tmp/Qwen3-8B {QWEN}\n", "run.sh")


def test_a_folder_deep_in_a_file_is_read_as_the_release_that_it_is_called_by(tmp_path: Path) -> None:
    reading = read(tmp_path, "model: {path: /efs/assets/Qwen3-0.6B}\ntraining: {max_steps: 1}\n")
    assert reading.model.parameters == 596_049_920
    assert any("is taken for the released model of its name" in note for note in reading.notes)


def test_a_type_next_to_a_models_name_is_no_model_of_its_own(tmp_path: Path) -> None:
    """ms-swift's keys: the class's own sizes were taken for those of the model that is named."""
    text = "model_path: Qwen/Qwen3-0.6B\nmodel_type: qwen3\nmicro_batch_size: 2\nlora_rank: 32\nmax_length: 1024\n"
    found = read(tmp_path, text, "sft.yaml")
    assert found.model.layers == 28
    assert {key: found.workload[key] for key in ("b", "s", "finetune")} == {"b": 2, "s": 1024, "finetune": "lora"}
    sized = read(tmp_path, text + "num_hidden_layers: 2\n", "sft.yaml")
    assert sized.model.layers == 2


def test_a_command_whose_output_a_script_keeps_is_followed(tmp_path: Path) -> None:
    text = (
        "MODEL=Qwen/Qwen3-0.6B\nfor n in 1 2; do\n  OUT=$(python -m sglang.bench_serving --model $MODEL --n $n)\ndone\n"
    )
    found = read(tmp_path, text, "bench.sh")
    assert (found.model.layers, found.workload["phase"]) == (28, "decode")
    with pytest.raises(InputError, match="expected a command"):
        read(tmp_path, text.replace("for n in 1 2; do", "if false; then").replace("done", "fi"), "bench.sh")


def test_a_released_name_and_the_folder_of_its_name_are_one_model(tmp_path: Path) -> None:
    text = f"""setup:
  model: {{id: {QWEN}, path: /models/Qwen3-0.6B, served: x}}
  runtime: {{max_model_len: 8192}}
"""
    found = read(tmp_path, text, "run.yaml")
    assert (found.model.layers, found.workload["phase"]) == (28, "decode")
    with pytest.raises(InputError, match="known formats"):
        read(tmp_path, text.replace("/models/Qwen3-0.6B", "/models/Qwen3-8B"), "run.yaml")


def test_a_servers_command_in_a_file_serves(tmp_path: Path) -> None:
    """mistral.rs' TOML; unsloth's word for recomputation is said, since it moves activations too."""
    text = f'command = "serve"\ndefault_model_id = "{QWEN}"\n[[models]]\nmodel_id = "{QWEN}"\n'
    assert read(tmp_path, text, "models.toml").workload["phase"] == "decode"
    said = f"train: {{model_name: {QWEN}, learning_rate: 1.0e-5, use_gradient_checkpointing: unsloth}}\n"
    assert read(tmp_path, said).workload["checkpointing"] == "full"
    assert any("moves what it keeps to the host" in note for note in read(tmp_path, said).notes)
    text = f"model_name: {QWEN}\nper_device_train_batch_size: 1\ngradient_checkpointing: "
    found = read(tmp_path, text + "unsloth")
    assert found.workload["checkpointing"] == "full"
    assert any("moves what it keeps to the host" in note for note in found.notes)
    assert not any("moves what it keeps" in note for note in read(tmp_path, text + "true").notes)
    with pytest.raises(InputError, match="gradient_checkpointing = 'sometimes'"):
        read(tmp_path, text + "sometimes")


#: Values of a Helm chart and a custom resource: keys in camelCase, and nothing of training.
SERVED = {
    "values": (f"model: {{name: {QWEN}}}\nengine: {{maxModelLen: 2048, tensorParallelSize: 2}}", 2048, 2),
    "strings": (f"model: {{name: {QWEN}, servedName: q}}\nengine: {{gpuMemoryUtilization: 0.6}}", 40960, 1),
    "kserve": (
        f"apiVersion: serving.kserve.io/v1\nkind: LLMInferenceService\nspec: {{model: {{name: {QWEN}}}, replicas: 2}}",
        40960,
        1,
    ),
    "kserve, by the hub's address": (
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec: {predictor: {model: {modelFormat: {name: "
        f"huggingface}}, storageUri: 'hf://{QWEN}', args: [--tensor-parallel-size=2, --max-model-len=8192]}}}}}}",
        8192,
        2,
    ),
    "kserve, by its own server's option": (
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec: {predictor: {model: {modelFormat: {name: "
        f"huggingface}}, args: [--model_name=q, --model_id={QWEN}, --tensor-parallel-size=2]}}}}}}",
        40960,
        2,
    ),
    "ray": (
        "apiVersion: ray.io/v1\nkind: RayService\nspec:\n  serveConfigV2: |\n    applications:\n    - args:\n"
        "        llm_configs:\n        - model_loading_config: {model_id: q, model_source: " + QWEN + "}\n"
        "          engine_kwargs: {tensor_parallel_size: 2, max_model_len: 4096, tool_call_parser: hermes}",
        4096,
        2,
    ),
    "ray, as a file of its own": (
        f"applications:\n- args: {{llm_configs: [{{model_loading_config: {{model_source: {QWEN}}}}}]}}",
        40960,
        1,
    ),
    "llmaz": (
        "apiVersion: llmaz.io/v1alpha1\nkind: OpenModel\nspec: {source: {modelHub: {modelID: " + QWEN + "}}}",
        40960,
        1,
    ),
    "kserve, with options in the environment of its container": (
        "apiVersion: serving.kserve.io/v1\nkind: LLMInferenceService\nspec: {model: {uri: 'hf://"
        + QWEN
        + "'}, router: {}, "
        "template: {containers: [{image: vllm, env: [{name: VLLM_ADDITIONAL_ARGS, value: '--tensor-parallel-size=2 "
        "--max-model-len=2048'}]}]}}",
        2048,
        2,
    ),
    "a chart in sections with dashes": (
        f"nim-llm: {{model: {{name: {QWEN}}}, nodeSelector: {{agentpool: gpu}}}}",
        40960,
        1,
    ),
    "evaluation": (
        f"model: {{_component_: torchtune.models.qwen3.qwen3_0_6b}}\ncheckpointer: {{checkpoint_dir: /tmp/{QWEN}}}\n"
        "tasks: [truthfulqa]\nbatch_size: 8\nenable_kv_cache: true",
        40960,
        1,
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_what_serves_decodes_within_the_context_that_it_takes(tmp_path: Path, name: str) -> None:
    text, longest, t = SERVED[name]
    reading = read(tmp_path, text)
    assert (reading.workload["phase"], reading.longest, reading.workload.get("t", 1)) == ("decode", longest, t)


#: What more the files of trainers say, and the workload that it gives.
FURTHER = {
    "llm-foundry": (
        f"model: {{name: hf_causal_lm, pretrained_model_name_or_path: {QWEN}}}\nglobal_train_batch_size: 64\n"
        "device_train_microbatch_size: 2\noptimizer: {name: decoupled_lionw}\n"
        "fsdp_config: {sharding_strategy: FULL_SHARD}",
        {"b": 2, "global_batch": 64, "optimizer": "lion", "zero": 3},
    ),
    "llm-foundry, as a launcher takes it": (
        f"name: x\ncommand: composer train.py\ncompute: {{gpus: 8}}\nparameters: {{model: {{name: hf_causal_lm, "
        f"pretrained_model_name_or_path: {QWEN}}}, global_train_batch_size: 64}}",
        {"gpus": 8, "global_batch": 64},
    ),
    "torchtune": (
        "model: {_component_: torchtune.models.qwen3.lora_qwen3_0_6b, lora_attn_modules: [q_proj, output_proj], "
        "apply_lora_to_mlp: true, lora_rank: 4, quantize_base: true}\n"
        f"checkpointer: {{checkpoint_dir: /tmp/{QWEN}}}\noptimizer: {{_component_: bitsandbytes.optim.PagedAdamW8bit}}",
        {"finetune": "qlora", "lora_targets": "q_proj,o_proj,gate_proj,up_proj,down_proj", "optimizer": "adamw-8bit"},
    ),
    "swift": (f"model: {QWEN}\ntuner_type: lora\ndeepspeed: zero3", {"finetune": "lora", "zero": 3, "offload": None}),
    "swift, offloaded": (
        f"model: {QWEN}\ntuner_type: full\ndeepspeed: zero2_offload",
        {"zero": 2, "offload": 1, "offload_params": None},
    ),
    "a batch of microbatches that accumulate is a device's": (
        f"model: {{base_model: {QWEN}}}\ntraining: {{batch_size: 4, gradient_accumulation_steps: 2, lr: 1.0e-5}}",
        {"b": 4},
    ),
    "but where another key says the microbatch": (
        f"base_model: {QWEN}\ntrain: {{batch_size: 8, micro_batch_size: 2, gradient_accumulation_steps: 4}}",
        {"b": 2},
    ),
    "and where none accumulates nobody knows": (f"base_model: {QWEN}\ntraining: {{batch_size: 4}}", {"b": None}),
    "anyscale, which recomputes unless told not to": (
        f"{{model_id: {QWEN}, train_batch_size_per_device: 2, context_length: 512, num_devices: 8, "
        "no_gradient_checkpoint: false, lora_config: {r: 8, target_modules: [q_proj]}}",
        {"b": 2, "s": 512, "gpus": 8, "checkpointing": "full", "lora_rank": 8, "lora_targets": "q_proj"},
    ),
    "prime-rl that recomputes": (
        f"model: {{name: {QWEN}, ac: {{}}, lora: {{rank: 4}}}}\noptim: {{lr: 1.0e-6}}",
        {"checkpointing": "full", "lora_rank": 4},
    ),
    "prime-rl that recomputes some products": (
        f"model: {{name: {QWEN}, ac: {{mode: selective}}}}\nmax_steps: 10",
        {"checkpointing": "every-second-product"},
    ),
    "prime-rl's server": (f"model: {{name: {QWEN}}}\nparallel: {{tp: 2}}", {"phase": "decode", "t": 2}),
    "nemo_rl's adapters on Megatron": (
        f"policy: {{model_name: {QWEN}, dtensor_cfg: {{enabled: false, activation_checkpointing: false, "
        "lora_cfg: {enabled: true, dim: 4}}, megatron_cfg: {enabled: true, activation_checkpointing: true, "
        "tensor_model_parallel_size: 2, sequence_parallel: true, recompute_granularity: selective,\n"
        "  peft: {enabled: true, dim: 8, target_modules: [linear_qkv, linear_fc2]}}}",
        {"checkpointing": "full", "t": 2, "sequence_parallel": True, "lora_rank": 8}
        | {"lora_targets": "q_proj,k_proj,v_proj,down_proj"},
    ),
    "nemo_rl's adapters on DTensor": (
        f"policy: {{model_name: {QWEN}, dtensor_cfg: {{enabled: true, sequence_parallel: false, "
        "activation_checkpointing: false,\n  lora_cfg: {enabled: true, match_all_linear: true, target_modules: [], "
        "dim: 8}},\n  megatron_cfg: {enabled: false, sequence_parallel: true, peft: {enabled: true, dim: 4}}}",
        {"checkpointing": None, "sequence_parallel": None, "lora_rank": 8, "lora_targets": "all-linear"},
    ),
    "nemo_rl that says how it would recompute, and does not": (
        f"policy: {{model_name: {QWEN}, megatron_cfg: {{activation_checkpointing: false, "
        "recompute_granularity: full}}",
        {"checkpointing": None},
    ),
    "ludwig": (
        f"model_type: llm\nbase_model: {QWEN}\nadapter: {{type: lora}}\n"
        "preprocessing: {global_max_sequence_length: 512}\n"
        "trainer: {batch_size: 2, enable_gradient_checkpointing: true}",
        {"b": 2, "s": 512, "checkpointing": "full", "finetune": "lora"},
    ),
    "a model under the name that a run has": (
        f"model_name: my-run\nmodel_path: ${{oc.env:ME}}/Qwen3-8B\npretrained_model_name: {QWEN}\nlr: 1.0e-5\n"
        "training_arguments: {per_device_train_batch_size: 2}",
        {"b": 2},
    ),
    "a program of one's own": (
        f"base_model: {QWEN}\nuse_peft: true\nper_device_train_batch_size: 1\nlr: 1.0e-5",
        {"b": 1, "finetune": "lora", "lora_rank": 16},
    ),
}


@pytest.mark.parametrize("name", FURTHER)
def test_how_a_recipe_is_spread_and_what_of_it_trains_is_read(tmp_path: Path, name: str) -> None:
    text, workload = FURTHER[name]
    reading = read(tmp_path, text)
    assert {key: reading.workload.get(key) for key in workload} == workload
    assert not [one.key for one in reading.unread if one.changes == "how it is spread"]


def test_a_deepspeed_file_that_is_not_there_is_named_as_not_read(tmp_path: Path) -> None:
    reading = read(tmp_path, f"model: {QWEN}\ntuner_type: lora\ndeepspeed: conf/own.json")
    assert "zero" not in reading.workload
    assert [one.key for one in reading.unread] == ["deepspeed"]


NANOTRON = """
model: {dtype: %s, model_config: {is_llama_config: true, hidden_size: 64, intermediate_size: 128, vocab_size: 512,
  num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64,
  tie_word_embeddings: true}}
parallelism: {dp: 4, tp: 2, pp: 1, context_parallel_size: 2, recompute_layer: true}
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true, weight_decay: 0.1, optimizer_factory: {name: %s}}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 8, sequence_length: 32}
"""


def test_all_that_nanotron_says_of_a_step_is_read(tmp_path: Path) -> None:
    reading = read(tmp_path, NANOTRON % ("float16", "adamW"))
    said = {"b": 2, "s": 32, "global_batch": 64, "t": 2, "p": 1, "d": 4, "cp": 2, "zero": 1, "dtype": "fp16"}
    whole = NANOTRON.replace("tp: 2", "tp: 2, tp_mode: REDUCE_SCATTER")
    assert read(tmp_path, whole % ("float16", "adamW")).workload["sequence_parallel"]
    assert reading.workload == said | {"checkpointing": "full", "reduces": "fp32"}
    assert not reading.unread
    assert [one.key for one in read(tmp_path, NANOTRON % ("bfloat16", "own")).unread] == [
        "optimizer.optimizer_factory.name"
    ]


def test_a_folder_of_outputs_is_no_model_of_a_file_in_no_format(tmp_path: Path) -> None:
    with pytest.raises(NoModel, match="known formats"):
        read(tmp_path, "checkpoints: {resume_checkpoint_path: own/checkpoints}\nmodel: {nimCache: own/cache}\n")


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        (f"model-name: {QWEN}\nreplicaCount: 1\nreadinessProbe: {{}}", "decode"),  # a chart's
        (f"model_name_or_path: {QWEN}\ngeneration_max_length: 20", "decode"),  # HELMET's
        (f"model: {QWEN}\nmax_tokens: 1000000\nsequence_length: 2048\nnodes: 4", None),  # tokens to train on
    ],
)
def test_a_chart_serves_and_tokens_to_train_on_serve_nobody(tmp_path: Path, text: str, phase: str | None) -> None:
    reading = read(tmp_path, text)
    assert (reading.model.layers, reading.workload.get("phase")) == (28, phase)


def test_of_several_models_the_one_that_trains_is_read(tmp_path: Path) -> None:
    text = f"generate: {{model: facebook/opt-125m}}\ntrain: {{model_path: /models/{QWEN}, max_seq_len: 64}}"
    assert read(tmp_path, text).model.layers == 28


def test_runs_that_a_file_lists_over_its_settings_are_named(tmp_path: Path) -> None:
    runs = "experiment: [{name: lora, args: {tuner_type: lora}}]"
    text = f"args: {{model: {QWEN}, per_device_train_batch_size: 1}}\n{runs}"
    changes = [one.changes for one in read(tmp_path, text).unread if one.key == "experiment"]
    assert changes == ["which of its runs is meant (several are listed, each over these settings)"]


@pytest.mark.parametrize("place", ["model: {name: %s}", "model: {checkpoint: %s, load_in_4bit: true}"])
def test_a_model_that_nobody_knows_is_refused_by_its_name(tmp_path: Path, place: str) -> None:
    """An own fine-tune, a folder of one's own: not as a file in no format."""
    with pytest.raises(NoModel, match=r"names a model \(model\.\w+ = 'own/checkpoint-7'\): no such file"):
        read(tmp_path, place % "own/checkpoint-7")


def test_one_model_under_two_keys_is_one(tmp_path: Path) -> None:
    reading = read(tmp_path, f"model_name_or_path: {QWEN}\nmodel_name: Qwen3-0.6B\n")
    assert not [note for note in reading.notes if "names another model" in note]
    assert reading.model.layers == 28


TRAINS = f" --model_name_or_path {QWEN} --per_device_train_batch_size 2 --bf16 True"


@pytest.mark.parametrize(
    ("launched", "devices"),
    [
        ("torchrun --nproc_per_node 8 --nnodes 2 train.py", 16),
        ("deepspeed --num_gpus=4 train.py", 4),
        ("deepspeed --num_nodes 2 --num_gpus 4 train.py", 8),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py", 16),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8\naccelerate launch --num_processes 16 train.py", 16),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8\nsrun python train.py", 16),
        ("NPROC_PER_NODE=8 NNODES=2 swift sft", 16),
        ("export NPROC_PER_NODE=4\nswift rlhf", 4),
        ("#SBATCH --nodes=4\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 train.py", 32),
        ("torchrun --nnodes $NODES --nproc_per_node 8 train.py", None),
        ("torchrun --nnodes= --nproc_per_node 8 train.py", None),
        ("sbatch -N 2 --ntasks-per-node 4 <<EOF\npython train.py", 8),
    ],
)
def test_devices_that_a_launcher_starts_are_data_parallel(launched: str, devices: int | None, tmp_path: Path) -> None:
    found = read(tmp_path, f"#!/bin/bash\n{launched}{TRAINS}", "run.sh")
    assert (found.workload.get("gpus"), found.workload["b"]) == (devices, 2)
    assert ("nproc_per_node" in [one.key for one in found.unread]) is (devices is None)


def test_a_launchers_precision_is_read(tmp_path: Path) -> None:
    launched = f"#!/bin/bash\naccelerate launch --mixed_precision fp16 train.py{TRAINS}"
    found = read(tmp_path, launched.removesuffix(" --bf16 True"), "run.sh")
    assert (found.workload["dtype"], read(tmp_path, launched, "run.sh").workload["dtype"]) == ("fp16", "bf16")


@pytest.mark.parametrize("option", ["--deepspeed ", "--deepspeed_config="])
def test_the_deepspeed_settings_that_a_script_names_are_read(option: str, tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO_3))
    script = f"#!/bin/bash\ndeepspeed --num_gpus 2 train.py{TRAINS} {option}$HERE/zero3.json"
    found = read(tmp_path, script, "run.sh")
    assert (found.workload["zero"], found.workload["gpus"], found.unread) == (3, 2, ())
    assert not any("is not read" in note for note in found.notes)
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO_3 | {"gradient_accumulation_steps": 1}))
    more = read(tmp_path, f"{script} --gradient_accumulation_steps 4", "run.sh")
    assert (found.workload["global_batch"], more.workload["global_batch"]) == (4, 16)


def test_a_default_for_an_argument_that_a_script_keeps_first_is_taken(tmp_path: Path) -> None:
    script = f"#!/bin/bash\nMODEL=${{2}}\nB=$3\npython train.py{TRAINS.replace(QWEN, '${MODEL:-' + QWEN + '}')}"
    assert read(tmp_path, script, "run.sh").model.layers == 28
    with pytest.raises(InputError, match="which the file does not hold"):
        read(tmp_path, script.replace(":-", "-"), "run.sh")


def test_a_generators_split_under_a_name_of_its_own_is_read(tmp_path: Path) -> None:
    script = f"#!/bin/bash\nTP=${{4:-8}}\npython batched_generate_vllm.py --model {QWEN} --tp_per_worker $TP"
    found = read(tmp_path, script, "run.sh")
    assert (found.workload["phase"], found.workload["t"], found.unread) == ("decode", 8, ())


def test_adapters_that_training_goes_on_with_are_named(tmp_path: Path) -> None:
    script = f"#!/bin/bash\npython train.py{TRAINS} --lora_remote_checkpoint a/b --checkpoint c --save_checkpoint d"
    assert [(one.key, one.changes) for one in read(tmp_path, script, "run.sh").unread] == [
        ("lora_remote_checkpoint", "what of it trains")
    ]


def test_options_that_a_script_repeats_by_echo_are_read(tmp_path: Path) -> None:
    script = f'#!/bin/bash\nARGS="{TRAINS}"\n(python train.py $(echo ${{ARGS}}) --rank 0 & wait)'
    assert read(tmp_path, script, "run.sh").workload["b"] == 2


ACCELERATE = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}, "mixed_precision": "bf16"}


@pytest.mark.parametrize(("option", "devices"), [("", 8), ("--num_processes 2 ", 2)])
def test_accelerates_settings_that_a_script_names_are_read(option: str, devices: int, tmp_path: Path) -> None:
    (tmp_path / "zero3.yaml").write_text(json.dumps(ACCELERATE | {"num_processes": 8}))
    script = f"accelerate launch {option}--config_file configs/zero3.yaml train.py{TRAINS}\n"
    found = read(tmp_path, script.replace(" --bf16 True", ""), "run.sh")
    said = {"zero": 3, "gpus": devices, "dtype": "bf16", "b": 2}
    assert ({key: found.workload[key] for key in said}, found.unread) == (said, ())
    (tmp_path / "zero3.yaml").write_text("lr: 1\n")
    assert [one.key for one in read(tmp_path, script, "run.sh").unread] == ["config_file"]


def test_deepspeeds_file_that_accelerates_settings_name_is_read(tmp_path: Path) -> None:
    named = {"deepspeed_config_file": "configs/ds.json", "zero3_init_flag": True}
    (tmp_path / "acc.yaml").write_text(json.dumps(ACCELERATE | {"deepspeed_config": named, "num_processes": 8}))
    script = f"accelerate launch --config_file acc.yaml train.py{TRAINS}\n"
    assert [one.key for one in read(tmp_path, script, "run.sh").unread] == ["deepspeed_config.deepspeed_config_file"]
    offload = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": offload, "gradient_accumulation_steps": "auto"}))
    found = read(tmp_path, script, "run.sh")
    said = {"zero": 3, "offload": 1, "gpus": 8, "b": 2}
    assert ({key: found.workload.get(key) for key in said}, found.unread) == (said, ())


LLAMA = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8}
LLAMA |= {"num_attention_heads": 8, "vocab_size": 32000}


def test_files_of_settings_that_a_command_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    script = "torchrun --nproc_per_node 2 main.py --model_config configs/llama.json --lr 1 --batch_size 16\n"
    found = read(tmp_path, script, "run.sh")
    assert (found.model.layers, found.model.hidden, found.workload) == (
        8,
        512,
        {"gpus": 2, "b": 16, "global_batch": 32},
    )
    assert "reads in llama.json" in found.notes
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-0.6B\nmax_seq_length: 512\nlearning_rate: 1\n"
    )
    found = read(tmp_path, "python train.py recipe.yaml --max_seq_length=1024\n", "run.sh")
    assert (found.model.layers, found.workload, found.unread) == (28, {"s": 1024}, ())
    (tmp_path / "recipe.yaml").write_text(
        "model: {name_or_path: null, seq_length: '${data.length}'}\ndata: {length: 1}\n"
    )
    hydra = "python train.py recipe.yaml model.name_or_path=Qwen/Qwen3-0.6B data.length=512 model.seed=null\n"
    assert read(tmp_path, hydra, "run.sh").workload == {"s": 512}


MAKEFILE = """
MODEL ?= Qwen/Qwen3-0.6B
TP := 2  # cards
ARGS = --max-model-len 4096 \\
   --gpu-memory-utilization 0.9
.PHONY: serve
serve: deps
\t@echo "serving $(MODEL)"
\tvllm serve $(MODEL) --tensor-parallel-size $(TP) $(ARGS)
clean:
\t@for one in $$(ls *.log); do rm $$one; done
"""
DOCKERFILE = """
FROM vllm/vllm-openai:latest
ENV MODEL=Qwen/Qwen3-8B HF_HOME=/cache
RUN pip install one && \\
    pip install another
ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]
CMD ["--model", "Qwen/Qwen3-0.6B", \\
     "--tensor-parallel-size", "2", "--max-model-len=4096"]
"""
JUSTFILE = """
set shell := ["bash", "-c"]
model := "Qwen/Qwen3-0.6B"
default:
    just --list
serve port="8000":
    @vllm serve {{model}} --tensor-parallel-size 2 --max-model-len 4096 --port {{port}}
"""


@pytest.mark.parametrize(
    ("name", "text"), [("Makefile", MAKEFILE), ("Dockerfile.serve", DOCKERFILE), ("justfile", JUSTFILE)]
)
def test_commands_of_makefiles_dockerfiles_and_justfiles_are_read(name: str, text: str, tmp_path: Path) -> None:
    found = read(tmp_path, text, name)
    assert (found.model.layers, found.workload, found.longest) == (28, {"phase": "decode", "t": 2}, 4096)


def test_a_script_that_names_no_model_says_what_it_runs(tmp_path: Path) -> None:
    script = "#!/bin/bash\nsbatch train/one.slurm $HOME\n"
    with pytest.raises(InputError, match=r"states a model .*; what it runs may state one: train/one\.slurm"):
        read(tmp_path, script, "run.sh")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--wbits 4", "trains the quantisation of it alone"),
        ("--tune_language_model False", "trains the projector or the encoder alone"),
    ],
)
def test_what_trains_another_part_than_the_model_is_refused(option: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{said} and not gpt2"):
        read(tmp_path, f"python main.py --model gpt2 --epochs 2 {option}\n", "run.sh")


def test_a_program_that_prepares_data_for_training_does_not_train(tmp_path: Path) -> None:
    found = read(tmp_path, "python data_process_train.py --model_path google/gemma-2b\n", "run.sh")
    assert any("nothing in it says that it trains" in note for note in found.notes)


def test_old_arithmetic_and_bits_of_a_base_are_read(tmp_path: Path) -> None:
    script = f"N=8\npython train.py{TRAINS} --lora_enable True --lora_r 4 --bits 4"
    script += " --gradient_accumulation_steps $[128/($N*2)]"
    found = read(tmp_path, script, "run.sh")
    assert (found.workload["finetune"], found.workload["base"]) == ("qlora", "nf4-16")
    assert any(note.startswith("8 microbatches accumulate") for note in found.notes)


def test_a_release_without_its_organisation_is_one_and_tests_that_cannot_be_told_are_said(tmp_path: Path) -> None:
    script = "model=gpt2\nif [ $# -ge 1 ]; then\n  model=$1\nfi\npython chatbot.py --model_name_or_path $model\n"
    found = read(tmp_path, script, "run.sh")
    assert (found.model.model_type, found.workload) == ("gpt2", {"phase": "decode"})
    assert "tests that only running could decide are taken as not holding (line 2)" in found.notes


def test_deepspeed_settings_that_a_script_writes_are_not_those_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO_3))
    text = f"DS_CONFIG=zero3.json\ncat <<EOT > $DS_CONFIG\n{{}}\nEOT\npython train.py{TRAINS} --deepspeed $DS_CONFIG"
    found = read(tmp_path, f"#!/bin/bash\n{text}", "run.sh")
    assert "zero" not in found.workload
    assert any("(deepspeed) is not read" in note for note in found.notes)


ARRAYS = """#!/bin/bash
declare -A MODELS=( [small]="Qwen/Qwen3-0.6B" ["large"]='Qwen/Qwen3-8B' )
declare -A BATCHES
BATCHES[small]=4
BATCHES["large"]=2
LENGTHS[1]=512
"""


@pytest.mark.parametrize(
    ("run", "layers", "b"),
    [
        ("SIZE=${1:-large}", 36, 2),
        ("SIZE=small", 28, 4),
        ('for SIZE in "${!MODELS[@]}"; do', 28, 4),
    ],
)
def test_associative_arrays_of_a_script_are_followed(run: str, layers: int, b: int, tmp_path: Path) -> None:
    named = '--model_name_or_path "${MODELS[$SIZE]}" --per_device_train_batch_size ${BATCHES[$SIZE]}'
    text = f"{ARRAYS}{run}\npython train.py {named} --max_seq_length ${{LENGTHS[1]}}\n{'done' * ('for' in run)}"
    found = read(tmp_path, text, "run.sh")
    assert (found.model.layers, found.workload["b"], found.workload["s"]) == (layers, b, 512)


def test_an_element_that_the_script_does_not_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which the file does not hold"):
        read(tmp_path, f"{ARRAYS}python train.py{TRAINS} --model_name_or_path ${{MODELS[$1]}}", "run.sh")


def test_megatron_with_deepspeed_takes_its_settings(tmp_path: Path) -> None:
    offloaded = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True}
    settings = {"zero_optimization": offloaded, "train_micro_batch_size_per_gpu": 4, "train_batch_size": 16}
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    sizes = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64"
    script = f"deepspeed --num_gpus 8 pretrain_gpt.py {sizes} --vocab-size 512 --zero-stage 1 --deepspeed"
    found = read(tmp_path, f"#!/bin/bash\n{script} --deepspeed_config ds.json --micro-batch-size 2", "run.sh")
    said = {"zero": 2, "offload": 1, "d": 8, "global_batch": 16, "b": 2, "no_overlap": "tensor-forward"}
    assert {key: found.workload.get(key) for key in said} == said
    assert found.unread == ()


def test_the_devices_that_train_a_nanogpt_are_read(tmp_path: Path) -> None:
    sizes = "--n_layer=4 --n_head=4 --n_embd=64 --batch_size=12 --block_size=64 --dataset=openwebtext"
    text = f"#!/bin/bash\ntorchrun --nproc_per_node=8 train.py {sizes} --gradient_accumulation_steps=16"
    found = read(tmp_path, text, "run.sh")
    assert {key: found.workload[key] for key in ("gpus", "b", "global_batch")} == {
        "gpus": 8,
        "b": 12,
        "global_batch": 192,
    }


def test_devices_of_a_long_script_are_looked_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A script of 3,000 commands took a minute: each was taken apart for each of them."""
    taken = list[object]()
    split = megatron._split
    monkeypatch.setattr(megatron, "_split", lambda words: taken.append(words) or split(words))
    text = "#!/bin/bash\n" + "echo a --b c\n" * 300 + f"torchrun --nproc_per_node 4 train.py{TRAINS}"
    assert read(tmp_path, text, "run.sh").workload["gpus"] == 4
    assert len(taken) < 5 * 300


def test_a_section_that_is_off_trains_no_draft_and_lays_nothing_over_the_model(tmp_path: Path) -> None:
    mtp = "mtp: {enable: %s, speculative_algorithm: EAGLE, num_layers: 1}"
    text = f"actor_rollout_ref: {{model: {{path: {QWEN}, {mtp}}}, rollout: {{n: 1}}}}"
    assert read(tmp_path, text % "false").unread == ()
    with pytest.raises(InputError, match="draft of speculative decoding"):
        read(tmp_path, text % "true")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{job: extension, config: {process: [{model: {name_or_path: a/b}}]}, meta: {name: a}}", "ai-toolkit"),
        ("{model_type: lora, model_family: sdxl, data_backend_config: a.json, train_batch_size: 1}", "SimpleTuner"),
    ],
)
def test_trainers_of_pictures_are_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(NoModel, match=f"a model of pictures or video .{said}.*give its config.json"):
        read(tmp_path, text)


def test_a_charts_values_run_what_its_containers_run(tmp_path: Path) -> None:
    """llm-d's chart, which serves its artefact; one whose command trains."""
    served = f"modelArtifacts: {{name: {QWEN}, uri: 'hf://x'}}\ndecode: {{args: [--tensor-parallel-size, '2']}}"
    found = read(tmp_path, served, "values.yaml")
    assert (found.model.layers, found.workload["phase"]) == (28, "decode")
    words = f"python, run_clm.py, --model_name_or_path, {QWEN}, --per_device_train_batch_size, '4', --lora_rank, '8'"
    found = read(tmp_path, f"imagePullSecrets: []\ncommand: [{words}]", "values.yaml")
    assert {key: found.workload[key] for key in ("b", "finetune", "lora_rank")} == {
        "b": 4,
        "finetune": "lora",
        "lora_rank": 8,
    }


def test_a_charts_model_name_with_further_options_serves(tmp_path: Path) -> None:
    text = f"modelName: {QWEN}\nimage: {{tag: v1}}\nextraArgs: [--tensor-parallel-size, '2']\n"
    found = read(tmp_path, text, "values.yaml")
    assert (found.model.layers, found.workload) == (28, {"phase": "decode", "t": 2})


def test_weights_that_a_server_quantises_as_they_load_are_in_fp8(tmp_path: Path) -> None:
    """Not those of a release that is quantised already, nor in a way that is not known, which a note says."""
    text = "model: {}\nquantization: {}\nmax-model-len: 512\n"
    for name, method, said in (
        (QWEN, "fp8", "released in fp8 per channel"),
        ("Qwen/Qwen3-0.6B-FP8", "fp8", "released in fp8 in blocks"),
        (QWEN, "experts_int8", "its weights may be quantised as they load"),
    ):
        found = read(tmp_path, text.format(name, method))
        assert [one for one in found.notes if one.startswith(said)], found.notes


def test_a_container_that_runs_a_script_of_its_tree_has_the_scripts_options(tmp_path: Path) -> None:
    """Its environment is the script's, and the script is found by as much of its path as there is."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.sh").write_text("swift sft --model ${MODEL_ID} --lora_rank ${RANK:-8}\n", "utf-8")
    env = f"[{{name: MODEL_ID, value: {QWEN}}}, {{name: RANK, value: '32'}}]"
    container = f"{{image: x, command: [/bin/bash, -c, 'echo a; /workspace/scripts/run.sh'], env: {env}}}"
    found = read(tmp_path, f"apiVersion: batch/v1\nkind: Job\nspec: {{containers: [{container}]}}\n", "job.yaml")
    assert (found.model.layers, found.workload["lora_rank"], found.workload.get("phase")) == (28, 32, None)


def test_what_serves_by_its_own_words_decodes(tmp_path: Path) -> None:
    """kthena's model, a benchmark's server on Neuron, LLaMA-Factory's inference with an adapter, a chart's probes."""
    kthena = "apiVersion: x/v1\nkind: ModelBooster\nspec: {backend: {modelURI: s3://a/Qwen/Qwen3-0.6B}}"
    neuron = "server: {model_path: /m/Qwen3-0.6B/, max_seq_len: 512, tp_degree: 2, server_port: 8000}"
    factory = f"model_name_or_path: {QWEN}\nadapter_name_or_path: saves/x\ntemplate: qwen\nfinetuning_type: lora"
    chart = f"vllm: {{enabled: true, startupProbe: {{failureThreshold: 1}}}}\nagent: {{model: {QWEN}}}"
    for text, t in ((kthena, None), (neuron, 2), (factory, None), (chart, None)):
        found = read(tmp_path, text)
        assert (found.model.layers, found.workload["phase"], found.workload.get("t")) == (28, "decode", t)
        assert "finetune" not in found.workload


def test_layers_of_another_kind_in_the_place_of_a_models_are_refused(tmp_path: Path) -> None:
    """Monarch Mixer's recipes name bert-base-uncased, whose sizes theirs are."""
    text = f"{TRL}per_device_train_batch_size: 1\nmodel_config: {{monarch_mixer_sequence_mixing: true}}\n"
    with pytest.raises(InputError, match="trains other attention in its place"):
        read(tmp_path, text)
    assert read(tmp_path, text.replace("true", "false")).model.layers == 28


def test_bits_that_a_program_of_ones_own_loads_its_base_in_are_named(tmp_path: Path) -> None:
    text = f"model: {{name: {QWEN}, use_bnb: true, lora: {{r: 8}}}}\ntrain: {{per_device_train_batch_size: 1}}\n"
    found = read(tmp_path, text + "optimizer: {name: AdamW8bit}")
    assert [one.key for one in found.unread] == ["model.use_bnb"]
    assert found.workload["optimizer"] == "adamw-8bit"


def test_a_proxy_of_servers_runs_its_first_command(tmp_path: Path) -> None:
    """llama-swap's file."""
    text = "startPort: 1\nmodels:\n  a: {cmd: 'llama-server --model /x/Qwen3-0.6B-Q8_0.gguf --ctx-size 512'}\n"
    found = read(tmp_path, text, "config.yaml")
    assert (found.model.layers, found.workload["phase"], found.longest) == (28, "decode", 512)


def test_a_servers_draft_and_settings_without_a_model_are_named(tmp_path: Path) -> None:
    text = f"""vllm serve {QWEN} --speculative-config '{{"method": "eagle3", "model": "a/b"}}' --max-model-len 512"""
    assert [one.key for one in read(tmp_path, text, "run.sh").unread] == ["speculative_config"]
    with pytest.raises(NoModel, match="which name no model: sizer check MODEL --training FILE"):
        read(tmp_path, "{distributed_type: FSDP, num_machines: 1, num_processes: 8}")


def test_a_charts_model_in_capitals_is_read_and_a_comments_is_not_spoken_of(tmp_path: Path) -> None:
    found = read(tmp_path, f"MODEL_ID: {QWEN}\nimagePullSecrets: []\n", "values.yaml")
    assert (found.model.layers, found.workload["phase"]) == (28, "decode")
    with pytest.raises(NoModel, match=r"is ollama's, in bits .*as qwen3-8b; --set MODEL_ID=NAME"):
        read(tmp_path, "MODEL_ID: qwen3:8b\nimagePullSecrets: []\n", "values.yaml")
    text = f"a: 1  # as Qwen/Qwen3-8B\n# Qwen/Qwen3-14B\nrepo_id: [{QWEN}]\n"
    with pytest.raises(NoModel, match=f"speaks of a released model: sizer check {QWEN}$"):
        read(tmp_path, text)


def test_a_model_that_is_pooled_is_a_retrievers_and_attention_to_both_sides_is_named(tmp_path: Path) -> None:
    """llm2vec's files."""
    with pytest.raises(InputError, match="trains a retriever"):
        read(tmp_path, f"{TRL}per_device_train_batch_size: 1\npooling_mode: mean\n")
    found = read(tmp_path, f"{TRL}per_device_train_batch_size: 1\nbidirectional: true\nclassifier_dropout: 0.1\n")
    assert [one.key for one in found.unread] == ["bidirectional", "classifier_dropout"]


def test_what_rounds_make_of_a_file_is_always_a_number() -> None:
    """A bare key would be taken as it is, a text too: expressions pass over those."""
    rows = FORMATS["recipes"].values()
    said = [one for row in rows for phase in row.get("rounds", {}).values() for one in phase.values()]
    assert len(said) > 20
    assert not [one for text in said for one in text.split(" | ") if one.isidentifier()]


def test_cosmos_rls_toml_recomputes_and_says_its_degrees_and_its_round(tmp_path: Path) -> None:
    text = f"""
[train]
master_dtype = "bfloat16"
train_batch_per_replica = 8
[train.train_policy]
type = "grpo"
[rollout]
max_response_length = 512
[rollout.parallelism]
tp_size = 2
[policy]
model_name_or_path = "{QWEN}"
model_max_length = 1024
[policy.parallelism]
tp_size = 1
dp_shard_size = 4
dp_replicate_size = 2
"""
    found = read(tmp_path, text, "grpo.toml")
    said = {"b": 2, "s": 1024, "d": 8, "replicas": 2, "zero": 3, "checkpointing": "full", "precision": "bf16"}
    assert said.items() <= found.workload.items()
    assert found.rounds["decode"] == {"context": 1024, "t": 2}
    assert {"train.train_batch_per_replica"} <= {one.key for one in found.unread}


@pytest.mark.parametrize("line", ["act_ckpt: true", "grad_ckpt_enable: true", "batch_per_replica: 8"])
def test_recomputation_and_batches_of_other_spellings_are_said(line: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"model: {{name_or_path: {QWEN}}}\nlr: 1\n{line}\n")
    assert [one.key for one in found.unread] == [line.partition(":")[0]]


def test_dstacks_commands_are_lines_of_a_script(tmp_path: Path) -> None:
    text = f"""
type: service
image: vllm/vllm-openai
env: [HF_TOKEN, MODEL={QWEN}]
commands:
  - pip install vllm
  - vllm serve $MODEL --max-model-len 4096 --tensor-parallel-size %s
resources: {{gpu: "H100:2"}}
"""
    found = read(tmp_path, text % 2, "serve.dstack.yml")
    assert (found.model.layers, found.workload["t"], found.workload["phase"]) == (28, 2, "decode")
    assert read(tmp_path, text % "$DSTACK_GPUS_NUM", "serve.dstack.yml").workload["t"] == 2
    any_gpu = (text % "$DSTACK_GPUS_NUM").replace("H100:2", "24GB")
    (unread,) = read(tmp_path, any_gpu, "serve.dstack.yml").unread
    assert (unread.key, unread.value) == ("tensor_parallel_size", "$DSTACK_GPUS_NUM")
    (unread,) = read(tmp_path, (text % "$DSTACK_GPUS_NUM") + "nodes: 2\n", "serve.dstack.yml").unread
    assert unread.value == "$DSTACK_GPUS_NUM"  # of all nodes


@pytest.mark.parametrize(
    ("gpus", "split"), [("H100:8", 8), ("{H100: 4}", 4), ("{L4: 8, A100: 4}", None), ("[H100:8, A100:8]", None)]
)
def test_skypilots_devices_of_a_node_are_those_of_its_resources(gpus: str, split: int | None, tmp_path: Path) -> None:
    serve = f"vllm serve {QWEN} --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE"
    found = read(tmp_path, f"resources: {{accelerators: {gpus}}}\nnum_nodes: 2\nrun: {serve}\n", "sky.yaml")
    assert (found.workload.get("t"), len(found.unread)) == (split, split is None)


def test_an_option_names_the_model_of_verls_settings(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("actor_rollout_ref: {actor: {ppo_micro_batch_size_per_gpu: 3}}\n", "utf-8")
    found = read(tmp_path, f"python train.py --config base.yaml --model {QWEN}\n", "train.sh")
    assert (found.model.layers, found.workload["b"]) == (28, 3)
    assert "reads in base.yaml" in found.notes


def test_verls_fine_tuning_shards_its_states_over_what_torchrun_starts(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 4 -m own.fsdp_sft_trainer model.partial_pretrain={QWEN} data.max_length=64\n"
    found = read(tmp_path, text, "sft.sh").workload
    assert (found["gpus"], found["zero"]) == (4, 3)


@pytest.mark.parametrize(
    ("said", "checkpointing"),
    [
        ("actor_rollout_ref.model.path={}", "full"),
        ("actor_rollout_ref.model.path={} actor_rollout_ref.model.enable_gradient_checkpointing=False", None),
        ("actor_rollout_ref.model.path={} actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", None),
        ("actor_rollout_ref.model.path={} actor_rollout_ref.actor.strategy=megatron", None),
        ("actor_rollout_ref.model.path={} actor_rollout_ref.actor.strategy=fsdp2", "full"),
        ("model.partial_pretrain={}", "full"),
    ],
)
def test_verl_recomputes_unless_it_is_told_not_to(said: str, checkpointing: str | None, tmp_path: Path) -> None:
    """Its configurations' own (enable_gradient_checkpointing), which its Megatron does not look at."""
    found = read(tmp_path, f"python -m verl.x {said.format(QWEN)} trainer.nnodes=1\n", "run.sh")
    assert found.workload.get("checkpointing") == checkpointing
    told = "enable_gradient_checkpointing=" in said
    assert told != any("recomputation is not told" in note for note in found.notes)
    if "partial_pretrain" in said:
        assert (found.workload["b"], found.workload["s"]) == (4, 1024)  # sft_trainer.yaml's


def test_an_options_value_keeps_its_blanks(tmp_path: Path) -> None:
    options = '--hf-overrides=\'{"a": 1, "b": "-x --max-model-len 9"}\' --max-model-len=64'
    found = read(tmp_path, f"vllm serve {QWEN} {options}\n", "serve.sh")
    assert [one.value for one in found.unread] == ['\'{"a": 1, "b": "-x --max-model-len 9"}\'']
    assert found.longest == 64


def test_the_value_of_a_name_that_is_replaced_in_is_said_whole(tmp_path: Path) -> None:
    with pytest.raises(NoModel, match=re.escape(r"its value is ${M//\//_}, which the file does not hold")):
        read(tmp_path, f"M={QWEN}\nvllm serve /data/${{M//\\//_}}\n", "serve.sh")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("tgi_options: ['--tensor-parallel-size', '4']", "tgi_options"),
        ('more: \'{"sharding": {"enable_dp_attention": true}}\'', "more"),
    ],
)
def test_a_servers_split_that_is_not_read_is_said(line: str, key: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"vllm: {{model: {QWEN}}}\n{line}\n")
    assert (found.workload["phase"], [one.key for one in found.unread]) == ("decode", [key])


def test_stages_in_a_list_are_said(tmp_path: Path) -> None:
    text = f"models: {{base_model: {QWEN}}}\nstages: [{{method: grpo, lr: 1, batch_size: 2}}]\n"
    (unread,) = read(tmp_path, text).unread
    assert (unread.key, unread.changes) == (
        "stages",
        "which of its runs is meant (several are listed, each over these settings)",
    )


def test_omegaconfs_decoded_defaults_are_values(tmp_path: Path) -> None:
    text = (
        f"model_name_or_path: {QWEN}\nlearning_rate: 1\ngradient_checkpointing: ${{oc.decode:${{oc.env:CKPT,True}}}}\n"
    )
    assert read(tmp_path, text).workload["checkpointing"] == "full"


@pytest.mark.parametrize(
    ("strategy", "zero", "offload"),
    [
        ("deepspeed", 2, None),
        ("deepspeed_stage_1", 1, None),
        ("deepspeed_stage_2_offload", 2, 1),
        ("deepspeed_stage_3", 3, None),
        ("fsdp", 3, None),
        ("ddp", None, None),
    ],
)
def test_lightnings_strategies_shard(strategy: str, zero: int | None, offload: int | None, tmp_path: Path) -> None:
    text = f"model: {{name_or_path: {QWEN}}}\ntrainer: {{strategy: {strategy}, max_epochs: 1}}\nlr: 1\n"
    found = read(tmp_path, text).workload
    assert [found.get(key) for key in ("zero", "offload", "offload_params")] == [zero, offload, None]


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        (
            "strategy: {class_path: own.DeepSpeedStrategy, init_args: {stage: 2}}",
            ["strategy.class_path", "strategy.init_args.stage"],
        ),
        ("precision: bf16-true", ["precision"]),
        ("use_kt: true", ["use_kt"]),
        ("use_eaft_loss: true", ["use_eaft_loss"]),
        ("args: [--dtype=half, --port=80]", ["args"]),
        ("precision: bf16-mixed", []),
        ("float32_matmul_precision: high", []),
        ("args: [--dtype=auto]", []),
    ],
)
def test_what_spreads_a_model_or_sets_its_bytes_is_said_where_it_is_not_read(
    line: str, keys: list[str], tmp_path: Path
) -> None:
    found = read(tmp_path, f"model: {{name_or_path: {QWEN}}}\nlr: 1\n{line}\n")
    assert [one.key for one in found.unread] == keys


def test_an_image_that_serves_takes_its_split_and_length_of_its_environment(tmp_path: Path) -> None:
    """One that is given a command does what that says."""
    text = f"""apiVersion: apps/v1
kind: Deployment
spec: {{containers: [{{image: x/serve, env: [{{name: MODEL_NAME, value: {QWEN}}},
  {{name: TENSOR_PARALLEL_SIZE, value: "2"}}, {{name: MAX_MODEL_LEN, value: "512"}}, {{name: PORT, value: "1"}}]}}]}}
"""
    found = read(tmp_path, text)
    assert (found.workload, found.longest) == ({"phase": "decode", "t": 2}, 512)
    command = f"command: [vllm, serve, {QWEN}]"
    assert "t" not in read(tmp_path, text.replace("image: x/serve", f"image: x/serve, {command}")).workload


def test_levanters_files_that_start_from_a_release_are_of_that(tmp_path: Path) -> None:
    """Marin's server has a location of its own."""
    text = f"""model: {{type: qwen3}}
initialize_from_hf: {QWEN}
use_hf_model_config: true
trainer: {{mp: "p=f32,c=bfloat16", per_device_parallelism: -1, train_batch_size: 64, checkpointer: {{base_path: x/a}}}}
train_seq_len: 512
lora: {{r: 16}}
beta: 0.1
"""
    found = read(tmp_path, text)
    assert (found.model.layers, found.unread) == (28, ())
    said = {"s": 512, "global_batch": 64, "zero": 3, "checkpointing": "full", "finetune": "lora", "lora_rank": 16}
    assert {key: found.workload.get(key) for key in (*said, "b")} == {**said, "b": None}
    assert any("DPO" in one for one in found.notes)
    assert [one.key for one in read(tmp_path, text.replace("p=f32", "p=bfloat16")).unread] == ["trainer.mp"]
    served = read(tmp_path, f"location: {QWEN}\nserve: {{tensor_parallel_size: 2, max_model_len: 512}}\n")
    assert (served.workload, served.longest) == ({"phase": "decode", "t": 2}, 512)


def test_weights_that_are_loaded_in_fp32_and_not_cast_train_in_it(tmp_path: Path) -> None:
    text = f"model_name_or_path: {QWEN}\ntorch_dtype: float32\nper_device_train_batch_size: 2\nbf16: %s\n%s"
    full = read(tmp_path, text % ("false", "")).workload
    assert (full["dtype"], full["precision"]) == ("fp32", "fp32")
    assert "precision" not in read(tmp_path, text % ("true", "")).workload
    found = read(tmp_path, text % ("false", "lora_r: 8\n"))
    assert "LoRA's frozen weights are fp32 (torch_dtype), and are counted in 16 bits" in found.notes


def test_what_makes_data_does_not_train_and_nebaris_models_serve(tmp_path: Path) -> None:
    with pytest.raises(NoModel, match="known formats"):
        read(tmp_path, f"data_generation: {{model_name: {QWEN}, num_samples: 100}}\ngeneral: {{log_level: INFO}}\n")
    text = f"kind: LLMModel\nspec: {{model: {{name: {QWEN}}}, advanced: {{vllm: {{extraArgs: [--dtype, half]}}}}}}\n"
    found = read(tmp_path, text)
    assert (found.workload, [one.key for one in found.unread]) == (
        {"phase": "decode"},
        ["spec.advanced.vllm.extraArgs"],
    )


@pytest.mark.parametrize("option", ["--served-model-name=a", "--tensor-parallel-size=2"])
def test_an_image_that_serves_is_given_its_model_as_a_word(option: str, tmp_path: Path) -> None:
    """vllm-openai's entry point is vllm serve; a hub's copy may have its revision as a folder."""
    for name in (f"/models/{QWEN}/main", f"/models/{QWEN}", QWEN):
        container = f"{{image: 'vllm/vllm-openai:v0.25', args: [{name}, {option}, --port, '80']}}"
        found = read(tmp_path, f"apiVersion: v1\nkind: Pod\nspec: {{containers: [{container}]}}\n")
        assert (found.model.layers, found.workload["phase"]) == (28, "decode")
        assert found.workload.get("t") == (2 if "tensor" in option else None)


def test_sections_of_ones_own_are_no_openrlhfs_and_a_profile_is_said(tmp_path: Path) -> None:
    """What a profile lays over the rest is none of the run's values."""
    text = f"""model: {{model_name_or_path: {QWEN}}}
data: {{max_seq_length: 512}}
training: {{per_device_train_batch_size: 2, learning_rate: 1.0e-4}}
profiles: {{large: {{data: {{max_seq_length: 1024}}, training: {{per_device_train_batch_size: 8}}}}}}
"""
    found = read(tmp_path, text)
    assert {key: found.workload[key] for key in ("b", "s")} == {"b": 2, "s": 512}
    assert {one.key.split(".")[0] for one in found.unread} == {"profiles"}
    assert all(one.changes and one.changes.startswith("which of its profiles") for one in found.unread)


def test_lengths_of_listed_data_types_of_adapters_and_tasks_are_told(tmp_path: Path) -> None:
    """They would pass in silence: a list's keys, a type of two bytes; tasks are evaluated."""
    text = "model = '/m/Qwen3-0.6B'\nlora_rank = 8\nlora_weight_dtype = 'bfloat16'\nlr = 1\n"
    text += "[[datasets]]\nname = 'a'\nsequence_len = 512\n"
    found = read(tmp_path, text, "recipe.toml")
    assert {one.key for one in found.unread} == {"lora_weight_dtype", "datasets"}
    assert read(tmp_path, f"model: {QWEN}\ntasks: [mmlu]\nbatch_size: 8\n").workload == {"phase": "decode"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("dist_config: {name: fsdp2}", {"zero": 3, "b": 1, "s": 2048, "checkpointing": "full"}),
        ("optim_config: {name: muon}\nmicro_batch_size: 2\ncutoff_len: 512", {"optimizer": "muon", "b": 2, "s": 512}),
        ("kernel_config: {name: liger_kernel}\nglobal_batch_size: 8", {"loss": "fused", "global_batch": 8}),
        (
            "peft_config: {name: lora, r: 16, target_modules: all}\nenable_activation_checkpointing: false",
            {"finetune": "lora", "lora_rank": 16, "lora_targets": "all-linear", "checkpointing": None},
        ),
    ],
)
def test_llama_factorys_next_settings_are_sections(more: str, said: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, f"model: {QWEN}\ntrain_dataset: x.yaml\n{more}\n")
    assert {key: found.workload.get(key) for key in said} == said
    assert not found.unread


def test_what_else_llama_factorys_next_says_is_named(tmp_path: Path) -> None:
    text = f"model: {QWEN}\ntrain_dataset: x\nbatching_strategy: dynamic_batching\npeft_config: {{name: freeze, "
    found = read(tmp_path, text + "freeze_trainable_layers: 2}\n")
    assert [one.key for one in found.unread] == ["batching_strategy"]
    assert any("only some layers train" in one for one in found.notes)


def test_a_critics_part_of_a_run_is_refused_and_an_adapter_that_serves_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trains a critic's, whose head is one value, and not"):
        read(tmp_path, f"model: {{path: {QWEN}}}\noptim: {{lr: 1}}\ncliprange_value: 0.5\n")
    found = read(tmp_path, f"model: {{name: {QWEN}}}\nadapter: {{path: out/lora}}\ngeneration: {{max_new_tokens: 8}}\n")
    assert [one.key for one in found.unread] == ["adapter.path"]
