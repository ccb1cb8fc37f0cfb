"""A distribution of somebody else's adds a rule, a reader, a format and an engine; a folder, devices and stacks.

tests/plugin is such a distribution. Here it is "installed" as pip would: a folder on the path with its entry points.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

PLUGIN = Path(__file__).parent / "plugin"
CONFIG = {"acme_width": 1024, "acme_depth": 13, "acme_heads": 16, "acme_ffn": 4096, "acme_words": 32001}


def installed(folder: Path, **replaced: str) -> Path:
    """A site folder with the example's metadata; ``replaced``: group (of ``sizer.``) -> what it names instead."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    groups = project["entry-points"]
    for group, value in replaced.items():
        groups[f"sizer.{group}"] = {"example": value}
    held = folder / "sizer_example-1.0.dist-info"
    held.mkdir(parents=True)
    (held / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = (
        line
        for group, named in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in named.items()))
    )
    (held / "entry_points.txt").write_text("\n".join(lines))
    return folder


def sizer(*calls: str, site: Path, data: Path | None = None) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each call, all in one new process that has ``site`` on its path."""
    script = (
        "import json, sys\nfrom click.testing import CliRunner\nfrom sizer.cli import main\n"
        "done = [CliRunner().invoke(main, call.split(), catch_exceptions=False) for call in sys.argv[1:]]\n"
        "print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in done]))"
    )
    path = os.pathsep.join(map(str, (site, PLUGIN, *sys.path)))
    environment = {**os.environ, "PYTHONPATH": path, **({"SIZER_DATA": str(data)} if data is not None else {})}
    ran = subprocess.run(
        [sys.executable, "-c", script, *calls], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    found: list[tuple[int, str, str]] = [tuple(one) for one in json.loads(ran.stdout)]
    return found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("acme") / "acme.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, config: str) -> dict[str, tuple[int, str, str]]:
    calls = {
        "check": f"check {config} --format json --device acme-1 --stack acme-runtime",
        "headline": f"check {config} --select EX001 --format headline",
        "html": f"check {config} --select EX001 --format sarif",
        "page": "explain even-layers",
        "rules": "rules --format json",
        "deploy": f"deploy {config} --engine example-engine --format json",
        "devices": "devices Acme-One --format json",
    }
    site = installed(tmp_path_factory.mktemp("site"))
    return dict(zip(calls, sizer(*calls.values(), site=site, data=PLUGIN / "data"), strict=True))


def held(answer: tuple[int, str, str]) -> Any:
    assert answer[0] in (0, 1), answer[2]
    return json.loads(answer[1])


def test_a_reader_of_another_distribution_reads_a_file_by_its_claim_under_the_file_s_own_keys(
    answered: dict[str, tuple[int, str, str]],
) -> None:
    (report,) = held(answered["check"])["reports"]
    # h 1024, 13 layers, 32001 words untied: 2 x 32001 x 1024 + 13 x (4 x 1024^2 + 3 x 1024 x 4096 + 2 x 1024) + 1024
    assert report["model"]["parameters"] == 2 * 32001 * 1024 + 13 * (4 * 1024**2 + 3 * 1024 * 4096 + 2048) + 1024
    assert {"acme_words", "acme_depth"} <= {one["field"] for one in report["findings"]}


def test_a_rule_of_another_distribution_is_checked_selected_explained_and_listed(
    answered: dict[str, tuple[int, str, str]],
) -> None:
    (report,) = held(answered["check"])["reports"]
    (found,) = (one for one in report["findings"] if one["code"] == "EX001")
    assert found["suggestions"][0]["change"] == {"acme_depth": 14}
    assert answered["headline"][1] == "[sizer check] 1 warning\n"
    assert answered["page"][1].startswith("## EX001 even-layers\n")
    assert "EX001" in {one["code"] for one in held(answered["rules"])}


def test_a_rule_of_another_distribution_is_not_looked_up_on_our_page(
    answered: dict[str, tuple[int, str, str]],
) -> None:
    (rule,) = held(answered["html"])["runs"][0]["tool"]["driver"]["rules"]
    assert rule["id"] == "EX001"
    assert "helpUri" not in rule


def test_an_engine_of_another_distribution_is_asked(answered: dict[str, tuple[int, str, str]]) -> None:
    (engine,) = held(answered["deploy"])["engines"]
    assert (engine["engine"], engine["verdict"]) == ("example-engine", "pads")  # 32001 is no multiple of 128


def test_devices_and_stacks_of_a_folder_have_names_as_those_that_ship(
    answered: dict[str, tuple[int, str, str]],
) -> None:
    (report,) = held(answered["check"])["reports"]
    assert (report["device"], report["stack"]) == ("acme-1", "acme-runtime")
    assert "Acme One" in answered["devices"][1]


@pytest.mark.parametrize(
    ("replaced", "call", "said"),
    [
        ({"rules": "sizer_example.absent"}, "rules", "plug-in example of sizer.rules: failed with ModuleNotFoundError"),
        ({"rules": "broken.twice"}, "rules", "ValueError: SZ101 is vocab-multiple already"),
        ({"readers": "sizer_example.headline"}, "check {}", "has no attribute 'NAME'"),
        ({"formats": "broken.fails"}, "devices --format example", "ZeroDivisionError: division by zero"),
        ({"formats": "broken.fails"}, "search --h 1024 --format example", "`pip uninstall sizer-example`"),
        ({"engines": "sizer_example:__name__"}, "deploy {}", "sizer_example: cannot be read: No such file"),
    ],
)
def test_a_broken_plug_in_is_a_line_that_names_it(
    tmp_path: Path, config: str, replaced: dict[str, str], call: str, said: str
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "__init__.py").touch()
    (broken / "fails.py").write_text("def render(document, page):\n    return 1 / 0\n")
    (broken / "twice.py").write_text(
        "from sizer.rules.base import rule\n\n@rule('SZ101', source='')\ndef even(context):\n    'One.'\n"
    )
    ((code, out, error),) = sizer(call.format(config), site=installed(tmp_path, **replaced))
    assert (code, out) == (2, "")
    assert error.count("\n") == 1
    assert said in error


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (None, "SIZER_DATA = "),
        ("h100-sxm", "SIZER_DATA = 'devices': expected another name: h100-sxm ships with sizer"),
        ("mine", "peak_flops: expected at least one dtype"),
    ],
)
def test_a_wrong_folder_of_devices_is_a_line(tmp_path: Path, device: str | None, said: str) -> None:
    folder = tmp_path / "data"
    if device is not None:
        (folder / "devices").mkdir(parents=True)
        (folder / "devices" / f"{device}.toml").write_text(f'name = "{device}"\n')
    ((code, _, error),) = sizer("devices", site=tmp_path, data=folder)
    assert code == 2
    assert error.count("\n") == 1
    assert said in error


def test_where_nothing_is_added_the_slow_reader_of_metadata_is_not_loaded(tmp_path: Path, config: str) -> None:
    script = (
        "import sys\nfrom shapes.program import added\nassert added('sizer.rules') == {}\n"
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isdir, sys.path))}
    assert subprocess.run([sys.executable, "-c", script], check=False, env=environment).returncode == 0
