"""Accelerators: what their data sheets say, and room for what was fitted to measurements of them.

One file each in ``data/devices/<name>.toml``; a user's own file is given by its path. Adding one touches nothing else.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from .dtypes import BYTES, dtype_bytes
from .errors import AnyPath, InputError, refuse
from .frozen import Named, Names, Numbers, Sizes, Values, frozen, plain, replace
from .toml_table import Amount, Table, load, names, nearest, shipped

#: The device where none is named.
DEFAULT_DEVICE = "h100-sxm"

#: Suffixes of a device's name: a power limit, and the network cards of its nodes.
_VARIANT = r"(?i)(.+?)((?::(?:[0-9]+W|\w+x[0-9]+Gb(?::\w+)*))+)"
#: Words on a network, n being numbers, and the fields of `Link` that they are.
_FABRIC = {"leafn": ("leaf_nodes", int), "nton": ("oversubscription", float), "sharp": ("sharp", bool)}
#: Devices of the largest node that is a domain of links; racks of one domain are nodes (trays) of so many.
LARGEST_NODE, RACK_NODE = 16, 4

#: What tells no two devices apart: words that vendors and torch put before a product's name, and all between words.
_NOISE = r"(?<![a-z0-9])(?:nvidia|amd|intel|habana|tesla|geforce|instinct|graphics)(?![a-z0-9])|[^a-z0-9]"


@frozen
class Compute:
    """The compute units: ``units`` SMs (CUs, MMEs) as torch counts them, at the clock behind the published peak.

    ``flops_per_clock_per_unit`` holds the dtypes whose parts are public; a fused multiply-add is two FLOPs.
    ``clock_mhz_of`` holds the dtypes whose peak is stated at another clock than ``clock_mhz``.
    ``vector_dtypes`` have a peak but no matrix units (tensor cores): fp32 on NVIDIA, fp64 on most cards.
    """

    units: int
    clock_mhz: float | None
    clock_mhz_of: Numbers
    flops_per_clock_per_unit: Numbers
    vector_dtypes: Names


@frozen
class DeviceMemory:
    """Device memory and caches. ``l3_bytes`` is a memory-side cache behind the L2 (AMD's Infinity Cache), else None."""

    bytes: int
    bandwidth_bytes_per_s: float
    l2_bytes: int
    l3_bytes: int | None

    @property
    def last_level_cache_bytes(self) -> int:
        """The cache that a benchmark has to flush: the largest between the units and the memory."""
        return max(self.l2_bytes, self.l3_bytes or 0)


@frozen
class Link:
    """The network: bandwidth per device and direction, inside a domain of ``domain_devices`` and between domains.

    ``stated``: somebody said what lies between domains; else it is the usual network of such devices.
    ``leaf_nodes``: nodes that reach each other through one leaf switch (its cards' own, if cards have rails; None:
    all); traffic beyond it shares ``1 / oversubscription`` of its cards' rate. ``sharp``: switches add up all-reduces.
    ``host_bytes_per_s``: to the host, each way; ``host_memory_bytes_per_s``: a device's share of the host's memory
    bandwidth (0: not known).
    """

    intra_node: str
    domain_devices: int
    intra_node_bytes_per_s: float
    inter_node_bytes_per_s: float
    host_bytes_per_s: Amount = 0.0
    host_memory_bytes_per_s: Amount = 0.0
    stated: bool = False
    leaf_nodes: int | None = None
    oversubscription: float = 1.0
    sharp: bool = False

    @property
    def node_devices(self) -> int:
        """Devices of a node: a domain, or a tray of a rack that is one."""
        return self.domain_devices if self.domain_devices <= LARGEST_NODE else RACK_NODE


@frozen
class Device:
    """One accelerator, as torch sees it (one of an MI250X's two dies).

    ``peak_flops``: dense FLOP/s of a matrix product by dtype of the operands, accumulated in fp32 (int8: int32; fp64:
    fp64); a dtype that the device has no fast path for is absent. ``alignment_bytes``: what the leading
    dimensions of a product should be multiples of, for the dtypes with matrix units. ``mamf_flops``: published maximum
    achievable matmul FLOP/s. ``sources``: dotted field or table -> where it is from. ``cost``, ``errors``,
    ``provenance``: what calibration wrote, read-only, empty on a device known only by its data sheet.
    ``origin`` is the file, ``limit_w`` the power that it may take (None: all), ``price_usd_per_h`` one provider's list
    price on demand (None: none was found).
    """

    name: str
    title: str
    vendor: str
    architecture: str
    compute_capability: str | None
    power_w: float
    aliases: Names
    torch_names: Names
    compute: Compute
    peak_flops: Numbers
    memory: DeviceMemory
    alignment_bytes: Sizes
    link: Link
    mamf_flops: Numbers
    sources: Mapping[str, str]
    cost: Named
    errors: Named
    provenance: Named
    origin: str
    limit_w: float | None = None
    price_usd_per_h: float | None = None

    # Mappings do not hash; devices that compare equal have the same name and origin.
    HASHED = "name", "origin"

    def __reduce__(self) -> tuple[Callable[..., Device], tuple[Values, str]]:
        # Read-only views do not pickle; the file's own mapping does, and rebuilds an equal device.
        return device_from_mapping, (self.to_dict(), self.origin)

    @property
    def base(self) -> str:
        """The name that tables know the device by: h100-sxm of h100-sxm:500W."""
        return self.name.partition(":")[0]

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s for ``dtype``; InputError naming the dtypes there are."""
        dtype_bytes(dtype)
        refuse(dtype not in self.peak_flops, f"{self.name} has {', '.join(self.peak_flops)}", "dtype", dtype)
        return self.peak_flops[dtype]

    def has_matrix_units(self, dtype: str) -> bool:
        """Whether products of ``dtype`` run on matrix units (tensor cores, MFMA, MME)."""
        return dtype in self.peak_flops and dtype not in self.compute.vector_dtypes

    def alignment_elements(self, dtype: str) -> int:
        """Elements that a product's leading dimensions should be multiples of: 1 for a dtype without matrix units."""
        return max(1, self.alignment_bytes.get(dtype, 1) // dtype_bytes(dtype))

    def to_dict(self) -> Values:
        """The device file's content as plain dicts and lists: `device_from_mapping` turns it back."""
        data = _without_none(plain(self))
        del data["origin"]
        data["error"] = data.pop("errors")
        documents = dict[str, list[str]]()
        for key, document in self.sources.items():
            documents.setdefault(document, []).append(key)
        data["sources"] = [{"document": document, "fields": keys} for document, keys in documents.items()]
        return data


def _without_none(table: Values) -> Values:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def list_devices() -> Names:
    """Names of the devices that ship with the package, sorted. Reads the folder, no file."""
    return names("devices")


def load_device(device: AnyPath | Device) -> Device:
    """The device by name or alias (case, spaces and dashes do not matter), by what torch calls it, or by a .toml path.

    >>> load_device("NVIDIA H100 80GB HBM3").name
    'h100-sxm'

    ``:500W`` behind it limits its power, ``:8x400Gb`` gives a node so many network cards of so many Gb/s, and
    ``:leaf32:2to1:sharp`` behind that says how many nodes a leaf switch has, its oversubscription, and that switches
    add up all-reduces. InputError for an unknown name, which lists the nearest, and for a file that holds no device,
    which names file and key.
    """
    if isinstance(device, Device):
        return device
    expected = "expected one device's name or .toml path (`sizer check` takes several)"
    refuse(not isinstance(device, str | os.PathLike), expected, "device", device)
    text = os.fspath(device)
    if variant := re.fullmatch(_VARIANT, text.strip()):
        return _allowed(load_device(variant[1]), tuple(variant[2][1:].split(":")))
    path = Path(text) if text.lower().endswith(".toml") else shipped("devices", _resolve(text))
    return load(path, device_from_mapping)


@lru_cache(64)
def _allowed(device: Device, words: Names) -> Device:
    """``device`` under a limit of its power, or in nodes with cards of their own."""
    for word in words:
        kind, numbers = re.sub("[0-9]+", "n", word.lower()), [*map(int, re.findall("[0-9]+", word)), 1, 1]
        first, most = numbers[0], device.power_w
        if kind == "nw":
            refuse(not most / 4 <= first <= most, f"expected {most / 4:.0f} to {most:.0f} W", "power_limit", first)
            device = replace(device, limit_w=float(first))
            continue
        known = kind in ("nxngb", *_FABRIC) and all(numbers)
        refuse(
            not known, "expected cards a node and Gb/s of each, as in 8x400Gb, then leaf32, 2to1, sharp", "nics", word
        )
        if kind == "nxngb":
            device = networked(device, *numbers[:2])
        else:
            key, of = _FABRIC[kind]
            device = replace(device, link=replace(device.link, **{key: of(first / numbers[1])}))
    unknown = device.link.oversubscription > 1 and not device.link.leaf_nodes
    refuse(unknown, "expected leaf32 (nodes below one leaf switch) with it", "nics", ":".join(words))
    return replace(device, name=":".join((device.name, *words)))


def networked(device: Device, cards: int, gbit_per_s: int, domain: int | None = None) -> Device:
    """``device`` in nodes of so many cards, and in a domain of so many devices (None: as its file says)."""
    link = replace(device.link, domain_devices=domain or device.link.domain_devices)
    rate = cards * gbit_per_s * 1e9 / 8 / link.node_devices if cards else link.inter_node_bytes_per_s
    return replace(device, link=replace(link, inter_node_bytes_per_s=rate, stated=cards > 0))


def device_from_mapping(data: Named, where: str) -> Device:
    """A validated Device from a device file's content; InputError names ``where`` and the key."""
    top = Table(data, where)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*(:[\w.-]+)*", top.text("name")):  # what a file of another kind lacks
        raise top.fail("name", "expected small letters, digits, dots and dashes")
    compute = top.table("compute")
    peak_flops = top.numbers_by_dtype("peak_flops")
    if not peak_flops:
        raise top.fail("peak_flops", "expected at least one dtype")
    # Tables by dtype may only speak of dtypes that have a peak.
    by_dtype = {key: compute.numbers_by_dtype(key, peak_flops) for key in ("clock_mhz_of", "flops_per_clock_per_unit")}
    if not set(compute.texts("vector_dtypes")) <= peak_flops.keys():
        raise compute.fail("vector_dtypes", "expected dtypes that have a peak in [peak_flops]")
    alignment = top.table("alignment_bytes")
    alignment_bytes = alignment.keyed(Table.integer, peak_flops)
    for dtype, size in alignment_bytes.items():
        if size % BYTES[dtype]:
            raise alignment.fail(dtype, f"expected a multiple of the element's {BYTES[dtype]} bytes")
    return top.record(
        Device,
        compute=compute.record(Compute, **by_dtype),
        peak_flops=peak_flops,
        alignment_bytes=alignment_bytes,
        mamf_flops=top.numbers_by_dtype("mamf_flops", peak_flops),
        sources=top.documents(),
        errors=top.read_only("error"),
        origin=where,
    )


def _normalise(name: str) -> str:
    return re.sub(_NOISE, "", name.lower())


@lru_cache(256)
def _resolve(name: str) -> str:
    """The file's name for any spelling of a device, or an InputError that lists the nearest."""
    wanted = _normalise(name)
    by_name = {_normalise(known): known for known in list_devices()}
    if wanted in by_name:
        return by_name[wanted]
    # A file's text before its first table: its names are there, and the rest need not be parsed for them.
    heads = {known: shipped("devices", known).read_text("utf-8").partition("\n[")[0] for known in by_name.values()}
    for known, head in heads.items():
        # The first test is cheap and passes for a file or two; only those are parsed.
        if wanted in _normalise(head) and wanted in map(_normalise, _spellings(head)):
            return known
    spelt = {_normalise(one): known for known, head in heads.items() for one in _spellings(head)} | by_name
    like = sorted(nearest(wanted, spelt, 8, 0.5), key=lambda one: one[:4] != wanted[:4])
    near = dict.fromkeys(map(spelt.__getitem__, like))
    listed = f"nearest: {', '.join(list(near)[:4])}" if near else f"known: {', '.join(heads)}"
    many = f" (so many of one: --gpus {name})" * name.isdigit()
    raise InputError(f"expected a known device{many} or a path to a .toml file; {listed}", "device", name)


def _spellings(head: str) -> Names:
    data = tomllib.loads(head)
    return data["title"], *data["aliases"], *data["torch_names"]
