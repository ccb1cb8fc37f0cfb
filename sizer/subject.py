"""What is being sized: a configuration or module read once, with its workload settled and its operators listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.operators import Operator, operators
from shapes.resize import dimensions
from shapes.workload import Workload, routing_note
from sizer.readers import Reading, UnknownModelType, read_config

if TYPE_CHECKING:
    from shapes.trace import Traced

#: Tokens a sequence where neither the caller nor the file says: the length most models are pretrained at.
DEFAULT_SEQUENCE = 4096

#: A field of ``Workload`` as reports name it (the long option without its dashes).
WORKLOAD_NAMES: dict[str, str] = {
    "b": "microbatch", "s": "sequence", "t": "tp", "p": "pp", "d": "dp", "e": "ep", "decoder_s": "decoder_sequence",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with its workload: from a reader (``model`` known) or from a trace (operators only)."""

    where: str
    model_type: str
    parameters: int
    active_parameters: int
    workload: Workload
    operators: tuple[Operator, ...]
    model: ModelShape | None = None
    reading: Reading | None = None
    dimensions: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        """Which way the operators were found: "formula" or "trace"."""
        return "formula" if self.model is not None else "trace"

    def name_of(self, key: str) -> str:
        """A dimension or workload field as the person's file or the command line names it."""
        if self.reading is not None and key in self.reading.keys:
            return self.reading.keys[key]
        return WORKLOAD_NAMES.get(key, key)


def read_subject(
    source: object,
    *,
    trace: bool = False,
    config_format: str | None = None,
    example_inputs: object = None,
    dims: Mapping[str, int] | None = None,
    **workload: Any,
) -> Subject:
    """Read ``source`` (a path, mapping, PretrainedConfig, ModelShape, Reading or nn.Module) and settle its workload.

    ``trace=True``, or a model type no reader knows, lists the operators by tracing (needs the ``trace`` extra).
    A module is traced with ``example_inputs`` (a tuple or a mapping of arguments); ``dims`` names the dimensions of
    it that the caller knows. ``workload`` are fields of ``Workload``; what is not given comes from the file, else
    from the defaults.
    """
    if callable(getattr(source, "named_parameters", None)):
        return _traced_module(source, example_inputs, dims, workload)
    if trace:
        return _traced_config(source, workload)
    try:
        reading = source if isinstance(source, Reading) else read_config(source, config_format=config_format)
    except UnknownModelType as error:
        return _traced_config(source, workload, because=error)
    model = reading.model
    settled = settle_workload(reading, workload)
    try:
        found = operators(model, settled)
    except InputError as error:
        raise error.at(reading.source) from None
    return Subject(
        where=reading.source, model_type=model.model_type, parameters=model.parameters,
        active_parameters=model.active_parameters, workload=settled, operators=found, model=model, reading=reading,
        dimensions=dimensions(model), notes=(*reading.notes, *_routing(model, settled)),
        given=frozenset({*reading.workload, *workload}),
    )  # fmt: skip


def _routing(model: ModelShape, workload: Workload) -> tuple[str, ...]:
    return (routing_note(workload.expert_load),) if model.moe is not None else ()


def settle_workload(reading: Reading, asked: Mapping[str, Any]) -> Workload:
    """``asked`` over what the file says over the defaults; the sequence: the model's longest, at most 4096."""
    known = {item.name for item in fields(Workload)}
    for key, value in asked.items():
        if key not in known:
            raise InputError(f"expected one of {', '.join(sorted(known))}", key=key, value=value)
    hints = dict(reading.workload)
    if reading.format == "huggingface":
        # There it is how the weights are stored; training precision is the caller's choice.
        hints.pop("dtype", None)
    values = {**hints, **asked}
    if "s" not in values:
        values["s"] = min(DEFAULT_SEQUENCE, reading.longest or reading.model.max_positions or DEFAULT_SEQUENCE)
    longest = reading.model.max_positions
    if longest is not None and isinstance(values["s"], int) and values["s"] > longest:
        raise InputError(
            f"expected at most the model's {longest} learned positions",
            where=reading.source,
            key="s",
            value=values["s"],
        )
    return Workload(**values)


def _traced_config(source: object, workload: Mapping[str, Any], because: InputError | None = None) -> Subject:
    from shapes.trace import trace_config

    settled = Workload(**{"s": 512, **workload})
    try:
        traced = trace_config(
            source, b=settled.b, s=settled.s, phase=settled.phase, attention=settled.attention, dtype=settled.dtype,
            expert_load=settled.expert_load, t=settled.t, decoder_s=settled.decoder_s, fused_qkv=settled.fused_qkv,
            fused_gate_up=settled.fused_gate_up,
        )  # fmt: skip
    except ImportError:
        message = "tracing needs torch and transformers: pip install 'sizer[trace]'"
        if because is not None:
            raise InputError(
                f"{because.expected}; {message}", where=because.where, key=because.key, value=because.value
            ) from None
        raise InputError(message) from None
    return subject_of_trace(traced, str(source) if isinstance(source, str) else "<config>", settled)


def _traced_module(
    module: Any, example_inputs: object, dims: Mapping[str, int] | None, workload: Mapping[str, Any]
) -> Subject:
    from shapes.trace import trace

    settled = Workload(**workload)
    if isinstance(example_inputs, Mapping):
        traced = trace(module, phase=settled.phase, **example_inputs)
    elif isinstance(example_inputs, (tuple, list)):
        traced = trace(module, *example_inputs, phase=settled.phase)
    elif example_inputs is not None:
        traced = trace(module, example_inputs, phase=settled.phase)
    else:
        raise InputError("expected example_inputs: the arguments of one forward call", where=type(module).__name__)
    if "dtype" not in workload:
        settled = replace(settled, dtype=_main_dtype(traced.operators))
    return subject_of_trace(traced, type(module).__name__, settled, dims)


def _main_dtype(operators: tuple[Operator, ...]) -> str:
    """The element type of most of the FLOPs: a module runs in its own, whatever the default workload says."""
    flops: dict[str, int] = {}
    for operator in operators:
        flops[operator.dtype] = flops.get(operator.dtype, 0) + operator.flops * operator.count
    return max(flops, key=lambda dtype: flops[dtype], default="fp32")


def subject_of_trace(traced: Traced, where: str, workload: Workload, dims: Mapping[str, int] | None = None) -> Subject:
    """A traced model as a subject; ``dims`` are names of dimensions the caller knows."""
    return Subject(
        where=where, model_type=traced.model_type, parameters=traced.parameters,
        active_parameters=traced.active_parameters or traced.parameters, workload=workload,
        operators=traced.operators, dimensions=dims or {}, notes=(
            "operators traced on torch's meta device", *traced.notes,
            *(f"cannot see into {name}" for name in traced.opaque),
        ),
    )  # fmt: skip


def resized_subject(subject: Subject, model: ModelShape, workload: Workload) -> Subject:
    """The same subject with another model or workload: what a suggestion would run."""
    return replace(
        subject, model=model, workload=workload, operators=operators(model, workload), parameters=model.parameters,
        active_parameters=model.active_parameters, dimensions=dimensions(model),
    )  # fmt: skip
