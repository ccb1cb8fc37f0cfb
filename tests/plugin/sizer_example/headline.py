"""A format: the document's title and headline in a line, for a chat message."""

from sizer.documents import Document
from sizer.render import Page


def render(document: Document, page: Page) -> str:
    return f"[{document.title}] {document.headline or 'done'}\n"
