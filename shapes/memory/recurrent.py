"""What a recurrent layer puts on autograd's tape, where its fused kernels run (mamba-ssm's and fla's; Megatron's too).

Mamba-2 (``MambaSplitConv1dScanCombinedFn`` in mamba_ssm/ops/triton/ssd_combined.py) keeps the projection's output and
the scan's, and runs the convolution and the chunks' states again backward. A delta net's kernels (in
fla/ops/gated_delta_rule/chunk.py) keep the convolution's output and each chunk's triangular matrix.
"""

from __future__ import annotations

from collections.abc import Callable

from shapes.memory.tape import Tape, Tensor
from shapes.model import Linear, RecurrentShape

#: States and scores inside the scan are fp32.
_WIDE = 4


def recurrent(
    tape: Tape,
    mixer: RecurrentShape,
    projections: tuple[Linear, ...],
    project: Callable[[Linear, Tensor], Tensor],
    x: Tensor,
    rows: int,
    element: int,
    t: int,
) -> Tensor:
    """The tape's ops of one layer over ``rows`` tokens of ``element`` bytes; ``project`` runs a linear layer."""
    heads, groups = mixer.on_shard(t)
    inner = rows * heads * mixer.head_dim * element
    chunks = -(-rows // mixer.chunk)
    states = chunks * heads * mixer.head_dim * mixer.state * _WIDE
    *inward, outward = projections
    projected = [project(linear, x) for linear in inward]
    channels = rows * mixer.conv_channels(t) * element
    z = tape.view(projected[0], inner, copies_gradient=True)
    mixed = tape.view(projected[0], channels, copies_gradient=True)
    gates = tape.view(projected[-1], rows * mixer.gates * heads * element, copies_gradient=True)
    convolved = tape.op("convolution", (mixed,), channels, (mixed,))
    if mixer.kind == "mamba2":
        scores = chunks * groups * mixer.chunk**2 * _WIDE
        work = convolved.bytes + states + scores
        out = tape.op("scan", (convolved, gates), inner, (mixed, gates), saves_output=True, work=work)
    else:
        triangles = rows * heads * mixer.chunk * element
        out = tape.op(
            "scan", (convolved, gates), inner, (convolved, gates), saves_output=True, saves_bytes=triangles, work=states
        )
    return project(outward, tape.op("gated norm", (out, z), inner, (out, z)))
