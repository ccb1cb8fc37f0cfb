"""The vocabulary that the products use: padded, and the tokenizer's where a file leaves it to that."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from sizer.readers.fields import Fields, table


def tokenizer_size(name: str) -> int | None:
    """Tokens of the tokenizer that a type, a model's name or a file's name stands for; None where that is not known."""
    wanted = name.rstrip("/").lower()
    return next(
        (size for pattern, size in table("tokenizers")["tokens"].items() if fnmatchcase(wanted, pattern.lower())), None
    )


def vocabulary(fields: Fields, flat: Mapping[str, Any], usual: str = "") -> tuple[int, tuple[str, ...]]:
    """(padded size, notes). Without ``vocab_size`` the usual size of the tokenizer named, or of the ``usual`` one."""
    padded = fields.optional("padded_vocab_size")
    step = fields.integer("make_vocab_size_divisible_by", default=128)
    step *= fields.integer("tensor_model_parallel_size", default=1)
    if padded is not None:
        return padded, ()
    size = fields.optional("vocab_size")
    notes: tuple[str, ...] = ("the vocabulary is the padded one, as the products use it",)
    if size is None:
        name, size = _tokenizer(fields, flat, usual)
        if size is None:
            named = f" ({name})" if name else ""
            raise fields.error(
                f"expected this key: the tokenizer{named} decides it and its size is not known; "
                f"--set {fields.key_of('vocab_size')}=N",
                "vocab_size",
            )
        size += fields.count("vocab_extra_ids")
        notes = (f"no vocab_size: {size:,} tokens of {name} are taken, padded to a multiple of {step}",)
    return -(-size // step) * step, notes


def _tokenizer(fields: Fields, flat: Mapping[str, Any], usual: str) -> tuple[str, int | None]:
    """(what decides the vocabulary, its size or None): the tokenizer's model, else its type, else its files."""
    unknown: Mapping[str, str] = flat.get("_unknown", {})
    model = fields.raw("tokenizer_model", default=None) or unknown.get("tokenizer_model", "")
    kind = fields.text("tokenizer_type")
    if not str(model).strip("/") or "$" in str(model)[:1]:
        model = flat.get("_tokenizer") or model
    if not kind and fields.raw("merge_file", default=unknown.get("merge_file")):
        kind = "GPT2BPETokenizer"
    names = [name for name in (str(model), kind, usual) if name]
    return next(((name, size) for name in names if (size := tokenizer_size(name))), (", ".join(names), None))
