"""The trace of modules that are not from transformers, of repeated layers, of experts, of shards, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shapes.errors import InputError
from shapes.operators.types import Attention, Gemm, GroupedGemm
from shapes.trace import trace, trace_config
from shapes.trace.result import Traced
from tests.oracles import traced_otherwise

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch import nn  # noqa: E402 # after the skip
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.slow

#: transformers 4 keeps experts as modules of their own and loops over them.
grouped_experts = pytest.mark.skipif(transformers.__version__.startswith("4."), reason="no grouped experts there")

MOE = {
    "model_type": "mixtral",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 5,
    "vocab_size": 320,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
LLAMA = {key: value for key, value in MOE.items() if "expert" not in key} | {"model_type": "llama"}


class Attend(nn.Module):
    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(h, 3 * h), nn.Linear(h, h)

    def forward(self, x: Any) -> Any:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(h, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, s, h))


class Nano(nn.Module):
    """A nanoGPT-like model: fused QKV, GELU MLP in a Sequential, head tied to the embedding."""

    def __init__(self, h: int = 96, heads: int = 6, layers: int = 3, v: int = 320) -> None:
        super().__init__()
        self.wte = nn.Embedding(v, h)
        self.h = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attn": Attend(h, heads),
                    "mlp": nn.Sequential(nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h)),
                }
            )
            for _ in range(layers)
        )
        self.lm_head = nn.Linear(h, v, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids)
        for block in self.h:
            x = x + block["attn"](x)
            x = x + block["mlp"](x)
        return self.lm_head(x)


def gemms(traced: Traced) -> dict[tuple[str, str], Gemm]:
    # transformers 4 writes the rotary angles as a product with k = 1.
    products = (op for op in traced.operators if isinstance(op, Gemm) and not op.name.endswith("rotary_emb"))
    return {(op.name, op.phase): op for op in products}


def arithmetic(traced: Traced) -> Counter[Any]:
    counted: Counter[Any] = Counter()
    for op in traced.operators:
        if op.flops:
            counted[replace(op, count=1)] += op.count
    return counted


def test_a_module_of_one_s_own_gives_every_product_with_its_name() -> None:
    traced = trace(Nano(), torch.zeros(2, 24, dtype=torch.long))
    found = gemms(traced)
    # b s = 48 tokens, h 96, fused QKV 288, three layers.
    assert found["h.*.attn.c_attn", "forward"] == Gemm("h.*.attn.c_attn", "forward", 48, 288, 96, dtype="fp32", count=3)
    assert found["h.*.mlp.0", "dgrad"] == Gemm("h.*.mlp.0", "dgrad", 48, 96, 384, dtype="fp32", layout="nn", count=3)
    assert found["h.*.mlp.2", "wgrad"] == Gemm("h.*.mlp.2", "wgrad", 96, 384, 48, dtype="fp32", layout="nt", count=3)
    assert found["lm_head", "wgrad"] == Gemm("lm_head", "wgrad", 320, 96, 48, dtype="fp32", layout="nt")
    core = [op for op in traced.operators if isinstance(op, Attention)]
    assert core[0] == Attention(
        "h.*.attn", "forward", 2, 6, 6, 24, 24, 16, 16, causal=True, dtype="fp32", count=3, training=True
    )
    # Tied: 320 x 96 once; a layer: 96 x 288 + 288 + 96 x 96 + 96 + 96 x 384 + 384 + 384 x 96 + 96.
    assert traced.parameters == 320 * 96 + 3 * (96 * 288 + 288 + 96 * 96 + 96 + 2 * 96 * 384 + 384 + 96)


def test_tracing_leaves_the_module_as_it_was() -> None:
    module = Nano().train()
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    trace(module, torch.zeros(1, 8, dtype=torch.long))
    assert module.training
    assert module.lm_head.weight is module.wte.weight
    assert all(torch.equal(parameter, before[name]) for name, parameter in module.named_parameters())
    assert module(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, 320)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_backward_is_twice_forward_in_linear_layers() -> None:
    module = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 16))
    example = torch.zeros(10, 32, requires_grad=True)
    assert trace(module, example).flops == 3 * trace(module, example, phase="infer").flops == 3 * 2 * 10 * 64 * 48


def test_a_gpt2_weight_gradient_is_reported_with_outputs_in_m() -> None:
    # Conv1D keeps its weight [in, out]: its forward reads B along n, its dgrad B along k, unlike a Linear's.
    found = gemms(trace_config({"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 2}, b=2, s=24))
    fc = [found["transformer.h.*.mlp.c_fc", phase] for phase in ("forward", "dgrad", "wgrad")]
    assert [(g.m, g.n, g.k, g.layout) for g in fc] == [(48, 384, 96, "nn"), (48, 96, 384, "tn"), (384, 96, 48, "nt")]


@pytest.mark.parametrize(
    ("convolution", "inputs", "expected"),
    [
        # A patch embedding: 2 x 14 x 14 patches of 3 x 16 x 16 values.
        (nn.Conv2d(3, 96, 16, 16), (2, 3, 224, 224), ("conv", 1, 392, 96, 768)),
        # Mamba's short convolution: each of 64 channels by itself, 4 taps, 24 + 3 positions out.
        (nn.Conv1d(64, 64, 4, groups=64, padding=3), (2, 64, 24), ("conv", 64, 54, 1, 4)),
        # Whisper's second front convolution, of stride 2.
        (nn.Conv1d(96, 96, 3, stride=2, padding=1), (2, 96, 24), ("conv", 1, 24, 96, 288)),
        # A transposed one multiplies every input position by the kernel.
        (nn.ConvTranspose2d(8, 4, 2, 2), (2, 8, 5, 5), ("conv", 1, 50, 16, 8)),
    ],
)
def test_a_convolution_is_its_implicit_gemm(
    convolution: Any, inputs: tuple[int, ...], expected: tuple[Any, ...]
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    traced = trace(convolution, torch.zeros(inputs), phase="infer")
    (op,) = (op for op in traced.operators if isinstance(op, Gemm))
    assert (op.kind, op.batch, op.m, op.n, op.k) == expected
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        convolution(torch.zeros(inputs))
    assert traced.flops == counter.get_total_flops()


@pytest.mark.parametrize(
    "config", [LLAMA, MOE, {"model_type": "gemma3_text", **{k: v for k, v in LLAMA.items() if k != "model_type"}}]
)
@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_multiplying_identical_layers_equals_tracing_each(config: dict[str, Any], attention: str) -> None:
    once = trace_config(config, b=2, s=24, attention=attention)
    every = traced_otherwise(config, b=2, s=24, attention=attention)
    assert set(once.operators) == set(every.operators)
    assert arithmetic(once) == arithmetic(every)


@grouped_experts
def test_grouped_and_looped_experts_do_the_same_work_on_even_shares() -> None:
    grouped, looped = trace_config(MOE, b=2, s=24), traced_otherwise(MOE, b=2, s=24, experts="eager")
    assert grouped.flops == looped.flops
    # 48 tokens to 2 of 8 experts each: 96 rows in one launch, or 12 rows for each expert of five layers.
    launch = next(op for op in grouped.operators if isinstance(op, GroupedGemm) and op.name.endswith("gate_up_proj"))
    assert (launch.groups, launch.m, launch.n, launch.k, launch.count) == (8, 96, 320, 96, 5)
    single = gemms(looped)["model.layers.*.mlp.experts.gate_up_proj", "forward"]
    assert (single.m, single.n, single.k, single.count) == (12, 320, 96, 40)
    assert any("even" in note for note in looped.notes)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
@grouped_experts
def test_experts_that_the_grouped_product_refuses_are_traced_as_a_loop() -> None:
    # 159 columns of bf16 are 318 bytes, no multiple of 16.
    traced = trace_config(MOE | {"intermediate_size": 159}, b=2, s=24)
    down = gemms(traced)["model.layers.*.mlp.experts.down_proj", "forward"]
    assert (down.m, down.n, down.k, down.count) == (12, 96, 159, 40)
    assert any("multiples of 16 bytes" in note for note in traced.notes)


def test_active_parameters_leave_out_six_of_eight_experts() -> None:
    traced = trace_config(MOE, b=1, s=8, phase="infer")
    # An expert: gate and up 2 x 160 x 96, down 96 x 160.
    assert traced.active_parameters == traced.parameters - 5 * 6 * (2 * 160 * 96 + 96 * 160)


@pytest.mark.parametrize(("t", "kv"), [(2, 1), (6, 1)])
def test_the_model_s_own_plan_gives_one_shard_s_shapes(t: int, kv: int) -> None:
    traced = traced_otherwise(LLAMA, b=2, s=24, t=t)
    found = gemms(traced)
    up, down, head = (
        found[name, "forward"] for name in ("model.layers.*.mlp.up_proj", "model.layers.*.mlp.down_proj", "lm_head")
    )
    shard = -(-160 // t)
    assert (up.n, up.k, down.n, down.k) == (shard, 96, 96, shard)
    assert head.n == -(-320 // t)
    core = next(op for op in traced.operators if isinstance(op, Attention))
    # Two key/value heads: one a shard from t = 2 on, kept whole.
    assert (core.heads, core.kv_heads) == (6 // t, kv)


def test_a_plan_of_one_s_own_replaces_the_model_s() -> None:
    plan = {
        "model.layers.*.mlp.up_proj": "colwise",
        "model.layers.*.mlp.gate_proj": "colwise",
        "*.down_proj": "rowwise",
    }
    found = gemms(traced_otherwise(LLAMA, b=1, s=8, t=2, plan=plan))
    assert found["model.layers.*.mlp.up_proj", "wgrad"].m == 80
    assert found["model.layers.*.self_attn.q_proj", "forward"].n == 96


class Peeks(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.layer, self.how = nn.Linear(4, 4), how

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if self.how == "item":
            return y * y.sum().item()
        if self.how == "branch":
            return y if y.sum() > 0 else -y
        if self.how == "numpy":
            return torch.from_numpy(y.detach().numpy())
        return y[y > 0]


@pytest.mark.parametrize("how", ["item", "branch", "numpy", "mask"])
def test_a_forward_that_needs_values_is_refused_with_the_path(how: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), Peeks(how))
    with pytest.raises(InputError, match=r"^Sequential: 1: .*tensor's values") as caught:
        trace(module, torch.zeros(2, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "never_heard_of"}, r"model_type = 'never_heard_of': expected a model_type that transformers"),
        ({}, r"expected a model_type that transformers"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "x.py--X"}}, r"auto_map = .*is never run"),
        ({**LLAMA, "num_attention_heads": 7}, r"(rejects|cannot build)|self_attn: cannot be traced"),
        ({"model_type": "llama", "hidden_size": "wide"}, r"transformers .* (rejects|cannot build)"),
        ([1], r"expected a mapping"),
        ("/nowhere/config.json", r"^/nowhere/config.json: cannot be read"),
    ],
)
def test_a_configuration_that_cannot_be_built_is_one_line(config: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        trace_config(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"b": 0}, "b = 0"),
        ({"attention": "fast"}, "auto, flash"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace_config(LLAMA, **options)


def test_a_frozen_module_says_what_to_pass() -> None:
    module = nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(InputError, match="phase='infer'"):
        trace(module, torch.zeros(2, 4))
    assert trace(module, torch.zeros(2, 4), phase="infer").flops == 2 * 2 * 4 * 4


def test_an_operator_of_one_s_own_is_named_and_not_guessed_at() -> None:
    library = torch.library.Library("sizer_test", "FRAGMENT")
    library.define("secret(Tensor x) -> Tensor")
    library.impl("secret", torch.empty_like, "Meta")

    class Secret(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.sizer_test.secret(x)

    assert trace(Secret(), torch.zeros(2, 4), phase="infer").opaque == ("sizer_test::secret",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # As published for Llama-3.1-405B.
        pytest.param(
            {
                "model_type": "llama",
                "hidden_size": 16384,
                "num_hidden_layers": 126,
                "vocab_size": 128256,
                "num_attention_heads": 128,
                "num_key_value_heads": 8,
                "intermediate_size": 53248,
            },
            405_853_388_800,
            marks=pytest.mark.exhaustive,
        ),
        # A DeepSeek-V3 of 384 experts: 60 layers of 385 experts of 3 x 7168 x 2048 and a router with its correction,
        # one of an MLP of 18432, 61 of latent attention, two norms a layer, one more, two vocabularies.
        (
            {
                "model_type": "deepseek_v3",
                "hidden_size": 7168,
                "intermediate_size": 18432,
                "vocab_size": 163840,
                "moe_intermediate_size": 2048,
                "num_hidden_layers": 61,
                "num_attention_heads": 64,
                "n_group": 1,
                "num_key_value_heads": 64,
                "n_routed_experts": 384,
                "num_experts_per_tok": 8,
                "topk_group": 1,
                "first_k_dense_replace": 1,
            },
            60 * (385 * 3 * 7168 * 2048 + 384 * 7168)
            + 3 * 7168 * 18432
            + 61 * (7168 * 1536 + 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 + 512 * 64 * 256 + 64 * 128 * 7168)
            + (2 * 61 + 1) * 7168
            + 2 * 163840 * 7168,
        ),
    ],
    ids=["405B", "1T"],
)
def test_the_largest_models_are_listed_within_two_gib_whole_process(
    config: dict[str, Any], parameters: int, tmp_path: Path
) -> None:
    if "n_routed_experts" in config and transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 builds each of 23 000 experts as modules of its own, which takes longer")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    script = r"""
import re, sys
from pathlib import Path
from sizer.cli import main
main(["ops", sys.argv[1], "--trace", "-b", "1", "-s", "8192", "--format", "json"], standalone_mode=False)
# Not ru_maxrss, which a process has from the one that started it, a test's worker.
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]
print(int(peak) * 1024, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["parameters"] == parameters
    assert int(done.stderr.strip().splitlines()[-1]) < 2 * 2**30


def test_equal_calls_make_new_tensors_but_a_view_is_always_of_its_own_storage() -> None:
    from shapes.trace.repeats import Follower

    follower, aten = Follower({}), torch.ops.aten
    x, y = (torch.empty(2, 3, dtype=torch.bfloat16, device="meta") for _ in range(2))
    products = [follower.run(aten.mm.default, (one, x.t()), None) for one in (x, y)]
    assert [(one.shape, one.dtype) for one in products] == [((2, 2), torch.bfloat16)] * 2
    assert len({one.untyped_storage()._cdata for one in products}) == 2
    for one in (x, y):
        for view in (aten._unsafe_view.default, aten.view.default):
            assert follower.run(view, (one, [6]), None).untyped_storage()._cdata == one.untyped_storage()._cdata
    written = [follower.run(aten.add_.Tensor, (one, 1.0), None) for one in (x, y)]
    assert all(one is of for one, of in zip(written, (x, y), strict=True))
    wider = follower.run(aten._to_copy.default, (x,), {"dtype": torch.float32})
    assert wider.dtype == torch.float32
    assert follower.run(aten._to_copy.default, (x,), {"dtype": torch.float16}).dtype == torch.float16
