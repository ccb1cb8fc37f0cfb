"""Findings that a person has accepted: a baseline file, so that a check fails for new ones only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shapes.errors import InputError
from shapes.files import read_bounded, write_whole
from shapes.frozen import frozen
from sizer.checking.findings import SEVERITIES, PricedFinding, Report, Severity

VERSION = 1
MAX_BYTES = 64 * 2**20
_KEYS = ("path", "device", "code", "field", "severity")


@frozen
class Accepted:
    """(path below the file's folder, device, code, field) -> the severity accepted. A worse one is new again."""

    severities: dict[tuple[str, str, str, str], Severity]
    folder: Path

    def new_in(self, report: Report) -> tuple[Report, int]:
        """``report`` with the findings that were not accepted, and how many were."""
        new = tuple(finding for finding in report.findings if not self._has(report, finding))
        return replace(report, findings=new), len(report.findings) - len(new)

    def _has(self, report: Report, finding: PricedFinding) -> bool:
        known = self.severities.get(_identity(report, finding, self.folder))
        return known is not None and SEVERITIES.index(finding.severity) >= SEVERITIES.index(known)


def load_accepted(file: str) -> Accepted:
    """A baseline written by ``write_accepted``; InputError for anything else."""
    try:
        content = json.loads(read_bounded(Path(file), MAX_BYTES).decode("utf-8"))
    except (ValueError, RecursionError):
        raise InputError("expected a baseline, as --write-baseline makes it", where=file) from None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise InputError(f"expected a baseline of version {VERSION}, as --write-baseline makes it", where=file)
    findings = content.get("findings")
    if not isinstance(findings, list) or not all(_is_entry(one) for one in findings):
        raise InputError(f"expected findings with {', '.join(_KEYS)}", where=file, key="findings")
    return Accepted(
        {(one["path"], one["device"], one["code"], one["field"]): one["severity"] for one in findings},
        Path(file).resolve().parent,
    )


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
    return _below(report.path, folder), report.device, finding.code, finding.field


def _below(path: str, folder: Path) -> str:
    try:
        return Path(os.path.relpath(Path(path).resolve(), folder)).as_posix()
    except (OSError, ValueError):  # no path: standard input
        return path


def _is_entry(one: Any) -> bool:
    return (
        isinstance(one, dict) and all(isinstance(one.get(key), str) for key in _KEYS) and one["severity"] in SEVERITIES
    )
