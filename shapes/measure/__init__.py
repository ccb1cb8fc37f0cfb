"""Measuring on the device at hand.

* ``measure(jobs, executor=…, store=…, settings=…) -> Sweep``: the one way anything is measured (``runner``).
* ``Job`` says what: an operator of ``shapes.operators``, a ``MemoryBound`` kernel or a ``Part`` of a model (``jobs``).
* ``Executor`` is where it runs (``executor``): ``run(jobs)`` for a sweep; a ``SamplingExecutor`` has ``prepare(job)``,
  ``sample(prepared, n)`` and ``finish(prepared)`` for a search that chooses what to time next. ``NotMeasured`` carries
  the outcome of what cannot run. ``InProcess(device)`` is the one of this process and one device (``in_process``).
* ``summarise(samples)`` and ``Stopping`` say what samples mean (``stats``, pure).
* ``shapes.measure.store.Store``: ``find(key, environment)`` before measuring, ``add([measurement])`` after.

Importing this package loads no torch; opening a device does.
"""

from shapes.measure.executor import DeviceLostError, Executor, NotMeasured, Prepared, SamplingExecutor, Settings
from shapes.measure.in_process import InProcess
from shapes.measure.jobs import Job, MemoryBound, Part, swiglu
from shapes.measure.record import Measurement
from shapes.measure.runner import Progress, Sweep, measure
from shapes.measure.stats import Drift, Stopping, Summary, summarise

__all__ = [
    "DeviceLostError",
    "Drift",
    "Executor",
    "InProcess",
    "Job",
    "Measurement",
    "MemoryBound",
    "NotMeasured",
    "Part",
    "Prepared",
    "Progress",
    "SamplingExecutor",
    "Settings",
    "Stopping",
    "Summary",
    "Sweep",
    "measure",
    "summarise",
    "swiglu",
]
