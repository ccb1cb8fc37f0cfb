"""`search`: faster neighbouring dimensions, predicted for named devices or measured on the one at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shapes.device import Device, load_device
from shapes.errors import InputError, positive_int
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.resize import resize
from shapes.timing import Timing
from shapes.workload import Workload
from sizer.pricing import Pricer
from sizer.searching.predicting import Priced, devices_agree, price, shortlist
from sizer.searching.result import Ranked, SearchResult
from sizer.searching.space import Limits, Space
from sizer.searching.spaces import heads as heads_space
from sizer.searching.spaces import hidden as hidden_space
from sizer.searching.spaces import microbatch as microbatch_space
from sizer.searching.spaces import model as model_space
from sizer.searching.spaces import swiglu as swiglu_space
from sizer.searching.spaces import vocab as vocab_space
from sizer.searching.verdict import pareto, verdict
from sizer.subject import read_subject

WHATS = ("swiglu", "heads", "vocab", "hidden", "microbatch", "model")
OBJECTIVES = ("step-time", "layer-time", "time-per-parameter", "tflops")
#: Tokens of a search that names no batch: 4 sequences of 4096.
DEFAULT_B, DEFAULT_S = 4, 4096

__all__ = ["OBJECTIVES", "WHATS", "SearchResult", "search", "swiglu_width"]


def search(
    config: object = None,
    *,
    what: str | None = None,
    h: int | None = None,
    d_ff: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    layers: int | None = None,
    vocab: int | None = None,
    params: float | None = None,
    device: str | Device | Sequence[str | Device] = "h100-sxm",
    limits: Limits | None = None,
    objective: str = "step-time",
    top: int = 5,
    gemm_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
    measure: bool = False,
    regret: float = 0.01,
    confidence: float = 0.95,
    time_limit_s: float | None = None,
    store: str | None = None,
    **workload: Any,
) -> SearchResult:
    """The fastest neighbours of a baseline, predicted, or with ``measure`` measured on the device at hand.

    Measuring races: the prediction for ``device`` orders the candidates, and the best is known to within ``regret`` at
    ``confidence`` unless ``time_limit_s`` is up first. Samples come from and go to the ``store``.

    The baseline is ``config`` (as for ``check``), or plain dimensions: ``h`` alone searches the SwiGLU width near 8h/3,
    ``params`` a whole model. Several devices: each candidate counts with its worst loss against the best on that
    device. ``workload``: fields of Workload. Raises InputError where nothing satisfies the constraints.
    """
    started = time.perf_counter()
    limits = limits or Limits()
    _check_words(what, objective, top)
    targets = tuple(load_device(one) for one in (device if isinstance(device, (list, tuple)) else (device,)))
    model, settled = _baseline(config, h, d_ff, heads, kv_heads, layers, vocab, params, workload, gemm_only)
    what = what or ("model" if params is not None else "swiglu")
    devices_agree(targets, settled.dtype)
    space = _space(what, model, settled, targets[0], limits, h, d_ff, params, gemm_only, config)
    pricers = [Pricer(target) for target in targets]
    chosen = [space.baseline, *shortlist(space, pricers[0], progress)]
    priced = [[price(space, change, pricer) for change in chosen] for pricer in pricers]
    if measure:
        return _raced(space, priced[0], objective, top, regret, confidence, time_limit_s, store, started, what, settled)
    ranked = _rank(space, priced, targets, objective)
    baseline, rest = ranked[0], sorted(ranked[1:], key=lambda one: (one.value, one.parameters))
    sources = "; ".join(dict.fromkeys(row[0].timing.source for row in priced))
    return SearchResult(
        what=what, objective=objective, tokens=settled.tokens, baseline=baseline, candidates=tuple(rest[:top]),
        verdict=verdict(what, baseline, rest[:top]), strategy="exhaustive", source=sources,
        considered=len(space.candidates), measurements=0, elapsed_s=time.perf_counter() - started,
        excluded=space.excluded, pareto=pareto(ranked) if what == "model" else (), notes=space.notes,
    )  # fmt: skip


def _raced(
    space: Space, predicted: Sequence[Priced], objective: str, top: int, regret: float, confidence: float,
    time_limit_s: float | None, store: str | None, started: float, what: str, settled: Workload,
) -> SearchResult:  # fmt: skip
    """The predicted candidates measured by racing; those not looked at are left out of the answer."""
    from shapes.measure.executor import InProcess
    from shapes.measure.stats import summarise
    from shapes.store import Store
    from sizer.searching.measuring import Source
    from sizer.searching.strategies.racing import race

    session = InProcess()
    with Store.open(store) as kept:
        source = Source(space, [one.change for one in predicted], session, kept)
        samples: dict[int, list[Any]] = {}

        def sample(index: int, count: int) -> Any:
            taken = source.sample(index, count)
            if taken is not None:
                samples.setdefault(index, []).extend(taken)
            return taken

        def late() -> bool:
            return time_limit_s is not None and time.perf_counter() - started >= time_limit_s

        # An objective is its seconds times what the candidate's own size makes of them.
        weights = [abs(_value(one, space, objective)) / one.timing.seconds for one in predicted]
        if objective == "tflops":
            weights = [1 / one.flops for one in predicted]
        error = max((one.timing.high - one.timing.low) / 2 / one.timing.seconds for one in predicted[1:])
        try:
            outcome = race(
                [one.timing.seconds for one in predicted], error, sample, weights=weights, regret=regret,
                confidence=confidence, out_of_time=late,
            )  # fmt: skip
        except ValueError:
            reason = next(iter(source.failed.values()), "no reason given")
            raise InputError(f"nothing could be measured: {reason}", key="--measure") from None
        finally:
            source.close()
    seen = []
    for index, taken in samples.items():
        found = summarise(taken, confidence)
        timing = Timing(found.seconds, found.low, found.high, session.environment.source)
        seen.append((index, replace(predicted[index], timing=timing)))
    seen.sort(key=lambda pair: pair[0])
    if seen[0][0] != 0:
        raise InputError(f"the baseline could not be measured: {source.failed[0]}", key="--measure")
    ranked = _rank(space, [[one for _, one in seen]], [], objective)
    baseline, rest = ranked[0], sorted(ranked[1:], key=lambda one: (one.value, one.parameters))
    sure = f"{outcome.sure:.0%} sure that none of {len(predicted) - 1} is more than {regret:.0%} better"
    ended = "" if outcome.finished else "; time was up first"
    notes = (*space.notes, f"{len(seen) - 1} of {len(predicted) - 1} candidates looked at, {sure}{ended}")
    notes += tuple(f"{dict(predicted[index].change)} not measured: {why}" for index, why in source.failed.items())
    return SearchResult(
        what=what, objective=objective, tokens=settled.tokens, baseline=baseline, candidates=tuple(rest[:top]),
        verdict=verdict(what, baseline, rest[:top]), strategy="racing", source=session.environment.source,
        considered=len(space.candidates), measurements=outcome.samples, elapsed_s=time.perf_counter() - started,
        excluded=space.excluded, pareto=pareto(ranked) if what == "model" else (), notes=notes,
    )  # fmt: skip


def swiglu_width(hidden: int, *, device: str | Device = "h100-sxm", tolerance: float = 0.01, **workload: Any) -> int:
    """The fastest width of a gated MLP within ``tolerance`` of 8h/3's parameters, predicted on ``device``.

    >>> swiglu_width(4096) % 64
    0
    """
    found = search(h=positive_int(hidden, "hidden"), device=device, limits=Limits(tolerance), top=1, **workload)
    return found.best.change["d_ff"]


def _check_words(what: str | None, objective: str, top: int) -> None:
    if what is not None and what not in WHATS:
        raise InputError(f"expected one of {', '.join(WHATS)}", key="--what", value=what)
    if objective not in OBJECTIVES:
        raise InputError(f"expected one of {', '.join(OBJECTIVES)}", key="--objective", value=objective)
    positive_int(top, "--top")


def _baseline(
    config: object, h: int | None, d_ff: int | None, heads: int | None, kv_heads: int | None, layers: int | None,
    vocab: int | None, params: float | None, workload: Mapping[str, Any], gemm_only: bool,
) -> tuple[ModelShape, Workload]:  # fmt: skip
    """The model and workload to start from: a configuration, a plain decoder of these dimensions, or a budget."""
    given = {"hidden": h, "d_ff": d_ff, "heads": heads, "kv_heads": kv_heads, "layers": layers, "vocab": vocab}
    options = {"hidden": "--h", "d_ff": "--d-ff", "kv_heads": "--kv-heads"}
    changes = {
        key: positive_int(value, options.get(key, f"--{key}")) for key, value in given.items() if value is not None
    }
    if config is not None:
        subject = read_subject(config, **workload)
        if subject.model is None:
            raise InputError("expected a configuration a reader knows: a trace has no dimensions to change")
        return resize(subject.model, **changes), subject.workload
    defaults: dict[str, Any] = {"b": DEFAULT_B, "s": DEFAULT_S, **({"dtype": "fp16"} if gemm_only else {})}
    settled = Workload(**{**defaults, **workload})
    if params is not None and h is None:
        return model_space.from_budget(params, **({"vocab": vocab} if vocab else {})), settled
    if h is None:
        raise InputError("expected --h, --params or a configuration to start from", key="--h")
    if heads is not None and h % heads:
        raise InputError(f"expected a divisor of h = {h}", key="--heads", value=heads)
    count = heads or max(1, h // 128)
    attention = AttentionShape(count, kv_heads or count, max(1, h // count), rotary_dim=max(1, h // count))
    block = Block(attention, MlpShape(d_ff or max(1, 8 * h // 3)), count=layers or 32)
    return ModelShape("llama", (Stack("decoder", h, (block,)),), vocab=vocab or 50304), settled


def _space(
    what: str, model: ModelShape, workload: Workload, device: Device, limits: Limits, h: int | None, d_ff: int | None,
    params: float | None, gemm_only: bool, config: object,
) -> Space:  # fmt: skip
    if what == "swiglu":
        if config is not None and not gemm_only:
            return swiglu_space.in_model(model, workload, device, limits)
        return swiglu_space.space(model.hidden, d_ff, workload, device, limits, gemm_only=gemm_only)
    if what == "model":
        return model_space.space(model, workload, device, limits, budget=params)
    makers: dict[str, Callable[[ModelShape, Workload, Device, Limits], Space]] = {
        "heads": heads_space.space,
        "vocab": vocab_space.space,
        "hidden": hidden_space.space,
        "microbatch": microbatch_space.space,
    }
    return makers[what](model, workload, device, limits)


def _rank(space: Space, priced: Sequence[Sequence[Priced]], devices: Sequence[Device], objective: str) -> list[Ranked]:
    """Every candidate against the baseline (the first); with several devices by its worst loss."""
    best = [min(_value(one, space, objective) for one in row) for row in priced]
    ranked = []
    for index, first in enumerate(priced[0]):
        values = [_value(row[index], space, objective) for row in priced]
        losses = {device.name: value / low - 1 for device, value, low in zip(devices, values, best, strict=False)}
        base = priced[0][0]
        ratio = base.timing.seconds / first.timing.seconds
        error = _difference_error(base.timing, first.timing) if index else 0.0
        ranked.append(
            Ranked(
                change=first.change, timing=first.timing, tflops=first.flops / first.timing.seconds / 1e12,
                speedup=ratio, speedup_low=ratio * (1 - error), speedup_high=ratio * (1 + error),
                parameters=space.parameters_of(first.model),
                parameters_change=space.parameters_of(first.model) - space.parameters_of(base.model),
                memory_change_bytes=_state_bytes(space, first, base),
                value=values[0] if len(devices) <= 1 else max(losses.values()),
                losses=losses if len(devices) > 1 else {},
            )
        )  # fmt: skip
    return ranked


def _difference_error(a: Timing, b: Timing) -> float:
    """Relative error of the ratio of two predictions: that of the worse one (their shared part cancels)."""
    return max((timing.high - timing.low) / 2 / timing.seconds for timing in (a, b))


def _value(one: Priced, space: Space, objective: str) -> float:
    """What is minimised."""
    if objective == "tflops":
        return -one.flops / one.timing.seconds
    if objective == "layer-time":
        return one.timing.seconds / one.model.layers
    if objective == "time-per-parameter":
        return one.timing.seconds / space.parameters_of(one.model)
    return one.timing.seconds


def _state_bytes(space: Space, one: Priced, base: Priced) -> int:
    """Weights, gradients and AdamW states (18 bytes a parameter) in training, weights alone (2) in inference."""
    each = 18 if one.workload.train else 2
    return each * (space.parameters_of(one.model) - space.parameters_of(base.model))
