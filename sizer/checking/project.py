"""A configuration checked as its project says: with the defaults and suppressions of the nearest sizer.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.frozen import frozen
from sizer.checking.checks import check_subject
from sizer.checking.defaults import load_defaults
from sizer.checking.findings import Report
from sizer.checking.proposals import Proposals, propose
from sizer.checking.suppress import Suppression, load_suppression
from sizer.subject import Subject, read_subject


@frozen
class Settled:
    """What to check: the resolved input, the device it is priced on and the rules that are kept."""

    subject: Subject
    device: Device
    suppression: Suppression

    def check(self) -> Report:
        return check_subject(self.subject, self.device, self.suppression)

    def propose(self) -> Proposals:
        """What the rules propose, beside which an editor shows neighbours."""
        return propose(self.subject, self.device, self.suppression)


def settle(
    config: str,
    source: object = None,
    *,
    device: str | None = None,
    stack: str | None = None,
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    extend_select: tuple[str, ...] = (),
    workload: Mapping[str, Any] | None = None,
    **reading: Any,
) -> Settled:
    """``config``, a path or "-", with what its project says of it; what is given here comes first.

    ``source``: what is read in its place (standard input, an editor's text). ``workload``: fields of ``Workload``;
    ``reading``: further keywords of ``read_subject``. Raises InputError for what cannot be read.
    """
    project = load_defaults(config)
    target = load_device(device or project.device or DEFAULT_DEVICE)
    suppression = load_suppression(config, select=select, ignore=ignore, extend_select=extend_select)
    subject = read_subject(
        config if source is None else source,
        nearest=True,
        stack=stack or project.stack,
        **reading,
        **{**project.workload, **(workload or {})},
    )
    return Settled(subject, target, suppression)
