"""Modules as repositories write them: images, attention outside layers; each fact of attention is the module's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sizer
from shapes.model import AttentionShape
from shapes.operators import operators
from shapes.operators.types import Gemm
from shapes.workload import Workload
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


class ByHeads(nn.Module):
    """Projections by heads, as einsum writes them; biases of queries and keys are added by hand."""

    def __init__(self, *, heads_first: bool) -> None:
        super().__init__()
        each = SIZE // HEADS
        self.form = "bsd,hdk->bhsk" if heads_first else "bsd,dhk->bhsk"
        shape = (HEADS, SIZE, each) if heads_first else (SIZE, HEADS, each)
        self.q, self.k, self.v = (nn.Parameter(torch.zeros(shape)) for _ in range(3))
        self.q_bias, self.k_bias = (nn.Parameter(torch.zeros(HEADS, 1, each)) for _ in range(2))
        self.o = nn.Parameter(torch.zeros(HEADS, each, SIZE))

    def forward(self, x: Any) -> Any:
        q, k, v = (torch.einsum(self.form, x, one) for one in (self.q, self.k, self.v))
        out = functional.scaled_dot_product_attention(q + self.q_bias, k + self.k_bias, v, is_causal=True)
        return torch.einsum("bhsk,hkd->bsd", out, self.o)


@pytest.mark.parametrize("heads_first", [False, True])
def test_projections_by_heads_are_matrices_and_what_is_added_to_them_biases(*, heads_first: bool) -> None:
    (block,) = whole(Text(*(ByHeads(heads_first=heads_first) for _ in range(2))), IDS).whole().main.blocks
    core = block.attention
    assert isinstance(core, AttentionShape)
    assert (core.heads, core.qk_norm, core.qkv_bias) == (HEADS, "none", False)
    assert dict(block.extra) == {"attend.q_bias": SIZE, "attend.k_bias": SIZE}


class SomeBiases(Attend):
    """EVA's and BEiT's: one matrix, whose keys have zeros for a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(SIZE, 3 * SIZE, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(SIZE)), nn.Parameter(torch.zeros(SIZE))
        self.register_buffer("k_bias", torch.zeros(SIZE))

    def forward(self, x: Any) -> Any:
        bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        q, k, v = map(parts, functional.linear(x, self.qkv.weight, bias).chunk(3, -1))
        return self.o(joined(functional.scaled_dot_product_attention(q, k, v)))


def test_biases_of_some_of_one_matrix_s_parts_are_counted_and_no_norm() -> None:
    (block,) = whole(Image(SomeBiases), torch.zeros(2, 3, 16, 16)).whole().main.blocks
    assert isinstance(block.attention, AttentionShape)
    assert (block.attention.fused_qkv, block.attention.qk_norm) == (True, "none")
    assert dict(block.extra) == {"attend.q_bias": SIZE, "attend.v_bias": SIZE}


class GatedBy(Attend):
    """What gates attention's output has a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(SIZE, SIZE)

    def forward(self, x: Any) -> Any:
        q, k, v = map(parts, self.qkv(x).chunk(3, -1))
        return self.o(joined(functional.scaled_dot_product_attention(q, k, v)) * self.gate(x).sigmoid())


def test_a_gate_s_bias_is_counted() -> None:
    (block,) = whole(Image(GatedBy), torch.zeros(2, 3, 16, 16)).whole().main.blocks
    assert isinstance(block.attention, AttentionShape)
    assert (block.attention.gate, dict(block.extra)) == ("apart", {"attend.gate.bias": SIZE})


class Crossing(nn.Module):
    """Self-attention and cross attention in layers of their own, as x-transformers has them; keys in a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.words, self.head = nn.Embedding(80, SIZE), nn.Embedding(80, SIZE), nn.Linear(SIZE, 80)
        self.encoder, self.decoder = (nn.ModuleList(Attend() for _ in range(2)) for _ in range(2))
        self.decoder.insert(1, nn.ModuleDict({"q": nn.Linear(SIZE, SIZE), "kv": nn.Linear(SIZE, 2 * SIZE)}))
        self.decoder[1]["o"] = nn.Linear(SIZE, SIZE)

    def forward(self, ids: Any, words: Any) -> Any:
        x, y = self.embed(ids), self.words(words)
        for layer in self.encoder:
            x = x + layer(x)
        first, cross, last = self.decoder
        y = y + first(y)
        q, k, v = (parts(one) for one in (cross["q"](y), *cross["kv"](x).chunk(2, -1)))
        y = y + cross["o"](joined(functional.scaled_dot_product_attention(q, k, v)))
        return self.head(y + last(y))


def test_a_layer_of_cross_attention_alone_reads_the_encoder_s_keys() -> None:
    model = whole(Crossing(), IDS, IDS).whole()
    encoder, decoder = model.stacks
    assert (encoder.name, decoder.name) == ("encoder", "decoder")
    assert [(one.attention is None, one.crosses) for one in decoder.blocks] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    # Keys and values of one product are as many as the encoder's tokens are.
    run = operators(model, Workload(1, 32, "fp32", "infer", decoder_s=8))
    rows = {one.name.rpartition("*.")[2]: one.m for one in run if isinstance(one, Gemm)}
    assert (rows["cross_attention.q_proj"], rows["cross_attention.kv_proj"]) == (8, 32)


class Modulated(Layer):
    """A DiT's layer: one product of a vector a sequence shifts and scales its parts."""

    def __init__(self) -> None:
        super().__init__(Attend())
        self.first, self.second = (nn.LayerNorm(SIZE, elementwise_affine=False) for _ in range(2))
        self.modulation = nn.Linear(SIZE, 4 * SIZE)

    def forward(self, x: Any, condition: Any) -> Any:
        first, shift, second, more = self.modulation(condition)[:, None].chunk(4, -1)
        x = x + self.attend(self.first(x) * (1 + first) + shift)
        return x + self.mlp(self.second(x) * (1 + second) + more)


class Diffused(nn.Module):
    """A DiT: an image in patches, a time and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.out = nn.Linear(48, SIZE), nn.Linear(SIZE, 48)
        self.classes, self.time = nn.Embedding(10, SIZE), nn.Linear(32, SIZE)
        self.layers = nn.ModuleList(Modulated() for _ in range(2))

    def forward(self, image: Any, time: Any, kind: Any) -> Any:
        x = self.patch(functional.unfold(image, 4, stride=4).transpose(1, 2))
        angles = time[:, None] * torch.arange(16, device=time.device)
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.classes(kind)
        for layer in self.layers:
            x = layer(x, condition)
        return self.out(x)


def test_what_modulates_layers_is_a_product_of_one_vector_a_sequence() -> None:
    inputs = torch.zeros(2, 3, 16, 16), torch.zeros(2), torch.zeros(2, dtype=torch.long)
    (stack,) = whole(Diffused(), *inputs).whole().stacks
    ((modulation,), norms) = stack.blocks[0].before, stack.blocks[0].norms
    assert (stack.length, modulation.out_features, modulation.rows, norms) == (16, 4 * SIZE, 1, 2)


class Normed(Image):
    """Pixels are normed before they are projected, as in vit-pytorch: they have a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, SIZE))


def test_what_is_projected_behind_a_learned_norm_has_a_gradient() -> None:
    (stack,) = whole(Normed(), torch.zeros(2, 3, 16, 16)).whole().stacks
    assert [one.grad_input for one in stack.front] == [True]


class Heard(nn.Module):
    """Whisper's: a spectrogram, whose rows are no tokens, and a text of as many tokens as it has positions for."""

    def __init__(self, positions: int | None = None) -> None:
        super().__init__()
        self.front, self.text = nn.Conv1d(12, SIZE, 4, stride=4), Text(Attend())
        self.places = nn.Parameter(torch.zeros(positions, SIZE)) if positions else 0
        self.encoder = nn.ModuleList([Layer(Attend())])

    def forward(self, sound: Any, ids: Any) -> Any:
        heard = self.encoder[0](self.front(sound).transpose(1, 2))
        text = self.text.embed(ids) + self.places
        return self.text.head(self.text.layers[0](text)) + heard.mean()


@pytest.mark.parametrize(("positions", "length"), [(None, None), (32, 32)])
def test_the_sequence_is_the_text_s_though_another_input_comes_first(positions: int | None, length: int | None) -> None:
    sound, text = whole(Heard(positions), torch.zeros(2, 12, 80), IDS).whole().stacks
    assert (sound.length, text.length) == (20, length)


class Told(Modulated):
    """PixArt's layer: a table of its own on the modulation of all layers, and cross attention to what is ``told``."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Identity()
        self.table = nn.Parameter(torch.zeros(4, SIZE))
        self.q, self.kv, self.o = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Any, condition: Any, told: Any) -> Any:
        q, k, v = (parts(one) for one in (self.q(x), *self.kv(told).chunk(2, -1)))
        x = x + self.o(joined(functional.scaled_dot_product_attention(q, k, v)))
        return super().forward(x, condition + self.table.flatten())


class Drawn(Diffused):
    """An image by a text of given vectors, which are projected (``wide``) or read as they are."""

    def __init__(self, wide: int | None) -> None:
        super().__init__()
        self.time, self.classes = nn.Linear(32, 4 * SIZE), nn.Embedding(10, 4 * SIZE)
        self.text = nn.Linear(wide, SIZE) if wide else nn.Identity()
        self.layers = nn.ModuleList(Told() for _ in range(2))

    def forward(self, image: Any, time: Any, kind: Any, text: Any) -> Any:
        x = self.patch(functional.unfold(image, 4, stride=4).transpose(1, 2))
        angles = time[:, None] * torch.arange(16, device=time.device)
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.classes(kind)
        text = self.text(text)
        for layer in self.layers:
            x = layer(x, condition, text)
        return self.out(x)


def test_cross_attention_reads_as_many_vectors_as_are_given_where_no_stack_makes_them() -> None:
    inputs = torch.zeros(2, 3, 16, 16), torch.zeros(2), torch.zeros(2, dtype=torch.long), torch.zeros(2, 20, 24)
    subject = whole(Drawn(24), *inputs)
    (stack,) = subject.whole().stacks
    (block,) = stack.blocks
    assert (stack.length, block.context, block.crosses, dict(block.extra)) == (16, 20, True, {"table": 4 * SIZE})
    assert not any("have a gradient" in note for note in subject.notes)


class Answering(Text):
    """A text by given vectors, of which a mask hides some."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Told() for _ in range(2))
        self.first = nn.Embedding(80, 4 * SIZE)

    def forward(self, seen: Any, told: Any, ids: Any) -> Any:
        x, condition = self.embed(ids), self.first(ids[:, 0])
        for layer in self.layers:
            x = layer(x, condition, told * seen[..., None])
        return self.head(x)


def test_vectors_that_cross_attention_reads_as_they_are_have_a_gradient() -> None:
    """As behind a model that is trained with this one; a mask of booleans is no sequence, though it comes first."""
    subject = whole(Answering(), torch.ones(2, 20, dtype=torch.bool), torch.zeros(2, 20, SIZE), IDS)
    (block,) = subject.whole().main.blocks
    assert (block.context, subject.workload.s) == (20, 32)
    assert any("have a gradient" in note for note in subject.notes)


class Embedding(Modulated):
    """A DiT of diffusers: each layer embeds the time and the class itself; the first one's embedding ends the model."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.classes = nn.Linear(16, SIZE), nn.Embedding(10, SIZE)

    def told(self, time: Any, kind: Any) -> Any:
        return self.time(time[:, None] * torch.ones(16, device=time.device).cos()) + self.classes(kind)

    def forward(self, x: Any, time: Any, kind: Any) -> Any:  # type: ignore[override]
        return super().forward(x, self.told(time, kind))


class Embedded(Diffused):
    def __init__(self) -> None:
        super().__init__()
        del self.classes, self.time
        self.layers = nn.ModuleList(Embedding() for _ in range(2))

    def forward(self, image: Any, time: Any, kind: Any) -> Any:
        x = self.patch(functional.unfold(image, 4, stride=4).transpose(1, 2))
        for layer in self.layers:
            x = layer(x, time, kind)
        return self.out(x * self.layers[0].told(time, kind)[:, None])


def test_a_matrix_that_runs_twice_is_one_and_each_layer_may_embed_the_time() -> None:
    (stack,) = whole(Embedded(), torch.zeros(2, 3, 16, 16), torch.zeros(2), torch.zeros(2).long()).whole().stacks
    first, second = stack.blocks
    assert [one.shared for one in first.before] == [False, False, True]
    assert (stack.hidden, [one.shared for one in second.before]) == (SIZE, [False, False])
    assert dict(first.extra) == dict(second.extra) == {"classes.weight": 10 * SIZE}


class Multiplied(Attend):
    """Attention by products of its own; torch's fused core where ``fused``."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, x: Any) -> Any:
        q, k, v = map(parts, self.qkv(x).chunk(3, -1))
        if self.fused:
            return self.o(joined(functional.scaled_dot_product_attention(q, k, v)))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return self.o(joined(scores.softmax(-1) @ v))


def saved_and_counted(module: nn.Module, ids: Any) -> tuple[int, int, Any]:
    """Bytes that autograd saves in a forward pass, weights left out; ours of activations, and the attention priced."""
    weights, kept = {one.untyped_storage().data_ptr() for one in module.parameters()}, dict[int, int]()

    def seen(one: Any) -> Any:
        storage = one.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(seen, lambda one: one):
        out = module(ids)
    found = sizer.memory(module, example_inputs=ids)  # type: ignore[call-arg]
    assert out.shape[:2] == ids.shape
    return sum(kept.values()), found.to_dict()["components"]["activations"], found.workload.attention


def test_a_module_that_attends_by_products_saves_its_scores() -> None:
    """It is priced so as well; a fused core, which its stack would run, saves none."""
    ids = torch.zeros(1, 512, dtype=torch.long)
    fused, eager = (
        saved_and_counted(Text(*(Multiplied(fused=fused) for _ in range(4))), ids) for fused in (True, False)
    )
    assert (fused[2], eager[2]) == ("sdpa", "eager")
    assert eager[0] - fused[0] == eager[1] - fused[1] > 3 * fused[0] / 2
    asked = read_subject(Text(Multiplied(fused=False)), example_inputs=ids, attention="sdpa")
    assert asked.workload.attention == "sdpa"


class Pooled(Text):
    """Tokens summed by learned weights, as CCT's sequence pooling does."""

    def __init__(self) -> None:
        super().__init__(Attend(), Attend())
        self.pool, self.head = nn.Linear(SIZE, 1), nn.Linear(SIZE, 10)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head((self.pool(x).softmax(1).transpose(1, 2) @ x).squeeze(1))


def test_a_product_that_pools_tokens_after_the_layers_is_named() -> None:
    (unproven,) = read_subject(Pooled(), example_inputs=IDS, phase="infer").unproven
    assert unproven.reason == "bmm outside the layers"


class Scaling(Modulated):
    """DiT's own layer: what its parts make is scaled too, by a third of the modulation's vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Linear(SIZE, 6 * SIZE)

    def forward(self, x: Any, condition: Any) -> Any:
        first, shift, one, second, more, other = self.modulation(condition)[:, None].chunk(6, -1)
        x = x + self.attend(self.first(x) * (1 + first) + shift) * one
        return x + self.mlp(self.second(x) * (1 + second) + more) * other


class Scaled(Layer):
    """DeiT III's: a learned vector scales what a part makes."""

    def __init__(self) -> None:
        super().__init__(Attend())
        self.one, self.other = nn.Parameter(torch.ones(SIZE)), nn.Parameter(torch.ones(SIZE))

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.first(x)) * self.one
        return x + self.mlp(self.second(x)) * self.other


class Rectified(Layer):
    def __init__(self) -> None:
        super().__init__(Attend())
        self.mlp[1] = nn.ReLU()


class Repeated(Layer):
    """Keys and values of two heads, which the class repeats for the others."""

    def __init__(self) -> None:
        super().__init__(Attend())
        self.attend.qkv = nn.Linear(SIZE, 2 * SIZE)
        self.attend.forward = self.attended

    def attended(self, x: Any) -> Any:
        q, k, v = self.attend.qkv(x).unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2).split([HEADS, 2, 2], 1)
        k, v = (one.repeat_interleave(HEADS // 2, dim=1) for one in (k, v))
        return self.attend.o(joined(functional.scaled_dot_product_attention(q, k, v)))


class Written(nn.Module):
    """GELU as BERT's first code has it, one kernel after the other."""

    def forward(self, x: Any) -> Any:
        return x * 0.5 * (1 + torch.erf(x / 2**0.5))


class WrittenOut(Layer):
    def __init__(self) -> None:
        super().__init__(Attend())
        self.mlp[1] = Written()


def of_each_layer(make: Any, model: Any, *inputs: Any) -> tuple[float, float]:
    """Bytes that a layer saves: torch's saved tensors, and ours, of as many more layers."""

    def of(layers: int) -> tuple[int, int]:
        module = model()
        module.layers = nn.ModuleList(make() for _ in range(layers))
        kept, weights = dict[int, int](), {one.data_ptr() for one in module.parameters()}

        def seen(one: Any) -> Any:
            storage = one.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes() * (storage.data_ptr() not in weights)
            return one

        with torch.autograd.graph.saved_tensors_hooks(seen, lambda one: one):
            out = module(*inputs)
        found = sizer.memory(module, example_inputs=inputs).to_dict()["components"]["activations"]  # type: ignore[call-arg]
        assert len(out) == len(inputs[0])
        return sum(kept.values()), found

    few, many = of(2), of(4)
    return many[0] - few[0], many[1] - few[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "model"),
    [
        (lambda: Layer(Attend()), Image),
        (Scaled, Image),
        (Rectified, Image),
        (WrittenOut, Image),
        (Repeated, Image),
        (Modulated, Diffused),
        (Scaling, Diffused),
    ],
    ids=["layer-norms", "scaled", "relu", "gelu-written-out", "repeated", "modulated", "modulated-and-scaled"],
)
def test_a_layer_saves_what_autograd_saves_of_it(make: Any, model: Any) -> None:
    """LayerNorm saves its input, a scaling what it scales, ReLU its output, a written GELU its half and erf."""
    inputs = [torch.zeros(64, 3, 16 if model is Image else 64, 16 if model is Image else 64)]
    if model is Diffused:
        inputs = [inputs[0][:16], torch.zeros(16), torch.zeros(16, dtype=torch.long)]
    torchs, ours = of_each_layer(make, model, *inputs)
    assert ours == pytest.approx(torchs, rel=0.025)


class Lengthened(nn.Module):
    def forward(self, weight: Any) -> Any:
        return functional.normalize(weight, dim=0)


def test_a_normed_matrix_of_patches_has_no_gradient_of_its_pixels() -> None:
    """As nViT's, whose weights are parametrized. FLOPs of training are the counter's, and the scores made again."""
    model, image = Image(), torch.zeros(2, 3, 16, 16)
    for one in (model.patch, *(layer.attend.o for layer in model.layers)):
        torch.nn.utils.parametrize.register_parametrization(one, "weight", Lengthened())
    subject = read_subject(model, example_inputs=image)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(image).sum().backward()
    scores = 2 * 2 * 17 * 17 * SIZE * len(model.layers)
    assert sum(one.flops * one.count for one in subject.operators) == counter.get_total_flops() + scores
