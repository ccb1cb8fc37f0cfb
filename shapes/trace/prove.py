"""Whether a recognised ``ModelShape`` is the model: parameters to the digit, and the products and attention cores that

torch ran, forward and backward, with their element types, at more than one length of the sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.types import Attention, Gemm, GroupedGemm, Operator
from shapes.trace.graph import Graph
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
                key = _core(
                    one.phase,
                    one.batch,
                    one.heads,
                    one.kv_heads,
                    one.q_len,
                    one.kv_len,
                    one.head_dim,
                    one.v_head_dim,
                    one.causal,
                    one.window,
                    one.dtype,
                )
            case _:
                continue
        counted[key] += one.count
    return counted


def _core(*parts: object) -> Key:
    *sizes, causal, window, dtype = parts
    # A window as long as the sequence hides nothing.
    kv_len = sizes[5]
    hides = isinstance(window, int) and isinstance(kv_len, int) and window < kv_len
    return (*sizes, causal, window if hides else None, dtype)


def run_products(graph: Graph) -> Counter[Key]:
    """The same of a graph: what the forward pass ran."""
    counted: Counter[Key] = Counter()
    for node in graph.nodes:
        if node.kind == "grouped":
            counted["forward", "grouped", node.batch, node.m, node.n, node.k, "m", node.dtype] += 1
        elif node.kind == "attention":
            sizes = (node.core[name] for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim"))
            rest = (node.core["v_head_dim"], node.core["causal"], node.core["window"], node.dtype)
            counted[_core("forward", *sizes, *rest)] += 1
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
