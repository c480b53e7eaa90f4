"""Values in and out of packed ports, by the Amaranth shape that both sides share.

    codec = Codec(data.StructLayout({"acc": signed(24), "last": 1}))
    dut.i__payload.value = codec.pack({"acc": -5, "last": 1})
    codec.unpack(int(dut.o__payload.value))

A value that doesn't fit its field is an error: silent truncation would let a wrong expectation
agree with a wrong result.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data

__all__ = ["Codec"]


class Codec:
    """Packs and unpacks values of one shape.

    Integers stand for integer shapes and enumerations, lists for arrays, dicts for structs; of a
    union exactly one member is given, and all are returned.

    Parameters
    ----------
    shape : ShapeLike
        An integer width, `signed(n)`, an enumeration, a `data.Layout` or a `data.Struct` class.
    """

    def __init__(self, shape: Any) -> None:
        if isinstance(shape, type) and issubclass(shape, data.View):
            shape = data.Layout.cast(shape)
        self.layout = shape if isinstance(shape, data.Layout) else None
        plain = Shape.cast(shape)
        self.width: int = plain.width
        self._signed: bool = plain.signed
        self._fields = (
            {}
            if self.layout is None
            else {key: (field.offset, Codec(field.shape)) for key, field in self.layout}
        )

    def pack(self, value: Any) -> int:
        """Return `value` as the unsigned integer of the port's bits.

        Raises
        ------
        ValueError
            If a number is out of its field's range, or fields are missing or unknown.
        """
        if self.layout is None:
            return self._pack_number(value)
        if isinstance(self.layout, data.ArrayLayout):
            if not isinstance(value, Sequence) or len(value) != self.layout.length:
                raise ValueError(f"expected {self.layout.length} elements, got {value!r}")
            value = dict(enumerate(value))
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a dict with fields {list(self._fields)}, got {value!r}")
        union = isinstance(self.layout, data.UnionLayout)
        given, known = set(value), set(self._fields)
        if not given <= known or (len(given) != 1 if union else given != known):
            wanted = "one of" if union else "exactly"
            raise ValueError(f"expected {wanted} fields {sorted(map(str, known))}, got {value!r}")
        word = 0
        for key, item in value.items():
            offset, codec = self._fields[key]
            word |= codec.pack(item) << offset
        return word

    def unpack(self, word: int) -> Any:
        """Return the value in the port's bits: an int, a dict or a list."""
        if self.layout is None:
            word &= (1 << self.width) - 1
            sign = self._signed and self.width and word >> (self.width - 1)
            return word - (1 << self.width) if sign else word
        values = {
            key: codec.unpack(word >> offset & ((1 << codec.width) - 1))
            for key, (offset, codec) in self._fields.items()
        }
        return list(values.values()) if isinstance(self.layout, data.ArrayLayout) else values

    def random(self, rng: random.Random) -> Any:
        """Return a value of uniformly random bits."""
        return self.unpack(rng.getrandbits(self.width) if self.width else 0)

    def _pack_number(self, value: Any) -> int:
        number = int(getattr(value, "value", value))
        low = -(1 << (self.width - 1)) if self._signed and self.width else 0
        high = (1 << (self.width - self._signed)) - 1 if self.width else 0
        if not low <= number <= high:
            raise ValueError(f"{number} does not fit: expected {low} to {high}")
        return number & ((1 << self.width) - 1)
