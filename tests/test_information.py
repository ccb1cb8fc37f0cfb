"""Which cells of a suite come first with --budget: error times use, a second of device time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from shapes.cost import predict
from shapes.device import load_device
from shapes.measure import Job, MemoryBound, Settings
from shapes.measure.suite import load_suite
from shapes.operators import Gemm
from sizer.answers.information import Planned, by_information, cell_of, use_of, uses_of
from sizer.cli import main

SUITES = Path(__file__).parents[1] / "reports" / "suites"
H100 = load_device("h100-sxm")
SETTINGS = Settings()


def product(m: int, n: int, k: int, dtype: str = "bf16") -> Job:
    return Job(Gemm("x", "forward", m, n, k, dtype=dtype))


#: Two cells that the rules turn on about as often: odd widths in wgrad's m and in dgrad's k.
WGRAD = [Job(Gemm("x", "wgrad", 4098 + 4 * i, 2048, 4096, layout="nt")) for i in range(4)]
DGRAD = [Job(Gemm("x", "dgrad", 4096, 2048, 4098 + 4 * i, layout="nn")) for i in range(4)]


def planned(*jobs: Job, known: tuple[Job, ...] = (), budget_s: float = 540) -> Planned:
    return by_information(jobs, H100, SETTINGS, budget_s, {one.key for one in known})


def test_what_the_rules_turn_on_are_misaligned_products_and_vocabularies() -> None:
    uses = uses_of(H100)
    misaligned, odd_batch = cell_of(product(16384, 50257, 4096)), cell_of(Job(MemoryBound("softmax", 8, 8)))
    assert use_of(misaligned, uses) > 10 * use_of(odd_batch, uses)


def test_of_two_products_of_one_use_the_worse_predicted_comes_first() -> None:
    near, far = product(4096, 4096, 4096), product(4096, 4096, 4096, "fp8")
    errors = [predict(one.work, H100).error for one in (near, far)]  # type: ignore[arg-type]
    assert errors[0] < errors[1]
    first = planned(near, far).jobs[0]
    assert first.key == far.key


def test_a_cell_that_was_looked_at_waits_for_another_that_was_not() -> None:
    order = [cell_of(one) for one in planned(*WGRAD, *DGRAD).jobs]
    assert {order[0], order[1]} == {cell_of(WGRAD[0]), cell_of(DGRAD[0])}


def test_what_the_store_has_counts_as_looked_at_and_costs_nothing() -> None:
    favourite = cell_of(planned(*WGRAD, *DGRAD).jobs[0])
    mine = WGRAD if favourite == cell_of(WGRAD[0]) else DGRAD
    again = planned(*WGRAD, *DGRAD, known=tuple(mine[:3]))
    assert {one.key for one in again.jobs[:3]} == {one.key for one in mine[:3]}
    assert again.expected_s[2] == 0.0
    assert cell_of(again.jobs[3]) != favourite


def test_the_order_is_the_priority_and_every_job_is_in_it_once() -> None:
    jobs = load_suite(SUITES / "control.toml").jobs
    plan = by_information(jobs, H100, SETTINGS, 540)
    assert sorted(one.key for one in plan.jobs) == sorted(one.key for one in jobs)
    assert [one.priority for one in plan.jobs] == list(range(300))
    assert list(plan.expected_s) == sorted(plan.expected_s)


def test_more_is_learnt_within_a_budget_than_by_the_file_s_order() -> None:
    from sizer.answers.information import _priced

    jobs = load_suite(SUITES / "misalignment.toml").jobs[::7]
    plan = by_information(jobs, H100, SETTINGS, 30)
    worth = {one.key: value for one, (value, _) in zip(jobs, _priced(jobs, H100), strict=True)}
    assert 20 < plan.within < len(jobs)

    def cells_and_worth(chosen: tuple[Job, ...]) -> tuple[int, float]:
        return len({cell_of(one) for one in chosen}), sum(worth[one.key] for one in chosen)

    by_file, by_use = cells_and_worth(jobs[: plan.within]), cells_and_worth(plan.jobs[: plan.within])
    assert by_use[0] > by_file[0]
    assert by_use[1] > by_file[1]


def test_parts_are_worth_what_their_operators_are() -> None:
    jobs = load_suite(SUITES / "layers.toml").jobs
    plan = by_information(jobs, H100, SETTINGS, 540)
    assert {one.key for one in plan.jobs} == {one.key for one in jobs}
    assert plan.within == len(jobs)


def test_a_dtype_that_the_device_lacks_comes_last_and_is_no_error() -> None:
    a100 = load_device("a100-sxm")
    fp8, bf16 = product(4096, 4096, 4098, "fp8"), product(4096, 4096, 4098)
    order = by_information([replace(fp8, kernel="fast_accum"), bf16], a100, SETTINGS, 540).jobs
    assert order[0].key == bf16.key


def test_the_dry_run_says_what_fits_and_lists_the_most_telling_first() -> None:
    suite = str(SUITES / "control.toml")
    result = CliRunner().invoke(main, ["bench", "--suite", suite, "--budget", "20", "--dry-run"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "control: 300 jobs"
    assert [line.split()[0] for line in lines[1:-1]] == [str(place) for place in range(300)]
    assert lines[-1].startswith("control: by expected information on h100-sxm; about ")
    assert lines[-1].endswith(" of 300 jobs fit in 20 s")
    part = CliRunner().invoke(main, ["bench", "--suite", suite, "--budget", "20", "--shard", "2/3", "--dry-run"])
    assert [line.split()[0] for line in part.output.splitlines()[1:-1]] == [str(place) for place in range(1, 300, 3)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-m", "8", "-n", "8", "-k", "8", "--budget", "9"), "--budget: expected --suite FILE with it"),
        (("--suite", "x.toml", "--budget", "9", "--time-limit", "9"), "expected one of --budget and --time-limit"),
    ],
)
def test_a_budget_wants_a_suite_and_no_other_limit(arguments: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 2
    assert says in result.output


def test_a_suite_is_measured_in_the_order_of_information(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("shapes.measure.backend.cpu_cache_bytes", lambda: 2**14)
    suite = tmp_path / "tiny.toml"
    suite.write_text('title = "t"\n[[sweep]]\nop = "gemm"\nlabel = "x"\nm = 32\nn = 32\nk = [31, 32]\n')
    command = ["bench", "--suite", str(suite), "--budget", "30", "--device", "cpu", "--store", str(tmp_path / "s.db")]
    result = CliRunner().invoke(main, [*command, "--max-time", "0.002", "--precision", "0.9"])
    assert result.exit_code == 0, result.output
    assert "2 measured, 0 from the store" in result.output
    assert "tiny: by expected information on h100-sxm; about 2 of 2 jobs fit in 30 s" in result.output
