"""The fast CRC of large blocks against the plain one."""

import numpy as np
import pytest

from dfvg_host.device.checksum import block_crc
from dfvg_hw.messages import crc32c


@pytest.mark.parametrize("size", [0, 1, 64, 4095, 4096, 4097, 16384, 65539, 1 << 17])
def test_block_crc(size, seed):
    data = np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)
    assert block_crc(data) == crc32c(data.tobytes())


def test_block_crc_of_zeros_depends_on_their_number():
    assert block_crc(np.zeros(8192, np.uint8)) == crc32c(bytes(8192))
    assert block_crc(np.zeros(8192, np.uint8)) != block_crc(np.zeros(8256, np.uint8))
