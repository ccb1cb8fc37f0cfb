"""Write sizer/readers/released.json, released models by their names: python tests/tools/make_released.py KIND=PATH ...

A KIND is one of READ below, its PATH the folder or the file that it reads, of a package or of a public repository. None
of them is a part of this repository. Those of tests/data and
released_written.json are added; with --keep, the table's rows of sources that are not given stay. Of a name that
several have the first counts; where they disagree on the parameters it is left out, and said. Dimensions and
quantisation alone are kept: no key that changes neither the model nor what its weights are in. A release with the
dimensions of another one is a row that names it ("as"), with what differs ("with": null takes a key away).
"""

import ast
import json
import re
import runpy
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from shapes.errors import InputError
from sizer.readers import read_config
from sizer.readers.loading import load_text, parse_mapping, quantisation_of
from sizer.readers.reading import table

TARGET = Path("sizer/readers/released.json")
NAMES = json.loads((Path(__file__).parent / "released_names.json").read_text("utf-8"))
Rows = Iterator[tuple[str, dict[str, Any]]]

#: Keys of text, of starting values and of transformers' own bookkeeping.
TEXT = (
    "*token_id*",
    "*_token",
    "id2label",
    "label2id",
    "initializer_*",
    "*_std",
    "use_cache",
    "output_*",
    "return_dict",
)
TEXT += ("transformers_version", "task_specific_params", "*_url", "num_beams", "*temperature", "top_p", "*penalty*")
TEXT += (
    "vision_*_id",
    "image_*_id",
    "image_token*",
    "video_*",
    "audio_[!c]*",
    "*bos_*",
    "*eos_*",
    "_name_or_path",
    "use_bfloat16",
    "*ngram*",
)
#: mlc-llm's own keys, and those that say how a release is quantised.
TEXT += ("context_window_size", "prefill_chunk_size", "sliding_window_size", "attention_sink_size", "return_dict*")
TEXT += (
    "is_llama_config",
    "rope_interleaved",
    "transformers.js_config",
    "full_attn_mod",
    "interpolate_factor",
    "mlp_type",
)
TEXT += ("input_jitter_noise",)
QUANTISED = ("quantization_config", "_hf_quant_config")


def own(folder: Path) -> Rows:
    """tests/data/configs."""
    for stem, name in NAMES["own"].items():
        yield name, dict(parse_mapping(load_text(folder / f"{stem}.json"), stem))


def aiconfigurator(folder: Path) -> Rows:
    """aiconfigurator-core's model_configs: ``org--name_config.json``, ``org--name_hf_quant_config.json`` with some."""
    for path in sorted(folder.glob("*_config.json")):
        if path.name.endswith("_hf_quant_config.json"):
            continue
        name = path.name.removesuffix("_config.json").replace("--", "/", 1)
        found = {**parse_mapping(load_text(path), str(path)), **quantisation_of(path)}
        yield name, found
        if plain := NAMES["without_quantisation"].get(name):
            yield plain, {key: value for key, value in found.items() if key not in QUANTISED}


def llm_analysis(folder: Path) -> Rows:
    """llm-analysis' model_configs, ``org_name.json``, of types whose further keys are their classes'."""
    for path in sorted(folder.glob("*.json")):
        found = parse_mapping(load_text(path), str(path))
        if path.stem not in NAMES["llm_analysis"] or "model_type" not in found:
            continue
        theirs = ("num_layers", "n_head", "hidden_dim", "ffn_embed_dim")
        ours = NAMES["fields"][found["model_type"]]
        sizes = {key: found[name] for name, key in zip(theirs, ours, strict=True) if key and found.get(name)}
        rows = {"vocab_size": found["vocab_size"], "model_type": found["model_type"]}
        if found["model_type"] == "bert":
            rows["architectures"] = ["BertForMaskedLM"]
        if found["model_type"] == "opt":
            rows["word_embed_proj_dim"] = found["hidden_dim"]
        if found["model_type"] == "gpt_neo":
            rows["attention_types"] = [[["global", "local"], found["num_layers"] // 2]]
        yield NAMES["llm_analysis"][path.stem], {**rows, **sizes}


def named_by_folders(folder: Path) -> Rows:
    """LLMServingSim's: ``org/name.json``."""
    for path in sorted(folder.glob("*/*.json")):
        yield f"{path.parent.name}/{path.stem}", dict(parse_mapping(load_text(path), str(path)))


def literals(path: Path) -> dict[str, Any]:
    """A Python file's names and what they are: literals, dictionaries of them, calls with keywords as dictionaries."""
    found: dict[str, Any] = {}

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return found.get(node.id)
        if isinstance(node, ast.Dict):
            return {ast.literal_eval(key): value(one) for key, one in zip(node.keys, node.values, strict=True) if key}
        if isinstance(node, ast.Call) and node.keywords:
            kind = getattr(node.func, "attr", getattr(node.func, "id", ""))
            spread = next((value(one.value) for one in node.keywords if one.arg is None), None) or {}
            return {"_class": kind, **spread, **{one.arg: value(one.value) for one in node.keywords if one.arg}}
        try:
            return ast.literal_eval(node)
        except ValueError:
            return None

    assigned = (
        node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Assign | ast.AnnAssign)
    )
    for node in sorted(assigned, key=lambda node: node.lineno):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and node.value is not None:
            found[target.id] = value(node.value)
    return found


def maxtext(folder: Path) -> Rows:
    """MaxText's hf_model_configs.py, by the names of its globals.py."""
    held = literals(folder / "checkpoint_conversion/utils/hf_model_configs.py")
    names = literals(folder / "utils/globals.py")["HF_IDS"]
    for short, found in held["HF_MODEL_CONFIGS"].items():
        kind = found.pop("_class", "")
        found.setdefault("model_type", NAMES["classes"].get(kind))
        name = NAMES["maxtext"].get(short, names.get(short))
        if found["model_type"] and name:
            yield name, found


def mlc_llm(path: Path) -> Rows:
    """mlc-llm's model_preset.py."""
    for short, found in literals(path)["MODEL_PRESETS"].items():
        if short in NAMES["mlc_llm"]:
            yield NAMES["mlc_llm"][short], found


def litgpt(path: Path) -> Rows:
    """litgpt's config.py, of the llamas and GPT-NeoXs among its models, whose padded vocabulary is the embedding's."""
    for found in runpy.run_path(str(path))["configs"]:
        name = "{org}/{name}".format(**found["hf_config"])
        own = {**NAMES["litgpt_defaults"], **found}
        step = own.get("padding_multiple", 512)
        vocab = own.get("padded_vocab_size") or -(-own.get("vocab_size", 50254) // step) * step
        sizes = {ours: own[theirs] for ours, theirs in NAMES["litgpt"].items() if own.get(theirs)} | {
            "vocab_size": vocab
        }
        if (
            own["mlp_class_name"] in ("LLaMAMLP", "GemmaMLP")
            and own["norm_class_name"] == "RMSNorm"
            and not own.get("post_mlp_norm")
        ):
            kind = "qwen2" if own.get("attn_bias") else "qwen3" if own.get("norm_qk") else "llama"
            kind = "gemma" if own["mlp_class_name"] == "GemmaMLP" else kind
            if any(fnmatchcase(name, one) for one in NAMES["litgpt_left"]):
                kind = ""
            tied = any(fnmatchcase(name, one) for one in NAMES["tied"])
            if kind:
                yield name, {"model_type": kind, **sizes, "tie_word_embeddings": tied}
        elif (
            own["mlp_class_name"] == "GptNeoxMLP"
            and own["norm_class_name"] == "LayerNorm"
            and ("pythia" in name or "alpha" in name)
        ):
            width = sizes.pop("intermediate_size", 4 * own["n_embd"])
            parallel = {"use_parallel_residual": own["parallel_residual"]}
            yield name, {"model_type": "gpt_neox", **sizes, "intermediate_size": width, **parallel}


def litgpt_sizes(path: Path) -> Rows:
    """The rest of litgpt's, in its own keys: those that say a size."""
    held = runpy.run_path(str(path))
    for found in held["configs"]:
        whole = held["Config"](**found)
        kept = {key: getattr(whole, key, None) for key in table("formats")["litgpt"]["kept"]}
        off = ("bias", "parallel_residual", "norm_1", "norm_2")  # on unless told
        kept = {key: value for key, value in kept.items() if value or (value is not None and key in off)}
        yield (
            "{org}/{name}".format(**found["hf_config"]),
            {**kept, "norm_class_name": found.get("norm_class_name", "LayerNorm")},
        )


def gpu_poor(path: Path) -> Rows:
    """gpu_poor's all_configs.json: sizes and classes alone; only those are taken whose classes' defaults hold."""
    found = json.loads(path.read_text("utf-8"))
    for name, further in NAMES["gpu_poor"].items():
        own = {key: value for key, value in found[name].items() if key != "architectures"}
        yield name, {"model_type": "gpt2" if "n_embd" in own else "llama", **own, **further}
    yield from shaped_like(found)


def shaped_like(found: dict[str, Any]) -> Rows:
    """Fine-tunes among them: the class and the sizes of a release that is known, with a vocabulary of their own.

    The longest sequence is not among the sizes.
    """
    for name, own in found.items():
        kind = str((own.get("architectures") or [""])[0]).lower()
        for sister, (word, sizes) in NAMES["sisters"].items():
            same = all(own.get(key) == size for key, size in sizes.items())
            if same and word in f"{kind} {name}".lower() and not any(one in name.lower() for one in NAMES["bits"]):
                differs = {"vocab_size": own["vocab_size"], "max_position_embeddings": None}
                yield name, {"as": sister, "with": differs}


def aliases(_: Path) -> Rows:
    """released_names.json's own."""
    for name, release in NAMES["aliases"].items():
        yield name, {"as": release}


def without_active(models: Mapping[str, Any]) -> Rows:
    """Mixtures by their names without what is active of them (Qwen3-30B), where all called so have one size."""
    called = defaultdict[str, dict[str, int | None]](dict)
    for name, row in models.items():
        short = re.match(r".*\d[bB](?=-[aA]\d[\d.]*[bB](?:-|$))", name)
        if short and "config" in row and not any(key in row["config"] for key in QUANTISED):
            called[short[0].lower()][name] = parameters(row["config"])
    taken = {name.lower().rpartition("/")[2] for name in models}
    for short, found in called.items():
        if len({*found.values()}) == 1 and short.rpartition("/")[2] not in taken:
            yield min(found)[: len(short)], {"as": min(found, key=len), "source": NAMES["sources"]["aliases"]}


def written(path: Path) -> Rows:
    """released_written.json; of published sizes those whose parameters are the published ones."""
    for name, row in json.loads(path.read_text("utf-8"))["models"].items():
        if "as" in row:
            yield name, {key: value for key, value in row.items() if key != "from"} | {"source": row["from"]}
            continue
        if row.get("parameters") not in (None, found := parameters(row["config"])):
            raise SystemExit(f"{name}: {row['parameters']:,} parameters are published, {found:,} are read")
        yield name, dict(row["config"])


READ = {
    "aiconfigurator": aiconfigurator,
    "own": own,
    "maxtext": maxtext,
    "llm_analysis": llm_analysis,
    "mlc_llm": mlc_llm,
    "by_folders": named_by_folders,
    "litgpt": litgpt,
    "litgpt_sizes": litgpt_sizes,
    "written": written,
    "gpu_poor": gpu_poor,
    "aliases": aliases,
}


def trimmed(value: object) -> object:
    if not isinstance(value, dict):
        return value
    text = {key for key in value if any(fnmatchcase(key, name) for name in TEXT) and not key.endswith("_config")}
    kept = {key: trimmed(one) for key, one in value.items() if key not in text}
    # A null counts where the type's class would have a value: DeepSeek's q_lora_rank.
    usual = table("hf_defaults").get(value.get("model_type"), {})
    null = {key for key, one in kept.items() if one is None and usual.get(key) is None}
    return {key: one for key, one in kept.items() if key not in null and (key, one) != ("lm_head_bias", False)}


def parameters(config: Mapping[str, Any]) -> int | None:
    """None where no reader knows the type: its class is left to say."""
    try:
        return read_config(config).model.parameters
    except InputError:
        return None


def main(given: list[str]) -> None:
    here = {"own": "tests/data/configs", "aliases": "", "written": "tests/tools/released_written.json"}
    chosen = {**here, **dict(one.split("=", 1) for one in given if one != "--keep")}
    before = json.loads(TARGET.read_text("utf-8")) if "--keep" in given else {}
    others = {source for kind, source in NAMES["sources"].items() if kind not in chosen}
    models = {name: row for name, row in before.items() if row["source"].rpartition(": ")[2] in others}
    lower = {name.lower(): name for name in models}
    for kind in (one for one in READ if one in chosen):
        for name, config in READ[kind](Path(chosen[kind])):
            if "as" in config:
                known = lower.setdefault(name.lower(), name)
                source = config.pop("source", NAMES["sources"][kind])
                models.setdefault(known, {**config, "source": f"sizes of {config['as']}: {source}"})
                continue
            if config.get("model_type") == "qwen2":
                config.pop("attention_bias", None)  # its class has none: its biases are as they are
            row = {"source": NAMES["sources"][kind], "config": trimmed(config)}
            # A list of every module by name, in two of them, is larger than all of the others together.
            if len(json.dumps(row)) > 100_000:
                continue
            known = lower.setdefault(name.lower(), name)
            if kind == "litgpt_sizes" and known in models:
                continue
            if known not in models:
                models[known] = row
            elif (one := parameters(models[known]["config"])) != (other := parameters(row["config"])):
                click.echo(f"{known}: {one} and {other} ({kind}) disagree")
    for name in NAMES["left_out"]:
        models.pop(name, None)
    for name, kind in NAMES["heard"].items():
        models[name]["config"].setdefault("audio_config", {"model_type": kind})
    models |= {
        name: {**row, "source": f"sizes of {row['as']}: {row['source']}"} for name, row in without_active(models)
    }
    if lost := [name for name, row in models.items() if row.get("as", name) not in models]:
        raise SystemExit(f"as what is not in the table: {', '.join(lost)}")
    # A model a line: the readers parse the one that is asked for. Of equal short names the last one counts: a release.
    order = sorted(models, key=lambda name: ("as" not in models[name], "/" not in name, name.lower()))
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(models[name])}" for name in order)
    TARGET.write_text(f"{{\n{rows}\n}}\n", "utf-8")
    click.echo(f"{len(models)} models")


if __name__ == "__main__":
    main(sys.argv[1:])
