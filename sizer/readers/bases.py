"""Files that a configuration builds on (``extends``, Hydra's ``defaults``, ``!include`` ...), laid beneath it.

Only files of one folder tree are opened: of the one given, else of the file's repository, else of its own folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shapes.errors import InputError, refuse
from sizer.readers.fields import Config, Values
from sizer.readers.loading import check_depth, load_text, parse_mapping, parse_yaml
from sizer.readers.reading import Include, at

#: Keys that name one base or several, the later over the earlier.
KEYS = ("extends", "bases", "_base_", "_BASE_", "base_config", "defaults")
#: A chain of bases has a few files; Hydra's trees a few dozen.
MAX_FILES = 64
MAX_CHARACTERS = 2**20
#: The environment's variables with a default: ``${TP:4}``, ``${TP:-4}``, ``${oc.env:TP,4}``.
_VARIABLE = re.compile(r"\$\{(?:oc\.env:[A-Z]\w*,|[A-Z][A-Z0-9_]*:-?)([^${}]*)\}")

#: A choice within Hydra's defaults: ``${model_engine}_actor``.
_CHOICE = re.compile(r"\$\{(\w+)\}")
_REFERENCE = re.compile(r"\$\{(\.?\w+(?:\.\w+)*)\}")
MAX_REFERENCES = 10
_SUFFIXES = (".yaml", ".yml", ".json")


class Tree:
    """The files below ``root`` that one configuration is made of. ``names``: those opened, the first one left out."""

    def __init__(self, where: str, root: str | Path | None = None) -> None:
        self.first = Path(where).resolve()
        above = (one for one in self.first.parents if (one / ".git").exists())
        self.root = Path(root).resolve() if root is not None else next(above, self.first.parent)
        self.names: list[str] = []
        self._open = [self.first]
        self._characters = 0

    def followed(self, config: Config) -> Values:
        """``config``, of the first file, over all that it builds on. InputError for a base that is missing,

        outside of the tree or its own base.
        """
        try:
            found = self._with_bases(config)
        except RecursionError:
            raise InputError("expected fewer levels of nesting", where=str(self.first)) from None
        check_depth(found, str(self.first))
        found = {key: _referenced(value, found, found) for key, value in found.items()}
        named, modules = found.get("model_name"), found.get("modules")
        if "base_emb_dim" in found and isinstance(named, str) and named not in ("", "default"):  # MaxText's
            found = merged(found, self._base(f"models/{named}.yml", "model_name"))
        for module in modules.values() if isinstance(modules, Mapping) else ():
            if isinstance(module, Mapping) and {"framework", "model"} <= module.keys():
                found = self._primus(module)
        return found

    def text(self, name: str, key: str) -> tuple[Path, str]:
        """The file of this name next to the one that is open, or to a folder above it, and what it holds."""
        here = self._open[-1]
        above = [one for one in here.parents if one.is_relative_to(self.root)]
        try:
            path = next((file for one in above if (file := one / name).is_file()), here.parent / name).resolve()
            there = path.is_file()
        except (OSError, ValueError, RuntimeError):
            path, there = here, False
        outside = not path.is_relative_to(self.root)
        self._refuse(outside, f"is outside of {self.root}, and not opened: --root DIR", key, name)
        self._refuse(not there, "builds on this file, which is not there", key, name)
        circle = " -> ".join(one.name for one in [*self._open, path])
        self._refuse(path in self._open, f"is a circle: {circle}", key, name)
        text = load_text(path)
        self._characters += len(text)
        many = len(self.names) >= MAX_FILES or self._characters > MAX_CHARACTERS
        self._refuse(many, f"builds on more than {MAX_FILES} files, or a MiB", key, name)
        self.names.append(str(path.relative_to(self.root)))
        return path, text

    def sourced(self, name: str) -> str | None:
        """The text of a script that another one reads in, by as much of its path as there is; None where there is none.

        What a script finds out by running (``$(dirname $0)``) and the place of its repository are no part of that.
        """
        parts = [one for one in re.sub("\0[^\0]*\0", "", name).split("/") if one.strip(".~")]
        for first in range(len(parts)):
            try:
                return self.text("/".join(parts[first:]), "source")[1]
            except InputError:
                continue
        return None

    def _refuse(self, wrong: bool, said: str, key: str, name: str) -> None:
        refuse(wrong, said, key, name, str(self._open[-1]))

    def _base(self, name: str, key: str) -> Any:
        path, text = self.text(name, key)
        self._open.append(path)
        found = parse_yaml(text, str(path)) if key == "!include" else parse_mapping(text, str(path))
        found = self._with_bases(found) if isinstance(found, dict) else self._included(found)
        self._open.pop()
        return found

    def _included(self, value: Any) -> Any:
        if isinstance(value, Include):
            return self._base(str(value), "!include")
        if isinstance(value, list):
            return [self._included(one) for one in value]
        return {k: self._included(one) for k, one in value.items()} if isinstance(value, Mapping) else _settled(value)

    def _with_bases(self, config: Config) -> Values:
        named = {key: config[key] for key in KEYS if isinstance(config.get(key), str | list)}
        own = self._included({key: value for key, value in config.items() if key not in named})
        found: Values = {}
        itself = False
        for key in named:
            for package, name in self._named(config, key):
                itself = itself or not name
                found = merged(found, _within(package, self._base(name, key)) if name else own)
        return found if itself else merged(found, own)

    def _named(self, config: Config, key: str) -> Iterator[tuple[str, str]]:
        """(the section, the file) of each base, in order; no file where ``_self_`` is."""
        listed = config[key] if isinstance(config[key], list) else [config[key]]
        choices = {name: value for one in (config, *listed) if isinstance(one, Mapping) for name, value in one.items()}
        for one in listed:
            place, name = next(iter(one.items())) if isinstance(one, Mapping) and one else (one, "")
            group, _, package = str(place).removeprefix("optional ").partition("@")
            if group == "_self_":
                yield "", ""
            elif group.startswith("override ") and not group.startswith("override hydra/"):
                self._refuse(True, "changes a base's choice, which is not followed here", key, group)
            elif name is not None and not group.startswith("override "):
                chosen = _CHOICE.sub(lambda found: str(choices.get(found[1])), str(name))
                file = f"{group}/{chosen}".strip("/")
                section = group.strip("./").replace("/", ".") if name else ""
                section = {"_global_": "", "_here_": "", "": section}.get(package, package)
                yield section, file if file.endswith(_SUFFIXES) else f"{file}.yaml"

    def _primus(self, module: Config) -> Values:
        """Primus' module: its presets of the trainer and of the model beneath its overrides."""
        found: Values = {}
        for kind, key in (("modules", "config"), ("models", "model")):
            if isinstance(name := module.get(key), str):
                found = merged(found, self._base(f"primus/configs/{kind}/{module['framework']}/{name}", key))
        return merged(found, module.get("overrides") or {})


def _settled(value: Any) -> Any:
    """A text with the defaults of its variables in place; as YAML has it where it was nothing else."""
    if not isinstance(value, str) or (found := _VARIABLE.search(value)) is None:
        return value
    text = _VARIABLE.sub(r"\1", value)
    return parse_yaml(text, "") if found.span() == (0, len(value)) and re.fullmatch(r"[\w.+-]+", text) else text


def _referenced(value: Any, own: Config, root: Config) -> Any:
    """``value`` with OmegaConf's references followed: ``${a.b}`` from the root, ``${.b}`` in its own section."""
    if isinstance(value, Mapping):
        return {key: _referenced(one, value, root) for key, one in value.items()}
    for _ in range(MAX_REFERENCES):
        named = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        found = at(own if named[1].startswith(".") else root, named[1].lstrip(".")) if named else None
        value = value if found is None or isinstance(found, Mapping | list) else found
    return value


def _within(package: str, value: Any) -> Any:
    for name in reversed(package.split(".") if package else []):
        value = {name: value}
    return value


def merged(below: Config, above: Config) -> Values:
    """``above`` over ``below``, section by section; ``_override_`` in a section puts it in the other's place."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        both = isinstance(value, Mapping) and not value.get("_override_")
        found[key] = merged(old, value) if both and isinstance(old, Mapping) else value
    return found
