"""``docs/protocol.md`` holds the current tables; registers don't collide."""

from pathlib import Path

import pytest

from dfvg_hw.messages.markdown import BEGIN, END, generated, splice
from dfvg_hw.registers import BAR0_BYTES, REGISTERS, mailbox_offset, register

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_document_is_current():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert splice(text) == text, "run: python -m dfvg_hw.messages --markdown docs/protocol.md"


def test_splice_replaces_only_its_part():
    text = splice(f"head\n{BEGIN}\nstale text\n{END}\ntail\n")
    assert text.startswith("head\n")
    assert text.endswith("\ntail\n")
    assert "stale text" not in text
    assert generated() in text


def test_splice_needs_its_marks():
    with pytest.raises(ValueError, match="lacks the BEGIN or END mark"):
        splice("nothing here")


def test_registers_are_words_in_order_within_the_bar():
    addresses = [entry.address for entry in REGISTERS]
    assert addresses == sorted(set(addresses))
    assert all(address % 4 == 0 and address + 4 <= BAR0_BYTES for address in addresses)
    assert len({entry.name for entry in REGISTERS}) == len(REGISTERS)


def test_register_fields_fit_and_do_not_overlap():
    for entry in REGISTERS:
        seen = 0
        for field in entry.fields:
            mask = ((1 << field.width) - 1) << field.offset
            assert mask < 1 << 32
            assert not seen & mask, f"{entry.name}.{field.name}"
            assert field.init < 1 << field.width
            seen |= mask


def test_register_by_name():
    assert register("id").address == 0
    with pytest.raises(KeyError):
        register("nonsense")


def test_mailbox_lines_rotate_within_their_sequence():
    assert [mailbox_offset(0, tag) for tag in (1, 2, 3, 4, 5)] == [0, 64, 128, 192, 0]
    assert mailbox_offset(2, 1) == 2 * 256
