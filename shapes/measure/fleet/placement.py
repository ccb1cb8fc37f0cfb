"""Which accelerators are asked for and which a cluster has: `--on H100:2,A100:1`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from shapes.errors import InputError
from shapes.frozen import frozen

#: A type of accelerator as its cluster names it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
#: What devices are called whose node does not name their type.
UNNAMED = "GPU"


@frozen
class Node:
    """One node: its accelerators of ``type``, of which ``devices`` whole ones."""

    id: str
    address: str
    type: str
    devices: int


def parse_on(text: str) -> dict[str, int | None]:
    """``--on``: type -> how many devices of it (None: as many as there are).

    >>> parse_on("H100:2,A100")
    {'H100': 2, 'A100': None}
    """
    wanted: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, count = part.strip().partition(":")
        if not _NAME.fullmatch(name) or name in wanted:
            raise InputError("expected types of accelerators, each once: H100:2,A100:1", key="--on", value=text)
        if colon and not (count.isdigit() and int(count)):
            raise InputError("expected whole devices: a figure of a shared one says nothing", key="--on", value=text)
        wanted[name] = int(count) if colon else None
    return wanted


def places(wanted: Mapping[str, int | None] | None, nodes: Iterable[Node]) -> dict[str, int]:
    """Type -> devices to use, of what ``nodes`` have (``wanted`` None: all). InputError says what there is."""
    there: Counter[str] = Counter()
    for node in nodes:
        there[node.type] += node.devices
    there = +there
    listed = ", ".join(f"{name}:{count}" for name, count in sorted(there.items())) or "no accelerator"
    if not there:
        raise InputError("expected a node with accelerators: the cluster has none", key="--ray")
    if wanted is None:
        return dict(there)
    for name, count in wanted.items():
        if not there[name] or (count or 0) > there[name]:
            asked = name if count is None else f"{name}:{count}"
            raise InputError(f"expected what the cluster has: {listed}", key="--on", value=asked)
    return {name: count or there[name] for name, count in wanted.items()}
