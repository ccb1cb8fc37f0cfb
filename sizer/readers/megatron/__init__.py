"""Megatron-LM: a launch script, a test's or a user's YAML file of arguments, or saved ``args``.

Names and defaults are those of megatron/training/arguments.py.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any

from shapes.errors import InputError, refuse, shorten
from shapes.frozen import Texts, given, without
from shapes.model import ModelShape, Unread
from shapes.recipes import RECIPES
from shapes.workload import modules
from sizer.readers import expressions
from sizer.readers.loading import SETTINGS, Tree
from sizer.readers.reading import (
    FORMATS,
    LACKS,
    WORDS,
    Config,
    Fields,
    Names,
    NoModel,
    Reading,
    Values,
    at,
    in_use,
    is_harmless,
    is_released,
    lacking,
    leaves,
    named_plainly,
    names_of,
    reading,
    recipe_of,
    stated,
    table,
    unknown_in,
    with_settings,
)
from sizer.readers.shell import Script, Variables

from .models import build

NAME = "megatron"
_TABLE = FORMATS[NAME]
_STATES_MODEL = re.compile(
    r"--(?:num[-_]layers|hidden[-_]size|encoder[-_]num[-_]layers|hybrid[-_](?:layer|override)[-_]pattern)(?:=|$)"
)
_OPTION = re.compile(r"--[A-Za-z]|-[dpt]p\b|-N(?=$|[ =])")
#: A word that is one variable without a value (as ``shell.words.unknown`` marks it); names of ones that hold options.
_VARIABLE = "\0\\$\\{?([A-Za-z_]\\w*)[^\0]*\0"
_OPTIONS = r"(?i)(?:option|arg|opt)s?$"
_DASHED = r"-(?!\d|$)"
#: Arguments that tell one model from another; options of torchrun, srun and sbatch that say how many devices there are;
#: scripts' suffixes; variables that swift takes such options from.
_SIZES, _NODES, _PER_NODE, _SCRIPTS, _SWIFTS = map(tuple, _TABLE["words"].values())


def is_script(text: str, where: str) -> bool:
    """Whether ``text`` is a launch script: by its name, its first line, or options with two dashes."""
    # An option followed by a value, not by a colon as in a YAML file.
    option = r"(?s)#!|(?!\s*[{\[])(?:.*\s)?--hidden[-_]size[\s=]"
    return where.endswith(_SCRIPTS) or re.match(option, text) is not None


def parse_script(text: str, settings: Config, tree: Tree) -> Values:
    """The arguments of a script's (first) command that states a model, nothing run.

    ``settings`` give shell variables a value, whatever the script assigns. Values that only running would tell
    (``$(nproc)``, ``$1``) are left out and listed under ``_unknown``.
    """
    script = Script(Variables({key: str(value) for key, value in settings.items()}), tree)
    script.follow(text)
    used = script.variables.used & script.variables.preset
    # Settings that the script writes are not those in a file of their name, which another run left.
    settled = dict if re.search(r"(?i)>\s*[\"']?\$?\{?\w*(?:conf|json)", text) else tree.with_deepspeed
    launched = _launched(script, text)
    try:
        words, notes = _model_command(script)
    except InputError:
        if not (named := _naming(script, launched, tree)):
            raise
        named["_notes"] += (*_followed(script, tree),)
        return settled(named | {"_variables": used})
    program = _program(words)
    options, further = _without_further(words[words.index(program) if program else 0 :])
    arguments = parse_options(options)
    unknown = {key: value.replace("\0", "") for key, value in arguments.items() if unknown_in(str(value))}
    return {
        **settled(without(arguments, unknown)),
        "_unknown": unknown,
        "_notes": (*notes, *_followed(script, tree)),
        "_program": program.rpartition("/")[2],
        "_devices": _devices(words, launched),
        "_tokenizer": script.variables.values.get("TOKENIZER_MODEL", ""),
        "_further": further,
        "_variables": used,
        "_tested": _tested(script, text),
    }


def _followed(script: Script, tree: Tree) -> Iterator[str]:
    """Notes on what of a script could not be followed, and on what it reads in."""
    if script.undecided:
        lines = ", ".join(map(str, sorted(script.undecided)[:5]))
        yield f"tests that only running could decide are taken as not holding (line {lines})"
    for name in script.sourced[:3]:
        yield f"{name.replace(chr(0), '')} is read in by the script, and not here"
    if tree.names:
        yield f"reads in {', '.join(dict.fromkeys(tree.names))}"


def _program(words: Texts) -> str:
    """The Python file or module that a command runs, or swift's own command; "" for none."""
    return next(
        (one for last, one in pairwise(("", *words)) if re.search(r"\.py$|^(?:-u?m|swift) (?!torch)", f"{last} {one}")),
        "",
    )


def _without_further(words: Texts) -> tuple[Texts, Names]:
    """Words without variables that hold further options and that the file does not set; those variables.

    Such a word has a name for it (te_options, EXTRA_ARGS), or follows an option that has its value already.
    """
    kept = Texts()
    further = []
    for word in words:
        variable = re.fullmatch(_VARIABLE, word)
        filled = len(kept) > 1 and not _OPTION.match(kept[-1]) and _OPTION.match(kept[-2])
        if variable and (filled or re.search(_OPTIONS, variable[1])):
            further += [variable[1]]
        else:
            kept += [word]
    return kept, tuple(dict.fromkeys(further))


def _tested(script: Script, text: str) -> Names:
    """Variables that the script takes from its arguments and decides branches by."""
    return tuple(
        name
        for name, value in script.variables.values.items()
        if re.search("\0\\$\\{?\\d+\\}?\0", str(value))
        and re.search(rf"(?:\[|case)\s+\"?\$\{{?{re.escape(name)}\b", text)
    )


def _model_command(script: Script) -> tuple[Texts, Texts]:
    """The words of the command that states a model, else of the variables that do."""
    stated = [words for command in script.commands if _states_model(words := _split(command))]
    if stated:
        models = {str([parse_options(words).get(key) for key in _SIZES]) for words in stated}
        return stated[0], [f"{len(stated)} commands state a model: the first is read"] * (len(models) > 1)
    optional = {
        name: words
        for name, value in script.variables.values.items()
        if any(map(_OPTION.match, words := _split([value] if isinstance(value, str) else value)))
    }
    if not any(map(_states_model, optional.values())):
        ran = re.findall(_PROGRAM, " ".join(map(" ".join, script.commands)))
        expected = "expected a command or a variable that states a model (--num-layers, --hidden-size ...)"
        raise NoModel("; what it runs may state one: ".join([expected, *ran[:1]]))
    return [word for words in optional.values() for word in words], [
        f"no command takes them: read from {', '.join(optional)}"
    ]


#: A program or script that a command runs.
_PROGRAM = r"[\w./-]+\.(?:py|sh|slurm|sbatch)\b"
#: vllm serve NAME, lmdeploy serve api_server NAME, trtllm-serve [serve] NAME, llama-server -m NAME.gguf
_SERVED = (
    r"(?:^| )(?:(?:trtllm-)?serve (?:serve |api_server |--[\w-]+=\S+ )*|"
    r"-(?:m|hfr?|-hf-repo|-model) (?=\S*(?:\.gguf|GGUF)))"
    "(?!-)((?:\0[^\0]*\0|\\S)+)"
)


def _naming(script: Script, launched: Values, tree: Tree) -> Values | None:
    """The options of the command that names a model: a trainer's, Hydra's ``a.b=c`` among them, or a server's."""
    held = [word for value in script.variables.values.values() if isinstance(value, list) for word in value]
    named = list[tuple[tuple[float, ...], Values]]()
    for command in (*script.commands, held):
        words = _split(command)
        pairs = (word.lstrip("+").partition("=") for word in words if not word.startswith("-"))
        given = {key: _value(value) for key, equals, value in pairs if equals}
        program = _program(words)
        found = with_settings({}, parse_options(one for one in words if one != program) | given)
        served = re.search(_SERVED, " ".join(words))
        files = " ".join(word for word in words if re.fullmatch(r"[^-=\s]\S*\.ya?ml", word))
        found = tree.with_files(found | {"program": program, "settings_file": files})
        if devices := _devices(words, launched):
            found = without(found, _NODES + _PER_NODE) | {"_devices": devices}
        found |= {kind: True for kind, one in WORDS["programs"].items() if re.match(one, program)}
        if served:
            found = {"model": served[1], **found, "_serves": True}
        row = recipe_of(found)
        plain = row or named_plainly(found) or {"model": ""}
        name = str(next((one for key in plain["model"].split("|") if (one := at(found, key))), ""))
        own = {"_assigned": True} | {
            key: one.replace("\0", "") if isinstance(one, str) else one for key, one in found.items()
        }
        if not lacking(FORMATS["nanogpt"]["claim"], names_of(own)):
            # Over a file of settings that train.py runs first these may be few of many.
            named += [((0,), own)] * (sum(word.endswith(".py") for word in words) == 1)
        elif row or (name and (served or "/" in name or "_built" in found or is_released(name))):
            # A server may be a teacher's, a folder the script's own, a name a download's.
            serves = "phase" in row if row else 2
            named += [(("_exports" in found, serves, not is_released(name), *[1 / len(found)] * (not row)), found)]
    return _first_of([one for _, one in sorted(named, key=itemgetter(0))])


def _first_of(named: list[Values]) -> Values | None:
    """The first command's options, with a note on the others; None where there is none."""
    keys = *WORDS["keys"], "n_layer", "n_embd"
    models = dict.fromkeys(" ".join(str(one[key]) for key in keys if key in one) for one in named)
    what = "models are named" if len(models) > 1 else "commands name it, with other options"
    more = f"several {what}; the first is read: {shorten(', '.join(models))}"
    return named[0] | {"_notes": (more,) * (len({*map(str, named)}) > 1)} if named else None


def _states_model(words: Iterable[str]) -> bool:
    """Whether words have sizes: without a width a trainer's number of layers may be of those that it trains."""
    return any(map(_STATES_MODEL.match, words)) and (
        "hidden_size" in (found := parse_options(words)) or not (recipe_of(found) or named_plainly(found))
    )


#: A word that holds options or settings of the environment: not one option whose value has blanks.
_HOLDS = r"(?s)(?=.*\s)(?!--[\w.-]+=(?:[\[{].*[\]}]$|(?!.*\s-)))(?:(?:.*\s)?--?[A-Za-z]|\w+=\S* \w+=)"


def _split(words: Iterable[str]) -> Texts:
    """Words that hold options in one string (``"--vocab-size 128256"``, ``bash -c "torchrun ..."``) taken apart.

    The value of one option keeps its blanks (``--hf-overrides={"a": 1}``).
    """
    apart = (
        re.findall("(?:\0[^\0]*\0|\"[^\"]*\"|'[^']*'|[^\\s\0])+", word) if re.match(_HOLDS, word) else [word]
        for word in words
    )
    return [one for word in apart for one in word if one != "\\"]


def parse_options(words: Iterable[str]) -> Values:
    """``--hidden-size 4096 --swiglu`` -> its arguments; a flag alone is true, several values are one text."""
    arguments = {}
    name = None
    values = []
    for word in (*words, "--"):
        if not re.match(_DASHED, word):
            values += [word.strip("\"'")]
            continue
        if name is not None:
            arguments[name] = _value(" ".join(values)) if values else True
        # Options with one dash but vLLM's (-tp) are a launcher's; what follows a redirection or a value is none.
        spelled, equals, attached = word.lstrip("-").partition("=")
        name, values = spelled.replace("-", "_") if _OPTION.match(word) else None, []
        if name and equals:
            arguments[name], name = _value(attached.strip("\"'")), None
    return arguments


def _launched(script: Script, text: str) -> Values:
    """The devices that the script's #SBATCH lines, else its commands, start."""
    named = {
        name.lower(): value for name, value in script.variables.values.items() if name in _SWIFTS and "swift " in text
    }
    started = parse_options(word for one in reversed(script.commands) for word in (*_split(one), "--"))
    asked = re.findall(r"(?m)^#SBATCH\s+(-.*)", text[:20_000])
    return named | started | parse_options(word for line in reversed(asked) for word in line.split())


def _devices(words: Texts, launched: Values) -> int | None:
    """Devices that torchrun, srun or the script's #SBATCH lines start, accelerate on all machines.

    None where they do not say.
    """
    options = launched | parse_options(words)
    nodes, each = (
        next(filter(str.isdecimal, [f"{options[key]} ".split(" ")[0] for key in keys if key in options] or [usual]), "")
        for keys, usual in ((_NODES * ("num_processes" not in options), "1"), (_PER_NODE, ""))
    )
    return int(each) * int(nodes) if nodes and each and len(nodes + each) < 12 else None


def normalised(config: Config) -> Values:
    """Sections of a YAML file (MODEL_ARGS, language_model …) opened up, dashes as underscores."""
    flat = Values()
    own = {key: value for key, value in config.items() if key.startswith("_")}  # what parse_script adds: no arguments
    rest = in_use(without(config, own))
    chosen = {key: value for key, value in rest.items() if key.upper() == "MODEL_ARGS"}
    for name, item in leaves(chosen or rest):
        now, meant = _TABLE["aliases"].get(name, (name, None))
        flat |= {now: item if meant is None else meant} if item is not None else {}  # null: not given
    flat |= own
    if flat.get("vision_pretraining") is False:  # of all arguments, those of images too
        flat = without(flat, ["num_classes", "img_h"])
    unknown = {key: value for key, value in flat.items() if isinstance(value, str) and "${" in value}
    if unknown and "_unknown" not in flat:
        flat = without(flat, unknown) | {"_unknown": unknown}
    return flat


def _value(text: str) -> Any:
    if len(text) <= 40:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return FORMATS["literals"].get(text.lower(), text)


#: Dimension -> the arguments it may have.
KEYS: dict[str, Names] = _TABLE["dimensions"]


def read(config: Config, where: str) -> Reading:
    """Absent keys take Megatron's defaults: ffn 4h, or 64 floor(8h/3/64) with swiglu; MHA; tied embeddings."""
    unknown = config.get("_unknown", {})
    # In a script a flag has no value: what follows it is something else.
    fields = Fields(config, present=frozenset(unknown if "_program" in config else ()))
    fields.ignore(*SETTINGS * ("_deepspeed" in config))

    def lacking() -> Texts:
        return [key for key in sorted(unknown) if key in fields.asked - fields.flags and not is_harmless(key, NAME)]

    try:
        model, notes = build(fields)
        # A size of the model is not left to a default; dropouts, lengths and degrees change no size.
        sizes = (key for key in lacking() if not key.endswith(("dropout", "seq_length", "parallel_size")))
        refuse(size := next(sizes, None), f"expected this key; --set {size}=VALUE", size)
        settled, layout_notes = workload(fields, model)
    except InputError as error:
        if held := unknown.get(error.key or ""):
            tested = "".join(f"--set {name}=... or " for name in config.get("_tested", ())[:3])
            said = f"its value is {held}, which the file does not hold; {tested}--set {error.key}=N"
            raise InputError(said, error.key) from None
        raise
    left = [Unread(key, unknown[key], LACKS) for key in lacking()]
    left += [Unread(f"${name}", "further options", LACKS) for name in config.get("_further", ())]
    found = reading(
        fields,
        NAME,
        model,
        where,
        keys={name: fields.key_of(*keys) for name, keys in KEYS.items()},
        workload=settled,
        longest=fields.optional("seq_length", "encoder_seq_length"),
        notes=(*notes, *layout_notes, *config.get("_notes", ())),
        unread=tuple(left),
    )
    told = config.get("_deepspeed")
    own = ["train_micro_batch_size_per_gpu"] * ("b" in settled)  # which the command gives
    return expressions.with_settings_of(found, without(told, own), told["_file"]) if told else found


def workload(fields: Fields, model: ModelShape) -> tuple[Values, Names]:
    """(fields of Workload that the arguments give, as the table says, notes on the rest)."""
    row = table("trainers")[NAME]
    held = given({key: getattr(fields, kind)(key) for kind, keys in row["checked"].items() for key in keys})
    held |= {
        "_layers": model.layers // held.get("pipeline_model_parallel_size", 1),  # a device's
        "_stacks": len(model.stacks),
        "_p2p": fields.flag("overlap_p2p_comm"),  # of communication the pipeline's overlaps unless told otherwise
        "_experts": model.moe is not None,
        "_laid": "pipeline_model_parallel_layout" in fields.config,
        "_fp8": bool(fields.raw("fp8_format", "fp8")),
        "_program": fields.text("_program"),
    }
    expressions.check_allowed(row, held, fields)
    found, notes = expressions.workload(row, held, fields)
    if held["_fp8"]:
        recipe = fields.text("fp8_recipe")
        if recipe in RECIPES:
            found["recipe"] = recipe
        else:
            notes += [f"fp8 recipe {recipe} is read and not used by the step"]
    found |= stated(checkpointing=_recomputation(fields))
    return found, (*notes, *_data_parallel(fields, found))


def _recomputation(fields: Fields) -> str:
    activations = fields.flag("recompute_activations")
    # Before 2022 there was no other granularity.
    granularity = fields.text("recompute_granularity") or "full" * fields.flag("checkpoint_activations")
    words = re.findall(r"\w+", str(fields.raw("recompute_modules") or ""))  # of a text or a list
    fields.refuse(not {*words} <= modules().keys(), f"expected some of {', '.join(modules())}", "recompute_modules")
    # Megatron adds its experts to what is recomputed by default.
    words += ["core_attn", "moe"][bool(words) :] * fields.flag("moe_layer_recompute")
    most, first = fields.optional("recompute_num_layers"), fields.text("recompute_method") == "block"
    if granularity == "full":
        # "uniform" divides all layers into chunks and keeps their inputs; "block" takes the first of each stage.
        return granularity + f":{most}" * bool(most and first)
    return ",".join(words) or granularity or "selective" * activations


def _data_parallel(fields: Fields, found: Values) -> Texts:
    """Data parallelism from the number of devices that the script starts."""
    devices = fields.config.get("_devices")
    t, p, cp, e = (found.get(key, 1) for key in _TABLE["degrees"])
    split, experts = t * p * cp, e * found.get("etp", t)
    if not isinstance(devices, int):
        return []
    taken = "data parallelism is not taken from it"
    d, left = divmod(devices, split)
    if left:
        if d:  # scripts of many nodes have fewer as a default
            found["gpus"] = devices
        return [f"the script starts {devices} devices, which tp x pp x cp = {split} does not divide: {taken}"]
    if e > 1 and devices // p % experts:
        return [f"the script starts {devices} devices, too few for pp x {experts} ranks of the experts: {taken}"]
    if devices > 1:
        found |= {"d": d, "gpus": devices}
    return []
