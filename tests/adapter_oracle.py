"""What torch says a step of fine-tuning with peft's adapters takes: MemTracker as in memory_oracle, over peft's LoRA.

peft wraps real modules; their weights are then made fake, so that nothing is computed. bitsandbytes' 4-bit matrices
stay real, and small: its kernels run on the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
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
    run. ``autocast``: as transformers' Trainer and accelerate run the forward. ``base``: of shapes.workload.BASES;
    nf4 is made ready by peft's prepare_model_for_kbit_training, nf4-16 is not.
    """

    targets: tuple[str, ...] = ("q_proj", "v_proj")
    rank: int = 16
    dropout: float = 0.0
    adapters: str = "fp32"
    autocast: bool = True
    base: str = "bf16"


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
    """As ``oracle.track``, of a base with adapters. Raises whatever peft, transformers or torch raise."""
    kernel = "sdpa" if attention == "flash" else "eager"
    if attention == "flash" and getattr(config, "attn_logit_softcapping", None) is not None:
        config.attn_logit_softcapping = None  # transformers' sdpa refuses a softcap
    config.use_cache = False
    loaded = torch.float32 if tuning.base == "fp32" else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=loaded, attn_implementation=kernel)
    if tuning.base.startswith("nf4"):
        _quantise(model)
    model = _wrapped(model, tuning, checkpointing)
    fake: Any = nullcontext()
    if not tuning.base.startswith("nf4"):
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        _make_fake(model, fake)
    with (
        warnings.catch_warnings(),
        fake,
        oracle._as_without_packing(),
        oracle._as_cuda_attends(),
        _hooks_of_frozen_weights(),
        _no_hooks_of_modules(),
        _autocast_is_asked_of_the_cpu(),
    ):
        warnings.simplefilter("ignore")
        update = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], fused=True)
        autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=tuning.autocast)
        tracked = oracle.track_model(model, update, b, s, autocast)
    # The tracker sees parameters; a quantised one's constants are next to it.
    constants = sum(
        one.nbytes
        for weight in model.parameters()
        if (state := getattr(weight, "quant_state", None))
        for one in (state.absmax, state.state2.absmax, state.offset)
    )
    return replace(tracked, alone=tracked.alone + constants, accumulated=tracked.accumulated + constants)


@contextmanager
def _autocast_is_asked_of_the_cpu() -> Iterator[None]:
    """peft's 4-bit layers ask whether CUDA's autocast is on; here it is the CPU's."""
    original = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda device="cpu": original(device)
    try:
        yield
    finally:
        torch.is_autocast_enabled = original


def _quantise(model: Any) -> None:
    """The layers' linear modules as bitsandbytes' Linear4bit: nf4, double quantisation."""
    from bitsandbytes.nn import Linear4bit

    for module in list(model.modules()):
        for name, linear in list(module.named_children()):
            if type(linear) is not torch.nn.Linear or name == "lm_head":
                continue
            narrow = Linear4bit(
                linear.in_features,
                linear.out_features,
                bias=linear.bias is not None,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
            ).to(linear.weight.dtype)
            narrow.load_state_dict(linear.state_dict())
            setattr(module, name, narrow.to("cpu"))
    model.is_loaded_in_4bit = True


def _wrapped(model: Any, tuning: Tuning, checkpointing: bool) -> Any:
    import peft

    if tuning.base == "nf4":
        model = peft.prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=checkpointing, gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    elif checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    lora = peft.LoraConfig(
        r=tuning.rank, target_modules=list(tuning.targets), task_type="CAUSAL_LM", lora_dropout=tuning.dropout
    )
    tuned = peft.get_peft_model(model, lora, autocast_adapter_dtype=tuning.adapters == "fp32").train()
    for weight in tuned.parameters():
        if weight.requires_grad and tuning.adapters == "bf16":  # next to a quantised base peft makes them fp32
            weight.data = weight.data.to(torch.bfloat16)
    return tuned


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
