"""`sizer bench`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from shapes.errors import InputError, refuse
from shapes.json_form import Named, Values
from sizer.cli.executors import chosen_executor
from sizer.cli.options import Asked, given, say_line, subcommand
from sizer.process import KEPT, working

if TYPE_CHECKING:
    from shapes.measure import Progress
    from shapes.measure.suite import Suite
    from sizer.answers.bench import Bencher, Group, Planned


@subcommand("bench", "bench ray output")
@click.argument("config", required=False, metavar="[all | CONFIG]")
def command(asked: Asked) -> None:
    """Measure operators, a configuration's operators (with their predictions) or a suite on the device at hand.

    `sizer bench all --minutes 25 --out DIR` is half an hour on a new device: the self-test, then every suite.
    `sizer bench -m 1024 -n 1024 -k 1000:1030:1` times products. Results go to the store at once: the same command
    again goes on where this one was stopped.
    """
    everything = asked.config == "all"
    if everything:
        from sizer.answers.bench import every_suite

        asked.suites, asked.config = every_suite(), None
        asked.time_limit = asked.time_limit or 60 * asked.minutes
    _refuse(asked)
    from sizer.answers.bench import SUSTAINED

    settings: Values = {**SUSTAINED} if asked.sustained else {}
    settings |= given({"precision": asked.workload.pop("precision", None), "time_s": asked.time_s})
    if asked.dry_run:
        asked.answer(_planned(asked, settings), " --dry-run")
    else:
        _measure(asked, settings, everything)


def _refuse(asked: Asked) -> None:
    """InputError for options that do not go together."""
    if asked.suites and asked.config is not None:
        raise InputError("expected one of CONFIG and --suite", key="bench")
    for option in ("shard", "dry_run"):
        if vars(asked)[option] and not asked.suites:
            raise InputError("expected --suite FILE with it", key=f"--{option.replace('_', '-')}")


def _planned(asked: Asked, settings: Named) -> Planned:
    from shapes.measure import Settings
    from shapes.measure.runner import ordered
    from sizer.answers.bench import Planned

    usual = Settings()
    return Planned(
        {
            one.name: (
                ordered(list(one.jobs), usual.seed),
                {"time_s": usual.time_s, **one.settings, **settings}["time_s"],
            )
            for one in _suites(asked)
        }
    )


def _measure(asked: Asked, settings: Values, everything: bool) -> None:
    """Exit code 1 where not all could be measured."""
    from shapes.measure import Settings
    from shapes.measure.store import Store
    from sizer.answers.bench import Bench, Bencher, self_test

    with Store.open(asked.store_path, measuring=True) as store:  # what is wrong with it is said before torch loads
        executor = chosen_executor(asked.ray, asked.on, asked.device, Settings(**settings))
        if asked.self_test and not everything:
            tested = self_test(executor)
            asked.answer(tested, " --self-test")
            sys.exit(not tested.passed)
        with working("measuring", KEPT) as told:
            tell, out = partial(_tell, told), asked.out and Path(asked.out)
            bencher = Bencher(executor, store, settings, tell, asked.time_limit, asked.fresh, out)
            if everything:
                groups, passed = bencher.everything(asked.suites, say_line, asked.shard)
            else:
                groups, passed = _groups(bencher, asked), True
    answer = Bench(tuple(groups))
    asked.answer(answer)
    if answer.failed:
        say_line(answer.failed)
    sys.exit(bool(answer.failed) or not passed)


def _tell(told: Callable[..., None], now: Progress) -> None:
    rate = now.best and now.best.tflops
    told(now.done, now.total, f"{rate:.4g} TFLOPS" if rate else "", now.left_s)


def _groups(bencher: Bencher, asked: Asked) -> list[Group]:
    from shapes.measure.jobs import PartName
    from sizer.answers.bench import OPS, jobs_of_op
    from sizer.subject import read_subject

    if asked.suites:
        return bencher.suites(_suites(asked))
    dtypes, said = bencher.dtypes(asked.dtypes), {**vars(asked), **asked.workload}
    if asked.config is not None:
        s = _sizes(asked, "sequence") or (None,)
        refuse(len(s) > 1, "expected one integer", "--sequence", asked.sequence)
        dtype, recipe = next(iter(asked.dtypes), None), said.get("recipe")
        subject = read_subject(asked.config, **given({"dtype": dtype, "s": s[0], "b": asked.batch, "recipe": recipe}))
        return [bencher.parts(subject, said) if asked.op in get_args(PartName) else bencher.configuration(subject)]
    sizes = given({name: _sizes(asked, name) for name in OPS.get(asked.op, {"sizes": ()})["sizes"]})
    return [bencher.operators(jobs_of_op(asked.op, sizes, dtypes, said))]


def _sizes(asked: Asked, name: str) -> tuple[int, ...] | None:
    from shapes.measure.suite import values_of
    from sizer.answers.bench import option_of

    said: str | None = vars(asked)[name]
    try:
        return values_of(said) if said is not None else None
    except ValueError as error:
        expected = str(error) if "invalid literal" not in str(error) else "expected integers and ranges"
        raise InputError(expected, key=option_of(name), value=said) from None


def _suites(asked: Asked) -> list[Suite]:
    from sizer.answers.bench import suites_of

    return suites_of(map(Path, asked.suites), asked.scale, asked.shard)
