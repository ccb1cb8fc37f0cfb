"""FLOPs of every small setting equal torch's own FlopCounterMode over transformers' classes, or differ as said here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from shapes.model import ModelShape
from shapes.model.mixers import RecurrentShape, SharedKeyShape
from shapes.operators import operators
from shapes.operators.types import IndexScores, Operators, Scan, SparseAttention
from shapes.workload import Workload
from sizer.readers import read_config
from tests.test_families import FAMILIES, HEADLESS, LOOPS
from tests.test_families import config as of_family
from tests.test_formula_proofs import OTHERWISE, _cases
from tests.test_readers import SETTINGS
from tests.test_recurrent import HYBRIDS
from tests.tiers import every_run

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

#: Of tokens: whole chunks of every recurrence, and windows of every small setting.
S = 64
#: Windows of a compressor; the tokens of an image.
LENGTHS = {"deepseek_v4": 256, "siglip_vision_model": 196}
#: Types whose class runs other products between its projections than kernels do (`reference_path`, `masked_scores`).
OTHER_CORES = {
    *("mamba", "falcon_mamba", "jamba", "zamba"),
    *("bamba", "granitemoehybrid", "nemotron_h", "falcon_h1", "mamba2", "zamba2"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lara_mini"),
    *("kimi_linear", "bailing_hybrid", "minimax", "xlstm"),
    *("lfm2", "lfm2_moe", "lfm3", "recurrent_gemma", "deepseek_v4"),
}


def _grouped(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """FLOPs of a grouped product, which torch 2.13's counter leaves out: every row meets one matrix."""
    return 2 * prod(a[-2:]) * int(b[-1])


def flops_of_class(config: dict[str, Any], s: int, *, train: bool) -> Counter[str]:
    """Operator -> FLOPs that torch counts for one call of the class that ``config`` names, eager and in bf16."""
    from torch.utils.flop_counter import FlopCounterMode

    from shapes.trace.attention import FusedAttention
    from shapes.trace.config import Built, answers_for, with_class
    from shapes.trace.inputs import example_inputs
    from shapes.trace.recorder import Recorder
    from shapes.trace.run import _backward, masks_where_read, on_meta_device

    def called(built: Built, masks: bool) -> Counter[str]:
        recorder, answers = Recorder(built.module, {}), answers_for(built.settings, s)
        counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: _grouped})
        around = FusedAttention(recorder), answers, built.name
        with on_meta_device(recorder, *around, transformers=True, masks=masks, train=train), counter:
            output = built.module(**example_inputs(built.module, b=1, s=s))
            if train:
                _backward(output)
        return Counter({str(key).removeprefix("aten."): n for key, n in counter.get_flop_counts()["Global"].items()})

    def once(built: Built) -> Counter[str]:
        return masks_where_read(lambda masks: called(built, masks))

    found: Counter[str] = with_class(config, once, attention="eager", dtype="bf16")
    return found


def listed(model: ModelShape, s: int, *, train: bool) -> Operators:
    workload = Workload(b=1, s=s, dtype="bf16", attention="eager", phase="train" if train else "infer")
    return operators(replace(model, towers=()), workload)


def more_in_class(model: ModelShape, family: str, found: Operators) -> int:
    """FLOPs that a class runs more than any kernel.

    They are all pairs of an indexer and the sum over its heads by a product; all experts for every token.
    """
    whole = sum(
        one.count * (2 * one.batch * one.q_len * one.kv_len * one.heads * (one.head_dim + (family not in GROUPED)))
        - one.count * one.flops
        for one in found
        if isinstance(one, IndexScores)
    )
    if family == "llama4_text" and model.moe is not None:
        routed = sum(one.flops * one.count for one in found if one.kind == "grouped_gemm")
        whole += routed * (model.moe.experts - model.moe.top_k) // model.moe.top_k
    return whole


def depthwise(mixer: RecurrentShape, s: int, *, train: bool) -> int:
    """FLOPs that the counter gives to a recurrence's convolution, which has none here: it is bound by memory.

    It is padded at both ends. Of the weight's gradient the counter takes every channel with every other
    (`test_the_counter_takes_a_grouped_convolutions_gradient_too_often`).
    """
    channels = mixer.conv_channels(1)
    forward = 2 * channels * mixer.conv * (s + mixer.conv - 1) if channels else 0
    return forward * (2 + channels if train else 1)


def reference_path(mixer: RecurrentShape, s: int, *, train: bool) -> int:
    """FLOPs that the counter finds in a class's own recurrence more than its kernels run, its convolution aside."""
    scan = Scan("", "forward", mixer.kind, 1, s, mixer.heads, mixer.groups, mixer.head_dim, mixer.state, mixer.chunk)
    products = {name: 2 * batch * m * n * k for name, batch, m, n, k in scan.products}
    passes = 3 if train else 1
    if mixer.kind == "mamba":
        # A loop over tokens, in which a state [channels, state] is read by a vector.
        return passes * 2 * s * mixer.inner * mixer.state
    if mixer.kind == "mamba2":
        # Scores of a group are taken for each of its heads, and states are carried by a product of the chunks and the
        # state before them.
        of_heads = products["scores"] * (mixer.heads // mixer.groups - 1)
        carried = 2 * mixer.heads * (scan.chunks + 1) ** 2 * mixer.head_dim * mixer.state
        return passes * (of_heads + carried)
    if mixer.kind not in ("gated_delta", "kda", "lightning", "mlstm"):
        return 0
    more = 0
    if mixer.kind == "mlstm":
        # Queries read the keys' sum, too, a column beside a state's.
        more += passes * 2 * mixer.heads * s * mixer.state
    if mixer.kind == "kda":
        # Scores are added up channel by channel, as these decay apart.
        more -= passes * (products["scores"] + products["keys_by_keys"])
    if mixer.kind == "gated_delta":
        # A triangular system is solved, of which the counter knows nothing; one of the two gradients is a product.
        more -= (passes - passes // 3) * (products["solved_values"] + products["solved_keys"])
    if train and mixer.kind != "mlstm":
        # The state before the first chunk is zero and has no gradient; nothing reads the state behind the last.
        read = products["across"] + products.get("read_by_keys", 0)
        more -= (read + 2 * products["states"]) // scan.chunks
    return more


def masked_scores(model: ModelShape, found: Operators, s: int, *, train: bool) -> int:
    """FLOPs that DeepSeek-V4's class runs more: under a mask it attends to all tokens and to all entries.

    Kernels attend to a window, and to the entries that are chosen. Residual streams are mixed by a product of each
    token's few, which is bound by memory here.
    """
    ours = sum(one.flops * one.count for one in found if isinstance(one, SparseAttention))
    eager = 0
    for block in model.main.kinds:
        attention = block.attention
        assert isinstance(attention, SharedKeyShape)
        keys = s + (s // attention.compressor.rate if attention.compressor else 0)
        assert block.streams
        mixed = 2 * 2 * s * block.streams.number**2 * model.hidden  # in front of two parts
        eager += block.count * (2 * 2 * attention.heads * s * keys * attention.head_dim + mixed)
    return eager * (3 if train else 1) - ours


#: Whose indexer's heads choose each for themselves, or are not added up by a product.
GROUPED = ("minimax_m3_vl_text", "deepseek_v4")


def _every_type() -> list[tuple[str, dict[str, Any]]]:
    hybrids = [(family, settings) for family, settings in HYBRIDS.items()]
    # A loop of experts has no gradient on the meta device.
    families = [(label.split()[0], of_family(label)) for label in FAMILIES if label not in LOOPS]
    otherwise = [case for case in SETTINGS if case[0] in OTHERWISE]
    return _cases(defaults=False) + otherwise + families + hybrids


KEPT = ("gpt2", "qwen3_moe", "qwen3_5_text", "deepseek_v32", "gemma3n_text", "bailing_hybrid", "mamba2", "lfm2", "t5")


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize(("family", "settings"), every_run(_every_type(), *KEPT))
def test_flops_of_every_type_that_torch_can_count(family: str, settings: dict[str, Any], train: bool) -> None:
    config = {"model_type": family, **settings}
    model, s = read_config(config).model, LENGTHS.get(family, S)
    found = listed(replace(model, head=model.head and family not in HEADLESS), s, train=train)
    more = more_in_class(model, family, found)
    mixers = [(block.mixer, block.count) for block in model.main.kinds if block.mixer]
    beside = sum(n * (depthwise(one, s, train=train) + reference_path(one, s, train=train)) for one, n in mixers)
    if family == "deepseek_v4":
        beside += masked_scores(model, found, s, train=train)
    assert (beside != 0) == (family in OTHER_CORES and (family, train) != ("minimax", False))
    whole = sum(one.flops * one.count for one in found)
    assert whole + more + beside == flops_of_class(config, s, train=train).total()


def test_every_type_that_differs_is_compared() -> None:
    assert {family for family, _ in _every_type()} >= OTHER_CORES


def test_the_counter_takes_a_grouped_convolutions_gradient_too_often() -> None:
    """The same arithmetic, written as one convolution a channel, counts less: forward, and two gradients of as much."""
    from torch.utils.flop_counter import FlopCounterMode

    channels, kernel, s = 6, 4, 16
    x, weight = torch.randn(1, channels, s, requires_grad=True), torch.randn(channels, 1, kernel, requires_grad=True)

    def apart() -> Any:
        each = zip(x.split(1, 1), weight.split(1), strict=True)
        return torch.cat([torch.nn.functional.conv1d(*one, padding=kernel - 1) for one in each], 1)

    def grouped() -> Any:
        return torch.nn.functional.conv1d(x, weight, padding=kernel - 1, groups=channels)

    counted, gradients = [], []
    for run in (apart, grouped):
        x.grad = weight.grad = None
        with FlopCounterMode(display=False) as counter:
            run().sum().backward()
        counted.append(counter.get_total_flops())
        gradients.append((x.grad, weight.grad))
    assert all(torch.allclose(one, other) for one, other in zip(*gradients, strict=True))
    forward = 2 * channels * kernel * (s + kernel - 1)
    assert counted == [3 * forward, (2 + channels) * forward]
