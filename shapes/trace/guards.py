"""Limits on a configuration: it gets neither more objects than can be made nor the network."""

import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from torch.nn.modules.module import register_module_module_registration_hook

from shapes.errors import InputError
from shapes.frozen import Function, Named

#: Entries of one list, layers or labels: a class of 100,000 labels takes a second and 100 MiB.
MOST_OBJECTS = 100_000
#: The most modules: DeepSeek-V3 in transformers 4, with three modules an expert, has 50,000.
MOST_MODULES = 100_000
_COUNTING = re.compile(r"(^|_)(n_?)?(layers?|depths?|blocks?|labels?|experts?|levels?|stages?)$")


def check_counts(config: Named, where: str) -> None:
    """InputError for an integer by which a class would make more than MOST_OBJECTS objects."""
    level = [*config.items()]
    for key, value in level:  # which grows by what is inside
        if isinstance(value, Mapping):
            level += value.items()
        elif isinstance(value, list | tuple):
            level += [(key, one) for one in value]
        elif isinstance(value, int) and value > MOST_OBJECTS and _COUNTING.search(str(key)):
            raise InputError(f"expected at most {MOST_OBJECTS:,} to be traced", key, value, where)


@contextmanager
def bounded_modules(where: str) -> Iterator[None]:
    """InputError from the building of a model of more than MOST_MODULES modules."""
    made = count(1)

    def counted(*_child: object) -> None:
        if next(made) > MOST_MODULES:
            raise InputError(f"expected a model of at most {MOST_MODULES:,} modules to be traced", where=where)

    hook = register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()


class TooLong(InputError):  # noqa: N818 # named for what it is
    """A module runs too many operators in one pass: it loops over tokens in Python."""


#: Operators of one module in one pass. A loop over 256 experts runs some 4,000, one over 768 tokens 10,000 or more.
MOST_OPERATORS = 6_000


@contextmanager
def bounded_operators() -> Iterator[None]:
    """TooLong from a pass in which one module runs more than MOST_OPERATORS operators."""
    _HERE.bounded = True
    try:
        yield
    finally:
        _HERE.bounded = False


def count_operator(ran: Counter[str], module: str) -> None:
    """Notes in ``ran`` that ``module`` ran an operator."""
    ran[module] += 1
    # The backward pass is in no module.
    if module and ran[module] > MOST_OPERATORS and getattr(_HERE, "bounded", False):
        raise TooLong(f"{module} runs more than {MOST_OPERATORS:,} operators: it loops over tokens in Python")


_HERE = threading.local()
REFUSED = "the network is not used for a configuration"


def _refusing(real: Function) -> Function:
    def call(*arguments: Any, **options: Any) -> Any:
        # In this thread alone: another one of the calling program may be using the network.
        if getattr(_HERE, "offline", False):
            raise OSError(REFUSED)
        return real(*arguments, **options)

    return call


@contextmanager
def offline() -> Iterator[None]:
    """Hugging Face's libraries are told that they are offline, so that they do not try again, and sockets refuse."""
    calls: list[tuple[Any, str]] = [(socket, "getaddrinfo"), (socket, "create_connection"), (socket.socket, "connect")]
    flags = ("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("transformers.utils.hub", "_is_offline_mode")
    instead: list[tuple[Any, str, Any]] = [(owner, name, _refusing(getattr(owner, name))) for owner, name in calls]
    instead += [(sys.modules[module], name, True) for module, name in flags if hasattr(sys.modules.get(module), name)]
    before, _HERE.offline = getattr(_HERE, "offline", False), True
    try:
        with ExitStack() as patches:
            for one in instead:
                patches.enter_context(patch.object(*one))
            yield
    finally:
        _HERE.offline = before
