"""Modules of one's own: recognised and proven, or named; loops over experts and checkpointing run."""

from __future__ import annotations

from typing import Any

import pytest

import sizer
from shapes.operators import operators
from shapes.workload import Workload
from sizer.subject import read_subject

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 # after the skip
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.slow

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


class Experts(nn.Module):
    """Four experts of two linears, two a token, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(96, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96)) for _ in range(4))

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
    def __init__(self, *, again: bool | None = None, experts: bool = False, mask: Any = None) -> None:
        super().__init__()
        self.again = again
        self.wte, self.wpe, self.ln_f = nn.Embedding(320, 96), nn.Embedding(128, 96), nn.LayerNorm(96)
        mlps = (
            Experts() if experts else nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96)) for _ in range(3)
        )
        self.h = nn.ModuleList(Block(mlp, mask) for mlp in mlps)
        self.lm_head = nn.Linear(96, 320, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x) if self.again is None else checkpoint(block, x, use_reentrant=self.again)
        return self.lm_head(self.ln_f(x))


@pytest.mark.parametrize("again", [None, True, False])
def test_a_gpt_of_one_s_own_answers_as_a_formula_does(again: bool | None) -> None:
    module = Nano(again=again)
    subject = read_subject(module, example_inputs=IDS, dtype="bf16")
    assert subject.path == "recognised"
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


def test_a_mask_of_unknown_form_is_not_proven() -> None:
    subject = read_subject(Nano(mask=lambda s: torch.rand(s, s)), example_inputs=IDS, dtype="bf16")
    assert subject.model is None
    assert any("mask of unknown form" in one.reason for one in subject.unproven)


def test_a_loop_over_experts_runs_with_even_routing_which_is_said() -> None:
    module = Nano(experts=True)
    subject = read_subject(module, example_inputs=IDS, dtype="bf16")
    assert any("even routing" in note for note in subject.notes) or subject.model is not None
    assert subject.parameters == sum(parameter.numel() for parameter in module.parameters())
    if subject.model is None:
        # 128 tokens to two of four experts each: 64 rows an expert, of four experts and three layers.
        rows = {(op.m, op.count) for op in subject.operators if "experts" in op.name and op.phase == "forward"}  # type: ignore[union-attr]
        assert rows == {(64, 12)}
        assert {one.module.partition(".")[0] for one in subject.unproven} == {"h"}
        assert sizer.check(module, example_inputs=IDS, dtype="bf16").step is None


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


def test_a_loop_that_writes_rows_by_their_numbers_runs_backward_too() -> None:
    module = Nano(experts=True)
    for block in module.h:
        block.mlp = Written()
    found = {}
    for one in (module, Nano(experts=True)):
        listed = read_subject(one, example_inputs=IDS, dtype="bf16").operators
        found[one] = {(op.phase, op.m, op.n, op.k, op.count) for op in listed if "experts" in op.name}  # type: ignore[union-attr]
    first, second = found.values()
    assert first == second
    assert {phase for phase, *_ in first} == {"forward", "dgrad", "wgrad"}


def test_an_infinity_is_read_as_transformers_writes_it() -> None:
    transformers = pytest.importorskip("transformers")
    from shapes.trace.config import load_config

    settings, _ = load_config({"model_type": "mamba2", "time_step_limit": [0.0, {"__float__": "Infinity"}]})
    assert isinstance(settings, transformers.PretrainedConfig)
    assert tuple(settings.time_step_limit) == (0.0, float("inf"))
