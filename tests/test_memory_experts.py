"""Mixtures over every split: no layout is said to fit that does not, by a count that is not sizer's.

Parameters are those of transformers' own class on the meta device, told apart by their names and shared out as
Megatron-LM does; of activations only those that nothing can do without are counted, so that the count is a lower bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from shapes.device import load_device
from shapes.errors import InputError
from shapes.frozen import replace
from shapes.memory import memory
from shapes.workload import Workload
from sizer.readers import read_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parent / "data" / "configs"
MODELS: dict[str, dict[str, Any]] = {
    "DeepSeek-V3": json.loads((CONFIGS / "deepseek-v3.json").read_text(encoding="utf-8")),
    "Mixtral-8x7B": json.loads((CONFIGS / "mixtral-8x7b.json").read_text(encoding="utf-8")),
    "Qwen3-30B-A3B": json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text(encoding="utf-8")),
    "DeepSeek-V2-Lite": {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "vocab_size": 102400,
        "n_group": 1,
        "topk_group": 1,
        "tie_word_embeddings": False,
    },
    "Llama-4-Scout": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "vocab_size": 202048,
        "tie_word_embeddings": False,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
        "sliding_window": 128,
        "tie_word_embeddings": False,
    },
}
#: (t, p, d, e, ZeRO, b, checkpointing) of every plan looked at.
GRID = tuple(product((1, 2, 8), (1, 2, 8), (1, 8, 32), (1, 4, 8), (0, 1, 3), (1, 4), ("none", "full")))
MICROBATCHES, S = 16, 4096
#: What tensor parallelism leaves whole: norms, routers, the projections into latents, biases of what is added up.
WHOLE = re.compile(r"norm|router|\.gate\.|q_a_proj|kv_a_proj|correction_bias|(o_proj|down_proj)[._]bias")

#: Split over no more ranks than they have heads.
KEYS = re.compile(r"[kv]_proj")


@dataclass(frozen=True)
class Parameter:
    elements: int
    layer: int | None
    front: bool
    expert: bool
    most_t: int


@cache
def parameters(name: str) -> tuple[Parameter, ...]:
    config, heads = transformers.AutoConfig.for_model(**MODELS[name]), MODELS[name]["num_key_value_heads"]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return tuple(
        Parameter(
            one.numel(),
            int(found[1]) if (found := re.search(r"layers\.(\d+)\.", path)) else None,
            "embed_tokens" in path,
            ".experts." in path,
            1 if WHOLE.search(path) else heads if KEYS.search(path) else 64,
        )
        for path, one in model.named_parameters()
    )


def states(name: str, w: Workload, stages: tuple[range, ...]) -> Iterator[int]:
    """Bytes of weights, fp32 gradients, master weights and two moments of each stage's fullest rank."""
    last = len(stages) - 1
    for number, layers in enumerate(stages):
        kinds = {False: 0.0, True: 0.0}
        for one in parameters(name):
            own = one.layer in layers if one.layer is not None else number == (0 if one.front else last)
            if own:
                kinds[one.expert] += one.elements / min(w.t, one.most_t) / (w.e if one.expert else 1)
        ranks = {False: w.d, True: w.d / w.e} if w.zero else {False: 1, True: 1}
        each = (2 + 4, 12) if w.zero < 3 else (0, 18)
        yield int(sum(size * (each[0] + each[1] / ranks[expert]) for expert, size in kinds.items()))


def activations(config: dict[str, Any], w: Workload, layers: int, in_flight: int) -> int:
    """16-bit inputs of layers, or of their dense products and experts' last ones, as many as the schedule holds."""
    h, heads = config["hidden_size"], config["num_attention_heads"]
    of_head = config.get("v_head_dim") or config.get("head_dim") or h // heads
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    channels = h if w.checkpointing == "full" else 2 * h + heads * of_head + config["num_experts_per_tok"] * width
    return 2 * w.tokens * channels // w.t * layers * in_flight


def even(layers: int, p: int) -> tuple[range, ...]:
    ends = [0]
    for stage in range(p):
        ends.append(ends[-1] + layers // p + (stage < layers % p))
    return tuple(range(*pair) for pair in pairwise(ends))


@pytest.mark.parametrize("name", MODELS)
def test_no_layout_of_a_mixture_is_said_to_fit_that_does_not(name: str) -> None:
    config = MODELS[name]
    model, device, layers = read_config(config).model, load_device("h100-sxm"), config["num_hidden_layers"]
    looked_at = fitting = 0
    for t, p, d, e, zero, b, checkpointing in GRID:
        if e > d or (zero and d == 1) or (zero == 3 and p > 1):
            continue
        w = Workload(
            b=b,
            s=S,
            t=t,
            p=p,
            d=d,
            e=e,
            zero=zero,
            checkpointing=checkpointing,
            sequence_parallel=t > 1,
            attention="flash",
        )
        try:
            mixed = replace(w, precision="mixed")
            ours = memory(model, mixed, device=device, implementation="megatron", microbatches=MICROBATCHES)
        except InputError:
            continue
        stages = even(layers, p)
        bytes_there = [
            size + activations(config, w, len(own), min(MICROBATCHES, p - number))
            for number, (size, own) in enumerate(zip(states(name, w, stages), stages, strict=True))
        ]
        truth = max(bytes_there)
        assert ours.total_bytes >= truth, (w, ours.components, truth)
        looked_at += 1
        fitting += bool(ours.fits)
        if p == 1:
            counted = sum(ours.components[part] for part in ("weights", "master_weights", "optimizer_states"))
            counted += ours.components["gradients"]
            assert counted == pytest.approx(next(states(name, w, stages)), rel=1e-3), w
    assert looked_at > 100
    assert 0 < fitting < looked_at
