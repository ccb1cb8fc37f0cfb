"""What torch itself requests of its allocator in training steps: storages that come and go, in their order.

transformers' classes, autograd and AdamW run over fake tensors; nothing is allocated. Used by tests/test_allocator.py
and reports/bench/memory_peaks.py.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
import transformers
from memory_oracle import ADAMW, _as_without_packing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Requests(TorchDispatchMode):
    """``events``: (which storage, bytes that come or, below 0, go)."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self._watched: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}

    def watch(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._watched:
            return
        event = len(self.events), storage.nbytes()
        self.events.append(event)
        self._watched[key] = event[0], weakref.ref(storage, partial(self._gone, key, *event))

    def _gone(self, key: int, name: int, size: int, _: object) -> None:
        self.events.append((name, -size))
        del self._watched[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self.watch(one)
        return result


def requests(
    config: dict[str, Any],
    b: int,
    s: int,
    *,
    dtype: torch.dtype = torch.float32,
    checkpointing: bool = False,
    microbatches: int = 1,
    steps: int = 3,
) -> list[tuple[int, int]]:
    """Of so many steps of a causal model of the ``config``, without dropout."""
    mode = Requests()
    with FakeTensorMode(), _as_without_packing(), mode:
        settings = transformers.AutoConfig.for_model(**config, attn_implementation="sdpa", use_cache=False)
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for weight in model.parameters():
            mode.watch(weight)
        optimizer = ADAMW(model.parameters())
        for _ in range(steps):
            for _ in range(microbatches):
                tokens = torch.ones(b, s, dtype=torch.long)
                positions = torch.arange(s)[None]
                model(input_ids=tokens, labels=tokens, position_ids=positions).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return mode.events
