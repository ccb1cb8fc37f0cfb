"""nanoGPT: a Python file of assignments (read, never run) or a saved GPTConfig."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shapes.errors import InputError
from sizer.readers import layouts
from sizer.readers.fields import Config, Fields, Values, table
from sizer.readers.reading import Reading
from sizer.readers.shell.words import ARITHMETIC

NAME = "nanogpt"

_TABLE = table("formats")[NAME]


def parse_assignments(text: str, where: str) -> Values:
    """``n_layer = 12`` lines of a Python file, with names, ``dict(...)`` and arithmetic of numbers; what is something

    else is passed over. Nothing is run.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("expected Python assignments", where=where) from None
    found: Values = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        said = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or said is None:
            continue
        said = ast.BinOp(target, node.op, said) if isinstance(node, ast.AugAssign) else said
        try:
            found[target.id] = _value(said, found)
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError):
            found.pop(target.id, None)  # what it was before is no longer so
    return {name: value for name, value in found.items() if not name.isupper()}  # those are a file's own constants


def _value(node: ast.expr, names: Config) -> Any:
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict" and not node.args:
        found = {}
        for one in node.keywords:
            with suppress(ValueError, TypeError, KeyError, ArithmeticError):  # a key that is not told is not there
                found[one.arg] = _value(one.value, names)
        return found
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        one, other = _value(node.left, names), _value(node.right, names)
        if not all(type(side) in (int, float) and abs(side) < 2**53 for side in (one, other)):
            raise ValueError
        return one / other if isinstance(node.op, ast.Div) else ARITHMETIC[type(node.op)](one, other)
    return ast.literal_eval(node)


def _defaults(config: Config) -> tuple[Values, tuple[str, ...]]:
    """The values of absent keys, and a note on them: train.py's defaults for a file that it runs, else GPTConfig's."""
    defaults = _TABLE["defaults"]
    if not any(name in config for name in _TABLE["trainer"]):
        return defaults, ()
    start, data = config.get("init_from", "scratch"), config.get("dataset", "openwebtext")
    if isinstance(start, str) and start in _TABLE["pretrained"]:
        sizes = {"vocab_size": 50257, "bias": True, **_TABLE["pretrained"][start]}
        return {**defaults, **_TABLE["training"], **sizes}, (f"the sizes are those of {start} (init_from)",)
    vocab = _TABLE["vocabularies"].get(str(data), defaults["vocab_size"])
    said = f"absent keys are train.py's: no bias, {vocab:,} tokens"
    return {**defaults, **_TABLE["training"], "vocab_size": vocab}, (said,)


def read(config: Config, where: str) -> Reading:
    defaults, notes = _defaults(config)
    fields = Fields(config, where, defaults=defaults)
    for name in ("dataset", "init_from"):
        fields.text(name)
    reading = layouts.read(NAME, {**defaults, **config}, where)
    return replace(reading, notes=(*reading.notes, *notes), asked=reading.asked | fields.asked)
