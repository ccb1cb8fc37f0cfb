"""What every answer can do with its figures: print as its command does, show itself, be written as JSON."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any, ClassVar

from shapes.frozen import AsJson


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

    def to_frame(self) -> Any:
        """The rows of its command's CSV as a pandas DataFrame (needs pandas)."""
        from pandas import read_csv

        return read_csv(StringIO(Printable._render(self.COMMAND, "csv", self._answer())))  # type: ignore[misc]

    def _repr_html_(self) -> str | None:
        """The page of its command without scripts, as notebooks show it; charts as pictures (extra ``html``)."""
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
