"""What `sizer diff` compares: two files, or a git revision and what is here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from shapes.errors import InputError
from shapes.frozen import frozen

#: Endings that a configuration has, among all the files that a revision changed.
ENDINGS = (".json", ".yaml", ".yml")


@frozen
class Version:
    """A configuration to read: a file, or with ``text`` what a git revision held under that name."""

    path: str
    text: str | None = None


@frozen
class Pair:
    """Both versions of one configuration; None where there is no such version. ``named``: a person named the file."""

    path: str
    old: Version | None
    new: Version | None
    named: bool = True


def of_git(revision: str, paths: tuple[str, ...]) -> Iterator[Pair]:
    """What changed since ``revision`` in the working tree, among ``paths`` (none: all of it)."""
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", of=revision).strip()
    top = _git("rev-parse", "--show-toplevel").rstrip("\n")
    fields = _git("diff", "--name-status", "--no-renames", "-z", commit, "--", *paths).split("\0")
    files = {str(Path(path).resolve()) for path in paths if Path(path).is_file()}
    for status, name in zip(fields[0::2], fields[1::2], strict=False):
        path = Path(top) / name
        named = str(path.resolve()) in files
        if not named and path.suffix not in ENDINGS:
            continue
        shown = _relative(path)
        old = None if status == "A" else Version(shown, _git("show", f"{commit}:{name}"))
        yield Pair(shown, old, None if status == "D" else Version(shown), named)


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _git(*arguments: str, of: str | None = None) -> str:
    try:
        ran = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except OSError as error:
        raise InputError(f"git cannot be run: {error.strerror}", key="--git") from None
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InputError(
            "expected a revision that git knows" if of is not None else f"git: {said[-1] if said else 'failed'}",
            key="--git",
            value=of,
        )
    return ran.stdout.decode("utf-8", "surrogateescape")
