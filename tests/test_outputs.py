"""Where output goes and how the program ends: real processes, one line each, the documented code, nothing left over."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from measure_fakes import SMALL_CACHE_PROGRAM

from shapes.errors import InputError, make_folder, read_bounded, write_whole

ROOT = Path(__file__).parent.parent
GPT2 = str(ROOT / "tests" / "data" / "configs" / "gpt2.json")
FIFOS = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")


def sizer(
    *arguments: str, cwd: Path = ROOT, stdout: Any = subprocess.PIPE, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *options, "-m", "sizer", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, env=environment, stdout=stdout, stderr=subprocess.PIPE, check=False, timeout=120
    )


def one_line(stderr: bytes) -> str:
    assert stderr.count(b"\n") == 1, stderr.decode()
    return stderr.decode().strip()


def test_a_device_is_written_into_and_stays_one(tmp_path: Path) -> None:
    write_whole("/dev/null", b"text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(InputError, match="No space left on device"):
        write_whole("/dev/full", b"text")


@FIFOS
def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"x" * 200_000)  # more than a pipe holds
    reader.join()
    assert found == [b"x" * 200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@FIFOS
def test_a_pipe_is_read_when_somebody_writes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_slowly() -> None:
        time.sleep(0.1)
        with pipe.open("wb") as file:
            time.sleep(0.1)  # the writer is there and says nothing yet
            file.write(b"{}" * 100_000)

    writer = threading.Thread(target=write_slowly)
    writer.start()
    assert read_bounded(pipe, 10**6) == b"{}" * 100_000
    writer.join()


def test_an_endless_device_is_read_up_to_the_bound() -> None:
    assert len(read_bounded("/dev/zero", 1000)) == 1001


def test_a_link_is_followed_and_the_file_keeps_its_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "real.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    link.symlink_to(target)
    write_whole(link, b"one")  # a link to nothing yet
    target.chmod(0o600)
    write_whole(link, b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="symbolic links"):
        write_whole(tmp_path / "loop", b"x")


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


LIMITED = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5)); from shapes.errors import write_whole; "
)


def test_what_cannot_be_written_whole_leaves_the_old_file_and_nothing_next_to_it(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("as it was")
    code = f"{LIMITED}write_whole(sys.argv[1], b'longer than five')"
    done = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, cwd=ROOT, check=False)
    assert b"File too large" in done.stderr
    assert target.read_text() == "as it was"
    assert os.listdir(tmp_path) == ["out.txt"]
    for wrong in ("", str(tmp_path), str(tmp_path / "no" / "folder"), "a\0b", "x" * 300):
        with pytest.raises(InputError):
            write_whole(wrong, b"x")
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_folder_that_takes_no_files_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []
    for wrong in ("/proc/sizer", GPT2):
        with pytest.raises(InputError):
            make_folder(wrong)


@pytest.mark.parametrize("arguments", [("check", GPT2), ("rules",), ("--help",), ("explain", "SZ101")])
def test_a_full_standard_output_is_one_line_and_exit_2(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = sizer(*arguments, stdout=full)
    assert done.returncode == 2
    assert "standard output: cannot be written: No space left on device" in one_line(done.stderr)


@pytest.mark.slow
def test_a_closed_standard_output_or_input_is_one_line_and_exit_2() -> None:
    shell = f'exec "{sys.executable}" -m sizer check'
    for text, said in ((f"{shell} {GPT2} >&-", "output is closed"), (f"{shell} - <&-", "input is closed")):
        done = subprocess.run(["bash", "-c", text], stderr=subprocess.PIPE, cwd=ROOT, check=False)
        assert done.returncode == 2
        assert said in one_line(done.stderr)


def test_a_reader_that_goes_away_ends_it_quietly_as_every_filter() -> None:
    read, write = os.pipe()
    os.close(read)
    done = sizer("check", GPT2, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")  # 141 in a shell


@pytest.mark.slow
def test_a_file_name_that_is_not_utf_8_is_written_out(tmp_path: Path) -> None:
    name = os.fsdecode(b"b\xff.json")
    (tmp_path / name).write_bytes(Path(GPT2).read_bytes())
    done = sizer("check", name, "-o", os.fsdecode(b"o\xff.txt"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, b"")
    assert (tmp_path / os.fsdecode(b"o\xff.txt")).read_text().startswith("b\\udcff.json: ")
    assert sizer("ops", name, cwd=tmp_path).stdout.startswith(b"b\\udcff.json")


SIGNALS = [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated"), (signal.SIGHUP, "hung up")]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "said"), SIGNALS)
@pytest.mark.parametrize("after_s", [0.3, 0.6, 1.0])
def test_a_signal_at_any_moment_is_one_line_and_128_more_than_its_number(
    tmp_path: Path, number: signal.Signals, said: str, after_s: float
) -> None:
    """While click, this program or torch is imported, and while measuring."""
    sizes = ("-m", "8", "-n", "8", "-k", "8:800:8", "--store", str(tmp_path / "s.db"))
    with subprocess.Popen(
        [sys.executable, "-m", "sizer", "bench", *sizes],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        preexec_fn=_listen,  # noqa: PLW1509
    ) as process:
        deadline = time.monotonic() + 30
        while not _catches(process.pid, number) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(after_s - 0.3)
        process.send_signal(number)
        try:
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert said in one_line(stderr)
    assert process.returncode == 128 + number


def _listen() -> None:
    """What is run in the background, or under nohup, is left deaf to these by its shell; and so would we be."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _catches(process: int, number: int) -> bool:
    """Whether the process has installed a Python handler for the signal (Python's own for SIGINT is there early)."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (signal.SIGHUP - 1) & 1)


@pytest.mark.slow
def test_measuring_that_is_terminated_keeps_its_rounds_and_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    words = ("bench", "-m", "64", "-n", "64", "-k", "8:128:8", "--store", str(store), "--max-time", "0.2")
    command = [sys.executable, "-c", SMALL_CACHE_PROGRAM, *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not (store.exists() and _rows(store)):
            time.sleep(0.02)
            assert process.poll() is None or _rows(store)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    if process.returncode != 0:  # it may have been done by then
        assert process.returncode == 128 + signal.SIGTERM
        assert "what was measured is stored" in one_line(stderr) or _rows(store) == 16  # all done, and being printed
    before = _rows(store)
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert _rows(store) == 16 >= before


def _rows(store: Path) -> int:
    from shapes.measure.store import Store

    with Store.open(store, create=False, write=False) as opened:
        return opened.count()


@pytest.mark.slow
def test_the_program_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    others = ("yaml", "click", "numpy", "scipy", "tabulate", "rich", "torch", "shapes", "sitecustomize", "platformdirs")
    for name in (*sys.stdlib_module_names, *others):
        (tmp_path / f"{name}.py").write_text("open('imported', 'a').write(__name__); raise SystemExit(3)")
    for options in (["-P"], []):
        done = sizer("check", GPT2, cwd=tmp_path, options=options)
        assert done.returncode == 1, done.stderr
    assert not (tmp_path / "imported").exists()


def test_a_checkout_that_is_not_installed_runs_as_a_module(tmp_path: Path) -> None:
    for package in ("sizer", "shapes"):
        (tmp_path / package).symlink_to(ROOT / package)
    code = "import runpy, sys; sys.meta_path = [one for one in sys.meta_path if 'editable' not in repr(one).lower()]; "
    # As `python -m sizer` would, but for an installed one that the interpreter may know of.
    code += "sys.path[0] = sys.argv[1]; sys.argv[:] = ['-m', 'rules']; runpy._run_module_as_main('sizer')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "vocab-multiple" in done.stdout
