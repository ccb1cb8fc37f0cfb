"""YAML text -> plain values, by PyYAML's events: nothing is built that the file does not spell out.

PyYAML's own constructors expand aliases without bound (a few lines become gigabytes), recurse as deep as the file likes
and raise whatever a tag's conversion raises. Here an alias costs what it expands to, and tags are the core schema's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from shapes.errors import InputError
from sizer.readers.reading import Include

#: libyaml where PyYAML was built with it: ten times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Bounds two seconds of parsing; a configuration has a few KiB.
MAX_BYTES = 2**18 if _LOADER is not yaml.SafeLoader else 2**16
#: Values that a file may hold, what its aliases stand for counted every time.
MAX_VALUES = 100_000
#: Characters of a number: PyYAML reads 1:1:1… in base 60, in time that grows with the square.
MAX_DIGITS = 100

_TAG = "tag:yaml.org,2002:"
_WORDS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been seen; ``key``: of a mapping, the key that waits for its value.

    ``merged``: keys that it has from other mappings alone (``<<``), which its own may replace.
    """

    value: Any
    anchor: str | None
    values: int = 1
    key: Any = None
    keyed: bool = False
    merged: set[Any] = field(default_factory=set)


def parse_yaml(text: str, where: str, depth: int) -> object:
    """The value of a file of one document, nested at most ``depth`` deep. InputError for anything else."""
    if len(text) > MAX_BYTES:
        raise InputError(f"expected YAML of at most {MAX_BYTES // 2**10} KiB", where=where)
    try:
        return _Builder(_LOADER(text), where, depth).document()
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"expected JSON or YAML: {error.problem}{line}", where=where) from None
    except yaml.YAMLError:
        raise InputError("expected JSON or YAML", where=where) from None


class _Builder:
    def __init__(self, loader: Any, where: str, depth: int) -> None:
        self._loader, self._where, self._depth = loader, where, depth
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0
        self._root: Any = None

    def document(self) -> Any:
        documents = 0
        try:
            while self._loader.check_event():
                event = self._loader.get_event()
                documents += isinstance(event, yaml.DocumentStartEvent)
                if documents > 1:
                    raise self._error(event, "expected one document")
                self._take(event)
        finally:
            self._loader.dispose()
        return self._root

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            if event.anchor:
                self._anchors[event.anchor] = value, 1
            self._add(event, value, 1)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:  # unknown, or of a collection that holds this alias
                raise self._error(event, f"expected a value before it, found the alias *{event.anchor}")
            self._add(event, *self._anchors[event.anchor])
        elif isinstance(event, yaml.CollectionStartEvent):
            kind = "seq" if isinstance(event, yaml.SequenceStartEvent) else "map"
            if event.tag not in (None, "!", _TAG + kind):
                raise self._error(event, f"expected no tag, found {event.tag}")
            if len(self._open) >= self._depth:
                raise InputError(f"expected at most {self._depth} levels of nesting", where=self._where)
            self._open.append(_Open([] if kind == "seq" else {}, event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = self._open.pop()
            if closed.anchor:
                self._anchors[closed.anchor] = closed.value, closed.values
            self._add(event, closed.value, closed.values, counted=True)

    def _add(self, event: Any, value: Any, values: int, *, counted: bool = False) -> None:
        """Put ``value``, which counts as so many, where it belongs (``counted``: its parts were when they came)."""
        self._values += 1 if counted else values
        if self._values > MAX_VALUES:
            raise InputError(f"expected at most {MAX_VALUES} values, aliases written out", where=self._where)
        if not self._open:
            self._root = value
            return
        parent = self._open[-1]
        parent.values += values
        if isinstance(parent.value, list):
            parent.value.append(value)
        elif not parent.keyed:
            if isinstance(value, list | dict):
                raise self._error(event, "expected text as a key")
            parent.key, parent.keyed = value, True
        else:
            parent.keyed = False
            if parent.key == "<<":
                self._merge(event, parent, value)
                return
            if parent.key in parent.value and parent.key not in parent.merged:
                raise InputError("is given twice here: keep one", where=self._where, key=str(parent.key))
            parent.merged.discard(parent.key)
            parent.value[parent.key] = value

    def _merge(self, event: Any, into: _Open, value: Any) -> None:
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                raise self._error(event, "expected a mapping to merge")
            into.merged |= source.keys() - into.value.keys()
            for key, item in source.items():
                into.value.setdefault(key, item)

    def _scalar(self, event: Any) -> Any:
        tag, text = event.tag, event.value
        if tag == "!include":
            return Include(text)
        if tag in (None, "!"):
            tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit)
        kind = tag.removeprefix(_TAG)
        if kind in ("str", "timestamp", "value", "merge"):
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if kind in ("int", "float") and 0 < len(text) <= MAX_DIGITS:
            node = yaml.ScalarNode(tag, text)
            try:
                made = self._loader.construct_yaml_int if kind == "int" else self._loader.construct_yaml_float
                return made(node)
            except (ValueError, IndexError, OverflowError):
                pass
        raise self._error(event, f"expected a value of the tag {kind}" if kind != tag else f"expected no tag {tag}")

    def _error(self, event: Any, expected: str) -> InputError:
        return InputError(f"{expected} (line {event.start_mark.line + 1})", where=self._where)
