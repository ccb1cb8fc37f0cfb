"""What a process of our own loads of torch and transformers: no compiler, distribution or loss, which no trace runs.

They are a third of the time in which a class is recognised.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from os import listdir
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import transformers

from shapes.frozen import Function, Named


@contextmanager
def lightly() -> Iterator[None]:
    """Little is loaded as long as it lasts: for a process in which nothing else uses torch or transformers."""
    names = _NAMES.keys() - sys.modules
    for name in names:
        vars(sys.modules.setdefault(name, _Light(name))).update(_NAMES[name])
    try:
        with patch.object(torch.distributed, "is_available", lambda: False):
            yield
    finally:
        _leave(names)


class _Light(ModuleType):
    """In place of a module until more of it is asked for: then it is the module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _leave(_NAMES)
        return getattr(import_module(self.__name__), name)


def _leave(names: Iterable[str]) -> None:
    for name in names:
        if isinstance(sys.modules.get(name), _Light):
            del sys.modules[name]


def _as_it_is(function: Function | None = None, *_given: object, **_options: object) -> Function:
    """A decorator that speaks to a compiler alone, with options or without."""
    return function or _as_it_is


_INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"
#: Modules, with those of their names that transformers asks for while it is loaded, and torch on the meta device.
_NAMES: dict[str, Named] = {
    # Of the whole package it lists what every file of every model has.
    "transformers.models": {"__path__": [f"{transformers.__path__[0]}/models"]},
    "transformers.loss.loss_utils": {"LOSS_MAPPING": {}},
    # Whoever imports a part of a package by its own name (torchvision does) is not to find that there is no package.
    **{f"torch._dynamo.{part[:-3]}": {} for part in listdir(f"{torch.__path__[0]}/_dynamo")},
    "torch._dynamo": dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), _as_it_is),
    _INDEXING: {"TransformGetItemToIndex": lambda: _Light(_INDEXING).TransformGetItemToIndex()},
}
