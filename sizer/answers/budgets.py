"""Budgets of `diff`: how much slower a step may become, and how much memory a device may need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shapes.errors import InputError
from shapes.frozen import frozen

_UNITS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
}
#: Units of a share, which is a hundredth of its percentage.
_SHARES = {"": 1, "%": 1}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?) ?([a-z]*|%)", re.IGNORECASE)

#: What [tool.sizer.budgets] may hold.
BUDGET_KEYS = ("max-step-regression", "max-memory")


@frozen
class Violation:
    """A budget that a version breaks. ``within_error``: by less than the prediction itself may be off."""

    path: str
    device: str
    budget: str
    message: str
    within_error: bool = False


@frozen
class DiffBudgets:
    """``max_step_regression``: relative. ``max_memory_bytes``: of one device; ``max_memory_share``: of what it has."""

    max_step_regression: float | None = None
    max_memory_bytes: float | None = None
    max_memory_share: float | None = None

    def of_step(self, path: str, device: str, ratio: float, error: float) -> Iterator[Violation]:
        limit = self.max_step_regression
        if limit is not None and ratio - 1 > limit:
            within = ratio - 1 <= error
            text = f"{ratio - 1:+.1%} time a token on {device}, at most {limit:+.1%} allowed"
            yield Violation(
                path,
                device,
                "max-step-regression",
                text + (f" (within the error of {error:.1%})" if within else ""),
                within,
            )

    def of_memory(self, path: str, device: str, needed: int, held: int) -> Iterator[Violation]:
        shares = (self.max_memory_share * held,) if self.max_memory_share is not None else ()
        limits = (*shares, *((self.max_memory_bytes,) if self.max_memory_bytes is not None else ()))
        if limits and needed > min(limits):
            text = f"{needed / 2**30:.1f} GiB a device on {device}, at most {min(limits) / 2**30:.1f} GiB allowed"
            yield Violation(path, device, "max-memory", text)


def budgets_of(
    table: Mapping[str, Any], *, max_step_regression: str | None = None, max_memory: str | None = None, where: str = ""
) -> DiffBudgets:
    """The options' texts over those of a [tool.sizer.budgets] ``table`` of the file ``where``."""
    for key in table:
        if key not in BUDGET_KEYS:
            expected = f"expected {' or '.join(BUDGET_KEYS)}"
            raise InputError(expected, where=where, key=f"tool.sizer.budgets.{key}", value=table[key])

    def limit(key: str, option: str | None, units: Mapping[str, float], expected: str) -> tuple[float | None, str]:
        """The number that was given, times its unit, and that unit."""
        given = table.get(key) if option is None else option
        if given is None:
            return None, ""
        found = _SIZE.fullmatch(str(given).strip())
        if found is None or found[2].lower() not in units or isinstance(given, bool):
            named = {"where": where, "key": f"tool.sizer.budgets.{key}"} if option is None else {"key": f"--{key}"}
            raise InputError(f"expected {expected}", value=given, **named)
        unit = found[2].lower()
        number = float(found[1])
        return number / 100 if unit == "%" else number * units[unit], unit

    slower, _ = limit("max-step-regression", max_step_regression, _SHARES, "a percentage, such as 1%")
    expected = "bytes, such as 72GiB, or a share of the device's, such as 90%"
    size, unit = limit("max-memory", max_memory, _UNITS | _SHARES | {"": 1}, expected)
    return DiffBudgets(slower, max_memory_share=size) if unit == "%" else DiffBudgets(slower, max_memory_bytes=size)
