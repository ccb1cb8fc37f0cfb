"""Running a module on the meta device under the recorder, and reporting what went wrong in one line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import local
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from shapes.errors import InputError, refuse
from shapes.frozen import Items, Named, T, Values, replace

from .attention import FusedAttention
from .guards import TooLong, bounded_operators
from .inputs import DataAnswers, LoopAnswers
from .products import tensors_in
from .recorder import Recorder
from .repeats import Cut
from .result import Traced


def masks_where_read(once: Callable[[bool], T]) -> T:
    """``once`` without masks, and with them for a model that looks into the mask that a fused kernel would not need."""
    try:
        return once(False)
    except InputError as error:
        if not isinstance(error.__cause__, TypeError | AttributeError | ValueError):
            raise
        return once(True)


def unless_too_long(once: Callable[[], Traced], empty: Traced, known: TooLong | None = None) -> Traced:
    """``once``; ``empty`` and a note where a module runs too many operators, as is ``known`` or shows then."""
    try:
        if known:
            raise known
        with bounded_operators():
            return once()
    except TooLong as error:
        return replace(empty, notes=(f"its products are not listed: {error.expected}",))


def run(
    module: nn.Module,
    args: Items,
    kwargs: Named,
    *,
    train: bool,
    model_type: str,
    answers: DataAnswers | None = None,
    config: object = None,
    cut: Cut | None = None,
    where: str | None = None,
    masks: bool = False,
) -> Traced:
    """Trace one call of ``module`` (whose tensors are on the meta device already) and its backward pass.

    ``cut``: its layers are those that are kept. ``masks``: let transformers build its attention masks, which some
    models read; the operators stay the same.
    """
    recorder = Recorder(module, cut.stands_for if cut else {})
    where = where or type(module).__name__
    around = FusedAttention(recorder), answers, where
    with on_meta_device(recorder, *around, transformers=config is not None, masks=masks, train=train):
        output = module(*args, **kwargs)
        if train:
            _backward(output)
    asked = sorted(getattr(answers, "asked", ()))
    return Traced(
        operators=recorder.operators(),
        parameters=parameters_of(module),
        active_parameters=None,
        model_type=model_type,
        opaque=tuple(sorted(recorder.opaque)),
        notes=(f"{ANSWERED}{', '.join(asked)}",) if asked else (),
    )


def parameters_of(module: nn.Module) -> int:
    """The elements of its parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def to_meta(args: Items, kwargs: Named) -> tuple[Items, Values]:
    """Arguments whose tensors have no values."""
    return _pytree.tree_map_only(  # type: ignore[no-any-return] # as it was given
        Tensor, lambda t: t.detach().to("meta").requires_grad_(t.requires_grad), (args, dict(kwargs))
    )


ANSWERED = "questions a tensor without data cannot answer were answered, as for even routing: "


@contextmanager
def on_meta_device(
    recorder: Any,
    fused: FusedAttention,
    answers: DataAnswers | None,
    where: str,
    *,
    transformers: bool,
    masks: bool,
    train: bool,
) -> Iterator[None]:
    """The contexts of a forward on the meta device, the ``recorder`` innermost; its exceptions become InputErrors."""
    if isinstance(answers, LoopAnswers):
        answers.running = lambda: recorder.stack[-1:]
    try:
        with ExitStack() as stack:
            for context in (
                torch.device("meta"),
                torch.set_grad_enabled(train),
                _no_autocast_on_meta(),
                fused.in_transformers(masks=masks) if transformers else nullcontext(),
                recorder.following(),
                fused,
                answers or nullcontext(),
                recorder,
            ):
                stack.enter_context(context)
            yield
    except InputError:
        raise
    except Exception as error:
        raise _refusal(error, recorder.where, where) from error


def _flexible(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: Any,
    enable_gqa: Any,
    return_lse: Any,
    kernel_options: Any,
    **_more: Any,
) -> Any:
    """The code of torch's flex_attention (whose defaults stay): what is masked, by rows and columns of numbers."""
    rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
    zero = rows.new_zeros(())
    columns = torch.arange(key.shape[-2], device=query.device)
    mask = None if block_mask is None else block_mask.mask_mod(zero, zero, rows, columns)
    if score_mod is not None:
        scores = score_mod(torch.zeros_like(rows + columns, dtype=query.dtype), zero, zero, rows, columns)
        mask = scores if mask is None else torch.where(mask, scores, -float("inf"))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return (out, query.new_empty(query.shape[:-1])) if return_lse else out


@contextmanager
def _flexibly() -> Iterator[None]:
    # Callers hold flex_attention itself, so that patching its name would not reach them: its code is exchanged.
    core = getattr(sys.modules.get("torch.nn.attention.flex_attention"), "flex_attention", _flexible)
    own, core.__code__ = core.__code__, _flexible.__code__
    try:
        yield
    finally:
        core.__code__ = own


class Plain(local):
    """In place of torch.utils.checkpoint's two implementations: nothing is run again.

    ``ran``: whether they were, in this thread: servers answer in several.
    """

    ran = False

    def apply(self, function: Callable[..., T], _preserve: bool, *args: Any) -> T:
        self.ran = True
        return function(*args)

    def without_reentrant(self, *_args: Any, **_kwargs: Any) -> Iterator[None]:
        self.ran = True
        yield


PLAIN = Plain()


@contextmanager
def _no_autocast_on_meta() -> Iterator[None]:
    # Autocast and torch.utils.checkpoint ask the device of the tensors at hand what it can do; torch knows no meta.
    from torch.utils import checkpoint

    make: Any = torch.autocast.__init__  # of the class, which some code holds by a name of its own

    def without(own: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        make(own, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    instead: Any = {"CheckpointFunction": PLAIN, "_checkpoint_without_reentrant_generator": PLAIN.without_reentrant}
    with _flexibly(), patch.object(torch.autocast, "__init__", without), patch.multiple(checkpoint, **instead):
        yield


def _backward(output: Any) -> None:
    # A dataclass of a user's own is no pytree: look through it.
    leaves = _pytree.tree_leaves(output)
    plain = Tensor, nn.Module, type
    inside = [vars(leaf) for leaf in leaves if hasattr(leaf, "__dict__") and not isinstance(leaf, plain)]
    found = tensors_in((leaves, inside))
    roots = {id(leaf): leaf for leaf in found if leaf.requires_grad and leaf.is_floating_point()}.values()
    refuse(not roots, "expected an output that requires a gradient: pass phase='infer' for a frozen module")
    torch.autograd.backward([*roots], [*map(torch.empty_like, roots)])


def _refusal(error: Exception, path: str, where: str) -> InputError:
    """The error in the module at ``path``, in one line."""
    place = f"{where}: {path}" if path else where
    text = f"{type(error).__name__}: {said(error)}"[:300]
    if any(word in text for word in ("meta tensor", "item()", "nonzero", "numpy", "data-dependent", "Meta")):
        advice = "its forward asks for a tensor's values, which a trace without data cannot give: pass the submodule or"
        return InputError(f"{advice} inputs that avoid that branch ({text})", where=place)
    advice = ": pass the module and its arguments, sizer.check(module, example_inputs=...)" * (
        "required positional" in text
    )
    return InputError(f"cannot be traced on the meta device: {text}{advice}", where=place)


def said(error: Exception) -> str:
    """``error`` in one line: the first, as torch appends stack traces; two where that ends in a colon."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    first, *rest = lines or [type(error).__name__]
    return f"{first} {rest[0]}" if first.endswith(":") and rest else first


@contextmanager
def on_meta(module: nn.Module) -> Iterator[None]:
    """Every tensor of ``module`` swapped for one without data, tied ones staying tied; put back afterwards."""
    stand_ins = {}

    def stand_in(tensor: Tensor) -> Tensor:
        if id(tensor) not in stand_ins:
            made = tensor.detach().to("meta")
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            stand_ins[id(tensor)] = made
        return stand_ins[id(tensor)]

    with ExitStack() as patches:
        for child in module.modules():
            for table in (child._parameters, child._buffers, child.__dict__):
                tensors = ((name, one) for name, one in table.items() if isinstance(one, Tensor) and not one.is_meta)
                if new := {name: stand_in(one) for name, one in tensors}:
                    patches.enter_context(patch.dict(table, new))
        yield
