"""Module paths, with the indices of repeated layers folded: ``model.layers.*.mlp.gate_proj``."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


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
