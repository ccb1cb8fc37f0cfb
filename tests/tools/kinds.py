"""The kinds of things that sizer has several of, and every piece that one of a kind needs.

``tests/test_registries.py`` fails for a piece that is missing and names the file to add or edit;
``python -m tests.tools.kinds [KIND [NAME]]`` prints the same; ``python -m tests.tools.new`` writes skeletons.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

ROOT = Path(__file__).parents[2]
#: A skeleton's mark: what is still to be written. No member, test or row may keep it.
SKELETON = "SKELETON"
REFERENCE = "reports/reference.md"


@dataclass(frozen=True)
class Piece:
    """Text that a member needs: ``pattern``, with {name} for its name, in a file of ``paths``; else ``todo``."""

    paths: str
    pattern: str
    todo: str


@dataclass(frozen=True)
class Kind:
    """One kind: ``registered`` names, the names ``found`` on disk, and what else each needs.

    ``file``: where a member is written, with {name}; ``registry``: where it is registered. ``words``: what tests and
    pages may call a member, where that is not its name alone. ``further``: problems that no text shows.
    """

    registered: Callable[[], Collection[str]]
    found: Callable[[], Collection[str]]
    file: str
    registry: str
    pieces: tuple[Piece, ...]
    words: Callable[[str], Collection[str]] = lambda name: (name,)
    further: Callable[[str], Iterator[str]] = lambda name: iter(())

    def missing(self, name: str) -> Iterator[str]:
        """What the member ``name`` still lacks, one line each, with the file to add or edit."""
        file = self.file.format(name=name)
        if name not in self.found():
            yield f"{name}: write {file}"
        if name not in self.registered():
            yield f"{name}: register it in {self.registry}"
            return
        for piece in self.pieces:
            patterns = [piece.pattern.format(name=re.escape(word)) for word in self.words(name)]
            if not any(re.search(pattern, text(piece.paths)) for pattern in patterns):
                yield f"{name}: {piece.todo.format(name=name)} ({piece.paths})"
        yield from (f"{name}: {problem}" for problem in self.further(name))


@cache
def text(paths: str) -> str:
    """The files of these patterns, separated by blanks, one after the other."""
    files = [path for pattern in paths.split() for path in sorted(ROOT.glob(pattern))]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def attribute(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(import_module(module), name)


def modules(package: str, *has: str) -> Callable[[], set[str]]:
    """Modules of a package that have these attributes."""

    def found() -> set[str]:
        names = [one.name for one in pkgutil.iter_modules(import_module(package).__path__)]
        return {name for name in names if all(hasattr(import_module(f"{package}.{name}"), one) for one in has)}

    return found


def data(folder: str) -> Callable[[], set[str]]:
    """Names of the TOML files of a folder of shapes/data."""
    return lambda: {path.stem for path in (ROOT / "shapes" / "data" / folder).glob("*.toml")}


def _test(paths: str, pattern: str, what: str) -> Piece:
    return Piece(paths, pattern, f"add {what}")


def _row(pattern: str) -> Piece:
    return Piece(REFERENCE, pattern, "write its row: python reports/bench/reference.py")


_NAMED_ROW = _row(r"(?m)^\| `{name}` \|")


def _rule_codes() -> set[str]:
    return {rule.code for rule in import_module("sizer.rules").RULES}


def _rules_written() -> set[str]:
    """Codes of functions that answer as a rule does, and of decorators in the topics' files."""
    codes = set(re.findall(r'(?m)^@rule\(\s*"(SZ\d+)"', text("sizer/rules/*.py")))
    functions = re.findall(r"(?m)^def ([a-z]\w*)\(.*\) -> Answer:", text("sizer/rules/*.py"))
    declared = {rule.judge.__name__ for rule in import_module("sizer.rules").RULES}
    return codes | (set(functions) - declared)


def _layouts_written() -> Collection[str]:
    layouts: Mapping[str, Any] = import_module("sizer.readers.reading").table("layouts")
    return {name for name, row in layouts.items() if "title" in row}


def _reader_further(name: str) -> Iterator[str]:
    module = import_module(f"sizer.readers.{name}")
    if name != module.NAME:
        yield f"NAME of sizer/readers/{name}.py is {module.NAME}"
    yield from _keys_further(name)


def _keys_further(name: str) -> Iterator[str]:
    smallest = import_module("tests.test_readers_formats").SMALLEST.get(name)
    loading = import_module("sizer.readers.loading")
    if (
        smallest
        and name not in ("gguf", "safetensors")
        and not loading.states_a_model(smallest[0], smallest[1].encode())
    ):
        yield "add a key that no other file has to `states` of sizer/readers/formats.json"
    if "known" not in import_module("sizer.readers.reading").table("formats").get(name, {}):
        yield "add its keys to sizer/readers/formats.json"


def _family_words(name: str) -> set[str]:
    """The type, and those that hold it under a key: tests read them as they come."""
    nested = import_module("sizer.readers.huggingface").NESTED
    return {name, *(outer for outer, (_, inner, _) in nested.items() if inner == name)}


def _family_further(name: str) -> Iterator[str]:
    reader, fields = import_module("sizer.readers.huggingface"), import_module("sizer.readers.reading")
    if reader.DEFAULTS_OF.get(name, name) not in fields.table("hf_defaults"):
        yield "write its defaults to sizer/readers/hf_defaults.json: python tests/tools/make_hf_defaults.py"


def _output_formats() -> set[str]:
    render = import_module("sizer.render")
    return {name for command in render.COMMANDS for name in render.formats(command)}


def _functions(path: str, pattern: str) -> Callable[[], set[str]]:
    """Public functions of such a signature in these files."""
    return lambda: set(re.findall(rf"(?m)^def ([a-z]\w*){pattern}", text(path)))


def _command_modules() -> set[str]:
    """Commands by the module (and function) that each is."""
    known = import_module("sizer.cli").COMMANDS
    return modules("sizer.cli", "command")() | {name for name, (module, _) in known.items() if ":" in module}


def _operator_types() -> dict[str, tuple[type, str]]:
    """Name of a kind ("Gemm", "Gemm bmm") -> its type and kind; a type's first kind goes by the type's name."""
    found = {}
    for cls in get_args(import_module("shapes.operators").Operator):
        for number, kind in enumerate(get_args(get_type_hints(cls)["kind"])):
            found[f"{cls.__name__} {kind}" if number else cls.__name__] = (cls, kind)
    return found


def _operator_kinds() -> set[str]:
    declared = {(one.type, one.kind) for one in import_module("shapes.operators.types").KINDS}
    names = {key: name for name, key in _operator_types().items()}
    return {names.get(key, f"{key[0].__name__} {key[1]}") for key in declared}


def _operator_further(name: str) -> Iterator[str]:
    cls, _, kind = name.partition(" ")
    if not re.search(rf'(?m)^    {cls}\(.*kind="{kind}"' if kind else rf"(?m)^    {cls}\(", text("tests/test_cost.py")):
        yield "add one of it to OPERATORS (tests/test_cost.py)"
    wanted = _operator_types()[name]
    for one in import_module("shapes.operators.types").KINDS:
        moves = (one.type, one.kind) == wanted and one.explained.endswith(":moved_terms")
        if moves and cls not in import_module("shapes.cost.explain").TERMS:
            yield f"add [terms.{cls}] to shapes/data/operators.toml: a line for each part of {one.parts or 'its parts'}"
        if moves and not (one.parts and one.regime):
            yield "add parts and regime to its entry of kinds (shapes/data/operators.toml)"
        for path in filter(None, (one.lowered, one.priced, one.explained, one.measured, one.parts, one.form)):
            module, _, function = path.partition(":")
            if (one.type, one.kind) == wanted and not hasattr(found := import_module(module), function):
                yield f"write {function} in {Path(found.__file__ or module).relative_to(ROOT).as_posix()}"


KINDS: Mapping[str, Kind] = {
    "rule": Kind(
        _rule_codes,
        _rules_written,
        "a function under @rule in sizer/rules/TOPIC.py",
        "TOPICS of sizer/rules/__init__.py, and by the decorator @rule",
        (
            _test("tests/test_rules.py tests/test_steps.py", '"{name}"', "its rows of BAD, GOOD and NOT_APPLICABLE"),
            Piece("reports/rules.md", "(?m)^## {name} ", "run sizer rules --format markdown > reports/rules.md"),
        ),
    ),
    "reader": Kind(
        attribute("sizer.readers", "MODULES"),
        modules("sizer.readers", "NAME", "read"),
        "sizer/readers/{name}.py",
        "MODULES of sizer/readers/__init__.py",
        (_test("tests/test_readers_formats.py", r'(?m)^    "{name}": ', "its smallest file to SMALLEST"), _NAMED_ROW),
        further=_reader_further,
    ),
    "layout": Kind(
        attribute("sizer.readers", "LAYOUTS"),
        _layouts_written,
        "a table of sizer/readers/layouts.json",
        "layouts of sizer/readers/formats.json",
        (_test("tests/test_readers_formats.py", r'(?m)^    "{name}": ', "its smallest file to SMALLEST"), _NAMED_ROW),
        further=_keys_further,
    ),
    "family": Kind(
        attribute("sizer.readers.huggingface", "BUILDERS"),
        attribute("sizer.readers.huggingface", "BUILDERS"),
        "a table of sizer/readers/families.toml, else a function in hf_decoders.py or hf_encoder.py",
        "BUILDERS of sizer/readers/huggingface.py",
        (
            _test(
                "tests/test_readers.py tests/test_recurrent.py tests/test_families.py tests/test_sam2.py",
                '"{name}"',
                "a row of SETTINGS",
            ),
            _row(r"`{name}`"),
        ),
        words=_family_words,
        further=_family_further,
    ),
    "format": Kind(
        _output_formats,
        modules("sizer.render", "render"),
        "sizer/render/{name}.py",
        "sizer/render/formats.json: the formats of the commands that have it",
        (_test("tests/test_formats.py", r'(?m)^    "{name}": check', "a check of it to CHECKS"), _NAMED_ROW),
    ),
    "device": Kind(
        lambda: import_module("shapes.device").list_devices(),
        data("devices"),
        "shapes/data/devices/{name}.toml",
        "the folder",
        (
            _test("tests/test_devices.py", r'(?m)^    "{name}": ', "its published peak to PUBLISHED_TFLOPS"),
            _NAMED_ROW,
        ),
    ),
    "stack": Kind(
        lambda: import_module("shapes.step.stack").list_stacks(),
        data("stacks"),
        "shapes/data/stacks/{name}.toml",
        "the folder",
        (_test("tests/test_steps.py", r'(?m)^    "{name}": ', "what it rests on to PUBLISHED"), _NAMED_ROW),
    ),
    "engine": Kind(
        attribute("shapes.engines", "ENGINES"),
        data("engines"),
        "shapes/data/engines/{name}.toml",
        "ENGINES of shapes/engines.py",
        (_test("tests/test_deploy.py", '"{name}"', "a published load or failure of it as a test"), _NAMED_ROW),
    ),
    "kernel": Kind(
        attribute("shapes.kernels", "KERNELS"),
        data("kernels"),
        "shapes/data/kernels/{name}.toml",
        "KERNELS of shapes/kernels.py",
        (_test("tests/test_kernels.py", '"{name}"', "a shape that it takes and one that it refuses"), _NAMED_ROW),
    ),
    "recipe": Kind(
        attribute("shapes.recipes", "RECIPES"),
        data("recipes"),
        "shapes/data/recipes/{name}.toml",
        "RECIPES of shapes/recipes.py",
        (_test("tests/test_recipes.py", '"{name}"', "what it quantises as a test"), _NAMED_ROW),
    ),
    "space": Kind(
        attribute("sizer.searching.spaces", "SPACES"),
        _functions("sizer/searching/spaces.py", r"\(request: Request\) -> Space:"),
        "a function of its name in sizer/searching/spaces.py",
        "SPACES of sizer/searching/spaces.py",
        (_test("tests/test_search*.py", r'what(="|", "){name}"', "a search of it"), _NAMED_ROW),
    ),
    "operator": Kind(
        _operator_kinds,
        _operator_types,
        "a frozen class in shapes/operators/types.py",
        "kinds of shapes/data/operators.toml and the union Operator of shapes/operators/types.py",
        (_NAMED_ROW,),
        further=_operator_further,
    ),
    "command": Kind(
        lambda: list(import_module("sizer.cli").COMMANDS),
        _command_modules,
        "sizer/cli/{name}.py",
        "sizer/cli/commands.json, under its heading",
        (
            _test("tests/test_*.py", '"{name}"', "a call of it"),
            Piece("README.md", r"`(sizer )?{name}\b", "add it to the table of commands"),
            _NAMED_ROW,
        ),
    ),
}


def members(kind: str) -> list[str]:
    """Every name of a kind, registered or found."""
    return sorted({*KINDS[kind].registered(), *KINDS[kind].found()})


def missing(kind: str, name: str | None = None) -> list[str]:
    """What members of a kind (or the one named) lack, and the skeletons that nobody has filled in."""
    names = members(kind) if name is None else [name]
    return [problem for one in names for problem in KINDS[kind].missing(one)]


def skeletons() -> list[str]:
    """Lines that a generator wrote and nobody has filled in yet."""
    files = [path for room in ("sizer", "shapes", "tests") for path in sorted((ROOT / room).rglob("*.*"))]
    own = {Path(__file__), Path(__file__).with_name("new.py"), Path(__file__).parents[1] / "test_new.py"}
    return [
        f"{path.relative_to(ROOT)}:{number}: write what {SKELETON} stands for"
        for path in files
        if path.suffix in (".py", ".toml", ".json", ".md") and path not in own
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SKELETON in line
    ]


def main(asked: list[str]) -> None:
    """Print what a kind, one member of it, or (without a word) every kind lacks."""
    kind, name = [*asked, None, None][:2]
    found = missing(kind, name) if kind else [problem for one in KINDS for problem in missing(one)]
    sys.stdout.writelines(f"{line}\n" for line in (*found, *skeletons()))


if __name__ == "__main__":
    main(sys.argv[1:])
