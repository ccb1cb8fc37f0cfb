"""A configuration is data: whatever it names, nothing is fetched and the network is not touched."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from shapes.errors import InputError

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")

NAMES = {"backbone": "microsoft/resnet-50", "use_pretrained_backbone": True, "backbone_config": None}
FETCHING: list[dict[str, Any]] = [
    {"model_type": kind, **NAMES, **more}
    for kind in ("maskformer", "mask2former", "oneformer", "detr", "upernet", "dpt", "rt_detr", "vitmatte")
    for more in ({}, {"use_timm_backbone": True})
]


@pytest.mark.parametrize("config", FETCHING, ids=lambda one: f"{one['model_type']}-{'use_timm_backbone' in one}")
def test_a_configuration_that_names_a_backbone_does_not_reach_the_network(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    from shapes.trace.config import load_config

    asked: list[object] = []
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *arguments, **_: asked.append(arguments))
    with suppress(InputError):
        load_config(config)
    assert asked == []


def test_a_backbone_that_would_be_fetched_is_named() -> None:
    from shapes.trace.config import load_config

    with pytest.raises(InputError, match=r"backbone = 'a/b': expected backbone_config") as refused:
        load_config({"model_type": "maskformer", "backbone": "a/b", "use_pretrained_backbone": True})
    assert "\n" not in str(refused.value)


def test_other_threads_keep_their_network_and_everything_is_put_back() -> None:
    from huggingface_hub import constants

    from shapes.trace.guards import REFUSED, offline

    before = (socket.getaddrinfo, socket.create_connection, socket.socket.connect, constants.HF_HUB_OFFLINE)
    found: list[object] = []
    with offline():
        assert constants.HF_HUB_OFFLINE
        with pytest.raises(OSError, match=REFUSED):
            socket.getaddrinfo("localhost", 80)
        other = threading.Thread(target=lambda: found.append(socket.getaddrinfo("127.0.0.1", 80)))
        other.start()
        other.join()
        with offline():
            pass
        with pytest.raises(OSError, match=REFUSED):
            socket.create_connection(("127.0.0.1", 9))
    assert found
    assert (socket.getaddrinfo, socket.create_connection, socket.socket.connect, constants.HF_HUB_OFFLINE) == before
