"""Layouts: every field round-trips, no two overlap, hardware and host agree on every bit."""

import dataclasses
import random

import pytest
from amaranth.lib import data

from dfvg_hw.errors import ProtocolError
from dfvg_hw.messages import (
    LINE_BYTES,
    MESSAGE_TYPES,
    PAYLOAD_BYTES,
    Child,
    Nodes,
    OpenLine,
    VerdictLine,
    decode,
    encode,
    struct_layout,
)
from dfvg_hw.messages.layout import places


def random_value(place, rng, count):
    if place.count is not None:
        length = place.count if place.fixed else count
        single = dataclasses.replace(place, count=None)
        return tuple(random_value(single, rng, 0) for _ in range(length))
    if place.record is not None:
        return random_record(place.record, rng)
    bits = 8 * place.size
    low, high = (
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if place.signed else (0, (1 << bits) - 1)
    )
    return rng.choice([low, high, 0, rng.randint(low, high), rng.randint(low, high)])


def random_record(record, rng):
    fields = places(record)
    arrays = [p for p in fields.values() if p.count is not None and not p.fixed]
    count = rng.randint(0, arrays[0].count) if arrays else None
    values = {name: random_value(place, rng, count) for name, place in fields.items()}
    if count is not None:
        values["count"] = count
    return record(**values)


@pytest.mark.parametrize("record", MESSAGE_TYPES.values(), ids=lambda r: r.TYPE.name)
class TestEveryMessage:
    def test_fields_lie_in_the_payload_without_overlap(self, record):
        covered = {0: "type"}
        for name, place in places(record).items():
            assert place.offset % min(place.size, 8) == 0, f"{name} is not aligned"
            for byte in range(place.offset, place.offset + place.total):
                assert byte not in covered, f"{name} overlaps {covered[byte]}"
                assert byte < PAYLOAD_BYTES
                covered[byte] = name

    def test_round_trip(self, record):
        rng = random.Random(7)
        for _ in range(50):
            message = random_record(record, rng)
            payload = encode(message)
            assert len(payload) == PAYLOAD_BYTES
            assert payload[0] == record.TYPE
            assert decode(payload) == message

    def test_hardware_layout_has_the_same_bits(self, record):
        rng = random.Random(11)
        layout = struct_layout(record)
        assert layout.size == 8 * PAYLOAD_BYTES
        for _ in range(10):
            message = random_record(record, rng)
            word = int.from_bytes(encode(message), "little")
            for name, place in places(record).items():
                expect_bits(layout[name], getattr(message, name), word, place)

    def test_unnamed_bytes_are_ignored(self, record):
        message = random_record(record, random.Random(3))
        payload = bytearray(encode(message))
        covered = {0} | {
            byte
            for place in places(record).values()
            for byte in range(place.offset, place.offset + place.total)
        }
        for byte in set(range(PAYLOAD_BYTES)) - covered:
            payload[byte] = 0xA5
        assert decode(bytes(payload)) == message

    def test_a_value_too_large_is_refused(self, record):
        message = random_record(record, random.Random(5))
        for name, place in places(record).items():
            if place.count is None and name != "count":
                value = 1 << (8 * place.size)
                big = dataclasses.replace(message, **{name: value})
                with pytest.raises(ProtocolError, match=rf"{record.__name__}\.{name} is {value}"):
                    encode(big)


def expect_bits(field, value, word, place, base=0):
    """Compare a field of the Amaranth layout with the encoded word, arrays and records too."""
    start = base + field.offset
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            expect_bits(field.shape[index], item, word, place, start)
    elif isinstance(field.shape, data.Layout):
        for name in places(type(value)):
            expect_bits(field.shape[name], getattr(value, name), word, place, start)
    else:
        raw = (word >> start) & ((1 << field.shape.width) - 1)
        if field.shape.signed and raw >> (field.shape.width - 1):
            raw -= 1 << field.shape.width
        assert raw == value


class TestRefusals:
    def test_unknown_type(self):
        with pytest.raises(ProtocolError, match="message type is 0x7f: one of 0x01"):
            decode(bytes([0x7F]) + bytes(PAYLOAD_BYTES - 1))

    def test_wrong_payload_size(self):
        with pytest.raises(ProtocolError, match="payload is 64 bytes: exactly 56"):
            decode(bytes(LINE_BYTES))

    def test_count_beyond_the_array(self):
        message = Nodes(seq=0, count=1, flags=0, parent=1, first_id=2, epoch=0, pass_number=0,
                        children=(Child(1, -1, -1),))  # fmt: skip
        payload = bytearray(encode(message))
        payload[2] = 6
        with pytest.raises(ProtocolError, match=r"Nodes\.count is 6: at most 5"):
            decode(bytes(payload))

    def test_too_many_elements(self):
        line = VerdictLine(seq=0, count=9, flags=3, epoch=1, base_length=1, context_hash=0, total=9,
                           tokens=tuple(range(9)))  # fmt: skip
        with pytest.raises(ProtocolError, match=r"VerdictLine\.tokens has 9 elements: at most 8"):
            encode(line)

    def test_fixed_array_must_be_full(self):
        line = OpenLine(seq=0, topk=4, epoch=0, count=1, context_hash=0, address=0, threshold=0,
                        max_depth=1, max_slots=1, stops=(2,))  # fmt: skip
        with pytest.raises(ProtocolError, match=r"OpenLine\.stops has 1 elements: exactly 4"):
            encode(line)
