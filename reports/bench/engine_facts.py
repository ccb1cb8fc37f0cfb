"""Looks up the facts of `sizer deploy` again in clones of the engines' repositories.

    python reports/bench/engine_facts.py ENGINE CLONE... [--write]

CLONE: a work tree, a bare repository (its HEAD) or an unpacked wheel; several where facts rest on other repositories.
Every fact that names a file quotes a line of it. Each is printed with what was found: at the line that is named, at
another one, or gone. --write puts the lines that were found into shapes/data/engines/ENGINE.toml; version and date are
yours to change with them. Exit status 1 if one is gone: the fact has to be read again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shapes.engines import ENGINES, Fact, load_engine
from shapes.toml_table import shipped


class Found(NamedTuple):
    """A fact's file and line as named, and the line that its quote is on (None: the quote is gone)."""

    fact: Fact
    path: str
    named: int | None
    line: int | None

    @property
    def state(self) -> str:
        if self.line is None:
            return "gone"
        return "as named" if self.line == self.named else f"now at line {self.line}"


def text_of(clones: list[Path], path: str) -> str:
    """A file of the clones; "" where there is none. A wheel has no ``python`` or ``src`` folder above the package."""
    for clone in clones:
        for one in (path, re.sub("^(python|src)/", "", path)):
            if (clone / one).is_file():
                return (clone / one).read_text(encoding="utf-8", errors="replace")
        command = ["git", f"--git-dir={clone}", "show", f"HEAD:{path}"]
        shown = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if shown.returncode == 0:
            return shown.stdout
    return ""


def looked_up(name: str, clones: list[Path]) -> Iterator[Found]:
    """Every fact with a quote."""
    for fact in load_engine(name).facts:
        place = re.match(r"https://github.com/[^/]+/[^/]+/blob/[^/]+/([^\s#]+)(?:#L(\d+))?", fact.source)
        if not fact.quote or place is None:
            continue
        lines = text_of(clones, place[1]).splitlines()
        named = int(place[2]) if place[2] else None
        at = [number for number, line in enumerate(lines, 1) if fact.quote in line]
        yield Found(fact, place[1], named, named if named in at else next(iter(at), None))


def write(name: str, found: list[Found]) -> None:
    """Name the lines that were found in the engine's file."""
    file = shipped("engines", name)
    parts = file.read_text(encoding="utf-8").split("[[facts]]")
    for one in found:
        for index, part in enumerate(parts):
            if f"quote = {quoted(one.fact.quote)}\n" in part and one.path in part and one.line is not None:
                parts[index] = re.sub(rf"{re.escape(one.path)}(#L\d+)?", f"{one.path}#L{one.line}", part, count=1)
    file.write_text("[[facts]]".join(parts), encoding="utf-8")


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("clones", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="put the lines that were found into the engine's file")
    asked = parser.parse_args(arguments)
    found = list(looked_up(asked.engine, asked.clones))
    for one in found:
        sys.stdout.write(f"{one.state}: {one.fact.topic}: {one.path}{f'#L{one.named}' if one.named else ''}\n")
    gone = sum(one.line is None for one in found)
    unquoted = len(load_engine(asked.engine).facts) - len(found)
    sys.stdout.write(f"{len(found) - gone} of {len(found)} quotes found; {unquoted} facts rest on an issue\n")
    if asked.write:
        write(asked.engine, found)
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
