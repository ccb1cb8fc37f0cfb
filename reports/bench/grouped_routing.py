"""DeepSeek-V3's experts in vLLM's published rows: which rows a rank ran, and what they cost here.

    python reports/bench/grouped_routing.py .../aiconfigurator_core/systems/data

aiconfigurator's collector spreads a token's eight choices evenly over all experts by its logits (``balanced_logits``).
vLLM's DeepSeek class then keeps four of eight groups, in which only four of those eight are; the other four places go
to experts whose logits are all alike, of which the lowest numbers are taken: experts 0 to 3, all on the rank timed.
TensorRT-LLM's collector routes without groups. The rows here are of that choice, worked out token by token.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

EXPERTS, TOP_K, GROUPS, KEPT, MOE_LAYERS = 256, 8, 8, 4, 58
RELEASE = "deepseek-ai/DeepSeek-V3.2"


def chosen(token: int) -> list[int]:
    """The experts of one token: even logits, the best groups and the best experts in them, ties to the lowest."""
    even = {(token + EXPERTS // TOP_K * place) % EXPERTS for place in range(TOP_K)}
    size = EXPERTS // GROUPS
    best = sorted(range(GROUPS), key=lambda group: -len(even & {*range(group * size, (group + 1) * size)}))[:KEPT]
    inside = [expert for group in sorted(best) for expert in range(group * size, (group + 1) * size)]
    return sorted(inside, key=lambda expert: expert not in even)[:TOP_K]


def rows_of(tokens: int, ep: int) -> tuple[int, float]:
    """(rows of the first of ``ep`` ranks, its fullest expert's over the mean)."""
    local, counted = EXPERTS // ep, Counter[int]()
    for token in range(EXPERTS):
        counted.update(expert for expert in chosen(token) if expert < local)
    rows = sum(counted.values())
    return rows * tokens // EXPERTS, max(counted.values()) * local / rows


def experts_ms(listed: Iterable[Any], tokens: int, ep: int, *, even: bool = False) -> float:
    """A layer's experts of V3.2 on one of ``ep`` ranks on H200: products, quantising, permuting and activation.

    ``listed``: the operators of a prompt. ``even``: routed as the model's price assumes.
    """
    from shapes.cost import predict_many
    from shapes.operators.types import RoutedGemm

    rows, load = (tokens * TOP_K // ep, 1.0) if even else rows_of(tokens, ep)
    parts = [one for one in listed if ".moe." in one.name and "router" not in one.name and one.kind != "collective"]
    products = [
        replace(one, m=rows, groups=EXPERTS // ep, load=load, count=1) for one in parts if isinstance(one, RoutedGemm)
    ]
    moving = [one for one in parts if not isinstance(one, RoutedGemm)]
    of = next(one.m for one in parts if isinstance(one, RoutedGemm))
    times = [cost.seconds for cost in predict_many([*products, *moving], "h200")]
    count = len(products)
    return 1e3 * (sum(times[:count]) + sum(times[count:]) * rows / of)


def main(data: Path) -> None:
    import pyarrow.parquet as parquet

    from sizer import ops

    sizes = {"hidden_size": 7168, "inter_size": 2048, "num_experts": EXPERTS, "topk": TOP_K, "moe_tp_size": 1}
    wanted = {**sizes, "moe_dtype": "fp8_block", "distribution": "balanced"}
    file = data / "h200_sxm" / "moe" / "vllm" / "0.24.0" / "moe_perf.parquet"
    found = parquet.read_table(file, filters=[(key, "=", value) for key, value in wanted.items()]).to_pylist()
    lines = [
        "| tokens | ep | rows even | rows of the choice | vLLM 0.24, ms | priced at those rows | off | priced even |"
    ]
    lines += ["|---" * 8 + "|"]
    for row in sorted(found, key=lambda one: (one["num_tokens"], one["moe_ep_size"])):
        tokens, ep = row["num_tokens"], row["moe_ep_size"]
        if ep == 1 or tokens not in (2048, 8192, 16384):
            continue
        listed = ops(RELEASE, device="h200", phase="prefill", b=1, s=tokens, tp=8, ep=8, etp=1).operators
        own, even = experts_ms(listed, tokens, ep), experts_ms(listed, tokens, ep, even=True)
        sizes_of = f"{tokens * TOP_K // ep:,} | {rows_of(tokens, ep)[0]:,}"
        off = f"{own / row['latency'] - 1:+.0%}"
        lines.append(f"| {tokens:,} | {ep} | {sizes_of} | {row['latency']:.2f} | {own:.2f} | {off} | {even:.2f} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
