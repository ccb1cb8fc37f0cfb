"""What `sizer diff` compares: two files, or a git revision and what is here."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shapes.errors import InputError
from shapes.files import decoded
from shapes.frozen import frozen
from sizer.readers import Source
from sizer.readers.loading import MAX_BYTES, may_be_configuration, states_a_model


@frozen
class Pair:
    """Both versions of one configuration, with their text where a git revision holds it; None where there is none.

    ``named``: a person named the file.
    """

    path: str
    old: Source | None
    new: Source | None
    named: bool = True


def of_git(revision: str, paths: tuple[str, ...]) -> Iterator[Pair]:
    """What changed since ``revision`` among the tracked files in ``paths`` (none: all): files that state a model, and

    those that ``paths`` name. Contents are compared as they are: no command of the repository's own settings runs.
    """
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", of=revision).strip()
    top = Path(os.fsdecode(_git("rev-parse", "--show-toplevel").rstrip(b"\n")))
    wanted = [Path(path).resolve() for path in paths]
    old = _objects(_git("ls-tree", "-r", "-z", os.fsdecode(commit), top=top))
    tracked = _objects(_git("ls-files", "-s", "-z", top=top))
    for name in sorted({**old, **tracked}):
        path = top / name
        named = path in wanted
        inside = not wanted or any(path.is_relative_to(one) for one in wanted)
        if not inside or not (named or may_be_configuration(name)):
            continue
        here = _content(path) if name in tracked else None
        if (here is None and name not in old) or (here is not None and _hash(here, old.get(name, "")) == old.get(name)):
            continue
        held = _git("cat-file", "blob", old[name], top=top) if name in old else None
        if named or any(states_a_model(name, one) for one in (held, here) if one is not None):
            shown = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
            before = Source(shown, text=decoded(held, f"{revision}:{name}")) if held is not None else None
            yield Pair(shown, before, Source(shown) if here is not None else None, named)


def _objects(listed: bytes) -> dict[str, str]:
    """Regular files' names and their contents' hashes, as `git ls-tree -r` or `ls-files -s` lists them."""
    entries = [entry.partition("\t") for entry in os.fsdecode(listed).split("\0") if entry.startswith("100")]
    return {name: max(kind.split()[1:], key=len) for kind, _, name in entries}


def _content(path: Path) -> bytes | None:
    """The file's content; None where there is none, or more than a configuration has."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return None
    return path.read_bytes()


def _hash(content: bytes, like: str) -> str:
    kind = "sha256" if len(like) == 64 else "sha1"
    return hashlib.new(kind, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git(*arguments: str, of: str | None = None, top: Path | None = None) -> bytes:
    # No monitor that the repository's settings name, and no remote of theirs that an object would be fetched from.
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        ran = subprocess.run(
            command, capture_output=True, check=False, cwd=top, env={**os.environ, "GIT_NO_LAZY_FETCH": "1"}
        )
    except OSError as error:
        raise InputError(f"git cannot be run: {error.strerror}", key="--git") from None
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InputError(
            "expected a revision that git knows" if of is not None else f"git: {said[-1] if said else 'failed'}",
            key="--git",
            value=of,
        )
    return ran.stdout
