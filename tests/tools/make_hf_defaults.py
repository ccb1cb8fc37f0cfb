"""Write sizer/readers/hf_defaults.json: what transformers' configuration classes take an absent key to be.

    python tests/tools/make_hf_defaults.py

A test compares the file with the installed transformers, so a changed default is noticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TYPES = (
    "bart", "bert", "bloom", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "falcon", "gemma", "gemma2",
    "gemma3_text", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "llama", "llama4_text",
    "minimax_m2", "mistral", "mixtral", "mpt", "olmo", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen2_moe",
    "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_vl_text", "roberta", "siglip_text_model",
    "siglip_vision_model", "stablelm", "starcoder2", "t5", "vit", "whisper",
)  # fmt: skip
DRIVERS = {"hidden_size": 2, "n_embd": 2, "num_attention_heads": 4, "n_head": 4, "num_hidden_layers": 3, "n_layer": 3}
TARGET = Path(__file__).parents[2] / "sizer" / "readers" / "hf_defaults.json"
#: Keys that say nothing about shapes.
NOISE = ("_name_or_path", "transformers_version", "id2label", "label2id", "architectures", "chunk_size_feed_forward",
         "output_attentions", "output_hidden_states", "return_dict", "problem_type", "rope_parameters",
         "begin_suppress_tokens", "suppress_tokens", "initializer_range", "initializer_factor", "use_cache",
         "layer_types", "dtype", "rope_scaling")  # fmt: skip


def defaults(model_type: str) -> dict[str, Any]:
    """The shape-relevant defaults of one configuration class, in the file's own key names.

    What the class derives from the hidden size, the heads or the layers is left out: the reader derives it too.
    """
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    values = kind().to_dict()
    larger = {key: factor * values[key] for key, factor in DRIVERS.items() if isinstance(values.get(key), int)}
    scaled = kind(**larger).to_dict()
    return {
        key: value
        for key, value in values.items()
        if key not in NOISE
        and not key.endswith("_token_id")
        and not isinstance(value, (str, float, dict))
        and (key in larger or scaled.get(key) == value)
    }


def main() -> None:
    table = {model_type: defaults(model_type) for model_type in TYPES}
    TARGET.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
