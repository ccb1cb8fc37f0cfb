"""How to serve a model on N devices: t, p, e, d and replicas by throughput, under limits of both times.

python reports/bench/serving_plan.py Qwen/Qwen3-32B --device h200 --gpus 8 --ttft 500ms --tpot 30ms
python reports/bench/serving_plan.py openai/gpt-oss-120b --device b200 --gpus 8 --tpot 15ms --input 8k --pools
python reports/bench/serving_plan.py Qwen/Qwen3-8B --device h100-sxm --gpus 1 --drafted 3 --acceptance 0.7 --format json

Each way is priced at 1 to as many requests a rank as its memory holds (serving_model.py, of constants that
reports/fit/serving.py fits), and listed at the number that makes most tokens a second within the limits. ``--pools``:
prompts run on devices of their own, which send the cache on; the devices are shared out so that neither pool waits.
No command of sizer does this yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from serving_model import MOST_BUSY, Requests, experts_of, list_serving_stacks, load_serving_stack, served, serving_load
from tabulate import tabulate

from shapes.device import Device, load_device
from shapes.dtypes import dtype_bytes
from shapes.errors import InputError, positive_int
from shapes.memory import UTILIZATION, most_requests
from shapes.memory.breakdown import divisors
from shapes.model import ModelShape
from shapes.operators.parallel import split_problems
from shapes.workload import Workload
from sizer.cli.numbers import COUNT, seconds
from sizer.subject import read_subject

#: Requests that an engine's scheduler runs at once at most, a rank: those that vLLM's and TensorRT-LLM's take.
MOST_RUN = 2048


@dataclass(frozen=True)
class Asked:
    """What is served and how fast: tokens of a request, limits in seconds (None: none), drafting."""

    input_tokens: int = 1000
    output_tokens: int = 1000
    first_s: float | None = None
    token_s: float | None = None
    drafted: int = 0
    acceptance: float = 0.0
    utilization: float = UTILIZATION


@dataclass(frozen=True)
class Way:
    """One way to serve. ``d`` attention data-parallel ranks share the experts (``e``: ranks that hold different ones);

    ``replicas`` are whole engines. ``prompts``: engines of ``prompts_t`` devices each that run the prompts apart (0:
    none). ``requests`` in flight over all, of ``most`` that the memory holds; ``low`` and ``high`` bound the time of an
    output token, the first's and the rate by what published figures have been off by.
    """

    t: int
    p: int
    e: int
    d: int
    replicas: int
    prompts: int
    prompts_t: int
    requests: int
    most: int
    first_s: float
    first_s_high: float
    token_s: float
    token_s_high: float
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_a_device: float


def ways(
    model: ModelShape, base: Workload, device: Device, gpus: int, stack: str, asked: Asked, *, pools: bool = False
) -> tuple[list[Way], Counter[str]]:
    """Every way within the limits, from the most tokens a second, and how many are not listed for each reason."""
    positive_int(gpus, "gpus", maximum=2**16)
    dropped: Counter[str] = Counter()
    found = []
    for split in _splits(model, base, device, gpus, dropped):
        for prompts in _pools(model, base, device, gpus, split, dropped) if pools else ((0, 1),):
            way = _best(model, base, device, gpus, split, prompts, stack, asked, dropped)
            found += [way] if way is not None else []
    # Of equal ones the simplest: a pipeline gains nothing that replicas do not, but memory.
    return sorted(found, key=lambda way: (-round(way.tokens_per_s, 3), way.p, way.d, way.t)), dropped


@dataclass(frozen=True)
class Split:
    """One engine's devices: t x p x d."""

    t: int
    p: int
    d: int

    @property
    def devices(self) -> int:
        return self.t * self.p * self.d


def _splits(model: ModelShape, base: Workload, device: Device, gpus: int, dropped: Counter[str]) -> Iterator[Split]:
    experts = experts_of(model)
    for t in divisors(gpus, device.link.domain_devices):
        if problems := split_problems(model, replace(base, t=t)):
            dropped[f"t {t}: {problems[0].expected}"] += 1
            continue
        for p in divisors(gpus // t, model.layers):
            for d in divisors(gpus // (t * p), gpus) if experts else (1,):
                if t * d > device.link.domain_devices:
                    dropped["experts are priced within a node's fast links alone"] += 1
                elif d == 1 or experts % d == 0:
                    yield Split(t, p, d)


def _pools(
    model: ModelShape, base: Workload, device: Device, gpus: int, split: Split, dropped: Counter[str]
) -> Iterator[tuple[int, int]]:
    """Engines that run prompts, and devices of each, that leave whole engines to decode."""
    for t in divisors(gpus, device.link.domain_devices):
        if split_problems(model, replace(base, t=t)) or split.p > 1:
            continue
        for prompts in range(1, gpus // t + 1):
            left = gpus - prompts * t
            if left > 0 and left % split.devices == 0:
                yield prompts, t


def _best(
    model: ModelShape,
    base: Workload,
    device: Device,
    gpus: int,
    split: Split,
    prompts: tuple[int, int],
    name: str,
    asked: Asked,
    dropped: Counter[str],
) -> Way | None:
    """The way at the number of requests that makes most tokens a second within the limits; None where none does."""
    engines, prompts_t = prompts
    decoding = gpus - engines * prompts_t
    if decoding % split.devices:
        return None
    replicas = decoding // split.devices
    ranks = replicas * split.d * split.p
    stack = load_serving_stack(name, device.architecture)
    context = asked.input_tokens + round(stack.reserved * asked.output_tokens)
    own = replace(base, phase="decode", b=1, s=1, t=split.t, context=context)
    held = most_requests(model, replace(own, p=split.p, d=split.d, e=split.d), device, asked.utilization)
    most = MOST_RUN if held is None else min(MOST_RUN, held // split.p)
    if not most:
        dropped[f"one request does not fit with t {split.t}, p {split.p}, d {split.d}"] += 1
        return None
    spread = split.d
    load = serving_load(model, replace(base, t=split.t), device, asked.input_tokens, asked.output_tokens, spread)
    running = np.unique(np.concatenate([np.round(2 ** np.arange(0, 11.5, 0.5)), [most]]))
    running = running[running <= most]
    requests = Requests(
        running * ranks, asked.input_tokens, asked.output_tokens, ranks, drafted=asked.drafted,
        acceptance=asked.acceptance, layers=model.layers, apart=engines > 0,
    )  # fmt: skip
    found = served(stack, load, requests)
    first, rate = found.first_s, found.tokens_per_s
    if engines:
        first, rate = _with_prompts_apart(model, base, device, stack, asked, found, prompts)
    kind = "moe" if experts_of(model) else "dense"
    within = np.ones(len(running), dtype=bool)
    for limit, values in ((asked.first_s, first), (asked.token_s, found.token_s)):
        within &= True if limit is None else values <= limit
    if not within.any():
        worst = "TTFT" if asked.first_s is not None and (first > asked.first_s).all() else "TPOT"
        dropped[f"the limits hold at no number of requests (most often {worst})"] += 1
        return None
    place = int(np.argmax(np.where(within, rate, 0.0)))
    first_high, token_high = (stack.intervals[f"{metric} {kind}"][1] for metric in ("ttft_ms", "tpot_ms"))
    rate_low = stack.intervals[f"output_tokens_per_s_total {kind}"][0]
    first_s, token_s, tokens_per_s = (float(values[place]) for values in (first, found.token_s, rate))
    return Way(
        split.t, split.p, split.d, split.d, replicas, engines, prompts_t if engines else 0,
        int(running[place]) * ranks, most * ranks, first_s, first_s * first_high, token_s, token_s * token_high,
        tokens_per_s, tokens_per_s * rate_low, tokens_per_s / gpus,
    )  # fmt: skip


def _with_prompts_apart(
    model: ModelShape,
    base: Workload,
    device: Device,
    stack: Any,
    asked: Asked,
    found: Any,
    prompts: tuple[int, int],
) -> tuple[Any, Any]:
    """First token and rate where so many engines run the prompts: no faster than they do, after a queue, and the cache

    sent over the network between nodes, a rank's share by each.
    """
    engines, t = prompts
    load = serving_load(model, replace(base, t=t), device, asked.input_tokens, asked.output_tokens)
    prompt = load.prompt_seconds(stack, asked.input_tokens)
    rate = np.minimum(found.tokens_per_s, MOST_BUSY * engines / prompt * asked.output_tokens)
    busy = rate / asked.output_tokens * prompt / engines
    # A request's keys and values are what its attention reads, halfway through its output.
    read = asked.input_tokens + asked.output_tokens // 2
    cache = load.attention_s * device.memory.bandwidth_bytes_per_s * asked.input_tokens / read
    sent = cache / device.link.inter_node_bytes_per_s
    server = stack.first_s + stack.token_s * asked.input_tokens
    return server + prompt * (1 + busy / (1 - busy) / 2) + sent + 1.5 * found.step_s, rate


def text(found: Sequence[Way], dropped: Counter[str], top: int) -> str:
    rows = [
        [
            way.t, way.p, way.e, way.d, way.replicas, f"{way.prompts} x {way.prompts_t}" if way.prompts else "-",
            f"{way.requests:,} of {way.most:,}", f"{1e3 * way.first_s:.0f} (to {1e3 * way.first_s_high:.0f})",
            f"{1e3 * way.token_s:.1f} (to {1e3 * way.token_s_high:.1f})",
            f"{way.tokens_per_s:,.0f} (from {way.tokens_per_s_low:,.0f})", f"{way.tokens_per_s_a_device:,.0f}",
        ]
        for way in found[:top]
    ]  # fmt: skip
    names = ("t", "p", "e", "d", "replicas", "for prompts", "requests", "TTFT ms", "TPOT ms", "tokens/s", "a device")
    lines = [f"not listed: {many} x {why}" for why, many in dropped.most_common(8)]
    return "\n".join([tabulate(rows, names, tablefmt="github"), "", *lines])


def say(line: str) -> None:
    print(line)  # noqa: T201  # a script whose output is its purpose


def _time(option: str, said: str | None) -> float | None:
    found = None if said is None else seconds(said)
    if said is not None and not found:
        raise InputError("expected a time, such as 500ms", key=option, value=said)
    return found


def _count(option: str, said: str, least: int = 1) -> int:
    try:
        found = COUNT.convert(said, None, None)
    except Exception:
        found = least - 1
    if not least <= found < 2**31:
        raise InputError(f"expected a whole number from {least} on, such as 1000 or 4k", key=option, value=said)
    return found


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="a configuration or a released model's name")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--gpus", required=True)
    parser.add_argument("--stack", default="vllm", help=f"one of {', '.join(list_serving_stacks())}")
    parser.add_argument("--input", default="1000", help="tokens of a prompt")
    parser.add_argument("--output", default="1000", help="tokens of an answer")
    parser.add_argument("--ttft", help="longest time to the first token: 500ms")
    parser.add_argument("--tpot", help="longest time of an output token: 30ms")
    parser.add_argument("--dtype", help="bf16, fp8 and so on (default: the file's)")
    parser.add_argument("--kv-dtype", help="of the cache: bf16, fp8 (default: 16 bits)")
    parser.add_argument("--drafted", default="0", help="tokens drafted a step")
    parser.add_argument("--acceptance", type=float, default=0.0, help="probability that a drafted token is accepted")
    parser.add_argument("--memory-utilization", type=float, default=UTILIZATION)
    parser.add_argument("--pools", action="store_true", help="prompts on devices of their own")
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    options = _options(words)
    try:
        for name, share in (("--acceptance", options.acceptance), ("--memory-utilization", options.memory_utilization)):
            if not 0 <= share <= 1:
                raise InputError("expected a share from 0 to 1", key=name, value=share)
        device = load_device(options.device)
        said = {"dtype": options.dtype, "kv_dtype": options.kv_dtype}
        given = {key: value for key, value in said.items() if value is not None}
        subject = read_subject(options.config, phase="decode", b=1, s=1, t=1, p=1, d=1, e=1, **given)
        dtype_bytes(subject.workload.dtype)
        asked = Asked(
            _count("--input", options.input), _count("--output", options.output), _time("--ttft", options.ttft),
            _time("--tpot", options.tpot), _count("--drafted", options.drafted, 0), options.acceptance,
            options.memory_utilization,
        )  # fmt: skip
        gpus = _count("--gpus", options.gpus)
        load_serving_stack(options.stack)
        found, dropped = ways(
            subject.whole(), subject.workload, device, gpus, options.stack, asked, pools=options.pools
        )
        if not found:
            why = dropped.most_common(1)[0][0] if dropped else "no split of the devices"
            raise InputError(f"expected limits that some way keeps; most often: {why}", key="gpus", value=gpus)
    except InputError as error:
        sys.stderr.write(f"serving_plan.py: {error}\n")
        sys.exit(2)
    if options.format == "json":
        reasons = [{"reason": why, "count": many} for why, many in dropped.most_common()]
        listed = [asdict(way) for way in found[: options.top]]
        head = {"schema_version": 1, "stack": options.stack, "device": device.name, "gpus": gpus, **asdict(asked)}
        say(json.dumps({**head, "ways": listed, "dropped": reasons}, indent=2))
    else:
        say(text(found, dropped, options.top))


if __name__ == "__main__":
    main()
