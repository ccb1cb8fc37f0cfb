"""Rows of published serving (columns of evidence/serving.csv.gz) as models, workloads, devices and engines."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from serving_offline import BUILT, CONTEXT, REQUESTS, at_once

from shapes.device import Device, load_device
from shapes.errors import InputError, read_text
from shapes.memory.engine import UTILIZATION, engine_bytes, most_requests, share_of_free
from shapes.model import ModelShape
from shapes.model.layers import MoeShape
from shapes.step.serving import Load, ServingStack, load_serving_stack, served, serving_load
from shapes.workload import Workload
from sizer.readers import is_name, read_config
from sizer.readers.released import released

#: The engine column -> a serving stack.
ENGINES = {
    "trtllm": "tensorrt-llm",
    "tensorrt-llm": "tensorrt-llm",
    "vllm": "vllm",
    "sglang": "sglang",
    "gpt-fast": "gpt-fast",
    "transformers": "transformers",
}
#: TensorRT-LLM's releases without CUDA graphs are an engine of their own.
EARLY, EARLY_VERSIONS = "tensorrt-llm-0.12", ("0.5.0", "0.6.1", "0.8.0", "0.9.0", *BUILT)
#: Share of a group's reads that miss L2 (see _read_again).
MISSED = 0.3
#: A page with a table whose title says all devices and whose figures are one's, as the next release says.
PER_DEVICE = ("trtllm-docs", "0.6.1")
#: What a row cannot be priced without.
NEEDED = ("id", "engine", "gpu", "gpus", "t", "config", "dtype_weights", "metric", "value")
METRICS = ("ttft_ms", "tpot_ms", "output_tokens_per_s_total")
#: Published names -> one of METRICS, and what a value is multiplied by (a device's throughput: by the devices).
NAMES = {
    "ttft_ms": "ttft_ms",
    "ttft_ms_mean": "ttft_ms",
    "tpot_ms": "tpot_ms",
    "tpot_ms_mean": "tpot_ms",
    "output_tokens_per_s_total": "output_tokens_per_s_total",
    "output_tokens_per_s_per_gpu": "output_tokens_per_s_total",
}
#: MLPerf's data sets give the lengths that its rows leave out: mean tokens of OpenOrca; Mixtral's is a third each of
#: OpenOrca, GSM8K with its examples (662 tokens in the sample that mlcommons/inference prints in
#: language/mixtral-8x7b/standalone_infer/hf_eval_all.py) and MBXP (about 150: nobody publishes its mean).
LENGTHS = {"mlperf-inference-v4.1": (294, 294)}
MIXED = {"mixtral-8x7b": (294 + 662 + 150) // 3}
#: aiconfigurator's lengths are upper bounds; runs draw nine tenths of them on average.
DRAWN = {"aic-silicon": 0.9}
#: Models whose releases in fp8 are scaled in blocks of 128 (quantization_config of their files).
IN_BLOCKS = re.compile(r"DeepSeek|MiniMax|-FP8$")
#: Requests that an engine's scheduler runs at once at most: TensorRT-LLM's max_batch_size.
MOST_RUN = 2048
#: And SGLang 0.5.6: of 512 a seventh waits for another's whole output. In view of five rows; nobody states it.
RUN_BY_SGLANG = 448
#: Sources whose tokens no server streams: an engine's own benchmarks, and MLPerf's offline runs.
ALONE = ("trtllm-docs", "gpt-fast", "mlperf-inference-v4.1", "gpu-recipes-inference")
#: A device that no file is of -> the one it is but for its memory, bytes and bytes a second (NVIDIA's GH200 data
#: sheet: 144 GB of HBM3e at 4.9 TB/s).
VARIANTS = {"NVIDIA GH200-144GB": ("gh200", 144_000_000_000, 4.9e12)}
MAX_BYTES = 1 << 27
#: What a row that cannot be priced may raise; InputError is a ValueError.
UNPRICED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


#: Power of MLPerf's systems named MaxQ (closed/NVIDIA/configs/llama2-70b/Offline: power_limit = 500).
MAX_Q = ":500W"
#: Share of the time that prompts may take: beyond it their queue would grow for ever.
MOST_BUSY = 0.95
#: What a server adds to a first token.
SERVER = ("first_s", "moe_first_s", "first_steps", "token_s")
#: Of a prompt's kernel that its engine's host launches, no graph replaying it: fitted on its rows (see _client).
EAGER_S = 60e-6


@dataclass(frozen=True)
class Requests:
    """What is served: ``concurrency`` requests of ``input_tokens`` and ``output_tokens``, over ``replicas``.

    ``most``: requests that a replica's memory holds at once (None: any number). ``streamed``: tokens are sent as they
    come. ``apart``: other devices run the prompts. How a client asks: ``at_random``: when it likes, and a prompt waits
    as in a queue of random arrivals and even service; ``waves``: requests of the whole run a request in
    flight, where the first come at once; ``lockstep``: outputs are of one length, so that those that began one
    after another end so, and each finds the prompts of those before it; ``held``: steps that the engine waits for more
    prompts; ``cached``: share of the prompts' tokens that it has in its cache; ``eager``: prompts run outside of
    graphs; ``late_s``: seconds that a first token takes more, nobody knows why.
    """

    concurrency: Any
    input_tokens: Any
    output_tokens: Any
    replicas: Any = 1
    most: Any = None
    streamed: bool = True
    apart: bool = False
    at_random: bool = False
    waves: Any = math.inf
    lockstep: bool = False
    held: Any = 0
    cached: Any = 0.0
    eager: Any = False
    late_s: Any = 0.0


@dataclass(frozen=True)
class Answered:
    """Seconds to the first token and per output token, tokens a second of all replicas, requests that each runs."""

    first_s: Any
    token_s: Any
    tokens_per_s: Any
    running: Any


def answered(stack: ServingStack, load: Load, asked: Requests) -> Answered:
    """``asked`` in a steady state, what the memory does not hold waiting for its first token."""
    if not asked.streamed:
        # The host's time of a step counts as so many kernels that it launches.
        load = replace(load, kernels=load.kernels + stack.batch_step_s / stack.kernel_s)
        stack = replace(stack, request_s=stack.batch_request_s, **dict.fromkeys(SERVER, 0.0))
    each = np.maximum(1.0, np.ceil(asked.concurrency / asked.replicas))
    running = each if asked.most is None else np.minimum(each, np.maximum(1, asked.most))
    prompt, output, others = asked.input_tokens * (1 - asked.cached), asked.output_tokens, running - 1
    found = served(stack, load, running, prompt, output, apart=asked.apart)
    first = found.first_s + (each / running - 1) * output * found.token_s
    first = first + asked.held * found.step_s + others / 2 / asked.waves * found.prompt_s
    first, token = first + asked.late_s + asked.eager * EAGER_S * load.kernels, found.token_s
    if asked.at_random:
        busy = np.minimum(found.tokens_per_s / output * found.prompt_s, MOST_BUSY)
        # Half the step that runs, and the one that the prompt joins.
        first = first + found.prompt_s * busy / (1 - busy) / 2 + 1.5 * found.step_s
    if asked.lockstep:
        # An engine that overlaps its steps with its host sees a new request when that many more have begun.
        before = np.minimum(others, stack.first_steps) * load.prompt_adds_s(stack, prompt, running)
        first, token = first + before, token - before / output
    return Answered(first, token, asked.replicas * found.tokens_per_s, running)


@dataclass(frozen=True)
class Row:
    """One published figure: ``said``, and ``value`` of all devices.

    ``total``: requests of a run that ends, in all. ``given``: how many are in flight is published.
    ``trusted``: trust high and no speculation. ``group`` and ``release``: rows that a fit keeps together.
    """

    id: str
    source: str
    engine: str
    metric: str
    said: float
    value: float
    model: ModelShape
    device: Device
    load: Load
    asked: Requests
    total: int | None
    given: bool
    trusted: bool
    group: str
    release: str

    @property
    def kind(self) -> str:
        return kind_of(self.model)

    @property
    def stack(self) -> ServingStack:
        return load_serving_stack(self.engine, self.device.architecture)


def kind_of(model: ModelShape) -> str:
    return "moe" if any(isinstance(block.mlp, MoeShape) for _, block in model.all_blocks()) else "dense"


def predicted(stack: ServingStack, metric: str, load: Load, asked: Requests, total: Any = None) -> Any:
    """``metric`` in its unit; a run of ``total`` requests ends with those that are left when no more begin."""
    found = answered(stack, load, asked)
    if metric != METRICS[2]:
        return 1e3 * (found.first_s if metric == METRICS[0] else found.token_s)
    if total is None:
        return found.tokens_per_s
    full = total // (found.running * asked.replicas)
    left = total - full * found.running * asked.replicas
    last = answered(stack, load, replace(asked, concurrency=np.maximum(left, 1)))
    output = asked.output_tokens
    seconds = full * found.running * asked.replicas * output / found.tokens_per_s
    return total * output / (seconds + np.where(left > 0, np.maximum(left, 1) * output / last.tokens_per_s, 0.0))


def read_rows(path: Path, refused: list[tuple[str, str]]) -> Iterator[Row]:
    """Every row of a CSV file (or .gz); what cannot be priced goes to ``refused`` (id, reason)."""
    if path.suffix == ".gz":
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                text = file.read(MAX_BYTES)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise InputError(f"expected gzip of a CSV in UTF-8: {error}", where=str(path)) from None
    else:
        text = read_text(path, MAX_BYTES)
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"expected the columns of serving.csv; missing: {', '.join(missing)}", where=str(path))
    number = 0
    for number, line in enumerate(reader, start=1):
        try:
            yield _row(defaultdict(str, {key: value for key, value in line.items() if isinstance(value, str)}))
        except UNPRICED as error:
            refused.append((line.get("id") or f"row {number}", str(error) or type(error).__name__))
    if not number:
        raise InputError("expected at least one row under the header", where=str(path))


def _quantisation(dtype: str, moe: bool) -> dict[str, Any] | None:
    """What a release of ``dtype`` says of itself: of mixtures in 4 bits the experts are quantised alone."""
    if dtype == "mxfp4":
        return {"quant_method": "mxfp4"}
    if dtype == "nvfp4" and not moe:
        return {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    sizes = {"nvfp4": ("float", 16), "int4": ("int", 128), "int4-g32": ("int", 32), "int8": ("int", 128)}
    if dtype not in sizes:
        return None
    kind, group = sizes[dtype]
    weights: dict[str, Any] = {"num_bits": 8 if dtype == "int8" else 4, "type": kind, "group_size": group}
    weights["strategy"] = "channel" if dtype == "int8" else "group"
    own: dict[str, Any] = {"targets": ["re:.*experts.*"] if moe else ["Linear"], "weights": weights}
    if kind == "float":
        own["input_activations"] = {"num_bits": 4, "type": "float"}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": own}}


@lru_cache(maxsize=4096)
def _model(config: str, dtype: str) -> ModelShape:
    if is_name(config):
        read: Any = released(config)[0]
    else:
        try:
            read = json.loads(config)
        except ValueError:
            raise InputError("expected a configuration in JSON, or a model's name", key="config") from None
    model = read_config(read).model
    moe = any(isinstance(block.mlp, MoeShape) for _, block in model.all_blocks())
    quantised = _quantisation(dtype, moe)
    if quantised is None:
        return model
    without = {key: value for key, value in read.items() if key != "quantization_config"}
    return read_config(without | {"quantization_config": quantised}).model


@lru_cache(maxsize=1 << 14)
def _load(model: ModelShape, workload: Workload, device: Device, inputs: int, outputs: int, spread: int) -> Load:
    return serving_load(model, workload, device, inputs, outputs, spread)


@lru_cache(maxsize=1 << 14)
def _most(model: ModelShape, workload: Workload, device: Device, share: float) -> int:
    found = most_requests(model, workload, device, share)
    return MOST_RUN if found is None else min(MOST_RUN, found)


@lru_cache(maxsize=1 << 14)
def _held(model: ModelShape, workload: Workload) -> int:
    return engine_bytes(model, workload)


@lru_cache(maxsize=256)
def _device(name: str) -> Device:
    base, held, rate = VARIANTS.get(name, (name, 0, 0.0))
    found = load_device(base)
    return replace(found, memory=replace(found.memory, bytes=held, bandwidth_bytes_per_s=rate)) if held else found


def _row(line: Mapping[str, str]) -> Row:
    def number(key: str, default: int = 1) -> int:
        found = float(line[key] or default)
        if not 0 <= found < 2**31 or 0 < found < 1:
            raise InputError("expected a number from 1 to 2^31", key=key, value=line[key])
        return round(found)

    source, published, notes = line["source"], line["metric"], line["notes"]
    if published not in NAMES:
        raise InputError(
            "expected a first token's, a later token's time or a throughput", key="metric", value=published
        )
    name = ENGINES.get(line["engine"])
    if name is None:
        raise InputError(f"expected one of {', '.join(ENGINES)}", key="engine", value=line["engine"])
    if source == "trtllm-docs" and line["engine_version"] in EARLY_VERSIONS:
        name = EARLY
    if not line["t"]:
        raise InputError("expected the tensor-parallel degree", key="t")
    metric, devices = NAMES[published], number("gpus")
    each = published.endswith("per_gpu") or (metric == METRICS[2] and (source, line["engine_version"]) == PER_DEVICE)
    value = float(line["value"]) * (devices if each else 1)
    if not 1e-6 < value < 1e15:
        raise InputError("expected a positive number of milliseconds or tokens", key="value", value=line["value"])
    capped = MAX_Q * ("MaxQ" in line["url"])
    device, t, p, d = _device(line["gpu"] + capped), number("t"), number("p"), number("d")
    if "tp2_ep2" in line["id"] + notes:
        # Two degrees that share devices were multiplied: run on two devices, whose rows they equal.
        t, d = (2, 1) if t > 1 else (1, 2)
    model = _model(line["config"], line["dtype_weights"])
    lengths = LENGTHS.get(source, (0, 0))
    drawn = DRAWN.get(source, 1.0) if {line["input_tokens"], line["output_tokens"]} <= {"1024", "8192"} else 1.0
    inputs, outputs = (
        number("input_tokens", MIXED.get(line["model"], lengths[0]) if lengths[0] else 0),
        number("output_tokens", lengths[1] or 1),
    )
    if not inputs:
        raise InputError("expected the prompts' tokens", key="input_tokens")
    given = number("batch_or_concurrency", 0)
    if not given and metric != METRICS[2]:
        raise InputError("expected the concurrency of a latency", key="batch_or_concurrency")
    # MLPerf's throughputs are given with the batch of one engine, and d engines run.
    given *= d if source.startswith("mlperf") and metric == METRICS[2] else 1
    if (told := re.search(r"batch_size per rank (\d+)", notes)) is not None:
        # A campaign's concurrency is over more engines than the row's.
        given = min(given, int(told[1]) * d)
    weights = line["dtype_weights"]
    dtype = weights if weights in ("fp8", "fp16") else "bf16"
    recipe = "blockwise" if dtype == "fp8" and IN_BLOCKS.search(line["model"]) else None
    workload = Workload(s=1, b=1, phase="prefill", dtype=dtype, recipe=recipe, t=t, kv_dtype=_cache(line, name, device))
    asked = Requests(0, max(1, round(drawn * inputs)), max(1, round(drawn * outputs)), d * p)
    # Engines whose ranks share experts say over how many.
    spread = d if line["ep"] else 1
    load = _load(model, workload, device, asked.input_tokens, asked.output_tokens, spread)
    if name == EARLY and line["engine_version"] not in BUILT[1:]:
        load = replace(load, attention_s=load.attention_s * _read_again(model, workload))
    offline = not given
    stack = load_serving_stack(name, device.architecture)
    context = asked.input_tokens + round(stack.reserved * asked.output_tokens)
    step = replace(workload, phase="decode", b=-(-given // d) or 1, p=p, d=spread, e=spread, context=context)
    share = _share(line, name)
    built = offline and stack.of_free
    if given and stack.of_free:
        share = share_of_free(model, step, device, share) - share * CONTEXT / device.memory.bytes
    # What fits need not be searched for.
    fits = given and _held(model, step) <= share * device.memory.bytes
    if fits:
        most = given
    elif built:
        most = at_once(line, model, replace(step, b=1), device, (inputs, outputs))
    else:
        most = _most(model, replace(step, b=1), device, share) // p
    if name == "sglang":
        most = min(most, RUN_BY_SGLANG)
    if offline and not most:
        raise InputError("expected a model that fits: its weights and one request take more than the memory")
    total = REQUESTS.get((inputs, outputs)) if offline else None
    asked = replace(
        asked,
        concurrency=min(total or most * d * p, most * d * p) if offline else given,
        most=max(1, most),
        streamed=source not in ALONE,
        apart="disaggregated" in notes,
        at_random=line["phase"].endswith("server"),
        **_client(line, name, given),
    )
    return Row(
        id=line["id"],
        source=source,
        engine=name,
        metric=metric,
        said=float(line["value"]),
        value=value,
        model=model,
        device=device,
        load=load,
        asked=asked,
        total=total,
        given=not offline,
        trusted=line["trust"] == "high" and line["speculative"] in ("", "none"),
        group=f"{source} {line['model']} {device.name}",
        release=f"{source} {name} {line['engine_version']}",
    )


def _read_again(model: ModelShape, workload: Workload) -> float:
    """Times that TensorRT-LLM to 0.10 reads a cache in 16 bits, or of groups over 16 query heads, in a decode step.

    Its kernel for those has a block a query head, which finds in L2 what others of the group have read: the share that
    it does not find was chosen in view of those rows.
    """
    attention = next(block.attention for _, block in model.all_blocks() if block.attention is not None)
    group = attention.heads / attention.kv_heads
    return 1 + MISSED * (group - 1) if workload.kv_dtype is None or group > 16 else 1.0


def _client(line: Mapping[str, str], stack: str, given: int) -> dict[str, Any]:
    """How the requests of aiconfigurator's samples came: the fields of Requests that say so.

    Lengths of 1024 and 8192 alone are InferenceMAX's (SemiAnalysisAI/InferenceX): benchmark_serving.py with 10
    requests for each in flight, all there at once. TensorRT-LLM waited there for more prompts at 1024 and 1024: 20
    steps of Llama 70B on fewer than 8 devices (benchmarks/70b_fp8_*_trt_slurm.sh at 9596d23d), 40 of DeepSeek-R1 in
    fp8 on B200 from 64 requests (dsr1_fp8_b200_trt.sh at ec7bafaa). Of gpt-oss over data-parallel ranks
    (gptoss_fp4_b200_trt_slurm.sh at 06667a51: enable_balance) a prompt waits until every rank has one, 50 steps at
    the most, and 10 for more: 20 steps, chosen in view of those rows. vLLM ran Llama 70B on B200 with graphs of
    decode steps alone (FULL_DECODE_ONLY, no splitting_ops: 70b_fp8_b200_slurm.sh at 372a8dc6). The others ran aiperf,
    whose outputs are all of one length: means over 20 requests for each in flight, at most 2,000, of TensorRT-LLM 1.0
    (their decimals count them), else over 10 (aiconfigurator's eval/benchmarks/genai_perf_runner.py). TensorRT-LLM
    1.0's with as many in flight as its 128 slots and prompts of 1,000 tokens start a third of a second late on one
    device, two and four alike: in view of those rows, no cause is known. vLLM 0.12 answered Llama 8B at up to twice
    the peak of its device: genai-perf sends few different prompts again and again, which the engine had cached.
    Nobody states how many; 100 (genai-perf's default, as remembered) was taken in view of those rows.
    """
    if line["source"] != "aic-silicon":
        return {}
    model, device = line["model"], line["gpu"]
    lengths, held = (line["input_tokens"], line["output_tokens"]), 0
    if set(lengths) <= {"1024", "8192"}:
        if stack == "tensorrt-llm" and lengths == ("1024", "1024"):
            r1 = "DeepSeek-R1" in model and device == "b200" and line["dtype_weights"] == "fp8" and given >= 64
            held = 40 * r1 + 20 * ("Llama-3.1-70B" in model and line["t"] != "8")
        balanced = stack == "tensorrt-llm" and "gpt-oss" in model and line["d"] not in ("", "1")
        eager = stack == "vllm" and "Llama-3.1-70B" in model and device == "b200"
        return {"waves": 10, "held": 20 if balanced else held, "eager": eager}
    if stack == "vllm":
        again = 1 - 100 / (12 * given) if "Llama-3.1-8B" in model and line["engine_version"] == "0.12.0" else 0.0
        return {"waves": 10, "cached": max(0.0, again)}
    if line["engine_version"] != "1.0.0rc3":
        return {"waves": 10, "lockstep": True}
    late = 0.32 if given >= 128 and float(line["input_tokens"]) >= 1000 else 0.0
    return {"waves": min(20, 2000 / given), "lockstep": True, "late_s": late}


def _share(line: Mapping[str, str], stack: str) -> float:
    """Memory's share, where a run's set-up is published.

    That is in aiconfigurator's templates for TensorRT-LLM (extra_engine_args.1.0.0rc3.yaml.j2) and InferenceMAX's
    scripts, whose Llama 70B leaves it at 0.9.
    """
    if stack != "tensorrt-llm" or line["source"] != "aic-silicon":
        return UTILIZATION
    if {line["input_tokens"], line["output_tokens"]} <= {"1024", "8192"}:
        return 0.85 if "gpt-oss" in line["model"] else 0.8 if "DeepSeek" in line["model"] else UTILIZATION
    return 0.8


def _cache(line: Mapping[str, str], stack: str, device: Device) -> Any:
    """The cache's type, where a row does not say as ModelOpt's quantised checkpoints have it.

    OpenAI's in MXFP4 says nothing of it: InferenceMAX's scripts for TensorRT-LLM ask for fp8 on Blackwell alone.
    """
    if line["dtype_kv"] in ("fp8", "int8"):
        return line["dtype_kv"]
    narrow = {"tensorrt-llm": ("fp8", "nvfp4", "mxfp4", "int4"), "vllm": ("fp8", "nvfp4")}.get(stack, ())
    named = line["dtype_weights"] != "mxfp4" or "nvfp4" in device.peak_flops
    return "fp8" if line["dtype_weights"] in narrow and named and not line["dtype_kv"] else None
