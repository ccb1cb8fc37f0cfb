"""SQLite's file format, as far as it takes to read rows past damage: pages, records and the write-ahead log.

Source: https://www.sqlite.org/fileformat2.html, sections 1.3 to 2.1 (database, b-trees, records) and 4 (log). SQLite's
own ``.recover`` is not part of Python's module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from shapes.frozen import frozen

Value = int | float | bytes | None

_DEFAULT_PAGE = 4096
_DATABASE_HEADER, LOG_HEADER, _FRAME_HEADER = 100, 32, 24
_LOG_MAGIC = (0x377F0682, 0x377F0683)
_INTERIOR_INDEX, _LEAF_INDEX, _LEAF_TABLE = 2, 10, 13
#: Widths of the integers of serial types 1 to 6.
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


@frozen
class Log:
    """The frames of a write-ahead log, oldest first: page numbers, pages, and whether each is as it was written."""

    header_sound: bool
    numbers: tuple[int, ...]
    pages: tuple[bytes, ...]
    sound: NDArray[np.bool_]

    @property
    def damaged(self) -> bool:
        """Whether SQLite would pass over sound frames; damage at the very end is what a kill leaves, and is none."""
        if not self.header_sound:
            return True
        return not self.sound.all() and bool(self.sound[int(np.argmin(self.sound)) :].any())


def page_size(header: bytes) -> int:
    """The page size that a database's header states, else SQLite's default."""
    size = int.from_bytes(header[16:18], "big") if header.startswith(b"SQLite format 3\0") else 0
    size = 65536 if size == 1 else size
    return size if size >= 512 and size & (size - 1) == 0 else _DEFAULT_PAGE


def read_log(content: bytes) -> Log:
    """The log's frames of its last round: those that were left of an earlier one, before it began anew, are not."""
    header = np.frombuffer(content[:LOG_HEADER].ljust(LOG_HEADER, b"\0"), dtype=">u4").astype(np.uint32)
    magic, size = int(header[0]), int(header[2])
    order = ">u4" if magic & 1 else "<u4"
    summed = _checksums(np.frombuffer(header[:6].astype(">u4").tobytes(), dtype=order)[None], np.zeros((1, 2), "u4"))
    header_sound = magic in _LOG_MAGIC and bool(np.array_equal(summed[0], header[6:8]))
    if size < 512 or size & (size - 1) or size > 65536:
        size = _DEFAULT_PAGE
    step = _FRAME_HEADER + size
    count = max(0, len(content) - LOG_HEADER) // step
    raw = np.frombuffer(content, np.uint8, count * step, min(LOG_HEADER, len(content))).reshape(count, step)
    heads = raw[:, :_FRAME_HEADER].copy().view(">u4").astype(np.uint32)
    own = (heads[:, 2:4] == header[4:6]).all(axis=1)
    if not own.any() and not header_sound and count:
        own = (heads[:, 2:4] == heads[0, 2:4]).all(axis=1)
    last = int(np.flatnonzero(own)[-1]) + 1 if own.any() else 0
    words = np.concatenate([raw[:last, :8], raw[:last, _FRAME_HEADER:]], axis=1).view(order)
    before = np.concatenate([header[None, 6:8], heads[:, 4:6]])[:last]
    sound = own[:last] & (_checksums(words, before) == heads[:last, 4:6]).all(axis=1)
    pages = tuple(raw[frame, _FRAME_HEADER:].tobytes() for frame in range(last))
    return Log(header_sound, tuple(map(int, heads[:last, 0])), pages, sound)


def _checksums(words: NDArray[np.uint32], start: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """SQLite's running checksum of each row of ``words``, begun with ``start``'s; sums wrap at 2**32."""
    words = words.astype(np.uint32)
    first, second = start[:, 0].astype(np.uint32), start[:, 1].astype(np.uint32)
    for place in range(0, words.shape[1], 2):
        first = first + words[:, place] + second
        second = second + words[:, place + 1] + first
    return np.stack([first, second], axis=1)


@frozen
class Cell:
    """One row as stored: its rowid (None in an index) and its columns, text as bytes."""

    rowid: int | None
    values: tuple[Value, ...]


@frozen
class Cells:
    """What a page holds: its cells that can be read; ``whole`` is False where some could not be."""

    table: bool
    cells: tuple[Cell, ...]
    whole: bool


def read_cells(page: bytes, number: int, pages: Mapping[int, bytes]) -> Cells | None:
    """The rows or index entries of page ``number``; None for a page that holds neither (``pages``: for long rows)."""
    base = _DATABASE_HEADER if number == 1 else 0
    kind = page[base]
    if kind not in (_INTERIOR_INDEX, _LEAF_INDEX, _LEAF_TABLE):
        return None
    start = base + (12 if kind == _INTERIOR_INDEX else 8)
    count = int.from_bytes(page[base + 3 : base + 5], "big")
    found = []
    whole = start + 2 * count <= len(page)
    for slot in range(count if whole else 0):
        at = int.from_bytes(page[start + 2 * slot : start + 2 * slot + 2], "big")
        try:
            found.append(_cell(page, at + (4 if kind == _INTERIOR_INDEX else 0), kind == _LEAF_TABLE, pages))
        except (IndexError, ValueError, struct.error):
            whole = False
    return Cells(kind == _LEAF_TABLE, tuple(found), whole)


def carve(page: bytes, serial_types: bytes, pages: Mapping[int, bytes]) -> Iterator[Cell]:
    """Rows of a page whose own list of them is damaged: wherever a record header begins with ``serial_types``."""
    at = page.find(serial_types)
    while at >= 0:
        for start in range(max(0, at - 20), at - 2):
            try:
                _, after = _varint(page, start)
                _, header = _varint(page, after)
                if _varint(page, header)[1] == at:
                    yield _cell(page, start, True, pages)
            except (IndexError, ValueError, struct.error):
                continue
        at = page.find(serial_types, at + 1)


def _cell(page: bytes, at: int, table: bool, pages: Mapping[int, bytes]) -> Cell:
    length, at = _varint(page, at)
    rowid = None
    if table:
        rowid, at = _varint(page, at)
    payload = _payload(page, at, length, table, pages)
    return Cell(rowid, _record(payload))


def _payload(page: bytes, at: int, length: int, table: bool, pages: Mapping[int, bytes]) -> bytes:
    """A cell's bytes, the overflow pages' included; ValueError where one of them is missing."""
    usable = len(page)
    largest = usable - 35 if table else (usable - 12) * 64 // 255 - 23
    if length <= largest:
        if at + length > usable:
            raise ValueError("a cell past its page")
        return page[at : at + length]
    smallest = (usable - 12) * 32 // 255 - 23
    local = smallest + (length - smallest) % (usable - 4)
    local = local if local <= largest else smallest
    parts, following, left = [page[at : at + local]], int.from_bytes(page[at + local : at + local + 4], "big"), length
    left -= local
    while left > 0:
        if following not in pages or len(parts) > len(pages):
            raise ValueError("a row's overflow page is missing")
        more = pages[following]
        parts.append(more[4 : 4 + min(left, usable - 4)])
        left -= usable - 4
        following = int.from_bytes(more[:4], "big")
    return b"".join(parts)


def _record(payload: bytes) -> tuple[Value, ...]:
    size, at = _varint(payload, 0)
    kinds = []
    while at < size:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Value] = []
    for kind in kinds:
        width = _INTEGERS.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        raw = payload[at : at + width]
        if len(raw) != width or kind in (10, 11) or at != max(at, size):
            raise ValueError("a record past its end")
        if kind in _INTEGERS:
            values.append(int.from_bytes(raw, "big", signed=True))
        elif kind == 7:
            values.append(struct.unpack(">d", raw)[0])
        else:
            values.append(raw if kind >= 12 else {8: 0, 9: 1}.get(kind))
        at += width
    if at != len(payload):
        raise ValueError("a record of another length")
    return tuple(values)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(9):
        byte = data[at + place]
        if place == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            return value, at + place + 1
    raise ValueError("no varint")
