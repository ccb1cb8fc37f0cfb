"""The library's front doors: a call's arguments are those that its signature declares, or are refused by name."""

from functools import cache, wraps
from inspect import formatannotation
from types import UnionType
from typing import Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

from shapes.errors import InputError, refuse
from shapes.frozen import Function, Values
from shapes.toml_table import nearest, others_words, ours


@cache
def checked(call: Function) -> Function:
    """``call``, which takes other programs' names of its arguments too.

    InputError for a name that is none, and for a value of a type that is not declared, with the type that is. A module
    comes with its ``example_inputs`` everywhere.
    """
    known = _declared(call)

    @wraps(call)
    def called(*given: Any, **keywords: Any) -> Any:
        named = {}
        if "example_inputs" not in known:
            inputs = keywords.pop("example_inputs", None)
            given = tuple(_recognised(one, inputs) for one in given)
            keywords = {name: _recognised(one, inputs) for name, one in keywords.items()}
        for name, value in keywords.items():
            own = ours(name, known)
            if own not in known:
                near = [ours(one, known) for one in nearest(name, {*known, *others_words()["same"]})]
                meant = "".join(f"; did you mean {one}?" for one in near if one in known)
                raise InputError(f"no argument that help(sizer.{call.__name__}) lists{meant}", name, value)
            refuse(own in named, f"expected {own} once", name, value)
            named[own] = value
        for name, value in (*zip(known, given), *named.items()):  # noqa: B905 - the shorter ends it
            kind = formatannotation(known[name])
            wanted = f"a list, {[value]}" if isinstance(value, str) and kind.endswith("[str]") else kind
            refuse(not _is(value, known[name]), f"expected {wanted}", name, value)
        return call(*given, **named)

    return called


def _recognised(source: object, inputs: object) -> object:
    """A module is recognised from a call with ``inputs``; other sources, and modules without inputs, are unchanged."""
    if inputs is None or not callable(getattr(source, "named_parameters", None)):
        return source
    from .subject import read_module

    return read_module(source, inputs)


def _declared(call: Function, **unseen: Any) -> Values:
    """Argument -> its declared type, in their order, the keywords of ``**`` among them."""
    try:
        found = get_type_hints(call, localns=unseen)
    except NameError as error:  # imported for type checkers alone
        unseen[str(error.name)] = type(str(error.name), (), {"__module__": "shapes.measure"})
        return _declared(call, **unseen)
    for name, kind in list(found.items()):
        if get_origin(kind) is Unpack:
            found |= get_type_hints(*get_args(found.pop(name)))
    return found


def _is(value: object, kind: Any) -> bool:
    """Whether a value may be of a declared type: a string is no list of strings, True no integer."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return any(_is(value, one) for one in get_args(kind))
    if origin in (Any, object) or type(value).__module__ != "builtins":
        return True  # what a class of others' is, its user knows
    if isinstance(value, str | bool):
        return origin in ((bool,) if isinstance(value, bool) else (str, Literal))
    return isinstance(value, {float: int | float, Literal: str}.get(origin, origin))
