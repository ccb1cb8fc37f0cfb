"""Budgets of `diff`: how much slower a step may become, and how much memory a device may need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shapes.errors import InputError
from shapes.frozen import frozen

_UNITS = {
    "": 1,
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
class Budgets:
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
) -> Budgets:
    """The options' texts over those of a [tool.sizer.budgets] ``table`` of the file ``where``."""
    for key in table:
        if key not in BUDGET_KEYS:
            raise InputError(
                f"expected {' or '.join(BUDGET_KEYS)}", where=where, key=f"tool.sizer.budgets.{key}", value=table[key]
            )
    step, step_from = _first("max-step-regression", max_step_regression, table, where)
    size, size_from = _first("max-memory", max_memory, table, where)
    regression = None if step is None else _share(step, step_from)
    if size is None:
        return Budgets(regression)
    if str(size).strip().endswith("%"):
        return Budgets(regression, max_memory_share=_share(size, size_from))
    return Budgets(regression, max_memory_bytes=_bytes(size, size_from))


def _first(key: str, option: str | None, table: Mapping[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
    if option is not None:
        return option, {"key": f"--{key}", "value": option}
    return table.get(key), {"where": where, "key": f"tool.sizer.budgets.{key}", "value": table.get(key)}


def _share(text: object, named: dict[str, Any]) -> float:
    found = _SIZE.fullmatch(str(text).strip())
    if found is None or found[2] not in ("", "%") or isinstance(text, bool):
        raise InputError("expected a percentage, such as 1%", **named)
    return float(found[1]) / (100 if found[2] else 1)


def _bytes(text: object, named: dict[str, Any]) -> float:
    found = _SIZE.fullmatch(str(text).strip())
    if found is None or found[2].lower() not in _UNITS or isinstance(text, bool):
        raise InputError("expected bytes, such as 72GiB, or a share of the device's, such as 90%", **named)
    return float(found[1]) * _UNITS[found[2].lower()]
