"""What a search starts from: a model and its workload, of a configuration, plain dimensions or a parameter budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from shapes.errors import InputError, positive_int
from shapes.frozen import frozen
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.parameters import block_tensors, parameter_count
from shapes.model.resize import resize
from shapes.step.stack import SoftwareStack
from shapes.workload import Workload
from sizer.subject import read_subject

#: Tokens of a search that names no batch: 4 sequences of 4096.
DEFAULT_B, DEFAULT_S = 4, 4096

#: What a search of the MLP's width times: the MLPs of a whole model, one MLP, or the ML Engineering book's one product.
Scope = Literal["model", "mlp", "product"]

#: Dimension -> the command line's option of it.
OPTIONS = {
    "hidden": "--h",
    "d_ff": "--d-ff",
    "heads": "--heads",
    "kv_heads": "--kv-heads",
    "layers": "--layers",
    "vocab": "--vocab",
}


@frozen
class Baseline:
    """``parameters`` is the budget of a model search (None: the model's own).

    ``stack``: what runs it, the file's format's where none was named, on which `check` will price what is proposed
    (None: there is no file, and kernels alone are priced). ``given``: fields of the workload that somebody named.
    """

    model: ModelShape
    workload: Workload
    parameters: float | None = None
    scope: Scope = "mlp"
    stack: SoftwareStack | None = None
    given: frozenset[str] = frozenset()

    @classmethod
    def from_config(
        cls,
        config: object,
        *,
        dimensions: Mapping[str, int | None] | None = None,
        parameters: float | None = None,
        scope: Scope = "model",
        stack: str | SoftwareStack | None = None,
        **workload: Any,
    ) -> Baseline:
        """``config`` as for ``sizer.check``, with dimensions changed. InputError for one that is not understood."""
        subject = read_subject(config, stack=stack, **workload)
        # A search is of a model to train: a quantised release's formats are not its.
        model = resize(subject.whole().in_formats(lambda _: None), **_given(dimensions))
        return cls(model, subject.workload, parameters, scope, subject.stack, subject.given)

    @classmethod
    def from_dimensions(
        cls,
        h: int,
        *,
        dimensions: Mapping[str, int | None] | None = None,
        parameters: float | None = None,
        scope: Scope = "mlp",
        **workload: Any,
    ) -> Baseline:
        """A plain gated decoder of hidden size ``h``: d_ff 8h/3, heads of 128, 32 layers where nothing is said."""
        given = _given({"hidden": h, **(dimensions or {})})
        count = given.get("heads") or max(1, h // 128)
        if h % count and "heads" in given:
            raise InputError(f"expected a divisor of h = {h}", key="--heads", value=count)
        dim = max(1, h // count)
        attention = AttentionShape(count, given.get("kv_heads") or count, dim, rotary_dim=dim)
        block = Block(attention, MlpShape(given.get("d_ff") or max(1, 8 * h // 3)), count=given.get("layers") or 32)
        model = ModelShape("llama", (Stack("decoder", h, (block,)),), vocab=given.get("vocab") or 50304)
        return cls(model, _workload(workload, scope), parameters, scope)

    @classmethod
    def from_budget(
        cls,
        parameters: float,
        *,
        dimensions: Mapping[str, int | None] | None = None,
        scope: Scope = "mlp",
        **workload: Any,
    ) -> Baseline:
        """A plain gated decoder of about so many parameters, with some dimensions changed."""
        given = _given(dimensions)
        vocab = given.pop("vocab", None)
        model = resize(plain_model(parameters, **({"vocab": vocab} if vocab else {})), **given)
        return cls(model, _workload(workload, scope), parameters, scope)


def sequences(tokens: int, workload: Mapping[str, Any]) -> dict[str, int]:
    """b and s that make ``tokens``: of the s asked for, else of 4096, or one short sequence."""
    if "b" in workload:
        raise InputError("expected -b or --tokens, not both", key="--tokens", value=tokens)
    s = int(workload.get("s") or min(DEFAULT_S, positive_int(tokens, "--tokens")))
    if tokens % s:
        raise InputError(f"expected a multiple of the sequence {s}", key="--tokens", value=tokens)
    return {"b": tokens // s, "s": s}


def _given(dimensions: Mapping[str, int | None] | None) -> dict[str, int]:
    return {key: positive_int(value, OPTIONS[key]) for key, value in (dimensions or {}).items() if value is not None}


def _workload(asked: Mapping[str, Any], scope: Scope) -> Workload:
    defaults: dict[str, Any] = {"b": DEFAULT_B, "s": DEFAULT_S, **({"dtype": "fp16"} if scope == "product" else {})}
    return Workload(**{**defaults, **asked})


def plain_model(parameters: float, *, vocab: int = 50304) -> ModelShape:
    """A gated decoder of about ``parameters``.

    An even number of heads of 128, d_ff 8h/3 rounded up to 64, untied, and h/L between 48 and 128 as published models
    have it.
    """
    if not 1e7 <= parameters <= 1e14:
        raise InputError("expected between 1e7 and 1e14 parameters", key="--params", value=parameters)
    best: tuple[float, int, int] | None = None
    for heads in range(2, 400, 2):  # an odd number splits over no t
        hidden = heads * 128
        layer = parameter_count(block_tensors(_plain_block(heads), hidden))
        layers = max(1, round((parameters - (2 * vocab + 1) * hidden) / layer))
        if 48 <= hidden / layers <= 128:
            miss = abs(layer * layers + (2 * vocab + 1) * hidden - parameters)
            best = min(best or (miss, heads, layers), (miss, heads, layers))
    if best is None:
        raise InputError("no plain model has so many parameters; give --config", key="--params", value=parameters)
    _, heads, layers = best
    return ModelShape(
        "llama", (Stack("decoder", heads * 128, (replace(_plain_block(heads), count=layers),)),), vocab=vocab
    )


def _plain_block(heads: int) -> Block:
    width = -(-8 * heads * 128 // 3 // 64) * 64
    return Block(AttentionShape(heads, heads, 128, rotary_dim=128), MlpShape(width))
