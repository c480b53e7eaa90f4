"""The 64-byte envelope: CRC, tags, 4 KiB rule, context hash."""

import random

import pytest

from dfvg_hw.errors import ProtocolError
from dfvg_hw.messages import (
    CRC_OFFSET,
    HASH_START,
    LINE_BYTES,
    PAYLOAD_BYTES,
    TAG_OFFSET,
    context_hash,
    crc32c,
    next_tag,
    open_line,
    seal_line,
)


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),  # the check value of the CRC catalogue
        (bytes(32), 0x8A9136AA),  # the four vectors of RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_crc32c_vectors(data, crc):
    assert crc32c(data) == crc


def test_crc32c_continues():
    data = bytes(range(200))
    assert crc32c(data[77:], crc32c(data[:77])) == crc32c(data)


def test_layout_of_the_envelope():
    line = seal_line(bytes(range(PAYLOAD_BYTES)), 0x01020304)
    assert len(line) == LINE_BYTES == 64
    assert line[:CRC_OFFSET] == bytes(range(PAYLOAD_BYTES))
    assert line[TAG_OFFSET:] == bytes([4, 3, 2, 1])
    assert int.from_bytes(line[CRC_OFFSET:TAG_OFFSET], "little") == crc32c(
        line[:CRC_OFFSET] + line[TAG_OFFSET:]
    )


def test_short_payloads_are_padded():
    assert open_line(seal_line(b"\x01", 1), 1) == b"\x01" + bytes(PAYLOAD_BYTES - 1)


def test_only_the_expected_tag_is_taken():
    line = seal_line(b"x", 5)
    assert open_line(line, 4) is None
    assert open_line(line, 6) is None
    assert open_line(line, 5) is not None


def test_blank_memory_never_validates():
    for tag in (1, 2, 0xFFFFFFFF):
        assert open_line(bytes(LINE_BYTES), tag) is None
    with pytest.raises(ProtocolError, match="line tag is 0: 1 to"):
        seal_line(b"", 0)


def test_all_ones_is_a_corrupt_line_not_a_message():
    with pytest.raises(ProtocolError, match="has CRC 0xffffffff"):
        open_line(b"\xff" * LINE_BYTES, 0xFFFFFFFF)


def test_every_flipped_bit_is_found():
    line = seal_line(random.Random(1).randbytes(PAYLOAD_BYTES), 9)
    for bit in range(8 * LINE_BYTES):
        broken = bytearray(line)
        broken[bit // 8] ^= 1 << (bit % 8)
        if bit // 8 >= TAG_OFFSET:
            assert open_line(broken, 9) is None
        else:
            with pytest.raises(ProtocolError, match="line 9 has CRC"):
                open_line(broken, 9)


def test_wrong_sizes():
    with pytest.raises(ProtocolError, match="line is 63 bytes: exactly 64"):
        open_line(bytes(63), 1)
    with pytest.raises(ProtocolError, match="payload is 57 bytes: at most 56"):
        seal_line(bytes(57), 1)


def test_tags_skip_zero_when_they_wrap():
    assert next_tag(1) == 2
    assert next_tag(0xFFFFFFFE) == 0xFFFFFFFF
    assert next_tag(0xFFFFFFFF) == 1


def test_lines_of_an_aligned_ring_stay_within_4_kib():
    for base in (0, 4096, 0x7FFF_F000):
        for index in range(65536):
            start = base + index * LINE_BYTES
            assert start // 4096 == (start + LINE_BYTES - 1) // 4096


def test_context_hash():
    assert context_hash([]) == HASH_START
    # 32-bit FNV-1a of the byte "a" is a published value; a token of one byte must agree with it.
    assert context_hash([ord("a")]) == 0xE40C292C
    rng = random.Random(2)
    tokens = [rng.randrange(1 << 20) for _ in range(100)]
    assert context_hash(tokens[60:], context_hash(tokens[:60])) == context_hash(tokens)
    assert context_hash(tokens) != context_hash(tokens[::-1])


def test_context_hash_by_shifts_and_adds():
    """The hardware's form of the multiplication: 16777619 = 2^24 + 2^8 + 2^7 + 2^4 + 2 + 1."""
    value = HASH_START
    for token in (0, 1, 151_935, 1_048_575):
        mixed = value ^ token
        value = sum(mixed << shift for shift in (24, 8, 7, 4, 1, 0)) & 0xFFFFFFFF
    assert value == context_hash([0, 1, 151_935, 1_048_575])
