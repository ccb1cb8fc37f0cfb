"""Repeated layers: their folded names, and a model cut to two layers of each kind, which shows what the whole runs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from shapes.errors import refuse
from shapes.frozen import Ints, Items, Named, Names, Sizes, T, frozen

from .guards import count_operator


class Follower(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotation there
    """Sees dispatched operators, and knows in which module they run. ``names``: of modules, by identity."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no annotation there
        self.stack = list[nn.Module]()
        self._module_names = names
        self._ran = Counter[str]()
        self._made = dict[Items, Tensor]()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow calls into modules, so that what runs gets its place."""
        hooks = register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def run(self, func: Any, args: Items, kwargs: Named | None) -> Any:
        """Run ``func`` and count it; a new tensor of floating-point numbers is as equal arguments made one before."""
        count_operator(self._ran, self.where)
        # torch's own rules for what operators make are most of the time of a trace.
        named = kwargs or {}
        key = func, _told(args), _told([*named.items()])
        if key in self._made:
            made = self._made[key]
            return made.new_empty_strided(made.shape, made.stride())
        out = func(*args, **named)
        # What shares its storage (_unsafe_view says so by name alone) is lost with it.
        again = (
            func.is_view
            or func._schema.is_mutable
            or "view" in func._schema.name
            or torch.Tag.dynamic_output_shape in func.tags
        )
        if isinstance(out, Tensor) and out.is_meta and out.is_floating_point() and not again:
            self._made[key] = out
        return out

    @property
    def where(self) -> str:
        """The name of the module that is running, or of the nearest around it that has one."""
        return next((name for m in reversed(self.stack) if (name := self._module_names.get(id(m)))), "")

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        self.stack.append(module)
        self._mark()

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        # A forward that raised and was caught leaves its module on the stack.
        while self.stack and self.stack.pop() is not module:
            pass
        self._mark()

    def _mark(self) -> None:
        """Another module runs now."""


def _told(argument: object) -> Items:
    """All of an operator's argument that the form of its result depends on."""
    if isinstance(argument, Tensor):
        return argument.shape, argument.stride(), argument.dtype, argument.device
    return tuple(map(_told, argument)) if isinstance(argument, list | tuple) else (type(argument), argument)


def repeated_children(module: nn.Module) -> Iterator[tuple[str, list[tuple[str, nn.Module]]]]:
    """(path, its children) of every container whose children are a repetition.

    A ModuleList always is one; a Sequential is, if all its children have one class that has children itself (stages of
    blocks, not Linear-GELU-Linear).
    """
    for path, container in module.named_modules():
        children = list(container.named_children())
        classes = {type(child) for _, child in children}
        blocks = isinstance(container, nn.Sequential) and len(children) > 1 == len(classes)
        if isinstance(container, nn.ModuleList) or (blocks and [*children[0][1].children()]):
            yield path, children


class FoldedNames:
    """Folded names of a module's submodules and parameters, by identity."""

    def __init__(self, module: nn.Module) -> None:
        self._containers = {path for path, _ in repeated_children(module)}
        self.of_module = {id(child): self.fold(path) for path, child in module.named_modules()}
        self._by_owner = dict[int, dict[str, str]]()
        for path, parameter in module.named_parameters(remove_duplicate=False):
            owner, _, leaf = path.rpartition(".")
            folded = self.fold(owner)
            name = folded if leaf == "weight" else f"{folded}.{leaf}" if folded else leaf
            self._by_owner.setdefault(id(parameter), {})[folded] = name

    def fold(self, path: str) -> str:
        """``path`` with every index into a repetition replaced by ``*``."""
        parent, _, leaf = path.rpartition(".")
        head = self.fold(parent) if parent else ""
        part = "*" if leaf.isdigit() and parent in self._containers else leaf
        return f"{head}.{part}" if head else part

    def of_product(self, parameter: int | None, calling: str) -> str:
        """The name of a product with ``parameter``: as in ``calling`` (a tied head), else as it was first met."""
        if parameter is None:
            return calling
        names = self._by_owner[parameter]
        return names.get(calling, next(iter(names.values())))


#: Attributes that number a layer and those that only matter to a random generator do not make it another kind, nor do
#: floats: they scale values (DiffLlama's lambda grows with depth); a size that one sets shows in a parameter's shape.
_NUMBERING = re.compile("^_|idx|index|layer_id|layer_num|block_id|drop|seed")
_PLAIN = (bool, int, str, type(None), torch.dtype)


@frozen
class Cut:
    """A model's layers cut to those ``kept``. ``kinds``: of each layer of the whole the first that is like it.

    ``containers``: several where stacks are alike (an encoder and its decoder).
    """

    containers: Names
    kinds: Ints
    kept: Ints

    @property
    def stands_for(self) -> Sizes:
        """Path of each layer that is kept -> how many of the whole it counts for: the last of its kind for the rest."""
        kinds = [self.kinds[place] for place in self.kept]
        return {
            f"{one}.{at}": 1 + (self.kinds.count(kind) - kinds.count(kind)) * (kind not in kinds[at + 1 :])
            for one in self.containers
            for at, kind in enumerate(kinds)
        }

    def whole(self, layers: Sequence[T], held: Items) -> list[T] | None:
        """The whole's layers by the kept ones alike that are not ``held``; None where two of a kind differ."""
        ran = [place for at, place in enumerate(self.kept) if not {f"{one}.{at}" for one in self.containers} & {*held}]
        of = dict(zip(ran, layers))  # noqa: B905 - the shorter ends it
        if len(layers) != len(ran) or any(one != of.get(self.kinds[place]) for place, one in of.items()):
            return None
        return [of[kind] for kind in self.kinds if kind in of]


class _Few(nn.ModuleList):
    """The kept of as many layers as the ``whole`` has.

    InputError where a part of the whole is asked for, as by a forward that runs its middle again: these do not show it.
    """

    whole = 0

    def __getitem__(self, asked: Any) -> Any:
        refuse(
            isinstance(asked, slice) and asked.indices(self.whole) != (0, self.whole, 1),
            "runs some of its layers apart from the others",
        )
        return super().__getitem__(asked)


@contextmanager
def layers_cut(module: nn.Module, config: object, layers: int | None) -> Iterator[Cut | None]:
    """``module`` with only so many of its ``layers`` that each kind is there twice; None, and whole, if none goes.

    Two layers are of one kind if their classes, their parameters' shapes and dtypes and their plain attributes agree,
    all the way down, and the entries for them in per-layer lists of the configuration too. Stacks with as many layers
    are cut together, if these are alike.
    """
    held = {
        path: one
        for path, one in module.named_modules()
        if isinstance(one, nn.ModuleList) and not re.search(r"\d\.", path)
    }
    # Any number of layers, if the configuration counts them in another way.
    listed = [path for path, one in held.items() if len(one) == layers] or [*held]
    alike = {_kept(held[path], config) for path in listed}
    found = alike.pop() if len(alike) == 1 else None
    if not found:
        yield None
        return
    kinds, kept = found
    with ExitStack() as patches:
        for path in listed:
            above, _, name = path.rpartition(".")
            few = _Few(held[path][place] for place in kept)
            few.whole = len(held[path])
            patches.enter_context(patch.dict(module.get_submodule(above)._modules, {name: few}))
        yield Cut(tuple(listed), kinds, kept)


def _kept(container: nn.Module, config: object) -> tuple[Ints, Ints] | None:
    """(the kinds, which to keep) of layers; None for all of them."""
    children = list(container.children())
    lists, first = _per_layer_lists(config, len(children)), dict[object, int]()
    kinds = tuple(
        first.setdefault((_signature(child), tuple(repr(values[at]) for values in lists)), at)
        for at, child in enumerate(children)
    )
    seconds = {kind: at for at, kind in reversed([*enumerate(kinds)]) if kind != at}
    kept = tuple(sorted({*kinds, *seconds.values()}))
    if lists or kept[-1] + 1 < len(kinds):  # a layer keeps its place if that may matter, or saves as much
        kept = tuple(range(kept[-1] + 1))
    return (kinds, kept) if len(kept) < len(kinds) else None


def _per_layer_lists(config: object, layers: int) -> list[list[Any]]:
    """Lists of the configuration (and of those inside it) with one entry a layer, which is not the layer's number."""
    found = []
    for value in getattr(config, "__dict__", {}).values():
        if isinstance(value, list | tuple) and len(value) == layers > 1:
            found += [[*value]] * ([*value] != [*range(layers)])
        elif hasattr(value, "to_dict") and value is not config:
            found.extend(_per_layer_lists(value, layers))
    return found


def _signature(module: nn.Module) -> object:
    tensors = (
        (name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    )
    plain = (
        (name, value)
        for name, value in sorted(module.__dict__.items())
        # A convolution's stride is a tuple.
        if all(isinstance(one, _PLAIN) for one in (value if isinstance(value, tuple) else (value,)))
        and not _NUMBERING.search(name)
    )
    children = ((name, _signature(child)) for name, child in module.named_children())
    return type(module), *tensors, *plain, *children
