"""Write sizer/readers/released.json, released models by their names: python tests/tools/make_released.py CONFIGS

CONFIGS: the folder of configurations in the package aiconfigurator-core (Apache-2.0), ``org--name_config.json`` with
``org--name_hf_quant_config.json`` beside some, as their Hugging Face repositories hold them. Those of tests/data are
added. Dimensions and quantisation alone are kept: no key that changes neither the model nor what its weights are in.
"""

import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from sizer.readers.loading import beside, load_text, parse_mapping

TARGET = Path("sizer/readers/released.json")
#: Their names on the hub (tests/data/configs/README.md).
OWN = {
    "gpt2": "openai-community/gpt2",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "gemma-2-9b": "google/gemma-2-9b",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "falcon-7b": "tiiuae/falcon-7b",
}
SOURCES = ("aiconfigurator-core 0.12 of 2026-11", "tests/data/configs, as the repositories hold them")


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
TEXT += ("vision_*", "image_*", "video_*", "audio_*", "*bos_*", "*eos_*", "_name_or_path", "use_bfloat16", "*ngram*")


def trimmed(value: object) -> object:
    if not isinstance(value, dict):
        return value
    kept = {key: trimmed(one) for key, one in value.items() if not any(fnmatchcase(key, name) for name in TEXT)}
    return {key: one for key, one in kept.items() if one is not None}


def main(folder: str) -> None:
    files = {
        path: path.name.removesuffix("_config.json").replace("--", "/", 1)
        for path in Path(folder).glob("*_config.json")
    }
    models: dict[str, dict[str, object]] = {}
    for path, name in files.items():
        if not path.name.endswith("_hf_quant_config.json"):
            held = {**parse_mapping(load_text(path), str(path)), **beside(path)}
            models[name] = {"source": 0, "config": trimmed(held)}
    for stem, name in OWN.items():
        path = Path("tests/data/configs") / f"{stem}.json"
        models.setdefault(name, {"source": 1, "config": trimmed(dict(parse_mapping(load_text(path), str(path))))})
    # A list of every module by name, in two of them, is larger than all of the others together.
    models = {name: row for name, row in models.items() if len(json.dumps(row)) < 100_000}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(models[name])}" for name in sorted(models, key=str.lower))
    TARGET.write_text(f'{{\n "sources": {json.dumps(SOURCES)},\n "models": {{\n{rows}\n }}\n}}\n', "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
