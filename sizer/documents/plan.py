"""A plan: the recommended split, the fastest ones, and why others are not listed."""

from collections.abc import Callable

from shapes.frozen import Values, plain
from shapes.step.serving import load_serving_stack
from sizer.answers.plan import METRICS, START, Candidate, Plan, Progress, ServingPlan

from . import (
    GIB,
    Document,
    Section,
    Table,
    Text,
    columns,
    count_text,
    lines,
    notes,
    percent_text,
    plural,
    range_text,
    seconds_text,
    split_text,
    zero_text,
)

#: Reasons why others are not listed, in a text.
SHOWN = 12


def document(answer: Plan) -> Document:
    best, w = answer.recommended, answer.candidates[0].workload
    kernels = " or ".join(sorted({one.workload.saved_by for one in answer.candidates}, reverse=True))
    tokens, alike = answer.global_batch * w.s, f"{answer.indistinguishable} within {answer.ratio_error:.0%}"
    parts = (
        Text(
            f"recommended {layout_text(best)}, step {seconds_text(best.seconds)} "
            f"({range_text(best.low_s, best.high_s)}), memory {best.memory_bytes / GIB:.1f} GiB, "
            f"MFU {'-' if best.mfu is None else percent_text(best.mfu)}",
            "head",
        ),
        Text(
            f"{answer.gpus} x {answer.device}, global batch {answer.global_batch} x {w.s} tokens, {w.dtype}, "
            f"{w.attention} attention, {kernels} kernels, stack {answer.stack}"
        ),
        Text(
            f"splits that fit: {answer.fitting}, may fit: {len(answer.candidates) - answer.fitting} (over 92% of "
            f"memory; last); predicted, not measured; layouts within {answer.ratio_error:.0%} are indistinguishable"
        ),
        *lines(
            [f"a step of {tokens / 1e9:,.0f} G tokens: --global-batch counts sequences, is that meant?"]
            * (tokens > 2**30)
        ),
        Table(SPLIT, [best], f"recommended, the simplest of the {alike} of the fastest"),
        *lines([_training(answer)]),
        Table(SPLIT, answer.candidates, "the fastest", answer.top),
        Table(columns("not listed"), answer.dropped, "not listed", most=SHOWN),
        Text("assumed:"),
        *lines(answer.assumptions, indent=2),
        *notes(answer.notes),
    )
    return Document(
        "sizer plan",
        (Section(f"{answer.gpus} x {answer.device}", parts),),
        answer,
        records=lambda: map(_record, answer.candidates),
    )


def _training(answer: Plan) -> str:
    training = answer.training
    if not training:
        return ""
    cost = "" if training.cost is None else f", costing {training.cost:,.0f} USD at {answer.price:g} a device hour"
    return (
        f"{count_text(int(training.tokens))} tokens take {training.days:,.1f} days, {training.device_hours:,.0f} "
        f"device hours and {training.kwh:,.0f} kWh (the devices alone, at their rated power){cost}"
    )


def _record(one: Candidate) -> Values:
    """A candidate's figures with the degrees of its split."""
    values: Values = plain(one)
    split: Values = values.pop("workload")
    return values | split


def telling(tell: Callable[..., None]) -> Progress:
    """The progress function of a plan: ``tell`` (`sizer.process.working`) shows the best so far."""
    return lambda done, of, best: tell(done, of, f"{layout_text(best)}, {seconds_text(best.seconds)}")


def layout_text(candidate: Candidate) -> str:
    """A split in a line: what is not 1, ZeRO, the microbatch and checkpointing."""
    w = candidate.workload
    checkpointing = f", {w.checkpointing} checkpointing" * (w.checkpointing != "none")
    return f"{split_text(w)}ZeRO {zero_text(w)}, b {w.b}{checkpointing}"


SPLIT = columns(
    "plan",
    zero=lambda one: zero_text(one.workload),
    communication=lambda one: one.communication_s / one.seconds,
    bubble=lambda one: one.bubble_s / one.seconds,
)


def serving(answer: ServingPlan) -> Document:
    best, asked = answer.ways[0], answer.serving
    weights = f", weights in {', '.join(answer.weights)}" * bool(answer.weights)
    apart = f" ({best.prefill} for prompts alone)" * bool(best.prefill)
    drafts = f", {asked.drafted} tokens drafted, each accepted with {asked.acceptance:.0%}" * bool(asked.drafted)
    left = " that weights leave" * load_serving_stack(asked.engine).of_free
    bounds = ", ".join(f"{METRICS[name]} x {low:g} to {high:g}" for name, (low, high) in answer.intervals.items())
    parts = (
        Text(
            f"tp {best.t}, pp {best.p}, ep {best.e}, dp {best.d}{apart}: {best.tokens_per_s:,.0f} tokens/s with "
            f"{plural(best.requests, 'request')} in flight",
            "head",
        ),
        Text(
            f"{answer.gpus} x {answer.device}, {asked.engine} ({answer.tier}), prompts of {asked.prompt_tokens:,} "
            f"and outputs of {asked.output_tokens:,} tokens{drafts}, {answer.workload.dtype}{weights}, KV cache "
            f"{answer.workload.cache_dtype}, {asked.memory_utilization:.0%} of the memory{left}"
        ),
        *lines([_started(answer)]),
        Table(columns("plan --phase decode"), answer.ways),
        Text(f"measured over predicted in {answer.coverage:.0%} of published cases: {bounds}"),
        Table(columns("not listed"), answer.dropped, "not listed", most=SHOWN),
        *notes(answer.notes),
    )
    return Document("sizer plan --phase decode", (Section(answer.device, parts),), answer)


def _started(answer: ServingPlan) -> str:
    """How the best way's servers are started, where all run alike and the engine's options are known."""
    best = answer.ways[0]
    if best.prefill:
        return ""
    servers = best.d // best.e
    each = -(-min(best.requests, best.most_requests) // servers)
    said: str = START[answer.serving.engine][best.e > 1]
    return said.format(best, answer.serving, servers, each, -(-each // best.e), best.t * best.e)
