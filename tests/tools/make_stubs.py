"""Bring the stubs that type checkers read up to date (python tests/tools/make_stubs.py).

Names that a package loads when they are first used (`_HOMES` of its __init__.py), and the keywords that are the fields
of ``Workload`` under both their names, are each said once; what types them follows.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import shapes
import sizer
from shapes.workload import WORDS

ROOT = Path(__file__).parents[2]
HEAD = "# Written by tests/tools/make_stubs.py.\n"


def package(homes: Mapping[str, str], *further: str) -> str:
    """The names of a package, each from its module ("module", or "module:name there")."""
    lines = []
    for name, home in homes.items():
        module, _, own = home.partition(":")
        lines.append(f"from {module} import {own or name}" + f" as {name}" * bool(own))
    return HEAD + "\n".join([*lines, *further, "", f"__all__ = {[*homes]}"]) + "\n"


def keywords() -> str:
    """``WorkloadKeywords``, the annotations as ``Workload`` has them."""
    tree = ast.parse((ROOT / "shapes" / "workload.py").read_text("utf-8"))
    (found,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Workload")
    fields = {ast.unparse(one.target): one.annotation for one in found.body if isinstance(one, ast.AnnAssign)}
    used = {node.id for kind in fields.values() for node in ast.walk(kind) if isinstance(node, ast.Name)}
    own = sorted(name for name in used if name not in ("Literal", "bool", "float", "int", "str"))
    lines = [HEAD + "from typing import Literal, TypedDict\n", f"from .workload import {', '.join(own)}\n"]
    lines.append("class WorkloadKeywords(TypedDict, total=False):")
    for name, kind in fields.items():
        lines += (f"    {word}: {ast.unparse(kind)}" for word in filter(None, (name, WORDS.get(name))))
    return "\n".join(lines) + "\n"


STUBS = {
    "sizer/__init__.pyi": package(sizer._HOMES, "", "__version__: str"),
    "shapes/__init__.pyi": package(shapes._HOMES),
    "shapes/keywords.pyi": keywords(),
}

if __name__ == "__main__":
    for name, text in STUBS.items():
        (ROOT / name).write_text(text, encoding="utf-8")
