"""`diff`: two versions of a configuration compared, on one or several devices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, hypot, log
from typing import NamedTuple, Unpack

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.frozen import Named, Names, frozen
from shapes.keywords import WorkloadKeywords
from shapes.memory import memory
from shapes.operators.parallel import check_split
from shapes.toml_table import table_of
from shapes.workload import WORDS, WORKLOAD_FIELDS
from sizer.checking.checks import report_of
from sizer.checking.findings import SEVERITIES, PricedFinding, Severity, worst_of
from sizer.checking.grading import propose
from sizer.checking.project import Suppression
from sizer.printing import Printable
from sizer.subject import Subject, read_subject

#: Keys of [tool.sizer.budgets] -> the expected value, and what breaking it means.
BUDGETS: Named = table_of(__file__, "budgets.toml")


@frozen
class Violation:
    """A budget that a version breaks. ``within_error``: by less than the prediction itself may be off."""

    path: str
    device: str
    budget: str
    message: str
    within_error: bool = False


@frozen
class DiffBudgets:
    """``max_step_regression``: relative. ``max_memory``: bytes of one device, or up to 1 a share of its memory."""

    max_step_regression: float | None = None
    max_memory: float | None = None

    def broken_by(self, path: str, one: "DeviceDiff") -> Iterator[Violation]:
        """The budgets that a version breaks on one device."""
        ratio, error, allowed = one.ratio, one.ratio_error, self.max_step_regression
        if allowed is not None and ratio is not None and error is not None and (slower := ratio - 1) > allowed:
            within = slower <= error
            text = f"{slower:+.1%} time a token on {one.device}, at most {allowed:+.1%} allowed"
            text += f" (within the error of {error:.1%})" * within
            yield Violation(path, one.device, "max-step-regression", text, within)
        if self.max_memory is None or not one.new:
            return
        needed, most = one.new.memory_bytes, self.max_memory
        if most <= 1:
            most *= load_device(one.device).memory.bytes
        if needed > most:
            text = f"{needed / 2**30:.1f} GiB a device on {one.device}, at most {most / 2**30:.1f} GiB allowed"
            yield Violation(path, one.device, "max-memory", text)


@frozen
class Figures:
    """The figures of one version on one device.

    ``flops_per_token``: the model's FLOPs, forward and backward, over all its devices. ``tokens_per_s`` and
    ``memory_bytes``: one device's.
    """

    parameters: int
    active_parameters: int
    flops_per_token: float
    step_s: float
    step_low_s: float
    step_high_s: float
    mfu: float | None
    tokens_per_s: float
    memory_bytes: int


@frozen
class DeviceDiff:
    """Both versions on one device (None: there is no such version).

    ``ratio``: time a token and device, new over old, which is the ratio of the steps where the workload stayed.
    ``ratio_error``: what that ratio may be off by, relative. ``added``: findings that the old version had not, or not
    as severe; ``fixed``: those that the new one has no more, or not as severe.
    """

    device: str
    old: Figures | None
    new: Figures | None
    ratio: float | None
    ratio_error: float | None
    added: tuple[PricedFinding, ...]
    fixed: tuple[PricedFinding, ...]

    @property
    def exceeds_error(self) -> bool:
        """Whether the ratio, or its inverse, is larger than it may be off by."""
        if self.ratio is None or self.ratio_error is None:
            return False
        return max(self.ratio, 1 / self.ratio) > 1 + self.ratio_error


class Change(NamedTuple):
    """A value of both versions."""

    old: int | str | None
    new: int | str | None


@frozen
class FileDiff:
    """One configuration that changed.

    ``changes``: dimension or workload field, as the file names it -> (old, new). ``notes``: changes that no figure
    counts.
    """

    path: str
    model_type: str
    stack: str
    changes: Mapping[str, Change]
    devices: tuple[DeviceDiff, ...]
    notes: Names

    @property
    def status(self) -> str:
        first = self.devices[0]
        return "added" if first.old is None else "removed" if first.new is None else "changed"


@frozen
class Diff(Printable):
    """The answer of `sizer diff`. ``notes``: files passed over."""

    COMMAND = "diff"

    files: tuple[FileDiff, ...]
    violations: tuple[Violation, ...] = ()
    notes: Names = ()

    @property
    def ok(self) -> bool:
        """Whether no budget is broken and neither an error nor a warning was added."""
        return not self.violations and self.worst_added() in (None, "info")

    def worst_added(self) -> Severity | None:
        """The worst severity among the findings added; None if there are none."""
        return worst_of(finding for file in self.files for one in file.devices for finding in one.added)


def diff(
    old: object,
    new: object,
    *,
    device: str | Device | Iterable[str | Device] | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    budgets: DiffBudgets | None = None,
    stack: str | None = None,
    **workload: Unpack[WorkloadKeywords],
) -> Diff:
    """``old`` and ``new`` (each as for ``check``) compared on ``device``, one or several (None: h100-sxm)."""
    chosen = [device] if isinstance(device, str | Device) else list(device or [DEFAULT_DEVICE])
    was, now = (read_subject(one, nearest=True, stack=stack, **workload) for one in (old, new))
    suppression = Suppression(tuple(select), tuple(ignore))
    return diff_of([compare(was, now, [load_device(one) for one in chosen], suppression)], budgets)


def diff_of(files: Sequence[FileDiff], budgets: DiffBudgets | None) -> Diff:
    """Files compared, with the budgets that they break."""
    limits = budgets or DiffBudgets()
    violations = [broken for file in files for one in file.devices for broken in limits.broken_by(file.path, one)]
    return Diff(tuple(files), tuple(violations))


def compare(
    old: Subject | None, new: Subject | None, devices: Sequence[Device], suppression: Suppression | None = None
) -> FileDiff:
    """Two resolved inputs on each of ``devices``; None: the file was added or removed.

    InputError for a split that neither can run.
    """
    there = new or old
    assert there
    if there.asked and all(side and side.asked for side in (old, new)):
        check_split(there.whole(), there.asked)  # neither is what was asked for

    def on(device: Device) -> DeviceDiff:
        one, two = (_Priced(side, device, suppression) if side else None for side in (old, new))
        ratio, error = (None, None) if one is None or two is None else _ratio(one, two)
        (was, before), (now, after) = (
            (side.report.findings, side.figures) if side else ((), None) for side in (one, two)
        )
        return DeviceDiff(device.name, before, after, ratio, error, _further(now, was), _further(was, now))

    differ = _changes(old, new)
    return FileDiff(there.where, there.model_type, there.stack.name, differ, tuple(map(on, devices)), there.left_out)


class _Priced:
    """One version on one device: its proposals, which hold the priced step, its report and its figures."""

    def __init__(self, subject: Subject, device: Device, suppression: Suppression | None) -> None:
        self.proposals = propose(subject, device, suppression)
        self.report = report_of(self.proposals)
        step, run = self.report.step, self.proposals.subject
        assert step
        workload = run.workload
        each = (workload.b if workload.decode else workload.tokens) * step.accumulation / workload.model_ranks
        self.figures = Figures(
            run.parameters,
            run.active_parameters,
            step.flops / each,
            step.seconds,
            step.low,
            step.high,
            step.mfu,
            each / step.seconds,
            memory(run.whole(), workload, device=device, **run.kept).total_bytes,
        )


def _further(findings: Sequence[PricedFinding], others: Sequence[PricedFinding]) -> tuple[PricedFinding, ...]:
    """The ``findings`` whose cause is not among ``others``, or is less severe there."""
    # Two findings have one cause if they name the same field and share a rule.
    return tuple(
        one
        for one in findings
        if not any(
            other.field == one.field
            and not {*other.codes}.isdisjoint(one.codes)
            and SEVERITIES.index(other.severity) <= SEVERITIES.index(one.severity)
            for other in others
        )
    )


def _ratio(old: _Priced, new: _Priced) -> tuple[float, float]:
    """New over old seconds a token and device, and its relative error."""
    before, after = old.proposals, new.proposals
    ratio = old.figures.tokens_per_s / new.figures.tokens_per_s
    if before.subject.stack == after.subject.stack:
        # Errors of the operators that one version alone runs, from both sides: operators may have gone or come.
        return ratio, max(
            before.pricer.error_s(before.step, after.step) / before.step.seconds,
            after.pricer.error_s(after.step, before.step) / after.step.seconds,
        )
    # Two stacks share no error: each step keeps its own uncertainty.
    wide = [log(max(step.high / step.seconds, step.seconds / step.low)) for step in (before.step, after.step)]
    return ratio, exp(hypot(*wide)) - 1


def _changes(old: Subject | None, new: Subject | None) -> dict[str, Change]:
    """Dimensions and workload fields that differ, under the file's own names."""
    if old is None or new is None:
        return {}
    values = {"model_type": Change(old.model_type, new.model_type)}
    for key in dict.fromkeys((*old.dimensions, *new.dimensions)):
        named_by = new if key in new.dimensions else old
        values[named_by.name_of(key)] = Change(old.dimensions.get(key), new.dimensions.get(key))
    was, now = old.asked or old.workload, new.asked or new.workload
    for field in WORKLOAD_FIELDS:
        values[WORDS.get(field, field)] = Change(_shown(getattr(was, field)), _shown(getattr(now, field)))
    return {name: change for name, change in values.items() if change.old != change.new}


def _shown(value: object) -> int | str | None:
    return value if isinstance(value, int | str) or value is None else str(value)
