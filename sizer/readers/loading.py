"""Files -> a mapping: bytes parsed, refusing what is no configuration, and the files that it builds on laid beneath it.

Those are named by ``extends``, Hydra's ``defaults``, ``!include`` and the like. Only files of one folder tree are
opened: of the one given, else of the file's repository, else of its own folder.
"""

import json
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from glob import has_magic, iglob
from itertools import chain, islice
from math import prod
from pathlib import Path
from posixpath import join
from typing import Any, NamedTuple

from shapes.errors import InputError, decoded, read_bounded, refuse, shorten, within
from shapes.frozen import Texts, without

from .reading import FORMATS, MAX_DEPTH, Config, Include, NoModel, Values, at, stated, with_settings


class DuplicateKey(InputError):  # noqa: N818
    """A key that is given twice in one object: a parser would take the last in silence."""


#: Configurations are a few KiB; anything larger is the wrong file.
MAX_BYTES = 16 * 2**20
#: Characters of YAML, Python and shell scripts.
MAX_TEXT = 2**18
#: Syntax of JSON5 that JSON does not have, and strings, whose content is left alone.
_EXTRA = (
    r"""(?s)(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<key>\b[A-Za-z_]\w{0,99})(?=\s*:)|//[^\n]*"""
    r"""|/\*(?:.*?\*/|.*)|,(?=\s*[}\]])"""
)


#: Suffixes of data and of every file that states a model; what a directory's configuration is called, most telling
#: first; without one, weights whose headers are read; keys that name one base or several, the later over the earlier.
_DATA, SUFFIXES, CONFIG_NAMES, WEIGHTS, BASE_KEYS, SETTINGS = map(tuple, FORMATS["files"].values())
_NONE_IN_IT = f"found a directory: expected one of {', '.join(CONFIG_NAMES)} in it"
#: A model's name, no file of weights': at most an organisation and a name, its words apart as people write them, and a
#: tag behind a colon.
_NAME = r"(?!.*\.(?:gguf|safetensors)$)[\w.-]*[\w](?:/[\w.-]+)?(?:[: ][\w.-]+)*"


def is_weights(path: Path) -> bool:
    """Whether it is a file of weights, or the list of such files."""
    return path.name.endswith((".gguf", ".safetensors", ".safetensors.index.json"))


def is_name(source: object) -> bool:
    """Whether it is a model's name, such as organisation/name: no file of that name, and no file's suffix."""
    text = str(source)
    named = isinstance(source, str | Path) and re.fullmatch(_NAME, text)
    return bool(named) and not text.endswith(SUFFIXES) and not os.path.exists(text)


def _config_in(folder: Path) -> Path | None:
    return next(filter(Path.is_file, map(folder.joinpath, CONFIG_NAMES + WEIGHTS)), None)


def find_config(path: Path) -> Path:
    """``path``, or the configuration inside a directory. InputError for a directory without one."""
    try:
        found = _config_in(path) if path.is_dir() else path
    except (OSError, ValueError):
        return path
    if not found:
        raise InputError(_NONE_IN_IT, where=str(path))
    return found


#: The most files of a tree; few are configurations.
MAX_FOUND = 100_000
#: Names of configurations in a folder, and words that state a model or name one: in data, in scripts, and in Python,
#: where a line has to begin with them, as programs mention sizes and options all the time.
_STATES = FORMATS["states"]


def expand(argument: str) -> Texts:
    """The files of a CONFIG argument: itself; a glob's files; the configurations anywhere in a directory.

    InputError for a glob or a directory with none.
    """
    path = Path(argument)
    try:
        folder = path.is_dir() and not _config_in(path)
        if not folder and (path.exists() or not has_magic(argument)):
            return [argument]
        found = sorted(one for one in islice(iglob(argument, recursive=True), MAX_FOUND) if Path(one).is_file())
    except (OSError, ValueError):
        return [argument]
    found = _inside(path) if folder else found
    refuse(not found, f"{_NONE_IN_IT}, or files that state a model" if folder else "matches no file", where=argument)
    return found


def _inside(directory: Path) -> Texts:
    """The configurations anywhere in a directory: what `diff --git` takes for one where git tracks it."""
    found = Texts()
    for seen, (folder, folders, files) in enumerate(os.walk(directory)):
        refuse(seen > MAX_FOUND, f"expected at most {MAX_FOUND} folders: name the one meant", where=str(directory))
        folders[:] = (one for one in folders if not _of_others(one))
        found += (os.path.join(folder, one) for one in files if may_be_configuration(one))
    return sorted(one for one in found if os.path.isfile(one) and head_states_a_model(one))


def head_states_a_model(path: str) -> bool:
    """`states_a_model` of a file."""
    return states_a_model(path, read_bounded(path, MAX_TEXT))


def may_be_configuration(name: str) -> bool:
    """Whether a file that nobody named may be a configuration by its name, told from the folder looked into."""
    return name.endswith(SUFFIXES) and not any(map(_of_others, name.split("/")))


def _of_others(name: str) -> bool:
    """Whether a file or folder is hidden, or an installed program's."""
    return name.startswith(".") or name in ("node_modules", "site-packages")


def states_a_model(name: str, content: bytes) -> bool:
    """Whether a file's beginning has words that only a model's configuration has.

    The one rule of check, diff, the hooks, the action and the editor for what nobody named.
    """
    kind = "data" if name.endswith(_DATA) else "python" if name.endswith(".py") else "script"
    return re.search(_STATES[kind].encode(), content, re.MULTILINE) is not None


#: Where the content of the hf_quant_config.json next to a config.json is put.
QUANTISATION = "_hf_quant_config"


def quantisation_of(path: Path) -> Values:
    """The hf_quant_config.json of a quantised release, next to its config.json, under ``QUANTISATION``."""
    stem = path.name.removesuffix("config.json")
    other = path.with_name(f"{stem}hf_quant_config.json")
    if stem == path.name or stem.endswith("quant_") or not other.is_file():
        return {}
    return {QUANTISATION: parse_file(other)}


def load_text(path: Path) -> str:
    """The file's text; InputError for what is missing, unreadable, too large or not UTF-8."""
    return decode(read_bounded(path, MAX_BYTES), str(path))


def parse_file(path: Path) -> Config:
    """The file's JSON or YAML (an object at the top level), with its release's quantisation."""
    return {**parse_mapping(load_text(path), str(path)), **quantisation_of(path)}


def decode(data: bytes, where: str) -> str:
    """A configuration's bytes as text; InputError for too many or for what is neither UTF-8 nor marked as UTF-16."""
    refuse(len(data) > MAX_BYTES, f"expected a configuration of at most {MAX_BYTES // 2**20} MiB", where=where)
    if data[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) and 0 in data[2:4]:  # its first character is one of ASCII
        return data.decode("utf-16", "replace")
    return decoded(data, where)


def parse_mapping(text: str, where: str) -> Config:
    """JSON or YAML whose top level is an object."""
    with within(where):
        refuse(not text.strip(), "expected a configuration, found an empty file")
        parsed = _parse_json_or_flow(text, where) if text.lstrip()[0] in "{[/" else parse_yaml(text)
        if not isinstance(parsed, dict):
            raise NoModel(f"expected an object at the top level, found {shorten(parsed)}")
        for key in parsed:
            if not isinstance(key, str):
                raise NoModel("expected text as keys", str(key))  # `on:` of a workflow is True
        return parsed


def _parse_json_or_flow(text: str, where: str) -> object:
    """JSON; in a file that calls itself YAML also flow style, with its comments and bare words, in others JSON5's."""
    try:
        return _parse_json(text)
    except InputError as error:
        if isinstance(error, DuplicateKey) or len(text) > MAX_TEXT:
            raise
        if where.endswith((".yml", ".yaml")):
            return parse_yaml(text)
        # A comma is the last one where no comment follows it.
        plain = re.sub(_EXTRA, _plain, re.sub(_EXTRA, _plain, text))
        if plain == text:
            raise
    return _parse_json(plain)


def _plain(found: re.Match[str]) -> str:
    """JSON5's texts and keys as JSON has them, without its comments and last commas; lines and columns stay."""
    if found["key"]:
        return f'"{found["key"]}"'
    said = found["text"]
    return re.sub(r"[^\n]", " ", found[0]) if said is None else said if said[0] == '"' else json.dumps(said[1:-1])


def without_comments(text: str) -> str:
    """JSON5 without its comments; lines and columns stay."""
    return re.sub(_EXTRA, lambda found: found[0] if found.lastgroup else _plain(found), text)


def _parse_json(text: str) -> object:
    try:
        parsed = json.loads(text, object_pairs_hook=_object)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"expected JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InputError(f"expected at most {MAX_DEPTH} levels of nesting") from None
    except ValueError:
        raise InputError("expected JSON") from None
    check_depth(parsed)
    return parsed


def _object(pairs: list[tuple[str, Any]]) -> Values:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise DuplicateKey("is given twice here: keep one", twice)
    return found


def parse_yaml(text: str) -> object:
    """A YAML document's value."""
    from . import yaml_values

    return yaml_values.parse_yaml(text)


def check_depth(value: object, levels: int = MAX_DEPTH) -> None:
    """InputError for what the code that walks configurations could not: it recurses."""
    refuse(levels < 0, f"expected at most {MAX_DEPTH} levels of nesting")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_depth(one, levels - 1)


#: A chain of bases has a few files; Hydra's trees a few dozen.
MAX_BASES = 64
MAX_BASE_CHARACTERS = 2**20
#: The environment's variables with a default: ``${TP:4}``, ``${TP:-4}``, ``${oc.env:TP,4}``, ``${oc.decode:4}``.
_VARIABLE = r"\$\{(?:oc\.env:[A-Z]\w*,|oc\.decode:|[A-Z][A-Z0-9_]*:-?)([^${}]*)\}"

#: An entry of Hydra's defaults: what is done with it, the group, the section.
_ENTRY = r"(?s)(?:(override|optional) +)?([^@]*)@?(.*)"
#: A choice within Hydra's defaults: ``${model_engine}_actor``.
_CHOICE = r"\$\{(\w+)\}"
_REFERENCE = r"\$\{(\.?\w+(?:\.\w+)*)\}"
#: Keys that name a program's own settings, and no other program's.
_OWN_FILES = "(?i)(?!deepspeed|config_file).*(?:conf|cfg|setting|recipe|yaml)"
#: Hydra's header of a file: the section, told from the root, where what it holds belongs.
_PACKAGE = r"\s*#[ \t]*@package[ \t]+(?!_group_)(?:_global_\.?)?(\S*)"
#: NeMo's and torchforge's resolvers, their two numbers written out.
_RESOLVED = r"\$\{(?:mul(?:tiply)?|(sum|add)):\s*(\d{1,12})\s*,\s*(\d{1,12})\s*\}"
MAX_REFERENCES = 10
#: Characters of a text that references are followed in, and of one that is put in their place.
MAX_TEXT_OF = 200


class _Base(NamedTuple):
    """An entry of a list of bases: its key, its kind (Hydra's words; a file), the files.

    Hydra's have a group too, the section from the root, and whether the list gives that (else the file's header may).
    """

    named_by: str
    how: str
    files: Sequence[str]
    group: str = ""
    section: str = ""
    placed: bool = True


class Tree:
    """The files below ``root`` that one configuration is made of. ``names``: those opened, the first one left out."""

    def __init__(self, where: str, root: str | Path | None) -> None:
        self.first = Path(where).resolve()
        above = (one for one in self.first.parents if (one / ".git").exists())
        self.root = Path(root or next(above, self.first.parent)).resolve()
        self.names = Texts()
        self._open = [self.first]
        self._overrides: dict[Any, _Base] = {}  # Hydra's, by what they override
        self._used = set[Any]()
        self._searched = [""]
        self._characters = 0

    def followed(self, config: Config) -> Values:
        """``config``, of the first file, over all that it builds on.

        InputError for a base that is missing, outside of the tree or its own base.
        """
        self._searched += [str(one).partition("://")[2] for one in _listed(at(config, "hydra.searchpath"))]
        try:
            layers = self._layers(config)
            left = [one for key, one in self._overrides.items() if key not in self._used]
            for base in left:
                layers = self._opened(base) + layers
            self.names += ["a file that it does not name and whose own keys are not read"][: len(left)]
            found = reduce(merged, layers)
        except RecursionError:
            raise InputError("expected fewer levels of nesting") from None
        check_depth(found)
        # Sections that launchers wrap a trainer's settings in, the outer one first.
        for key in ("recipes", "training_config") if self.names else ("scenario", "parameters"):
            found = _unwrapped(found, key)
        found = _referenced(found, found, found)
        named, modules = str(found.get("model_name") or "default"), found.get("modules")
        if "base_emb_dim" in found and named != "default":  # MaxText's
            found = merged(found, self._whole(f"models/{named}.yml", "model_name"))
        for module in modules.values() if isinstance(modules, Mapping) else ():
            if isinstance(module, Mapping) and {"framework", "model"} <= module.keys():
                found = self._primus(module)
        return self.with_deepspeed(found)

    def with_deepspeed(self, found: Values) -> Values:
        """``found`` with DeepSpeed's or accelerate's settings that it names.

        They may be another machine's, or of the trainer's. Devices that a command gives go over accelerate's.
        """
        for key in SETTINGS * ("_serves" not in found):
            if (named := str(found.get(key))).endswith(_DATA) and (text := self.sourced(named)):
                own = {"zero_optimization": {}, **parse_mapping(text, named), "_file": named}
                if key != "config_file" or "distributed_type" in own:
                    # accelerate's may name DeepSpeed's, and say nothing of it itself
                    name = at(own, "deepspeed_config.deepspeed_config_file")
                    more = self.with_deepspeed({"deepspeed": name}).get("_deepspeed")
                    own |= stated(num_processes=found.get("_devices")) | ({"deepspeed_config": None} if more else {})
                    made = {key: True, "_deepspeed": own, "_deepspeed_": more}
                    return {name: one for name, one in found.items() if one != named} | made
        return found

    def with_files(self, found: Values) -> Values:
        """``found`` over the files of settings that it names; a model's configuration goes under ``_built``."""
        for key, said in found.items():
            for name in str(said).split() if re.match(_OWN_FILES, key) else ():
                if name.endswith(_DATA) and (text := self.sourced(name)):
                    with suppress(InputError):  # of another kind
                        held = parse_mapping(text, name)
                        found = {**found, key: None}
                        if "model_type" in held:
                            found = {"model_name": Path(name).stem, **found, "_built": held}
                        elif "distributed_type" not in held:
                            found = merged(held, found)
        return _referenced(found, found, found)  # type: ignore[no-any-return]

    def text(self, name: str, key: str) -> tuple[Path, str]:
        """The file of this name next to the one that is open, or to a folder above it, and what it holds."""
        here = self._open[-1]
        above = [one for one in here.parents if one.is_relative_to(self.root)]
        try:
            files = (one / folder / name for one in above for folder in self._searched)
            path = next((file for file in files if file.is_file()), here.parent / name).resolve()
            there = path.is_file()
        except (OSError, ValueError, RuntimeError):
            path, there = here, False
        circle = " -> ".join(one.name for one in [*self._open, path])
        outside = not path.is_relative_to(self.root)
        for wrong, said in (
            (outside, f"is outside of {self.root}, and not opened: --root DIR"),
            (not there, "builds on this file, which is not there: --root DIR of the tree that has it"),
            (path in self._open, f"is a circle: {circle}"),
            (len(self.names) >= MAX_BASES, f"builds on more than {MAX_BASES} files"),
        ):
            refuse(wrong, said, key, name, str(here))
        text = load_text(path)
        self._characters += len(text)
        refuse(self._characters > MAX_BASE_CHARACTERS, "builds on files of more than a MiB", key, name, str(here))
        self.names += [str(path.relative_to(self.root))]
        return path, text

    def sourced(self, name: str) -> str | None:
        """The text of a script that another one sources, found by the known part of its path; None if there is none.

        Parts that only running tells (``$(dirname $0)``) and the place of its repository do not count.
        """
        parts = [one for one in re.sub("\0[^\0]*\0", "", name).split("/") if one.strip(".~")]
        for first in range(len(parts)):
            with suppress(InputError):
                return self.text("/".join(parts[first:]), "source")[1]
        return None

    def _opened(self, base: _Base) -> list[Any]:
        """The layers of a base or of its override, in the section of the list, else of Hydra's header."""
        self._used.add(base[3:5])
        chosen = self._overrides.get(base.how != "file" and base[3:5], base)
        layers = list[Any]()
        for name in reversed(chosen.files):
            try:
                path, text = self.text(name, base.named_by)
            except InputError:
                if base.how == "optional":
                    continue
                raise
            self._open += [path]
            text = text if re.sub("#.*", "", text).strip() else "{}"
            with within(str(path)):
                held = parse_yaml(text) if base.named_by == "!include" else parse_mapping(text, str(path))
            header = None if base.placed else re.match(_PACKAGE, text)
            section = header[1] if header else base.section
            own = self._layers(held, base.group, section) if isinstance(held, dict) else [self._included(held)]
            layers = own + layers
            self._open.pop()
        return layers

    def _whole(self, name: str, named_by: str) -> Any:
        """A file's content over all that it builds on."""
        return reduce(merged, self._opened(_Base(named_by, "file", [name])))

    def _included(self, value: Any) -> Any:
        if isinstance(value, Include):
            return self._whole(str(value), "!include")
        if isinstance(value, list):
            return [self._included(one) for one in value]
        return {k: self._included(one) for k, one in value.items()} if isinstance(value, Mapping) else _settled(value)

    def _layers(self, config: Config, group: str = "", section: str = "") -> list[Any]:
        """The bases of ``config`` (in Hydra's ``group``) and its own keys in its ``section``, the lowest first."""
        named = [key for key in BASE_KEYS if isinstance(config.get(key), str | list)]
        held = self._included(without(config, named))
        own = [with_settings({}, {section: held}) if section else held]
        bases = [*chain.from_iterable(self._bases(config, key, group, section) for key in named)]
        found = own * all(base.how != "_self_" for base in bases)
        for base in reversed(bases):  # as Hydra does: a later one may override the choice of an earlier one
            found = (own if base.how == "_self_" else self._opened(base)) + found
        return found

    def _bases(self, config: Config, key: str, above: str, section: str) -> Iterator[_Base]:
        """The entries of a list of bases; Hydra's ``defaults``, in a file of the group ``above``, but for overrides."""
        listed = _listed(config[key])
        choices = {name: value for one in (config, *listed) if isinstance(one, Mapping) for name, value in one.items()}
        for one in listed:
            grouped = isinstance(one, Mapping)
            said, choice = next(iter(one.items()), ("", [])) if grouped else (one, "")
            how, place, given = re.findall(_ENTRY, str(said))[0]
            if not grouped:
                place, _, choice = place.rpartition("/")
            group = join(above, place).strip("./")
            if group.startswith("hydra/"):
                continue
            path = not grouped and str(choice).endswith(_DATA)  # NeMo-RL's, which Hydra would not take for a group
            # Its keys go to the section that the list gives, else to the group's; a file's, to that of the list itself.
            given = given if key == "defaults" and not path else "_here_"
            inner = given or place.strip("./").replace("/", ".")
            below = f"{section}.{inner}".replace("_here_", "").rpartition("_global_")[2].strip(".")
            folder = group if key == "defaults" else place
            names = [
                re.sub(_CHOICE, lambda found: str(choices.get(found[1])), join(folder, str(each)))
                for each in _listed(choice)
                if each is not None
            ]
            files = [name if name.endswith(_DATA) else f"{name}.yaml" for name in names]
            how = choice if choice == "_self_" else how or ("" if grouped else "file")
            base = _Base(key, how, files, group, below, bool(given))
            if how == "override":
                self._overrides.setdefault(base[3:5], base)  # that of the file that builds on this one comes first
            else:
                yield base

    def _primus(self, module: Config) -> Values:
        """Primus' module: its presets of the trainer and of the model beneath its overrides."""
        found = Values()
        for kind, key in (("modules", "config"), ("models", "model")):
            if isinstance(name := module.get(key), str):
                found = merged(found, self._whole(f"primus/configs/{kind}/{module['framework']}/{name}", key))
        return merged(found, module.get("overrides") or {})


def _unwrapped(found: Values, key: str) -> Values:
    """``found`` over what its section ``key`` has, or the one mapping of that list (llm-d's scenario).

    Of a sweep's parameters those with one value are read; the others stay under ``sweep``. ``wraps``: keys of the files
    where a section that is no list counts.
    """
    inner = found.get(key)
    if isinstance(inner, list):
        inner = inner[0] if len(inner) == 1 else None
    elif found.keys().isdisjoint(FORMATS["wraps"].get(key, found)):
        return found
    if not isinstance(inner, Mapping):
        return found
    if "program" in found:
        same = {name: one["value"] for name, one in inner.items() if isinstance(one, Mapping) and "value" in one}
        inner = {**same, "sweep": [without(inner, same)]}
    return merged(inner, without(found, [key]))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _settled(value: Any) -> Any:
    """A text with the defaults of its variables in place; as YAML has it where it was nothing else."""
    if not isinstance(value, str) or not (found := re.search(_VARIABLE, value)):
        return value
    text = re.sub(_VARIABLE, r"\1", value)
    return parse_yaml(text) if found.span() == (0, len(value)) and re.fullmatch(r"[\w.+-]+", text) else _settled(text)


def _referenced(value: Any, own: Config, root: Config) -> Any:
    """``value`` with OmegaConf's references followed: ``${a.b}`` from the root, ``${.b}`` in its own section."""
    if isinstance(value, Mapping):
        return {key: _referenced(one, value, root) for key, one in value.items()}

    def held(found: re.Match[str]) -> Any:
        one = at(own if found[1][0] == "." else root, found[1].lstrip("."))
        return found[0] if isinstance(one, Mapping | list | None) or len(str(one)) > MAX_TEXT_OF else one

    for _ in range(MAX_REFERENCES):
        if not isinstance(value, str) or "${" not in value or len(value) > MAX_TEXT_OF:
            return value
        named = re.fullmatch(_REFERENCE, value)
        value = held(named) if named else re.sub(_REFERENCE, lambda found: str(held(found)), value)
        if resolved := re.fullmatch(_RESOLVED, str(value)):
            added, *numbers = resolved.groups()
            return (sum if added else prod)(map(int, numbers))
    return value


def merged(below: Config, above: Config) -> Values:
    """``above`` over ``below``, section by section; ``_override_`` in a section puts it in the other's place."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        both = isinstance(value, Mapping) and not value.get("_override_")
        found[key] = merged(old, value) if both and isinstance(old, Mapping) else value
    return found
