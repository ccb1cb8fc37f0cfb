"""The library's front door to searching: keywords made into a baseline, an objective, limits and a source."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.errors import InputError, one_of, positive_int, refuse
from shapes.frozen import Function, Named, Values, first_of, given, replace
from shapes.keywords import WorkloadKeywords
from shapes.step.stack import SoftwareStack, load_stack
from shapes.toml_table import check_bounds
from shapes.workload import MERGED, Workload, option_of, workload_fields

from .pricing import QUIET, Layouts, Progress
from .result import SearchResult
from .run import Query, find
from .space import (
    DEFAULT_B,
    DEFAULT_OBJECTIVE,
    DIMENSIONS,
    OBJECTIVES,
    OPTIONS,
    Baseline,
    Limits,
    Scope,
    on_a_cpu,
    sequences,
)

if TYPE_CHECKING:
    from shapes.measure.workers import Session

    from .measuring import Measured

#: Keywords of ``search`` that go to a measured source, by name.
_MEASURING = ("strategy", "regret", "confidence", "time_limit_s", "store")


#: Fields that order a step's work and change none of it, or keep a model's dimensions.
_KEPT = ("vpp", "no_overlap", "ep_overlap", "frozen_architecture", "finetune")


class SearchKeywords(WorkloadKeywords, total=False):
    """Further keywords of ``search``: the baseline's dimensions, those of measuring, the workload's fields."""

    d_ff: int | None
    heads: int | None
    kv_heads: int | None
    layers: int | None
    vocab: int | str | None
    gemm_only: bool
    tokens: int
    strategy: Function | None
    regret: float | None
    confidence: float | None
    time_limit_s: float | None
    store: str | None


def search(
    config: object = None,
    *,
    what: str | None = None,
    h: int | None = None,
    params: float | None = None,
    device: str | Device | None = None,
    limits: Limits | None = None,
    objective: str = DEFAULT_OBJECTIVE,
    top: int = 5,
    measure: "bool | Session" = False,
    progress: Progress = QUIET,
    stack: str | SoftwareStack | None = None,
    serving: Named | None = None,
    training_budget: float | None = None,
    quality: float | None = None,
    layouts: Layouts | Callable[[], Layouts] | None = None,
    **options: Unpack[SearchKeywords],
) -> SearchResult:
    """The fastest neighbours of a baseline, predicted, or with ``measure`` measured on the device at hand.

    The baseline is ``config`` (as for ``check``), or plain dimensions: ``h`` alone searches the SwiGLU width near 8h/3,
    ``params`` a whole model. A prediction, for ``device`` (default h100-sxm), prices every candidate. A measurement
    takes candidates in the order of the prediction for the device at hand (h100-sxm if that is not known, as a CPU is
    not); ``measure`` may be an executor (``shapes.measure.workers.Session``). ``stack``: the software that runs whole
    steps (None: the configuration's format decides; kernels alone are added up for plain dimensions, parts of a model,
    and measurements). ``progress(done, of, best)``. ``serving``: fields of a decode step that is priced with each
    candidate's step ({"b": 64, "context": 8192, "tp": 8}). ``training_budget``: the longest step, over the baseline's.
    ``quality``: tokens of training; candidates have the baseline's loss after them by published fits, and are ordered
    by ``step-time``. ``layouts``: `sizer.plan`'s answer for the baseline, whose fastest splits each candidate is
    planned over, or a function that gives it, called after all arguments are checked. ``options`` are of three groups:

    * dimensions of the baseline: ``d_ff``, ``heads``, ``kv_heads``, ``layers``, ``vocab``; ``gemm_only=True`` is the
      single product of the ML Engineering book instead of an MLP;
    * of measuring: ``strategy`` (a function of a `Race`; `racing`), how far from the best is good enough
      (``regret``, 0.01), how sure to be (``confidence``, 0.95), ``time_limit_s``, and the ``store`` that samples come
      from and go to;
    * fields of ``Workload`` under either of their names (t or tp); ``tokens`` means b and s.

    Raises InputError where nothing satisfies the constraints.

    >>> search(h=4096).best.change["d_ff"] % 32
    0
    """
    rest = Values(options)
    dimensions = {name: rest.pop(name, None) for name in DIMENSIONS}
    measuring = given({name: rest.pop(name, None) for name in _MEASURING})
    what = what or ("model" if params is not None else "swiglu")
    one_of(objective, OBJECTIVES, "objective")
    scope: Scope = "product" if rest.pop("gemm_only", False) else ("model" if config is not None else "mlp")
    _used(what, config, params, dimensions)
    workload = _asked_workload(rest)
    target, measured = _source(measure, device, measuring)
    if config is None and measured and measured.executor.environment.cpu:
        workload = on_a_cpu(h) | workload
    asked = {"dimensions": {"hidden": h, **dimensions}, "parameters": params, "scope": scope, **workload}
    limits = limits or Limits()
    shards = limits.shards(workload.get("t", 1))
    step = shards * target.alignment_elements(workload.get("dtype", "bf16"))
    if config is not None:
        start = Baseline.from_config(config, step=step, stack=stack, **asked)
    else:
        start = Baseline.from_dimensions(h, step=step, shards=shards, **asked)
    if stack is not None:
        start = replace(start, stack=load_stack(stack), given=start.given | workload.keys())
    check_bounds(params=params, quality=quality)
    refuse(quality is not None and what != "model", "expected --what model with it", "quality", quality)
    if quality is not None and objective == DEFAULT_OBJECTIVE:
        objective = "step-time"  # what parameters are worth is in the loss
    return find(
        start,
        Query(
            what,
            objective,
            limits,
            target,
            measured,
            top,
            progress,
            _decode(serving, start),
            training_budget,
            stack is not None,
            quality,
            layouts,
        ),
    )


def _asked_workload(asked: Values) -> Values:
    """The workload's fields by their letters; InputError for what a search compares nothing by."""
    tokens = asked.pop("tokens", None)
    workload = workload_fields(asked)
    refuse(
        workload.get("phase") == "decode",
        "expected train or prefill: a decode step is priced with it by `--serving microbatch=64,context=8k`",
        "phase",
        "decode",
    )
    if tokens is not None:
        workload |= sequences(tokens, workload)
    for name in _KEPT:
        refuse(
            name in workload and workload[name] != getattr(Workload(), name),
            "expected none: a search changes dimensions; `sizer plan` prices schedules",
            option_of(name),
        )
    return workload


def _decode(serving: Named | None, start: Baseline) -> Workload | None:
    """The decode step that ``serving`` says, in the element type of training where it names none."""
    if serving is None:
        return None
    asked = workload_fields(serving)
    phase = asked.get("phase", "decode")
    refuse(phase != "decode", "expected no other phase than decode", "--serving phase", phase)
    refuse("context" not in asked, "expected context=TOKENS, the keys a request has in its cache", "--serving")
    return Workload(**{"b": DEFAULT_B, "dtype": start.workload.dtype, **MERGED, **asked, "phase": "decode"})


def _used(what: str, config: object, params: float | None, dimensions: dict[str, int | None]) -> None:
    """InputError for what a search would take no notice of."""
    refuse(
        None not in (params, config) and what != "model",
        "expected --what model with it: a configuration has its own parameters",
        "params",
        params,
    )
    if config is None and params is None and what == "swiglu":
        for name in DIMENSIONS[1:]:
            refuse(
                dimensions[name] is not None,
                "expected a configuration or another --what with it: one MLP is timed",
                OPTIONS[name],
                dimensions[name],
            )


def _source(
    measure: "bool | Session", device: str | Device | None, measuring: Values
) -> tuple[Device, "Measured | None"]:
    """The device that is predicted, and who measures on it."""
    if measure is False:
        if measuring:
            name, value = next(iter(measuring.items()))
            limit = "limit " * (name in ("regret", "confidence"))
            option = f"--{limit}{name.removesuffix('_s').replace('_', '-')}"
            raise InputError("expected --measure with it: a prediction has no use for it", option, value)
        return load_device(device or DEFAULT_DEVICE), None
    from sizer.checking.measured import device_to_measure

    from .measuring import Measured

    if measure is True:
        from shapes.measure.backend import OneThread
        from shapes.measure.in_process import InProcess
        from shapes.measure.workers import here

        measure = here()
        if measure.environment.cpu:  # others share it, and two threads that wait for each other measure those
            measure = InProcess(OneThread())
    return device_to_measure(measure, device), Measured(measure, **measuring)


def swiglu_width(
    hidden: int, *, device: str | Device = DEFAULT_DEVICE, tolerance: float = 0.01, **workload: Unpack[WorkloadKeywords]
) -> int:
    """The fastest width of a gated MLP within ``tolerance`` of 8h/3's parameters, predicted on ``device``.

    Candidates are widths whose shards over 8, else 4, else 2 devices are aligned, else aligned widths, as far as the
    tolerance reaches one; else widths of whole 16 bytes.

    >>> swiglu_width(4096)
    11008
    """
    target, settled = load_device(device), Workload(**workload_fields(workload))
    width = max(8 * positive_int(hidden, "hidden") // 3 // settled.t, 1) * settled.t
    aligned, slack = target.alignment_elements(settled.dtype) * settled.t, int(width * tolerance)
    steps = (aligned * shards for shards in (8, 4, 2, 1))
    reached = first_of(step for step in steps if (width + slack) // step * step >= max(1, width - slack))
    found = search(h=hidden, d_ff=width, device=target, limits=Limits(tolerance, step=reached), top=1, **workload)
    return found.best.change["d_ff"]
