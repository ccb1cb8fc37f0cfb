"""Kernels: layouts in memory, results against plain references, jobs from suites."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shapes.errors import InputError
from shapes.measure import InProcess, Settings
from shapes.measure.backend import Backend, cpu_cache_bytes, open_backend
from shapes.measure.executor import NotMeasured
from shapes.measure.jobs import Job, MemoryBound, Part, swiglu
from shapes.measure.kernels import build
from shapes.measure.kernels.common import UnsupportedError
from shapes.measure.kernels.functions import ran
from shapes.measure.kernels.parts import module_of
from shapes.measure.kernels.products import _operands, group_sizes
from shapes.measure.runner import measure
from shapes.measure.suite import load_suite, values_of
from shapes.measure.timer import sets_needed, verify
from shapes.model import AttentionShape, Block, MlaShape, MlpShape, ModelShape, MoeShape, Stack
from shapes.model.mixers import RecurrentShape
from shapes.operators.types import Attention, Gemm, GroupedGemm
from shapes.workload import Workload

torch = pytest.importorskip("torch")

#: On tests/cuda_shim.py products run on the CPU.
SHRINK = 16 if os.environ.get("SIZER_SHIM") else 1
SUITES = sorted((Path(__file__).parents[1] / "reports" / "suites").glob("*.toml"))


@pytest.fixture(scope="module")
def backend() -> Backend:
    made = Backend()
    made.cache_bytes = 2**14  # one or two input sets
    return made


@pytest.mark.parametrize(
    ("layout", "a_strides", "b_strides"),
    # A is [5, 7] (m, k), B is [7, 3] (k, n): "along k" is stride 1 in k.
    [("tn", (7, 1), (1, 7)), ("nn", (7, 1), (3, 1)), ("nt", (1, 5), (3, 1)), ("tt", (1, 5), (1, 7))],
)
def test_operands_lie_in_memory_as_the_layout_says(layout, a_strides, b_strides) -> None:
    source = torch.Generator().manual_seed(0)
    a, b, c = _operands(Gemm("x", "forward", 5, 3, 7, dtype="fp32", layout=layout), source, torch.float32)
    assert (tuple(a.shape), tuple(b.shape), tuple(c.shape)) == ((5, 7), (7, 3), (5, 3))
    assert (a.stride(), b.stride(), c.stride()) == (a_strides, b_strides, (3, 1))


def layer(**changes: object) -> Part:
    values: dict = {"heads": 4, "kv_heads": 2, "head_dim": 16, "rotary_dim": 16, "parallel": False, "norm_weights": 1}
    values.update(changes)
    parallel, weights = values.pop("parallel"), values.pop("norm_weights")
    block = Block(AttentionShape(**values), MlpShape(96), parallel=parallel, norm_weights=weights)
    return Part("layer", ModelShape("x", (Stack("main", 64, (block,)),), 101), Workload(b=2, s=32))


LATENT = MlaShape(4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, q_lora_rank=24)
EXPERTS = MoeShape(8, 2, 48, shared=MlpShape(32), shared_gate=True)


def block_of(part: str = "layer", dtype: str = "bf16", recipe: str | None = None, **changes: object) -> Part:
    """A part of a block of latent attention and experts, or of what ``changes`` says."""
    block = Block(**{"attention": LATENT, "mlp": EXPERTS, **changes})  # type: ignore[arg-type]
    workload = Workload(b=2, s=32, dtype=dtype, recipe=recipe)
    return Part(part, ModelShape("x", (Stack("main", 64, (block,)),), 101), workload)  # type: ignore[arg-type]


def fp8(part: Part, recipe: str | None) -> Part:
    return replace(part, workload=Workload(b=2, s=32, dtype="fp8", recipe=recipe))


SUBJECTS = [
    *(
        Job(block_of("mlp", mlp=replace(EXPERTS, **more)), kernel)
        for kernel in ("", "loop")
        for more in ({}, {"gated": False})
    ),
    Job(block_of("mlp", mlp=replace(EXPERTS, experts=6, top_k=4, shared=None, shared_gate=False)), "loop"),
    *(
        Job(block_of("self_attention", attention=one))
        for one in (LATENT, replace(LATENT, q_lora_rank=None, latent_norm=0))
    ),
    *(Job(replace(block_of(), direction=one)) for one in ("forward", "dgrad", "wgrad", "forward+backward")),
    *(Job(replace(layer(), direction=one)) for one in ("dgrad", "wgrad")),
    Job(fp8(layer(), "tensorwise")),
    Job(replace(fp8(layer(), "tensorwise"), direction="wgrad")),
    Job(fp8(block_of("self_attention"), "tensorwise")),
    *(
        Job(Gemm("x", "forward", 24, 32, 40, b, d, lay))
        for d in ("fp32", "bf16", "fp16", "fp64")
        for lay in ("tn", "nn", "nt", "tt")
        for b in (1, 3)
    ),
    *(Job(Gemm("x", "forward", 32, 32, 48, dtype=d, out_dtype=o)) for d, o in (("int8", None), ("fp8", "bf16"))),
    *(
        Job(Attention("a", phase, 2, 4, kv, 48, 48, 16, 16, causal), kernel)
        for phase in ("forward", "dgrad")
        for kv in (4, 2)
        for causal in (True, False)
        for kernel in ("flash", "math")
    ),
    *(
        Job(MemoryBound(what, 64, 96, phase))
        for what in ("norm", "layer_norm", "softmax", "activation", "cross_entropy")
        for phase in ("forward", "dgrad")
    ),
    *(
        Job(GroupedGemm("e", "forward", 4, 64, 32, 48, ragged, "bf16", lay, load=2.0), kernel)
        for ragged, lay in (("m", "tn"), ("m", "nn"), ("k", "nt"))
        for kernel in ("loop", "")
    ),
    Job(swiglu(64, 48, 128)),
    Job(swiglu(64, 48, 128, gated=False, direction="forward")),
    Job(layer()),
    Job(layer(qkv_bias=True, o_bias=True, fused_qkv=True, parallel=True, norm_weights=2)),
    Job(Part("head", layer().model, Workload(b=2, s=32))),
    *(Job(replace(layer(qk_norm=norm), part="self_attention")) for norm in ("none", "head", "full")),
]


@pytest.mark.parametrize("job", SUBJECTS, ids=range(len(SUBJECTS)))
def test_every_kernel_computes_what_fp32_gives(job: Job, backend: Backend) -> None:
    kernel = build(job, backend)
    assert verify(kernel) <= kernel.bound
    kernel.calls[-1]()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), [("Qwen3", "head"), ("Olmo2", "full")])
def test_self_attention_computes_what_transformers_classes_do(name: str, norm: str) -> None:
    transformers = pytest.importorskip("transformers")
    modeling = getattr(transformers.models, name.lower())
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
    }
    # Our norms have torch's default epsilon.
    config = getattr(modeling, f"{name}Config")(**sizes, rms_norm_eps=torch.finfo(torch.float32).eps)
    config._attn_implementation = "eager"
    classes = getattr(modeling, f"modeling_{name.lower()}")
    theirs = getattr(classes, f"{name}Attention")(config, 0)
    part = replace(layer(qk_norm=norm), part="self_attention")
    ours = module_of(part)
    named = {
        "inputs.0": "q_proj",
        "inputs.1": "k_proj",
        "inputs.2": "v_proj",
        "out": "o_proj",
        "norms.0": "q_norm",
        "norms.1": "k_norm",
    }
    ours.load_state_dict({f"{mine}.weight": theirs.get_parameter(f"{one}.weight") for mine, one in named.items()})
    x = torch.randn(2, 32, 64)
    angles = getattr(classes, f"{name}RotaryEmbedding")(config)(x, torch.arange(32)[None])
    mask = torch.full((32, 32), float("-inf")).triu(1)[None, None]
    assert torch.allclose(ours(x), theirs(x, position_embeddings=angles, attention_mask=mask)[0], atol=1e-5)


def test_a_product_that_skips_its_last_rows_is_found_by_the_poison(backend: Backend, monkeypatch) -> None:
    real = torch.mm

    def skipping(a, b, out):
        return real(a[:-1], b, out=out[:-1])

    monkeypatch.setattr(torch, "mm", skipping)
    kernel = build(Job(Gemm("x", "forward", 200, 32, 32, dtype="fp32")), backend)
    with pytest.raises(RuntimeError, match="relative error nan"):
        verify(kernel)


def test_a_product_with_one_wrong_operand_is_found(backend: Backend, monkeypatch) -> None:
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, out: real(a, b.flip(0), out=out))
    kernel = build(Job(Gemm("x", "forward", 32, 32, 32, dtype="bf16")), backend)
    with pytest.raises(RuntimeError, match="relative error 1"):
        verify(kernel)


def test_attention_that_forgets_its_mask_is_found(backend: Backend, monkeypatch) -> None:
    from torch.nn import functional

    real = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda q, k, v, is_causal, enable_gqa: real(q, k, v)
    )
    kernel = build(Job(Attention("a", "forward", 1, 2, 2, 32, 32, 16, 16)), backend)
    assert kernel.check() > kernel.bound


@pytest.mark.parametrize(
    "job",
    [
        Job(Gemm("x", "forward", 8, 8, 8, kind="conv")),
        Job(Gemm("x", "forward", 8, 8, 8), "no such"),
        Job(Attention("a", "forward", 1, 2, 2, 64, 64, 16, 16, window=8), "flash"),
        Job(Attention("a", "forward", 1, 2, 2, 1, 64, 16, 16)),
        Job(MemoryBound("rotary", 8, 8)),
        Job(MemoryBound("residual", 8, 8, "dgrad")),
        Job(Attention("a", "forward", 1, 2, 2, 8, 8, 16, 16), "cudnn"),
    ],
)
def test_what_no_kernel_does_is_said_to_be_unsupported(job: Job) -> None:
    with pytest.raises(NotMeasured) as outcome:
        InProcess("cpu").prepare(job)
    assert outcome.value.status == "unsupported"
    assert str(outcome.value)


DELTA = RecurrentShape("gated_delta", heads=4, head_dim=32, groups=2, state=16, chunk=64)


@pytest.mark.parametrize(
    ("part", "kernel", "says"),
    [
        (fp8(layer(), None), "", "refused: no layer in delayed here"),
        (fp8(block_of(), "tensorwise"), "", "experts in fp8 are not built"),
        (fp8(Part("head", layer().model, Workload()), "tensorwise"), "", "keeps the head in 16 bits"),
        (block_of(attention=None, mixer=DELTA), "", "refused: fla, which has GatedDeltaNet, is not installed"),
        (block_of(attention=None, mixer=replace(DELTA, kind="short_conv")), "", "no library's short_conv layer"),
        (block_of(), "flash-attn", "refused: flash_attn is not installed"),
        (block_of(), "fa3", "refused: flash_attn_interface is not installed"),
        (block_of(), "fa4", "refused: no fa4 kernel here, and no other is timed in its place"),
        (replace(layer(), workload=Workload(attention="eager")), "", "refused: layers of eager attention"),
        (layer(window=8), "", "no sliding window"),
        (block_of("mlp", mlp=replace(EXPERTS, latent=16)), "", "a latent width are not built"),
        (block_of("mlp", mlp=None), "", "without an MLP"),
        (block_of(attention=replace(LATENT, gate="heads")), "", "only plain and latent self-attention"),
        (replace(layer(), workload=Workload(b=2, s=32, t=2)), "", "split over devices"),
        (replace(layer(), workload=Workload(b=2, s=32, dtype="int8")), "", "whole parts run in"),
    ],
    ids=range(15),
)
def test_a_part_that_cannot_run_is_refused_with_the_reason(part: Part, kernel: str, says: str) -> None:
    with pytest.raises(NotMeasured, match=says) as outcome:
        InProcess("cpu").prepare(Job(part, kernel))
    assert outcome.value.status == "unsupported"


def test_a_row_of_one_fp8_recipe_is_none_of_another() -> None:
    keys = [Job(fp8(layer(), recipe)).key for recipe in (None, "delayed", "tensorwise", "blockwise")]
    assert keys[0] == keys[1]  # the recipe of fp8 where none is named
    assert len({*keys, Job(layer()).key}) == 4
    assert "recipe" not in Job(layer()).describe()


def test_a_librarys_recurrence_runs_where_it_is_installed(backend: Backend, monkeypatch) -> None:
    asked: dict[str, object] = {}

    class GatedDeltaNet(torch.nn.Module):
        def __init__(self, **arguments: object) -> None:
            super().__init__()
            asked.update(arguments)
            self.weight = torch.nn.Parameter(torch.ones(64))

        def forward(self, x):
            return x * self.weight, None, None

    fla = type(sys)("fla.layers")
    fla.GatedDeltaNet = GatedDeltaNet  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fla", type(sys)("fla"))
    monkeypatch.setitem(sys.modules, "fla.layers", fla)
    kernel = build(Job(block_of("self_attention", attention=None, mixer=DELTA)), backend)
    assert verify(kernel) <= kernel.bound
    assert asked == {
        **{"hidden_size": 64, "num_heads": 2, "num_v_heads": 4, "head_dim": 16, "expand_v": 2.0, "conv_size": 4}
    }


def test_experts_get_as_many_tokens_each_and_each_token_as_many_experts(monkeypatch) -> None:
    seen = []
    real = torch._grouped_mm
    monkeypatch.setattr(
        torch, "_grouped_mm", lambda a, b, offs: seen.append((len(a), offs.tolist())) or real(a, b, offs=offs)
    )
    module_of(block_of("mlp"))(torch.randn(2, 32, 64))
    assert seen == [(128, list(range(16, 129, 16)))] * 2  # 64 tokens, two experts each, of eight


def test_latent_attention_computes_what_transformers_class_does() -> None:
    transformers = pytest.importorskip("transformers")
    modeling = transformers.models.deepseek_v3.modeling_deepseek_v3
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")
    config = transformers.DeepseekV3Config(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=4, rope_interleave=False,
        rms_norm_eps=torch.finfo(torch.float32).eps, **{name: getattr(LATENT, name) for name in names},
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs, ours = modeling.DeepseekV3Attention(config, 0), module_of(block_of("self_attention"))
    named = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    state = {f"linears.{place}.weight": theirs.get_parameter(f"{name}.weight") for place, name in enumerate(named)}
    norms = ("q_a_layernorm", "kv_a_layernorm")
    state |= {f"norms.{place}.weight": theirs.get_parameter(f"{name}.weight") for place, name in enumerate(norms)}
    ours.load_state_dict(state)
    for norm in theirs.q_a_layernorm, theirs.kv_a_layernorm:
        norm.variance_epsilon = torch.finfo(torch.float32).eps
    x = torch.randn(2, 32, 64)
    angles = modeling.DeepseekV3RotaryEmbedding(config)(x, torch.arange(32)[None])
    mask = torch.full((32, 32), float("-inf")).triu(1)[None, None]
    assert torch.allclose(ours(x), theirs(x, position_embeddings=angles, attention_mask=mask)[0], atol=1e-5)


def test_flops_of_parts_are_those_of_their_products() -> None:
    # Three products of 2 x 64 x 48 x 128, forward; backward twice that.
    assert swiglu(64, 48, 128, direction="forward").flops == 3 * 2 * 64 * 48 * 128
    assert swiglu(64, 48, 128).flops == 3 * 3 * 2 * 64 * 48 * 128
    # The head: one product of 64 tokens, 64 hidden, 101 words, and its two gradients.
    assert Part("head", layer().model, Workload(b=2, s=32)).flops == 3 * 2 * 64 * 64 * 101


@pytest.mark.parametrize(
    ("set_bytes", "cache", "free", "sets", "flush"),
    [
        (10**9, 50 * 10**6, 10**11, 1, False),  # one set is many caches
        (10**7, 50 * 10**6, 10**11, 11, False),  # ten sets are two caches, and one more
        (10**7, 50 * 10**6, 10**8, 2, True),  # a quarter of the memory holds two: flush as well
        (100, 50 * 10**6, 10**11, 512, True),
    ],  # a million tiny sets would take longer to make than to time
)
def test_inputs_rotate_until_they_exceed_the_cache_or_it_is_flushed(set_bytes, cache, free, sets, flush) -> None:
    assert sets_needed(set_bytes, cache, free) == (sets, flush)


def test_group_sizes_add_up_and_the_fullest_has_its_load() -> None:
    assert sum(group_sizes(1000, 8, 1.5)) == 1000
    assert group_sizes(1024, 8, 2.0)[0] == 256  # the mean is 128


def test_the_cache_is_read_from_sysfs(tmp_path: Path) -> None:
    for index, size in enumerate(("48K", "2048K", "33M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert cpu_cache_bytes(str(tmp_path)) == 33 * 2**20


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "xpu"])
def test_a_device_that_is_not_here_is_an_input_error(device: str) -> None:
    if device.startswith("cuda") and torch.cuda.is_available() and torch.cuda.device_count() > 99:
        pytest.skip("there are a hundred of them")
    with pytest.raises(InputError, match="device"):
        open_backend(device)


@pytest.mark.parametrize(
    ("text", "values"),
    [("7", (7,)), ("1000:1003", (1000, 1001, 1002, 1003)), ("8,10:14:2", (8, 10, 12, 14)), (["1:3", 9], (1, 2, 3, 9))],
)
def test_ranges_include_their_last_value(text, values) -> None:
    assert values_of(text) == values


@pytest.mark.parametrize("text", ["", "a", "3:1", "1:2:0", "0", "-4", "1:2:3:4", "1:99999999999", None, True, 1.5])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected "):
        values_of(text)


@pytest.mark.slow
@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_suite_runs_dry_at_a_reduced_size(path: Path, backend: Backend) -> None:
    """One job in many of each suite, small: the whole dry run is `sizer bench --suite … --scale 0.02`."""
    suite = load_suite(path, scale=1 / 64)
    session = InProcess(backend)
    by_label: dict[str, Job] = {}
    for job in suite.jobs:
        by_label.setdefault(f"{job.label} {job.kernel}", job)
    sweep = measure(by_label.values(), executor=session, settings=Settings(time_s=0.005, precision=1.0))
    assert not sweep.left
    # What only a GPU has is named as such; nothing is wrong and nothing fails.
    assert {one.status for one in sweep.results.values()} <= {"ok", "unsupported"}


def test_the_misalignment_suite_moves_each_size_through_every_power_of_two() -> None:
    suite = load_suite(SUITES[0].with_name("misalignment.toml"))
    first = [job.work for job in suite.jobs if job.priority == 1 and job.work.layout == "tn"]
    for axis, base in (("m", 8192), ("n", 4096), ("k", 4096)):
        powers = {value & -value for value in (getattr(one, axis) for one in first) if value != base}
        assert powers == {1, 2, 4, 8, 16, 32, 64, 128}


@pytest.mark.slow
def test_a_kernel_that_did_not_run_is_refused_by_name() -> None:
    q = torch.randn(1, 2, 32, 16, dtype=torch.bfloat16)
    call = lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)  # noqa: E731
    ran("flash", call)
    with pytest.raises(UnsupportedError, match=r"refused: cudnn was asked for, .*flash_attention_for_cpu.* ran"):
        ran("cudnn", call)


@pytest.mark.parametrize(("attention", "status"), [("fa2", "ok"), ("cudnn", "unsupported"), ("fa3", "unsupported")])
def test_a_layer_runs_the_attention_that_it_names_or_none(backend: Backend, attention: str, status: str) -> None:
    part = replace(layer(), workload=Workload(b=2, s=32, attention=attention))  # type: ignore[arg-type]
    found = measure([Job(part)], executor=InProcess(backend), settings=Settings(time_s=0.005, precision=1.0))
    assert [one.status for one in found.results.values()] == [status]


@pytest.mark.slow  # torch's compiler is imported
@pytest.mark.parametrize(
    ("many", "made"),
    [
        (6, lambda place: swiglu(1024, 64, 128 + 16 * place, compiled=True)),
        (2, lambda place: replace(fp8(layer(rotary_dim=2 * place), "tensorwise"), compiled=True)),
        (2, lambda place: replace(block_of("mlp", mlp=replace(EXPERTS, width=48 + 8 * place)), compiled=True)),
        (
            2,
            lambda place: replace(
                layer(rotary_dim=2 * place), workload=Workload(b=2, s=32, attention="fa2"), compiled=True
            ),
        ),
    ],
    ids=["mlp", "fp8", "experts", "attention"],
)
def test_every_shape_of_many_is_compiled_whole(backend: Backend, monkeypatch, many: int, made) -> None:
    from torch._dynamo.utils import counters

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **how: real(module, backend="eager", **how))
    torch._dynamo.reset()
    counters.clear()
    for place in range(many):
        kernel = build(Job(made(place)), backend)
        assert verify(kernel) <= kernel.bound
        kernel.calls[0]()
    # The check's rows and the call's, each a graph of its own; after eight torch would go on uncompiled.
    assert dict(counters["frames"]) == {"total": 2 * many, "ok": 2 * many}
    assert not counters["graph_break"]


def test_the_book_experiment_is_the_books() -> None:
    suite = load_suite(SUITES[0].with_name("swiglu-4096.toml"))
    book = [job.work for job in suite.jobs if job.label == "book bmm"]
    assert [one.k for one in book] == list(range(10822, 11023, 2))
    assert {(one.batch, one.m, one.n, one.dtype, one.kind) for one in book} == {(4, 4096, 4096, "fp16", "bmm")}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("title = 'x'\n[[sweep]]\nop = 'dance'\nlabel = 'x'", "expected one of gemm"),
        ("title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nm = 1\nn = 1", "expected integers"),
        (
            "title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nm = 1\nn = 1\nk = 1\nlayout = ['tn']",
            "did you mean layouts",
        ),
        ("title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nshapes = [[1, 2]]", "rows of m, n and k"),
        ("title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nm = 'x'\nn = 1\nk = 1", "expected integers"),
        (
            "title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nm = 1\nn = 1\nk = 1\nlayouts = ['tx']",
            "expected some of tn",
        ),
        ("title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nshapes = [['x', 1, 2]]", "rows of m, n and k"),
        (
            "title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nshapes = [[8, 8, 8]]\noffsets = ['x']",
            "a list of integers",
        ),
        (
            "title = 'x'\n[[sweep]]\nop = 'gemm'\nlabel = 'x'\nshapes = [[8, 8, 8]]\noffsets = [-8]",
            "leave every size positive",
        ),
        ("title =", "expected TOML"),
    ],
)
def test_a_wrong_suite_names_its_file_and_key(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        load_suite(path)
    assert str(path) in str(caught.value)


def test_random_inputs_are_normal_and_differ_between_sets() -> None:
    source = torch.Generator().manual_seed(0)
    product = Gemm("x", "forward", 16, 16, 16, dtype="fp32")
    first, second = (_operands(product, source, torch.float32)[0] for _ in range(2))
    assert not np.allclose(first.numpy(), second.numpy())
    assert 0.5 < float(first.std()) < 1.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_millisecond_kernel_costs_at_most_a_tenth_of_a_second() -> None:
    # 8192**3 bf16 is 1.1 TFLOP: 1 to 2 ms on an H100 or H200.
    jobs = [Job(Gemm("x", "forward", 8192 // SHRINK, 8192 // SHRINK, 8192 // SHRINK + 64 * step)) for step in range(16)]
    sweep = measure(jobs, executor=InProcess("cuda"))
    assert all(one.ok for one in sweep.results.values())
    assert SHRINK > 1 or sweep.elapsed_s / len(jobs) <= 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layout", ["tn", "nn", "nt"])
def test_on_a_gpu_every_layout_is_right_misaligned_or_not(layout: str) -> None:
    jobs = [
        Job(Gemm("x", "forward", 1024 // SHRINK, 1024 // SHRINK + off, 1024 // SHRINK, layout=layout))
        for off in (0, 1, 2, 8)
    ]
    assert {one.status for one in measure(jobs, executor=InProcess("cuda")).results.values()} == {"ok"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_single_call_takes_as_long_as_one_of_many() -> None:
    # Without a wait before the batch the first call's time would hold the host's launch: 5 to 10 us of about 200.
    session = InProcess("cuda")
    candidate = session.prepare(Job(Gemm("x", "forward", 4096 // SHRINK, 4096 // SHRINK, 4096 // SHRINK)))
    alone = np.median([session.sample(candidate, 1)[0] for _ in range(30)])
    together = np.median(session.sample(candidate, 50))
    assert alone == pytest.approx(together, rel=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_short_kernel_is_replayed_from_a_graph() -> None:
    session = InProcess("cuda")
    candidate = session.prepare(Job(Gemm("x", "forward", 512 // SHRINK, 512 // SHRINK, 512 // SHRINK)))
    assert candidate.handle.stopwatch.per_sample > 1
    assert 1e-6 < np.median(session.sample(candidate, 5)) < 50e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("more", [0, 1, 8])
def test_on_a_gpu_fp8_products_are_right_for_any_m(more: int) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 units came with compute capability 8.9")
    m = 1024 // SHRINK + more
    job = Job(Gemm("x", "forward", m, 1024 // SHRINK, 2048 // SHRINK, dtype="fp8", out_dtype="bf16"))
    assert measure([job], executor=InProcess("cuda")).results[job.key].status == "ok"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("ragged", "layout"), [("m", "tn"), ("m", "nn"), ("k", "nt")])
def test_on_a_gpu_grouped_products_are_right(ragged, layout) -> None:
    job = Job(
        GroupedGemm("e", "forward", 8, 1024 // SHRINK, 512 // SHRINK, 1024 // SHRINK, ragged, "bf16", layout, load=1.5),
        "grouped_mm",
    )
    assert measure([job], executor=InProcess("cuda")).results[job.key].status == "ok"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernel", ["flash", "cudnn", "efficient", "math"])
@pytest.mark.parametrize("phase", ["forward", "dgrad"])
def test_on_a_gpu_each_attention_kernel_is_right_or_says_it_cannot(kernel: str, phase) -> None:
    job = Job(Attention("a", phase, 2, 8, 8, 1024 // SHRINK, 1024 // SHRINK, 128, 128), kernel)
    outcome = measure([job], executor=InProcess("cuda")).results[job.key]
    assert outcome.status in (("ok",) if kernel in ("flash", "math") else ("ok", "unsupported"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_layers_peak_holds_no_other_candidates_buffers() -> None:
    session = InProcess("cuda")
    alone = session.prepare(Job(swiglu(1024 // SHRINK, 1024 // SHRINK, 4096 // SHRINK))).handle.stopwatch.peak_bytes()
    big = session.prepare(Job(Gemm("x", "forward", 16384 // SHRINK, 16384 // SHRINK, 16384 // SHRINK)))
    again = session.prepare(Job(swiglu(1024 // SHRINK, 1024 // SHRINK, 4096 // SHRINK))).handle.stopwatch.peak_bytes()
    assert alone is not None
    assert again == pytest.approx(alone, rel=0.01)
    session.release(big)


def test_a_shape_that_two_sweeps_ask_for_is_measured_once_when_the_more_wanted_one_asks(tmp_path: Path) -> None:
    path = tmp_path / "twice.toml"
    sweep = '[[sweep]]\nop = "gemm"\nlabel = "{}"\nshapes = {}\ndtypes = ["bf16"]\npriority = {}\n'
    shapes = "[[256, 256, 256], [256, 256, 512]]"
    path.write_text('title = "t"\n' + sweep.format("first", "[[256, 256, 256]]", 1) + sweep.format("all", shapes, 5))
    jobs = load_suite(path).jobs
    assert [job.priority for job in jobs] == [1, 5]
    assert len({job.key for job in jobs}) == 2
