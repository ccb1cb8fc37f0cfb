"""Where commands measure: this process and its device, or with ``--ray`` the accelerators of a cluster."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapes.errors import InputError
from sizer.cli.options import option, several

if TYPE_CHECKING:
    from shapes.measure import Executor, Settings

#: ``--ray`` and ``--on``, passed on as ``ray`` and ``on``; None where not given.
ray_options = several(
    option(
        "--ray",
        metavar="ADDRESS",
        group="Measuring",
        rare=True,
        help="Measure on a Ray cluster's accelerators: auto, or HOST:PORT of its head (needs sizer[ray]).",
    ),
    option(
        "--on",
        metavar="TYPES",
        group="Measuring",
        rare=True,
        help="With --ray: types of accelerators, how many: H100:2,A100:1. [default: all]",
    ),
)


def chosen_executor(
    ray: str | None, on: str | None, device: str | None = None, settings: Settings | None = None
) -> Executor:
    """That of this process, or the fleet of the cluster at ``ray``.

    ``device``: torch's name of it; of a cluster's only "cpu" (its simulated accelerators), since Ray places.
    """
    from shapes.measure import InProcess

    if ray is None:
        if on is not None:
            raise InputError("expected --ray ADDRESS with it", key="--on", value=on)
        return InProcess(device, settings)
    if device not in (None, "cpu"):
        raise InputError("expected no device beside --ray, which places them: use --on", key="--device", value=device)
    if find_spec("ray") is None:
        raise InputError("expected Ray to be installed: pip install sizer[ray]", key="--ray", value=ray)
    from shapes.measure.fleet.device import accelerator_or_cpu
    from shapes.measure.fleet.leases import parse_on
    from shapes.measure.fleet.ray_cluster import ray_fleet

    wanted = parse_on(on) if on is not None else None
    return ray_fleet(ray, on=wanted, device=device, make=accelerator_or_cpu, say=say_line)


def refuse_network(path: Path) -> None:
    """InputError where a store that several machines might open lies on a network file system."""
    from shapes.measure.store import network_file_system

    found = network_file_system(path)
    if found is not None:
        raise InputError(
            f"SQLite's log does not work on a network file system ({found}): name a file on a local disk with --store "
            "or SIZER_STORE; `sizer store merge` joins several",
            where=str(path),
        )


def say_line(line: str) -> None:
    """On standard error, at once."""
    # A bar may stand on the terminal.
    click.echo(f"\r\x1b[Ksizer: {line}" if sys.stderr.isatty() else f"sizer: {line}", err=True)
