"""The answer of `sizer memory`: the components, what fits, and what each saving buys."""

from typing import NamedTuple, Unpack

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.errors import AnyPath, InputError, refuse
from shapes.frozen import Floats, Names, Words, frozen, replace
from shapes.keywords import WorkloadKeywords
from shapes.memory import ROOM, Memory, Saved, largest_microbatch, savings, smallest_pp, smallest_tp
from shapes.memory import memory as bytes_by_component
from shapes.memory.engine import UTILIZATION, engine_bytes, longest_context, most_requests
from shapes.memory.modules import CHECKED
from shapes.model import ModelShape
from shapes.model.stages import trained_parameters
from shapes.step import Pricer
from shapes.step.stack import SoftwareStack
from shapes.workload import Workload, check_batch
from sizer.printing import Printable
from sizer.subject import Subject, read_subject, run_on

from .snapshot import Held, compared, read_snapshot


class Engine(NamedTuple):
    """What an engine serves from its share of the device: the longest context, and the most requests.

    The context is for the workload's requests, the requests are at its context. None: more than are searched; 0: none.
    """

    memory_utilization: float
    total_bytes: int
    longest_context: int | None
    most_requests: int | None


@frozen
class MemoryBreakdown(Printable):
    """One model's memory on one device. ``largest_microbatch`` 0: not one sequence fits.

    ``times``: seconds of a training step now, then with each of ``savings`` (none: not priced). ``notes``: assumptions
    and omissions that a reader could not guess. ``explained``: a run's snapshot compared with the prediction.
    """

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
    trained: int
    engine: Engine | None
    times: Floats
    notes: Names
    explained: tuple[Held, ...] | None

    @property
    def formulas(self) -> Words:
        """Component -> how it is counted."""
        return {part.name: part.formula for part in self.memory.parts}

    @property
    def ok(self) -> bool:
        """Whether it fits."""
        return bool(self.memory.fits)


def _engine(
    model: ModelShape, workload: Workload, device: Device, share: float | None, weight_dtype: str | None
) -> Engine | None:
    """What an engine serves in decoding; InputError for a share that is given for another phase."""
    if not workload.decode:
        refuse(share is not None, "expected the phase decode with it", "memory_utilization", share)
        return None
    share = UTILIZATION if share is None else share
    asked = model, workload, device, share, weight_dtype
    return Engine(share, engine_bytes(model, workload, weight_dtype), longest_context(*asked), most_requests(*asked))


def _timed(run: Subject, device: Device, saved: tuple[Saved, ...]) -> Floats:
    """Seconds of a training step of ``run`` now, then with each of ``saved``; none if it has no price."""
    model, pricer = run.whole(), Pricer(device, stack=run.stack)
    changed = [run.workload, *(replace(run.workload, **one.change) for one in saved)]
    try:
        return tuple(pricer.cost(model, one).seconds for one in changed if saved)
    except InputError:  # its products or its host have no price
        return ()


def memory(
    config: object,
    *,
    device: str | Device = DEFAULT_DEVICE,
    config_format: str | None = None,
    stack: str | SoftwareStack | None = None,
    loss: str | None = None,
    weight_dtype: str | None = None,
    memory_utilization: float | None = None,
    explain: AnyPath | None = None,
    **workload: Unpack[WorkloadKeywords],
) -> MemoryBreakdown:
    """The memory that ``config`` (as for ``check``) takes on one device, by component, and what fits.

    ``memory_utilization``: the share of the device that an engine takes when it decodes (None: 0.9, vLLM's). ``loss``
    (None: the named ``stack``'s) and ``weight_dtype``: as for ``shapes.memory.memory``. ``explain``: a run's snapshot
    (torch.cuda.memory._dump_snapshot, or its JSON) to compare. ``workload``: fields of ``Workload``, in either
    spelling. InputError for a model that is not understood, and if devices and degrees do not agree.
    """
    on = load_device(device)
    subject = run_on(read_subject(config, config_format=config_format, stack=stack, **workload), on)
    model, settled = subject.whole(), subject.workload
    options = subject.kept | {"weight_dtype": weight_dtype} | ({"loss": loss} if loss else {})
    check_batch(settled)
    refuse(weight_dtype and settled.train, "expected the phase infer or decode with it", "weight_dtype", weight_dtype)
    asked = model, settled, ROOM * on.memory.bytes
    # Without a known host no saving on the host is offered.
    saved = tuple(savings(*asked, host=on.link.host_bytes_per_s > 0, **options))
    engine = _engine(model, settled, on, memory_utilization, weight_dtype)
    times = _timed(subject, on, saved)
    priced = (replace(one, step_seconds=seconds) for one, seconds in zip(saved, times[1:]))  # noqa: B905 - the shorter ends it
    found, named = bytes_by_component(model, settled, device=on, simulate=True, **options), model.model_type
    guessed = settled.train and found.implementation != "megatron" and named not in CHECKED
    unchecked = [f"activations as the closest checked family saves them: {named} was not compared with torch"]
    longest = replace(settled, context=engine.longest_context or settled.context) if engine else settled
    return MemoryBreakdown(
        subject.where,
        named,
        model.parameters,
        settled,
        on.name,
        on.memory.bytes,
        found,
        explained=None if explain is None else tuple(compared(read_snapshot(explain), found)),
        largest_microbatch=largest_microbatch(*asked, **options),
        smallest_tp=smallest_tp(*asked, **options),
        smallest_pp=smallest_pp(*asked, **options),
        savings=tuple(priced) or saved,
        times=times,
        trained=trained_parameters(model, settled),
        engine=engine,
        notes=(*replace(subject, workload=longest).left_out, *unchecked * guessed),
    )
