"""One device's memory: components at the fullest moment, the other moments, what fits, and what each saving buys."""

from collections.abc import Iterator

from shapes.memory import Memory
from sizer.answers.memory_breakdown import MemoryBreakdown

from . import GIB, Document, Section, Table, Text, columns, lines, notes, seconds_text, split_text, zero_text


def document(answer: MemoryBreakdown) -> Document:
    memory = answer.memory
    now = f" (the step is now {seconds_text(answer.times[0])})" if answer.times else ""
    head, *rest = _verdict(answer)
    parts = (
        Text(head, "head"),
        *lines(_head(answer)),
        *components(memory, f"{memory.stage} pipeline stage" if answer.workload.p > 1 else ""),
        Table(columns("memory explained"), answer.explained or (), "the snapshot at its fullest moment"),
        *lines(rest),
        Table(SAVINGS, answer.savings, f"what each saving buys by itself{now}"),
        *notes(answer.notes),
    )
    return Document(
        f"sizer memory: {answer.path}",
        (Section(f"{answer.path} on {answer.device}", parts),),
        answer,
        records=lambda: [dict(zip(("component", "bytes", "formula"), row, strict=True)) for row in _rows(memory)],
    )


def _head(answer: MemoryBreakdown) -> Iterator[str]:
    memory, w = answer.memory, answer.workload
    length = f"s {w.s}" + f", context {w.context}" * w.decode
    yield f"{answer.path}: {answer.model_type}, {answer.parameters:,} parameters ({memory.parameters:,} on one device)"
    yield (
        f"{w.phase}: b {w.b}, {length}, {w.dtype}, {w.attention} attention, {split_text(w)}"
        + f"checkpointing {w.checkpointing}, ZeRO {zero_text(w)}; {memory.precision}, {memory.optimizer}, " * w.train
        + f"{memory.implementation} kernels"
    )
    if w.finetune:
        rank = f", rank {w.lora_rank}" * ("lora" in w.finetune)
        yield f"fine-tuning: {w.finetune}{rank}; {answer.trained:,} parameters train"


def _verdict(answer: MemoryBreakdown) -> Iterator[str]:
    left = (answer.device_bytes - answer.memory.total_bytes) / GIB
    fits = f"fits with {left:.2f} GiB to spare" if answer.ok else f"does not fit, by {-left:.2f} GiB"
    if not answer.ok and answer.memory.may_fit:
        fits = f"may fit: it takes {answer.memory.total_bytes / GIB:.2f} GiB, and fragments and errors have taken 8%"
    yield f"{fits}: {answer.device} has {answer.device_bytes / GIB:.2f} GiB"
    if engine := answer.engine:
        context, requests = (
            "any" if size is None else f"{size:,}" for size in (engine.longest_context, engine.most_requests)
        )
        where = f"of an engine that takes {engine.memory_utilization:g} of it"
        yield f"longest context {where}: {context} tokens a request at b {answer.workload.b}"
        yield (
            f"most requests {where}: {requests} at a context of {answer.workload.context:,}; b {answer.workload.b} "
            f"takes {engine.total_bytes / GIB:.2f} GiB of {engine.memory_utilization * answer.device_bytes / GIB:.2f}"
        )
    yield f"largest microbatch: {answer.largest_microbatch or 'none, not even one sequence fits'}"
    yield f"smallest tensor-parallel degree that fits: {answer.smallest_tp or 'none up to 64'}"
    yield f"smallest pipeline-parallel degree that fits: {answer.smallest_pp or 'none'}"


#: Columns of the savings.
SAVINGS = columns(
    "memory savings",
    fits=lambda one: "yes" if one.fits else "no",
    step=lambda one: "-" if one.step_seconds is None else seconds_text(one.step_seconds),
)


def _rows(memory: Memory) -> Iterator[tuple[str, int, str]]:
    for part in memory.parts:
        there = f"; {part.hosted / GIB:.2f} GiB on the host" if part.hosted else ""
        yield part.name, part.bytes, part.formula + there


def components(memory: Memory, stage: str = "") -> list[Table]:
    """Bytes by component at the fullest moment, and of each moment in all."""
    rows = [*_rows(memory), ("total", memory.total_bytes, ", ".join(filter(None, (memory.moment, stage))))]
    if memory.reserved_bytes:
        # The bytes that the device holds (out of memory, if it has fewer), their error, and what makes them fewer.
        how = "context and what torch's allocator reserves, simulated (runs: 0-6% more; expandable_segments:True: less)"
        rows.append(("nvidia-smi", memory.reserved_bytes + memory.components["framework"], how))
    moments = Table(columns("memory moments"), memory.moments, "by moment")
    return [Table(columns("memory"), rows, "memory by component"), *[moments] * (len(memory.moments) > 1)]
