"""`check`: run the rules over a resolved input and price what they propose."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.frozen import Sizes, Values
from shapes.keywords import WorkloadKeywords
from shapes.step.stack import SoftwareStack
from sizer.subject import read_subject

from .checks import check_subject
from .project import Suppression

if TYPE_CHECKING:
    from shapes.measure.executor import Executor

    from .findings import Report


def check(
    config: object,
    *,
    device: str | Device | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    config_format: str | None = None,
    example_inputs: object = None,
    dims: Sizes | None = None,
    measure: "bool | Executor" = False,
    time_limit_s: float | None = None,
    store: str | None = None,
    stack: str | SoftwareStack | None = None,
    **workload: Unpack[WorkloadKeywords],
) -> "Report":
    """Every finding of the rule catalogue on ``config``, each priced in step seconds on ``device`` (h100-sxm).

    ``config``: a path, a mapping, a transformers ``PretrainedConfig``, a ``shapes.ModelShape`` or an ``nn.Module`` with
    its ``example_inputs`` (and ``dims``, the dimensions of it worth naming: ``{"vocab": 50257}``). ``workload``: fields
    of ``shapes.Workload`` (b, s, dtype, phase, gpus, global_batch …; t or tp, p or pp, d or dp, e or ep). A split that
    does not divide is a finding, the times are those of the nearest that does. ``measure``: operators are timed on the
    device at hand, or by an executor of its own (``shapes.measure.Executor``), for at most ``time_limit_s``, samples
    kept in ``store``. ``stack``: the software that runs it (``shapes/data/stacks``; None: by the configuration's
    format). Raises ``InputError`` for what it cannot read.
    """
    traced = Values(example_inputs=example_inputs, dims=dims)
    subject = read_subject(config, nearest=True, config_format=config_format, stack=stack, **traced, **workload)
    suppression = Suppression(tuple(select), tuple(ignore))
    if measure is False:
        return check_subject(subject, load_device(device or DEFAULT_DEVICE), suppression)
    from shapes.measure.workers import here

    from .measured import check_measured

    executor = here() if measure is True else measure
    return check_measured(subject, executor, device, suppression, time_limit_s=time_limit_s, store=store)
