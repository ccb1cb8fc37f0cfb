"""Ctrl-C prints the best that is known by then and how to go on; a line says what is under way until then.

A signal is raised by the program itself at a chosen moment: nothing waits for a clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from measure_fakes import FakeExecutor

import sizer
from reports.suites.everything import exhaustive
from shapes.columns import IntegerTable, Split
from shapes.errors import refuse
from shapes.measure.jobs import Job
from shapes.measure.runner import Progress, measure
from shapes.measure.suite import sweep_jobs
from shapes.program import REQUESTS
from sizer.answers.plan import Candidate
from sizer.process import working
from sizer.searching import pricing
from sizer.searching.strategies import Outcome, Race, racing

ROOT = Path(__file__).parents[1]
NAMES = ("gpt2", "llama-3.1-8b", "qwen2.5-7b")
GPT2, LLAMA, QWEN = (str(ROOT / f"tests/data/configs/{name}.json") for name in NAMES)
SPLIT = ("--gpus", "4", "--global-batch", "16")
#: Runs the program; ``moment``'s function asks for an end when it is called for the n-th time.
PROGRAM = """
import functools, importlib, itertools, signal, sys
moment, number, at, *words = sys.argv[1:]
module, _, name = moment.partition(":")
module = importlib.import_module(module)
original, calls = getattr(module, name), itertools.count(1)
@functools.wraps(original)
def asked(*arguments, **named):
    if next(calls) == int(at):
        signal.raise_signal(int(number))
    return original(*arguments, **named)
asked.__kwdefaults__ = getattr(original, "__kwdefaults__", None)  # which the command line reads
setattr(module, name, asked)
sys.argv = ["sizer", *words]
from sizer.__main__ import run
run()
"""


def interrupted(
    moment: str, at: int, *words: str, number: signal.Signals = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, moment, str(int(number)), str(at), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_plan_that_is_interrupted_prints_the_fastest_splits_so_far(number: signal.Signals) -> None:
    words = ("plan", GPT2, *SPLIT, "--format", "json")
    done = interrupted("sizer.answers.plan:_priced", 4, *words, number=number)
    assert done.returncode == 128 + number
    said = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert done.stderr.startswith(f"sizer: {said}, pricing splits: 1 of ")
    assert "; best so far: " in done.stderr
    assert done.stderr.endswith("; the answer is of what was priced, the same command prices all\n")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["fitting"] == 4


def test_a_plan_knows_a_way_as_soon_as_its_first_split_is_priced() -> None:
    """Memory was counted for all splits first: of DeepSeek-V3 on 2,048 devices nothing was known for 20 seconds."""
    done = interrupted("sizer.answers.plan:_fitting", 3, "plan", GPT2, *SPLIT, "--format", "json")
    assert done.returncode == 130
    assert done.stderr.startswith("sizer: interrupted, pricing splits: 3 of ")
    assert json.loads(done.stdout)["fitting"] > 0


def test_a_plan_that_is_interrupted_before_any_split_is_priced_is_a_line() -> None:
    done = interrupted("sizer.answers.plan:memory", 1, "plan", GPT2, *SPLIT)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "sizer: interrupted, pricing splits; nothing is known yet\n"


def test_a_second_signal_ends_at_once() -> None:
    twice = PROGRAM.replace("if next(calls) == int(at):", "if next(calls) >= int(at):")
    done = subprocess.run(
        [sys.executable, "-c", twice, "sizer.answers.plan:memory", "2", "1", "plan", GPT2, *SPLIT],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 130
    assert done.stdout == ""


@pytest.mark.slow
def test_a_predicted_search_that_is_interrupted_ranks_what_was_priced() -> None:
    # Head dimensions of 64 and 128, of which one is priced by then.
    words = ("search", LLAMA, "--what", "model", "--predict", "--tolerance", "5%", "--format", "json")
    done = interrupted("sizer.searching.pricing:_estimated", 1, *words)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("sizer: interrupted, pricing: ")
    found = json.loads(done.stdout)
    assert found["excluded"]["the interrupt"] > 0
    assert found["candidates"]


@pytest.mark.slow
def test_a_search_of_layouts_that_is_interrupted_early_has_a_best_of_what_was_priced() -> None:
    words = ("search", QWEN, "--what", "model", "--predict", "--layouts", "--gpus", "8", "--global-batch", "64")
    done = interrupted("sizer.searching.pricing:_estimated", 1, *words, "--format", "json")
    assert done.returncode == 130, done.stderr
    found = json.loads(done.stdout)
    (best,) = found["candidates"]
    own, layout = found["baseline"]["layout"], best["layout"]
    assert layout == own, "as the baseline is spread"
    assert best["seconds"] > 0


def test_a_search_to_be_served_that_is_interrupted_has_the_decode_steps_of_what_was_priced() -> None:
    words = ["search", "deepseek-ai/DeepSeek-V2-Lite", "--what", "model", "--limit", "vary=mla-heads", "--predict"]
    words += ["--layouts", "--gpus", "8", "--global-batch", "64", "--serving", "microbatch=64,context=8k,ep=8,dp=8"]
    done = interrupted("sizer.searching.pricing:_estimated", 1, *words, "--format", "json")
    assert done.returncode == 130, done.stderr
    found = json.loads(done.stdout)
    (best,) = found["candidates"]
    assert min(one["decode_seconds"] for one in (found["baseline"], best)) > 0
    assert best["seconds"] > 0
    assert not [one for one in found["excluded"] if one.startswith("the split that serves")]


@pytest.mark.slow
def test_outside_of_what_ends_in_order_a_signal_is_a_line() -> None:
    done = interrupted("sizer.answers.memory_breakdown:memory", 1, "memory", GPT2)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sizer: interrupted\n")


#: Runs the program; its end is asked for as its first module is imported.
EARLY = """
import builtins, signal
original = builtins.__import__
def asked(name, *rest):
    if name == "shapes.program":
        signal.raise_signal(signal.SIGINT)
    return original(name, *rest)
builtins.__import__ = asked
from sizer.__main__ import run
run()
"""


def test_a_signal_before_anything_of_the_program_is_loaded_is_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sizer: interrupted\n")


@pytest.fixture
def requests() -> Iterator[list[int]]:
    REQUESTS.clear()
    yield REQUESTS
    REQUESTS.clear()


def test_after_a_request_pricing_goes_on_until_something_is_known(
    requests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Heads of three sizes, whose steps are priced apart. A layout that does not split the first has no price for them.
    asked: list[int] = []

    def estimated(_space: Any, _pricer: Any, part: IntegerTable) -> Any:
        heads = part["heads"]
        if not isinstance(heads, int):
            raise Split(heads)
        asked.append(heads)
        return pricing._UNPRICED if len(asked) == 1 else (1.0, 2.0, 3.0, 4.0)

    monkeypatch.setattr(pricing, "_estimated", estimated)
    changes = [{"layers": layers, "heads": heads} for heads in (3, 4, 8) for layers in range(1, pricing.SHOWN)]
    requests.append(signal.SIGINT)
    found = pricing.estimates(cast(Any, None), changes, cast(Any, None))
    assert len(asked) == 2
    assert np.isfinite(found.seconds).sum() == len(changes) / 3


def jobs(count: int) -> list[Job]:
    sweep = {"op": "gemm", "m": [64], "n": [64], "k": list(range(64, 64 * count + 1, 64)), "dtypes": ["fp32"]}
    return list(sweep_jobs({**sweep, "layouts": ["tn"], "label": "t"}, "t"))


def test_a_sweep_ends_after_the_job_at_which_an_end_is_asked_for_and_says_what_is_left(requests: list[int]) -> None:
    seen: list[Progress] = []

    def told(now: Progress) -> None:
        seen.append(now)
        if now.done == 3:
            requests.append(signal.SIGINT)

    sweep = measure(jobs(9), executor=FakeExecutor(lambda one: 1e-6), progress=told)
    assert (len(sweep.results), len(sweep.left)) == (3, 6)
    assert seen[-1].best == max(sweep.results.values(), key=lambda one: one.tflops or 0)


def test_a_sweep_after_the_request_starts_nothing(requests: list[int]) -> None:
    requests.append(signal.SIGINT)
    sweep = measure(jobs(2), executor=FakeExecutor(lambda one: 1e-6))
    assert (len(sweep.results), len(sweep.left)) == (0, 2)


def test_a_plan_of_the_library_goes_through_and_tells_the_best_each_time(requests: list[int]) -> None:
    told: list[tuple[int, int, Candidate]] = []
    answer = sizer.plan(GPT2, gpus=2, global_batch=4, progress=lambda *one: told.append(one))
    splits = told[-1][1]
    assert [one[0] for one in told] == list(range(1, splits + 1))  # each fits in some way
    assert told[-1][2].seconds == answer.candidates[0].seconds
    assert [one[2].seconds for one in told] == sorted((one[2].seconds for one in told), reverse=True)


@pytest.mark.parametrize("strategy", [exhaustive, racing])
def test_a_measured_search_that_is_interrupted_answers_with_the_best_of_what_was_sampled(
    strategy: Callable[[Race], Outcome], requests: list[int]
) -> None:
    """64 candidates, the 40th the fastest; an end is asked for when so many runs were made."""
    noise, runs = np.random.default_rng(0), [0]
    seconds = np.where(np.arange(64) == 40, 0.9e-3, 1e-3)

    def sample(index: int, count: int) -> np.ndarray:
        runs[0] += count
        if runs[0] > 100:
            requests.append(signal.SIGINT)
        return seconds[index] * noise.lognormal(0, 0.001, count)

    told: list[tuple[int, int, int]] = []
    race = Race(
        list(np.full(64, 1e-3)),
        0.1,
        sample,
        out_of_time=lambda: bool(requests),
        progress=lambda *one: told.append(one),
    )
    outcome = strategy(race)
    assert not outcome.finished
    assert 100 < outcome.samples < 300
    assert outcome.best in outcome.ratios


def test_the_line_says_what_is_under_way_and_is_gone_before_the_answer() -> None:
    """On a terminal of its own, with no patience at all; the answer goes elsewhere."""
    script = "import sizer.process as p\np.PATIENCE_S = p.TICK_S = 1e-3\n" + PROGRAM
    # So many splits that a busy machine draws a line of some of them.
    words = ("sizer.answers.plan:_priced", "0", "-1", "plan", GPT2, "--gpus", "64", "--global-batch", "256")
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=terminal,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(master, 1 << 16):
                shown += part
        answer = process.stdout.read() if process.stdout is not None else b""
    os.close(master)
    assert b"pricing splits: " in shown
    assert b"; best so far: dp 64, ZeRO 1, b 4, " in shown
    assert shown.endswith(b"\n\x1b[?25h\r\x1b[1A\x1b[2K")  # the cursor is back, on an empty line
    assert shown.count(b"\n") == 1
    assert answer.startswith(b"recommended ")


@pytest.mark.parametrize(
    ("told", "fails", "said"),
    [
        (False, True, "; nothing is known yet"),
        (True, True, "; the answer is of those"),
        (False, False, "; the answer is of those"),  # it came before there was anything to tell
    ],
)
def test_an_interrupt_says_what_the_answer_is_of(
    told: bool, fails: bool, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def ends() -> None:
        with working("pricing splits", "the answer is of those") as tell:
            if told:
                tell(1, 4)
            REQUESTS.append(signal.SIGINT)
            refuse(fails, "nothing")

    with pytest.raises(SystemExit) if fails else contextlib.nullcontext():
        ends()
    REQUESTS.clear()  # of this process, which goes on
    shown = capfd.readouterr().err
    assert said in shown
    assert ("1 of 4" in shown) is told
