"""The helpers people paste into model code: vocabulary, alignment, SwiGLU width."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sizer
from shapes.dtypes import dtype_bytes
from sizer.answers.advice import pad_vocab, round_to_alignment


@pytest.mark.parametrize(
    ("vocab", "options", "expected"),
    [
        (50257, {}, 50304),  # 786 x 64
        (50304, {}, 50304),
        (50257, {"tp": 8}, 50688),  # 99 x 512
        (50257, {"dtype": "fp8"}, 50304),  # 393 x 128
        (50257, {"dtype": "tf32"}, 50272),  # 1571 x 32
        (50257, {"device": "v100", "dtype": "fp16"}, 50264),  # 16 bytes: 6283 x 8
        (50257, {"device": "h100", "dtype": "fp32"}, 50257),  # no tensor cores, nothing to align to
        (1, {}, 64),
    ],
)
def test_a_vocabulary_is_padded_to_whole_rows_of_every_shard(
    vocab: int, options: dict[str, Any], expected: int
) -> None:
    assert pad_vocab(vocab, **options) == expected


@given(
    value=st.integers(1, 2**40), tp=st.integers(1, 64), dtype=st.sampled_from(["bf16", "fp16", "fp8", "tf32", "fp64"])
)
def test_rounding_goes_up_by_less_than_one_step_and_is_done_once(value: int, tp: int, dtype: str) -> None:
    step = 128 // dtype_bytes(dtype) * tp
    rounded = round_to_alignment(value, dtype=dtype, tp=tp)
    assert rounded % step == 0
    assert value <= rounded < value + step
    assert round_to_alignment(rounded, dtype=dtype, tp=tp) == rounded


@given(value=st.integers(1, 10**6), multiple=st.integers(1, 4096), tp=st.integers(1, 16))
def test_a_given_multiple_wins_over_the_types(value: int, multiple: int, tp: int) -> None:
    rounded = round_to_alignment(value, multiple=multiple, tp=tp, dtype="fp8")
    assert rounded % (multiple * tp) == 0
    assert value <= rounded < value + multiple * tp


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"value": 0}, "value"),
        ({"value": -64}, "value"),
        ({"value": 50257.0}, "value"),
        ({"value": True}, "value"),
        ({"value": "50257"}, "value"),
        ({"value": 64, "tp": 0}, "tp"),
        ({"value": 64, "multiple": 0}, "multiple"),
        ({"value": 64, "multiple": True}, "multiple"),
        ({"value": 64, "dtype": "bf17"}, "bf17"),
        ({"value": 64, "device": "h1000"}, "h1000"),
        # bf16 came after Volta: saying that any width will do would be wrong.
        ({"value": 64, "device": "v100", "dtype": "bf16"}, "bf16"),
    ],
)
def test_bad_input_is_an_input_error_naming_the_argument(options: dict[str, Any], named: str) -> None:
    with pytest.raises(sizer.InputError, match=named):
        round_to_alignment(**options)


@pytest.mark.parametrize("hidden", [2048, 4096, 5120])
def test_a_swiglu_width_is_one_that_sz108_accepts_and_is_near_8h_over_3(hidden: int) -> None:
    width = sizer.swiglu_width(hidden, device="h100-sxm")
    assert width % 64 == 0
    # Its default tolerance: 1% of the parameters of the MLP.
    assert width == pytest.approx(8 * hidden / 3, rel=0.011)


@pytest.mark.parametrize("hidden", [0, -1, True, "4096", 4096.0])
def test_a_hidden_size_that_is_none_is_refused(hidden: Any) -> None:
    with pytest.raises(sizer.InputError):
        sizer.swiglu_width(hidden)
