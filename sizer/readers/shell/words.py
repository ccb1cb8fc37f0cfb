"""A script's text -> tokens: words in parts (literal, variable, command substitution, arithmetic) and operators.

Our own and not bashlex: of 83 launch scripts of Megatron-LM bashlex 0.18 parses 43 (no arithmetic, ``[[ ]]``, ``case``
or array that is appended to).
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

_OPERATORS = ("<<<", "<<-", "&&", "||", ";;", "<<", ">>", "&>", ">&", "<&", ";", "&", "|", "(", ")", "<", ">", "\n")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\(")

Kind = Literal["text", "variable", "command", "arithmetic"]


@frozen
class Part:
    """A piece of a word. ``variable``: what stands inside ``${ }``; ``command`` and ``arithmetic``: their own text."""

    kind: Kind
    text: str
    quoted: bool = False


@frozen
class Word:
    parts: tuple[Part, ...]

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes or expansions (what a keyword must be), else None."""
        return (
            self.parts[0].text if len(self.parts) == 1 and self.parts[0] == Part("text", self.parts[0].text) else None
        )


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

    def __init__(self, text: str, where: str, *, line: int = 1, nesting: int = 0) -> None:
        if len(text) > MAX_SCRIPT:
            raise InputError(f"expected a script of at most {MAX_SCRIPT} characters", where=where)
        if nesting > MAX_NESTING:
            raise InputError(f"expected at most {MAX_NESTING} levels of nesting", where=where)
        self.text = text.replace("\r\n", "\n").replace("\0", "")
        self.where = where
        self.at = 0
        self.line = line
        self.nesting = nesting
        self._heredocs: list[tuple[str, bool]] = []

    def tokens(self, *, until: str | None = None) -> list[Token]:
        """Tokens to the end, or to the operator ``until`` (an array's closing bracket), which is consumed."""
        found: list[Token] = []
        while self._skip_blank():
            if self.text.startswith("((", self.at):
                found.append(Token("arithmetic", self._balanced(2, "))"), self.line))
                continue
            operator = next((each for each in _OPERATORS if self.text.startswith(each, self.at)), None)
            array = _ARRAY.match(self.text, self.at)
            if operator is None and array and until is None:
                self.at = array.end()
                inner = [token.value for token in self._nested(")") if isinstance(token.value, Word)]
                found.append(Token("array", tuple(inner), self.line, array[1], bool(array[2])))
            elif operator is None:
                found.append(Token("word", self._word(), self.line))
            elif operator == until:
                self.at += 1
                return found
            else:
                self._operator(operator, found)
        if until is not None:
            raise self._error(f"expected a closing {until}")
        return found

    def _nested(self, until: str) -> list[Token]:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self._error(f"expected at most {MAX_NESTING} levels of nesting")
        found = self.tokens(until=until)
        self.nesting -= 1
        return found

    def _operator(self, operator: str, found: list[Token]) -> None:
        self.at += len(operator)
        if operator in ("<<", "<<-"):
            self._skip_blank()
            word = self._word()
            quoted = any(part.quoted for part in word.parts)
            self._heredocs.append(("".join(part.text for part in word.parts), quoted))
            return
        found.append(Token("operator", operator, self.line))
        if operator == "\n":
            self.line += 1
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

    def _skip_blank(self) -> bool:
        """Past blanks, continuations and a comment; False at the end."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in " \t\r\n;&|<>()":
                break
            if character == "'":
                parts.append(Part("text", self._single(), True))
            elif character == '"':
                self.at += 1
                parts += self._double()
            elif character == "\\":
                parts += self._escaped()
            elif character in "$`":
                parts.append(self._dollar(quoted=False))
            else:
                start = self.at
                while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;&|<>()'\"\\$`":
                    self.at += 1
                parts.append(Part("text", self.text[start : self.at]))
        if not parts:  # a bracket where a word is due
            self.at += 1
        return Word(tuple(parts))

    def _single(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self._error("expected a closing '")
        text, self.at = self.text[self.at + 1 : end], end + 1
        self.line += text.count("\n")
        return text

    def _escaped(self) -> list[Part]:
        text, self.at = self.text[self.at + 1 : self.at + 2], self.at + 2
        if text == "\n":
            self.line += 1
            return []
        return [Part("text", text, True)]

    def _double(self) -> list[Part]:
        parts: list[Part] = [Part("text", "", True)]
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                return parts
            if character in "$`":
                parts.append(self._dollar(quoted=True))
                continue
            if character == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('$`"\\\n'):
                character = self.text[self.at + 1].replace("\n", "")
                self.line += not character
                self.at += 2
            else:
                end = self.at + 1
                while end < len(self.text) and self.text[end] not in '"$`\\':
                    end += 1
                character, self.at = self.text[self.at : end], end
                self.line += character.count("\n")
            parts.append(Part("text", character, True))
        raise self._error('expected a closing "')

    def _dollar(self, *, quoted: bool) -> Part:
        """What begins with a dollar sign or a backquote."""
        text = self.text
        if text[self.at] == "`":
            end = text.find("`", self.at + 1)
            if end < 0:
                raise self._error("expected a closing `")
            inner, self.at = text[self.at + 1 : end], end + 1
            return Part("command", inner, quoted)
        if text.startswith("$((", self.at):
            return Part("arithmetic", self._balanced(3, "))"), quoted)
        if text.startswith("$(", self.at):
            return Part("command", self._balanced(2, ")"), quoted)
        if text.startswith("${", self.at):
            return Part("variable", self._balanced(2, "}"), quoted)
        if text.startswith("$'", self.at) and not quoted:
            self.at += 1
            return Part("text", self._single(), True)
        name = _NAME.match(text, self.at + 1)
        if name is None:
            self.at += 1
            return Part("text", "$", quoted)
        self.at = name.end()
        return Part("variable", name[0], quoted)

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
