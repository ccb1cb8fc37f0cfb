"""torch's memory snapshot (torch.cuda.memory._dump_snapshot) at the fullest moment of its history, and a prediction.

A pickle is read by an unpickler that knows no class: numbers, strings, lists and dicts alone.
"""

import json
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

from shapes.errors import AnyPath, InputError, read_bounded, refuse
from shapes.memory import Memory
from shapes.toml_table import table_of

#: A snapshot's largest size: a history of ten million blocks.
MAX_SNAPSHOT_BYTES = 2**32
_FACTS = table_of(__file__, "snapshot.toml")
#: What an event makes of the bytes in use.
_CHANGES = _FACTS["changes"]
#: Kind of blocks -> line of code that asked for them -> bytes.
Snapshot = Mapping[str, Counter[str]]


class Held(NamedTuple):
    """Bytes of one kind of blocks in a snapshot, next to those predicted.

    Those predicted are None where none are. Also those not explained by them, and the line of code that asked for most.
    """

    what: str
    bytes: int
    predicted_bytes: int | None
    unexplained_bytes: int
    line: str


class _Plain(pickle._Unpickler):
    # Python's own, whose memo is a dict: the compiled one takes 16 bytes for each number up to the largest index, which
    # five bytes of a file can make 64 GiB. It takes 12 us more for each event.
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")


def read_snapshot(path: AnyPath) -> Snapshot:
    """The blocks in use at the fullest moment of a snapshot's pickle, or its JSON: one process, and its device.

    InputError for anything else.
    """
    data = read_bounded(path, MAX_SNAPSHOT_BYTES)
    try:
        found = json.loads(data) if data.lstrip().startswith(b"{") else _Plain(BytesIO(data)).load()
        lists = (segment["blocks"] for segment in found["segments"]), found["device_traces"]
        # A pickle may hold one list a million times, which torch's do not: there are no more of either than bytes.
        return _at_its_fullest(*([*islice(chain(*each), len(data))] for each in lists))
    except Exception:  # of the many that a damaged pickle raises
        raise InputError(
            "expected what torch.cuda.memory._dump_snapshot writes, or its JSON", where=str(path)
        ) from None


def _at_its_fullest(blocks: list[Any], events: list[Any]) -> Snapshot:
    start = {one["address"]: one | {"size": one["requested_size"]} for one in blocks if one["state"] != "inactive"}
    changes = [_CHANGES.get(event["action"], 0) * event["size"] for event in events]
    totals = [*accumulate(changes, initial=sum(one["size"] for one in start.values()) - sum(changes))]
    most = max(totals)
    refuse(not 0 < most < 1e18, "")
    # The last event of each address by then and in all: whether the block is there, and whether it stays.
    ends = totals.index(most), None
    held, after = ({event["addr"]: event for event in events[:end] if event["action"] in _CHANGES} for end in ends)
    for address in after:
        start.pop(address, None)  # which leaves those that were there before the history began, and after it
    found = {kind: Counter[str]() for kind in _FACTS["of"]}
    for address, one in (start | held).items():
        if one.get("action") != "free_completed":
            text = "\n".join(map("{filename:.300}:{line} {name:.300}".format_map, one.get("frames", ())[:300]))
            text += "\nkept" * (after.get(address, one) is one)
            kind = next(kind for kind, known in _FACTS["of"].items() if re.search(known, one.get("category", text)))
            found[kind][re.findall(_FACTS["line"], text)[0]] += one["size"]
    found["no frames"][""] += most - sum(found.values(), Counter()).total()
    return found


def compared(snapshot: Snapshot, memory: Memory) -> Iterator[Held]:
    """Bytes that a run held and was predicted, by kind and in all.

    Kinds without a block of their own are looked for among the blocks without frames: a history that began late has the
    weights there, one of Python alone what the backward asked for.
    """
    sizes, lines = memory.components, {**snapshot, "in all": sum(snapshot.values(), Counter())}
    predicted = {kind: sum(sizes.get(name, 0) for name in names) for kind, names in _FACTS["components"].items()}
    if snapshot["no frames"].total():
        predicted["no frames"] = sum(predicted.pop(kind) for kind in [*predicted] if not snapshot[kind])
    predicted["in all"] = memory.allocated_bytes
    for kind, held in lines.items():
        size, known = held.total(), predicted.get(kind)
        yield Held(kind, size, known, size - (known or 0), max(held, key=held.__getitem__, default=""))
