"""No network while a configuration is read or its class built: what a configuration names is never fetched."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_HERE = threading.local()
REFUSED = "the network is not used for a configuration"


def _refusing(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        # Of this thread alone: another of the program that called us may be using the network.
        if getattr(_HERE, "offline", False):
            raise OSError(REFUSED)
        return real(*arguments, **options)

    return call


@contextmanager
def offline() -> Iterator[None]:
    """Hugging Face's libraries are told that they are offline, so that they do not try again, and sockets refuse."""
    found = [(socket, "getaddrinfo"), (socket, "create_connection"), (socket.socket, "connect")]
    kept: list[tuple[Any, str, Any]] = [(owner, name, getattr(owner, name)) for owner, name in found]
    flags = (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("transformers.utils.hub", "_is_offline_mode"))
    told = [(sys.modules[module], name) for module, name in flags if hasattr(sys.modules.get(module), name)]
    kept += [(module, name, getattr(module, name)) for module, name in told]
    before, _HERE.offline = getattr(_HERE, "offline", False), True
    try:
        for owner, name in found:
            setattr(owner, name, _refusing(getattr(owner, name)))
        for module, name in told:
            setattr(module, name, True)
        yield
    finally:
        for owner, name, value in reversed(kept):
            setattr(owner, name, value)
        _HERE.offline = before
