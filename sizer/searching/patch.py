"""A search's best candidate under the keys of the file that it started from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shapes.errors import InputError
from shapes.model.resize import dimensions
from sizer.readers import Reading, read_config
from sizer.searching.ranked import SearchResult


def settings(result: SearchResult) -> dict[str, int]:
    """Key (nested ones dotted) -> value of what changes; what the file has no key for is left out. Empty: keep."""
    if result.keep:
        return {}
    change: Mapping[str, int] = result.best.change
    found = {
        result.keys.get(name, name): value for name, value in change.items() if not result.keys or name in result.keys
    }
    count = result.keys.get("shared_experts")
    if count and "shared_d_ff" in change and "shared_d_ff" not in result.keys:
        found[count] = change["shared_d_ff"] // change["expert_d_ff"]
    return found


def of_file(result: SearchResult, reading: Reading) -> SearchResult:
    """``result`` with the keys of ``reading``'s file; InputError where those cannot say what its best candidate is."""
    named = replace(result, keys=reading.keys)
    changed = settings(named)
    if not changed or not reading.config:
        return named
    model = read_config(reading.config, config_format=reading.format, settings=changed).model
    got, wanted = dimensions(model), result.best.change
    wrong = [f"{name} {value}" for name, value in wanted.items() if name in got and got[name] != value]
    if wrong:
        raise InputError(
            f"expected a file whose keys can say {', '.join(wrong)}: {', '.join(map(str, changed))} cannot",
            where=reading.source,
            key="--emit",
        )
    return named
