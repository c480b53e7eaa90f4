"""A random LLaMA for the tiny config, and devices that run it."""

from functools import cache

from dfvg_host.compile import compile_model
from dfvg_host.compile.source import float_model
from dfvg_host.device.compute import IntegerCompute
from dfvg_host.device.emulator import EmulatorDevice
from dfvg_host.device.rtl import RtlDevice
from dfvg_hw.config import get_config
from sim.card import CardOptions, SimCard
from tests.host import tiny_models

CONFIG = get_config("tiny")
VOCABULARY = tiny_models.VOCAB


@cache
def image():
    """A draft with two layers and grouped query heads."""
    made = compile_model(float_model(tiny_models.model(num_hidden_layers=2)), CONFIG)
    made.seal()
    return made


def emulator():
    return EmulatorDevice(CONFIG, IntegerCompute.from_image(image()))


def power_up(**options):
    """A card with room for the image and nothing in it."""
    size = -(-image().memory_bytes // 4096) * 4096
    return SimCard(CONFIG, CardOptions(memory_bytes=size, **options))


def rtl(**options):
    return RtlDevice(image(), power_up(**options))
