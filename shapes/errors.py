"""The one exception for input that a person can fix."""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any

#: A value from a file may be nested or long without bound; what is shown of it is not.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class InputError(ValueError):
    """A value that a person gave and can fix.

    Printed as one line, ``where: key = value: expected``; the command line turns it into exit code 2.

    >>> str(InputError("expected a positive integer", where="config.json", key="num_attention_heads", value=0))
    'config.json: num_attention_heads = 0: expected a positive integer'
    """

    def __init__(
        self, expected: str, *, where: str | None = None, key: str | None = None, value: object = None
    ) -> None:
        self.expected = expected
        self.where = where
        self.key = key
        self.value = value
        super().__init__(str(self))

    def at(self, where: str) -> InputError:
        """The same error, naming the file or object it was found in (unless it names one already)."""
        return InputError(self.expected, where=self.where or where, key=self.key, value=self.value)

    def __str__(self) -> str:
        parts = []
        if self.where is not None:
            parts.append(printable(self.where))
        if self.key is not None:
            parts.append(f"{printable(self.key)} = {shorten(self.value)}" if self.value is not None else self.key)
        parts.append(printable(self.expected))
        return ": ".join(parts)


class ManyIntegers:
    """What runs through formulas as an integer and is many: a column of `shapes.columns`, which needs numpy."""

    __slots__ = ()


#: What counts as an integer.
INTEGERS: Any = (int, ManyIntegers)


def positive_int(value: Any, key: str, *, where: str | None = None, maximum: int = 2**48) -> int:
    """``value`` if it is an integer of 1..maximum, else an InputError. Booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, INTEGERS) or not 1 <= value <= maximum:
        raise InputError(f"expected an integer between 1 and {maximum}", where=where, key=key, value=value)
    return value  # type: ignore[no-any-return]  # an integer, as far as formulas go


def printable(text: str) -> str:
    """``text`` with what is not printable written out: names come from files, and could forge lines or colour them."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def shorten(value: object, limit: int = 60) -> str:
    """``value`` as one short line that is safe to print."""
    try:
        text = printable(_SHORT.repr(value) if not isinstance(value, int) or abs(value) < 10**40 else f"{value:.3e}")
    except (OverflowError, ValueError, RecursionError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def refuse(
    wrong: object, expected: str, key: str | None = None, value: object = None, where: str | None = None
) -> None:
    """InputError where ``wrong`` holds."""
    if wrong:
        raise InputError(expected, where=where, key=key, value=value)


def one_of(name: object, known: Collection[Any], key: str) -> None:
    """InputError where ``name`` is none of the ``known``, which it lists."""
    refuse(name not in known, f"expected one of {', '.join(map(str, known))}", key, name)
