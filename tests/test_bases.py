"""Files that build on others: followed inside one folder tree, refused with the file that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shapes.errors import InputError
from sizer.cli import main
from sizer.readers import Source, load_mapping, read_config
from sizer.readers.reading import at

BASE = """
num_layers: 2
hidden_size: 128
num_attention_heads: 4
num_query_groups: null
max_position_embeddings: 64
position_embedding_type: rope
tokenizer_type: GPT2BPETokenizer
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_yaml", ".yaml").replace("_sh", ".sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_child_is_laid_over_its_bases_the_later_over_the_earlier(tmp_path: Path) -> None:
    write(
        tmp_path,
        base_yaml=BASE,
        wide_yaml="extends: [base.yaml]\nhidden_size: 256\nnum_experts: null\n",
        deep__child_yaml="extends: [../base.yaml, ../wide.yaml]\nnum_layers: 3\n",
    )
    reading = read_config(tmp_path / "deep" / "child.yaml", root=tmp_path)
    assert (reading.model.layers, reading.model.hidden) == (3, 256)
    assert any("with what it builds on: base.yaml, base.yaml, wide.yaml" in note for note in reading.notes)
    assert read_config(Source(tmp_path / "deep" / "child.yaml", root=str(tmp_path))).model == reading.model
    assert load_mapping(Source(tmp_path / "deep" / "child.yaml", root=str(tmp_path)))["hidden_size"] == 256


@pytest.mark.parametrize(
    ("child", "said"),
    [
        ("bases: gone.yaml\n", r"child\.yaml: bases = 'gone\.yaml': builds on this file, which is not there"),
        ("_BASE_: ../../outside.yaml\n", "outside of .*--root DIR"),
        ("_base: gone.yaml\n", "_base = 'gone.yaml': builds on this file"),
        ("extends: [child.yaml]\n", r"circle: child\.yaml -> child\.yaml"),
        ("extends: [other.yaml]\n", r"circle: child\.yaml -> other\.yaml -> child\.yaml"),
        ("defaults: [{'override db': small}]\n", r"'db/small\.yaml': builds on this file, which is not there"),
        ("model: !include gone.yaml\n", "'gone.yaml': builds on this file"),
        ("extends: " + "a" * 5000 + ".yaml\n", "not there"),
        ('extends: "a\\0b.yaml"\n', "not there"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path, child: str, said: str) -> None:
    write(tmp_path, outside_yaml=BASE, in__side__other_yaml="extends: child.yaml\n", in__side__child_yaml=child)
    with pytest.raises(InputError, match=said):
        read_config(tmp_path / "in" / "side" / "child.yaml", root=tmp_path / "in")


def test_a_chain_and_a_tree_are_bounded(tmp_path: Path) -> None:
    names = {f"c{index}_yaml": f"extends: c{index + 1}.yaml\n" for index in range(80)}
    write(tmp_path, **names, c80_yaml=BASE)
    with pytest.raises(InputError, match="builds on more than 64 files"):
        read_config(tmp_path / "c0.yaml")
    assert read_config(tmp_path / "c60.yaml").model.layers == 2


def test_a_link_out_of_the_tree_is_not_opened(tmp_path: Path) -> None:
    write(tmp_path, outside_yaml=BASE, inner__child_yaml="extends: link.yaml\n")
    (tmp_path / "inner" / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(InputError, match="outside of"):
        read_config(tmp_path / "inner" / "child.yaml")


def test_hydras_defaults_go_to_their_sections_and_around_the_files_own_keys(tmp_path: Path) -> None:
    write(
        tmp_path,
        conf__run_yaml="defaults: [trainer: big, model@model: '${kind}_model', {override hydra/x: y}, _self_]\n"
        "kind: wide\nmodel: {num_layers: 5}\n",
        conf__trainer__big_yaml="devices: 8\nnum_nodes: 2\n",
        conf__model__wide_model_yaml=BASE + "vocab_size: 1000\nencoder_seq_length: 64\nmcore_gpt: true\n",
    )
    run = tmp_path / "conf" / "run.yaml"
    reading = read_config(run)
    assert (reading.format, reading.model.layers, reading.workload["d"]) == ("nemo", 5, 16)
    run.write_text(run.read_text().replace(", _self_]", "]").replace("[trainer", "[_self_, trainer"))
    assert read_config(run).model.layers == 2


def hydra(folder: Path, **configs: str) -> dict[str, object]:
    """What Hydra's files come to; each is a ``key: value`` a line after its list."""
    held = load_mapping(Source(write(folder, **configs) / "run.yaml", root=str(folder)))
    return {key: value for key, value in held.items() if key != "_bases"}


@pytest.mark.parametrize(
    ("defaults", "composed"),
    [  # as hydra-core 1.3.8's compose has them; a random 2,200 trees were held against it on 2026-11-29
        ("[{model: small}, {override model: big}]", {"model": {"h": 2, "part": {"n": 1}}}),
        ("[{model: small}, {override /model/part: two}]", {"model": {"h": 1, "part": {"n": 2}}}),
        ("[{model@m: small}, {override model@m: big}]", {"m": {"h": 2, "part": {"n": 1}}}),
        ("[{model: small}, {override model: null}]", {}),
        ("[{model: null}, {override model: [small, big]}]", {"model": {"h": 2, "part": {"n": 1}}}),
        ("[{model: small}, {trial: one}]", {"model": {"h": 2, "part": {"n": 1}}, "lr": 3}),  # one of a later file
        ("[{model: small}, {trial: one}, {override model: small}]", {"model": {"h": 1, "part": {"n": 1}}, "lr": 3}),
        ("[{optional model: gone}, {optional trial@_here_: one}, {model: small}]", {"model": {"h": 1}, "lr": 3}),
        ("[model/big, _self_]", {"model": {"h": 2}}),  # a file's own group is its section too
        ("[model/big@_global_, {override hydra/launcher: slurm}]", {"h": 2}),
    ],
)
def test_hydras_overrides_change_an_earlier_choice(tmp_path: Path, defaults: str, composed: dict[str, object]) -> None:
    part = "defaults: [{part: one}, _self_]\n" if "optional" not in defaults and "/big" not in defaults else ""
    trial = "defaults: [{override /model: big}]\n" if "optional" not in defaults else ""
    found = hydra(
        tmp_path,
        run_yaml=f"defaults: {defaults}\n",
        model__small_yaml=f"{part}h: 1\n",
        model__big_yaml=f"{part}h: 2\n",
        model__part__one_yaml="n: 1\n",
        model__part__two_yaml="n: 2\n",
        trial__one_yaml=f"# @package _global_\n{trial}lr: 3\n",
    )
    assert found == composed


def test_what_is_laid_over_a_file_that_it_does_not_name_has_its_own_choices(tmp_path: Path) -> None:
    """An experiment of lightning-hydra-template: which configuration it is of, only a command line says."""
    write(
        tmp_path,
        trial__one_yaml="# @package _global_\ndefaults: [{override /model: big}]\nmodel: {num_layers: 3}\n",
        model__big_yaml=f"# @package _global_\n{BASE}vocab_size: 1000\n",
        other__one_yaml="defaults: [{override /model: big}, _self_]\nnum_layers: 5\n",
    )
    reading = read_config(tmp_path / "other" / "one.yaml", root=tmp_path)
    assert reading.model.layers == 5
    said = "with what it builds on: a file that it does not name and whose own keys are not read, model/big.yaml"
    assert said in reading.notes


def test_included_values_are_in_their_place(tmp_path: Path) -> None:
    write(tmp_path, run_yaml="MODEL_ARGS: !include model.yaml\nSET: [!include one.yaml]\n", model_yaml=BASE)
    write(tmp_path, one_yaml="- 1\n")
    assert load_mapping(str(tmp_path / "run.yaml"))["SET"] == [[1]]
    assert read_config(tmp_path / "run.yaml").model.hidden == 128


@pytest.mark.parametrize(
    ("header", "named", "section"),
    [
        ("_global_.trainer", "model: small", "trainer"),
        ("trainer.deep", "model: small", "trainer.deep"),
        ("_group_", "model: small", "model"),
        ("_global_", "model: small", ""),
        ("trainer", "model@other: small", "other"),  # what the list says comes first
        ("trainer", "in: outer", "trainer"),  # from the root, wherever it is named
    ],
)
def test_a_base_is_where_its_header_puts_it(tmp_path: Path, header: str, named: str, section: str) -> None:
    write(tmp_path, run_yaml=f"defaults:\n- {named}\n- _self_\nvocab: 7\n", in__outer_yaml="defaults: [model: small]\n")
    write(
        tmp_path,
        model__small_yaml=f"\n# @package {header}\n{BASE}",
        in__model__small_yaml=f"# @package {header}\n{BASE}",
    )
    held = load_mapping(Source(tmp_path / "run.yaml", root=str(tmp_path)))
    assert at(held, f"{section}.hidden_size".strip(".")) == 128
    assert str(held).count("hidden_size") == 1


def test_a_launchers_wrappers_and_hydras_search_path_are_followed(tmp_path: Path) -> None:
    """As HyperPod's recipes and verl's are."""
    write(
        tmp_path,
        run_yaml="defaults: [/shared/default, ppo, _self_]\nhydra: {searchpath: ['file://lib/config', null]}\n"
        "training_config: {model_config: {model_name_or_path: Qwen/Qwen3-8B}}\n",
        shared__default_yaml="# @package recipes\ntraining_config: {model_config: {model_name_or_path: no/such}}\n",
        lib__config__ppo_yaml="# @package recipes.training_config.training_args\nmicro_train_batch_size: 2\n",
    )
    reading = read_config(tmp_path / "run.yaml", root=tmp_path)
    assert (reading.model.model_type, reading.workload["b"]) == ("qwen3", 2)


def test_primus_lays_overrides_over_its_presets_and_takes_the_variables_defaults(tmp_path: Path) -> None:
    write(
        tmp_path,
        primus__configs__models__megatron__small_yaml=BASE,
        primus__configs__modules__megatron__pre_yaml="micro_batch_size: 1\n",
        examples__run_yaml="modules: {pre_trainer: {framework: megatron, config: pre.yaml, model: '${M:small}.yaml', "
        "overrides: {tensor_model_parallel_size: '${TP:4}', micro_batch_size: 2}}}\n",
    )
    reading = read_config(tmp_path / "examples" / "run.yaml", root=tmp_path)
    assert (reading.model.layers, reading.workload["t"], reading.workload["b"]) == (2, 4, 2)


def test_maxtext_lays_the_named_model_over_its_base(tmp_path: Path) -> None:
    write(
        tmp_path,
        configs__base_yaml="{base_emb_dim: 2048, base_num_decoder_layers: 16, model_name: default}",
        configs__post__run_yaml="base_config: base.yaml\nmodel_name: wide\nmax_target_length: 128\n",
    )
    (tmp_path / "configs" / "models").mkdir()
    (tmp_path / "configs" / "models" / "wide.yml").write_text("base_emb_dim: 4096\nvocab_size: 1000\n")
    reading = read_config(tmp_path / "configs" / "post" / "run.yaml", root=tmp_path)
    assert (reading.model.hidden, reading.model.layers, reading.workload["s"]) == (4096, 16, 128)
    (tmp_path / "configs" / "models" / "wide.yml").unlink()
    with pytest.raises(InputError, match=r"model_name = 'models/wide\.yml': builds on this file"):
        read_config(tmp_path / "configs" / "post" / "run.yaml", root=tmp_path)


def test_a_script_reads_in_another_by_as_much_of_its_path_as_there_is(tmp_path: Path) -> None:
    arguments = "MODEL_ARGS=(--num-layers 2 --hidden-size 128 --num-attention-heads 4 --vocab-size 1000)\n"
    write(
        tmp_path,
        scripts__models__small_sh=arguments,
        scripts__run_sh='HERE="$(cd "$(dirname "$0")" && pwd)"\nsource "${HERE}/models/small.sh"\n'
        'source ~/.bashrc\npython train.py "${MODEL_ARGS[@]}" --max-position-embeddings 64\n',
        scripts__far_sh='source /root/repo/scripts/models/small.sh\npython train.py "${MODEL_ARGS[@]}" '
        "--max-position-embeddings 64\n",
    )
    reading = read_config(tmp_path / "scripts" / "run.sh", root=tmp_path)
    assert reading.model.layers == 2
    assert any("reads in scripts/models/small.sh" in note for note in reading.notes)
    assert any("~/.bashrc is read in by the script, and not here" in note for note in reading.notes)
    assert read_config(tmp_path / "scripts" / "far.sh", root=tmp_path).model == reading.model


def test_the_root_is_an_option_and_else_the_files_repository(tmp_path: Path) -> None:
    write(tmp_path, base_yaml=BASE, deep__child_yaml="extends: ../base.yaml\nvocab_size: 1000\n")
    child = str(tmp_path / "deep" / "child.yaml")
    refused = CliRunner().invoke(main, ["ops", child])
    assert refused.exit_code == 2
    assert "--root DIR" in refused.output
    assert CliRunner().invoke(main, ["ops", child, "--root", str(tmp_path)]).exit_code == 0
    (tmp_path / ".git").mkdir()
    assert CliRunner().invoke(main, ["ops", child]).exit_code == 0


def test_hydra_opens_each_of_a_list_and_takes_an_empty_file_for_no_keys(tmp_path: Path) -> None:
    write(
        tmp_path,
        parts__base_yaml="# nothing of its own\n",
        parts__wide_yaml=f"# @package _global_\n{BASE}",
        a_yaml="defaults: [{parts: [base, wide]}]\nmake_vocab_size_divisible_by: 1\n",
    )
    assert read_config(tmp_path / "a.yaml", root=tmp_path).model.hidden == 128
    with pytest.raises(InputError, match="parts/tall"):
        read_config(write(tmp_path, b_yaml="defaults: [{parts: [base, tall]}]\n") / "b.yaml", root=tmp_path)


def test_a_file_among_the_defaults_is_laid_beneath_the_whole_wherever_it_is(tmp_path: Path) -> None:
    # NeMo-RL's: Hydra names a group's choice without a suffix, which goes to the group's section.
    base = "policy: {model_name: Qwen/Qwen3-8B, train_micro_batch_size: 2}\n"
    own = "defaults: [../base/common.yaml]\npolicy: {max_total_sequence_length: 1536}\n"
    folder = write(tmp_path, base__common_yaml=base, run__own_yaml=own)
    held = load_mapping(Source(folder / "run" / "own.yaml", root=str(folder)))
    assert at(held, "policy.train_micro_batch_size") == 2
    assert at(held, "policy.max_total_sequence_length") == 1536
