"""`sizer diff`: two files, or a revision of git against the working tree."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from shapes.device import load_device
from shapes.errors import InputError, decoded, refuse
from shapes.frozen import Named, Names, Values, Words, first_of, frozen, replace
from sizer.answers.diff import BUDGETS, Diff, DiffBudgets, compare, diff_of
from sizer.checking.checks import CheckRequest
from sizer.checking.project import nearest_table
from sizer.readers import NoModel, Source, parse_setting
from sizer.readers.loading import MAX_BYTES, may_be_configuration, states_a_model

from .options import Asked, exceeds, option_error, say_line, scaled, subcommand


@subcommand("diff", "diff stack workload rules output")
def command(asked: Asked) -> None:
    """Price a change of configurations: step, MFU, memory, findings added and fixed.

    Exit code: 0, 1 for a broken budget (options, or [tool.sizer.budgets]) or findings added, 2 bad input.
    """
    answer, refused = _all_compared(asked)
    if answer.files or not refused:
        asked.answer(answer)
    if refused:
        sys.exit(2)
    if answer.violations or exceeds(answer.worst_added(), asked.fail_on):
        sys.exit(1)


def _all_compared(asked: Asked) -> tuple[Diff, bool]:
    """(the comparison of every configuration named, whether one could not be read, which is said)."""
    revision, named, changes = asked.revision, not asked.models_only, dict(map(parse_setting, asked.set))
    # One file with --set is compared with itself.
    paths = asked.paths * (1 + bool(changes))
    if revision is None:
        refuse(
            len(paths) != 2,
            "expected OLD NEW (two files), CONFIG --set KEY=VALUE, or --git REV",
            "diff",
            " ".join(asked.paths),
        )
        pairs: Iterable[Pair] = [Pair(paths[1], Source(paths[0]), Source(paths[1], changes), named)]
    else:
        refuse(bool(changes), "expected one CONFIG with it, and no --git", "set", " ".join(asked.set))
        pairs = of_git(revision, paths, models_only=not named)
    parts = []
    refused = False
    for pair in pairs:
        try:
            parts.append(_compared(asked, pair))
        except InputError as error:
            say_line(str(option_error(error)))
            refused = True
    files, violations, notes = (
        tuple(one for part in parts for one in getattr(part, name)) for name in ("files", "violations", "notes")
    )
    if revision and not (files or refused):
        notes = *notes, f"no model configuration differs from {revision}"
    return Diff(files, violations, notes), refused


def _compared(asked: Asked, pair: "Pair") -> Diff:
    """One configuration's comparison; a note alone for what nobody named and that is no configuration."""
    devices = asked.devices
    request = CheckRequest(first_of(devices), asked.stack, workload=asked.workload, **asked.suppression())
    try:
        sides = [request.settle(pair.path, version) if version else None for version in (pair.old, pair.new)]
    except NoModel as error:
        if pair.named:
            raise
        return Diff((), notes=(f"{error.where}: no model configuration, passed over",))
    project = nearest_table(pair.path)
    budgets = budgets_of(project.table("budgets").data, asked.limits, project.where)
    alone = (f"{pair.path} has one version alone: no budget compares it (renamed? sizer diff OLD NEW)",)
    old, new = (replace(side.subject, where=pair.path) if side else None for side in sides)
    one = next(filter(None, sides))  # either's device and rules: the project's are one
    found = diff_of([compare(old, new, [one.device, *map(load_device, devices[1:])], one.suppression)], budgets)
    return replace(found, notes=alone * (None in sides and budgets != DiffBudgets()))


def budgets_of(table: Named, options: Iterable[str], where: str) -> DiffBudgets:
    """The KEY=VALUE texts of ``--budget`` over a [tool.sizer.budgets] ``table`` of the file ``where``."""
    given: Values = {key: (f"tool.sizer.budgets.{key}", value, where) for key, value in table.items()}
    for option in options:
        key, _, value = option.partition("=")
        given[key] = f"--budget {key}", value
    found = {}
    for key, said in given.items():
        refuse(key not in BUDGETS, f"expected {' or '.join(BUDGETS)}", *said)
        value = str(said[1]).strip()
        amount = scaled(value, key)
        # 1 is no share, and 72 no bytes: a unit was forgotten.
        refuse(
            amount is None or (value[-1] in "0123456789." and 1 <= amount < 2**20),
            f"expected {BUDGETS[key]['expected']}",
            *said,
        )
        found[key.replace("-", "_")] = amount
    return DiffBudgets(**found)


@frozen
class Pair:
    """Both versions of one configuration, with their text where a git revision holds it; None where there is none.

    ``named``: a person named the file.
    """

    path: str
    old: Source | None
    new: Source | None
    named: bool


def of_git(revision: str, paths: Names, *, models_only: bool) -> Iterator[Pair]:
    """What changed since ``revision`` among the tracked files in ``paths`` (none: all).

    These are files that state a model, and unless ``models_only`` those that ``paths`` name. Contents are compared as
    they are: no command of the repository's own settings runs.
    """
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", of=revision).strip()
    top = Path(os.fsdecode(_git("rev-parse", "--show-toplevel").rstrip(b"\n")))
    wanted = [Path(path).resolve() for path in paths]
    old = _objects(_git("ls-tree", "-r", "-z", os.fsdecode(commit), top=top))
    tracked = _objects(_git("ls-files", "-s", "-z", top=top))
    for name in sorted({**old, **tracked}):
        path = top / name
        named = path in wanted and not models_only
        inside = not wanted or any(map(path.is_relative_to, wanted))
        if not inside or not (named or may_be_configuration(name)):
            continue
        # More than a configuration has is none.
        known = name in tracked and path.is_file() and path.stat().st_size <= MAX_BYTES
        here = path.read_bytes() if known else None
        # Git for Windows checks files out with its lines' ends.
        texts = () if here is None else (here, here.replace(b"\r\n", b"\n"))
        if old.get(name) in [_hash(one, old.get(name, "")) for one in texts] or (here is None and name not in old):
            continue
        held = _git("cat-file", "blob", old[name], top=top) if name in old else None
        if named or any(states_a_model(name, one) for one in (held, here) if one is not None):
            shown = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
            before = Source(shown, text=decoded(held, f"{revision}:{name}")) if held is not None else None
            yield Pair(shown, before, Source(shown) if here is not None else None, named)


def _objects(listed: bytes) -> Words:
    """Regular files' names and their contents' hashes, as `git ls-tree -r` or `ls-files -s` lists them."""
    entries = [entry.partition("\t") for entry in os.fsdecode(listed).split("\0") if entry.startswith("100")]
    return {name: max(kind.split()[1:], key=len) for kind, _, name in entries}


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
        raise InputError(f"git cannot be run: {error.strerror}", "--git") from None
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        unknown = of is not None and "not a git repository" not in "".join(said)
        expected = "expected a revision that git knows" if unknown else f"git: {said[-1] if said else 'failed'}"
        raise InputError(expected, "--git", of)
    return ran.stdout
