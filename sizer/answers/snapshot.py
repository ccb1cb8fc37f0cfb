"""torch's memory snapshot (torch.cuda.memory._dump_snapshot) at the fullest moment of its history, and a prediction.

A pickle is read by an unpickler that knows no class: numbers, strings, lists and dicts alone.
"""

import json
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import accumulate, chain
from typing import Any, NamedTuple

from shapes.errors import AnyPath, InputError, read_bounded
from shapes.memory import Memory
from shapes.toml_table import table_of

#: A snapshot's largest size: a history of ten million blocks.
MAX_SNAPSHOT_BYTES = 2**32
_FACTS = table_of(__file__, "snapshot.toml")
#: What an event makes of the bytes in use.
_CHANGES = {"alloc": 1, "free_completed": -1}
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


class _Plain(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}")


def read_snapshot(path: AnyPath) -> Snapshot:
    """The blocks in use at the fullest moment of a snapshot's pickle, or its JSON: one process, and its device.

    InputError for anything else.
    """
    data, where = read_bounded(path, MAX_SNAPSHOT_BYTES), str(path)
    try:
        found = json.loads(data) if data.lstrip().startswith(b"{") else _Plain(BytesIO(data)).load()
        blocks = chain(*(segment["blocks"] for segment in found["segments"]))
        return _at_its_fullest(blocks, [*chain(*found["device_traces"])])
    except Exception:  # of the many that a damaged pickle raises
        raise InputError("expected what torch.cuda.memory._dump_snapshot writes, or its JSON", where=where) from None


def _at_its_fullest(blocks: Iterable[Any], events: list[Any]) -> Snapshot:
    held = {one["address"]: one | {"size": one["requested_size"]} for one in blocks if one["state"] != "inactive"}
    changes = [_CHANGES.get(event["action"], 0) * event["size"] for event in events]
    totals = [*accumulate(changes, initial=sum(one["size"] for one in held.values()) - sum(changes))]
    for event in events:
        held.pop(event.get("addr"), None)  # which leaves those that were there before the history began, and after it
    for event in events[: totals.index(max(totals))]:
        if event["action"] == "alloc":
            held[event["addr"]] = event
        elif event["action"] in _CHANGES:
            held.pop(event["addr"], None)
    found: dict[str, Counter[str]] = {kind: Counter() for kind in _FACTS["of"]}
    for one in held.values():
        text = "\n".join(map("{filename}:{line} {name}".format_map, one.get("frames", ())))
        own = re.findall(r"(?m)^(?!.*/torch/).+|\Z", text)  # not torch's own
        kind = next(kind for kind, known in _FACTS["of"].items() if re.search(known, one.get("category", text)))
        found[kind][own[0]] += one["size"]
    found["no frames"][""] += max(totals) - sum(one["size"] for one in held.values())
    return found


def compared(snapshot: Snapshot, memory: Memory) -> Iterator[Held]:
    """Bytes that a run held and was predicted, by kind and in all."""
    sizes, known = memory.components, _FACTS["components"]
    predicted = {kind: sum(sizes.get(name, 0) for name in names) for kind, names in known.items()}
    predicted["in all"] = memory.allocated_bytes
    for kind, lines in [*snapshot.items(), ("in all", sum(snapshot.values(), Counter()))]:
        more = lines.total() - predicted.get(kind, 0)
        yield Held(kind, lines.total(), predicted.get(kind), more, max(lines, key=lines.__getitem__, default=""))
