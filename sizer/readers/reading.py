"""Typed access to a configuration's fields, with errors that name file, key and value.

Also a reader's answer; the keys that it did not look at (which change the model, its split or its step, which are
typing errors, which are harmless); and the refusal of recipes that leave a model's sizes to another file.

One mechanism for every format: ``Fields`` records what was asked for, and ``formats.json`` says of each format which
further keys are known to matter or to be harmless (globs allowed).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from posixpath import basename
from typing import Any

from shapes.dtypes import next_multiple
from shapes.errors import InputError, positive_int, refuse, shorten
from shapes.frozen import Named, Sizes, Texts, Words, among, first_of, frozen, given, without
from shapes.frozen import Names as Names
from shapes.frozen import Values as Values
from shapes.frozen import stated as stated
from shapes.model import ModelShape, Unread
from shapes.model.resize import dimensions
from shapes.toml_table import nearest, table_of

#: A configuration's keys and what they hold.
Config = Named
#: The names of a configuration's keys, and of those of sections at any depth.
Held = tuple[set[str], set[str]]

#: Deeper nesting than any configuration has; the parsers recurse.
MAX_DEPTH = 100
#: More layers than any model has; the pattern of layers is walked, so it must end.
MAX_LAYERS = 10_000
_MISSING = object()


#: Marks around a value that a script does not hold.
_MARK = "\0"
_UNKNOWN = "\0([^\0]*)\0"


def unknown(text: str) -> str:
    """``text`` (``$1``, ``$(nproc)``) marked as a value that the script does not hold."""
    return f"{_MARK}{' '.join(text.split())[:60]}{_MARK}"


def unknown_in(text: str) -> str | None:
    """The unknown part of ``text``, as the script writes it; None where all is."""
    return first_of(re.findall(_UNKNOWN, text))


@cache
def table(name: str) -> Any:
    """A data file of the readers.

    ``formats`` (what each calls the dimensions, takes absent keys to be, and has of no concern), ``hf_defaults``,
    ``tokenizers``, and sizes of models that a file may name.
    """
    return table_of(__file__, f"{name}.json")


#: Each format's names of the dimensions, the keys that claim a file for it, and its defaults.
FORMATS = table("formats")
#: What names of models, and of settings of their runs, are told by.
WORDS = FORMATS["names"]


def whole(value: Any) -> Any:
    """A float that is an integer as one (``4096.0``); else the value."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@dataclass(eq=False)
class Fields:
    """A mapping read by key with its type demanded; absent keys take the model class's default.

    An error names the key; who reads a file adds its name (``within``).

    Several names may be given where versions differ: the first present one counts. ``key_of`` says which it was.
    ``present``: keys of the file without a value, which a flag needs none of; ``flags``: those found so.
    ``asked`` collects every name asked for, present or not, dotted where nested: what is left was not read.
    """

    config: Config
    defaults: Config = field(default_factory=dict)
    prefix: str = ""
    asked: set[str] = field(default_factory=set)
    present: frozenset[str] = frozenset()
    flags: set[str] = field(default_factory=set)

    def key_of(self, *names: str) -> str:
        """The name under which the first of ``names`` is in the file, dotted if nested; else the first name."""
        return self.prefix + next((name for name in names if name in self.config), names[0])

    def raw(self, *names: str, default: Any = None) -> Any:
        """The value of the first of ``names`` in the file, else in the format's defaults, else ``default``."""
        self.ignore(*names)
        for source in (self.config, self.defaults):
            for name in names:
                if name in source:
                    return whole(source[name])
        if default is not _MISSING:
            return default
        key = self.prefix + names[0]
        raise InputError(f"expected this key{self.misspelt(names)}; --set {key}=VALUE", key)

    def misspelt(self, names: Collection[str]) -> str:
        """A clause on the keys that are ``names`` misspelt."""
        return "".join(
            f"; {key} is not known here: did you mean {near}?"
            for key in self.config
            if key not in {*names, *self.defaults} and (near := misspelt(key, names, self.config))
        )

    def required(self, *names: str) -> Any:
        """The ``raw`` value; InputError where there is none."""
        return self.raw(*names, default=_MISSING)

    def ignore(self, *names: str) -> None:
        """Names that the model's class has no use for here, whatever they say: nothing is lost by not reading them."""
        self.asked |= {self.prefix + name for name in filter(None, names)}

    def error(self, expected: str, *names: str) -> InputError:
        """An error about the named field's value."""
        return InputError(expected, self.key_of(*names), self.raw(*names))

    def refuse(self, wrong: object, expected: str, *names: str) -> None:
        """The named field's ``error`` where ``wrong`` holds."""
        if wrong:
            raise self.error(expected, *names)

    def integer(self, *names: str, default: Any = _MISSING) -> int:
        """A positive integer; a list that says one for every layer is that one."""
        value = self.raw(*names, default=default)
        if isinstance(value, list) and len(value) > 1 and all(one == value[0] for one in value):
            value = value[0]
        return positive_int(value, self.key_of(*names))

    def optional(self, *names: str) -> int | None:
        """A positive integer, or None where it is null or absent."""
        value = self.raw(*names)
        return None if value is None else positive_int(value, self.key_of(*names))

    def count(self, *names: str, default: int = 0) -> int:
        """An integer of zero or more; null is ``default``."""
        value = self.raw(*names)
        return 0 if value == 0 and value is not False else self.optional(*names) or default

    def layers(self, *names: str) -> int:
        """A number of layers, within what any model has."""
        layers = self.integer(*names)
        self.refuse(layers > MAX_LAYERS, f"expected at most {MAX_LAYERS} layers", *names)
        return layers

    def quotient(self, whole: int, number: int, what: str, *names: str) -> int:
        """``whole / number``; an error about the field that says ``number`` unless that divides ``what``."""
        self.refuse(whole % number, f"expected a divisor of {what}", *names)
        return whole // number

    def kv_heads(self, heads: int, *names: str) -> int:
        """Key/value heads: one for every head where there are none; they divide the heads."""
        kv_heads = self.optional(*names) or heads
        self.quotient(heads, kv_heads, f"the {heads} attention heads", *names)
        return kv_heads

    def top_k(self, experts: int, *names: str) -> int:
        """The experts that a token meets, of so many."""
        top_k = self.integer(*names)
        self.refuse(top_k > experts, f"expected at most the {experts} experts there are", *names)
        return top_k

    def choice(self, value: str, choices: Config, *names: str) -> Any:
        """The choice that ``value``, the field's value, names."""
        self.refuse(value not in choices, f"expected one of {', '.join(choices)}", *names)
        return choices[value]

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self.raw(*names, default=default)
        if found := self.present.intersection(names):
            self.flags |= found
            return True
        value = bool(value) if value in (0, 1) else value
        return bool(self._checked(value, bool, "expected true or false", default, *names))

    def text(self, *names: str, default: str = "") -> str:
        return str(self._checked(self.raw(*names, default=default), str, "expected a string", default, *names))

    def number(self, *names: str, default: float = 0.0) -> float:
        """A finite number of zero or more."""
        value = self.raw(*names, default=default)
        if value is None:
            return default
        wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18
        self.refuse(wrong, "expected a number of at least 0", *names)
        return float(value)

    def strings(self, *names: str, of: str = "strings") -> Texts:
        """A list of strings, that of the first name with one; absent: empty."""
        return self.each(None, of, lambda item: isinstance(item, str), *names)

    def integers(self, *names: str, length: int | None = None) -> list[int]:
        """A list of integers of zero or more, of ``length`` where that is given, as ``strings``."""
        return self.each(length, "integers", lambda item: type(item) is int and item >= 0, *names)

    def each(self, length: int | None, of: str, right: Callable[[Any], bool], *names: str) -> list[Any]:
        """A list of items ``of`` a kind, each ``right``, of ``length`` where that is given; absent: empty."""
        self.ignore(*names)
        value: Any = next((found for name in names if (found := self.raw(name))), [])
        few = isinstance(value, list) and len(value) <= 1_000_000 and length in (None, len(value))
        self.refuse(
            not few or not all(map(right, value)),
            f"expected a list of {'' if length is None else f'{length} '}{of}",
            *names,
        )
        return list(value)

    def nested(self, *names: str) -> "Fields":
        """The mapping under the first of ``names`` that is present."""
        value = self.raw(*names, default={})
        self.refuse(not isinstance(value, Mapping), "expected an object", *names)
        return Fields(value, prefix=self.key_of(*names) + ".", asked=self.asked)

    def automatic(self, *names: str) -> int | None:
        """A count; None where it is absent, zero or "auto", which leaves it to another file."""
        return None if self.raw(*names) == "auto" else self.count(*names) or None

    def _checked(self, value: Any, kind: Any, expected: str, default: Any, *names: str) -> Any:
        self.refuse(value is not None and not isinstance(value, kind), expected, *names)
        return default if value is None else value


def tokenizer_size(name: str) -> int | None:
    """Tokens of the tokenizer that a type, a model's name or a file's name means; None where that is not known."""
    tokens: Sizes = table("tokenizers")["tokens"]
    return tokens.get(_entry(name.rstrip("/").lower(), tokens) or "")


def vocabulary(fields: Fields, ranks: str, tokenizers: Callable[[], Sequence[str]], *extra: str) -> tuple[int, Names]:
    """(size padded for the tensor-parallel ``ranks``, notes).

    Without ``vocab_size`` it is that of the first of ``tokenizers`` whose size is known, and ``extra`` tokens.
    """
    padded = fields.optional("padded_vocab_size", "pad_vocab_size_to")
    step = fields.integer("make_vocab_size_divisible_by", default=128) * fields.integer(ranks, default=1)
    if padded is not None:
        return padded, ()
    size = fields.optional("vocab_size")
    if size is not None:
        return next_multiple(size, step), ("the vocabulary is the padded one, as the products use it",)
    names = list(dict.fromkeys(filter(None, tokenizers())))
    name = first_of(filter(tokenizer_size, names))
    if name is None:
        named = f" ({', '.join(names)})".replace("\0", "") if names else ""
        expected = f"expected this key: the tokenizer{named} decides it and its size is not known"
        raise fields.error(f"{expected}; --set {fields.key_of('vocab_size')}=N", "vocab_size")
    size = (tokenizer_size(name) or 0) + fields.count(*extra)
    padded = next_multiple(size, step)
    return padded, (f"no vocab_size: {size:,} tokens of {name} are taken, padded to {padded:,}",)


#: The effect of a key whose value only running a script would tell.
LACKS = "the layout or the model, and the file does not hold its value"


@frozen
class Reading:
    """A configuration as read.

    ``keys``: dimension (``DIMENSIONS``) -> its key in the file, nested ones dotted. ``workload``: fields of
    ``Workload`` that the file gives. ``longest``: the default sequence. ``notes``: what a person should know about how
    it was read. ``unread``: keys that matter, or that nobody knows, and were not read. ``asked``: the keys that the
    reader looked for. ``recognised``: no reader knows the type; its transformers class was recognised and proven
    (shapes.trace.prove). ``rounds``: for a recipe of reinforcement learning, the workloads of decoding and of forward
    passes by phase, and under ``share`` the lengths in a round. ``pixels``: the side of an image's token, if images are
    the sequence.
    """

    model: ModelShape
    format: str
    source: str
    keys: Words = field(default_factory=dict)
    workload: Config = field(default_factory=dict)
    longest: int | None = None
    config: Config = field(default_factory=dict)
    notes: Names = ()
    unread: tuple[Unread, ...] = ()
    asked: frozenset[str] = frozenset()
    recognised: bool = False
    rounds: Named = field(default_factory=dict)
    pixels: int = 0

    @property
    def left_out(self) -> Names:
        """Notes on parts of the file that no figure counts."""
        said = "left out", "not run", "not read"
        return tuple(one for one in (*self.notes, *sentences(self.unread)) if one.startswith(said))


def reading(fields: "Fields", format_name: str, model: ModelShape, where: str, **said: Any) -> Reading:
    """The answer of a reader of the ``fields`` of a file, with the keys of dimensions that the model has.

    ``said`` are further fields of Reading.
    """
    # A count of shared experts is no dimension: their width is the count's.
    held = {"shared_experts", *dimensions(model)}
    keys = among(said.pop("keys"), held)
    return Reading(model, format_name, where, keys, asked=frozenset(fields.asked), **said)


@frozen
class Source:
    """A configuration to read (a path, a mapping, "-" already read as text) with what the caller says over it.

    ``settings`` replace or add keys of it; ``training`` are files of a trainer's settings, which give the workload.
    ``root``: the folder that the configuration's bases are opened in (None: its repository).
    """

    config: object
    settings: Config = field(default_factory=dict)
    training: Names = ()
    text: str | None = None
    root: str | Path | None = None


class Include(str):
    """The name of a file whose value belongs here (``!include``)."""

    __slots__ = ()


class UnknownModelType(InputError):  # noqa: N818
    """A Hugging Face ``model_type`` that no reader knows; tracing may answer."""


class NoModel(InputError):  # noqa: N818
    """A file that is in none of the formats: some program's settings, perhaps."""


def names_of(config: Config) -> Held:
    """(keys, those of sections dotted; keys of sections at any depth, undotted), dashes as underscores.

    A key whose value is null is as good as not there.
    """
    found = set()
    inner = set()
    for key, value in config.items():
        if value is None:
            continue
        name = str(key).lstrip("-").replace("-", "_")
        found |= {
            name,
            snaked(name),
            f"{name}={value}" * isinstance(value, str | bool),
            f"{name}=" * isinstance(value, str),
        }
        if isinstance(value, Mapping):
            below, further = names_of(value)
            found |= {f"{name}.{one}" for one in below if one.count(".") < 5 and "=" not in one}
            inner |= below | further
    return found, inner


def snaked(name: str) -> str:
    """A key's name with underscores for dashes and before the capitals of camelCase."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name).lower()


def leaves(config: Config) -> Iterator[tuple[str, Any]]:
    """Every value of sections at any depth under its own key, dashes as underscores."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value)
        else:
            yield str(key).lstrip("-").replace("-", "_"), value


def lacking(claim: Config, names: Held) -> Texts:
    """The keys of a format's claim that the configuration lacks, and its keys that rule the format out."""
    held = names[0] | names[1] if claim.get("deep") else names[0]
    return [one for one in claim["all"] if held.isdisjoint(one.split("|"))] + [
        f"no {one}" for one in claim.get("none", ()) if one in held
    ]


def at(config: Config, key: str) -> Any:
    """The value under a dotted key; None where there is none. A key of the file may have dots itself.

    Dashes stand for underscores if it has those. A mapping with more keys than any configuration is not searched so.
    """
    first, _, rest = key.partition(".")
    if first not in config and len(config) < MOST_UNREAD:
        first = next((one for one in config if f"{key}.".startswith(f"{one}.".replace("-", "_"))), key)
        rest = key[len(str(first)) + 1 :]  # a key of YAML may be no text
    value = config.get(first)
    return value if not rest else at(value, rest) if isinstance(value, Mapping) else None


def in_use(config: Config) -> Values:
    """``config`` without what sections hold that say that they are off (of NeMo-RL's two backends one is).

    Digits given as text are numbers (environments, SageMaker's hyperparameters).
    """
    flags = config.keys() & {"enable", "enabled"}
    held = {key: config[key] for key in flags} if False in map(config.get, flags) else config
    return {
        key: in_use(one) if isinstance(one, Mapping) else int(one) if re.fullmatch("[1-9][0-9]{0,8}", str(one)) else one
        for key, one in held.items()
    }


def underscored(config: Config) -> Values:
    """Every key with underscores for dashes, which GPT-NeoX's files and vLLM's have.

    Sections, and keys of settings in them, stay as they are.
    """
    return {key if "." in key else key.replace("-", "_"): value for key, value in config.items()}


def with_settings(config: Config, settings: Config, normalised: Callable[[Config], Config] = dict) -> Values:
    """``config`` with ``settings`` over it; a dotted key goes into the mapping it names, null takes a key away."""
    changed = dict(config)
    for key, value in {**without(settings, given(settings)), **normalised(settings)}.items():
        *parents, last = key.split(".") if key not in changed else [key]
        inner = changed
        for parent in parents:
            below = inner.get(parent)
            inner[parent] = dict(below) if isinstance(below, Mapping) else {}
            inner = inner[parent]
        inner[last] = value
        if isinstance(unknown := changed.get("_unknown"), Mapping):
            changed["_unknown"] = without(unknown, [key])
    return changed


def recipe_of(config: Config) -> Config | None:
    """The row of the recipes that ``config`` is one of: a trainer's or a server's settings that name a model.

    A file that says anywhere how it trains is no server's.
    """
    names = names_of(config)
    trains = lacking(WORDS["untrained"], names)
    rows = (row for row in FORMATS["recipes"].values() if not trains or "phase" not in row)
    return first_of(_run(row, names) for row in rows if not lacking(row["claim"], names))


def plain_name(name: str) -> str:
    return name.lower().replace("meta-llama", "llama")


@cache
def rows() -> Words:
    """The table's models, each with the text of its row: to parse all takes longer than a check's reading."""
    text = Path(__file__).with_name("released.json").read_text("utf-8")
    return dict(re.findall(r'^ "([^"]+)": (\{.*\}),?$', text, re.MULTILINE))


@cache
def known_names() -> Words:
    """The table's names by what is asked for: with their organisation, or without (then the last of them)."""
    return {name: one for one in rows() for name in (plain_name(one), basename(plain_name(one)))}


@cache
def variants() -> Words:
    """Releases of their own by what is left of their names without the words for variants."""
    return {without_variant(one): one for one, row in rows().items() if '"as": "' not in row}


def without_variant(name: str) -> str:
    """A model's name also without an organisation, and without separators but those within numbers.

    qwen2_5_72b is Qwen2.5-72B, opt-1.3b is not opt-13b.
    """
    bare = re.sub(WORDS["variants"], "", basename(plain_name(name)))
    bare = re.sub(r"(?<=\d)[-_. ]+(?=\d)", ".", bare)
    return re.sub(r"[-_ ]|(?<!\d)\.|\.(?!\d)", "", bare)


def is_released(name: str) -> bool:
    """Whether the table has a model of this name, whoever has it, or one that it is a variant of by its name."""
    return plain_name(name) in known_names() or without_variant(name) in variants()


def speaks_of(text: str) -> str:
    """A clause on the first released model that a text, its comments left out, speaks of; empty for none.

    It speaks of one by its organisation and name, else one of ollama's.
    """
    said = re.sub("(?m)(^|[ \t])#.*", "", text)
    named = filter(is_released, re.findall(r"(?:(?<![\w./-])|(?<=:-))\w[\w.-]*/[\w.-]*\w", said))
    ollama = re.findall(r"[\s\"'=]([a-z][\w.-]*:\d[\w.]*b)\b", said) * ("ollama" in said)
    own = (f"; it speaks of ollama's {one}, whose bits it does not hold: sizer check its base" for one in ollama)
    return next((f"; it speaks of a released model: sizer check {one}" for one in named), next(own, ""))


def named_plainly(config: Config) -> Config | None:
    """A recipe of the model alone that a file names in a usual key, or the one released model that it names deeper.

    It is none of a tokenizer, a teacher or the like. A note on others in usual keys.
    """
    held = names_of(config)
    said = {
        key: one
        for key in sorted(
            held[0], key=lambda key: ("train." not in key, "model" not in key, key == "model", key.count("."), key)
        )
        if isinstance(one := at(config, key), str) and not re.search(WORDS["others"], key)
    }
    usual = [key for key in said if key.count(".") < 2 and key.rpartition(".")[2] in WORDS["keys"]]
    # A run's own name comes last, if it is not what trains.
    usual.sort(key=lambda key: "train." not in key and ("$" in said[key] or not is_released(said[key])))
    if not usual and "model_type" not in config:
        deep = {  # a name and the folder of that name are one model
            basename(plain_name(one)): key
            for key, one in said.items()
            if re.search(WORDS["path"], f"{key}={one}") and re.search(WORDS["deep"], key)
        }
        near = [key for key in deep.values() if is_released(said[key])] or [
            key for key in deep.values() if re.search(WORDS["own"], key)
        ]
        usual = near * (len(near) == 1)
    also = {
        key: f"it names another model too ({key}), which is not counted"
        for key in usual
        if "/" in said[key] and basename(said[key]) != basename(said[usual[0]])
    }
    return _run({"model": usual[0], "names": {}, "also": also}, held) if usual else None


def _run(row: Config, held: Held) -> Config:
    """``row``; where no key says that it trains, one that decodes if a key serves or runs forward, else with a note."""
    lacks = lacking(WORDS["serves"], held)
    if "phase" in row or any(one.startswith("no ") for one in lacks):
        return row
    if phase := "prefill" * ("_forwards" in held[0]) if lacks else "decode":
        return {**row, "names": {}, "phase": phase}
    return {**row, "also": row.get("also", {}) | dict.fromkeys(row["model"].split("|"), WORDS["alone"])}


def _known(format_name: str) -> Config:
    """``harmless`` (globs), ``matters`` (glob -> what the key changes) and ``model`` (those that change the model).

    KEY=VALUE is harmless where one value is: a key's neutral one. Where ``model_by`` is named, the last do so only in
    a file with that key.
    """
    found: Config = FORMATS.get(format_name, {}).get("known", {})
    return found


#: Values of a key that changes nothing.
OFF: Sequence[Any] = (None, 0, "", [], {}, "none")
#: Keys that are not read, of one file: with more it is another kind of file, and comparing names takes a while.
MOST_UNREAD = 1000


def unread(config: Config, asked: Iterable[str], format_name: str) -> tuple[Unread, ...]:
    """Keys of ``config`` (nested ones dotted) outside ``asked`` that are not known to be harmless in the format.

    A key that is off (false, null, 0, empty) changes nothing: it is named as a known one misspelt alone. InputError for
    one that changes the model, and for one that nobody knows, or of a section that nobody knows, where its ``words``
    name a part of a model and nothing of how it is run.
    """
    known = _known(format_name)
    # Where code that we do not know reads them.
    model = known.get("model") if "model_by" not in known or known["model_by"] in config else None
    matters = known.get("matters", {}) | known.get("model", {})
    read, harmless, found = set(asked), known.get("harmless", ()), list[Unread]()
    names = [name for name in (*read, *matters, *harmless) if "*" not in name]
    for key, value in flattened(config, read, {*read, *matters}):
        own = key.rpartition(".")[2]
        if {key, own, f"{own}={value}"}.intersection(harmless):
            continue  # by its own name or value, whatever a glob says
        entry = _entry(key, matters) or _entry(own, matters)
        idle = not entry and (_entry(key, harmless) or _entry(own, harmless))
        # In a section that is harmless as a whole a key that is read may be misspelt.
        if idle and not ("." in key and misspelt(key, read, config)):
            continue
        sizes = entry in (model or ()) or any(
            re.match(FORMATS["changing"], one) and inner not in OFF
            for one, inner in leaves({own: value} if model is not None and not entry else {})
        )
        why = (
            f"changes {matters[entry]} and is not read here" if entry else "is not known here and may change the model"
        )
        off = value in OFF
        refuse(sizes and not off, f"{why}; --set {key}=null for the model without it", key, value)
        meant = None if entry else misspelt(key, names, config)
        if meant or not off:
            found += [Unread(key, shorten(value), matters.get(entry), meant)]
        refuse(len(found) > MOST_UNREAD, f"expected at most {MOST_UNREAD} keys that {format_name} does not have")
    return tuple(found)


def sentences(found: Iterable[Unread]) -> Names:
    """The keys that were not read, those that change the same thing in a line."""
    groups = dict[str, Texts]()
    for one in found:
        guess = f" (did you mean {one.meant}?)" if one.meant else ""
        known = one.changes is not None
        group = f"not read, and may change {one.changes}" if known else "ignored unknown keys"
        groups.setdefault(group, []).append(f"{one.key} = {one.value}" if known else one.key + guess)
    return tuple(
        f"{group}: {', '.join(keys[:8])}" + f" and {len(keys) - 8} more" * (len(keys) > 8)
        for group, keys in groups.items()
    )


def is_harmless(key: str, format_name: str) -> bool:
    return _entry(key, _known(format_name).get("harmless", ())) is not None


def _entry(key: str, names: Collection[str]) -> str | None:
    """The entry that a key falls under: itself, or the first glob that it matches."""
    return key if key in names else first_of(name for name in names if "*" in name and fits(key, name))


def fits(key: str, glob: str) -> bool:
    """Whether a glob of asterisks alone matches; to compile an expression would take longer than a check."""
    first, *middle, last = glob.split("*")
    at, end = len(first), len(key) - len(last)
    for part in middle:
        found = key.find(part, at)
        at = found + len(part) if found >= 0 else len(key) + 1
    return key.startswith(first) and key.endswith(last) and at <= end


def flattened(config: Config, read: set[str], known: set[str], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Keys that are not in ``read``; a mapping that holds ``known`` keys is opened up."""
    for key, value in config.items():
        if str(key).startswith("_"):
            continue  # a reader's own, or a class's private attribute
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and any(one.startswith(name + ".") for one in known):
            yield from flattened(value, read, known, name + ".")
        elif name not in read:
            yield name, value


def did_you_mean(key: str, names: Iterable[str], cutoff: float = 0.8) -> str | None:
    """The known name nearest to ``key``, if one is near."""
    return first_of(nearest(key, sorted(names), cutoff=cutoff))


def misspelt(key: str, names: Iterable[str], config: Config) -> str | None:
    """The key that ``key`` is a typing error for: ``config`` lacks it, and it has as many words."""
    parent, _, own = key.rpartition(".")
    inner = at(config, parent) if parent else config
    inner = inner if isinstance(inner, Mapping) else {}
    known = {last: name for name in names for above, _, last in [name.rpartition(".")] if above == parent}
    near = did_you_mean(own, known.keys() - inner.keys(), 0.9)
    words, others = set(own.split("_")), set((near or own).split("_"))
    return None if near is None or words < others or words > others else known[near]


def check_settings(settings: Config, found: Reading, asked: frozenset[str]) -> None:
    """InputError for a key of ``--set`` with a value that the reader has no use for, or that another name decides."""
    called = FORMATS["huggingface"]["dimensions"]
    for key, value in settings.items():
        # A key may be taken out of the file, and a script has variables of its own.
        if value is None or key in found.keys.values() or key in asked - found.asked:
            continue
        counts = first_of(own for size, own in found.keys.items() if key in (size, *called.get(size, ())))
        near = counts or did_you_mean(key, asked)
        expected = f"expected a key that is read here: {f'did you mean {near}?' if near else ', '.join(sorted(asked))}"
        refuse(counts or key not in asked, expected, f"--set {key}", value, found.source)
