"""Bash scripts read without running them, from the first line to the last.

Assignments are made, branches chosen where their test can be told. No command is run. A test that cannot be told (a
file's existence, an argument) counts as not holding, and is named.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from posixpath import basename

from shapes.errors import InputError, refuse
from shapes.frozen import Texts, Values
from sizer.readers.loading import Tree
from sizer.readers.reading import FORMATS, unknown_in

from .words import Part, Scanner, Token, Variables, Word, evaluated

#: Words gone through, those of loops' turns and of branches not taken too: a launch script has some thousands.
MAX_STEPS = 200_000
MAX_CALLS = 10
#: Words of a test; its joints are followed recursively.
MAX_TEST = 100
#: Compound commands inside one another; they are followed recursively.
MAX_DEPTH = 60
_ASSIGNMENT = r"([A-Za-z_]\w*)(\+?)="
_COUNTING = r"\s*(\w+)\s*=([^;]*);\s*\1\s*(<=?)([^;]*);\s*(?:\1\s*\+\+|\+\+\s*\1)\s*"
#: Sets of bash's words.
_REDIRECTIONS, _DECLARING, _SUCCEEDING, _COMPOUND, _ENDS, _BETWEEN, _ORDERS, _JOINTS = FORMATS["shell"].values()
#: Commands that run another one, or a script; scripts' suffixes.
_RUNNING, _SCRIPTS = map(tuple, FORMATS["scripts"])


@dataclass(slots=True)
class Script:
    """A script as followed: the words of each command, in order; ``variables`` at the end, in order of assignment.

    ``undecided``: lines of tests that cannot be told. ``tree``: of files that the script reads in; ``sourced``: those
    that are not there.
    """

    variables: Variables
    tree: Tree
    commands: list[tuple[str, ...]] = field(default_factory=list)
    undecided: set[int] = field(default_factory=set)
    sourced: Texts = field(default_factory=list)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    steps: int = 0
    calls: int = 0

    def follow(self, text: str, line: int = 1) -> None:
        """Follow a text that starts at ``line``. InputError for an unclosed quote or bracket."""
        _Follower([*Scanner(text, line).tokens()], self).all()


class _Follower:
    """Tokens of a script, a function or a branch. ``live`` False: they are only passed over."""

    def __init__(self, tokens: list[Token], script: Script) -> None:
        self.tokens, self.script = tokens, script
        self.variables = script.variables
        self.at = self.depth = 0
        self.live = True

    def all(self) -> None:
        """Follow the tokens to the end; ``calls`` counts nested calls, and the innermost are not followed."""
        self.script.calls += 1
        try:
            while self._more and self.script.calls <= MAX_CALLS:
                self._list()
                self.at += self._more  # a stray closing word
        finally:
            self.script.calls -= 1

    @property
    def _more(self) -> bool:
        return self.at < len(self.tokens)

    @property
    def _line(self) -> int:
        """The next token's, at the end the last one's."""
        return self.tokens[min(self.at, len(self.tokens) - 1)].line

    def _plain(self, ahead: int = 0) -> str | None:
        """A token ahead as a keyword or an operator; None at the end and for a word with quotes or expansions."""
        ahead += self.at
        return self.tokens[ahead].plain if ahead < len(self.tokens) else None

    def _skip(self, *words: str) -> None:
        """Move past these words, where they are next."""
        while self._plain() in words:
            self.at += 1

    def _expect(self, word: str) -> None:
        refuse(self._plain() != word, f"expected {word}, line {self._line}")
        self.at += 1

    def _list(self, live: bool = True) -> bool | None:
        """Commands up to a closing word (not consumed); the last one's status, None where it is not known.

        They run where what is around them does and ``live`` says so.
        """
        outer, self.live = self.live, self.live and live
        status = None
        join = ""
        while self._more and (word := self._plain()) not in _ENDS:
            if word in _BETWEEN:
                join = word if word in ("&&", "||") else join if word == "\n" else ""
                self.at += 1
                continue
            runs = not join or (status is False) == (join == "||")
            found = self._command(runs)
            status, join = (found if self.live and runs else status), ""
        self.live = outer
        return status

    def _command(self, live: bool = True) -> bool | None:
        """One command, simple or compound; its status where it can be told."""
        if not self._more:
            return None
        outer, self.live = self.live, self.live and live
        self.depth += 1
        refuse(self.depth > MAX_DEPTH, f"expected at most {MAX_DEPTH} levels of nesting")
        status = self._any_command(self.tokens[self.at], self._plain())
        self.depth -= 1
        self.live = outer
        return status

    def _step(self, words: int = 1) -> None:
        self.script.steps += words
        refuse(self.script.steps > MAX_STEPS, f"expected a script that goes through at most {MAX_STEPS} words")

    def _any_command(self, token: Token, word: str | None) -> bool | None:
        if word not in _COMPOUND:
            if word == "function" or (word and self._plain(1) == "(" and self._plain(2) == ")"):
                self._function()
                return None
            if token.kind not in ("heredoc", "arithmetic"):
                return self._simple()
        self.at += 1
        if token.kind == "arithmetic":
            value = self.variables.arithmetic(str(token.value)) if self.live else ""
            return None if unknown_in(value) else value != "0"
        if word == "!":
            status = self._command()
            return None if status is None else not status
        if word in ("{", "("):
            status = self._list()
            self.at += 1
            return status
        if token.kind == "heredoc":
            self._within(str(token.value), token.line)  # a script written by the script (sbatch <<EOF)
        else:
            getattr(self, f"_{word}")()
        return None

    def _within(self, text: str, line: int) -> None:
        """Commands inside a text that states options, where it is a script's."""
        if self.live and "--" in text:
            with suppress(InputError):  # text of another kind
                self.script.follow(text, line)

    def _function(self) -> None:
        self._skip("function")
        name = self._plain() or ""
        self.at += 1
        self._skip("(", ")", "\n")
        start = self.at
        self._command(live=False)
        if self.live:
            self.script.functions[name] = self.tokens[start : self.at]

    def _if(self) -> None:
        waits = True  # no branch has been taken
        word: str | None = "elif"
        while word == "elif":
            line = self._line
            holds = self._list(waits)
            if self.live and waits and holds is None:
                self.script.undecided.add(line)
            self._expect("then")
            self._list(waits and holds is True)
            waits = waits and not holds
            word = self._plain()
            self.at += word in ("elif", "else")
        if word == "else":
            self._list(waits)
        self._expect("fi")

    def _while(self) -> None:
        """Its body once, where it is known to run (``while true`` around a server)."""
        runs, undecided = self._plain(-1) == "while", {*self.script.undecided}
        holds = self._list()
        self.script.undecided = undecided  # no branch is left out
        self._body(holds is runs)

    _until = _while

    def _body(self, live: bool = False) -> None:
        """A loop's body, passed over unless it is ``live``."""
        self._expect("do")
        self._list(live)
        self._expect("done")

    def _for(self) -> None:
        name, items = self._counted()
        self.at += 1
        if self._plain() == "in":
            self.at += 1
            for word in self._words():
                items += self.variables.fields(word) if self.live else []
        self._skip(";", "\n")
        body = self.at
        known = [item for item in items if not unknown_in(item)]
        # One unknown item (``$(seq 8)``) stands for all, so that the loop's commands are seen.
        for item in known or items[:1]:
            self.at = body
            self._step()
            self.variables.assign(name, item)
            self._body(live=True)
        self.at = body
        self._body()

    _select = _for

    def _counted(self) -> tuple[str, Texts]:
        """A loop's variable; of ``for ((i = 0; i < 8; i++))`` its values."""
        found = re.fullmatch(_COUNTING, str(self.tokens[self.at].value)) if self._more else None
        if not found:
            return self._plain() or "", []
        first, last = map(self.variables.arithmetic, (found[2], f"{found[4]} + {len(found[3]) - 1}"))
        if unknown_in(first + last):
            return found[1], [first]
        return found[1], [*map(str, range(int(first), int(last))[:MAX_STEPS])]

    def _case(self) -> None:
        line = self._line
        subject = " ".join(map(self.variables.joined, self._words()))
        self._skip("in", "\n")
        waits = not unknown_in(subject)
        if self.live and not waits:
            self.script.undecided.add(line)
        while self._more and self._plain() != "esac":
            hit = False
            while self._more and self._plain() != ")":
                value = self.tokens[self.at].value
                if isinstance(value, Word):
                    hit |= fnmatchcase(subject, self.variables.joined(value))
                self.at += 1
            self.at += 1
            self._list(waits and hit)
            waits = waits and not hit
            self._skip(";;", "\n")
        self._expect("esac")

    def _words(self) -> Iterator[Word]:
        while self._more:
            value = self.tokens[self.at].value
            if not isinstance(value, Word) or value.plain == "in":
                return
            self.at += 1
            self._step()
            yield value

    def _simple(self) -> bool | None:
        """Assignments and one command's words; its status where that can be told."""
        words = Texts()
        begun = self.at
        line, inside = self._line, self._plain() == "[["
        while self._more:
            token = self.tokens[self.at]
            if token.kind == "operator" and not inside:
                if token.value not in _REDIRECTIONS:
                    break
                fed = token.value == "<<<" and words[:1] == ["read"]
                words += ["<<<"] * fed
                self.at += 2 - fed  # a redirection with its target
                continue
            self.at += 1
            inside = inside and token.plain != "]]"
            if self.live:
                self._take(token, words, inside)
        self._step(self.at - begun)
        return self._status(words, line) if self.live else None

    def _take(self, token: Token, words: Texts, inside: bool) -> None:
        """One token of a simple command: an assignment is made, anything else gives words."""
        match token.value:
            case str(operator):
                words += [operator] * inside
            case Word() as word:
                for part in word.parts:
                    if part.kind == "command":  # OUT=$(python ... --model NAME)
                        self._within(part.text, token.line)
                if not self._assigned(word, words):
                    tested = words[:1] in (["[["], ["["])
                    words += [self.variables.joined(word)] if tested else self.variables.fields(word)
            case array:
                elements, name = [*chain.from_iterable(map(self.variables.fields, array))], token.name.rstrip("+")
                self.variables.assign(name, elements, append="+" in token.name)
                for one in elements:
                    self._keyed(name + one)

    def _assigned(self, word: Word, before: Texts) -> bool:
        first, *more = word.parts or (None,)
        if not first or first.quoted or first.kind != "text" or (before and before[0] not in _DECLARING):
            return False
        found = re.match(_ASSIGNMENT, first.text)
        if not found:
            return bool(re.match(r"[A-Za-z_]\w*\[", first.text)) and self._keyed(self.variables.joined(word))
        rest = Word((Part("text", first.text[found.end() :]), *more))
        self.variables.assign(found[1], self.variables.joined(rest), append=bool(found[2]))
        return True

    def _keyed(self, text: str) -> bool:
        """Assign an array's element (``NAME[key]=value``): its name and key together are a variable's."""
        if found := re.fullmatch(r"(?s)(\w+\[[^\]]+\])=(.*)", text):
            self.variables.assign(*found.groups())
        return bool(found)

    def _status(self, words: Texts, line: int) -> bool | None:
        """Run a command's words as far as that is done here."""
        name, *arguments = words or [":"]
        match [name, *arguments]:
            case ["[" | "[[" | "test", *tested]:
                holds = _test(tested if name == "test" else tested[:-1])
                if holds is None:
                    self.script.undecided.add(line)
                return bool(holds)
            case _ if name in _SUCCEEDING:
                return name != "false"
            case ["time", *timed]:
                return self._status(timed, line)
            case ["source" | ".", file, *_]:
                if (text := self.script.tree.sourced(file)) is None:
                    self.script.sourced += [file]
                else:
                    self.variables.values["BASH_SOURCE"] = file  # which is not the one that is run
                    self.script.follow(text)
                    self.variables.values.pop("BASH_SOURCE", None)
            case ["printf", "-v", variable, form, value]:
                self.variables.assign(variable, re.sub("%[sd]", lambda _: value, form))
            case ["read", *names, "<<<", fed]:
                self._read(names, fed)
            case ["shift", *_]:
                many = next(filter(str.isdecimal, arguments), "1")
                del self.variables.arguments[: int(many[:9])]
            case _ if name in self.script.functions:
                self._call(self.script.functions[name], arguments)
            case _:
                self._wrapped(words)
                *outer, text = words
                if re.fullmatch(r"(?:.*[ /])?(?:ba|z)?sh -\w*c", " ".join(outer)) and "\0" not in text:
                    words = outer
                    self.script.follow(text)
                self.script.commands += [tuple(words)]
        return None

    def _read(self, names: Texts, fed: str) -> None:
        """Assign what IFS parts of a text (``IFS=: read -r a b <<< 24:2048``); all to a list (``-a``)."""
        listed, names = {"-a", "-ra"} & {*names}, [one for one in names if one[:1] != "-"]
        sign = str(self.variables.values.get("IFS", " ")).replace(r"\n", "\n").replace(r"\t", "\t")
        parts = [fed] * len(names)
        if sign and not unknown_in(fed):  # blanks count once, however many
            apart = f"[{re.escape(sign)}]{'+' * (sign != sign.strip())}"
            parts = re.split(apart, fed, maxsplit=0 if listed else len(names) - 1 or -1)
        for name in names:
            self.variables.assign(name, parts if listed else parts.pop(0) if parts else "")

    def _wrapped(self, words: Texts) -> None:
        """Follow the script that a command runs: ``env A=b bash x.sh``, ``exec``, ``srun bash x.sh``, ``./x.sh``."""
        at = next((at for at, word in enumerate(words) if word.endswith(_SCRIPTS)), -1)
        if at >= 0 and (at == 0 or basename(words[0]) in _RUNNING) and (text := self.script.tree.sourced(words[at])):
            kept = dict(self.variables.values)
            tokens = self.script.functions.setdefault(text, [])  # it may be run again and again
            tokens += [] if tokens else Scanner(text).tokens()
            self._call(tokens, words[at + 1 :])
            self.variables.values = kept  # what it sets is its own

    def _call(self, tokens: list[Token], arguments: Texts) -> None:
        outer, self.variables.arguments = self.variables.arguments, arguments
        _Follower(tokens, self.script).all()
        self.variables.arguments = outer


def _test(words: Texts) -> bool | None:
    """Whether ``[ words ]`` holds: comparisons of texts and integers, -z and -n; None for what cannot be told."""
    if len(words) > MAX_TEST:
        return None
    for joint, settles in _JOINTS:
        if joint in words:
            cut = words.index(joint)
            sides = _test(words[:cut]), _test(words[cut + 1 :])
            return settles if settles in sides else None if None in sides else not settles
    # The first of several nodes, which the others wait for; and the script itself, if it asks for its own name.
    own = "\0\\$\\{?(?:\\w*(?:RANK|NODE_?ID|PROC_?ID)|BASH_SOURCE(?:\\[0\\])?|0)\\}?\0"
    first = [re.sub(own, "0", word) for word in words]
    told = not any(map(unknown_in, first))
    match words:
        case ["!", *rest]:
            holds = _test(rest)
            return None if holds is None else not holds
        case ["(", *inner, ")"]:
            return _test(inner)
        case ["-z" | "-n" as how, word]:
            return _test_empty(how, word)
        case [word, "=" | "==" | "!=" as how, ""]:
            return _test_empty("-n" if how == "!=" else "-z", word)
        case [_] if told:
            return bool(*first)
        case [_, _, _] if told:
            return _compared(*first)
    return None


def _test_empty(how: str, word: str) -> bool | None:
    """An argument is taken as one that nobody gave, as ``${1:-default}`` takes it."""
    name = unknown_in(word)
    if re.fullmatch(r"\$\(.*|\$[@*#]|\$\{.*", name or ""):
        return None
    empty = not word or name is not None  # an unset variable is taken as one the caller did not set either
    return empty is (how == "-z")


def _compared(one: str, how: str, other: str) -> bool | None:
    if how in ("=", "==", "!="):
        return fnmatchcase(one, other) is (how != "!=")
    with suppress(KeyError, ValueError):
        return bool(evaluated(f"({one}) {_ORDERS[how]} ({other})", 0))
    return None
