"""What torch itself says a training step takes: MemTracker under FakeTensorMode on the CPU device, with AdamW.

Nothing is allocated and nothing is computed; torch's own modules, autograd and optimizer run over fake tensors. Used by
tests/test_memory_tracker.py and reports/bench/memory_table.py.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from tiny_models import LLAMA
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shapes.workload import ALTERNATE

#: Small and medium configurations of the six families; dropout off unless a case asks for it.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt2": {
        "n_embd": 768,
        "n_layer": 4,
        "n_head": 12,
        "vocab_size": 50257,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "gpt_neox": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "vocab_size": 50432,
    },
    "mixtral": {
        "hidden_size": 1024,
        "intermediate_size": 1792,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "gemma2": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 32000,
        "sliding_window": 256,
    },
    "qwen3": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 32000,
        "tie_word_embeddings": True,
    },
}


#: One kernel over all tensors, which takes nothing besides.
ADAMW = partial(torch.optim.AdamW, fused=True)
#: transformers has no fused kernel for these.
EAGER_ONLY = frozenset(("gemma2", "gpt_oss", "gptj", "bloom", "mpt"))


@dataclass(frozen=True)
class Tracked:
    """Bytes by component: each by itself the largest it ever was, except ``states``, which is what stays.

    ``alone``: the fullest moment of a step of one microbatch, before which no gradient exists; ``accumulated``: of one
    of two, whose second finds the first one's gradients.
    """

    weights: int
    gradients: int
    states: int
    activations: int
    alone: int
    accumulated: int


class Tracker(MemTracker):
    """MemTracker, with the largest activations and temporaries there ever were together."""

    def __init__(self) -> None:
        super().__init__()
        self.activations = 0
        self.largest: Counter[str] = Counter()

    def _update_peak_stats(self, peak_state: Any) -> None:
        """Not each module's own peaks too: nobody reads them, and every product would look at every module."""

    def now(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for snapshot in self._curr_mem_snap.values():
            for kind, size in snapshot.items():
                counts[getattr(kind, "value", kind)] += size
        return counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # asked of fake tensors twice as often as all else; it makes none
            return func(*args, **(kwargs or {}))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        counts = self.now()
        self.activations = max(self.activations, counts["Activation"] + counts["Temp"])
        self.largest |= counts
        return result


@contextmanager
def _as_without_packing() -> Iterator[None]:
    """transformers cannot look into fake position ids, so it would build masks for packed sequences; there are none."""
    masks = transformers.masking_utils
    original = masks.find_packed_sequence_indices
    masks.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masks.find_packed_sequence_indices = original


@contextmanager
def _as_cuda_attends() -> Iterator[None]:
    """CUDA's memory-efficient kernel for values narrower than queries, for which the CPU has no fused one."""
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        if value.shape[-1] == query.shape[-1] or attn_mask is not None:
            return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(query, key, value, None, True, dropout_p, is_causal, scale=options.get("scale"))[0]

    functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def _alternate() -> Any:
    """torchtitan's selective checkpointing by operator: saves fused attention and every second product."""
    aten = torch.ops.aten
    keep = {
        aten.mm.default,
        aten.addmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
    }
    products: Counter[bool] = Counter()

    def policy(context: Any, function: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        product = function in (aten.mm.default, aten.addmm.default)
        products[context.is_recompute] += product
        kept = function in keep and not (product and products[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _again(run: Callable[..., Any]) -> Callable[..., Any]:
    return partial(checkpoint, run, use_reentrant=False)


class _Discarded(torch.autograd.Function):
    """A function whose output goes: Megatron-Core's CheckpointWithoutOutput (tensor_parallel/random.py)."""

    @staticmethod
    def forward(ctx: Any, made: _Made, *inputs: Any) -> Any:
        ctx.made = made
        made.inputs = [one.detach().requires_grad_(one.requires_grad) for one in inputs]
        with torch.no_grad():
            found = made.run(*(one.detach() for one in inputs))
        made.outputs = found if isinstance(found, tuple) else (found,)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        made = ctx.made
        torch.autograd.backward(made.again, gradients)
        inputs, made.inputs, made.again = made.inputs, [], ()
        return None, *(one.grad for one in inputs)


class _Made:
    """One run of a function whose storages are emptied, and filled by another as the gradient ``behind`` it comes."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.inputs: list[Any] = []
        self.outputs: tuple[Any, ...] = ()
        self.again: tuple[Any, ...] = ()

    def __call__(self, *inputs: Any) -> Any:
        return _Discarded.apply(self, *inputs)

    def discard(self, behind: Any) -> None:
        for one in self.outputs:
            one.untyped_storage().resize_(0)
        behind.register_hook(self._fill)

    def _fill(self, _: Any) -> None:
        with torch.enable_grad():
            found = self.run(*self.inputs)
        self.again = found if isinstance(found, tuple) else (found,)
        for one, new in zip(self.outputs, self.again, strict=True):
            one.untyped_storage().resize_(new.untyped_storage().size())
        self.outputs = ()


#: Norms behind a part, where a family has them next to those before one.
_BEHIND = {
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gemma3_text": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
}


def _norms_discarded(layer: Any, behind: tuple[str, ...]) -> None:
    """The norm before each part of a layer, or before both, until what it is for has run."""
    pending: list[_Made] = []
    ran: list[Any] = []

    def made(run: Callable[..., Any], x: Any) -> Any:
        pending.append(_Made(run))
        return pending[-1](x)

    def discard(module: Any, inputs: Any, output: Any) -> None:
        ran.append(module)
        while pending and len(ran) % each == 0:
            pending.pop().discard(output[0] if isinstance(output, tuple) else output)

    children = dict(layer.named_children())
    norms = {name for name, child in children.items() if name[:3] == "ln_" or "norm" in type(child).__name__.lower()}
    parts = children.keys() - norms - {name for name, child in children.items() if not [*child.parameters()]}
    each = len(parts) // len(norms.difference(behind))
    for name, child in children.items():
        if name in parts:
            child.register_forward_hook(discard)
        elif name in norms.difference(behind):
            child.forward = partial(made, child.forward)


def _gates_discarded(experts: Any) -> None:
    """The experts' activation, until their second product has run."""
    gate, run, pending = experts._apply_gate, experts.forward, []

    def apply(x: Any) -> Any:
        pending.append(_Made(gate))
        return pending[-1](x)

    def forward(*inputs: Any, **options: Any) -> Any:
        found = run(*inputs, **options)
        pending.pop().discard(found)
        return found

    experts._apply_gate, experts.forward = apply, forward


def _latent_discarded(attention: Any, file: Any) -> None:
    """DeepSeek-V3's queries, keys and values, made of the latent ones, until the core has run."""

    def up(low: Any, latent: Any, turned: Any, cos: Any, sin: Any) -> Any:
        queries = attention.q_b_proj(low).unflatten(-1, (-1, attention.qk_head_dim)).transpose(1, 2)
        plain, rotary = queries.split([attention.qk_nope_head_dim, attention.qk_rope_head_dim], dim=-1)
        rotary, turned = file.apply_rotary_pos_emb_interleave(rotary, turned.unsqueeze(1), cos, sin)
        return torch.cat((plain, rotary), dim=-1), *attention.expand_kv(latent.unsqueeze(1), turned)

    def forward(hidden_states: Any, position_embeddings: Any, attention_mask: Any = None, **options: Any) -> Any:
        low = attention.q_a_layernorm(attention.q_a_proj(hidden_states))
        sizes = [attention.kv_lora_rank, attention.qk_rope_head_dim]
        latent, turned = attention.kv_a_proj_with_mqa(hidden_states).split(sizes, dim=-1)
        cos, sin = position_embeddings
        made = _Made(lambda *inputs: up(*inputs, cos, sin))
        heads = made(low, attention.kv_a_layernorm(latent), turned)
        core = file.ALL_ATTENTION_FUNCTIONS["sdpa"]
        out, _ = core(attention, *heads, attention_mask, dropout=0.0, scaling=attention.scaling)
        made.discard(out)
        return attention.o_proj(out.flatten(2)), None

    attention.forward = forward


@contextmanager
def _modules_again(model: Any, names: str) -> Iterator[None]:
    """Modules of the model's layers by their names in Megatron-Core, each in torch's own checkpoint, or its own."""
    asked, file = names.split(","), sys.modules[type(model).__module__]
    for module in [*model.modules()]:
        if "layernorm" in asked and isinstance(module, transformers.modeling_layers.GradientCheckpointingLayer):
            _norms_discarded(module, _BEHIND.get(model.config.model_type, ()))
        if "moe_act" in asked and hasattr(module, "_apply_gate"):
            _gates_discarded(module)
        if "mla_up_proj" in asked and hasattr(module, "kv_a_proj_with_mqa"):
            _latent_discarded(module, file)
    for layer in model.modules():
        mlp = next(filter(None, (getattr(layer, name, None) for name in ("mlp", "block_sparse_moe", "ffn"))), None)
        if mlp is None:
            continue
        mixture = hasattr(mlp, "experts")
        if ("moe" if mixture else "mlp") in asked:
            mlp.forward = _again(mlp.forward)
        shared = getattr(mlp, "shared_experts", None) or getattr(mlp, "shared_expert", None)
        if mixture and shared is not None and "shared_experts" in asked:
            shared.forward = _again(shared.forward)
    cores = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    fused, written = cores["sdpa"], getattr(file, "eager_attention_forward", None)
    if "core_attn" in asked:
        cores["sdpa"] = _again(fused)
        if written is not None:
            file.eager_attention_forward = _again(written)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        cores["sdpa"] = fused
        if written is not None:
            file.eager_attention_forward = written  # type: ignore[attr-defined]


def config_of(family: str, **changes: Any) -> Any:
    return transformers.AutoConfig.for_model(family, **{**CONFIGS.get(family, {}), **changes})


def track(
    config: Any,
    b: int,
    s: int,
    *,
    dtype: str = "bf16",
    attention: str = "flash",
    checkpointing: bool | str = False,
    optimizer: Callable[..., torch.optim.Optimizer] = ADAMW,
    train: bool = True,
    modules: str = "",
) -> Tracked:
    """A step of one microbatch and one of two, tracked, after an update that creates the optimizer's states.

    ``modules``: those that run again by themselves (commas).

    Raises whatever transformers or torch raise.
    """
    torch_dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    kernel = "sdpa" if attention == "flash" else "eager"
    if attention == "flash" and getattr(config, "attn_logit_softcapping", None) is not None:
        config.attn_logit_softcapping = None  # transformers' sdpa refuses a softcap
    config.use_cache = False
    with (
        warnings.catch_warnings(),
        FakeTensorMode(allow_non_fake_inputs=True),
        _as_without_packing(),
        _as_cuda_attends(),
    ):
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch_dtype, attn_implementation=kernel)
        for name, module in model.named_modules():
            # transformers 5.24 makes the weights of DeepSeek-V3's gates in fp32 whatever is asked; 5.23 did not.
            if name.endswith(".gate") and module.weight.dtype != torch_dtype:
                module.weight = torch.nn.Parameter(module.weight.detach().to(torch_dtype))
        model.train(train)
        if checkpointing:
            how = {"context_fn": _alternate} if checkpointing == ALTERNATE else {}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **how})
        update = optimizer(model.parameters())
        with _modules_again(model, modules):
            return track_model(model, update, b, s)


def track_model(
    model: Any, update: torch.optim.Optimizer, b: int, s: int, autocast: Callable[[], Any] = nullcontext
) -> Tracked:
    """As ``track``, of a model with its optimizer; its forward runs in what ``autocast`` gives."""
    ids = torch.zeros(b, s, dtype=torch.long)
    tracker, peaks = Tracker(), []
    tracker.track_external(model, update)
    with tracker:
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
        update.step()
        update.zero_grad(set_to_none=True)
        for microbatches in (1, 2):
            tracker.largest.clear()
            for _ in range(microbatches):
                tracker.reset_mod_stats()
                with autocast():
                    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                loss.backward()
                del loss
            gradients = tracker.now()["Gradient"]
            update.step()
            states = tracker.now()["Optstate"]
            update.zero_grad(set_to_none=True)
            peaks.append(tracker.largest["Total"])
    return Tracked(tracker.largest["Parameter"], gradients, states, tracker.activations, *peaks)
