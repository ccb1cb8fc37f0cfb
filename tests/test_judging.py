"""Public measurements judged: what a folder may hold, and what is said of rows that cannot be judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from fit.judging import judge

from shapes.cost.gemm import predict_gemm
from shapes.errors import InputError

PRODUCTS = "source,device,dtype,layout,batch,m,n,k,us,more\n"
ATTENTION = "source,device,kernel,dtype,b,s_q,s_kv,heads,kv_heads,d_qk,d_v,causal,window,phase,us,note\n"
TUNED = "source,device,dtype,layout,batch,m,n,k,us,efficiency_percent,gflops,family\n"


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_errors_are_relative_to_what_was_measured_and_columns_that_nobody_knows_are_passed_over(tmp_path: Path) -> None:
    seconds = float(predict_gemm("a40", 1024, 2048, 4096, dtype="fp16", layout="nn"))
    rows = f"vidur,a40,fp16,nn,1,1024,2048,4096,{seconds * 1e6 / 1.25},x\nvidur,a40,fp16,nn,1,1024,2048,4096,,x\n"
    figures, lines = judge(written(tmp_path, "gemm_vidur.csv", PRODUCTS + rows))
    assert {(one.device, one.what, one.rows, one.mape) for one in figures} == {
        ("a40", "all", 1, 0.25),
        ("a40", "fp16 free, large", 1, 0.25),
    }
    assert "attention.csv: not there" in lines


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gemm_vidur.csv", PRODUCTS + "x,a40,fp16,nn,1,1024,2048,0,5,\n", ":2: k = '0': expected a whole number"),
        ("gemm_vidur.csv", PRODUCTS + "x,a40,fp16,nn,1,1024,2048,64,nan,\n", ":2: us = 'nan': expected a number"),
        ("gemm_vidur.csv", PRODUCTS + "x,a40,fp16,zz,1,1024,2048,64,5,\n", ":2: layout = 'zz': expected one of tn"),
        ("gemm_vidur.csv", PRODUCTS + "x,a40,fp16,nn,1,1024\n", "expected a whole number above 0"),
        ("gemm_vidur.csv", "device,dtype,m\na40,fp16,1\n", "source: expected the columns of the evidence"),
        ("gemm_squares.csv", "device,dtype,layout,tflops\na40,fp16,nn,x\n", ":2: tflops = 'x': expected a number"),
        ("attention.csv", ATTENTION + "x,h200,cudnn,bf16,1,8,8,1,1,64,64,true,w,fwd,5,\n", "window = 'w': expected"),
        ("attention.csv", ATTENTION + "x,h200,cudnn,bf16,1,8,8,1,1,64,64,true,,up,5,\n", "phase = 'up': expected fwd"),
        ("gemm_amd.csv", TUNED + "x,mi250x,bf16,nt,1,512,512,512,,-3,,f\n", "efficiency_percent = '-3': expected"),
    ],
)
def test_a_value_that_is_none_of_its_columns_is_one_line_naming_it(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        judge(written(tmp_path, name, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemm_vidur.csv", PRODUCTS + "x,mystery,fp16,nn,1,1024,2048,64,5,\n"),
        ("gemm_amd.csv", TUNED + "x,mystery,bf16,nt,1,512,512,512,,3,,f\nx,mystery,bf16,nt,1,513,513,513,,3,,f\n"),
        ("gemm_squares.csv", "device,dtype,layout,tflops\nmystery,fp16,nn,5\n"),
        ("attention.csv", ATTENTION + "x,mystery,cudnn,bf16,1,8,8,1,1,64,64,true,,fwd,5,\n"),
    ],
)
def test_rows_of_a_device_that_nobody_knows_are_passed_over_with_a_line(tmp_path: Path, name: str, text: str) -> None:
    figures, lines = judge(written(tmp_path, name, text))
    assert figures == []
    assert [line for line in lines if line.startswith(name) and "mystery" in line and "not priced" in line]


def test_a_file_without_rows_is_told(tmp_path: Path) -> None:
    assert "gemm_vidur.csv: no rows to judge" in judge(written(tmp_path, "gemm_vidur.csv", PRODUCTS))[1]
