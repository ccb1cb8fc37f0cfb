"""FLOPs of the formula operators equal torch's own FlopCounterMode over transformers' classes on the meta device.

The counter counts attention's full square, causal or not, and so do we. Eager attention is compared: the fused
operator dispatches to a different kernel on every platform, and its count is covered in test_operators.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from shapes.operators import operators
from shapes.workload import Workload
from sizer.readers import read_config

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
GPT2_NAMES: dict[str, Any] = {"n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 1000, "n_positions": 512}

DENSE: list[tuple[str, dict[str, Any]]] = [
    ("llama", SMALL),
    ("llama", SMALL | {"num_key_value_heads": 2, "head_dim": 64, "attention_bias": True, "tie_word_embeddings": True}),
    ("mistral", SMALL | {"num_key_value_heads": 4}),
    ("qwen2", SMALL | {"num_key_value_heads": 2}),
    ("qwen3", SMALL | {"num_key_value_heads": 2, "head_dim": 48}),
    ("gemma", SMALL | {"num_key_value_heads": 1, "head_dim": 64}),
    ("gemma2", SMALL | {"num_key_value_heads": 4, "head_dim": 64}),
    ("phi", SMALL),
    ("phi3", SMALL | {"num_key_value_heads": 2, "pad_token_id": 0}),
    ("gpt2", GPT2_NAMES),
    ("gpt2", GPT2_NAMES | {"n_inner": 700}),
    ("gptj", GPT2_NAMES | {"rotary_dim": 16}),
    ("gpt_bigcode", GPT2_NAMES),
    ("gpt_neox", SMALL),
    ("opt", SMALL | {"ffn_dim": 704}),
    ("opt", SMALL | {"ffn_dim": 704, "word_embed_proj_dim": 128}),
    ("stablelm", SMALL | {"num_key_value_heads": 8}),
    ("starcoder2", SMALL | {"num_key_value_heads": 2}),
    ("cohere", SMALL | {"num_key_value_heads": 2}),
    ("olmo", SMALL),
    ("olmo2", SMALL | {"num_key_value_heads": 2}),
]


def counted(config: Any, b: int, s: int, *, train: bool) -> int:
    """FLOPs that torch counts for one forward (and backward) on the meta device."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.train(train)
    tokens = torch.zeros(b, s, dtype=torch.long, device="meta")
    # A mask of the final shape keeps mask helpers, which would ask a meta tensor for values, out of the way; OPT, which
    # counts positions from the mask, wants one value a token.
    shape = (b, s) if config.model_type == "opt" else (b, 1, s, s)
    mask = torch.ones(shape, dtype=model.dtype, device="meta")
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(train):
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        if train:
            logits.sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize(("model_type", "changes"), DENSE, ids=[f"{i}-{case[0]}" for i, case in enumerate(DENSE)])
def test_flops_equal_torchs_counter(model_type: str, changes: dict[str, Any], train: bool) -> None:
    config = AutoConfig.for_model(model_type, **changes)
    model = read_config(config.to_dict()).model
    for b, s in ((1, 64), (3, 96)):
        workload = Workload(b=b, s=s, dtype="fp32", attention="eager", phase="train" if train else "infer")
        ours = sum(operator.flops * operator.count for operator in operators(model, workload))
        assert ours == counted(config, b, s, train=train)
