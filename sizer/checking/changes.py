"""A suggestion's change applied: the subject that it would make, and the change under the person's own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shapes.errors import InputError
from shapes.model.resize import DIMENSIONS, dimensions, resize
from shapes.operators import split_problems
from shapes.workload import Workload
from sizer.subject import Subject, resized_subject


def of_dimensions(change: Mapping[str, int | str]) -> bool:
    """Whether a change is of the model's dimensions alone, and not of its workload."""
    return set(change) <= set(DIMENSIONS)


def changed_subject(subject: Subject, change: Mapping[str, int | str]) -> Subject:
    """``subject`` with dimensions and workload fields changed; InputError where that is no model or cannot be split."""
    if subject.model is None:
        if subject.retrace is None:
            raise InputError("a module's dimensions are its own code's", where=subject.where)
        return subject.retrace(change)
    dims = {key: value for key, value in change.items() if key in DIMENSIONS}
    asked: dict[str, Any] = {key: value for key, value in change.items() if key not in DIMENSIONS}
    model = resize(subject.model, **dims) if dims else subject.model  # type: ignore[arg-type]
    workload: Workload = replace(subject.asked or subject.workload, **asked)
    changed = resized_subject(subject, model, workload)
    if subject.asked is None:
        return changed
    # What is judged is the split that the change asks for, not the one that it replaces.
    return replace(changed, asked=workload if split_problems(model, workload) else None)


def named_change(change: Mapping[str, int | str], before: Subject, after: Subject) -> dict[str, int | str]:
    """The change under the names of the person's file, with the dimensions that follow and have a key there."""
    full = dict(change)
    if before.model is not None and after.model is not None:
        old, new = dimensions(before.model), dimensions(after.model)
        full |= {key: value for key, value in new.items() if value != old.get(key)}
    keys = before.reading.keys if before.reading is not None else {}
    return {before.name_of(key): value for key, value in full.items() if key in change or not keys or key in keys}
