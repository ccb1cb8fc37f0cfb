"""Fused attention: one operator forward, one backward, whatever kernel torch would choose on a device.

``F.scaled_dot_product_attention`` is met before it is dispatched, because on the meta device it would be taken apart
into the very products that a fused kernel avoids. transformers' "sdpa" function is met one step earlier: there the
key/value heads are not yet repeated, and the layer's window and causality are still known.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from shapes.frozen import Named, replace
from shapes.operators.types import Attention

from .products import dtype_name

if TYPE_CHECKING:
    from .recorder import Recorder
    from .repeats import Follower


#: Queries, keys and values [..., heads, tokens, channels].
Operands = tuple[Tensor, Tensor, Tensor]
#: (causal, window): what a mask lets through.
Form = tuple[bool, int | None]


def core_of(where: str, operands: Operands, seen: Form, *, training: bool = False) -> Attention:
    """The forward core as an operator."""
    (*rows, heads, q_len, width), (*_, kv_heads, kv_len, _), value = (one.shape for one in operands)
    return Attention(
        where,
        "forward",
        prod(rows),
        heads,
        kv_heads,
        q_len,
        kv_len,
        width,
        value[-1],
        causal=seen[0],
        window=seen[1],
        dtype=dtype_name(operands[0].dtype),
        training=training,
    )


@contextmanager
def standing_in(registry: Any, functions: Named) -> Iterator[None]:
    """``functions`` in place of those of these names in a ``registry`` of transformers."""
    registry.update(functions)
    try:
        yield
    finally:
        for name in functions:
            del registry[name]


class _Core(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, recorder: "Recorder", seen: Form, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        where, times, _ = recorder.place()
        ctx.operator = core_of(where, (query, key, value), seen, training=any(ctx.needs_input_grad))
        ctx.recorder, ctx.times = recorder, times
        ctx.mask = None if mask is None else mask.shape
        recorder.add(ctx.operator, times)
        ctx.save_for_backward(query, key, value)
        return query.new_empty((*query.shape[:-1], value.shape[-1]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.recorder.add(replace(ctx.operator, phase="dgrad"), ctx.times)
        made = [torch.empty_like(saved) for saved in ctx.saved_tensors]
        mask = gradient.new_empty(ctx.mask) if ctx.mask is not None and ctx.needs_input_grad[2] else None
        return None, None, mask, *made


class FusedAttention(TorchFunctionMode):
    """Meets ``scaled_dot_product_attention`` while active and records an Attention operator."""

    recorder: Any

    def __init__(self, recorder: "Follower") -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return self._scaled_dot_product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _scaled_dot_product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **_other: Any,
    ) -> Tensor:
        operands = query, key, value
        if query.dim() < 4:  # one head without its dimension
            operands = query.unsqueeze(-3), key.unsqueeze(-3), value.unsqueeze(-3)
        out = self.core(operands, attn_mask, (is_causal, None))
        return out.squeeze(-3) if query.dim() < 4 else out

    def core(self, operands: Operands, mask: Tensor | None, seen: Form, sinks: Tensor | None = None) -> Tensor:
        """One attention core; ``sinks`` are learned logits, which no product reads."""
        return _Core.apply(  # type: ignore[no-any-return, no-untyped-call] # torch leaves it without annotations
            self.recorder, seen, mask, *operands
        )

    @contextmanager
    def in_transformers(self, *, masks: bool) -> Iterator[None]:
        """Also stand in for transformers' "sdpa" attention and mask functions."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        def attention(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
        ) -> tuple[Tensor, None]:
            causal = kwargs.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            seen = bool(causal) and query.shape[-2] > 1, kwargs.get("sliding_window")
            out = self.core((query, key, value), attention_mask, seen, kwargs.get("s_aux"))
            return out.transpose(1, 2).contiguous(), None

        no_masks = {} if masks else {"sdpa": lambda *_args, **_kwargs: None}
        with (
            standing_in(ALL_ATTENTION_FUNCTIONS, {"sdpa": attention}),
            standing_in(ALL_MASK_ATTENTION_FUNCTIONS, no_masks),
        ):
            yield
