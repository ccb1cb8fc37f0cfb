"""Configurations that several tests and their oracles share; no torch is needed to read them."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
