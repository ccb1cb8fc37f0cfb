"""The measurement store: round trips, several writers, other schemas, foreign and damaged files, and prune."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from measure_fakes import ENVIRONMENT, measurement

from shapes.errors import InputError
from shapes.measure import store as store_file
from shapes.measure.jobs import Job, swiglu
from shapes.measure.record import read_export
from shapes.measure.store import SCHEMA_VERSION, Store, default_path
from shapes.operators.types import Gemm
from sizer.cli import main


def job(k: int) -> Job:
    return Job(Gemm("any name", "forward", 64, 64, k, dtype="fp32"), label="test")


def filled(path: Path, ks: range) -> Path:
    with Store.open(path) as store:
        store.add(measurement(job(k), np.full(12, k * 1e-6)) for k in ks)
    return path


def test_what_goes_in_comes_out_with_every_sample(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).lognormal(-7, 0.1, 37)
    one = measurement(
        Job(swiglu(64, 32, 96)), samples, control_s=1e-4, peak_bytes=12345, clocks={"sm_mhz": 1980, "throttle": []}
    )
    with Store.open(tmp_path / "s.db") as store:
        assert store.add([one]) == 1
        back = store.find(one.key, ENVIRONMENT)
    assert back == one  # samples are compared below: arrays do not compare in one word
    assert np.array_equal(back.samples, samples)
    assert back.environment.source == "measured:Fake 1 torch 0.0"


def test_the_key_leaves_out_the_name_and_the_count_and_nothing_else() -> None:
    base = Gemm("a", "forward", 64, 64, 64)
    assert Job(base).key == Job(replace(base, name="b", count=7)).key
    for change in ({"m": 65}, {"layout": "nn"}, {"dtype": "fp16"}, {"phase": "wgrad"}, {"batch": 2}):
        assert Job(base).key != Job(replace(base, **change)).key
    assert Job(base).key != Job(base, "fast_accum").key


def test_another_driver_or_torch_or_harness_does_not_answer_but_another_card_of_the_name_does(tmp_path: Path) -> None:
    one = measurement(job(8), np.full(12, 1e-3))
    with Store.open(tmp_path / "s.db") as store:
        store.add([one])
        for change in ({"driver": "2.0"}, {"versions": (("torch", "9"),)}, {"harness": 99}, {"device": "Fake 2"}):
            assert store.find(one.key, replace(ENVIRONMENT, **change)) is None
        assert store.find(one.key, replace(ENVIRONMENT, uuid="another card")) is not None


def _write(path: str, first: int, count: int) -> None:
    with Store.open(path) as store:
        for k in range(first, first + count):
            store.save_unfinished({job(k).key: (np.ones(3), np.ones(3))}, ENVIRONMENT)
            store.add([measurement(job(k), np.full(12, 1e-6))])


@pytest.mark.slow
def test_four_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path, each = str(tmp_path / "s.db"), 60
    context = multiprocessing.get_context("fork")
    # Nobody has made the file: the four also race to create it.
    writers = [context.Process(target=_write, args=(path, 1 + number * each, each)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
        assert writer.exitcode == 0
    with Store.open(path) as store:
        found = sorted(one.description["k"] for one in store.measurements())
    assert found == list(range(1, 4 * each + 1))


def test_a_store_whose_header_another_process_moves_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, program_of, looks = filled(tmp_path / "s.db", range(1, 3)), store_file._program_of, list[Path]()

    def torn(place: Path) -> int | None:
        looks.append(place)
        return program_of(place) if len(looks) > 2 else None

    monkeypatch.setattr(store_file, "_program_of", torn)
    with Store.open(path) as store:
        assert len(list(store.measurements())) == 2
    assert len(looks) == 3


def test_a_store_of_another_schema_is_set_aside_by_those_who_measure(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", range(1, 3))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(InputError, match=f"schema version {SCHEMA_VERSION + 1}, not {SCHEMA_VERSION}"):
        Store.open(path)
    with Store.open(path, measuring=True) as store:
        assert store.count() == 0
    assert len(list(tmp_path.glob("s.db.damaged-*"))) >= 1


def _foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
        connection.commit()


def _damaged(path: Path) -> None:
    filled(path, range(1, 200))
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content) - 512, 4096):
        content[start : start + 512] = b"\xa5" * 512
    path.write_bytes(content)


def _cut_short(path: Path) -> None:
    filled(path, range(1, 200))
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.write_text("hello, I am a letter\n"), "another kind of file"),
        (lambda path: path.write_bytes(b""), "another kind of file"),
        (_foreign_database, "another program's database"),
        (_damaged, "damaged"),
        (_cut_short, "damaged"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused_in_one_line_and_left_untouched(tmp_path: Path, make, says: str) -> None:
    path = tmp_path / "file"
    make(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=says) as caught:
        Store.open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_missing_store_is_an_error_for_those_who_only_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="existing store"):
        Store.open(tmp_path / "none.db", create=False)
    assert not list(tmp_path.iterdir())


def test_a_measurement_that_goes_on_from_another_stands_in_its_place_in_whatever_order_they_come(
    tmp_path: Path,
) -> None:
    """A search that is gone on with finishes its kernels again, with the samples that it had and more."""
    samples = np.linspace(1e-3, 2e-3, 24)
    short, longer = (replace(measurement(job(8), samples[:count]), created=count) for count in (16, 24))
    apart = measurement(job(8), samples[8:])  # taken by another: no part of it
    for number, order in enumerate(([short, longer, apart], [apart, longer, short], [longer, short, apart, longer])):
        with Store.open(tmp_path / f"{number}.db") as store:
            for one in order:
                store.add([one])
            kept = sorted(len(one.samples) for one in store.measurements())
        assert kept == [16, 24]
        with Store.open(tmp_path / f"{number}.db") as store:
            assert [one.uid for one in store.measurements() if len(one.samples) == 16] == [apart.uid]


def test_prune_deletes_what_failed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        store.add([measurement(job(2), np.full(12, 1.0), created=3.0)])
        store.add([replace(measurement(job(3), np.full(12, 1.0)), status="oom", seconds=None, low=None, high=None)])
        assert (store.prune(), store.prune()) == (1, 0)
        assert [one.description["k"] for one in store.measurements()] == [2]


def test_an_export_is_imported_whole_and_a_wrong_line_adds_nothing(tmp_path: Path, monkeypatch) -> None:
    source = filled(tmp_path / "1.db", range(1, 6))
    target = str(tmp_path / "2.db")
    exported = tmp_path / "all.jsonl"
    runner = CliRunner()
    assert runner.invoke(main, ["store", "--store", str(source), "export", "-o", str(exported)]).exit_code == 0
    assert "5 added" in runner.invoke(main, ["store", "--store", target, "import", str(exported)]).output
    assert "0 added" in runner.invoke(main, ["store", "--store", target, "import", str(exported)]).output
    with Store.open(source) as one, Store.open(target) as two:
        assert list(one.measurements()) == list(two.measurements())
    lines = exported.read_text().splitlines()
    broken = tmp_path / "broken.jsonl"
    broken.write_text(lines[0].replace(json.loads(lines[0])["uid"], "new") + "\n{}\n")
    failed = runner.invoke(main, ["store", "--store", target, "import", str(broken)])
    assert failed.exit_code == 2
    assert "line 2" in failed.output
    with Store.open(target) as store:
        assert store.count() == 5


def test_export_gives_the_flat_fields_that_calibration_reads(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db", range(8, 9))
    row = json.loads(CliRunner().invoke(main, ["store", "--store", str(path), "export"]).output)
    wanted = {
        "kind": "gemm",
        "phase": "forward",
        "layout": "tn",
        "dtype": "fp32",
        "batch": 1,
        "m": 64,
        "n": 64,
        "k": 8,
        "seconds": 8e-6,
        "device": "Fake 1",
        "status": "ok",
    }
    assert {key: row[key] for key in wanted} == wanted


def test_csv_defuses_what_a_spreadsheet_would_run(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        store.add([measurement(job(1), np.full(12, 1.0), label="=HYPERLINK(1)")])
    output = CliRunner().invoke(main, ["store", "--store", str(path), "export", "--format", "csv"]).output
    assert "'=HYPERLINK(1)" in output


def test_the_default_place_is_the_variable_then_the_cache(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIZER_STORE", str(tmp_path / "mine.db"))
    assert default_path() == tmp_path / "mine.db"
    monkeypatch.delenv("SIZER_STORE")
    assert default_path().name == "measurements.db"
    assert "sizer" in str(default_path().parent)


def test_reading_an_export_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.jsonl, line 2"):
        list(read_export(["\n", "not json\n"], "x.jsonl"))


def test_the_newest_measurement_of_the_work_is_found(tmp_path: Path) -> None:
    older, newer = (
        measurement(job(8), np.full(12, seconds), created=created) for seconds, created in ((1.0, 1.0), (2.0, 2.0))
    )
    with Store.open(tmp_path / "s.db") as store:
        store.add([newer, older])  # whichever was written last
        assert store.find(newer.key, ENVIRONMENT).seconds == 2.0


def test_a_finished_measurement_takes_the_place_of_its_unfinished_samples(tmp_path: Path) -> None:
    done, other = job(8).key, job(9).key
    with Store.open(tmp_path / "s.db") as store:
        store.save_unfinished({key: (np.ones(3), np.ones(3)) for key in (done, other)}, ENVIRONMENT)
        store.add([measurement(job(8), np.full(12, 1.0))])
        assert list(store.unfinished([done, other], ENVIRONMENT)) == [other]


WRONG_ROWS: list[tuple[str, dict[str, object]]] = [
    ("uid", {"uid": [1]}),
    ("flops", {"flops": 1e999}),
    ("low", {"low": "x"}),
    ("seconds", {"seconds": None}),
    ("seconds", {"low": 2.0}),
    ("samples", {"samples": [1e-6, None]}),
    ("samples", {"samples": [-1.0]}),
    ("status", {"status": ["ok"]}),
    ("created", {"created": True}),
    ("label", {"label": {"a": 1}}),
    ("label", {"label": "x" * 20_000}),
    ("description.kind", {"description": {}}),
    ("description", {"description": [1]}),
    ("description.m", {"description": {"kind": "gemm", "m": "64"}}),
    ("description.m", {"description": {"kind": "gemm", "m": 2**70}}),
    ("environment.device", {"environment": {"device": None, "versions": {}, "harness": 1}}),
    # Which would be written to a terminal as it is.
    ("environment.device", {"environment": {"device": "a\n\x1b[31mb", "versions": {}, "harness": 1}}),
    ("environment.harness", {"environment": {"device": "a", "versions": {}, "harness": 2**80}}),
]


@pytest.mark.parametrize(("key", "change"), WRONG_ROWS, ids=range(len(WRONG_ROWS)))
def test_a_wrong_field_of_an_import_is_named_and_nothing_is_stored(
    tmp_path: Path, key: str, change: dict[str, object]
) -> None:
    good = measurement(job(1), np.full(12, 1.0)).row()
    file, target = tmp_path / "x.jsonl", tmp_path / "t.db"
    file.write_text(json.dumps(good) + "\n" + json.dumps({**good, "uid": "other", **change}) + "\n")
    other = tmp_path / "first.jsonl"
    other.write_text(json.dumps({**good, "uid": "first"}) + "\n")
    result = CliRunner().invoke(main, ["store", "--store", str(target), "import", str(other), str(file)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"sizer: {file}, line 2: {key}"), result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not target.exists()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "[1]", "1", "\x00", '{"description": NaN}'])
def test_what_is_no_row_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"x\.jsonl, line 1"):
        list(read_export([text], "x.jsonl"))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (sqlite3.SQLITE_FULL, "the disk is full"),
        (sqlite3.SQLITE_IOERR_WRITE, "the disk is full"),
        (sqlite3.SQLITE_READONLY, "cannot be written"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "another process has been writing for 60 s"),
        (sqlite3.SQLITE_IOERR_READ, "the disk does not answer"),
        (sqlite3.SQLITE_CORRUPT, "the store is damaged"),
    ],
)
def test_what_goes_wrong_with_a_store_is_a_line_that_says_what_to_do(code: int, says: str) -> None:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    with Store.in_memory() as store, pytest.raises(InputError, match=says), store.transaction():
        raise error
