"""What of a configuration's step can be timed alone: a job for each operator, and why the others have none."""

from typing import Literal

from shapes.dtypes import BYTES
from shapes.frozen import Names
from shapes.measure.jobs import ATTENTION, Job, MemoryBound
from shapes.model import ModelShape
from shapes.operators.types import Attention, Elementwise, Gemm, GroupedGemm, Operator
from shapes.workload import Workload
from sizer.subject import Subject


def jobs_of_subject(subject: Subject) -> tuple[dict[Operator, Job], Names]:
    """(each operator's job, a line for every operator that cannot be timed alone and why)."""
    jobs: dict[Operator, Job] = {}
    notes: list[str] = []
    for operator in subject.operators:
        if operator.kind == "collective":
            notes.append(f"{operator.name}: communication needs several devices: not measured")
        elif not isinstance(operator, Gemm | GroupedGemm | Attention | Elementwise):
            notes.append(f"{operator.name}: {operator.kind.replace('_', ' ')} is priced, not timed")
        elif isinstance(operator, Elementwise):
            bound = elementwise_shape(operator, subject)
            if bound is None:
                notes.append(f"{operator.name} ({operator.phase}): no kernel of its own here: not measured")
            else:
                jobs[operator] = Job(bound, label=operator.name)
        else:
            kernel = ATTENTION["names"].get(operator.kernel, operator.kernel) if isinstance(operator, Attention) else ""
            jobs[operator] = Job(operator, kernel, label=operator.name)
    return jobs, tuple(dict.fromkeys(notes))


def elementwise_shape(operator: Elementwise, subject: Subject) -> MemoryBound | None:
    """The kernel with rows and columns that moves an operator's bytes; None where torch has no single one for it."""
    if subject.model is None or operator.phase not in ("forward", "dgrad"):
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
    phase: Literal["forward", "dgrad"] = "dgrad" if backward else "forward"
    return MemoryBound(operator.what, rows, columns, phase, dtype) if rows else None


def _columns(operator: Elementwise, model: ModelShape, workload: Workload, *, backward: bool) -> int | None:
    """Elements of a row that the operator's kernel works on; None where there is no such kernel."""
    gated = model.dense_mlp is not None and model.dense_mlp.gated
    own_norm = "qk_norm" in operator.name or "latent" in operator.name
    found = {
        "norm": None if own_norm else model.hidden,
        "activation": model.dense_mlp.width if model.dense_mlp is not None and gated else None,
        "softmax": workload.s,
        "residual": None if backward else model.hidden,
        "cross_entropy": -(-model.vocab // workload.t),
    }
    return found.get(operator.what)
