"""A script's text -> tokens: words in parts (literal, variable, command substitution, arithmetic) and operators.

Our own and not bashlex: of 83 launch scripts of Megatron-LM bashlex 0.18 parses 43 (no arithmetic, ``[[ ]]``, ``case``
or array that is appended to), and its licence is the GPL. tree-sitter-bash with its runtime is 0.9 MB of wheels.
"""

from __future__ import annotations

import re
from typing import Literal

from shapes.errors import InputError
from shapes.frozen import frozen

#: A launch script is a few KiB.
MAX_SCRIPT = 2**20
#: Nesting of ``$( )``, ``${ }`` and arrays; the scanner recurses.
MAX_NESTING = 20

_OPERATOR = re.compile(r"<<<|<<-|&&|\|\||;;|<<|>>|&>|>&|<&|[;&|()<>\n]")
_NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\(")
#: Blanks, continued lines and comments between words.
_BLANK = re.compile(r"(?:[ \t\r]|\\\n|#[^\n]*)*")
_BREAKS = " \t\r\n;&|<>()"
_BREAK = re.compile(rf"[{_BREAKS}]+")
_PLAIN = re.compile(rf"[^{_BREAKS}'\"\\$`]+")
_SINGLE = re.compile(r"\$?'([^']*)'")
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_QUOTED = re.compile(r"\\([$`\"\\\n])|([^\"][^\"$`\\]*)")
_BACKQUOTED = re.compile(r"`([^`]*)`")

Kind = Literal["text", "variable", "command", "arithmetic"]


@frozen
class Part:
    """A piece of a word. ``variable``: the text inside ``${ }``; ``command`` and ``arithmetic``: their own text."""

    kind: Kind
    text: str
    quoted: bool = False


@frozen
class Word:
    parts: tuple[Part, ...]

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes or expansions (what a keyword must be), else None."""
        (first, *more) = self.parts or (None,)
        return first.text if first and not more and first.kind == "text" and not first.quoted else None


@frozen
class Token:
    """``value``: a Word, an operator, the words of an array assigned to ``name``, or a here-document's text."""

    kind: Literal["word", "operator", "array", "heredoc", "arithmetic"]
    value: Word | str | tuple[Word, ...]
    line: int
    name: str = ""
    appended: bool = False


class Scanner:
    """One pass over a script's text."""

    def __init__(self, text: str, where: str, *, line: int = 1) -> None:
        if len(text) > MAX_SCRIPT:
            raise InputError(f"expected a script of at most {MAX_SCRIPT} characters", where=where)
        self.text = text.replace("\r\n", "\n").replace("\0", "")
        self.where = where
        self.at = 0
        self.line = line
        self.nesting = 0
        self._heredocs: list[tuple[str, bool]] = []

    def tokens(self, *, until: str | None = None) -> list[Token]:
        """Tokens to the end, or to the operator ``until`` (an array's closing bracket), which is consumed."""
        found: list[Token] = []
        while self._take(_BLANK) and self.at < len(self.text):
            line = self.line
            if self.text.startswith("((", self.at):
                found.append(Token("arithmetic", self._balanced(2, "))"), self.line))
            elif operator := self._take(_OPERATOR):
                if operator[0] == until:
                    return found
                self._operator(operator[0], line, found)
            elif until is None and (array := self._take(_ARRAY)):
                inner = [token.value for token in self._nested(")") if isinstance(token.value, Word)]
                found.append(Token("array", tuple(inner), self.line, array[1], bool(array[2])))
            else:
                found.append(Token("word", self._word(), self.line))
        if until is not None:
            raise self._error(f"expected a closing {until}")
        return found

    def whole(self) -> Word:
        """All of the text as one word, blanks and operators in it as they stand."""
        parts: list[Part] = []
        while self.at < len(self.text):
            parts += self._word().parts
            if blank := self._take(_BREAK):
                parts.append(Part("text", blank[0]))
        return Word(tuple(parts))

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The match of a pattern at this position, which moves past it."""
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
            self.line += found[0].count("\n")
        return found

    def _nested(self, until: str) -> list[Token]:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self._error(f"expected at most {MAX_NESTING} levels of nesting")
        found = self.tokens(until=until)
        self.nesting -= 1
        return found

    def _operator(self, operator: str, line: int, found: list[Token]) -> None:
        if operator in ("<<", "<<-"):
            self._take(_BLANK)
            word = self._word()
            quoted = any(part.quoted for part in word.parts)
            self._heredocs.append(("".join(part.text for part in word.parts), quoted))
            return
        found.append(Token("operator", operator, line))
        if operator == "\n":
            for delimiter, quoted in self._heredocs:
                body, start = self._heredoc_body(delimiter), self.line
                found.append(Token("heredoc", body, start, "quoted" if quoted else ""))
            self._heredocs = []

    def _heredoc_body(self, delimiter: str) -> str:
        lines: list[str] = []
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            line, self.at = self.text[self.at : end], end + 1
            self.line += 1
            if line.strip("\t") == delimiter:
                break
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.text) and (character := self.text[self.at]) not in _BREAKS:
            if character == '"':
                parts += self._double()
            elif character == "'":
                parts.append(Part("text", self._closed(_SINGLE, "'"), True))
            elif escaped := self._take(_ESCAPED):
                parts += [Part("text", escaped[1], True)] if escaped[1] != "\n" else []
            elif plain := self._take(_PLAIN):
                parts.append(Part("text", plain[0]))
            else:
                parts.append(self._dollar(quoted=False))
        if not parts:  # a bracket where a word is due
            self.at += 1
        return Word(tuple(parts))

    def _closed(self, pattern: re.Pattern[str], quote: str) -> str:
        found = self._take(pattern)
        if found is None:
            raise self._error(f"expected a closing {quote}")
        return found[1]

    def _double(self) -> list[Part]:
        self.at += 1
        parts: list[Part] = [Part("text", "", True)]
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                return parts
            if character in "$`":
                parts.append(self._dollar(quoted=True))
            elif found := self._take(_QUOTED):
                parts.append(Part("text", found[2] or found[1].replace("\n", ""), True))
        raise self._error('expected a closing "')

    def _dollar(self, *, quoted: bool) -> Part:
        """An expansion: it begins with a dollar sign or a backquote."""
        if self.text[self.at] == "`":
            return Part("command", self._closed(_BACKQUOTED, "`"), quoted)
        brackets: tuple[tuple[str, str, Kind], ...] = (
            ("$((", "))", "arithmetic"),
            ("$(", ")", "command"),
            ("${", "}", "variable"),
        )
        for opening, closing, kind in brackets:
            if self.text.startswith(opening, self.at):
                return Part(kind, self._balanced(len(opening), closing), quoted)
        if self.text.startswith("$'", self.at) and not quoted:
            return Part("text", self._closed(_SINGLE, "'"), True)
        if name := self._take(_NAME):
            return Part("variable", name[1], quoted)
        self.at += 1
        return Part("text", "$", quoted)

    def _balanced(self, opening: int, closing: str) -> str:
        """The text between brackets, quotes and inner brackets respected; the position moves past the closing one."""
        start = position = self.at + opening
        pair = {")": "(", "}": "{"}[closing[0]]
        depth, quote = len(closing), ""
        while position < len(self.text):
            character = self.text[position]
            if character == "\\":
                position += 1
            elif quote:
                quote = "" if character == quote else quote
            elif character in "'\"" and closing != "))":
                quote = character
            elif character == pair:
                depth += 1
            elif character == closing[0]:
                depth -= 1
                if depth == 0:
                    self.at = position + 1
                    inner = self.text[start : position + 1 - len(closing)]
                    self.line += inner.count("\n")
                    return inner
            position += 1
        raise self._error(f"expected a closing {closing}")

    def _error(self, expected: str) -> InputError:
        return InputError(f"{expected}, line {self.line}", where=self.where)
