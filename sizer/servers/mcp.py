"""`sizer mcp`: what the commands answer, as tools of an agent (Model Context Protocol, standard input and output).

tools.json says each tool's arguments; a tool is the library's function of its name, and answers its JSON document. A
mistake is one line, as everywhere. Nothing is written, and of files only configurations below one folder are read.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as protocol
from jsonschema import ValidationError, validate
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import sizer
from shapes.errors import InputError, one_of, refuse
from shapes.frozen import Named, Values, replace
from shapes.step.stack import list_stacks
from shapes.toml_table import nearest, others_words, table_of
from shapes.workload import OPTIONS, WORDS
from sizer.readers import Source, is_name
from sizer.rules import find_rule

_SAID = table_of(__file__, "tools.json")
#: Seconds after which an answer is no longer waited for: the largest plans take half of it.
LATE_S = 60.0
_KINDS = {int: "integer", float: "number", bool: "boolean", str: "string"}


def schemas() -> dict[str, Values]:
    """Tool -> the JSON schema of its arguments; those of a workload go by the names that people use."""
    types = _SAID["types"]
    types["stack"]["enum"] = list(list_stacks())
    types["workload"]["properties"] = {
        WORDS.get(name, name): {"type": _KINDS[one.kind], "description": one.help}
        | ({"examples": list(one.choices)} if one.choices else {})
        for name, one in OPTIONS.items()
    }
    return {
        name: {
            **one,
            "properties": {key: types[of] if isinstance(of, str) else of for key, of in one["properties"].items()},
        }
        for name, one in _SAID["tools"].items()
    }


def answer(tool: str, arguments: Named, root: Path) -> Values:
    """The document that a tool answers with; InputError for arguments that are none."""
    one_of(tool, known := schemas(), "tool")
    try:
        validate(arguments, known[tool])
    except ValidationError as error:
        where = ".".join(map(str, (tool, *error.absolute_path)))
        takes = error.schema.get("properties", {})
        expected = ", ".join(takes) or error.schema.get("description", "")
        raise InputError(f"{error.message}; expected {expected}{_meant(error.instance, takes)}", where=where) from None
    asked = {key: _allowed(key, value, root) for key, value in arguments.items()}
    if tool == "explain":
        rule = find_rule(asked["rule"])
        return {"code": rule.code, "slug": rule.slug, "page": rule.page}
    if tool == "price":
        tool, asked["old"] = "diff", asked.pop("config")
        asked["new"] = replace(asked["old"], settings=asked.pop("changes"))
    named = [asked.pop(key) for key in _CONFIGS if key in asked]
    document: Values = json.loads(getattr(sizer, tool)(*named, **asked.pop("workload", {}), **asked).to_json())
    return document


def _meant(asked: Any, takes: Named) -> str:
    """What an argument that is none may have meant: by its sense, else by its letters."""
    inside = takes.get("workload", {}).get("properties", ())
    known = {name: f"workload.{name}" for name in inside} | {name: name for name in takes}
    for name in asked if isinstance(asked, Mapping) else ():
        meant = _SAID["meant"].get(name), *others_words()["same"].get(name, ()), *nearest(name, known)
        if name not in takes and (found := [known[one] for one in meant if one in known]):
            return f"; did you mean {found[0]}?"
    return ""


#: Arguments that are configurations, in the order that the library takes them.
_CONFIGS = ("config", "old", "new")


def _allowed(key: str, value: Any, root: Path) -> Any:
    """An argument as the library takes it: a configuration's path below ``root``, and no other path."""
    if key not in _CONFIGS:
        refuse(
            isinstance(value, str) and (value.endswith(".toml") or not {"/", "\\"}.isdisjoint(value)),
            "expected a name",
            key,
            value,
        )
        return value
    if isinstance(value, Mapping) or is_name(value):
        return Source(value)
    path = (root / value).resolve()
    refuse(not path.is_relative_to(root), f"is outside of {root}, and not opened (sizer mcp --root DIR)", key, value)
    return Source(str(path), root=str(root))


def server(version: str, root: str = ".") -> Server[Any]:
    """The server with its tools, not yet started. ``root``: the folder whose configurations may be read."""
    looks = protocol.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    tools = [
        protocol.Tool(
            name=name, description=_SAID["tools"][name]["description"], input_schema=schema, annotations=looks
        )
        for name, schema in schemas().items()
    ]

    async def listing(_context: Any, _params: Any) -> protocol.ListToolsResult:
        return protocol.ListToolsResult(tools=tools)

    async def called(_context: Any, params: protocol.CallToolRequestParams) -> protocol.CallToolResult:
        asked = partial(answer, params.name, params.arguments or {}, Path(root).resolve())
        try:
            with anyio.fail_after(LATE_S):
                found = await anyio.to_thread.run_sync(asked, abandon_on_cancel=True)
        except (InputError, TimeoutError) as error:
            said = str(error) or f"{params.name}: no answer in {LATE_S:g} s; ask for less, or run the command"
            return protocol.CallToolResult(content=[protocol.TextContent(text=said)], is_error=True)
        text = protocol.TextContent(text=json.dumps(found))
        return protocol.CallToolResult(content=[text], structured_content=found)

    return Server(
        "sizer", version=version, instructions=_SAID["instructions"], on_list_tools=listing, on_call_tool=called
    )


def serve(serving: Server[Any]) -> None:
    """On standard input and output, until its reader goes."""

    async def run() -> None:
        async with stdio_server() as (read, write):
            await serving.run(read, write, serving.create_initialization_options())

    anyio.run(run)
