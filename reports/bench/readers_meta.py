"""Meta's params.json as published: those of llama-stack's list of models, judged by Llama 3's reference class.

The class (llama_stack/models/llama/llama3/model.py) is built on the meta device, with torch's layers for
fairscale's, on one rank. It holds embedding and head apart; of a model that is tied the head is not counted.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LISTED = "llama_stack/models/llama/sku_list.py"


def listed(clone: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, params) of each model of the list that states its sizes; the file is parsed, not run."""
    tree = ast.parse((clone / LISTED).read_text("utf-8"))
    names: dict[str, Any] = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return) and not node.args.args:
            returned = node.body[-1].value
            if isinstance(returned, ast.Dict):
                names[f"{node.name}()"] = _value(returned, names)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if "arch_args" in given:
            found = _value(given["arch_args"], names)
            if found:
                yield ast.unparse(given["core_model_id"]).rpartition(".")[2], found


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Dict):
        return {
            ast.literal_eval(key): _value(value, names)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    if isinstance(node, ast.Name | ast.Call):
        return names[ast.unparse(node)]
    return ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else ast.unparse(node)


def reference(clone: Path) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Counts the parameters of ``{"params": ..., "vocab": N, "tied": bool}``."""
    import torch

    def linear(size: int, out: int, *rest: Any, **named: Any) -> torch.nn.Module:
        return torch.nn.Linear(size, out, bias=False)

    def embedding(rows: int, size: int, *rest: Any, **named: Any) -> torch.nn.Module:
        return torch.nn.Embedding(rows, size)

    layers = {"ColumnParallelLinear": linear, "RowParallelLinear": linear, "VocabParallelEmbedding": embedding}
    for name, members in {
        "fairscale": {},
        "fairscale.nn": {},
        "fairscale.nn.model_parallel": {},
        "fairscale.nn.model_parallel.initialize": {"get_model_parallel_world_size": lambda: 1},
        "fairscale.nn.model_parallel.layers": layers,
        "llama3": {"__path__": [str((clone / LISTED).parent / "llama3")]},
    }.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module
    sys.modules["fairscale.nn.model_parallel"].initialize = sys.modules["fairscale.nn.model_parallel.initialize"]  # type: ignore[attr-defined]
    model, args = importlib.import_module("llama3.model"), importlib.import_module("llama3.args")

    def judge(question: Mapping[str, Any]) -> dict[str, Any]:
        params = {**question["params"], "vocab_size": question["vocab"], "max_batch_size": 1, "max_seq_len": 16}
        with torch.device("meta"):
            built = model.Transformer(args.ModelArgs(**params))
        total = sum(parameter.numel() for parameter in built.parameters())
        return {"parameters": total - question["tied"] * built.output.weight.numel()}

    return judge
