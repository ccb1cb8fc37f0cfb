"""Projections that share an input as one product or apart, as the workload asks, whatever the model class does.

A fused query, key and value projection is one product of all their outputs: forward [tokens, q + k + v], its data
gradient sums over them, its weight gradient has them in m. The same holds for the gate and up of an MLP. Keys and
values of cross attention read another sequence, and projections of which some have a bias and some have none cannot
be one: they stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from shapes.frozen import frozen
from shapes.operators.types import Gemm, Operator, Phase, Product
from shapes.trace.dimensions import NAMES
from shapes.trace.repeats import FoldedNames

#: Names of the parts in transformers' classes, in order, and of the whole.
_NAMES = NAMES["projections"]


@frozen
class _Group:
    """Products that are one in the other form: their folded names, and the outputs of each."""

    whole: str
    parts: tuple[str, ...]
    widths: tuple[int, ...]


def regroup(
    operators: Sequence[Operator], model: nn.Module, *, qkv: bool | None, gate_up: bool | None
) -> tuple[tuple[Operator, ...], list[str]]:
    """``operators`` with the projections of ``model`` fused (True), apart (False) or as its class has them (None).

    ``model`` is the one that was traced, its shards already cut. The notes say what stayed as it was and why.
    """
    groups: list[_Group] = []
    apart: list[_Group] = []
    notes: list[str] = []
    for wanted, kind, label in ((qkv, "qkv", "query, key and value"), (gate_up, "gate_up", "gate and up")):
        whole, parts = _NAMES[f"{kind}_whole"], _NAMES[f"{kind}_parts"]
        if wanted is True:
            groups += _to_fuse(model, parts, whole[0])
        elif wanted is False:
            split, unsure = _to_split(model, whole, parts[0])
            apart += split
            notes += [f"{name} stays one product: its {label} are not distinguishable" for name in unsure]
    fused = _fused(operators, groups)
    return tuple(part for operator in fused for part in _split(operator, apart)), notes


def _to_fuse(model: nn.Module, namings: Sequence[Sequence[str]], whole: str) -> list[_Group]:
    names, found = FoldedNames(model), dict[_Group, None]()
    for path, module in model.named_modules():
        for parts in namings:
            widths = None if _is_cross(path) else _fusible_widths(module, parts)
            if widths is not None:
                found[_group(names.fold(path), whole, parts, widths)] = None
    return list(found)


def _is_cross(path: str) -> bool:
    return any(word in path.lower() for word in _NAMES["cross"])


def _group(folded: str, whole: str, parts: Sequence[str], widths: tuple[int, ...]) -> _Group:
    joined, *named = (f"{folded}.{name}" if folded else name for name in (whole, *parts))
    return _Group(joined, tuple(named), widths)


def _fusible_widths(module: nn.Module, parts: Sequence[str]) -> tuple[int, ...] | None:
    """Outputs of each of the linear layers ``parts`` of ``module`` that can be one; None where they cannot."""
    linears = [child for part in parts if isinstance(child := module._modules.get(part), nn.Linear)]
    alike = {(linear.weight.shape[1], linear.bias is not None) for linear in linears}
    if len(linears) < len(parts) or len(alike) != 1:
        return None
    return tuple(linear.weight.shape[0] for linear in linears)


def _to_split(model: nn.Module, wholes: Sequence[str], parts: Sequence[str]) -> tuple[list[_Group], list[str]]:
    names, found, unsure = FoldedNames(model), dict[_Group, None](), dict[str, None]()
    for path, parameter in model.named_parameters():
        owner = path.removesuffix(".weight")
        parent, _, leaf = owner.rpartition(".")
        # Stacked experts' parameters have no module of their own.
        is_weight = parameter.dim() == (3 if owner == path else 2)
        if leaf not in wholes or not is_weight or _is_cross(path):
            continue
        rows = _outputs(model, owner, parameter)
        widths = (rows // 2,) * 2 if len(parts) == 2 else _qkv_widths(model, rows)
        group = _group(names.fold(parent), leaf, parts, widths or ())
        if sum(group.widths) == rows:
            found[group] = None
        else:
            unsure[group.whole] = None
    return list(found), list(unsure)


def _outputs(model: nn.Module, owner: str, parameter: nn.Parameter) -> int:
    if parameter.dim() == 3:  # stacked experts, [experts, out, in] or [experts, in, out]
        sides = parameter.shape[1:]
        hidden = getattr(_language(model), "hidden_size", None)
        return int(sides[0] if sides[1] == hidden else sides[1])
    is_conv1d = type(model.get_submodule(owner)).__name__ == "Conv1D"  # GPT-2's, [in, out]
    return int(parameter.shape[1] if is_conv1d else parameter.shape[0])


def _language(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    return getattr(config, "text_config", None) or config


def _qkv_widths(model: nn.Module, rows: int) -> tuple[int, ...] | None:
    config = _language(model)
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        return None
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        counts: list[int | None] = [1]
    else:
        # A class may ignore a key/value count that its configuration carries.
        counts = [getattr(config, "num_key_value_heads", None), getattr(config, "num_kv_heads", None), heads]
    for groups in counts:
        if isinstance(groups, int) and rows % (heads + 2 * groups) == 0:
            dim = rows // (heads + 2 * groups)
            return heads * dim, groups * dim, groups * dim
    return None


def _fused(operators: Sequence[Operator], groups: list[_Group]) -> list[Operator]:
    # Layers of one folded name may differ in width: the first part's says which group a product is of.
    first = {(group.parts[0], group.widths[0]): group for group in groups}
    rest = {part for group in groups for part in group.parts[1:]}
    out: list[Operator] = []
    for operator in operators:
        group = first.get((operator.name, _outputs_of(operator) or 0))
        if group is not None:
            out.append(_with_outputs(operator, group.whole, sum(group.widths)))
        elif operator.name not in rest or not isinstance(operator, Gemm):
            out.append(operator)
    return out


def _split(operator: Operator, groups: list[_Group]) -> list[Operator]:
    for group in groups:
        if group.whole == operator.name and sum(group.widths) == _outputs_of(operator):
            parts = zip(group.parts, group.widths, strict=True)
            return [_with_outputs(operator, name, width) for name, width in parts]
    return [operator]


#: The dimension of a product in which its linear layer's outputs lie.
_OUTER: dict[Phase, str] = {"forward": "n", "dgrad": "k", "wgrad": "m"}


def _outputs_of(operator: Operator) -> int | None:
    if not isinstance(operator, Product):
        return None
    return int(getattr(operator, _OUTER[operator.phase]))


def _with_outputs(operator: Operator, name: str, outputs: int) -> Operator:
    changed: dict[str, Any] = {"name": name, _OUTER[operator.phase]: outputs}
    return replace(operator, **changed)
