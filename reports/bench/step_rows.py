"""Rows of published training steps (columns of evidence/steps.csv) as models, workloads, devices and stacks."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any, Literal

from shapes.cost import predict_many
from shapes.device import Device, load_device, networked
from shapes.errors import InputError, read_text
from shapes.model import ModelShape
from shapes.operators import operators
from shapes.step import Pricer, StepCost, over_stages
from shapes.step.seconds import Work, slowest_stage, work
from shapes.step.stack import ALONE, GROUPS, SoftwareStack, list_stacks, load_stack
from shapes.workload import ALTERNATE, AttentionKernel, Workload
from sizer.readers import read_config
from sizer.readers.megatron.models import predicting

#: A word of an unknown stack's name -> the framework (a shipped stack's ``framework``) that it is nearest to; the
#: first that a name holds decides.
FRAMEWORKS = {
    "megatron": "megatron",
    "mcore": "megatron",
    "nemo": "megatron",
    "neox": "megatron",
    "ddp": "ddp",
    "llmc": "llmc",
    "nanogpt": "ddp",
    "fsdp": "fsdp",
    "fsdp2": "fsdp",
    "torchtitan": "fsdp",
    "foundry": "fsdp",
    "composer": "fsdp",
    "deepspeed": "fsdp",
    "zero": "fsdp",
    "zero3": "fsdp",
    "torchtune": "fsdp",
    "lightning": "fsdp",
    "jax": "fsdp",
    "maxtext": "fsdp",
    "levanter": "fsdp",
    "hf": "transformers",
    "transformers": "transformers",
    "huggingface": "transformers",
    "trainer": "transformers",
    "accelerate": "transformers",
    "axolotl": "transformers",
}


#: A stack of one vendor's devices, which no other name is near to.
APART = "megatron-deepspeed-gaudi"
#: A table of a hundred thousand runs.
MAX_BYTES = 1 << 26
#: What the tables leave out and the recipes behind them say.
RECIPES = Path(__file__).parent / "step_recipes.toml"
#: What a row cannot be priced without.
NEEDED = ("id", "stack", "gpu", "config", "s", "micro_batch", "accumulation", "dtype", "t", "p", "d", "step_s")

#: A released model of the bundled table.
NAMED = r"[\w.-]+/[\w.-]+"

#: Probabilities that the tables' GPT-2 configurations leave out, of which no source speaks: the stacks' constants were
#: fitted without dropout's kernels, so that those of its runs that had them are in the other factors.
DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")

#: The optimizer column -> whose states and bytes are meant.
OPTIMIZERS: dict[str, str | None] = {
    "": None,
    "adam": "adamw",
    "adamw": "adamw",
    "adamw_8bit": "adamw-8bit",
    "paged_adamw_8bit": "adamw-8bit",
    "sgd": "sgd",
    "lion": "lion",
    "adafactor": "adafactor",
    "muon": "muon",
}
#: The attention column -> the kernel.
KERNELS: dict[str, AttentionKernel] = {"eager": "eager", "flash2": "fa2", "flash3": "fa3"}


@dataclass(frozen=True)
class Row:
    """One published run.

    ``known``: its stack's name is one that a shipped stack answers to. ``peak_gib``: of torch's
    allocator, as allocated where that is said, else as reserved. ``least_power``: the device at the least power that it

    can be limited to, of a run whose devices are said to be limited, to what not.
    """

    id: str
    source: str
    stack_name: str
    config: str
    model: ModelShape
    workload: Workload
    accumulation: int
    dtype: str
    gpus: int
    device: Device
    stack: SoftwareStack
    known: bool
    step_s: float
    nearest_other: SoftwareStack
    loss: str
    peak_gib: float | None
    least_power: Device | None


def read_rows(path: Path, refused: list[tuple[str, str]] | None = None) -> Iterator[Row]:
    """Every row of a CSV file with the columns of steps.csv; what cannot be read goes to ``refused`` (id, reason).

    InputError where the file has no rows, or not the columns without which none can be priced.
    """
    with io.StringIO(read_text(path, MAX_BYTES), newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"expected the columns of steps.csv; missing: {', '.join(missing)}", where=str(path))
        number = 0
        for number, line in enumerate(reader, start=1):
            try:
                yield _row(line)
            except (ValueError, KeyError) as error:  # InputError is one: a device, a configuration, a number
                if refused is None:
                    raise
                refused.append((line.get("id") or f"row {number}", str(error)))
        if not number:
            raise InputError("expected at least one row under the header", where=str(path))


@lru_cache(maxsize=4096)
def _model(config: str) -> ModelShape:
    """Of a configuration as JSON, or of a released model by its name."""
    try:
        read = {} if re.fullmatch(NAMED, config) else json.loads(config)
    except ValueError as error:
        raise InputError(f"expected JSON: {error}", key="config") from None
    read = read or dict(read_config(config).config)
    if read.get("model_type") == "gpt2":
        read = dict.fromkeys(DROPOUTS, 0.0) | read
    # A configuration's layers of multi-token prediction, which transformers leaves out, are those that the run trained.
    model, depths = read_config(read).model, int(read.get("num_nextn_predict_layers") or 0)
    like = replace(model.main.blocks[-1], count=1)
    main = replace(model.main, blocks=(*model.main.blocks, *depths * predicting([like], model.hidden)))
    return replace(model, stacks=(*model.stacks[:-1], main), head_passes=1 + depths)


def _config(line: dict[str, str], t: int) -> str:
    """The row's configuration, or where it has none the released model that its notes name.

    The vocabulary is unpadded where padding is assumed and the measurements contradict it. Of vTrain's runs neither
    precision nor padding is stated. With t > 1 each microbatch's embedding, head and loss take what a padded vocabulary
    takes; with t = 1 twice to three times that, at every microbatch and in proportion to h: what 50257, odd, takes.
    """
    notes = line.get("notes") or ""
    padded, named = re.search(r"vocabulary (\d+) padded", notes), re.search(rf"; model ({NAMED}) ", notes)
    if not line["config"] and named:
        return named[1]
    if padded is None or t > 1:
        return line["config"]
    return json.dumps(json.loads(line["config"]) | {"vocab_size": int(padded[1])})


def _row(line: dict[str, str]) -> Row:
    def number(key: str, default: int = 1) -> int:
        if key in NEEDED and not line[key]:
            raise InputError("expected a number", key=key, value=line[key])
        return int(real(key, default))

    def real(key: str, default: float) -> float:
        try:
            return float(line.get(key) or default)
        except ValueError:
            raise InputError("expected a number", key=key, value=line[key]) from None

    step_s = real("step_s", 0.0)
    if not 0 < step_s < inf:
        raise InputError("expected a positive number of seconds", key="step_s", value=line["step_s"])

    dtype = line["dtype"]
    asked = line["stack"], number("year", 2024), line.get("attention") == "eager", number("p") > 1
    stack, known = stack_of(*asked, dtype=dtype)
    model = _model(_config(line, number("t")))
    recipe = _recipe(line["stack"], load_device(line["gpu"]).name, model, number("ep"), number("gpus"))
    device = _networked(load_device(recipe.get("device", line["gpu"])), line)
    workload = Workload(
        b=number("micro_batch"),
        s=number("s"),
        dtype=priced_dtype(dtype, device),
        t=number("t"),
        p=number("p"),
        d=number("d"),
        e=_experts(number("ep"), number("d") * number("cp"), number("t")),
        etp=number("etp", 0) or None,
        cp=number("cp"),
        vpp=number("vpp", recipe.get("vpp", 1)),
        zero=number("zero", 0),
        replicas=_replicas(line, number("d"), device.link.node_devices) if number("zero", 0) == 3 else 1,
        attention=recipe.get("attention", KERNELS.get(line.get("attention") or "")) or _attention(stack, device, known),
        checkpointing=recipe.get("checkpointing") or _policy(line),
        precision=recipe.get("precision"),
        sequence_parallel=(line.get("sequence_parallel") or "").lower() == "true",
        optimizer=_optimizer(line),
        **_tuning(line, number, recipe.get("base")),
        attention_dtype=_attention_dtype(line.get("notes") or ""),
        gathers="fp8" if "fp8 all-gather" in (line.get("notes") or "") else recipe.get("gathers"),
        no_overlap=recipe.get("no_overlap") or _no_overlap(_flags(line)),
        **{key: recipe[key] for key in ("cp_comm", "dispatcher", "ep_overlap", "recipe", "reduces") if key in recipe},
    )
    return Row(
        id=line["id"],
        source=line.get("source") or "",
        stack_name=line["stack"],
        config=line["config"],
        model=model,
        workload=workload,
        accumulation=number("accumulation"),
        dtype=dtype,
        gpus=number("gpus"),
        device=device,
        stack=stack.with_graphs() if any(flag.endswith("_CUDA_GRAPH") for flag in _flags(line)) else stack,
        known=known,
        step_s=step_s,
        nearest_other=stack_of(*asked, stack.name)[0],
        loss=recipe.get("loss", stack.loss),
        peak_gib=real("peak_memory_gib", real("peak_reserved_gib", 0.0)) or None,
        least_power=_least(device) if "power limited" in (line.get("notes") or "") else None,
    )


def _least(device: Device) -> Device:
    return load_device(f"{device.base}:{device.power_w / 4:.0f}W")


def _attention(stack: SoftwareStack, device: Device, known: bool) -> AttentionKernel:
    """The kernel that a known stack runs where the row does not say."""
    own = stack.attention_kernel(device.architecture) if known else None
    return own or "auto"  # type: ignore[return-value]  # a kernel's name


def _attention_dtype(notes: str) -> Literal["fp8"] | None:
    """What attention runs in: as the log's resolved configuration says, else as the submitted one does."""
    logged = re.search(r"fp8 attention (\w+)", notes)
    narrow = logged[1] in ("1", "true") if logged else "attention in fp8" in notes
    return "fp8" if narrow else None


def _policy(line: Mapping[str, str]) -> str:
    """What is recomputed: the modules or layers that the notes list, and by operator as torchtitan's selective does."""
    said, notes = line.get("checkpointing"), line.get("notes") or ""
    listed = re.search(r"recompute modules \[([^]]*)\]", notes)
    if listed:
        return ",".join(word.strip(" '\"") for word in listed[1].split(","))
    if layers := re.search(r"\b(\d+) of \d+ layers recomputed", notes):
        return f"full:{layers[1]}"
    if said == "selective" and ("per-op SAC" in notes or line["stack"].startswith("torchtitan-")):
        return ALTERNATE
    return said or "unknown"


def _flags(line: Mapping[str, str]) -> set[str]:
    """Settings that the notes list as on: `on: TP_COMM_OVERLAP LORA_A2A; ...`."""
    listed = re.search(r"\bon: ([^;]*)", line.get("notes") or "")
    return set(listed[1].split()) if listed else set()


def _no_overlap(flags: set[str]) -> str | None:
    """What a run that lists its overlaps does not list: tensor parallelism's sends of the forward.

    The backward's run during products of its own in any case, and a gradient's reduction as the stack's does.
    """
    return "tensor-forward" if flags and "TP_COMM_OVERLAP" not in flags else None


def _replicas(line: Mapping[str, str], d: int, node: int) -> int:
    """Groups that each hold a sharded model: as the column says, or nodes where notes speak of HSDP."""
    if said := line.get("replicas"):
        return int(float(said))
    return d // node if d % node == 0 and re.search(r"\bHSDP\b|hybrid.shard", line.get("notes") or "") else 1


def _optimizer(line: Mapping[str, str]) -> Any:
    name = line.get("optimizer") or ""
    if name not in OPTIMIZERS:
        raise InputError(f"expected one of {', '.join(filter(None, OPTIMIZERS))}", key="optimizer", value=name)
    return OPTIMIZERS[name]


def _tuning(line: Mapping[str, str], number: Callable[..., int], base: str | None) -> dict[str, Any]:
    """Fine-tuning as the row says; adapters keep what `Workload` takes for granted where it does not."""
    method = line.get("finetune") or None
    if method not in ("lora", "qlora"):
        return {"finetune": method}
    targets = line.get("lora_targets") or None
    return {"finetune": method, "lora_rank": number("lora_rank", 8), "lora_targets": targets, "base": base}


def _networked(device: Device, line: Mapping[str, str]) -> Device:
    """The device in the row's network: its interconnect's `domain=8`, `nics=4 x 400 Gb/s`, or the notes' `4x100 Gb`."""
    said = line.get("interconnect") or ""
    domain = re.search(r"\bdomain=(\d+)", said)
    cards = re.search(r"\bnics=(\d+) x (\d+) Gb", said) or re.search(r"\b(\d+)x(\d+) Gb\b", line.get("notes") or "")
    numbers = (int(cards[1]), int(cards[2])) if cards else (0, 0)
    return networked(device, *numbers, int(domain[1]) if domain else None)


def priced_dtype(dtype: str, device: Device) -> str:
    """The element type whose prices stand for ``dtype``'s on ``device``: its own, else fp8's, else bf16's."""
    return next((own for own in (dtype, "fp8", "bf16") if own in device.peak_flops), "fp16")


@lru_cache(maxsize=1)
def _recipes() -> dict[str, list[dict[str, Any]]]:
    with open(RECIPES, "rb") as file:
        return tomllib.load(file)


def _recipe(stack: str, device: str, model: ModelShape, e: int, gpus: int) -> dict[str, Any]:
    """What a published recipe says of the run and its table does not."""
    first: dict[str, Any] = {}
    for listed in _recipes().values():
        for recipe in listed:
            if (
                fnmatchcase(stack, recipe["stack"])
                and model.model_type in recipe.get("model", (model.model_type,))
                and device in recipe.get("gpu", (device,))
                and recipe.get("layers", model.layers) == model.layers
                and e >= recipe.get("least_ep", 1)
                and gpus <= recipe.get("most_gpus", gpus)
            ):
                first = recipe | first
                break
    return first


def _experts(e: int, ranks: int, t: int) -> int:
    """Expert parallelism over the ranks of data and context parallelism, or folded over tensor parallelism's, too."""
    while ranks % e and ranks * t % e:
        e //= 2
    return max(1, e)


@lru_cache(maxsize=256)
def stack_of(
    name: str, year: int, eager: bool = False, pipelined: bool = False, without: str = "", dtype: str = ""
) -> tuple[SoftwareStack, bool]:
    """The shipped stack that answers to ``name``, else the nearest: framework, eager or not, compiled or not, year.

    ``pipelined``: it runs pipeline parallelism, which FSDP's stacks do not. ``without``: a stack taken not to be known.
    ``dtype``: of the products, by which releases differ, where the name does not say.
    """
    if ALONE in name:
        stack, known = stack_of(name.replace(ALONE, ""), year, eager, pipelined, without, dtype)
        return stack.without_overlap(GROUPS), known
    shipped = [load_stack(known) for known in list_stacks() if known != without]
    for stack in shipped:
        if any(fnmatchcase(name, alias) for alias in (stack.name, *stack.aliases)):
            return stack.of_release(name if dtype in name else f"{name}-{dtype}"), True
    words = re.findall(r"[a-z]+[0-9]*", name.lower())
    framework = next((FRAMEWORKS[word] for word in FRAMEWORKS if word in words), "fsdp")
    framework = "megatron" if pipelined and framework == "fsdp" else framework
    compiled = bool({"compile", "compiled", "jax", "maxtext", "levanter"} & set(words))

    def distance(stack: SoftwareStack) -> tuple[bool, bool, bool, int]:
        own_eager = stack.attention_kernel("") == "eager"
        return (
            stack.framework != framework,
            own_eager != eager,
            ("compile" in stack.name) != compiled,
            abs(stack.year - year),
        )

    return min((stack for stack in shipped if stack.name != APART), key=distance), False


def price_step(
    model: ModelShape,
    workload: Workload,
    device: Device,
    stack: SoftwareStack,
    accumulation: int | None = None,
    *,
    known: bool = True,
) -> StepCost:
    """One global step of ``model``: ``accumulation`` microbatches (None: the workload's) and the update.

    ``known``: the stack is the run's own, not the nearest to it.
    """
    if accumulation is not None:
        workload = replace(workload, gpus=None, global_batch=accumulation * workload.b * workload.d)
    stack = stack if known else replace(stack, architectures=())
    cost = Pricer(device, stack=stack).step(operators(model, workload), workload, model).cost
    assert cost is not None, "of training"
    return cost


def works(model: ModelShape, workload: Workload, device: Device, stack: SoftwareStack) -> tuple[Work, Work]:
    """The work of the pipeline stage that is slowest by ``stack``, and of all stages: one object where there is one."""
    listed = operators(model, workload)
    stage = work(listed, [one.seconds for one in predict_many(listed, device)])
    if workload.p == 1:
        return stage, stage
    return slowest_stage(stage, model, workload.p, stack, device), Pricer(device).summed(model, over_stages(workload))
