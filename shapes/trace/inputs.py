"""A model's arguments: inputs of the right shapes, and answers where it asks for values that there are not.

Answers are for transformers' own models. A mask helper asks whether every token is attended to: yes. Whether one number
equals another: no. An expert loop asks which experts were hit, by which tokens and by how many: all of them, and each
by an even share. In other code only a loop over experts is answered. Any other ``.item()`` is refused, because an
answer would choose a branch of that code.
"""

from collections.abc import Callable, Container
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from shapes.errors import InputError
from shapes.frozen import Triple, Values

from .dimensions import NAMES, size_in
from .products import tensors_in


def example_inputs(model: nn.Module, *, b: int, s: int, decoder_s: int | None = None) -> Values:
    """Keyword arguments of ``model``: b sequences of s tokens, images and spectrograms of the configured size."""
    settings = model.config
    accepted = signature(model.forward).parameters
    try:
        inputs = _main_input(model, settings, accepted, b, s)
    except AttributeError as error:
        raise InputError(f"what {type(model).__name__} reads is not known: {error}") from error
    if "decoder_input_ids" in accepted and getattr(settings, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(b, decoder_s or s)
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    if hasattr(settings, "logit_scale_init_value"):  # as CLIP, which compares texts with images
        inputs["pixel_values"] = torch.empty(
            (b, *_image(settings)), dtype=next(model.parameters()).dtype, device="meta"
        )
    return inputs


def _main_input(model: nn.Module, settings: Any, accepted: Container[str], b: int, s: int) -> Values:
    main = getattr(model, "main_input_name", "input_ids")
    if "pixel_values" in accepted and "input_ids" not in accepted:
        main = "pixel_values"
    for row in NAMES["inputs"] if main in accepted else ():
        if row["name"] != main or row.get("without") in accepted or not settings.model_type.startswith(row["types"]):
            continue
        bins, *_ = size_in(settings, NAMES["attributes"]["bins"]) or [80]  # a name of the table's
        shape = eval(row["shape"], {}, locals() | {"image": _image(settings)})
        found = {main: torch.empty(shape, dtype=next(model.parameters()).dtype, device="meta")}
        if "past_values_padding" in accepted:  # TimesFM's head makes these for itself
            found |= {"past_values_padding": _tokens(*shape), "freq": _tokens(b, 1)}
        return found
    # Musicgen's tokens are codebooks of one frame each, a row of the batch apiece.
    inputs = {"input_ids": _tokens(b * getattr(model, "num_codebooks", 1), s)}
    if "attention_mask" in accepted:
        inputs["attention_mask"] = _tokens(b, s)  # which has no values either
    return inputs


def _tokens(b: int, s: int) -> Tensor:
    return torch.zeros((b, s), dtype=torch.long, device="meta")


def _image(settings: Any) -> Triple:
    inner = getattr(settings, "vision_config", None) or getattr(settings, "backbone_config", None)
    if inner is not None:
        return _image(inner)
    size = getattr(settings, "image_size", None) or getattr(settings, "crop_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    channels, *_ = size_in(settings, ("num_channels", "in_channels")) or [3]
    return channels, height, width


class DataAnswers(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotation there
    """Answers scalars (True, 0, 1.0), ``nonzero`` (even routing over ``experts``) and the like on the meta device.

    ``routed``: tokens times the experts each visits, the sum of an expert layer's ``expert_size.tolist()``.
    """

    def __init__(self, experts: int | None = None, routed: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no annotation there
        self.experts = experts
        self.routed = routed
        self.asked = set[str]()
        self._untrue = list[Tensor]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options, name = kwargs or {}, func._schema.name
        asked, answer = _ANSWERS.get(name, ("", None))
        if answer and args[0].is_meta and (found := answer(self, args, options)) is not None:
            self.asked.add(asked)
            return found
        out = func(*args, **options)
        if name == "aten::eq" and args[0].is_meta and args[0].dim() == 0:
            # "Is this expert the one past the last?": one number is seldom another.
            self._untrue.append(out)
        return out

    def _scalar(self, args: Any, options: Any) -> bool | int | float:
        tensor = args[0]
        if tensor.dtype == torch.bool:
            return not any(tensor is untrue for untrue in self._untrue)
        return 1.0 if tensor.is_floating_point() else 0

    def _bincount(self, args: Any, options: Any) -> Tensor:
        least = args[2] if len(args) > 2 else options.get("minlength", 0)
        return args[0].new_empty((max(least, self.experts or 1),), dtype=torch.long)  # type: ignore[no-any-return]

    def _indexed(self, args: Any, options: Any) -> Tensor | None:
        tensor: Tensor = args[0]
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        if len(masks) != 1 or args[1][0] is None:
            return None
        return tensor.new_empty((self._hits(masks[0]), *tensor.shape[masks[0].dim() :]))

    # How many rows each expert gets, where that is read as a list.

    def _listed(self, args: Any, options: Any) -> Tensor | None:
        counts = args[0]
        integers = not counts.is_floating_point() and counts.dtype != torch.bool
        asked = options.get("device") == torch.device("cpu") and integers and counts.shape == (self.experts,)
        if not (asked and self.experts and self.routed):
            return None
        even, left = divmod(self.routed, self.experts)
        shares = [even + (expert < left) for expert in range(self.experts)]
        with torch.device("cpu"):
            return torch.tensor(shares, dtype=counts.dtype)

    def _hits(self, mask: Tensor) -> int:
        if self.experts is None:
            return mask.numel()
        if mask.dim() == 1 and mask.numel() in (self.experts, self.experts + 1):
            # One entry an expert, and perhaps one for tokens of no expert here.
            return self.experts
        return self._share(mask, self.experts)

    def _share(self, mask: Tensor, experts: int) -> int:
        return max(mask.numel() // experts, 1)


class LoopAnswers(DataAnswers):  # type: ignore[no-untyped-call] # as its base
    """Which tokens each expert gets in a loop of a module of one's own: an even share.

    ``running``: the module that runs now; none does in the backward pass, which asks for the last one's again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.running: Callable[[], list[nn.Module]] = list
        # Experts' numbers, and masks made of them -> how many choices they are: of tokens times experts a token.
        self._choices = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, read = func._schema.name, tensors_in((args, kwargs))
        choices = [*filter(None, map(self._choices.get, read))]
        many = max(choices, default=0)
        if self._asked(name, read, many):
            out = super().__torch_dispatch__(func, types, args, kwargs)
        else:
            out = func(*args, **(kwargs or {}))
        # A part of experts' numbers is as many choices as it has elements; a row of one-hot ones, all of them.
        part = name in _CHOOSES or (name in _PARTS and choices == [*map(Tensor.numel, read)])
        for one in tensors_in(out):
            if not one.is_floating_point():
                self._choices[one] = one.numel() if part else many
        return out

    def _asked(self, name: str, read: list[Tensor], many: int) -> bool:
        """Whether a loop over experts asks."""
        if name not in _LOOPS and (name != "aten::_local_scalar_dense" or read[0].dtype != torch.bool):
            return False
        for module in self.running():
            lists = [len(child) for child in module.children() if isinstance(child, nn.ModuleList)]
            self.experts, self.routed = max(lists, default=None), many
        return bool(self.experts)

    def _share(self, mask: Tensor, experts: int) -> int:
        if not self.routed:
            raise RuntimeError(f"data-dependent tokens of {experts} experts, by none of {', '.join(_CHOOSES)}")
        return -(-self.routed // experts)


#: Operator -> the question in a note's words, and what answers it (None: it is none after all).
_ANSWERS = {
    "aten::_local_scalar_dense": ("item", DataAnswers._scalar),
    "aten::equal": ("equal", lambda *_: True),
    **dict.fromkeys(
        ("aten::nonzero", "aten::nonzero_numpy"),
        ("nonzero", lambda own, args, _: args[0].new_empty((own._hits(args[0]), args[0].dim()), dtype=torch.long)),
    ),
    "aten::bincount": ("bincount", DataAnswers._bincount),
    "aten::masked_select": ("boolean mask", lambda own, args, _: args[0].new_empty((own._hits(args[1]),))),
    "aten::index": ("boolean mask", DataAnswers._indexed),
    "aten::_to_copy": ("rows an expert", DataAnswers._listed),
}
#: Operators with which a loop over experts asks.
_LOOPS = _ANSWERS.keys() - {"aten::_local_scalar_dense", "aten::equal"}
#: Operators that choose experts, and those that take a part of their numbers.
_CHOOSES, _PARTS = NAMES["operators"]["chooses"], NAMES["operators"]["parts"]
