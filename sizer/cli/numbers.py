"""Numbers as people type them: 4k tokens, 2.7B parameters, 1e12, 800ms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # generic from click 8.4 on

#: Counts of tokens and sequences double: 4k is 4,096. Parameters and operations are decimal: 2.7B is 2,700,000,000.
_BINARY = {"": 1, "k": 2**10, "m": 2**20}
_DECIMAL = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*(\d[\d_,]*(?:\.\d*)?(?:e[+-]?\d{1,2})?|\.\d+(?:e[+-]?\d{1,2})?)\s*([a-z]*)\s*")


def _scaled(text: str, units: Mapping[str, float]) -> float | None:
    found = _NUMBER.fullmatch(text.lower()) if len(text) <= 40 else None
    return float(re.sub("[_,]", "", found[1])) * units[found[2]] if found and found[2] in units else None


def count(text: str) -> int | None:
    """The integer that a text says, ``4k`` being 4,096 and ``1e3`` 1,000; None where it is none."""
    if re.fullmatch(r"-?\d{1,40}", text):
        return int(text)
    found = _scaled(text, _BINARY)
    return None if found is None or found % 1 else int(found)


def seconds(text: str) -> float | None:
    """The seconds that a text says, with or without a unit; None where it is no time (1,5 may be two)."""
    return _scaled(text, _SECONDS) if "," not in text else None


class Number(_Type):
    """What ``read`` makes of an option's text; click's usage error where that is None."""

    def __init__(self, name: str, read: Callable[[str], float | None], expected: str) -> None:
        self.name, self.read, self.expected = name, read, expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that ``value`` says, or is."""
        found = self.read(value) if isinstance(value, str) else value
        if found is None:
            self.fail(f"{value!r} is not {self.expected}.", param, ctx)
        return found


COUNT = Number("integer", count, "an integer (such as 4096 or 4k)")
QUANTITY = Number("number", lambda text: _scaled(text, _DECIMAL), "a number (such as 2.7e9 or 2.7B)")
DURATION = Number("time", lambda text: seconds(text) or None, "a time above zero (such as 90, 90s, 800ms or 2min)")
