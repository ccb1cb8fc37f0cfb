"""Numbers as people read them, and the sentences about a step that several commands say."""

from __future__ import annotations

from sizer.checking.findings import PricedFinding, PricedSuggestion, StepTime

GIB = 2**30


def count_text(number: int) -> str:
    """A parameter count with its exact value where it is short: 8.03 B, 124.4 M, 1,024."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(number) >= limit:
            return f"{number / limit:.2f} {suffix}" if limit > 1e6 else f"{number / limit:.1f} {suffix}"
    return f"{number:,}"


def seconds_text(seconds: float) -> str:
    """Seconds with three significant digits and a unit: 1.23 s, 4.56 ms, 7.89 us."""
    magnitude = abs(seconds)
    for limit, factor, unit in ((1.0, 1, "s"), (1e-3, 1e3, "ms")):
        if magnitude >= limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us" if seconds else "0"


def seconds_scale(largest_s: float) -> tuple[float, str]:
    """What an axis up to ``largest_s`` seconds multiplies them by, and its unit."""
    if largest_s >= 1:
        return 1.0, "s"
    return (1e3, "ms") if largest_s >= 1e-3 else (1e6, "us")


def percent_text(share: float) -> str:
    """A share as a percentage, one digit below ten: 0.4%, 31%."""
    percent = share * 100
    return f"{percent:.1f}%" if abs(percent) < 10 else f"{percent:.0f}%"


def signed_count_text(number: int) -> str:
    return f"{'+' if number > 0 else '-' if number else ''}{count_text(abs(number))}"


def signed_seconds_text(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{seconds_text(abs(seconds))}"


def width_text(half_width: float) -> str:
    """Half of an interval's width; past the figure itself its size says nothing more."""
    return f"{100 * half_width:.2f}%" if half_width <= 1 else ">100%"


def within_text(one: StepTime) -> str:
    """Seconds with their interval."""
    return f"{seconds_text(one.seconds)} ({seconds_text(one.low)} to {seconds_text(one.high)})"


def step_text(step: StepTime) -> str:
    """A step with its interval, MFU and where the seconds come from."""
    if step.coverage:
        microbatches = f" of {step.accumulation} microbatches" if step.accumulation > 1 else ""
        within = (
            f"{microbatches} ({seconds_text(step.low)} to {seconds_text(step.high)} in {step.coverage:.0%} of cases)"
        )
        source = f"{step.source}; stack {step.tier}"
    else:
        spread = (step.high - step.low) / 2 / step.seconds if step.seconds else 0.0
        within, source = f" +-{percent_text(spread)}", f"{step.source}; {step.tier}" if step.tier else step.source
    used = f"MFU {percent_text(step.mfu)}"
    if step.phase == "train":
        return f"step {seconds_text(step.seconds)}{within}, {used} ({source})"
    what = "time per token" if step.phase == "decode" else "time to first token"
    return (
        f"{what} {seconds_text(step.seconds)}{within}, {step.tokens_per_s:,.0f} tokens/s, "
        f"bandwidth utilisation (MBU) {percent_text(step.mbu)}, {used} ({source})"
    )


def change_text(suggestion: PricedSuggestion, equals: str = " ") -> str:
    return ", ".join(f"{key}{equals}{value}" for key, value in suggestion.change.items())


def saved_text(suggestion: PricedSuggestion, step_s: float = 0.0) -> str:
    """``saves 3.93 ms (16%), within the error``; the share of a step where that is given."""
    saved = -suggestion.step_seconds_change
    if not saved:
        return "no change in step time"
    share = f" ({percent_text(abs(saved) / step_s)})" if step_s else ""
    within = ", within the error" if suggestion.within_error and saved > 0 else ""
    return f"{'saves' if saved > 0 else 'adds'} {seconds_text(abs(saved))}{share}{within}"


def suggestion_text(suggestion: PricedSuggestion, step_s: float) -> str:
    """A change with what it does to the step and the parameters: ``vocab_size 50304: saves 3.93 ms (16%)``."""
    gain = saved_text(suggestion, step_s)
    if suggestion.parameters_change:
        gain += f", {signed_count_text(suggestion.parameters_change)} parameters"
    return f"{change_text(suggestion)}: {gain}" + (f" ({suggestion.note})" if suggestion.note else "")


def cost_text(finding: PricedFinding, step_s: float) -> str:
    """``costs 4.21 ms a step (16%)``; "" for a finding without a price."""
    if finding.step_seconds <= 0 or not step_s:
        return ""
    return f"costs {seconds_text(finding.step_seconds)} a step ({percent_text(finding.step_seconds / step_s)})"
