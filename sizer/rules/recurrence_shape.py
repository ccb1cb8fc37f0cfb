"""A recurrence's heads, groups and head dimensions are ones that its kernels take and that the split divides.

Gated delta nets (Qwen3-Next, Kimi Linear) and Mamba-2 layers (Nemotron-H, Granite 4) work on chunks of a sequence:
products within a chunk, a state of key x value dimension between chunks. Value heads share key heads, and Mamba's heads
groups, in whole numbers; tensor parallelism cuts both. Flash-linear-attention's kernel for the state takes keys of up
to 256 and works in pieces of 64. A last chunk that is not full is computed whole.

Bad: 32 value heads over 12 key heads; key heads of 320; 8 groups at t 16; s 257 in chunks of 256.
Good: Qwen3-Next's 32 value heads over 16 key heads of 128 at t 8; s 4096 in chunks of 256.

Suggestion: a t that divides heads and groups, a sequence of whole chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from shapes.operators.split import largest_divisor
from sizer.rules.arithmetic import neighbours, next_multiple
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ129"
SLUG = "recurrence-shape"
SOURCE = (
    "Megatron-LM, core/ssm/mamba_mixer.py:250-274 and core/ssm/gated_delta_net/common.py:207; flash-linear-attention, "
    "ops/common/chunk_delta_h.py (K <= 256)."
)

#: Keys that the state's kernel takes, and the pieces that it works in.
WIDEST_KEY, PIECE = 256, 64
#: A smaller share of padding in the last chunk is not worth a line.
NOTABLE = 0.05
#: (heads, what they share in whole numbers).
_SHARED = (("linear_value_heads", "linear_key_heads"), ("state_heads", "state_groups"))


def check(context: Context) -> Answer:
    dims = context.dimensions
    if not any(heads in dims for heads, _ in _SHARED):
        return NotApplicable("no recurrence known")
    return list(_findings(context))


def _findings(context: Context) -> Iterator[Finding]:
    dims, workload = context.dimensions, context.workload
    for heads, groups in _SHARED:
        held = [dims[name] for name in (heads, groups) if name in dims]
        if len(held) == 2 and held[0] % held[1]:
            words = f"{held[0]} {_words(heads)} over {held[1]} {_words(groups)}: no whole number shares one"
            yield Finding(heads, held[0], words, error=True)
        # Engines copy Mamba's groups where they are fewer than the ranks; in training they are cut.
        cut = [name for name in (heads, groups) if name in dims and (workload.train or name != "state_groups")]
        common = gcd(*(dims[name] for name in cut))
        if workload.t > 1 and common % workload.t:
            names = " and ".join(f"{dims[name]} {_words(name)}" for name in cut)
            nearest = Suggestion({"t": largest_divisor(common, workload.t)})
            message = f"{names} do not divide over t {workload.t}: tensor parallelism cannot shard the recurrence"
            yield Finding("t", workload.t, message, (nearest,), error=True)
    key = dims.get("linear_key_dim")
    if key is not None and (key > WIDEST_KEY or key % PIECE):
        runs = f"none above {WIDEST_KEY}" if key > WIDEST_KEY else f"it as {next_multiple(key, PIECE)}"
        message = f"key heads of {key}: the state's kernel works in pieces of {PIECE} and runs {runs}"
        yield Finding("linear_key_dim", key, message, violated=True)
    chunk = dims.get("chunk")
    if chunk is not None and workload.train and workload.s % chunk:
        share = 1 - workload.s / next_multiple(workload.s, chunk)
        if share >= NOTABLE:
            message = f"the last chunk of {chunk} holds {workload.s % chunk} tokens: {share:.0%} of the scan is padding"
            yield Finding(
                "s", workload.s, message, tuple(Suggestion({"s": one}) for one in neighbours(workload.s, chunk))
            )


def _words(name: str) -> str:
    return name.removeprefix("linear_").removeprefix("state_").replace("_", " ")
