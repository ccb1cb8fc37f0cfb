"""Identical layers are run once a kind: the others return tensors of the same shape, and the count is multiplied.

Two children of one ModuleList are of one kind when their classes, their parameters' shapes and dtypes and their plain
attributes agree, all the way down, and so do the entries that per-layer lists of the model's configuration hold for
them. A kind's call is repeated when its arguments agree in shape, dtype, strides and gradient and are equal otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree

from shapes.frozen import frozen
from shapes.trace.products import tensors_in


@contextmanager
def calls_followed(enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    """``enter(module, inputs)`` before every module's forward, ``leave(module, inputs, output)`` after it."""
    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def repeated_children(module: nn.Module) -> Iterator[tuple[str, list[tuple[str, nn.Module]]]]:
    """(path, its children) of every container whose children are a repetition.

    A ModuleList is one always; a Sequential where all its children are of one class that has children itself
    (stages of blocks, not Linear-GELU-Linear).
    """
    for path, container in module.named_modules():
        children = list(container.named_children())
        if isinstance(container, nn.ModuleList):
            yield path, children
        elif isinstance(container, nn.Sequential) and len(children) > 1:
            classes = {type(child) for _, child in children}
            if len(classes) == 1 and any(True for _ in children[0][1].children()):
                yield path, children


class Names:
    """Folded names of a module's submodules and parameters, by identity."""

    def __init__(self, module: nn.Module) -> None:
        containers = {path for path, _ in repeated_children(module)}
        self._folded_prefix: dict[str, str] = {"": ""}
        self.containers = containers
        self.of_module: dict[int, str] = {}
        for path, child in module.named_modules():
            self.of_module.setdefault(id(child), self.fold(path))
        self.of_parameter: dict[int, str] = {}
        self._by_owner: dict[int, dict[str, str]] = {}
        for path, parameter in module.named_parameters(remove_duplicate=False):
            owner, _, leaf = path.rpartition(".")
            folded = self.fold(owner)
            name = folded if leaf == "weight" else f"{folded}.{leaf}" if folded else leaf
            self.of_parameter.setdefault(id(parameter), name)
            self._by_owner.setdefault(id(parameter), {})[folded] = name

    def fold(self, path: str) -> str:
        """``path`` with every index into a repetition replaced by ``*``."""
        if path in self._folded_prefix:
            return self._folded_prefix[path]
        parent, _, leaf = path.rpartition(".")
        head = self.fold(parent)
        part = "*" if leaf.isdigit() and parent in self.containers else leaf
        self._folded_prefix[path] = folded = f"{head}.{part}" if head else part
        return folded

    def of_product(self, parameter: int, calling: str) -> str:
        """The name of a product with ``parameter``: as ``calling`` has it (a tied head), else as it is first met."""
        return self._by_owner[parameter].get(calling, self.of_parameter[parameter])


#: Attributes that number a layer and those that only matter to a random generator do not make it another kind.
_NUMBERING = ("idx", "index", "layer_id", "layer_number", "layer_num", "block_id", "drop")
_PLAIN = (bool, int, float, str, type(None), torch.dtype)


@dataclass(eq=False, slots=True)
class Frame:
    """A stretch of the run whose operators count ``times`` times within its parent's."""

    parent: Frame | None = None
    times: int = 1

    @property
    def multiplicity(self) -> int:
        return self.times * (self.parent.multiplicity if self.parent else 1)


@dataclass(slots=True)
class _Kind:
    calls: dict[object, tuple[Frame, Any, list[Any]]] = field(default_factory=dict)


class _Repeat(torch.autograd.Function):
    """Outputs of the shapes given, whose gradient flows back to every input: a layer without its work."""

    @staticmethod
    def forward(ctx: Any, leaves: list[_TensorLeaf], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.inputs = [_TensorLeaf.of(tensor) for tensor in inputs]
        outputs = tuple(leaf.empty() for leaf in leaves)
        ctx.mark_non_differentiable(*(out for out, leaf in zip(outputs, leaves, strict=True) if not leaf.gradient))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        return None, *(leaf.empty() if need else None for leaf, need in zip(ctx.inputs, needed, strict=True))


@frozen
class _TensorLeaf:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _TensorLeaf:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


class Repeats:
    """Swaps the ``forward`` of repeated layers while active; ``frame`` is where operators are being counted."""

    def __init__(self, module: nn.Module, config: object = None, *, enabled: bool = True) -> None:
        self.frame = Frame()
        self.on_frame: Callable[[], None] = lambda: None
        self._kinds: list[tuple[nn.Module, _Kind]] = list(_kinds(module, config)) if enabled else []

    @contextmanager
    def active(self) -> Iterator[None]:
        swapped: list[tuple[nn.Module, Any]] = []
        try:
            for layer, kind in self._kinds:
                own = layer.__dict__.get("forward")
                swapped.append((layer, own))
                layer.__dict__["forward"] = self._once(layer, layer.forward, kind)
            yield
        finally:
            for layer, own in reversed(swapped):
                del layer.__dict__["forward"]
                if own is not None:
                    layer.__dict__["forward"] = own

    def _once(self, layer: nn.Module, forward: Callable[..., Any], kind: _Kind) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = _pytree.tree_flatten((args, kwargs))
            # An outer layer that runs again under other arguments opens new frames for what is inside it.
            key = (id(self.frame), torch.is_grad_enabled(), str(spec), tuple(map(_leaf_key, leaves)))
            if key in kind.calls:
                frame, structure, outputs = kind.calls[key]
                frame.times += 1
                return _repeat(layer, leaves, structure, outputs)
            outer, self.frame = self.frame, Frame(self.frame)
            self.on_frame()
            try:
                result = forward(*args, **kwargs)
            finally:
                inner, self.frame = self.frame, outer
                self.on_frame()
            flat, structure = _pytree.tree_flatten(result)
            kind.calls[key] = inner, structure, [_TensorLeaf.of(x) if isinstance(x, Tensor) else x for x in flat]
            return result

        return run


def _repeat(layer: nn.Module, leaves: list[Any], structure: Any, outputs: list[Any]) -> Any:
    wanted = [leaf for leaf in outputs if isinstance(leaf, _TensorLeaf)]
    trained = attrgetter("requires_grad")
    inputs = list(filter(trained, tensors_in(leaves)))
    if not inputs and any(leaf.gradient for leaf in wanted):
        inputs = [next(filter(trained, layer.parameters()))]
    # torch leaves apply without annotations.
    made = iter(_Repeat.apply(wanted, *inputs) if wanted else ())  # type: ignore[no-untyped-call] # as said
    flat = [next(made) if isinstance(leaf, _TensorLeaf) else leaf for leaf in outputs]
    return _pytree.tree_unflatten(flat, structure)


def _leaf_key(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return _TensorLeaf.of(leaf)
    return leaf if isinstance(leaf, _PLAIN) else id(leaf)


def _kinds(module: nn.Module, config: object) -> Iterator[tuple[nn.Module, _Kind]]:
    for _, children in repeated_children(module):
        lists = _per_layer_lists(config, len(children))
        kinds: dict[object, _Kind] = {}
        for position, (_, child) in enumerate(children):
            signature = (_signature(child), tuple(repr(values[position]) for values in lists))
            yield child, kinds.setdefault(signature, _Kind())


def _per_layer_lists(config: object, layers: int) -> list[list[Any]]:
    """Lists of the configuration (and of those inside it) with one entry a layer."""
    found: list[list[Any]] = []
    for value in getattr(config, "__dict__", {}).values():
        if isinstance(value, (list, tuple)) and len(value) == layers > 1:
            found.append(list(value))
        elif hasattr(value, "to_dict") and value is not config:
            found.extend(_per_layer_lists(value, layers))
    return found


def _is_plain(value: object) -> bool:
    # A convolution's stride is a tuple.
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(item, _PLAIN) for item in value))


def _signature(module: nn.Module) -> object:
    tensors = (
        (name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    )
    plain = (
        (name, value)
        for name, value in sorted(module.__dict__.items())
        if _is_plain(value) and not name.startswith("_") and not any(word in name for word in _NUMBERING)
    )
    children = ((name, _signature(child)) for name, child in module.named_children())
    return type(module), tuple(tensors), tuple(plain), tuple(children)
