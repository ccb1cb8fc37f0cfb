"""What recognised classes are proven by, of every formula reader.

These are parameters, products and attention calls with their element types, forward and backward, and nothing left
over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reports.bench.step_rows import price_step
from shapes.device import load_device
from shapes.model import Block, ModelShape
from shapes.step.stack import load_stack
from shapes.workload import Workload
from sizer.readers import read_config
from tests.test_parity import OLD
from tests.test_readers import DEFAULTS, SETTINGS, SMALL
from tests.tiers import every_run

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if OLD:
    pytest.skip("transformers 5's masks and experts", allow_module_level=True)


#: What cannot be compared in this form.
OTHERWISE = {
    "llama4_text": "the class runs every token through every expert",
    "siglip_vision_model": "its pooling is torch.nn.MultiheadAttention, written out or fused as its inputs' types say",
    "zamba": "each Mamba head makes its steps of its own channels, by a batched product (tests/test_recurrent.py)",
    "deepseek_v4": "its compressor is followed at lengths of whole windows alone (tests/test_sparse.py)",
    "sam2": "weights of masks that are given rest where points are (tests/test_sam2.py counts them)",
}
#: Whose class runs its experts in a loop, at its defaults too many for 64 tokens: fractions of a row each.
LOOPED = {"deepseek_v2", "longcat_flash"}
#: Of an indexer that keeps more keys than there are attention is dense, as the class runs it always.
ALL_KEYS = {"index_topk": 4096}
HEADS = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "vit": "ViTForImageClassification"}
HEADS |= {"xlm-roberta": "XLMRobertaForMaskedLM", "camembert": "CamembertForCausalLM"}
HEADS |= {"modernbert": "ModernBertForMaskedLM", "data2vec-text": "Data2VecTextForMaskedLM"}
HEADS |= {"electra": "ElectraForMaskedLM", "ernie": "ErnieForMaskedLM", "megatron-bert": "MegatronBertForMaskedLM"}
HEADS |= {"rembert": "RemBertForMaskedLM", "roberta-prelayernorm": "RobertaPreLayerNormForMaskedLM"}
HEADS |= {"roformer": "RoFormerForMaskedLM", "xlm-roberta-xl": "XLMRobertaXLForMaskedLM"}


def left_over(config: dict[str, Any]) -> str | None:
    """The first thing that the class of ``config`` runs and its formula does not say, or the other way round."""
    from shapes.trace.config import Built, with_class
    from shapes.trace.prove import difference, recorded

    formula = read_config(config).model

    def once(built: Built) -> str | None:
        graph, lengths, dtype = recorded(built)
        for node in graph.nodes:
            # A mask that depends on tokens' values, of keys that an indexer chose: the formula is taken at its word.
            chosen = hasattr(built.settings, "index_topk") and node.core is not None and node.core.window is None
            if node.core is not None and (node.where in graph.problems or chosen):
                node.core = replace(node.core, causal=True, window=None)
        return difference(replace(formula, towers=()), graph, built, lengths, dtype)

    found: str | None = with_class(config, once, attention="auto", dtype="bf16")
    return found


def _cases(*, defaults: bool = True) -> list[tuple[str, dict[str, Any]]]:
    """Small settings of every family, and the classes' own ``defaults`` but those that a loop over experts runs."""
    found = []
    for family, given in [*SETTINGS, *(case for case in DEFAULTS if defaults and case[0] not in LOOPED)]:
        # Embeddings of languages are for calls that name one; transformers 5's t5 is tied until a checkpoint is not.
        other = {"n_langs"} | ({"tie_word_embeddings"} if family in ("t5", "mt5") else set())
        settings = {key: value for key, value in given.items() if key not in other} | (
            {"architectures": [HEADS[family]]} if family in HEADS else {}
        )
        settings |= ALL_KEYS if "index_topk" in given else {}
        known = family in transformers.CONFIG_MAPPING and family not in OTHERWISE
        # falcon's class repeats its key heads for attention, which the formula (and FlashAttention) does not.
        if known and "new_decoder_architecture" not in given:
            found.append((family, settings))
    return found


def test_what_is_left_out_is_a_family() -> None:
    assert OTHERWISE.keys() <= {family for family, _ in [*SETTINGS, *DEFAULTS]}


KEPT = ("llama", "gpt2", "bert", "qwen2_moe", "deepseek_v3", "deepseek_v32", "bloom", "t5", "gpt_oss", "whisper")
CASES = every_run(_cases(), *(case for case in _cases(defaults=False) if case[0] in KEPT))


@pytest.mark.parametrize(("family", "settings"), CASES)
def test_the_class_runs_what_the_formula_says(family: str, settings: dict[str, Any]) -> None:
    assert left_over({"model_type": family, **settings}) is None


#: Within it a formula's step and that of the same class, recognised, have to be.
STEP, STACK = 0.03, load_stack("megatron-core-te")


def _without_dropout(model: ModelShape) -> ModelShape:
    """What a file does not say is dropped out by a class's default, and nothing by a formula; towers did not run."""

    def kept(block: Block) -> Block:
        parts = {name: getattr(block, name) for name in ("attention", "cross")}
        parts = {name: replace(part, dropout=0.0) for name, part in parts.items() if part is not None}
        return replace(block, dropout=0.0, **parts)

    stacks = (replace(stack, blocks=tuple(map(kept, stack.blocks))) for stack in model.stacks)
    return replace(model, stacks=tuple(stacks), towers=())


@pytest.mark.parametrize(("family", "settings"), CASES)
def test_a_step_takes_as_long_as_that_of_the_recognised_class(family: str, settings: dict[str, Any]) -> None:
    from shapes.trace import recognise_config

    config = {"model_type": family, **settings}
    found = recognise_config(config).model
    if found is None:
        pytest.skip("its class is not understood without the formula")
    workload, device = Workload(b=1, s=512), load_device("h100-sxm")
    formula = _without_dropout(read_config(config).model)
    seconds = [price_step(model, workload, device, STACK).seconds for model in (formula, _without_dropout(found))]
    assert seconds[1] == pytest.approx(seconds[0], rel=STEP)


def test_a_recognised_class_drops_out_what_its_formula_does() -> None:
    from shapes.memory import memory
    from shapes.trace import recognise_config

    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SMALL}
    found, formula = recognise_config(config).model, read_config(config).model
    assert found is not None
    assert [block.dropout for block in found.main.blocks] == [block.dropout for block in formula.main.blocks] == [0.1]
    workload, device = Workload(b=8, s=512), load_device("h100-sxm")
    seconds = [price_step(model, workload, device, STACK).seconds for model in (formula, found)]
    assert seconds[1] == pytest.approx(seconds[0], rel=STEP)
    kept = [
        memory(replace(model, model_type="", written=""), workload).components["activations"]
        for model in (formula, found)
    ]
    assert kept[0] == kept[1] > memory(_without_dropout(found), workload).components["activations"]
