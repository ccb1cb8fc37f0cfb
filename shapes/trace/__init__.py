"""Any nn.Module or Hugging Face configuration -> operators, by running it without data or weights.

This package's modules import torch; this file does not, so that ``import shapes`` stays cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapes.errors import InputError
from shapes.trace.result import Settings, Traced
from shapes.workload import RunPhase

if TYPE_CHECKING:
    from torch import nn

    from shapes.trace.prove import Proof

__all__ = ["MissingExtra", "Traced", "longest_sequence", "recognise_config", "trace", "trace_config"]

INSTALL = "pip install 'sizer[trace]'"


class MissingExtra(InputError):  # noqa: N818 # named for what it is, as the error it extends
    """torch or transformers is not installed."""


def trace(
    module: nn.Module,
    *args: Any,
    phase: RunPhase = "train",
    expert_load: float = 1.0,
    fused_qkv: bool | None = None,
    fused_gate_up: bool | None = None,
    plan: Mapping[str, str] | None = None,
    t: int = 1,
    **kwargs: Any,
) -> Traced:
    """The operators of one call ``module(*args, **kwargs)``, and of its backward pass unless ``phase="infer"``.

    ``expert_load`` (fullest over mean), ``fused_qkv`` and ``fused_gate_up`` (None: as the module does it) are as in
    ``Workload``. ``plan``: path glob -> "colwise" | "rowwise" for ``t`` shards (default: a transformers class's own).

    Tensors among the arguments stand for their shape and dtype only. The module keeps its weights and its mode: its
    tensors are swapped for ones on the meta device while it runs. Raises InputError, with the path of the module that
    failed, where the forward needs a tensor's values.
    """
    _require("torch")
    from torch import Tensor
    from torch.utils import _pytree

    from shapes.trace.grouping import regroup
    from shapes.trace.parallel import shard
    from shapes.trace.run import on_meta, run

    args, kwargs = _pytree.tree_map_only(
        Tensor, lambda t: t.detach().to("meta").requires_grad_(t.requires_grad), (args, kwargs)
    )
    config = getattr(module, "config", None)
    native = config if hasattr(config, "model_type") and type(module).__module__.startswith("transformers.") else None
    answers = None
    if native is not None:
        from shapes.trace.config import answers_for

        answers = answers_for(native)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    with on_meta(module):
        sharded: list[str] = []
        if t > 1:
            module = deepcopy(module)
            sharded = shard(module, plan, t, type(module).__name__)
        traced = run(
            module,
            args,
            kwargs,
            train=phase == "train",
            config=native,
            model_type=getattr(native, "model_type", type(module).__name__),
            answers=answers,
            expert_load=expert_load,
        )
        operators, notes = regroup(traced.operators, module, qkv=fused_qkv, gate_up=fused_gate_up)
    return replace(traced, operators=operators, parameters=parameters, notes=(*traced.notes, *sharded, *notes))


def trace_config(
    config: Mapping[str, Any] | str | Path | Any,
    *,
    b: int = 1,
    s: int = 128,
    phase: RunPhase = "train",
    attention: str = "flash",
    dtype: str = "bf16",
    expert_load: float = 1.0,
    plan: Mapping[str, str] | None = None,
    t: int = 1,
    decoder_s: int | None = None,
    architecture: str | None = None,
    experts: str | None = None,
    repeats: bool = True,
    fused_qkv: bool | None = None,
    fused_gate_up: bool | None = None,
    recipe: str | None = None,
) -> Traced:
    """The operators of one step, b sequences of s tokens, of the transformers model that ``config`` describes.

    ``config``: the content of a config.json, its path, or a PretrainedConfig. ``attention``: "eager" (batched
    products) or a kernel of shapes.kernels (one fused operator). ``plan``: path glob -> "colwise" | "rowwise" for
    ``t`` shards (default: the class's own ``base_model_tp_plan``). ``architecture``: the transformers class to
    build, in place of the one the configuration names. ``experts``: transformers' expert implementation
    ("grouped_mm", "eager", "batched_mm"; default as the class does it). ``fused_qkv`` and ``fused_gate_up`` regroup
    the projections (None: as the class has them). ``recipe``: of shapes.recipes (None: what ``dtype`` stands for).
    ``repeats=False`` runs every layer, for checking.

    Raises InputError for a model_type transformers does not know, a configuration it rejects, code in the
    configuration, and a model whose forward needs data.
    """
    _require("torch")
    _require("transformers")
    from shapes.trace.config import traced_config

    settings = Settings(
        b,
        s,
        phase,
        attention,
        dtype,
        expert_load,
        plan,
        t,
        decoder_s,
        architecture,
        experts,
        repeats,
        fused_qkv,
        fused_gate_up,
        recipe,
    )
    return traced_config(config, settings)


def recognise_config(config: Mapping[str, Any] | str | Path | Any) -> Proof:
    """What the transformers class of ``config`` is recognised as, and whether that is proven (shapes.trace.prove)."""
    _require("torch")
    _require("transformers")
    from shapes.trace.prove import prove_config

    return prove_config(config)


def longest_sequence(config: Mapping[str, Any] | str | Path | Any) -> int | None:
    """The longest sequence that a transformers configuration names, class defaults included; None: it does not."""
    _require("transformers")
    from shapes.trace.config import load_config
    from shapes.trace.dimensions import positions

    return positions(load_config(config)[0])


def _require(package: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtra(f"tracing needs {package}, which is not installed: {INSTALL}")
