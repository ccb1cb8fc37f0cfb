"""Python files that configure: assignments, and functions that build a recipe. They are read and never run."""

import ast
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from shapes.errors import refuse

from .loading import Tree, parse_mapping
from .reading import FORMATS, WORDS, Config, Values, named_plainly, recipe_of, stated, table, unknown, with_settings
from .shell.words import OPERATORS

#: The most expressions that are read in one file, whose functions call each other and whose calls are nested, and the
#: most characters of a call.
MAX_READ = 100_000
#: Sizes that a model's own code states, and settings do not.
_SIZES = WORDS["sizes"]


def parse_code(text: str, where: str, settings: Config, tree: Tree) -> Values:
    """``n_layer = 12`` lines of a Python file, with names, ``dict(...)`` and arithmetic of numbers.

    Other lines are passed over. If they name no model, the result is that of the one function that does, or of
    ``--set recipe=NAME``. ``tree``: of files of settings that its options name.
    """
    body = [*_statements(text, where)]
    refuse(not body, "expected Python assignments", where=where)
    file, made = _Code(body, text), {}
    file.options = tree.with_files(file.options)
    # Neither what is not told nor a file's own constants.
    found = {
        name: value
        for name, value in file.names.items()
        if value is not None and (isinstance(value, dict) or not name.isupper())
    }
    for name, function in file.functions.items():
        said = file.follow(function.body, names := {**file.names})
        if own := _recipe(said if isinstance(said, dict) else names, where):
            made[name] = own
    if recipe_of(found) or not made:
        whole = file.options | found  # LoRA is often made deep inside
        if file.options.keys().isdisjoint(_SIZES) and named_plainly(whole):
            found = whole
        elif len(built := _built(file.options)) == 1:
            resized = stated(vocab_size=whole.get("resize_token_embeddings"))
            found = whole | {"model": built[0]["_class"], "_built": built[0] | resized}
            found.pop("_class", None)  # of a model that nobody names
        runs = {kind: True for kind, one in WORDS["code"].items() if re.search(one, text)}
        return found | runs | {"_assigned": True, "_commands": "\n".join(file.commands)}
    chosen = settings.get("recipe", min(made) if len(made) == 1 else None)
    refuse(
        chosen not in made,
        f"expected one of its {len(made)} recipes ({', '.join(list(made)[:20])}): --set recipe=NAME",
        where=where,
    )
    return file.options | made[chosen] | {"_variables": frozenset({"recipe"})}


def _statements(text: str, where: str) -> Iterator[ast.stmt]:
    """The statements of a file, or of a notebook's cells; none of a text that is no Python."""
    for cell in _cells(text, where) if where.endswith(".ipynb") else [text]:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings(action="ignore"):
            yield from ast.parse(cell).body


def _cells(text: str, where: str) -> Iterator[str]:
    """A notebook's cells of code, what they tell the notebook or a shell as a call."""
    with suppress(TypeError, KeyError):  # another program's
        for one in parse_mapping(text, where)["cells"]:
            if one["cell_type"] == "code":
                shell = r"(?m)^(\s*)[%!](?:.*\\\n)*.*"
                yield re.sub(shell, lambda line: f"{line[1]}run({line[0].strip()[1:]!r})", "".join(one["source"]))


def _recipe(found: Values, where: str) -> Values | None:
    """A function's result, if it names a model; torchtitan's model is that of its folder and flavor."""
    if isinstance(spec := found.get("model_spec"), dict):
        return found | {"model": spec | {"flavor": spec.get("name"), "name": Path(where).resolve().parent.name}}
    return found if recipe_of(found) else None


def _built(options: Values) -> list[Values]:
    """The configurations of transformers' classes that its models' classes are given, where they are told whole."""
    made = (one for key, one in options.items() if re.fullmatch(FORMATS["builds"], key) and isinstance(one, dict))
    return [one | {"architectures": [one["_class"]]} for one in made if "model_type" in one and "" not in one]


class _Code:
    """The names and functions of a file; ``options``: defaults of a program's options, and what it calls, anywhere."""

    def __init__(self, body: list[ast.stmt], text: str) -> None:
        self.functions = {}
        self.names: Values = {"__name__": "__main__"}
        self.options: Values = {}
        self.commands = list[str]()
        self._read, self._text = 0, text
        self.follow(body, self.names)
        whole = ast.Module(body, [])
        for node in ast.walk(whole):  # a program's options first, as other values come from them
            if isinstance(node, ast.Call) and {"default", "action"} & {one.arg for one in node.keywords}:
                self._take(self._value(node, self.names))
        if self.options:
            self.follow(body, self.names)  # again, with those
        self._look_at([(whole, self.names)])
        self.functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}

    def _look_at(self, nodes: list[tuple[Any, Values]]) -> None:
        """Take what is called anywhere in nodes, with the names of the function that it is in."""
        for node, names in nodes:  # which grow by what is inside, as they are walked
            own, inner = names, ast.iter_child_nodes(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._take_defaults(node, names)
                self.follow(node.body, own := {**names})
            elif isinstance(node, ast.Call | ast.Dict):
                self._take(self._value(node, names))
            elif isinstance(node, ast.If | ast.IfExp) and self._value(node.test, names) is False:
                # Without what runs where an option is set that is not; an IfExp's part is no list, and walked alike.
                inner = ast.iter_child_nodes(ast.If(node.test, [], node.orelse))  # type: ignore[arg-type] # as said
            nodes += [(one, own) for one in inner]

    def _take_defaults(self, function: Any, names: Values) -> None:
        """Take the defaults of a function that names a model and that no call gives arguments (fire, typer)."""
        said = function.args
        pairs = zip(said.args[::-1], said.defaults[::-1], strict=False)
        held = {one.arg: self._value(value, names) for one, value in pairs if one.arg not in _SIZES}
        if named_plainly(held) and len(re.findall(rf"(?:(?<![.\w])|(?<=self\.)){function.name}\([^)]", self._text)) < 2:
            self.options = held | self.options

    def _take(self, made: Any) -> None:
        if isinstance(made, dict) and (made.get("_class", "dict") != "dict" or "zero_optimization" in made):
            name = re.sub(r"\W", "_", str(made.get("name" if "default" in made else "_class"))).strip("_")
            value = made.get("default", made)
            self.options[name] = _agreed("one of several", self.options.get(name, value), value)

    def follow(self, body: list[ast.stmt], names: Values) -> Any:
        """Follow assignments in order, to names and attributes (``cfg.model.layers = 2``); the returned value."""
        ahead = [*body]
        while ahead:
            match node := ahead.pop(0):
                case ast.Return(said):
                    return self._value(said, names)
                case ast.ClassDef(name, body=inner):
                    self.follow(inner, own := Values())
                    if own.keys().isdisjoint(_SIZES):  # settings, and no model's code
                        names[name] = own
                    else:
                        names["_class"] = name
                case ast.FunctionDef("__init__", body=inner):
                    self.follow(inner, names)
                    names |= names.pop("self", None) or {}  # what a class sets of itself
                case ast.With(_, inner) | ast.Try(inner):
                    ahead = inner + ahead
                case ast.If():
                    ahead = self._taken(node, names) + ahead
                case ast.Assign([target, *_]) | ast.AnnAssign(target) | ast.AugAssign(target) | ast.For(target):
                    self._assign(target, node, names)
        return None

    def _taken(self, node: ast.If, names: Values) -> list[ast.stmt]:
        """The branch to follow; none where both may run: they are followed, and give what they agree in."""
        holds = self._value(node.test, names)
        if isinstance(holds, bool):
            return node.body if holds else node.orelse
        self.follow(node.body, one := {**names})
        self.follow(node.orelse, other := {**names})
        names |= _agreed(f"what line {node.lineno} decides", one, other)
        return []

    def _assign(self, target: ast.expr, node: ast.stmt, names: Values) -> None:
        if isinstance(target, ast.Tuple) and target.elts:  # a model, its tokenizer
            target = target.elts[0]
        if isinstance(target, ast.Name | ast.Attribute):
            said = node if isinstance(node, ast.AugAssign) else getattr(node, "value", None)
            dotted, value = ast.unparse(target), self._value(said, names)
            section = dotted.partition(".")[0]
            names |= with_settings({section: names.get(section)}, {dotted: value})  # None: what it was is no longer so

    def _value(self, node: Any, names: Values) -> Any:
        """None for what is not told, and past the bound."""
        self._read += 1
        if self._read > MAX_READ:
            return None
        try:
            match node:
                case ast.Name(name):  # an argument that no call gives is the program's option of its name
                    return names.get(name, self.options.get(name, self.names.get(name)))
                case ast.Attribute(inner, name):
                    # A parser fills in an option's default, or that of a class of settings.
                    for one in (self._value(inner, names), self.options, *self.names.values()):
                        if isinstance(one, dict) and name in one:
                            return one[name]
                case ast.IfExp(test, one, other):
                    holds, one, other = (self._value(side, names) for side in (test, one, other))
                    if isinstance(holds, bool):
                        return one if holds else other
                    return _agreed(f"what line {node.lineno} decides", one, other)
                case ast.UnaryOp(ast.Not(), inner):
                    holds = self._value(inner, names)
                    return None if holds is None else not holds
                case ast.Call():
                    return self._call(node, names)
                case ast.List(listed):
                    return [self._value(one, names) for one in listed]
                case ast.Dict(keys, values):
                    pairs = zip(keys, values, strict=True)
                    return {str(self._value(key, names)): self._value(one, names) for key, one in pairs}
                case ast.JoinedStr(parts):
                    told = [self._value(getattr(one, "value", one), names) for one in parts]
                    return None if None in told else "".join(map(str, told))
                case ast.Subscript(inner, place):
                    return self._value(inner, names)[self._value(place, names)]
                case ast.BinOp(left, way, right) | ast.AugAssign(left, way, right) | ast.Compare(left, [way], [right]):
                    return self._worked_out(self._value(left, names), way, self._value(right, names))
            return node if isinstance(node, str) else ast.literal_eval(node)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError):
            return None

    def _worked_out(self, one: Any, way: ast.AST, other: Any) -> Any:
        """None but of lists, of what both tell and is compared, and of numbers."""
        if type(one) is type(other) is list:
            self._read += len(one)
            return one + other
        numbers = all(type(side) in (int, float) and abs(side) < 2**53 for side in (one, other))
        if None in (one, other) or not (numbers or isinstance(way, ast.cmpop)):
            return None
        return one / other if isinstance(way, ast.Div) else OPERATORS[type(way)](one, other)

    def _keywords(self, said: str, node: ast.Call, names: Values) -> Values:
        """A call's keywords; what a recipe or a class of sizes would take is not left to a default."""
        kind = not node.args and table("hf_classes").get(said.rpartition(".")[2])
        given = stated(model_type=kind)
        for one in node.keywords:
            key, value = one.arg or "", self._value(one.value, names)
            if value is None:
                text = ast.unparse(one.value) if kind else unknown(key) if f"int {key}" in WORDS["usual"][""] else ""
                value = FORMATS["literals"].get(text, text or None)
            given[key] = value
        return given

    def _call(self, node: ast.Call, names: Values) -> Any:
        """Keywords, the first text as ``name``, over those of the call before: ``from_pretrained("a").config(c=1)``."""
        said = ast.unparse(node.func)
        self._read += len(said)
        given = self._keywords(said, node, names)
        for one in (said.rpartition(".")[2], given.get("action")):
            given = FORMATS["meant"].get(one, {}) | given
        if {*given} & {*_SIZES}:  # a model that nobody names
            self.names["_class"] = said
        of, *args = (self._value(one, names) for one in (getattr(node.func, "value", None), *node.args))
        # The long name of an option (-m, --model).
        first: Any = max(args, key=lambda one: isinstance(one, str) and one[:2] == "--", default=None)
        for name, place in FORMATS["passed"].items():  # a variable's default, a path
            if said.endswith(name) and len(args) > place:
                return args[place]
        if said == "int":
            return int(first)
        if said.endswith(tuple(FORMATS["runs"])):
            text = shlex.join(map(str, first)) if isinstance(first, list) else str(first)
            self._read += len(text)
            self.commands += [text]
        if "default" in given and not args:  # a field's
            return given["default"]
        if said.endswith("resize_token_embeddings"):  # (len(tokenizer))
            self.options["resize_token_embeddings"] = next(filter(None, args), ast.unparse(node))
        if said in self.functions:
            return self.follow(self.functions[said].body, self.names | given)
        if not self.functions and not said.endswith(tuple(FORMATS["followed"])):
            return None
        named = {"name": first} if isinstance(first, str) else {}
        # get_peft_model(model, r=8)
        before = next((one for one in (of, first, given.get("config")) if isinstance(one, dict)), Values())
        return named | before | {"_class": said} | given


def _agreed(otherwise: str, one: Any, other: Any) -> Any:
    """What both make, branches or calls of one class; marked as not told, as ``otherwise`` says, where they differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _agreed(otherwise, one.get(key), other.get(key)) for key in one | other}
    return one if one == other else unknown(otherwise)
