"""Numbers as people type them: 4k tokens, 2.7B parameters, 1e12, 800ms."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # generic from click 8.4 on

#: Counts of tokens and sequences double: 4k is 4,096. Parameters and operations are decimal: 2.7B is 2,700,000,000.
_BINARY = {"k": 2**10, "m": 2**20}
_DECIMAL = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_NUMBER = re.compile(
    r"\s*(\d[\d_,]*(?:\.\d+)?(?:e[+-]?\d{1,2})?|\.\d+(?:e[+-]?\d{1,2})?)\s*([kmbgt]?)\s*", re.IGNORECASE
)


def _split(text: str) -> tuple[str, str] | None:
    found = _NUMBER.fullmatch(text) if len(text) <= 40 else None
    return (found[1].replace("_", "").replace(",", ""), found[2].lower()) if found else None


class Count(_Type):
    """An integer; ``4k`` is 4,096 and ``1e3`` 1,000."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The integer that ``value`` says; click's usage error for anything else."""
        if isinstance(value, int):
            return value
        text = str(value)
        if re.fullmatch(r"-?\d{1,40}", text):
            return int(text)
        parts = _split(text)
        number = float(parts[0]) * _BINARY.get(parts[1], 0 if parts[1] else 1) if parts else 0.0
        if not parts or number != int(number) or (parts[1] and not number):
            self.fail(f"{text!r} is not an integer (such as 4096 or 4k).", param, ctx)
        return int(number)


class Quantity(_Type):
    """A number; ``2.7B`` is 2,700,000,000."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that ``value`` says; click's usage error for anything else."""
        if isinstance(value, (int, float)):
            return float(value)
        parts = _split(str(value))
        if parts is None:
            self.fail(f"{value!r} is not a number (such as 2.7e9 or 2.7B).", param, ctx)
        return float(parts[0]) * _DECIMAL.get(parts[1], 1)


#: Seconds of a unit that a time may be said in.
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(rf"\s*(\d+\.?\d*(?:e[+-]?\d{{1,2}})?|\.\d+)\s*({'|'.join(filter(None, _UNITS))})?\s*", re.IGNORECASE)


def seconds(text: str) -> float | None:
    """The seconds that a text says, with or without a unit; None where it is no time."""
    found = _TIME.fullmatch(text) if len(text) <= 40 else None
    return float(found[1]) * _UNITS[(found[2] or "").lower()] if found else None


class Duration(_Type):
    """A time above zero, in seconds; ``800ms`` is 0.8."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds that ``value`` says; click's usage error for anything else."""
        found = float(value) if isinstance(value, (int, float)) else seconds(str(value))
        if not found:
            self.fail(f"{value!r} is not a time above zero (such as 90, 90s, 800ms or 2min).", param, ctx)
        return found


COUNT, QUANTITY, DURATION = Count(), Quantity(), Duration()
