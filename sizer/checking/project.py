"""A project's settings for every check: ``[tool.sizer]`` of the nearest pyproject.toml, or a sizer.toml.

    device = "h200-sxm"           # stack, fail-on, format, select, ignore as on the command line
    [workload]                    # long options: tp, pp, dp, ep, cp, microbatch, sequence, global-batch, zero …
    tp = 8
    [[per-file]]                  # device, stack and workload of the files that match; ignore with a reason
    path = "configs/small/*.json"
    workload = {tp = 1}

In pyproject.toml they are under ``tool.sizer``. The command line has precedence. A baseline file holds the findings
that a person has accepted, so that a check fails for new ones only.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from shapes.errors import DAMAGED, InputError, read_bounded, read_text, refuse, write_whole
from shapes.frozen import Named, Names, Values, frozen, replace
from shapes.toml_table import Table, parse_toml, table_of
from shapes.workload import workload_fields
from sizer.rules import MERGED, RULES, find_rule

from .findings import SEVERITIES, PricedFinding, Report, Severity

#: Keys of the table and of each per-file table, severities that a check fails on, keys of a finding in a baseline.
KEYS, FILE_KEYS, FAIL_ON, _KEYS = table_of(__file__, "project.json").values()
#: No project says so much.
MOST_BYTES = 2**20


@frozen
class Defaults:
    """A project's defaults for one configuration; ``workload`` under the fields' own names. None: not said."""

    device: str | None
    stack: str | None
    fail_on: str | None
    format: str | None
    workload: Named


class ProjectTable(Table):
    """A project's table, or one of its per-file tables."""

    @property
    def folder(self) -> str:
        return str(Path(self.where).parent)

    def said(self, key: str) -> str | None:
        return self.text(key) if self.has(key) else None

    def codes(self, key: str) -> Names:
        return tuple(known_rule(code, self.prefix + key, self.where) for code in self.texts(key))

    def workload(self) -> Values:
        """Fields of ``Workload`` under their own names."""
        given = {key.replace("-", "_"): value for key, value in self.table("workload").data.items()}
        try:
            return workload_fields(given)
        except InputError as error:
            key = f"{self.prefix}workload.{error.key}"
            raise InputError(error.expected, key, error.value, self.where) from None

    def per_file(self) -> "list[ProjectTable]":
        return list(self.tables("per-file")) if self.has("per-file") else []


def load_defaults(config: str) -> Defaults:
    """Defaults for ``config`` (a path, or "-"): of the files that match, else the project's."""
    project = nearest_table(config)
    device, stack = None, None
    workload = Values()
    matching = (one for one in project.per_file() if _matches(config, str(one.data.get("path")), one.folder))
    for table in (project, *matching):
        device, stack = table.said("device") or device, table.said("stack") or stack
        workload |= table.workload()
    fail_on = project.choice("fail-on", FAIL_ON) if project.has("fail-on") else None
    return Defaults(device, stack, fail_on, project.said("format"), workload)


def nearest_table(config: str | Path) -> ProjectTable:
    """The table nearest above ``config``, an empty one where there is none; keys are checked."""
    folders = list[Path]()
    with suppress(OSError, ValueError, RuntimeError):
        folders += Path(config).resolve().parents if config != "-" else ()
    for parent in folders:
        for file, below in ((parent / "sizer.toml", ()), (parent / "pyproject.toml", ("tool", "sizer"))):
            if table := _table(file, below):
                table.refuse_the_rest(*KEYS)
                return table
    return ProjectTable({}, "")


def _table(file: Path, below: Names) -> ProjectTable | None:
    """The table of a file ``below`` these keys, if there is one."""
    if not os.path.isfile(file):
        return None
    table = ProjectTable(_parsed(str(file), read_text(file, MOST_BYTES), "".join(below[1:])), str(file))
    for key in below:
        if not table.has(key):
            return None
        table = table.table(key)
    return table


@lru_cache(64)
def _parsed(path: str, text: str, needed: str) -> Named:
    """A file's tables, parsed once as long as it does not change; none where the word ``needed`` is not in it."""
    return parse_toml(text, path) if needed in text else {}


def _matches(where: str, pattern: str, folder: str) -> bool:
    """Whether a file is one of ``pattern``'s, told from ``folder`` where it has a slash."""
    path = Path(where)
    if "/" not in pattern:
        return fnmatchcase(path.name, pattern)
    try:
        inside = path.resolve().relative_to(Path(folder).resolve())
    except (OSError, ValueError, RuntimeError):  # not a path (standard input), or of another tree
        return False
    return _parts_match(inside.parts, tuple(part for part in pattern.split("/") if part not in ("", ".")))


@lru_cache(1 << 12)  # each rest of the path is met by each rest of the pattern once, however many ** there are
def _parts_match(parts: Names, patterns: Names) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_parts_match(parts[start:], patterns[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _parts_match(parts[1:], patterns[1:])


#: Every rule, as people type it, and what their codes begin with.
ALL, PREFIX = "ALL", "SZ"


@frozen
class Suppression:
    """Codes, prefixes of codes (``SZ1``, ``ALL``) or slugs to keep alone and to leave out; the longer prefix decides.

    ``per_file``: (glob, codes) left out there. A glob without a slash is a file's name in any folder; one with a slash
    is a path from ``folder`` (of pyproject.toml), where ``*`` stays within one folder and ``**`` is any number of them.
    """

    select: Names = ()
    ignore: Names = ()
    per_file: tuple[tuple[str, Names], ...] = ()
    folder: str = "."

    def __post_init__(self) -> None:
        for name in ("select", "ignore"):
            object.__setattr__(self, name, tuple(known_rule(code, name) for code in getattr(self, name)))

    def keeps(self, code: str, where: str) -> bool:
        kept = _longest(self.select, code) if self.select else 0
        if kept <= _longest(self.ignore, code):  # -1 where neither names it
            return False
        here = (codes for pattern, codes in self.per_file if _matches(where, pattern, self.folder))
        return not any(map(code.startswith, here))


def _longest(prefixes: Names, code: str) -> int:
    """Length of the longest of ``prefixes`` that the code begins with; -1: none."""
    return max((len(one) for one in prefixes if code.startswith(one)), default=-1)


def load_suppression(config: str, *, select: Names, ignore: Names, extend_select: Names) -> Suppression:
    """The command line's choice over that of the nearest sizer.toml, or pyproject.toml with a [tool.sizer] table.

    As in ruff: ``select`` replaces the file's, ``extend_select`` adds to what is selected (where nothing is, every rule
    is), and what is ignored is ignored by either.

    ``[tool.sizer] select = [...]``, ``ignore`` and ``[[tool.sizer.per-file]] path, ignore, reason``; a reason is
    demanded, because a suppression outlives the memory of why.
    """
    table = nearest_table(config)
    selected = select or table.codes("select")
    return Suppression(
        (*(selected or (ALL,)), *extend_select) if selected or extend_select else (),
        (*ignore, *table.codes("ignore")),
        tuple(map(_left_out, table.per_file())),
        table.folder,
    )


def _left_out(rule: ProjectTable) -> tuple[str, Names]:
    """A per-file table's pattern and the codes left out there."""
    rule.refuse_the_rest(*FILE_KEYS)
    leaves_out = len(rule.data) < 2 or not rule.data.keys().isdisjoint(("ignore", "reason"))
    if leaves_out and not (rule.said("reason") or "").strip():
        raise rule.fail("reason", "expected a text: say why")
    return rule.text("path").strip(), rule.codes("ignore")


def known_rule(name: str, key: str, where: str | None = None) -> str:
    """The code of a rule's slug; a code, or a prefix of one, unchanged. InputError for other names."""
    if name == ALL:
        return PREFIX
    if name not in MERGED and name and any(rule.code.startswith(name) for rule in RULES):
        return name
    return find_rule(name, "a rule's code, a prefix of one or a slug", where=where, key=key).code


#: The version of a baseline file's form, and its largest size in bytes.
VERSION = 1
MOST_ACCEPTED = 64 * 2**20


@frozen
class Accepted:
    """(path below the file's folder, device, code, field) -> the severity accepted. A worse one is new again."""

    severities: dict[tuple[str, str, str, str], Severity]
    folder: Path

    def new_in(self, report: Report) -> tuple[Report, int]:
        """``report`` with the findings that were not accepted, and how many were; what all save together is theirs."""
        levels, known = (*SEVERITIES, None), self.severities  # None: it is not known
        new = tuple(
            one
            for one in report.findings
            if levels.index(one.severity) < levels.index(known.get(_identity(report, one, self.folder)))
        )
        left = len(report.findings) - len(new)
        return replace(report, findings=new, joint=None if left else report.joint), left


def load_accepted(file: str) -> Accepted:
    """A baseline written by ``write_accepted``; InputError for anything else."""
    data = read_bounded(Path(file), MOST_ACCEPTED)
    try:
        content = json.loads(data)
        entries = [tuple(one[key] for key in _KEYS) for one in content["findings"]]
        severities = {tuple(entry[:-1]): entry[-1] for entry in entries}
        known = content["version"] == VERSION and {*severities.values()} <= {*SEVERITIES}
    except DAMAGED:
        known = False
    refuse(not known, f"expected a baseline of version {VERSION}, as --write-baseline makes it", where=file)
    return Accepted(severities, Path(file).resolve().parent)


def write_accepted(reports: Iterable[Report], file: str) -> int:
    """Every finding of ``reports`` written to ``file``, sorted, paths from its folder; their number."""
    folder = Path(file).resolve().parent
    found = sorted(
        {(*_identity(one, finding, folder), finding.severity) for one in reports for finding in one.findings}
    )
    document = {"version": VERSION, "findings": [dict(zip(_KEYS, entry, strict=True)) for entry in found]}
    write_whole(file, (json.dumps(document, indent=2) + "\n").encode("utf-8"))
    return len(found)


def _identity(report: Report, finding: PricedFinding, folder: Path) -> tuple[str, str, str, str]:
    path = report.path
    with suppress(OSError, ValueError):  # no path: standard input
        path = Path(os.path.relpath(Path(path).resolve(), folder)).as_posix()
    return path, report.device, finding.code, finding.field
