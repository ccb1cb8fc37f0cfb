"""How many tokens a tokenizer has whose name a configuration gives and whose files it does not hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path


@cache
def _table() -> Mapping[str, int]:
    found: Mapping[str, int] = json.loads((Path(__file__).parent / "tokenizers.json").read_text("utf-8"))["tokens"]
    return found


def tokenizer_size(name: str) -> int | None:
    """Tokens of the tokenizer that a type, a model's name or a file's name stands for; None where that is not known."""
    wanted = name.rstrip("/").lower()
    return next((size for pattern, size in _table().items() if fnmatchcase(wanted, pattern.lower())), None)
