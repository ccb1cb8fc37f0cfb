"""Bring the JSON schemas of sizer/render/schemas up to date (python tests/tools/make_schemas.py).

What is there, its types and what is always there follow from the classes, by the walker that writes the JSON
(shapes/frozen.py). Descriptions, bounds and patterns are written in the files, by hand, and stay; so do values named
for a plain string, and what a class says nothing of (``Any``).
"""

from __future__ import annotations

import json
import textwrap
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shapes.frozen import members
from sizer.answers.deploy import Deployment
from sizer.answers.diff import Diff
from sizer.answers.memory_breakdown import MemoryBreakdown
from sizer.answers.mfu import Explanation, MfuAnswer
from sizer.answers.operator_table import OperatorTable
from sizer.answers.plan import Plan, ServingPlan
from sizer.checking.findings import Checked
from sizer.searching.result import SearchResult

FOLDER = Path(__file__).parents[2] / "sizer" / "render" / "schemas"
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
BY_HAND = ("description", "minimum", "exclusiveMinimum", "maximum", "minItems", "maxItems", "minProperties", "pattern")


#: Schema -> the class whose JSON it describes; measurements, devices and rules are rows and files, written by hand.
WRITTEN: dict[str, type] = {
    "check": Checked,
    "deploy": Deployment,
    "diff": Diff,
    "memory": MemoryBreakdown,
    "mfu": MfuAnswer,
    "ops": OperatorTable,
    "plan": Plan,
    "search": SearchResult,
    "serving-plan": ServingPlan,
}


def schema_of(cls: type, old: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a command's whole document, ``old`` brought up to date."""
    defs = dict(old.get("$defs", {}))
    version = {"schema_version": old["properties"]["schema_version"]}
    body = _object(_shown(cls), old, defs)
    body["required"] = ["schema_version", *body["required"]]
    body["properties"] = version | body["properties"]
    head = {key: old[key] for key in ("$schema", "title", "description") if key in old}
    return head | body | ({"$defs": defs} if defs else {})


def _node(hint: Any, old: Mapping[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """A value's schema; a definition that ``old`` refers to is brought up to date in ``defs``."""
    if hint is Any:
        return dict(old)
    either = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if "$ref" in old or "oneOf" in old:
        known = [one for one in (old, *old.get("oneOf", ())) if "$ref" in one]
        name = known[0]["$ref"].rpartition("/")[2]
        (whole,) = [one for one in either if one is not type(None)]
        if not get_args(whole) or get_origin(whole) is Literal:
            defs[name] = _node(whole, defs[name], defs)
        return dict(old)
    kept = {key: old[key] for key in BY_HAND if key in old}
    kinds = [_kind(one, old, defs) for one in either if one is not type(None)]
    found = kinds[0] if len(kinds) == 1 else {"type": [one["type"] for one in kinds]}
    if len(either) > len(kinds):
        found |= {"enum": [*found["enum"], None]} if "enum" in found else {"type": _with_null(found["type"])}
    if "enum" in old and found.get("type") == "string":
        found = {"enum": old["enum"]}
    return found | kept


def _with_null(kind: str | list[str]) -> list[str]:
    return [*([kind] if isinstance(kind, str) else kind), "null"]


def _kind(hint: Any, old: Mapping[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is not None and issubclass(origin, Mapping):
        listed = _node(inner[1], old.get("additionalProperties") or {}, defs)
        return {"type": "object"} | ({"additionalProperties": listed} if listed else {})
    if origin is not None and issubclass(origin, Sequence):
        of_one_kind = {"type": "array", "items": _node(inner[0], old.get("items") or {}, defs)}
        return (
            of_one_kind
            if inner[-1] is ... or len(inner) == 1
            else of_one_kind | dict.fromkeys(("minItems", "maxItems"), len(inner))
        )
    return _object(_shown(hint), old, defs)


def _object(listed: Mapping[str, tuple[Any, bool]], old: Mapping[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    before = old.get("properties", {})
    return {
        "type": "object",
        "required": [key for key, (_, always) in listed.items() if always],
        "additionalProperties": False,
        "properties": {
            key: _object(hint, before.get(key, {}), defs)
            if isinstance(hint, Mapping)
            else _node(hint, before.get(key, {}), defs)
            for key, (hint, _) in listed.items()
        },
    }


def _shown(cls: type, paths: Mapping[str, Any] | None = None) -> dict[str, tuple[Any, bool]]:
    """Key -> (its type, or keys of its own; whether it is always there)."""
    return {
        key: (_shown(cls, path), True)
        if isinstance(path, Mapping)
        else (_type_at(cls, path.removesuffix("?"), may_lack=path.endswith("?")), not path.endswith("?"))
        for key, path in (members(cls) if paths is None else paths).items()
    }


def _type_at(cls: Any, path: str, *, may_lack: bool = False) -> Any:
    none = False
    for name in path.split("."):
        parts = [one for one in (get_args(cls) or (cls,)) if one is not type(None)]
        found = getattr(parts[0], name, None)
        declared, key = (found.fget, "return") if isinstance(found, property) else (parts[0], name)
        cls = get_type_hints(declared, localns={"Explanation": Explanation})[key]
        none |= type(None) in get_args(cls)
    if may_lack:
        return next(one for one in get_args(cls) if one is not type(None))
    return cls | None if none and type(None) not in get_args(cls) else cls


def text_of(node: Any, indent: int = 0) -> str:
    """JSON with whatever fits a line on one."""
    short = json.dumps(node, ensure_ascii=False)
    if len(short) + indent <= 118 or not isinstance(node, (dict, list)):
        return short
    pad = " " * (indent + 2)
    if isinstance(node, list) and all(isinstance(one, (str, int, type(None))) for one in node):
        wrapped = textwrap.fill(short[1:-1], 118, initial_indent=pad, subsequent_indent=pad, break_on_hyphens=False)
        return f"[\n{wrapped}\n{' ' * indent}]"
    if isinstance(node, list):
        inner = [text_of(one, indent + 2) for one in node]
    else:
        inner = [f"{json.dumps(key)}: {text_of(one, indent + 2)}" for key, one in node.items()]
    opened, closed = "[]" if isinstance(node, list) else "{}"
    return f"{opened}\n{pad}" + f",\n{pad}".join(inner) + f"\n{' ' * indent}{closed}"


def made(name: str, cls: type) -> str:
    """The file's content, brought up to date."""
    old = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return text_of(schema_of(cls, old)) + "\n"


if __name__ == "__main__":
    for name, cls in WRITTEN.items():
        (FOLDER / f"{name}.schema.json").write_text(made(name, cls), encoding="utf-8")
