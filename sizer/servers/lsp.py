"""`sizer lsp`: a configuration's findings in the editor with quick fixes, and on a key its price and its neighbours.

Diagnostics are `sizer check`'s findings with the project's defaults, at their keys, for the text as it is in the
editor. A file that is no model configuration gets none, nor does one that nobody but a trace could read.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from shapes.errors import InputError
from shapes.frozen import T, first_of, frozen
from sizer.checking.checks import CheckRequest, Settled, report_of
from sizer.checking.findings import SEVERITIES, PricedSuggestion, Report
from sizer.checking.fixes import ConfigText, fix_of
from sizer.checking.grading import Proposals, neighbours
from sizer.documents import Findings, cost_text, suggestion_text, within_text
from sizer.documents.check import place_of
from sizer.readers import NoModel, Source, UnknownModelType, read_config
from sizer.readers.loading import SUFFIXES, states_a_model
from sizer.readers.locate import Place, key_at, locate
from sizer.render.findings import rule_url
from sizer.render.markdown import code, findings_markdown, inline

#: Seconds without a keystroke before a text is checked again.
QUIET_S = 0.3
#: Seconds after which a text's answer is no longer waited for.
LATE_S = 10.0


@frozen
class Priced:
    """A text's report and the proposals it came from. ``settled``: what was proposed for, before it ran on a device."""

    report: Report
    proposals: Proposals
    settled: Settled

    def dimension(self, key: str) -> str | None:
        """The dimension that ``key`` says."""
        subject = self.proposals.subject
        return first_of(name for name in subject.dimensions if _names(key, subject.name_of(name)))

    def text(self, suggestion: PricedSuggestion) -> str:
        return suggestion_text(suggestion, self.report.step_s)


#: What a text is found to be: priced, an error, or no configuration.
CheckedText = Priced | InputError | None


@lru_cache(16)
def check_text(text: str, path: str) -> CheckedText:
    """The text of the file ``path`` checked as its project says."""
    settled = None
    if path.endswith(SUFFIXES) and not states_a_model(path, text.encode()):
        return None
    try:
        settled = CheckRequest().settle(path, read_config(Source(path, text=text)))
        proposals = settled.propose()
        return Priced(report_of(proposals), proposals, settled)
    except (NoModel, UnknownModelType):
        return None
    except InputError as error:
        # Half-typed brackets are the business of the language's own server; a key's value is ours.
        return error if error.key or settled else None


async def in_time(text: str, path: str) -> CheckedText:
    """``check_text`` in a thread of its own; an error where it takes over LATE_S."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(check_text, text, path), LATE_S)
    except TimeoutError:
        return InputError(f"not checked: takes over {LATE_S:g} s")


def diagnostics(checked: CheckedText, text: str, path: str) -> list[types.Diagnostic]:
    """A diagnostic for each finding at its key, else at the first line; for a refused value at that."""
    if isinstance(checked, InputError):
        place = locate(text, checked.key, path) if checked.key else None
        return [types.Diagnostic(_range(place), str(checked), types.DiagnosticSeverity.Error, source="sizer")]
    if not checked:
        return []
    found = []
    for finding in checked.report.findings:
        cost, url = cost_text(finding, checked.report.step_s), rule_url(finding.code)
        lines = [finding.message + (f"; {cost}" if cost else "")]
        lines += [f"-> {checked.text(one)}" for one in finding.suggestions]
        found.append(
            types.Diagnostic(
                _range(place_of(finding, path, text)),
                "\n".join(lines),
                types.DiagnosticSeverity(SEVERITIES.index(finding.severity) + 1),
                code=", ".join(finding.codes),
                code_description=types.CodeDescription(url) if url else None,
                source="sizer",
            )
        )
    return found


def actions(priced: Priced, document: TextDocument, asked: types.Range) -> list[types.CodeAction]:
    """A quick fix for each suggestion that the file can say, of the findings on the lines ``asked`` for."""
    found = []
    for finding in priced.report.findings:
        at = _range(place_of(finding, document.path, document.source))
        if at.end.line < asked.start.line or at.start.line > asked.end.line:
            continue
        for one, unsafe, edits in _sayable(priced, document, finding.suggestions):
            title = f"{finding.code} {priced.text(one)}"
            found.append(
                types.CodeAction(
                    f"{title} (unsafe: {unsafe})" if unsafe else title,
                    types.CodeActionKind.QuickFix,
                    is_preferred=not unsafe and one is finding.suggestions[0],
                    edit=types.WorkspaceEdit({document.uri: edits}),
                )
            )
    return found


def _sayable(
    priced: Priced, document: TextDocument, suggestions: Iterable[PricedSuggestion]
) -> Iterator[tuple[PricedSuggestion, str, list[types.TextEdit]]]:
    """The suggestions that the file can say, why each is unsafe, and its edits as the editor counts characters."""
    text, shown = ConfigText(document.path, document.source, CheckRequest()), _shown(document)
    for one in suggestions:
        if fix := fix_of(one, text, priced.settled.subject):
            yield one, fix.unsafe, [types.TextEdit(shown(_range(edit.place)), edit.text) for edit in fix.edits]


def completions(priced: Priced, document: TextDocument, at: types.Position) -> list[types.CompletionItem]:
    """Neighbours of the value ``at`` a place, priced, each with the edits that make it of the present one."""
    found = list[types.CompletionItem]()
    dimension = priced.dimension(_key_at(document, at) or "")
    near = neighbours(priced.proposals, dimension) if dimension else ()
    for one, _, (edit, *others) in _sayable(priced, document, near):
        start, end = edit.range.start, edit.range.end
        if start <= at <= end:
            found.append(
                types.CompletionItem(
                    edit.new_text,
                    detail=priced.text(one),
                    sort_text=f"{len(found)}",
                    filter_text=document.lines[at.line][start.character : end.character],
                    text_edit=edit,
                    additional_text_edits=others,
                )
            )
    return found


def hover(priced: Priced, document: TextDocument, at: types.Position) -> types.Hover | None:
    """The findings at a key, its neighbours priced, the step."""
    key = _key_at(document, at) or ""
    found = [  # that point at the key, or would change it
        one
        for one in priced.report.findings
        if any(_names(key, name) for name in (one.field, *(name for each in one.suggestions for name in each.change)))
    ]
    lines = [*findings_markdown(Findings("", found, priced.report.step_s)), ""] if found else []
    lines += _neighbours_at(key, priced)
    place = locate(document.source, key, document.path)
    if not lines or not place:
        return None
    text = "\n".join([*lines, f"A step takes {within_text(priced.report.step)}"])
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), _shown(document)(_range(place)))


def _shown(document: TextDocument) -> Callable[[types.Range], types.Range]:
    """A range of a document as its editor counts characters."""
    return partial(document.position_codec.range_to_client_units, document.lines)


def _key_at(document: TextDocument, shown: types.Position) -> str | None:
    at = document.position_codec.position_from_client_units(document.lines, shown)
    return key_at(document.source, at.line + 1, at.character + 1, document.path)


def _neighbours_at(key: str, priced: Priced) -> list[str]:
    """Prices of neighbouring values, of a key that is a dimension."""
    dimension, proposals = priced.dimension(key), priced.proposals
    if dimension is None:
        return []
    listed = [f"- {inline(priced.text(one))}" for one in neighbours(proposals, dimension)]
    value = code(f"{key} = {proposals.subject.dimensions[dimension]}")
    return [f"Near {value} on {proposals.device.name}:", "", *(listed or ["- no neighbour makes a model"]), ""]


def _names(key: str, field: str) -> bool:
    return key == field or key.rpartition(".")[2] == field.rpartition(".")[2]


def _range(place: Place | None) -> types.Range:
    """In characters from zero; the whole first line where no key is to blame."""
    if not place:
        return types.Range(types.Position(0, 0), types.Position(1, 0))
    line = place.line - 1
    return types.Range(types.Position(line, place.column - 1), types.Position(line, place.end_column - 1))


#: What an editor asks of a place -> what answers, and what names the place.
ASKED = (
    (types.TEXT_DOCUMENT_HOVER, hover, "position"),
    (types.TEXT_DOCUMENT_COMPLETION, completions, "position"),
    (types.TEXT_DOCUMENT_CODE_ACTION, actions, "range"),
)


async def _answer(serving: LanguageServer, find: Callable[..., T], place: str, params: Any) -> T | None:
    """What ``find`` says of the ``place`` that ``params`` names; None where the document is not priced."""
    document = serving.workspace.get_text_document(params.text_document.uri)
    priced = await in_time(document.source, document.path)
    return find(priced, document, getattr(params, place)) if isinstance(priced, Priced) else None


def server(version: str) -> LanguageServer:
    """The language server, not yet started."""
    serving = LanguageServer("sizer", version, text_document_sync_kind=types.TextDocumentSyncKind.Full)

    async def publish(params: Any, version: int | None = None) -> None:
        """What is found in the document that ``params`` names, unless it is past that version."""
        document = serving.workspace.get_text_document(params.text_document.uri)
        if version not in (None, document.version):
            return
        version, text = document.version, document.source
        found = diagnostics(await in_time(text, document.path), text, document.path)
        for one in found:
            one.range = _shown(document)(one.range)
        if version == document.version:
            serving.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document.uri, found, version))

    serving.feature(types.TEXT_DOCUMENT_DID_OPEN)(publish)

    @serving.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeTextDocumentParams) -> None:
        await asyncio.sleep(QUIET_S)
        await publish(params, params.text_document.version)

    @serving.feature(types.TEXT_DOCUMENT_DID_SAVE)
    async def saved(params: types.DidSaveTextDocumentParams) -> None:
        check_text.cache_clear()  # the project's defaults may be what was saved elsewhere
        await publish(params)

    @serving.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        serving.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))

    for feature, find, place in ASKED:
        serving.feature(feature)(partial(_answer, serving, find, place))
    return serving


def serve(serving: LanguageServer) -> None:
    """On standard input and output, until its editor goes."""
    serving.start_io()
