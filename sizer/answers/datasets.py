"""What `sizer store list`, `export` and `compare` answer; two independent submissions of one device compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.json_form import AsJson
from shapes.measure.dataset import Dataset, control_median, read_datasets, slug
from shapes.measure.record import Measurement

#: Submissions agree where their median ratio is this near 1 and nine of ten rows are this near the median ratio: the
#: error of the best held-out predictions is 5%, and rows that differ by more would decide what a fit says.
MEDIAN_ROOM, ROW_ROOM = 0.02, 0.05
#: Rows that are listed: those farthest from the median ratio.
LISTED = 10
#: Fewer rows in common say nothing of two submissions.
LEAST = 20


@frozen
class Pair:
    """One job in both: seconds of each, and how far their ratio is from the median ratio."""

    key: str
    first_s: float
    second_s: float
    off: float


@frozen
class Compared(AsJson):
    """Two submissions of one device. ``ratio``: second over first, median and 5th to 95th percentile over the rows.

    ``control``: the control shape's ratio, None where one lacks it. ``overlap``: share of rows whose intervals overlap.
    ``differences``: of the environments, "driver": ("550", "570"). ``agree`` None: too few rows in common.
    """

    device: str
    folders: tuple[str, str]
    rows: tuple[int, int]
    common: int
    ratio: tuple[float, float, float] | None
    control: float | None
    overlap: float | None
    same_cards: bool
    differences: Mapping[str, tuple[str, str]]
    farthest: tuple[Pair, ...]
    agree: bool | None


def compare_datasets(first: Path, second: Path) -> tuple[Compared, ...]:
    """Every device that both folders hold, its environments joined; InputError where they share none."""
    groups = [_by_device(read_datasets(folder)) for folder in (first, second)]
    shared = [name for name in groups[0] if name in groups[1]]
    if not shared:
        devices = [", ".join(group) for group in groups]
        raise InputError(
            f"expected a device that both hold: {devices[0]} in one, {devices[1]} in the other", key="compare"
        )
    return tuple(_compared(name, groups[0][name], groups[1][name], (str(first), str(second))) for name in shared)


def _by_device(datasets: Sequence[Dataset]) -> dict[str, list[Dataset]]:
    found: dict[str, list[Dataset]] = {}
    for one in datasets:
        found.setdefault(slug(one.environment), []).append(one)
    return found


def _compared(name: str, first: list[Dataset], second: list[Dataset], folders: tuple[str, str]) -> Compared:
    rows, other = ({one.key: one for one in _rows(datasets) if one.ok} for datasets in (first, second))
    control, other_control = (control_median(_rows(datasets)) for datasets in (first, second))
    keys = sorted(rows.keys() & other.keys())
    pairs = [(rows[key], other[key]) for key in keys]
    seconds = np.array([(a.seconds or 1.0, b.seconds or 0.0) for a, b in pairs]).reshape(-1, 2)
    ratios = seconds[:, 1] / seconds[:, 0]
    low, middle, high = np.percentile(ratios, (5, 50, 95)).tolist() if keys else (0.0, 1.0, 0.0)
    off = ratios / middle - 1
    return Compared(
        name,
        folders,
        (len(rows), len(other)),
        len(keys),
        (middle, low, high) if keys else None,
        other_control / control if control and other_control else None,
        float(np.mean([_overlap(a, b) for a, b in pairs])) if keys else None,
        bool(_cards(first) & _cards(second)),
        _differences(first[0], second[0]),
        tuple(
            Pair(keys[i], float(seconds[i, 0]), float(seconds[i, 1]), float(off[i]))
            for i in np.argsort(-np.abs(off))[:LISTED]
        ),
        _agree(middle, off),
    )


def _agree(middle: float, off: NDArray[np.float64]) -> bool | None:
    if len(off) < LEAST:
        return None
    return abs(middle - 1) <= MEDIAN_ROOM and float(np.quantile(np.abs(off), 0.9)) <= ROW_ROOM


def _cards(datasets: Sequence[Dataset]) -> set[str]:
    return {card for data in datasets for card in data.sidecar.get("cards", ())}


def _rows(datasets: Sequence[Dataset]) -> list[Measurement]:
    """Of all datasets, the newest last."""
    return sorted((one for data in datasets for one in data.measurements), key=lambda one: one.created)


def _overlap(a: Measurement, b: Measurement) -> bool:
    return (a.low or 0.0) <= (b.high or 0.0) and (b.low or 0.0) <= (a.high or 0.0)


def _differences(first: Dataset, second: Dataset) -> dict[str, tuple[str, str]]:
    mine, theirs = ({**one.environment.facts, "power limit (W)": _power_limit(one)} for one in (first, second))
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    return {name: (str(mine.get(name)), str(theirs.get(name))) for name in names}


def _power_limit(dataset: Dataset) -> float | None:
    limit: Mapping[str, float] = (dataset.sidecar.get("clocks") or {}).get("power_limit_w") or {}
    return limit.get("median")


@frozen
class Stored:
    """The measurements chosen, in the order they were made, of ``total`` in the store."""

    measurements: tuple[Measurement, ...]
    total: int

    def to_dict(self) -> dict[str, Any]:
        return {"measurements": [one.row() for one in self.measurements]}


@frozen
class Comparison(AsJson):
    """What `sizer store compare` answers, a device each."""

    devices: tuple[Compared, ...]
