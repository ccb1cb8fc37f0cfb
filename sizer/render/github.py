"""GitHub's workflow commands: annotations on the key's line of a pull request."""

from __future__ import annotations

from shapes.errors import printable
from sizer.answers.diff import Diff
from sizer.checking.findings import Checked
from sizer.render.annotations import Annotation, annotate
from sizer.render.page import Page

LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def render(answer: Checked | Diff, page: Page) -> str:
    """One command a finding; a last line says how many, since GitHub shows ten of a kind and step."""
    found = list(annotate(answer))
    return "\n".join([*map(_command, found), f"sizer: {len(found)} annotation{'s' if len(found) != 1 else ''}"])


def _command(one: Annotation) -> str:
    place = (
        "" if one.place is None else f",line={one.place.line},col={one.place.column},endColumn={one.place.end_column}"
    )
    name = one.code if one.code.startswith("SZ") else "budget"
    title = f"sizer {name} {one.slug if name != 'budget' else one.code}"
    return f"::{LEVELS[one.severity]} file={_property(one.path)}{place},title={_property(title)}::{_data(one.message)}"


def _data(text: str) -> str:
    """A message; commands end with their line."""
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
