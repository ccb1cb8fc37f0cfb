"""Mutants of every reader's files: fuzz_readers.py [--mutants 200000] [--start 0] [--seed 1].

Each must be read or refused in one line (InputError) within two seconds of the processor's time. Mutant N of a seed
is the same on every machine, so a run that ends early goes on with --start. The seeds are the tests' examples:
trainers' recipes, Python registries, layouts, launch scripts, released configurations, headers of GGUF and safetensors.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from shapes.errors import InputError  # noqa: E402
from sizer.readers import read_config  # noqa: E402
from tests import test_python_code, test_readers_formats, test_recipes_named  # noqa: E402
from tests.texts import read_text  # noqa: E402

#: What a reader finds where it did not look for it.
WORDS = [
    *("null", "true", "false", "0", "-1", "1e9", "1e400", ".inf", ".nan", "9999999999999999999999", "4096.5", '""'),
    *("[]", "{}", "[[]]", "{a:1}", '"${a.b}"', "${A:4}", "$1", "$(x)", "&a", "*a", "<<:", "!include", "!!int", "auto"),
    *("none", "---", "...", "#", "\\", "\\0", "é", "0x10", "1:1:1", "model", "name", "path", "config", "'x'", '"y"'),
    *("(", ")", "=", ",", ";", "|", "&&", "done", "fi"),
]
#: Seconds that no mutant may take.
MOST = 2.0


def seeds() -> dict[str, bytes]:
    """File name -> content."""
    found = {f"{name}.yaml".replace(" ", "_"): text.encode() for name, (text, _) in test_recipes_named.RECIPES.items()}
    found |= {f"round_{name}.yaml": text.encode() for name, text in test_recipes_named.ROUNDS.items()}
    served = test_recipes_named.CONTAINER.format(image="x", command=f"args: [{test_recipes_named.ARGS}, $(N)]")
    found["deployment.yaml"] = (
        f"{served}          env: [{{name: N, value: '8'}}, {{name: S, valueFrom: {{}}}}]".encode()
    )
    found["compose.yaml"] = b"services: {vllm: {command: --model Qwen/Qwen3-0.6B --port 8000, env: [A=1]}}"
    found |= {"megatron.yaml": (test_recipes_named.MEGATRON % "").encode()}
    found |= {"bridge.py": test_python_code.BRIDGE.encode(), "titan.py": test_python_code.TITAN.encode()}
    found |= {"main.py": test_python_code.MAIN.encode()}
    found |= {"choose.py": test_python_code.CHOOSES.format(test_python_code.TRAINER).encode()}
    found |= {"Makefile": test_recipes_named.MAKEFILE.encode(), "Dockerfile": test_recipes_named.DOCKERFILE.encode()}
    found |= {"justfile": test_recipes_named.JUSTFILE.encode()}
    found |= {"loop.py": test_python_code.LOOP.encode(), "program.py": test_python_code.PROGRAM.encode()}
    found |= {"train.ipynb": test_python_code.notebook(test_python_code.CELLS).encode()}
    found["bench.sh"] = b"for n in 1 2; do OUT=$(python -m sglang.bench_serving --model Qwen/Qwen3-8B --n $n); done"
    found |= {f"{name}.yaml": json.dumps(one).encode() for name, one in test_readers_formats.SMALLEST.items()}
    configs = sorted((ROOT / "tests" / "data" / "configs").glob("*.json"))[::6]
    found |= {one.name: one.read_bytes() for one in configs if one.stat().st_size < 10_000}
    found["train.sh"] = b"""A=(--num-layers 2 --hidden-size 64)
for i in 1 2; do X+=" --x $i"; done
if [ "$T" = 1 ]; then TP=2; else TP=4; fi
torchrun --nproc_per_node 8 pretrain_gpt.py ${A[@]} --num-attention-heads 4 --seq-length 64 \\
  --vocab-size $((2**7 * 2)) \\
  --max-position-embeddings 64 --tensor-model-parallel-size ${TP:-1} $X <<EOF
text
EOF
"""
    found["hydra.yaml"] = (
        b"defaults: [{model: small}, {override /model/part@a._here_: [big, null]}, optional trial/one, "
        b"{optional trial: '${model}'}, _self_]\nhidden_size: 64\n"
    )
    found["launch.sh"] = (
        b"f() { shift; env TP=2 bash run.sh $@ $1; }\nexport N=2\nf a Qwen/Qwen3-0.6B --port 1\nexec ./run.sh $N\n"
    )
    found["serve.sh"] = b"MODEL=Qwen/Qwen3-8B\nvllm serve $MODEL --tensor-parallel-size 2 --max-model-len 4096\n"
    found["read.sh"] = (
        b"IFS=', ' read -ra ALL <<< '2, 64'\nIFS=: read -r N W more <<< \"${ALL[0]}:$((${ALL[1]:-4} * (1 + 2))):x\"\n"
        b"[ $N -gt 08 ] || torchrun p.py --num-layers $N --hidden-size $W --num-attention-heads 4 --vocab-size 512\n"
        b"litgpt finetune_lora \\\n google/gemma-2b --train.micro_batch_size 4\n"
    )
    found["cut.sh"] = (
        b'M=$D/Qwen/Qwen3-8B.gguf A=(2 4)\nN=${M##*/}\nfor i in "${!A[@]}"; do vllm serve Qwen/${N%.*} '
        b'--hf-overrides=\'{"a": 1, "b": [2]}\' --tensor-parallel-size=${A[$i]%%x*} --n ${#A[@]}; done\n'
    )
    found["sky.yaml"] = (
        b"resources: {accelerators: {H100: 8}}\n"
        b"run: vllm serve Qwen/Qwen3-8B --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE\n"
    )
    found["resize.py"] = (
        test_python_code.BUILT.format(vocab=5000, more="", model="GPT2LMHeadModel").encode()
        + b"    self.model.resize_token_embeddings(len(tokenizer) + 100)\n"
    )
    found["rl.toml"] = (
        b'seq_len = 2048\n[model]\nname = "Qwen/Qwen3-0.6B"\n[trainer.model.lora]\nrank = 32\n[orchestrator]\n'
    )
    header = json.dumps(
        {"model.layers.0.mlp.up_proj.weight": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}}
    )
    found["model.safetensors"] = len(header).to_bytes(8, "little") + header.encode()
    text = b"general.architecture"
    found["model.gguf"] = b"GGUF" + b"".join(
        (
            (3).to_bytes(4, "little") + (1).to_bytes(8, "little") + (1).to_bytes(8, "little"),
            len(text).to_bytes(8, "little") + text + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama",
            (17).to_bytes(8, "little") + b"token_embd.weight" + (2).to_bytes(4, "little") + (4).to_bytes(8, "little"),
            (8).to_bytes(8, "little") + (1).to_bytes(4, "little") + (0).to_bytes(8, "little"),
        )
    )
    return found


def mutated(content: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at, way = draw.randrange(len(content) + 1), draw.randrange(8)
        word = draw.choice(WORDS).encode()
        end = min(len(content), at + draw.randint(1, 12))
        if way == 0:
            content = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
        elif way == 1:
            content = content[:at] + content[end:]
        elif way == 2:
            content = content[:at] + word + content[at:]
        elif way in (3, 4):  # a word or a number for another
            start = max((content.rfind(sign, 0, at) for sign in b" :=,\n[{\"'"), default=-1) + 1
            stop = min((one for sign in b" :=,\n]}\"'" if (one := content.find(sign, at)) >= 0), default=len(content))
            content = content[:start] + word + content[stop:]
        elif way == 5:
            lines = content.split(b"\n")
            line = draw.choice(lines)
            content = b"\n".join([*lines[: len(lines) // 2], line, *lines[len(lines) // 2 :]])
        elif way == 6:
            content = content[:at] + content[at:end] * draw.choice((2, 3, 50)) + content[end:]
        else:
            other = draw.choice(others)
            content = content[:at] + other[draw.randrange(len(other) + 1) :]
    return content[:200_000]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=200_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--most", type=float, default=MOST, help="seconds that no mutant may take")
    given = parser.parse_args()
    held = sorted(seeds().items())
    others = [content for _, content in held]
    count: Counter[str] = Counter()
    slowest, began = (0.0, 0), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "run.sh").write_text('vllm serve "$@" --tensor-parallel-size ${TP:-4}\nbash run.sh $1\n', "utf-8")
        for number in range(given.start, given.mutants):
            if time.perf_counter() - began > given.seconds:
                break
            draw = random.Random(f"{given.seed}.{number}")
            name, content = draw.choice(held)
            content = mutated(content, draw, others)
            start = time.process_time()
            try:
                if name.endswith((".gguf", ".safetensors")):
                    file = Path(folder) / name
                    file.write_bytes(content)
                    read_config(file)
                else:
                    read_text(content.decode("utf-8", "replace"), where=str(Path(folder) / name))
                count["read"] += 1
            except InputError as error:
                count["refused" if "\n" not in str(error) else "of more than a line"] += 1
            except Exception as error:
                count["traceback"] += 1
                sys.stdout.write(f"mutant {number} of {name}: {type(error).__name__} {str(error)[:100]}\n")
            took = time.process_time() - start
            slowest = max(slowest, (took, number))
            if took > given.most:
                count["slow"] += 1
                sys.stdout.write(f"mutant {number} of {name}: {took:.1f} s\n")
        last = given.start + count["read"] + count["refused"] + count["traceback"] + count["of more than a line"]
    said = ", ".join(f"{key} {value:,}" for key, value in sorted(count.items()))
    sys.stdout.write(f"mutants {given.start:,} to {last:,} of seed {given.seed} from {len(held)} files: {said}; ")
    sys.stdout.write(f"slowest {slowest[0]:.2f} s (mutant {slowest[1]})\n")
    return 1 if count["traceback"] or count["slow"] or count["of more than a line"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
