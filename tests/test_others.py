"""What other programs timed becomes rows: every format, and what is no such file (shapes/measure/others.py)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shapes.calibrate import stored_products
from shapes.device import load_device
from shapes.measure.others import read_others
from shapes.measure.store import Store
from sizer.cli import main

H100 = "NVIDIA H100 80GB HBM3"

TRACE = {
    "deviceProperties": [{"id": 0, "name": H100}],
    "traceEvents": [
        *(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::mm",
                "args": {
                    "External id": number,
                    "Input Dims": [[8192, 4096], [4096, 4096]],
                    "Input Strides": [[4096, 1], [1, 4096]],
                    "Input type": ["c10::BFloat16", "c10::BFloat16"],
                },
            }
            for number in (1, 2)
        ),
        {"ph": "X", "cat": "kernel", "name": "nvjet", "dur": 400, "args": {"External id": 1}},
        {"ph": "X", "cat": "kernel", "name": "splitK", "dur": 10, "args": {"External id": 1}},
        {"ph": "X", "cat": "kernel", "name": "nvjet", "dur": 420.0, "args": {"External id": 2}},
        # Of this nobody knows how the operands lie.
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "args": {"External id": 3, "Input Dims": [[8, 8], [8, 8]]}},
        {"ph": "X", "cat": "kernel", "name": "nvjet", "dur": 420.0, "args": {"External id": 3}},
        {"ph": "M", "name": "process_name"},
    ],
}
#: What a program writes -> (device, m, n, k, layout, type, microseconds).
WRITTEN = {
    "torch-profiler": (json.dumps(TRACE), (H100, 8192, 4096, 4096, "tn", "bf16", 415)),
    "nvbench": (
        "Benchmark,Device,Device Name,m,n,k,dtype,Skipped,Samples,CPU Time (sec),Noise (%),GPU Time (sec),Noise (%)\n"
        f"gemm,0,{H100},8192,4096,4096,bf16,No,100,0.0005,1,0.00042,0.5\n",
        (H100, 8192, 4096, 4096, "tn", "bf16", 420),
    ),
    "hipblaslt-bench": (
        "Query device success: there are 1 devices\nDevice ID 0 : AMD Instinct MI300X gfx942:sramecc+:xnack-\n"
        "[0]:transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,a_type,b_type,hipblaslt-Gflops,hipblaslt-GB/s,us\n"
        "    T,N,0,1,3584,2048,1024,1,1024,bf16_r,bf16_r,417479,576.241,36.007\n    --Solution index: 300662\n",
        ("AMD Instinct MI300X", 2048, 3584, 1024, "tn", "bf16", 36.007),
    ),
    "cublaslt-gemm": ("4096   8192    2048   0   150.5   913.2\n", ("h100-sxm", 8192, 4096, 2048, "tn", "fp8", 150.5)),
    "triton": (
        "M,N,K,cuBLAS (TFLOPS),Triton (TFLOPS)\n4096.0,4096.0,4096.0,600.0,500.0\n",
        ("h100-sxm", 4096, 4096, 4096, "nn", "fp8", 2 * 4.096**3 / 600e3 * 1e6),
    ),
    "mamf-finder": (
        f"** Dtype: torch.bfloat16\n- _CudaDeviceProperties(name='{H100}', major=9)\n"
        "     1 |  642.8(mean)  644.1(median)  645.0(max) @ 4096x4096x2048 | best:  900.0(mean) TFLOPS @ 1x1x1\r"
        "     2 |  642.8(mean)  644.1(median)  645.0(max) @ 4096x4096x2048 | best:  900.0(mean) TFLOPS @ 1x1x1\n",
        (H100, 4096, 4096, 2048, "tn", "bf16", 2 * 4.096**2 * 2.048 / 644.1e3 * 1e6),
    ),
}


@pytest.mark.parametrize("program", WRITTEN)
def test_what_a_program_writes_becomes_rows_that_say_where_they_are_from(program: str, tmp_path: Path) -> None:
    text, (device, m, n, k, layout, dtype, microseconds) = WRITTEN[program]
    missing = {} if device != "h100-sxm" else {"device": device, "dtype": dtype}
    ((one,),) = (found.measurements for found in read_others(text, "runs/run.txt", missing))
    row = one.row()
    assert [row[key] for key in ("device", "m", "n", "k", "layout", "dtype")] == [device, m, n, k, layout, dtype]
    assert one.seconds == pytest.approx(microseconds * 1e-6, rel=1e-3)
    assert (row["method"], row["message"]) == (program, f"{program}: run.txt")
    assert one.environment.source == f"imported:{device} {program}"
    assert read_others(text, "run.txt", missing)[0].measurements[0].uid == one.uid


def test_rows_go_into_the_store_once_and_into_a_calibration_as_a_source_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in ("torch-profiler", "mamf-finder")]
    for path in paths:
        path.write_text(WRITTEN[path.stem][0])
    arguments = ["store", "--store", str(tmp_path / "s.db"), "import", *map(str, paths)]
    said = [CliRunner().invoke(main, arguments, catch_exceptions=False).output for _ in range(2)]
    for text, outcome in zip(said, ("1 added, 0 there already", "0 added, 1 there already"), strict=True):
        assert text == "".join(f"{path}: {outcome}, 0 refused\n" for path in paths)
    with Store.open(tmp_path / "s.db") as store:
        found = stored_products(store, load_device("h100-sxm"))
    assert {one.source for one in found} == {f"imported:{H100} {path.stem}" for path in paths}


def test_a_packed_trace_without_an_end_of_line_is_read_whole(tmp_path: Path) -> None:
    """As torch.profiler's handlers write them: NAME.pt.trace.json.gz."""
    path = tmp_path / "rank0.pt.trace.json.gz"
    path.write_bytes(gzip.compress(WRITTEN["torch-profiler"][0].encode()))
    arguments = ["store", "--store", str(tmp_path / "s.db"), "import", str(path)]
    assert "1 added" in CliRunner().invoke(main, arguments, catch_exceptions=False).output


#: As a trace without record_shapes has a product.
NO_STRIDES = json.dumps(
    {
        "traceEvents": [
            {"cat": "cpu_op", "name": "aten::mm", "args": {"External id": 1}},
            {"cat": "kernel", "dur": 9.0, "args": {"External id": 1}},
        ]
    }
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "or a program's file (`sizer store import --help`)"),
        (WRITTEN["triton"][0], "a known --dtype and --device as triton writes them ('dtype')"),
        ('{"traceEvents": [{"cat": "kernel"}]}', "as torch-profiler writes them"),
        (NO_STRIDES, "expected products with their sizes (torch.profiler: record_shapes=True) and times"),
        ('{"traceEvents": 7', "as torch-profiler writes them"),
        ("M,N,K,cuBLAS (ms)\nnan,1,1,1\n", "as triton writes them"),
        ("M,N,K,cuBLAS (ms)\n8,8,8,-1\n", "positive"),
        ("M,N,K,cuBLAS (ms)\n8,8,8,0\n", "positive"),
        ("M,N,K,cuBLAS (TFLOPS)\n8,8,8,0\n", "as triton writes them"),
    ],
)
def test_what_is_no_such_file_is_one_line_and_adds_nothing(text: str, said: str, tmp_path: Path) -> None:
    good, path = tmp_path / "good.txt", tmp_path / "x.txt"
    good.write_text(WRITTEN["torch-profiler"][0])
    path.write_text(text)
    known = [] if "4096" in text else ["--device", "h100-sxm", "--dtype", "bf16"]
    arguments = ["store", "--store", str(tmp_path / "s.db"), "import", str(good), str(path), *known]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert result.output.startswith(f"sizer: {path}")
    assert result.output.count("\n") == 1
    assert not (tmp_path / "s.db").exists()


def test_a_rate_above_the_peak_is_refused_and_a_file_named_as_a_device_is_no_device(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("M,N,K,cuBLAS (TFLOPS)\n4096,4096,4096,5000\n8192,4096,4096,500\n")
    arguments = ["store", "--store", str(tmp_path / "s.db"), "import", str(path), "--dtype", "bf16", "--device"]
    result = CliRunner().invoke(main, [*arguments, "h100-sxm"])
    assert result.exit_code == 1
    assert "1 added, 0 there already, 1 refused\n  rate above the peak" in result.output
    with Store.open(tmp_path / "s.db") as store:
        assert [one.description["m"] for one in store.measurements()] == [8192]
    other = CliRunner().invoke(main, [*arguments, "/etc/x.toml"])
    assert other.exit_code == 0
    assert "no data sheet of this device is known" in other.output


@pytest.mark.parametrize("word", ["list", "export", "import", "prune"])
def test_a_store_named_behind_the_word_is_said_where_it_belongs(word: str) -> None:
    answer = CliRunner().invoke(main, ["store", word, "--store", "rows.db"])
    assert answer.exit_code == 2
    assert "--store is said before the word: sizer store --store " in answer.stderr
    assert word in answer.stderr
