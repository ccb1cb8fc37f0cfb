"""Write sizer/readers/hf_defaults.json: what transformers' configuration classes take an absent key to be.

Also hf_written.json: what they write by themselves and no reader looks at, which changes nothing at that value; and
hf_classes.json: the classes by name, with the type of each.

    python tests/tools/make_hf_defaults.py

A test compares the file with the installed transformers, so a changed default is noticed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shapes.errors import InputError
from sizer.readers import read_config
from sizer.readers import reading as own
from sizer.readers.huggingface import BUILDERS, DEFAULTS_OF, NESTED
from sizer.readers.reading import FORMATS, at

#: Every type that has a builder, under the type whose defaults it is read with, SigLIP's other tower, parts of files.
PARTS = {"siglip_text_model", *FORMATS["huggingface"]["sections"].values()}
TYPES = sorted({DEFAULTS_OF.get(model_type, model_type) for model_type in BUILDERS} | PARTS)
DRIVERS = {
    "hidden_size": 2,
    "n_embd": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_hidden_layers": 3,
    "n_layer": 3,
    "num_layers": 3,
}
#: Ends of keys of sizes as shares of the hidden size (xLSTM's).
SHARES = "dim_factor", "proj_factor"
TARGET = Path(__file__).parents[2] / "sizer" / "readers" / "hf_defaults.json"
WRITTEN = TARGET.with_name("hf_written.json")
CLASSES = TARGET.with_name("hf_classes.json")
#: Keys that say nothing about shapes.
NOISE = (
    "_name_or_path",
    "transformers_version",
    "id2label",
    "label2id",
    "architectures",
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "problem_type",
    "rope_parameters",
    "begin_suppress_tokens",
    "suppress_tokens",
    "initializer_range",
    "initializer_factor",
    "classifier_dropout",
    "summary_first_dropout",
    "use_cache",
    "layer_types",
    "layers_block_type",
    "dtype",
    "rope_scaling",
)


def defaults(model_type: str) -> dict[str, Any]:
    """The shape-relevant defaults of one configuration class, in the file's own key names.

    Shares of dropout, and sizes as shares of the hidden size, are the only fractions among them. What the class derives
    from the hidden size, the heads or the layers is left out: the reader derives it too.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    values = kind().to_dict() | _of_wrapper(model_type)
    larger = {key: factor * values[key] for key, factor in DRIVERS.items() if isinstance(values.get(key), int)}
    layers = {key: larger[key] for key in larger if key == "num_hidden_layers"}
    for some in (larger, layers, {key: larger[key] for key in larger if key not in layers}):
        # The class may say how its sizes go together, or list its layers.
        with suppress(StrictDataclassError):
            scaled = kind(**some).to_dict()
            break
    return {
        key: value
        for key, value in values.items()
        if key not in NOISE
        and not key.endswith("_token_id")
        and not isinstance(value, (str, dict))
        and (not isinstance(value, float) or key.endswith(SHARES) or ("drop" in key and 0 < value < 1))
        and (key in larger or scaled.get(key) == value)
    }


def _of_wrapper(model_type: str) -> dict[str, Any]:
    """Whether the head is tied, of a text tower's class that has none: its wrapper's class says it for itself."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    wrapper = next((one for one in FORMATS["huggingface"]["own_ties"] if NESTED[one][1] == model_type), None)
    own = {**auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    if model_type in own or wrapper is None:
        return {}
    return {"tie_word_embeddings": CONFIG_MAPPING[wrapper]().tie_word_embeddings}


def written(model_type: str) -> dict[str, Any]:
    """Keys that the class writes into every file and that the reader does not look at, with their defaults."""
    from transformers import CONFIG_MAPPING

    config = json.loads(json.dumps(CONFIG_MAPPING[model_type]().to_dict(), default=str))
    try:
        return {one.key: at(config, one.key) for one in read_config(config).unread if one.key != "text_config"}
    except InputError:
        return {}


def main() -> None:
    table = {model_type: defaults(model_type) for model_type in TYPES}
    TARGET.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    own.table("hf_defaults").update(table)
    CLASSES.write_text(json.dumps(classes(), indent=1) + "\n")
    lines = (f" {json.dumps(one)}: {json.dumps(keys)}" for one, keys in all_written().items())
    WRITTEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def classes() -> dict[str, str]:
    """Names of the configuration classes, each with its type."""
    from transformers import CONFIG_MAPPING

    return {CONFIG_MAPPING[one].__name__: one for one in sorted({*TYPES} & {*CONFIG_MAPPING})}


def all_written() -> dict[str, dict[str, Any]]:
    """``written`` of every type that has some, whatever the file says now."""
    from transformers import CONFIG_MAPPING

    with patch.dict(own.table("hf_written"), clear=True):
        found = {one: written(one) for one in sorted({*BUILDERS, *NESTED} & {*CONFIG_MAPPING})}
    return {one: keys for one, keys in found.items() if keys}


if __name__ == "__main__":
    main()
