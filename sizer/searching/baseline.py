"""What a search starts from: a model and its workload, of a configuration, plain dimensions or a parameter budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import lcm, log
from operator import itemgetter
from typing import Any, Literal

from shapes.dtypes import next_multiple
from shapes.errors import InputError, positive_int, refuse
from shapes.frozen import Named, frozen
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, Stack
from shapes.model.resize import resize
from shapes.step.stack import SoftwareStack
from shapes.workload import Workload
from sizer.readers.reading import tokenizer_size
from sizer.subject import read_subject

#: Tokens of a search that names no batch: 4 sequences of 4096.
DEFAULT_B, DEFAULT_S = 4, 4096
#: What is measured on a processor where nothing is said: a race needs hundreds of runs, of tens of milliseconds each.
ON_A_CPU = {"b": 1, "s": 1024}

#: What a search of the MLP's width times: the MLPs of a whole model, one MLP, or the ML Engineering book's one product.
Scope = Literal["model", "mlp", "product"]

#: Tokens of Llama 3's tokenizer, and of SmolLM2's up to so many parameters, where none is named.
VOCAB, SMALL_VOCAB, SMALL = 128256, 49152, 5e8
#: Published models up to about here tie embedding and head, and some up to this hidden size have heads of 64.
TIED, MOST_OF_64 = 4e9, 2048
#: Widths of MLPs are multiples of it, as LLaMA's are.
WIDE = 256
#: How far from a budget a model may be that is called one of it.
MISSED = 0.25

#: Sizes as somebody gave them; a vocabulary may be a tokenizer's name.
Dimensions = Mapping[str, int | str | None]
#: Those that have a name of their own, as keywords of ``search`` and as options.
DIMENSIONS = ("d_ff", "heads", "kv_heads", "layers", "vocab")
#: Dimension -> the command line's option of it.
OPTIONS = {"hidden": "--h", **{name: f"--{name.replace('_', '-')}" for name in DIMENSIONS}}


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
        dimensions: Dimensions | None = None,
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
        h: int | None,
        *,
        dimensions: Dimensions | None = None,
        parameters: float | None = None,
        scope: Scope = "mlp",
        step: int = 1,
        shards: int = 1,
        **workload: Any,
    ) -> Baseline:
        """A plain gated decoder of hidden size ``h``, 32 layers where nothing is said, split over ``shards``.

        Without ``h`` it is the `usual_model` of about ``parameters``. Where nothing is said d_ff is the multiple of 256
        and ``step`` nearest to 8h/3, heads are `usual_heads`.
        """
        given, usual = _given({"hidden": h, **(dimensions or {})}), {"dtype": "fp16"} if scope == "product" else {}
        run = Workload(**{"b": DEFAULT_B, "s": DEFAULT_S, **usual, **workload})
        if h is None and parameters is not None:
            vocab = next_multiple(given.pop("vocab", VOCAB if parameters > SMALL else SMALL_VOCAB), step)
            return cls(resize(usual_model(parameters, step, shards, run.p, vocab), **given), run, parameters, scope)
        if h is None:
            raise InputError("expected --h, --params or a configuration to start from", key="--h")
        count = given.get("heads") or usual_heads(h, shards)
        refuse(h % count and "heads" in given, f"expected a divisor of h = {h}", "--heads", count)
        dim = max(1, h // count)
        kv_heads = given.get("kv_heads") or (count if "heads" in given else usual_kv_heads(count, shards))
        wide = lcm(WIDE, step)
        width = given.get("d_ff") or max(1, round(8 * h / 3 / wide)) * wide
        block = Block(AttentionShape(count, kv_heads, dim, rotary_dim=dim), MlpShape(width))
        block = replace(block, count=given.get("layers") or 32)
        model = ModelShape(
            "llama", (Stack("decoder", h, (block,)),), vocab=given.get("vocab") or next_multiple(VOCAB, step)
        )
        return cls(model, run, parameters, scope)


def sequences(tokens: int, workload: Named) -> dict[str, int]:
    """b and s that make ``tokens``: of the s asked for, else of 4096, or one short sequence."""
    refuse("b" in workload, "expected -b or --tokens, not both", "--tokens", tokens)
    s = int(workload.get("s") or min(DEFAULT_S, positive_int(tokens, "--tokens")))
    refuse(tokens % s, f"expected a multiple of the sequence {s}", "--tokens", tokens)
    return {"b": tokens // s, "s": s}


def _given(dimensions: Dimensions | None) -> dict[str, int]:
    found = {}
    for key, value in (dimensions or {}).items():
        if isinstance(value, str) and not value.isdigit():
            found[key] = tokenizer_size(value) or 0
            refuse(not found[key], "expected a size, or the name of a known tokenizer", OPTIONS[key], value)
        elif value is not None:
            found[key] = positive_int(int(value), OPTIONS[key])
    return found


def usual_heads(hidden: int, shards: int) -> int:
    """Heads of 128, else of 64, that ``shards`` divide; where they divide neither, of 128 all the same."""
    return next((hidden // dim for dim in (128, 64) if hidden % (dim * shards) == 0), max(1, hidden // 128))


def usual_kv_heads(heads: int, shards: int) -> int:
    """Key/value heads of grouped queries, as many as ``shards`` split: 8 as published models have, else 4, else all."""
    return next((kv for kv in (lcm(8, shards), lcm(4, shards)) if heads % kv == 0 and kv < heads), heads)


def usual_model(parameters: float, step: int, shards: int, p: int, vocab: int) -> ModelShape:
    """The decoder of about ``parameters`` nearest to published practice that is aligned and splits as asked.

    Heads in multiples of 8 (below 16 of 4) and of ``shards``, of 128 or up to h 2048 of 64, grouped; layers in
    multiples of 4 and of ``p``, about 32 or, where that is more, h/128; d_ff about 3h, in multiples of 256 and of
    ``step``; tied up to ``TIED`` parameters.
    """
    refuse(not 1e7 <= parameters <= 1e14, "expected between 1e7 and 1e14 parameters", "--params", parameters)
    tied, each, wide = parameters <= TIED, lcm(4, shards), lcm(WIDE, step)
    found: list[tuple[float, float, AttentionShape, int, int]] = []
    for heads, dim in product((one for one in range(each, 1024, each) if one < 16 or one % 8 == 0), (64, 128)):
        hidden, kv_heads = heads * dim, usual_kv_heads(heads, shards)
        usual, ends = max(32, hidden // 128), (vocab * (2 - tied) + 1) * hidden
        if not 1 / 6 < (ends + 12 * hidden**2 * usual) / parameters < 6:
            continue  # far off whatever its layers
        for layers in range(next_multiple(max(1, usual // 2), lcm(4, p)), 2 * usual + p, lcm(4, p)):
            rest = 2 * hidden * (hidden + kv_heads * dim + 1)
            width = max(1, round(((parameters - ends) / layers - rest) / (3 * hidden * wide))) * wide
            off = (
                abs(log(layers / usual)) + abs(log(width / hidden / 3)) + (dim == 64) * max(0, log(hidden / MOST_OF_64))
            )
            missed = abs((ends + layers * (rest + 3 * hidden * width)) / parameters - 1)
            attention = AttentionShape(heads, kv_heads, dim, rotary_dim=dim)
            found.append((off + 100 * max(0, missed - 0.01), missed, attention, layers, width))
    found = [one for one in found if one[1] <= MISSED]
    refuse(not found, "no usual decoder of so many parameters splits so", "--params", parameters)
    _, _, attention, layers, width = min(found, key=itemgetter(0))
    block = Block(attention, MlpShape(width), count=layers)
    hidden = attention.heads * attention.head_dim
    return ModelShape("llama", (Stack("decoder", hidden, (block,)),), vocab=vocab, tied=tied)
