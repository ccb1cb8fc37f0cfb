"""Models by name: a bundled table of released ones, the local Hugging Face cache, and what recipes name.

A name is ``organisation/name`` or the name alone, in any case. Nothing is downloaded.
"""

import json
import os
import re
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from shapes.errors import InputError, refuse, shorten
from shapes.frozen import replace
from shapes.model.resize import dimensions
from shapes.program import install
from sizer.readers.expressions import expressed, flat, with_settings_of
from sizer.readers.loading import beside, is_name, load_text, parse_mapping
from sizer.readers.reading import (
    FORMATS,
    LACKS,
    Config,
    Names,
    NoModel,
    Reading,
    Unread,
    Values,
    at,
    fits,
    stated,
    unknown_in,
)


def released(name: str) -> tuple[Config, str]:
    """(the configuration of a model of this name, where it is from). InputError, with the nearest names, for none."""
    known = _known()
    asked = _plain(name)
    organisation, _, last = asked.rpartition("/")
    mirrored = organisation in FORMATS["names"]["mirrors"]
    found = known.get(asked) or known.get(last if mirrored else asked)
    if found:
        row = json.loads(rows()[found])
        return row["config"], f"{found}, from the table ({row['source']})"
    if cached := _cached(name):
        return {**parse_mapping(load_text(cached), str(cached)), **beside(cached)}, str(cached)
    bare = _without_variant(last)
    for one, text in rows().items():
        owner, _, own = _plain(one).rpartition("/")
        if _without_variant(own) == bare and (mirrored or organisation in ("", owner)):
            row = json.loads(text)
            said = f"sizes and bits are {one}'s, which {name} is a variant of by its name ({row['source']})"
            return row["config"], said
    closed = any(fits(asked, one) for one in FORMATS["names"]["closed"])
    refuse(closed, "is a service's model, whose sizes nobody publishes", where=name)
    from difflib import get_close_matches  # only an unknown name pays for it

    near = ", ".join(get_close_matches(asked, known, n=3, cutoff=0.6))
    raise InputError(
        f"no such file, and no model of this name is known here{near and f': nearest are {near}'}; --download asks "
        "the hub for its config.json",
        where=name,
    )


@cache
def rows() -> dict[str, str]:
    """The table's models, each with the text of its row, a line of the file: parsing all takes longer than a check's

    reading.
    """
    text = (Path(__file__).parent / "released.json").read_text("utf-8")
    return dict(re.findall(r'^ "([^"]+)": (\{.*\}),?$', text, re.MULTILINE))


@cache
def _known() -> dict[str, str]:
    """The table's names by what is asked for: with their organisation, or without."""
    known = {name: one for one in rows() for name in (_plain(one), _plain(one).rpartition("/")[2])}
    return {**known, **FORMATS["names"]["aliases"]}


def _without_variant(name: str) -> str:
    """Also without separators but those within numbers: qwen2_5_72b is Qwen2.5-72B, opt-1.3b is not opt-13b."""
    bare = re.sub(r"(?<=\d)[-_. ]+(?=\d)", ".", re.sub(FORMATS["names"]["variants"], "", name))
    return re.sub(r"[-_ ]|(?<!\d)\.|\.(?!\d)", "", bare)


def download(name: str) -> None:
    """Put a model's config.json into the local cache, where ``released`` looks for it. InputError where that fails."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(f"needs huggingface_hub: {install('hub')}", key="--download") from None
    try:
        snapshot_download(name, allow_patterns=["config.json", "hf_quant_config.json"])
    except (OSError, ValueError, RuntimeError) as error:  # what it raises of the network, of a name, of a token
        raise InputError(
            f"the hub has no configuration of it: {shorten(error)}", key="--download", value=name
        ) from None


def _plain(name: str) -> str:
    return name.lower().replace("meta-llama-", "llama-")


def _cached(name: str) -> Path | None:
    """The config.json of the snapshot that the local cache calls main."""
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folder = hub / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text("utf-8").strip()
        path = folder / "snapshots" / revision / "config.json"
        return path if "/" not in revision and path.is_file() else None
    except (OSError, ValueError):
        return None


def read_recipe(row: Config, config: Config, where: str, read: Callable[[str], Reading]) -> Reading:
    """The model that a recipe names, ``read`` by its name, with the workload of the keys that ``row`` lists.

    A recipe opens no file: of a path, the folder's name may be that of a model.
    """
    key = next((one for one in row["model"].split("|") if at(config, one) is not None), row["model"])
    name = at(config, key)
    refuse(not isinstance(name, str), "expected a model's name", key, name, where=where)
    try:
        called, notes = (name, ()) if is_name(name) else _folder(name)
        reading = read(called)
    except InputError as error:
        said = f"names a model ({key} = {shorten(name.replace(chr(0), ''))}): {error.expected}"
        raise NoModel(f"{said}; give that model's config.json", where=where) from None
    further = _check_sizes(reading, called, config, key, where)
    given = ((theirs, at(config, ours)) for ours, theirs in row["names"].items())
    settings = {one: value for one, value in given if value not in (None, "auto") and unknown_in(str(value)) is None}
    degrees = {ours: size for theirs, ours in row.get("degrees", {}).items() if type(size := at(config, theirs)) is int}
    taken = (*row["names"], *row.get("degrees", ()))
    settings |= {} if row.get("phase") else _lora(config, taken)
    notes = (
        f"of the recipe's keys {', '.join((key, *taken))} are read, and no others",
        *notes,
        *further,
        *config.get("_notes", ()),
        *reading.notes,
    )
    notes += tuple(said for key, said in row.get("also", {}).items() if at(config, key))
    made = {key: expressed(said, flat(config), {}, ())[0] for key, said in row.get("rounds", {}).items()}
    rounds = {  # what expressions make of the file's numbers, where that is at least 1
        key: {one: int(size) for one, size in found.items() if type(size) in (int, float) and 1 <= size < 2**40}
        for key, found in made.items()
    }
    workload = {**reading.workload, **stated(phase=row.get("phase"), s=at(rounds, "share.length")), **degrees}
    held = ((one, unknown_in(str(at(config, one)))) for one in taken)
    unread = (*reading.unread, *(Unread(one, what, changes=LACKS) for one, what in held if what))
    reading = replace(reading, source=where, keys={}, notes=notes, workload=workload, unread=unread, rounds=rounds)
    if not row["names"] and not settings:
        return reading
    return with_settings_of(reading, {"gradient_accumulation_steps": 1, **settings}, where)


#: Keys by which programs say that LoRA trains, or its rank; keys that may give the model other parts.
_SAYS_LORA = re.compile(r"(?:.*__)?(?:use_|enable_)?q?lora(?:(?:_?\w*__)?enabled?|(?:_?\w*__|_)(?:r|rank|dim))?")
_SIZE = re.compile(r"(?!lora)(?:.*_)?(?:layers|heads|experts|dim|width|hidden_size)(?:_.*)?")


def _lora(config: Config, taken: Collection[str]) -> Values:
    """LoRA that none of the keys ``taken`` says: by a key of that name, or one whose value it is."""
    held = flat(config)
    said = [one for place, one in held.items() if _SAYS_LORA.fullmatch(place.lower())]
    named = any(str(one).lower() in ("lora", "qlora") for one in held.values())
    off = any(one in (False, 0, "", "null", "None") for one in said)
    if off or not (said or named) or any("lora" in one and one.replace(".", "__") in held for one in taken):
        return {}
    return {"use_lora": True, "lora_rank": next((one for one in said if type(one) is int), 0)}


def _check_sizes(reading: Reading, name: str, config: Config, key: str, where: str) -> Names:
    """A note on further sizes where a recipe names its model. InputError for one that is not the model's own: an

    override, or another model.
    """
    held, own, left = dimensions(reading.model), FORMATS["names"]["sizes"], list[str]()
    section = key.rpartition(".")[0].replace(".", "__")
    for place, value in flat(config).items():
        word = place.rpartition("__")[2]
        size = held.get(own.get(word)) if place.startswith(section) and type(value) is int else value
        refuse(
            size not in (None, value),
            f"expected the {size} of {name}, which it names ({key}): give a config.json with these sizes",
            place.replace("__", "."),
            value,
            where=where,
        )
        left += [f"{word} = {value}"] * (size is None and place == f"{section}__{word}" and bool(_SIZE.fullmatch(word)))
    return (f"beside its name, and not read: {', '.join(left)}",) if left else ()


def _folder(path: str) -> tuple[str, Names]:
    """The model that a folder is called by, and a note. InputError for another path."""
    name = path.rstrip("/").rpartition("/")[2]
    said = unknown_in(name)
    refuse(
        said or " " in path or not is_name(name),
        f"its value is {said}, which the file does not hold" if said else "a path is not followed",
    )
    return name, (f"{path.replace(chr(0), '')} is taken for the released model of its name",)
