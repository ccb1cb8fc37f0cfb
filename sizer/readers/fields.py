"""Typed access to a configuration's fields, with errors that name file, key and value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from shapes.errors import InputError, positive_int
from shapes.json_form import Named
from shapes.json_form import Values as Values

#: A configuration's keys and what they hold.
Config = Named

#: More layers than any model has; the pattern of layers is walked, so it must end.
MAX_LAYERS = 10_000
_MISSING = object()


@cache
def table(name: str) -> Any:
    """A data file of the readers: ``formats`` (what each calls the dimensions, what it takes absent keys to be),

    ``known_keys``, ``hf_defaults``, ``tokenizers``, and sizes of models that a file may name.
    """
    return json.loads((Path(__file__).parent / f"{name}.json").read_text("utf-8"))


def stated(**values: Any) -> Values:
    """The fields of a workload that a file gives: those with a value."""
    return {key: value for key, value in values.items() if value}


class Fields:
    """A mapping read by key with its type demanded; absent keys take the model class's default.

    Several names may be given where versions differ: the first present one counts. ``key_of`` says which it was.
    ``present``: keys of the file without a value, which a flag needs none of; ``flags``: those found so.
    ``asked`` collects every name asked for, present or not, dotted where nested: what is left was not read.
    """

    def __init__(
        self,
        config: Config,
        where: str,
        *,
        defaults: Config | None = None,
        prefix: str = "",
        asked: set[str] | None = None,
        present: frozenset[str] = frozenset(),
    ) -> None:
        self.config = config
        self.where = where
        self.prefix = prefix
        self.asked: set[str] = set() if asked is None else asked
        self.present = present
        self.flags: set[str] = set()
        self.defaults = defaults or {}

    def key_of(self, *names: str) -> str:
        """The name under which the first of ``names`` is in the file, dotted if nested; else the first name."""
        return self.prefix + next((name for name in names if name in self.config), names[0])

    def raw(self, *names: str, default: Any = _MISSING) -> Any:
        self.asked.update(self.prefix + name for name in names)
        for source in (self.config, self.defaults):
            for name in names:
                if name in source:
                    value = source[name]
                    return int(value) if isinstance(value, float) and value.is_integer() and value < 1e15 else value
        if default is not _MISSING:
            return default
        raise InputError("expected this key", where=self.where, key=self.prefix + names[0])

    def ignore(self, *names: str) -> None:
        """Names that the model's class has no use for here, whatever they say: nothing is lost by not reading them."""
        self.asked.update(self.prefix + name for name in names)

    def error(self, expected: str, *names: str) -> InputError:
        """An error about the named field's value."""
        return InputError(expected, where=self.where, key=self.key_of(*names), value=self.raw(*names, default=None))

    def refuse(self, wrong: object, expected: str, *names: str) -> None:
        """The named field's ``error`` where ``wrong`` holds."""
        if wrong:
            raise self.error(expected, *names)

    def integer(self, *names: str, default: Any = _MISSING) -> int:
        """A positive integer; a list that says one for every layer is that one."""
        value = self.raw(*names, default=default)
        if isinstance(value, list) and len(value) > 1 and all(one == value[0] for one in value):
            value = value[0]
        return positive_int(value, self.key_of(*names), where=self.where)

    def optional(self, *names: str) -> int | None:
        """A positive integer, or None where it is null or absent."""
        value = self.raw(*names, default=None)
        return None if value is None else positive_int(value, self.key_of(*names), where=self.where)

    def count(self, *names: str, default: int = 0) -> int:
        """An integer of zero or more; null is ``default``."""
        value = self.raw(*names, default=default)
        if value is None or (value == 0 and not isinstance(value, bool)):
            return default if value is None else 0
        return positive_int(value, self.key_of(*names), where=self.where)

    def layers(self, *names: str) -> int:
        """A number of layers, within what any model has."""
        layers = self.integer(*names)
        self.refuse(layers > MAX_LAYERS, f"expected at most {MAX_LAYERS} layers", *names)
        return layers

    def quotient(self, whole: int, number: int, what: str, *names: str) -> int:
        """``whole / number``; an error about the field that says ``number`` unless that divides ``what``."""
        self.refuse(whole % number, f"expected a divisor of {what}", *names)
        return whole // number

    def kv_heads(self, heads: int, *names: str) -> int:
        """Key/value heads: one for every head where there are none; they divide the heads."""
        kv_heads = self.optional(*names) or heads
        self.quotient(heads, kv_heads, f"the {heads} attention heads", *names)
        return kv_heads

    def top_k(self, experts: int, *names: str, default: Any = _MISSING) -> int:
        """The experts that a token meets, of so many."""
        top_k = self.integer(*names, default=default)
        self.refuse(top_k > experts, f"expected at most the {experts} experts there are", *names)
        return top_k

    def choice(self, value: str, choices: Config, *names: str, unless: str = "expected") -> Any:
        """The choice that ``value``, the field's value, names."""
        self.refuse(value not in choices, f"{unless} one of {', '.join(choices)}", *names)
        return choices[value]

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self.raw(*names, default=default)
        if found := self.present.intersection(names):
            self.flags |= found
            return True
        value = bool(value) if type(value) is int and value in (0, 1) else value
        return bool(self._checked(value, bool, "expected true or false", default, *names))

    def switched_on(self, *names: str) -> str | None:
        """The last of these flags that is set."""
        on = [name for name in names if self.flag(name)]
        return on[-1] if on else None

    def text(self, *names: str, default: str = "") -> str:
        return str(self._checked(self.raw(*names, default=default), str, "expected a string", default, *names))

    def number(self, *names: str, default: float = 0.0) -> float:
        """A finite number of zero or more."""
        value = self.raw(*names, default=default)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
            raise self.error("expected a number of at least 0", *names)
        return float(value)

    def strings(self, name: str, length: int) -> list[str] | None:
        """A list of ``length`` strings, or None where absent."""
        value = self.raw(name, default=None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(isinstance(item, str) for item in value):
            raise self.error(f"expected a list of {length} strings", name)
        return value

    def integers(self, name: str) -> list[int]:
        """A list of integers of zero or more (at most a million); absent: empty."""
        value = self.raw(name, default=None) or []
        few = isinstance(value, list) and len(value) <= 1_000_000
        if not few or not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
            raise self.error("expected a list of integers", name)
        return list(value)

    def nested(self, *names: str) -> Fields:
        """The mapping under the first of ``names`` that is present."""
        value = self._checked(self.raw(*names, default={}), Mapping, "expected an object", None, *names)
        self.refuse(value is None, "expected an object", *names)
        return Fields(value, self.where, prefix=self.key_of(*names) + ".", asked=self.asked)

    def automatic(self, *names: str) -> int | None:
        """A count; None where it is absent, zero or "auto", which leaves it to another file."""
        return None if self.raw(*names, default=None) == "auto" else self.count(*names) or None

    def devices(self) -> int | None:
        """Devices that Lightning's ``devices`` and ``num_nodes`` say; None where they are no numbers."""
        each, nodes = self.raw("devices", default=None), self.raw("num_nodes", default=None) or 1
        return each * nodes if type(each) is type(nodes) is int and 0 < each * nodes < 2**20 else None

    def given(self, read: Callable[..., int | None], **names: str | tuple[str, ...]) -> Values:
        """Workload fields -> what ``read`` finds under these names, of those that the file gives."""
        spelled = {key: (name,) if isinstance(name, str) else name for key, name in names.items()}
        return {key: value for key, each in spelled.items() if (value := read(*each))}

    def _checked(self, value: Any, kind: Any, expected: str, default: Any, *names: str) -> Any:
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.error(expected, *names)
        return value


def tokenizer_size(name: str) -> int | None:
    """Tokens of the tokenizer that a type, a model's name or a file's name means; None where that is not known."""
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
