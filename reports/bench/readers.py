"""How many real files each reader reads, and whether the parameters are those of the framework's own classes.

    python reports/bench/readers.py --megatron DIR --neox DIR --nanogpt DIR --litgpt DIR --nemo DIR ...

DIR are local clones. Megatron's models are built by Megatron-Core (readers_megatron.py), GPT-NeoX's by its own layers
(readers_neox.py), nanoGPT's and litgpt's by their model.py, all on the meta device, the split left out and the
vocabulary as read. A mixture of more than FEW experts is judged with FEW on both sides. Writes reports/readers.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from reports.bench.opening import with_answer  # noqa: E402
from reports.bench.readers_meta import listed, reference  # noqa: E402
from shapes.errors import InputError  # noqa: E402
from sizer.readers import Reading, Source, read_config  # noqa: E402

REPORT = ROOT / "reports" / "readers.md"
#: Experts of a large mixture as judged: Megatron's local layers build a module for each.
FEW = 8
MODEL = {"model_type": "gpt2"}
CLONES = (
    "megatron",
    "neox",
    "nanogpt",
    "litgpt",
    "nemo",
    "torchtitan",
    "deepspeed",
    "accelerate",
    "llama",
    "arguments",
)
#: Clones of any number of projects that are no format's own: forks with launch scripts, recipes that name a model.
MANY = ("fork", "recipes")
KINDS = {"megatron": "gpt", "megatron-bert": "bert", "megatron-t5": "t5"}


@dataclass
class Tally:
    """What became of one format's files. ``judged``: by the framework's own classes."""

    name: str
    commit: str
    files: int = 0
    read: int = 0
    judged: int = 0
    right: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unjudged: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)


class Judge:
    """A process that answers a line of JSON with a line of JSON."""

    def __init__(self, script: str, clone: Path) -> None:
        command = [sys.executable, str(Path(__file__).parent / script), str(clone)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __call__(self, question: Mapping[str, Any]) -> dict[str, Any]:
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        try:
            pipe.write(json.dumps(question, default=str) + "\n")
            pipe.flush()
            line = answers.readline()
        except OSError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the judge ended"}
        return answer


def commit_of(clone: Path) -> str:
    """Of a clone, or of what was unpacked without one, which says so in ``.commit``."""
    noted = clone / ".commit"
    if noted.is_file():
        return noted.read_text("utf-8").strip()
    found = subprocess.run(
        ["git", "-C", clone, "log", "-1", "--format=%h"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "no git"


def stating(clone: Path, pattern: str, *globs: str) -> list[Path]:
    """Files whose text has ``pattern`` at its own words' bounds."""
    found = (path for glob in globs for path in sorted(clone.glob(glob)) if path.is_file())
    return [path for path in found if re.search(pattern, path.read_text("utf-8", "replace"))]


def options(config: Mapping[str, Any]) -> Iterator[str]:
    """A mapping of Megatron's arguments as command-line options."""
    for key, value in config.items():
        if key.startswith("_") or value is None or value is False:
            continue
        yield "--" + key.replace("_", "-")
        if value is not True:
            text = str(value)
            yield from (text.strip("[]") if "cuda_graph" in key else text).split()


def megatron_question(path: Path, reading: Reading) -> tuple[Mapping[str, Any], Reading]:
    moe = reading.model.moe
    if moe is not None and moe.experts > FEW:
        reading = read_config(path, settings={"num_experts": FEW, "moe_router_topk": min(moe.top_k, FEW)})
    hybrid = any("hybrid_" in key for key in reading.config)
    kind = "hybrid" if hybrid else KINDS[reading.model.model_type]
    asked = {"options": list(options(reading.config)), "vocab": reading.model.vocab, "kind": kind}
    return asked, reading


def neox_question(path: Path, reading: Reading) -> tuple[Mapping[str, Any], Reading]:
    return {"arguments": dict(reading.config), "vocab": reading.model.vocab}, reading


def tally(
    name: str,
    clone: Path,
    files: list[Path],
    read: Callable[[Path], Reading],
    question: Callable[[Path, Reading], tuple[Mapping[str, Any], Reading]] | None = None,
    judge: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
) -> Tally:
    """Read every file; ask the judge about each that was read."""
    counted = Tally(name, commit_of(clone), len(files))
    for path in files:
        shown = str(path.relative_to(clone))
        try:
            reading = read(path)
        except InputError as error:
            counted.refused[_reason(error)] += 1
            continue
        counted.read += 1
        counted.unread.update({one.key for one in reading.unread})
        if question is None or judge is None:
            continue
        asked, judged = question(path, reading)
        answer = judge(asked)
        if "error" in answer:
            counted.unjudged[re.sub(r"[`'\"].*", "", str(answer["error"]))[:70].strip()] += 1
            continue
        counted.judged += 1
        if answer["parameters"] == judged.model.parameters:
            counted.right += 1
        else:
            said = " (said in a note)" if any("do not fit" in note for note in reading.notes) else ""
            counted.wrong.append(f"{shown}: {judged.model.parameters:,} for {answer['parameters']:,}{said}")
    return counted


def _reason(error: InputError) -> str:
    text = re.sub(r"\d+ (Mamba|gated delta net|sparse attention)", r"\1", error.expected)
    text = re.sub(r"its value is .*?,", "its value is a variable or a command,", text)
    return f"{error.key or 'file'}: {re.sub(r'[(].*?[)]', '', text)}"[:110]


def nanogpt_judge(clone: Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    import torch

    spec = importlib.util.spec_from_file_location("nanogpt_model", clone / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module
    spec.loader.exec_module(module)

    def judge(question: Mapping[str, Any]) -> dict[str, Any]:
        with torch.device("meta"):
            model = module.GPT(module.GPTConfig(**question))
        return {"parameters": sum(parameter.numel() for parameter in model.parameters())}

    return judge


def nanogpt_question(path: Path, reading: Reading) -> tuple[Mapping[str, Any], Reading]:
    """What train.py would build: its own defaults and the file's lines, or the pretrained model that it starts from."""
    import ast

    neighbour = path if path.name == "train.py" else path.parent.parent / "train.py"
    values: dict[str, Any] = {}
    for file in dict.fromkeys((neighbour, path)):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    values[node.targets[0].id] = ast.literal_eval(node.value)
                except ValueError:
                    continue
    known = {key: values[key] for key in ("n_layer", "n_head", "n_embd", "block_size", "bias") if key in values}
    sizes = {
        "gpt2": (12, 12, 768),
        "gpt2-medium": (24, 16, 1024),
        "gpt2-large": (36, 20, 1280),
        "gpt2-xl": (48, 25, 1600),
    }
    if values.get("init_from") in sizes:
        layers, heads, hidden = sizes[values["init_from"]]
        known |= {
            "n_layer": layers,
            "n_head": heads,
            "n_embd": hidden,
            "bias": True,
            "vocab_size": 50257,
            "block_size": 1024,
        }
    else:
        known["vocab_size"] = 65 if values.get("dataset") == "shakespeare_char" else 50304
    return known, reading


def litgpt_tallies(clone: Path) -> Iterator[Tally]:
    """litgpt's named models as it writes them down (model_config.yaml), and its recipes."""
    sys.path.insert(0, str(clone))
    import torch
    from litgpt.config import Config, configs
    from litgpt.model import GPT

    def saved(path: Path) -> Reading:
        return read_config(asdict(Config.from_name(path.name)))

    def judge(question: Mapping[str, Any]) -> dict[str, Any]:
        with torch.device("meta"):
            model = GPT(Config.from_name(question["name"]))
        return {"parameters": sum(parameter.numel() for parameter in model.parameters())}

    names = [clone / one["name"] for one in configs]
    yield tally(
        "litgpt's named models (`model_config.yaml`)",
        clone,
        names,
        saved,
        lambda path, reading: ({"name": path.name}, reading),
        judge,
    )
    yield tally("litgpt's recipes", clone, stating(clone, r"(?m)^train:", "config_hub/**/*.yaml"), read_config)


def llama_tally(clone: Path) -> Tally:
    """params.json as llama-stack lists them and as they lie in ``clone``/params (fetched from public repositories)."""
    found = {clone / name: params for name, params in listed(clone)}
    found |= {path: json.loads(path.read_text("utf-8")) for path in sorted(clone.glob("params/**/params.json"))}

    def question(path: Path, reading: Reading) -> tuple[Mapping[str, Any], Reading]:
        return {"params": found[path], "vocab": reading.model.vocab, "tied": reading.model.tied}, reading

    return tally(
        "Meta's params.json", clone, list(found), lambda path: read_config(found[path]), question, reference(clone)
    )


def beside_a_model(path: Path) -> Reading:
    return read_config(Source(MODEL, training=(str(path),)))


def report(tallies: list[Tally], command: str) -> str:
    lines = [
        "# Real files, read",
        "",
        "Files of public repositories as they are in a clone: how many state a model, how many of those are read, how",
        "many are refused for a stated reason, and whether the parameters of those read are what the framework's own",
        "classes count (Megatron-Core, GPT-NeoX's layers, nanoGPT's and litgpt's model.py; on the meta device,",
        f"the split left out, the vocabulary as read; mixtures of more than {FEW} experts with {FEW} on both sides).",
        "What a reader does not read and what would change the model, its split or its step is named in its output",
        "(`unread`).",
        "",
        "Of recipes that name a released model 85 of 138, 27 of 45, 26 of 41 and 18 of 22 were read at first sight in",
        "four draws of 2026-11-28, each by what was mended after the one before (what was wrong: bench/clones.py).",
        "",
        "```sh",
        command,
        "```",
        "",
        "| files | commit | state a model | read | refused, and said why | judged | right |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in tallies:
        judged = (str(one.judged), str(one.right)) if one.judged or one.unjudged else ("-", "-")
        cells = (one.name, one.commit, one.files, one.read, sum(one.refused.values()), *judged)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for one in tallies:
        lines += ["", f"## {one.name}"]
        for title, found in (
            ("Refused", one.refused),
            ("Not judged, since the framework itself says", one.unjudged),
            ("Keys named as not read", one.unread),
        ):
            if found:
                lines += ["", f"{title}:", ""]
                lines += [f"- {_escaped(what)} ({number})" for what, number in sorted(found.items(), key=_order)]
        if one.wrong:
            lines += ["", "Not the framework's count:", "", *(f"- {_escaped(what)}" for what in one.wrong)]
    return "\n".join(lines) + "\n"


def _order(pair: tuple[str, int]) -> tuple[int, str]:
    return -pair[1], pair[0]


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in CLONES:
        parser.add_argument(f"--{name}", type=Path)
    for name in MANY:
        parser.add_argument(f"--{name}", type=Path, action="append", default=[])
    parser.add_argument("--output", type=Path, default=REPORT)
    chosen = parser.parse_args()
    tallies: list[Tally] = []
    if chosen.megatron:
        judge = Judge("readers_megatron.py", chosen.megatron)
        states = r"--num-layers[ =]|--hidden-size[ =]|--encoder-num-layers|--hybrid-layer-pattern"
        scripts = stating(chosen.megatron, states, "**/*.sh")
        yamls = stating(
            chosen.megatron, r"(num-layers|hybrid-layer-pattern):", "tests/functional_tests/**/model_config.yaml"
        )
        for name, files in (("Megatron-LM launch scripts", scripts), ("Megatron-LM functional tests' YAML", yamls)):
            tallies.append(tally(name, chosen.megatron, files, read_config, megatron_question, judge))
    if chosen.neox:
        states = r"num[-_]layers\"?:"
        files = stating(chosen.neox, states, "**/*.yml", "configs/**/*.json")
        judge = Judge("readers_neox.py", chosen.neox)
        tallies.append(tally("GPT-NeoX configurations", chosen.neox, files, read_config, neox_question, judge))
    if chosen.nanogpt:
        files = stating(chosen.nanogpt, "batch_size", "config/*.py", "train.py")
        judged = nanogpt_judge(chosen.nanogpt)
        tallies.append(tally("nanoGPT configurations", chosen.nanogpt, files, read_config, nanogpt_question, judged))
    if chosen.litgpt:
        tallies += litgpt_tallies(chosen.litgpt)
    if chosen.nemo:
        files = stating(chosen.nemo, r"(?m)^ *num_layers:", "examples/nlp/**/*.yaml")
        tallies.append(tally("NeMo's YAML of language models", chosen.nemo, files, read_config))
    if chosen.torchtitan:
        files = stating(chosen.torchtitan, r"(?m)^flavor", "**/*.toml")
        tallies.append(tally("torchtitan TOML", chosen.torchtitan, files, read_config))
    if chosen.llama:
        tallies.append(llama_tally(chosen.llama))
    trainers = {
        "deepspeed": ("DeepSpeed settings", r"train_micro_batch_size_per_gpu|zero_optimization|train_batch_size"),
        "accelerate": ("accelerate's settings", r"distributed_type|zero_optimization"),
        "arguments": ("TrainingArguments", "per_device_train_batch_size"),
    }
    for option, (name, states) in trainers.items():
        clone = getattr(chosen, option)
        if clone is not None:
            globs = ("**/*.json",) if option != "accelerate" else ("**/*.y*ml", "**/*.json")
            files = stating(clone, states, *globs)
            tallies.append(tally(f"{name} (`--training`)", clone, files, beside_a_model))
    for clone in chosen.fork:
        files = stating(clone, r"--num-layers[ =]|--hidden-size[ =]", "**/*.sh")
        tallies.append(tally(f"{clone.name}'s launch scripts", clone, files, read_config))
    for clone in chosen.recipes:
        files = stating(clone, r"(?m)^ *-? *(model|model_name_or_path|base_model):", "**/*.yaml")
        tallies.append(tally(f"{clone.name}'s recipes", clone, files, read_config))
    given = " ".join(f"--{name} DIR" for name in (*CLONES, *MANY) if getattr(chosen, name))
    chosen.output.write_text(
        with_answer("readers", report(tallies, f"python reports/bench/readers.py {given}")), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
