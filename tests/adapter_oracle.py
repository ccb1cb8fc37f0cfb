"""What torch says a step of fine-tuning with peft's adapters takes: MemTracker as in memory_oracle, over peft's LoRA.

peft wraps real modules; their weights are then made fake, so that nothing is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import memory_oracle as oracle
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import mod_tracker

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned.

    ``adapters``: their element type; fp32 is peft's own choice (autocast_adapter_dtype), bf16 what TRL and torchtune
    run. ``autocast``: as transformers' Trainer and accelerate run the forward.
    """

    targets: tuple[str, ...] = ("q_proj", "v_proj")
    rank: int = 16
    dropout: float = 0.0
    adapters: str = "fp32"
    autocast: bool = True


class _NoHook:
    def remove(self) -> None: ...


@contextmanager
def _hooks_of_frozen_weights() -> Iterator[None]:
    """MemTracker hooks every weight's gradient, which torch refuses of a frozen one."""
    names = ("register_hook", "register_post_accumulate_grad_hook")
    originals = {name: getattr(torch.Tensor, name) for name in names}

    def hooking(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda one, hook: original(one, hook) if one.requires_grad else _NoHook()

    try:
        for name, original in originals.items():
            setattr(torch.Tensor, name, hooking(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)


@contextmanager
def _no_hooks_of_modules() -> Iterator[None]:
    """ModTracker's hooks on modules' gradients, which only say whose a byte is, are circles of references.

    Through them each microbatch's graph stays for good, and with it the leaf that checkpointing has transformers make
    of the embedding's output (enable_input_require_grads) and that leaf's gradient.
    """
    original = mod_tracker.register_multi_grad_hook
    mod_tracker.register_multi_grad_hook = lambda *args, **options: _NoHook()
    try:
        yield
    finally:
        mod_tracker.register_multi_grad_hook = original


def track_adapted(
    config: Any, b: int, s: int, tuning: Tuning, *, attention: str = "flash", checkpointing: bool = False
) -> oracle.Tracked:
    """As ``oracle.track``, of a bf16 base with adapters. Raises whatever peft, transformers or torch raise."""
    kernel = "sdpa" if attention == "flash" else "eager"
    if attention == "flash" and getattr(config, "attn_logit_softcapping", None) is not None:
        config.attn_logit_softcapping = None  # transformers' sdpa refuses a softcap
    config.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=kernel)
    model = _wrapped(model, tuning, checkpointing)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    _make_fake(model, fake)
    with (
        warnings.catch_warnings(), fake, oracle._as_without_packing(), oracle._as_cuda_attends(),
        _hooks_of_frozen_weights(), _no_hooks_of_modules(),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        update = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
        autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=tuning.autocast)
        return oracle.track_model(model, update, b, s, autocast)


def _wrapped(model: Any, tuning: Tuning, checkpointing: bool) -> Any:
    import peft

    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    lora = peft.LoraConfig(
        r=tuning.rank, target_modules=list(tuning.targets), task_type="CAUSAL_LM", lora_dropout=tuning.dropout
    )
    return peft.get_peft_model(model, lora, autocast_adapter_dtype=tuning.adapters == "fp32").train()


def _make_fake(model: Any, mode: FakeTensorMode) -> None:
    """Put fake tensors in the place of a module's weights and buffers; tied ones stay tied."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, real in tensors.items():
                if real is None:
                    continue
                if id(real) not in made:
                    fake = mode.from_tensor(real.detach())
                    weight = isinstance(real, torch.nn.Parameter)
                    made[id(real)] = torch.nn.Parameter(fake, requires_grad=real.requires_grad) if weight else fake
                tensors[name] = made[id(real)]
