"""`ops`: the operator table of a configuration, with shapes and predicted times.

With its check and its memory it is everything that there is to see of a configuration.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import starmap
from operator import itemgetter
from typing import Unpack

from shapes.cost import Cost
from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.errors import InputError, refuse
from shapes.frozen import Function, Values, frozen, replace
from shapes.keywords import WorkloadKeywords
from shapes.memory import Memory, memory
from shapes.operators.types import Attention, CachedAttention, Operator, Operators
from shapes.step import Pricer
from shapes.step.stack import SoftwareStack
from shapes.toml_table import table_of
from shapes.workload import Workload
from sizer.checking.checks import step_time, summary
from sizer.checking.findings import ModelSummary, Report, StepTime
from sizer.printing import Printable
from sizer.subject import Subject, read_subject, run_on


@frozen
class OperatorTable(Printable):
    """Every operator of one step with its cost, in the order the model runs them.

    ``step``: None where the class was traced; products in modules that were not understood, and of activations alone,
    have no cost then either.
    """

    COMMAND = "ops"

    path: str
    model: ModelSummary
    workload: Workload
    device: Device
    step: StepTime | None
    operators: Operators
    costs: tuple[Cost | None, ...]
    stack: str
    sort: str = "time"
    top: int | None = None

    @property
    def priced(self) -> Iterator[tuple[Operator, Cost | None]]:
        """Each operator with its cost."""
        return zip(self.operators, self.costs, strict=True)

    @property
    def rows(self) -> list[Values]:
        """A mapping for each operator, as in the JSON output: seconds and FLOPs of one of its ``count`` runs a step."""
        return [*starmap(_row, self.priced)]

    @property
    def folded(self) -> list[Values]:
        """A row for each operator with all its phases, sorted by ``sort`` (time, flops, name, model).

        A row has the first phase's figures, seconds of one run by phase, and for a microbatch ``step_seconds``, their
        ``share`` of all operators' and ``step_flops``. Seconds are None if one phase's are. Names say which layers a
        row covers, if layers differ.
        """
        found = dict[tuple[str, int], list[Values]]()
        seen = Counter[tuple[str, str]]()
        for row in self.rows:
            # Kinds of layers may share a name: the second forward of one is another operator's.
            phase = row["name"], row["phase"]
            found.setdefault((row["name"], seen[phase]), []).append(row)
            seen[phase] += 1
        folded = [*map(_folded, found.values())]
        whole, names = sum(filter(None, map(_STEP_S, folded))), Counter(map(_NAME, folded))
        for one in folded:
            if names[one["name"]] > 1:
                one["name"] += f" (window {one['window']})" if one["window"] else f" ({one['count']} layers)"
            one["share"] = one["step_seconds"] / whole if one["step_seconds"] is not None and whole else None
        return sorted(folded, key=_ORDERS[self.sort]) if self.sort in _ORDERS else folded

    def named(self, name: str) -> "OperatorTable":
        """The table of the operators with ``name`` in their name; InputError where there is none."""
        chosen = [(operator, cost) for operator, cost in self.priced if name.lower() in operator.name.lower()]
        known = ", ".join(dict.fromkeys(operator.name for operator in self.operators))
        refuse(not chosen, f"expected a part of an operator's name: {known}", "explain", name)
        operators, costs = zip(*chosen, strict=True)
        return replace(self, operators=operators, costs=costs)


_NAME, _STEP_S = itemgetter("name"), itemgetter("step_seconds")
#: By name, or the largest first; "model" leaves rows as they are.
_ORDERS: dict[str, Function] = {
    "name": _NAME,
    "time": lambda one: -(_STEP_S(one) or 0.0),
    "flops": lambda one: -one["step_flops"],
}


def _folded(rows: Sequence[Values]) -> Values:
    """The phases of one operator in one row."""
    spent = [None if row["seconds"] is None else row["seconds"] * row["count"] for row in rows]
    return {
        **rows[0],
        **dict.fromkeys(("forward", "dgrad", "wgrad")),
        **{row["phase"]: row["seconds"] for row in rows},
        "step_seconds": None if None in spent else sum(filter(None, spent)),
        "step_flops": sum(row["visible_flops"] * row["count"] for row in rows),
        "bound": ", ".join(dict.fromkeys(row["bound"] for row in rows if row["bound"])),
    }


def ops(
    config: object,
    *,
    device: str | Device = DEFAULT_DEVICE,
    trace: bool = False,
    config_format: str | None = None,
    stack: str | SoftwareStack | None = None,
    **workload: Unpack[WorkloadKeywords],
) -> "OperatorTable":
    """The operators of ``config`` (as for ``check``), what each costs on ``device``, and the step of ``stack``.

    ``trace``: the products that its transformers class runs, to compare a formula with; their step has no price.
    """
    subject = read_subject(config, trace=trace, config_format=config_format, stack=stack, **workload)
    return ops_of_subject(subject, load_device(device))


def ops_of_subject(subject: Subject, device: Device) -> "OperatorTable":
    """``ops`` of a resolved input."""
    subject = run_on(subject, device)
    step = Pricer(device, stack=subject.stack).step(subject.operators, subject.workload, subject.model)
    known, understood = subject.model is not None, set(subject.understood)
    return OperatorTable(
        subject.where,
        summary(subject),
        subject.workload,
        device,
        step_time(subject, step, device) if known else None,
        step.operators,
        # Else of the products that are a kernel's whatever the rest is: with a weight, or attention, and understood.
        step.costs if known else tuple(cost if one in understood else None for one, cost in step.priced),
        subject.stack.name if step.cost else "",
    )


#: A row's fields of an operator and of its cost; null if it has none, or it is not known.
_OF = table_of(__file__, "rows.toml")


def _row(operator: Operator, cost: Cost | None) -> Values:
    # Attention's sizes are those of its scores: queries x keys over the head dimension, for one head.
    sizes = ("q_len", "kv_len", "head_dim") if isinstance(operator, Attention | CachedAttention) else "mnk"
    counted, seconds = visible_flops(operator), cost.seconds if cost else None
    return {
        **{name: getattr(operator, name, None) for name in _OF["operator"]},
        **{name: getattr(operator, size, None) for name, size in zip("mnk", sizes, strict=True)},
        "batch": getattr(operator, "batch", 1),
        "visible_flops": counted,
        "tflops": counted / seconds / 1e12 if seconds else None,
        **{name: getattr(cost, name, None) for name in _OF["cost"]},
        "error_p95": cost.p95 if cost else None,
    }


def visible_flops(operator: Operator) -> int:
    """FLOPs that an attention's mask leaves to be done; every one of any other operator."""
    return round(operator.visible_flops) if isinstance(operator, Attention) else operator.flops


@frozen
class Overview:
    """One configuration. ``memory`` None: it cannot be counted (a trace, which names no sizes)."""

    report: Report
    table: "OperatorTable"
    memory: Memory | None


def overview(subject: Subject, device: Device, report: Report) -> Overview:
    """``report`` is what the check of ``subject`` on ``device`` found."""
    counted = None
    if subject.model:
        with suppress(InputError):  # a split that it cannot be counted for: the check says which
            counted = memory(subject.model, subject.workload, device=device, **subject.kept)
    return Overview(report, ops_of_subject(subject, device), counted)
