"""Models by name: a bundled table of released ones, the local Hugging Face cache, and what recipes name.

A name is ``organisation/name`` or the name alone, in any case. Nothing is downloaded.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from posixpath import basename

from shapes.errors import InputError, refuse, shorten
from shapes.frozen import given, replace, without
from shapes.model import Unread
from shapes.model.resize import dimensions
from shapes.program import install
from shapes.toml_table import nearest

from .expressions import expressed, flat, with_settings_of
from .loading import SETTINGS, is_name, parse_file
from .reading import (
    LACKS,
    WORDS,
    Config,
    Names,
    NoModel,
    Reading,
    Values,
    at,
    fits,
    in_use,
    known_names,
    plain_name,
    rows,
    snaked,
    stated,
    unknown_in,
    variants,
    without_variant,
)

#: A value that only running tells: a variable's, and what a function gives.
_UNTOLD = r"\0|\${|\A{(?:'name': '[^']*', )?'_class': '[a-z][\w.]*'"


def released(name: str) -> tuple[Config, str]:
    """(the configuration of a model of this name, where it is from). InputError, with the nearest names, for none.

    A copy keeps the name that it is a copy of, and a fine-tune the sizes, whoever has them.
    """
    known = known_names()
    # Words may be apart; a tag that says the bits is llama.cpp's or ollama's way to write a file's name.
    asked = plain_name(re.sub(r"(?i) |:(?=\S*(?:q\d|f16|f32))", "-", name))
    refuse(
        ":" in asked,
        f"is ollama's, in bits that its name does not hold: give its base's, as {asked.replace(':', '-')}",
        where=name,
    )
    last = basename(asked)
    if found := known.get(asked):
        return _row(found)
    if cached := _cached(name):
        return parse_file(cached), str(cached)
    if found := known.get(last):
        return _row(found, f"; {name} is a copy by its name")
    for pattern, bits in WORDS["quantised"].items():
        if copied := re.fullmatch(pattern, asked):
            with suppress(InputError):
                config, note = released(basename(copied[1]))
                own = "bits as it is called, in the usual groups and in every layer; the head's are its method's usual"
                note += f"; {own if bits else 'in 16 bits: a .gguf has its own in its header'}"
                return {**config, "quantization_config": bits}, note
    if found := variants().get(without_variant(last)):
        return _row(found, f"; {name} is a variant by its name, sizes and bits are that one's")
    for said, globs in WORDS["closed"].items():
        refuse(any(fits(asked, one) for one in globs), said, where=name)
    raise InputError(
        f"no such file, and no model of this name is known here{_nearest(last)}; --download asks "
        "the hub for its config.json",
        where=name,
    )


def _nearest(asked: str) -> str:
    """A clause on up to three releases that a name without organisation may mean: it begins them, else its family."""
    known, first = known_names(), re.split("[^a-z]", asked)[0]
    kin = [name for name in known if re.match(f"{first}(?![a-z/])", name)]
    begun = sorted((name for name in kin if name.replace("-", "").startswith(asked.replace("-", ""))), key=len)
    near = begun[:3] or nearest(asked, kin or known, 3, 0.5 if kin else 0.85)
    return f": nearest are {', '.join(known[one] for one in near)}" if near else ""


def _row(name: str, said: str = "") -> tuple[Config, str]:
    """The configuration of a row of the table (of another row but for what it states); a note that ends in ``said``."""
    row = json.loads(rows()[name])
    own = row.get("with", {})
    whole = {**(_row(row["as"])[0] if "as" in row else row["config"]), **own}
    return without(whole, without(own, given(own))), f"{name}, from the table ({row['source']}){said}"


def download(name: str) -> None:
    """Put a model's config.json into the local cache, where ``released`` looks for it. InputError where that fails."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"needs huggingface_hub: {install('hub')}", "--download") from None
    try:
        snapshot_download(name, allow_patterns=["config.json", "hf_quant_config.json"])
    except (OSError, ValueError, RuntimeError) as error:  # what it raises of the network, of a name, of a token
        raise InputError(f"the hub has no configuration of it: {shorten(error)}", "--download", name) from None


def _cached(name: str) -> Path | None:
    """The config.json of the snapshot that the local cache calls main."""
    said = os.environ.get
    home = Path(said("HF_HOME") or Path(said("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    hub = Path(said("HF_HUB_CACHE") or home / "hub").expanduser()
    folder = hub / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs/main").read_text("utf-8").strip()
        path = folder / f"snapshots/{revision}/config.json"
        return path if "/" not in revision and path.is_file() else None
    except (OSError, ValueError):
        return None


def read_recipe(row: Config, config: Config, where: str, read: Callable[[str], Reading]) -> Reading:
    """The model that a recipe names, ``read`` by its name, with the workload of the keys that ``row`` lists.

    No model's file is opened: of a path, the folder's name may be that of a model.
    """
    key = next((one for one in row["model"].split("|") if at(config, one) is not None), row["model"])
    name = at(config, key)
    refuse(not isinstance(name, str), "expected a model's name", key, name)
    try:
        name = name.split(",")[0]  # pretrained=NAME,dtype=bfloat16
        called, notes = (name, ()) if is_name(name) else _folder(name)
        if any(theirs == "load_in_4bit" and at(config, ours) for ours, theirs in row["names"].items()):
            # A base in the 4 bits that the recipe loads it in (unsloth's keep some layers in 16).
            called = re.sub("(-unsloth)?-bnb-4bit$", "", called)
        reading = read(called)
        loaded = row.get("loaded", {}).get(str(at(config, "quantization")))
        if loaded and "quantization_config" not in reading.config:
            reading, config = read(called + loaded), {**config, "_quantization": loaded}
    except InputError as error:
        if config["_built"]:
            error.where = where
            raise
        said, asked, way = error.expected.partition("; --download")
        # The hub is asked for what the command names, which is this file; of a path it has nothing.
        wrong = f"{said}; sizer check {called} --download{way}" if asked and is_name(name) else said
        said = f"names a model ({key} = {shorten(name.replace(chr(0), ''))}): {wrong}"
        raise NoModel(f"{said}; --set {key}=NAME, or give that model's config.json") from None
    config = in_use(config)
    lora = {} if row.get("phase") else _lora(config, row["names"])
    row = _with_usual(row, config)
    taken = (
        *row["names"],
        *SETTINGS * ("_deepspeed" in config),
        *re.findall(r"[\w.]+", str(row.get("rounds")).replace("__", ".")),
    )
    settings, degrees = _given(row, config)
    if lora:
        rank = next((one for one in lora.values() if type(one) is int), 0)
        settings = {"use_qlora" if "qlora" in str(lora).lower() else "use_lora": True, "lora_rank": rank, **settings}
    held = [one for one in dict.fromkeys((key, *taken)) if at(config, one) is not None]
    notes = (
        f"of the recipe's keys {', '.join(held)} are read, and no others",
        *notes,
        *config.get("_notes", ()),
        *reading.notes,
        *(said for key, said in row.get("also", {}).items() if at(config, key) and f"_{key}" not in config),
    )
    # What the row's expressions make of the file's numbers, where that is at least 1.
    rounds = {
        key: {
            one: int(size)
            for one, size in expressed(said, flat(config), {})[0].items()
            if isinstance(size, int | float) and 1 <= size < 2**40
        }
        for key, said in row.get("rounds", {}).items()
    }
    own = stated(
        phase=row.get("phase"),
        s=at(rounds, "share.length"),
        gpus="phase" not in row and config.get("_devices"),  # a server runs on those that it splits over
    )
    reading = replace(
        reading,
        source=where,
        keys={},
        notes=notes,
        longest=degrees.pop("longest", reading.longest),  # which is none of the workload's
        workload={**reading.workload, **own, **degrees, **rounds.pop("train", {})},
        unread=(*reading.unread, *_further(reading, called, config, (key, *taken, *lora), row)),
        rounds=rounds,
    )
    return _trained_as(reading, settings, config, where)


def _trained_as(reading: Reading, settings: Values, config: Config, where: str) -> Reading:
    """``reading`` with a recipe's ``settings``, over those of DeepSpeed or accelerate, of a file or within it."""
    for section in config.values():
        if isinstance(section, Mapping) and "zero_optimization" in section:
            # But for what the recipe says itself: steps that accumulate.
            reading = with_settings_of(reading, without(section, settings), section.get("_file", where))
    return with_settings_of(reading, {"gradient_accumulation_steps": 1} | settings, where) if settings else reading


def _given(row: Config, config: Config) -> tuple[Values, Values]:
    """(what the file gives of a trainer's settings, degrees of its layout)."""
    settings, degrees = dict(row.get("otherwise", {})), Values()
    for ours, theirs in row["names"].items():
        value, (degree, _, way) = at(config, ours), theirs.partition(" ")
        if degree not in WORDS["degrees"]:  # of a workload, as they are
            if value not in (None, "auto") and not re.search(_UNTOLD, str(value)):
                settings[theirs] = isinstance(value, Mapping) or value
        elif degree == "kv_dtype":
            degrees[degree] = way
        elif type(value) is (bool if degree == "sequence_parallel" else int) and value >= (degree != "zero"):
            degrees |= {degree: value, **stated(cp_comm=way * (value > 1))}
    return settings, degrees


def _with_usual(row: Config, config: Config) -> Config:
    """``row`` of a recipe that trains, with the keys that trainers spell alike.

    They are for what it has no key for, where all that train have the same value. One that serves: with those that
    servers spell alike.
    """
    found = defaultdict[str, Values](dict)
    own = {"phase", *row.get("otherwise", ())}
    own |= {theirs for ours, theirs in row["names"].items() if at(config, ours) is not None}
    phase = row.get("phase", "")
    usual = WORDS["usual"][phase]
    for place, value in flat(config).items():
        key = snaked(place.rpartition("__")[2])
        theirs = usual.get(f"{type(value).__name__} {key}") or usual.get(f"{key}={value}", "phase")
        if theirs not in own and not re.search(WORDS["elsewhere"][phase], place.lower()):
            found[theirs][place.replace("__", ".")] = value
    # A device's, where microbatches of it accumulate, and where a process loads its own.
    batch = found.pop("_batch", {})
    loads = "gradient_accumulation_steps" in found or "program" in config or "DataLoader" in str(batch)
    if loads and "per_device_train_batch_size" not in own:
        found.setdefault("per_device_train_batch_size", batch)
    usual = {key: theirs for theirs, said in found.items() if len({*said.values()}) == 1 for key in said}
    return {**row, "names": usual | row["names"]}


def _lora(config: Config, taken: Collection[str]) -> Values:
    """Keys that say LoRA but for those ``taken``: of that name, and of that value; none where it is off."""
    said = {place: one for place, one in flat(config).items() if re.fullmatch(WORDS["lora"], f"{place}={one}".lower())}
    off = any(one in (0, "", "null", "None") for one in said.values())
    return {} if off or any("lora" in one and at(config, one) is not None for one in taken) else said


def _further(reading: Reading, name: str, config: Config, read: Names, row: Config) -> Iterator[Unread]:
    """Keys whose value a script does not hold, and those not in ``read`` whose names say that they change something.

    InputError for a size that is not the model's own (an override, or another model), and where a model of another
    kind is trained.
    """
    sizes, section = dimensions(reading.model), read[0].rpartition(".")[0].replace(".", "__")
    said = {*read, *row.get("also", ())}
    same = {(one.rpartition(".")[2], str(at(config, one))) for one in read}
    for place, value in flat(config).items():
        key, last = place.replace("__", "."), place.rpartition("__")[2]
        size = sizes.get(WORDS["sizes"].get(last)) if place.startswith(section) and type(value) is int else None
        refuse(
            key not in said and size not in (None, value),
            f"expected the {size} of {name}, which it names ({read[0]}): give a config.json with these sizes",
            key,
            value,
        )
        unclear = unknown_in(str(value))
        shown = unclear or shorten(value)
        if key in read:
            if unclear or "${" in shown:
                yield Unread(key, shown, LACKS)
        elif place[:1] != "_" and not ({key, place} & said or ("critic" not in place and (last, str(value)) in same)):
            spelled = f"{place[:200]}={str(value)[:200].replace('=', ':')}".lower()
            what = next((what for what, one in WORDS["telling"].items() if re.search(one, spelled)), "")
            refuse(
                what in WORDS["another"] and row.get("phase") != "decode",
                f"trains {what} and not {name}, which it names: no formula here; sizer check {name} for that model",
                key,
                value,
            )
            if what and not (what == "the model" and (config["_built"] or size)):
                yield Unread(key, shown, what)


def _folder(path: str) -> tuple[str, Names]:
    """The model that a folder is called by, and a note. InputError for another path."""
    # The hub's cache names a snapshot by a hash; other mirrors write the organisation before two dashes.
    plain = re.sub(
        "models--.+?--([^/]+).*|[^/]+?--([^/]+)/?$|/(?:tree|blob|resolve)/.*|/main/?$|\\.gguf$", r"\1\2", path
    )
    name = basename(plain.rstrip("/"))
    said = "\0" in name and unknown_in(path)
    reasons = {
        f"its value is {said}, which the file does not hold": said,
        "its value is an environment's, which the file does not hold": "${" in path,
        "a path is not followed": path.strip("?"),
        "is empty": True,
    }
    refuse(said or " " in path or not is_name(name), next(reason for reason, holds in reasons.items() if holds))
    return name, (f"{path.replace(chr(0), '')} is taken for the released model of its name",)
