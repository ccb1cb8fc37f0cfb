"""Inputs of the right shapes for a transformers model."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn


def example_inputs(model: nn.Module, *, b: int, s: int, decoder_s: int | None = None) -> dict[str, Any]:
    """Keyword arguments of ``model``: b sequences of s tokens, images and spectrograms of the configured size."""
    settings: Any = model.config
    accepted = signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    main = getattr(model, "main_input_name", "input_ids")
    if main in ("pixel_values", "pixel_values_videos") and "pixel_values" in accepted and "input_ids" not in accepted:
        inputs["pixel_values"] = _image(settings, b)
    elif main == "input_features" and "input_features" in accepted:
        bins: Any = getattr(settings, "num_mel_bins", None) or getattr(settings, "input_feat_per_channel", 80)
        frames = 2 * getattr(settings, "max_source_positions", s)
        channels_first = settings.model_type == "whisper"
        shape = (b, bins, frames) if channels_first else (b, s, bins)
        inputs["input_features"] = torch.empty(shape, dtype=_dtype(model), device="meta")
    elif main == "input_values" and "input_values" in accepted:
        inputs["input_values"] = torch.empty((b, s), dtype=_dtype(model), device="meta")
    else:
        # Musicgen's tokens are codebooks of one frame each, a row of the batch apiece.
        inputs["input_ids"] = _tokens(b * getattr(model, "num_codebooks", 1), s)
        if "attention_mask" in accepted:
            inputs["attention_mask"] = torch.ones((b, s), dtype=torch.long, device="meta")
    if "decoder_input_ids" in accepted and getattr(settings, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(b, decoder_s or s)
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return inputs


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def _tokens(b: int, s: int) -> Tensor:
    return torch.zeros((b, s), dtype=torch.long, device="meta")


def _image(settings: Any, b: int) -> Tensor:
    vision = getattr(settings, "vision_config", None) or getattr(settings, "backbone_config", None) or settings
    size: Any = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    channels: int = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    return torch.empty((b, channels, height, width), dtype=_dtype_of(settings), device="meta")


def _dtype_of(settings: Any) -> torch.dtype:
    return getattr(settings, "dtype", None) or getattr(settings, "torch_dtype", None) or torch.float32
