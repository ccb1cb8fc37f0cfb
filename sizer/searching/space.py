"""What is searched: a baseline model and workload, and candidates that change named dimensions of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shapes.device import Device
from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.model import ModelShape
from shapes.operators import Operator, layer_operators
from shapes.workload import MOST_RANKS, Workload

if TYPE_CHECKING:
    from shapes.measure.jobs import PartName  # loads what measures, which a prediction has no use for


#: Longest range that is searched: a typing error must not fill the memory.
MOST_VALUES = 1_000_000

#: What ``keep`` holds as it is -> whether candidates (arrays) do, of the named dimensions of a model and theirs.
KEEPABLE: Mapping[str, Callable[[Mapping[str, int], Mapping[str, Any]], Any]] = {
    "head-dim": lambda own, new: own.get("head_dim") == new.get("head_dim"),
    "kv-ratio": lambda own, new: "heads" not in own or new["heads"] * own["kv_heads"] == own["heads"] * new["kv_heads"],
    "layers": lambda own, new: own["layers"] == new["layers"],
}
#: What ``vary`` lets change besides, which is otherwise as in the baseline -> the dimensions it is of.
VARIABLE: Mapping[str, tuple[str, ...]] = {
    "kv-ratio": ("kv_heads",),
    "mla-ranks": ("q_lora_rank", "kv_lora_rank"),
    "mla-heads": ("heads",),
    "window": ("window",),
}


class Candidates(Sequence[Mapping[str, int]]):
    """Changes of the same dimensions, as an array for each: ``columns``. Of a place it is the change there.

    >>> Candidates({"d_ff": np.array([64, 128]), "layers": np.array([2, 1])})[1]
    {'d_ff': 128, 'layers': 1}
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self.columns = columns

    @classmethod
    def of(cls, changes: Sequence[Mapping[str, int]]) -> Candidates:
        """Changes that were made one by one."""
        if isinstance(changes, Candidates):
            return changes
        return cls({name: np.array([change[name] for change in changes]) for name in (changes[0] if changes else ())})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, place: Any) -> Any:
        """The change at a place; the candidates of a slice, of places or of a mask."""
        if isinstance(place, int):
            return {name: int(column[place]) for name, column in self.columns.items()}
        return Candidates({name: column[place] for name, column in self.columns.items()})

    def where(self, conditions: Mapping[str, NDArray[np.bool_]], excluded: Counter[str]) -> Candidates:
        """Those that meet all ``conditions``; what each leaves out that those before it did not is ``excluded``."""
        kept = np.ones(len(self), dtype=bool)
        for reason, condition in conditions.items():
            if left_out := int((kept & ~condition).sum()):
                excluded[reason] += left_out
            kept &= condition
        found: Candidates = self[kept]
        return found

    def equal(self, change: Mapping[str, int]) -> NDArray[np.bool_]:
        """Which of them are this change."""
        return np.asarray(np.all([column == change[name] for name, column in self.columns.items()], axis=0))


@frozen
class Space:
    """``candidates`` are changes of ``model`` (dimensions) or ``workload`` (b, s); of a step's operators those that

    ``timed`` lists are timed (None: all), measured as ``measured_parts`` of the model (None: whole layers and the head;
    none: their matrix products one by one).
    ``as_run``: a workload as a software stack runs it on a device, which then prices whole steps (None: kernels alone
    are added up).
    ``parameters_of``: None: the whole model's. ``operators_of`` replaces the model's own operators (the book's single
    product). ``excluded``: constraint -> how many candidates it left out, in words a person can act on.
    """

    what: str
    model: ModelShape
    workload: Workload
    candidates: Candidates
    baseline: Mapping[str, int]
    timed: Callable[[ModelShape, Workload], Iterable[Operator]] | None = None
    measured_parts: tuple[PartName, ...] | None = None
    as_run: Callable[[Workload, Device], Workload] | None = None
    parameters_of: Callable[[ModelShape], int] | None = None
    operators_of: Callable[[ModelShape, Workload], tuple[Operator, ...]] | None = None
    excluded: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def whole_steps(self) -> bool:
        """Whether what is timed is a whole step, not some of its kernels."""
        return self.timed is None and self.operators_of is None

    @property
    def tokens(self) -> int:
        """Tokens of the baseline that every time is of: a microbatch's, or a global step's where a stack runs it."""
        return self.workload.tokens * (self.workload.accumulation if self.as_run is not None else 1)

    def parameters(self, model: ModelShape) -> int:
        """Parameters of what is searched (an MLP, a model), of one candidate's ``model``."""
        return model.parameters if self.parameters_of is None else self.parameters_of(model)


def layers_named(words: tuple[str, ...], model: ModelShape, workload: Workload) -> Iterator[Operator]:
    """The layers' operators whose names hold one of ``words``: what ``Space.timed`` is of parts of a layer."""
    return (one for one in layer_operators(model, workload) if any(word in one.name for word in words))


@frozen
class Limits:
    """Bounds common to all spaces. ``tolerance``: largest relative change of parameters. ``low``..``high`` bound the

    searched dimension, of which every ``step``-th value is taken (None: the space's own choice; ``misaligned``: every
    one). ``aspect`` bounds h/L and ``head_dims`` names the head dimensions allowed (None: the space's own choice);
    ``seq_lens``: sequence lengths that may take the place of the baseline's (None: none). ``tp_ready``: candidates
    also split over so many tensor-parallel shards (None: over the workload's); ``keep``: names of ``KEEPABLE``, which
    no candidate changes; ``vary``: names of ``VARIABLE``, which are tried halved and doubled.
    """

    tolerance: float = 0.01
    low: int | None = None
    high: int | None = None
    step: int | None = None
    misaligned: bool = False
    aspect: tuple[float, float] | None = None
    head_dims: tuple[int, ...] | None = None
    seq_lens: tuple[int, ...] | None = None
    tp_ready: int | None = None
    keep: tuple[str, ...] | None = None
    vary: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance <= 1:
            raise InputError(
                "expected a share between 0 and 1 (or a percentage up to 100%)", key="--tolerance", value=self.tolerance
            )
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InputError("expected LOW:HIGH with LOW at most HIGH", key="--range", value=f"{self.low}:{self.high}")
        if self.step is not None and self.step < 1:
            raise InputError("expected a positive integer", key="--step", value=self.step)
        if self.aspect is not None and not 0 < self.aspect[0] <= self.aspect[1]:
            raise InputError(
                "expected LOW:HIGH, positive, LOW at most HIGH",
                key="--limit aspect",
                value=f"{self.aspect[0]:g}:{self.aspect[1]:g}",
            )
        for dim in self.head_dims or ():
            positive_int(dim, "--limit head-dim")
        for length in self.seq_lens or ():
            positive_int(length, "--limit seq-lens")
        if self.tp_ready is not None:
            positive_int(self.tp_ready, "--limit tp-ready", maximum=MOST_RANKS)
        for name in self.keep or ():
            if name not in KEEPABLE:
                raise InputError(f"expected some of {', '.join(KEEPABLE)}", key="--limit keep", value=name)
        for name in self.vary or ():
            if name not in VARIABLE or name in (self.keep or ()):
                raise InputError(f"expected some of {', '.join(VARIABLE)}, not kept", key="--limit vary", value=name)

    def shards(self, t: int) -> int:
        """Tensor-parallel shards that candidates split over, of a workload that runs on ``t``."""
        return lcm(t, self.tp_ready or 1)

    def values(self, low: int, high: int, step: int) -> range:
        """Multiples of the step within the range asked for, else within ``low``..``high``."""
        low, high = self.low if self.low is not None else low, self.high if self.high is not None else high
        step = 1 if self.misaligned and self.step is None else self.step or step
        found = range(-(-max(low, 1) // step) * step, high + 1, step)
        if high >= MOST_VALUES and len(found[:MOST_VALUES]) == MOST_VALUES:
            raise InputError(f"expected fewer than {MOST_VALUES} values", key="--range", value=f"{low}:{high}")
        return found


def whole_heads(heads: int, kv_heads: int, t: int) -> bool:
    """Whether ``t`` shards hold whole heads; key/value heads fewer than the shards are copied."""
    return heads % t == 0 and (kv_heads % t == 0 or t % kv_heads == 0)


def nothing_left(what: str, excluded: Mapping[str, int]) -> InputError:
    """The error of a search whose constraints leave no candidate: it names the one that excludes the most."""
    if not excluded:
        return InputError(f"no candidate for {what}: expected a range that holds one", key="--range")
    worst = max(excluded, key=lambda constraint: excluded[constraint])
    return InputError(f"no candidate for {what} is left: {worst} excludes the most ({excluded[worst]})")
