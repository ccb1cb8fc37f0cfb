"""The registry of output formats: command -> name -> the module of this package that renders it.

A renderer is one module with ``render(answer, page) -> str`` (bytes for a binary format), ``answer`` being what the
command's library function returns; html's has ``document(answer)``, which is the page and what ``--plot`` draws.
Adding a format is its file here and its line in ``FORMATS``: ``--format`` offers
what the registry holds, its first name being the default, and a test fails for a renderer that is not in it. A module
is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shapes.errors import InputError
from sizer.render.page import Page

if TYPE_CHECKING:
    from sizer.documents.document import Document

Renderer = Callable[[Any, Page], "str | bytes"]

#: A command, or a command and the option or subcommand that asks for another view -> format -> module.
FORMATS: dict[str, dict[str, str]] = {
    "check": {
        "text": "check_text",
        "json": "json_document",
        "csv": "check_csv",
        "markdown": "check_markdown",
        "sarif": "sarif",
        "github": "github",
        "junit": "junit",
        "badge": "badge",
        "html": "check",
    },
    "check --statistics": {"text": "statistics_text"},
    "diff": {
        "text": "diff_text",
        "json": "json_document",
        "csv": "diff_csv",
        "markdown": "diff_markdown",
        "sarif": "sarif",
        "github": "github",
        "junit": "junit",
        "html": "diff",
    },
    "ops": {"text": "ops_text", "json": "json_document", "html": "ops"},
    "ops --explain": {"text": "explain_text"},
    "search": {"text": "search_text", "json": "json_document", "csv": "search_csv", "html": "search"},
    "search --emit": {"json": "search_patch"},
    "memory": {"text": "memory_text", "json": "json_document", "html": "memory"},
    "mfu": {"text": "mfu_text", "json": "json_document"},
    "plan": {"text": "plan_text", "json": "json_document", "html": "plan"},
    "deploy": {"text": "deploy_text", "json": "json_document"},
    "bench": {
        "text": "bench_text",
        "json": "measurements_json",
        "jsonl": "measurements_jsonl",
        "csv": "measurements_csv",
        "html": "bench",
    },
    "bench --dry-run": {"text": "planned_text"},
    "calibrate": {"text": "calibrate_text"},
    "store list": {"text": "store_text"},
    "store export": {
        "jsonl": "measurements_jsonl",
        "json": "measurements_json",
        "csv": "measurements_csv",
        "parquet": "measurements_parquet",
    },
    "store compare": {"text": "datasets_text", "json": "json_document"},
    "devices": {"text": "devices_text", "json": "json_document"},
    "rules": {"text": "rules_text", "markdown": "rules_markdown", "json": "rules_json"},
    "explain": {"markdown": "rules_markdown"},
}


def formats(command: str) -> tuple[str, ...]:
    """The names that ``--format`` of ``command`` takes, the default first."""
    return tuple(FORMATS[command])


def render(command: str, format_: str | None, answer: object, page: Page | None = None) -> str | bytes:
    """``answer`` of ``command`` in a format (None: the default). InputError names the known ones for any other."""
    known = FORMATS[command]
    name = format_ if format_ is not None else formats(command)[0]
    if name not in known:
        raise InputError(f"expected one of {', '.join(known)}", key="format", value=name)
    if name == "html":
        from sizer.render.html_page import page as html

        return html(_document(command, answer))
    module = import_module(f"sizer.render.{known[name]}")
    renderer: Renderer = module.render
    return renderer(answer, page or Page())


def fragment(command: str, answer: object) -> str | None:
    """``answer`` as HTML inside somebody else's page; None where the command has no page."""
    if not drawn(command):
        return None
    from sizer.render.html_page import fragment as html

    return html(_document(command, answer))


def _document(command: str, answer: object) -> Document:
    found: Document = import_module(f"sizer.documents.{FORMATS[command]['html']}").document(answer)
    return found


def drawn(command: str) -> bool:
    """Whether the answer of ``command`` has charts: a page and a picture are made of the same."""
    return "html" in FORMATS[command]


def draw(command: str, answer: object, path: str) -> str:
    """The charts of ``answer`` as a picture at ``path``; a line that says what was written."""
    from sizer.render.picture import save

    number = save(_document(command, answer), path)
    return f"{path}: {number} chart{'s' if number != 1 else ''}"
