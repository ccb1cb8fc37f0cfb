"""Modules of one's own: recognised and proven, or named; loops over experts and checkpointing run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sizer
from shapes.errors import InputError
from shapes.model import MoeShape
from shapes.operators import operators
from shapes.workload import Workload
from sizer.subject import read_subject

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 # after the skip
from torch.nn import functional  # noqa: E402
from torch.nn.attention import flex_attention as flexible  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

IDS = torch.zeros(2, 64, dtype=torch.long)


class Attend(nn.Module):
    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.mask = nn.Linear(96, 288), nn.Linear(96, 96), mask

    def forward(self, x: Any) -> Any:
        b, s, h = x.shape
        q, k, v = (y.view(b, s, 6, -1).transpose(1, 2) for y in self.c_attn(x).split(h, dim=2))
        how = {"is_causal": True} if self.mask is None else {"attn_mask": self.mask(s)}
        return self.c_proj(functional.scaled_dot_product_attention(q, k, v, **how).transpose(1, 2).reshape(b, s, h))


def dense(width: int = 384) -> nn.Module:
    return nn.Sequential(nn.Linear(96, width), nn.GELU(), nn.Linear(width, 96))


class Experts(nn.Module):
    """Four experts of two linears, two a token, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(96, 4, bias=False)
        self.experts = nn.ModuleList(dense() for _ in range(4))

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(flat[token]) * weights[token, slot, None])
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, mlp: nn.Module, mask: Any) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(96), nn.LayerNorm(96)
        self.attn, self.mlp = Attend(mask), mlp

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Nano(nn.Module):
    def __init__(self, *, again: bool | None = None, mlp: Callable[[], nn.Module] = dense, mask: Any = None) -> None:
        super().__init__()
        self.again = again
        self.wte, self.wpe, self.ln_f = nn.Embedding(320, 96), nn.Embedding(128, 96), nn.LayerNorm(96)
        self.h = nn.ModuleList(Block(mlp(), mask) for _ in range(3))
        self.lm_head = nn.Linear(96, 320, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x) if self.again is None else checkpoint(block, x, use_reentrant=self.again)
        return self.lm_head(self.ln_f(x))


class Named(Nano):
    """Called by names of its own, positions among them, the first of which is no token."""

    def forward(self, positions: Any, x: Any, keep_mask: Any = None) -> Any:
        y = self.wte(x) + self.wpe(positions)
        for block in self.h:
            y = block(y)
        return self.lm_head(self.ln_f(y))


def test_arguments_by_a_module_s_own_names_are_understood_as_those_in_order_are() -> None:
    places = torch.arange(64).expand(2, 64)
    masked = {"positions": places, "x": IDS, "keep_mask": IDS > 0}
    for module, inputs in ((Nano(), {"ids": IDS}), (Named(), {"positions": places, "x": IDS}), (Named(), masked)):
        subject = read_subject(module, example_inputs=inputs, dtype="bf16")
        assert subject.path == "recognised"
        assert subject.operators == read_subject(Nano(), example_inputs=IDS, dtype="bf16").operators


@pytest.mark.parametrize("again", [None, True, False])
def test_a_gpt_of_one_s_own_answers_as_a_formula_does(again: bool | None) -> None:
    module = Nano(again=again)
    subject = read_subject(module, example_inputs=IDS, dtype="bf16")
    assert subject.path == "recognised"
    # What is run again is the workload's to say.
    assert any("torch.utils.checkpoint is not followed" in note for note in subject.notes) == (again is not None)
    assert subject.parameters == sum(parameter.numel() for parameter in module.parameters())
    model = subject.whole()
    assert (model.layers, model.hidden, model.vocab, model.tied, model.max_positions) == (3, 96, 320, True, 128)
    assert model.attention is not None
    assert model.attention.causal
    assert subject.operators == operators(model, Workload(b=2, s=64, dtype="bf16"))
    halves = sizer.check(module, example_inputs=IDS, dtype="bf16", tp=2)
    assert halves.step is not None
    assert module.training


@pytest.mark.parametrize("mask", [lambda s: torch.ones(s, s, dtype=torch.bool).tril(), None])
def test_a_mask_that_a_module_makes_is_what_it_lets_through(mask: Any) -> None:
    subject = read_subject(Nano(mask=mask), example_inputs=IDS, dtype="bf16")
    attention = subject.whole().attention
    assert attention is not None
    assert (attention.causal, getattr(attention, "window", None)) == (True, None)


def causal(_b: Any, _h: Any, q: Any, k: Any) -> Any:
    return q >= k


def sliding(_b: Any, _h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 16)


def block_mask(seen: Callable[..., Any], s: int) -> Any:
    return flexible.create_block_mask(seen, None, None, s, s, device="cpu")


@pytest.mark.parametrize(
    ("how", "form"),
    [
        (lambda s: {"block_mask": block_mask(causal, s)}, (True, None)),
        (lambda s: {"block_mask": block_mask(sliding, s), "scale": 0.1, "enable_gqa": True}, (True, 16)),
        (lambda _: {"score_mod": lambda one, _b, _h, q, k: torch.where(q >= k, one, -float("inf"))}, (True, None)),
        (
            lambda s: {"score_mod": lambda one, _b, _h, q, k: one - (q - k), "block_mask": block_mask(causal, s)},
            (True, None),
        ),
        (lambda _: {}, (False, None)),
    ],
    ids=["mask", "window", "scores", "both", "none"],
)
def test_flex_attention_sees_what_its_mask_and_its_scores_let_through(how: Any, form: tuple[bool, int | None]) -> None:
    class Flexible(Attend):
        def forward(self, x: Any) -> Any:
            b, s, h = x.shape
            q, k, v = (y.view(b, s, 6, -1).transpose(1, 2) for y in self.c_attn(x).split(h, dim=2))
            out, _ = flexible.flex_attention(q, k, v, return_lse=True, **how(s))
            return self.c_proj(out.transpose(1, 2).reshape(b, s, h))

    module, code = Nano(), flexible.flex_attention.__code__
    for block in module.h:
        block.attn = Flexible(None)
    subject = read_subject(module, example_inputs=IDS, dtype="bf16")
    attention = subject.whole().attention
    assert attention is not None
    assert (attention.causal, getattr(attention, "window", None)) == form
    assert flexible.flex_attention.__code__ is code


def test_a_mask_of_unknown_form_is_not_proven() -> None:
    subject = read_subject(Nano(mask=lambda s: torch.rand(s, s)), example_inputs=IDS, dtype="bf16")
    assert subject.model is None
    assert any("mask of unknown form" in one.reason for one in subject.unproven)


class Written(Experts):
    """The same with rows written into by their numbers, which the backward pass asks for again."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            out[token] += weights[token, slot, None] * expert(flat[token])
        return out.view_as(x)


class OneHot(Experts):
    """As transformers 4 wrote Mixtral: a mask of one-hot choices, an expert a row."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = functional.softmax(self.router(flat), dim=1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out, mask = torch.zeros_like(flat), functional.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        for number in range(4):
            slot, token = torch.where(mask[number])
            rows = self.experts[number](flat[None, token].reshape(-1, 96)) * weights[token, slot, None]
            out.index_add_(0, token, rows.to(flat.dtype))
        return out.view_as(x)


class Masked(Experts):
    """Tokens by a mask of True and False, a question whether any is there, and their weights by another."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = self.router(flat).topk(2, dim=-1)
        weights, out = weights.softmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mask = (chosen == number).any(dim=-1)
            if mask.any():
                weight = (weights * (chosen == number)).sum(-1)
                out[mask] += weight[mask].unsqueeze(-1) * expert(flat[mask])
        return out.view_as(x)


class Swiglu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*sizes, bias=False) for sizes in ((96, 160), (160, 96), (96, 160)))

    def forward(self, x: Any) -> Any:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Gated(Experts):
    """Experts of three matrices, by ``torch.nonzero``."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Swiglu() for _ in range(4))

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = self.router(flat).sigmoid().topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.nonzero(chosen == number, as_tuple=True)
            if len(token):
                out = out.index_add(0, token, expert(flat[token]) * weights[token, slot].unsqueeze(1))
        return out.view_as(x)


class Sorted(Gated):
    """As DeepSeek's inference code: tokens sorted by expert, and slices of as many as each expert has."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        order = chosen.view(-1).argsort()
        rows, start, outs = flat[order // 2], 0, []
        for number, many in enumerate(torch.bincount(chosen.view(-1), minlength=4).cpu().tolist()):
            if many:
                outs.append(self.experts[number](rows[start : start + many]))
            start += many
        back = torch.empty_like(rows)
        back[order] = torch.cat(outs)
        return (back.view(-1, 2, 96) * weights[..., None]).sum(1).view_as(x)


@pytest.mark.parametrize("style", [Experts, Written, OneHot, Masked, Gated, Sorted])
def test_a_loop_over_experts_is_a_mixture_with_even_routing_which_is_said(style: type[Experts]) -> None:
    module = Nano(mlp=style)
    subject = read_subject(module, example_inputs=IDS, dtype="bf16")
    assert (subject.path, subject.unproven) == ("recognised", ())
    assert any("routing: even" in note for note in subject.notes)
    assert subject.parameters == sum(parameter.numel() for parameter in module.parameters())
    model = subject.whole()
    mlp = model.stacks[0].blocks[0].mlp
    assert isinstance(mlp, MoeShape)
    width, gated = (160, True) if issubclass(style, Gated) else (384, False)
    assert (model.layers, mlp.experts, mlp.top_k, mlp.width, mlp.gated) == (3, 4, 2, width, gated)
    assert subject.operators == operators(model, Workload(b=2, s=64, dtype="bf16"))
    assert sizer.check(module, example_inputs=IDS, dtype="bf16", ep=2).step is not None


class Thresholded(Experts):
    """As many experts a token as are likely: even shares say nothing of how many."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        likely, out = self.router(flat).softmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mask = likely[:, number] > 0.3
            out[mask] += expert(flat[mask]) * likely[mask, number, None]
        return out.view_as(x)


def test_a_loop_whose_rows_even_routing_does_not_say_is_named_and_refused() -> None:
    with pytest.raises(InputError, match=r"Nano: h\.\*\.mlp: .*tokens of 4 experts"):
        read_subject(Nano(mlp=Thresholded), example_inputs=IDS, dtype="bf16")


class FirstChoice(Experts):
    """The first of two choices alone, each token's own: half the rows of both."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mask = chosen[:, 0] == number
            out[mask] += expert(flat[mask]) * weights[mask, :1]
        return out.view_as(x)


class Argmax(Experts):
    """One expert a token, after a layer of two."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        likely = self.router(flat).softmax(-1)
        chosen, out = likely.argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            out[rows] = expert(flat[rows]) * likely[rows, number, None]
        return out.view_as(x)


@pytest.mark.parametrize("style", [FirstChoice, Argmax])
def test_each_layer_s_experts_get_the_rows_of_its_own_choices(style: type[Experts]) -> None:
    module = Nano(mlp=style)
    module.h[0].mlp = Experts()
    subject = read_subject(module, example_inputs=IDS, dtype="bf16")
    mlps = [block.mlp for block in subject.whole().stacks[0].blocks]
    assert [mlp.top_k for mlp in mlps if isinstance(mlp, MoeShape)] == [2, 1]


class Uneven(Experts):
    """As many parameters as four alike, in experts of three widths."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(dense(width) for width in (256, 384, 384, 512))


class Unused(Experts):
    """A fourth expert that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.experts.append(dense())

    def forward(self, x: Any) -> Any:
        held = self.experts
        try:
            self.experts = held[:4]
            return super().forward(x)
        finally:
            self.experts = held


class Twice(Experts):
    """Choice after choice, each expert twice."""

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 96)
        weights, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for slot in range(2):
            for number, expert in enumerate(self.experts):
                mask = chosen[:, slot] == number
                out[mask] += expert(flat[mask]) * weights[mask, slot, None]
        return out.view_as(x)


@pytest.mark.parametrize("style", [Uneven, Unused, Twice])
def test_experts_that_are_no_even_mixture_are_named_and_without_a_price(style: type[Experts]) -> None:
    module = Nano(mlp=style)
    subject = read_subject(module, example_inputs=IDS, dtype="bf16")
    assert (subject.path, subject.model) == ("trace", None)
    assert subject.unproven
    assert subject.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert sizer.check(module, example_inputs=IDS, dtype="bf16").step is None


@pytest.mark.slow
def test_an_infinity_is_read_as_transformers_writes_it() -> None:
    transformers = pytest.importorskip("transformers")
    from shapes.trace.config import load_config

    settings, _ = load_config({"model_type": "mamba2", "time_step_limit": [0.0, {"__float__": "Infinity"}]})
    assert isinstance(settings, transformers.PretrainedConfig)
    assert tuple(settings.time_step_limit) == (0.0, float("inf"))


def test_autocast_that_a_module_holds_by_its_own_name_is_left_alone() -> None:
    """x-transformers' rotary embedding asks torch.amp's class for the device of the tensor at hand."""
    from torch.amp import autocast

    class Own(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            with autocast(x.device.type, enabled=False):
                return super().forward(x)

    from shapes.trace import trace

    traced = trace(Own(8, 16), torch.zeros(4, 8), phase="infer")
    assert [(one.m, one.n, one.k) for one in traced.operators] == [(4, 16, 8)]


class Written(nn.Module):
    """x-transformers' way: keys and values of one matrix, and attention written out under a triangle of its own."""

    def __init__(self, size: int = 128) -> None:
        super().__init__()
        self.size, self.norm, self.mlp = size, nn.LayerNorm(size), nn.Linear(size, 4 * size)
        self.to_q, self.to_kv = nn.Linear(size, size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.to_out, self.down = nn.Linear(size, size, bias=False), nn.Linear(4 * size, size)
        self.behind = nn.LayerNorm(size)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        normed = self.norm(x)
        parts = (self.to_q(normed), *self.to_kv(normed).chunk(2, dim=-1))
        q, k, v = (one.reshape(b, s, 16, -1).transpose(1, 2) for one in parts)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.35
        later = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, -torch.finfo(scores.dtype).max).softmax(-1)
        x = x + self.to_out(torch.einsum("bhij,bhjd->bhid", weights, v).transpose(1, 2).reshape(b, s, -1))
        return x + self.down(functional.gelu(self.mlp(self.behind(x))))


class Summed(nn.Module):
    """A gated MLP but for a running sum over the tokens."""

    def __init__(self, sums: bool) -> None:
        super().__init__()
        self.sums = sums
        self.gate, self.up, self.down = nn.Linear(128, 256), nn.Linear(128, 256), nn.Linear(256, 128)

    def forward(self, x: Any) -> Any:
        inner = torch.sigmoid(self.gate(x)) * self.up(x)
        return x + self.down(inner.cumsum(1) if self.sums else inner)


class Turning(nn.Module):
    """A recurrence as a loop over the tokens in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(128, 128)

    def forward(self, x: Any) -> Any:
        state, out = torch.zeros_like(x[:, 0]), []
        for token in self.step(x).unbind(1):
            state = torch.tanh(state * 0.9 + token) + torch.sigmoid(state) * token
            out.append(state)
        return x + torch.stack(out, 1)


def of_layers(*layers: nn.Module) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layers = nn.Embedding(512, 128), nn.ModuleList(layers)
            self.head = nn.Linear(128, 512, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Model()


class Repeating(nn.Module):
    """Meta's: keys and values of two heads, which are repeated for eight; angles in a table that is no buffer."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.wq, self.wo = nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False)
        self.wk, self.wv = nn.Linear(128, 32, bias=False), nn.Linear(128, 32, bias=False)
        angles = torch.outer(torch.arange(512.0), 10000.0 ** -(torch.arange(0, 16, 2) / 16))
        self.fused, self.table = fused, torch.polar(torch.ones_like(angles), angles)

    def rotated(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * self.table[: x.shape[1], None]).flatten(3)
        return turned.type_as(x)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q = self.rotated(self.wq(x).view(b, s, 8, 16))
        k, v = self.rotated(self.wk(x).view(b, s, 2, 16)), self.wv(x).view(b, s, 2, 16)
        k, v = (one[:, :, :, None].expand(b, s, 2, 4, 16).reshape(b, s, 8, 16) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        if self.fused:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.full((s, s), float("-inf"), device=x.device).triu(1)
            out = (q @ k.transpose(2, 3) / 4 + hidden).softmax(-1) @ v
        return self.wo(out.transpose(1, 2).reshape(b, s, 128))


@pytest.mark.parametrize("fused", [True, False])
def test_keys_that_a_module_repeats_and_tables_that_are_no_buffers_are_understood(*, fused: bool) -> None:
    module = of_layers(Repeating(fused=fused), Repeating(fused=fused))
    core = read_subject(module, example_inputs=IDS).whole().attention
    assert core is not None
    assert (core.heads, core.kv_heads, core.head_dim, core.rotary_dim, core.causal) == (8, 2, 16, 16, True)


class Halved(nn.Module):
    """Keys and values of one product, repeated for all heads; rotated by positions that are given, or not at all."""

    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.turned, self.q, self.kv, self.o = turned, nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x: Any, positions: Any) -> Any:
        b, s, _ = x.shape
        q, (k, v) = self.q(x).view(b, s, 8, 16), (one.view(b, s, 4, 16) for one in self.kv(x).chunk(2, -1))
        if self.turned:
            angles = positions[..., None, None] * 10000.0 ** -(torch.arange(8, device=x.device) / 8).repeat(2)
            cos, sin = angles.cos(), angles.sin()
            q, k = (one * cos + torch.cat([-one[..., 8:], one[..., :8]], -1) * sin for one in (q, k))
        k, v = (one.repeat_interleave(2, dim=2) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(b, s, 128))


class Placed(nn.Module):
    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(320, 128), nn.Linear(128, 320)
        self.layers = nn.ModuleList(Halved(turned=turned) for _ in range(2))

    def forward(self, ids: Any, position_ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(functional.layer_norm(x, (128,)), position_ids)
        return self.head(x)


@pytest.mark.parametrize("turned", [True, False])
def test_halves_of_one_product_are_keys_and_values_though_they_are_repeated(*, turned: bool) -> None:
    """They passed for eight heads of keys that are the values too, of as many parameters and products."""
    example = {"ids": IDS, "position_ids": torch.arange(64).expand(2, 64)}
    core = read_subject(Placed(turned=turned), example_inputs=example).whole().attention
    assert core is not None
    assert (core.heads, core.kv_heads, core.keys_values, core.rotary_dim) == (8, 4, "pair", 16 * turned)


def test_a_head_of_the_last_token_alone_is_named_with_what_to_do() -> None:
    module = Nano()
    with torch.no_grad():
        module.ln_f.register_forward_hook(lambda _module, _inputs, out: out[:, [-1]])
    (unproven,) = read_subject(module, example_inputs=IDS).unproven
    assert unproven.reason == "a head of the last token alone: call the module as it is trained, with targets"


@pytest.mark.slow
def test_attention_that_is_written_out_is_understood_at_lengths_whose_scores_are_not_kept() -> None:
    """16 heads of 2,048 x 2,048 scores are more than are followed: those of one head are, of which all are copies."""
    module, ids = of_layers(Written(), Written()), torch.zeros(1, 2048, dtype=torch.long)
    core = read_subject(module, example_inputs=ids).whole().attention
    assert core is not None
    assert (core.kv_heads, core.head_dim, core.causal, core.window) == (16, 8, True, None)
    assert (core.keys_values, core.fused_qkv) == ("pair", False)
    names = [one.name for one in core.linears(128)]
    assert names == ["attention.q_proj", "attention.kv_proj", "attention.o_proj"]
    fused = [(one.name, one.out_features) for one in core.linears(128, fused=True)]
    assert fused[0] == ("attention.qkv_proj", 3 * 128)


@pytest.mark.slow
def test_every_front_door_takes_a_module_with_its_example_inputs() -> None:
    module, ids = of_layers(Written(), Written()), torch.zeros(1, 128, dtype=torch.long)
    given: dict[str, Any] = {"example_inputs": ids}
    parameters = sum(one.numel() for one in module.parameters())
    assert sizer.ops(module, **given).to_dict()["parameters"] == parameters
    assert sizer.memory(module, **given).to_dict()["model"]["parameters"] == parameters
    assert sizer.memory(module, phase="decode", context=64, **given).to_dict()["total_bytes"] > 0
    assert sizer.plan(module, gpus=2, global_batch=4, **given).to_dict()["candidates"]
    assert sizer.deploy(module, **given).to_dict()["memory"]["weight_bytes"] == 2 * parameters
    assert sizer.search(module, what="swiglu", **given).to_dict()["baseline"]["change"] == {"d_ff": 512}
    assert sizer.mfu(module, step_time=1.0, gpus=1, global_batch=1, **given).to_dict()["counts"]
    assert sizer.diff(module, module, **given).to_dict()["files"]


@pytest.mark.slow
def test_what_sums_over_tokens_is_no_mlp() -> None:
    ids = torch.zeros(1, 64, dtype=torch.long)
    plain = read_subject(of_layers(Written(), Summed(sums=False)), example_inputs=ids)
    assert plain.path == "recognised"
    summed = of_layers(Written(), Summed(sums=True))
    (unproven,) = read_subject(summed, example_inputs=ids).unproven
    assert "running sum" in unproven.reason
    with pytest.raises(InputError, match="running sum"):
        sizer.memory(summed, example_inputs=ids)  # type: ignore[call-arg]


@pytest.mark.slow
def test_a_loop_over_many_tokens_is_named_and_not_run_to_its_end() -> None:
    module, ids = of_layers(Written(), Turning()), torch.zeros(1, 2048, dtype=torch.long)
    subject = read_subject(module, example_inputs=ids)
    assert (subject.model, subject.operators) == (None, ())
    assert "loops over tokens" in subject.unproven[0].reason
    assert any("its products are not listed" in note for note in subject.notes)
    assert sizer.check(module, example_inputs=ids).step is None
