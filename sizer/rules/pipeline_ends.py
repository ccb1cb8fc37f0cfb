"""The last pipeline stage's head, and what else is not a layer, is balanced by fewer layers.

A pipeline is as fast as its slowest stage. The output projection (and with it the loss) runs on the last stage beside
its layers, multi-token-prediction modules as well, each as long as a layer and a head: with a large vocabulary over few
layers that is one or two layers' time, for which every other stage waits. The embedding at the front is a lookup.

Bad: a vocabulary of 256,000 over 8 layers of h 2048 at p 4: the last stage's head is ten layers' time.
Good: Llama-3 405B's 126 layers over p 16: eight a stage, seven on the first and the last.

Suggestion: none that a configuration sets; frameworks count the head as a layer or take a layout of stages.
"""

from __future__ import annotations

from shapes.model.stages import layers_of_stages
from sizer.rules.base import Answer, Context, Finding, NotApplicable

CODE = "SZ128"
SLUG = "pipeline-ends"
SOURCE = (
    "Megatron-LM, core/transformer/transformer_config.py:2385 (account_for_loss_in_pipeline_split); Moonlight issue 1 "
    "(27 layers and a head); The Llama 3 Herd of Models, 3.3.2."
)

#: What runs on the last stage after its layers.
ENDS = ("lm_head", "final_norm", "cross_entropy")
#: A smaller share of the stage's time is not worth a layout of its own.
NOTABLE = 0.05


def check(context: Context) -> Answer:
    model, p = context.model, context.workload.p
    if p == 1:
        return NotApplicable("no pipeline parallelism")
    if model is None or len(model.stacks) > 1 or not context.operators or p > model.layers:
        return NotApplicable("no stages of a single stack are priced")
    layers_s = heads_s = 0.0
    for op, cost in zip(context.operators, context.costs, strict=True):
        if op.name.startswith("layers."):
            layers_s += op.count * cost.seconds
        elif op.name in ENDS:
            heads_s += op.count * cost.seconds
    held = layers_of_stages(model.layers, p)
    layer_s = layers_s / max(held)
    predicted = model.head_passes - 1 if context.workload.train else 0
    # Spread over all stages it would take a p-th of the time; the last stage may hold fewer layers already.
    over = heads_s * (p - 1) / p - (max(held) - held[-1]) * layer_s
    stage_s = heads_s + layers_s
    if not layer_s or over < NOTABLE * stage_s:
        return ()
    what = "the head" if not predicted else f"the head, once more for each of {predicted} predicted tokens,"
    message = (
        f"{what} on the last of {p} stages takes {heads_s / layer_s:.1f} layers' time beside {held[-1]} layers: "
        f"the other stages wait {over / stage_s:.0%} of a microbatch. Count it as a layer "
        "(Megatron-LM: --account-for-loss-in-pipeline-split, --decoder-last-pipeline-num-layers)"
    )
    return [Finding("p", p, message, at_most_s=over * context.workload.accumulation)]
