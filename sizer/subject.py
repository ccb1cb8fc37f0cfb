"""The resolved input: a configuration or module read once, its workload settled and its operators listed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapes.device import Device
from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.kernels import load_kernel
from shapes.memory import Implementation
from shapes.model import ModelShape
from shapes.model.resize import DIMENSIONS, dimensions
from shapes.model.stages import USUAL_OF
from shapes.operators import Operator, nearest_split, operators, split_problems
from shapes.step.stack import SoftwareStack, default_stack, load_stack
from shapes.workload import WORDS, Workload, routing_note, workload_fields
from sizer.readers import Reading, Source, UnknownModelType, load_mapping, read_config
from sizer.readers.reading import Unread, sentences

if TYPE_CHECKING:
    from shapes.trace import Traced

#: Tokens a sequence where neither the caller nor the file says: the length most models are pretrained at.
DEFAULT_SEQUENCE = 4096

#: Formats of frameworks that train with Megatron's fused kernels; every other file is a transformers model's.
MEGATRON_FORMATS = ("megatron", "gpt_neox", "nemo")

#: Methods of fine-tuning that train adapters.
ADAPTED = ("lora", "qlora")

#: Fields of ``Workload`` that a configuration's trace runs with.
_TRACED = (
    "b",
    "s",
    "phase",
    "attention",
    "dtype",
    "expert_load",
    "t",
    "decoder_s",
    "fused_qkv",
    "fused_gate_up",
    "recipe",
)
#: Fields of ``Workload`` that change the operators of a formula and not those of a trace.
_NOT_TRACED = (
    "p",
    "d",
    "e",
    "cp",
    "vpp",
    "replicas",
    "zero",
    "checkpointing",
    "sequence_parallel",
    "gpus",
    "dispatcher",
    "ep_overlap",
)


@frozen
class Subject:
    """A resolved input, a model with its workload: from a reader (``model`` known) or from a trace (operators only).

    ``keys``: dimension -> what a traced configuration calls it. ``retrace`` resolves a traced configuration again with
    dimensions and workload fields changed (None: a module, whose dimensions are its own code's). ``asked``: the
    workload asked for, where the model does not divide over it and ``workload`` is the nearest that it does.
    ``stack``: the software that runs it.
    """

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
    keys: Mapping[str, str] = field(default_factory=dict)
    retrace: Callable[[Mapping[str, int | str]], Subject] | None = field(default=None, compare=False)
    asked: Workload | None = None
    stack: SoftwareStack = field(default_factory=lambda: default_stack(None))

    @property
    def unread(self) -> tuple[Unread, ...]:
        """Keys of the file that matter, or that nobody knows, and that were not read."""
        return self.reading.unread if self.reading is not None else ()

    @property
    def path(self) -> str:
        """Which way the operators were found: "formula", "recognised" (a class proven to be a formula's) or "trace"."""
        if self.model is None:
            return "trace"
        return "recognised" if self.reading is not None and self.reading.recognised else "formula"

    @property
    def implementation(self) -> Implementation:
        """Whose kernels save activations, unless said otherwise: the stack's, or its framework's whose file it is."""
        if self.workload.implementation is not None:
            return self.workload.implementation
        megatron = self.reading is not None and self.reading.format in MEGATRON_FORMATS
        return "megatron" if megatron or self.stack.framework == "megatron" else "huggingface"

    def name_of(self, key: str) -> str:
        """A dimension or workload field as the person's file or the command line names it."""
        keys = self.reading.keys if self.reading is not None else self.keys
        return keys.get(key) or WORDS.get(key, key)


def read_subject(
    source: object,
    *,
    trace: bool = False,
    config_format: str | None = None,
    example_inputs: object = None,
    dims: Mapping[str, int] | None = None,
    plan: Mapping[str, str] | None = None,
    nearest: bool = False,
    settings: Mapping[str, Any] | None = None,
    stack: str | SoftwareStack | None = None,
    training: Sequence[str] = (),
    **workload: Any,
) -> Subject:
    """Read ``source`` (a path, mapping, PretrainedConfig, ModelShape, Reading or nn.Module) and settle its workload.

    ``trace=True``, or a model type no reader knows, lists the operators by tracing (needs the ``trace`` extra).
    A module is traced with ``example_inputs`` (a tuple or a mapping of arguments); ``dims`` names the dimensions of
    it that the caller knows. ``plan`` says how a traced model is split over t (path glob -> "colwise" | "rowwise";
    default: its transformers class's own). ``workload`` are fields of ``Workload``, in either spelling (t or tp); what
    is not given comes from the file, else from the defaults. Degrees that the model does not divide over are an
    InputError, or with ``nearest`` give the operators of the nearest ones that it does (``Subject.asked``).
    ``stack``: the software stack (``shapes.step.stack``; None: the one that the file's format is run by).
    ``settings`` replace or add keys of the configuration and ``training`` names files of a trainer's settings (as a
    ``Source`` does). A transformers model without ``example_inputs`` is read by its ``config``.
    """
    workload = workload_fields(workload)
    if callable(getattr(source, "named_parameters", None)):
        if example_inputs is not None or getattr(source, "config", None) is None:
            return _run_by(_traced_module(source, example_inputs, dims, plan, workload), stack)
        source = source.config  # type: ignore[attr-defined]
    if settings or training:
        source = Source(source, settings or {}, tuple(training))
    because = None
    try:
        if not trace:
            reading = read_model(source, config_format=config_format, recognise=plan is None)
            _refuse_plan(plan, reading.source)
            return _subject_of_reading(reading, workload, stack, nearest=nearest)
    except UnknownModelType as error:
        because = error
    # For a trace the mapping of a ``Source``, its settings applied; all else as it is.
    plain = load_mapping(source) if isinstance(source, Source) else source
    return _run_by(_traced_config(plain, plan, workload, because, _where(source)), stack)


def _subject_of_reading(
    reading: Reading, workload: Mapping[str, Any], stack: str | SoftwareStack | None, *, nearest: bool
) -> Subject:
    model = reading.model
    settled = settle_workload(reading, workload)
    problems = _split_problems(model, settled) if nearest else ()
    runs = nearest_split(model, settled) if problems else settled
    try:
        found = operators(model, runs)
    except InputError as error:
        raise error.at(reading.source) from None
    return Subject(
        where=reading.source,
        model_type=model.model_type,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        workload=runs,
        operators=found,
        model=model,
        reading=reading,
        dimensions=dimensions(model),
        notes=(*reading.notes, *sentences(reading.unread), *_assumed(reading, runs), *_instead(problems, runs)),
        given=frozenset({*reading.workload, *workload}),
        asked=settled if problems else None,
        stack=load_stack(stack) if stack is not None else default_stack(reading.format),
    )


def read_model(source: object, *, config_format: str | None = None, recognise: bool = True) -> Reading:
    """``read_config``; a model type that no reader knows is recognised in its transformers class, and proven.

    UnknownModelType where that is not proven, naming the modules that were not understood with their share of FLOPs,
    or at once without ``recognise``.
    """
    if isinstance(source, Reading):
        return source
    try:
        return read_config(source, config_format=config_format)
    except UnknownModelType as error:
        if not recognise:
            raise
        return _recognised(source, error)


def _recognised(source: object, unknown: UnknownModelType) -> Reading:
    from shapes.trace import MissingExtra, recognise_config

    plain = load_mapping(source) if isinstance(source, Source) else source
    where = _where(source)
    try:
        proof = recognise_config(plain)
    except MissingExtra as error:
        raise InputError(
            f"{unknown.expected}; {error.expected}", where=unknown.where, key=unknown.key, value=unknown.value
        ) from None
    except InputError as error:  # as a trace says it better, where there is one
        raise UnknownModelType(error.expected, where=unknown.where, key=unknown.key, value=unknown.value) from None
    if proof.model is None:
        found = sorted(proof.unproven, key=lambda path: -proof.share.get(path, 0.0))
        shown = ", ".join(f"{path or 'the model'} ({proof.share.get(path, 1.0):.1%} of FLOPs)" for path in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        reason = proof.unproven[found[0]]
        raise UnknownModelType(
            f"no reader for this model type; in its class not understood: {shown}{more}: {reason}",
            where=unknown.where,
            key=unknown.key,
            value=unknown.value,
        )
    notes = [f"recognised in transformers' class, {proof.parameters:,} parameters and all products proven"]
    notes += [f"not run, and not counted: {', '.join(proof.held)}"] if proof.held else []
    return Reading(
        proof.model,
        "huggingface",
        where,
        keys=proof.keys,
        longest=proof.longest,
        config=plain if isinstance(plain, Mapping) else {},
        notes=tuple(notes),
        recognised=True,
    )


def _run_by(subject: Subject, stack: str | SoftwareStack | None) -> Subject:
    return subject if stack is None else replace(subject, stack=load_stack(stack))


def _split_problems(model: ModelShape, workload: Workload) -> tuple[InputError, ...]:
    """What rules can say of a split: experts asked of a model that has none are a mistake, not a shape."""
    return split_problems(model, workload) if workload.e == 1 or model.moe is not None else ()


def _instead(problems: Iterable[InputError], runs: Workload) -> tuple[str, ...]:
    """A note on whose times are given in place of those of a split that cannot run."""
    asked = {problem.key: problem.value for problem in problems if problem.key is not None}
    if not asked:
        return ()
    wanted = ", ".join(f"{WORDS.get(key, key)} {value}" for key, value in asked.items())
    taken = ", ".join(f"{WORDS.get(key, key)} {getattr(runs, key)}" for key in asked)
    return (f"the model does not divide over {wanted}: times are those of {taken}",)


def _assumed(reading: Reading, workload: Workload) -> list[str]:
    """What the figures of a mixture, of a prompt and of a decode step assume."""
    notes = [routing_note(workload.expert_load)] if reading.model.moe is not None else []
    if workload.serving:
        notes.append("operators added up, as a serving engine runs them: no software stack was fitted on serving")
    if workload.context is None:
        return notes
    longest = reading.longest or reading.model.max_positions
    if longest is not None and workload.context > longest:
        notes.append(f"the context of {workload.context} is beyond the model's {longest} positions")
    if workload.speculative:
        notes.append(f"tokens/s with no draft accepted; up to {1 + workload.speculative} x that with all of them")
    return notes


def _refuse_plan(plan: Mapping[str, str] | None, where: str) -> None:
    if plan is not None:
        raise InputError("expected a traced model: pass trace=True (--trace) too", where=where, key="plan")


def _refuse_decode(workload: Mapping[str, Any], where: str) -> None:
    if workload.get("phase") == "decode":
        expected = "expected a model that sizer reads: a trace has no KV cache to decode from"
        raise InputError(expected, where=where, key="phase", value="decode")


def _where(source: object) -> str:
    if isinstance(source, Source):
        source = source.config
    if isinstance(source, Reading):
        return source.source
    return str(source) if isinstance(source, (str, Path)) else f"<{type(source).__name__}>"


def settle_workload(reading: Reading, asked: Mapping[str, Any]) -> Workload:
    """``asked`` over what the file says over the defaults; the sequence: the model's longest, at most 4096."""
    values = {**reading.workload, **asked}
    decodes = values.get("phase") == "decode"
    if decodes and "s" in asked and "context" in asked:
        raise InputError("expected the sequence or the context, not both", key="s", value=asked["s"])
    longest = reading.longest or reading.model.max_positions or DEFAULT_SEQUENCE
    values.setdefault("s", min(DEFAULT_SEQUENCE, longest))
    values = _with_data_parallelism(values)
    _check_adapters(values)
    if asked.get("vpp", 1) != 1 and values.get("p", 1) == 1:
        raise InputError("expected a pipeline (p above 1) with it", key="vpp", value=asked["vpp"])
    if values.get("finetune") in ADAPTED and values.get("lora_targets") is None:
        values["lora_targets"] = USUAL_OF.get(reading.model.model_type)
    return _within_positions(reading, values, decodes=decodes)


def _within_positions(reading: Reading, values: dict[str, Any], *, decodes: bool) -> Workload:
    """The workload of these fields; InputError for a sequence that the model has no positions for."""
    longest, s = reading.model.max_positions, values["s"]
    if not decodes and longest is not None and isinstance(s, int) and s > longest:
        raise InputError(f"expected at most the model's {longest} positions", where=reading.source, key="s", value=s)
    return Workload(**values)


def _check_adapters(values: Mapping[str, Any]) -> None:
    """InputError for a rank without adapters: it would change nothing."""
    if "lora_rank" in values and values.get("finetune") not in ADAPTED:
        raise InputError("expected it with --finetune lora or qlora", key="lora_rank", value=values["lora_rank"])


def _with_data_parallelism(values: Mapping[str, Any]) -> dict[str, Any]:
    """d = gpus / (t x p x cp) where the devices are given and d is not; where that is no integer rule SZ120 says so.

    Without devices as many as the experts' ranks.
    """
    gpus, shards = values.get("gpus"), (values.get("t", 1), values.get("p", 1), values.get("cp", 1))
    e = values.get("e", 1)
    if "d" not in values and gpus is None and isinstance(e, int) and e > 1:
        return {**values, "d": e}  # experts are spread inside data parallelism, which is then at least as wide
    if "d" in values or not all(isinstance(one, int) and one > 0 for one in (gpus, *shards)):
        return dict(values)
    each = shards[0] * shards[1] * shards[2]
    return {**values, "d": gpus // each} if gpus % each == 0 else dict(values)


def _traced_config(
    source: object,
    plan: Mapping[str, str] | None,
    workload: Mapping[str, Any],
    because: InputError | None = None,
    where: str | None = None,
) -> Subject:
    from shapes.trace import MissingExtra, trace_config

    where = where or _where(source)
    _refuse_decode(workload, where)
    try:
        asked = workload if "s" in workload else {"s": _traced_sequence(source), **workload}
        source = source.config if isinstance(source, Reading) else source
        _check_adapters(asked)
        settled = Workload(**_with_data_parallelism(asked))
        traced = trace_config(source, plan=plan, **{name: getattr(settled, name) for name in _TRACED})
    except InputError as error:
        if because is not None and isinstance(error, MissingExtra):
            raise InputError(
                f"{because.expected}; {error.expected}", where=because.where, key=because.key, value=because.value
            ) from None
        raise error.at(where) from None
    subject = subject_of_trace(traced, where, settled, traced.dimensions, given=frozenset(workload))
    known: dict[frozenset[tuple[str, int | str]], Subject] = {}

    def retrace(change: Mapping[str, int | str]) -> Subject:
        # Several rules propose the same change, and a trace takes a second.
        key = frozenset(change.items())
        if key not in known:
            known[key] = replace(_traced_change(source, plan, workload, change), where=where)
        return known[key]

    return replace(subject, keys=traced.keys, retrace=retrace)


def _traced_sequence(source: object) -> int:
    """The sequence where nobody says, the same as by formula: the longest the configuration names, at most 4096."""
    from shapes.trace import longest_sequence

    try:
        return settle_workload(source if isinstance(source, Reading) else read_config(source), {}).s
    except InputError:  # no reader knows it, which is why it is traced
        return min(DEFAULT_SEQUENCE, longest_sequence(source) or DEFAULT_SEQUENCE)


def _traced_change(
    source: object, plan: Mapping[str, str] | None, workload: Mapping[str, Any], change: Mapping[str, int | str]
) -> Subject:
    """The configuration ``source`` with dimensions and workload fields changed, traced."""
    from shapes.trace.config import load_config
    from shapes.trace.dimensions import changed_config

    sizes = {key: value for key, value in change.items() if key in DIMENSIONS}
    asked = {key: value for key, value in change.items() if key not in DIMENSIONS}
    changed = changed_config(load_config(source)[0], sizes) if sizes else source
    return _traced_config(changed, plan, {**workload, **asked})


def _traced_module(
    module: Any,
    example_inputs: object,
    dims: Mapping[str, int] | None,
    plan: Mapping[str, str] | None,
    workload: Mapping[str, Any],
) -> Subject:
    from shapes.trace import trace
    from shapes.trace.result import batch_and_sequence

    where = type(module).__name__
    _refuse_decode(workload, where)
    positional, keywords = _arguments(example_inputs, where)
    _check_dims(dims, where)
    ran = dict(zip(("b", "s"), batch_and_sequence((*positional, *keywords.values())), strict=True))
    for key, size in ran.items():
        if workload.get(key, size) != size:
            raise InputError(f"expected {size}, as in example_inputs", where=where, key=key, value=workload[key])
    settled = Workload(**{**workload, **ran})
    ran_with = {name: getattr(settled, name) for name in ("phase", "expert_load", "fused_qkv", "fused_gate_up", "t")}
    traced = trace(module, *positional, plan=plan, **ran_with, **keywords)
    asked, cast = workload.get("dtype", traced.main_dtype), ""
    if asked != traced.main_dtype:
        try:
            traced = traced.under_autocast(asked)
        except InputError as error:
            raise error.at(where) from None
        cast = f"as under autocast: products and attention run in {asked}, weights and the rest stay fp32"
    elif asked == "fp32" and "dtype" not in workload:
        cast = "the module is in fp32, whose products ask for less: if it runs under autocast, say so (dtype bf16)"
    subject = subject_of_trace(traced, where, replace(settled, dtype=asked), dims, given=frozenset(workload))
    unpriced = "changes are not priced: a module's sizes are its own code's, so build the changed one and check it too"
    return replace(subject, notes=(*subject.notes, *filter(None, [cast]), unpriced))


def _arguments(example_inputs: object, where: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The positional and the named arguments of one forward call."""
    if example_inputs is None:
        raise InputError("expected example_inputs: the arguments of one forward call", where=where)
    if isinstance(example_inputs, Mapping) and example_inputs:
        return (), example_inputs
    return example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,), {}


def _check_dims(dims: Mapping[str, int] | None, where: str) -> None:
    for name, size in (dims or {}).items():
        if name not in DIMENSIONS:
            raise InputError(f"expected one of {', '.join(DIMENSIONS)}", where=where, key=f"dims[{name!r}]", value=size)
        positive_int(size, f"dims[{name!r}]", where=where)


def subject_of_trace(
    traced: Traced,
    where: str,
    workload: Workload,
    dims: Mapping[str, int] | None = None,
    *,
    given: frozenset[str] = frozenset(),
) -> Subject:
    """A traced model as a resolved input; ``dims`` are names of dimensions the caller knows."""
    plain = Workload()
    unused = [key for key in _NOT_TRACED if getattr(workload, key) != getattr(plain, key)]
    return Subject(
        where=where,
        model_type=traced.model_type,
        parameters=traced.parameters,
        active_parameters=traced.active_parameters or traced.parameters,
        workload=workload,
        operators=traced.operators,
        dimensions=dims or {},
        given=given,
        notes=(
            "operators traced on torch's meta device",
            *traced.notes,
            *(f"cannot see into {name}" for name in traced.opaque),
            *([f"the trace is of one whole pass: {', '.join(unused)} change none of its operators"] if unused else ()),
        ),
    )


def run_on(subject: Subject, device: Device) -> Subject:
    """``subject`` as its stack runs it on ``device``: compiled or not, and its attention kernel where none is asked."""
    if subject.workload.decode or subject.model is None:
        return subject
    run = partial(run_by, subject.stack, subject.given, device=device)
    workload = run(subject.workload)
    if workload == subject.workload:
        return subject
    # The split that was asked for runs as its nearest does: what replaces it is compared with that.
    asked = run(subject.asked) if subject.asked is not None else None
    return replace(resized_subject(subject, subject.model, workload), asked=asked)


def run_by(stack: SoftwareStack, given: Container[str], workload: Workload, device: Device) -> Workload:
    """``workload`` as ``stack`` runs it: compiled or not, its attention kernel where ``given`` has none."""
    kernel = stack.attention_kernel(device.architecture)
    run: dict[str, Any] = {}
    # Gaudi has its own kernel, whatever the stack runs elsewhere.
    if kernel is not None and "attention" not in given and load_kernel(kernel).runs_on(device.architecture):
        run["attention"] = kernel
    if stack.compiles:
        run["compiled"] = True
    return replace(workload, **run) if run else workload


def resized_subject(subject: Subject, model: ModelShape, workload: Workload) -> Subject:
    """The same input with another model or workload: what a suggestion would run.

    Where its own split cannot run, what of the new one still cannot is taken as the nearest that can.
    """
    if subject.asked is not None:
        workload = nearest_split(model, workload)
    return replace(
        subject,
        model=model,
        workload=workload,
        operators=operators(model, workload),
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        dimensions=dimensions(model),
    )
