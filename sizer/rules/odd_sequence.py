"""A fixed-length encoder's sequence sits on the tile.

A vision transformer's sequence is its patches and, often, one class token: 196 + 1 = 197, 256 + 1 = 257. Every product
of the tower has b x 197 rows, every attention 197 x 197, in tiles of 64 or 128.

Bad: 224 x 224 pixels in patches of 16 with a class token: 197.
Good: 256 patches without a class token, or 257 padded with register tokens to 264 or 320.

Suggestion: add register tokens up to the next multiple of 8 (aligned rows) or 64 (whole tiles), or pool instead of a
class token.
"""

from __future__ import annotations

from sizer.rules.arithmetic import largest_power_of_two, next_multiple
from sizer.rules.base import Answer, Context, Finding, NotApplicable

CODE = "SZ122"
SLUG = "odd-sequence"
SOURCE = "NVIDIA Matrix Multiplication Background User's Guide; vision-transformer practice (register tokens)."

#: Rows in a row of the smallest common attention tile.
TILE = 64


def check(context: Context) -> Answer:
    fixed = [stack for stack in context.model.stacks if stack.length] if context.model is not None else []
    if not fixed:
        return NotApplicable("no stack of fixed length")
    return [_finding(stack.name, stack.length or 1) for stack in fixed if (stack.length or 0) % 8]


def _finding(name: str, length: int) -> Finding:
    message = (
        f"the {name} always has {length} tokens, divisible by {largest_power_of_two(length)}: registers up to "
        f"{next_multiple(length, 8)} align its rows, up to {next_multiple(length, TILE)} fill its tiles"
    )
    return Finding("s", length, message)
