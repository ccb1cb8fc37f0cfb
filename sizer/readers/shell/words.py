"""A script's text -> tokens, and the words as bash expands them.

Tokens are words in parts (literal, variable, command substitution, arithmetic) and operators. Variables, defaults and
arithmetic are expanded; a value that only running could tell is marked.

Why not a library: bashlex 0.18 parses 43 of 83 launch scripts of Megatron-LM (no arithmetic, ``[[ ]]``, ``case`` or
array that is appended to), and its licence is the GPL. tree-sitter-bash 0.25.1 (MIT, 0.9 MB of wheels, 24 ms to start)
has error nodes in 75 of 2,984 scripts of public repositories (2 of them are refused here), and would replace
``Scanner`` alone.
"""

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from shapes.errors import InputError, refuse
from shapes.frozen import Function, Texts, Words, first_of, frozen
from sizer.readers.reading import FORMATS, unknown

#: Nesting of defaults in ``${ }``, which are expanded recursively.
MAX_NESTING = 20

_OPERATOR = r"(?:\d(?=[<>]))?(<<<|<<-|&&|\|\||;;|<<|>>|&>|>&|<&|[;&|()<>\n])"
_NAME = r"\$([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])"
_ARRAY = r"([A-Za-z_][A-Za-z0-9_]*\+?)=\("
#: Blanks, continued lines and comments between words.
_BLANK = r"(?:[ \t\r]|\\\n|#[^\n]*)*"
_BREAKS = " \t\r\n;&|<>()"
_BREAK = rf"[{_BREAKS}]+"
_PLAIN = rf"[^{_BREAKS}'\"\\$`]+"
_SINGLE = r"\$?'([^']*)'"
_ESCAPED = r"(?s)\\(.?)"
_QUOTED = r"\\([$`\"\\\n])|([^\"][^\"$`\\]*)"
#: Quotes and brackets, and what a backslash takes their meaning.
_SIGN = re.compile(r"\\.?|['\"(){}\[\]]", re.DOTALL)
_BACKQUOTED = r"`([^`]*)`"


@frozen
class Part:
    """A piece of a word. ``kind``: text; variable, the text inside ``${ }``; command, arithmetic: their own text."""

    kind: str
    text: str
    quoted: bool = False


@frozen
class Word:
    parts: tuple[Part, ...]

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes or expansions (what a keyword must be), else None."""
        first, *more = self.parts or (None,)
        return first.text if first and not more and first.kind == "text" and not first.quoted else None


@frozen
class Token:
    """A word, operator, array, heredoc or arithmetic (``kind``) of a script.

    ``value``: a Word, an operator, the words of an array assigned to ``name`` (``name+``: appended to it), or a
    here-document's text.
    """

    kind: str
    value: Word | str | tuple[Word, ...]
    line: int
    name: str = ""

    @property
    def plain(self) -> str | None:
        """The token as a keyword or operator; None for a word with quotes or expansions."""
        if isinstance(self.value, Word):
            return self.value.plain
        return str(self.value) if self.kind == "operator" else ""


class Scanner:
    """One pass over a script's text."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text.replace("\r\n", "\n").replace("\0", "")
        self.at = 0
        self.line = line
        self._heredocs = Texts()

    def tokens(self, *, until: str | None = None) -> Iterator[Token]:
        """Tokens to the end, or to the operator ``until`` (an array's closing bracket), which is consumed."""
        while self._take(_BLANK) and self.at < len(self.text):
            line = self.line
            if self.text.startswith("((", self.at):
                yield Token("arithmetic", self._balanced("((", "))"), self.line)
            elif self.text.startswith(("<(", ">("), self.at):  # a command in place of a file
                yield Token("word", Word((Part("command", self._balanced("<(", ")")),)), line)
            elif operator := self._take(_OPERATOR):
                if operator[1] == until:
                    return
                yield from self._operator(operator[1], line)
            elif until is None and (array := self._take(_ARRAY)):
                inner = [token.value for token in self.tokens(until=")") if isinstance(token.value, Word)]
                yield Token("array", tuple(inner), self.line, array[1])
            else:
                yield Token("word", self.word(), self.line)
        if until:
            raise self._unclosed(until)

    def _take(self, pattern: str) -> re.Match[str] | None:
        """The match of a pattern at this position, which moves past it."""
        if found := re.compile(pattern).match(self.text, self.at):
            self.at = found.end()
            self.line += found[0].count("\n")
        return found

    def _operator(self, operator: str, line: int) -> Iterator[Token]:
        if operator in ("<<", "<<-"):
            self._take(_BLANK)
            self._heredocs += ["".join(part.text for part in self.word().parts)]
            return
        yield Token("operator", operator, line)
        if operator == "\n":
            for delimiter in self._heredocs:
                start = self.line
                body = self._take(rf"(?ms)(.*?)(?:^\t*{re.escape(delimiter)}\t*(?:\n|\Z)|\Z)")
                yield Token("heredoc", body[1] if body else "", start)
            self._heredocs = []

    def word(self, breaks: str = _BREAKS) -> Word:
        """The word that is next, up to one of ``breaks``; with none, all of the text as one word."""
        parts = list[Part]()
        quoted = False
        while self.at < len(self.text) and (quoted or self.text[self.at] not in breaks):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                quoted = not quoted
                parts += [Part("text", "", True)]
            elif not quoted and self.text.startswith(("'", "$'"), self.at):
                parts += [Part("text", self._closed(_SINGLE, "'"), True)]
            elif character in "$`":
                parts += [self._dollar(quoted=quoted)]
            elif quoted and (found := self._take(_QUOTED)):
                parts += [Part("text", found[2] or found[1].replace("\n", ""), True)]
            elif escaped := self._take(_ESCAPED):
                parts += [Part("text", escaped[1], True)] if escaped[1] != "\n" else []
            elif plain := self._take(_PLAIN) or self._take(_BREAK):
                parts += [Part("text", plain[0])]
        if quoted:
            raise self._unclosed('"')
        if not parts:  # a bracket where a word is due
            self.at += 1
        return Word(tuple(parts))

    def _closed(self, pattern: str, quote: str) -> str:
        found = self._take(pattern)
        if not found:
            raise self._unclosed(quote)
        return found[1]

    def _dollar(self, *, quoted: bool) -> Part:
        """An expansion: it begins with a dollar sign or a backquote."""
        if self.text[self.at] == "`":
            return Part("command", self._closed(_BACKQUOTED, "`"), quoted)
        for opening, closing, kind in FORMATS["expansions"]:
            if self.text.startswith(opening, self.at):
                return Part(kind, self._balanced(opening, closing), quoted)
        if name := self._take(_NAME):
            return Part("variable", name[1], quoted)
        self.at += 1
        return Part("text", "$", quoted)

    def _balanced(self, opening: str, closing: str) -> str:
        """The text between brackets, quotes and inner brackets respected; the position moves past the closing one."""
        start, opens, closes = self.at + len(opening), opening[-1], closing[0]
        depth, quote = len(closing), ""
        for found in _SIGN.finditer(self.text, start):
            sign = found[0]
            if quote:
                quote = "" if sign == quote else quote
            elif sign in ("'", '"') and closing != "))":
                quote = sign
            elif sign in (opens, closes):
                depth += 1 if sign == opens else -1
            if depth == 0:
                self.at = found.end()
                inner = self.text[start : self.at - len(closing)]
                self.line += inner.count("\n")
                return inner
        raise self._unclosed(closing)

    def _unclosed(self, sign: str) -> InputError:
        return InputError(f"expected a closing {sign}, line {self.line}")


#: The most characters of all variables together: doubling one forty times ends here.
MAX_EXPANDED = 2**22
#: $(echo $ARGS); or $(IFS=', '; echo "${arr[*]}"), which puts IFS's first character between a list's elements.
_ECHOED = r"""\s*(?:IFS=["']?([^\s\w"'])[^;]*;)?\s*echo ((?!-[neE])[^|;&<>`]*)"""
#: The longest text that a pattern is looked for in, from each of its characters.
MAX_CUT = 500
_ARGUMENT = "\0\\$\\d+\0"
_PARAMETER = r"(?s)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(?:(:?[-=+?]|##?|%%?)(.*))?"

Value = str | Texts


class Variables:
    """A script's variables. ``preset`` ones keep their value whatever the script assigns."""

    def __init__(self, preset: Words) -> None:
        self.values: dict[str, Value] = dict(preset)
        self.preset = frozenset(preset)
        self.used = set[str]()
        self.arguments = Texts()  # of the function or script that is followed; those of the first are not known
        self._characters = self._nesting = 0
        self._sign = " "  # between elements of a list that become one text

    def assign(self, name: str, value: Value, *, append: bool = False) -> None:
        if name in self.preset:
            self.used.add(name)
            return
        old = self.values.get(name)
        if not append or old is None:
            self.values.pop(name, None)  # the order is that of the last assignment
            self.values[name] = value
        elif isinstance(old, list):
            old += value if isinstance(value, list) else [value]
        else:
            self.values[name] = old + (value if isinstance(value, str) else " ".join(value))
        self._spend(self.values[name])

    def _spend(self, value: object) -> None:
        self._characters += len(str(value))  # of a list with its quotes and commas
        refuse(self._characters > MAX_EXPANDED, f"expected variables of at most {MAX_EXPANDED} characters")

    def joined(self, word: Word) -> str:
        """The word as one string, as on the right of an assignment."""
        return self._sign.join(self.fields(word, split=False))

    def fields(self, word: Word, *, split: bool = True) -> Texts:
        """The word's fields: unquoted expansions split at blanks, ``"${A[@]}"`` into its elements."""
        fields = Texts()
        open_ = nothing = False  # whether the last field goes on; whether a list without elements is a part
        for part in word.parts:
            pieces, apart = self._part(part), split and not part.quoted and part.kind != "text"
            text, nothing = " ".join(pieces), nothing or not pieces
            if apart:
                pieces = re.findall("(?:\0[^\0]*\0|[^\\s\0])+", text)  # an unknown stays together
                open_ = open_ and not text[:1].isspace()
            for index, piece in enumerate(pieces):
                if open_ and not index:
                    fields[-1] += piece
                else:
                    fields += [piece]
                open_ = True
            open_ = open_ and not (apart and pieces and text[-1:].isspace())
        self._spend(fields)
        return [] if nothing and fields == [""] else fields

    def _part(self, part: Part) -> Texts:
        match part.kind:
            case "text":
                return [part.text]
            case "variable":
                return self._variable(part.text)
            case "arithmetic":
                return [self.arithmetic(part.text)]
        if not (found := re.fullmatch(_ECHOED, part.text)):
            return [unknown(f"$({part.text})")]
        self._sign = found[1] or " "
        said = self._default(found[2])
        self._sign = " "
        return [said]

    def _variable(self, text: str) -> Texts:
        """The value of ``${text}``: none where it is unset, marked where its form is not understood."""
        mark = [unknown(f"${{{text}}}")]
        if counted := re.fullmatch(r"([#!])(\w+)\[[@*]\]", text):
            sign, name = counted.groups()
            held = self._value(name, "[@]") or []
            keys = [key[len(name) + 1 : -1] for key in self.values if key.startswith(f"{name}[")] or [
                *map(str, range(len(held)))
            ]
            return mark if "\0" in "".join(held) else keys if sign == "!" else [str(len(keys))]
        found = re.fullmatch(_PARAMETER, text)
        if not found:
            return mark
        name, index, way, rest = found.groups("")
        value = self._value(name, index)
        # What the script's own argument would be is not told: X=$2, then ${X:-default}.
        if ":" in way and not any(re.sub(_ARGUMENT, "", one) for one in value or ()):
            value = None
        if way.endswith("+"):
            return [] if value is None else [self._default(rest)]
        if value is not None:
            return (self._cut(value, way, self._default(rest)) or mark) if way[:1] in ("#", "%") else value
        if not way.strip(":?#%"):
            return [] if name in "@*" else [unknown("$" + name)]
        default = self._default(rest)
        if way.endswith("="):
            self.assign(name, default)
        return [default]

    def _cut(self, value: Texts, way: str, pattern: str) -> Texts:
        """Texts without the shortest (``##``, ``%%``: longest) beginning (``%``, ``%%``: end) that a pattern matches.

        None where that is not known or a text is too long.
        """
        kept, end = Texts(), way[0] == "%"
        for one in value * (len("".join(value)) <= MAX_CUT):
            pairs = [(one[:at], one[at:]) for at in range(len(one) + 1)][:: -1 if way in ("##", "%") else 1]
            self._spend(pairs)
            kept += [next((pair[not end] for pair in pairs if fnmatchcase(pair[end], pattern)), one)]
        return kept * ("\0" not in "".join((pattern, *(kept if way[1:] else value))))

    def _value(self, name: str, index: str | None) -> Texts | None:
        self.used.add(name)
        value = self.values.get(f"{name}[{self._default(index[1:-1])}]" if index else name, self.values.get(name))
        if name in ("@", "*"):
            value, index = self.arguments, "[@]"
        elif name.isdecimal():
            value = first_of(self.arguments[int(name[:9]) - 1 : int(name[:9])])
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        if index in ("[@]", "[*]"):
            return list(value)
        number = self.arithmetic(index[1:-1]) if index else "0"
        return [value[int(number)]] if number.isdecimal() and int(number) < len(value) else None

    def _default(self, text: str) -> str:
        word = Scanner(text).word("")  # which may raise
        self._nesting += 1
        refuse(self._nesting > MAX_NESTING, f"expected at most {MAX_NESTING} levels of nesting")
        found = self.joined(word)
        self._nesting -= 1
        return found

    def arithmetic(self, text: str) -> str:
        """The integer that ``$((text))`` is; marked where a variable is not known or an operator not taken."""
        try:
            return str(evaluated(self._default(text), 0, lambda name: int((self._value(name, None) or [""])[0])))
        except ValueError:
            return unknown(f"$(({text}))")


#: An expression's operator -> its function of two sides.
OPERATORS: dict[type[ast.AST], Function] = {
    **{getattr(ast, name): getattr(operator, own) for name, own in FORMATS["operators"].items()},
    ast.Div: lambda a, b: int(a / b) if abs(a) < 2**52 else a // b,
}


def evaluated(text: str, items: int, integer: Callable[[str], int] = int) -> int | list[int]:
    """The value of ``(2 + 3) * n``, ``integer`` giving the names' values, or of a list of at most so many ``items``.

    Such a list is ``([1]*3+[0])*2``. Nothing is run: ValueError for anything else.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of a text that is no Python
            found: int | list[int] = _evaluated(ast.parse(text.strip(), mode="eval").body, items, integer)
    except (SyntaxError, TypeError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        raise ValueError(text) from None
    return found


def _evaluated(node: ast.expr, items: int, integer: Callable[[str], int]) -> Any:
    match node:
        case ast.Constant(value) if type(value) is int:
            found: Any = value
        case ast.Name(name):
            found = integer(name)
        case ast.List(listed) if items:
            found = [int(_evaluated(one, 0, integer)) for one in listed]
        case ast.BinOp(left, way, right) | ast.Compare(left, [way], [right]):
            one, other = (_evaluated(side, items, integer) for side in (left, right))
            repeated = isinstance(one, list) and isinstance(other, int)
            if len(one) * other > items if repeated else type(one) is not type(other):
                raise ValueError
            found = OPERATORS[type(way)](one, other)
        case ast.UnaryOp(ast.USub(), inner):
            found = -_evaluated(inner, items, integer)
        case _:
            raise ValueError
    if len(found) > items if isinstance(found, list) else abs(found) > 2**63:
        raise ValueError
    return found if isinstance(found, list) else int(found)
