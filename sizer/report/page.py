"""Where a text goes: how wide it may be and how words are coloured there."""

from __future__ import annotations

from collections.abc import Callable

from shapes.frozen import frozen

#: Styles a piece of text for what it is ("error", "warning", "info", "head").
Style = Callable[[str, str], str]


def plain(text: str, style: str) -> str:
    """No colour."""
    return text


@frozen
class Page:
    """``width`` in columns; ``style`` is ``plain`` wherever there is no terminal."""

    width: int = 100
    style: Style = plain
