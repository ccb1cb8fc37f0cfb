"""A step of each formula type, by formula and by its class of transformers, recognised and proven without the formula.

    python reports/bench/formula_steps.py [--only TYPE ...] [--write]

Types are those of AutoModelForCausalLM that have a formula, in their default configuration cut to LAYERS layers (whole
where that is refused), one sequence of 512 tokens on h100-sxm under megatron-core-te. ``--write`` makes
reports/formula-steps.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from dataclasses import replace
from pathlib import Path

from model_types import LAYERS, default
from step_rows import price_step

from shapes.device import load_device
from shapes.step.stack import load_stack
from shapes.trace import recognise_config
from shapes.workload import Workload
from sizer.readers import read_config
from sizer.readers.huggingface import BUILDERS
from sizer.readers.reading import FORMATS

REPORT = Path(__file__).resolve().parents[1] / "formula-steps.md"
#: What the two may differ by.
MOST = 0.03
WORKLOAD = Workload(b=1, s=512)


def compared(model_type: str, *, whole: bool = False) -> float | str:
    """Formula's seconds over the class's, less one; or why there is nothing to compare.

    A default that is refused where it is cut is taken ``whole``.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    try:
        config = json.loads(json.dumps(default(model_type, whole=whole).to_dict(), default=str))
        # Without them the reader takes an encoder's file for the class without a language model's head.
        config |= {"architectures": [CLASSES[model_type]]} if model_type in FORMATS["huggingface"]["own_heads"] else {}
        formula, proof = read_config(config).model, recognise_config(config)
    except Exception as error:
        if not whole:
            return compared(model_type, whole=True)
        return f"its default is refused: {str(error).removeprefix('<dict>: ')}"
    if proof.model is None:
        first = proof.unproven[0]
        return f"{first.name}: {first.reason}"
    device, stack = load_device("h100-sxm"), load_stack("megatron-core-te")
    models = (replace(one, towers=()) for one in (formula, proof.model))
    own, its = (price_step(one, WORKLOAD, device, stack).seconds for one in models)
    return own / its - 1


def rendered(found: dict[str, float | str]) -> str:
    """The report in Markdown."""
    differ = {name: abs(one) for name, one in found.items() if isinstance(one, float)}
    worst = max(differ, key=lambda name: differ[name])
    over = [name for name, one in differ.items() if one > MOST]
    lines = [
        "# A step by formula and by the class",
        "",
        f"Of {len(found)} causal types of transformers that have a formula, {len(differ)} are also recognised and "
        f"proven from their class alone. {len(over)} of those steps differ by more than {MOST:.0%} "
        f"({', '.join(over) or 'none'}); the furthest apart is {worst} ({differ[worst]:.2%}), and "
        f"{sum(one < 0.0005 for one in differ.values())} are equal. The other {len(found) - len(differ)} have only the "
        "formula, for the reason given.",
        "",
        f"Default configurations cut to {LAYERS} layers (whole where that is refused), one sequence of {WORKLOAD.s} "
        "tokens, h100-sxm, megatron-core-te. Made by `python reports/bench/formula_steps.py --write`.",
        "",
        "| type | formula over class | why not compared |",
        "|---|---|---|",
    ]
    for name, one in found.items():
        if isinstance(one, str) or differ[name] >= 0.0005:
            told = f"{one:+.2%} | " if isinstance(one, float) else f" | {one[:200]}"
            lines.append(f"| {name} | {told} |")
    return "\n".join([*lines, ""])


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found = {}
    for name in arguments.only or sorted(set(causal) & set(BUILDERS)):
        found[name] = compared(name)
        sys.stdout.write(f"{name}: {found[name]}\n")
        sys.stdout.flush()
    if arguments.write:
        REPORT.write_text(rendered(found), encoding="utf-8")


if __name__ == "__main__":
    main()
