"""A search's answer as text: the source first, then baseline and candidates, then the verdict."""

from __future__ import annotations

from tabulate import tabulate

from shapes.workload import Workload
from sizer.documents.units import seconds_text, signed_count_text
from sizer.render.page import Page
from sizer.searching.ranked import Ranked, SearchResult
from sizer.searching.verdict import label, objected


def render(result: SearchResult, page: Page) -> str:
    if result.source.startswith("measured:"):
        first = f"measured here ({result.source.removeprefix('measured:')})"
    else:
        run_by = f"stack {result.stack}" if result.stack is not None else "kernels alone, no stack"
        first = f"predicted, not measured ({result.source.removeprefix('predicted:')}, {run_by})"
    lines = [
        f"{first}: {result.what} over {result.tokens:,} tokens, {result.considered} candidates, by {result.objective}"
    ]
    if result.serving is not None:
        lines.append(f"  {_serving(result.serving)}")
    lines += [f"  {note}" for note in result.notes]
    rows = [_row("baseline", result.baseline, result)]
    rows += [_row(str(index), one, result) for index, one in enumerate(result.candidates, 1)]
    headers = ["", result.what, "time", "+-", "TFLOPS", "speed-up", "interval", "parameters", "memory", "shards"]
    if result.serving is not None:
        headers += ["decode", "speed-up"]
    if result.baseline.losses:
        headers += [f"loss on {name}" for name in result.devices]
    aligned = ("left", "left", *("right",) * (len(headers) - 2))
    lines += [
        "",
        tabulate(rows, headers, tablefmt="simple", colalign=aligned, disable_numparse=True),
        "",
        result.verdict,
    ]
    if result.front:
        lines += ["", "Pareto (none is faster both to train and to serve, by the objective):"]
        lines += [
            f"  {seconds_text(one.timing.seconds)} a step ({one.speedup:.2f}x), {_decode(one)}: "
            + ("baseline" if one.change == result.baseline.change else label(one))
            for one in result.front
        ]
    if result.pareto:
        lines += ["", "Pareto (each is faster than every one with more parameters):"]
        lines += [
            f"  {one.parameters / 1e9:.3f} B parameters, {seconds_text(one.timing.seconds)}: {label(one)}"
            for one in result.pareto
        ]
    return "\n".join(lines) + "\n"


def _serving(workload: Workload) -> str:
    split = "".join(f", {word} {getattr(workload, key)}" for key, word in (("t", "tp"), ("e", "ep"), ("d", "dp")))
    return (
        f"decode: {workload.b} requests of {workload.context:,} keys{split}, {workload.dtype}, KV cache "
        f"{workload.cache_dtype}; extrapolated, no decode kernel was measured"
    )


def _row(name: str, one: Ranked, result: SearchResult) -> list[str]:
    timing = one.timing
    half = (timing.high - timing.low) / 2 / timing.seconds
    interval = "" if one is result.baseline else f"{one.speedup_low:.2f}..{one.speedup_high:.2f}"
    cells = [
        name,
        _named(one),
        seconds_text(timing.seconds),
        f"{half:.1%}" if half <= 1 else ">100%",
        _tflops(one.tflops),
        f"{one.speedup:.3f}x",
        interval,
        signed_count_text(one.parameters_change) if one.parameters_change else "0",
        _signed_bytes(one.memory_change_bytes),
        f"{one.shards}" if one.shards else "",
    ]
    if one.decode is not None:
        cells += [seconds_text(one.decode.seconds), f"{one.decode_speedup:.3f}x"]
    return cells + [f"{loss:.1%}" for loss in one.losses.values()]


def _decode(one: Ranked) -> str:
    return f"{seconds_text(one.decode.seconds)} a token ({one.decode_speedup:.2f}x)" if one.decode is not None else ""


def _named(one: Ranked) -> str:
    return label(one) + objected(one)


def _tflops(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _signed_bytes(number: int | None) -> str:
    if number is None:
        return ""
    unit, name = (2**20, "MiB") if abs(number) >= 2**20 else (2**10, "KiB")
    return f"{number / unit:+,.0f} {name}" if number else "0"
