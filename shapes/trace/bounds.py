"""What a configuration may ask of a trace: transformers' classes make an object for every layer, expert and label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from shapes.errors import InputError

#: Entries of one list, layers or labels: a class of 100,000 labels takes a second and 100 MiB.
MOST_OBJECTS = 100_000
#: Modules: DeepSeek-V3 as transformers 4 has it, an expert three modules, is of 50,000.
MOST_MODULES = 100_000
_COUNTING = re.compile(r"(^|_)(n_?)?(layers?|depths?|blocks?|labels?|experts?|levels?|stages?)$")


def check_counts(config: Mapping[str, Any], where: str) -> None:
    """InputError for an integer by which a class would make more than MOST_OBJECTS objects."""
    level: list[tuple[str, Any]] = list(config.items())
    while level:
        inner: list[tuple[str, Any]] = []
        for key, value in level:
            if isinstance(value, Mapping):
                inner += value.items()
            elif isinstance(value, (list, tuple)):
                inner += [(key, one) for one in value]
            elif isinstance(value, int) and value > MOST_OBJECTS and _COUNTING.search(str(key)):
                raise InputError(f"expected at most {MOST_OBJECTS:,} to be traced", where=where, key=key, value=value)
        level = inner


@contextmanager
def bounded_modules(where: str) -> Iterator[None]:
    """InputError from the building of a model of more than MOST_MODULES modules."""
    made = count(1)

    def counted(_parent: nn.Module, _name: str, _child: nn.Module | None) -> None:
        if next(made) > MOST_MODULES:
            raise InputError(f"expected a model of at most {MOST_MODULES:,} modules to be traced", where=where)

    hook = register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()
