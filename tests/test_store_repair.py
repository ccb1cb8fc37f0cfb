"""A store survives kills, moves, damage and full disks: nothing that can be read is lost, and what is lost is said."""

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
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from measure_fakes import ENVIRONMENT, measurement

from reports.campaigns.outputs import disk
from shapes.errors import InputError
from shapes.measure.jobs import Job
from shapes.measure.salvage import repair, salvage
from shapes.measure.store import Store
from shapes.measure.store_pages import read_log
from shapes.operators import Gemm
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
from test_store_repair import job, measurement
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


def test_a_killed_writer_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    promised = killed_writer(path, 20)
    assert ks(path) == list(range(1, len(ks(path)) + 1))
    assert len(ks(path)) >= promised
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.db"]  # the log was merged when the store was closed


def test_no_store_is_made_beside_the_log_of_one_that_was_moved_away(tmp_path: Path) -> None:
    path, moved = tmp_path / "s.db", tmp_path / "old.db"
    promised = killed_writer(path, 20)
    path.rename(moved)
    with pytest.raises(InputError, match="moved away without it") as refused:
        Store.open(path)
    assert "repair" in str(refused.value)
    assert not path.exists()
    # What the message says: either way every measurement is there.
    shutil.copytree(tmp_path, tmp_path / "copy")
    (tmp_path / "copy" / "s.db-wal").rename(tmp_path / "copy" / "old.db-wal")
    assert len(ks(tmp_path / "copy" / "old.db")) >= promised
    done = repair(path)
    assert "s.db.damaged-" in str(done.aside[0])
    assert len(ks(path)) >= promised  # so few rows that all are in the log
    assert "added" in store_command(path, "merge", str(moved)).output


def test_a_sound_store_needs_no_repair(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 30))
    before = path.read_bytes()
    output = store_command(path, "repair").output
    assert "nothing to repair, 29 measurements" in output
    assert path.read_bytes() == before
    assert repair(path).aside == ()


def test_repair_keeps_every_row_off_the_damaged_page_and_names_the_lost_ones(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 200))
    content = bytearray(path.read_bytes())
    page = next(
        at for at in range(8192, len(content), 4096) if content[at] == 13 and content[at + 3 : at + 5] > b"\0\1"
    )
    rows = int.from_bytes(content[page + 3 : page + 5], "big")
    content[page : page + 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(content)
    listed = store_command(path, "list")
    assert listed.exit_code == 2
    assert f"sizer store --store {path} repair" in listed.stderr
    assert "move" not in listed.stderr
    output = store_command(path, "repair").output
    assert f"{199 - rows} measurements kept, {rows} lost" in output
    assert output.count('lost: {"') == rows  # each named by what it was of
    aside = next(tmp_path.glob("s.db.damaged-*"))
    assert aside.read_bytes() == content
    assert store_command(path, "list").exit_code == 0
    assert len(ks(path)) == 199 - rows


def test_rows_whose_page_lost_its_head_are_found_by_their_own(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 60))
    content = bytearray(path.read_bytes())
    for at in range(8192, len(content), 4096):
        if content[at] == 13:
            content[at : at + 16] = bytes(16)
    path.write_bytes(content)
    assert len(salvage(path).measurements) == 59


def test_a_measurement_with_a_wrong_bit_is_lost_and_never_a_wrong_figure(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 4), samples=64)
    with closing(sqlite3.connect(path)) as connection:
        blob = bytearray(connection.execute("SELECT samples FROM measurement WHERE k = 2").fetchone()[0])
        blob[100] ^= 1
        connection.execute("UPDATE measurement SET samples = ? WHERE k = 2", (bytes(blob),))
        connection.commit()
    assert store_command(path, "list").exit_code == 2
    assert "2 measurements kept, 1 lost" in store_command(path, "repair").output
    assert ks(path) == [1, 3]


def test_measurements_outlive_the_environment_they_share(tmp_path: Path) -> None:
    path, other = tmp_path / "s.db", replace(ENVIRONMENT, threads=4)
    with Store.open(path) as store:
        store.add([measurement(job(k), np.full(12, 1e-6), environment=other) for k in range(1, 6)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE environment SET data = 'x'")
        connection.commit()
    output = store_command(path, "repair").output
    assert "5 measurements kept, 0 lost" in output
    assert "5 of those kept lost their environment" in output
    with Store.open(path) as store:
        assert {one.environment.device for one in store.measurements()} == {ENVIRONMENT.device}
        assert store.find(job(1).key, other) is None  # what is not known does not stand for a new measurement


def test_damage_inside_the_log_is_seen_and_what_lies_behind_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    promised = killed_writer(path, 40)
    log = tmp_path / "s.db-wal"
    content = bytearray(log.read_bytes())
    frames = (len(content) - 32) // 4120
    content[32 + frames // 2 * 4120 + 1000] ^= 0xFF
    log.write_bytes(content)
    with pytest.raises(InputError, match="its log"):
        Store.open(path)
    assert repair(path).kept >= promised - 2


def test_a_log_as_sqlite_wrote_it_is_sound(tmp_path: Path) -> None:
    killed_writer(tmp_path / "s.db", 10)
    log = read_log((tmp_path / "s.db-wal").read_bytes())
    assert log.sound.all()
    assert not log.damaged


def test_a_store_in_use_is_not_repaired_under_its_writer(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 50))
    content = path.read_bytes()
    with Store.open(path, write=False):
        code = "import sys; from pathlib import Path; from shapes.measure.salvage import _refuse_in_use; "
        code += "_refuse_in_use(Path(sys.argv[1]))"
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert "another process uses the store" in done.stderr
    assert path.read_bytes() == content


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_whatever_bytes_are_damaged_every_command_answers_in_one_line_and_repair_mends(
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
        at = rng.randrange(len(content))
        content[at : at + 600] = rng.randbytes(len(content[at : at + 600]))
        victim.write_bytes(content)
        for command in (("list",), ("export",), ("prune", "--failed"), ("import", str(exported))):
            result = store_command(folder / "s.db", *command)
            assert result.exit_code in (0, 2), (seed, command)
            assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1
        store_command(folder / "s.db", "repair")
        result = store_command(folder / "s.db", "list")
        assert result.exit_code == 0, (seed, result.stderr)


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


READ_AND_WRITE = """
from shapes.measure.store import Store
with Store.open("s.db", create=False, write=False) as store:
    print(len(list(store.measurements())))
try:
    Store.open("s.db")
except shapes.errors.InputError as error:
    print(error)
"""


@pytest.mark.parametrize("log", [False, True])
def test_a_store_that_cannot_be_written_is_read_and_refused_to_those_who_would_write(tmp_path: Path, log: bool) -> None:
    path = tmp_path / "s.db"
    if log:
        killed_writer(path, 5)
        (tmp_path / "s.db-shm").unlink()
    else:
        fill(path, range(1, 6))
    for entry in tmp_path.iterdir():
        entry.chmod(0o444)
    tmp_path.chmod(0o555)
    done = as_nobody(READ_AND_WRITE, tmp_path)
    assert done.returncode == 0, done.stderr
    count, said = done.stdout.splitlines()
    assert int(count) >= 5
    assert "name another with --store or SIZER_STORE" in said
    assert "damaged" not in said


FULL = """
import resource
from shapes.measure.store import Store
import numpy as np, sys
sys.path.insert(0, sys.argv[2])
from test_store_repair import job, measurement
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


@pytest.mark.parametrize("kind", ["disk", "read-only"])
def test_a_store_on_a_full_or_read_only_disk_is_read(tmp_path: Path, kind: str) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    fill(whole / "s.db", range(1, 20))
    with disk(tmp_path / "disk", kind, whole) as mounted:
        if not mounted:
            pytest.skip("mounting a disk is not allowed here")
        assert ks(tmp_path / "disk" / "s.db") == list(range(1, 20))
        with pytest.raises(InputError, match="the disk is full" if kind == "disk" else "cannot be written"):
            fill(tmp_path / "disk" / "s.db", range(20, 60))


def test_leftovers_of_killed_creations_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    left = tmp_path / f".s.db.{process.pid}.new"
    mine = tmp_path / f".s.db.{os.getpid()}.new"
    for file in (left, mine):
        file.write_bytes(b"half")
        os.utime(file, (1, 1))
    fill(tmp_path / "s.db", range(1, 2))
    assert not left.exists()
    assert mine.exists()


def test_a_repair_that_was_killed_before_its_last_step_goes_on(tmp_path: Path) -> None:
    path = fill(tmp_path / "s.db", range(1, 30))
    fill(tmp_path / ".s.db.repaired", range(30, 60))  # with what the log held, which is gone
    assert repair(path).kept == 59
    assert ks(path) == list(range(1, 60))
    assert not (tmp_path / ".s.db.repaired").exists()
