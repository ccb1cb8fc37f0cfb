"""Tensor parallelism on a traced model: its weights are cut to one shard's before it runs, so every shape is a shard's.

A plan maps a path (layer indices as ``*``) to a style, as transformers' ``base_model_tp_plan`` does: *colwise* cuts a
weight's output features, *rowwise* its input features; ``_gather_output`` (formerly ``_rep``) puts the output together
again, ``_split_input`` cuts the input. Uneven cuts round up (the fullest shard), key/value heads stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from shapes.errors import InputError

#: Styles that leave a weight whole on every rank.
_WHOLE = re.compile("replicated|sequence_parallel|moe_tp|mla_kv|all_reduce|identity")


def shard(model: nn.Module, plan: Mapping[str, str] | None, t: int, where: str) -> list[str]:
    """Cut ``model`` (on the meta device) to one of ``t`` shards; the notes say what was left whole.

    ``plan``: path glob -> "colwise" | "rowwise" (default: the model's own). Raises InputError without a plan, for an
    unknown style, for a glob that matches nothing and for heads that t does not divide.
    """
    given = plan is not None
    plan = _own_plan(model) if plan is None else plan
    if not plan:
        raise InputError("its class has no tensor-parallel plan: pass plan={path glob: colwise | rowwise}", where=where)
    _check_heads(model, t, where)
    notes = [f"tensor parallel over {t} by {'the plan given' if given else 'transformers own plan'}"]
    modules: dict[str, list[str]] = {}
    for path, _ in model.named_modules():
        modules.setdefault(_folded(path), []).append(path)
    parameters = {_folded(path) for path, _ in model.named_parameters(remove_duplicate=False)}
    for pattern, style in plan.items():
        if "colwise" in style or "rowwise" in style:
            hit = _cut_matching(model, modules, parameters, pattern, style, t)
            if given and not hit:
                raise InputError("matches no module of the model", where=where, key=pattern, value=style)
        elif not _WHOLE.search(style):
            if given:
                raise InputError("expected colwise or rowwise", where=where, key=pattern, value=style)
            notes.append(f"{pattern}: style {style} is not understood: left whole")
    return notes


def _cut_matching(
    model: nn.Module, modules: Mapping[str, list[str]], parameters: set[str], pattern: str, style: str, t: int
) -> bool:
    """Cut the modules and the stacked parameters whose folded paths ``pattern`` matches; False: there are none."""
    hit, stacked = _matching(pattern, modules), _matching(pattern, parameters)
    for path in chain.from_iterable(map(modules.__getitem__, hit)):
        _cut_module(model, path, style, t)
    for owner, _, leaf in (path.rpartition(".") for path in stacked):
        for path in modules[owner]:
            _cut(model.get_submodule(path), leaf, -2 if "colwise" in style else -1, t, 1)
    return bool(hit or stacked)


def _matching(pattern: str, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if fnmatchcase(path, pattern)]


def _own_plan(model: nn.Module) -> dict[str, str]:
    # transformers 4 lets the base model's plan hide the one that the class has for its head.
    return {**(getattr(type(model), "_tp_plan", None) or {}), **(getattr(model, "_tp_plan", None) or {})}


def _folded(path: str) -> str:
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)


def _check_heads(model: nn.Module, t: int, where: str) -> None:
    config: Any = getattr(model, "config", None)
    config = getattr(config, "text_config", None) or config
    heads, kv_heads = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if isinstance(heads, int) and heads % t:
        raise InputError(f"expected a divisor of the {heads} attention heads", where=where, key="t", value=t)
    if isinstance(kv_heads, int) and kv_heads and kv_heads % t and t % kv_heads:
        raise InputError(
            f"expected a divisor or a multiple of the {kv_heads} key/value heads, which are not cut",
            where=where,
            key="t",
            value=t,
        )


def _cut_module(model: nn.Module, path: str, style: str, t: int) -> None:
    module: Any = model.get_submodule(path)
    weight = module._parameters.get("weight")
    # A vocabulary cut by rows is looked up in part and summed; no product depends on it.
    if weight is None or weight.dim() != 2 or isinstance(module, nn.Embedding):
        return
    columns, inputs_first = "colwise" in style, type(module).__name__ == "Conv1D"
    dimension = int(columns == inputs_first)
    if columns:
        _cut_columns(model.get_submodule(path.rpartition(".")[0]), module, dimension, style, t)
        return
    _cut(module, "weight", dimension, t, 1)
    if "split_input" in style or "_rep" in style:
        share = module.weight.shape[dimension]
        module.register_forward_pre_hook(lambda _m, inputs: (inputs[0][..., :share], *inputs[1:]))


def _cut_columns(parent: Any, module: Any, dimension: int, style: str, t: int) -> None:
    outputs, is_attention = module.weight.shape[dimension], "num_key_value_groups" in vars(parent)
    head_dim = int(getattr(parent, "head_dim", 1) or 1) if is_attention else 1
    for name, cut in (("weight", dimension), ("bias", 0)):
        _cut(module, name, cut, t, 1 if outputs % head_dim else head_dim)
    if "nf" in vars(module):  # Conv1D shapes its output by this
        module.nf = module.weight.shape[1]
    if "gather_output" in style or "_rep" in style:
        module.register_forward_hook(lambda _m, _i, out: torch.cat([out] * t, dim=-1)[..., :outputs])
    if is_attention:
        _regroup(parent)


def _regroup(attention: Any) -> None:
    # With fewer key/value heads than shards each shard keeps one whole head for its share of the queries.
    query, key = (getattr(attention, name, None) for name in ("q_proj", "k_proj"))
    if isinstance(query, nn.Linear) and isinstance(key, nn.Linear):
        attention.num_key_value_groups = max(query.weight.shape[0] // key.weight.shape[0], 1)


def _cut(module: nn.Module, name: str, dimension: int, t: int, whole: int) -> None:
    parameter = module._parameters.get(name)
    if not isinstance(parameter, Tensor) or (parameter.dim() < 2 and name != "bias"):
        return
    units = -(-parameter.shape[dimension] // whole)
    shape = list(parameter.shape)
    shape[dimension] = -(-units // t) * whole
    # A new Parameter: a head that is tied to the embedding is cut without it.
    module._parameters[name] = nn.Parameter(parameter.new_empty(shape), requires_grad=parameter.requires_grad)
