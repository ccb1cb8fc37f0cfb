"""Tensor parallelism on a traced model: its weights are cut to one shard's before it runs, so every shape is a shard's.

A plan maps a path (layer indices as ``*``) to a style, as transformers' ``base_model_tp_plan`` does: *colwise* cuts a
weight's output features, *rowwise* its input features; ``_gather_output`` (formerly ``_rep``) puts the output together
again, ``_split_input`` cuts the input. Uneven cuts round up (the fullest shard), key/value heads stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from shapes.errors import InputError

#: Styles that leave a weight whole on every rank.
_WHOLE = ("replicated", "sequence_parallel", "moe_tp", "mla_kv", "all_reduce", "identity")


def shard(model: nn.Module, plan: Mapping[str, str] | None, t: int, where: str) -> list[str]:
    """Cut ``model`` (on the meta device) to one of ``t`` shards; the notes say what was left whole.

    ``plan``: path glob -> "colwise" | "rowwise" (default: the model's own). Raises InputError without a plan, for an
    unknown style, for a glob that matches nothing and for heads that t does not divide.
    """
    given = plan is not None
    if plan is None:
        # transformers 4 lets the base model's plan hide the one that the class has for its head.
        plan = {**(getattr(type(model), "_tp_plan", None) or {}), **(getattr(model, "_tp_plan", None) or {})}
    if not plan:
        raise InputError("its class has no tensor-parallel plan: pass plan={path glob: colwise | rowwise}", where=where)
    _check_heads(model, t, where)
    notes = [f"tensor parallel over {t} by {'the plan given' if given else 'transformers own plan'}"]
    modules: dict[str, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules():
        modules.setdefault(_folded(path), []).append((path, module))
    parameters = {_folded(path) for path, _ in model.named_parameters(remove_duplicate=False)}
    for pattern, style in plan.items():
        direction = _direction(style)
        if direction is None:
            if not any(word in style for word in _WHOLE):
                if given:
                    raise InputError("expected colwise or rowwise", where=where, key=pattern, value=style)
                notes.append(f"{pattern}: style {style} is not understood: left whole")
            continue
        hit = [path for path in modules if fnmatchcase(path, pattern)]
        for path in hit:
            for full_path, module in modules[path]:
                _cut_module(model, full_path, module, direction, style, t)
        stacked = [path for path in parameters if fnmatchcase(path, pattern)]
        for path in stacked:
            owner, _, leaf = path.rpartition(".")
            for _, module in modules[owner]:
                _cut(module, leaf, -2 if direction == "colwise" else -1, t, 1)
        if given and not hit and not stacked:
            raise InputError("matches no module of the model", where=where, key=pattern, value=style)
    return notes


def _folded(path: str) -> str:
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)


def _direction(style: str) -> str | None:
    return "colwise" if "colwise" in style else "rowwise" if "rowwise" in style else None


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


def _cut_module(model: nn.Module, path: str, module: Any, direction: str, style: str, t: int) -> None:
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2:
        return
    if isinstance(module, nn.Embedding):
        # A vocabulary cut by rows is looked up in part and summed; no product depends on it.
        return
    stores_in_first = type(module).__name__ == "Conv1D"
    full_out = weight.shape[1] if stores_in_first else weight.shape[0]
    parent = model.get_submodule(path.rpartition(".")[0])
    dimension = {"colwise": 1, "rowwise": 0}[direction] if stores_in_first else {"colwise": 0, "rowwise": 1}[direction]
    whole = 1
    if direction == "colwise" and "num_key_value_groups" in vars(parent):
        whole = int(getattr(parent, "head_dim", 1) or 1)
        whole = whole if full_out % whole == 0 else 1
    _cut(module, "weight", dimension, t, whole)
    if direction == "colwise":
        if "bias" in module._parameters:
            _cut(module, "bias", 0, t, whole)
        if "nf" in vars(module):  # Conv1D shapes its output by this
            module.nf = module.weight.shape[1]
        if "gather_output" in style or "_rep" in style:
            module.register_forward_hook(lambda _m, _i, out: torch.cat([out] * t, dim=-1)[..., :full_out])
        if "num_key_value_groups" in vars(parent):
            _regroup(parent)
    elif "split_input" in style or "_rep" in style:
        share = module.weight.shape[dimension]
        module.register_forward_pre_hook(lambda _m, inputs: (inputs[0][..., :share], *inputs[1:]))


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
