"""The answer of `check`: frozen results that every report format only renders."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from shapes.frozen import Names, Numbers, Sizes, frozen
from shapes.model import Unproven, Unread
from shapes.workload import RunPhase, Workload
from sizer.printing import Printable

if TYPE_CHECKING:
    from sizer.readers.locate import Place

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


#: Dimensions and fields of a workload, and what they are to be.
Change = Mapping[str, int | str]


@frozen
class StepTime:
    """One global step (``accumulation`` microbatches forward and backward, and the update) on one device.

    ``mfu``: the model's ``flops`` (attention's full square; no recomputation, not even a fused kernel's own) over
    ``seconds`` and the device's dense peak (None: it has none for the type). If that is more than a device can run, the
    part of the square that the mask leaves counts. ``low`` and ``high`` bound the seconds in ``coverage`` of cases (0:
    they are the operators' errors added up, as no stack is known). ``parts`` add up to the seconds. ``tier``: how the
    stack's constants are known on this device. ``unknown``: unstated settings that ``high`` allows for.

    ``mbu``: memory-bandwidth utilisation, the bytes that products and attention have to move (weights, KV cache,
    activations in and out, each once) over ``seconds`` and the device's bandwidth. ``tokens_per_s``: in inference, of
    all data-parallel ranks: tokens of prompts, or in decoding one for each request (no draft is accepted); None in
    training. In decoding ``seconds`` is the time per token, in prefill the time to the first one.
    """

    seconds: float
    low: float
    high: float
    mfu: float | None
    flops: int
    source: str
    accumulation: int
    tier: str
    coverage: float
    parts: Numbers
    mbu: float | None
    tokens_per_s: float | None
    phase: RunPhase
    unknown: Names


@frozen
class Edit:
    """New text for ``place``; a place of no width is one to insert at."""

    place: "Place"
    text: str


@frozen
class Fix:
    """A suggestion as edits of its file. ``unsafe``: why a person has to ask for it ("": it is safe)."""

    edits: tuple[Edit, ...]
    unsafe: str


@frozen
class PricedSuggestion:
    """A change and what it is predicted to do, at equal tokens and equal devices.

    ``step_seconds_change`` < 0: faster. ``flops_change`` and ``parameters_change`` say how much of that is less work.
    All three are None where the step has no price.
    ``within_error``: the gain that is not less work does not exceed the prediction's own error for these operators.
    ``fix``: its edits of the file, where somebody asked for them (``sizer.checking.fixes``) and the file can say it.
    """

    change: Change
    step_seconds_change: float | None
    parameters_change: int | None
    flops_change: int | None
    within_error: bool
    note: str = ""
    fix: Fix | None = None


@frozen
class PricedFinding:
    """One cause with its price: the finding of one rule, or of several that come from the same cause.

    ``codes``: those rules, ``code`` and ``slug`` the first's. ``step_seconds``: what its best suggestion would save a
    step, beyond what doing less work saves (None: not known). ``violated``: it
    breaks what a source asks outright, and is a warning at least, whatever the price. ``within_error``: the price does
    not exceed the prediction's own error. ``tier``: where the price comes from (measured, fitted, borrowed,
    extrapolated; "": there is none).
    """

    code: str
    slug: str
    severity: Severity
    field: str
    value: int | float | str
    message: str
    step_seconds: float | None
    suggestions: tuple[PricedSuggestion, ...]
    codes: Names
    violated: bool
    within_error: bool
    tier: str


def worst_of(findings: Iterable[PricedFinding]) -> Severity | None:
    """The worst severity among the findings; None if there are none."""
    return min((one.severity for one in findings), key=SEVERITIES.index, default=None)


@frozen
class ModelSummary:
    """The model as read: ``path`` says how its operators were found; ``unproven``: modules not understood."""

    model_type: str
    parameters: int
    active_parameters: int
    dimensions: Sizes
    path: str
    notes: Names
    unread: tuple[Unread, ...]
    unproven: tuple[Unproven, ...]


@frozen
class Report(Printable):
    """Everything `check` says of one configuration on one device.

    ``implementation``: whose kernels save activations, in the rules on memory. ``attention``: titles of the kernels
    that run the attention on this device. ``stack``: the software that runs the step ("": operators as measured, added
    up). ``step``: None where the model is not understood whole. ``joint``: the best suggestions of several findings
    made together, as far as they go together (None: fewer than two do). ``price_usd_per_h``: the device's list price
    (None: none is known).
    """

    path: str
    model: ModelSummary
    workload: Workload
    device: str
    step: StepTime | None
    findings: tuple[PricedFinding, ...]
    not_applicable: Names
    suppressed: Names
    implementation: str
    attention: Names
    stack: str
    joint: PricedSuggestion | None
    price_usd_per_h: float | None

    COMMAND = "check"

    def _answer(self) -> object:
        return Checked((self,))

    @property
    def step_s(self) -> float | None:
        """Seconds of the step, where they are known."""
        return self.step.seconds if self.step else None

    @property
    def ok(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return self.worst() in (None, "info")

    def worst(self) -> Severity | None:
        """The worst severity among the findings; None if there are none."""
        return worst_of(self.findings)


@frozen
class Checked(Printable):
    """The answer of one call of `sizer check`: a report for every configuration, in the order they were named.

    ``accepted``: findings left out since a baseline has them. ``passed_over``: files that are no configuration.
    """

    COMMAND = "check"

    reports: tuple[Report, ...]
    accepted: int = 0
    passed_over: int = 0

    def tally(self) -> dict[Severity, int]:
        """Severity -> findings of it, over all reports."""
        found = [finding.severity for report in self.reports for finding in report.findings]
        return {level: found.count(level) for level in SEVERITIES}

    @property
    def ok(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return self.worst() in (None, "info")

    def worst(self) -> Severity | None:
        """The worst severity of all reports; None if none has a finding."""
        return worst_of(one for report in self.reports for one in report.findings)
