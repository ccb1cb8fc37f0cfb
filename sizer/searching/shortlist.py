"""Which of a large space's candidates are worth pricing operator by operator: those that the objective likes best.

A hundred thousand candidates are compared by parts: a step is ends and in each layer attention and an MLP or experts,
and the parts of one hidden size are shared by many. What is not such a model (an encoder-decoder) or changes the
workload is listed whole. Either way the objective orders them, on several devices by their worst loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shapes.cost.step import Work, each_value, group_of, schedule_of, stacked, step_parts, with_layers, work
from shapes.device import Device
from shapes.frozen import frozen
from shapes.model import AttentionShape, Block, ModelShape, MoeShape, Stack
from shapes.model.resize import DIMENSIONS, resize
from shapes.operators import Collective, Operator, operators
from shapes.software_stack import GROUPS
from shapes.workload import Workload
from sizer.pricing import Pricer
from sizer.searching.objective import Objective
from sizer.searching.predicting import TimedCandidate, price, timed_operators
from sizer.searching.space import Space

Array = NDArray[np.float64]
Change = Mapping[str, int]
#: So many candidates are priced operator by operator.
EXACT = 256
#: Shares of a decode step in what orders a shortlist for training and serving.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Parts whose operators are priced in one go: one at a time is ten times slower.
BATCH = 256

#: The part that no layer holds: embedding, head and loss.
ENDS = "ends 0"
#: A part of a model and the values of the dimensions it depends on.
Key = tuple[str, tuple[int, ...]]


@frozen
class Estimates:
    """Of each candidate: ``seconds`` by device (rows), at the baseline's tokens; FLOPs, layers and parameters."""

    seconds: Array
    flops: Array
    layers: Array
    parameters: Array


def shortlist(
    space: Space,
    pricers: Sequence[Pricer],
    objective: Objective,
    progress: Callable[[int, int], None] | None = None,
    serving: Workload | None = None,
) -> Sequence[Change]:
    """All candidates of a small space, of a large one ``EXACT`` likely best, the best for each device among them.

    Where they are for ``serving`` too, the likeliest of every weighing of a step of training against one of decoding.
    """
    if len(space.candidates) <= EXACT or space.timed is not None:
        return space.candidates
    found = estimates(space, space.candidates, pricers, progress)
    values = found.seconds * objective.weight(found)
    if serving is None:
        return [space.candidates[index] for index in by_worst_loss(values)[:EXACT]]
    served = replace(space, workload=serving, as_run=None)
    decode = estimates(served, space.candidates, pricers).seconds * objective.weight(found)
    orders = [np.argsort(values[0] ** (1 - share) * decode[0] ** share, kind="stable") for share in SHARES]
    taken = dict.fromkeys(int(order[place]) for place in range(len(orders[0])) for order in orders)
    return [space.candidates[index] for index in list(taken)[:EXACT]]


def by_worst_loss(values: Array) -> list[int]:
    """Candidates (columns) by their worst loss against the best of each device (row), after those best ones.

    >>> by_worst_loss(np.array([[2.0, 1.0, 1.4, 1.1], [1.0, 9.0, 1.4, 3.0]]))
    [1, 0, 2, 3]
    """
    losses = (values / values.min(axis=1, keepdims=True)).max(axis=0)
    # The losses of the rest are against the best on each device: it has to be priced too.
    return list(dict.fromkeys([*values.argmin(axis=1).tolist(), *np.argsort(losses, kind="stable").tolist()]))


def estimates(
    space: Space,
    changes: Sequence[Change],
    pricers: Sequence[Pricer],
    progress: Callable[[int, int], None] | None = None,
) -> Estimates:
    """What ``changes`` come to on each pricer's device."""
    if not _is_decoder(space):
        return _one_by_one(space, changes, pricers, progress)
    parts = _Parts(space, pricers[0].device)
    terms = [parts.terms(change) for change in changes]
    keys = {key: place for place, key in enumerate(dict.fromkeys(key for row in terms for _, key in row))}
    wanted = list(keys)
    # A row for each device: what its parts take.
    taken: list[list[Work]] = [[] for _ in pricers]
    flops: list[float] = []
    for start in range(0, len(wanted), BATCH):
        listed = [tuple(parts.operators(key)) for key in wanted[start : start + BATCH]]
        flops += [float(sum(operator.flops * operator.count for operator in some)) for some in listed]
        for row, pricer in zip(taken, pricers, strict=True):
            row.extend(work(step.operators, step.costs) for step in pricer.steps(listed))
        if progress is not None:
            progress(len(changes) * min(start + BATCH, len(wanted)) // len(wanted), len(changes))
    counts = np.array([[count for count, _ in row] for row in terms], dtype=np.float64)
    places = np.array([[keys[key] for _, key in row] for row in terms])
    # Of the layers a stage runs its share.
    shares = np.array([1 if key[0] == ENDS else 1 / space.workload.p for _, key in terms[0]])

    def total(values: Array) -> Array:
        added: Array = (values[places] * counts * shares).sum(axis=1)
        return added

    whole = np.array([parts.parameters(key) for key in wanted], dtype=np.float64)
    parameters = (whole[places] * counts).sum(axis=1)
    seconds = []
    for row, pricer in zip(taken, pricers, strict=True):
        layers_and_ends, once = each_value(stacked(row), total), parts.once(parameters, pricer)
        sent = {**layers_and_ends.communication, **once.communication}
        stage = replace(layers_and_ends, communication=sent, update_s=once.update_s)
        seconds.append(_seconds(space, stage, pricer))
    own = space.model.layers
    layers = np.array([change.get("layers", own) for change in changes], dtype=np.float64)
    return Estimates(np.stack(seconds), total(np.array(flops)), layers, parameters)


def _seconds(space: Space, stage: Work, pricer: Pricer) -> Array:
    """Seconds of the steps that ``stage`` holds, a value for each; pipeline stages are taken as alike."""
    if space.as_run is None or pricer.stack is None:
        sent = [stage.communication[group] for group in GROUPS if group in stage.communication]
        alone: Array = sum([*stage.layers.seconds.values(), *stage.ends.seconds.values(), *sent], stage.update_s)
        return alone
    workload = space.as_run(space.workload, pricer.device)
    whole = with_layers(stage, workload.p) if workload.p > 1 else stage
    stack = pricer.stack.without_overlap(workload.exposed)
    parts = step_parts(stage, whole, schedule_of(workload), stack, pricer.device)
    seconds: Array = sum(parts.values(), np.zeros(len(stage.update_s)))
    return seconds


def _one_by_one(
    space: Space, changes: Sequence[Change], pricers: Sequence[Pricer], progress: Callable[[int, int], None] | None
) -> Estimates:
    rows: list[list[TimedCandidate]] = [[] for _ in pricers]
    for start in range(0, len(changes), BATCH):
        for row, pricer in zip(rows, pricers, strict=True):
            row.extend(price(space, changes[start : start + BATCH], pricer))
        if progress is not None:
            progress(len(rows[0]), len(changes))
    seconds = np.array([[one.timing.seconds for one in row] for row in rows])
    flops, layers, parameters = (
        np.array([getattr(one, name) for one in rows[0]], dtype=np.float64)
        for name in ("flops", "layers", "parameters")
    )
    return Estimates(seconds, flops, layers, parameters)


def _is_decoder(space: Space) -> bool:
    """Whether candidates are changes of a decoder's dimensions; a pipeline's stages are alike where all layers are."""
    blocks = space.model.main.kinds
    alike = space.workload.p == 1 or len(blocks) == 1
    return "hidden" in space.candidates[0] and len(space.model.stacks) == 1 and alike


#: A part of a decoder -> the dimensions it depends on, as far as a space changes them.
_DEPENDS = {
    "attention": ("hidden", "heads", "head_dim", "kv_heads", "q_lora_rank", "kv_lora_rank", "window"),
    "mlp": ("hidden", "d_ff"),
    "experts": ("hidden", "experts", "top_k", "expert_d_ff", "shared_d_ff"),
    "ends": ("hidden", "vocab"),
}


class _Parts:
    """Attention, MLP or experts of each kind of layer, and ends, each once for the dimensions it depends on."""

    def __init__(self, space: Space, device: Device) -> None:
        assert all(name in DIMENSIONS for name in space.candidates[0])
        self._space = space
        workload = space.workload if space.as_run is None else space.as_run(space.workload, device)
        #: A part is of one layer, which no pipeline cuts.
        self._workload = replace(workload, p=1, vpp=1)
        changed = space.candidates[0]  # all of a space change the same dimensions
        self._names = {kind: [name for name in names if name in changed] for kind, names in _DEPENDS.items()}
        #: Of each layer count the parts that make it up, and how many of each.
        self._layers: dict[int, Sequence[tuple[int, str, list[str]]]] = {}

    def terms(self, change: Change) -> Sequence[tuple[int, Key]]:
        """(how many, part) that make up a candidate."""
        layers = change.get("layers", self._space.model.layers)
        if layers not in self._layers:
            self._layers[layers] = self._parts_of(layers)
        return [(count, (part, tuple([change[name] for name in names]))) for count, part, names in self._layers[layers]]

    def _parts_of(self, layers: int) -> Sequence[tuple[int, str, list[str]]]:
        """The parts of so many layers: kind and place of the baseline's first layer that has it ("experts 1")."""
        own = self._space.model.main.blocks
        counts = Counter({part: 0 for block in own for part in self._parts(block)})  # all candidates have the same
        for block in resize(self._space.model, layers=layers).main.blocks:
            counts.update(dict.fromkeys(self._parts(block), block.count))
        counts[ENDS] = 1
        return [(count, part, self._names[part.split()[0]]) for part, count in counts.items()]

    def _parts(self, block: Block) -> Iterator[str]:
        own = self._space.model.main.blocks
        for kind, part_of in (("attention", _attention), (_kind(block), _mlp)):
            place = next(index for index, one in enumerate(own) if part_of(one) == part_of(block))
            yield f"{kind} {place}"

    def operators(self, key: Key) -> Iterator[Operator]:
        kind, decode = key[0].split()[0], self._workload.decode
        workload = self._workload if kind == "experts" or decode else replace(self._workload, e=1)
        for operator in operators(self._model(key), workload):
            if _once(operator) or operator.name.startswith("layers.") != (kind != "ends"):
                continue
            # A decode step is of whole layers: the part is picked out of one.
            if not decode or kind == "ends" or _is_mlp(operator) == (kind != "attention"):
                yield operator

    def parameters(self, key: Key) -> int:
        # Nothing of a decode step goes with them.
        return 0 if self._workload.decode else self._model(key).parameters

    def once(self, parameters: Array, pricer: Pricer) -> Work:
        """What a step does once: the optimizer and the gradients' collectives are bound by bytes, and go with the
        parameters."""
        step = pricer.step([one for one in timed_operators(self._space, self._space.baseline) if _once(one)])
        share = parameters / self._space.model.parameters
        return each_value(work(step.operators, step.costs), lambda value: value * share)

    def _model(self, key: Key) -> ModelShape:
        kind, place = key[0].split()
        attention = self._space.model.attention
        changes = dict(zip(self._names[kind], key[1], strict=True))
        if isinstance(attention, AttentionShape):
            changes = {"head_dim": attention.head_dim, **changes}  # named, it does not follow heads and hidden
        # What follows a dimension (a rotary share, a projection before the head) follows as it does in the candidate.
        model = resize(self._space.model, **changes)
        block = model.main.blocks[int(place)]
        if self._workload.decode:
            return replace(model, stacks=(replace(model.main, blocks=(replace(block, count=1),)),))
        if kind == "ends":
            return replace(model, stacks=(replace(model.main, blocks=(Block(None, None, norms=0),)),))
        part = _attention(block) if kind == "attention" else _mlp(block)
        return ModelShape("part", (Stack("decoder", model.hidden, (part,), final_norm=0),), vocab=0, head=False)


def _attention(block: Block) -> Block:
    return replace(block, mlp=None, count=1)


def _mlp(block: Block) -> Block:
    return Block(None, block.mlp, norms=0)


def _is_mlp(operator: Operator) -> bool:
    return ".mlp." in operator.name or ".moe." in operator.name


def _kind(block: Block) -> str:
    return "experts" if isinstance(block.mlp, MoeShape) else "mlp"


def _once(operator: Operator) -> bool:
    """The update, and what data parallelism sends."""
    return operator.phase == "optimizer" or (isinstance(operator, Collective) and group_of(operator) == "data")
