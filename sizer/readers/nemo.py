"""NeMo's YAML of a Megatron model (``model:`` and ``trainer:``): Megatron-Core's classes under names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizer.readers.fields import MAX_LAYERS, Fields, table
from sizer.readers.megatron import workload
from sizer.readers.megatron.models import build
from sizer.readers.reading import Reading, reading
from sizer.readers.training import optimizer

NAME = "nemo"

_TABLE = table("formats")[NAME]


def read(config: Mapping[str, Any], where: str) -> Reading:
    """Absent keys take NeMo's defaults: biases, tied embeddings, layer norms."""
    outer = Fields(config, where)
    other = next((what for name, what in _TABLE["refused"].items() if name in outer.text("name")), None)
    if other is not None:
        raise outer.error(f"has no formula here: {other}", "name")
    section, trainer = outer.nested("model"), outer.nested("trainer")
    optim = section.nested("optim")
    arguments = _arguments(section, optim)
    precision = str(trainer.raw("precision", default=""))
    arguments |= {"bf16": True} if "bf16" in precision else {"fp16": True} if precision.startswith("16") else {}
    devices, nodes = trainer.raw("devices", default=None), trainer.raw("num_nodes", default=1)
    arguments["_program"] = "bert" if "bert" in outer.text("name") else ""
    if type(devices) is int and type(nodes) is int and 0 < devices * nodes < 2**31:
        arguments["_devices"] = devices * nodes
    fields = Fields(arguments, where, prefix="model.")
    model, notes = build(fields)
    settled, layout_notes = workload(fields, model)
    settled |= optimizer(optim, "name")
    return reading(
        outer,
        NAME,
        model,
        keys={name: f"model.{key}" for name, key in _TABLE["dimensions"].items()},
        workload=settled,
        longest=section.optional("encoder_seq_length"),
        notes=(*notes, *layout_notes),
    )


def _arguments(section: Fields, optim: Fields) -> dict[str, Any]:
    """Megatron's arguments that NeMo's sections stand for."""
    arguments: dict[str, Any] = {
        ours: value
        for ours, theirs in _TABLE["same"].items()
        if (value := section.raw(theirs, default=None)) is not None
    }
    if section.raw("vocab_size", default=None) is not None:
        arguments.setdefault("vocab_size", section.raw("vocab_size"))
    if "mamba_num_groups" in arguments:  # NeMo's Mamba: all layers are, where no pattern says otherwise
        arguments.setdefault("hybrid_override_pattern", "M" * min(section.integer("num_layers"), MAX_LAYERS))
    for key, usual in (("transformer_block_type", "pre_ln"), ("attention_type", "multihead")):
        if section.config.get(key) == usual:
            section.ignore(key)
    activation = section.text("activation", default="gelu")
    norm = section.text("normalization", default="layernorm")
    tokenizer = section.nested("tokenizer")
    arguments |= {
        "gated_linear_unit": activation.removeprefix("fast-") in ("swiglu", "geglu", "reglu")
        or section.flag("gated_linear_unit"),
        "disable_bias_linear": not section.flag("bias", "add_bias_linear", default=True),
        "untie_embeddings_and_output_weights": not section.flag("share_embeddings_and_output_weights", default=True),
        "normalization": "RMSNorm" if norm.lower() == "rmsnorm" else "LayerNorm",
        "tokenizer_model": tokenizer.raw("type", default=None) or tokenizer.raw("model", default=None) or "",
        "use_distributed_optimizer": "distributed" in str(optim.config.get("name")),
        "grad_reduce_in_bf16": True,  # the optimizer's grad_sync_dtype, activations' unless said
        "overlap_grad_reduce": optim.flag("overlap_grad_sync"),
        "overlap_param_gather": optim.flag("overlap_param_sync"),
    }
    if tokenizer.text("library") == "megatron" and not arguments["tokenizer_model"]:
        arguments["tokenizer_model"] = "gpt2"
    if section.flag("fp8"):
        arguments["fp8_format"] = "e4m3" if section.flag("fp8_e4m3") else "hybrid"
    return arguments
