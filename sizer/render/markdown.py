"""GitHub's Markdown, for a comment on a pull request: texts from files made safe, details folded away."""

import re
from html import escape

from shapes.errors import printable
from sizer.documents import Document, Findings, Part, Section, Table, Text, change_text, cost_text, numeric, saved_text

from .findings import rule_url

#: Characters with a meaning inside a line of Markdown or HTML.
_SPECIAL = re.compile(r"([\\`*_{}\[\]#!|~$])")
#: Findings of a configuration that are listed, and suggestions of each.
FINDINGS, SUGGESTIONS = 12, 2


def render(document: Document, page: object) -> str:
    """The mark is how a comment is found again, so that it is updated and not repeated."""
    lines = []
    if document.title:
        command = " ".join(document.title.replace(":", " ").split()[:2])
        head = f"sizer: {document.headline}" if document.headline else document.title
        lines = [f"<!-- {command} -->", f"### {inline(head)}"]
    for section in document.seen("markdown"):
        lines += _section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def inline(text: object) -> str:
    """``text`` for a line or a table's cell: no markup, no HTML, no mention, no line break."""
    escaped = escape(_SPECIAL.sub(r"\\\1", printable(str(text))), quote=False)
    # A mention or a reference to an issue needs its sign and a word: an empty comment between them ends both.
    return escaped.replace("@", "@<!-- -->").replace("://", ":<!-- -->//")


def code(text: object) -> str:
    """``text`` as code, in a fence longer than any run of backquotes in it."""
    shown = printable(str(text)).replace("|", "\\|")
    fence = "`"
    while fence in shown:
        fence += "`"
    padding = " " if shown.startswith("`") or shown.endswith("`") or not shown.strip() else ""
    return f"{fence}{padding}{shown}{padding}{fence}"


def _section(section: Section) -> list[str]:
    lines = [line for part in section.seen("markdown") for line in _part(part)]
    if not section.folded:
        return [*([f"#### {inline(section.title)}", ""] if section.title else []), *lines]
    # Inside a tag of HTML Markdown's own escapes would be shown.
    summary = escape(printable(section.folded)).replace("@", "@<!-- -->")
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "</details>", ""]


def _part(part: Part) -> list[str]:
    match part:
        case Text(style="page"):
            return [str(part)]
        case Text():
            return [f"- {inline(part)}"] if part.indent else [inline(part), ""]
        case Table():
            return _table(part)
        case Findings():
            return [*([f"{inline(part.caption)}:", ""] if part.caption else []), *findings_markdown(part), ""]
    return []


def _table(table: Table) -> list[str]:
    columns, rows = table.seen("markdown")
    if not rows:
        return []
    cells = [
        [
            code(cell.shown) if column.style == "code" else inline(cell.shown)
            for column, cell in zip(columns, row, strict=True)
        ]
        for row in rows
    ]
    rule = ["---:" if one else "---" for one in numeric(rows)]
    return [
        "",
        *([f"{inline(table.caption)}:", ""] if table.caption else []),
        *(f"| {' | '.join(row)} |" for row in ([inline(one.name) for one in columns], rule, *cells)),
        *filter(None, [table.left]),
        "",
    ]


def findings_markdown(part: Findings) -> list[str]:
    """An item a finding, its code linked to the rule's page where that has an address, its first suggestions below."""
    lines = []
    label = f"{part.label}: " if part.label else ""
    for finding in part.findings[:FINDINGS]:
        cost, url = cost_text(finding, part.step_s), rule_url(finding.code)
        name = f"[{finding.code}]({url})" if url else f"{finding.code} {finding.slug}"
        said = f"{code(f'{finding.field} = {finding.value}')}: {inline(finding.message)}{f', {cost}' if cost else ''}"
        lines.append(f"- {label}{finding.severity} {name} {said}")
        lines += [
            f"  - {code(change_text(one, '{} = {}'))}: {saved_text(one)}" for one in finding.suggestions[:SUGGESTIONS]
        ]
    left = len(part.findings) - FINDINGS
    return [*lines, *([f"- … {left} more"] if left > 0 else [])]
