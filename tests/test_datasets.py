"""Measurements to share: what a dataset holds, what of it can be true, how two of one device compare."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shapes.device import load_device
from shapes.errors import InputError
from shapes.measure.dataset import ROWS, Exchanged, export_dataset, import_dataset, objection, read_datasets
from shapes.measure.environment import Environment
from shapes.measure.jobs import Job, MemoryBound
from shapes.measure.record import Measurement, checked_row, summary_fields
from shapes.measure.store import Store
from shapes.operators.types import Gemm
from sizer.cli import main

H100 = Environment(
    "NVIDIA H100 80GB HBM3",
    (("cuda", "12.8"), ("torch", "2.9.0")),
    "b1f4-serial",
    "570.86.15",
    host={"python": "3.12", "cpu": "x", "cores": 96, "node": "10.1.2.3", "system": "secret-host"},
)
CONTROL_S = 2e-4


def row(work: Any, seconds: float, environment: Environment = H100, **changes: Any) -> Measurement:
    """A measurement of ``work`` whose samples spread by a thousandth around ``seconds``."""
    job = Job(work, label="a private label")
    noise = np.random.default_rng(zlib.crc32(job.key.encode())).standard_normal(40)
    samples = seconds * (1 + 1e-3 * (noise - np.median(noise)))
    values: dict[str, Any] = {
        "key": job.key,
        "description": job.describe(),
        "environment": environment,
        "status": "ok",
        "samples": samples,
        "stop": "precision",
        "flops": work.flops,
        "bytes": getattr(work, "bytes", 0),
        "control_s": CONTROL_S,
        "clocks": {"sm_mhz": 1755, "power_w": 512.0, "power_limit_w": 700.0},
        "label": job.label,
        "created": 1.7e9,
        **summary_fields(samples),
        **changes,
    }
    return Measurement(**values)


def product(k: int) -> Gemm:
    return Gemm("x", "forward", 4096, 4096, k)


def at_half_the_peak(k: int, times: float = 1.0, **changes: Any) -> Measurement:
    """2 x 4096 x 4096 x k FLOP at 495 TFLOP/s, of H100 SXM's 989."""
    return row(product(k), 2 * 4096 * 4096 * k / 495e12 * times, **changes)


ROWS_OF_ONE = [at_half_the_peak(k) for k in range(1024, 4096, 64)]


def only(folder: Path) -> Path:
    (found,) = folder.rglob(ROWS)
    return found


def listed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(only(folder).read_bytes()).splitlines()]


def imported(folder: Path, store: Store) -> list[Exchanged]:
    return [import_dataset(one, store) for one in read_datasets(folder)]


def test_what_is_exported_comes_back_as_it_was_but_for_what_is_private(tmp_path: Path) -> None:
    (written,) = export_dataset(ROWS_OF_ONE, tmp_path / "d")
    assert (written.added, Path(written.path).parent.name) == (48, "h100-sxm")
    with Store.open(tmp_path / "s.db") as store:
        (answer,) = imported(tmp_path / "d", store)
        assert (answer.added, answer.there, answer.refused) == (48, 0, ())
        back = {one.uid: one for one in store.measurements()}
        (again,) = imported(tmp_path / "d", store)
        assert (again.added, again.there) == (0, 48)
    for one in ROWS_OF_ONE:
        found = back[one.uid]
        assert found.environment.identity == one.environment.identity
        assert found.samples.tolist() == one.samples.tolist()
        kept = ("key", "seconds", "low", "high", "flops", "control_s", "clocks", "created", "stop")
        assert [getattr(found, name) for name in kept] == [getattr(one, name) for name in kept]


def test_nothing_private_is_in_any_file(tmp_path: Path) -> None:
    export_dataset([*ROWS_OF_ONE, row(product(8), 1e-5, status="error", message="/home/me/x failed")], tmp_path)
    text = json.dumps(listed(tmp_path))
    for private in ("10.1.2.3", "secret-host", "b1f4-serial", "a private label", "/home/me"):
        assert private not in text


def test_each_row_says_how_it_came_about(tmp_path: Path) -> None:
    export_dataset(ROWS_OF_ONE, tmp_path)
    for one in listed(tmp_path):
        said = one["environment"]
        assert (said["device"], said["driver"]) == ("NVIDIA H100 80GB HBM3", "570.86.15")
        assert said["versions"] == {"cuda": "12.8", "torch": "2.9.0"}
        assert (said["harness"], said["host"]["cores"]) == (H100.harness, 96)
        assert (one["control_s"], one["clocks"]["power_limit_w"]) == (CONTROL_S, 700.0)
    assert len({one["environment"]["uuid"] for one in listed(tmp_path)}) == 1


def test_a_device_and_environment_each_have_a_folder(tmp_path: Path) -> None:
    other = replace(H100, driver="550.54")
    a100 = replace(H100, device="NVIDIA A100-SXM4-80GB")
    rows = [at_half_the_peak(1024), at_half_the_peak(1024, environment=other), row(product(8), 1e-3, a100)]
    written = export_dataset(rows, tmp_path)
    assert sorted(Path(one.path).parent.name for one in written) == ["a100-sxm", "h100-sxm", "h100-sxm"]


def test_a_device_s_name_is_never_a_file_s(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = Path(load_device("h100-sxm").origin).read_text()
    path.write_text(text.replace('name = "h100-sxm"', 'name = "../../outside"'))
    (written,) = export_dataset([at_half_the_peak(1024, environment=replace(H100, device=str(path)))], tmp_path / "d")
    assert (tmp_path / "d") in Path(written.path).resolve().parents
    assert read_datasets(tmp_path / "d")[0].environment.accelerator is None
    with pytest.raises(
        InputError, match=r"name = '\.\./\.\./outside': expected small letters, digits, dots and dashes"
    ):
        load_device(path)  # named so, on a command line


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (at_half_the_peak(2048, 0.45), "rate above the peak: 1100 of"),
        (at_half_the_peak(2048, 0.51), None),  # 970 of 989
        # At 1.98 GHz instead of the data sheet's 1.83 the peak is 8% higher.
        (at_half_the_peak(2048, 0.48, clocks={"sm_mhz": 1980}), None),
        # Whatever clock a row claims, boards run at most a tenth above the data sheet's.
        (at_half_the_peak(2048, 0.4, clocks={"sm_mhz": 1e12}), "rate above the peak: "),
        (row(MemoryBound("residual", 8192, 8192), 8192 * 8192 * 6 / 4e12), "bytes above the bandwidth: 4000 of"),
        (row(MemoryBound("residual", 8192, 8192), 8192 * 8192 * 6 / 3e12), None),
        (at_half_the_peak(2048, control_s=1.2 * CONTROL_S), "control shape off by +20%"),
        (at_half_the_peak(2048, clocks={"throttle": ["hardware slowdown"]}), "throttled: hardware slowdown"),
        (replace(at_half_the_peak(2048), seconds=1e-3), "its samples give"),
        (row(product(8), 1e-9, status="oom"), None),
    ],
)
def test_what_a_device_cannot_do_is_refused(one: Measurement, said: str | None) -> None:
    found = objection(one, load_device("h100-sxm"), CONTROL_S)
    assert (found is None) if said is None else (found is not None and found.startswith(said))


def test_rows_that_cannot_be_true_do_not_count_and_the_others_do(tmp_path: Path) -> None:
    wrong = [at_half_the_peak(8192, 0.3), at_half_the_peak(8256, control_s=2 * CONTROL_S)]
    copy = replace(ROWS_OF_ONE[0], uid="another")
    export_dataset([*ROWS_OF_ONE, *wrong, copy], tmp_path / "d")
    command = ["store", "--store", str(tmp_path / "s.db"), "import", str(tmp_path / "d")]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 1
    assert "48 added, 0 there already, 3 refused" in result.output
    for line in (
        "rate above the peak: 1650 of",
        "control shape off",
        "duplicate",
    ):
        assert line in result.output
    with Store.open(tmp_path / "s.db") as store:
        assert store.count() == 48


def test_rows_of_an_export_and_of_a_store_are_held_against_the_device_too(tmp_path: Path) -> None:
    slow = at_half_the_peak(1024, clocks={"throttle": ["hardware slowdown"]})
    with Store.open(tmp_path / "theirs.db") as store:
        store.add([slow, at_half_the_peak(8192, 0.3)])
    exported, runner = tmp_path / "all.jsonl", CliRunner()
    assert (
        runner.invoke(main, ["store", "--store", str(tmp_path / "theirs.db"), "export", "-o", str(exported)]).exit_code
        == 0
    )
    for source in (exported, tmp_path / "theirs.db"):
        own = tmp_path / f"of-{source.name}.db"
        result = runner.invoke(main, ["store", "--store", str(own), "import", str(source)], catch_exceptions=False)
        assert result.exit_code == 1
        assert "1 added, 0 there already, 1 refused\n  rate above the peak: 1650 of" in result.output
        with Store.open(own) as store:
            assert [one.uid for one in store.measurements()] == [slow.uid]


def test_a_device_in_another_state_than_the_store_s_is_refused_whole(tmp_path: Path) -> None:
    slow = [replace(at_half_the_peak(k), control_s=1.3 * CONTROL_S) for k in range(1024, 2048, 64)]
    export_dataset(slow, tmp_path / "d")
    with Store.open(tmp_path / "s.db") as store:
        store.add([at_half_the_peak(k) for k in range(8192, 8300)])
        (answer,) = imported(tmp_path / "d", store)
    assert (answer.added, len(answer.refused)) == (0, 16)
    assert answer.refused[0][1] == "control shape off by +30% from what the store has of this device"


def test_a_device_without_a_data_sheet_is_said_to_be_held_against_no_peak(tmp_path: Path) -> None:
    export_dataset([row(product(8), 1e-9, replace(H100, device="Chip 9"))], tmp_path / "d")
    with Store.open(tmp_path / "s.db") as store:
        (answer,) = imported(tmp_path / "d", store)
    assert answer.added == 1
    assert answer.notes == ("no data sheet of this device is known: rates were held against no peak",)


def changed(folder: Path, name: str, value: Any) -> None:
    """Every row's value of a column; None: the column is gone."""
    rows = [one | {name: value} for one in listed(folder)]
    kept = ({key: own for key, own in row.items() if own is not None} for row in rows)
    only(folder).write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in kept).encode()))


def flipped(folder: Path) -> None:
    """One bit in the middle of the file."""
    data = bytearray(only(folder).read_bytes())
    data[len(data) // 2] ^= 1
    only(folder).write_bytes(data)


def endless(folder: Path) -> None:
    only(folder).write_bytes(gzip.compress(b" " * 2**25 + b"\n"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (endless, "expected at most 1 MiB"),
        (lambda folder: changed(folder, "clocks", {"throttle": 5}), "clocks.throttle = 5: expected a list of texts"),
        (lambda folder: changed(folder, "clocks", {"power_limit_w": "x"}), "expected a finite number"),
        (lambda folder: changed(folder, "samples", [1e200] * 3), "samples = [1e+200, 1e+200, 1e+200]: expected a list"),
        (lambda folder: changed(folder, "drift", -1e300), "drift = -1e+300: expected a finite number below 1e+21"),
        (lambda folder: changed(folder, "created", 1e300), "created = 1e+300: expected seconds since 1970"),
        (lambda folder: only(folder).write_bytes(b"PAR1 no\n"), "expected gzip"),
        (flipped, "expected gzip"),
        (lambda folder: changed(folder, "flops", None), "line 1: flops: expected a whole number"),
        (lambda folder: changed(folder, "seconds", -1.0), "line 1: seconds = -1.0: expected a positive number"),
        (lambda folder: changed(folder, "environment", None), "line 1: environment: expected an object"),
        (lambda folder: changed(folder, "environment", {"device": "x"}), "environment.versions: expected an object"),
        (lambda folder: only(folder).write_bytes(gzip.compress(b"[1]\n")), "line 1: expected JSON lines"),
        (lambda folder: only(folder).write_bytes(gzip.compress(b"{\n")), "line 1: expected JSON lines"),
        (lambda folder: only(folder).unlink(), "expected a folder of datasets"),
    ],
)
def test_a_damaged_dataset_is_one_line_and_adds_nothing(
    tmp_path: Path, damage: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shapes.measure.record.unpacked.__defaults__", (2**20,))
    export_dataset(ROWS_OF_ONE, tmp_path / "d")
    damage(tmp_path / "d")
    command = ["store", "--store", str(tmp_path / "s.db"), "import", str(tmp_path / "d")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert len(result.output.splitlines()) == 1


def test_no_dataset_and_no_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder of datasets"):
        read_datasets(tmp_path)
    assert CliRunner().invoke(main, ["store", "import"]).exit_code == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_a_dataset_is_not_waited_for_and_a_name_is_no_book(tmp_path: Path) -> None:
    export_dataset([at_half_the_peak(1024)], tmp_path / "d")
    (rows,) = (tmp_path / "d").rglob("rows.jsonl.gz")
    rows.unlink()
    os.mkfifo(rows)
    with pytest.raises(InputError, match=r"rows.jsonl.gz: cannot be read: expected a file"):
        read_datasets(tmp_path / "d")
    row = at_half_the_peak(1024).row()
    row["environment"]["device"] = "x" * 201  # no folder could be called so
    with pytest.raises(InputError, match=r"environment.device.*expected printable text of 1 to 200 characters"):
        checked_row(row)
