"""Where a text goes: how wide it may be and how words are coloured there."""

from __future__ import annotations

from collections.abc import Callable

from shapes.frozen import frozen

#: Styles a piece of text for what it is ("error", "warning", "info", "head").
Style = Callable[[str, str], str]
#: Makes a text lead to an address, where the terminal knows how.
Link = Callable[[str, Callable[[], "str | None"]], str]


def plain(text: str, style: str) -> str:
    """No colour."""
    return text


def unlinked(text: str, address: Callable[[], str | None]) -> str:
    """The text alone; nobody looks for the address."""
    return text


@frozen
class Page:
    """``width`` in columns; ``style`` is ``plain`` and ``link`` leaves texts alone wherever there is no terminal.

    ``terminal``: somebody looks at it as it comes, so what is in the files is shown beside what is said of them.
    """

    width: int = 100
    style: Style = plain
    link: Link = unlinked
    terminal: bool = False
