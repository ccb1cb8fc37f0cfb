"""Which tests run when: the fast loop, every run, and the exhaustive one at night (CONTRIBUTING.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def every_run(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """A test's parameters, of which only ``kept`` run every time: the others are further draws of the same oracle.

    A case is kept if it is in ``kept``, or its first value is.
    """
    found: list[Any] = []
    used: set[int] = set()
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        names = [name for name in kept if name in (case, values[0])]
        used.update(map(kept.index, names))
        found.append(pytest.param(*values, marks=() if names else pytest.mark.exhaustive))
    assert len(used) == len(kept), "expected cases of this test"
    return found


def draws(many: int) -> settings:
    """Hypothesis draws ``many`` examples at night, where SIZER_SEED is set, and a third of them in every run.

    Of tests whose examples take long: each run has others, so that a third is no fixed part.
    """
    return settings(max_examples=many if "SIZER_SEED" in os.environ else -(-many // 3))
