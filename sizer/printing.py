"""What every answer can do besides hold its figures: print as its command does, show itself, be written as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from shapes.json_form import AsJson


class Printable(AsJson):
    """An answer of a command: ``str`` is that command's text, a notebook shows it, ``to_json`` is its document.

    Answers know nothing of formats: ``sizer.render`` says how they are shown, which the front doors load with them.
    """

    __slots__ = ()
    COMMAND: ClassVar[str]
    _render: ClassVar[Callable[..., str] | None] = None
    _fragment: ClassVar[Callable[..., str] | None] = None

    @staticmethod
    def show_by(render: Callable[..., str], fragment: Callable[..., str]) -> None:
        """``render(command, format, answer)``, and ``fragment(command, answer)``: HTML inside another page."""
        Printable._render, Printable._fragment = render, fragment

    def _answer(self) -> object:
        """What the command's document is of; the answer itself unless it is a part of one."""
        return self

    def __str__(self) -> str:
        render = Printable._render
        return str(render(self.COMMAND, "text", self._answer())).rstrip("\n") if render is not None else repr(self)

    def _repr_html_(self) -> str | None:
        """The page of its command without charts and scripts, as notebooks show it."""
        fragment = Printable._fragment
        return fragment(self.COMMAND, self._answer()) if fragment is not None else None

    @property
    def ok(self) -> bool:
        """Whether its command would end with exit code 0."""
        return True

    def to_json(self) -> str:
        """The command's ``--format json``, with its schema's version."""
        render = Printable._render
        if render is None:
            raise RuntimeError("import sizer.render first: it says how answers are written")
        return str(render(self.COMMAND, "json", self._answer())).rstrip("\n")
