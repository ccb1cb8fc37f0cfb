"""A Hugging Face configuration -> the transformers class it names, on the meta device -> its operators."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from shapes.dtypes import QUANTISED, dtype_bytes
from shapes.errors import InputError, positive_int
from shapes.kernels import CHOICES
from shapes.operators.lower import apply_recipe
from shapes.operators.types import Gemm, GroupedGemm, Operator
from shapes.recipes import DEFAULT, load_recipe
from shapes.trace.dimensions import NAMES, named_dimensions, size_in
from shapes.trace.grouping import regroup
from shapes.trace.guards import bounded_modules, check_counts, offline
from shapes.trace.inputs import DataAnswers, example_inputs
from shapes.trace.parallel import shard
from shapes.trace.result import Settings, Traced
from shapes.trace.run import masks_where_read, run, said
from shapes.workload import routing_note

#: The types computed in; fp8 and int8 recipes quantise the linear layers of a bf16 model, tf32 is fp32 in memory.
_TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    **dict.fromkeys(QUANTISED, torch.bfloat16),
}


@contextmanager
def quietly() -> Iterator[None]:
    # A remark of transformers on a configuration (a token number past the vocabulary) has no bearing on its shapes.
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


@offline()
@quietly()
def traced_config(config: Any, asked: Settings) -> Traced:
    """As ``shapes.trace.trace_config``."""
    for key in ("b", "s", "t"):
        positive_int(getattr(asked, key), key, maximum=2**31)
    dtype_bytes(asked.dtype)
    if asked.attention not in CHOICES:
        raise InputError(f"expected one of {', '.join(CHOICES)}", key="attention", value=asked.attention)
    settings, where = load_config(config)
    try:
        return _traced(settings, where, asked)
    except InputError as error:
        # torch's grouped product refuses experts of such a width, on a GPU too.
        if asked.experts is not None or "to be multiple of 16 byte" not in str(error.__cause__):
            raise
    looped = _traced(load_config(config)[0], where, replace(asked, experts="eager"))
    note = "torch's grouped product wants expert rows in multiples of 16 bytes: the experts are traced as a loop"
    return replace(looped, notes=(*looped.notes, note))


def _traced(settings: Any, where: str, asked: Settings) -> Traced:
    model, notes = build(
        settings,
        where,
        attention=asked.attention,
        dtype=asked.dtype,
        architecture=asked.architecture,
        experts=asked.experts,
    )
    if asked.train:
        _train_experts(model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    active = active_parameters(model, settings)
    if asked.t > 1:
        notes += shard(model, asked.plan, asked.t, where)
    traced = _run(model, settings, where, asked)
    operators, regrouped = regroup(traced.operators, model, qkv=asked.fused_qkv, gate_up=asked.fused_gate_up)
    sizes, keys = named_dimensions(settings)
    return replace(
        traced,
        operators=_in_dtype(operators, asked),
        parameters=parameters,
        active_parameters=active,
        notes=(*traced.notes, *notes, *regrouped, *_expert_notes(settings, asked)),
        dimensions=sizes,
        keys=keys,
    )


def _run(model: nn.Module, settings: Any, where: str, asked: Settings) -> Traced:
    inputs = example_inputs(model, b=asked.b, s=asked.s, decoder_s=asked.decoder_s)

    def once(masks: bool) -> Traced:
        return run(
            model,
            (),
            inputs,
            train=asked.train,
            model_type=settings.model_type,
            answers=answers_for(settings, asked.b * asked.s),
            config=settings,
            expert_load=asked.expert_load,
            repeats=asked.repeats,
            where=where,
            masks=masks,
        )

    return masks_where_read(once)


def _expert_notes(settings: Any, asked: Settings) -> Iterator[str]:
    if expert_count(settings) is not None:
        yield routing_note(asked.expert_load)
    if settings.model_type in NAMES["classes"]["every_expert"]:
        yield (
            "transformers' class runs every token through every expert, and so do these operators; without --trace "
            "experts run the tokens routed to them"
        )


def _in_dtype(operators: tuple[Operator, ...], asked: Settings) -> tuple[Operator, ...]:
    dtype = asked.dtype
    if dtype in (*QUANTISED, "tf32"):
        operators = tuple(_recast(operator, dtype) for operator in operators)
    if dtype not in DEFAULT:
        return operators
    return tuple(apply_recipe(operators, load_recipe(asked.recipe or DEFAULT[dtype]), asked.train))


def _recast(operator: Operator, dtype: str) -> Operator:
    if dtype == "tf32":
        return replace(operator, dtype="tf32") if operator.dtype == "fp32" and operator.flops else operator
    if isinstance(operator, GroupedGemm):
        return replace(operator, dtype=dtype)
    if isinstance(operator, Gemm) and operator.kind == "gemm" and operator.dtype == "bf16":
        return replace(operator, dtype=dtype, out_dtype="bf16")
    return operator


@offline()
@quietly()
def load_config(config: Any) -> tuple[Any, str]:
    """(PretrainedConfig, what to call it in an error). A configuration is data: code it names is never run."""
    if isinstance(config, transformers.PretrainedConfig):
        # Building a model writes into its configuration: the caller's stays as it is.
        return deepcopy(config), config.model_type
    where = f"<{type(config).__name__}>"
    if isinstance(config, (str, Path)):
        where = str(config)
        config = _read_json(Path(config), where)
    if not isinstance(config, Mapping):
        raise InputError("expected a mapping, the content of a config.json", where=where)
    known = _config_class(config, where)
    plain = {k: v for k, v in config.items() if k not in ("auto_map", "quantization_config", "model_type")}
    check_counts(plain, where)
    try:
        return known.from_dict(plain), where
    except Exception as error:
        reason, key = f"transformers {transformers.__version__} rejects it: {said(error)}", None
        if plain.get("backbone") is not None and plain.get("backbone_config") is None:
            reason = "expected backbone_config, the backbone's own keys: what a configuration names is never fetched"
            key = "backbone"
        raise InputError(reason, where=where, key=key, value=plain.get(key or "")) from error


def _read_json(path: Path, where: str) -> Any:
    path = path / "config.json" if path.is_dir() else path
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON: {error}", where=where) from error


def _config_class(config: Mapping[str, Any], where: str) -> Any:
    model_type = config.get("model_type")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if isinstance(model_type, str) and model_type in known:
        return known[model_type]
    key, reason = (
        "model_type",
        f"expected a model_type that transformers {transformers.__version__} knows, or the nn.Module itself passed "
        "to sizer.check(module, example_inputs=...)",
    )
    if "auto_map" in config:
        key = "auto_map"
        reason = "expected a model_type with a class in transformers: code that a configuration names is never run"
    raise InputError(reason, where=where, key=key, value=config.get(key))


def model_class(settings: Any, where: str, architecture: str | None) -> type[Any]:
    """The transformers class that ``architecture``, else the configuration's ``architectures``, else its type names."""
    for name in (architecture,) if architecture else (settings.architectures or ()):
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
        if architecture:
            raise InputError("expected a model class of transformers", where=where, key="architecture", value=name)
    found = _auto_class(settings)
    if found is None:
        raise InputError("expected a type with a model class", where=where, key="model_type", value=settings.model_type)
    return found


def _auto_class(settings: Any) -> type[Any] | None:
    translating = getattr(settings, "is_encoder_decoder", False)
    for auto in sorted(NAMES["classes"]["auto"], key=lambda name: translating and "Seq2Seq" not in name):
        mapping = getattr(transformers, auto)._model_mapping
        if type(settings) in mapping:
            found = mapping[type(settings)]
            first: type[Any] = found[0] if isinstance(found, (tuple, list)) else found
            return first
    return None


def build(
    settings: Any, where: str, *, attention: str, dtype: str, architecture: str | None, experts: str | None
) -> tuple[nn.Module, list[str]]:
    """The model on the meta device in evaluation mode (no dropout, no layer drop), and what had to be assumed."""
    cls = model_class(settings, where, architecture)
    # A composite configuration's language model is built from the part that is its own.
    parts = (part for part in vars(settings).values() if isinstance(part, cls.config_class or ()))
    settings = settings if isinstance(settings, cls.config_class or object) else next(parts, settings)
    if experts is not None:
        settings._experts_implementation = experts
    if hasattr(settings, "use_cache"):
        # No step here continues another, and some models make a cache that they then cannot ask for its length.
        settings.use_cache = False
    try:
        with torch.device("meta"), _without_initialization(), bounded_modules(where):
            model, notes = _built(cls, settings, attention, dtype)
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {said(error)}"[:300]
        raise InputError(
            f"transformers {transformers.__version__} cannot build {cls.__name__}: {reason}", where=where
        ) from error
    # Skipping initialization skips the tying of weights too; what torch.normal made is not on the meta device.
    model.to("meta").tie_weights()
    return model.eval(), notes


def _built(cls: type[Any], settings: Any, attention: str, dtype: str) -> tuple[Any, list[str]]:
    def made(implementation: str) -> Any:
        return cls._from_config(settings, attn_implementation=implementation, dtype=_TORCH_DTYPES[dtype])

    if attention == "eager":
        return made("eager"), []
    try:
        return made("sdpa"), []
    except (ValueError, ImportError):
        model = made("eager")
    if getattr(cls, "_supports_flash_attn", getattr(cls, "_supports_flash_attn_2", False)):
        # Fused by FlashAttention's own kernel alone: its layers look the function up when they run.
        _attend_with(model, "sdpa")
        return model, []
    return model, [f"{cls.__name__} has no fused attention: it is traced as batched products"]


def _train_experts(model: nn.Module) -> None:
    # transformers 4's gpt_oss gives every token to every expert unless it trains; an expert has no dropout to wake.
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.training = True


def _attend_with(model: nn.Module, implementation: str) -> None:
    for settings in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        if hasattr(settings, "_attn_implementation_internal"):
            settings._attn_implementation_internal = implementation


@contextmanager
def _without_initialization() -> Iterator[None]:
    # Filling weights with random values is most of the time it takes to build a model, and there are no values here.
    from importlib import import_module

    try:
        module = import_module("transformers.initialization")
    except ImportError:  # transformers 4
        module = import_module("transformers.modeling_utils")
    with module.no_init_weights():
        yield


def expert_count(settings: Any) -> int | None:
    """Routed experts of a mixture-of-experts configuration, its language part included; None for a dense one."""
    return _first(settings, "experts")


def _first(settings: Any, name: str) -> int | None:
    parts = (settings, *(v for v in vars(settings).values() if isinstance(v, transformers.PretrainedConfig)))
    return next((found[0] for part in parts if (found := size_in(part, NAMES["attributes"][name]))), None)


def active_parameters(model: nn.Module, settings: Any) -> int | None:
    """Parameters one token meets: of every expert weight the share top_k / experts. None without known experts.

    An expert weight is a stacked parameter whose first dimension counts the experts, or lies in a ModuleList of them.
    """
    experts, top_k = expert_count(settings), _first(settings, "top_k")
    if experts is None or top_k is None or experts == 1:
        return None
    routed = {id(one): one.numel() for module in model.modules() for one in _expert_weights(module, experts)}
    total = sum(parameter.numel() for parameter in model.parameters())
    return total - sum(routed.values()) * (experts - top_k) // experts


def _expert_weights(module: nn.Module, experts: int) -> Iterator[nn.Parameter]:
    if isinstance(module, nn.ModuleList) and len(module) == experts:
        yield from module.parameters()
    elif "Expert" in type(module).__name__ or "MLP" in type(module).__name__:
        yield from (p for p in module.parameters(recurse=False) if p.dim() >= 2 and p.shape[0] == experts)


def answers_for(settings: Any, tokens: int | None = None) -> DataAnswers:
    """Answers for a model of transformers; ``tokens`` of one call, where they are known."""
    top_k = _first(settings, "top_k")
    return DataAnswers(expert_count(settings), tokens * top_k if tokens and top_k else None)
