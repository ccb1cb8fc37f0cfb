"""Measuring: `check --measure`, and for search and bench the device at hand and what of a step can be timed alone."""

from collections.abc import Iterable, Mapping, Sequence

from shapes.cost import Cost, predict_many
from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.dtypes import BYTES
from shapes.errors import refuse
from shapes.frozen import Names, Words, frozen, replace
from shapes.measure.executor import Executor
from shapes.measure.jobs import ATTENTION, Job, MemoryBound
from shapes.measure.record import Measurement
from shapes.measure.runner import measure
from shapes.measure.store import Store
from shapes.model import ModelShape
from shapes.operators.types import Attention, Elementwise, Gemm, GroupedGemm, Operator
from shapes.workload import Workload
from sizer.subject import Subject

from .checks import report_of
from .findings import Report
from .grading import propose
from .project import Suppression


def check_measured(
    subject: Subject,
    executor: Executor,
    device: str | Device | None,
    suppression: Suppression | None,
    *,
    time_limit_s: float | None = None,
    store: str | None = None,
) -> Report:
    """A report whose times were measured by ``executor``; a finding that the device contradicts says so.

    One pass proposes, by predicted costs; one measures what is there and what is proposed; one prices. ``device`` None:
    that of the executor (on a CPU the rules are those of the default). InputError where another accelerator than the
    executor's is named.
    """
    subject.whole()
    refuse(
        subject.workload.decode,
        "expected another phase: the attention of a decode step is priced, not timed",
        "phase",
        "decode",
        where=subject.where,
    )
    proposals = propose(subject, device_to_measure(executor, device), suppression)
    costs = measured_costs(
        proposals.subject, [*proposals.changed_subjects()], executor, time_limit_s=time_limit_s, store=store
    )
    report = report_of(proposals, costs)
    # Predicted to be worth fixing, which the device does not bear out.
    before = {(one.code, one.field) for one in report_of(proposals).findings if one.severity == "warning"}
    said = f" Measured here ({executor.environment.device}) fixing it gains nothing statistically distinguishable."
    findings = tuple(
        replace(one, message=one.message + said) if one.severity == "info" and (one.code, one.field) in before else one
        for one in report.findings
    )
    model = replace(report.model, notes=(*report.model.notes, *costs.notes))
    return replace(report, findings=findings, model=model)


def _jobs_of(subjects: Iterable[Subject]) -> tuple[dict[Operator, Job], set[str]]:
    """(the jobs of all operators that can be timed alone, the names of the others)."""
    jobs = dict[Operator, Job]()
    places = dict[tuple[str, str], int]()
    alone = set[str]()
    for subject in subjects:
        found, notes = jobs_of_subject(subject)
        alone.update(notes.values())
        for operator, job in found.items():
            # Equal priority: an operator and what would replace it are timed in the same rounds: drift cancels.
            jobs.setdefault(
                replace(operator, count=1),
                replace(job, priority=places.setdefault((operator.name, operator.phase), len(places))),
            )
    return jobs, alone


@frozen
class MeasuredCosts:
    """A CostSource: operators by their measured time where there is one, by the cost model otherwise."""

    known: Mapping[Operator, Measurement]
    source: str
    notes: Names

    def __call__(self, operators: Sequence[Operator], device: Device) -> Sequence[Cost]:
        measured = (self.known.get(replace(operator, count=1)) for operator in operators)
        return [
            replace(
                cost,
                seconds=found.seconds,
                low=found.low,
                high=found.high,
                source=self.source,
                regime="measured",
                error=found.half_width or 0.0,
            )
            if found
            else cost
            for cost, found in zip(predict_many(operators, device), measured, strict=True)
        ]


def measured_costs(
    baseline: Subject, changed: Sequence[Subject], executor: Executor, *, time_limit_s: float | None, store: str | None
) -> MeasuredCosts:
    """Time every operator of ``baseline`` and of the ``changed`` subjects, in the same rounds as what it would replace.

    Communication and what has no kernel of its own stay predicted; a note says so.
    """
    jobs, alone = _jobs_of((baseline, *changed))
    with Store.open(store, measuring=True) as kept:
        sweep = measure(jobs.values(), executor=executor, store=kept, time_limit_s=time_limit_s)
    good = {key: result for key, result in sweep.results.items() if result.ok}
    known = {operator: good[job.key] for operator, job in jobs.items() if job.key in good}
    reason = next((one.message for one in sweep.results.values() if not one.ok), "--time-limit was up first")
    refuse(not known, f"nothing could be measured ({reason})", "--measure")
    alone.update(operator.name for operator in jobs.keys() - known.keys())
    notes: Names = (f"predicted, not measured: {', '.join(sorted(alone))}",) if alone else ()
    if executor.environment.cpu:
        notes += ("times are this CPU's and say nothing of the device whose rules these are",)
    return MeasuredCosts(known, executor.environment.source, notes)


def jobs_of_subject(subject: Subject) -> tuple[dict[Operator, Job], Words]:
    """(each operator's job, a line for every operator that cannot be timed alone and why -> its name)."""
    jobs = dict[Operator, Job]()
    notes = dict[str, str]()
    for operator in subject.operators:
        name = operator.name
        if operator.kind == "collective":
            notes[f"{name}: communication needs several devices: not measured"] = name
        elif not isinstance(operator, Gemm | GroupedGemm | Attention | Elementwise):
            notes[f"{name}: {operator.kind.replace('_', ' ')} is priced, not timed"] = name
        elif isinstance(operator, Elementwise):
            bound = elementwise_shape(operator, subject)
            if not bound:
                notes[f"{name} ({operator.phase}): no kernel of its own here: not measured"] = name
            else:
                jobs[operator] = Job(bound, label=name)
        else:
            kernel = ATTENTION["names"].get(operator.kernel, operator.kernel) if isinstance(operator, Attention) else ""
            jobs[operator] = Job(operator, kernel, label=name)
    return jobs, notes


def elementwise_shape(operator: Elementwise, subject: Subject) -> MemoryBound | None:
    """The kernel with rows and columns that moves an operator's bytes; None where torch has no single one for it."""
    if not subject.model or operator.phase not in ("forward", "dgrad"):
        return None
    size = max(2, BYTES[operator.dtype])
    dtype = operator.dtype if BYTES[operator.dtype] > 1 else "bf16"
    backward = operator.phase == "dgrad"
    columns = _columns(operator, subject.model, subject.workload, backward=backward)
    if columns is None:
        return None
    # Of a gated activation's backward both halves are written, and the loss is in fp32.
    each = {"activation": 2 * size if backward else size, "cross_entropy": size if backward else 4}
    rows = operator.bytes_written // each.get(operator.what, size) // columns
    return MemoryBound(operator.what, rows, columns, "dgrad" if backward else "forward", dtype) if rows else None


def _columns(operator: Elementwise, model: ModelShape, workload: Workload, *, backward: bool) -> int | None:
    """Elements of a row that the operator's kernel works on; None where there is no such kernel."""
    mlp = model.dense_mlp
    own_norm = "qk_norm" in operator.name or "latent" in operator.name
    found = {
        "norm": None if own_norm else model.hidden,
        "activation": mlp.width if mlp and mlp.gated else None,
        "softmax": workload.s,
        "residual": None if backward else model.hidden,
        "cross_entropy": -(-model.vocab // workload.t),
    }
    return found.get(operator.what)


def device_to_measure(executor: Executor, named: str | Device | None) -> Device:
    """The device whose limits and predictions go with measuring on ``executor``: its own, or that of a file ``named``.

    The default's where neither is known (a CPU). InputError where another device is named: its constants and limits
    are not those of what is timed.
    """
    environment, wanted = executor.environment, load_device(named or DEFAULT_DEVICE)
    here, file = environment.accelerator, isinstance(named, str) and named.endswith(".toml")
    if not here or file:
        return wanted
    elsewhere = named is not None and here.name != wanted.name
    refuse(elsewhere, f"measuring is on {environment.device} ({here.name})", "--device", wanted.name)
    return here
