"""Frozen classes are what the standard library's decorator makes of them, and are taken as dataclasses."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, is_dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapes.errors import InputError
from shapes.frozen import Count, frozen
from shapes.frozen import replace as replaced
from shapes.workload import Workload


class Base:
    """Everything a class of the project uses of dataclasses."""

    a: int
    b: tuple[int, ...] = ()
    c: dict[str, int] = field(default_factory=dict, compare=False)
    seen: list[int] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self.seen.append(self.a)


class One:
    only: float


def pair(cls: type) -> tuple[type, type]:
    source = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")}
    return frozen(type(cls.__name__, (), dict(source))), dataclass(frozen=True, slots=True)(
        type(cls.__name__, (), dict(source))
    )


@frozen
class Kept:
    """Importable, so that it can be pickled."""

    a: int
    b: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "b", (*self.b, self.a))


@frozen
class Child(Kept):
    """Inherits fields, and adds one."""

    more: str = "more"


@frozen
class Own:
    """Methods of its own stay."""

    a: int

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


@given(
    st.integers(),
    st.tuples(st.integers()) | st.just(()),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
def test_it_shows_compares_and_hashes_as_the_standard_one(a: int, b: tuple[int, ...], c: dict[str, int]) -> None:
    ours, theirs = pair(Base)
    mine, other = ours(a, b, c=c), theirs(a, b, c=c)
    assert (repr(mine), hash(mine)) == (repr(other), hash(other))
    assert (asdict(mine), astuple(mine)) == (asdict(other), astuple(other))
    assert mine.seen == [a]
    for changed in ({}, {"a": a + 1}, {"b": (*b, 1)}, {"c": {**c, "x": 1}}, {"seen": [1, 2]}):
        assert (replace(mine, **changed) == mine) is (replace(other, **changed) == other)
    assert mine != other
    ours, theirs = pair(One)
    assert (repr(ours(0.5)), hash(ours(0.5))) == (repr(theirs(0.5)), hash(theirs(0.5)))
    assert ours(0.5) == ours(0.5) != ours(1.0)


def test_it_is_a_dataclass_with_the_same_signature_and_fields() -> None:
    ours, theirs = pair(Base)
    assert is_dataclass(ours)
    assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert inspect.signature(ours).parameters["b"].default == ()
    assert (ours.__match_args__, ours.__slots__) == (theirs.__match_args__, theirs.__slots__)
    with pytest.raises(TypeError, match=r"Base\.__init__\(\) missing 1 required positional argument: 'a'"):
        ours()


def test_nothing_of_it_can_be_changed() -> None:
    one = Kept(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        one.a = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del one.a
    with pytest.raises(FrozenInstanceError):
        one.new = 2  # type: ignore[attr-defined]
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("one", [Kept(1, (2,)), Child(1, (2,), "x")])
def test_it_goes_through_pickle_and_copy_as_it_is(one: Kept) -> None:
    for again in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert (type(again), again) == (type(one), one)
        assert again.b == (2, 1)  # __post_init__ has not run twice


def test_a_class_inherits_fields_and_is_not_equal_to_its_base() -> None:
    assert Child(1) == Child(1, (), "more") != Kept(1)
    assert repr(Child(1)) == "Child(a=1, b=(1,), more='more')"


def test_methods_of_its_own_stay() -> None:
    assert (repr(Own(1)), hash(Own(1)), Own(1) == 3) == ("own", 7, True)


@frozen
class Counted:
    """A field that is a count, of which alone the hash is."""

    of: dict[str, int]
    number: Count
    HASHED = ("number",)


def test_a_count_is_checked_and_hashes_are_of_the_fields_named() -> None:
    assert hash(Counted({}, 2)) == hash(Counted({"a": 1}, 2)) != hash(Counted({}, 3))
    assert Counted({}, 2) != Counted({"a": 1}, 2)
    for wrong in (0, True, 1.0, None):
        with pytest.raises(InputError, match=r"number.*expected an integer between 1 and"):
            Counted({}, wrong)  # type: ignore[arg-type]


def test_other_fields_than_positional_ones_are_refused() -> None:
    for named in ({"kw_only": True}, {"init": False}, {"repr": False}, {"hash": True}):
        wrong = field(default=1, **named)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"X\.a: a frozen class has positional fields alone"):
            frozen(type("X", (), {"__annotations__": {"a": "int"}, "a": wrong}))


@given(b=st.integers(1, 64), s=st.integers(1, 4096))
def test_replaced_is_what_dataclasses_replace_gives_with_the_checks_that_a_class_makes(b: int, s: int) -> None:
    assert replaced(Workload(), b=b, s=s) == replace(Workload(), b=b, s=s)
    with pytest.raises(ValueError, match="b = 0"):
        replaced(Workload(), b=0)
    with pytest.raises(TypeError):
        replaced(Workload(), bees=b)


def test_equal_replacements_of_a_workload_are_one_object_each_with_values_of_its_own_types() -> None:
    one = Workload()
    assert replaced(one, b=2) is replaced(one, b=2)
    # 1 == 1.0 == True, which JSON writes in three ways.
    assert repr(replaced(one, offload=1).offload) == "1"
    assert repr(replaced(one, offload=1.0).offload) == "1.0"


def test_a_value_that_does_not_hash_is_refused_as_any_other() -> None:
    with pytest.raises(InputError, match="expected an integer between"):
        replaced(Workload(), t=[1])
