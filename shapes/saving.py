"""What the layers of a training step save for their backward, and what of their forward runs again instead.

One policy decides both: shapes.memory keeps on its tape what it saves, shapes.operators lists twice what runs again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from shapes.errors import InputError
from shapes.frozen import frozen
from shapes.toml_table import DATA, content

#: torchtitan's selective checkpointing by operator (torchtitan/distributed/activation_checkpoint.py): of a layer the
#: attention core, reduce-scatters and every second product keep what they made, and all else runs again.
ALTERNATE = "every-second-product"
#: Names of whole policies -> the modules that run again; None: all of a layer.
POLICIES: Mapping[str, tuple[str, ...] | None] = {
    "none": (),
    "selective": ("core_attn",),
    "full": None,
    ALTERNATE: None,
}


def modules() -> Mapping[str, Any]:
    """Modules that may run again by themselves (shapes/data/saving.toml)."""
    return content(DATA / "saving.toml")


@frozen
class Saving:
    """``again``: modules that run again; ``everything``: all of a layer does, or, with ``alternate``, all that is not

    kept by operator. ``layers``: of a device's layers the first so many (None: all). ``name``: the policy without them.
    """

    again: frozenset[str] = frozenset()
    everything: bool = False
    alternate: bool = False
    layers: int | None = None
    name: str = "none"

    def modules_of(self, name: str, *, mixture: bool) -> list[str]:
        """Of the modules that run again those that an operator is in, by its name; ``mixture``: its layer has one."""
        known = ((one, modules()[one]) for one in self.again)
        meant = [(one, said["operators"]) for one, said in known if said.get("of_mixture", mixture) is mixture]
        return [one for one, patterns in meant if any(fnmatchcase(name, pattern) for pattern in patterns)]

    def drops(self, among: Iterable[str]) -> bool:
        """Whether one of these modules' outputs goes with what is inside."""
        return any("drops_output" in modules()[one] for one in among)


@lru_cache(maxsize=256)
def saving(policy: str) -> Saving:
    """The policy by name, or of a list of modules (commas); ``:N`` behind it: of N of a device's layers.

    >>> saving("moe_act,layernorm:4").layers
    4
    """
    said = re.fullmatch(r"([^:]*)(?::([1-9][0-9]{0,5}))?", str(policy))
    name, number = said.groups() if said else (":", None)
    words = POLICIES.get(name, tuple(word.strip() for word in name.split(",")))
    if not set(words or ()).issubset(modules()):
        known = f"{', '.join(POLICIES)}, or some of {', '.join(modules())} (commas); :N behind it, of N layers alone"
        raise InputError(f"expected {known}", key="checkpointing", value=policy)
    layers = int(number) if number else None
    return Saving(frozenset(words or ()), words is None, name == ALTERNATE, layers, name)
