"""`search`: faster neighbouring dimensions, predicted for named devices or measured on the one at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shapes.device import DEFAULT_DEVICE, Device, load_device
from shapes.errors import InputError, positive_int
from shapes.memory import memory
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.resize import resize
from shapes.timing import Timing
from shapes.workload import Workload
from sizer.pricing import Pricer
from sizer.searching.predicting import Priced, devices_agree, price, rebuilt, shortlist, tile_of
from sizer.searching.ranked import Ranked, SearchResult
from sizer.searching.space import Limits, Space
from sizer.searching.spaces import heads as heads_space
from sizer.searching.spaces import hidden as hidden_space
from sizer.searching.spaces import microbatch as microbatch_space
from sizer.searching.spaces import model as model_space
from sizer.searching.spaces import swiglu as swiglu_space
from sizer.searching.spaces import vocab as vocab_space
from sizer.searching.verdict import pareto, verdict
from sizer.subject import read_subject
from sizer.workload_names import workload_fields

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
    device: str | Device | Sequence[str | Device] | None = None,
    limits: Limits | None = None,
    objective: str = "step-time",
    top: int = 5,
    gemm_only: bool = False,
    progress: Callable[[int, int], None] | None = None,
    measure: bool = False,
    strategy: str | None = None,
    regret: float = 0.01,
    confidence: float = 0.95,
    time_limit_s: float | None = None,
    store: str | None = None,
    tokens: int | None = None,
    **workload: Any,
) -> SearchResult:
    """The fastest neighbours of a baseline, predicted, or with ``measure`` measured on the device at hand.

    Measuring, the ``strategy`` is "racing" unless "exhaustive" is asked for: the prediction for the device at hand
    (for h100-sxm where that is not known, as a CPU) orders the candidates, and the best is known to within ``regret``
    at ``confidence`` unless ``time_limit_s`` is up first. Samples come from and go to the ``store``. Predicting, for
    ``device`` (default h100-sxm), every candidate is priced.

    The baseline is ``config`` (as for ``check``), or plain dimensions: ``h`` alone searches the SwiGLU width near 8h/3,
    ``params`` a whole model. Several devices: each candidate counts with its worst loss against the best on that
    device. ``workload``: fields of Workload; ``tokens`` stands for b and s. ``progress(done, of)``. Raises
    InputError where nothing satisfies the constraints.
    """
    started = time.perf_counter()
    limits = limits or Limits()
    _check_words(what, objective, top)
    if not measure and strategy not in (None, "exhaustive"):
        raise InputError("expected exhaustive: racing is a way to measure, add --measure", key="--strategy",
                         value=strategy)  # fmt: skip
    workload = workload_fields(workload)
    if tokens is not None:
        workload = {**workload, **_sequences(tokens, workload)}
    named = device if isinstance(device, (list, tuple)) else (device or DEFAULT_DEVICE,)
    session = None
    if measure:
        from shapes.measure import InProcess
        from sizer.measuring import device_at_hand

        if len(named) > 1:
            raise InputError("expected one device: several can only be predicted (--predict)", key="--measure")
        session = InProcess()
        here = device_at_hand(session.environment, named[0] if device is not None else None)
        named = (here,) if here is not None else named
    targets = tuple(load_device(one) for one in named)
    model, settled = _baseline(config, h, d_ff, heads, kv_heads, layers, vocab, params, workload, gemm_only)
    what = what or ("model" if params is not None else "swiglu")
    _check_limits(limits, what)
    devices_agree(targets, settled.dtype)
    space = _space(what, model, settled, targets[0], limits, h, d_ff, params, gemm_only, config)
    pricers = [Pricer(target) for target in targets]
    chosen = [space.baseline, *shortlist(space, pricers[0], progress)]
    priced = [[price(space, change, pricer) for change in chosen] for pricer in pricers]
    seconds_of: Sequence[Sequence[Priced]] = priced
    samples, notes = 0, space.notes
    if session is not None:
        from sizer.searching.measuring import Asked, measured

        asked = Asked(strategy or "racing", regret, confidence, time_limit_s, store)
        taken = measured(
            space, priced[0], [_weight(one, space, objective) for one in priced[0]], asked, session, progress
        )
        seconds_of, samples, notes = [taken.priced], taken.samples, (*notes, *taken.notes)
    ranked = _rank(space, seconds_of, targets, objective)
    rest = sorted(ranked[1:], key=lambda one: (one.value, one.parameters))
    baseline, *best = _with_memory(space, (ranked[0], *rest[:top]))
    return SearchResult(
        what=what, objective=objective, tokens=settled.tokens, baseline=baseline, candidates=tuple(best),
        verdict=verdict(what, baseline, best), strategy=(strategy or "racing") if measure else "exhaustive",
        source="; ".join(dict.fromkeys(row[0].timing.source for row in seconds_of)),
        considered=len(space.candidates), measurements=samples, elapsed_s=time.perf_counter() - started,
        excluded=space.excluded, pareto=_with_memory(space, pareto(ranked)) if what == "model" else (), notes=notes,
        ranked=tuple(ranked), tile=tile_of(space, pricers[0]),
    )  # fmt: skip


def _sequences(tokens: int, workload: Mapping[str, Any]) -> dict[str, int]:
    """b and s that make ``tokens``: of the s asked for, else of 4096, or one short sequence."""
    if "b" in workload:
        raise InputError("expected -b or --tokens, not both", key="--tokens", value=tokens)
    s = int(workload.get("s") or min(DEFAULT_S, positive_int(tokens, "--tokens")))
    if tokens % s:
        raise InputError(f"expected a multiple of the sequence {s}", key="--tokens", value=tokens)
    return {"b": tokens // s, "s": s}


def swiglu_width(
    hidden: int, *, device: str | Device = DEFAULT_DEVICE, tolerance: float = 0.01, **workload: Any
) -> int:
    """The fastest width of a gated MLP within ``tolerance`` of 8h/3's parameters, predicted on ``device``.

    Of widths that rule SZ108 has nothing against where there is one in reach, else of those of whole 16 bytes.

    >>> swiglu_width(4096) % 64
    0
    """
    target, width = load_device(device), 8 * positive_int(hidden, "hidden") // 3
    workload = workload_fields(workload)
    settled = Workload(**{"b": DEFAULT_B, "s": DEFAULT_S, **workload})
    step, slack = target.alignment_elements(settled.dtype) * settled.t, int(width * tolerance)
    reached = (width + slack) // step * step >= width - slack
    limits = Limits(tolerance, step=step if reached else None)
    found = search(h=hidden, device=target, limits=limits, top=1, **workload)
    return found.best.change["d_ff"]


def _check_words(what: str | None, objective: str, top: int) -> None:
    if what is not None and what not in WHATS:
        raise InputError(f"expected one of {', '.join(WHATS)}", key="--what", value=what)
    if objective not in OBJECTIVES:
        raise InputError(f"expected one of {', '.join(OBJECTIVES)}", key="--objective", value=objective)
    positive_int(top, "--top")


def _check_limits(limits: Limits, what: str) -> None:
    """A bound that the search would take no notice of is a mistake."""
    bounds = (
        ("--aspect", limits.aspect, ("hidden", "model")),
        ("--head-dim", limits.head_dims, ("heads", "hidden", "model")),
        ("--seq-lens", limits.seq_lens, ("microbatch",)),
    )
    for option, value, whats in bounds:
        if value is not None and what not in whats:
            typed = (":" if option == "--aspect" else ",").join(f"{one:g}" for one in value)
            raise InputError(f"expected --what {' or '.join(whats)} with it", key=option, value=typed)


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
        low, high = _ratio_bounds(base.timing, first.timing) if index else (1.0, 1.0)
        ranked.append(
            Ranked(
                change=first.change, timing=first.timing, tflops=first.flops / first.timing.seconds / 1e12,
                speedup=ratio, speedup_low=low, speedup_high=high,
                parameters=space.parameters_of(first.model),
                parameters_change=space.parameters_of(first.model) - space.parameters_of(base.model),
                memory_change_bytes=None,
                value=values[0] if len(devices) <= 1 else max(losses.values()),
                losses=losses if len(devices) > 1 else {},
            )
        )  # fmt: skip
    return ranked


def _ratio_bounds(base: Timing, timing: Timing) -> tuple[float, float]:
    """Bounds of base over candidate: of predictions by the error of the worse one (what they share cancels), of

    measurements by the candidate's own interval, which is of its ratio to the baseline timed beside it.
    """
    if timing.measured:
        return base.seconds / timing.high, base.seconds / timing.low
    error = max((one.high - one.low) / 2 / one.seconds for one in (base, timing))
    ratio = base.seconds / timing.seconds
    return ratio * (1 - error), ratio * (1 + error)


def _value(one: Priced, space: Space, objective: str) -> float:
    """What is minimised."""
    return one.timing.seconds * _weight(one, space, objective)


def _weight(one: Priced, space: Space, objective: str) -> float:
    """What the objective makes of a second: positive, so that the least is the best."""
    if objective == "tflops":
        return 1 / one.flops
    if objective == "layer-time":
        return 1 / one.model.layers
    if objective == "time-per-parameter":
        return 1 / space.parameters_of(one.model)
    return 1.0


def _with_memory(space: Space, listed: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """Those that are shown, with their device's peak memory less the baseline's: half a millisecond each."""
    peak = memory(space.model, space.workload).total_bytes
    return tuple(
        replace(one, memory_change_bytes=memory(*rebuilt(space, one.change)).total_bytes - peak) for one in listed
    )
