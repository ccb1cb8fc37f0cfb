"""Predicted times of a space's candidates, fast enough for a hundred thousand of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shapes.device import Device
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.operators import Elementwise, Operator, operators
from shapes.resize import DIMENSIONS, resize
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


def shortlist(
    space: Space, pricer: Pricer, progress: Callable[[int, int], None] | None = None
) -> Sequence[Mapping[str, int]]:
    """The candidates worth pricing exactly: all of a small space, of a large one those its parts make fastest.

    By parts a step is L (attention + MLP) + ends; the parts of one hidden size are shared by many candidates.
    """
    total = len(space.candidates)
    if total <= EXACT or space.part is not anything or len(space.model.stacks) > 1:
        return space.candidates
    parts = _Parts(space, pricer)
    seconds = []
    for index, change in enumerate(space.candidates):
        seconds.append(parts.seconds(change))
        if progress is not None and index % 1000 == 0:
            progress(index, total)
    order = sorted(range(total), key=seconds.__getitem__)
    return [space.candidates[index] for index in order[:EXACT]]


class _Parts:
    """Seconds of attention, MLP and ends, each priced once for the dimensions it depends on."""

    def __init__(self, space: Space, pricer: Pricer) -> None:
        self._space, self._pricer = space, pricer
        self._known: dict[tuple[object, ...], float] = {}

    def seconds(self, change: Mapping[str, int]) -> float:
        hidden, layers = change["hidden"], change.get("layers", self._space.model.layers)
        attention = self._part("attention", hidden, change["heads"], change["head_dim"], change["kv_heads"])
        mlp = self._part("mlp", hidden, change["d_ff"])
        ends = self._part("ends", hidden, change.get("vocab", self._space.model.vocab))
        return layers * (attention + mlp) + ends

    def _part(self, *key: object) -> float:
        if key not in self._known:
            found = operators(self._model(*key), self._space.workload)
            kept = [op for op in found if not (isinstance(op, Elementwise) and op.what == "optimizer")]
            if key[0] != "ends":
                kept = [op for op in kept if op.name.startswith("layers.")]
            else:
                kept = [op for op in kept if not op.name.startswith("layers.")]
            self._known[key] = self._pricer.step(kept).seconds
        return self._known[key]

    def _model(self, *key: object) -> ModelShape:
        kind, hidden, *rest = key
        sizes = [int(str(size)) for size in rest]
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
        stack = Stack("decoder", int(str(hidden)), (part,))
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
