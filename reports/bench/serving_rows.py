"""Rows of published serving (columns of evidence/serving.csv.gz) as models, workloads, devices and engines."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from serving_model import METRICS, Amounts, Requests, ServingEngine, passes, times

from shapes.device import Device, load_device
from shapes.errors import InputError
from shapes.files import read_text
from shapes.model import ModelShape
from shapes.model.layers import MoeShape
from shapes.workload import Workload
from sizer.readers import read_config

#: The engine column -> a serving engine's file.
ENGINES = {
    "trtllm": "tensorrt-llm",
    "tensorrt-llm": "tensorrt-llm",
    "vllm": "vllm",
    "sglang": "sglang",
    "gpt-fast": "gpt-fast",
}
#: What a row cannot be priced without.
NEEDED = ("id", "engine", "gpu", "gpus", "t", "config", "dtype_weights", "metric", "value")
#: Published names -> one of METRICS, and what a value is multiplied by (a device's throughput: by the devices).
NAMES = {
    "ttft_ms": "ttft_ms",
    "ttft_ms_mean": "ttft_ms",
    "tpot_ms": "tpot_ms",
    "tpot_ms_mean": "tpot_ms",
    "output_tokens_per_s_total": "output_tokens_per_s_total",
    "output_tokens_per_s_per_gpu": "output_tokens_per_s_total",
}
#: MLPerf's data sets give the lengths that its rows leave out: mean tokens of OpenOrca and of the mixed one.
LENGTHS = {"mlperf-inference-v4.1": (294, 294)}
#: aiconfigurator's lengths are upper bounds, of which runs draw nine tenths on average.
DRAWN = {"aic-silicon": 0.9}
MAX_BYTES = 1 << 27


@dataclass(frozen=True)
class Row:
    """One published figure: ``said``, and ``value`` of all devices. ``given``: its batch or concurrency is.

    ``trusted``: trust high and no speculation. ``group``: rows that a fit keeps together.
    """

    id: str
    source: str
    engine: str
    metric: str
    said: float
    value: float
    model: ModelShape
    device: Device
    asked: Requests
    given: bool
    trusted: bool
    group: str
    step: Amounts
    prompt: Amounts

    def predicted(self, engine: ServingEngine) -> float:
        """The metric as ``engine`` gives it; a device's throughput as all devices'.

        First tokens of TensorRT-LLM's own pages are the engine's alone, without a server's steps and queues.
        """
        if self.source == "trtllm-docs" and self.metric == "ttft_ms":
            engine = replace(engine, first_s=0.0, first_steps=0.0, token_s=0.0, arrival_s=0.0)
        found = times(engine, self.step, self.prompt, self.asked, self.device)[self.metric]
        offline = self.metric == METRICS[2] and not self.given
        return found * engine.occupancy / engine.steady if offline else found

    @property
    def kind(self) -> str:
        return "moe" if any(isinstance(block.mlp, MoeShape) for _, block in self.model.all_blocks()) else "dense"


def read_rows(path: Path, refused: list[tuple[str, str]]) -> Iterator[Row]:
    """Every row of a CSV file (or .gz); what cannot be priced goes to ``refused`` (id, reason)."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            text = file.read(MAX_BYTES)
    else:
        text = read_text(path, MAX_BYTES)
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"expected the columns of serving.csv; missing: {', '.join(missing)}", where=str(path))
    number = 0
    for number, line in enumerate(reader, start=1):
        try:
            yield _row(line)
        except (ValueError, KeyError) as error:  # InputError is one
            refused.append((line.get("id") or f"row {number}", str(error)))
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
    try:
        read = json.loads(config)
    except ValueError:
        raise InputError("expected a configuration in JSON", key="config") from None
    model = read_config(read).model
    moe = any(isinstance(block.mlp, MoeShape) for _, block in model.all_blocks())
    quantised = _quantisation(dtype, moe)
    if quantised is None:
        return model
    without = {key: value for key, value in read.items() if key != "quantization_config"}
    return read_config(without | {"quantization_config": quantised}).model


@lru_cache(maxsize=1 << 14)
def _passes(model: ModelShape, workload: Workload, device: Device, asked: Requests) -> tuple[Amounts, Amounts]:
    return passes(model, workload, device, asked)


def _row(line: dict[str, str]) -> Row:
    def number(key: str, default: int = 1) -> int:
        return int(float(line.get(key) or default))

    source, published = line["source"], line["metric"]
    if published not in NAMES:
        raise InputError(
            "expected a first token's, a later token's time or a throughput", key="metric", value=published
        )
    engine = ENGINES.get(line["engine"])
    if engine is None:
        raise InputError(f"expected one of {', '.join(ENGINES)}", key="engine", value=line["engine"])
    if not line["t"]:
        raise InputError("expected the tensor-parallel degree", key="t")
    value = float(line["value"]) * (number("gpus") if published.endswith("per_gpu") else 1)
    if not 0 < value < float("inf"):
        raise InputError("expected a positive number", key="value", value=line["value"])
    device, t, d = load_device(line["gpu"]), number("t"), number("d")
    if number("p") > 1:
        raise InputError("expected one pipeline stage: serving over stages is not priced", key="p", value=line["p"])
    if "tp2_ep2" in line["id"] + (line.get("notes") or ""):
        t, d = 2, 1  # run on two devices, whose rows they equal
    weights = line["dtype_weights"]
    model = _model(line["config"], weights)
    lengths = LENGTHS.get(source, (0, 0))
    drawn = DRAWN.get(source, 1.0) if {line["input_tokens"], line["output_tokens"]} <= {"1024", "8192"} else 1.0
    inputs, outputs = number("input_tokens", lengths[0]), number("output_tokens", lengths[1] or 1)
    if not inputs:
        raise InputError("expected the prompts' tokens", key="input_tokens")
    given = bool(line["batch_or_concurrency"])
    if not given and NAMES[published] != METRICS[2]:
        raise InputError("expected the concurrency of a latency", key="batch_or_concurrency")
    dtype = "fp8" if weights == "fp8" else "fp16" if weights == "fp16" else "bf16"
    kv = line["dtype_kv"] if line["dtype_kv"] in ("fp8", "int8") else None
    workload = Workload(s=1, b=1, phase="prefill", dtype=dtype, t=t, **({"kv_dtype": kv} if kv else {}))
    # MLPerf's throughputs are given with the batch of one engine, of which d run.
    replicas = d if source.startswith("mlperf") and NAMES[published] == METRICS[2] else 1
    asked = Requests(
        replicas * number("batch_or_concurrency"), max(1, round(drawn * inputs)), max(1, round(drawn * outputs)), d
    )
    if not given and NAMES[published] == METRICS[2]:
        asked = _fullest(model, workload, device, asked)
    step, prompt = _passes(model, workload, device, asked)
    return Row(
        id=line["id"],
        source=source,
        engine=engine,
        metric=NAMES[published],
        said=float(line["value"]),
        value=value,
        model=model,
        device=device,
        asked=asked,
        given=given,
        trusted=line["trust"] == "high" and line["speculative"] in ("", "none"),
        group=f"{source} {line['model']} {device.name}",
        step=step,
        prompt=prompt,
    )


def _fullest(model: ModelShape, workload: Workload, device: Device, asked: Requests) -> Requests:
    """As many requests as the memory holds, 2048 at most: what an offline run fills a step with."""
    one, _ = _passes(model, workload, device, replace(asked, concurrency=asked.replicas))
    left = 0.9 * device.memory.bytes - one.weights_bytes - 2e9
    held = int(left // one.cache_bytes) if left > 0 else 0
    if held < 1:
        raise InputError("expected a model that fits: its weights and one request take more than the memory")
    return replace(asked, concurrency=min(2048, held) * asked.replicas)
