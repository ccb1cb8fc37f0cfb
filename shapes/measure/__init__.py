"""Measuring on the device at hand.

* ``measure(jobs, executor=…, store=…, settings=…) -> Sweep``: the one way anything is measured (``runner``).
* ``Job`` says what: an operator of ``shapes.operators``, a ``MemoryBound`` kernel or a ``Part`` of a model (``jobs``).
* ``Executor`` is where it runs (``executor``): ``run(jobs)`` for a sweep; ``InProcess`` has ``prepare(job)``,
  ``sample(prepared, n)`` and ``finish(prepared)`` for a search that chooses what to time next. ``NotMeasured`` carries
  the outcome of a job that cannot run. ``InProcess(device)`` runs jobs in this process on one device (``in_process``).
* ``summarise(samples)`` and ``Stopping`` say what samples mean (``stats``, pure).
* ``shapes.measure.store.Store``: ``find(key, environment)`` before measuring, ``add([measurement])`` after.

Importing this package loads no torch; opening a device does.
"""

from .executor import Executor, Settings
from .in_process import InProcess
from .runner import Progress

__all__ = ["Executor", "InProcess", "Progress", "Settings"]
