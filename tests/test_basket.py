"""A basket of devices, some measured and some predicted: whose losses count, and which figures are whose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from measure_fakes import ENVIRONMENT, FakeExecutor

import sizer
from shapes.device import load_device
from shapes.errors import InputError
from shapes.measure import Job, Measurement, NotMeasured
from shapes.measure.executor import Prepared, Settings
from sizer.cli import main
from sizer.pricing import Pricer
from sizer.render import render
from sizer.searching.ranked import SearchResult
from sizer.searching.space import Limits

NAMES = {"h100-sxm": "NVIDIA H100 80GB HBM3", "a100-sxm": "NVIDIA A100-SXM4-80GB", "l40s": "NVIDIA L40S"}
SPACE = {"h": 1024, "tokens": 2048, "limits": Limits(0.02, step=8), "gemm_only": True}


class Device(FakeExecutor):
    """Takes what the cost model says of a device, times ``twist`` of its depth, the width that is searched."""

    def __init__(self, name: str, twist: Callable[[int], float] = lambda n: 1.0) -> None:
        pricer = Pricer(load_device(name))
        super().__init__(lambda job: pricer.step([job.work]).seconds * twist(job.work.k))  # type: ignore[list-item,union-attr]
        self.environment = replace(ENVIRONMENT, device=NAMES[name])

    def finish(self, prepared: Prepared) -> Measurement:
        return replace(super().finish(prepared), environment=self.environment)


def found(tmp_path: Path, *executors: FakeExecutor, device: list[str] | None = None, **more: object) -> SearchResult:
    return sizer.search(**SPACE, device=device, measure=list(executors), store=str(tmp_path / "s.db"), **more)


def test_each_device_s_loss_is_measured_there_and_the_best_is_good_on_both(tmp_path: Path) -> None:
    # What is fast on one is slow on the other, but for n = 2720, second on both: to be found it must be measured,
    # though no race for one device's best would look for it.
    slow = {"h100-sxm": {2712: 1.0, 2720: 1.02, 2736: 1.5}, "a100-sxm": {2712: 1.5, 2720: 1.02, 2736: 1.0}}
    devices = [Device(name, lambda n, own=own: own.get(n, 1.6)) for name, own in slow.items()]
    result = found(tmp_path, *devices, device=["h100-sxm", "a100-sxm"], objective="step-time")
    assert result.best.change == {"d_ff": 2720}
    assert set(result.best.losses) == {"h100-sxm", "a100-sxm"}
    assert max(result.best.losses.values()) < 0.04
    assert all(source.startswith("measured:NVIDIA") for source in result.devices.values())


def test_a_device_that_is_not_there_is_predicted_and_the_table_says_which(tmp_path: Path) -> None:
    result = found(tmp_path, Device("h100-sxm"), device=["h100-sxm", "l40s"])
    assert result.devices["h100-sxm"].startswith("measured:NVIDIA H100")
    assert result.devices["l40s"].startswith("predicted:")
    text = str(render("search", "text", result))
    assert text.startswith("measured on h100-sxm, predicted for l40s: swiglu")
    assert "loss on h100-sxm (measured)" in text
    assert "loss on l40s (predicted)" in text
    assert "l40s: predicted, no such device is here" in text
    assert result.to_dict()["devices"] == dict(result.devices)


def test_a_loss_on_a_predicted_device_is_against_its_best_of_all_candidates(tmp_path: Path) -> None:
    result = found(tmp_path, Device("h100-sxm"), device=["h100-sxm", "l40s"])
    alone = sizer.search(**SPACE, device="l40s")
    values = {one.change["d_ff"]: one.timing.seconds / one.parameters for one in alone.ranked}
    for one in result.ranked:
        assert one.losses["l40s"] == pytest.approx(values[one.change["d_ff"]] / min(values.values()) - 1)


def test_devices_that_agree_with_their_predictions_give_the_predicted_answer(tmp_path: Path) -> None:
    names = ["h100-sxm", "a100-sxm"]
    measured = found(tmp_path, *map(Device, names), device=names)
    predicted = sizer.search(**SPACE, device=names)
    losses = {one.change["d_ff"]: max(one.losses.values()) for one in predicted.ranked}
    assert losses[measured.best.change["d_ff"]] <= losses[predicted.best.change["d_ff"]] + 0.01


def test_without_names_the_devices_are_those_that_are_there(tmp_path: Path) -> None:
    result = found(tmp_path, Device("h100-sxm"), Device("a100-sxm"))
    assert list(result.devices) == ["h100-sxm", "a100-sxm"]


def test_a_second_search_takes_every_sample_from_the_store(tmp_path: Path) -> None:
    names = ["h100-sxm", "a100-sxm"]
    found(tmp_path, *map(Device, names), device=names)
    again = [Device(name) for name in names]
    found(tmp_path, *again, device=names)
    assert [one.asked for one in again] == [[], []]


def test_what_cannot_run_on_one_device_is_no_candidate(tmp_path: Path) -> None:
    class Small(Device):
        def prepare(self, job: Job, settings: Settings | None = None) -> Prepared:
            if job.work.k == 2720:  # type: ignore[union-attr]
                raise NotMeasured("oom", "out of memory")
            return super().prepare(job, settings)

    result = found(tmp_path, Device("h100-sxm"), Small("a100-sxm"))
    assert 2720 not in [one.change["d_ff"] for one in result.ranked]


def test_none_of_the_devices_here_and_a_device_without_a_name_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"several can only be predicted \(--predict\)"):
        found(tmp_path, Device("h100-sxm"), device=["l40s", "b200"])
    with pytest.raises(InputError, match="it is no known device"):
        found(tmp_path, Device("h100-sxm"), FakeExecutor(lambda job: 1e-3))


def test_the_command_measures_on_the_kinds_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def cluster(ray: str | None, on: str | None) -> tuple[FakeExecutor, ...]:
        asked.append((ray, on))
        return Device("h100-sxm"), Device("a100-sxm")

    monkeypatch.setattr("sizer.cli.search.executors", cluster)
    command = ["search", "--h", "1024", "--tokens", "2048", "--gemm-only", "--ray", "auto", "--on", "H100,A100"]
    devices = ["--device", "h100-sxm", "--device", "a100-sxm", "--device", "l40s"]
    result = CliRunner().invoke(main, [*command, *devices, "--store", str(tmp_path / "s.db")], catch_exceptions=False)
    assert result.exit_code == 0
    assert asked == [("auto", "H100,A100")]
    assert result.stdout.startswith("measured on h100-sxm, a100-sxm, predicted for l40s: swiglu")
