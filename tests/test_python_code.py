"""Recipes that Python functions build: torchtitan's and Megatron-Bridge's registries, read and never run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shapes.errors import InputError
from sizer.readers import Source, python_code, read_config
from sizer.readers.loading import Tree
from sizer.readers.reading import LACKS, Values

BRIDGE = """
from megatron.bridge import AutoBridge
_MODEL = "Qwen/Qwen3-0.6B"
raise SystemExit("a file that is run ends here")

def _common(hf_path, sizes=None):
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(hf_path, revision="a").to_megatron_provider(load_weights=False)
    cfg.model.seq_length = 4 * 1024
    cfg.train.micro_batch_size = 1
    return cfg

def small_pretrain_config() -> ConfigContainer:
    cfg = _common(hf_path=_MODEL)
    cfg.model.tensor_model_parallel_size = 2
    cfg.train.global_batch_size = 512
    return cfg
"""
SECOND = """
def large_config():
    cfg = _common(hf_path="Qwen/Qwen3-8B")
    cfg.model.tensor_model_parallel_size: int = 4
    return cfg
"""
TITAN = """
def llama3_8b() -> Trainer.Config:
    spec = model_registry("8B", converters=[Float8LinearConverter.Config(fqns=["output"])])
    return Trainer.Config(
        model_spec=spec,
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=4),
        activation_checkpoint=FullAC.Config(),
    )

def llama3_8b_selective():
    config = llama3_8b()
    config.model_spec = model_registry("8B", attn_backend="varlen")
    config.parallelism.tensor_parallel_degree = 8
    config.activation_checkpoint = SelectiveAC.Config()
    return config
"""


def read(tmp_path: Path, text: str, recipe: str | None = None, folder: str = "llama3") -> Any:
    file = tmp_path / folder / "config_registry.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, "utf-8")
    return read_config(Source(file, {} if recipe is None else {"recipe": recipe}))


def test_a_bridge_recipe_is_the_model_that_it_names_with_what_is_assigned_to_it(tmp_path: Path) -> None:
    found = read(tmp_path, BRIDGE)
    assert found.model.parameters == 596_049_920
    assert found.workload == {"t": 2, "s": 4096, "b": 1, "global_batch": 512}


def test_of_several_recipes_one_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"its 2 recipes \(small_pretrain_config, large_config\): --set recipe="):
        read(tmp_path, BRIDGE + SECOND)
    found = read(tmp_path, BRIDGE + SECOND, "large_config")
    assert (found.model.layers, found.workload["t"]) == (36, 4)
    with pytest.raises(InputError, match="one of its 2 recipes"):
        read(tmp_path, BRIDGE + SECOND, "larger_config")


def test_torchtitans_registry_is_a_model_by_folder_and_flavor(tmp_path: Path) -> None:
    found = read(tmp_path, TITAN, "llama3_8b")
    assert found.format == "torchtitan"
    assert found.model.parameters == 8_030_261_248
    said = {"b": 2, "s": 8192, "t": 4, "dtype": "fp8", "checkpointing": "full"}
    assert {key: found.workload.get(key) for key in said} == said
    other = read(tmp_path, TITAN, "llama3_8b_selective")
    said = {"b": 2, "t": 8, "dtype": None, "checkpointing": "every-second-product"}
    assert {key: other.workload.get(key) for key in said} == said
    with pytest.raises(InputError, match=r"model\.name = 'fluxes': is no model that is known here"):
        read(tmp_path, TITAN, "llama3_8b", "fluxes")


def test_functions_that_call_one_another_without_end_are_left(tmp_path: Path) -> None:
    loops = "def a():\n    return b()\n\ndef b():\n    return a()\n"
    twice = "".join(f"def f{i}():\n    x = f{i + 1}()\n    y = f{i + 1}()\n    return y\n" for i in range(60))
    for text in (loops, twice):
        with pytest.raises(InputError, match="names no model in its options, settings or calls"):
            read(tmp_path, text)


def test_a_scripts_variable_is_set_where_the_script_names_a_model(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("MODEL=Qwen/Qwen3-8B\nvllm serve $MODEL --tensor-parallel-size 2\n")
    assert read_config(Source(file, {"MODEL": "Qwen/Qwen3-0.6B"})).model.layers == 28
    assert read_config(Source(file, {"num_hidden_layers": 4})).model.layers == 4
    assert read_config(Source(file, {"tensor_parallel_size": 4})).workload["t"] == 4


def test_a_bridge_recipe_that_changes_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.num_layers = 4: expected the 28 of Qwen/Qwen3-0\.6B"):
        read(tmp_path, BRIDGE.replace("seq_length = 4 * 1024", "num_layers = 4"))


UNSLOTH = """
from unsloth import FastLanguageModel
length = 512
model, tokenizer = FastLanguageModel.from_pretrained(
    {name}, max_seq_length=length, load_in_4bit=True, dtype=None)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "v_proj"])
trainer = SFTTrainer(model=model, train_dataset=load_dataset("x"), args=SFTConfig(per_device_train_batch_size=2))
trainer_stats = trainer.train()
"""


@pytest.mark.parametrize("name", ['"Qwen/Qwen3-0.6B"', 'model_name="Qwen/Qwen3-0.6B"'])
def test_a_notebooks_script_is_read_as_the_model_that_it_loads_and_trains(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, UNSLOTH.format(name=name))
    said = {"b": 2, "s": 512, "finetune": "qlora", "lora_rank": 8, "lora_targets": "q_proj,v_proj"}
    assert found.model.layers == 28
    assert {key: found.workload.get(key) for key in said} == said


CELLS = """
!pip install trl
model_id = "Qwen/Qwen3-0.6B"
CONFIG = {"name": "Qwen/Qwen3-0.6B", "length": 512}
---
this is no Python
---
# %%
model = AutoModelForCausalLM.from_pretrained(CONFIG["name"], torch_dtype=torch.bfloat16).to("cuda")
lora = LoraConfig(r=4)
if lora:
    %time lora
trainer = SFTTrainer(model=get_peft_model(model, lora), args=SFTConfig(max_length=CONFIG["length"]))
---
model = load_something_else("for a look at it")
"""


def notebook(text: str) -> str:
    """Cells that lines of dashes part, behind one of prose, as a notebook's file."""
    cells = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in text.split("---\n")]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "model = 1"}, *cells]})


def test_a_notebook_is_read_as_the_model_that_its_trainer_has(tmp_path: Path) -> None:
    file = tmp_path / "train.ipynb"
    file.write_text(notebook(CELLS))
    found = read_config(Source(file))
    assert (found.model.layers, found.workload["s"], found.workload["finetune"]) == (28, 512, "lora")
    for other in ({"cells": 3}, {"cells": [1]}, {"cells": [{"cell_type": "code", "source": 7}]}, {}):
        file.write_text(json.dumps(other))
        with pytest.raises(InputError, match="expected Python assignments"):
            read_config(Source(file))


MAIN = """
NAME = "Qwen/Qwen3-0.6B"
def main():
    args = parse()
    model = AutoModelForCausalLM.from_pretrained(NAME)
    trainer = Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=args.b, bf16=True))
    trainer.train()
"""


def test_a_function_that_trains_and_returns_nothing_is_read_by_its_own_names(tmp_path: Path) -> None:
    found = read(tmp_path, MAIN)
    assert (found.model.layers, found.workload) == (28, {"dtype": "bf16"})
    assert [one.key for one in found.unread if one.changes == LACKS] == ["trainer.args.per_device_train_batch_size"]
    named = MAIN.replace("model=model", "model=NAME").replace("bf16=True", "max_length=512")
    assert read(tmp_path, named).workload == {"s": 512}


SETTINGS = """
@dataclass
class ModelConfig:
    name: str = "Qwen/Qwen3-0.6B"
    max_seq_length: int = 512

@dataclass
class LoraSettings:
    r: int = 4

@dataclass
class TrainConfig:
    per_device_train_batch_size: int = 2
"""


def test_settings_in_classes_name_a_model_and_a_models_own_code_does_not(tmp_path: Path) -> None:
    found = read(tmp_path, SETTINGS)
    said = {"b": 2, "s": 512, "finetune": "lora", "lora_rank": 4}
    assert (found.model.layers, {key: found.workload.get(key) for key in said}) == (28, said)
    with pytest.raises(InputError, match="ModelConfig': is a model that its program builds"):
        read(tmp_path, SETTINGS.replace("max_seq_length", "hidden_size"))
    with pytest.raises(
        InputError, match="names no model in its options, settings or calls"
    ):  # a program's, whose own model another one serves
        read(tmp_path, "class Settings:\n    bge_model_name = 'BAAI/bge-m3'\n    rerank_model = 'x'\n")


PROGRAM = """
import argparse
MODEL = "Qwen/Qwen3-0.6B"

@dataclass
class Given:
    model_name: str = field(default="Qwen/Qwen3-8B", metadata={"help": "a"})
    max_seq_length: int = field(default=512)

def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-name", type=str, default="Qwen/Qwen3-8B")
    parser.add_argument("--max_seq_length", type=int, default=512)
    return parser.parse_args()

def main():
    args = parsed()
    if args.lora:
        model = get_peft_model(load(args), LoraConfig(r=16, target_modules=["q_proj"]))
    training = TrainingArguments(per_device_train_batch_size=2, learning_rate=1e-4)
"""


@pytest.mark.parametrize("without", [r"(?s)@dataclass.*?\n\n", r"(?s)def parsed.*?\n\n"])
def test_a_program_is_the_model_that_its_options_name_with_what_it_calls(tmp_path: Path, without: str) -> None:
    found = read(tmp_path, re.sub(without, "", PROGRAM))
    assert found.model == read_config("Qwen/Qwen3-8B").model
    said = {"b": 2, "s": 512, "finetune": "lora", "lora_rank": 16, "lora_targets": "q_proj"}
    assert {key: found.workload.get(key) for key in said} == said


def test_a_program_is_the_model_that_it_loads_deep_inside_and_none_where_it_states_sizes(tmp_path: Path) -> None:
    loads = "\nclass Run:\n    def load(self):\n        self.model = AutoModelForCausalLM.from_pretrained(MODEL)\n"
    text = re.sub(r"(?s)@dataclass.*?\n\n|def parsed.*?\n\n", "", PROGRAM) + loads
    assert read(tmp_path, text).model == read_config("Qwen/Qwen3-0.6B").model
    with pytest.raises(InputError, match="names no model in its options, settings or calls"):
        read(tmp_path, text + 'p.add_argument("--n_layer", default=12)\n')


def test_a_programs_short_options_flags_and_what_it_has_a_model_do_are_read(tmp_path: Path) -> None:
    text = PROGRAM.replace('"--model-name"', '"-m", "--model-name"').replace("if args.lora", "if args.more")
    held = text.replace("return parser", 'parser.add_argument("--more", action="store_true")\n    return parser')
    found = read(tmp_path, f"{held}    if args.more:\n        model.gradient_checkpointing_enable()\n")
    assert (found.model.layers, "finetune" in found.workload, "checkpointing" in found.workload) == (36, False, False)
    kept = read(tmp_path, f"{held}    model.gradient_checkpointing_enable()\n")
    assert kept.workload["checkpointing"] == "full"


def test_a_service_that_trains_lora_is_read_as_lora_of_its_rank(tmp_path: Path) -> None:
    text = 'training = service.create_lora_training_client(base_model="Qwen/Qwen3-0.6B", rank=32)\n'
    assert (found := read(tmp_path, text).workload)["finetune"] == "lora"
    assert found["lora_rank"] == 32
    assert read(tmp_path, text.replace(", rank=32", "")).workload["finetune"] == "lora"


def test_of_branches_that_options_choose_the_chosen_one_is_read(tmp_path: Path) -> None:
    branches = (
        '    if args.kind == "small":\n        load("x")\n        model = AutoModel.from_pretrained("Qwen/Qwen3-8B")\n'
    )
    named = branches + branches.replace("small", "tiny").replace("3-8B", "3-0.6B").replace("    if", "    elif", 1)
    text = f'p.add_argument("--kind", default="tiny")\ndef main(args):\n{named}'
    assert read(tmp_path, text).model.layers == 28
    assert read(tmp_path, text.replace('default="tiny"', 'default="small"')).model.layers == 36


@pytest.mark.parametrize("loads", ["AutoModelForSequenceClassification", "transformers.Qwen3ForTokenClassification"])
def test_a_head_that_classifies_is_named(loads: str, tmp_path: Path) -> None:
    text = f'model = {loads}.from_pretrained("Qwen/Qwen3-0.6B", num_labels=1)\nTrainer(model=model).train()\n'
    named = {one.changes for one in read(tmp_path, text).unread}
    assert named == {"the model"}
    assert read(tmp_path, re.sub(r"For\w+Classification", "ForCausalLM", text)).unread == ()


RUNS = """
import subprocess
MODEL_NAME = "Qwen/Qwen3-0.6B"
GPUS = 2

def serve():
    cmd = ["vllm", "serve", "--log-level=info", MODEL_NAME, "--revision", REVISION]
    cmd += ["--enforce-eager" if FAST else "--no-enforce-eager", "--tensor-parallel-size", str(GPUS)]
    subprocess.Popen(" ".join(cmd), shell=True)
"""


def test_what_a_program_has_a_shell_run_is_read_where_it_trains_nothing_itself(tmp_path: Path) -> None:
    found = read(tmp_path, RUNS)
    assert (found.model.layers, found.workload["phase"], found.workload["t"]) == (28, "decode", 2)
    trains = "model = AutoModel.from_pretrained(MODEL_NAME)\nTrainer(model=model).train()\n"
    assert "phase" not in read(tmp_path, RUNS + trains).workload
    nothing = read(tmp_path, f'{trains.partition("Trainer")[0]}os.system("pip install vllm --upgrade")\n{RUNS[:60]}')
    assert (nothing.model.layers, "t" in nothing.workload) == (28, False)


def test_lists_that_grow_and_run_again_and_again_are_bounded() -> None:
    calls = "subprocess.run(x)\nprint(x)\n" * 2000
    for text in ('x = ["a"]\n' + "x += x\n" * 500 + calls, f"x = {['word'] * 20_000}\n{calls}"):
        code = python_code._Code([*python_code._statements(text, "x.py")], text)
        assert sum(map(len, code.commands)) < 5 * python_code.MAX_READ


def test_a_notebooks_shell_is_read(tmp_path: Path) -> None:
    cell = (
        "!pip install trl\n!torchrun --nproc_per_node 2 train.py \\\n  --model_name_or_path Qwen/Qwen3-0.6B \\\n  --b 1"
    )
    file = tmp_path / "train.ipynb"
    file.write_text(notebook(f'model_id = "Qwen/Qwen3-8B"\n---\n{cell} --per_device_train_batch_size 2\nx = 1'))
    found = read_config(file)
    assert (found.model.layers, found.workload["gpus"], found.workload["b"]) == (28, 2, 2)


LOOP = """
def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--settings", default=None)
    parser.add_argument("--max_tokens", type=int, default=3)
    return parser.parse_args()

def main(args, batch_size):
    model = AutoModelForCausalLM.from_pretrained(os.environ.get("MODEL", "Qwen/Qwen3-0.6B"))
    def tokens(row):
        return tokenizer(row["text"], max_length=512, padding="max_length")
    loader = DataLoader(rows.map(tokens), batch_size=batch_size, shuffle=True)
    if args.settings:
        settings = args.settings
    else:
        settings = {
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        }
    engine = deepspeed.initialize(model=model, config=settings)
"""


def test_a_program_with_a_loop_of_its_own_is_read_by_its_options_loader_and_deepspeed(tmp_path: Path) -> None:
    found = read(tmp_path, LOOP)
    said = {"b": 4, "s": 512, "zero": 2, "offload": 1}
    assert (found.model.layers, {key: found.workload.get(key) for key in said}) == (28, said)
    alone = read(tmp_path, LOOP.replace("zero_optimization", "settings_of_mine"))
    assert alone.workload == {"b": 4, "s": 512}
    bare = LOOP.replace("DataLoader", "load").replace("zero_optimization", "settings_of_mine")
    wrapped = read(tmp_path, bare.replace("loader =", "model = FSDP(model)\n    loader ="))
    assert "b" not in wrapped.workload
    said = {one.key: one.changes for one in wrapped.unread}
    assert said["batch_size"] == "the tokens or the bytes of its step"
    assert said["FSDP._class"] == "how it is spread"


@pytest.mark.parametrize("call", [".b(1)", ".to(1)", ".dict(k=1)"])
def test_a_chain_of_calls_costs_what_its_text_does(call: str, tmp_path: Path) -> None:
    """Each call is read with all before it: 900 took six seconds."""
    text = f"model_name = 'Qwen/Qwen3-0.6B'\nx = AutoModel.from_pretrained('a'){call * 900}\n"
    code = python_code._Code([*python_code._statements(text, "x.py")], text)
    assert code._read < python_code.MAX_READ + 2 * len(text)
    assert read(tmp_path, text).model.layers == 28


def test_past_the_bound_of_expressions_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is read by itself and in each one around it: nested ones would take the square of their number.

    What is called counts by its characters, so that a chain of calls costs what its text does.
    """
    text = "a = 1\nb = dict(c=dict(c=dict(c=2)))\n"
    assert python_code.parse_code(text, "x.py", {}, Tree("x.py", None))["b"]["c"]["c"]["c"] == 2
    monkeypatch.setattr(python_code, "MAX_READ", 11)
    assert python_code.parse_code(text, "x.py", {}, Tree("x.py", None))["b"]["c"]["c"] is None


FIRE = """
import fire
def load(base_model, max_seq_length=9999):
    return AutoModelForCausalLM.from_pretrained(base_model, load_in_8bit=True)
def train(base_model: str = "Qwen/Qwen3-0.6B", batch_size: int = 128, micro_batch_size: int = 4, lora_r: int = 16):
    steps = batch_size // micro_batch_size
    model = load(base_model, 4096)
    model = get_peft_model(model, LoraConfig(r=lora_r))
    trainer = Trainer(model=model, args=TrainingArguments(
        per_device_train_batch_size=micro_batch_size, gradient_accumulation_steps=steps, bf16=True))
    trainer.train(resume_from_checkpoint=True)
fire.Fire(train)
"""
TYPER = """
def main(model: str = typer.Option("Qwen/Qwen3-0.6B", help="a"), tp: int = typer.Option(2)):
    llm = LLM(model=model, tensor_parallel_size=tp)
"""
OF_ITSELF = """
class Config:
    def __init__(self):
        self.model_name = "Qwen/Qwen3-0.6B"
        self.max_seq_length = int("1024")
"""
IN_A_SERVER = """
async def serve(model_id: str = "Qwen/Qwen3-0.6B"):
    wanted = os.environ.get("MODEL", model_id)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=wanted, max_model_len=2048))
"""
CONSTANTS = "CONFIG = {'model_name': 'Qwen/Qwen3-0.6B', 'max_seq_length': 512, 'lora_r': 8}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FIRE, {"b": 4, "lora_rank": 16, "base": "int8", "dtype": "bf16"}),
        (TYPER, {"t": 2, "phase": "decode"}),
        (OF_ITSELF, {"s": 1024}),
        (IN_A_SERVER, {"phase": "decode"}),
        (CONSTANTS, {"s": 512, "lora_rank": 8}),
    ],
)
def test_what_no_call_gives_is_a_functions_default(text: str, said: Values, tmp_path: Path) -> None:
    """fire's, typer's, modal's, settings that a class makes of itself, a dictionary of constants."""
    found = read(tmp_path, text)
    assert (found.model.parameters, {key: found.workload.get(key) for key in said}) == (596_049_920, said)


def test_a_default_is_not_taken_where_a_call_gives_another(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"speaks of a released model: sizer check Qwen/Qwen3-0\.6B"):
        read(tmp_path, TYPER + "main(sys.argv[1], 4)\n")


IF_SET = """
@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="Qwen/Qwen3-0.6B")
@dataclass
class LoraArguments:
    lora_r: int = 4
    q_lora: bool = False
def train():
    model_args, lora_args = HfArgumentParser((ModelArguments, LoraArguments)).parse_args_into_dataclasses()
    quantised = BitsAndBytesConfig(load_in_4bit=True) if lora_args.q_lora else None
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, quantization_config=quantised)
    if lora_args.q_lora:
        model = prepare_model_for_kbit_training(model, load_in_4bit=True)
    model = get_peft_model(model, LoraConfig(r=lora_args.lora_r))
    trainer = Trainer(model=model)
"""


@pytest.mark.parametrize(("is_set", "finetune"), [("False", "lora"), ("True", "qlora")])
def test_what_an_option_that_is_off_would_run_is_not_read(is_set: str, finetune: str, tmp_path: Path) -> None:
    found = read(tmp_path, IF_SET.replace("False", is_set))
    assert (found.model.layers, found.workload["finetune"], found.workload["lora_rank"]) == (28, finetune, 4)


GUARDED = """
if __name__ == "__main__":
    model_name = "Qwen/Qwen3-0.6B"
    model = AutoModelForCausalLM.from_pretrained(model_name)
    if len(sys.argv) > 2:
        model_name = "Qwen/Qwen3-8B"
    trainer = SFTTrainer(model=model, args=TrainingArguments(per_device_train_batch_size=2), max_seq_length=512)
"""


def test_what_the_program_alone_sets_is_known_and_what_it_may_set_is_not(tmp_path: Path) -> None:
    found = read(tmp_path, GUARDED)
    assert (found.model.layers, found.workload["b"], found.workload["s"]) == (28, 2, 512)
    chosen = "if small:\n    name = 'Qwen/Qwen3-0.6B'\nelse:\n    name = 'Qwen/Qwen3-8B'\n"
    with pytest.raises(InputError, match="its value is what line 1 decides"):
        read(tmp_path, chosen + "model = AutoModelForCausalLM.from_pretrained(name)\n")


CHOOSES = """
parser.add_argument("--size", default="small")
args = parser.parse_args()
try:
    if args.size == "small":
        name = "Qwen/Qwen3-0.6B"
    else:
        name = "Qwen/Qwen3-8B"
except KeyError:
    name = "Qwen/Qwen3-32B"
batch = 2 if args.size == "small" else 4
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_pretrained(name)
{}
"""
TRAINER = "Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=batch))"


def test_branches_that_a_programs_options_decide_are_followed_and_others_are_not_told(tmp_path: Path) -> None:
    found = read(tmp_path, CHOOSES.format(TRAINER))
    assert (found.model.layers, found.workload["b"]) == (28, 2)
    untold = CHOOSES.format(TRAINER).replace('args.size == "small"', "torch.cuda.is_available()")
    with pytest.raises(InputError, match="is what line 5 decides, which the file does not hold; --set model"):
        read(tmp_path, untold)
    both = read(tmp_path, untold.replace("3-8B", "3-0.6B"))
    assert both.model.layers == 28
    said = {(one.value, one.changes) for one in both.unread}
    assert said == {("what line 11 decides", "the tokens or the bytes of its step")}


def test_a_program_that_generates_and_does_not_train_decodes(tmp_path: Path) -> None:
    assert read(tmp_path, CHOOSES.format("model.generate(**inputs)")).workload == {"phase": "decode"}
    assert "phase" not in read(tmp_path, CHOOSES.format(f"{TRAINER}\nmodel.generate(**inputs)")).workload
    forward = read(
        tmp_path,
        CHOOSES.format("model.eval()\nmodel(**inputs)").replace(
            '"--size"', '"--batch_size", default=8); parser.add_argument("--size"'
        ),
    )
    assert forward.workload == {"phase": "prefill", "b": 8}


def test_a_probe_that_is_fitted_on_a_models_states_trains_no_model(tmp_path: Path) -> None:
    text = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")\nwith torch.no_grad():\n    h = model(x)\n'
    probe = f"from sklearn.linear_model import LogisticRegression\n{text}clf = LogisticRegression()\nclf.fit(h, y)\n"
    assert read(tmp_path, probe).workload["phase"] == "prefill"
    assert "phase" not in read(tmp_path, f"{probe}trainer.fit(model)\n").workload
    assert "phase" not in read(tmp_path, f"{text}model.fit(x)\n").workload


def test_a_release_that_a_class_loads_by_its_name_alone_is_one(tmp_path: Path) -> None:
    text = "BIG = not False\nclass Sizes:\n    name = 'gpt2-xl' if BIG else 'gpt2'\n"
    text += "model = GPT2LMHeadModel.from_pretrained(Sizes.name)\nTrainer(model=model)\n"
    assert read(tmp_path, text).model.layers == 48


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("optimizer = Adam([codes])\nloss.backward()", "trains what its own loop is given and not gpt2"),
        ("model = PeftModel.from_pretrained(model, path).merge_and_unload()", r"trains nothing \(it exports a model\)"),
    ],
)
def test_a_program_that_does_not_train_what_it_loads_is_refused(rest: str, said: str, tmp_path: Path) -> None:
    text = f"model = GPT2LMHeadModel.from_pretrained('gpt2')\n{rest}\n"
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)
    assert read(tmp_path, f"{text}optimizer = Adam(model.parameters())\nloss.backward()").model.layers == 12


def test_of_calls_of_one_class_that_differ_none_is_taken(tmp_path: Path) -> None:
    text = "SIZES = [ModelConfig(name='a/b'), ModelConfig(name='Qwen/Qwen3-0.6B'), ModelConfig(name='Qwen/Qwen3-8B')]\n"
    with pytest.raises(
        InputError, match=r"names no model .*; it speaks of a released model: sizer check Qwen/Qwen3-0\.6B"
    ):
        read(tmp_path, text + "Trainer(SIZES[number])\n")


def test_nanogpts_own_program_is_read(tmp_path: Path) -> None:
    text = "n_layer = 2\nn_head = 2\nn_embd = 64\ninit_from = 'scratch'\nmodel_args = dict(n_layer=n_layer)\n"
    text += "if init_from == 'scratch':\n    gptconf = GPTConfig(**model_args)\n    model = GPT(gptconf)\n"
    assert read(tmp_path, text).model.layers == 2


@pytest.mark.parametrize(
    "named",
    [
        'os.path.expanduser("~/models/Qwen3-0.6B")',
        'str_of / 1\nname = Path("models/Qwen3-0.6B")',
        'None\nmaker = "Qwen"\nname = f"{maker}/Qwen3-{0.6}B"',
    ],
)
def test_a_models_name_is_told_within_a_path_and_a_text_with_names_in_it(named: str, tmp_path: Path) -> None:
    text = f"name = {named}\nmodel = AutoModelForCausalLM.from_pretrained(name)\nargs = TrainingArguments(bf16=True)\n"
    assert read(tmp_path, text).model.parameters == 596_049_920


def test_a_text_with_a_name_that_is_not_told_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no model in its options, settings or calls"):
        read(tmp_path, 'model = AutoModelForCausalLM.from_pretrained(f"Qwen/{size}")\n')


def test_what_trains_sentence_transformers_is_a_retriever(tmp_path: Path) -> None:
    text = 'model = SentenceTransformer.from_pretrained("BAAI/bge-m3")\ntrainer = SentenceTransformerTrainer(model)\n'
    with pytest.raises(InputError, match="trains a retriever or a reranker"):
        read(tmp_path, text)


@pytest.mark.parametrize("quantised", ["oneshot(model=model, recipe=recipe)", "model.quantize(samples, batch_size=1)"])
def test_what_quantises_a_model_trains_nothing(quantised: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it exports a model"):
        read(tmp_path, f'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")\n{quantised}\n')


@pytest.mark.parametrize("call", ["GPTQModel.load", "AutoAWQForCausalLM.from_quantized"])
def test_loaders_of_quantised_models_name_one(call: str, tmp_path: Path) -> None:
    assert read(tmp_path, f'model = {call}("Qwen/Qwen3-0.6B")\n').model.layers == 28


def test_keys_of_a_recipes_mapping_that_are_not_told_end_in_no_traceback(tmp_path: Path) -> None:
    text = BRIDGE.replace("cfg = _pretrain_common()", "cfg = {a: 1, 2: 3}")
    assert "{a: 1, 2: 3}" in text
    assert read(tmp_path, text).model.parameters > 0


BUILT = """
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
def main(layers=6):
    config = GPT2Config(vocab_size={vocab}, n_positions=512, n_embd=512, n_head=8, bos_token_id=tokenizer.bos, {more})
    config.n_layer = 6
    Trainer(model={model}(config).cuda(), args=TrainingArguments(per_device_train_batch_size=16)).train()
"""


@pytest.mark.parametrize("model", ["GPT2LMHeadModel", "AutoModelForCausalLM.from_config"])
def test_a_class_of_transformers_is_built_as_its_program_says(model: str, tmp_path: Path) -> None:
    """The parameters are those that the class itself counts."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    sizes = {"vocab_size": 5000, "n_positions": 512, "n_embd": 512, "n_head": 8, "n_layer": 6}
    with torch.device("meta"):
        built = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    found = read(tmp_path, BUILT.format(vocab=5000, more="n_inner=None", model=model))
    assert (found.model.parameters, found.workload, found.unread) == (built.num_parameters(), {"b": 16}, ())


@pytest.mark.parametrize(
    ("vocab", "more", "said"),
    [
        ("len(tokenizer)", "", r"vocab_size = 'len\(tokenizer\)': expected an integer"),
        ("5000", "**sizes", "is a model that its program builds"),
        ("5000", "n_inner=width()", r"n_inner = 'width\(\)': expected an integer"),
    ],
)
def test_a_size_that_its_program_does_not_tell_is_left_to_no_default(
    vocab: str, more: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, BUILT.format(vocab=vocab, more=more, model="GPT2LMHeadModel"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            "self.model.resize_token_embeddings(len(tokenizer) + 100)",
            r"vocab_size = '.*\(len\(tokenizer\) \+ 100\)': expected",
        ),
        ("model.resize_token_embeddings(5008)", None),
        ("# model.resize_token_embeddings(len(tokenizer))", None),
    ],
)
def test_a_vocabulary_that_its_program_resizes_is_read_or_asked_for(
    call: str, said: str | None, tmp_path: Path
) -> None:
    text = BUILT.format(vocab=5000, more="", model="GPT2LMHeadModel") + f"    {call}\n"
    if said is None:
        assert read(tmp_path, text).model.vocab == (5008 if "5008" in call else 5000)
        return
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)
    file = tmp_path / "train.py"
    file.write_text(text, "utf-8")
    assert read_config(Source(file, {"vocab_size": 6000})).model.vocab == 6000


def test_a_vocabulary_that_its_program_resizes_of_a_release_is_said(tmp_path: Path) -> None:
    text = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")\nTrainer(model=model)\n'
    found = read(tmp_path, f"{text}model.resize_token_embeddings(len(tokenizer))\n")
    assert [one.key for one in found.unread] == ["resize_token_embeddings"]
    assert not read(tmp_path, text).unread


def test_a_program_that_loads_a_tokenizer_alone_names_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a tokenizer alone"):
        read(tmp_path, 'base_model = "gpt2"\ntokenizer = AutoTokenizer.from_pretrained(base_model)\n')


@pytest.mark.parametrize("later", ["config.update(sizes)", "for key in sizes: setattr(config, key, sizes[key])"])
def test_sizes_that_a_program_sets_one_by_one_are_not_left_to_a_classs_defaults(later: str, tmp_path: Path) -> None:
    text = f"config = LlamaConfig()\n{later}\nmodel = LlamaForCausalLM(config)\nTrainer(model=model)\n"
    with pytest.raises(InputError, match="sizes that its program sets one by one"):
        read(tmp_path, text)
    assert read(tmp_path, text.replace(later, "wandb.config.update(sizes)")).model.layers == 32


FROM_A_FILE = """
def main(args):
    cfg = yaml.safe_load(open(args.config))
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    lora = LoraConfig(r=cfg.get("r", 64))
    said = SFTConfig(per_device_train_batch_size=cfg.get("batch", 2), max_length=longest(cfg), bf16=True)
    trainer = SFTTrainer(model=model, args=said, peft_config=lora)
"""


def test_what_a_functions_call_gives_is_no_value_and_is_said(tmp_path: Path) -> None:
    """A file of settings has it: the default of ``get`` is what holds without that."""
    file = tmp_path / "train.py"
    file.write_text(FROM_A_FILE, "utf-8")
    found = read_config(file)
    assert found.workload.keys().isdisjoint({"b", "s"})
    assert found.workload["lora_rank"] == 8  # which a note says is the usual one
    assert any("per_device_train_batch_size" in one.key for one in found.unread)
