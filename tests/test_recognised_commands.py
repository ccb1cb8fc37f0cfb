"""Every command with every split on recognised types: as by the type's formula where there is one, else answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isclose, prod
from typing import Any

import pytest

import sizer
from shapes.errors import InputError
from sizer.readers import Reading, read_config
from sizer.readers.huggingface import of_class
from sizer.subject import read_model
from tests.test_parity import OLD
from tests.tiers import every_run

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
pytest.importorskip("transformers")
if OLD:
    pytest.skip("transformers 5's masks and experts", allow_module_level=True)

SMALL: dict[str, Any] = {
    **{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8},
    **{"num_key_value_heads": 4, "vocab_size": 2048, "pad_token_id": 0, "head_dim": 64},
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}
MAMBA = {"mamba_d_ssm": 1024, "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_n_groups": 4, "mamba_d_state": 32}
LATENT = {"q_lora_rank": 128, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}
#: Types with a formula whose class is understood without it.
TYPES: dict[str, dict[str, Any]] = {
    "qwen3": SMALL,
    "gemma3_text": {**SMALL, "sliding_window": 64},
    "cohere": SMALL,
    "gpt2": {"n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 2048, "n_positions": 512},
    "bloom": {"hidden_size": 512, "n_layer": 4, "n_head": 8, "vocab_size": 2048},
    "nanochat": SMALL,
    "falcon_h1": {**SMALL, **MAMBA},
    "qwen2_moe": {**SMALL, **EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 512},
    "gpt_oss": {**SMALL, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 64},
    "deepseek_v3": {**SMALL, **EXPERTS, **LATENT, "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
}
TYPES["deepseek_v3"] |= {"num_key_value_heads": 8, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}
TYPES["deepseek_v3"]["head_dim"] = 32  # its class's rotation takes it for qk_rope_head_dim
#: Types without one.
UNKNOWN: dict[str, dict[str, Any]] = {
    "moshi": {**SMALL, "ffn_dim": 2048},
    "trocr": {"d_model": 512, "decoder_layers": 4, "decoder_attention_heads": 8, "decoder_ffn_dim": 1024},
}
SPLITS: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 2, "cp": 2},
    {"tp": 4, "sp": True, "checkpointing": "full"},
    {"tp": 2, "pp": 2, "dp": 2, "zero": 1},
    {"dp": 8, "zero": 3},
    {"tp": 2, "ep": 2, "dp": 2},
)
TRAINED = {"device": "h100-sxm", "b": 2, "s": 256}
DECODED = {"device": "h100-sxm", "b": 8, "context": 512, "phase": "decode"}
Call = tuple[Callable[..., Any], dict[str, Any]]


def calls(reading: Reading) -> Iterator[tuple[str, Call]]:
    """Each command with each split that the model has ranks for."""
    for split in SPLITS:
        if split.get("ep") and not reading.model.moe:
            continue
        for command in (sizer.check, sizer.memory, sizer.ops):
            yield f"{command.__name__} {split}", (command, {**TRAINED, **split})
        gpus = prod(split.get(key, 1) for key in ("tp", "pp", "cp", "dp"))
        yield f"mfu {split}", (sizer.mfu, {**TRAINED, **split, "step_time": 100, "gpus": gpus, "global_batch": 16})
        ranks = {key: value for key, value in split.items() if key in ("tp", "pp", "ep", "dp")}
        for command in (sizer.check, sizer.memory):
            yield f"{command.__name__} decode {ranks}", (command, {**DECODED, **ranks})
    yield "plan", (sizer.plan, {"gpus": 8, "device": "h100-sxm", "s": 256, "global_batch": 16})
    yield "deploy", (sizer.deploy, {"tp": 2})
    for what in ("swiglu", "heads", "experts", "vocab", "model"):
        yield f"search {what}", (sizer.search, {**TRAINED, "what": what})


def answer(reading: Reading, call: Call) -> dict[str, Any]:
    command, given = call
    try:
        found: dict[str, Any] = command(reading, **given).to_dict()
    except InputError as error:
        return {"refused": str(error)}
    return found


def readings(model_type: str) -> tuple[Reading, Reading]:
    """By formula, and by the class alone."""
    from shapes.trace import recognise_config

    config = {"model_type": model_type, **TYPES[model_type]}
    proof = recognise_config(config)
    assert proof.model is not None
    return read_config(config), of_class(proof, config, "<dict>")


#: What an answer says of how its model was read, and of the clock.
OF_READING = {"path", "operator_path", "notes", "source", "elapsed_s"}


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other} - OF_READING):
            yield from differences(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{where}[{place}]")
    elif not (one == other or (isinstance(one, float) and isclose(one, other, rel_tol=1e-6))):
        yield f"{where}: {one} / {other}"


@pytest.mark.parametrize("model_type", every_run(TYPES, "falcon_h1", "gpt_oss"))
def test_a_class_answers_as_its_formula_does(model_type: str) -> None:
    formula, recognised = readings(model_type)
    for label, call in calls(formula):
        assert [*differences(answer(formula, call), answer(recognised, call))] == [], label


@pytest.mark.parametrize("model_type", every_run(UNKNOWN, "moshi"))
def test_a_type_without_a_formula_is_answered_by_every_command(model_type: str) -> None:
    reading = read_model({"model_type": model_type, **UNKNOWN[model_type]})
    assert reading.recognised
    for label, call in calls(reading):
        found = answer(reading, call)
        if label.startswith("search"):
            assert "lacks" in found.get("refused", "lacks"), label
        else:
            assert "refused" not in found, label
    depth = "decoder_layers" if "decoder_layers" in UNKNOWN[model_type] else "num_hidden_layers"
    older = {"model_type": model_type, **UNKNOWN[model_type], depth: 2}
    changed = sizer.diff(older, {**older, depth: 4}, device="h100-sxm", b=2, s=256, tp=2).to_dict()
    assert changed
