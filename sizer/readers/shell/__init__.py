"""Bash scripts read without running them, from the first line to the last: assignments are made, branches chosen where

their test can be told. No command is run.

A test that cannot be told (a file's existence, an argument) counts as not holding, and is named.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from shapes.errors import InputError
from shapes.frozen import frozen
from sizer.readers.shell.words import Scanner, Token, Variables, Word, unknown_in

__all__ = ["Script", "follow", "unknown_in"]

#: Commands and loop turns: a launch script has a few hundred.
MAX_STEPS = 20_000
MAX_CALLS = 10
#: Words of a test; its joints are followed recursively.
MAX_TEST = 100
#: Compound commands inside one another; they are followed recursively.
MAX_DEPTH = 60
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_REDIRECTIONS = ("<", ">", ">>", "&>", ">&", "<&", "<<<")
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_ORDERS = {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_COMPOUND = {"if": "_if", "for": "_for", "select": "_for", "while": "_while", "until": "_while", "case": "_case"}
_ENDS = ("then", "else", "elif", "fi", "do", "done", "esac", "}", ")", ";;")


@frozen
class Script:
    """``commands``: the words of each command, in order. ``variables``: what is assigned at the end, in order.

    ``undecided``: lines of tests that cannot be told. ``sourced``: files that the script reads in, which are not read.
    ``used``: names of variables that were looked up or kept at their preset value.
    """

    commands: tuple[tuple[str, ...], ...]
    variables: dict[str, str | list[str]]
    undecided: tuple[int, ...] = ()
    sourced: tuple[str, ...] = ()
    used: frozenset[str] = frozenset()


def follow(text: str, where: str, preset: dict[str, str] | None = None) -> Script:
    """The commands that ``text`` would run, ``preset`` variables given. InputError for an unclosed quote or bracket."""
    state = _State(Variables(where, preset), where)
    _Follower(Scanner(text, where).tokens(), state).all()
    return Script(
        tuple(state.commands),
        state.variables.values,
        tuple(sorted(state.undecided)),
        tuple(state.sourced),
        frozenset(state.variables.used),
    )


@dataclass(slots=True)
class _State:
    variables: Variables
    where: str
    commands: list[tuple[str, ...]] = field(default_factory=list)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    undecided: set[int] = field(default_factory=set)
    sourced: list[str] = field(default_factory=list)
    steps: int = 0
    calls: int = 0

    def step(self) -> None:
        self.steps += 1
        self.bounded(self.steps, MAX_STEPS, "a script of at most {} commands")

    def bounded(self, number: int, most: int, expected: str) -> None:
        if number > most:
            raise InputError("expected " + expected.format(most), where=self.where)


class _Follower:
    """Tokens of a script, a function or a branch. ``live`` False: they are only passed over."""

    def __init__(self, tokens: list[Token], state: _State) -> None:
        self.tokens, self.state = tokens, state
        self.at = 0
        self.depth = 0

    def all(self) -> None:
        while self.at < len(self.tokens):
            self._list(live=True)
            self.at += self.at < len(self.tokens)  # a stray closing word

    def _plain(self, ahead: int = 0) -> str | None:
        """The next token as a keyword or operator."""
        if self.at + ahead >= len(self.tokens):
            return None
        token = self.tokens[self.at + ahead]
        if isinstance(token.value, Word):
            return token.value.plain
        return str(token.value) if token.kind == "operator" else ""

    def _skip(self, *words: str) -> None:
        while self._plain() in words:
            self.at += 1

    @property
    def _line(self) -> int:
        return self.tokens[self.at].line if self.at < len(self.tokens) else 0

    def _list(self, *, live: bool) -> bool | None:
        """Commands up to a closing word (not consumed); the last one's status, None where it is not known."""
        status: bool | None = None
        join = ""
        while self.at < len(self.tokens):
            word = self._plain()
            if word is not None and (word in _ENDS):
                break
            if word in ("&&", "||", "|", "&", ";", "\n"):
                join = word if word in ("&&", "||") else join if word == "\n" and join else ""
                self.at += 1
                continue
            runs = live and not (join == "&&" and status is False) and not (join == "||" and status is not False)
            found = self._command(live=runs)
            status, join = (found if runs else status), ""
        return status

    def _command(self, *, live: bool) -> bool | None:
        """One command, simple or compound; its status where it can be told."""
        self.depth += 1
        self.state.bounded(self.depth, MAX_DEPTH, "at most {} levels of nesting")
        status = self._any_command(live=live) if self.at < len(self.tokens) else None
        self.depth -= 1
        return status

    def _any_command(self, *, live: bool) -> bool | None:
        if live:
            self.state.step()
        token, word = self.tokens[self.at], self._plain()
        if token.kind == "word" and word in _COMPOUND:
            self.at += 1
            getattr(self, _COMPOUND[word])(live=live)
            return None
        if word == "!":
            self.at += 1
            status = self._command(live=live)
            return None if status is None else not status
        if word in ("{", "("):
            self.at += 1
            status = self._list(live=live)
            self.at += 1
            return status
        if word == "function" or (word and self._plain(1) == "(" and self._plain(2) == ")"):
            self._function(live=live)
            return None
        if token.kind == "heredoc":
            self.at += 1
            if live:
                self._heredoc(token)
            return None
        return self._simple(live=live)

    def _heredoc(self, token: Token) -> None:
        """A script written by the script (``sbatch <<EOF``): followed when it states options of its own."""
        if "--" not in str(token.value) or self.state.calls >= MAX_CALLS:
            return
        self.state.calls += 1
        try:
            tokens = Scanner(str(token.value), self.state.where, line=token.line).tokens()
            _Follower(tokens, self.state).all()
        except InputError:
            return  # text of another kind
        finally:
            self.state.calls -= 1

    def _function(self, *, live: bool) -> None:
        if self._plain() == "function":
            self.at += 1
        name = self._plain() or ""
        self.at += 1
        self._skip("(", ")", "\n")
        start = self.at
        self._command(live=False)
        if live:
            self.state.functions[name] = self.tokens[start : self.at]

    def _if(self, *, live: bool) -> None:
        done = not live
        while True:
            line = self._line
            holds = self._list(live=not done)
            if not done and holds is None:
                self.state.undecided.add(line)
            self._expect("then")
            self._list(live=not done and holds is True)
            done = done or holds is True
            if self._plain() != "elif":
                break
            self.at += 1
        if self._plain() == "else":
            self.at += 1
            self._list(live=not done)
        self._expect("fi")

    def _while(self, *, live: bool) -> None:
        self._list(live=False)
        self._body()

    def _body(self) -> None:
        """A loop's body passed over."""
        self._expect("do")
        self._list(live=False)
        self._expect("done")

    def _for(self, *, live: bool) -> None:
        name = self._plain() or ""
        self.at += 1
        items: list[str] = []
        if self._plain() == "in":
            self.at += 1
            for word in self._words():
                items += self.state.variables.fields(word) if live else []
        self._skip(";", "\n")
        body = self.at
        known = [item for item in items if unknown_in(item) is None]
        # Of items that are not known (``$(seq 8)``) one stands for all, so that what the loop runs is seen.
        for item in known or items[:1]:
            self.at = body
            self._expect("do")
            self.state.step()
            self.state.variables.assign(name, item)
            self._list(live=True)
        self.at = body
        self._body()

    def _case(self, *, live: bool) -> None:
        line = self._line
        subject = " ".join(self.state.variables.joined(word) for word in self._words())
        self._skip("in", "\n")
        asked, done = live, False
        if live and unknown_in(subject) is not None:
            self.state.undecided.add(line)
            asked = False
        while self.at < len(self.tokens) and self._plain() != "esac":
            patterns: list[str] = []
            while self.at < len(self.tokens) and self._plain() != ")":
                token = self.tokens[self.at]
                if isinstance(token.value, Word):
                    patterns.append(self.state.variables.joined(token.value))
                self.at += 1
            self.at += 1
            hit = asked and not done and any(fnmatchcase(subject, pattern) for pattern in patterns)
            self._list(live=hit)
            done = done or hit
            self._skip(";;", "\n")
        self._expect("esac")

    def _expect(self, word: str) -> None:
        if self._plain() != word:
            line = self.tokens[min(self.at, len(self.tokens) - 1)].line
            raise InputError(f"expected {word}, line {line}", where=self.state.where)
        self.at += 1

    def _words(self) -> Iterator[Word]:
        while self.at < len(self.tokens):
            value = self.tokens[self.at].value
            if not isinstance(value, Word) or value.plain == "in":
                return
            self.at += 1
            yield value

    def _simple(self, *, live: bool) -> bool | None:
        """Assignments and one command's words; its status where that can be told."""
        words: list[str] = []
        line, inside = self._line, self._plain() == "[["
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "operator" and not inside:
                if token.value not in _REDIRECTIONS:
                    break
                if token.value == ">&" and words[-1:] in (["1"], ["2"]):
                    words.pop()  # 2>&1: a file descriptor, no argument
                self.at += 2  # a redirection with its target
                continue
            self.at += 1
            inside = inside and not (isinstance(token.value, Word) and token.value.plain == "]]")
            if live:
                self._take(token, words, inside)
        return self._status(words, line) if live else None

    def _take(self, token: Token, words: list[str], inside: bool) -> None:
        """One token of a simple command: an assignment is made, anything else gives words."""
        variables, value = self.state.variables, token.value
        if isinstance(value, tuple):
            elements = [field for word in value for field in variables.fields(word)]
            variables.assign(token.name, elements, append=token.appended)
        elif isinstance(value, str):
            words += [value] if inside else []
        elif not self._assigned(value, words):
            words += [variables.joined(value)] if words[:1] in (["[["], ["["]) else variables.fields(value)

    def _assigned(self, word: Word, before: list[str]) -> bool:
        first = word.parts[0] if word.parts else None
        if first is None or first.quoted or first.kind != "text" or (before and before[0] not in _DECLARING):
            return False
        found = _ASSIGNMENT.match(first.text)
        if found is None:
            return False
        rest = Word((type(first)("text", first.text[found.end() :]), *word.parts[1:]))
        if not found[2]:
            self.state.variables.assign(found[1], self.state.variables.joined(rest), append=bool(found[3]))
        return True

    def _status(self, words: list[str], line: int) -> bool | None:
        if not words:
            return True
        name = words[0]
        if name in ("[", "[[", "test"):
            holds = _test(words[1:-1] if name != "test" else words[1:])
            if holds is None:
                self.state.undecided.add(line)
            return bool(holds)
        if name in ("true", ":", "set", "cd", "echo", "mkdir", *_DECLARING):
            return True
        if name == "false":
            return False
        if name in ("source", ".") and len(words) > 1:
            self.state.sourced.append(words[1])
            return None
        if name in self.state.functions and self.state.calls < MAX_CALLS:
            self._call(name, words[1:])
            return None
        self.state.commands.append(tuple(words))
        return None

    def _call(self, name: str, arguments: list[str]) -> None:
        values = self.state.variables.values
        own: dict[str, str | list[str]] = {str(index): one for index, one in enumerate(arguments[:99], start=1)}
        own["@"] = list(arguments)
        before = {key: value for key, value in values.items() if key == "@" or key.isdecimal()}
        values.update(own)
        self.state.calls += 1
        _Follower(self.state.functions[name], self.state).all()
        self.state.calls -= 1
        for key in own:
            values.pop(key, None)
        values.update(before)


def _test(words: list[str]) -> bool | None:
    """Whether ``[ words ]`` holds: comparisons of texts and integers, -z and -n; None for what cannot be told."""
    if len(words) > MAX_TEST:
        return None
    for joint, settles in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if joint in words:
            cut = words.index(joint)
            sides = (_test(words[:cut]), _test(words[cut + 1 :]))
            return settles if settles in sides else None if None in sides else not settles
    if words[:1] == ["!"]:
        holds = _test(words[1:])
        return None if holds is None else not holds
    if words[:1] == ["("] and words[-1:] == [")"]:
        return _test(words[1:-1])
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return _test_empty(*words)
    if len(words) not in (1, 3) or any(unknown_in(word) is not None for word in words):
        return None
    return bool(words[0]) if len(words) == 1 else _compared(*words)


def _test_empty(how: str, word: str) -> bool | None:
    name = unknown_in(word)
    if name is not None and re.fullmatch(r"\$\d+|\$\(.*|\$[@*#]|\$\{.*", name):
        return None
    empty = not word or name is not None  # an unset variable is taken as one the caller did not set either
    return empty is (how == "-z")


def _compared(one: str, how: str, other: str) -> bool | None:
    if how in ("=", "==", "!="):
        return fnmatchcase(one, other) is (how != "!=")
    order = _ORDERS.get(how)
    if order is None or not (one.lstrip("-").isdecimal() and other.lstrip("-").isdecimal()):
        return None
    return bool(order(int(one[:20]), int(other[:20])))
