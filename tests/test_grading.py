"""What a suggestion is worth: at equal tokens and devices, and beyond what doing less work saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sizer
from shapes.device import load_device
from shapes.step import Step
from sizer.checking.findings import PricedSuggestion, Report
from sizer.checking.grading import Offer, price_offer, propose, severity
from sizer.rules.base import Finding, Suggestion
from sizer.subject import read_subject

LLAMA = Path(__file__).parent / "data" / "configs" / "llama-3.1-8b.json"


def priced(change: dict[str, int | str], **workload: object) -> tuple[PricedSuggestion, Step]:
    """A change of Llama-3.1-8B on an H100 with its price, and the step before it."""
    offer = offered(change, **workload)
    assert offer is not None
    return offer.priced, offer.step


def offered(change: dict[str, int | str], **workload: object) -> Offer | None:
    return price_offer(Suggestion(change), propose(read_subject(str(LLAMA), **workload), load_device("h100-sxm")))


def gain(share: float, step: Step, *, within_error: bool) -> Offer:
    """An offer that saves so much of ``step``."""
    one = PricedSuggestion({}, -share * step.seconds, 0, 0, within_error)
    return Offer(one, step, frozenset(), {}, "fitted", share * step.seconds)


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
    offer = offered({"d_ff": 12288}, b=4, s=2048)  # 14336 and 12288 are both as aligned as can be
    assert offer is not None
    step = offer.step
    assert offer.priced.step_seconds_change < -0.05 * step.seconds
    assert offer.priced.flops_change < -0.05 * step.flops
    assert offer.saving < 0.01 * step.seconds
    assert offer.priced.within_error
    assert severity(Finding("d_ff", ""), [offer]) == "info"


def test_more_work_is_not_credited_to_a_larger_model() -> None:
    larger = offered({"d_ff": 16384}, b=4, s=2048)
    assert larger is not None
    assert larger.priced.flops_change > 0
    assert larger.saving == -larger.priced.step_seconds_change < 0


def test_a_gain_beyond_the_error_is_a_warning_from_one_percent_of_the_step_on() -> None:
    _, step = priced({"d_ff": 12288}, b=1, s=128)
    for share, grade in ((0.009, "info"), (0.011, "warning")):
        assert severity(Finding("d_ff", ""), [gain(share, step, within_error=False)]) == grade
        assert severity(Finding("d_ff", ""), [gain(share, step, within_error=True)]) == "info"


def test_what_is_asked_outright_is_a_warning_whatever_the_prices_error() -> None:
    _, step = priced({"d_ff": 12288}, b=1, s=128)
    outright = Finding("d_ff", "", violated=True)
    assert severity(outright, []) == "warning"
    assert severity(outright, [gain(0.001, step, within_error=True)]) == "warning"
    # A device that was asked and makes no difference there knows better.
    assert severity(outright, [gain(0.001, step, within_error=True)], measured=True) == "info"


def test_a_default_that_nobody_asked_for_is_no_warning() -> None:
    _, step = priced({"d_ff": 12288}, b=1, s=128)
    assert severity(Finding("b", ""), [gain(0.5, step, within_error=False)], asked=False) == "info"


def test_no_suggestion_is_credited_with_more_than_the_cause_takes() -> None:
    by = propose(read_subject(str(LLAMA), b=1, s=1000), load_device("h100-sxm"))
    found = price_offer(Suggestion({"b": 64}), by, at_most_s=1e-4)
    assert found is not None
    assert found.saving == 1e-4
    assert found.priced.step_seconds_change < -1e-4  # its own price, whatever of it the cause is


def test_what_breaks_another_rule_is_not_offered() -> None:
    assert offered({"vocab": 128257}) is None
    assert offered({"heads": 64, "kv_heads": 16, "head_dim": 100}) is None


def test_a_change_that_is_no_model_has_no_price() -> None:
    assert offered({"heads": 33}) is None


@pytest.mark.parametrize("error", [True, False])
def test_what_cannot_run_is_an_error_whatever_it_saves(error: bool) -> None:
    assert severity(Finding("t", "", error=error), []) == ("error" if error else "info")


def test_one_device_is_compared_on_the_stack_of_several_and_that_is_said() -> None:
    asked: dict[str, Any] = {"device": "h100-sxm", "finetune": "lora", "s": 4096, "b": 1, "gpus": 1}
    name, said = "meta-llama/Llama-3.1-8B", "both steps on megatron-core-te"

    def of_devices(**stack: str) -> tuple[Report, PricedSuggestion]:
        report = sizer.check(name, tp=2, **asked, **stack)
        (finding,) = [one for one in report.findings if "SZ120" in one.codes]
        return report, finding.suggestions[0]

    _, unnamed = of_devices()
    assert (unnamed.change, said in unnamed.note) == ({"tp": 1, "dp": 1}, True)
    report, one = of_devices(stack="megatron-core-te")
    assert said not in one.note
    after = sizer.check(name, **asked, **one.change, stack="megatron-core-te")
    assert after.step.seconds / 2 - report.step.seconds == pytest.approx(one.step_seconds_change)
