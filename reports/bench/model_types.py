"""How each model type of transformers, and each released configuration, is read: by formula, recognised, or not whole.

    python reports/bench/model_types.py [--only TYPE ...] [--released DIR] [--prove] [--raw FILE] [--write]

Types are those of AutoModelForCausalLM in their default configuration, cut to LAYERS layers; DIR holds config.json
files (model_configs of aiconfigurator-core). ``--prove`` also recognises what has a formula, and compares the two.
``--write`` puts the figures into reports/model-types.md and the README. One process a type, one at a time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trace_coverage import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
REPORT, README = ROOT / "reports" / "model-types.md", ROOT / "README.md"
LAYERS, TIMEOUT_S = 8, 300
_DEPTH = re.compile(r"^(num_(hidden_|encoder_|decoder_)?layers|n_layers?|n_layer|(encoder|decoder)_layers|num_blocks)$")
#: How a configuration was read -> its words in the report.
WAYS = {
    "formula": "by formula",
    "recognised": "recognised in its class and proven",
    "in part": "in part: what was not understood is named",
    "refused": "refused",
}


def cut(settings: Any, layers: int = LAYERS) -> None:
    """At most ``layers`` layers, in a configuration and its parts; lists with an entry a layer are cut with them."""
    import transformers

    values = dict(vars(settings))
    for value in values.values():
        if isinstance(value, transformers.PretrainedConfig):
            cut(value, layers)
    for key, depth in values.items():
        if _DEPTH.match(key) and isinstance(depth, int) and depth > layers:
            setattr(settings, key, layers)
            for name, value in values.items():
                if isinstance(value, list) and len(value) == depth:
                    setattr(settings, name, value[:layers])


def default(model_type: str, *, whole: bool = False) -> Any:
    """The default configuration of a type, cut unless ``whole``."""
    import transformers

    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
    settings = known(**SETTINGS.get(model_type, {}))
    if not whole:
        cut(settings)
    return settings


def read(source: Any, *, prove: bool) -> dict[str, Any]:
    """How ``source``, a configuration's content, is read, and why not whole; in this process."""
    from shapes.errors import InputError
    from shapes.trace import recognise_config
    from sizer.readers import UnknownModelType, read_config

    answer: dict[str, Any] = {}
    formula = None
    started = time.process_time()
    try:
        formula = read_config(source).model
        answer["way"] = "formula"
    except UnknownModelType:
        pass
    except InputError as error:
        answer |= {"way": "refused", "why": {"": str(error)}}
    if formula is None or prove:
        try:
            proof = recognise_config(source)
        except InputError as error:
            return {"way": "refused", "why": {"": str(error)}} | answer | {"prove": str(error)}
        way = "recognised" if proof.model is not None else "in part"
        if "way" in answer:
            unproven = {one.module: one.reason for one in proof.unproven}
            answer |= {"prove": unproven or compared(formula, proof.model)}
        else:
            answer |= {"way": way, "why": {one.module: one.reason for one in proof.unproven}}
            answer |= {"share": max((one.share for one in proof.unproven), default=0.0), "held": list(proof.held)}
    return answer | {"seconds": time.process_time() - started}


def compared(formula: Any, recognised: Any) -> str:
    """Where two shapes differ, the shortest differing fields; "equal" where they do not."""
    if formula is None:
        return "recognised"
    return ", ".join(_different(formula, recognised, "")) or "equal"


def _different(one: Any, other: Any, where: str) -> Iterator[str]:
    if type(one) is type(other) and hasattr(one, "__dataclass_fields__"):
        for name in one.__dataclass_fields__:
            yield from _different(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _different(left, right, f"{where}[{index}]")
    elif one != other:
        yield f"{where}: {one} / {other}"


def one(task: tuple[str, Any], prove: bool) -> dict[str, Any]:
    """``read`` of a file, or of a type: cut, and whole where it is refused so, whatever it raises."""
    import logging
    import warnings

    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    name, path = task
    answer: dict[str, Any] = {}
    for whole in (True,) if path else (False, True):
        try:
            if path:
                text = path.read_text(encoding="utf-8")
            else:
                text = json.dumps(default(name, whole=whole).to_dict(), default=str)
            answer = {"name": name, **read(json.loads(text), prove=prove)}
        except Exception as error:
            answer = {"name": name, "way": "refused", "why": {"": f"{type(error).__name__}: {error}"[:300]}}
        # Of a type with a formula the class alone may be refused, which ends without a time.
        if answer["way"] != "refused" and "seconds" in answer:
            break
    return answer


def isolated(task: tuple[str, Any], prove: bool) -> dict[str, Any]:
    """``one`` in a forked process, which may die or never end."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(one(task, prove)))
    process.start()
    sender.close()
    try:
        if not receiver.poll(TIMEOUT_S):
            process.kill()
            return {"name": task[0], "way": "refused", "why": {"": f"not done after {TIMEOUT_S} s"}}
        return dict(receiver.recv())
    except EOFError:
        return {"name": task[0], "way": "refused", "why": {"": f"process ended with {process.exitcode}"}}
    finally:
        process.join()


def rendered(types: list[dict[str, Any]], released: list[dict[str, Any]]) -> str:
    """The report in Markdown."""
    import torch
    import transformers

    lines = [
        "# How model types are read",
        "",
        told(types, released).partition(" ([each")[0] + ". What is not whole is named below, with its reason.",
        "",
        f"transformers {transformers.__version__}, torch {torch.__version__}; default configurations cut to {LAYERS} "
        "layers, released ones whole. Made by `python reports/bench/model_types.py --released DIR --write`.",
        "",
        f"| how | causal types (of {len(types)}) | released configurations (of {len(released)}) |",
        "|---|---|---|",
    ]
    ways = [Counter(answer["way"] for answer in answers) for answers in (types, released)]
    lines += [f"| {words} | {' | '.join(str(found[way]) for found in ways)} |" for way, words in WAYS.items()]
    for heading, answers in (("Types", types), ("Released configurations", released)):
        lines += ["", f"## {heading} that are not whole", "", "| name | how | where and why |", "|---|---|---|"]
        lines += [_row(answer) for answer in answers if answer["way"] in ("in part", "refused")]
    names = ", ".join(answer["name"] for answer in types if answer["way"] == "recognised")
    lines += ["", "## Types recognised in their class", "", f"{names}.", "", _time_taken(types)]
    return "\n".join([*lines, ""])


def _time_taken(types: list[dict[str, Any]]) -> str:
    """What is waited for where a class has to be run, and that nothing else waits."""
    took = sorted((one["seconds"], one["name"]) for one in types if one["way"] in ("recognised", "in part"))
    (middle, _), (longest, slowest) = took[len(took) // 2], took[-1]
    return (
        f"Only these, and those above that are in part or refused, load torch and transformers, before any command's "
        f"answer or refusal; recognising then takes {middle:.1f} s of CPU in the middle and at most {longest:.1f} s "
        f"({slowest}). Types that a formula reads, and types that transformers does not know, load neither. "
        f"{check_of_the_largest()}"
    )


#: Of the types without a formula, the one whose default configuration takes longest.
LARGEST = "mllama"


def check_of_the_largest() -> str:
    """CPU of a whole process that checks the default configuration of ``LARGEST``, none of its layers left out."""
    settings, before = default(LARGEST, whole=True), _children_s()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(settings.to_dict(), default=str), "utf-8")
        subprocess.run([sys.executable, "-m", "sizer", "check", str(path)], capture_output=True, check=False, cwd=ROOT)
    layers = getattr(settings, "text_config", settings).num_hidden_layers
    return f"`sizer check` of {LARGEST} whole ({layers} layers) takes {_children_s() - before:.1f} s of CPU."


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(answer: dict[str, Any]) -> str:
    """The first reason, with the layers' numbers out of its path, and how many modules it is not."""
    path, why = next(iter(answer["why"].items()), ("", ""))
    path = re.sub(r"\.\d+(?=\.|$)", ".*", path)
    why = re.sub(r"(?<=[a-z])\.\d+(?=[.: ]|$)", ".*", why.splitlines()[0] if why else "").replace("|", "\\|")[:200]
    return f"| {answer['name']} | {answer['way']} | {f'`{path}`: ' if path else ''}{why} |"


def told(types: list[dict[str, Any]], released: list[dict[str, Any]]) -> str:
    """The README's line."""
    parts = []
    for what, answers in (
        ("causal types of transformers", types),
        ("released configurations of 2024 to 2026", released),
    ):
        found = Counter(answer["way"] for answer in answers)
        words = {"formula": "by formula", "recognised": "recognised", "in part": "in part", "refused": "refused"}
        counts = [f"{found[way]} {said}" for way, said in words.items() if found[way]]
        parts.append(f"of {len(answers)} {what} {', '.join(counts)}")
    named = "[each by name](reports/model-types.md), [every command](reports/released.md)"
    named += "; recognising needs `pip install '.[trace]'`"
    return f"Read whole or refused with a reason: {'; '.join(parts)} ({named})."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--released", type=Path)
    parser.add_argument("--prove", action="store_true", help="also recognise what has a formula, and compare")
    parser.add_argument("--raw", type=Path, help="a line of JSON for each")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    import transformers.masking_utils
    import transformers.models.llama.modeling_llama  # what all classes import, once before forking

    from shapes.trace import prove  # noqa: F401

    files = sorted(arguments.released.glob("*_config.json")) if arguments.released else []
    names = sorted({config.model_type for config in transformers.AutoModelForCausalLM._model_mapping})
    tasks: list[tuple[str, Any]] = [(name, None) for name in names]
    tasks += [(file.stem.removesuffix("_config"), file) for file in files if "hf_quant" not in file.stem]
    if arguments.only:
        tasks = [task for task in tasks if task[0] in arguments.only]
    answers = []
    for task in tasks:
        answers.append(isolated(task, arguments.prove))
        sys.stdout.write(json.dumps(answers[-1]) + "\n")
    if arguments.raw:
        arguments.raw.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    if arguments.write:
        types, released = answers[: len(names)], answers[len(names) :]
        REPORT.write_text(rendered(types, released), encoding="utf-8")
        readme = README.read_text(encoding="utf-8")
        README.write_text(re.sub(r"(?m)^Read whole or refused.*$", told(types, released), readme), encoding="utf-8")


if __name__ == "__main__":
    main()
