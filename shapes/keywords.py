"""Keywords of `sizer.check` and the like: the fields of ``Workload`` under both their names, typed (keywords.pyi)."""

from typing import TypedDict, get_type_hints

from .workload import WORDS, Workload

_FIELDS = get_type_hints(Workload)
WorkloadKeywords = TypedDict(  # type: ignore[misc] # type checkers read the stub
    "WorkloadKeywords", _FIELDS | {word: _FIELDS[field] for field, word in WORDS.items()}, total=False
)
