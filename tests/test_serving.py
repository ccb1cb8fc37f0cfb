"""Serving: what engines make of a model, and published figures judged."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sizer
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
sys.path.insert(0, str(Path(__file__).parents[1] / "reports" / "bench"))
from serving_model import (  # noqa: E402
    Requests,
    Served,
    list_serving_stacks,
    load_serving_stack,
    served,
    serving_load,
    touched,
)
from serving_plan import Asked, ways  # noqa: E402
from serving_plan import main as plan_by_script  # noqa: E402
from serving_rows import NEEDED, read_rows  # noqa: E402

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


MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def _served(
    asked: Requests, stack: str = "vllm", config: dict[str, Any] = LLAMA, spread: int = 1, t: int = 1
) -> Served:
    device, workload = load_device("h100-sxm"), Workload(b=1, s=1, phase="prefill", t=t)
    load = serving_load(read_config(config).model, workload, device, asked.input_tokens, asked.output_tokens, spread)
    return served(load_serving_stack(stack, device.architecture), load, asked)


@pytest.mark.parametrize("stack", list_serving_stacks())
def test_a_step_takes_no_less_than_reading_its_weights_and_more_with_every_request(stack: str) -> None:
    found = [_served(Requests(many, 1000, 200), stack) for many in (1, 8, 64)]
    least_s = 2 * 7.5e9 / load_device("h100-sxm").memory.bandwidth_bytes_per_s
    for name in ("token_s", "first_s", "tokens_per_s"):
        values = [getattr(one, name) for one in found]
        assert values == sorted(values)
    assert least_s < found[0].step_s <= found[0].token_s


def test_values_of_many_requests_at_once_are_those_of_each() -> None:
    concurrency = np.array([1, 8, 64, 512])
    together = _served(Requests(concurrency, 1000, 200, most=np.array([100] * 4)), config=MIXTRAL)
    for place, many in enumerate(concurrency):
        alone = _served(Requests(int(many), 1000, 200, most=100), config=MIXTRAL)
        assert together.token_s[place] == pytest.approx(float(alone.token_s))
        assert together.tokens_per_s[place] == pytest.approx(float(alone.tokens_per_s))


def test_tensor_parallelism_shortens_a_token_by_less_than_its_degree() -> None:
    alone, over = (_served(Requests(1, 1000, 200), t=t).token_s for t in (1, 4))
    assert 1 < alone / over < 4


def test_what_the_memory_does_not_hold_waits_for_its_first_token_alone() -> None:
    held, waits = (_served(Requests(64, 1000, 200, most=most)) for most in (64, 16))
    assert waits.running == 16
    assert waits.token_s < held.token_s
    assert waits.first_s > held.first_s + 2 * 200 * waits.token_s


def test_requests_all_pass_through_a_steady_state() -> None:
    """Little's law: requests in flight are their rate times how long each stays."""
    found = _served(Requests(64, 1000, 200))
    stays_s = 200 * found.token_s + found.prompt_s
    assert found.tokens_per_s / 200 * stays_s == pytest.approx(64, rel=0.02)


def test_prompts_run_apart_leave_a_token_its_step() -> None:
    here, apart = (_served(Requests(64, 4000, 200, apart=apart)) for apart in (False, True))
    assert apart.token_s == pytest.approx(here.step_s)
    assert here.token_s > 1.5 * apart.token_s


@pytest.mark.parametrize(("acceptance", "accepted"), [(0.0, 1.0), (1.0, 4.0), (0.5, 1.875)])
def test_a_step_accepts_what_was_drafted_before_the_first_refusal(acceptance: float, accepted: float) -> None:
    asked = Requests(1, 1000, 200, drafted=3, acceptance=acceptance, layers=32)
    assert asked.accepted == pytest.approx(accepted)
    found, plain = _served(asked), _served(Requests(1, 1000, 200))
    assert found.token_s == pytest.approx(found.step_s * (1 + 3 / 32) / accepted)
    assert (found.token_s < plain.token_s) == (acceptance > 0)


def test_ranks_that_share_experts_read_fewer_each_and_exchange_tokens() -> None:
    alone, shared = (_served(Requests(64 * d, 1000, 200, replicas=d), config=MIXTRAL, spread=d) for d in (1, 4))
    assert shared.running == alone.running
    assert shared.step_s < alone.step_s


def test_every_stack_says_where_it_is_from_and_covers_every_metric() -> None:
    for name in list_serving_stacks():
        stack = load_serving_stack(name)
        assert (stack.name, stack.tier in ("fitted", "extrapolated")) == (name, True)
        assert len(stack.intervals) == 6
        assert all(low <= 1 <= high for low, high in stack.intervals.values())
        assert "serving.csv" in stack.source


def test_one_token_touches_its_own_experts_and_many_touch_all() -> None:
    assert touched(4 / 128, 1) == pytest.approx(4 / 128)
    assert touched(4 / 128, 10_000) == pytest.approx(1.0)
    assert touched(4 / 128, 32) == pytest.approx(1 - (31 / 32) ** 32)


def test_an_unknown_engine_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="gpt-fast, sglang, tensorrt-llm, transformers, vllm"):
        load_serving_stack("llama.cpp")


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
    assert (found["all"]["rows"], found["apart"]["all"]["rows"], len(found["refused"])) == (4, 1, 0)
    assert rows["two"]["predicted"] == pytest.approx(2 * rows["three"]["predicted"])
    assert all(row["low"] < row["predicted"] < row["high"] for row in rows.values())
    assert rows["one"]["predicted"] == pytest.approx(1e3 * float(_served(Requests(8, 1000, 200)).token_s), rel=0.01)
    off = [abs(rows[name]["predicted"] / 8 - 1) for name in ("one", "five")]
    assert found["by_metric_and_kind"]["tpot_ms, dense"]["mape"] == pytest.approx(sum(off) / 2)


def test_a_file_of_other_columns_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = _judge(tmp_path / "rows.csv", [{"id": "one"}])
    assert done.returncode == 2
    assert "expected the columns of serving.csv" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("value", "nan"),
        ("value", "1e-308"),
        ("value", ""),
        ("gpus", "inf"),
        ("t", "-4"),
        ("t", "3"),
        ("config", "{"),
        ("config", "[]"),
        ("config", "{}"),
        ("config", "nobody/nothing"),
        ("input_tokens", "1e300"),
        ("batch_or_concurrency", "many"),
        ("gpu", "abacus"),
        ("engine", ""),
        ("metric", "joy"),
    ],
)
def test_a_row_that_cannot_be_priced_is_refused_by_itself(tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows([ROW | {"id": "bad", key: value}, ROW])
    refused: list[tuple[str, str]] = []
    assert [row.id for row in read_rows(path, refused)] == ["one"]
    assert [name for name, _ in refused] == ["bad"]


@pytest.mark.parametrize(
    "held",
    [b"", b"no gzip", gzip.compress(b"id,engine\n")[:-9], gzip.compress(b"\xff\xfe")],
    ids=["empty", "plain", "cut", "no text"],
)
def test_a_packed_file_that_is_none_is_one_line(tmp_path: Path, held: bytes) -> None:
    (path := tmp_path / "rows.csv.gz").write_bytes(held)
    with pytest.raises(InputError, match=r"rows\.csv\.gz"):
        list(read_rows(path, []))


def test_rows_without_the_columns_that_may_be_absent_are_judged(tmp_path: Path) -> None:
    needed = [key for key in ROW if key in NEEDED or key in ("batch_or_concurrency", "input_tokens", "output_tokens")]
    path = tmp_path / "rows.csv"
    path.write_text(
        ",".join(needed) + "\n" + ",".join('"' + ROW[key].replace('"', '""') + '"' for key in needed) + "\n"
    )
    refused: list[tuple[str, str]] = []
    (row,) = read_rows(path, refused)
    assert (row.trusted, refused) == (False, [])


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


def _ways(asked: Asked, config: dict[str, Any] = LLAMA, gpus: int = 8, device: str = "h100-sxm", **more: Any) -> Any:
    base = Workload(b=1, s=1, phase="decode", context=1)
    return ways(read_config(config).model, base, load_device(device), gpus, "vllm", asked, **more)[0]


def test_ways_keep_the_limits_use_every_device_and_come_by_throughput() -> None:
    asked = Asked(first_s=0.5, token_s=0.02)
    found = _ways(asked)
    assert found
    assert all(way.first_s <= 0.5 and way.token_s <= 0.02 for way in found)
    assert all(way.t * way.p * way.d * way.replicas == 8 for way in found)
    assert all(way.requests <= way.most for way in found)
    assert [way.tokens_per_s for way in found] == sorted((way.tokens_per_s for way in found), reverse=True)
    assert found[0].tokens_per_s < _ways(Asked())[0].tokens_per_s


def test_a_tighter_limit_of_a_token_asks_for_more_tensor_parallelism_and_limits_beyond_all_list_nothing() -> None:
    alone = _ways(Asked())[0].token_s
    tight = min(way.token_s for way in _ways(Asked(token_s=alone / 4)))
    assert tight <= alone / 4
    assert _ways(Asked(token_s=1e-6)) == []


def test_experts_spread_over_data_parallel_ranks_within_a_node() -> None:
    found = _ways(Asked(), MIXTRAL, gpus=16)
    assert {way.d for way in found} > {1}
    assert all(way.e == way.d and way.t * way.d <= 8 for way in found)
    assert {way.d for way in _ways(Asked())} == {1}


def test_pools_share_the_devices_out_and_neither_waits() -> None:
    asked = Asked(input_tokens=4000, output_tokens=200)
    found = _ways(asked, pools=True)
    assert all(way.prompts > 0 for way in found)
    assert all(way.t * way.p * way.d * way.replicas + way.prompts * way.prompts_t == 8 for way in found)
    more = {way.prompts: way.tokens_per_s for way in reversed(found) if (way.t, way.prompts_t) == (1, 1)}
    assert more[1] < more[3]


def test_drafts_that_are_accepted_make_more_tokens_at_few_requests() -> None:
    plain, drafted = (_ways(Asked(token_s=0.009, drafted=drafts, acceptance=0.8), gpus=1) for drafts in (0, 3))
    assert drafted[0].tokens_per_s > plain[0].tokens_per_s


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "8", "--ttft", "soon"], "--ttft"),
        (["--gpus", "8", "--tpot", "1us"], "gpus = 8"),
        (["--gpus", "8", "--acceptance", "2"], "--acceptance"),
        (["--gpus", "8", "--stack", "abacus"], "stack"),
        (["--gpus", "8", "--dtype", "int3"], "dtype"),
        (["--gpus", "8", "--input", "-4"], "--input"),
        (["--gpus", "8", "--device", "abacus"], "abacus"),
    ],
)
def test_a_mistake_of_a_plan_is_one_line_and_exit_2(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config := tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(SystemExit) as ended:
        plan_by_script([str(config), *words])
    lines = capsys.readouterr().err.splitlines()
    assert (ended.value.code, len(lines)) == (2, 1)
    assert said in lines[0]


def test_a_plan_says_the_same_in_json_as_in_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config := tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    words = [str(config), "--gpus", "8", "--tpot", "30ms", "--input", "2k", "--dtype", "fp8", "--kv-dtype", "fp8"]
    plan_by_script([*words, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    plan_by_script(words)
    first = capsys.readouterr().out.splitlines()[2].replace(",", "")
    best = found["ways"][0]
    assert (found["input_tokens"], found["token_s"]) == (2048, 0.03)
    assert str(best["requests"]) in first
    assert f"{best['tokens_per_s']:.0f}" in first
