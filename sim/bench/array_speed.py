"""How fast the matrix engine simulates, beside a bare array of 1,024 multipliers.

    python -m sim.bench.array_speed --config sim

Both run in the same process, alternating, and count processor time: other load on the machine
still slows both through caches and clock rates, but the ratio means something.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfvg_hw.config import GROUP, get_config
from dfvg_hw.isa import OutOp
from sim.bench.designs import BareArray, BusyEngine
from sim.verilate import build_shared_library, cached_verilog

__all__ = ["Speed", "bare_array", "busy_engine", "main", "measure"]

_HARNESS = Path(__file__).with_name("loop.cpp")
_BARE_ROWS, _BARE_LANES = 16, 64


@dataclass
class Speed:
    """A built simulation and its best rate so far.

    Parameters
    ----------
    name : str
    macs : int
        Multipliers that work in every cycle.
    library : ctypes.CDLL
    best : float
        Cycles per second of processor time.
    """

    name: str
    macs: int
    library: Any
    best: float = 0.0

    def run(self, cycles: int) -> None:
        """Simulate `cycles` and keep the rate if it is the best."""
        # Processor time: the rate doesn't depend on what else the machine does.
        begin = time.process_time()
        self.library.run(cycles)
        self.best = max(self.best, cycles / (time.process_time() - begin))


def _build(
    name: str, make: Callable[[], Any], parameters: str, bus: int, load: int, engine: bool
) -> Any:
    text = cached_verilog(make, name, parameters)
    defines: dict[str, str | int] = {"BUS_BYTES": bus}
    if engine:
        defines["HAS_ENGINE"] = 1
    library = ctypes.CDLL(str(build_shared_library(text, name, [_HARNESS], defines=defines)))
    library.run.argtypes, library.run.restype = [ctypes.c_long], ctypes.c_uint64
    library.start(load)
    return library


def bare_array(rows: int = _BARE_ROWS, lanes: int = _BARE_LANES) -> Speed:
    """Build the yardstick."""
    name = f"bare_{rows}x{lanes}"
    library = _build(name, lambda: BareArray(rows, lanes), name, lanes, rows, False)
    return Speed(f"bare array {rows} x {lanes}", rows * lanes, library)


def busy_engine(config_name: str, groups: int = 9, out: OutOp = OutOp.STORE) -> Speed:
    """Build the matrix engine of a preset, running layers of ``64 * groups`` inputs."""
    config = get_config(config_name)
    name = f"busy_{config_name}_{groups}_{out.name.lower()}"
    units = config.act_groups * GROUP // config.lanes
    library = _build(
        name,
        lambda: BusyEngine(config, groups, out),
        f"{name} {config.config_hash}",
        config.bus_bytes,
        units,
        True,
    )
    return Speed(f"matrix engine {config_name}", config.macs_per_cycle, library)


def measure(speeds: Sequence[Speed], seconds: float = 1.0, rounds: int = 5) -> None:
    """Run all in turns; the best of `rounds` counts, since other load only slows down."""
    for speed in speeds:
        speed.run(20_000)
    for _ in range(rounds):
        for speed in speeds:
            speed.run(max(1000, int(speed.best * seconds / rounds)))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="sim", help="preset (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per design")
    args = parser.parse_args(argv)
    speeds = [bare_array(), busy_engine(args.config)]
    measure(speeds, args.seconds)
    for speed in speeds:
        macs = speed.best * speed.macs
        print(f"{speed.name:24s} {speed.best / 1e6:7.3f} M cycles/s  {macs / 1e9:6.2f} G MAC/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
