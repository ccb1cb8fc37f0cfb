"""Model and hardware FLOPs utilization of a measured step, by the usual ways of counting, each with its convention.

MFU counts the FLOPs a forward and backward need, HFU those that were run, recomputation included (Chowdhery et al.
2204.02311; Korthikanti et al. 2205.05198, section 6.3).
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from csv import DictReader
from functools import cache, partial
from itertools import pairwise
from operator import mul
from statistics import median
from typing import Any, Unpack

import numpy as np

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.errors import DAMAGED, InputError, positive_int, refuse
from shapes.frozen import Floats, Function, Named, Names, Numbers, Values, frozen, replace
from shapes.keywords import WorkloadKeywords
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.types import Collective, Product, needed_flops
from shapes.step import Pricer, StepCost
from shapes.step.seconds import class_of, factor
from shapes.step.stack import SoftwareStack
from shapes.toml_table import check_bounds, table_of
from shapes.workload import Workload, check_batch, workload_fields
from sizer.printing import Printable
from sizer.subject import Subject, read_subject, run_on


@frozen
class FlopCount:
    """FLOPs of one step over all devices: what the model needs, and what was run."""

    method: str
    convention: str
    model_flops: float
    hardware_flops: float


@frozen
class Utilization:
    """One count over the step's time: TFLOPS a device, and its share of the peak and of the achievable matmul peak.

    ``mfu_achievable`` is None where no achievable peak (MAMF) is published for the device.
    """

    count: FlopCount
    model_tflops: float
    hardware_tflops: float
    mfu: float
    hfu: float
    mfu_achievable: float | None


#: Fields of a workload that decide which parts of forward and backward are run.
_RUN = ("phase", "decoder_s", "finetune", "lora_rank", "lora_targets", "base")


def operator_count(model: ModelShape, workload: Workload, *, causal: bool = False) -> FlopCount:
    """Every matrix product of forward and backward of a global step, head counted, embedding lookup not.

    ``workload``: its phase and fine-tuning say what is run of them. ``causal``: only the part of the attention square
    that the mask leaves, instead of the whole.
    """
    one = Workload(1, workload.s, **{name: getattr(workload, name) for name in _RUN})
    needed, run = (
        needed_flops(operators(model, replace(one, checkpointing=saved)), causal=causal) * (workload.global_batch or 1)
        for saved in ("none", workload.checkpointing)
    )
    square = "masked part of the attention square only" if causal else "whole attention square"
    return FlopCount(
        "operators, causal" if causal else "operators",
        f"every matrix product; {square}, head counted, embedding not; a flash kernel's own recomputation not",
        needed,
        run,
    )


def parameters_count(parameters: float, workload: Workload) -> FlopCount:
    """6 N D (8 N D with full recomputation): parameters x tokens; embedding counted, the square not."""
    tokens = workload.s * (workload.global_batch or 1)
    run = 8 if workload.checkpointing == "full" else 6
    text = "6 x active parameters x tokens (8 with full recomputation): no attention square, embedding counted"
    return FlopCount("6ND", text, 6 * parameters * tokens, run * parameters * tokens)


def counts(model: ModelShape, workload: Workload) -> tuple[FlopCount, ...]:
    """All conventions for one model; of inference, and where a base is frozen, those that count operators alone."""
    refuse(workload.decode, "expected train: `sizer check` has a decode step's utilisation", "phase", "decode")
    by_operators = tuple(operator_count(model, workload, causal=causal) for causal in (False, True))
    if not workload.train or workload.adapted:
        return by_operators
    return *by_operators, parameters_count(model.active_parameters, workload)


def by_precision(count: FlopCount, model: ModelShape, workload: Workload, device: Device) -> FlopCount:
    """``count`` with each product at the peak of the type that it runs in."""
    flops: Any = Counter()
    for one in operators(model, replace(workload, checkpointing="none")):
        if one.dtype in device.peak_flops:
            flops[one.dtype] += needed_flops([one])
    shares = {dtype: needed / flops.total() for dtype, needed in flops.most_common() if needed}
    times = device.peak(workload.dtype) * sum(share / device.peak(dtype) for dtype, share in shares.items())
    said = ", ".join(f"{dtype} {share:.0%}" for dtype, share in shares.items() if share >= 0.005)
    text = f"each product at its own type's peak ({said}), in FLOPs of {workload.dtype}"
    return FlopCount("operators, by precision", text, count.model_flops * times, count.hardware_flops * times)


@frozen
class MfuAnswer(Printable):
    """The answer of `sizer mfu`: the step as it was run, and its utilization by every convention."""

    COMMAND = "mfu"

    seconds: float
    gpus: int
    global_batch: int
    s: int
    device: Device
    dtype: str
    checkpointing: str
    rows: tuple[Utilization, ...]
    log: "StepTimes | None"
    explanation: "Explanation | None"
    notes: Names

    @property
    def peak_flops(self) -> float:
        """FLOP/s of one device."""
        return self.device.peak(self.dtype)

    @property
    def achievable_flops(self) -> float | None:
        """The published maximum of matrix products (MAMF)."""
        return self.device.mamf_flops.get(self.dtype)


def utilization(count: FlopCount, step_s: float, gpus: int, device: Device, dtype: str = "bf16") -> Utilization:
    """``count`` over ``step_s``, a positive time, on ``gpus`` devices."""
    peak, achievable = device.peak(dtype), device.mamf_flops.get(dtype)
    needed, run = (flops / step_s / gpus for flops in (count.model_flops, count.hardware_flops))
    return Utilization(
        count, needed / 1e12, run / 1e12, needed / peak, run / peak, needed / achievable if achievable else None
    )


@frozen
class StepTimes:
    """Step times read from a log, in seconds.

    ``unread``: lines that hold none. ``kernels``: a step's by part, where a profiler's trace was read; ``works``: by
    what they ran, a product's m, n, k, batch and layout, or the words of kernels.toml.
    """

    seconds: Floats
    unread: int
    kernels: Numbers | None = None
    works: Numbers | None = None

    @property
    def steps(self) -> int:
        return len(self.seconds)

    @property
    def median_s(self) -> float:
        return median(self.seconds)


#: Not from within a number: a search would try each digit of a long one as its start.
_NUMBER = r"(?<![0-9.])([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)"
#: A log's largest size, and the characters of a line that are looked at.
MAX_LOG_BYTES = 256 * 2**20
_LONGEST_LINE = 10_000


def read_step_times(text: str, where: str = "<log>") -> StepTimes:
    """Step times of a log: Megatron's lines, ``step time 1.23``, ``1.23 s/it``, ``2 it/s``, JSON lines, bare seconds.

    Where no line holds one, those between lines that a logger stamped with time and step (torchtitan's). Or of
    torch.profiler's trace, or nsys' (cuda_gpu_trace as CSV). Raises InputError where there is none.
    """
    if re.search(_LINES["trace"], text):
        return _read_trace(text, where)
    lines = [" ".join(line[:_LONGEST_LINE].split()) for line in text.splitlines() if line.strip()]
    seconds = tuple(filter(None, map(_step_time, lines))) or _of_rates(text) or _between_stamps(lines)
    refuse(
        not seconds,
        "expected lines with a step time: seconds, `step time: 1.23`, `1.23 s/it`, JSON, or steps with their dates",
        where=where,
    )
    return StepTimes(seconds, len(lines) - len(seconds))


def _of_rates(text: str) -> Floats:
    """Seconds of a step where MLPerf's log has the samples of one and samples a second."""
    batch = re.search(_LINES["batch"], text)
    return tuple(int(batch[1]) / float(rate) for rate in re.findall(_LINES["rate"], text) if batch)


def _between_stamps(lines: Iterable[str]) -> Floats:
    """Seconds of a step from one stamped line to that of a later step: ranks may each write one of the same."""
    stamps = np.array([one.groups("0") for one in map(_STAMPED.search, lines) if one], float).reshape(-1, 5)
    steps, spent = np.diff(stamps[:, 4]), np.diff(stamps @ (3600, 60, 1, 1e-3, 0)) % DAY_S
    known = (steps > 0) & (spent > 0)
    return tuple((spent[known] / steps[known]).tolist())


#: Seconds after which a clock begins anew.
DAY_S = 86400
_LINES = table_of(__file__, "step_times.toml")
#: Patterns of lines with a step's time, each with the factor that makes seconds of its number (0: a rate).
_PATTERNS = [(re.compile(pattern.replace("N", _NUMBER)), unit) for pattern, unit in _LINES["patterns"]]
_STAMPED = re.compile(_LINES["stamped"])
#: Part of a step, and what is run -> expressions for the names of its kernels; the first that is found decides.
_KERNELS = table_of(__file__, "kernels.toml")


#: A kernel's start and end, in microseconds, its part of a step, and its name.
Span = tuple[float, float, str, str]


@cache
def _first(kind: str, name: str) -> str:
    return str(next(key for key, known in _KERNELS[kind].items() if re.search(known, name)))


def _read_trace(text: str, where: str) -> StepTimes:
    """Steps that ``profiler.step()`` marked in one rank's Chrome trace, and a step's kernels by part.

    Where none are marked, as in nsys' CSV: those from one update's end to the next's. "communication": while nothing
    else runs; "idle": while no kernel does.
    """
    # With all that measures: a log of step times needs none of it.
    from shapes.measure.others import traced_products

    works = defaultdict[str, float](float)
    try:
        events = json.loads(text)["traceEvents"] if '"traceEvents"' in text else ()
        spans = sorted(_spans(events, text))
        for sizes in traced_products(events):
            works["{m} x {n} x {k} x {batch} {layout}".format_map(sizes)] += sizes["us"]
    except DAMAGED:
        raise InputError("expected a trace of torch.profiler, or nsys' cuda_gpu_trace", where=where) from None
    steps = [span[:2] for span in spans if not span[2]]
    ran = [one for one in spans if one[2]]
    if not steps and (steps := _between_updates(ran)):
        ran = [one for one in ran if steps[0][0] <= one[0] < steps[-1][1]]
    refuse(not (ran and steps), "expected kernels and steps: ProfilerActivity.CUDA, profiler.step()", where=where)
    found, busy, sized = dict.fromkeys(_KERNELS["parts"], 0.0), _covered(ran), bool(works)
    for start, stop, part, name in ran:
        found[part] += stop - start
        works[_first("runs", f"{part} {name}")] += (stop - start) * (part != "products" or not sized)
    found["communication"] = busy - _covered(one for one in ran if one[2] != "communication")
    found["idle"] = max(0.0, steps[-1][1] - steps[0][0] - busy)
    times = tuple((stop - start) / 1e6 for start, stop in steps)
    each = ({of: time / 1e6 / len(times) for of, time in all.items()} for all in (found, works))
    return StepTimes(times, 0, *each)


def _between_updates(ran: list[Span]) -> list[tuple[float, float]]:
    """Steps from an update's last kernel, which further attention follows, to that of the next."""
    marks = [one for one in ran if one[2] in ("attention", "optimizer")]
    return [*pairwise(one[1] for one, then in pairwise(marks) if one[2] == "optimizer" != then[2])]


def _covered(spans: Iterable[Span]) -> float:
    """Microseconds in which one of ``spans``, in order, runs."""
    covered = end = 0.0
    for start, stop, *_ in spans:
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


def _spans(events: Sequence[Named], text: str) -> Iterator[Span]:
    """Steps (of no part) and kernels of a Chrome trace's ``events``, or the first device's kernels of nsys' CSV.

    Other lines may precede the CSV's header.
    """
    if events:
        listed = ((one["cat"], one["name"], one["ts"], one["dur"]) for one in events if one["ph"] == "X")
    else:
        rows = [*DictReader(text[text.index("Start (ns)") :].splitlines())]
        listed = (
            ("kernel", row["Name"], float(row["Start (ns)"]) / 1e3, float(row["Duration (ns)"]) / 1e3)
            for row in rows
            if row["Device"] == rows[0]["Device"]
        )
    for category, name, *times in listed:
        part = ""
        if category.startswith(("kernel", "gpu_mem")):
            part = _first("parts", name)
        elif category != "user_annotation" or not name.startswith("ProfilerStep#"):
            continue
        start, took = map(float, times)
        if took < 0 or not math.isfinite(start + took):
            raise ValueError(took)
        yield start, start + took, part, name


def _step_time(line: str) -> float:
    matches = ((pattern.search(line), unit) for pattern, unit in _PATTERNS)
    number, unit = next(((float(match[1]), unit) for match, unit in matches if match), (0.0, 0.0))
    value = number * unit if unit or not number else 1 / number
    return value if value < math.inf else 0.0


def mfu(
    config: object = None,
    *,
    step_time: float | StepTimes,
    params: float | None = None,
    device: str | Device = DEFAULT_DEVICE,
    explain: bool = False,
    stack: str | SoftwareStack | None = None,
    config_format: str | None = None,
    **workload: Unpack[WorkloadKeywords],
) -> MfuAnswer:
    """TFLOPS, MFU and HFU of a step measured on ``gpus`` of ``device``, by every usual way of counting.

    ``config``: as for ``check``, or None with ``params`` (6ND alone). ``step_time``: seconds, or those of a log, whose
    median counts. ``workload``: ``gpus`` and ``global_batch`` are needed. ``explain``: compare with the prediction for
    ``stack``. InputError for a time that the device's peak makes impossible.
    """
    run = workload_fields(workload)
    gpus, global_batch = (positive_int(run.get(key), key, 2**31) for key in ("gpus", "global_batch"))
    target = load_device(device)
    log, step_s = (step_time, step_time.median_s) if isinstance(step_time, StepTimes) else (None, step_time)
    check_bounds(step_time=step_s, params=params)
    if config is not None:
        # Counts cover a whole step; only its explanation needs the microbatch.
        run |= {} if explain else {"b": 1}
        subject = read_subject(config, config_format=config_format, stack=stack, **run)
        own, notes = subject.workload, subject.left_out
        found = counts(subject.whole(), own)
        if own.low_precision:
            found += (by_precision(found[0], subject.whole(), own, target),)
    elif params is None or explain:
        raise InputError("expected a configuration" + " or --params" * (not explain), "CONFIG")
    else:
        own, notes = Workload(**run), ()
        found = (parameters_count(params, own),)
    explanation = explain_step(subject, target, step_s, log) if explain else None
    rows = _possible(found, step_s, gpus, target, own.dtype)
    return MfuAnswer(
        step_s, gpus, global_batch, own.s, target, own.dtype, own.checkpointing, rows, log, explanation, notes
    )


def _possible(
    found: Iterable[FlopCount], step_s: float, gpus: int, device: Device, dtype: str
) -> tuple[Utilization, ...]:
    """``utilization`` of what was ``found``, within the device's peak; InputError where the least of it is not."""
    rows = [utilization(count, step_s, gpus, device, dtype) for count in found]
    # Causal where there is one: with nothing in it that a kernel may skip.
    least = (rows[1:2] or rows)[0]
    refuse(
        least.hfu > 1,
        f"expected at least {least.hfu * step_s:.4g} s: HFU would be {least.hfu:.0%}, for "
        f"{least.count.hardware_flops:.4g} FLOPs on {gpus} x {device.name} at its {dtype} peak of "
        f"{device.peak(dtype) / 1e12:.0f} TFLOPS; look at --gpus, --global-batch, --sequence, --dtype, --device "
        "and whether the time is of one optimizer step",
        "step_time",
        step_s,
    )
    # A flash kernel may exceed the peak by a count that includes the masked half of the attention square.
    return tuple(row for row in rows if row.mfu <= 1)


#: A cause that changes the step by less explains nothing.
NOTABLE = 0.01


@frozen
class Run:
    """The inputs of a step's price."""

    workload: Workload
    stack: SoftwareStack
    device: Device


@frozen
class LikelyCause:
    """An assumption that may not hold, and by how many seconds it would change the step."""

    what: str
    seconds: float


@frozen
class Explanation:
    """A measured step compared with the predicted one, whose ``parts`` add up; the largest of ``causes`` first.

    Only causes that lead from the prediction towards the measurement are listed. ``row``: the run as a row of the
    scoreboard's table (reports/bench/scoreboard.py), by column. ``operators``: `by_operator` of a trace.
    """

    measured_s: float
    predicted: StepCost
    stack: str
    accumulation: int
    causes: tuple[LikelyCause, ...]
    row: Named
    operators: tuple[Values, ...]

    @property
    def unexplained_s(self) -> float:
        return self.measured_s - self.predicted.seconds

    @property
    def expected(self) -> bool:
        """Whether the measurement lies in the prediction's interval: then there is nothing to explain."""
        return self.predicted.low <= self.measured_s <= self.predicted.high


def explain_step(subject: Subject, device: Device, measured_s: float, log: StepTimes | None = None) -> Explanation:
    """Explain a measured global step of ``subject`` (``measured_s`` seconds; a ``log``'s), as predictions can tell.

    InputError if devices and global batch do not agree with the layout: another step would be explained.
    """
    check_batch(subject.workload)
    subject.whole()
    subject = run_on(subject, device)
    run = Run(subject.workload, subject.stack, device)
    cost = _priced(subject, run)
    towards = 1 if measured_s > cost.seconds else -1
    causes = []
    for what, changed in _alternatives(run):
        try:
            worth = _priced(subject, changed).seconds - cost.seconds
        except InputError:  # no such kernel or split here
            continue
        if worth * towards > NOTABLE * cost.seconds:
            causes.append(LikelyCause(what, worth))
    causes.sort(key=lambda cause: -abs(cause.seconds))
    row = {name: getattr(subject.workload, key) for name, key in table_of(__file__, "causes.toml")["row"].items()}
    config = json.dumps(subject.reading.config if subject.reading else {}, default=str)
    row |= {"id": subject.where, "stack": run.stack.name, "gpu": device.name, "config": config, "step_s": measured_s}
    times = by_operator(log.works, subject, device) if log and log.works else ()
    return Explanation(measured_s, cost, subject.stack.name, subject.workload.accumulation, tuple(causes), row, times)


def by_operator(works: Numbers, subject: Subject, device: Device) -> tuple[Values, ...]:
    """Seconds a step of a trace's ``works``, and of operators as the stack runs each alone; the longest first.

    Equal products share a row, and all of one kind that are no products. None: not in the trace, or not predicted.
    """
    stack = subject.stack
    named, predicted = defaultdict[str, set[str]](set), Counter[Any]()
    for one, cost in Pricer(device).step(subject.operators).priced:
        key = _first("runs", f"{one.kind} {one.phase} {getattr(one, 'what', '')}")
        if isinstance(one, Product):
            key = f"{one.m} x {one.n} x {one.k} x {one.batch} {one.layout}"
            named[key].add(f"{one.name} {one.phase}")
        updates = one.phase == "optimizer"
        plain = 1.0 if isinstance(one, Collective) else factor(class_of(one), stack, device)
        once = one.name.startswith("data_parallel") and not subject.workload.regathers
        runs = one.count * (1 if updates or once else subject.workload.accumulation)
        predicted[key] += runs * (stack.optimizer if updates else plain) * cost.seconds  # type: ignore[assignment]
    return tuple(
        {
            "operators": ", ".join(sorted(named[key])) or key,
            "measured_seconds": works.get(key),
            "predicted_seconds": predicted.get(key),
        }
        for key, _ in (Counter(works) + predicted).most_common()
    )


def _priced(subject: Subject, run: Run) -> StepCost:
    return Pricer(run.device, stack=run.stack).cost(subject.whole(), run.workload)


def _alternatives(run: Run) -> Iterator[tuple[str, Run]]:
    """Everything that may have been otherwise."""
    for cause in table_of(__file__, "causes.toml")["cause"]:
        changed = run
        for verb, of in (("to", lambda new, _: new), ("times", mul)):
            for path, value in cause.get(verb, {}).items():
                changed = _changed(changed, path.split("."), partial(of, value))
        yield cause["what"].format(run=run), changed


def _changed(one: Any, path: Sequence[str], new: Function) -> Any:
    """``one`` with the value at ``path`` replaced by ``new`` of it."""
    key, *rest = path
    inner = partial(_changed, path=rest, new=new) if rest else new
    if isinstance(one, Mapping):
        return {name: inner(value) if key in ("*", name) else value for name, value in one.items()}
    return replace(one, **{key: inner(getattr(one, key))})
