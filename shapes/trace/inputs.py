"""What a model is called with: inputs of the right shapes, and answers where it asks for values that there are not.

Answers are for transformers' own models alone. A mask helper asks whether every token is attended to: yes. Whether one
number equals another: no. An expert loop asks which experts were hit, by which tokens and by how many: all of them, and
each by an even share. Anybody else's ``.item()`` is refused, because an answer would choose a branch of their code for
them.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


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


class DataAnswers(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotation there
    """Answers scalars (True, 0, 1.0), ``nonzero`` (even routing over ``experts``) and the like on the meta device.

    ``routed``: tokens times the experts each visits, the sum of an expert layer's ``expert_size.tolist()``.
    """

    def __init__(self, experts: int | None = None, routed: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no annotation there
        self.experts = experts
        self.routed = routed
        self.asked: set[str] = set()
        self._untrue: list[Tensor] = []
        # By identity, and kept alive so that it is no other tensor's.
        self._known: dict[int, tuple[Tensor, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name == "aten::_local_scalar_dense" and args[0].is_meta:
            self.asked.add("item")
            if id(args[0]) in self._known:
                return self._known[id(args[0])][1]
            return False if any(args[0] is tensor for tensor in self._untrue) else _scalar(args[0])
        if name == "aten::eq" and args[0].is_meta and args[0].dim() == 0:
            # "Is this expert the one past the last?": one number is seldom another.
            self._untrue.append(out := func(*args, **(kwargs or {})))
            return out
        if self.routed is not None and (rows := self._rows(name, func, args, kwargs or {})) is not None:
            self.asked.add("rows an expert")
            return rows
        if name == "aten::equal" and args[0].is_meta:
            self.asked.add("equal")
            return True
        if name in ("aten::nonzero", "aten::nonzero_numpy") and args[0].is_meta:
            self.asked.add("nonzero")
            return args[0].new_empty((self._hits(args[0]), args[0].dim()), dtype=torch.long)
        if name == "aten::bincount" and args[0].is_meta:
            self.asked.add("bincount")
            length = max(args[2] if len(args) > 2 else (kwargs or {}).get("minlength", 0), self.experts or 1)
            return args[0].new_empty((length,), dtype=torch.long)
        if name in ("aten::masked_select", "aten::index") and args[0].is_meta:
            masked = _masked(name, args, self._hits)
            if masked is not None:
                self.asked.add("boolean mask")
                return masked
        return func(*args, **(kwargs or {}))

    def _rows(self, name: str, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """How many rows each expert gets, where it is read as a list or one by one and added up; None: not asked."""
        if name == "aten::_to_copy" and options.get("device") == torch.device("cpu") and self._counts_rows(args[0]):
            with torch.device("cpu"):
                return torch.tensor(self._shares(), dtype=args[0].dtype)
        if name == "aten::unbind" and self._counts_rows(args[0]):
            made = func(*args, **options)
            self._known |= {id(row): (row, share) for row, share in zip(made, self._shares(), strict=True)}
            return made
        if name == "aten::add" and any(id(term) in self._known for term in args[:2]):
            terms = [self._known[id(term)][1] if id(term) in self._known else term for term in args[:2]]
            if not any(isinstance(term, Tensor) for term in terms):
                out = func(*args, **options)
                self._known[id(out)] = out, sum(terms)
                return out
        return None

    def _counts_rows(self, tensor: Tensor) -> bool:
        integers = not tensor.is_floating_point() and tensor.dtype != torch.bool
        return tensor.is_meta and integers and tensor.dim() == 1 and tensor.numel() == self.experts

    def _shares(self) -> list[int]:
        experts = self.experts or 1
        even, left = divmod(self.routed or 0, experts)
        return [even + (expert < left) for expert in range(experts)]

    def _hits(self, mask: Tensor) -> int:
        if self.experts is None:
            return mask.numel()
        if mask.dim() == 1 and mask.numel() in (self.experts, self.experts + 1):
            # One entry an expert, and perhaps one for tokens of no expert here.
            return self.experts
        return max(mask.numel() // self.experts, 1)


def _masked(name: str, args: Any, hits: Callable[[Tensor], int]) -> Tensor | None:
    tensor: Tensor = args[0]
    if name == "aten::masked_select":
        return tensor.new_empty((hits(args[1]),))
    masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if len(masks) != 1 or args[1][0] is None:
        return None
    return tensor.new_empty((hits(masks[0]), *tensor.shape[masks[0].dim() :]))


def _scalar(tensor: Tensor) -> bool | int | float:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 0
