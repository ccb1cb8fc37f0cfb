"""The layers divide evenly over the pipeline's stages.

Where they do not, the fullest stage holds one layer more and every other stage waits for it.

Bad: 30 layers at p 4: stages of 8, 8, 7, 7.
Good: 32 layers at p 4.

Suggestion: a p that divides them and fits in memory, or the next number of layers that p divides: none fewer, since
depth is worth more than a stage's balance.
"""

from __future__ import annotations

from dataclasses import replace

from shapes.memory import memory
from sizer.rules.arithmetic import next_multiple
from sizer.rules.base import Answer, Context, Finding, NotApplicable, Suggestion

CODE = "SZ110"
SLUG = "layers-per-stage"
SOURCE = "arXiv 2401.14489, section VI."


def check(context: Context) -> Answer:
    p = context.workload.p
    if p == 1:
        return NotApplicable("no pipeline parallelism")
    if context.model is None or len(context.model.stacks) > 1:
        return NotApplicable("no single stack of layers")
    layers = context.model.layers
    if layers % p == 0:
        return ()
    suggestions = [Suggestion({"p": degree}) for degree in _stages(context, layers)]
    suggestions.append(Suggestion({"layers": next_multiple(layers, p)}))
    if p > layers:
        message = f"{layers} layers over p {p}: a stage without a layer cannot run"
        return [Finding("layers", layers, message, tuple(suggestions), error=True)]
    message = f"{layers} layers over p {p}: the fullest stage holds {-(-layers // p)}, the others wait for it"
    return [Finding("layers", layers, message, tuple(suggestions), violated=True)]


def _stages(context: Context, layers: int) -> list[int]:
    """The nearest p that divides the layers, below and above, less smaller ones whose step does not fit."""
    model, workload, device = context.model, context.workload, context.device
    assert model is not None
    p = min(workload.p, layers)
    below = next((degree for degree in range(p if p < workload.p else p - 1, 0, -1) if layers % degree == 0), 1)
    above = next((degree for degree in range(p + 1, layers + 1) if layers % degree == 0 and degree <= 2 * p), None)
    found = [below, *((above,) if above is not None else ())]
    if workload.p > layers or not context.divides:
        return found

    def fits(degree: int) -> bool:
        changed = replace(workload, p=degree, gpus=None)
        return bool(memory(model, changed, device=device, implementation=context.implementation).fits)

    # Where what was asked for does not fit either, memory is SZ121's to speak of.
    return [degree for degree in found if degree > p or fits(degree) or (2 * degree >= p and not fits(p))]
