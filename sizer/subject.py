"""The resolved input: a configuration or module, read once, with its workload settled and its operators listed."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapes.device import Device
from shapes.errors import InputError, positive_int, refuse, within
from shapes.frozen import Named, Names, Sizes, Texts, Values, Words, first_of, frozen, given, replace, without
from shapes.kernels import load_kernel
from shapes.model import Block, ModelShape, MoeShape, Unproven, Unread, named
from shapes.model.resize import DIMENSIONS, dimensions
from shapes.model.stages import USUAL_OF
from shapes.operators import image_workloads, operators
from shapes.operators.parallel import runnable_split, split_problems
from shapes.operators.types import Operator, Operators
from shapes.recipes import load_recipe
from shapes.step.stack import SoftwareStack, default_stack, load_stack
from shapes.workload import (
    ADAPTED,
    MEGATRON_ROWS,
    MERGED,
    POLICIES,
    WORDS,
    WORKLOAD_FIELDS,
    Implementation,
    Workload,
    modules,
    routing_note,
    workload_fields,
)

from .readers import EXAMPLE, Reading, Source, UnknownModelType, is_name, load_mapping, read_config
from .readers.reading import at, sentences, stated, table

if TYPE_CHECKING:
    from shapes.trace.prove import Proof
    from shapes.trace.result import Traced

#: Element types in which torch.autocast runs the products of an fp32 module.
AUTOCAST = ("bf16", "fp16")

#: Tokens a sequence where neither the caller nor the file says: what most models are pretrained at.
DEFAULT_SEQUENCE = 4096

#: Formats whose frameworks train with Megatron's fused kernels; other files are run by transformers' modules.
MEGATRON_FORMATS = ("megatron", "gpt_neox", "nemo")

#: Fields of ``Workload`` on which the products of a trace depend.
_TRACED = frozenset({"b", "s", "phase", "attention", "dtype", "decoder_s"})


@frozen
class Subject:
    """A resolved input: a model with its workload.

    ``model``: None where the class was traced: its products are known, its price is not. ``unproven`` names the modules
    that were not understood (empty where a trace was asked for). ``keys``: dimension -> its name in a traced
    configuration. ``asked``: the workload that was asked for, if the model does not divide over it; ``workload`` then
    leaves those degrees out. ``stack``: the software that runs it.
    """

    where: str
    model_type: str
    parameters: int
    active_parameters: int
    workload: Workload
    operators: Operators
    dimensions: Sizes
    notes: Names
    given: frozenset[str]
    model: ModelShape | None = None
    reading: Reading | None = None
    keys: Words = field(default_factory=dict)
    unproven: tuple[Unproven, ...] = ()
    asked: Workload | None = None
    stack: SoftwareStack = field(default_factory=lambda: default_stack(None))

    @property
    def unread(self) -> tuple[Unread, ...]:
        """Keys of the file that were not read, and that matter or are unknown."""
        return self.reading.unread if self.reading else ()

    @property
    def left_out(self) -> Names:
        """Notes of every answer: on parts of the file that no figure counts, and on a context that is too long."""
        return (*self.reading.left_out, *beyond_positions(self.reading, self.workload)) if self.reading else ()

    @property
    def path(self) -> str:
        """How the operators were found: "formula", "recognised" (from the class, and proven) or "trace"."""
        if not self.model:
            return "trace"
        return "recognised" if self.reading and self.reading.recognised else "formula"

    @property
    def understood(self) -> Operators:
        """The operators whose kernel is known.

        A model's are all of them; a traced class's are products with a weight and attention, in modules that were
        understood.
        """
        unknown = [one.module for one in self.unproven]

        def kernel(operator: Operator) -> bool:
            within = any(not path or f"{operator.name}.".startswith(f"{path}.") for path in unknown)
            return not within and operator.kind in ("gemm", "grouped_gemm", "attention")

        return self.operators if self.model else tuple(filter(kernel, self.operators))

    def whole(self) -> ModelShape:
        """The model. InputError if it is not known, naming the modules that were not understood."""
        if not self.model:
            raise _not_understood(self.unproven, InputError("", where=self.where))
        return self.model

    @property
    def named_stack(self) -> SoftwareStack | None:
        """The software stack, if somebody named it."""
        return self.stack if "stack" in self.given else None

    @property
    def implementation(self) -> Implementation | None:
        """Whose kernels save activations: as the workload says, as the named stack runs, or the file's framework's.

        None: the split decides (``Workload.saved_by``).
        """
        if self.workload.implementation:
            return self.workload.implementation
        megatron = self.reading and self.reading.format in MEGATRON_FORMATS
        chosen = self.named_stack and self.stack.framework == "megatron"
        return "megatron" if megatron or chosen else None

    @property
    def kept(self) -> Values:
        """Options of ``shapes.memory.memory`` that the named stack and the file's framework decide."""
        said = getattr(self.reading, "workload", {})
        return {
            "implementation": self.implementation,
            "loss": getattr(self.named_stack, "loss", None) or said.get("loss"),
            # Without a number of devices there is no global batch to count them by.
            "microbatches": None if self.workload.global_batch else said.get("accumulated"),
        }

    @property
    def released(self) -> bool:
        """Whether its weights exist: it was named, they lie next to its file, or the table has its dimensions."""
        reading = self.reading
        if not reading or not reading.config:
            return False
        if is_name(reading.source) or _has_weights(Path(reading.source)):
            return True
        sizes = {key: at(reading.config, key) for key in ("model_type", *reading.keys.values())}
        rows = (one["config"] for one in table("released").values() if "config" in one)
        return any(all(at(row, key) == size for key, size in sizes.items()) for row in rows)

    @property
    def saved_by(self) -> Implementation:
        """Whose kernels save activations in the split that was asked for."""
        return self.implementation or (self.asked or self.workload).saved_by

    def name_of(self, key: str) -> str:
        """The name of a dimension or workload field in the file or on the command line."""
        keys = self.reading.keys if self.reading else self.keys
        return keys.get(key) or WORDS.get(key, key)


def _has_weights(path: Path) -> bool:
    """Whether files of weights lie next to the file ``path``."""
    kinds = "*.safetensors", "pytorch_model*.bin", "*.index.json"
    return path.is_file() and any(any(path.parent.glob(one)) for one in kinds)


def read_subject(
    source: object,
    *,
    trace: bool = False,
    config_format: str | None = None,
    example_inputs: object = None,
    dims: Sizes | None = None,
    nearest: bool = False,
    stack: str | SoftwareStack | None = None,
    **workload: Any,
) -> Subject:
    """Read ``source`` (a path, mapping, PretrainedConfig, ModelShape, Reading or nn.Module) and settle its workload.

    A model type that no reader knows, or a module, is recognised in its class and proven (needs the ``trace`` extra).
    Where that fails, and with ``trace=True``, the class's products are listed. A module comes with ``example_inputs``
    (a tuple or a mapping of arguments); ``dims`` names the dimensions of one that is not understood. ``workload`` are
    fields of ``Workload``, in either spelling (t or tp); what is not given comes from the file, else from the defaults.
    Degrees that the model does not divide over are an InputError, or with ``nearest`` are left out (``Subject.asked``).
    ``stack``: the software stack (``shapes.step.stack``; None: the one that the file's format is run by).
    A ``Source`` brings keys to replace or add, and a trainer's settings. A transformers model without
    ``example_inputs`` is read by its config.
    """
    workload = workload_fields(workload)
    stack = stack and load_stack(stack)  # refused before a class is loaded, which takes seconds
    if callable(getattr(source, "named_parameters", None)):
        if example_inputs is not None or getattr(source, "config", None) is None:
            return _run_by(_of_module(source, example_inputs, dims, workload, nearest=nearest), stack)
        source = source.config  # type: ignore[attr-defined]
    if trace:
        return _run_by(_traced_config(source, workload), stack)
    try:
        found = _of_reading(read_model(source, config_format=config_format, **workload), workload, nearest=nearest)
    except NotUnderstood as error:
        found = _traced_config(source, workload, error.proof)
    return _run_by(found, stack)


def _of_reading(reading: Reading, workload: Named, *, nearest: bool) -> Subject:
    if own := reading.rounds.get(workload.get("phase", "")):
        reading = replace(reading, workload=own)
    model, released = as_it_runs(reading, workload)
    model = _once(model)
    settled = settle_workload(replace(reading, model=model), workload)
    if "checkpointing" in workload:
        _check_saving(model, settled)
    # Expert parallelism of a model without experts is a mistake that no rule reports.
    problems = split_problems(model, settled) if nearest and (settled.e == 1 or model.moe) else ()
    runs = runnable_split(model, settled) if problems else settled
    with within(reading.source):
        found = operators(model, runs)
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
        notes=(
            *reading.notes,
            *released,
            *sentences(reading.unread),
            *_assumed(reading, runs),
            *[f"dp {settled.d}: what the devices leave, as many as the file's without --gpus"]
            * _moves(reading, workload),
            *_instead(problems, runs),
        ),
        given=frozenset((*reading.workload, *workload)),
        asked=settled if problems else None,
        stack=default_stack(reading.format, runs.spread, runs.compiled),
    )


def _check_saving(model: ModelShape, workload: Workload) -> None:
    """InputError for modules that the model has none of, and for more layers than a device holds."""
    saving, layers = workload.saving, -(-model.layers // workload.p)
    has = saving.again if saving.name in POLICIES else modules_in(model)
    unknown = not saving.again.issubset(has)
    refuse(
        unknown or (saving.layers or 0) > layers,
        f"expected modules that {model.model_type} has: {', '.join(has)}"
        if unknown
        else f"expected at most the {layers} layers of a device behind the colon",
        "checkpointing",
        workload.checkpointing,
    )


def modules_in(model: ModelShape) -> Texts:
    """The modules that may run again by themselves of which the model has some."""
    held = dimensions(model)
    return [one for one, said in modules().items() if said["of"] in held]


@lru_cache(8)
def _once(model: ModelShape) -> ModelShape:
    """The same object for equal models, so that later look-ups compare identities and not fields."""
    return model


class NotUnderstood(UnknownModelType):
    """A model type that no reader knows, and whose class could not be proven to be what it was recognised as."""

    proof: "Proof"


def read_model(source: object, *, config_format: str | None = None, **workload: Any) -> Reading:
    """As ``read_config``, but a model type that no reader knows is recognised in its transformers class, and proven.

    ``workload``: what will be asked of it, refused before a class is loaded. NotUnderstood if the proof fails, naming
    the modules that were not understood with their share of FLOPs.
    """
    if isinstance(source, Reading):
        return source
    try:
        return read_config(source, config_format=config_format)
    except UnknownModelType as error:
        unknown = error
    from shapes.trace import MissingExtra, recognise_config
    from shapes.trace.dimensions import is_known, unknown_type

    plain, where = _named(source)
    config = load_mapping(plain)
    if unknown.key == "model_type" and not is_known(str(unknown.value)):
        raise unknown_type(config, where)
    try:
        with within(where):
            _of_class(workload)
            proof = recognise_config(plain)
    except MissingExtra as error:
        raise InputError(f"{unknown.expected}; {error.expected}", unknown.key, unknown.value, unknown.where) from None
    return _reading_of(proof, where, config, unknown)


def _not_understood(unproven: Sequence[Unproven], unknown: InputError) -> NotUnderstood:
    """The error that says in one line what was not understood and what to do."""
    what = named(unproven) if unproven else "a trace lists products alone: leave --trace out"
    todo = " (`sizer check` has what parameters alone tell; `sizer ops` lists the products)" if unproven else ""
    return NotUnderstood(what + todo, unknown.key, unknown.value, unknown.where)


def _reading_of(proof: "Proof", where: str, config: Named, unknown: InputError) -> Reading:
    """The reading of a proven class; NotUnderstood, with the key and value of ``unknown``, if it is not proven."""
    if not proof.model:
        refused = _not_understood(proof.unproven, unknown)
        refused.proof = proof
        raise refused
    from .readers.huggingface import of_class

    with within(where):
        return of_class(proof, config, where)


def _named(source: object) -> tuple[object, str]:
    """What a trace reads (a path, a mapping with its settings applied, or the object given), and its name in errors."""
    given = source.config if isinstance(source, Source) else source
    if isinstance(given, Reading):
        return given.config, given.source
    where = str(given) if isinstance(given, str | Path) else f"<{type(given).__name__}>"
    settled = isinstance(source, Source) and (source.settings or source.text is not None)
    return load_mapping(source) if settled or is_name(given) else given, where


def _run_by(subject: Subject, stack: str | SoftwareStack | None) -> Subject:
    return subject if stack is None else replace(subject, stack=load_stack(stack), given=subject.given | {"stack"})


def _instead(problems: Iterable[InputError], runs: Workload) -> Names:
    """A note on the split whose times are given instead of one that cannot run."""
    asked = {problem.key: problem.value for problem in problems if problem.key is not None}
    if not asked:
        return ()
    wanted = ", ".join(f"{WORDS.get(key, key)} {value}" for key, value in asked.items())
    taken = ", ".join(f"{WORDS.get(key, key)} {getattr(runs, key)}" for key in asked)
    taken += f" (devices: {runs.model_ranks * runs.d})"
    return (f"no split of this model over these ranks: {wanted}; times are those of {taken}",)


def beyond_positions(reading: Reading, workload: Workload) -> Names:
    """A note if the context (in training, the sequence) is longer than the model's positions."""
    most, context = reading.longest or reading.model.max_positions or 0, workload.context or workload.s
    return (f"the context of {context:,} is beyond the model's {most:,} positions",) * (0 < most < context)


def _assumed(reading: Reading, workload: Workload) -> Texts:
    """Notes on assumptions: of mixtures, long sequences, prompts, images and decode steps."""
    notes = [routing_note(workload.expert_load)] if reading.model.moe else []
    if workload.serving:
        notes.append(
            "operators added up: host time, launches and other requests' prompts are not in them "
            "(`sizer plan --phase decode --concurrency N` has them)"
        )
    for *_, tokens in image_workloads(reading.model, workload):
        notes.append(
            f"images: {tokens // workload.b} of a sequence's {workload.s} tokens, which its vision tower makes"
        )
    notes += beyond_positions(reading, workload)
    if workload.speculative:
        notes.append(f"tokens/s with no draft accepted; up to {1 + workload.speculative} x that with all of them")
    return notes


def as_it_runs(reading: Reading, asked: Named) -> tuple[ModelShape, Names]:
    """The model in its release's formats, or in 16 bits if all of it trains or the caller names a type; and notes."""
    model = reading.model
    said = first_of(f"--{key} {asked[key]}" for key in ("dtype", "recipe") if asked.get(key))
    run = {**reading.workload, **asked}
    trains = run.get("phase", "train") == "train" and run.get("finetune") not in ADAPTED
    if not model.formats or not (said or trains):
        return model, ()
    return model.in_formats(lambda _: None), (f"not run as released: {said or 'training keeps weights in 16 bits'}",)


def settle_workload(reading: Reading, asked: Named) -> Workload:
    """The workload: ``asked`` first, then the file, then defaults (the model's longest sequence, at most 4096)."""
    values = _with_data_parallelism(_said(reading, asked))
    decodes = values.get("phase") == "decode"
    refuse(
        (decodes or reading.pixels) and {"s", "context" if decodes else "images"} <= asked.keys(),
        f"expected the sequence or {'the context' if decodes else 'its image'}, not both",
        "s",
        asked.get("s"),
    )
    values.setdefault("s", min(DEFAULT_SEQUENCE, reading.longest or reading.model.max_positions or DEFAULT_SEQUENCE))
    # Decoding has kernels of its own, whatever a file or a module trains with.
    values |= stated(attention=decodes * asked.get("attention", "auto"))
    _check_adapters(values)
    refuse(
        asked.get("vpp", 1) != 1 and values.get("p", 1) == 1,
        "expected a pipeline (p above 1) with it",
        "vpp",
        asked.get("vpp"),
    )
    if values.get("finetune") in ADAPTED:
        values.setdefault("lora_targets", USUAL_OF.get(reading.model.model_type))
        if reading.model.formats:
            values.setdefault("base", "release")
    return _within_positions(reading, values, decodes=decodes)


def _said(reading: Reading, asked: Named) -> Values:
    """``asked`` first, then the file; on as many devices as the file says, if other degrees were asked for."""
    values = without(reading.workload, ("loss", "accumulated")) | {**asked}
    if values.get("phase", "train") == "train" and "kv_dtype" not in asked:
        values.pop("kv_dtype", None)  # training has no KV cache, whatever the release says of its own
    if _moves(reading, asked):
        values.setdefault("gpus", prod(reading.workload.get(key, 1) for key in ("t", "p", "cp", "d")))
        del values["d"]
    elif "d" in asked and "gpus" not in asked:
        values.pop("gpus", None)
    return values


def _moves(reading: Reading, asked: Named) -> bool:
    """Whether the degrees or devices in ``asked`` change the data-parallel ranks that the file says."""
    return "d" in reading.workload and "d" not in asked and not asked.keys().isdisjoint(("t", "p", "cp", "gpus"))


def _within_positions(reading: Reading, values: Values, *, decodes: bool) -> Workload:
    """The workload of these fields. InputError for a sequence longer than the model's positions."""
    if decodes:
        values = MERGED | values
    longest, s = reading.model.max_positions, values["s"]
    refuse(
        not decodes and longest and isinstance(s, int) and s > longest,
        f"expected at most the model's {longest} positions",
        "s",
        s,
        where=reading.source,
    )
    workload = Workload(**values)
    if not (reading.pixels and workload.image_sizes):
        return workload
    number, *sides = workload.image_sizes
    refuse(
        number > 1 or any(one % reading.pixels for one in sides),
        f"expected one image a sequence, its sides multiples of {reading.pixels} pixels",
        "images",
        workload.images,
    )
    return replace(workload, images=None, s=prod(sides) // reading.pixels**2)


def _check_adapters(values: Named) -> None:
    """InputError for an adapter's rank without adapters, which would change nothing."""
    refuse(
        "lora_rank" in values and values.get("finetune") not in ADAPTED,
        "expected it with --finetune lora or qlora",
        "lora_rank",
        values.get("lora_rank"),
    )


def _with_data_parallelism(values: Named) -> Values:
    """``values`` with d = gpus / (t x p x cp), if devices are given and d is not; SZ120 reports a fraction.

    Without devices d is the number of experts' ranks; an engine that serves spreads experts over tensor-parallel ranks
    first.
    """
    found = given(values)
    t, p, cp, e, gpus = sizes = [found.get(key, 1) for key in ("t", "p", "cp", "e", "gpus")]
    if "d" in found or not all(isinstance(one, int) and one > 0 for one in sizes):
        return found
    ranks = t * p * cp
    if "gpus" not in found:
        # Training spreads experts inside data parallelism, which is then at least as wide.
        found["d"] = e if found.get("phase", "train") == "train" or t % e else 1
    elif not gpus % ranks:
        found["d"] = gpus // ranks
    return found


def _of_class(asked: Named) -> Workload:
    """The workload of a class whose file says nothing of one: refused before it is built, which takes seconds."""
    _check_adapters(asked)
    return Workload(**_with_data_parallelism(asked))


def _traced_config(source: object, workload: Named, proof: "Proof | None" = None) -> Subject:
    """The products of a configuration's class, which is built already if a ``proof`` of it failed."""
    from shapes.trace import longest_sequence, trace_config

    plain, where = _named(source)
    with within(where):
        _of_class(workload)
        # The same default as for a formula.
        settled = _of_class({"s": min(DEFAULT_SEQUENCE, longest_sequence(plain) or DEFAULT_SEQUENCE), **workload})
        if settled.decode:
            expected = "expected a model that sizer reads: products of a class have no KV cache to decode from"
            raise _not_understood(proof.unproven, InputError("")) if proof else InputError(expected, "phase")
        run = {name: getattr(settled, name) for name in ("b", "s", "decoder_s")}
        built = getattr(proof, "built", None)
        if built and (settled.attention, settled.dtype) == ("auto", "bf16"):  # as a class is proven
            traced = built.listed(train=settled.train, **run)
        else:
            traced = trace_config(plain, phase=settled.phase, attention=settled.attention, dtype=settled.dtype, **run)
    return _of_trace(traced, where, settled, getattr(proof, "unproven", ()), given=frozenset(workload))


def _of_module(module: Any, example_inputs: object, dims: Sizes | None, workload: Named, *, nearest: bool) -> Subject:
    """A caller's module: as the model that it is recognised as, else its products."""
    from shapes.trace import trace
    from shapes.trace.result import Traced
    from shapes.trace.run import unless_too_long

    where = type(module).__name__
    for name, size in (dims or {}).items():
        refuse(name not in DIMENSIONS, f"expected one of {', '.join(DIMENSIONS)}", f"dims[{name!r}]", size, where=where)
        positive_int(size, f"dims[{name!r}]", where=where)
    try:
        recognised = read_module(module, example_inputs, workload.get("dtype"))
        return _of_reading(recognised, workload, nearest=nearest)
    except NotUnderstood as error:
        proof = error.proof
    positional, keywords, ran = _called(example_inputs, where)
    dtype, notes = _module_dtype(proof.dtype, workload.get("dtype"), where)
    for key, size in ran.items():
        asked = workload.get(key, size)
        refuse(asked != size, f"expected {size}, as in example_inputs", key, asked, where=where)
    settled = Workload(**{**workload, **ran, "dtype": dtype})
    if settled.decode:
        raise _not_understood(proof.unproven, InputError("", where=where))
    traced = unless_too_long(
        lambda: trace(module, *positional, phase=settled.phase, **keywords), Traced((), proof.parameters, None, where)
    )
    traced = replace(traced, notes=(*traced.notes, *notes), dimensions=dims or {})
    return _of_trace(traced, where, settled, proof.unproven, given=frozenset(workload))


def read_module(module: Any, example_inputs: object, dtype: str | None = None) -> Reading:
    """A caller's module, recognised from one call of it; NotUnderstood if that is not proven."""
    from shapes.trace import recognise_module
    from shapes.trace.run import PLAIN

    where = type(module).__name__
    positional, keywords, ran = _called(example_inputs, where)
    PLAIN.ran = False
    proof = recognise_module(module, tuple(positional), keywords)
    dtype, notes = _module_dtype(proof.dtype, dtype, where)
    reading = _reading_of(proof, where, {}, InputError("", where=where))
    notes += (
        ("its torch.utils.checkpoint is not followed: say what is run again (checkpointing full)",) * PLAIN.ran
        + ("inputs that layers read as they are have a gradient",) * proof.learns
        + ("attention runs as products, as in the module (attention sdpa: in a fused kernel)",) * proof.eager
    )
    return replace(
        reading, notes=(*reading.notes, *notes), workload=stated(**ran, dtype=dtype, attention="eager" * proof.eager)
    )


def _module_dtype(runs_in: str, asked: str | None, where: str) -> tuple[str, Names]:
    """The element type in which a module's products run, and notes on it."""
    if asked in (None, runs_in):
        said = "the module is in fp32, whose products ask for less: if it runs under autocast, say so (dtype bf16)"
        return runs_in, (said,) * (runs_in == "fp32" and asked is None)
    refuse(
        runs_in != "fp32" or asked not in AUTOCAST,
        f"expected {runs_in}, which the module is in" + ", or bf16 or fp16" * (runs_in == "fp32"),
        "dtype",
        asked,
        where=where,
    )
    return asked, (f"as under autocast: products and attention run in {asked}, weights and the rest stay fp32",)


def _called(example_inputs: object, where: str) -> tuple[Sequence[Any], Named, Sizes]:
    """The positional and named arguments of one forward call, and its sequences and tokens (b, s)."""
    from shapes.trace.result import batch_and_sequence

    refuse(example_inputs is None, EXAMPLE, where=where)
    named = example_inputs if isinstance(example_inputs, Mapping) else {}
    listed = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    b, s = batch_and_sequence(named.values() or listed)
    return () if named else listed, named, {"b": b, "s": s}


def _of_trace(
    traced: "Traced", where: str, workload: Workload, unproven: tuple[Unproven, ...], *, given: frozenset[str]
) -> Subject:
    """A resolved input of a traced class's products."""
    plain = Workload()
    unused = [key for key in WORKLOAD_FIELDS if key not in _TRACED and getattr(workload, key) != getattr(plain, key)]
    return Subject(
        where=where,
        model_type=traced.model_type,
        parameters=traced.parameters,
        active_parameters=traced.active_parameters or traced.parameters,
        workload=workload,
        operators=traced.operators,
        dimensions=traced.dimensions,
        keys=traced.keys,
        unproven=unproven,
        given=given,
        notes=(
            "products of the class, run on torch's meta device: the time of a step is not known",
            *traced.notes,
            *(f"cannot see into {name}" for name in traced.opaque),
            *[f"the products are of one whole pass: {', '.join(unused)} change none of them"] * bool(unused),
        ),
    )


def run_on(subject: Subject, device: Device) -> Subject:
    """``subject`` as its stack runs it on ``device``: compiled or not, with the stack's attention kernel.

    A kernel that was asked for is kept. A quantised release in a format that the device cannot multiply in keeps its
    weights quantised and multiplies in 16 bits.
    """
    if not subject.model:
        return subject
    subject = _with_products_of(subject, subject.model, device)
    if subject.workload.serving or not subject.model:
        return subject
    run = partial(run_by, subject.stack, subject.given, device=device)
    workload = run(subject.workload)
    if workload == subject.workload:
        return subject
    # The split that was asked for is run alike, so that what replaces it compares.
    return replace(resized_subject(subject, subject.model, workload), asked=subject.asked and run(subject.asked))


def routed_on(model: ModelShape, device: Device) -> tuple[ModelShape, Names]:
    """``model`` with routers in its own type where ``device`` has no figures for theirs (fp32 on Gaudi); notes."""

    def routed(block: Block) -> Block:
        mlp = block.mlp
        kept = not isinstance(mlp, MoeShape) or mlp.router_dtype in (None, *device.peak_flops)
        return block if kept else replace(block, mlp=replace(mlp, router_dtype=None))

    known = model.each(routed)
    return known, (f"routers are priced in the model's own type: {device.name} has no figures for fp32",) * (
        known != model
    )


def _with_products_of(subject: Subject, model: ModelShape, device: Device) -> Subject:
    known, notes = routed_on(model, device)
    lacking = {one for one in model.formats if one.recipe and load_recipe(one.recipe).dtype not in device.peak_flops}
    if lacking:
        known = known.in_formats(lambda one: replace(one, recipe=None) if one in lacking else one)
        titles = ", ".join(one.title for one in lacking)
        notes += (
            f"{device.name} has no products in {titles}: its weights alone are quantised, arithmetic is in 16 bits",
        )
    if not notes:
        return subject
    return replace(resized_subject(subject, known, subject.workload), notes=(*subject.notes, *notes))


def run_by(stack: SoftwareStack, given: Container[str], workload: Workload, device: Device) -> Workload:
    """``workload`` as ``stack`` runs it: compiled or not, with the stack's attention kernel if ``given`` has none.

    A Megatron stack that is in ``given`` pads the vocabulary (--make-vocab-size-divisible-by).
    """
    kernel = stack.attention_kernel(device.architecture)
    run = stated(
        # Gaudi has a kernel of its own, whatever the stack runs elsewhere.
        attention=kernel and "attention" not in given and load_kernel(kernel).runs_on(device.architecture) and kernel,
        compiled=stack.compiles,
        vocab_rows=workload.train and "stack" in given and stack.framework == "megatron" and MEGATRON_ROWS,
    )
    return replace(workload, **run)


def resized_subject(subject: Subject, model: ModelShape, workload: Workload) -> Subject:
    """The same input with another model or workload: what a suggestion would run.

    If its own split cannot run, degrees of the new one that cannot run either are left out.
    """
    if subject.asked:
        workload = runnable_split(model, workload)
    return replace(
        subject,
        model=model,
        workload=workload,
        operators=operators(model, workload),
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        dimensions=dimensions(model),
    )
