"""What a suggestion is worth: at equal tokens and devices, and beyond what doing less work saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from shapes.device import load_device
from sizer.checking.findings import PricedSuggestion
from sizer.checking.grading import price_suggestion, saving, severity
from sizer.pricing import Pricer, Step
from sizer.rules.base import Finding, Suggestion
from sizer.subject import read_subject

LLAMA = Path(__file__).parent / "data" / "configs" / "llama-3.1-8b.json"


def priced(change: dict[str, int | str], **workload: object) -> tuple[PricedSuggestion, Step]:
    """A change of Llama-3.1-8B on an H100 with its price, and the step before it."""
    subject, pricer = read_subject(str(LLAMA), **workload), Pricer(load_device("h100-sxm"))
    step = pricer.step(subject.operators)
    found = price_suggestion(Suggestion(change), subject, step, pricer)
    assert found is not None
    return found, step


def test_a_larger_microbatch_is_priced_at_equal_tokens() -> None:
    found, step = priced({"b": 8}, b=4, s=2048)
    # Twice the tokens in one step: the same FLOPs a token, and the optimizer's time is shared by twice as many.
    assert found.flops_change == 0
    assert -0.5 * step.seconds < found.step_seconds_change < 0


def test_fewer_shards_are_priced_at_equal_devices() -> None:
    found, step = priced({"t": 1}, b=4, s=2048, t=2)
    # One device does all the work and leaves the other free: without communication that is faster a device.
    assert abs(found.flops_change) < 1e-3 * step.flops
    assert -0.5 * step.seconds < found.step_seconds_change < 0


def test_doing_less_work_is_no_saving() -> None:
    found, step = priced({"d_ff": 12288}, b=4, s=2048)  # 14336 and 12288 are both as aligned as can be
    assert found.step_seconds_change < -0.05 * step.seconds
    assert found.flops_change < -0.05 * step.flops
    assert saving(found, step) < 0.01 * step.seconds
    assert found.within_error
    assert severity(Finding("d_ff", 14336, ""), [(found, step)]) == "info"


def test_more_work_is_not_credited_to_a_larger_model() -> None:
    step = Step((), ())
    slower = PricedSuggestion(
        {"d_ff": 1}, step_seconds_change=0.5, parameters_change=1, flops_change=9, within_error=False
    )
    assert saving(slower, step) == -0.5


def test_a_gain_beyond_the_error_is_a_warning_from_one_percent_of_the_step_on() -> None:
    _, step = priced({"d_ff": 12288}, b=1, s=128)
    for share, grade in ((0.009, "info"), (0.011, "warning")):
        gain = PricedSuggestion({}, -share * step.seconds, 0, 0, within_error=False)
        assert severity(Finding("d_ff", 1, ""), [(gain, step)]) == grade
        unsure = PricedSuggestion({}, -share * step.seconds, 0, 0, within_error=True)
        assert severity(Finding("d_ff", 1, ""), [(unsure, step)]) == "info"


def test_a_change_that_is_no_model_has_no_price() -> None:
    subject, pricer = read_subject(str(LLAMA)), Pricer(load_device("h100-sxm"))
    assert price_suggestion(Suggestion({"heads": 33}), subject, pricer.step(subject.operators), pricer) is None


@pytest.mark.parametrize("error", [True, False])
def test_what_cannot_run_is_an_error_whatever_it_saves(error: bool) -> None:
    assert severity(Finding("t", 3, "", error=error), []) == ("error" if error else "info")
