"""Headers of weights, GGUF's and safetensors': what metadata, and names and shapes of tensors, say of a model.

No weight is read. Formats: ggml-org/ggml docs/gguf.md; huggingface/safetensors README.
"""

import re
import struct
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

from shapes.errors import InputError, read_bounded, refuse
from shapes.frozen import Sizes, first_of, replace

from .loading import CONFIG_NAMES, MAX_BYTES, decode, parse_file, parse_mapping
from .reading import FORMATS, Config, Reading, Values, at, fits

#: The largest header of a GGUF file: Gemma's, with a tokenizer of 262,000 words, has 16 MiB.
MAX_HEADER = 2**25
#: More numbers than these are the tokenizer's; a release has some hundred shards.
MAX_LISTED = MAX_SHARDS = 1024
#: GGUF's types of numbers, as struct calls them; 8 is a text, 9 a list.
_NUMBERS, _TEXT, _LIST = "BbHhIif?  Qqd", 8, 9

_TABLE = FORMATS["gguf"]
_LAYER = re.compile(r"\.(\d+)\.")

#: A tensor: its type, and its rows and columns.
Tensor = tuple[str, list[int]]


def header(path: Path) -> Config:
    """The keys of a configuration: of the one next to safetensors, else what the headers say.

    ``_tensors``: name -> elements. InputError for what is no such header, and for shards that are not there.
    """
    if path.suffix == ".gguf":
        try:
            return _gguf(path)
        except (struct.error, IndexError, OverflowError):
            raise InputError(f"ends, or passes {MAX_HEADER // 2**20} MiB, within its header", where=str(path)) from None
    shards = [path]
    if path.suffix == ".json":
        listed = parse_file(path).get("weight_map")
        names = sorted(set(map(str, listed.values()))) if isinstance(listed, Mapping) else []
        refuse(
            not 0 < len(names) <= MAX_SHARDS or any(Path(one).name != one for one in names),
            f"expected the names of at most {MAX_SHARDS} files",
            "weight_map",
            where=str(path),
        )
        shards = [path.with_name(one) for one in names]
    found = {name: one for shard in shards for name, one in _safetensors(shard).items()}
    config, shown = path.with_name(CONFIG_NAMES[0]), _shown(found)
    if not config.is_file():
        return {"safetensors": len(found), **shown}
    held = parse_file(config)
    bits = at(held, "quantization_config.bits")
    packed = {"U8": 2, "I32": 32 // bits if bits in (2, 4, 8) else 8}  # weights of a few bits
    sizes = {name: size * packed.get(found[name][0], 1) for name, size in shown["_tensors"].items()}
    return {**held, "_tensors": sizes}


def proven(reading: Reading, tensors: Sizes) -> Reading:
    """``reading`` with a note that its parameters are those that the ``tensors`` hold, or on what it leaves out.

    InputError where neither is so.
    """
    held = {name: size for name, size in tensors.items() if not any(fits(name, one) for one in _TABLE["buffers"])}
    biases = sum(size for name, size in held.items() if any(fits(name, one) for one in _TABLE["balance"]))
    more, groups = sum(held.values()) - reading.model.parameters, Counter({"nothing": 0, **held})
    for name, size in held.items():
        for dot in re.finditer(r"\.", name):
            groups[f"{name[: dot.start()]}.*"] += size
    left = first_of(name for name, size in groups.items() if size in (more, more - biases))
    if left is None:
        largest = ", ".join(f"{name} {size:,}" for name, size in groups.most_common(5))
        said = (
            f"its tensors hold {abs(more):,} parameters {'more' if more > 0 else 'fewer'} than these sizes: {largest}"
        )
        raise InputError(said, where=reading.source)
    said = f"its {len(held)} tensors hold these parameters to the last one" + f", {left} left out" * (left != "nothing")
    return replace(reading, notes=(*reading.notes, said))


def _safetensors(path: Path) -> dict[str, Tensor]:
    where = str(path)
    size = int.from_bytes(read_bounded(path, 7), "little")
    refuse(
        not 2 <= size <= MAX_BYTES, f"expected a safetensors header of at most {MAX_BYTES // 2**20} MiB", where=where
    )
    held = parse_mapping(decode(read_bounded(path, size + 7)[8 : size + 8], where), where)
    found = {}
    for name, one in held.items():
        shape = one.get("shape") if isinstance(one, Mapping) else None
        if isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**40 for size in shape[:9]):
            found[name] = str(one.get("dtype", "")), shape[:9]
        elif name != "__metadata__":
            raise InputError("expected a tensor's shape", name, shape, where)
    return found


def _shown(tensors: Mapping[str, Tensor]) -> Values:
    """``_layers``, rows and columns of each kind of matrix (``_layers_mlp_up_proj_weight_rows``), and every size."""
    found = Values(_layers=0, _tensors={name: prod(shape) for name, (_, shape) in tensors.items()})
    for name, (_, shape) in tensors.items():
        found["_layers"] = max(found["_layers"], *(int(one) + 1 for one in _LAYER.findall(name)), 0)
        kind = _LAYER.sub("_", name).removeprefix("model.").replace(".", "_")
        found |= {f"_{kind}_{way}": size for way, size in zip(("rows", "columns"), shape)}  # noqa: B905 - the shorter ends it
    return found


class _Gguf(BytesIO):
    """A header that is read from its beginning to its end; struct.error where that comes too early."""

    def take(self, kinds: str) -> Any:
        form = f"<{kinds}"
        found = struct.unpack(form, self.read(struct.calcsize(form)))
        return found[0] if len(found) == 1 else found

    def text(self) -> str:
        return str(self.take(f"{self.take('Q')}s"), "utf-8", "replace")

    def value(self) -> Any:
        """None for a long list, or one of texts."""
        kind = self.take("I")
        if kind == _TEXT:
            return self.text()
        inner, count = self.take("IQ") if kind == _LIST else (kind, 1)
        for _ in range(count) if inner == _TEXT else ():
            self.seek(self.take("Q"), 1)
        if inner == _TEXT or count > MAX_LISTED:
            return self.take(f"{count * struct.calcsize(_NUMBERS[inner])}x") or None
        return self.take(f"{count}{_NUMBERS[inner]}")

    def tensor(self) -> tuple[str, Tensor]:
        name, dimensions = self.text(), self.take("I")
        shape = [self.take("Q") for _ in range(min(dimensions, 9))][::-1]
        return name, (_TABLE["types"].get(str(self.take("IQ")[0]), ""), shape)


def _gguf(path: Path) -> Values:
    """The architecture's metadata without its name, sizes from the tensors' shapes, and the layers' quantisation.

    A file may be split into parts (``x-00001-of-00003.gguf``): all are read, the first one has the metadata.
    """
    parts = re.findall(r"(.*)-\d{5}-of-(\d{5})\.gguf$", path.name)
    files = [
        path.with_name(f"{stem}-{one:05}-of-{last}.gguf")
        for stem, last in parts
        for one in range(1, min(int(last), MAX_SHARDS) + 1)
    ] or [path]
    said = Values()
    found = dict[str, Tensor]()
    for one in files:
        held = _Gguf(read_bounded(one, MAX_HEADER))
        magic, version, tensors, keys = held.take("4sIQQ")
        refuse(magic != b"GGUF" or version not in (2, 3), "expected GGUF's header, of version 2 or 3", where=str(one))
        said = {held.text(): held.value() for _ in range(keys)} | said
        found |= dict(held.tensor() for _ in range(tensors))
    kind = str(said.get("general.architecture"))
    own = {key.removeprefix(kind).replace(".", "_")[1:]: one for key, one in said.items() if key.startswith(f"{kind}.")}
    gated = any("ffn_gate." in one for one in found)
    leaves = _TABLE["leaves"] | ({} if gated else {"ffn_up": "mlp.gate_up_proj"})
    formats = {}
    for name, (dtype, _) in found.items():
        layer, _, leaf = name.removesuffix(".weight").removeprefix("blk.").rpartition(".")
        if dtype and leaf in leaves:
            formats[f"layers.{layer}.{leaves[leaf]}" if layer else leaves[leaf]] = {"quant_algo": dtype}
    quantised = {"quant_method": "modelopt", "quantized_layers": formats} if formats else None
    return {**own, **_shown(found), "gguf": kind, "_quantised": quantised}
