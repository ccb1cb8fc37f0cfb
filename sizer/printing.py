"""Base of every answer: it prints as its command does, shows itself in notebooks, and becomes JSON."""

from importlib import import_module
from io import StringIO
from typing import Any, ClassVar

from shapes.errors import InputError
from shapes.frozen import AsJson


class Printable(AsJson):
    """An answer of a command: ``str`` is that command's text, a notebook shows it, ``to_json`` is its document.

    Answers know nothing of formats: ``sizer.render``, found by its name when one is asked for, says how they are shown.
    """

    __slots__ = ()
    COMMAND: ClassVar[str]

    def _answer(self) -> object:
        """The object that the command's document shows; the answer itself unless it is a part of one."""
        return self

    def _shown(self, format_: str) -> str:
        return str(import_module("sizer.render").render(self.COMMAND, format_, self._answer())).rstrip("\n")

    def __str__(self) -> str:
        return self._shown("text")

    def to_frame(self) -> Any:
        """The rows of its command's CSV as a pandas DataFrame (needs pandas)."""
        try:
            from pandas import read_csv
        except ImportError:
            raise InputError("to_frame() needs pandas: pip install pandas") from None
        return read_csv(StringIO(self._shown("csv")))

    def _repr_html_(self) -> str:
        """The page of its command without scripts, as notebooks show it; charts as pictures (extra ``html``)."""
        return str(import_module("sizer.render").fragment(self.COMMAND, self._answer()))

    @property
    def ok(self) -> bool:
        """Whether its command would end with exit code 0."""
        return True

    def to_json(self) -> str:
        """The command's ``--format json``, with its schema's version."""
        return self._shown("json")
