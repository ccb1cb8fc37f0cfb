"""Everything there is to see of a configuration: its check, its operators and its memory."""

from __future__ import annotations

from shapes.device import Device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.memory import Memory, memory
from sizer.answers.operator_table import OperatorTable, ops_of_subject
from sizer.checking.findings import Report
from sizer.subject import Subject


@frozen
class Overview:
    """One configuration. ``memory`` None: it cannot be counted (a trace, which names no sizes)."""

    report: Report
    table: OperatorTable
    memory: Memory | None
    device: Device


@frozen
class Overviews:
    """Those of one call, in the order the configurations were named."""

    items: tuple[Overview, ...]


def overview(subject: Subject, device: Device, report: Report) -> Overview:
    """``report`` is what the check of ``subject`` on ``device`` found."""
    counted = None
    if subject.model is not None:
        try:
            counted = memory(subject.model, subject.workload, device=device, implementation=subject.implementation)
        except InputError:  # a split that it cannot be counted for: the check says which
            counted = None
    return Overview(report, ops_of_subject(subject, device), counted, device)
