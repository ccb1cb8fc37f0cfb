"""`sizer lsp` and `sizer mcp`, each driven over its pipes by the protocol's own client library."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from mcp import Client, StdioServerParameters, stdio_client
from pygls.lsp.client import LanguageClient

import sizer.servers
from shapes import program
from sizer.checking.checks import CheckRequest
from sizer.checking.grading import neighbours
from sizer.readers.locate import key_at

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parent / "data" / "configs"
GPT2 = CONFIGS / "gpt2.json"
COMMAND = [sys.executable, "-m", "sizer"]
PATIENCE_S = 60


class Editor(LanguageClient):
    """An editor that keeps what it was told of each version of its documents."""

    def __init__(self) -> None:
        super().__init__("editor", "1")
        self.told: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

        @self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def _(params: types.PublishDiagnosticsParams) -> None:
            self.told.put_nowait(params)

    async def next(self) -> list[types.Diagnostic]:
        return list((await asyncio.wait_for(self.told.get(), PATIENCE_S)).diagnostics)

    def open(self, uri: str, text: str) -> None:
        item = types.TextDocumentItem(uri, "json", 1, text)
        self.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, uri: str, version: int, text: str) -> None:
        self.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, uri),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def hover(self, uri: str, line: int, character: int) -> types.Hover | None:
        at = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(line, character))
        return await asyncio.wait_for(self.text_document_hover_async(at), PATIENCE_S)


def in_editor(scene: Callable[[Editor], Awaitable[None]]) -> None:
    async def played() -> None:
        editor = Editor()
        await editor.start_io(*COMMAND, "lsp")
        try:
            await asyncio.wait_for(
                editor.initialize_async(types.InitializeParams(types.ClientCapabilities())), PATIENCE_S
            )
            editor.initialized(types.InitializedParams())
            await scene(editor)
            await asyncio.wait_for(editor.shutdown_async(None), PATIENCE_S)
            editor.exit(None)
        finally:
            await editor.stop()

    asyncio.run(played())


def test_an_editor_is_told_of_findings_at_their_keys_while_a_person_types(tmp_path) -> None:
    path = tmp_path / "config.json"
    text = GPT2.read_text()
    uri, line = path.as_uri(), next(n for n, row in enumerate(text.splitlines()) if "vocab_size" in row)

    async def scene(editor: Editor) -> None:
        editor.open(uri, text)
        (found,) = await editor.next()
        assert found.code == "SZ101"
        assert found.severity == types.DiagnosticSeverity.Warning
        assert found.range == types.Range(types.Position(line, 2), types.Position(line, 14))
        assert "vocab_size 50304: saves" in found.message
        shown = await editor.hover(uri, line, 5)
        assert shown is not None
        assert shown.range == found.range
        assert isinstance(shown.contents, types.MarkupContent)
        assert "SZ101" in shown.contents.value
        assert "vocab\\_size 50240" in shown.contents.value
        # A value that is none, at its key; then mended: nothing is left to say.
        editor.change(uri, 2, text.replace("50257", '"many"'))
        (wrong,) = await editor.next()
        assert wrong.severity == types.DiagnosticSeverity.Error
        assert wrong.range == found.range
        editor.change(uri, 3, text.replace("50257", "50304"))
        assert await editor.next() == []

    in_editor(scene)


def test_values_are_completed_with_neighbours_and_their_prices(tmp_path: Path) -> None:
    text = GPT2.read_text()
    line, row = next((n, row) for n, row in enumerate(text.splitlines()) if "vocab_size" in row)
    uri, at = (tmp_path / "config.json").as_uri(), row.index("50257") + 5

    async def scene(editor: Editor) -> None:
        editor.open(uri, text)
        await editor.next()
        params = types.CompletionParams(types.TextDocumentIdentifier(uri), types.Position(line, at))
        found = await asyncio.wait_for(editor.text_document_completion_async(params), PATIENCE_S)
        assert isinstance(found, list)
        assert [one.label for one in found] == ["50176", "50240", "50304", "50368"]
        assert all(one.detail.startswith(f"vocab_size {one.label}: saves") for one in found)
        assert all(one.filter_text == "50257" for one in found)  # what is typed there filters none
        assert [one.sort_text for one in found] == list("0123")
        edit = found[2].text_edit
        assert edit == types.TextEdit(types.Range(types.Position(line, at - 5), types.Position(line, at)), "50304")
        nowhere = types.CompletionParams(types.TextDocumentIdentifier(uri), types.Position(0, 0))
        assert await asyncio.wait_for(editor.text_document_completion_async(nowhere), PATIENCE_S) == []

    in_editor(scene)


def test_a_quick_fix_of_the_server_mends_the_text_and_its_finding_links_to_the_rules_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIZER_RULES_URL", "https://docs.example/rules")
    path = tmp_path / "config.json"
    text = GPT2.read_text()
    uri = path.as_uri()

    async def scene(editor: Editor) -> None:
        editor.open(uri, text)
        (found,) = await editor.next()
        assert found.code_description is not None
        assert found.code_description.href == "https://docs.example/rules#sz101-vocab-multiple"
        asked = types.CodeActionParams(
            types.TextDocumentIdentifier(uri), found.range, types.CodeActionContext([found], trigger_kind=None)
        )
        offered = await asyncio.wait_for(editor.text_document_code_action_async(asked), PATIENCE_S)
        assert offered
        first = offered[0]
        assert isinstance(first, types.CodeAction)
        assert first.title.startswith("SZ101 vocab_size 50304: saves")
        assert first.title.endswith("(unsafe: a released checkpoint has these dimensions)")
        assert not first.is_preferred
        assert first.edit is not None
        assert first.edit.changes is not None
        (edit,) = first.edit.changes[uri]
        lines = text.splitlines(keepends=True)
        line, start, end = edit.range.start.line, edit.range.start.character, edit.range.end.character
        lines[line] = lines[line][:start] + edit.new_text + lines[line][end:]
        assert json.loads("".join(lines)) == json.loads(text) | {"vocab_size": 50304}
        editor.change(uri, 2, "".join(lines))
        assert await editor.next() == []

    in_editor(scene)


def test_what_is_no_configuration_or_half_typed_is_left_to_others(tmp_path) -> None:
    async def scene(editor: Editor) -> None:
        for number, text in enumerate(('{"name": "web", "version": "1"}', '{"model_type": "gpt2", ', "")):
            editor.open((tmp_path / f"{number}.json").as_uri(), text)
            assert await editor.next() == []
            assert await editor.hover((tmp_path / f"{number}.json").as_uri(), 0, 3) is None

    in_editor(scene)


def test_the_projects_defaults_hold_in_the_editor_and_characters_are_the_editors(tmp_path) -> None:
    (tmp_path / "sizer.toml").write_text('ignore = ["SZ101"]\n')
    text = json.dumps({"note": "\N{MATHEMATICAL BOLD CAPITAL A}", **json.loads(GPT2.read_text()), "n_head": 9})

    async def scene(editor: Editor) -> None:
        editor.open((tmp_path / "config.json").as_uri(), text)
        found = await editor.next()
        (heads,) = (one for one in found if one.severity == types.DiagnosticSeverity.Error)
        units = text.encode("utf-16-le")
        start, end = (2 * at.character for at in (heads.range.start, heads.range.end))
        assert units[start:end].decode("utf-16-le").strip('"') in ("n_head", "n_embd")
        assert not any("SZ101" in str(one.code) for one in found)

    in_editor(scene)


def called(tool: str, **arguments: Any) -> Any:
    """(whether it is an error, the text, the structured answer) of a tool of a server of its own."""

    async def asked() -> Any:
        async with Client(
            stdio_client(StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "mcp", "--root", str(CONFIGS)]))
        ) as client:
            names = {one.name for one in (await client.list_tools()).tools}
            assert names == {"check", "search", "price", "diff", "memory", "plan", "deploy", "explain"}
            return await client.call_tool(tool, arguments)

    return asyncio.run(asyncio.wait_for(asked(), PATIENCE_S))


def test_an_agent_gets_what_the_library_answers() -> None:
    answer = called("check", config=str(GPT2), device="a100-sxm", workload={"tp": 2})
    expected = json.loads(sizer.check(str(GPT2), device="a100-sxm", tp=2).to_json())
    assert not answer.is_error
    assert answer.structured_content == expected


def test_an_agent_prices_a_change_before_it_makes_it() -> None:
    answer = called("price", config=json.loads(GPT2.read_text()), changes={"vocab_size": 50304})
    (file,) = answer.structured_content["files"]
    assert file["changes"]["vocab_size"] == {"old": 50257, "new": 50304}
    assert file["devices"][0]["ratio"] < 1


def test_an_agents_mistake_is_one_line() -> None:
    answer = called("search", h=4096, device="h1000")
    assert answer.is_error
    (content,) = answer.content
    assert "device" in content.text
    assert "\n" not in content.text


LLAMA_FILE = str(CONFIGS / "llama-3.1-8b.json")


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("check", {"confg": LLAMA_FILE}, "expected config, device, workload"),
        ("check", {"confg": LLAMA_FILE}, "; did you mean config?"),
        ("check", {"path": LLAMA_FILE}, "; did you mean config?"),
        ("check", {"config": LLAMA_FILE, "tp": 2}, "; did you mean workload.tp?"),
        ("check", {"config": LLAMA_FILE, "batch_size": 2}, "; did you mean workload.microbatch?"),
        ("check", {"config": LLAMA_FILE, "workload": {"batch_size": 2}}, "; did you mean microbatch?"),
        ("check", {"config": LLAMA_FILE, "workload": 4}, "4 is not of type 'object'"),
        ("plan", {"config": LLAMA_FILE, "devices": 8}, "; did you mean gpus?"),
        ("explain", {"code": "SZ101"}, "; did you mean rule?"),
        ("check", {}, "'config' is a required property"),
        ("check", {"config": LLAMA_FILE, "workload": {"tpp": 2}}, "microbatch"),
        ("check", {"config": LLAMA_FILE, "workload": {"tp": "2"}}, "check.workload.tp: '2' is not of type 'integer'"),
        ("plan", {"config": LLAMA_FILE, "gpus": 8}, "global_batch: expected an integer between 1 and"),
        ("chek", {"config": LLAMA_FILE}, "expected one of check, search"),
        ("check", {"config": "../../../pyproject.toml"}, "is outside of"),
        ("check", {"config": "/etc/passwd"}, "is outside of"),
        ("check", {"config": LLAMA_FILE, "device": "/etc/passwd.toml"}, "expected a name"),
        ("plan", {"config": LLAMA_FILE, "gpus": 8, "global_batch": 8, "stack": "a/b.toml"}, "is not one of"),
        ("deploy", {"config": LLAMA_FILE, "recipe": "../x"}, "expected a name"),
        ("check", {"config": "gpt2\0.json"}, "does not match"),
    ],
)
def test_an_agent_is_told_the_right_argument_and_reads_below_the_root(
    tool: str, arguments: dict[str, Any], said: str
) -> None:
    from sizer.servers.mcp import answer

    with pytest.raises(sizer.InputError) as refused:
        answer(tool, arguments, CONFIGS.resolve())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_takes_too_long_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    from sizer.servers import lsp, mcp

    stays = threading.Event()
    monkeypatch.setattr(mcp, "answer", lambda *_: stays.wait(PATIENCE_S))
    monkeypatch.setattr(lsp, "check_text", lambda *_: stays.wait(PATIENCE_S))
    monkeypatch.setattr(mcp, "LATE_S", 0.01)
    monkeypatch.setattr(lsp, "LATE_S", 0.01)

    async def asked() -> None:
        async with Client(mcp.server("1", str(CONFIGS))) as client:
            answer = await client.call_tool("check", {"config": "gpt2.json"})
        assert answer.is_error
        assert answer.content[0].text.startswith("check: no answer in 0.01 s")
        found = await lsp.in_time("{}", "config.json")
        assert isinstance(found, sizer.InputError)
        assert str(found) == "not checked: takes over 0.01 s"
        stays.set()

    asyncio.run(asyncio.wait_for(asked(), PATIENCE_S))


def test_every_tool_answers_as_the_library_does() -> None:
    from sizer.servers.mcp import answer, schemas

    config, root = "gpt2.json", CONFIGS.resolve()
    calls: dict[str, tuple[dict[str, Any], str]] = {
        "check": ({"config": config}, "reports"),
        "search": ({"h": 1024}, "candidates"),
        "price": ({"config": config, "changes": {"vocab_size": 50304}}, "files"),
        "diff": ({"old": config, "new": config}, "files"),
        "memory": ({"config": config, "workload": {"tp": 2}}, "components"),
        "plan": ({"config": config, "gpus": 2, "global_batch": 8}, "recommended"),
        "deploy": ({"config": config, "tp": 2}, "engines"),
        "explain": ({"rule": "SZ101"}, "page"),
    }
    assert set(calls) == set(schemas())
    others = {"config": config, "workload": {"tp": 2, "dtype": "bfloat16", "phase": "TRAIN"}}
    assert answer("memory", others, root) == answer("memory", calls["memory"][0], root)
    for tool, (arguments, key) in calls.items():
        assert key in answer(tool, arguments, root), tool
    serving = {"config": config, "gpus": 2, "tpot": 1.0, "workload": {"phase": "decode", "sequence": 128}}
    assert answer("plan", serving, root)["ways"]
    workload = schemas()["check"]["properties"]["workload"]
    assert workload["additionalProperties"] is False
    assert workload["properties"]["tp"]["type"] == "integer"
    assert "train" in workload["properties"]["phase"]["examples"]


def test_the_choices_that_tools_name_are_those_that_the_library_takes() -> None:
    from sizer.searching.spaces import SPACES
    from sizer.servers.mcp import answer, schemas

    tools = schemas()
    assert tools["search"]["properties"]["what"]["enum"] == list(SPACES)
    serving = {"gpus": 2, "workload": {"phase": "decode"}}
    for tool, key, others in (("deploy", "recipe", {}), ("plan", "engine", serving)):
        with pytest.raises(sizer.InputError) as refused:
            answer(tool, {"config": "gpt2.json", key: "none-such", **others}, CONFIGS.resolve())
        known = str(refused.value).partition("expected one of ")[2].split(", ")
        said = tools[tool]["properties"][key]["description"].partition(": ")[2].rstrip(".").replace(" (default)", "")
        assert sorted(said.split(", ")) == sorted(known)


@pytest.mark.parametrize(("dimension", "multiple"), [("d_ff", 128), ("vocab", 64), ("layers", 1)])
def test_neighbours_are_the_nearest_multiples_on_both_sides(dimension: str, multiple: int) -> None:
    proposals = CheckRequest().settle(str(CONFIGS / "llama-3.1-8b.json")).propose()
    value = proposals.subject.dimensions[dimension]
    key = proposals.subject.name_of(dimension)
    found = [int(one.change[key]) for one in neighbours(proposals, dimension)]
    assert found == [value + step * multiple for step in (-2, -1, 1, 2)]


def test_no_neighbour_is_no_model() -> None:
    proposals = CheckRequest().settle(str(CONFIGS / "llama-3.1-8b.json")).propose()
    heads = [int(one.change["num_attention_heads"]) for one in neighbours(proposals, "heads")]
    assert heads
    assert all(4096 % one == 0 and one % 8 == 0 for one in heads)
    assert neighbours(proposals, "experts") == ()


@pytest.mark.parametrize(
    ("path", "text", "line", "column", "key"),
    [
        ("config.json", '{\n "a": {"b": 1}}', 2, 9, "a.b"),
        ("config.json", '{\n "a": {"b": 1}}', 2, 13, "a.b"),  # its value
        ("config.json", '{\n "a": {"b": 1}}', 2, 7, None),
        ("config.yaml", "model:\n  hidden_size: 8\n", 2, 4, "model.hidden_size"),
        ("model.toml", "[model]\nhidden_size = 8\n", 2, 1, "model.hidden_size"),
        ("train.py", "n_layer = 12\n", 1, 3, "n_layer"),
        ("run.sh", "torchrun x.py --hidden-size 8\n", 1, 20, "hidden_size"),
        ("run.sh", "torchrun x.py --hidden-size 8\n", 1, 29, "hidden_size"),
        ("config.json", "{}", 9, 1, None),
    ],
)
def test_the_key_at_a_place(path: str, text: str, line: int, column: int, key: str | None) -> None:
    assert key_at(text, line, column, path) == key


def test_a_server_answers_in_threads_and_shares_what_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins of a process of one thread (shapes.trace.light) that overlap would leave torch's flags as they set."""
    monkeypatch.setattr(program, "ALONE", True)
    importlib.reload(sizer.servers)
    assert not program.ALONE
