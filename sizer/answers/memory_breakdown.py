"""What `sizer memory` answers: the components, what fits, and what each saving buys."""

from __future__ import annotations

from typing import Any

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.memory import CHECKED, Memory, Saved, largest_microbatch, savings, smallest_pp, smallest_tp
from shapes.memory import memory as bytes_by_component
from shapes.model import ModelShape
from shapes.model.trainable import trained_parameters
from shapes.software_stack import SoftwareStack
from shapes.workload import Workload
from sizer.batch import batch_of
from sizer.printing import Printable
from sizer.subject import read_subject


@frozen
class MemoryBreakdown(Printable):
    """One model's memory on one device. ``largest_microbatch`` 0: not one sequence fits."""

    COMMAND = "memory"

    path: str
    model_type: str
    parameters: int
    workload: Workload
    device: str
    device_bytes: int
    memory: Memory
    largest_microbatch: int
    smallest_tp: int | None
    smallest_pp: int | None
    savings: tuple[Saved, ...]
    trained: int = 0

    @property
    def ok(self) -> bool:
        """Whether it fits."""
        return bool(self.memory.fits)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures assume that a reader could not guess."""
        if not self.workload.train or self.memory.implementation == "megatron" or self.model_type in CHECKED:
            return ()
        return (f"activations as the closest checked family saves them: {self.model_type} was not compared with torch",)

    def to_dict(self) -> dict[str, Any]:
        gradients = self.memory.gradients
        return {
            "path": self.path,
            "model": {"model_type": self.model_type, "parameters": self.parameters, "trained_parameters": self.trained},
            "workload": self.workload.to_dict(),
            "device": self.device,
            "precision": self.memory.precision,
            "optimizer": self.memory.optimizer,
            "implementation": self.memory.implementation,
            "stage": self.memory.stage,
            "notes": list(self.notes),
            "components": dict(self.memory.components),
            "formulas": {part.name: part.formula for part in self.memory.parts},
            "total_bytes": self.memory.total_bytes,
            "allocated_bytes": self.memory.allocated_bytes,
            "moment": self.memory.moment,
            "moments": [{"name": name, "total_bytes": size} for name, size in self.memory.moments],
            "gradients": None if gradients is None else {"stay": gradients.stay, "why": gradients.why},
            "device_bytes": self.device_bytes,
            "fits": self.memory.fits,
            "largest_microbatch": self.largest_microbatch,
            "smallest_tp": self.smallest_tp,
            "smallest_pp": self.smallest_pp,
            "savings": [
                {
                    "name": saved.saving.name,
                    "change": {**saved.saving.workload, **saved.saving.options},
                    "total_bytes": saved.total_bytes,
                    "fits": saved.total_bytes <= self.device_bytes,
                    "largest_microbatch": saved.largest_microbatch,
                }
                for saved in self.savings
            ],
        }


def memory_breakdown(
    model: ModelShape, workload: Workload, device: Device, path: str = "<model>", **options: Any
) -> MemoryBreakdown:
    """Memory of ``model`` on ``device`` with what fits; ``options`` are those of ``shapes.memory.memory``."""
    return MemoryBreakdown(
        path=path,
        model_type=model.model_type,
        parameters=model.parameters,
        workload=workload,
        device=device.name,
        device_bytes=device.memory.bytes,
        memory=bytes_by_component(model, workload, device=device, **options),
        largest_microbatch=largest_microbatch(model, workload, device, **options),
        smallest_tp=smallest_tp(model, workload, device, **options),
        smallest_pp=smallest_pp(model, workload, device, **options),
        savings=savings(model, workload, device, **options),
        trained=trained_parameters(model, workload),
    )


def memory(
    config: object,
    *,
    device: str | Device = DEFAULT_DEVICE,
    config_format: str | None = None,
    stack: str | SoftwareStack | None = None,
    loss: str | None = None,
    weight_dtype: str | None = None,
    **workload: Any,
) -> MemoryBreakdown:
    """What takes memory of ``config`` (as for ``check``) on one device, and what fits it.

    ``loss`` (None: that of the ``stack`` named) and ``weight_dtype`` are those of ``shapes.memory.memory``;
    ``workload`` are fields of ``Workload``, in either spelling. InputError for what names no sizes (a trace), and
    where devices and degrees do not agree.
    """
    subject = read_subject(config, config_format=config_format, stack=stack, **workload)
    if subject.model is None:
        raise InputError("expected a model type that sizer reads: memory needs named sizes", where=subject.where)
    settled = subject.workload
    loss = subject.stack.loss if loss is None and stack is not None else loss
    options: dict[str, Any] = {"loss": loss, "implementation": subject.implementation}
    options |= {} if weight_dtype is None else {"weight_dtype": weight_dtype}
    arithmetic = batch_of(settled)
    if arithmetic is not None:
        options["microbatches"] = arithmetic.microbatches if settled.global_batch is not None else None
    chosen = load_device(device) if isinstance(device, str) else device
    return memory_breakdown(subject.model, settled, chosen, subject.where, **options)
