"""The rules' own examples with their prices: the table at the end of reports/kernels.md."""

from __future__ import annotations

from tabulate import tabulate

import sizer
from shapes.cost import predict
from shapes.cost.gemm import predict_gemm
from shapes.operators.types import Attention

#: GPT-2 at microbatches of 4 x 1024 tokens, and the widths and head dimensions that the rules' pages speak of.
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
DEVICES = ("a100-sxm", "h100-sxm")
STACKS = ("transformers-eager", "transformers-compile")


def examples() -> str:
    rows = [_vocabulary(device, stack) for device in DEVICES for stack in STACKS]
    rows += [_swiglu(device) for device in DEVICES]
    rows += [_head_dim(device, d) for device in DEVICES for d in (80, 100, 125)]
    return tabulate(rows, ["device", "what", "takes", "instead", "takes ", "saves"], tablefmt="github")


def _vocabulary(device: str, stack: str) -> list[str]:
    before, after = (
        sizer.check({**GPT2, "vocab_size": v}, device=device, b=4, s=1024, stack=stack).step.seconds
        for v in (50257, 50304)
    )
    return _row(device, f"GPT-2, a step of {stack}, vocabulary 50257", before, "50304", after)


def _swiglu(device: str) -> list[str]:
    seconds = [_mlp(device, width) for width in (10922, 10944)]
    return _row(
        device, "SwiGLU MLP forward and backward, h 4096, 16384 tokens, d_ff 10922", seconds[0], "10944", seconds[1]
    )


def _mlp(device: str, d_ff: int) -> float:
    tokens, h = 16384, 4096
    shapes = [(tokens, d_ff, h), (tokens, d_ff, h), (tokens, h, d_ff)]
    total = 0.0
    for m, n, k in shapes:
        total += float(predict_gemm(device, m, n, k))
        total += float(predict_gemm(device, m, k, n, layout="nn"))
        total += float(predict_gemm(device, n, k, m, layout="nt"))
    return total


def _head_dim(device: str, head_dim: int) -> list[str]:
    def per_channel(d: int) -> float:
        attention = (Attention("attention", phase, 4, 32, 32, 4096, 4096, d, d) for phase in ("forward", "dgrad"))
        return sum(predict(one, device).seconds for one in attention) / d

    # More heads' worth of work is no loss.
    what = f"attention, forward and backward, 4 x 32 heads of {head_dim}, s 4096, per channel"
    return _row(device, what, per_channel(head_dim), "128", per_channel(128))


def _row(device: str, what: str, before: float, instead: str, after: float) -> list[str]:
    return [device, what, f"{before * 1e3:.3g} ms", instead, f"{after * 1e3:.3g} ms", f"{1 - after / before:.0%}"]
