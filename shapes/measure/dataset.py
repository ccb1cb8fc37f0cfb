"""Measurements to share: a folder by device and environment.

    DIR/<device>/<identity>/rows.jsonl.gz  a row a measurement: samples, clocks, power limit, driver, libraries, harness

Names of a person's machines are not exported: hosts, labels and messages are left out, cards are numbered by a hash.
Rows are checked whole (``record``), and against what a device can do (``objection``).
"""

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from shapes.device import Device
from shapes.errors import InputError, decoded, make_folder, refuse, write_whole
from shapes.frozen import Names, Values, first_of, frozen

from . import record
from .environment import Environment
from .record import Measurement, read_export, unpacked
from .stats import summarise
from .store import Store

ROWS = "rows.jsonl.gz"
#: Fields of an environment's host that are shared.
OF_HOST = ("python", "cpu", "cores", "multiprocessors", "memory_bytes")
#: Columns of a row that are shared.
_SHARED = tuple(name for name in record.COLUMNS if name not in ("environment", "label", "message"))


@frozen
class Dataset:
    """The rows of one device in one environment. ``path``: its folder, or another program's file."""

    path: Path
    environment: Environment
    measurements: tuple[Measurement, ...]


@frozen
class Exchanged:
    """The outcome of a dataset's rows.

    ``added``: written to the store, or to the export. ``there``: rows that it had already. ``refused``: (what the row
    measures, why).
    """

    path: str
    device: str
    added: int
    there: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    notes: Names = ()


def by_environment(measurements: Iterable[Measurement], path: Path) -> Iterator[Dataset]:
    """``measurements`` of the file or folder ``path``, a dataset for each device and environment."""
    by = attrgetter("environment.identity")
    for _, listed in groupby(sorted(measurements, key=by), by):
        group = tuple(listed)
        yield Dataset(path, group[0].environment, group)


def export_dataset(measurements: Iterable[Measurement], folder: Path) -> tuple[Exchanged, ...]:
    """``measurements`` as datasets under ``folder``, by device and environment."""
    written = []
    for one in by_environment(measurements, folder):
        path = folder / slug(one.environment) / one.environment.identity
        make_folder(path)
        rows = sorted(one.measurements, key=attrgetter("key", "created", "uid"))
        lines = "".join(json.dumps(_row(row), sort_keys=True) + "\n" for row in rows)
        write_whole(path / ROWS, gzip.compress(lines.encode(), mtime=0))
        written.append(Exchanged(str(path), one.environment.device, len(rows)))
    return tuple(written)


def slug(environment: Environment) -> str:
    """A folder's name for an environment's device: h100-sxm, or what is printable of a name that is not known."""
    if environment.accelerator:
        return environment.accelerator.name
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in environment.device.lower()).split())


def _row(one: Measurement) -> Values:
    """What is shared of a row: the card as a hash of its number, and of its host the facts that times depend on."""
    row, environment = one.row(), one.environment
    card = hashlib.sha256(environment.uuid.encode()).hexdigest()[:12] if environment.uuid else None
    host = {key: environment.host.get(key) for key in OF_HOST}
    return {name: row[name] for name in _SHARED} | {"environment": {**row["environment"], "uuid": card, "host": host}}


def read_datasets(folder: Path) -> tuple[Dataset, ...]:
    """Every dataset under ``folder``; InputError where there is none, or where a row is not as it is written."""
    try:
        found = sorted(folder.rglob(ROWS)) if folder.is_dir() else []
    except OSError as error:  # a folder below that comes and goes (/proc), or cannot be read
        raise InputError(f"cannot be read: {error.strerror}", where=str(folder)) from None
    refuse(not found, f"expected a folder of datasets ({ROWS})", where=str(folder))
    return tuple(chain.from_iterable(map(_read, found)))


def _read(path: Path) -> Iterator[Dataset]:
    where = str(path)
    refuse(not path.is_file(), "cannot be read: expected a file", where=where)  # a pipe may never end
    rows = decoded(unpacked(where), where).rpartition("\n")[0].split("\n")
    return by_environment(read_export(rows, where), path.parent)


def import_dataset(dataset: Dataset, store: Store) -> Exchanged:
    """Add to ``store`` the rows of ``dataset`` that can be true and are not there; what becomes of it."""
    device, rows = dataset.environment.accelerator, dataset.measurements
    notes = () if device else ("no data sheet of this device is known: rates were held against no peak",)
    ours = [one for one in store.measurements() if one.environment.identity == dataset.environment.identity]
    samples, known = {_samples(one) for one in ours if one.ok}, {one.uid for one in ours}
    control, theirs = control_median(rows), {one.uid for one in rows}
    there_s = control_median(one for one in ours if one.uid not in theirs)
    off = control / there_s - 1 if control and there_s else 0.0
    good = []
    refused = []
    wanted = {one.uid: one for one in rows if one.uid not in known}.values()
    for one in wanted:
        said = objection(one, device, control) or _unlike(one, off, samples)
        if said is None:
            samples.add(_samples(one))
            good.append(one)
        else:
            refused.append((one.key, said))
    there = len(rows) - len(wanted)
    return Exchanged(str(dataset.path), dataset.environment.device, store.add(good), there, tuple(refused), notes)


def import_rows(path: str, rows: Sequence[Measurement], store: Store) -> Exchanged:
    """Add to ``store`` the ``rows`` of an export or of another store that their device can do; what becomes of them."""
    refused = {
        one.uid: (one.key, why)
        for one in rows
        if one.ok and (why := first_of(_limits(one, one.environment.accelerator)))
    }
    added = store.add(one for one in rows if one.uid not in refused)
    return Exchanged(path, "", added, len(rows) - len(refused) - added, tuple(refused.values()))


def _unlike(one: Measurement, off: float, samples: set[tuple[str, bytes]]) -> str | None:
    """Why ``one`` does not go with what the store has: ``off``, its device's control shape; ``samples`` there."""
    if abs(off) > CONTROL_ROOM:
        return f"control shape off by {off:+.0%} from what the store has of this device"
    if one.ok and _samples(one) in samples:
        return "duplicate: the same samples under another name"
    return None


def _samples(one: Measurement) -> tuple[str, bytes]:
    return one.key, one.samples.tobytes()


#: Timing's own error: a rate so much over a limit is not over it.
ROOM = 0.02
#: Where a row says no clock: boards run above the boost clock of their data sheet by up to this much.
CLOCK_ROOM = 0.10
#: The control shape's time while a row was measured, against its median over the dataset: beyond this the device was in
#: another state (shared, hot, throttled) than for the others.
CONTROL_ROOM = 0.10
#: A time that its own samples do not give, relative.
STATISTICS_ROOM = 1e-3


def objection(one: Measurement, device: Device | None, control_s: float | None) -> str | None:
    """Why ``one`` cannot stand, in a few words, or None. ``device`` None: its limits are not known and not asked.

    ``control_s``: the control shape's median over the rows that ``one`` belongs to.
    """
    return first_of(chain(_limits(one, device), _objections(one, control_s))) if one.ok else None


def _limits(one: Measurement, device: Device | None) -> Iterator[str]:
    """Why no device like ``device`` gives such a row."""
    seconds = one.seconds or math.inf
    if device:
        peak = device.peak_flops.get(str(one.description.get("dtype")), math.inf)
        clock, published = one.clocks.get("sm_mhz"), device.compute.clock_mhz
        known = isinstance(clock, int | float) and published
        # A row's own word for its clock is no proof of more than boards run at.
        over = min(1 + CLOCK_ROOM, max(1.0, clock / published)) if known else 1 + CLOCK_ROOM  # type: ignore[operator]
        rate, limit = one.flops / seconds, peak * over * (1 + ROOM)
        if rate > limit:
            yield f"rate above the peak: {rate / 1e12:.4g} of {limit / 1e12:.4g} TFLOPS"
        # Products may keep what they write in the cache; a kernel that only moves bytes is timed past it.
        rate, limit = one.bytes / seconds, device.memory.bandwidth_bytes_per_s * (1 + ROOM)
        if one.description["kind"] == "memory_bound" and rate > limit:
            yield f"bytes above the bandwidth: {rate / 1e9:.4g} of {limit / 1e9:.4g} GB/s"
    found = summarise(one.samples).seconds
    if abs(found / seconds - 1) > STATISTICS_ROOM:
        yield f"its samples give {found:.6g} s"


def _objections(one: Measurement, control_s: float | None) -> Iterator[str]:
    if one.clocks.get("throttle"):
        yield f"throttled: {', '.join(map(str, one.clocks['throttle']))}"
    off = one.control_s / control_s - 1 if one.control_s and control_s else 0.0
    if abs(off) > CONTROL_ROOM:
        yield f"control shape off by {off:+.0%}"


def control_median(measurements: Iterable[Measurement]) -> float | None:
    """The control shape's median seconds over ``measurements``; None where none has it."""
    found = [one.control_s for one in measurements if one.control_s is not None]
    return float(np.median(found)) if found else None
