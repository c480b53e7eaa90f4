import numpy as np
import pytest

from dfvg_host.verify import philox4x32, uniform
from dfvg_hw.errors import UsageError

ONES = 0xFFFFFFFF
# Known answers of the Random123 library: counter, key, block.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_known_answers(counter, key, block):
    assert philox4x32(counter, key) == block


def test_uniform_uses_the_top_bits_of_two_words():
    high, low = 0x6627E8D5 >> 5, 0xE169C58D >> 6
    assert uniform(0, 0, 0) == (high * 2**26 + low) / 2**53


def test_positions_samples_and_seeds_are_independent_streams():
    values = {
        uniform(seed, sample, index)
        for seed in (0, 1, 1 << 32, (1 << 64) - 1)
        for sample in (0, 1, ONES)
        for index in (0, 1, 1 << 32)
    }
    assert len(values) == 4 * 3 * 3


def test_uniform_is_flat():
    values = np.array([uniform(7, 0, index) for index in range(20000)])
    assert (values >= 0).all()
    assert (values < 1).all()
    counts = np.histogram(values, 20, (0, 1))[0]
    assert abs(counts - 1000).max() < 5 * 31  # five standard deviations


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1, 0, 0), r"seed must be 0 to 2\*\*64-1, not -1"),
        ((1 << 64, 0, 0), "seed"),
        ((0, 1 << 32, 0), r"sample must be 0 to 2\*\*32-1"),
        ((0, 0, -5), "index.*-5"),
    ],
)
def test_ranges(arguments, text):
    with pytest.raises(UsageError, match=text):
        uniform(*arguments)
