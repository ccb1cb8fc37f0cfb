"""YAML text -> plain values, by PyYAML's nodes: nothing is built that the file does not spell out.

PyYAML's own constructors expand aliases without bound (a few lines become gigabytes), recurse as deep as the file likes
and raise whatever a tag's conversion raises. Here an alias costs what it expands to, and tags are the core schema's.
"""

from typing import Any

import yaml
from yaml.composer import Composer

from shapes.errors import InputError, refuse

from .reading import MAX_DEPTH, Include, Values

#: libyaml where PyYAML was built with it: ten times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Bounds two seconds of parsing; a configuration has a few KiB.
MAX_BYTES = 2**18 if _LOADER is not yaml.SafeLoader else 2**16
#: Values that a file may hold, what its aliases stand for counted every time.
MAX_VALUES = 100_000
#: Characters of a number: PyYAML reads 1:1:1… in base 60, in time that grows with the square.
MAX_DIGITS = 100

_TAG = "tag:yaml.org,2002:"


def parse_yaml(text: str) -> object:
    """The value of a file's document, nested at most ``MAX_DEPTH`` deep; of Kubernetes' several a List. InputError."""
    refuse(len(text) > MAX_BYTES, f"expected YAML of at most {MAX_BYTES // 2**10} KiB")
    loader, found = _Loader(text), list[Any]()
    builder = _Builder(loader)
    try:
        while loader.check_node():
            found += filter(None, [builder.value(loader.get_node())])
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        line += "; it is a template: give the values that fill it (values.yaml)" * ("{{" in text)
        raise InputError(f"expected JSON or YAML: {error.problem}{line}") from None
    except yaml.YAMLError:
        raise InputError("expected JSON or YAML") from None
    except RecursionError:
        raise InputError(f"expected at most {MAX_DEPTH} levels of nesting") from None
    finally:
        loader.dispose()
    if len(found) < 2:
        return found[0] if found else None
    several = all(isinstance(one, dict) and "apiVersion" in one for one in found)
    refuse(not several, "expected one document: but found another document")
    return {"apiVersion": found}


class _Loader(Composer, _LOADER):  # type: ignore[misc]
    """Composes in Python, whose recursion has a limit: libyaml's overflows the stack of the process."""

    def __init__(self, text: str) -> None:
        _LOADER.__init__(self, text)
        Composer.__init__(self)


class _Builder:
    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._values = 0

    def value(self, node: Any, level: int = 0) -> Any:
        """The value of a node; that of an alias is made, and counts, every time. One in itself ends at the depth."""
        self._values += 1
        refuse(self._values > MAX_VALUES, f"expected at most {MAX_VALUES} values, aliases written out")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        refuse(level >= MAX_DEPTH, f"expected at most {MAX_DEPTH} levels of nesting, aliases written out")
        kind = "seq" if isinstance(node, yaml.SequenceNode) else "map"
        self._refuse(node.tag != _TAG + kind, node, f"expected no tag, found {node.tag}")
        if kind == "seq":
            return [self.value(one, level + 1) for one in node.value]
        own = {}
        merged = Values()
        for name, one in node.value:
            self._refuse(not isinstance(name, yaml.ScalarNode), name, "expected text as a key")
            key, value = self.value(name), self.value(one, level + 1)
            if key == "<<":
                for source in value if isinstance(value, list) else [value]:
                    self._refuse(not isinstance(source, dict), one, "expected a mapping to merge")
                    merged = source | merged
            else:
                refuse(key in own, "is given twice here: keep one", str(key))
                own[key] = value
        return merged | own

    def _scalar(self, node: Any) -> Any:
        tag, text = node.tag, node.value
        if tag == "!include":
            return Include(text)
        kind = tag.removeprefix(_TAG)
        if kind in ("str", "timestamp", "value", "merge"):
            return text
        if kind in ("null", "bool", "int", "float") and len(text) <= MAX_DIGITS:
            try:
                return getattr(self._loader, f"construct_yaml_{kind}")(node)
            except (ValueError, LookupError, OverflowError):
                pass
        self._refuse(True, node, f"expected a value of the tag {kind}" if kind != tag else f"expected no tag {tag}")

    def _refuse(self, wrong: bool, node: Any, expected: str) -> None:
        refuse(wrong, f"{expected} (line {node.start_mark.line + 1})")
