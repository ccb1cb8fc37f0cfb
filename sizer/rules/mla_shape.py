"""Multi-head latent attention has the ranks and head dimensions that its kernels are built for.

Decoding attends to the latents themselves: queries and keys of kv_lora_rank + rope, values of kv_lora_rank. The kernels
(FlashMLA, FlashInfer's, TensorRT-LLM's) are built for 512 + 64 = 576 and 512, DeepSeek's; TensorRT-LLM's generated ones
for 256 + 64 as well. Another model is served by a slower, generic kernel or by none. Training and prompts run heads of
nope + rope and values, (192, 128) for DeepSeek, which SZ114 judges. Ranks off 16 bytes shift what lies behind them in a
flat buffer of parameters off the alignment that grouped products ask for. A rank with fewer than 64 heads computes
tiles of 64 rows all the same, and tensor parallelism copies the whole latent cache to every rank.

Bad: kv_lora_rank 384 and rope 32: no decode kernel. kv_lora_rank 68: grouped products fail under ZeRO's flat buffers.
Good: kv_lora_rank 512, rope 64, as DeepSeek-V2, V3, Kimi K2.

Suggestion: none, since a rank is the model's affair; DeepSeek's dimensions are named.
"""

from __future__ import annotations

from collections.abc import Iterator

from shapes.model import MlaShape
from sizer.rules.arithmetic import vector
from sizer.rules.base import Answer, Context, Finding, NotApplicable

CODE = "SZ126"
SLUG = "mla-shape"
SOURCE = (
    "FlashMLA (head_dim 576, values 512); FlashInfer, mla/_core.py (supported_mla_head_dimensions); DeepSpeed issue "
    "8276 (kv_lora_rank 68)."
)

#: (kv_lora_rank, rope) that public decode kernels are built for.
DECODE = ((512, 64), (256, 64))
#: Query heads that a decode kernel computes at once.
HEAD_TILE = 64


def check(context: Context) -> Answer:
    attention = context.model.attention if context.model is not None else None
    if not isinstance(attention, MlaShape):
        return NotApplicable("no multi-head latent attention")
    return list(_findings(context, attention))


def _findings(context: Context, mla: MlaShape) -> Iterator[Finding]:
    rank, rope, t = mla.kv_lora_rank, mla.qk_rope_head_dim, context.workload.t
    if (rank, rope) not in DECODE:
        built = " or ".join(f"{one} + {other}" for one, other in DECODE)
        message = f"kv_lora_rank {rank} with rope {rope}: MLA's decode kernels are built for {built}, others run slowly"
        yield Finding("kv_lora_rank", rank, message, violated=True)
    step = vector(context)
    for name, value in (("q_lora_rank", mla.q_lora_rank or step), ("kv_lora_rank", rank)):
        if value % step:
            message = f"{name} {value} is no multiple of {step}: what lies behind it in a flat buffer is off 16 bytes"
            yield Finding(name, value, message, violated=True)
    if context.workload.decode and t > 1 and mla.heads // t < HEAD_TILE:
        message = (
            f"{mla.heads // t} query heads a rank in tiles of {HEAD_TILE}, and the whole latent cache on each of {t} "
            "ranks: data-parallel attention computes whole tiles and holds each request's cache once"
        )
        yield Finding("t", t, message)
