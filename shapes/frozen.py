"""``frozen``: the same as ``dataclass(frozen=True, slots=True)``, four times as fast.

The standard decorator writes and compiles six methods for each class, over half a millisecond. `sizer check` needs a
hundred classes, which was most of its start. Here __init__ alone is compiled, and the classes share the rest.

``plain`` is the one walker that makes JSON of them; the published schemas follow it (tests/tools/make_schemas.py).
"""

import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from functools import cache, lru_cache, partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType
from typing import Annotated, Any, NoReturn, TypeVar, dataclass_transform

from .errors import positive_int

#: A field that is a positive integer: of anything else a ``frozen`` class raises InputError.
Count = Annotated[int, "1 or more"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A dataclass of slots that cannot be changed: ``fields``, ``replace``, ``match``, ``pickle`` take it as such.

    Methods that ``cls`` has of its own stay. A class that inherits from a frozen one is to be ``frozen`` as well.
    Fields are positional, shown, and hashed where compared, or a TypeError says so. ``HASHED``: names of the fields
    that are hashed alone, where others are long or do not hash.
    """
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    listed = fields(made)  # type: ignore[arg-type] # it is one
    for one in listed:
        if (one.kw_only, one.init, one.repr, one.hash) != (False, True, True, None):
            raise TypeError(
                f"{cls.__qualname__}.{one.name}: a frozen class has positional fields alone, shown, hashed if compared"
            )
    names = [one.name for one in listed if one.compare]
    compared, hashed = _values(names), _values(getattr(cls, "HASHED", names))

    def __repr__(self: object) -> str:  # noqa: N807
        inner = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in listed)
        return f"{type(self).__qualname__}({inner})"

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(hashed(self))

    shared = _Shared.__setattr__, _Shared.__delattr__, _Shared.__setstate__
    methods = (__repr__, __eq__, __hash__, *shared, _init(made, listed))
    for method in methods:
        # A class with an __eq__ of its own has None for a hash.
        if vars(cls).get(method.__name__) is None:
            setattr(made, method.__name__, method)
    return made


def replace(one: T, **changes: Any) -> T:
    """``dataclasses.replace`` of a frozen one, six times as fast."""
    names, values, make = _all(type(one))  # type: ignore[arg-type] # a class is hashable
    made = [*map(changes.pop, names, values(one))]
    try:
        return make(*made, **changes)  # type: ignore[no-any-return] # one of the type
    except TypeError:  # no such field, or a value that does not hash: the class's to refuse
        return type(one)(*made, **changes)


@cache
def _all(cls: Any) -> "Items":
    """The fields' names, what gives their values, and what makes one of them.

    ``REMEMBERED``: so many of a class's replacements are made once (0 where it does not say: none).
    """
    names = cls.__match_args__
    return names, _values(names), lru_cache(getattr(cls, "REMEMBERED", 0), typed=True)(cls)


def _values(names: Sequence[str]) -> Callable[[object], Any]:
    """The fields' values as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _init(cls: type, listed: tuple[Field[Any], ...]) -> Callable[..., None]:
    """__init__ by the fields; slots are set past ``__setattr__``."""
    counts = [one.name for one in listed if one.type in (Count, "Count")]
    known = {"MISSING": MISSING, "check": partial(_check_counts, counts)}
    for place, one in enumerate(listed):
        known |= {f"set{place}": getattr(cls, one.name).__set__, f"make{place}": one.default_factory}
    ends = " check(self)" * bool(counts), " self.__post_init__()" * hasattr(cls, "__post_init__")
    code = _code(tuple(one.default_factory is not MISSING for one in listed), ends)
    own = code.replace(co_varnames=("self", *(one.name for one in listed)))
    defaults = tuple(one.default for one in listed if one.default is not one.default_factory)
    made = FunctionType(own, known, "__init__", defaults)
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {one.name: one.type for one in listed} | {"return": None}
    return made


@cache
def _code(makes: tuple[bool, ...], ends: "Names") -> CodeType:
    """The code of each __init__ of such fields (which make their defaults) and last lines: compiling is what costs."""
    lines = [f"def __init__(self, {', '.join(f'_{place}' for place in range(len(makes)))}):", " pass"]
    for place, make in enumerate(makes):
        lines.append(f" set{place}(self, {f'make{place}() if _{place} is MISSING else ' * make}_{place})")
    made = Values()
    exec("\n".join([*lines, *ends]), made)
    code: CodeType = made["__init__"].__code__
    return code


def _check_counts(names: Sequence[str], one: object) -> None:
    for name in names:
        positive_int(getattr(one, name), name)


class _Shared:
    """Methods that every frozen class has."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __setstate__(self, state: "tuple[None, Values]") -> None:
        for name, value in without(state[1], HashedOnce.__slots__).items():
            object.__setattr__(self, name, value)


class HashedOnce:
    """What remembers its hash, which another process does not share: a plan asks for some a hundred thousand times."""

    __slots__ = ("known_hash",)
    known_hash: int


#: Values by their names: made up piece by piece, and read alone.
Values = dict[str, Any]
Named = Mapping[str, Any]
Names = tuple[str, ...]
Sizes = Mapping[str, int]
Numbers = Mapping[str, float]
Words = Mapping[str, str]
Ints = tuple[int, ...]
Pair = tuple[int, int]
Triple = tuple[int, int, int]
Items = tuple[Any, ...]
Function = Callable[..., Any]
Floats = tuple[float, ...]
#: Values that are added to.
Texts = list[str]
Counts = dict[str, int]


def first_of(values: Iterable[T]) -> T | None:
    """The first value; None where there is none."""
    return next(iter(values), None)


def given(values: Named) -> Values:
    """The values that are not None."""
    return {key: value for key, value in values.items() if value is not None}


def stated(**values: Any) -> Values:
    """The values that say something."""
    return {key: value for key, value in values.items() if value}


def among(values: Named, names: Container[str]) -> Values:
    """The values that are under some of the ``names``."""
    return {key: value for key, value in values.items() if key in names}


def without(values: Named, names: Iterable[str]) -> Values:
    """The values that are under none of the ``names``."""
    return among(values, values.keys() - names)


def in_words(values: Named, form: str = "{} {}") -> str:
    """Each name with its value, as ``form`` has it."""
    return ", ".join(map(form.format, values, values.values()))


class AsJson:
    """``to_dict`` of a frozen dataclass: its fields in order, each under its own name.

    ``data/json.toml`` may say otherwise. A field that begins a path there is shown there alone.
    """

    __slots__ = ()

    def to_dict(self) -> Values:
        """The object that ``--format json`` writes."""
        found: Values = plain(self)
        return found


@cache
def _said() -> Named:
    """Class -> key -> path of attributes ("timing.seconds"; null where one of them is None), or such a table."""
    return tomllib.loads(Path(__file__).with_name("data").joinpath("json.toml").read_text("utf-8"))


@cache
def members(cls: Any) -> Values:
    """Key -> path of each value that JSON shows of a dataclass or named tuple, in order."""
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else list(getattr(cls, "_fields", ()))
    asked = _said().get(f"{cls.__module__}.{cls.__qualname__}", {})
    roots = {key: list(_roots(value)) for key, value in asked.items()}
    used = {*asked, *chain.from_iterable(roots.values())}
    listed = Values()
    for name in names:
        listed |= {key: asked[key] for key, found in roots.items() if found[:1] == [name]}
        if name not in used:
            listed[name] = name
    return listed | stated(**asked)


def plain(value: Any) -> Any:
    """``value`` as JSON has it: dataclasses and named tuples as objects, other tuples as lists."""
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _object(value, members(value.__class__))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def _object(value: Any, listed: Named) -> Values:
    found = {}
    for key, path in listed.items():
        if isinstance(path, Mapping):
            found[key] = _object(value, path)
        elif (shown := plain(inner(value, path.removesuffix("?")))) is not None or not path.endswith("?"):
            found[key] = shown
    return found


def inner(value: Any, path: str) -> Any:
    """The attribute or key at a dotted path; None where a part of it is."""
    for name in path.split("."):
        value = value[name] if isinstance(value, Mapping) else None if value is None else getattr(value, name)
    return value


def _roots(value: Any) -> Iterator[str]:
    """The fields that paths begin with."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _roots(one)
    elif value:
        yield value.partition(".")[0].removesuffix("?")
