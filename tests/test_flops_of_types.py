"""FLOPs of every small setting equal torch's own FlopCounterMode over transformers' classes, or differ as said here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from shapes.model import ModelShape
from shapes.operators import operators
from shapes.operators.types import IndexScores, Operators
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
_REFERENCE = "the class's reference path runs no chunk's products as the kernels do: "
_LOOP, _MASKS = _REFERENCE + "it loops over tokens", _REFERENCE + "it sums masked states of each head, not of a group"
_ROWS, _CONVOLUTION = _REFERENCE + "it solves a chunk row by row", "torch counts a depthwise convolution as products"
#: Types of which torch counts other products of activations alone, and why: those of a recurrence between its
#: projections, and its convolution, which is bound by memory here.
OTHER_CORES = {
    **dict.fromkeys(("mamba", "falcon_mamba", "jamba", "zamba"), _LOOP),
    **dict.fromkeys(("bamba", "granitemoehybrid", "nemotron_h", "falcon_h1", "mamba2", "zamba2"), _MASKS),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear", "lara_mini"), _ROWS
    ),
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3", "recurrent_gemma"), _CONVOLUTION),
    "bailing_hybrid": _ROWS,
    "deepseek_v4": "the class attends to a window and to all entries under a mask, not to those that are chosen",
    "xlstm": "the class multiplies queries by the sum of keys, too, a column beside a state's",
    "minimax": "the first chunk's state is zero, and has no gradient; forward the two are equal",
}
#: Products with a weight.
WEIGHTS = ("mm", "addmm", "_grouped_mm")


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


#: Whose indexer's heads choose each for themselves: nothing is added up.
GROUPED = ("minimax_m3_vl_text",)


def _every_type() -> list[tuple[str, dict[str, Any]]]:
    hybrids = [(family, settings) for family, settings in HYBRIDS.items()]
    # A loop of experts has no gradient on the meta device.
    families = [(label.split()[0], of_family(label)) for label in FAMILIES if label not in LOOPS]
    otherwise = [case for case in SETTINGS if case[0] in OTHERWISE]
    return _cases(defaults=False) + otherwise + families + hybrids


KEPT = ("gpt2", "qwen3_moe", "deepseek_v32", "gemma3n_text", "bailing_hybrid", "mamba2", "lfm2", "t5")


@pytest.mark.parametrize("train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize(("family", "settings"), every_run(_every_type(), *KEPT))
def test_flops_of_every_type_that_torch_can_count(family: str, settings: dict[str, Any], train: bool) -> None:
    config = {"model_type": family, **settings}
    model, s = read_config(config).model, LENGTHS.get(family, S)
    found = listed(replace(model, head=model.head and family not in HEADLESS), s, train=train)
    counted = flops_of_class(config, s, train=train)
    whole = sum(one.flops * one.count for one in found) + more_in_class(model, family, found)
    if family not in OTHER_CORES:
        assert whole == counted.total()
        return
    assert whole != counted.total() or (family == "minimax" and not train), "no reason is left: compare it whole"
    # zamba's class makes the steps of each head by batched products (tests/test_recurrent.py).
    steps = ("mixer.x_proj", "mixer.dt_proj") if family == "zamba" else ()
    matrices = (one for one in found if one.kind in ("gemm", "grouped_gemm") and not one.name.endswith(steps))
    ours = sum(one.flops * one.count for one in matrices)
    assert ours == sum(counted[name] for name in WEIGHTS), OTHER_CORES[family]


def test_every_type_that_differs_is_compared() -> None:
    assert OTHER_CORES.keys() <= {family for family, _ in _every_type()}
