"""A store survives kills, moves and full disks; a damaged one is set aside, which is said, and measuring goes on."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from measure_fakes import ENVIRONMENT, measurement

from shapes.errors import InputError
from shapes.measure.jobs import Job
from shapes.measure.store import Store
from shapes.operators.types import Gemm
from sizer.cli import main


def job(k: int) -> Job:
    return Job(Gemm("any name", "forward", 64, 64, k, dtype="fp32"), label="test")


def fill(path: Path, ks: range, samples: int = 12) -> Path:
    with Store.open(path) as store:
        for k in ks:
            store.add([measurement(job(k), np.random.default_rng(k).lognormal(-9, 0.1, samples))])
    return path


#: Stores measurements one at a time and says so, until it is killed.
WRITER = """
import sys
sys.path.insert(0, "tests")
from pathlib import Path
import numpy as np
from test_store_damage import job, measurement
from shapes.measure.store import Store
with Store.open(sys.argv[1]) as store:
    for k in range(1, 10_000):
        store.add([measurement(job(k), np.full(12, 1e-6))])
        print(k, flush=True)
"""


def killed_writer(path: Path, after: int) -> int:
    """A store whose writer was killed after so many measurements; returns how many were promised."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent
    ) as process:
        assert process.stdout is not None
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        return after + len(process.stdout.read().splitlines())


def store_command(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", "--store", str(path), *arguments], catch_exceptions=False)


def ks(path: Path) -> list[int]:
    with Store.open(path, create=False, write=False) as store:
        return sorted(one.description["k"] for one in store.measurements())


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    promised = killed_writer(path, 20)
    assert ks(path) == list(range(1, len(ks(path)) + 1))
    assert len(ks(path)) >= promised
    # The log was merged when the store was closed; a writer's lock file stays.
    assert {entry.name for entry in tmp_path.iterdir()} - {"s.db-lock"} == {"s.db"}


@pytest.mark.slow
def test_no_store_is_made_next_to_the_log_of_one_that_was_moved_away(tmp_path: Path) -> None:
    path, moved = tmp_path / "s.db", tmp_path / "old.db"
    promised = killed_writer(path, 20)
    path.rename(moved)
    with pytest.raises(InputError, match="moved away without it"):
        Store.open(path)
    assert not path.exists()
    # What the message says: every measurement is there.
    (tmp_path / "s.db-wal").rename(tmp_path / "old.db-wal")
    assert len(ks(moved)) >= promised
    assert ks(fill(path, range(1, 3))) == [1, 2]


def test_a_store_whose_writer_was_killed_in_a_checkpoint_is_whole(tmp_path: Path) -> None:
    """The first page says how long the database is before the pages are there; its log has them all."""
    path, cut = tmp_path / "s.db", tmp_path / "cut.db"
    with Store.open(path) as store:
        store._connection.execute("PRAGMA wal_autocheckpoint=0")
        fill(path, range(1, 200))
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{cut}{end}")
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with cut.open("r+b") as file:
        file.write(path.read_bytes()[:4096])
    assert cut.stat().st_size < path.stat().st_size
    assert ks(cut) == list(range(1, 200))


def damage(path: Path) -> bytes:
    """One page of rows overwritten."""
    content = bytearray(path.read_bytes())
    page = next(
        at for at in range(8192, len(content), 4096) if content[at] == 13 and content[at + 3 : at + 5] > b"\0\1"
    )
    content[page : page + 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(content)
    return bytes(content)


def test_a_damaged_store_is_set_aside_with_a_line_and_measuring_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = fill(tmp_path / "s.db", range(1, 200))
    content = damage(path)
    listed = store_command(path, "list")
    assert listed.exit_code == 2
    assert f"`sqlite3 {path} .recover` writes what can be read" in listed.stderr
    assert len(listed.stderr.splitlines()) == 1
    assert path.read_bytes() == content  # those who read change nothing
    with Store.open(path, measuring=True) as store:
        assert store.count() == 0
        store.add([measurement(job(1), np.full(12, 1e-6))])
    (aside,) = tmp_path.glob("s.db.damaged-*")
    assert aside.read_bytes() == content
    (record,) = caplog.records
    assert f"is now {aside}" in record.getMessage()
    assert f"`sqlite3 {aside} .recover`" in record.getMessage()
    assert ks(path) == [1]


def test_a_sound_store_is_never_set_aside(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 30))
    with Store.open(path, measuring=True) as store:
        assert store.count() == 29
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["s.db", "s.db-lock"]


def test_rows_do_not_vanish_into_a_store_that_was_replaced_while_it_was_open(tmp_path: Path) -> None:
    path, other = tmp_path / "s.db", fill(tmp_path / "other.db", range(1, 3))
    with Store.open(path) as store:
        store.add([measurement(job(1), np.full(12, 1e-6))])
        os.replace(other, path)
        with pytest.raises(InputError, match="replaced while it was in use"):
            store.add([measurement(job(2), np.full(12, 1e-6))])


def test_a_file_of_another_program_is_never_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("hello\n")
    with pytest.raises(InputError, match="another kind of file"):
        Store.open(path, measuring=True)
    assert path.read_text() == "hello\n"


def test_a_measurement_with_a_wrong_bit_is_lost_and_never_a_wrong_figure(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 4), samples=64)
    with closing(sqlite3.connect(path)) as connection:
        blob = bytearray(connection.execute("SELECT samples FROM measurement WHERE k = 2").fetchone()[0])
        blob[100] ^= 1
        connection.execute("UPDATE measurement SET samples = ? WHERE k = 2", (bytes(blob),))
        connection.commit()
    listed = store_command(path, "list")
    assert (listed.exit_code, len(listed.stderr.splitlines())) == (2, 1)
    with Store.open(path) as store:
        assert store.find(job(2).key, ENVIRONMENT) is None  # it is measured again
        assert store.find(job(3).key, ENVIRONMENT) is not None
    assert "1 deleted, 2 left" in store_command(path, "prune").output
    assert ks(path) == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_whatever_bytes_are_damaged_every_command_answers_in_one_line_and_measuring_goes_on(
    tmp_path: Path, suffix: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    killed_writer(source / "s.db", 30)
    exported = tmp_path / "x.jsonl"
    with Store.open(tmp_path / "y.db") as store:
        store.add([measurement(job(7), np.full(12, 1e-6))])
        exported.write_text("".join(json.dumps(one.row()) + "\n" for one in store.measurements()))
    for seed in range(12):
        rng = random.Random(seed)
        folder = tmp_path / f"{seed}"
        shutil.copytree(source, folder)
        victim = folder / f"s.db{suffix}"
        content = bytearray(victim.read_bytes())
        at = rng.randrange(100, len(content))  # with its header a file is known for a store
        content[at : at + 600] = rng.randbytes(len(content[at : at + 600]))
        victim.write_bytes(content)
        for command in (("list",), ("export",), ("prune"), ("import", str(exported))):
            result = store_command(folder / "s.db", *command)
            assert result.exit_code in (0, 2), (seed, command)
            assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1
        with Store.open(folder / "s.db", measuring=True) as store:
            store.add([measurement(job(7), np.full(12, 1e-6))])
            assert store.find(job(7).key, ENVIRONMENT) is not None, seed


def as_nobody(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """``code`` run without root's rights, with ``folder`` as the working directory."""
    become = "import os; os.geteuid() or os.setuid(65534)\n"
    imports = "import shapes.measure.store, shapes.errors, sys\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "SIZER_STORE": ""}
    return subprocess.run(
        [sys.executable, "-c", imports + become + code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


OPEN_TWICE = """
from shapes.measure.store import Store
for write in (False, True):
    try:
        Store.open("s.db", create=False, write=write)
    except shapes.errors.InputError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_store_in_a_folder_that_cannot_be_written_is_a_line_that_says_to_copy_it(tmp_path: Path) -> None:
    fill(tmp_path / "s.db", range(1, 6))
    for entry in tmp_path.iterdir():
        entry.chmod(0o444)
    tmp_path.chmod(0o555)
    done = as_nobody(OPEN_TWICE, tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2
    assert all("name another, or a copy, with --store or SIZER_STORE" in line for line in said)


FULL = """
import resource
from shapes.measure.store import Store
import numpy as np, sys
sys.path.insert(0, sys.argv[2])
from test_store_damage import job, measurement
store = Store.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
done = 0
try:
    for k in range(1, 10_000):
        store.add([measurement(job(k), np.full(12, 1e-6))])
        done = k
except shapes.errors.InputError as error:
    print(done, error, sep="\\n")
store.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    Store.open(sys.argv[1])
except shapes.errors.InputError as error:
    print("at once:", error)
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_keeps_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    code = "import shapes.errors\n" + FULL
    arguments = [sys.executable, "-c", code, str(path), str(Path(__file__).parent)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stored, said, again = done.stdout.splitlines()
    assert "the disk is full" in said
    assert "the disk is full" in again  # before anything is measured
    assert ks(path) == list(range(1, int(stored) + 1))
