"""Where commands measure: the device here, or with ``--ray`` the accelerators of a cluster."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from shapes.errors import refuse
from shapes.program import install
from sizer.cli.options import say_line

if TYPE_CHECKING:
    from shapes.measure import Executor, Settings


def chosen_executor(
    ray: str | None, on: str | None, device: str | None = None, settings: Settings | None = None
) -> Executor:
    """The accelerator here in a process of its own, the processor in this one, or a cluster's devices (``ray``).

    ``device``: torch's name of it; of a cluster's only "cpu" (its simulated accelerators), since Ray places.
    """
    from shapes.measure.workers import Workers
    from sizer.answers.bench import local_executor

    if ray is None:
        refuse(on is not None, "expected --ray ADDRESS with it", "--on", on)
        return local_executor(device, settings, say_line)
    refuse(
        device not in (None, "cpu"),
        "expected no --device with --ray, which places jobs itself: use --on",
        "--device",
        device,
    )
    refuse(find_spec("ray") is None, f"expected Ray to be installed: {install('ray')}", "--ray", ray)
    from shapes.measure.ray_workers import ray_workers

    return Workers(ray_workers(ray, on, device), say_line)
