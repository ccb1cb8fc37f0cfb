"""Serving: what engines make of a model, and published figures judged."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import draws

import sizer
from reports.fit.serving import HELD, narrowest
from shapes.device import load_device
from shapes.errors import InputError
from shapes.memory import GIB, engine, largest_size, memory
from shapes.memory.engine import CAPTURED, GRAPH_BYTES, engine_bytes, longest_context, most_requests
from shapes.step.serving import SERVING_ENGINES, Load, ServingStack, load_serving_stack, served, serving_load, touched
from shapes.workload import Workload
from sizer.answers.plan import ServingPlan, Way
from sizer.cli import main
from sizer.readers import read_config
from sizer.readers.released import released
from sizer.subject import read_subject

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
from serving_rows import EAGER_S, NEEDED, Answered, Requests, _client, answered, read_rows  # noqa: E402

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


def _priced(
    asked: Requests, stack: str = "vllm", config: dict[str, Any] = LLAMA, spread: int = 1, t: int = 1
) -> tuple[ServingStack, Load]:
    device, workload = load_device("h100-sxm"), Workload(b=1, s=1, phase="prefill", t=t)
    load = serving_load(read_config(config).model, workload, device, asked.input_tokens, asked.output_tokens, spread)
    return load_serving_stack(stack, device.architecture), load


def _served(asked: Requests, *how: Any, **more: Any) -> Answered:
    return answered(*_priced(asked, *how, **more), asked)


@pytest.mark.parametrize("stack", SERVING_ENGINES)
def test_a_step_takes_no_less_than_reading_its_weights_and_more_with_every_request(stack: str) -> None:
    found = [served(*_priced(Requests(1, 1000, 200), stack), many, 1000, 200) for many in (1, 8, 64)]
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


def test_a_first_wave_queues_and_a_mean_holds_its_share_of_it() -> None:
    steady, short, long = (_served(Requests(64, 1000, 200, waves=waves)) for waves in (math.inf, 10, 20))
    prompt_s = served(*_priced(Requests(64, 1000, 200)), 64, 1000, 200).prompt_s
    assert short.first_s - steady.first_s == pytest.approx(63 / 2 * prompt_s / 10)
    assert long.first_s - steady.first_s == pytest.approx(63 / 2 * prompt_s / 20)
    assert short.token_s == long.token_s == steady.token_s


def test_requests_in_lockstep_wait_for_those_before_them_and_meet_fewer_later() -> None:
    asked = Requests(64, 1000, 200)
    stack, load = _priced(asked)
    alone, plain, lockstep = (
        _served(one) for one in (Requests(1, 1000, 200, lockstep=True), asked, replace(asked, lockstep=True))
    )
    met_s = stack.first_steps * load.prompt_adds_s(stack, 1000, 64)
    assert plain.token_s - lockstep.token_s == pytest.approx(met_s / 200)
    assert lockstep.first_s > plain.first_s
    assert alone.first_s == pytest.approx(_served(Requests(1, 1000, 200)).first_s)


def test_prompts_held_back_wait_their_steps_and_cached_ones_run_the_rest() -> None:
    plain, held, cached = (_served(Requests(64, 4000, 200, **how)) for how in ({}, {"held": 20}, {"cached": 0.9}))
    alone = served(*_priced(Requests(64, 4000, 200)), 64, 4000, 200)
    assert held.first_s - plain.first_s == pytest.approx(20 * alone.step_s)
    assert plain.first_s - cached.first_s > 0.8 * alone.prompt_s
    assert alone.step_s < cached.token_s < plain.token_s


def test_a_prompt_outside_of_graphs_pays_for_its_launches_and_one_late_what_it_is_late() -> None:
    asked = Requests(64, 1000, 200)
    plain, eager, late = (_served(replace(asked, **how)).first_s for how in ({}, {"eager": True}, {"late_s": 0.3}))
    assert eager - plain == pytest.approx(EAGER_S * _priced(asked)[1].kernels)
    assert late - plain == pytest.approx(0.3)


def test_kernels_of_a_long_prompt_outlast_the_launches_of_an_engine_without_graphs() -> None:
    stack, load = _priced(Requests(1, 1000, 200))
    launches_s = load.launches_s(stack)
    for prompt in (1, 4000):
        own_s = load.prompt_adds_s(stack, prompt)
        replayed, launched = (
            served(replace(stack, graphs=how), load, 1, prompt, 200).prompt_s for how in (True, False)
        )
        assert replayed == pytest.approx(launches_s + own_s)
        assert launched == pytest.approx(max(launches_s, own_s))


def test_mixtures_start_later_than_dense_models_where_their_engine_says_so() -> None:
    for config, more in ((LLAMA, 0.0), (MIXTRAL, 0.05)):
        stack, load = _priced(Requests(1, 1000, 200), config=config)
        plain, later = (served(replace(stack, moe_first_s=s), load, 1, 1000, 200).first_s for s in (0.0, 0.05))
        assert later - plain == pytest.approx(more)


@pytest.mark.parametrize(
    ("engine", "model", "t", "lengths", "version", "found"),
    [
        ("tensorrt-llm", "meta-llama/Llama-3.1-70B", 4, (1024, 1024), "", {"waves": 10, "held": 20, "eager": False}),
        ("tensorrt-llm", "meta-llama/Llama-3.1-70B", 8, (1024, 1024), "", {"waves": 10, "held": 0, "eager": False}),
        ("tensorrt-llm", "meta-llama/Llama-3.1-70B", 4, (1024, 8192), "", {"waves": 10, "held": 0, "eager": False}),
        ("vllm", "meta-llama/Llama-3.1-70B", 4, (1024, 1024), "", {"waves": 10, "held": 0, "eager": True}),
        (
            "tensorrt-llm",
            "Qwen/Qwen3-32B",
            1,
            (1024, 128),
            "1.0.0rc3",
            {"waves": 15.625, "lockstep": True, "late_s": 0.32},
        ),
        ("sglang", "Qwen/Qwen3-32B", 1, (1000, 100), "0.5.6", {"waves": 10, "lockstep": True}),
        ("vllm", "nvidia/Llama-3.1-8B-Instruct-FP8", 1, (1000, 100), "0.12.0", {"waves": 10, "cached": 1 - 100 / 1536}),
    ],
)
def test_a_row_says_how_its_client_asked(
    engine: str, model: str, t: int, lengths: tuple[int, int], version: str, found: dict[str, Any]
) -> None:
    line = {"source": "aic-silicon", "model": model, "t": str(t), "gpu": "b200", "dtype_weights": "fp8"}
    line |= {"input_tokens": str(lengths[0]), "output_tokens": str(lengths[1]), "engine_version": version}
    assert _client(line, engine, 128) == found
    assert _client(line | {"source": "trtllm-docs"}, engine, 128) == {}


def test_prompts_of_a_run_with_every_slot_taken_start_late() -> None:
    line = {"source": "aic-silicon", "model": "Qwen/Qwen3-32B", "t": "1", "gpu": "h100-sxm"}
    line |= {"engine_version": "1.0.0rc3", "input_tokens": "1024", "output_tokens": "128", "dtype_weights": "fp8"}
    assert [_client(line, "tensorrt-llm", given)["late_s"] for given in (64, 128)] == [0, 0.32]


def test_requests_all_pass_through_a_steady_state() -> None:
    """Little's law: requests in flight are their rate times how long each stays."""
    stack, load = _priced(Requests(64, 1000, 200))
    found = served(stack, load, 64, 1000, 200)
    stays_s = 200 * found.token_s + load.prompt_adds_s(stack, 1000, 64)
    assert found.tokens_per_s / 200 * stays_s == pytest.approx(64)


def test_prompts_run_apart_leave_a_token_its_step() -> None:
    priced = _priced(Requests(64, 4000, 200))
    here, apart = (served(*priced, 64, 4000, 200, apart=apart) for apart in (False, True))
    assert apart.token_s == pytest.approx(here.step_s)
    assert here.token_s > 1.5 * apart.token_s


def test_ranks_that_share_experts_read_fewer_each_and_exchange_tokens() -> None:
    alone, shared = (_priced(Requests(1, 1000, 200), config=MIXTRAL, spread=d) for d in (1, 4))
    assert shared[1].step_s(shared[0], 64) < alone[1].step_s(alone[0], 64)
    for (stack, load), others in ((alone, 0), (shared, 3)):
        free_s = load.step_s(replace(stack, exchange_s=0.0), 64)
        assert load.step_s(stack, 64) - free_s == pytest.approx(8 * others * 32 * stack.exchange_s)
        # Each of 32 layers gathers the hidden states of the others in 16 bits, and hands them back their sums.
        moved_s = 2 * others * 32 * 2 * MIXTRAL["hidden_size"] / load_device("h100-sxm").link.intra_node_bytes_per_s
        assert load.ring_s == pytest.approx(moved_s)


def test_a_prompt_pays_for_the_passes_over_its_activations_in_proportion_to_its_tokens() -> None:
    stack, load = _priced(Requests(1, 1000, 200))
    without = replace(stack, passes=0.0)
    added = load.prompt_adds_s(stack, 3000) - load.prompt_adds_s(without, 3000)
    # At the least each layer reads and writes its hidden state twice in each of two norms and two sums, in 16 bits.
    least_s = (
        2
        * 4
        * 2
        * LLAMA["hidden_size"]
        * LLAMA["num_hidden_layers"]
        / load_device("h100-sxm").memory.bandwidth_bytes_per_s
    )
    assert added == pytest.approx(3000 * stack.passes * load.passes_s)
    assert least_s < load.passes_s < 10 * least_s


@pytest.mark.parametrize(
    ("device", "share"),
    # The published achievable rates: 668.4 of 1,307.4 TFLOPS on MI300X, 794.5 of 989.4 on H100.
    [("h200", 1.0), ("h200:500W", (5 / 7) ** 0.9), ("h100-nvl", 0.716), ("mi300x", 668.4 / 1307.4 * 989.4 / 794.5)],
)
def test_a_prompt_takes_the_longer_the_less_power_feeds_its_products(device: str, share: float) -> None:
    # H100 NVL: 835.5 TFLOPS of H200's 989.4 on the data sheet, 400 W of 700: (4/7)^0.9 x 989.4/835.5.
    workload = Workload(s=1, b=1, dtype="fp8")
    whole, fed = (
        serving_load(read_config(LLAMA).model, workload, load_device(one), 1024, 1024) for one in ("h200", device)
    )
    peaks = load_device(device).peak("fp8") / load_device("h200").peak("fp8")
    assert fed.prompt_s / whole.prompt_s == pytest.approx(1 / share / peaks, rel=1e-3)


def test_products_are_priced_at_the_peak_of_what_multiplies_them() -> None:
    """A head in 16 bits always; MXFP4 weights by 8-bit activations where there are FP4 units, else in 16 bits."""

    def rates(name: str, gpu: str, second: tuple[int, int], **how: Any) -> list[float]:
        """FLOPs a second of the first product of a token (q, k and v) and of another, in its place so wide."""
        subject = read_subject(name, phase="prefill", b=1, s=1, **how)
        found = serving_load(subject.whole(), subject.workload, load_device(gpu), 1000, 200).products
        block = subject.model.main.blocks[0].attention
        qkv = (block.heads + 2 * block.kv_heads) * block.head_dim
        return [2 * subject.model.main.hidden * n / found[at, 4] for at, n in ((0, qkv), second)]

    head, experts = (-1, 128256), (3, 4 * 2 * 2880)
    h100, b200 = (load_device(gpu).peak_flops for gpu in ("h100-sxm", "b200"))
    llama, own = "meta-llama/Llama-3.1-8B", rates("meta-llama/Llama-3.1-8B", "h100-sxm", head)
    assert own[0] == pytest.approx(own[1])
    assert 0.5 * h100["bf16"] < own[0] <= h100["bf16"]
    quantised = rates(llama, "h100-sxm", head, dtype="fp8")
    assert quantised == pytest.approx([own[0] * h100["fp8"] / h100["bf16"], own[0]])
    assert rates("openai/gpt-oss-20b", "h100-sxm", experts) == pytest.approx(own)
    narrow = rates("openai/gpt-oss-20b", "b200", experts)
    assert narrow[1] / narrow[0] == pytest.approx(b200["fp8"] / b200["bf16"])


def test_experts_with_few_tokens_compute_the_empty_rows_of_their_tiles() -> None:
    stack, load = _priced(Requests(1, 1000, 200), config=MIXTRAL)
    whole = replace(stack, padding=0.0)
    extra = [load.products_s(stack, tokens) - load.products_s(whole, tokens) for tokens in (4096, 8192)]
    assert extra[0] > 0
    assert extra[0] == pytest.approx(extra[1]), "once all experts have tokens, more leave no more rows empty"


@pytest.mark.parametrize(
    ("dtype", "recipe", "gathered"),
    [("bf16", None, 2), ("fp8", None, 1), ("fp8", "blockwise", 2), ("nvfp4", None, 0.5 + 1 / 16)],
)
def test_ranks_gather_tokens_as_experts_read_them_but_for_those_scaled_in_blocks(
    dtype: str, recipe: str | None, gathered: float
) -> None:
    device, model = load_device("b200"), read_config(MIXTRAL).model
    workload = Workload(b=1, s=1, phase="prefill", dtype=dtype, recipe=recipe)
    alone, shared = (serving_load(model, workload, device, 1000, 200, spread) for spread in (1, 3))
    # Two other ranks' tokens come in, and sums in 16 bits go back to them.
    moved = 2 * (gathered + 2) * MIXTRAL["hidden_size"] * MIXTRAL["num_hidden_layers"]
    assert (alone.ring_s, shared.ring_s) == (0, pytest.approx(moved / device.link.intra_node_bytes_per_s))


def test_experts_gather_and_scatter_what_their_passes_move() -> None:
    stack, load = _priced(Requests(1, 1000, 200), config=MIXTRAL)
    seconds = [load.products_s(replace(stack, passes=times * stack.passes), 64) for times in range(3)]
    assert seconds[2] - seconds[1] == pytest.approx(seconds[1] - seconds[0])
    assert seconds[1] > seconds[0]


def test_a_share_of_what_weights_leave_free_is_a_larger_share_of_the_device() -> None:
    model, run = read_config(LLAMA).model, Workload(b=1, s=1, phase="decode")
    device = load_device("h100-sxm")
    used = engine_bytes(model, replace(run, context=1)) / device.memory.bytes
    assert engine.share_of_free(model, run, device, 0.75) == pytest.approx(0.75 + 0.25 * used)
    assert engine.share_of_free(model, run, load_device("t4"), 0.75) == 1.0, "it does not fit at all"


def test_only_an_engine_of_more_than_one_rank_has_nccls_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = read_config(MIXTRAL).model, Workload(b=8, s=1, phase="decode", context=1024)
    ranks = run, replace(run, t=2), replace(run, d=2, e=2)
    before = [engine_bytes(model, one) for one in ranks]
    monkeypatch.setattr("shapes.memory.engine.NCCL", engine.NCCL + GIB)
    assert [engine_bytes(model, one) - had for one, had in zip(ranks, before, strict=True)] == [0, GIB, GIB]


def test_every_stack_says_where_it_is_from_and_covers_every_metric() -> None:
    for name in SERVING_ENGINES:
        stack = load_serving_stack(name)
        assert (stack.name, stack.tier in ("fitted", "extrapolated")) == (name, True)
        assert [len(stack.intervals[kind]) for kind in ("dense", "moe")] == [3, 3]
        assert all(low <= 1 <= high for kind in stack.intervals.values() for low, high in kind.values())
        assert bool(stack.devices) == (stack.tier == "fitted")
        assert "serving.csv" in stack.source


@pytest.mark.parametrize("few", [0, 60])
def test_an_interval_is_the_narrowest_that_holds_its_share_of_each_way_of_leaving_out(few: int) -> None:
    random = np.random.default_rng(0)
    left = [np.exp(random.normal(0.0, 0.1, 300)), np.exp(random.normal(-0.2, 0.1, 300))]
    left[0][:few] *= 1.2
    ends = np.sort(np.concatenate(left))

    def held(low: float, high: float) -> float:
        shares = [[*(low <= ratios) & (ratios <= high)] for ratios in left]
        return min(np.mean(own) for every in shares for own in (every, every[:few] or every))

    found = narrowest(left, np.arange(300) < few)
    row = 1 / (few or 300)  # Quantiles lie between rows.
    others = [(low, high) for low in ends[:60] for high in ends[-60:] if held(low, high) >= HELD + row]
    assert held(*found) >= HELD - row
    assert found[1] / found[0] <= min(high / low for low, high in others)


def test_one_token_touches_its_own_experts_and_many_touch_all() -> None:
    assert touched(4 / 128, 1) == pytest.approx(4 / 128)
    assert touched(4 / 128, 10_000) == pytest.approx(1.0)
    assert touched(4 / 128, 32) == pytest.approx(1 - (31 / 32) ** 32)


def test_an_unknown_engine_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"gpt-fast, sglang, tensorrt-llm, tensorrt-llm-0\.12, transformers, vllm"):
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


def _offline(tmp_path: Path, **changed: str) -> Any:
    line = ROW | {"source": "trtllm-docs", "engine": "trtllm", "engine_version": "0.12.0", "batch_or_concurrency": ""}
    line |= {"model": "Llama 3 8B", "metric": "output_tokens_per_s_total", "value": "9000", **changed}
    with (path := tmp_path / "rows.csv").open("w", newline="") as file:
        (writer := csv.DictWriter(file, list(line))).writeheader()
        writer.writerow(line)
    (row,) = read_rows(path, [])
    return row


def test_an_offline_run_holds_what_its_engine_was_built_for_and_the_memory_leaves(tmp_path: Path) -> None:
    short = _offline(tmp_path, input_tokens="128", output_tokens="128", gpu="h200")
    assert (short.engine, short.asked.most, short.total) == ("tensorrt-llm-0.12", 2048, 30000)
    long = _offline(tmp_path, input_tokens="2048", output_tokens="2048")
    cache = 4096 * 2 * 32 * 8 * 128 * 2
    free = load_device("h100-sxm").memory.bytes - 16.06e9
    assert 0.9 * free / cache < long.asked.most < 0.99 * free / cache
    later = _offline(tmp_path, input_tokens="128", output_tokens="128", gpu="h200", engine_version="1.0")
    assert (later.engine, later.asked.most > 2048) == ("tensorrt-llm", True)


def test_sglang_runs_448_of_512_requests_and_the_others_wait(tmp_path: Path) -> None:
    asked = {"engine": "sglang", "batch_or_concurrency": "512", "gpu": "h200", "metric": "ttft_ms"}
    rows = [_offline(tmp_path, **asked, source=source) for source in ("made-up", "aic-silicon")]
    assert [row.asked.most for row in rows] == [448, 448]
    more = _offline(tmp_path, **asked | {"engine": "vllm"}, source="made-up").asked.most
    assert more == 512


def test_a_latents_cache_is_taken_for_that_of_its_heads_when_a_batch_is_chosen(tmp_path: Path) -> None:
    """Each rank of DeepSeek-R1 then runs 64 long requests, of more that its memory holds."""
    config = json.dumps(json.loads((Path(__file__).parent / "data/configs/deepseek-v3.json").read_text()))
    asked = {"config": config, "model": "deepseek-ai/DeepSeek-R1", "dtype_weights": "fp8", "engine_version": "latest"}
    row = _offline(tmp_path, **asked, gpu="h200", gpus="8", d="8", ep="8", input_tokens="1024", output_tokens="8192")
    assert (row.asked.most, row.asked.concurrency) == (64, 512)


def test_figures_of_a_device_under_a_title_of_all_are_of_a_device(tmp_path: Path) -> None:
    said = {"gpus": "8", "t": "8", "engine_version": "0.6.1", "batch_or_concurrency": "128", "value": "180"}
    assert _offline(tmp_path, **said).value == 8 * 180
    assert _offline(tmp_path, **said | {"engine_version": "0.8.0"}).value == 180


def test_tensorrt_llm_holds_whole_requests_in_layers_with_a_window() -> None:
    # resource_manager.py: "Use max_seq_len as default max_attention_window". vLLM's allocator takes a window's worth.
    config = dict(released("openai/gpt-oss-20b")[0])
    asked: dict[str, Any] = {"phase": "decode", "device": "h200", "gpus": 1, "sequence": 1024, "context": 33 * 1024}
    assert most_held(config, "tensorrt-llm", asked) == most_held(wide(config), "tensorrt-llm", asked)
    assert most_held(config, "vllm", asked) > 1.9 * most_held(wide(config), "vllm", asked)


def wide(config: dict[str, Any]) -> dict[str, Any]:
    """The model with windows longer than any request."""
    return config | {"sliding_window": 2**17}


def most_held(config: dict[str, Any], engine: str, asked: dict[str, Any]) -> int:
    found = sizer.plan(config, engine=engine, **asked)
    assert isinstance(found, ServingPlan)
    return found.ways[0].most_requests


def test_tensorrt_llms_share_is_of_what_its_weights_leave() -> None:
    asked = {"phase": "decode", "device": "h200", "gpus": 1}
    free, whole = (sizer.plan(QWEN3_32B, engine=engine, **asked) for engine in ("tensorrt-llm", "vllm"))
    assert isinstance(free, ServingPlan)
    assert isinstance(whole, ServingPlan)
    held = [load_device("h200").memory.bytes - way.memory_bytes for way in (free.ways[0], whole.ways[0])]
    assert held[0] < 0.1 * load_device("h200").memory.bytes < held[1] * 1.1
    assert "90% of the memory that weights leave" in str(free)
    assert "leave" not in str(whole)


QWEN3_32B = LLAMA | {
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
}
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


def test_a_cache_for_as_many_requests_as_vllm_allows_is_the_one_it_allocates() -> None:
    """LMCache 3430 (vLLM 0.21, 256 requests): 46,368 tokens of Qwen3-8B at 0.9764 of 23.53 GiB, as torch sees the card.

    Sampling is most of what is neither weights nor cache; so it is of gpt-oss-20b on an A100 (vLLM 0.19: 51.51 less
    13.72 of weights and 36.56 of cache).
    """
    wider = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
    model = read_config(QWEN3_1_7B | wider | {"tie_word_embeddings": False}).model
    room = 0.9764 * 23.53 * GIB
    fitting = largest_size(lambda size: engine_bytes(model, Workload(b=256, s=1, phase="decode", context=size)), room)
    assert 256 * (fitting or 0) == pytest.approx(46_368, rel=0.01)
    subject = read_subject("openai/gpt-oss-20b", phase="decode", b=256, context=8)
    used = memory(subject.whole(), subject.workload, context_bytes=0).components
    graphs = GRAPH_BYTES * len(CAPTURED) * 24  # 0.19 captures them in what it leaves
    left = engine_bytes(subject.whole(), subject.workload) - used["weights"] - used["kv_cache"] - graphs
    assert left / GIB == pytest.approx(0.65 * 79.25 - 13.72 - 36.56, abs=0.25)


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


def _plan(config: dict[str, Any] = LLAMA, gpus: int = 8, **more: Any) -> ServingPlan:
    found = sizer.plan(config, phase="decode", gpus=gpus, top=100, **more)
    assert isinstance(found, ServingPlan)
    return found


def test_ways_keep_the_limits_use_every_device_and_come_by_throughput() -> None:
    found = _plan(ttft=0.5, tpot=0.02)
    assert found.ways
    for way in found.ways:
        assert way.ttft_s <= 0.5
        assert way.tpot_s <= 0.02
        assert way.t * way.p * way.d == 8
        assert way.requests <= way.most_requests
        assert way.memory_bytes <= 0.9 * load_device("h100-sxm").memory.bytes
        assert way.tokens_per_s == pytest.approx(8 * way.tokens_per_s_a_device)
    assert [way.tokens_per_s for way in found.ways] == sorted((way.tokens_per_s for way in found.ways), reverse=True)
    assert found.ways[0].tokens_per_s < _plan().ways[0].tokens_per_s


@pytest.mark.parametrize("concurrency", [3, 64, 65, 100_000])
def test_at_a_concurrency_each_way_has_so_many_and_those_that_memory_does_not_hold_wait(concurrency: int) -> None:
    ways = [way for way in _plan(concurrency=concurrency).ways if not way.prefill]
    assert [way.t for way in ways if way.d == 8 // way.t]
    for way in ways:
        stack, load = _priced(Requests(1, 1024, 1024), t=way.t)
        each = -(-concurrency // way.d)
        running = min(each, way.most_requests // way.d)
        found = served(stack, load, running, 1024, 1024)
        assert (way.requests, way.tpot_s) == (concurrency, pytest.approx(found.token_s))
        assert way.ttft_s == pytest.approx(found.first_s + (each / running - 1) * 1024 * found.token_s)
        at_once = min(concurrency, running * way.d)
        assert way.tokens_per_s == pytest.approx(found.tokens_per_s / running * at_once)
        assert way.tokens_per_s_a_device == pytest.approx(way.tokens_per_s / 8)


def test_a_concurrency_that_a_plan_found_gives_what_it_found() -> None:
    best = _plan(ttft=0.5, tpot=0.02).ways[0]
    again = next(way for way in _plan(concurrency=best.requests).ways if (way.t, way.prefill) == (best.t, best.prefill))
    assert (again.ttft_s, again.tpot_s, again.tokens_per_s) == (best.ttft_s, best.tpot_s, best.tokens_per_s)
    with pytest.raises(InputError, match="expected limits that some way keeps"):
        _plan(ttft=0.5, tpot=0.02, concurrency=20 * best.requests)


def test_servers_are_started_for_no_more_requests_than_memory_holds() -> None:
    found = _plan(concurrency=100_000)
    (line,) = (one for one in str(found).splitlines() if one.startswith("start "))
    most = int(re.findall(r"--max-num-seqs (\d+)", line)[0])
    assert found.ways[0].most_requests <= most * found.ways[0].d < found.ways[0].most_requests + found.ways[0].d


def test_ranks_for_prompts_alone_keep_up_with_the_others_and_leave_a_token_its_step() -> None:
    asked = {"s": 8192, "context": 8704, "tpot": 0.02}
    apart = [way for way in _plan(**asked).ways if way.prefill]
    assert apart
    for way in apart:
        stack, load = _priced(Requests(1, 8192, 512), t=way.t)
        each = way.requests // (way.d - way.prefill)
        found = served(stack, load, each, 8192, 512, apart=True)
        assert way.tpot_s == pytest.approx(found.step_s)
        assert way.tokens_per_s == pytest.approx((way.d - way.prefill) * found.tokens_per_s)
        busy = way.tokens_per_s / 512 * found.prompt_s / way.prefill
        assert busy <= 0.95
        cache_s = 8192 * 4 * LLAMA["num_hidden_layers"] * LLAMA["num_key_value_heads"] * 128 / way.t / 450e9
        assert way.ttft_s > found.first_s + cache_s
    assert any(not way.prefill for way in _plan(**asked).ways)


def test_a_plan_says_how_many_ranks_run_prompts() -> None:
    text = str(_plan(QWEN3_32B, s=16384, context=16896, tpot=0.012))
    assert re.search(r"dp \d+ \(\d for prompts alone\): ", text)
    assert "prompts alone" not in str(_plan(gpus=1))


#: How each engine says how many devices a server has, its caches' ranks, and requests of each of them or of all.
STARTED = {
    "vllm": ("tensor-parallel-size", "data-parallel-size", "max-num-seqs"),
    "sglang": ("tp-size", "dp-size", "max-running-requests"),
    "tensorrt-llm": ("tp_size", "ep_size", "max_batch_size"),
}


@pytest.mark.parametrize("engine", STARTED)
@pytest.mark.parametrize("config", [LLAMA, MIXTRAL])
def test_a_plan_says_how_to_start_servers_on_all_devices_for_all_requests(config: dict[str, Any], engine: str) -> None:
    found = _plan(config, engine=engine, tpot=0.02)
    (line,) = (one for one in str(found).splitlines() if one.startswith("start "))
    best, servers = found.ways[0], int(line.split()[1].rstrip(":"))
    said = dict(re.findall(r"--([\w-]+) (\d+)", line))
    wide, ranks, most = (int(said.get(key, 1)) for key in STARTED[engine])
    assert servers * wide * (ranks if engine == "vllm" else 1) == 8
    assert servers * most * (1 if engine == "sglang" else ranks) == best.requests
    assert ("--enable-" in line or "enable_attention_dp" in line) == (best.e > 1)
    # An engine of which no options are known, and ranks for prompts alone, which need more than options.
    assert "start " not in str(_plan(config, engine="gpt-fast"))
    apart = replace(best, prefill=1)
    assert "start " not in str(replace(found, ways=(apart,)))


def test_a_tighter_limit_of_a_token_asks_for_more_tensor_parallelism() -> None:
    alone = _plan().ways[0]
    tight = _plan(tpot=alone.tpot_s / 6).ways[0]
    assert tight.tpot_s <= alone.tpot_s / 6
    assert tight.t > alone.t


def test_limits_that_nothing_keeps_name_the_nearest_and_by_how_much_it_misses() -> None:
    fastest = min(_plan().ways, key=lambda way: way.tpot_s)
    with pytest.raises(
        InputError,
        match=r"the nearest \(tp 8, pp 1, ep 1, dp 1\) misses by \d+%: TTFT .* ms, TPOT .* ms with 1 in flight",
    ) as one:
        _plan(tpot=1e-4)
    missed = float(str(one.value).split("misses by ")[1].split("%")[0])
    assert missed > 100 * (1e-4 / fastest.tpot_s - 1)


def test_experts_spread_over_data_parallel_ranks_within_a_node() -> None:
    found = _plan(MIXTRAL, gpus=16)
    assert {way.e for way in found.ways} > {1}
    assert all(way.t * way.e <= 8 and way.d % way.e == 0 for way in found.ways)
    assert {way.e for way in _plan().ways} == {1}
    assert any("within a node" in one.reason for one in found.dropped)


def test_a_pipeline_serves_only_what_fits_no_other_way() -> None:
    assert {way.p for way in _plan().ways} == {1}
    small = _plan(device="t4", dtype="fp16")
    assert all(way.p > 1 or way.t > 1 for way in small.ways)
    assert {way.p for way in small.ways} > {1}


def test_a_plan_to_serve_is_of_a_type_that_the_device_has() -> None:
    with pytest.raises(InputError, match="t4 has fp64, fp32, fp16, int8"):
        _plan(device="t4")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "gpt-fast"])
def test_ranks_that_cut_blocks_of_the_weights_are_listed_where_the_engine_pads_them(engine: str) -> None:
    # 2880/4 = 720 is 22.5 blocks of 32, which engines pad to 768: 6.7% more of each expert's bytes.
    def planned(config: str, **more: Any) -> ServingPlan:
        found = sizer.plan(config, phase="decode", gpus=8, engine=engine, top=100, **more)
        assert isinstance(found, ServingPlan)
        return found

    pads = engine != "gpt-fast"  # of which nobody says what it does with them
    found = planned("openai/gpt-oss-120b")
    assert {way.t for way in found.ways} == ({1, 2, 4, 8} if pads else {1, 2})
    assert any("cut blocks" in one.reason for one in found.dropped) is not pads
    # fp8 in blocks of 128 is cut by no padding: 1536/8 = 192 is refused, or runs on other kernels.
    assert {way.t for way in planned("Qwen/Qwen3-235B-A22B-FP8").ways} <= {1, 2, 4}
    if engine == "vllm":
        # Two ranks take longer than 4.5 ms a token.
        assert {way.t for way in planned("openai/gpt-oss-120b", tpot=0.0045).ways} <= {4, 8}


def test_a_plan_prices_the_padding_of_cut_blocks_in_time_and_memory() -> None:
    def at(width: int) -> Way:
        config = {**released("openai/gpt-oss-20b")[0], "intermediate_size": width}
        found = sizer.plan(config, phase="decode", gpus=8, concurrency=8, top=100)
        assert isinstance(found, ServingPlan)
        return next(way for way in found.ways if (way.t, way.prefill) == (8, 0))

    cut, padded, narrow = map(at, (2880, 3072, 2816))
    assert (cut.memory_bytes, cut.tpot_s) == (padded.memory_bytes, padded.tpot_s)  # 360 a rank runs as 384
    assert narrow.memory_bytes < cut.memory_bytes
    assert narrow.tpot_s < cut.tpot_s


@pytest.mark.parametrize("tp", [1, 4, 8])
def test_memory_and_deploy_count_the_padding_of_cut_blocks_as_a_plan_does(tp: int) -> None:
    def at(width: int, **more: Any) -> tuple[Any, Any]:
        config = {**released("openai/gpt-oss-20b")[0], "intermediate_size": width}
        found = sizer.memory(config, tp=tp, **more)
        served = sizer.deploy(config, tp=tp).memory
        assert served
        return (found.engine, found.memory.components, found.largest_microbatch), served

    serve: dict[str, Any] = {"phase": "decode", "b": 1, "context": 4096}
    wide = {1: 2880, 4: 4 * 768, 8: 8 * 384}[tp]
    # One rank cuts no block; 720 and 360 a rank run as 768 and 384.
    assert at(2880, **serve) == at(wide, **serve)
    (engine, *_), served = at(2880, **serve)
    assert engine.total_bytes == served.needed_bytes
    # Trainers unpack a release, and pad nothing.
    train: dict[str, Any] = {"phase": "train", "finetune": "qlora"}
    assert (at(2880, **train)[0][1] == at(wide, **train)[0][1]) is (tp == 1)


def test_a_prompt_does_not_read_a_recurrence_s_state_for_each_of_its_tokens() -> None:
    def prompt_tokens_per_s(config: str) -> float:
        first = []
        for s in (512, 8192):
            found = sizer.plan(config, device="h200", gpus=1, phase="decode", concurrency=1, s=s, context=s + 128)
            assert isinstance(found, ServingPlan)
            first.append(found.ways[0].ttft_s)
        return (8192 - 512) / (first[1] - first[0])

    # As many parameters: of 56 layers 27 keep a state, whose bytes are those of thousands of a token's activations.
    hybrid, dense = map(prompt_tokens_per_s, ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "Qwen/Qwen3-8B"))
    assert hybrid > dense / 1.5


#: Two groups of a state that t 4 does not cut, blocks that it does, and experts; devices with little room.
SERVED_MODELS = (
    *("tiiuae/Falcon-H1-34B-Instruct", "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B"),
    *("Qwen/Qwen2.5-72B-Instruct-AWQ", "google/gemma-3-27b-it", "CohereLabs/c4ai-command-r-08-2024"),
    *("deepseek-ai/DeepSeek-V2-Lite", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "moonshotai/Kimi-K2-Instruct"),
)
#: Weights leave TensorRT-LLM 2 GiB of each device, and the driver's context takes one.
LEAST_ROOM: dict[str, Any] = {"device": "rtx-4090", "gpus": 3, "prompt": 4096, "output": 1024, "engine": "tensorrt-llm"}


@pytest.mark.slow
@draws(8)
@example(name="tiiuae/Falcon-H1-34B-Instruct", **LEAST_ROOM)
@example(name="tiiuae/Falcon-H1-34B-Instruct", **LEAST_ROOM | {"gpus": 8, "engine": "vllm"})
@given(
    name=st.sampled_from(SERVED_MODELS),
    device=st.sampled_from(("h100-sxm", "h200", "b200", "mi300x", "l40s", "rtx-4090", "rtx-5090", "l4", "a10")),
    gpus=st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16, 32)),
    prompt=st.sampled_from((256, 1024, 4096, 16384)),
    output=st.sampled_from((128, 1024, 2048)),
    engine=st.sampled_from(("vllm", "sglang", "tensorrt-llm")),
)
def test_check_accepts_whatever_a_plan_to_serve_recommends(
    name: str, device: str, gpus: int, prompt: int, output: int, engine: str
) -> None:
    asked: dict[str, Any] = {"device": device, "gpus": gpus, "phase": "decode"}
    try:
        found = sizer.plan(name, s=prompt, context=prompt + output, engine=engine, **asked)
    except InputError:
        return  # it fits no split
    assert isinstance(found, ServingPlan)
    held = prompt + round(load_serving_stack(engine).reserved * output)
    way = next(one for one in found.ways if not one.prefill)
    split = {"t": way.t, "p": way.p, "e": way.e, "d": way.d, "b": way.requests // way.d}
    report = sizer.check(name, context=held, **asked, **split)
    assert report.ok, report.findings


def test_a_plan_to_serve_says_what_its_figures_rest_on() -> None:
    tiers = {(device, engine): _plan(device=device, engine=engine, gpus=1).tier for device, engine in (
        ("h200", "vllm"), ("l40s", "vllm"), ("h200", "transformers")
    )}  # fmt: skip
    assert list(tiers.values()) == ["fitted", "borrowed", "extrapolated"]
    for unlike in ("Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.2"):
        found = sizer.plan(unlike, phase="decode", device="h200", gpus=8)
        assert isinstance(found, ServingPlan)
        assert found.tier == "extrapolated"  # no stack was fitted on recurrences, nor on an indexer
    assert _plan(MIXTRAL).intervals == load_serving_stack("vllm").intervals["moe"]


def test_longer_prompts_and_a_smaller_cache_change_how_many_are_served() -> None:
    plain, longer, narrow = (
        _plan(gpus=1, **more).ways[0].most_requests for more in ({}, {"s": 8192, "context": 9216}, {"kv_dtype": "fp8"})
    )
    assert longer < plain < narrow


@pytest.mark.parametrize(("acceptance", "accepted"), [(0.0, 1.0), (1.0, 4.0), (0.5, 1.875)])
def test_a_step_accepts_what_was_drafted_before_the_first_refusal(acceptance: float, accepted: float) -> None:
    priced = _priced(Requests(1, 1000, 200))
    found, plain = served(*priced, 1, 1000, 200, drafted=3, acceptance=acceptance), served(*priced, 1, 1000, 200)
    assert found.token_s == pytest.approx(found.step_s / accepted)
    # Four tokens a request and step read the same weights; each draft is one of 32 layers.
    assert found.step_s == pytest.approx((1 + 3 / 32) * plain.step_s, rel=0.02)


def test_drafts_that_are_accepted_make_more_tokens_at_few_requests_alone() -> None:
    limit = {"gpus": 1, "tpot": 0.009}
    drafted = _plan(**limit, drafted=3, acceptance=0.8).ways[0]
    assert drafted.tokens_per_s > 1.2 * _plan(**limit).ways[0].tokens_per_s
    assert _plan(gpus=1, drafted=3, acceptance=0.2).ways[0].tokens_per_s < _plan(gpus=1).ways[0].tokens_per_s
    # What is drafted is sampled from, too, in memory that holds fewer requests' caches.
    most = [_plan(gpus=1, engine="tensorrt-llm", drafted=one).ways[0].most_requests for one in (0, 3)]
    assert 0 < most[1] < most[0]


MISTAKES = (
    ("--gpus 0 --phase decode", "--gpus = 0"),
    ("--phase decode", "needs --gpus 64"),
    ("--gpus 8 --phase decode --ttft soon", "--ttft"),
    ("--gpus 8 --phase decode --tpot 1us", "expected limits that some way keeps"),
    ("--gpus 8 --phase decode --engine abacus", "--engine = 'abacus': expected one of gpt-fast, sglang"),
    ("--gpus 8 --phase decode --memory-utilization 0", "--memory-utilization"),
    ("--gpus 8 --phase decode --global-batch 8", "--global-batch = 8: expected the phase train with it"),
    (
        "--gpus 8 --phase decode --stack vllm",
        "--stack = 'vllm': expected the phase train with it; did you mean transformers-compile (engines",
    ),
    ("--gpus 8 --phase decode --drafted 65", "--drafted"),
    ("--gpus 8 --phase decode --concurrency 0", "--concurrency"),
    ("--gpus 8 --phase decode -b 64", "to serve, --concurrency N: requests in flight"),
    ("--gpus 8 --global-batch 8 --concurrency 8", "--concurrency = 8: expected the phase decode with it"),
    ("--gpus 8 --phase decode --drafted 3 --acceptance 2", "--acceptance = 2.0: expected a probability"),
    ("--gpus 8 --global-batch 8 --ttft 1s", "--ttft = 1.0: expected the phase decode with it"),
    ("--gpus 8 --global-batch 8 --phase infer", "--phase = 'infer': expected one of train, decode"),
    ("--gpus 8 --phase decode -s 1k --context 1k", "--context = 1024: expected more than the prompt's 1024 tokens"),
    (
        "--gpus 1 --phase decode --device t4 --dtype fp16",
        "expected a number of devices that some split of the model fits",
    ),
)


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_of_a_plan_to_serve_is_one_line_and_exit_2(words: str, said: str, tmp_path: Path) -> None:
    (config := tmp_path / "config.json").write_text(json.dumps(LLAMA))
    done = CliRunner().invoke(main, ["plan", str(config), *words.split()])
    assert isinstance(done.exception, InputError | click.UsageError | SystemExit)
    text = str(done.exception) + done.output
    assert said in text
    assert "Traceback" not in text


def test_trtllm_is_tensorrt_llm_and_text_csv_and_json_say_the_same(tmp_path: Path) -> None:
    (config := tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    words = ["plan", str(config), "--phase", "decode", "--gpus", "8", "--tpot", "30ms", "-s", "2k", "--dtype", "fp8"]
    words += ["--kv-dtype", "fp8", "--engine", "trtllm"]
    text, csv_text, json_text = (
        CliRunner().invoke(main, [*words, "--format", name], catch_exceptions=False).output
        for name in ("text", "csv", "json")
    )
    found = json.loads(json_text)
    best, row = found["ways"][0], next(csv.DictReader(csv_text.splitlines()))
    assert (found["serving"]["engine"], found["serving"]["prompt_tokens"], found["serving"]["tpot_s"]) == (
        "tensorrt-llm", 2048, 0.03
    )  # fmt: skip
    assert f"{best['tokens_per_s']:,.0f} tokens/s with {best['requests']:,} requests" in text.splitlines()[0]
    assert int(float(row["requests"])) == best["requests"]


@pytest.mark.parametrize(
    "asked", [{"drafted": -1}, {"concurrency": 0}, {"top": 0}, {"ttft": -1.0}, {"acceptance": -0.1}, {"engine": "x"}]
)
def test_the_library_refuses_what_the_command_line_does(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(asked))):
        sizer.plan(LLAMA, phase="decode", gpus=1, **asked)


def test_a_releases_weights_are_named_in_its_plan() -> None:
    words = ["plan", "deepseek-ai/DeepSeek-V3", "--phase", "decode", "--gpus", "16", "--device", "h200"]
    said = CliRunner().invoke(main, words, catch_exceptions=False).output.splitlines()[1]
    assert "bf16, weights in fp8 in blocks of 128, KV cache bf16" in said
    plain = CliRunner().invoke(main, [*words, "--dtype", "bf16"], catch_exceptions=False).output.splitlines()[1]
    assert "weights in" not in plain
