"""The language of modules.toml: each module's operators, and what each saves, as lines that a tape is made from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from shapes.frozen import frozen
from shapes.memory.tape import Tape, Tensor
from shapes.toml_table import DATA, load

#: Products to be added up: of each the number in front, the factors' names, and what divides it.
_Sum = tuple[tuple[int, tuple[str, ...], int | str], ...]


@frozen
class Line:
    """One operator or, without an ``output``, a change of what names of the running code keep (``inputs``).

    ``when`` and ``unless``: words that must hold and must not. The other fields are those of ``Tape.op`` and ``view``.
    """

    output: str
    inputs: tuple[str, ...]
    when: frozenset[str]
    unless: frozenset[str]
    size: _Sum = ()
    saves: tuple[str, ...] = ()
    keeps: _Sum = ()
    work: _Sum = ()
    weights: _Sum = ()
    adds: bool = False
    views: bool = False
    part: bool = False
    joins: bool = False


@cache
def declared() -> Mapping[str, Any]:
    """shapes/data/modules.toml, parsed."""
    return load(DATA / "modules.toml", lambda data, where: data)


@cache
def listing(module: str) -> tuple[Line, ...]:
    """A module's lines."""
    return tuple(line_of(text) for text in declared()["modules"][module].strip().splitlines())


def line_of(text: str) -> Line:
    """A line as modules.toml writes it. Raises ValueError for a clause that there is not."""
    head, *columns = (part.strip() for part in text.split("|"))
    clauses = [clause.split() for column in columns[-1:] for clause in column.split(";")]
    words = next((clause[1:] for clause in clauses if clause[0] == "if"), [])
    when = frozenset(word for word in words if word[0] != "!")
    unless = frozenset(word[1:] for word in words if word[0] == "!")
    output, arrow, inputs = head.partition("<-")
    if not arrow:
        return Line("", tuple(head.split()), when, unless)
    given: dict[str, Any] = {}
    for name, *rest in clauses if len(columns) > 1 else ():
        if name in ("keeps", "work", "weights"):
            given[name] = _sum(rest)
        elif name == "saves":
            given[name] = tuple(rest)
        elif name in ("adds", "views", "part", "joins"):
            given[name] = True
        elif name != "if":
            raise ValueError(f"modules.toml: {text!r}: {name!r} is no clause")
    return Line(output.strip(), tuple(inputs.split()), when, unless, _sum(columns[0].split()), **given)


def _sum(words: list[str]) -> _Sum:
    return tuple(_product(term.split()) for term in " ".join(words).split("+"))


def _product(words: list[str]) -> tuple[int, tuple[str, ...], int | str]:
    *factors, divisor = (*words[:-2], words[-1]) if "/" in words else (*words, "1")
    number = int(factors.pop(0)) if factors[0].isdigit() else 1
    return number, tuple(factors), int(divisor) if divisor.isdigit() else divisor


def play(
    tape: Tape, module: str, words: Collection[str], numbers: dict[str, int], tensors: dict[str, Tensor]
) -> Tensor:
    """Put a module's operators on ``tape``; the last one's output.

    ``words`` that hold, ``numbers`` by name and the ``tensors`` that it reads; the latter two are added to.
    """
    named = tape.named
    for name, tensor in tensors.items():
        numbers[name] = tensor.bytes
    output = None
    for line in listing(module):
        runs = line.when.issubset(words) and line.unless.isdisjoint(words)
        if not line.output:
            if runs:
                verb, *names = line.inputs
                tape.named = named if verb == "forget" else tape.named + tuple(tensors[name] for name in names)
            continue
        inputs = tuple(tensors[name] for name in line.inputs)
        output = _run(tape, line, inputs, numbers, tensors) if runs else inputs[0]
        tensors[line.output], numbers[line.output] = output, output.bytes
    assert output is not None
    return output


def _run(
    tape: Tape, line: Line, inputs: tuple[Tensor, ...], numbers: Mapping[str, int], tensors: Mapping[str, Tensor]
) -> Tensor:
    size = _value(line.size, numbers)
    if line.part:
        return tape.view(inputs[0], size, copies_gradient=line.joins)
    return tape.op(
        line.output,
        inputs,
        size,
        tuple(tensors[name] for name in line.saves if name != line.output),
        saves_output=line.output in line.saves,
        saves_bytes=_value(line.keeps, numbers) if line.keeps else 0,
        work=_value(line.work, numbers) if line.work else 0,
        weights=_value(line.weights, numbers) if line.weights else 0,
        shares_gradient=line.adds,
        views_gradient=line.views,
    )


def _value(terms: _Sum, numbers: Mapping[str, int]) -> int:
    total = 0
    for number, factors, divisor in terms:
        size = number
        for name in factors:
            size *= numbers[name]
        if divisor != 1:
            size //= numbers[divisor] if isinstance(divisor, str) else divisor
        total += size
    return total
