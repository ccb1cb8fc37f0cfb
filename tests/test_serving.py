"""Serving: what engines make of a model, and published figures judged."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sizer
from reports.bench.serving_model import (
    METRICS,
    Requests,
    list_serving_engines,
    load_serving_engine,
    passes,
    times,
    touched,
)
from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import engine_bytes, longest_context, most_requests
from shapes.workload import Workload
from sizer.readers import read_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
SCRIPT = Path(__file__).parents[1] / "reports" / "bench" / "serving.py"
ROW = {
    "id": "one",
    "source": "made-up",
    "engine": "vllm",
    "gpu": "h100-sxm",
    "gpus": "1",
    "t": "1",
    "config": json.dumps(LLAMA),
    "dtype_weights": "fp16",
    "dtype_kv": "",
    "model": "llama",
    "batch_or_concurrency": "8",
    "input_tokens": "1000",
    "output_tokens": "200",
    "metric": "tpot_ms",
    "value": "8.0",
    "speculative": "none",
    "trust": "high",
}


def _times(asked: Requests, engine: str = "vllm", t: int = 1) -> dict[str, float]:
    device, workload = load_device("h100-sxm"), Workload(b=1, s=1, phase="prefill", t=t)
    step, prompt = passes(read_config(LLAMA).model, workload, device, asked)
    return times(load_serving_engine(engine), step, prompt, asked, device)


@pytest.mark.parametrize("engine", list_serving_engines())
def test_a_step_takes_no_less_than_reading_its_weights_and_more_with_every_request(engine: str) -> None:
    found = [_times(Requests(many, 1000, 200), engine) for many in (1, 8, 64)]
    least_ms = 2 * 7.5e9 / load_device("h100-sxm").memory.bandwidth_bytes_per_s * 1e3
    assert least_ms < found[0]["tpot_ms"] < found[1]["tpot_ms"] < found[2]["tpot_ms"]
    assert found[0]["ttft_ms"] < found[1]["ttft_ms"] < found[2]["ttft_ms"]
    assert found[0][METRICS[2]] < found[1][METRICS[2]] < found[2][METRICS[2]]


def test_tensor_parallelism_shortens_a_token_by_less_than_its_degree() -> None:
    alone, over = (_times(Requests(1, 1000, 200), t=t)["tpot_ms"] for t in (1, 4))
    assert 1 < alone / over < 4


def test_one_token_touches_its_own_experts_and_many_touch_all() -> None:
    assert touched(128, 4, 1) == pytest.approx(4 / 128)
    assert touched(128, 4, 10_000) == pytest.approx(1.0)
    assert touched(128, 4, 32) == pytest.approx(1 - (31 / 32) ** 32)


def test_an_unknown_engine_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="gpt-fast, sglang, tensorrt-llm, vllm"):
        load_serving_engine("llama.cpp")


def _judge(path: Path, rows: list[dict[str, str]]) -> subprocess.CompletedProcess[str]:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    command = [sys.executable, str(SCRIPT), "--data", str(path), "--format", "json", "--rows"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_rows_are_judged_in_their_metrics_unit_and_the_rest_apart(tmp_path: Path) -> None:
    whole = ROW | {"id": "two", "metric": "output_tokens_per_s_total", "value": "900", "gpus": "2", "t": "2"}
    each = whole | {"id": "three", "metric": "output_tokens_per_s_per_gpu", "value": "450"}
    drafted = ROW | {"id": "four", "speculative": "mtp"}
    staged = ROW | {"id": "five", "p": "4"}
    found = json.loads(
        _judge(tmp_path / "rows.csv", [{"p": "1"} | row for row in (ROW, whole, each, drafted, staged)]).stdout
    )
    rows = {row["id"]: row for row in found["rows"]}
    assert (found["all"]["rows"], found["apart"]["all"]["rows"], len(found["refused"])) == (3, 1, 1)
    assert rows["two"]["predicted"] == pytest.approx(2 * rows["three"]["predicted"])
    assert all(row["low"] < row["predicted"] < row["high"] for row in rows.values())
    assert rows["one"]["predicted"] == pytest.approx(_times(Requests(8, 1000, 200))["tpot_ms"], rel=0.01)
    assert found["by_metric_and_kind"]["tpot_ms, dense"]["mape"] == pytest.approx(rows["one"]["predicted"] / 8 - 1)


def test_a_file_of_other_columns_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = _judge(tmp_path / "rows.csv", [{"id": "one"}])
    assert done.returncode == 2
    assert "expected the columns of serving.csv" in done.stderr
    assert "Traceback" not in done.stderr


def test_replicas_share_requests_and_read_no_more_experts_than_there_are() -> None:
    asked = Requests(64, 1000, 200)
    assert replace(asked, replicas=4).batch == 16


QWEN3_1_7B = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def test_the_longest_context_is_what_vllm_allocates() -> None:
    """vLLM 33263: 175,856 tokens of Qwen3-1.7B on 24 GB, with weights more than 0.9 of it: 0.92, a later default."""
    found = {
        share: sizer.memory(
            QWEN3_1_7B, device="rtx-3090", phase="decode", context=1024, microbatch=1, memory_utilization=share
        ).engine
        for share in (0.9, 0.92)
    }
    assert found[0.9].longest_context == pytest.approx(175_856, rel=0.03)
    assert found[0.92].longest_context == pytest.approx(175_856, rel=0.005)


def test_the_longest_context_and_the_most_requests_fit_and_one_more_does_not() -> None:
    model, device = read_config(LLAMA).model, load_device("l40s")
    asked = Workload(b=4, s=1, phase="decode", context=4096)
    context = longest_context(model, asked, device, 0.8)
    requests = most_requests(model, asked, device, 0.8)
    assert context is not None
    assert requests is not None
    room = 0.8 * device.memory.bytes
    for fits, one_more in (
        (replace(asked, s=1, context=context), replace(asked, s=1, context=context + 1)),
        (replace(asked, s=1, b=requests), replace(asked, s=1, b=requests + 1)),
    ):
        assert engine_bytes(model, fits) <= room < engine_bytes(model, one_more)


@pytest.mark.parametrize("asked", [{"phase": "train"}, {"phase": "decode", "context": 64}])
def test_a_share_that_is_none_is_refused_and_so_is_one_without_decoding(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="memory_utilization"):
        sizer.memory(LLAMA, memory_utilization=1.5, **asked)


def test_a_model_that_does_not_fit_serves_no_request() -> None:
    engine = sizer.memory(LLAMA, device="t4", phase="decode", context=64, memory_utilization=0.5).engine
    assert (engine.longest_context, engine.most_requests) == (0, 0)
