"""Predicted times of a space's candidates, fast enough for a hundred thousand of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.resize import DIMENSIONS, resize
from shapes.operators import Elementwise, Gemm, Operator, operators
from shapes.timing import Timing
from shapes.workload import Workload
from sizer.pricing import Pricer
from sizer.searching.space import Space, anything

#: Of a large space so many candidates are priced operator by operator; the rest only by parts, for their order.
EXACT = 256


@dataclass(frozen=True, slots=True)
class Priced:
    """A candidate with its time at the baseline's tokens, its FLOPs and its model."""

    change: Mapping[str, int]
    timing: Timing
    flops: int
    model: ModelShape
    workload: Workload


def rebuilt(space: Space, change: Mapping[str, int]) -> tuple[ModelShape, Workload]:
    """The space's model and workload with a candidate's change."""
    dims = {key: value for key, value in change.items() if key in DIMENSIONS}
    rest = {key: value for key, value in change.items() if key not in DIMENSIONS}
    model = resize(space.model, **dims) if dims else space.model
    return model, replace(space.workload, **rest) if rest else space.workload  # type: ignore[arg-type]


def timed_operators(space: Space, change: Mapping[str, int]) -> tuple[Operator, ...]:
    """The operators that a candidate's time consists of."""
    model, workload = rebuilt(space, change)
    found = space.operators_of(model, workload) if space.operators_of else operators(model, workload)
    return tuple(operator for operator in found if space.part(operator))


def price(space: Space, change: Mapping[str, int], pricer: Pricer) -> Priced:
    """A candidate priced operator by operator, scaled to the baseline's tokens."""
    model, workload = rebuilt(space, change)
    step = pricer.step(timed_operators(space, change))
    scale = space.workload.tokens / workload.tokens
    timing = Timing(step.seconds * scale, step.low * scale, step.high * scale, step.source)
    return Priced(change, timing, round(step.flops * scale), model, workload)


def tile_of(space: Space, pricer: Pricer) -> int | None:
    """The searched dimension's tile: columns of C a thread block computes, over all shards."""
    if len(space.baseline) != 1:
        return None
    (value,), shards = space.baseline.values(), space.workload.t
    step = pricer.step(timed_operators(space, space.baseline))
    for operator, cost in zip(step.operators, step.costs, strict=True):
        columns = (value // shards, -(-value // shards))
        if isinstance(operator, Gemm) and operator.phase == "forward" and cost.tile and operator.n in columns:
            return cost.tile[1] * shards
    return None


def shortlist(
    space: Space, pricer: Pricer, progress: Callable[[int, int], None] | None = None
) -> Sequence[Mapping[str, int]]:
    """The candidates worth pricing exactly: all of a small space, of a large one those its parts make fastest.

    By parts a step is L (attention + MLP) + ends; the parts of one hidden size are shared by many candidates.
    """
    total = len(space.candidates)
    if total <= EXACT or space.part is not anything or len(space.model.stacks) > 1:
        return space.candidates
    seconds = _Parts(space, pricer, progress).seconds(space.candidates)
    order = sorted(range(total), key=seconds.__getitem__)
    return [space.candidates[index] for index in order[:EXACT]]


#: A part of a model and the dimensions it depends on.
Key = tuple[str, int, tuple[int, ...]]
#: Parts whose operators are priced in one go.
BATCH = 256


class _Parts:
    """Seconds of attention, MLP and ends, each priced once for the dimensions it depends on."""

    def __init__(self, space: Space, pricer: Pricer, progress: Callable[[int, int], None] | None = None) -> None:
        self._space, self._pricer, self._progress = space, pricer, progress

    def seconds(self, changes: Sequence[Mapping[str, int]]) -> list[float]:
        """Seconds of each candidate, optimizer aside."""
        keys = [self._keys(change) for change in changes]
        wanted = list(dict.fromkeys(key for row in keys for key in row))
        known: dict[Key, float] = {}
        for start in range(0, len(wanted), BATCH):
            some = wanted[start : start + BATCH]
            known.update(zip(some, self._price(some), strict=True))
            if self._progress is not None:
                self._progress(len(changes) * min(start + BATCH, len(wanted)) // len(wanted), len(changes))
        layers = (change.get("layers", self._space.model.layers) for change in changes)
        return [
            count * (known[attention] + known[mlp]) + known[ends]
            for count, (attention, mlp, ends) in zip(layers, keys, strict=True)
        ]

    def _keys(self, change: Mapping[str, int]) -> tuple[Key, Key, Key]:
        hidden = change["hidden"]
        return (
            ("attention", hidden, (change["heads"], change["head_dim"], change["kv_heads"])),
            ("mlp", hidden, (change["d_ff"],)),
            ("ends", hidden, (change.get("vocab", self._space.model.vocab),)),
        )

    def _price(self, keys: Sequence[Key]) -> list[float]:
        """Each part's seconds; their operators are priced together, because one at a time is ten times slower."""
        owners: list[int] = []
        found: list[Operator] = []
        for index, key in enumerate(keys):
            for operator in operators(self._model(*key), self._space.workload):
                optimizer = isinstance(operator, Elementwise) and operator.what == "optimizer"
                if not optimizer and operator.name.startswith("layers.") == (key[0] != "ends"):
                    owners.append(index)
                    found.append(operator)
        step = self._pricer.step(found)
        seconds = [0.0] * len(keys)
        for owner, operator, cost in zip(owners, step.operators, step.costs, strict=True):
            seconds[owner] += cost.seconds * operator.count
        return seconds

    def _model(self, kind: str, hidden: int, sizes: tuple[int, ...]) -> ModelShape:
        block = self._space.model.main.blocks[0]
        attention, mlp = block.attention, block.mlp
        assert isinstance(attention, AttentionShape)
        assert isinstance(mlp, MlpShape)
        vocab, head = 0, False
        if kind == "attention":
            heads, dim, kv = sizes
            part = replace(
                block, mlp=None, count=1, attention=replace(attention, heads=heads, head_dim=dim, kv_heads=kv)
            )
        elif kind == "mlp":
            part = Block(None, replace(mlp, width=sizes[0]), norms=0)
        else:
            part, vocab, head = Block(None, None, norms=0), sizes[0], True
        stack = Stack("decoder", hidden, (part,))
        return ModelShape("part", (stack,), vocab=vocab, head=head)


def devices_agree(devices: Sequence[Device], dtype: str) -> None:
    """Raise InputError where a device has no figures for the element type."""
    for device in devices:
        if dtype not in device.peak_flops:
            raise InputError(
                f"{device.name} has no figures for it; it has {', '.join(device.peak_flops)}",
                key="--dtype",
                value=dtype,
            )
