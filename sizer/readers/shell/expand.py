"""Words -> strings: variables, defaults and arithmetic as bash expands them; what only running could tell is marked."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from shapes.errors import InputError
from sizer.readers.shell.words import MAX_NESTING, Part, Scanner, Word

#: What a script's variables may hold together: doubling one forty times ends here.
MAX_EXPANDED = 2**22
_MARK = "\0"
_UNKNOWN = re.compile("\0([^\0]*)\0")
_PARAMETER = re.compile(r"(?s)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(:?[-=+?])?(.*)")

Value = str | list[str]


def unknown(text: str) -> str:
    """``text`` (``$1``, ``$(nproc)``) marked as a value that the script does not hold."""
    return f"{_MARK}{' '.join(text.split())[:60]}{_MARK}"


def unknown_in(text: str) -> str | None:
    """The unknown part of ``text``, as the script writes it; None where all is."""
    found = _UNKNOWN.search(text)
    return found[1] if found else None


class Variables:
    """A script's variables. ``preset`` ones keep their value whatever the script assigns."""

    def __init__(self, where: str, preset: dict[str, str] | None = None) -> None:
        self.where = where
        self.values: dict[str, Value] = dict(preset or {})
        self.preset = frozenset(preset or ())
        self.used: set[str] = set()
        self._characters = 0
        self._nesting = 0

    def assign(self, name: str, value: Value, *, append: bool = False) -> None:
        self._spend(value)
        if name in self.preset:
            self.used.add(name)
            return
        old = self.values.get(name)
        if not append or old is None:
            self.values.pop(name, None)  # the order is that of the last assignment
            self.values[name] = value
        elif isinstance(old, list):
            old.extend(value if isinstance(value, list) else [value])
        else:
            first = value if isinstance(value, str) else " ".join(value)
            self.values[name] = old + first
        self._spend(self.values.get(name, ""))

    def _spend(self, value: Value) -> None:
        self._characters += len(value) if isinstance(value, str) else sum(map(len, value)) + len(value)
        if self._characters > MAX_EXPANDED:
            raise InputError(f"expected variables of at most {MAX_EXPANDED} characters", where=self.where)

    def joined(self, word: Word) -> str:
        """The word as one string, as on the right of an assignment."""
        return " ".join(self._fields(word, split=False))

    def fields(self, word: Word) -> list[str]:
        """The word's fields: unquoted expansions split at blanks, ``"${A[@]}"`` into its elements."""
        return self._fields(word, split=True)

    def _fields(self, word: Word, *, split: bool) -> list[str]:
        fields: list[str] = []
        current: str | None = None
        for part in word.parts:
            pieces, quoted = self._part(part), part.quoted or part.kind == "text"
            if split and not quoted:
                text = " ".join(pieces)
                pieces = _blank_split(text)
                if text[:1].isspace() and current is not None:
                    fields.append(current)
                    current = None
            for index, piece in enumerate(pieces):
                if index and current is not None:
                    fields.append(current)
                    current = None
                current = (current or "") + piece
            if split and not quoted and pieces and text[-1:].isspace() and current is not None:
                fields.append(current)
                current = None
        if current is not None:
            fields.append(current)
        self._spend(fields)
        return fields

    def _part(self, part: Part) -> list[str]:
        if part.kind == "variable":
            return self._variable(part.text)
        if part.kind == "arithmetic":
            return [self.arithmetic(part.text)]
        return [part.text if part.kind == "text" else unknown(f"$({part.text})")]

    def _variable(self, text: str) -> list[str]:
        """The value of ``${text}``: none where it is unset, marked where its form is not understood."""
        found = _PARAMETER.fullmatch(text)
        if found is None:
            return [unknown("${" + text + "}")]
        name, index, way, rest = found[1], found[2], found[3] or "", found[4]
        value = self._value(name, index)
        if not way and rest:
            return [unknown("${" + text + "}")]
        if way == "":
            return value if value is not None else ([] if name in "@*" else [unknown("$" + name)])
        empty = value is None or (":" in way and not any(value))
        if way.endswith("+"):
            return [] if empty else [self._default(rest)]
        if not empty and value is not None:
            return value
        if way.endswith("?"):
            return [unknown("$" + name)]
        default = self._default(rest)
        if way.endswith("="):
            self.assign(name, default)
        return [default]

    def _value(self, name: str, index: str | None) -> list[str] | None:
        self.used.add(name)
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        if index in ("[@]", "[*]"):
            return list(value)
        number = index[1:-1] if index else "0"
        return [value[int(number)]] if number.isdecimal() and int(number) < len(value) else None

    def _default(self, text: str) -> str:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise InputError(f"expected at most {MAX_NESTING} levels of nesting", where=self.where)
        found = self.joined(Scanner(text, self.where).whole())
        self._nesting -= 1
        return found

    def arithmetic(self, text: str) -> str:
        """The integer that ``$((text))`` is; marked where a variable is not known or an operator not taken."""
        names = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", text).strip()
        try:
            return str(_evaluate(ast.parse(names, mode="eval").body, self._integer))
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
            return unknown(f"$(({text}))")

    def _integer(self, name: str) -> int:
        value = self._value(name, None)
        return int(value[0] if value else "")


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b) if abs(a) < 2**52 else a // b,
    ast.Mod: operator.mod,
}


def _evaluate(node: ast.expr, integer: Callable[[str], int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.Name):
        value = integer(node.id)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = _ARITHMETIC[type(node.op)](_evaluate(node.left, integer), _evaluate(node.right, integer))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_evaluate(node.operand, integer)
    else:
        raise ValueError
    if abs(value) > 2**63:
        raise ValueError
    return value


def _blank_split(text: str) -> list[str]:
    """Split at blanks, keeping the text of an unknown together."""
    return [piece for piece in re.findall("(?:\0[^\0]*\0|[^\\s\0])+", text) if piece]
