"""Modules as repositories write them: images, attention outside layers; each fact of attention is the module's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapes.model import AttentionShape
from sizer.subject import Subject, read_subject

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 # after the skip
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

IDS = torch.zeros(2, 32, dtype=torch.long)
SIZE, HEADS = 64, 4


def whole(module: nn.Module, *inputs: Any) -> Subject:
    """The module, recognised; its parameters and forward FLOPs are those that torch counts."""
    subject = read_subject(module, example_inputs=inputs, phase="infer")
    assert subject.unproven == ()
    assert subject.parameters == sum(one.numel() for one in module.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        module(*inputs)
    assert sum(one.flops * one.count for one in subject.operators) == counter.get_total_flops()
    return subject


def parts(x: Any) -> Any:
    """[b, s, h] as [b, heads, s, h / heads]."""
    return x.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def joined(x: Any) -> Any:
    return x.transpose(-3, -2).flatten(-2)


class Attend(nn.Module):
    """One matrix of queries, keys and values; ``seen`` makes a mask of so many tokens."""

    def __init__(self, seen: Any = None) -> None:
        super().__init__()
        self.qkv, self.o, self.seen = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE), seen

    def forward(self, x: Any) -> Any:
        q, k, v = map(parts, self.qkv(x).chunk(3, -1))
        mask = None if self.seen is None else self.seen(x.shape[1])
        return self.o(joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


class Layer(nn.Module):
    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.attend = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE), attend
        self.mlp = nn.Sequential(nn.Linear(SIZE, 96), nn.GELU(), nn.Linear(96, SIZE))

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.first(x))
        return x + self.mlp(self.second(x))


class Text(nn.Module):
    def __init__(self, *attend: nn.Module) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(80, SIZE), nn.Linear(SIZE, 80)
        self.layers = nn.ModuleList(map(Layer, attend))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Outside(Text):
    """The model's own forward attends; its layers are dictionaries of matrices."""

    def __init__(self) -> None:
        super().__init__()
        names = "q", "k", "v", "o"
        self.layers = nn.ModuleList(nn.ModuleDict({one: nn.Linear(SIZE, SIZE) for one in names}) for _ in range(2))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            q, k, v = (parts(layer[one](x)) for one in "qkv")
            x = x + layer["o"](joined(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return self.head(x)


def test_attention_of_the_model_s_own_forward_is_its_queries_layer_s() -> None:
    assert whole(Outside(), IDS).whole().layers == 2


class Added(nn.Linear):
    """A matrix whose bias its own forward adds."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.added = nn.Parameter(torch.zeros(outputs))

    def forward(self, input: Any) -> Any:
        return super().forward(input) + self.added


def test_biases_that_a_class_adds_itself_are_no_norms() -> None:
    attend = Facts(kv=2, bias=False, turned=8, normed=False, causal=True, window=64, fused=True)
    attend.q, attend.o = Added(SIZE, SIZE), Added(SIZE, SIZE)
    attend.k, attend.v = (Added(SIZE, SIZE // 2) for _ in range(2))
    model = Text(attend)
    model.layers[0].mlp = nn.Sequential(Added(SIZE, 96), nn.GELU(), Added(96, SIZE))
    (block,) = whole(model, IDS).whole().main.blocks
    assert isinstance(block.attention, AttentionShape)
    assert (block.attention.qk_norm, block.norms, block.norm_weights) == ("none", 2, 2)
    assert sum(size for _, size in block.extra) == 2 * SIZE + 2 * SIZE // 2 + 96 + SIZE


class Image(nn.Module):
    """A ViT: patches, a class token, positions."""

    def __init__(self, attend: Any = Attend, classes: int = 10) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(48, SIZE), nn.Linear(SIZE, classes)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, SIZE)), nn.Parameter(torch.zeros(1, 17, SIZE))
        self.layers = nn.ModuleList(Layer(attend()) for _ in range(2))

    def forward(self, image: Any) -> Any:
        patches = functional.unfold(image, 4, stride=4).transpose(1, 2)
        x = self.patch(patches)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


def test_a_module_of_images_alone_has_as_many_tokens_as_it_cuts_them_into() -> None:
    (stack,) = whole(Image(), torch.zeros(2, 3, 16, 16)).whole().stacks
    assert (stack.length, stack.name) == (17, "encoder")


class Facts(nn.Module):
    """Attention of drawn facts, as small repositories write them."""

    def __init__(
        self, *, kv: int, bias: bool, turned: int, normed: bool, causal: bool, window: int, fused: bool
    ) -> None:
        super().__init__()
        self.kv, self.turned, self.normed, self.fused = kv, turned, normed, fused
        self.causal, self.window = causal, window
        each = SIZE // HEADS
        self.q, self.o = nn.Linear(SIZE, SIZE, bias=bias), nn.Linear(SIZE, SIZE, bias=False)
        self.k, self.v = (nn.Linear(SIZE, kv * each, bias=bias) for _ in range(2))
        self.q_norm, self.k_norm = (nn.RMSNorm(each) if normed else nn.Identity() for _ in range(2))

    def rotated(self, x: Any) -> Any:
        if not self.turned:
            return x
        angles = torch.outer(
            torch.arange(x.shape[-2], device=x.device), torch.arange(self.turned // 2, device=x.device)
        )
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        own, rest = x[..., : self.turned], x[..., self.turned :]
        first, second = own.chunk(2, -1)
        return torch.cat([own * cos + torch.cat([-second, first], -1) * sin, rest], -1)

    def forward(self, x: Any) -> Any:
        s = x.shape[1]
        q, k, v = (one(x).unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = self.rotated(self.q_norm(q)), self.rotated(self.k_norm(k))
        k, v = (one.repeat_interleave(HEADS // self.kv, dim=1) for one in (k, v))
        places = torch.arange(s, device=x.device)
        far = places[:, None] - places
        seen = (far >= 0) & (far < self.window) if self.causal else torch.ones_like(far, dtype=torch.bool)
        if self.fused:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            out = (q @ k.transpose(-2, -1)).masked_fill(~seen, -torch.inf).softmax(-1) @ v
        return self.o(joined(out))


FACTS = st.fixed_dictionaries(
    {
        "kv": st.sampled_from([1, 2, 4]),
        "bias": st.booleans(),
        "turned": st.sampled_from([0, 8, 16]),
        "normed": st.booleans(),
        "causal": st.booleans(),
        "window": st.sampled_from([8, 12, 64]),
        "fused": st.booleans(),
    }
)


@pytest.mark.slow
@settings(max_examples=12)
@given(first=FACTS, second=FACTS)
def test_masks_windows_rotation_norms_biases_and_heads_are_each_layer_s_own(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Whatever one fact is, no other one changes with it, and no layer takes another's."""
    second = second | {one: first[one] for one in ("fused", "causal", "kv")}
    subject = whole(Text(Facts(**first), Facts(**second)), IDS)
    found = [one.attention for one in subject.whole().main.blocks for _ in range(one.count)]
    for one, facts in zip(found, (first, second), strict=True):
        assert isinstance(one, AttentionShape)
        assert (one.heads, one.kv_heads, one.causal) == (HEADS, facts["kv"], facts["causal"])
        assert one.window == (facts["window"] if facts["causal"] and facts["window"] < 32 else None)
        assert one.rotary_dim == facts["turned"]
        assert (one.qk_norm == "head", one.qkv_bias) == (facts["normed"], facts["bias"])
