"""Finding a device by any of its names, reading its file, and `sizer devices`."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shapes.cost import predict_many
from shapes.device import _normalise, device_from_mapping, list_devices, load_device
from shapes.errors import InputError
from shapes.operators.types import Attention, Elementwise, Gemm
from shapes.toml_table import DATA
from sizer.cli.lookup import devices as devices_command

ALL = list_devices()


def device_toml(**changes: object) -> dict[str, object]:
    """The H100's file as a mapping, with top-level keys replaced (None: removed)."""
    data = load_device("h100-sxm").to_dict() | changes
    return {key: value for key, value in data.items() if value is not None}


def test_every_accelerator_of_the_specification_is_there() -> None:
    wanted = (
        "v100-sxm v100-sxm-16 v100-pcie t4 a10 a30 a40 a100-sxm a100-sxm-40 a100-pcie a100-pcie-40 rtx-3090 rtx-4090 "
        "rtx-5090 rtx-pro-6000 l4 l40s h100-sxm h100-pcie h100-nvl h20 h200 gh200 b200 b300 gb200 gb300 mi250x mi300x "
        "mi325x mi355x gaudi2 gaudi3"
    )
    assert set(wanted.split()) <= set(ALL)


def test_no_two_devices_share_a_spelling() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for name in ALL:
        device = load_device(name)
        for spelling in (name, device.title, *device.aliases, *device.torch_names):
            owners[_normalise(spelling)].add(name)
    assert {spelling: names for spelling, names in owners.items() if len(names) > 1} == {}


@pytest.mark.parametrize("name", ALL)
def test_name_title_aliases_and_torch_names_resolve(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    for spelling in (device.title, *device.aliases, *device.torch_names):
        assert load_device(spelling).name == name
        assert load_device(f"  {spelling.upper().replace('-', ' ')} ").name == name
        assert load_device(spelling.lower().replace(" ", "_")).name == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "h100-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("A100", "a100-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI250X/MI250", "mi250x"),
        ("GAUDI2", "gaudi2"),
    ],
)
def test_what_people_and_torch_call_a_device_resolves(spelling: str, name: str) -> None:
    assert load_device(spelling).name == name


def test_an_unknown_device_lists_the_nearest() -> None:
    with pytest.raises(InputError, match=r"device = 'h1000': .*nearest: h100-sxm, .*h100-nvl"):
        load_device("h1000")
    with pytest.raises(InputError, match=r"nearest: mi300x"):
        load_device("mi300")


def test_a_name_like_no_other_lists_all() -> None:
    with pytest.raises(InputError, match=r"known: a10, .*, v100-sxm-16"):
        load_device("????")


@given(st.text(max_size=300))
def test_any_text_is_a_device_or_one_line_of_error(text: str) -> None:
    try:
        answer = load_device(text).name
    except InputError as error:
        answer = str(error)
    assert answer
    assert answer.isprintable()


def test_a_very_long_name_is_refused_in_a_short_line() -> None:
    with pytest.raises(InputError) as refused:
        load_device("h100 " * 1_000_000)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("value", [None, 100, True, ["h100"]])
def test_a_device_that_is_no_name_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="expected one device's name"):
        load_device(value)  # type: ignore[arg-type]  # the wrong type is the point


def test_a_device_is_itself() -> None:
    device = load_device("h100")
    assert load_device(device) is device
    assert load_device("h100-sxm") is device


def test_a_name_says_what_a_device_is_allowed() -> None:
    plain, limited = load_device("h100-sxm"), load_device("H100:500W:4x100Gb")
    assert (limited.name, limited.base, limited.limit_w) == ("h100-sxm:500W:4x100Gb", "h100-sxm", 500.0)
    assert limited.link.inter_node_bytes_per_s == 4 * 100e9 / 8 / 8
    assert limited.link.intra_node_bytes_per_s == plain.link.intra_node_bytes_per_s
    assert load_device(limited.name) == limited == pickle.loads(pickle.dumps(limited))
    own = load_device("h100-sxm-96")  # its file says so
    assert (own.power_w, own.limit_w) == (700.0, 500.0)
    # A tray of a rack that is one domain has four devices.
    assert load_device("gb200:4x400Gb").link.inter_node_bytes_per_s == 50e9


def test_a_name_says_what_switches_there_are() -> None:
    plain, said = load_device("h100-sxm:8x400Gb"), load_device("H100:8x400Gb:Leaf32:3to2:SHARP")
    link = said.link
    assert (link.leaf_nodes, link.oversubscription, link.sharp, link.stated) == (32, 1.5, True, True)
    assert link.inter_node_bytes_per_s == plain.link.inter_node_bytes_per_s == 50e9
    assert load_device(said.name) == said == pickle.loads(pickle.dumps(said))
    assert (load_device("h100").link.node_devices, load_device("gb300").link.node_devices) == (8, 4)
    with pytest.raises(InputError, match=r"(?s)^nics = 'leaf': expected cards a node .*leaf32, 2to1, sharp$"):
        load_device("h100:8x400Gb:leaf")


def test_products_and_attention_slow_down_by_the_root_of_power_where_it_limits_throughout() -> None:
    """Long products go as the clock does; what moves bytes does not. A100s are hardly limited: the root of the root."""
    product = Gemm("p", "forward", 8192, 8192, 8192)
    core = Attention("c", "forward", 4, 32, 8, 8192, 8192, 128, 128, True)
    moved = Elementwise("e", "forward", "norm", 1 << 30, 1 << 30, "bf16")
    for name, watts, share in (("h100-sxm", 500, (5 / 7) ** 0.5), ("a100-sxm", 300, (3 / 4) ** 0.25)):
        full, limited = (
            [cost.seconds for cost in predict_many([product, core, moved], load_device(one))]
            for one in (name, f"{name}:{watts}W")
        )
        assert limited[0] == pytest.approx(full[0] / share, rel=0.02)
        assert limited[1] == pytest.approx(full[1] / share, rel=0.03)
        assert limited[2] == full[2]


def test_a_users_own_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    mine = tmp_path / "My GPU.toml"
    mine.write_text((DATA / "devices" / "h100-sxm.toml").read_text().replace('name = "h100-sxm"', 'name = "my-gpu"'))
    for path in (mine, str(mine)):
        assert load_device(path).name == "my-gpu"
        assert load_device(path).origin == str(mine)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    text = (DATA / "devices" / "h20.toml").read_text()
    mine.write_text(text)
    assert load_device(mine).cost == {}
    mine.write_text(text + "\n[cost.bf16]\nf_tflops = 857.0\ntiles = [[128, 256]]\n[error.bf16]\nheld_out = 0.04\n")
    assert load_device(mine).cost == {"bf16": {"f_tflops": 857.0, "tiles": ((128, 256),)}}
    assert load_device(mine).errors == {"bf16": {"held_out": 0.04}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "name: expected a string"),
        ({"power_w": 0}, "power_w = 0: expected a positive number"),
        ({"power_w": True}, "power_w = True: expected a positive number"),
        ({"power_w": float("nan")}, "power_w = nan: expected a positive number"),
        ({"power_w": float("inf")}, "power_w = inf: expected a positive number"),
        ({"compute": {"units": 1.5}}, "compute.units = 1.5: expected a positive integer"),
        ({"compute": 3}, "compute = 3: expected a table"),
        ({"memory": {"bytes": 1}}, "memory.bandwidth_bytes_per_s: expected a positive number"),
        ({"peak_flops": {}}, "peak_flops = {}: expected at least one dtype"),
        ({"peak_flops": {"bf61": 1e12}}, r"peak_flops.bf61 = 1000000000000.0: expected keys out of fp64"),
        ({"peak_flops": {"bf16": -1.0}}, "peak_flops.bf16 = -1.0: expected a positive number"),
        ({"peak_flops": {"bf16": 1e15}}, "compute.clock_mhz_of.fp64 = 1980: expected keys out of bf16"),
        ({"alignment_bytes": {"bf16": 3}}, "alignment_bytes.bf16 = 3: expected a multiple of the element's 2 bytes"),
        ({"aliases": "h100"}, "aliases = 'h100': expected a list of strings"),
        ({"sources": {}}, "sources = {}: expected an array of tables"),
        ({"sources": [{"document": ""}]}, r"sources\[0\].document = '': expected a string"),
        ({"powr_w": 700}, r"powr_w = 700: expected a known key \(did you mean power_w\?\)"),
        ({"cost": 1}, "cost = 1: expected a table"),
    ],
)
def test_a_wrong_file_is_named_with_key_and_value(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"mine.toml: {message}"):
        device_from_mapping(device_toml(**change), "mine.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "name: expected a string"),
        (b"name = ", "expected TOML"),
        (b"\xff\xfe", "expected UTF-8 text"),
        (b"a = " + b"[" * 5000, "expected TOML"),
        (b"#" * (2 << 20), "at most 1 MiB"),
    ],
)
def test_a_file_that_is_no_device_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"broken.toml: .*{message}"):
        load_device(path)


def test_a_missing_file_a_folder_and_a_nul_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    for path in (tmp_path / "none.toml", tmp_path / "folder.toml", "a\0b.toml"):
        with pytest.raises(InputError, match=r"cannot be read|found a directory"):
            load_device(path)


@pytest.mark.parametrize("name", ALL)
def test_a_device_survives_its_mapping_pickling_and_copying(name: str) -> None:
    device = load_device(name)
    for same in (
        device_from_mapping(device.to_dict(), device.origin),
        pickle.loads(pickle.dumps(device)),
        copy.deepcopy(device),
    ):
        assert same == device
        assert hash(same) == hash(device)


def test_a_device_cannot_be_changed() -> None:
    device = load_device("h100")
    with pytest.raises(TypeError):
        device.peak_flops["bf16"] = 2e15  # type: ignore[index]  # read-only is the point
    with pytest.raises(AttributeError):
        device.power_w = 1  # type: ignore[misc]  # frozen is the point


def test_loading_one_device_parses_no_other() -> None:
    script = (
        "import shapes.device as d\n"
        "for name in ('h100', 'NVIDIA A100-SXM4-80GB', 'b200', 'mi300x', 'Tesla T4'):\n"
        "    d.load_device(name)\n"
        "from shapes.toml_table import _built; print(_built.cache_info().misses)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 5


def run(*arguments: str) -> str:
    result = CliRunner().invoke(devices_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_sizer_devices_lists_every_device_once() -> None:
    first_words = [line.split()[0] for line in run().splitlines() if line]
    for name in ALL:
        assert first_words.count(name) == 1
    h100 = next(line.split() for line in run().splitlines() if line.startswith("h100-sxm"))
    assert h100[1:8] == ["hopper", "132", "80", "3.35", "989", "989", "1979"]


def test_sizer_devices_shows_a_dash_for_a_dtype_without_hardware() -> None:
    v100 = next(line.split() for line in run().splitlines() if line.startswith("v100-sxm "))
    assert v100[5:8] == ["125", "-", "-"]


def test_sizer_devices_json_holds_the_files() -> None:
    document = json.loads(run("--format", "json"))
    assert document["schema_version"] == 1
    assert [device["name"] for device in document["devices"]] == list(ALL)
    first = document["devices"][0]
    assert first.pop("expected_errors")  # the files', and what constants that are borrowed add to them
    assert device_from_mapping(first, load_device(ALL[0]).origin) == load_device(ALL[0])


def test_sizer_devices_name_shows_fields_with_their_sources() -> None:
    output = run("NVIDIA H200")
    assert "NVIDIA H200 SXM5 141GB (h200)" in output
    row = next(line.split() for line in output.splitlines() if line.startswith("memory.bandwidth_bytes_per_s"))
    number = row[-1]
    assert row[1] == "4.8e+12"
    assert any(line.startswith(f"{number} NVIDIA H200 Tensor Core GPU datasheet") for line in output.splitlines())


def test_a_list_price_is_stated_with_its_source_or_not_at_all() -> None:
    for device in map(load_device, list_devices()):
        assert (device.price_usd_per_h is None) == ("price_usd_per_h" not in device.sources)
    assert load_device("h100-sxm:500W").price_usd_per_h == load_device("h100-sxm").price_usd_per_h
    rows = CliRunner().invoke(devices_command, []).output.splitlines()
    assert "3.99" in next(row for row in rows if row.startswith("h100-sxm "))
