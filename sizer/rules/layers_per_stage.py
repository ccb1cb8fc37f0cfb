"""The layers divide evenly over the pipeline's stages.

Where they do not, the fullest stage holds one layer more and every other stage waits for it.

Bad: 30 layers at p 4: stages of 8, 8, 7, 7.
Good: 32 layers at p 4.

Suggestion: the neighbouring number of layers, or a p that divides them.
"""

from __future__ import annotations

from sizer.rules.arithmetic import neighbours
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
    smaller = next(degree for degree in range(p - 1, 0, -1) if layers % degree == 0)
    suggestions = [Suggestion({"layers": value}) for value in neighbours(layers, p)]
    suggestions.append(Suggestion({"p": smaller}))
    if p > layers:
        message = f"{layers} layers over p {p}: a stage without a layer cannot run"
        return [Finding("layers", layers, message, tuple(suggestions), error=True)]
    message = f"{layers} layers over p {p}: the fullest stage holds {-(-layers // p)}, the others wait for it"
    return [Finding("layers", layers, message, tuple(suggestions))]
