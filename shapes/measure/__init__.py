"""Measuring on the device at hand.

* ``measure(jobs, executor=…, store=…, settings=…) -> Sweep``: the one way anything is measured (``runner``).
* ``Job`` says what: an operator of ``shapes.operators``, a ``MemoryBound`` kernel or a ``Part`` of a model (``jobs``).
* ``InProcess(device)`` is the default executor, and a session for searches that choose what to time next:
  ``prepare(job)``, ``sample(candidate, n) -> seconds``, ``release(candidate)`` (``executor``). ``NotMeasured`` carries
  the outcome of what cannot run.
* ``compare(a, b)``, ``summarise(samples)`` and ``Stopping`` say what samples mean (``stats``, pure).
* ``shapes.measure.store.Store``: ``find(key, environment)`` before measuring, ``add([measurement])`` after.

Importing this package loads no torch; opening a device does.
"""

from shapes.measure.executor import Candidate, DeviceLostError, Executor, InProcess, NotMeasured, Settings
from shapes.measure.jobs import Job, MemoryBound, Part, swiglu
from shapes.measure.record import Measurement
from shapes.measure.runner import Progress, Sweep, measure
from shapes.measure.stats import Comparison, Drift, Stopping, Summary, compare, summarise

__all__ = [
    "Candidate",
    "Comparison",
    "DeviceLostError",
    "Drift",
    "Executor",
    "InProcess",
    "Job",
    "Measurement",
    "MemoryBound",
    "NotMeasured",
    "Part",
    "Progress",
    "Settings",
    "Stopping",
    "Summary",
    "Sweep",
    "compare",
    "measure",
    "summarise",
    "swiglu",
]
