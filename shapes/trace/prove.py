"""Whether a recognised ``ModelShape`` is the model: parameters to the digit, and the products and attention cores that

torch ran, forward and backward, with their element types, at more than one length of the sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from torch import nn

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.model import Block, ModelShape
from shapes.operators import operators
from shapes.operators.types import Attention, Gemm, GroupedGemm, Operator
from shapes.trace.config import answers_for, build, load_config, quietly
from shapes.trace.dimensions import named_dimensions, positions
from shapes.trace.graph import Graph, Node, record
from shapes.trace.guards import offline
from shapes.trace.inputs import example_inputs
from shapes.trace.recognise import Recognised, recognise
from shapes.trace.run import masks_where_read, run
from shapes.workload import Workload

#: A product or core as both sides give it.
Key = tuple[object, ...]


def products(found: Iterable[Operator]) -> Counter[Key]:
    """The products with a weight, grouped products and fused attention cores, counted.

    Products of activations alone are left out: those of a recurrence's reference loop are not what its kernels run.
    So are depthwise convolutions, which are bound by memory.
    """
    counted: Counter[Key] = Counter()
    for one in found:
        match one:
            case GroupedGemm():
                key: Key = (one.phase, "grouped", one.groups, one.m, one.n, one.k, one.ragged, one.dtype)
            case Gemm() if one.kind != "bmm" and one.batch == 1:
                key = (one.phase, one.kind, one.batch, one.m, one.n, one.k, one.dtype)
            case Attention():
                key = _core(one)
            case _:
                continue
        counted[key] += one.count
    return counted


def _core(one: Attention) -> Key:
    sizes = (one.batch, one.heads, one.kv_heads, one.q_len, one.kv_len, one.head_dim, one.v_head_dim)
    # A window as long as the sequence hides nothing.
    window = one.window if one.window is not None and one.window < one.kv_len else None
    return (one.phase, *sizes, one.causal, window, one.dtype)


def run_products(graph: Graph) -> Counter[Key]:
    """The same of a graph: what the forward pass ran."""
    counted: Counter[Key] = Counter()
    for node in graph.nodes:
        if node.kind == "grouped":
            counted["forward", "grouped", node.batch, node.m, node.n, node.k, "m", node.dtype] += 1
        elif node.core is not None:
            counted[_core(node.core)] += 1
        elif node.weight is not None and node.kind in ("gemm", "conv"):
            counted["forward", node.kind, node.batch, node.m, node.n, node.k, node.dtype] += 1
    return counted


def differences(
    model: ModelShape, run: Counter[Key], workload: Workload, phases: tuple[str, ...] = ("forward",)
) -> list[str]:
    """What torch ran and ``model`` does not say, and the other way round, in the phases given; one line each."""
    try:
        said = products(operators(model, workload))
    except InputError as error:
        return [str(error)]
    said = Counter({key: count for key, count in said.items() if key[0] in phases})
    run = Counter({key: count for key, count in run.items() if key[0] in phases})
    lines = [f"torch runs {_line(key)}, {count} more" for key, count in (run - said).items()]
    return lines + [f"torch does not run {_line(key)}, {count} times" for key, count in (said - run).items()]


def _line(key: Key) -> str:
    return " ".join(map(str, key))


@frozen
class Proof:
    """What a class was recognised as. ``model``: proven to be the model (None: something of it was not understood).

    ``unproven``: what was not understood, module -> why; ``share``: of the forward pass's FLOPs, module -> part.
    ``parameters``: of what ran; ``held``: modules with parameters that did not run (towers for images). ``keys``:
    dimension -> its key in the configuration; ``longest``: the longest sequence that it names.
    """

    model: ModelShape | None
    unproven: Mapping[str, str]
    share: Mapping[str, float]
    parameters: int
    held: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    longest: int | None = None


#: Lengths of the sequence at which a shape has to be the model: sizes that only one length gives differ at the other.
LENGTHS = (64, 96)


@offline()
@quietly()
def prove_config(config: object) -> Proof:
    """The transformers class that ``config`` names, recognised and proven on the meta device in bf16.

    InputError where the class cannot be built or run without data.
    """
    settings, where = load_config(config)
    model, _ = build(settings, where, attention="auto", dtype="bf16", architecture=None, experts=None)
    proof = prove(model, settings, "bf16")
    return replace(proof, keys=named_dimensions(settings)[1], longest=positions(settings))


def prove(module: nn.Module, settings: Any, dtype: str) -> Proof:
    """``module`` of transformers, on the meta device, recognised and proven at each of ``LENGTHS``."""
    seen: Recognised | None = None
    for s in LENGTHS:
        inputs = example_inputs(module, b=1, s=s)
        graph = _graph(module, settings, inputs, s)
        found = recognise(graph, module, settings.model_type, s)
        parameters = sum(module.get_parameter(path).numel() for path in graph.used)
        problems = dict(found.left_over)
        if found.model is not None and not problems:
            workload = Workload(b=1, s=s, dtype=dtype, phase="infer")
            problems |= _problems(found, seen, parameters, differences(found.model, run_products(graph), workload))
        if problems:
            return Proof(None, problems, shares(graph, problems), parameters, found.held)
        seen = found
    assert seen is not None
    assert seen.model is not None
    backward = _backward(module, settings, seen.model, dtype)
    if backward:
        return Proof(None, {"": backward[0]}, {}, parameters, seen.held)
    return Proof(seen.model, {}, {}, parameters, seen.held)


def _problems(found: Recognised, before: Recognised | None, parameters: int, forward: Sequence[str]) -> dict[str, str]:
    """Why a shape without anything left over is not the model yet."""
    assert found.model is not None
    if before is not None and before.model != found.model:
        return {"": f"it is another shape at {LENGTHS[1]} tokens than at {LENGTHS[0]}"}
    if found.model.parameters != parameters:
        return {"": f"{found.model.parameters:,} parameters recognised of {parameters:,}"}
    return {"": forward[0]} if forward else {}


def _graph(module: nn.Module, settings: Any, inputs: Mapping[str, Any], tokens: int) -> Graph:
    return masks_where_read(lambda masks: record(module, inputs, answers=answers_for(settings, tokens), masks=masks))


def _backward(module: nn.Module, settings: Any, model: ModelShape, dtype: str) -> list[str]:
    s = LENGTHS[0]
    inputs = example_inputs(module, b=1, s=s)
    options: dict[str, Any] = {"train": True, "model_type": settings.model_type, "config": settings}
    traced = masks_where_read(
        lambda masks: run(module, (), inputs, answers=answers_for(settings, s), masks=masks, **options)
    )
    phases = ("forward", "dgrad", "wgrad")
    # The windows are those of the masks, proven forward: not every class tells its core of them.
    ran = [replace(one, window=None) if isinstance(one, Attention) else one for one in traced.operators]
    return differences(_without_windows(model), products(ran), Workload(b=1, s=s, dtype=dtype), phases)


def _without_windows(model: ModelShape) -> ModelShape:
    def seen(block: Block) -> Block:
        return replace(block, attention=replace(block.attention, window=None)) if block.attention else block

    return replace(model, stacks=tuple(replace(one, blocks=tuple(map(seen, one.blocks))) for one in model.stacks))


def shares(graph: Graph, problems: Mapping[str, str]) -> dict[str, float]:
    """The part of a forward pass's FLOPs that each module not understood has; "" is the whole."""
    total = sum(map(_flops, graph.nodes)) or 1
    return {path: sum(_flops(node) for node in graph.nodes if _within(node, path)) / total for path in problems}


def _flops(node: Node) -> int:
    if node.core is not None:
        return node.core.flops
    return 2 * node.m * node.n * node.k * (node.batch if node.kind in ("gemm", "bmm", "conv") else 1)


def _within(node: Node, path: str) -> bool:
    return not path or any(name == path or name.startswith(f"{path}.") for name in (node.where, node.weight or ""))
