"""GitHub's workflow commands: annotations on the key's line of a pull request."""

from pathlib import Path

from shapes.errors import printable
from sizer.answers.diff import BUDGETS
from sizer.documents import Document, plural

from .findings import Annotation, annotate, reviewed


def render(document: Document, page: object) -> str:
    """One command a finding; a last line says how many, since GitHub shows ten of a kind and step."""
    found = list(annotate(reviewed(document)))
    return "\n".join([*map(_command, found), f"sizer: {plural(len(found), 'annotation')}"])


def _command(one: Annotation) -> str:
    place = one.place
    where = f",line={place.line},col={place.column},endColumn={place.end_column}" if place else ""
    title = f"sizer budget {one.code}" if one.code in BUDGETS else f"sizer {one.code} {one.slug}"
    level = one.severity if one.severity != "info" else "notice"
    return (
        f"::{level} file={_property(Path(one.path).as_posix())}{where},title={_property(title)}::{_data(one.message)}"
    )


def _data(text: str) -> str:
    """A message; commands end with their line."""
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
