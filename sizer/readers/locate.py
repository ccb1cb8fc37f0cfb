"""The position of a key in a configuration's text: JSON, YAML, TOML, Python, and by its name anywhere else.

The parsers that read configurations keep no positions, so the text is scanned again, only when a format asks.
"""

import re
from collections.abc import Iterator
from typing import Any

from shapes.frozen import Pair, first_of, frozen

from .loading import MAX_TEXT, without_comments

#: Where something begins and ends, in characters.
Span = Pair
#: A script's option or a name, and the number that it has.
_WORD = r"(?<![\w-])(?:--)?([A-Za-z_][\w-]*)(?:[ =]+(\d+)\b)?"
_TOML_TABLE = r"^[ \t]*\[\[?[ \t]*([^\]]+?)[ \t]*\]"
_ASSIGNED = r"""^[ \t]*([A-Za-z0-9_.\"'-]+)[ \t]*=(?!=)[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s#,]+)?"""


@frozen
class Place:
    """A key's place: ``line`` and ``column`` from one, in characters; it ends before ``end_column`` of its line."""

    line: int
    column: int
    end_column: int


@frozen
class Entry:
    """A key as written, dotted if nested, with the span of its name and of its value (None: no single one)."""

    key: str
    name: Span
    value: Span | None


def locate(text: str, key: str, path: str) -> Place | None:
    """The place of ``key``, dotted where nested, in the text of the file ``path``; None where it is absent.

    >>> locate('{"a": {"b": 1}}', "a.b", "config.json")
    Place(line=1, column=8, end_column=11)
    """
    found = entry(text, key, path)
    return place(text, *found.name) if found else None


def entry(text: str, key: str, path: str) -> Entry | None:
    """The entry of ``key``; None where it is absent."""
    entries = {one.key: one for one in reversed(list(_keys(text, path)))}  # the first of equal keys
    if key in entries:
        return entries[key]
    inner = [one for one in entries.values() if one.key.rpartition(".")[2] == key.rpartition(".")[2]]
    return inner[0] if len(inner) == 1 else None


def key_at(text: str, line: int, column: int, path: str) -> str | None:
    """The key at a line and column (from one) of a file's text, its value's too, dotted where nested; None elsewhere.

    >>> key_at('{"a": {"b": 1}}', 1, 13, "config.json")
    'a.b'
    """
    lines = text.split("\n")
    if not 0 < line <= len(lines):
        return None
    at = sum(len(one) + 1 for one in lines[: line - 1]) + column - 1
    return first_of(one.key for one in _keys(text, path) if one.name[0] <= at <= (one.value or one.name)[1])


def _keys(text: str, path: str) -> Iterator[Entry]:
    """Every key in order; of a script every word."""
    if path.endswith((".toml", ".py")):
        return _assigned_keys(text)
    if text.lstrip().startswith("{") or path.endswith((".yaml", ".yml")):
        return _node_keys(_node_of(text), "", set())
    return (
        Entry(word[1].replace("-", "_"), (word.start(), word.end(1)), word.span(2) if word[2] else None)
        for word in re.finditer(_WORD, text)
    )


def place(text: str, start: int, end: int) -> Place:
    """The place of characters ``start`` to ``end``, which lie in one line."""
    before = text.rfind("\n", 0, start) + 1
    return Place(text.count("\n", 0, start) + 1, start - before + 1, end - before + 1)


def _node_of(text: str) -> Any:
    """The node of YAML, or of JSON, which is YAML but for tabs and JSON5's comments; None where it is neither."""
    import yaml

    if text.lstrip().startswith("{"):
        text = without_comments(text.replace("\t", " "))
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader) if len(text) <= MAX_TEXT else None
    except (yaml.YAMLError, RecursionError):
        return None


def _node_keys(node: Any, path: str, met: set[int]) -> Iterator[Entry]:
    """The keys below a node, once where aliases name it again."""
    import yaml

    if id(node) in met:
        return
    met.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _node_keys(item, path, met)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = f"{path}.{key.value}".lstrip(".")
        scalar = (value.start_mark.index, value.end_mark.index) if isinstance(value, yaml.ScalarNode) else None
        yield Entry(name, (key.start_mark.index, key.end_mark.index), scalar)
        yield from _node_keys(value, name, met)


def _assigned_keys(text: str) -> Iterator[Entry]:
    """Keys of TOML, names of a Python file's assignments."""
    table, start = "", 0
    for line in text.splitlines(keepends=True):
        if found := re.match(_TOML_TABLE, line):
            table = found[1] + "."
        elif found := re.match(_ASSIGNED, line):
            name, value = ((start + found.start(group), start + found.end(group)) for group in (1, 2))
            yield Entry(table + found[1].strip("\"'"), name, value if found[2] else None)
        start += len(line)
