"""MFU and HFU: the published tables, the three ways of counting, and step times read from logs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from shapes.device import load_device
from shapes.errors import InputError
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.workload import Workload
from sizer.answers.mfu import (
    FlopCount,
    MfuAnswer,
    counts,
    mfu,
    operator_count,
    parameters_count,
    read_step_times,
    utilization,
)
from sizer.answers.plan import Plan
from sizer.cli import main


def gpt(hidden: int, layers: int, heads: int, vocab: int = 51200) -> ModelShape:
    block = Block(
        AttentionShape(heads, heads, hidden // heads), MlpShape(4 * hidden, gated=False), norm_weights=2, count=layers
    )
    return ModelShape("gpt2", (Stack("decoder", hidden, (block,)),), vocab=vocab, tied=True)


def megatron_count(hidden: int, layers: int, vocab: int, s: int, global_batch: int, checkpointing: str) -> FlopCount:
    """Megatron's equation 3, 72 B L s h^2 (1 + s/6h + v/12hL), for a GPT with a 4h MLP and plain attention.

    Recomputation: selective has s/3h in place of s/6h as the paper writes it; full runs every layer's forward twice.
    """
    h, v = hidden, vocab
    unit = global_batch * layers * s * h * h
    needed = 72 * unit * (1 + s / (6 * h) + v / (12 * h * layers))
    run = {
        "none": needed,
        "selective": 72 * unit * (1 + s / (3 * h) + v / (12 * h * layers)),
        "full": 96 * unit * (1 + s / (6 * h) + v / (16 * h * layers)),
    }[checkpointing]
    return FlopCount("Megatron equation 3", "", needed, run)


# Korthikanti et al. 2205.05198, table 5: A100-80GB at a peak of 312, s 2048, v 51200, selective recomputation.
MEGATRON_TABLE = [
    (6144, 48, 64, 4, 8, 1.10, 41.5, 43.7),
    (12288, 96, 96, 64, 64, 13.75, 51.4, 52.8),
    (20480, 105, 128, 280, 280, 37.83, 56.0, 57.0),
    (25600, 128, 160, 512, 512, 71.49, 56.3, 57.0),
]


@pytest.mark.parametrize(("h", "layers", "a", "batch", "gpus", "seconds", "mfu", "hfu"), MEGATRON_TABLE)
def test_megatrons_table_of_mfu_and_hfu_is_reproduced(
    h: int, layers: int, a: int, batch: int, gpus: int, seconds: float, mfu: float, hfu: float
) -> None:
    a100 = load_device("a100-sxm")
    row = utilization(megatron_count(h, layers, 51200, 2048, batch, "selective"), seconds, gpus, a100)
    # The table's seconds have three or four digits: half of the last one of 1.10 s is 0.45%.
    assert 100 * row.mfu == pytest.approx(mfu, abs=0.2)
    assert 100 * row.hfu == pytest.approx(hfu, abs=0.2)


@pytest.mark.parametrize(("h", "layers", "a"), [(row[0], row[1], row[2]) for row in MEGATRON_TABLE])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_counting_every_operator_of_a_gpt_gives_megatrons_equation(
    h: int, layers: int, a: int, checkpointing: str
) -> None:
    exact = operator_count(gpt(h, layers, a), Workload(1, 2048, global_batch=8, checkpointing=checkpointing))
    equation = megatron_count(h, layers, 51200, 2048, 8, checkpointing)
    assert exact.model_flops == pytest.approx(equation.model_flops, rel=1e-12)
    if checkpointing != "selective":
        assert exact.hardware_flops == pytest.approx(equation.hardware_flops, rel=1e-12)
        return
    # Scores and values run again are 4 B s^2 h a layer, 72 B L s h^2 x s/18h; the paper's equation has s/6h more.
    again = exact.hardware_flops - exact.model_flops
    assert again == pytest.approx((equation.hardware_flops - equation.model_flops) / 3, rel=1e-12)


def test_a_causal_count_leaves_out_just_under_half_of_the_attention_square() -> None:
    model, s = gpt(1024, 4, 16), 1024
    one = Workload(1, s)
    square = 12 * 4 * s * s * 1024  # L layers x three times 4 s^2 h
    left_out = operator_count(model, one).model_flops - operator_count(model, one, causal=True).model_flops
    assert left_out == pytest.approx(square * (0.5 - 0.5 / s))  # the diagonal stays


def test_the_books_estimate_of_52b_on_64_gpus_is_8nd_over_time() -> None:
    # size_in_B * 4 * 2 * s * GBS / (seconds * GPUs * 1e3) = 52 * 8 * 2048 * 1024 / (127 * 64 * 1e3)
    run = Workload(1, 2048, global_batch=1024, checkpointing="full")
    row = utilization(parameters_count(52e9, run), 127, 64, load_device("a100-sxm"))
    assert row.hardware_tflops == pytest.approx(52 * 8 * 2048 * 1024 / (127 * 64 * 1e3))
    assert row.hardware_tflops == pytest.approx(107.33, abs=0.01)
    assert row.model_tflops == pytest.approx(row.hardware_tflops * 3 / 4)


def test_hfu_is_never_below_mfu_and_equal_without_recomputation() -> None:
    for checkpointing in ("none", "selective", "full"):
        for count in counts(gpt(2048, 8, 16), Workload(1, 2048, global_batch=16, checkpointing=checkpointing)):
            assert count.hardware_flops >= count.model_flops
            if checkpointing == "none":
                assert count.hardware_flops == count.model_flops


def test_utilization_is_also_given_against_the_achievable_peak() -> None:
    h100 = load_device("h100-sxm")
    row = utilization(parameters_count(1e9, Workload(1, 2048)), 1.0, 1, h100)
    assert row.mfu_achievable == pytest.approx(row.mfu * h100.peak("bf16") / h100.mamf_flops["bf16"])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_time_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="positive number"):
        sizer.mfu(params=1e9, step_time=seconds, gpus=1, global_batch=1, device="a100-sxm")


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("iteration 10/100 | elapsed time per iteration (ms): 1234.5 | lm loss 2.1", 1.2345),
        (':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": 0.4512, "reduced_train_loss": 3.2}}', 0.4512),
        ("iteration 10/99 | global_step: 10 | train_step_timing in s: 8.31 | consumed_samples: 5632", 8.31),
        ('    "train_step_timing in s": 92.28738164901733,', 92.28738164901733),  # DLLogger's record of NeMo's
        ("0: Step 19 train_step_timing 1.9324331283569336 timestamp: 1713522620986.0247", 1.9324331283569336),
        ("completed step: 7, seconds: 2.215, TFLOP/s/device: 410.2, Tokens/s/device: 7396.1, loss: 8.1", 2.215),
        ("step 3 loss 2.0 step time: 0.75", 0.75),
        ("Finished training it 144/150 of epoch 0, 459.80 ms/it, loss 0.45", 0.4598),
        ("iter_time=812 ms", 0.812),
        (" 12%|# | 3/25 [00:10<01:13, 3.34s/it]", 3.34),
        (" 12%|# | 3/25 [00:01<00:09, 2.50it/s]", 0.4),
        ("Epoch 0: 40%| | 8/20, 0.8 steps/s, v_num=1", 1.25),
        ("{'train_runtime': 80.0, 'train_steps_per_second': 0.25, 'epoch': 1.0}", 4.0),
        ('{"step": 4, "step_time_ms": 250}', 0.25),
        # Lines of public logs: nanotron, saforem2/Megatron-DeepSpeed's spelling, Megatron-Bridge's, XTuner, llm.c,
        # nanoGPT and modded-nanogpt; torchtitan's own metric.
        ("[INFO|DP=0|PP=0]: iteration: 1 / 15 | consumed_tokens: 512 | elapsed_time_per_iteration_ms: 4.71K |", 4.71),
        ("iteration= 12/ 317892 | consumed_samples= 9216 | elapsed_time_per_iteration_ms=842.5 |", 0.8425),
        ("iteration 5/ 24 | elapsed time per iteration (s): 6.26 | lm loss: 1.18E+01", 6.26),
        ("[2025-09-08 03:04:13][INFO] Step 2/13 data_time: 0.0065 lr: 0.00006 time: 0.0515 tgs: 76934.8", 0.0515),
        ("step 2/10 | loss 10.9 (+nanz)| norm 22.0 (+nanz)| lr 1.71e-06 | 2536.03 ms | 39.6% bf16 MFU |", 2.53603),
        ("iter 2500: loss 0.7487, time 9110.03ms, mfu 24.46%", 9.11003),
        ("step:126/1750 train_time:12432ms step_avg:98.67ms", 0.09867),
        ('{"time_metrics/end_to_end(s)": 0.92, "time_metrics/data_loading(s)": 0.01}', 0.92),
        ("127", 127.0),
    ],
)
def test_step_times_are_found_in_usual_log_lines(line: str, seconds: float) -> None:
    times = read_step_times(f"starting up\n{line}\n")
    assert times.seconds == (pytest.approx(seconds),)
    assert times.unread == 1


def test_a_log_is_summed_up_by_its_median() -> None:
    times = read_step_times("\n".join(str(value) for value in (9.0, 1.0, 1.1, 1.2, 1.0)))  # the first step compiles
    assert times.median_s == 1.1


STAMPED = (
    "[rank{rank}]:[titan] 2025-07-01 {time} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.1  tps: 5,813"
)


def test_a_step_may_stand_far_behind_its_stamp() -> None:
    """InternEvo's line (its guide's 20B demo)."""
    line = (
        "2023-11-10T15:06:{}+08:00 INFO [training_internlm.py, line 601, in record_current_batch_training_metrics] - "
        "pid=78690 : tflops=115.41412094522278 step={} loss=11.3 tgs (tokens/gpu/second)=931.02"
    )
    times = read_step_times("\n".join((line.format("02.978", 1), line.format("06.988", 2))))
    assert times.seconds == (pytest.approx(4.01),)


def stamped(*lines: tuple[str, int], ranks: int = 1) -> str:
    return "\n".join(STAMPED.format(rank=rank, time=time, step=step) for time, step in lines for rank in range(ranks))


@pytest.mark.parametrize("ranks", [1, 3])
def test_stamped_lines_of_steps_tell_the_time_between_them(ranks: int) -> None:
    # The first step compiles; ten steps a line from then on, past midnight and over a checkpoint.
    lines = [
        ("23:59:01,000", 1),
        ("23:59:46,000", 10),
        ("00:00:06,500", 20),
        ("00:00:27,000", 30),
        ("00:02:07,000", 40),
    ]
    times = read_step_times(stamped(*lines, ranks=ranks))
    assert times.seconds == pytest.approx((5.0, 2.05, 2.05, 10.0))
    assert times.median_s == pytest.approx(3.525)
    # What says its own time is believed.
    assert read_step_times(stamped(*lines) + "\nstep time: 2.0").seconds == (2.0,)


@pytest.mark.parametrize(
    "text",
    [
        stamped(("10:00:00,000", 1)),
        stamped(("10:00:00,000", 1), ("10:00:00,000", 2)),
        stamped(("10:00:05,000", 5), ("10:00:07,000", 5)),
        stamped(("10:00:05,000", 5), ("10:00:07,000", 4)),
        "10:00:00 step one\n10:00:05 step two",
        "0.00it/s",
        "0 it/s\n0.0 steps/s\n'train_steps_per_second': 0.0",
    ],
)
def test_stamps_that_tell_no_time_and_rates_of_nothing_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"^<log>: expected lines with a step time.*") as refused:
        read_step_times(text)
    assert "\n" not in str(refused.value)


def test_of_a_list_of_all_steps_the_last_is_read() -> None:
    """As NeMo's perf_metrics_utils writes one at the end of a run (quoted in NVIDIA/cloudai's tests)."""
    line = "[NeMo I 2025-03-04 02:58:29 perf_metrics_utils:56] train_step_timing in s: [11.85, 6.98, 5.36, 2.18, 2.12]"
    assert read_step_times(line).seconds == (2.12,)


def test_a_log_without_times_is_refused() -> None:
    with pytest.raises(InputError, match="expected lines with a step time"):
        read_step_times("nothing here\n{]\n")


SLOW = [
    "12:00:00 " * 10_000,
    "step_time" + " " * 100_000,
    "1" * 100_000 + "x",
    "step time (((( " * 10_000,
    "{" * 10_000,
    "step_timing in s: [" * 10_000,
]


@pytest.mark.parametrize("line", SLOW, ids=range(len(SLOW)))
def test_a_line_made_to_be_slow_is_passed_over(line: str) -> None:
    times = read_step_times(f"{line}\nstep   time\t:  1.5\n")
    assert (times.seconds, times.unread) == ((1.5,), 1)


def test_a_log_without_an_end_is_refused() -> None:
    command = ["mfu", "tests/data/configs/gpt2.json", "--step-time", "/dev/zero", "--gpus", "8", "--global-batch", "64"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "256 MiB" in result.output


def trace(kernels: list[tuple[float, float, str]], steps: int = 2) -> str:
    """A Chrome trace of steps of 100 us each, in microseconds: from, how long, name."""
    marks = [(100.0 * one, 100.0, f"ProfilerStep#{one + 3}", "user_annotation") for one in range(steps)]
    ran = [(ts + 100 * one, dur, name, "kernel") for one in range(steps or 1) for ts, dur, name in kernels]
    keys = ("ts", "dur", "name", "cat")
    events = [{"ph": "X", **dict(zip(keys, one, strict=True))} for one in (*marks, *ran)]
    return json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]})


KERNELS = [
    (0.0, 40.0, "nvjet_tst_128x256_64x6_2x1_v_bz_TNT"),
    (40.0, 20.0, "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits>"),
    (60.0, 10.0, "triton_red_fused__to_copy_add_mean_mul"),
    (50.0, 30.0, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),  # 10 us behind the others
    (85.0, 5.0, "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>"),
]


def test_an_mlperf_log_of_samples_a_second_gives_a_step_of_its_global_batch() -> None:
    """Lines as training_results_v4.0 has them of Llama 2 70B LoRA; 8 samples at 1.926 a second are 4.15 s."""
    line = '0: :::MLLOG {{"namespace": "", "time_ms": 1721026606541, "event_type": "POINT_IN_TIME", "key": {}, '
    line += '"metadata": {{"file": "/workspace/ft-llm/custom_callbacks.py", "lineno": 161}}}}'
    rate = '"tracked_stats", "value": {"throughput": 1.9257918929116467}'
    log = [line.format('"global_batch_size", "value": 8'), *[line.format(rate)] * 3]
    log.append(line.format('"tracked_stats", "value": {"throughput": 0.0}'))
    assert read_step_times("\n".join(log)).seconds == pytest.approx((8 / 1.9257918929116467,) * 3)
    with pytest.raises(InputError, match="expected lines with a step time"):
        read_step_times("\n".join(log[1:]))  # of how many samples a step is


def test_a_profilers_trace_has_a_steps_kernels_by_part() -> None:
    times = read_step_times(trace(KERNELS))
    assert times.seconds == pytest.approx((100e-6, 100e-6))
    assert times.kernels == pytest.approx(
        {
            "products": 40e-6,
            "attention": 20e-6,
            "elementwise": 10e-6,
            "communication": 10e-6,  # the 20 us beneath attention and elementwise show nowhere
            "optimizer": 5e-6,
            "idle": 15e-6,
        }
    )


def test_nsys_list_of_kernels_has_steps_from_one_update_to_the_next() -> None:
    """The header, the lines before it and the quoted names are nsys 2024's (cuda_gpu_trace); of two ranks the first."""
    columns = (
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    )
    columns += "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
    rows = [
        f'{1e3 * (ts + 100 * step):.0f},{1e3 * dur:.0f},7,1,1,1,8,1,1,9,0.0,0.2,,,,,NVIDIA H100 ({rank}),1,,7,"{name}"'
        for step in range(4)
        for ts, dur, name in sorted(KERNELS)
        for rank in range(2)
    ]
    times = read_step_times("\n".join(["Processing [a.sqlite] with [cuda_gpu_trace.py]...", "", columns, *rows]))
    assert times.seconds == pytest.approx((100e-6, 100e-6))
    assert times.kernels == pytest.approx(read_step_times(trace(KERNELS)).kernels)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        # Inductor names a kernel after all that it was made from, and runs none of it but what moves bytes.
        ("triton_poi_fused_addmm_relu_0", "elementwise"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_clone_4", "elementwise"),
        ("triton_red_fused_all_gather_into_tensor_mean_wait_tensor_2", "elementwise"),
        ("triton_tem_fused_mm_3", "products"),
        ("triton_tem_fused_flex_attention_1", "attention"),
        ("bwd_kernel_dk_dv", "attention"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<2>", "communication"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>", "communication"),
        # Of deepseek-ai/profile-data's train.json, where the first takes a third of the step.
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)", "communication"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "communication"),
        ("triton_tem_fused_addmm_5", "products"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, 128, 16, 4, 4, false>", "products"),
    ],
)
def test_a_kernels_part_is_what_it_runs_not_what_it_was_made_from(name: str, part: str) -> None:
    kernels = read_step_times(trace([(0.0, 40.0, name)])).kernels
    assert kernels is not None
    assert kernels[part] == pytest.approx(40e-6)


def test_a_packed_log_is_read_and_what_gzip_did_not_pack_is_refused(tmp_path: Path) -> None:
    whole, broken = tmp_path / "log.gz", tmp_path / "broken.gz"
    whole.write_bytes(gzip.compress(b"step time: 1.5\n"))
    broken.write_bytes(b"\x1f\x8bno")
    layout = ("--gpus", "8", "--global-batch", "8", "--params", "8e9", "--step-time")
    answer, refused = (CliRunner().invoke(main, ["mfu", *layout, str(file)]) for file in (whole, broken))
    assert "1.5 s a step" in answer.output
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert "broken.gz: expected gzip" in refused.output


def test_a_traces_times_have_a_unit_that_nobody_asks_after(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(trace(KERNELS, 1).replace('"dur": 100.0', '"dur": 1e10'), encoding="utf-8")
    call = ["mfu", "tests/data/configs/gpt2.json", "--gpus", "1", "--global-batch", "8"]
    said = CliRunner().invoke(main, [*call, "--profile", str(file)]).output
    typed = CliRunner().invoke(main, [*call, "--step-time", "1000"]).output
    assert "MFU 0.0" in said
    assert "milliseconds?" not in said
    assert "milliseconds?" in typed


def test_a_trace_is_compared_with_the_predicted_parts(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(trace([(1e4 * ts, 1e4 * dur, name) for ts, dur, name in KERNELS], 1), encoding="utf-8")
    file.write_text(file.read_text().replace('"dur": 100.0', '"dur": 1e6'), encoding="utf-8")
    layout = ("--gpus", "8", "--global-batch", "8", "-s", "8192", "-b", "1", "--zero", "3", "--dp", "8")
    said = CliRunner().invoke(
        main, ["mfu", "tests/data/configs/llama-3.1-8b.json", *layout, "--explain", "--profile", str(file)]
    )
    assert said.exit_code == 0, said.output
    rows = {
        line.split()[0]: line.split()[1:] for line in said.output.partition("trace's kernels")[2].splitlines() if line
    }
    assert rows["products"][:2] == ["400", "ms"]
    assert set(rows) >= {"products", "attention", "elementwise", "optimizer", "communication", "idle"}
    listed = said.output.partition("By operator")[2]
    assert "layers.*.mlp.gate_proj forward, layers.*.mlp.up_proj forward" in listed
    assert "unsized products (record_shapes=True tells which)" in listed


def of_operator(name: str, dims: list[list[int]], transposed: tuple[bool, bool], dur: float) -> list[dict[str, Any]]:
    """torch's record of a product (record_shapes=True), with the kernel that its External id names."""
    number = hash((name, str(dims), transposed)) % 10**6
    strides = [[1, rows] if turned else [columns, 1] for (rows, columns), turned in zip(dims, transposed, strict=True)]
    said = {"External id": number, "Input Dims": dims, "Input Strides": strides}
    said["Input type"] = ["c10::BFloat16"] * len(dims)
    record = {"ph": "X", "cat": "cpu_op", "name": name, "ts": 0.0, "dur": 1.0, "args": said}
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "nvjet_tst_TNT",
        "ts": 40.0,
        "dur": dur,
        "args": {"External id": number},
    }
    return [record, kernel]


def by_names(answer: MfuAnswer) -> dict[str, list[Any]]:
    """Seconds measured and predicted of each row of operators, as JSON has them."""
    rows = answer.to_dict()["explanation"]["operators"]
    return {row["operators"]: [row["measured_seconds"], row["predicted_seconds"]] for row in rows}


LAYOUT: dict[str, Any] = {"gpus": 8, "global_batch": 8, "b": 1, "s": 8192, "zero": 3, "d": 8, "explain": True}


def test_a_traces_kernels_are_compared_by_operator() -> None:
    """Products by sizes and layout, where the trace has shapes; everything else by words of its kernels."""
    text = json.loads(trace([*KERNELS[1:], (90.0, 4.0, "void silu_kernel")], 1))
    tokens, hidden, width = 8192, 4096, 14336
    text["traceEvents"] += of_operator("aten::mm", [[tokens, hidden], [hidden, width]], (False, True), 7.0)
    text["traceEvents"] += of_operator("aten::mm", [[tokens, width], [width, hidden]], (False, False), 9.0)
    text["traceEvents"] += of_operator("aten::mm", [[width, tokens], [tokens, hidden]], (True, False), 8.0)
    text["traceEvents"] += of_operator("aten::mm", [[64, 64], [64, 64]], (False, True), 1.0)
    config = "tests/data/configs/llama-3.1-8b.json"
    log = read_step_times(json.dumps(text).replace('"dur": 100.0', '"dur": 1e6'))
    answer = sizer.mfu(config, step_time=log, stack="pytorch-fsdp2-eager", **LAYOUT)
    rows = by_names(answer)
    gate, up = "layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"
    for phase, measured in (("forward", 7e-6), ("dgrad", 9e-6), ("wgrad", 8e-6)):
        assert rows[f"{gate} {phase}, {up} {phase}"][0] == pytest.approx(measured)
    assert rows["attention, forward"][0] == pytest.approx(20e-6)
    assert rows["all_gather"][0] == pytest.approx(30e-6)  # all of it, also what hides
    assert rows["activation"][0] == pytest.approx(4e-6)
    assert rows["64 x 64 x 64 x 1 tn"] == [pytest.approx(1e-6), None]  # of no operator
    assert rows["lm_head forward"][0] is None  # not in the trace: not known, and not 0
    assert all(one is None or one > 0 for times in rows.values() for one in times)


def test_operators_are_predicted_as_the_stack_runs_them_over_a_whole_step() -> None:
    """Products add up to the step's part, of every microbatch; a reduction runs once a step."""
    log = read_step_times(trace(KERNELS, 1).replace('"dur": 100.0', '"dur": 1e7'))
    config = "tests/data/configs/llama-3.1-8b.json"
    layout = {**LAYOUT, "global_batch": 32, "zero": 1}
    answer = sizer.mfu(config, step_time=log, stack="megatron-core-te", **layout)
    found = answer.explanation
    assert found is not None
    rows = by_names(answer)
    products = sum(
        times[1] for name, times in rows.items() if name.endswith(("forward", "dgrad", "wgrad")) and "." in name
    )
    products += sum(rows[f"lm_head {phase}"][1] for phase in ("forward", "dgrad", "wgrad"))
    assert products == pytest.approx(found.predicted.parts["products"])
    attention = rows["attention, forward"][1] + rows["attention, backward"][1]
    assert attention == pytest.approx(found.predicted.parts["attention"])
    assert rows["optimizer"][1] == pytest.approx(found.predicted.parts["optimizer"])
    once = sizer.mfu(config, step_time=log, stack="megatron-core-te", **{**layout, "global_batch": 8})
    reduced = by_names(once)["reduce_scatter"][1]
    assert rows["reduce_scatter"][1] == pytest.approx(reduced)
    # A trace without shapes says how to have them, in one row.
    assert rows["unsized products (record_shapes=True tells which)"] == [pytest.approx(40e-6), None]


@pytest.mark.slow
def test_torchs_own_trace_of_a_training_step_names_every_product_that_is_predicted(tmp_path: Path) -> None:
    """Forward, dgrad and wgrad of transformers' Llama: what torch records is what the formula lists."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=64,
    )
    model, path = transformers.LlamaForCausalLM(config), tmp_path / "trace.json"
    tokens = torch.randint(0, 256, (2, 32))
    with torch.profiler.profile(
        record_shapes=True,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda one: one.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(2):
            model(input_ids=tokens, labels=tokens).loss.backward()
            profiler.step()
    written = json.loads(path.read_text())
    # No device ran them here: each operator is its own kernel.
    written["traceEvents"] += [
        {**one, "cat": "kernel", "args": {"External id": one["args"]["External id"]}}
        for one in written["traceEvents"]
        if one.get("cat") == "cpu_op"
    ]
    run: dict[str, Any] = {"gpus": 1, "global_batch": 2, "b": 2, "s": 32, "dtype": "fp32", "device": "a100-sxm-80"}
    log = read_step_times(json.dumps(written))
    rows = by_names(mfu(config.to_dict(), step_time=log, explain=True, stack="transformers-eager", **run))
    products = {name: times for name, times in rows.items() if name.endswith(("forward", "dgrad", "wgrad"))}
    of = {one for name in products for one in name.split(", ") if "attention, " not in name}
    listed = {
        f"{one.name} {one.phase}" for one in sizer.ops(config.to_dict(), **run).operators if hasattr(one, "layout")
    }
    assert of >= listed
    assert [name for name, times in products.items() if None in times] == []


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": 3}',
        '{"traceEvents": [3]}',
        '{"traceEvents": [{"ph": "X", "name": "a"}]}',
        '{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "ts": "0", "dur": 1}]}',
        '{"traceEvents": [',
        '{"traceEvents": ' + "[" * 10**5,  # once a traceback
        trace([(0.0, -1.0, "gemm")]),
        trace([(0.0, float("nan"), "gemm")]),
        trace(KERNELS).replace('"ts": 40.0', f'"ts": {10**400}'),
        trace([]),  # of the processor alone
        trace(KERNELS, steps=0),
        "Start (ns),Duration (ns),Name,Result\n1,2,cudaLaunchKernel,0",
        "Start (ns),Duration (ns),Device,Name\n1,-2,0,gemm",
        "Start (ns),Duration (ns),Device,Name\n1,2,0,gemm",
    ],
)
def test_what_is_no_trace_of_steps_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"log>: expected (a trace of torch.profiler|kernels and steps)"):
        read_step_times(text)


@pytest.mark.slow
def test_torchs_own_trace_of_a_processor_is_one_line_packed_or_not(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(64, 64)
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(2):
            layer(torch.randn(8, 64)).sum().backward()
            profiler.step()
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(plain))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    layout = ("--gpus", "1", "--global-batch", "4", "-b", "1", "--explain", "--profile")
    for file in (plain, packed):
        said = CliRunner().invoke(main, ["mfu", "tests/data/configs/llama-3.1-8b.json", *layout, str(file)])
        assert (said.exit_code, said.output.count("\n")) == (2, 1)
        assert "expected kernels and steps: ProfilerActivity.CUDA, profiler.step()" in said.output


def test_mfu_by_precision_counts_each_product_at_its_own_types_peak() -> None:
    asked: dict[str, Any] = {"step_time": 4.0, "gpus": 8, "global_batch": 64, "device": "h100-sxm"}
    wide, narrow = (mfu("meta-llama/Llama-3.1-8B", dtype=dtype, **asked) for dtype in ("bf16", "fp8"))
    assert "operators, by precision" not in [row.count.method for row in wide.rows]
    rows = {row.count.method: row for row in narrow.rows}
    one, whole = rows["operators, by precision"], rows["operators"]
    attention = 6 * 32 * 2 * 4096 * 64 * 4096 * 4096  # two products of each of three passes, over 32 layers
    head = 6 * 4096 * 128256 * 64 * 4096  # recipes leave it in 16 bits
    share = (attention + head) / whole.count.model_flops
    assert one.mfu == pytest.approx(whole.mfu * (1 - share + 2 * share), rel=0.002)
    assert whole.mfu == pytest.approx(wide.rows[0].mfu / 2, rel=0.001)


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 8
[activation_checkpoint]
mode = "full"
"""


def test_checkpointing_is_the_files_where_nobody_says(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(TITAN)
    found = {
        said: sizer.mfu(str(path), step_time=5.0, gpus=8, global_batch=16, explain=True, **asked)
        for said, asked in {"file": {}, "full": {"checkpointing": "full"}, "none": {"checkpointing": "none"}}.items()
    }
    assert [one.checkpointing for one in found.values()] == ["full", "full", "none"]
    steps = {said: one.explanation.predicted.seconds for said, one in found.items() if one.explanation is not None}
    assert steps["file"] == steps["full"] > steps["none"]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_scripts_element_type_counts_in_every_command(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py --{dtype} --num-layers 4 --hidden-size 1024 --vocab-size 32768 "
        "--num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 "
        "--global-batch-size 64\n"
    )
    found = sizer.mfu(str(path), step_time=1.0, gpus=8, global_batch=64, explain=True)
    planned = sizer.plan(str(path), gpus=8, global_batch=64)
    assert isinstance(planned, Plan)
    assert (found.dtype, planned.candidates[0].workload.dtype) == (dtype, dtype)
    assert found.explanation is not None
    step = sizer.check(str(path)).step
    assert step is not None
    assert found.explanation.predicted.seconds == pytest.approx(step.seconds)


@pytest.mark.parametrize(
    "asked", [{"t": 8, "d": 1}, {"t": 2, "d": 4, "checkpointing": "full"}, {"p": 2, "d": 2, "cp": 2}]
)
def test_mfu_of_what_check_predicts_is_checks(asked: dict[str, Any]) -> None:
    """Key/value heads that several ranks hold are computed by each, and are no more of the model's FLOPs."""
    model = {"gpus": 8, "global_batch": 8, "b": 1, "s": 2048, **asked}
    step = sizer.check("Qwen/Qwen2.5-3B", **model).step
    assert step is not None
    found = sizer.mfu("Qwen/Qwen2.5-3B", step_time=step.seconds, **model)
    assert step.mfu == pytest.approx(found.rows[0].mfu, rel=1e-4)


@pytest.mark.parametrize("twice", [("--step-time", "7", "--profile", "8"), ("--step-time=7", "--step-time=8")])
def test_two_times_of_one_step_are_refused(twice: tuple[str, ...]) -> None:
    config = str(Path(__file__).parent / "data" / "configs" / "gpt2.json")
    found = CliRunner().invoke(main, ["mfu", config, "--gpus", "8", "--global-batch", "64", *twice])
    assert found.exit_code == 2
    assert found.output == "sizer: --step-time = '7, 8': expected one time, log or trace\n"
