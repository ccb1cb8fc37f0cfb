"""What every answer can do besides hold its figures: print as its command does, show itself, be written as JSON."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, ClassVar

from shapes.json_form import AsJson


class Printable(AsJson):
    """An answer of a command: ``str`` is that command's text, a notebook shows it, ``to_json`` is its document.

    Renderers are found by name, as the command line finds them: answers know nothing of formats.
    """

    __slots__ = ()
    COMMAND: ClassVar[str]

    def _answer(self) -> object:
        """What the command's renderers take; the answer itself unless it is a part of one."""
        return self

    def _rendered(self, format_: str) -> str:
        return str(import_module("sizer.render").render(self.COMMAND, format_, self._answer()))

    def __str__(self) -> str:
        return self._rendered("text").rstrip("\n")

    def _repr_html_(self) -> str:
        """The page of its command without charts and scripts, as notebooks show it; its text where there is no page."""
        from html import escape  # only a notebook pays for it

        shown = import_module("sizer.render").fragment(self.COMMAND, self._answer())
        return f"<pre>{escape(str(self))}</pre>" if shown is None else str(shown)

    @property
    def ok(self) -> bool:
        """Whether its command would end with exit code 0."""
        return True

    def to_json(self) -> str:
        """The command's ``--format json``, with its schema's version."""
        document: Any = json.loads(self._rendered("json"))
        return json.dumps(document, indent=2)
