"""Running a module on the meta device under the recorder, and reporting what went wrong in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from shapes.errors import InputError
from shapes.operators.types import Elementwise, Operator
from shapes.trace.attention import FusedAttention
from shapes.trace.inputs import DataAnswers
from shapes.trace.recorder import Recorder
from shapes.trace.repeats import Repeats
from shapes.trace.result import Traced

T = TypeVar("T")

#: Memory-bound operators below this share of all bytes are summed up in a note instead of listed.
NOTABLE_SHARE = 1e-3


def masks_where_read(once: Callable[[bool], T]) -> T:
    """``once`` without masks, and with them for a model that looks into the mask that a fused kernel would not need."""
    try:
        return once(False)
    except InputError as error:
        if not isinstance(error.__cause__, (TypeError, AttributeError, ValueError)):
            raise
        return once(True)


def run(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    train: bool,
    model_type: str,
    answers: DataAnswers | None = None,
    config: object = None,
    expert_load: float = 1.0,
    repeats: bool = True,
    where: str | None = None,
    masks: bool = False,
) -> Traced:
    """Trace one call of ``module`` (whose tensors are on the meta device already) and its backward pass.

    ``masks``: let transformers build its attention masks, which some models read; the operators stay the same.
    """
    once = Repeats(module, config, enabled=repeats)
    recorder = Recorder(module, once, expert_load)
    fused = FusedAttention(recorder)
    try:
        with ExitStack() as stack:
            for context in (
                torch.device("meta"),
                torch.set_grad_enabled(train),
                _no_autocast_on_meta(),
                once.active(),
                fused.in_transformers(masks=masks) if config is not None else nullcontext(),
                recorder.following(),
                fused,
                answers or nullcontext(),
                recorder,
            ):
                stack.enter_context(context)
            output = module(*args, **kwargs)
            if train:
                _backward(output)
    except InputError:
        raise
    except Exception as error:
        raise _refusal(error, recorder, where or type(module).__name__) from error
    operators, notes = _notable(recorder.operators())
    if asked := getattr(answers, "asked", None):
        notes.append("questions a tensor without data cannot answer were answered: " + ", ".join(sorted(asked)))
    return Traced(
        operators=operators,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        active_parameters=None,
        model_type=model_type,
        opaque=tuple(sorted(recorder.opaque)),
        unused=_unused(module, recorder),
        notes=tuple(notes),
    )


@contextmanager
def _no_autocast_on_meta() -> Iterator[None]:
    # transformers 4 switches autocast off for the device its tensors are on, and torch knows none for meta.
    original: Any = torch.autocast

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return nullcontext() if device_type == "meta" else original(device_type, *args, **kwargs)

    try:
        torch.autocast = autocast  # type: ignore[assignment, misc] # put back below
        yield
    finally:
        torch.autocast = original  # type: ignore[misc] # as it was


def _backward(output: Any) -> None:
    leaves = _tensors(output)
    roots = {id(leaf): leaf for leaf in leaves if leaf.requires_grad and leaf.is_floating_point()}
    if not roots:
        raise InputError("expected an output that requires a gradient: pass phase='infer' for a frozen module")
    torch.autograd.backward(list(roots.values()), [torch.empty_like(root) for root in roots.values()])


def _tensors(output: Any) -> list[Tensor]:
    # A dataclass of a user's own is no pytree: look through it.
    found = []
    for leaf in _pytree.tree_leaves(output):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, (nn.Module, type)):
            found.extend(value for value in vars(leaf).values() if isinstance(value, Tensor))
    return found


def _refusal(error: Exception, recorder: Recorder, where: str) -> InputError:
    path = recorder.where
    place = f"{where}: {path}" if path else where
    text = f"{type(error).__name__}: {said(error)}"[:300]
    if any(word in text for word in ("meta tensor", "item()", "nonzero", "numpy", "data-dependent", "Meta")):
        advice = "its forward asks for a tensor's values, which a trace without data cannot give: pass the submodule or"
        return InputError(f"{advice} inputs that avoid that branch ({text})", where=place)
    return InputError(f"cannot be traced on the meta device: {text}", where=place)


def said(error: Exception) -> str:
    """``error`` in one line: the first, as torch appends stack traces; two where that ends in a colon."""
    lines = str(error).split("\n") if str(error).strip() else [type(error).__name__]
    first, *rest = [line.strip() for line in lines if line.strip()]
    return f"{first} {rest[0]}" if first.endswith(":") and rest else first


def _notable(operators: tuple[Operator, ...]) -> tuple[tuple[Operator, ...], list[str]]:
    total = sum(operator.bytes * operator.count for operator in operators)
    kept, small, small_bytes = [], 0, 0
    for operator in operators:
        moved = operator.bytes * operator.count
        if isinstance(operator, Elementwise) and moved < NOTABLE_SHARE * total:
            small, small_bytes = small + 1, small_bytes + moved
        else:
            kept.append(operator)
    notes = ["memory-bound operators are unfused, as eager PyTorch runs them"]
    if small:
        notes.append(f"{small} small memory-bound operators ({small_bytes / total:.1%} of all bytes) are left out")
    return tuple(kept), notes


def _unused(module: nn.Module, recorder: Recorder) -> tuple[str, ...]:
    """The outermost modules with parameters in which nothing was called, by folded path."""
    names = recorder.names.of_module
    # A repeated layer was called if its like was.
    called = {names[module_id] for module_id in recorder.called if module_id in names}
    used = {recorder.names.of_parameter[parameter] for parameter in recorder.used_parameters}

    def walk(path: str, parent: nn.Module) -> Iterator[str]:
        for name, child in parent.named_children():
            inner = f"{path}.{name}" if path else name
            if any(names.get(id(m)) in called for m in child.modules()):
                yield from walk(inner, child)
            elif not used.issuperset(recorder.names.of_parameter.get(id(p)) for p in child.parameters()):
                yield recorder.names.fold(inner)

    return tuple(dict.fromkeys(walk("", module)))


@contextmanager
def on_meta(module: nn.Module) -> Iterator[None]:
    """Every tensor of ``module`` swapped for one without data, tied ones staying tied; put back afterwards."""
    stand_ins: dict[int, Tensor] = {}
    swapped: list[tuple[dict[str, Any], str, Tensor]] = []

    def stand_in(tensor: Tensor) -> Tensor:
        if id(tensor) not in stand_ins:
            made = tensor.detach().to("meta")
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            stand_ins[id(tensor)] = made
        return stand_ins[id(tensor)]

    try:
        for child in module.modules():
            tables: tuple[dict[str, Any], ...] = (child._parameters, child._buffers, child.__dict__)
            for table in tables:
                for name, tensor in list(table.items()):
                    if isinstance(tensor, Tensor) and not tensor.is_meta:
                        swapped.append((table, name, tensor))
                        table[name] = stand_in(tensor)
        yield
    finally:
        for table, name, tensor in reversed(swapped):
            table[name] = tensor
