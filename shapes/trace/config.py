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
from shapes.trace.dimensions import held, named_dimensions
from shapes.trace.grouping import regroup
from shapes.trace.guards import bounded_modules, check_counts, offline
from shapes.trace.inputs import DataAnswers, example_inputs
from shapes.trace.result import Traced
from shapes.trace.run import run, said
from shapes.workload import routing_note

#: What the model computes in; fp8 and int8 recipes quantise the linear layers of a bf16 model, tf32 is fp32 in memory.
_TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    **dict.fromkeys(QUANTISED, torch.bfloat16),
}
#: Auto classes in the order in which a configuration without ``architectures`` is read.
_AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModelForImageTextToText",
    "AutoModel",
)
_TOP_K_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")


@contextmanager
def _quietly() -> Iterator[None]:
    # What transformers remarks on a configuration (a token number past the vocabulary) has no bearing on its shapes.
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


#: Types whose class scales every token by its router's score instead of dispatching it.
EVERY_EXPERT = ("llama4", "llama4_text")


@offline()
@_quietly()
def trace_config(
    config: Any,
    *,
    b: int,
    s: int,
    phase: str,
    attention: str,
    dtype: str,
    expert_load: float,
    plan: Mapping[str, str] | None,
    t: int,
    decoder_s: int | None,
    architecture: str | None,
    experts: str | None,
    repeats: bool,
    fused_qkv: bool | None,
    fused_gate_up: bool | None,
    recipe: str | None = None,
) -> Traced:
    """The operators of one step, b sequences of s tokens.

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
    for key, value in (("b", b), ("s", s), ("t", t)):
        positive_int(value, key, maximum=2**31)
    dtype_bytes(dtype)
    if attention not in CHOICES:
        raise InputError(f"expected one of {', '.join(CHOICES)}", key="attention", value=attention)
    settings, where = load_config(config)
    model, notes = build(settings, where, attention=attention, dtype=dtype, architecture=architecture, experts=experts)
    if phase == "train":
        _train_experts(model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    active = active_parameters(model, settings)
    if t > 1:
        from shapes.trace.parallel import shard

        notes += shard(model, plan, t, where)
    inputs = example_inputs(model, b=b, s=s, decoder_s=decoder_s)
    options: dict[str, Any] = {
        "train": phase == "train",
        "model_type": settings.model_type,
        "config": settings,
        "expert_load": expert_load,
        "repeats": repeats,
        "where": where,
    }
    try:
        traced = run(model, (), inputs, answers=answers_for(settings, b * s), **options)
    except InputError as error:
        if "to be multiple of 16 byte" in str(error.__cause__) and experts is None:
            # torch's grouped product refuses experts of such a width, on a GPU too.
            looped = trace_config(
                config,
                b=b,
                s=s,
                phase=phase,
                attention=attention,
                dtype=dtype,
                expert_load=expert_load,
                plan=plan,
                t=t,
                decoder_s=decoder_s,
                architecture=architecture,
                experts="eager",
                repeats=repeats,
                fused_qkv=fused_qkv,
                fused_gate_up=fused_gate_up,
                recipe=recipe,
            )
            said = (
                "torch's grouped product wants expert rows in multiples of 16 bytes: the experts are traced as a loop"
            )
            return replace(looped, notes=(*looped.notes, said))
        # Some models look into the mask that a fused kernel would not need.
        if not isinstance(error.__cause__, (TypeError, AttributeError, ValueError)):
            raise
        traced = run(model, (), inputs, answers=answers_for(settings, b * s), masks=True, **options)
    operators, regrouped = regroup(traced.operators, model, qkv=fused_qkv, gate_up=fused_gate_up)
    notes += regrouped
    if dtype in (*QUANTISED, "tf32"):
        operators = tuple(_recast(operator, dtype) for operator in operators)
    if dtype in DEFAULT:
        operators = tuple(apply_recipe(operators, load_recipe(recipe or DEFAULT[dtype]), phase == "train"))
    if expert_count(settings) is not None:
        notes.append(routing_note(expert_load))
    if settings.model_type in EVERY_EXPERT:
        notes.append(
            "transformers' class runs every token through every expert, and so do these operators; without --trace "
            "experts run the tokens routed to them"
        )
    sizes, keys = named_dimensions(settings)
    return replace(
        traced,
        operators=operators,
        parameters=parameters,
        active_parameters=active,
        notes=(*traced.notes, *notes),
        dimensions=sizes,
        keys=keys,
    )


def _recast(operator: Operator, dtype: str) -> Operator:
    if dtype == "tf32":
        return replace(operator, dtype="tf32") if operator.dtype == "fp32" and operator.flops else operator
    if isinstance(operator, GroupedGemm):
        return replace(operator, dtype=dtype)
    if isinstance(operator, Gemm) and operator.kind == "gemm" and operator.dtype == "bf16":
        return replace(operator, dtype=dtype, out_dtype="bf16")
    return operator


@offline()
@_quietly()
def load_config(config: Any) -> tuple[Any, str]:
    """(PretrainedConfig, what to call it in an error). A configuration is data: code it names is never run."""
    if isinstance(config, transformers.PretrainedConfig):
        # Building a model writes into its configuration: the caller's stays as it is.
        return deepcopy(config), config.model_type
    where = f"<{type(config).__name__}>"
    if isinstance(config, (str, Path)):
        where = str(config)
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=where) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"expected JSON: {error}", where=where) from error
    if not isinstance(config, Mapping):
        raise InputError("expected a mapping, the content of a config.json", where=where)
    model_type = config.get("model_type")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if not isinstance(model_type, str) or model_type not in known:
        if "auto_map" in config:
            raise InputError(
                "expected a model_type with a class in transformers: code that a configuration names is never run",
                where=where,
                key="auto_map",
                value=config["auto_map"],
            )
        raise InputError(
            f"expected a model_type that transformers {transformers.__version__} knows, or the nn.Module itself passed "
            "to sizer.check(module, example_inputs=...)",
            where=where,
            key="model_type",
            value=model_type,
        )
    plain = {k: v for k, v in config.items() if k not in ("auto_map", "quantization_config", "model_type")}
    check_counts(plain, where)
    try:
        return known[model_type].from_dict(plain), where
    except Exception as error:
        if plain.get("backbone") is not None and plain.get("backbone_config") is None:
            raise InputError(
                "expected backbone_config, the backbone's own keys: what a configuration names is never fetched",
                where=where,
                key="backbone",
                value=plain["backbone"],
            ) from error
        raise InputError(f"transformers {transformers.__version__} rejects it: {said(error)}", where=where) from error


def model_class(settings: Any, where: str, architecture: str | None) -> type[Any]:
    """The transformers class that ``architecture``, else the configuration's ``architectures``, else its type names."""
    for name in (architecture,) if architecture else (settings.architectures or ()):
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
        if architecture:
            raise InputError("expected a model class of transformers", where=where, key="architecture", value=name)
    translating = getattr(settings, "is_encoder_decoder", False)
    for auto in sorted(_AUTO_CLASSES, key=lambda name: "Seq2Seq" not in name) if translating else _AUTO_CLASSES:
        mapping = getattr(transformers, auto)._model_mapping
        if type(settings) in mapping:
            found = mapping[type(settings)]
            first: type[Any] = found[0] if isinstance(found, (tuple, list)) else found
            return first
    raise InputError("expected a type with a model class", where=where, key="model_type", value=settings.model_type)


def build(
    settings: Any, where: str, *, attention: str, dtype: str, architecture: str | None, experts: str | None
) -> tuple[nn.Module, list[str]]:
    """The model on the meta device in evaluation mode (no dropout, no layer drop), and what had to be assumed."""
    cls = model_class(settings, where, architecture)
    # A composite configuration's language model is built from the part that is its own.
    parts = (part for part in vars(settings).values() if isinstance(part, cls.config_class or ()))
    settings = settings if isinstance(settings, cls.config_class or object) else next(parts, settings)
    notes: list[str] = []
    wanted = "eager" if attention == "eager" else "sdpa"
    options: dict[str, Any] = {"dtype": _TORCH_DTYPES[dtype]}
    if experts is not None:
        settings._experts_implementation = experts
    if hasattr(settings, "use_cache"):
        # No step here continues another, and some models make a cache that they then cannot ask for its length.
        settings.use_cache = False
    try:
        with torch.device("meta"), _without_initialization(), bounded_modules(where):
            try:
                model = cls._from_config(settings, attn_implementation=wanted, **options)
            except (ValueError, ImportError):
                if wanted == "eager":
                    raise
                model = cls._from_config(settings, attn_implementation="eager", **options)
                if getattr(cls, "_supports_flash_attn", getattr(cls, "_supports_flash_attn_2", False)):
                    # Fused by FlashAttention's own kernel alone: its layers look the function up when they run.
                    _attend_with(model, "sdpa")
                else:
                    notes.append(f"{cls.__name__} has no fused attention: it is traced as batched products")
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
    return _first(settings, _EXPERT_KEYS)


def _first(settings: Any, keys: tuple[str, ...]) -> int | None:
    for part in (settings, *(v for v in vars(settings).values() if isinstance(v, transformers.PretrainedConfig))):
        for key in keys:
            value = held(part, key)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
                return value
    return None


def active_parameters(model: nn.Module, settings: Any) -> int | None:
    """Parameters one token meets: of every expert weight the share top_k / experts. None without known experts.

    An expert weight is a stacked parameter whose first dimension counts the experts, or lies in a ModuleList of them.
    """
    experts, top_k = expert_count(settings), _first(settings, _TOP_K_KEYS)
    if experts is None or top_k is None or experts == 1:
        return None
    routed: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == experts:
            routed |= {id(parameter): parameter.numel() for parameter in module.parameters()}
        elif "Expert" in type(module).__name__ or "MLP" in type(module).__name__:
            stacked = (p for p in module.parameters(recurse=False) if p.dim() >= 2 and p.shape[0] == experts)
            routed |= {id(parameter): parameter.numel() for parameter in stacked}
    total = sum(parameter.numel() for parameter in model.parameters())
    return total - sum(routed.values()) * (experts - top_k) // experts


def answers_for(settings: Any, tokens: int | None = None) -> DataAnswers:
    """Answers for a model of transformers; ``tokens`` of one call, where they are known."""
    top_k = _first(settings, _TOP_K_KEYS)
    return DataAnswers(expert_count(settings), tokens * top_k if tokens and top_k else None)
