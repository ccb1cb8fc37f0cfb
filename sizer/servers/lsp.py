"""`sizer lsp`: a configuration's findings in the editor, and on a key its price and its neighbours.

Diagnostics are `sizer check`'s findings with the project's defaults, at their keys, for the text as it stands in the
editor. A file that is no model configuration gets none, nor does one that nobody but a trace could read.
"""

from __future__ import annotations

import asyncio

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from shapes.errors import InputError
from shapes.frozen import frozen
from sizer.answers.neighbours import neighbours
from sizer.checking.checks import Request, report_of
from sizer.checking.findings import PricedFinding, Report, Severity
from sizer.checking.proposals import Proposals
from sizer.documents.check import place_of
from sizer.documents.units import percent_text, seconds_text, suggestion_text
from sizer.readers import NoModel, Source, UnknownModelType, read_config
from sizer.readers.locate import Place, key_at, locate
from sizer.render.findings import rule_url
from sizer.render.markdown import code, finding_markdown, inline

#: Seconds without a keystroke before a text is checked again.
QUIET_S = 0.3

_SEVERITIES: dict[Severity, types.DiagnosticSeverity] = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}


@frozen
class Checked:
    """A text's report with the proposals it came from, or the error in its place; neither: it is no configuration."""

    report: Report | None = None
    proposals: Proposals | None = None
    error: InputError | None = None


def check_text(text: str, path: str) -> Checked:
    """The text of the file ``path`` checked as its project says."""
    try:
        settled = Request().settle(path, read_config(Source(path, text=text)))
    except (NoModel, UnknownModelType):
        return Checked()
    except InputError as error:
        # Half-typed brackets are the business of the language's own server; a key's value is ours.
        return Checked(error=error) if error.key else Checked()
    try:
        proposals = settled.propose()
        return Checked(report_of(proposals), proposals)
    except InputError as error:
        return Checked(error=error)


def diagnostics(checked: Checked, text: str, path: str) -> list[types.Diagnostic]:
    """A diagnostic for each finding at its key, else at the first line; for a refused value at that."""
    if checked.error is not None:
        place = locate(text, checked.error.key, path) if checked.error.key else None
        message = str(checked.error)
        return [types.Diagnostic(_range(place), message, types.DiagnosticSeverity.Error, source="sizer")]
    if checked.report is None:
        return []
    step_s = checked.report.step.seconds
    found = []
    for finding in checked.report.findings:
        url = rule_url(finding.code)
        found.append(
            types.Diagnostic(
                _range(place_of(finding, path, text)),
                _message(finding, step_s),
                _SEVERITIES[finding.severity],
                code=", ".join(finding.codes or (finding.code,)),
                code_description=types.CodeDescription(url) if url else None,
                source="sizer",
            )
        )
    return found


def hover(checked: Checked, text: str, path: str, line: int, column: int) -> tuple[str, Place] | None:
    """Markdown on the key at a line and column (from one): its findings, its neighbours priced, the step."""
    key = key_at(text, line, column, path)
    if key is None or checked.report is None or checked.proposals is None:
        return None
    report, step_s = checked.report, checked.report.step.seconds
    about = [one for one in report.findings if _names(key, one.field) or any(_names(key, k) for k in _changed(one))]
    lines = [part for finding in about for part in _about(finding, step_s)]
    subject = checked.proposals.subject
    dimension = next((name for name in subject.dimensions if _names(key, subject.name_of(name))), None)
    if dimension is not None:
        beside = neighbours(checked.proposals, dimension)
        lines += [f"Beside {code(f'{key} = {subject.dimensions[dimension]}')} on {report.device}:", ""]
        lines += [f"- {inline(suggestion_text(one, step_s))}" for one in beside] or ["- no neighbour makes a model"]
        lines.append("")
    place = locate(text, key, path)
    if not lines or place is None:
        return None
    low, high = seconds_text(report.step.low), seconds_text(report.step.high)
    return "\n".join([*lines, f"A step takes {seconds_text(step_s)} ({low} to {high})"]), place


def _about(finding: PricedFinding, step_s: float) -> list[str]:
    lines = [f"**{finding_markdown(finding)}**" + (f", {_cost(finding, step_s)}" if finding.step_seconds > 0 else "")]
    return [*lines, "", *(f"- {inline(suggestion_text(one, step_s))}" for one in finding.suggestions), ""]


def _message(finding: PricedFinding, step_s: float) -> str:
    lines = [finding.message + (f" ({_cost(finding, step_s)})" if finding.step_seconds > 0 else "")]
    return "\n".join([*lines, *(f"-> {suggestion_text(one, step_s)}" for one in finding.suggestions)])


def _cost(finding: PricedFinding, step_s: float) -> str:
    return f"costs {seconds_text(finding.step_seconds)} a step, {percent_text(finding.step_seconds / step_s)}"


def _changed(finding: PricedFinding) -> set[str]:
    return {key for suggestion in finding.suggestions for key in suggestion.change}


def _names(key: str, field: str) -> bool:
    return key == field or key.rpartition(".")[2] == field.rpartition(".")[2]


def _range(place: Place | None) -> types.Range:
    """In characters from zero; the whole first line where no key is to blame."""
    if place is None:
        return types.Range(types.Position(0, 0), types.Position(1, 0))
    return types.Range(
        types.Position(place.line - 1, place.column - 1), types.Position(place.line - 1, place.end_column - 1)
    )


class _Server(LanguageServer):
    """Keeps what each open document's version was found to be."""

    def __init__(self, version: str) -> None:
        super().__init__("sizer", version, text_document_sync_kind=types.TextDocumentSyncKind.Full)
        self.known: dict[str, tuple[int | None, Checked]] = {}

    def checked(self, document: TextDocument) -> Checked:
        version, found = self.known.get(document.uri, (None, None))
        if found is None or version != document.version:
            found = check_text(document.source, document.path)
            self.known[document.uri] = (document.version, found)
        return found

    def publish(self, document: TextDocument) -> None:
        found = diagnostics(self.checked(document), document.source, document.path)
        for one in found:
            one.range = document.position_codec.range_to_client_units(document.lines, one.range)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document.uri, found, document.version))


def server(version: str) -> LanguageServer:
    """The language server, not yet started."""
    serving = _Server(version)

    @serving.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        serving.publish(serving.workspace.get_text_document(params.text_document.uri))

    @serving.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeTextDocumentParams) -> None:
        await asyncio.sleep(QUIET_S)
        document = serving.workspace.get_text_document(params.text_document.uri)
        if document.version == params.text_document.version:
            serving.publish(document)

    @serving.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        # The project's defaults may be what was saved elsewhere.
        serving.known.pop(params.text_document.uri, None)
        serving.publish(serving.workspace.get_text_document(params.text_document.uri))

    @serving.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        serving.known.pop(params.text_document.uri, None)
        serving.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))

    @serving.feature(types.TEXT_DOCUMENT_HOVER)
    def hovered(params: types.HoverParams) -> types.Hover | None:
        document = serving.workspace.get_text_document(params.text_document.uri)
        codec, lines = document.position_codec, document.lines
        at = codec.position_from_client_units(lines, params.position)
        found = hover(serving.checked(document), document.source, document.path, at.line + 1, at.character + 1)
        if found is None:
            return None
        shown = codec.range_to_client_units(lines, _range(found[1]))
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, found[0]), shown)

    return serving
