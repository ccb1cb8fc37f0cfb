"""How many files of public repositories that state or name a model are read: clones.py DIR[:SUB] ...

DIR are local clones, SUB a folder of one; with --add the report's rows of
other folders stay. A file that speaks of no model (``NoModel`` without a name) is not counted.
Where a file is called by a size (8B, 350M), the parameters read are held against it. Writes reports/readers-clones.md.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from shapes.errors import InputError  # noqa: E402
from sizer.readers import read_config  # noqa: E402

REPORT = ROOT / "reports" / "readers-clones.md"
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".py", ".slurm", ".sbatch")
#: What a file is refused with that speaks of no model.
SILENT = (
    *(
        "known formats",
        "is a program that names no model",
        "expected a command or a variable",
        "expected Python assignments",
        "found an empty file",
    ),
    *("expected JSON or YAML", "text as a key", "expected no tag", "found another document", "expected an object at"),
    *("expected JSON: ", "expected a value of the tag python"),
)
COLUMNS = ("files", "read", "by name", "refused: name unknown", "refused: a path", "refused: other")
COLUMNS += ("called by a size", "within 1.6x")
#: What is given in place of a model's name: a folder, a variable, a text that asks for one.
NO_NAME = re.compile(r"names a model \(\S+ = '(|[/.$<].*|.*path.*|follow instructions.*|(saves|output)/.*)'?\)", re.I)
#: Folders of repositories that nobody had tried: what the readers of a52ac3a, before any of them was opened, made of
#: them: files that state or name a model by what they could see, and those read. One was silently wrong, a calculator's
#: YAML that names a model and states fewer layers (xtuner's llm_calc); no traceback.
FIRST_RUN = {
    "open-instruct/configs": (98, 73),
    "open-instruct/scripts": (111, 70),
    "oumi/configs": (344, 0),
    "prime-rl/configs": (0, 0),
    "prime-rl/examples": (0, 0),
    "AReaL/examples": (1, 0),
    "VeOmni/configs": (15, 9),
    "FlagScale/examples": (64, 2),
    "ROLL/examples": (103, 98),
    "forge/apps": (4, 2),
    "xtuner/xtuner/configs": (587, 0),
    "RLinf/examples": (39, 0),
    "dolomite-engine/configs": (2, 0),
    "bigcode-megatron/examples": (38, 31),
}
#: A second draw of repositories that nobody had tried, whole: what the readers of a62f747 made of them. 57 of those
#: read were silently wrong: 54 of llm-jp's by the vocabulary (Llama2Tokenizer was taken for 32,000 words whatever model
#: it was given), two Griffin of NeMo's launcher read as plain attention, a program's own model taken for nanoGPT's.
SECOND_RUN = {
    "MAD": (3, 1),
    "NeMo-Framework-Launcher": (122, 51),
    "TinyLlama": (4, 1),
    "awsome-distributed-training": (103, 12),
    "bigscience": (169, 67),
    "dclm": (12, 4),
    "gpu-recipes": (63, 26),
    "kubeai": (8, 0),
    "llm-jp-scripts": (64, 58),
    "mindformers": (63, 0),
    "nanoRLHF": (2, 1),
    "optimus-dl": (11, 1),
    "production-stack": (15, 0),
    "rllm": (43, 36),
    "srt-slurm": (3, 1),
    "swiss-Megatron": (227, 211),
    "trl": (2, 1),
}
#: A third draw of repositories that nobody had tried, whole: what the readers of cd61f22 made of them. 30 of those
#: read were silently wrong: 13 LoRA (--lora_dim, a --use_lora without a rank, a flat file of TrainingArguments) as full
#: fine-tuning, 8 retrievers' two towers as one, 7 of MegaBlocks' mixtures without their experts, 2 T5 as BERT.
THIRD_RUN = {
    "aibrix": (100, 75),
    "align-anything": (34, 23),
    "BELLE": (8, 2),
    "DeepSpeedExamples": (51, 27),
    "distributed-training-guide": (1, 1),
    "dlrover": (3, 0),
    "dstack": (4, 2),
    "EasyR1": (0, 0),
    "flash-attention": (48, 0),
    "fms-fsdp": (0, 0),
    "foundation-model-benchmarking-tool": (233, 1),
    "GLM-130B": (8, 0),
    "gpustack": (1, 0),
    "h2o-llmstudio": (0, 0),
    "InternVL": (135, 17),
    "k2-train": (3, 2),
    "kaito": (4, 4),
    "kserve": (22, 0),
    "kubernetes-engine-samples": (42, 6),
    "llama-cookbook": (6, 1),
    "LLaVA": (12, 4),
    "llm-compressor": (45, 31),
    "lorax": (1, 1),
    "lws": (3, 3),
    "Medusa": (2, 2),
    "megablocks": (17, 17),
    "Megatron-DeepSpeed": (30, 25),
    "Megatron-LLaMA": (46, 35),
    "Megatron-LLM": (33, 28),
    "metaseq": (1, 0),
    "MiniCPM": (20, 2),
    "mistral": (2, 2),
    "modelzoo": (2, 0),
    "ModernBERT": (4, 2),
    "NeMo-Aligner": (1, 0),
    "neuronx-distributed-training": (7, 0),
    "octopack": (11, 1),
    "Open-Assistant": (2, 0),
    "optimum-neuron": (1, 0),
    "PRIME": (3, 2),
    "Qwen": (5, 3),
    "RAGEN": (11, 0),
    "Search-R1": (15, 13),
    "TensorRT-Model-Optimizer": (10, 6),
    "TinyZero": (30, 26),
    "tpu-recipes": (12, 11),
    "training": (14, 10),
    "trlx": (10, 6),
    "veScale": (7, 5),
    "VILA": (19, 1),
}
#: A fourth draw: what the readers of 69dc62a's parent made of them. 10 of those read were wrong, all MindSpeed-LLM's:
#: leading dense layers and shared experts by other names, layers that do nothing, a flag that gates, a vocabulary.
FOURTH_RUN = {
    "leap-finetune": (28, 18),
    "MindSpeed-LLM": (500, 112),
    "PipelineRL": (21, 11),
    "Reasoning360": (170, 139),
    "tunix": (18, 15),
}
#: A fifth draw: what the readers of 6373fb01 made of them. 19 of those read were wrong: 15 of ArcticTraining's that
#: train SwiftKV or a speculator as the model that they begin with, 4 with peft_method: lora as full fine-tuning.
FIFTH_RUN = {
    "ArcticTraining": (59, 42),
    "distributed-workloads": (20, 8),
    "fms-hf-tuning": (5, 2),
    "open-thoughts": (2, 2),
    "oat": (16, 9),
    "Long-RL": (26, 17),
    "dgx-spark-playbooks": (10, 8),
    "Fast-LLM": (0, 0),
    "picotron": (0, 0),
    "mistral-finetune": (0, 0),
}
#: A sixth draw: what the readers of 56a9bb4c made of them. None of those read was wrong; 20 of vllm-ascend's were
#: refused for their model_type (vllm), though they name a model.
SIXTH_RUN = {
    "SwissArmyTransformer": (29, 3),
    "ColossalAI": (18, 8),
    "NeMo-Skills": (6, 1),
    "atropos": (4, 2),
    "data-juicer": (7, 1),
    "vllm-ascend": (27, 4),
    "dgxc-benchmarking": (4, 3),
    "verifiers": (0, 0),
    "awsome-inference": (0, 0),
}
#: A seventh draw: what the readers of 89015fbb made of them. 20 of those read were wrong: 18 of SpecForge's drafts that
#: are no EAGLE, whose own keys were named as unknown, as their layers' type; an arbiter's name as the model's, twice.
SEVENTH_RUN = {
    "SpecForge": (45, 45),
    "OLMoE": (26, 4),
    "RLHF-Reward-Modeling": (7, 5),
    "ai-on-eks": (3, 1),
    "easydistill": (85, 63),
    "Bunny": (24, 0),
    "TTRL": (76, 68),
    "Skywork-OR1": (50, 39),
}
#: Four draws of a few files each of repositories that nobody had tried, what they state labelled first: repositories,
#: files, those read at the first run, and those of them that were silently wrong. ee208c18 read the first: linearised
#: attention (5), pairs and reward models unsaid (4), text that is generated as training (2), sequence parallelism (2),
#: a reranker, retro's layers. Each other draw was read by what was mended after the one before: evaluations as
#: training (4), a retriever; LoRA under another name, a microbatch in tokens, offloading; trajectories (3), GRPO's
#: generations, data that is prepared.
SAMPLED = ((8, 70, 24, 15), (15, 74, 18, 5), (17, 49, 8, 3), (18, 63, 22, 5))
SAMPLED_OF = tuple(zip(*SAMPLED, strict=True))
#: Four draws more, run first and then graded by the repositories' own code: the same four figures, of files that state
#: a model or its training. fa7e9623 read the first: forks of nanoGPT with keys or sections of their own, which were
#: named as unknown (5; 4 refusals there gave a reason that was not so: lists of Hydra's defaults). Then, with unknown
#: keys that name a part of a model refused, the second and the third (inference as training, started as a module; a T5
#: whose file unties it), and 04938735 the fourth (one refusal for the wrong reason: a ViT's vocabulary).
GRADED = ((10, 27, 9, 5), (16, 28, 10, 0), (15, 32, 13, 2), (13, 34, 4, 0))
GRADED_OF = tuple(zip(*GRADED, strict=True))
#: Four draws of 2026-11-28 of recipes that name a model, graded as they were run: repositories, recipes, those read at
#: the first run, and those of them whose workload was not theirs. f797cd65's parent read the first; each other draw was
#: read by what was mended after the one before. An adapter's inference and a model's export as training, a model that
#: is grown as the one it grows from; a sentence encoder's pairs; an evaluation after a download, twice.
GRADED = ((12, 138, 85, 0), (15, 45, 27, 3), (14, 41, 26, 1), (8, 22, 18, 2))
#: Three draws of 2026-11-28, whole (configurations, scripts and recorded results): repositories, files that name a
#: model, those read through the table at the first run, and those of them with another workload: 16 evaluations and
#: 291 results of servers as training, 3 drafts of speculative decoding that are trained after their data is prepared.
#: 372 of the first draw's are one group's own fine-tunes of released models, by names that nobody else has.
WHOLE = ((9, 601, 226, 1), (9, 655, 639, 15), (10, 1023, 979, 294))
#: Fifteen forks of Megatron-LM, their own scripts and YAML alone: files, those read, those refused for a reason that
#: is not so (arguments of its examples or its releases, a shell's command in place of a file), and those silently wrong
#: (MIMO's model provider). 51 records of runs are refused for a rank that they hold and not for what they lack.
FORKS = (717, 311, 13, 1)
#: Fifteen draws of 2026-11-29, two to four files a repository, labelled before they were run (the ninth then graded
#: by what its files and programs say): repositories, files, those read at the first run, those
#: refused for a reason that is not so, and those silently wrong: a quantised adapter as
#: full training, a check as training; in the fifth LoRA on two matrices where its trainer has all (verl, swift), which
#: the draws before were not looked at for. The fifth's repositories are those that the fourth did not have. The last
#: two: research repositories of any kind, of whose files 37 and 16 name a model, and 12 and none state one of their own
#: (all refused at first sight); wrong were LoRA by a trainer's own key, and by an object of a script. Then six draws
#: of trainers, engines, cookbooks and single people's repositories, each read by what was mended after the one before:
#: of those that name a model 20 of 26, 15 of 19, 11 of 18, 7 of 11, 13 of 19 and 20 of 26 were read (of the last two
#: name Aria, one lacks a quote, three run it in a branch by a node's rank or an argument). Wrong: modules_to_save
#: and target_parameters of an adapter (3), verl's FSDP (3, neither read nor named), Adam-mini as AdamW, and an
#: evaluation's results as training.
DRAWN = (
    (32, 85, 31, 5, 0),
    (25, 80, 37, 6, 2),
    (33, 77, 21, 3, 0),
    (30, 75, 39, 3, 0),
    (34, 61, 23, 3, 4),
    (50, 85, 41, 2, 0),
    (16, 56, 35, 1, 1),
    (31, 89, 23, 2, 1),
    (12, 36, 8, 1, 1),
    (15, 55, 29, 2, 0),
    (14, 40, 16, 0, 6),
    (19, 51, 15, 1, 1),
    (12, 31, 7, 1, 1),
    (11, 29, 13, 3, 0),
    (12, 41, 20, 4, 0),
)
#: Draws of a few files each that were labelled before they were run; the last two before and on 7f32b346.
LABELLED = (
    "Of 72 more a few files each were labelled and run, in seven draws: of 13 + 19 + 18 + 29 + 16 + 11 + 26 files "
    "that name a model 10 + 16 + 17 + 20 + 13 + 5 + 17 were read right at first sight, 2 + 1 + 0 + 0 + 0 + 0 + 3 "
    "silently wrong (a type beside a name taken for the class's own sizes; a recomputation that nobody said; a "
    "recipe's FSDP; the batch, and once the ZeRO, of a program's own loop), 1 + 2 + 1 + 6 + 3 +"
    " 2 + 4 refused for a reason that is not so (notebooks, classes of settings, commands in `$( )`, llama.cpp's "
    "`-m`, scripts that run others, a dictionary deep in a program) and 7 + 2 for one that is. Of the first six "
    "draws' 106 files 94 were read before llama.cpp's files and programs' options were; of the last one's 26 19 are, "
    "and its 9 files that name none are refused. Of 36 more, in two draws of 81 and 47 files, of 34 + 28 that name a "
    "model 22 + 16 were read right at first sight, 2 + 2 silently wrong (torchtune's QLoRA, one of several commands; a "
    "tokenizer's longest sequence, twice), 7 + 6 refused for a reason that is not so (a command in a key of one's own "
    "or in a text that is no JSON, keys with dots, a path) and 3 + 4 for one that is; of 17 + 10 that state sizes one "
    "was read with another vocabulary, which it said. Mended since, 28 + 26 of the 34 + 28 are read or truly refused. "
)
#: The files of the seventh draw's repositories, whole, that name a model, and those read through the table that was
#: extended by what other repositories' recipes name: of the other nine seven name a group's own folder or fine-tune,
#: two a release in 2 bits.
FRESH = (326, 317)
#: Repositories that nobody looked at while the readers were written.
KEPT_BACK = ("SkyRL", "ms-swift", "open-r1", "alignment-handbook", "smollm", "simpleRL-reason", "pythia")


def size_in(name: str) -> float | None:
    found = re.search(r"(?<![\dA-Za-z.])(\d+(?:\.\d+)?)([bBmM])(?![A-Za-z0-9])", name)
    return float(found[1]) * (1e9 if found[2] in "bB" else 1e6) if found else None


def counted(folder: Path, root: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if hidden or path.suffix not in SUFFIXES or not path.is_file() or path.stat().st_size > 200_000:
            continue
        try:
            reading = read_config(path, root=root)
        except InputError as error:
            if any(said in str(error) for said in SILENT):
                continue
            unknown = "names a model" in str(error) or "no model of this name" in str(error)
            unknown = unknown and not re.search(
                "nobody publishes|table has few|none of which is in the table", str(error)
            )
            named = "refused: a path" if NO_NAME.search(str(error)) else "refused: name unknown"
            found.update(["files", named if unknown else "refused: other"])
            continue
        found.update(["files", "read", *(["by name"] if any("and no others" in one for one in reading.notes) else [])])
        said = size_in(path.name)
        if said is not None:
            found.update(
                ["called by a size", *(["within 1.6x"] if 1 / 1.6 < reading.model.parameters / said < 1.6 else [])]
            )
    return found


def line(name: str, found: Counter[str]) -> str:
    return f"| {name} | " + " | ".join(f"{found[column]:,}" for column in COLUMNS) + " |"


def written() -> dict[str, Counter[str]]:
    """The rows of the report, which hold folders that are not at hand."""
    lines = (one.strip("| \n").split(" | ") for one in REPORT.read_text("utf-8").splitlines() if one.startswith("| "))
    rows = {name: found for name, *found in lines if name not in ("folder", "all")}
    return {
        name: Counter({column: int(size.replace(",", "")) for column, size in zip(COLUMNS, found, strict=True)})
        for name, found in rows.items()
    }


def main(folders: list[str]) -> None:
    rows = written() if "--add" in folders else {}
    for folder in (one for one in folders if one != "--add"):
        clone, _, inner = folder.partition(":")
        name = Path(clone).name.rpartition("+")[2]
        rows[f"{name}{'/' if inner else ''}{inner}"] = counted(Path(clone) / inner, Path(clone))
    total = sum(rows.values(), Counter())
    named = total["by name"] + total["refused: name unknown"]
    kept = sum((row for name, row in rows.items() if name.startswith(KEPT_BACK)), Counter())
    new = sum((row for name, row in rows.items() if name in FIRST_RUN), Counter())
    judged = sum((row for name, row in rows.items() if name in SECOND_RUN), Counter())
    last = sum((row for name, row in rows.items() if name in THIRD_RUN), Counter())
    newest = sum((row for name, row in rows.items() if name in FOURTH_RUN), Counter())
    fourth = [sum(one) for one in zip(*FOURTH_RUN.values(), strict=True)]
    later = {**FIFTH_RUN, **SIXTH_RUN, **SEVENTH_RUN}
    now = sum((row for name, row in rows.items() if name in later), Counter())
    drawn = [sum(one) for one in zip(*later.values(), strict=True)]
    second = [sum(one) for one in zip(*SECOND_RUN.values(), strict=True)]
    third = [sum(one) for one in zip(*THIRD_RUN.values(), strict=True)]
    first = [sum(one) for one in zip(*FIRST_RUN.values(), strict=True)]
    text = [
        "# Files of public repositories, read",
        "",
        f"Of {total['files']:,} files that state or name a model in {len(rows)} folders of public repositories sizer "
        f"reads {total['read']:,}, {total['by name']:,} of them by the name of a released model. It refuses "
        f"{total['refused: name unknown']:,} whose model it does not know by name, {total['refused: a path']:,} that "
        f"give a path or a placeholder in place of a name, and {total['refused: other']:,} for another reason that it "
        f"names. Of files that name a model it reads {total['by name'] / named:.0%} by the name (95% are asked for).",
        "",
        "Among the names that it does not know are models of pictures, speech and robots, services that publish no "
        "weights, and releases whose configuration was in no repository at hand.",
        f"Of repositories that were kept back it reads {kept['read']:,} of {kept['files']:,}. "
        f"Of {total['called by a size']:,} files that are called by a size "
        f"{total['within 1.6x']:,} have it within a factor of 1.6 (a release's name is "
        "no count of its parameters: SmolLM's 1B has 1.71, a mixture is called by what is active, 1_8b is taken for "
        "8B).",
        "",
        f"Of {len(FIRST_RUN)} folders that nobody had tried the first run saw {first[0]:,}, read {first[1]:,} and was "
        f"silently wrong on one more, which is refused since; then {new['read']:,} of {new['files']:,} are read. "
        f"Of {len(SECOND_RUN)} further repositories, whole, the first run saw {second[0]:,}, read {second[1]:,} and "
        "was silently wrong on 57 of these (54 by the vocabulary of a tokenizer that was known by its type alone); "
        f"those are read right or refused since, and {judged['read']:,} of {judged['files']:,} are read. "
        f"Of {len(THIRD_RUN)} more the first run saw {third[0]:,}, read {third[1]:,} and was silently wrong on 30 of "
        "these (13 LoRA under other names, 8 retrievers, 7 of MegaBlocks' mixtures, 2 T5); those too are read right or "
        f"refused since, and {last['read']:,} of {last['files']:,} are read. "
        f"Of {len(FOURTH_RUN)} more the first run saw {fourth[0]:,}, read {fourth[1]:,} and was wrong on 10 of these, "
        f"whose keys it named as unknown; mended since, and {newest['read']:,} of {newest['files']:,} are read. "
        f"Of {len(later)} more, in three draws, each labelled before it was run, the first runs saw {drawn[0]:,}, read "
        f"{drawn[1]:,} and were wrong on 39 of these (19, 0 and 20): drafts of speculative decoding, training of other "
        f"models than the named one, LoRA by keys of its own; mended since, and {now['read']:,} of {now['files']:,} "
        "are read. "
        f"Of {sum(SAMPLED_OF[0])} more a few files each were labelled and run, in four draws: {sum(SAMPLED_OF[2])} of "
        f"{sum(SAMPLED_OF[1])} were read at the first run, {' + '.join(map(str, SAMPLED_OF[3]))} of these silently "
        "wrong, each draw by what was mended after the one before; mended since. "
        f"Of {sum(GRADED_OF[0])} more a few files each were run and then graded, in four draws: {sum(GRADED_OF[2])} of "
        f"{sum(GRADED_OF[1])} were read at the first run, {' + '.join(map(str, GRADED_OF[3]))} of these wrong (the "
        "first five with their keys named as unknown); since the first an unknown key that names a part of a model is "
        "refused. "
        f"Of recipes alone that name a model {' + '.join(f'{one[2]} of {one[1]}' for one in GRADED)} were read "
        f"at first sight, in {sum(one[0] for one in GRADED)} more repositories and four draws, "
        f"{' + '.join(str(one[3]) for one in GRADED)} of these with another workload; mended since. "
        f"Of {sum(one[0] for one in WHOLE)} more, whole, in three draws, "
        f"{' + '.join(f'{one[2]:,} of {one[1]:,}' for one in WHOLE)} files that name a model were read through the "
        f"table at first sight (372 of the first are one group's own fine-tunes), "
        f"{' + '.join(str(one[3]) for one in WHOLE)} of these with another workload (results of servers and "
        "evaluations as training); but for one they decode or say so since. "
        f"Of {FORKS[0]} files of 15 forks of Megatron-LM {FORKS[1]} were read at first sight, {FORKS[3]} of these "
        f"silently wrong; {FORKS[2]} were refused for a reason that is not so. "
        f"Of {sum(one[0] for one in DRAWN)} more a few files each were labelled and run, in {len(DRAWN)} draws: of "
        f"{' + '.join(str(one[1]) for one in DRAWN)} files {' + '.join(str(one[2]) for one in DRAWN)} were read, "
        f"{' + '.join(str(one[3]) for one in DRAWN)} refused for a reason that is not so and "
        f"{' + '.join(str(one[4]) for one in DRAWN)} silently wrong in their workload (LoRA where its trainer has it, "
        "quantised adapters, a check, a reference's probabilities or results as training, what an adapter saves whole, "
        "a recipe's FSDP, Adam-mini); mended since. "
        f"{LABELLED}Of the six draws' files before these that name a model 86 of 119 were "
        "read, and their batch, length and recomputation since the first of them. Of the seventh draw's "
        f"repositories, whole, {FRESH[1]} of {FRESH[0]} files that name a model were read through the table at first "
        "sight, which other repositories' recipes had extended before. "
        "Python registries (torchtitan, Megatron-Bridge) "
        "hold several recipes a file and are not counted here: `--set recipe=NAME` takes one.",
        "",
        "```sh",
        "python reports/bench/clones.py DIR DIR:FOLDER ...",
        "```",
        "",
        "| folder | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
        *(line(name, row) for name, row in rows.items()),
        line("all", total),
        "",
    ]
    REPORT.write_text("\n".join(text), encoding="utf-8")
    sys.stdout.write(line("all", total) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
