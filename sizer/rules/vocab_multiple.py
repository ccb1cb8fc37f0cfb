"""The vocabulary of one shard is a multiple of the device's alignment.

The LM-head is one of the largest products of a step, and the vocabulary is its n forward, its k in dgrad and its m in
wgrad. Off the tensor cores' requirement (128 bytes on A100 and later: 64 elements of bf16) the rows of the logits and
of their gradient start at addresses that wide vector loads cannot use. Off 16 bytes it is a warning whatever the price;
a multiple of 32 (GPT-J's 50400) costs what it is predicted to.

Bad: vocab_size 50257 (GPT-2): odd.
Good: vocab_size 50304 = 786 x 64.

Suggestion: pad the embedding and the head to the next multiple of the alignment times t; the tokenizer does not change.
"""

from __future__ import annotations

from sizer.rules.arithmetic import alignment, next_multiple, off_vector, shard_text
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ101"
SLUG = "vocab-multiple"
SOURCE = "ML Engineering book, shape recommendation 1; arXiv 2401.14489, section VI; Megatron-LM pads to 128 t."


def check(context: Context) -> Answer:
    vocab = context.dimensions.get("vocab")
    if vocab is None or (context.model is not None and not context.model.head):
        return NotApplicable("no LM-head")
    step, t = alignment(context), context.workload.t
    if vocab % (step * t) == 0:
        return ()
    message = f"the vocabulary: {shard_text('v', vocab, t, step)}; the head's products lose aligned rows"
    padded = Suggestion({"vocab": next_multiple(vocab, step * t)})
    return [Finding("vocab", vocab, message, (padded,), violated=off_vector(context, vocab, t))]
