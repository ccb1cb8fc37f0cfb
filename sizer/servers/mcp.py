"""`sizer mcp`: check, search, price and diff as tools of an agent (Model Context Protocol, standard input and output).

Each tool is a function of the library and answers its JSON document. A mistake is one line, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

import sizer
from shapes.errors import InputError
from sizer.readers import Source

Config = str | dict[str, Any]
Tool = Callable[..., dict[str, Any]]

INSTRUCTIONS = (
    "sizer prices transformer dimensions on a GPU. `check` a configuration first; `price` a change of its keys before "
    "making it; `search` for faster neighbours; `diff` two versions. Times are predictions with an interval: a gain "
    "marked within_error is not one."
)


def check(config: Config, device: str | None = None, workload: dict[str, Any] | None = None) -> dict[str, Any]:
    """Every finding of the rules on a model configuration, each priced in step seconds, with faster alternatives.

    config: a path, or the configuration itself. device: as `sizer devices` lists them (default h100-sxm). workload:
    tp, pp, dp, microbatch, sequence, phase and so on.
    """
    return _document(sizer.check(config, device=device, **(workload or {})))


def search(
    config: Config | None = None,
    what: str | None = None,
    h: int | None = None,
    params: float | None = None,
    device: str | None = None,
    workload: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Faster neighbouring dimensions at equal parameters: of a configuration, a hidden size h, a parameter budget.

    what: swiglu (default), model, hidden, heads, vocab and so on.
    """
    return _document(sizer.search(config, what=what, h=h, params=params, device=device, **(workload or {})))


def price(
    config: Config, changes: dict[str, Any], device: str | None = None, workload: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What changing keys of a configuration ({"intermediate_size": 11008}) does to its step, memory and findings."""
    changed = Source(config, changes)
    return _document(sizer.diff(config, changed, **_on(device), **(workload or {})))


def diff(old: Config, new: Config, device: str | None = None, workload: dict[str, Any] | None = None) -> dict[str, Any]:
    """Two configurations compared: parameters, FLOPs, step, MFU, memory, energy, findings added and fixed."""
    return _document(sizer.diff(old, new, **_on(device), **(workload or {})))


TOOLS: tuple[Tool, ...] = (check, search, price, diff)


def server(version: str) -> MCPServer[Any]:
    """The server with its tools, not yet started."""
    serving: MCPServer[Any] = MCPServer("sizer", instructions=INSTRUCTIONS, version=version)
    for tool in TOOLS:
        serving.add_tool(_refusing(tool), annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    return serving


def _on(device: str | None) -> Mapping[str, Any]:
    return {} if device is None else {"device": device}


def _document(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.to_json())
    return found


def _refusing(tool: Tool) -> Tool:
    """``tool`` with a mistake as the protocol has it."""

    @wraps(tool)
    def called(*args: Any, **keywords: Any) -> dict[str, Any]:
        try:
            return tool(*args, **keywords)
        except InputError as error:
            raise ToolError(str(error)) from None

    return called
