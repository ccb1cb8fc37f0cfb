"""NeMo's YAML of a Megatron model (``model:`` and ``trainer:``): Megatron-Core's classes under names of its own."""

from sizer.readers.expressions import expressed, optimizer
from sizer.readers.layouts import opened
from sizer.readers.megatron import workload
from sizer.readers.megatron.models import build
from sizer.readers.reading import FORMATS, Config, Fields, Reading, Values, reading

NAME = "nemo"

_TABLE = FORMATS[NAME]


def read(config: Config, where: str) -> Reading:
    """Absent keys take NeMo's defaults: biases, tied embeddings, layer norms."""
    outer = Fields(config, where)
    section, trainer = outer.nested("model"), outer.nested("trainer")
    said = (outer.text("name"), outer.nested("run").text("name"), *section.config)
    other = next((what for name, what in _TABLE["refused"].items() if any(name in one for one in said)), None)
    outer.refuse(other is not None, f"has no formula here: {other}", "name")
    optim = section.nested("optim")
    arguments = _arguments(section, optim)
    precision = str(trainer.raw("precision", default=""))
    arguments |= {"bf16": True} if "bf16" in precision else {"fp16": True} if precision.startswith("16") else {}
    arguments |= {"_program": outer.text("name"), "_devices": trainer.devices()}
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


def _arguments(section: Fields, optim: Fields) -> Values:
    """Megatron's arguments that NeMo's sections stand for."""
    arguments, used = expressed(_TABLE["names"], opened(_TABLE, section), {}, _TABLE["words"])
    section.ignore(*(one.replace("__", ".") for one in used))
    section.ignore(*(key for key, usual in _TABLE["usual"].items() if section.config.get(key) == usual))
    return {**arguments, "use_distributed_optimizer": "distributed" in str(optim.config.get("name"))}
