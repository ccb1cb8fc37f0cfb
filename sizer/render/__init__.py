"""The registry of outputs: command -> what makes its document, and the formats that show it.

A document is made once (``sizer.documents``); a format is the module of this package that has its name, with
``render(document, page)``. ``--format`` offers what the registry holds, the
first being the default. Modules are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from shapes.errors import one_of, printable
from shapes.frozen import Names, frozen
from shapes.program import added, named_function
from shapes.toml_table import table_of

if TYPE_CHECKING:
    from sizer.documents import Document


@frozen
class Page:
    """Where text is shown: ``width`` in columns; ``coloured``: a terminal with colours.

    ``terminal``: a person reads it, so that findings are shown with the lines of the file. Characters that its
    ``encoding`` does not have are written out before anything is measured.
    """

    width: int = 100
    terminal: bool = False
    coloured: bool = False
    encoding: str = "utf-8"

    def shown(self, text: str) -> str:
        """``text`` as it can be written."""
        return printable(text).encode(self.encoding, "backslashreplace").decode(self.encoding)


#: A command, or a command and the option or subcommand that asks for another view -> function of sizer.documents, and
#: the formats that show it, the default first.
COMMANDS: dict[str, tuple[str, str]] = table_of(__file__, "formats.json")


def formats(command: str) -> Names:
    """The names that ``--format`` of ``command`` takes, the default first."""
    return *COMMANDS[command][1].split(), *added("sizer.formats", "render")


def document_of(command: str, answer: object) -> "Document":
    """The document of ``command`` for its answer, for every format."""
    found: Document = named_function(f"sizer.documents.{COMMANDS[command][0]}")(answer)
    return found


def render(command: str, format_: str | None, answer: object, page: Page | None = None) -> str:
    """``answer`` of ``command`` in a format (None: the default). InputError names the known ones for any other."""
    known = formats(command)
    name = one_of(format_ if format_ is not None else known[0], known, "format")
    renderer = added("sizer.formats", "render").get(name) or import_module(f"sizer.render.{name}")
    return str(renderer.render(document_of(command, answer), page or Page()))


def fragment(command: str, answer: object) -> str:
    """``answer`` as HTML inside somebody else's page."""
    return str(import_module("sizer.render.html").fragment(document_of(command, answer)))
