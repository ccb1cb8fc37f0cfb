"""What a class of transformers runs in another form: cut to shards, its projections fused or apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shapes.trace.result import Traced


def traced_otherwise(
    config: Any,
    *,
    b: int,
    s: int,
    t: int = 1,
    plan: Mapping[str, str] | None = None,
    fused: bool | None = None,
    phase: str = "train",
    attention: str = "flash",
    experts: str | None = None,
) -> Traced:
    """Every layer of the class run, over ``t`` shards by ``plan`` (None: its own), projections ``fused`` or apart.

    Experts run by transformers' implementation ``experts`` (None: the class's own).
    """
    from shapes.trace.config import Built, with_class
    from tests.oracles.projections import regroup
    from tests.oracles.shards import shard

    def once(built: Built) -> Traced:
        if t > 1 or plan is not None:
            shard(built.module, plan, t, built.where)
        if experts is not None:
            built.settings._experts_implementation = experts
        found = built.run(s, b=b, train=phase == "train")
        return replace(found, operators=regroup(found.operators, built.module, qkv=fused, gate_up=fused)[0])

    return with_class(config, once, attention=attention, dtype="bf16")
