"""Files of 2024 to 2026 as their authors ship them (wrappers, drafts, classifiers, embedders, own code).

They are compared with the parameters that their authors publish, in billions. What is left out of a count is named
in a note.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sizer
from sizer.cli import main
from sizer.readers import read_config

FILES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "odd_files.json").read_text("utf-8"))
#: Totals are published in three digits.
WITHIN = 0.005


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_parameters_that_are_published(name: str) -> None:
    row = FILES[name]
    reading = read_config(row["config"])
    assert reading.model.parameters == pytest.approx(row["parameters"], rel=WITHIN)
    assert any(row.get("left_out", "") in note for note in (*reading.notes, ""))
    told = any("left out" in note or "text tower only" in note for note in reading.notes)
    assert told == ("left_out" in row or "num_nextn_predict_layers" in row["config"])


def test_lladas_table_has_the_rows_that_its_file_says_and_its_sizes_count_as_given() -> None:
    config = FILES["llada-8b"]["config"]
    reading = read_config(config)
    assert not any("the class's own" in note for note in reading.notes)
    more = read_config({**config, "embedding_size": config["embedding_size"] + 128}).model
    assert more.parameters - reading.model.parameters == 2 * 128 * config["d_model"]


def test_what_a_wrapper_says_of_its_own_is_named_and_not_refused() -> None:
    unread = {one.key: one.changes for one in read_config(FILES["nemotron-nano-vl-12b"]["config"]).unread}
    assert unread["patch_size"] == unread["vit_hidden_size"] == "what is before the text tower"


@pytest.mark.parametrize(
    "command",
    ["memory", "deploy", "mfu --step-time 60 --gpus 8 --global-batch 8", "diff {0}"],
)
def test_every_command_says_what_no_figure_counts(command: str, tmp_path: Path) -> None:
    def said(name: str) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(FILES[name]["config"]))
        first, *rest = command.split()
        found = CliRunner().invoke(main, [first, str(path), *(one.format(path) for one in rest)])
        assert found.exit_code in (0, 1), found.output
        assert found.stderr == ""
        return " ".join(found.stdout.split())

    assert said("dots.ocr").count("note: left out, with what joins it to the text: vision tower") == 1
    assert "left out" not in said("granite-4.0-h-small")
    assert "left out: multi-token-prediction layers" in said("ernie-4.5-300b")


@pytest.mark.slow
def test_an_answer_has_the_notes_of_its_own_file_whatever_was_read_before() -> None:
    notes = [
        sizer.plan(FILES[name]["config"], gpus=8, global_batch=8, s=2048).notes
        for name in ("dots.ocr", "granite-4.0-h-small", "dots.ocr")
    ]
    notes.append(sizer.search(FILES["dots.ocr"]["config"]).notes)
    assert [sum("vision tower" in note for note in found) for found in notes] == [1, 0, 1, 1]


def test_a_page_that_has_notes_says_it_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FILES["voxtral-mini-3b"]["config"]))
    found = CliRunner().invoke(main, ["check", str(path)])
    assert ("audio tower" in found.stdout, found.stderr) == (True, "")
