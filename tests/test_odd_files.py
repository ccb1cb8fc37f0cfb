"""Files of 2024 to 2026 as their authors ship them (wrappers, drafts, classifiers, embedders, own code), against the

parameters that they publish, in billions. What is left out of a count is named in a note.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
    config = FILES["nemotron-nano-vl-12b"]["config"]
    unread = {one.key for one in read_config(config).unread}
    assert {"patch_size", "vit_hidden_size"} <= unread
    inner = {**config, "llm_config": {**config["llm_config"], "patch_size": 16}}
    with pytest.raises(Exception, match=r"llm_config\.patch_size = 16: is not known here and may change the model"):
        read_config(inner)
