"""How candidates are tried when they are measured: one file each, chosen by name."""

from __future__ import annotations

from sizer.searching.strategies import exhaustive, racing

STRATEGIES = {strategy.NAME: strategy.run for strategy in (exhaustive, racing)}
