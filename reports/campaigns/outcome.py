"""What a campaign found: how much was tried and every violation, with what makes it again."""

from __future__ import annotations

import json
import math
import re
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from click.testing import CliRunner, Result

from sizer.cli import main

#: A figure that no answer may hold, as text writes it; "key = nan" says what a file holds.
NO_FIGURE = re.compile(r"(?<![\w./-])(?<!= )-?(nan|inf|NaN|Infinity)\b(?!\w)")
#: What an answer quotes of its input: "key = 'two inf' is not a key that is known here".
_QUOTED = re.compile(r"'[^'\n]*'")


@dataclass(slots=True)
class Outcome:
    """``kinds``: how the tries ended; ``violations``: the first of each kind of them, ``broken`` all."""

    tried: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    violations: dict[str, str] = field(default_factory=dict)

    def tell(self, kind: str) -> None:
        self.tried += 1
        self.kinds[kind] += 1

    def violation(self, what: str, example: object) -> None:
        self.broken += 1
        self.violations.setdefault(what, str(example)[:2000])

    def text(self) -> str:
        kinds = {key: self.kinds[key] for key in sorted(self.kinds)}
        return json.dumps(
            {"tried": self.tried, "ended": kinds, "violations": self.broken, "examples": self.violations}, indent=1
        )


def run_command(arguments: Sequence[str], stdin: str | bytes | None = None) -> Result:
    """The command line in this process."""
    return CliRunner().invoke(main, list(arguments), input=stdin)


def judge(outcome: Outcome, result: Result, example: object, codes: tuple[int, ...] = (0, 1, 2)) -> None:
    """Count ``result``; a violation is a traceback, another exit code, an error of more than a line, no figure."""
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome.tell("traceback")
        outcome.violation(f"{type(error).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno}", example)
        return
    outcome.tell(f"exit {result.exit_code:d}")
    if result.exit_code not in codes:
        outcome.violation(f"exit code {result.exit_code}", example)
    if result.exit_code == 2 and len(result.stderr.strip().splitlines()) != 1:
        outcome.violation("not one line", (example, result.stderr))
    if result.stdout.startswith("{"):
        try:
            found = [json.loads(result.stdout)]
        except ValueError:  # JSON lines
            found = [json.loads(line) for line in result.stdout.splitlines()]
        if not finite(found):
            outcome.violation("a figure that is none", (example, result.stdout[:500]))
        return
    if result.stdout.startswith("<!"):  # a page's scripts speak of NaN
        return
    said = _QUOTED.sub("''", result.stdout)
    figure = NO_FIGURE.search(said)
    if figure:
        outcome.violation(f"the figure {figure.group()}", (example, said[max(0, figure.start() - 80) :][:200]))


def finite(value: object) -> bool:
    """Whether no number in ``value`` is NaN or infinite."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)
