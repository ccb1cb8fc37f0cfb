"""Fits of fused attention find the constants that made the rows, and read evidence as it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fit.attention import constants_table, errors, fit_rows, plan, write
from fit.attention_rows import read_evidence
from fit.evidence import attention_of, kernel_of

from shapes.cost.fused_attention import AttentionConstants, attention_times, constants_of, work_of
from shapes.device import load_device
from shapes.kernels import run_of
from shapes.operators.types import Attention

HEADER = "source,device,kernel,dtype,b,s_q,s_kv,heads,kv_heads,d_qk,d_v,causal,window,phase,us,note\n"


def evidence(path: Path, *rows: str) -> Path:
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_names_of_sources_are_ours() -> None:
    assert [kernel_of(name) for name in ("cudnn 9.22.0", "torch sdpa (fa2)", "fa3")] == ["cudnn", "sdpa", "fa3"]


def test_a_row_of_evidence_is_the_operator_that_it_timed() -> None:
    written = dict.fromkeys(HEADER.strip().split(","), "") | {
        "source": "own",
        "device": "gb200",
        "kernel": "cudnn 9.22.0",
        "dtype": "bf16",
        "b": "2",
        "s_q": "512",
        "s_kv": "1024",
        "heads": "8",
        "kv_heads": "2",
        "d_qk": "192",
        "d_v": "128",
        "causal": "true",
        "window": "256",
        "phase": "bwd",
        "note": "model; deterministic backward",
    }
    assert attention_of(written) == Attention(
        "own",
        "dgrad",
        2,
        8,
        2,
        512,
        1024,
        192,
        128,
        True,
        256,
        "bf16",
        kernel="cudnn",
        training=True,
        deterministic=True,
    )


def test_evidence_is_grouped_by_kernel_device_dtype_and_phase(tmp_path: Path) -> None:
    path = evidence(
        tmp_path / "attention.csv",
        "own,gb200,cudnn 9.22.0,bf16,2,512,512,8,8,128,128,true,,fwd,10,llama",
        "own,gb200,cudnn 9.22.0,fp8,2,512,512,8,8,128,128,true,,bwd,20,llama",
        "gac-sdpa,a100-sxm,torch sdpa (fa2),fp16,4,2048,2048,32,32,72,72,false,,fwd,30,sweep",
    )
    found = read_evidence(path)
    assert set(found) == {
        ("cudnn", "gb200", "bf16", "forward"),
        ("cudnn", "gb200", "fp8", "dgrad"),
        ("sdpa", "a100-sxm", "fp16", "forward"),
    }
    sweep = found["sdpa", "a100-sxm", "fp16", "forward"]
    assert (sweep.work.d_qk[0], sweep.work.c_qk[0], sweep.seconds[0]) == (72, 96, pytest.approx(30e-6))


def test_a_fit_recovers_what_made_its_rows(tmp_path: Path) -> None:
    device = load_device("h200")
    truth = constants_of("cudnn", device, "bf16").phases[0]
    shapes = [(b, s, d) for b in (1, 4, 16) for s in (512, 1024, 2048, 4096, 8192, 16384) for d in (64, 128, 256)]
    operators = [Attention("", "forward", b, 16, 16, s, s, d, d, kernel="cudnn") for b, s, d in shapes]
    runs = [run_of("cudnn", device.architecture, "bf16", op.head_dim, op.v_head_dim) for op in operators]
    seconds = attention_times(work_of(operators, runs), truth, False, 2.0).seconds
    lines = [
        f"own,h200,cudnn 9.19.1,bf16,{b},{s},{s},16,16,{d},{d},true,,fwd,{us * 1e6},made"
        for (b, s, d), us in zip(shapes, seconds, strict=True)
    ]
    rows = read_evidence(evidence(tmp_path / "attention.csv", *lines))["cudnn", "h200", "bf16", "forward"]
    found = fit_rows(rows, device, "bf16", False, plan(rows, device, "bf16", {}))
    assert np.abs(errors(rows, found, False, "bf16")).mean() < 0.02
    for (bucket, rate), (known, true) in zip(found.flops_per_s, truth.flops_per_s[:2], strict=False):
        assert bucket == known
        assert rate == pytest.approx(true, rel=0.1)
        assert rate <= device.peak("bf16")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    c = constants_of("cudnn", load_device("gb200"), "fp8").phases[1]
    write({"cudnn": {"gb200": {"fp8": constants_table(c)}}}, tmp_path)
    import tomllib

    table = tomllib.loads((tmp_path / "cudnn.toml").read_text(encoding="utf-8"))["gb200"]["fp8"]
    assert AttentionConstants.from_table(table, c.units) == c
    assert c.ignores_window
