"""Totals of fine-tuning with adapters within 1% of what torch's MemTracker sees of peft's LoRA in whole steps."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import memory_oracle as oracle
from adapter_oracle import MATRICES, Tuning, track_adapted
from test_memory_tracker import FURTHER, SMALL, TOLERANCE, model_of
from tiers import every_run

from shapes.frozen import replace
from shapes.memory import memory
from shapes.workload import BASES, Workload

pytestmark = [
    pytest.mark.slow,
    # Not imported with this file: that takes seconds of every worker.
    pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed"),
    pytest.mark.skipif(
        oracle.transformers.__version__.startswith("4."), reason="the classes of transformers 5 are counted"
    ),
]


#: Families that FURTHER has none of, as small as those there are.
TOYS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "n_embd": 256,
        "n_layer": 2,
        "n_head": 8,
        "vocab_size": 1024,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "gpt_neox": {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 1024,
    },
}


def of_tuning(tuning: Tuning, b: int, s: int, attention: Any, checkpointing: Any) -> Workload:
    return Workload(
        b=b,
        s=s,
        attention=attention,
        checkpointing=checkpointing,
        finetune="lora",
        lora_rank=tuning.rank,
        lora_dropout=tuning.dropout,
        lora_targets=",".join(tuning.targets),
        base=tuning.base,
    )


def judge(config: Any, tuning: Tuning, attention: str, checkpointing: str, b: int = 2, s: int = 256) -> None:
    """The total with one microbatch a step and with two within 1%."""
    tracked = track_adapted(config, b, s, tuning, attention=attention, checkpointing=checkpointing == "full")
    workload = of_tuning(tuning, b, s, attention, checkpointing)
    for microbatches, truth in ((1, tracked.alone), (2, tracked.accumulated)):
        found = memory(
            model_of(config),
            replace(workload, precision=tuning.adapters),
            context_bytes=0,
            microbatches=microbatches,
            dropout_mask_bytes=4 if tuning.adapters == "fp32" else 2,  # the CPU's are as wide as what they drop
        )
        assert found.total_bytes == pytest.approx(truth, rel=TOLERANCE)


LORAS = [
    (("q_proj", "v_proj"), 8, "fp32", "eager"),
    (("q_proj", "v_proj"), 64, "bf16", "flash"),
    (MATRICES, 64, "fp32", "flash"),
    (MATRICES, 8, "bf16", "eager"),
]
CASES = [(*lora, checkpointing) for lora in LORAS for checkpointing in ("none", "full")]


@pytest.mark.parametrize(
    ("targets", "rank", "adapters", "attention", "checkpointing"),
    every_run(CASES, (*LORAS[1], "full"), (*LORAS[2], "none")),
)
def test_totals_of_lora_are_within_1_percent_of_memtracker(
    targets: tuple[str, ...], rank: int, adapters: str, attention: str, checkpointing: str
) -> None:
    """fp32 adapters under autocast save casts of their own, 16-bit ones share their input."""
    config = oracle.config_of("llama", **SMALL)
    judge(config, Tuning(targets, rank, adapters=adapters, autocast=adapters == "fp32"), attention, checkpointing)


DROPPED = [(LORAS[0][0], "bf16"), (MATRICES, "fp32")]


@pytest.mark.parametrize(("targets", "adapters"), every_run(DROPPED, DROPPED[1]))
def test_what_dropout_keeps_of_adapters_inputs_is_within_1_percent(targets: tuple[str, ...], adapters: str) -> None:
    tuning = Tuning(targets, 8, dropout=0.1, adapters=adapters, autocast=adapters == "fp32")
    judge(oracle.config_of("llama", **SMALL), tuning, "flash", "none")


@pytest.mark.parametrize(
    ("family", "targets", "adapters"),
    every_run(
        [
            ("gpt2", ("c_attn",), "bf16"),  # positions are added to the leaf that checkpointing makes
            ("gpt_neox", ("query_key_value", "dense_h_to_4h", "dense_4h_to_h"), "fp32"),
            ("phi3", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), "fp32"),
        ],
        "gpt2",
    ),
)
def test_other_families_checkpointed_are_within_1_percent_too(
    family: str, targets: tuple[str, ...], adapters: str
) -> None:
    changes = {**TOYS, **FURTHER}[family]
    tuning = Tuning(targets, 16, adapters=adapters, autocast=adapters == "fp32")
    judge(oracle.config_of(family, **changes), tuning, "flash", "full", s=128)


WIDE = [
    (family, targets, attention, checkpointing)
    for family, targets in (("llama", ("q_proj", "v_proj")), ("llama", MATRICES), ("gpt_neox", ("query_key_value",)))
    for attention in ("flash", "eager")
    for checkpointing in ("none", "full")
]


@pytest.mark.parametrize(("family", "targets", "attention", "checkpointing"), every_run(WIDE, WIDE[0], WIDE[-1]))
def test_a_base_in_fp32_and_the_copies_that_autocast_keeps_of_it_are_within_1_percent(
    family: str, targets: tuple[str, ...], attention: str, checkpointing: str
) -> None:
    """As from_pretrained once loaded it, and litgpt's bf16-mixed: the backward reads each matrix's 16-bit copy."""
    config = oracle.config_of(family, **({**TOYS, **FURTHER, "llama": SMALL}[family]))
    judge(config, Tuning(targets, 16, base="fp32"), attention, checkpointing)


QLORAS = [
    ("nf4", MATRICES, "fp32", "none"),
    ("nf4", MATRICES, "fp32", "full"),
    ("nf4-16", MATRICES, "bf16", "full"),
    ("nf4-16", ("q_proj", "v_proj"), "fp32", "none"),
]


@pytest.mark.parametrize(("base", "targets", "adapters", "checkpointing"), every_run(QLORAS, QLORAS[0]))
def test_totals_of_qlora_are_within_1_percent_of_bitsandbytes_under_memtracker(
    base: str, targets: tuple[str, ...], adapters: str, checkpointing: str
) -> None:
    """What peft makes ready for training is in fp32, hidden states with it: a fifth of this toy."""
    pytest.importorskip("bitsandbytes")
    config = oracle.config_of("llama", **SMALL)
    judge(config, Tuning(targets, 16, adapters=adapters, base=base), "flash", checkpointing)


def test_a_quantised_matrix_takes_what_bitsandbytes_gives_it() -> None:
    """Half a byte an element, a byte for 64 of them and an fp32 constant for 256 of those, to the byte."""
    bitsandbytes, torch = pytest.importorskip("bitsandbytes"), oracle.torch
    rows, columns = 512, 1024
    packed, state = bitsandbytes.functional.quantize_4bit(
        torch.randn(rows, columns), quant_type="nf4", compress_statistics=True
    )
    assert packed.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes == BASES["nf4"] * rows * columns
