"""A house rule: importing this module declares it."""

from sizer.rules.base import Answer, Context, Finding, rule, suggest


@rule("EX001", source="The house's own practice.", needs="model")
def even_layers(context: Context) -> Answer:
    """The number of layers is even.

    Two pipeline stages then have as many layers each.

    Bad: 13 layers.
    Good: 12 layers.

    Suggestion: one layer more.
    """
    layers = context.dimensions["layers"]
    if layers % 2 == 0:
        return ()
    return [Finding("layers", f"{layers} layers do not halve", suggest("layers", [layers + 1]), violated=True)]
