"""Line layouts: each message field is declared once, with its place, width and meaning.

A message is a frozen dataclass whose fields carry their place in the line as metadata. From that
one table come the encoder and decoder (here), the hardware's struct layout (:func:`struct_layout`)
and the reference documentation (``python -m dfvg_hw.messages --markdown``).

All numbers are little endian. Bytes that no field covers are zero when written and ignored when
read, so that later versions can use them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ProtocolError

if TYPE_CHECKING:  # host code doesn't pay for importing the hardware language
    from amaranth.lib import data

__all__ = [
    "PAYLOAD_BYTES",
    "Place",
    "Record",
    "places",
    "record_bytes",
    "records",
    "s16",
    "s32",
    "struct_layout",
    "u8",
    "u16",
    "u32",
    "u32s",
    "u64",
]

PAYLOAD_BYTES = 56
"""Bytes of a line that messages may use; the CRC and the tag follow."""


@dataclass(frozen=True)
class Place:
    """Where a field lives.

    Parameters
    ----------
    offset : int
        Byte offset from the start of the line or record.
    size : int
        Bytes of one element.
    signed : bool
        Two's complement instead of unsigned.
    count : int or None
        Elements of an array, None for a single number.
    record : type or None
        Record class of an array's elements, None for numbers.
    doc : str
        Meaning and unit, one line.
    fixed : bool
        The array is always full. Otherwise it may be shorter, and the record's `count` field says
        how many elements are meant.
    """

    offset: int
    size: int
    signed: bool
    count: int | None
    record: type[Record] | None
    doc: str
    fixed: bool = False

    @property
    def total(self) -> int:
        """Bytes of the whole field."""
        return self.size * (1 if self.count is None else self.count)

    @property
    def kind(self) -> str:
        """Type as the documentation writes it."""
        base = (
            self.record.__name__
            if self.record is not None
            else f"{'s' if self.signed else 'u'}{8 * self.size}"
        )
        return base if self.count is None else f"{base} × {self.count}"


def _scalar(size: int, signed: bool, offset: int, doc: str, default: Any) -> Any:
    place = Place(offset, size, signed, None, None, doc)
    return dataclasses.field(default=default, metadata={"place": place})


def u8(offset: int, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Unsigned byte at `offset`."""
    return _scalar(1, False, offset, doc, default)


def u16(offset: int, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Unsigned 16-bit number at `offset`."""
    return _scalar(2, False, offset, doc, default)


def u32(offset: int, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Unsigned 32-bit number at `offset`."""
    return _scalar(4, False, offset, doc, default)


def u64(offset: int, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Unsigned 64-bit number at `offset`."""
    return _scalar(8, False, offset, doc, default)


def s16(offset: int, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Two's complement 16-bit number at `offset`."""
    return _scalar(2, True, offset, doc, default)


def s32(offset: int, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """Two's complement 32-bit number at `offset`."""
    return _scalar(4, True, offset, doc, default)


def u32s(
    offset: int, count: int, doc: str, default: Any = dataclasses.MISSING, *, fixed: bool = False
) -> Any:
    """Array of `count` unsigned 32-bit numbers at `offset`."""
    place = Place(offset, 4, False, count, None, doc, fixed)
    return dataclasses.field(default=default, metadata={"place": place})


def records(
    record: type[Record], offset: int, count: int, doc: str, default: Any = dataclasses.MISSING
) -> Any:
    """Array of `count` records at `offset`."""
    place = Place(offset, record_bytes(record), False, count, record, doc)
    return dataclasses.field(default=default, metadata={"place": place})


def places(record: type[Record]) -> dict[str, Place]:
    """Fields of a record class in the order of their offsets."""
    found = {
        f.name: f.metadata["place"] for f in dataclasses.fields(record) if "place" in f.metadata
    }
    return dict(sorted(found.items(), key=lambda item: item[1].offset))


def record_bytes(record: type[Record]) -> int:
    """Bytes from the start of a record to the end of its last field."""
    return max(place.offset + place.total for place in places(record).values())


RecordT = TypeVar("RecordT", bound="Record")


@dataclass(frozen=True)
class Record:
    """Base of everything with a layout; subclasses are frozen dataclasses."""

    def write(self, buffer: bytearray, base: int = 0) -> None:
        """Store all fields in `buffer` from byte `base` on.

        Raises
        ------
        ProtocolError
            If a value doesn't fit its field or an array has too many elements.
        """
        for name, place in places(type(self)).items():
            value = getattr(self, name)
            label = f"{type(self).__name__}.{name}"
            offset = base + place.offset
            if place.count is None:
                _write_number(buffer, offset, place, value, label)
                continue
            if len(value) > place.count or (place.fixed and len(value) != place.count):
                accepted = "exactly" if place.fixed else "at most"
                raise ProtocolError(f"{label} has {len(value)} elements: {accepted} {place.count}")
            for index, item in enumerate(value):
                at = offset + index * place.size
                if place.record is not None:
                    item.write(buffer, at)
                else:
                    _write_number(buffer, at, place, item, label)

    @classmethod
    def read(cls: type[RecordT], buffer: bytes, base: int = 0) -> RecordT:
        """Build the record from the bytes at `base`; arrays come back cut to their `count` field.

        Raises
        ------
        ProtocolError
            If the `count` field exceeds the array.
        """
        values: dict[str, Any] = {}
        for name, place in places(cls).items():
            offset = base + place.offset
            if place.count is None:
                values[name] = _read_number(buffer, offset, place)
                continue
            count = place.count if place.fixed else int(values["count"])
            if count > place.count:
                raise ProtocolError(f"{cls.__name__}.count is {count}: at most {place.count}")
            at = [offset + index * place.size for index in range(count)]
            values[name] = tuple(
                _read_number(buffer, start, place)
                if place.record is None
                else place.record.read(buffer, start)
                for start in at
            )
        return cls(**values)


def _write_number(buffer: bytearray, offset: int, place: Place, value: int, label: str) -> None:
    try:
        raw = int(value).to_bytes(place.size, "little", signed=place.signed)
    except OverflowError:
        raise ProtocolError(f"{label} is {value}: it must fit {place.kind}") from None
    buffer[offset : offset + place.size] = raw


def _read_number(buffer: bytes, offset: int, place: Place) -> int:
    return int.from_bytes(buffer[offset : offset + place.size], "little", signed=place.signed)


def struct_layout(record: type[Record], total_bytes: int = PAYLOAD_BYTES) -> data.FlexibleLayout:
    """Return the record as an Amaranth layout of ``8 * total_bytes`` bits, for the hardware.

    Field names equal the dataclass's; arrays are `ArrayLayout`s and nested records keep their
    names. Gaps stay unnamed: drive the whole payload from a zeroed signal.
    """
    from amaranth.hdl import signed, unsigned
    from amaranth.lib import data

    fields: dict[str | int, data.Field] = {}
    for name, place in places(record).items():
        shape: Any
        if place.record is not None:
            shape = struct_layout(place.record, place.size)
        else:
            shape = (signed if place.signed else unsigned)(8 * place.size)
        if place.count is not None:
            shape = data.ArrayLayout(shape, place.count)
        fields[name] = data.Field(shape, 8 * place.offset)
    return data.FlexibleLayout(8 * total_bytes, fields)
