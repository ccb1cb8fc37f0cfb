"""The vocabulary that the products use: padded, and the tokenizer's where a file leaves it to that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from sizer.readers.fields import Fields, table


def tokenizer_size(name: str) -> int | None:
    """Tokens of the tokenizer that a type, a model's name or a file's name stands for; None where that is not known."""
    wanted = name.rstrip("/").lower()
    return next(
        (size for pattern, size in table("tokenizers")["tokens"].items() if fnmatchcase(wanted, pattern.lower())), None
    )


def vocabulary(
    fields: Fields, ranks: str, tokenizers: Callable[[], Sequence[str]], extra: str | None = None
) -> tuple[int, tuple[str, ...]]:
    """(size padded for the tensor-parallel ``ranks``, notes).

    Without ``vocab_size`` it is that of the first of ``tokenizers`` whose size is known, and ``extra`` tokens.
    """
    padded = fields.optional("padded_vocab_size")
    step = fields.integer("make_vocab_size_divisible_by", default=128) * fields.integer(ranks, default=1)
    if padded is not None:
        return padded, ()
    size = fields.optional("vocab_size")
    if size is not None:
        return -(-size // step) * step, ("the vocabulary is the padded one, as the products use it",)
    names = list(dict.fromkeys(filter(None, tokenizers())))
    name = next(filter(tokenizer_size, names), None)
    if name is None:
        named = f" ({', '.join(names)})" if names else ""
        expected = f"expected this key: the tokenizer{named} decides it and its size is not known"
        raise fields.error(f"{expected}; --set {fields.key_of('vocab_size')}=N", "vocab_size")
    size = (tokenizer_size(name) or 0) + (fields.count(extra) if extra else 0)
    padded = -(-size // step) * step
    return padded, (f"no vocab_size: {size:,} tokens of {name} are taken, padded to {padded:,}",)
