"""Formula operators: closed forms from the literature, torch's flop counter, and properties of every split."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapes.cost import predict
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlaShape, MlpShape, ModelShape, MoeShape, Stack
from shapes.operators import operators
from shapes.operators.types import Attention, Collective, Elementwise, Gemm, GroupedGemm
from shapes.workload import Workload


def gpt(h: int, layers: int, a: int, v: int = 51200, *, d_ff: int | None = None) -> ModelShape:
    """A GPT of the Megatron papers: multi-head attention, plain MLP of width 4h, tied head."""
    block = Block(AttentionShape(a, a, h // a), MlpShape(d_ff or 4 * h, gated=False), count=layers)
    return ModelShape("gpt", (Stack("decoder", h, (block,)),), vocab=v, tied=True)


def llama(**changes: Any) -> ModelShape:
    values = {"h": 4096, "a": 32, "kv": 8, "d_ff": 14336, "layers": 32, "v": 128256} | changes
    attention = AttentionShape(values["a"], values["kv"], values["h"] // values["a"], rotary_dim=128)
    block = Block(attention, MlpShape(values["d_ff"]), count=values["layers"])
    return ModelShape("llama", (Stack("decoder", values["h"], (block,)),), vocab=values["v"])


def flops(model: ModelShape, workload: Workload) -> int:
    return sum(operator.flops * operator.count for operator in operators(model, workload))


@pytest.mark.parametrize(("h", "layers", "a"), [(6144, 48, 64), (12288, 96, 96), (20480, 105, 128)])
def test_megatron_equation_3_is_the_sum_of_the_operators(h: int, layers: int, a: int) -> None:
    b, s, v = 2, 2048, 51200
    # arXiv 2205.05198, equation 3 cleared of fractions: 72BLsh^2 (1 + s/6h + v/12hL).
    expected = 72 * b * layers * s * h * h + 12 * b * layers * s * s * h + 6 * b * s * h * v
    assert flops(gpt(h, layers, a, v), Workload(b=b, s=s, attention="eager")) == expected


def test_one_layer_forward_is_24bsh2_plus_4bs2h() -> None:
    b, s, h = 4, 2048, 4096
    model = replace(gpt(h, 1, 32), head=False)
    for attention in ("eager", "flash"):
        workload = Workload(b=b, s=s, phase="infer", attention=attention)  # type: ignore[arg-type]
        assert flops(model, workload) == 24 * b * s * h * h + 4 * b * s * s * h


def test_backward_is_twice_forward_with_eager_attention() -> None:
    workload = Workload(b=1, s=1024, attention="eager")
    assert flops(llama(), workload) == 3 * flops(llama(), replace(workload, phase="infer"))


def test_fused_attention_backward_computes_the_scores_again() -> None:
    forward, backward = (
        next(op for op in operators(llama(), Workload()) if isinstance(op, Attention) and op.phase == phase)
        for phase in ("forward", "dgrad")
    )
    # Five products of the forward's two sizes: S again, dP, dV, dQ, dK.
    assert 2 * backward.flops == 5 * forward.flops


def test_full_checkpointing_adds_one_forward_of_the_blocks() -> None:
    workload = Workload(b=1, s=1024, attention="eager")
    model = replace(llama(), head=False)
    forward = flops(model, replace(workload, phase="infer"))
    assert flops(model, replace(workload, checkpointing="full")) == 4 * forward


def test_selective_checkpointing_runs_the_attention_core_again_and_nothing_else() -> None:
    plain = Counter({replace(op, count=1): op.count for op in operators(llama(), Workload())})
    selective = Counter(
        {replace(op, count=1): op.count for op in operators(llama(), Workload(checkpointing="selective"))}
    )
    again = selective - plain
    assert not plain - selective
    assert {(op.name, op.phase, count) for op, count in again.items()} == {("layers.*.attention.core", "forward", 32)}


def test_attention_moves_queries_keys_values_and_output_once_and_backward_their_gradients_too() -> None:
    forward, backward = (
        next(op for op in operators(llama(), Workload(b=2, s=1024)) if isinstance(op, Attention) and op.phase == phase)
        for phase in ("forward", "dgrad")
    )
    q, kv = 2 * 32 * 1024 * 128, 2 * 8 * 1024 * 128
    assert forward.bytes == 2 * (q + 2 * kv + q)  # Q, K, V in; O out
    assert backward.bytes == 2 * ((2 * q + 2 * kv + q) + (q + 2 * kv))  # Q, O, K, V, dO in; dQ, dK, dV out


def test_attention_in_8_bits_is_cudnns_and_is_quantised() -> None:
    plain, narrow = (
        {op.name: op for op in operators(llama(), Workload(b=2, s=1024, dtype="fp8", **more)) if ".core" in op.name}
        for more in ({}, {"attention_dtype": "fp8"})
    )
    assert set(plain) == {"layers.*.attention.core"}
    core, moved = narrow["layers.*.attention.core"], narrow["layers.*.attention.core.quantise"]
    assert isinstance(core, Attention)
    assert (core.dtype, core.kernel) == ("fp8", "cudnn")
    # Three bytes an element of Q, K, V and the output.
    assert moved.bytes == 3 * 2 * 1024 * (2 * 32 + 2 * 8) * 128
    # The forward on B200, at half the bytes and twice the rate of 16 bits, is faster.
    forward = replace(core, phase="forward")
    assert predict(forward, "b200").seconds < 0.9 * predict(replace(forward, dtype="bf16"), "b200").seconds


def test_attention_over_packed_documents_is_that_of_so_many_short_sequences() -> None:
    def cores(**asked: Any) -> list[Attention]:
        return [op for op in operators(llama(), Workload(**asked)) if isinstance(op, Attention)]

    assert cores(b=2, s=8192, document=512) == cores(b=32, s=512)
    assert cores(b=2, s=8192, cp=2, document=512) == cores(b=32, s=512, cp=2)
    # 3 of 3,000 tokens at most, of 2,731: as many pairs as the sequence has documents.
    assert {(op.batch, op.q_len, op.kv_len) for op in cores(b=1, s=8192, document=3000)} == {(3, 2731, 2731)}
    assert cores(b=2, s=8192, document=9000) == cores(b=2, s=8192)
    # What is written out computes other documents' scores too.
    written = [operators(llama(), Workload(b=1, s=1024, attention="eager", **more)) for more in ({}, {"document": 64})]
    assert written[0] == written[1]
    with pytest.raises(InputError, match=r"document = 512: expected the phase train"):
        Workload(phase="prefill", document=512)


@pytest.mark.parametrize(("zero", "gathers"), [(0, 0), (1, 1), (2, 1), (3, 2)])
def test_zero_gathers_the_weights_once_and_zero_3_once_a_direction(zero: int, gathers: int) -> None:
    found = [op for op in operators(llama(), Workload(d=8, zero=zero)) if isinstance(op, Collective)]
    pieces = llama().layers if zero == 3 else 1  # FSDP's units are the layers
    assert all(0 <= op.bytes * pieces - 2 * llama().parameters < pieces and op.ranks == 8 for op in found)
    counts = Counter({op.what: op.count // pieces for op in found})
    assert counts == ({"all_gather": gathers, "reduce_scatter": 1} if zero else {"all_reduce": 1})


def test_memory_bound_operators_of_a_layer_read_and_write_each_tensor_once() -> None:
    b, s, h, d_ff = 2, 512, 4096, 14336
    x, gated = b * s * h, b * s * d_ff  # elements
    scores, rotated = b * 32 * s * s, b * s * (32 + 8) * 128
    # (read, written) forward, then backward: elements of 2 bytes.
    expected = {
        "norm.0": ((x, x), (2 * x, x)),  # backward: input and gradient in, gradient out
        "residual": ((2 * x, x), (2 * x, x)),  # two summands, one sum
        "attention.rotary": ((rotated, rotated), (rotated, rotated)),
        "attention.softmax": ((scores, scores), (2 * scores, scores)),
        "attention.dropout": ((scores, 2 * scores), (2 * scores, scores)),  # its output and a mask
        "mlp.activation": ((2 * gated, gated), (3 * gated, 2 * gated)),  # gate and up; both and the gradient
        "dropout": ((x, 2 * x), (2 * x, x)),
    }
    block = llama().main.blocks[0]
    assert isinstance(block.attention, AttentionShape)
    dropping = replace(block, dropout=0.1, attention=replace(block.attention, dropout=0.1))
    model = replace(llama(), stacks=(replace(llama().main, blocks=(dropping,)),))
    found = {
        (op.name.removeprefix("layers.*."), op.phase): (op.bytes_read // 2, op.bytes_written // 2, op.count)
        for op in operators(model, Workload(b=b, s=s, attention="eager"))
        if isinstance(op, Elementwise)
    }
    for name, phases in expected.items():
        for phase, (read, written) in zip(("forward", "dgrad"), phases, strict=True):
            assert found[name, phase][:2] == (read, written), (name, phase)
    # 32 layers add to the residual stream, and drop out of it, after attention and after the MLP.
    assert found["residual", "forward"][2] == found["dropout", "forward"][2] == 64
    assert found["mlp.activation", "forward"][2] == 32


def test_sequence_parallelism_splits_what_tensor_parallelism_leaves_whole() -> None:
    def moved(**split: Any) -> dict[str, int]:
        found = operators(llama(), Workload(phase="infer", **split))
        return {op.name.removeprefix("layers.*."): op.bytes for op in found if isinstance(op, Elementwise)}

    alone, tensor, both = moved(), moved(t=4), moved(t=4, sequence_parallel=True)
    for name in ("norm.0", "residual", "final_norm"):
        assert alone[name] == tensor[name] == 4 * both[name]
    assert alone["mlp.activation"] == 4 * tensor["mlp.activation"] == 4 * both["mlp.activation"]


def test_layouts_follow_the_phase() -> None:
    layouts = {(op.phase, op.layout) for op in operators(llama(), Workload()) if isinstance(op, Gemm)}
    assert layouts == {("forward", "tn"), ("dgrad", "nn"), ("wgrad", "nt")}


def test_a_linear_layers_three_products_in_blas_order() -> None:
    found = [
        (op.phase, op.m, op.n, op.k) for op in operators(llama(), Workload(b=1, s=512)) if op.name.endswith("up_proj")
    ]
    assert found == [("forward", 512, 14336, 4096), ("dgrad", 512, 4096, 14336), ("wgrad", 14336, 4096, 512)]


def test_fusing_projections_changes_products_but_not_flops() -> None:
    separate, fused = (operators(llama(), Workload(fused_qkv=on, fused_gate_up=on)) for on in (False, True))
    assert sum(op.flops * op.count for op in separate) == sum(op.flops * op.count for op in fused)
    qkv = next(op for op in fused if op.name.endswith("qkv_proj") and op.phase == "forward")
    assert qkv.n == (32 + 2 * 8) * 128
    gate_up = next(op for op in fused if op.name.endswith("gate_up_proj") and op.phase == "forward")
    assert gate_up.n == 2 * 14336


def test_key_value_heads_are_replicated_once_tensor_parallelism_exceeds_them() -> None:
    core = next(op for op in operators(llama(), Workload(t=16)) if isinstance(op, Attention))
    assert (core.heads, core.kv_heads) == (2, 1)


def test_experts_meet_top_k_times_the_tokens() -> None:
    moe = MoeShape(experts=8, top_k=2, width=14336, fused_gate_up=False)
    block = Block(AttentionShape(32, 8, 128), moe, count=32)
    model = ModelShape("mixtral", (Stack("decoder", 4096, (block,)),), vocab=32000)
    experts = [op for op in operators(model, Workload(b=1, s=4096, d=4, e=4)) if isinstance(op, GroupedGemm)]
    shapes = {(op.phase, op.ragged, op.groups, op.m, op.n, op.k) for op in experts if op.name.endswith("down_proj")}
    routed = 4096 * 2
    assert shapes == {
        ("forward", "m", 2, routed, 4096, 14336),
        ("dgrad", "m", 2, routed, 14336, 4096),
        ("wgrad", "k", 2, 4096, 14336, routed),
    }


def test_mla_runs_five_projections_and_unequal_head_dims() -> None:
    mla = MlaShape(128, 512, 128, 64, 128, q_lora_rank=1536)
    model = ModelShape("deepseek", (Stack("decoder", 7168, (Block(mla, MlpShape(18432)),)),), vocab=129280)
    forward = {op.name: op for op in operators(model, Workload(b=1, s=256, phase="infer"))}
    widths = {
        name.rsplit(".", 1)[1]: op.n for name, op in forward.items() if ".attention." in name and op.kind == "gemm"
    }
    assert widths == {"q_a_proj": 1536, "q_b_proj": 128 * 192, "kv_a_proj": 576, "kv_b_proj": 128 * 256, "o_proj": 7168}
    core = forward["layers.*.attention.core"]
    assert isinstance(core, Attention)
    assert (core.head_dim, core.v_head_dim) == (192, 128)
    # Engines project both latents by one matrix where they decode (vLLM's fused_qkv_a_proj, SGLang's with_mqa).
    work = Workload(b=8, s=1, phase="decode", context=256, fused_qkv=True)
    decoded = {op.name: op.n for op in operators(model, work) if op.kind == "gemm"}
    assert decoded["layers.*.attention.qkv_a_proj"] == 1536 + 576
    assert decoded.keys().isdisjoint({"layers.*.attention.q_a_proj", "layers.*.attention.kv_a_proj"})
    full = replace(model, stacks=(Stack("decoder", 7168, (Block(replace(mla, q_lora_rank=None), MlpShape(18432)),)),))
    assert "layers.*.attention.kv_a_proj" in {op.name for op in operators(full, work)}


@pytest.mark.parametrize(("workload", "key"), [({"t": 3}, "t"), ({"p": 33}, "p"), ({"e": 2}, "e"), ({"t": 64}, "t")])
def test_a_split_that_does_not_divide_names_the_degree(workload: dict[str, int], key: str) -> None:
    with pytest.raises(InputError) as caught:
        operators(llama(), Workload(**workload))  # type: ignore[arg-type]
    assert caught.value.key == key


def test_the_causal_share_is_a_half_and_a_diagonal() -> None:
    def core(**changes: Any) -> Attention:
        values = {"q_len": 8, "kv_len": 8, "causal": True, "window": None} | changes
        return Attention("a", "forward", 1, 1, 1, head_dim=64, v_head_dim=64, **values)

    assert core().visible_share == 36 / 64  # 1 + 2 + ... + 8
    assert core(causal=False).visible_share == 1
    assert core(window=2).visible_share == 15 / 64  # 1 + 2 x 7
    assert core(q_len=1).visible_share == 1  # decoding: the last query sees all
    assert core(q_len=2).visible_share == 15 / 16
    assert core(q_len=2, window=3).visible_share == 6 / 16


@given(q=st.integers(1, 40), extra=st.integers(0, 40), window=st.one_of(st.none(), st.integers(1, 90)))
def test_the_visible_share_counts_the_mask(q: int, extra: int, window: int | None) -> None:
    kv = q + extra
    seen = sum(
        1 for i in range(q) for j in range(kv) if j <= kv - q + i and (window is None or j > kv - q + i - window)
    )
    core = Attention("a", "forward", 1, 1, 1, q, kv, 64, 64, causal=True, window=window)
    assert core.visible_share == pytest.approx(seen / (q * kv))


degrees = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60)
@given(
    t=degrees,
    heads=st.sampled_from([8, 16, 32]),
    head_dim=st.sampled_from([64, 80, 128]),
    d_ff=st.integers(1, 64).map(lambda x: x * 64),
    layers=st.integers(1, 5),
    b=st.integers(1, 3),
    kv_share=degrees,
    train=st.booleans(),
)
def test_shards_add_up_to_the_whole_model(
    t: int, heads: int, head_dim: int, d_ff: int, layers: int, b: int, kv_share: int, train: bool
) -> None:
    kv_heads = heads // kv_share
    block = Block(AttentionShape(heads, kv_heads, head_dim), MlpShape(d_ff), count=layers)
    model = ModelShape("m", (Stack("decoder", 512, (block,)),), vocab=1024)
    workload = Workload(b=b, s=64, phase="train" if train else "infer", attention="eager")
    whole, shard = flops(model, workload), flops(model, replace(workload, t=t))
    if t <= kv_heads:
        assert t * shard == whole
    else:
        assert t * shard >= whole  # replicated key/value heads


@given(p=st.integers(1, 12))
def test_the_last_stage_holds_its_share_of_layers_rounded_up(p: int) -> None:
    model = llama(layers=12)
    counts = [op.count for op in operators(model, Workload(p=p)) if op.name.endswith("up_proj")]
    assert set(counts) == {-(-12 // p)}


@pytest.mark.parametrize("p", [1, 4])
def test_the_last_of_several_stages_runs_the_head_and_no_embedding(p: int) -> None:
    ends = {op.name.partition(".")[0] for op in operators(llama(), Workload(p=p, t=2)) if "layers" not in op.name}
    assert {"lm_head", "cross_entropy", "final_norm"} <= ends
    assert ("embedding" in ends) == (p == 1)


def test_every_elementwise_operator_moves_bytes_and_does_no_flops() -> None:
    for operator in operators(llama(), Workload(attention="eager", t=2, sequence_parallel=True)):
        if isinstance(operator, Elementwise):
            assert operator.bytes > 0
            assert operator.flops == 0


def test_the_optimizer_moves_thirty_bytes_a_parameter_split_by_zero() -> None:
    def moved(workload: Workload) -> int:
        return next(op.bytes for op in operators(llama(), workload) if op.name == "optimizer")

    # fp32 gradient, master weight and two moments in (16); the latter three and the 16-bit weight out (14).
    assert moved(Workload()) == 30 * llama().parameters
    assert moved(Workload(d=8, zero=1)) == pytest.approx(30 * llama().parameters / 8)
