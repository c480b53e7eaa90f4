"""Image files: round trip, and one clear line for everything that can be wrong with one."""

import hashlib
import json
import os
import struct

import numpy as np
import pytest

from dfvg_host.compile import compile_model, integer_model, read_image, write_image
from dfvg_host.compile.image import MAGIC
from dfvg_host.compile.source import float_model
from dfvg_host.files import replacing
from dfvg_host.quantize import quantize_model, rotate
from dfvg_hw.config import PAGE, get_config
from dfvg_hw.errors import ImageError
from tests.host.small_drafts import SHAPES, llama, tiny, truncated


@pytest.fixture(scope="module")
def image():
    return compile_model(truncated(llama(**SHAPES["gqa"])), tiny(), source={"name": "x"})


@pytest.fixture
def path(image, tmp_path):
    write_image(image, tmp_path / "a.dfvg")
    return tmp_path / "a.dfvg"


def _same(a, b):
    assert a.dims == b.dims
    assert a.requant == b.requant
    assert (a.eps_k, a.embedding_sbase) == (b.eps_k, b.embedding_sbase)
    pairs = [(a.head, b.head)]
    for x, y in zip(a.layers, b.layers, strict=True):
        assert (x.gain_in == y.gain_in).all()
        assert (x.gain_post == y.gain_post).all()
        pairs += [(x.matrices[kind], y.matrices[kind]) for kind in x.matrices]
    for x, y in pairs:
        assert (x.weight == y.weight).all()
        assert (x.code == y.code).all()
    assert (a.embedding == b.embedding).all()
    for name in ("gain_final", "embedding_code", "cos", "sin", "output_ids"):
        assert (getattr(a, name) == getattr(b, name)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bus_bytes", [8, 64])
def test_image_bytes_hold_the_whole_integer_model(shape, bus_bytes):
    config = tiny().replace(bus_bytes=bus_bytes)
    model = float_model(llama(**SHAPES[shape]))
    image = compile_model(model, config)
    _same(integer_model(image), quantize_model(rotate(model), config.seq_pages * PAGE))


def test_head_is_cut_to_whole_blocks():
    said = []
    image = compile_model(truncated(llama(), 37), tiny(), progress=said.append)
    assert image.dims.out_vocab == 32
    assert image.output_ids.tolist() == [5 * i + 3 for i in range(32)]
    assert said[0] == "head cut from 37 to 32 rows, a multiple of 8"


def test_file_round_trip(image, path):
    again = read_image(path, tiny())
    assert again.digest == image.digest
    assert again.registers == image.registers
    assert again.context == image.context == 256
    assert again.source == {"name": "x"}
    assert [i.fields for i in again.program] == [i.fields for i in image.program]
    assert (again.output_ids == np.arange(40) * 5 + 3).all()
    _same(integer_model(again), integer_model(image))


def test_equal_models_give_equal_digests(image):
    again = compile_model(truncated(llama(**SHAPES["gqa"])), tiny(), source={"name": "x"})
    other = compile_model(truncated(llama(1, **SHAPES["gqa"])), tiny(), source={"name": "x"})
    assert again.digest == image.digest != other.digest


def test_segments_are_aligned_and_disjoint(image):
    end = 0
    for address, data in image.writes():
        assert address % 64 == 0
        assert address >= end
        end = address + len(data)
    kv = image.registers["model_kv_base"] * 64
    assert end <= kv
    r, d = image.registers, image.dims
    assert r["model_kv_page"] * 64 == d.layers * d.kv_heads * (128 + 2 * 64 * 64)
    assert image.memory_bytes == kv + tiny().pool_pages * r["model_kv_page"] * 64


def _refused(path, match):
    with pytest.raises(ImageError, match=match) as caught:
        read_image(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_absent_and_empty(tmp_path):
    _refused(tmp_path / "no.dfvg", "No such file")
    (tmp_path / "empty.dfvg").write_bytes(b"")
    _refused(tmp_path / "empty.dfvg", "not a draft image")
    _refused(tmp_path, "cannot read")


def test_foreign_file(tmp_path):
    other = tmp_path / "model.dfvg"
    other.write_bytes(b"GGUF" + bytes(200))
    _refused(other, "is not a draft image: it doesn't begin with DFVGIMG")


@pytest.mark.parametrize("keep", [9, 40, 300, -64, -1])
def test_truncated_at_any_place(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    _refused(path, "is truncated")


def test_longer_than_it_says(path):
    path.write_bytes(path.read_bytes() + bytes(64))
    _refused(path, "is corrupt: it has")


def test_other_version(path):
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", 99)
    path.write_bytes(data)
    _refused(path, "has image version 99: this program reads 1")


def test_every_part_is_covered_by_a_digest(image, path):
    data = path.read_bytes()
    length = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[48 : 48 + length])
    offset = (48 + length + 63) // 64 * 64
    places = {"its header": 60}
    for entry in header["segments"]:
        places[f"segment {entry['name']} "] = offset + entry["bytes"] // 2
        offset += (entry["bytes"] + 63) // 64 * 64
    assert len(places) == 1 + len(image.segments)
    for name, place in places.items():
        bad = bytearray(data)
        bad[place] ^= 1
        path.write_bytes(bad)
        _refused(path, f"is corrupt: {name}")


def test_image_of_another_config(path):
    with pytest.raises(ImageError, match=r"compiled for config 'tiny' .*'sim' has 0x"):
        read_image(path, get_config("sim"))


def test_unwritable_path(image, tmp_path):
    with pytest.raises(ImageError, match="cannot write"):
        write_image(image, tmp_path / "nowhere" / "a.dfvg")
    assert MAGIC == b"DFVGIMG\0"


def test_a_name_too_long_to_exist(image, tmp_path):
    with pytest.raises(ImageError, match="cannot write"):
        write_image(image, tmp_path / ("a" * 252))


def test_padding_is_covered_as_well(path):
    data = path.read_bytes()
    length = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[48 : 48 + length])
    ends, offset = [48 + length], (48 + length + 63) // 64 * 64
    for entry in header["segments"]:
        ends.append(offset + entry["bytes"])
        offset += (entry["bytes"] + 63) // 64 * 64
    padded = [end for end in ends if end % 64]
    assert padded
    for end in padded:
        bad = bytearray(data)
        bad[end] ^= 1
        path.write_bytes(bad)
        _refused(path, "is corrupt: the padding behind")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("dims"),
        lambda header: header.pop("config_hash"),
        lambda header: header["dims"].update(extra=1),
        lambda header: header.update(context="many"),
        lambda header: header.update(segments=[{}]),
        lambda header: header["config"].update(rows="x"),
    ],
)
def test_a_header_that_another_program_wrote(path, change):
    data = path.read_bytes()
    length = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[48 : 48 + length])
    change(header)
    text = json.dumps(header).encode()
    start = data[:12] + struct.pack("<I", len(text)) + hashlib.sha256(text).digest() + text
    path.write_bytes(start + bytes(-len(start) % 64) + data[(48 + length + 63) // 64 * 64 :])
    _refused(path, "is not an image of this program: its header has no usable ")


def test_a_link_and_a_device_are_not_replaced(image, tmp_path):
    link = tmp_path / "link.dfvg"
    link.symlink_to(tmp_path / "real.dfvg")
    write_image(image, link)
    assert link.is_symlink()
    assert read_image(tmp_path / "real.dfvg").digest == image.digest
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(pipe) as file:
        file.write(b"x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)
    assert pipe.is_fifo()
