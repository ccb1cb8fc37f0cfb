"""Seconds of a recurrence's scan: chunks one after the other, heads side by side, and the bytes that move meanwhile.

    seconds = launch + rows x row + ((chunks x step + start) x waves)^q (+) (bytes / bandwidth)^q, each to the root of q

A thread block (or ``share`` of one SM) carries one head of one sequence through its chunks, so that a wave lasts as
long as its sequence; ``whole`` is the share of waves that run to their end. Kernels that write the states of every
chunk (fla's, which training runs) move those bytes too, and solve each chunk's triangle row by row, all at once, before
the walk; what one leaves in the cache the next one finds. Constants were fitted on published tables by device and
kernel (reports/fit/scans.py); a chunk's seconds are in proportion to its products' FLOPs.
"""

from typing import Any

import numpy as np

from shapes.frozen import Numbers
from shapes.operators.types import Cast, Convolution, Scan, StateUpdate

from .constants import Parts, read_seconds

#: FLOPs of the chunk that ``step_s`` was fitted on: 64 tokens, keys and values of 128, of the delta rule.
FITTED_CHUNK = 11_534_336
#: Recurrences that were measured; the others take the delta rule's constants, and a backward two and a half forwards.
MEASURED, BACKWARD = ("gated_delta", "kda"), 2.5


def form_of(scan: Scan) -> tuple[str, bool]:
    """The table of the kernel that serves or trains it, and whether just this was measured."""
    known = scan.form in MEASURED
    name = f"{'training' if scan.training else 'serving'}_{scan.form if known else MEASURED[0]}"
    return name, known and scan.phase == "forward"


def parts_of(scan: Scan, c: Numbers) -> Parts:
    """Seconds of one run: the launch, moving beyond the chunks, and the chunks; sizes may be arrays."""
    passes = 1 if scan.phase == "forward" else 2
    times = BACKWARD if passes > 1 else 1.0
    heads = scan.batch * scan.heads
    waves = np.maximum(1.0, heads / (c["share"] * c["units"]))
    waves += c["whole"] * (np.ceil(waves) - waves)
    walked = (scan.flops / heads / passes * c["step_s"] / FITTED_CHUNK + c["start_s"]) * waves
    # The state is read and written once in fp32, or, by what trains, for every chunk in 16 bits.
    states = 4 * heads * scan.head_dim * scan.state * (scan.chunks if scan.training else 2)
    moved = read_seconds(scan.bytes / passes + states, c)
    solved = times * c["row_s"] * np.minimum(scan.tokens, scan.chunk)
    return c["launch_s"] + solved, times * beyond(walked, moved, c["q"]), times * walked


def beyond(walked: Any, moved: Any, q: float) -> Any:
    """Seconds of moving beyond those that the walk through the chunks hides."""
    return (walked**q + moved**q) ** (1 / q) - walked


def own_form(one: Convolution | Cast) -> tuple[str, bool]:
    """The table of its type, and whether it holds just this: not casts that read twice, or to fewer bits than 8."""
    return type(one).__name__.lower(), one.bytes_read < 3 * one.bytes_written


def convolution_parts(one: Convolution, c: Numbers) -> Parts:
    """Seconds of the launch, of moving beyond the thread blocks, and of these: a row's tokens by 1024.

    128 threads take 8 tokens each (causal-conv1d's kernel, which TensorRT-LLM has too); reports/fit/convolutions.py.
    """
    walked = (np.ceil(one.tokens / 1024) * c["step_s"] + c["start_s"]) * one.rows / c["units"]
    return c["launch_s"], beyond(walked, read_seconds(one.bytes, c), c["q"]), walked


def state_form(one: StateUpdate) -> tuple[str, bool]:
    """The table of decode steps, and whether one of this recurrence was measured."""
    known = one.what in MEASURED
    return f"state_{one.what if known else MEASURED[0]}", known


def state_parts(one: StateUpdate | Cast, c: Numbers) -> tuple[Any, Any]:
    """Seconds of the launches and of moving the bytes (reports/fit/states.py, casts.py), which may be columns."""
    return c["launch_s"], read_seconds(one.bytes, c)
