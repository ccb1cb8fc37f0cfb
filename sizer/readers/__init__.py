"""Readers: a configuration in somebody's format -> ModelShape. One file a format, tried in the order of ``READERS``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shapes.errors import InputError
from shapes.model import ModelShape
from sizer.readers import gpt_neox, huggingface, litgpt, megatron, meta, nanogpt
from sizer.readers.loading import load_text, parse_mapping
from sizer.readers.reading import Reading, UnknownModelType

#: Each has NAME, matches(config) and read(config, where).
READERS: tuple[ModuleType, ...] = (huggingface, meta, litgpt, nanogpt, gpt_neox, megatron)

__all__ = ["READERS", "Reading", "UnknownModelType", "read_config", "read_text"]


def read_config(source: object, *, config_format: str | None = None, where: str | None = None) -> Reading:
    """Read a path, a mapping, a transformers ``PretrainedConfig`` (by its ``to_dict``) or a ``ModelShape``.

    The format is detected unless ``config_format`` names it. Raises InputError (one line: file, key, value, what was
    expected) for anything it cannot read, and UnknownModelType for an architecture no reader knows.
    """
    if isinstance(source, ModelShape):
        return Reading(source, "shape", where or source.model_type)
    if isinstance(source, (str, Path)):
        path = Path(source)
        return read_text(load_text(path), where=where or str(source), config_format=config_format)
    if isinstance(source, Mapping):
        return _read_mapping(source, where or "<dict>", config_format)
    to_dict = getattr(source, "to_dict", None)
    if callable(to_dict):
        return _read_mapping(to_dict(), where or type(source).__name__, config_format)
    raise InputError(
        f"expected a path, a mapping, a PretrainedConfig or a ModelShape, found {type(source).__name__}", key="config"
    )


def read_text(text: str, *, where: str, config_format: str | None = None) -> Reading:
    """Read a configuration's text; ``where`` names it in errors."""
    return _read_mapping(_parse(text, where, config_format), where, config_format)


def _parse(text: str, where: str, config_format: str | None) -> Mapping[str, Any]:
    """JSON or YAML; a nanoGPT Python file; a Megatron launch script."""
    if config_format == nanogpt.NAME or where.endswith(".py"):
        return nanogpt.parse_assignments(text, where) if text.lstrip()[:1] != "{" else parse_mapping(text, where)
    if where.endswith((".sh", ".txt")) or (config_format == megatron.NAME and "--hidden-size" in text):
        return megatron.parse_command_line(text, where)
    return parse_mapping(text, where)


def _read_mapping(config: Mapping[str, Any], where: str, config_format: str | None) -> Reading:
    known = ", ".join(reader.NAME for reader in READERS)
    if config_format is not None:
        for reader in READERS:
            if config_format == reader.NAME:
                reading: Reading = reader.read(config, where)
                return reading
        raise InputError(f"expected one of {known}", key="--config-format", value=config_format)
    for reader in READERS:
        if reader.matches(config):
            found: Reading = reader.read(config, where)
            return found
    raise InputError(
        f"expected a configuration in one of the known formats ({known}): no model_type found", where=where
    )
