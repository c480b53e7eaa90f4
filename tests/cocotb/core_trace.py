"""Watches what the engines of a core write, to find the first instruction that goes wrong.

    run_bench(core, "tests.cocotb.tb_core", public=trace_signals("top", config), ...)
    trace = CoreTrace(dut, config)
    ...
    trace.instructions("vec")  # [(code, i0, i1, {(port, row): [fields, ...]}), ...]

Far too slow for a test of its own: a tool for the day when children differ.
"""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

__all__ = ["CoreTrace", "trace_signals"]

PORTS = {
    ("vec", "act_w"): ("en", "addr", "data"),
    ("vec", "shift_w"): ("en", "group", "shift"),
    ("vec", "scale_w"): ("en", "index", "mant", "exp"),
    ("vec", "rope_w"): ("en", "pair", "cos", "sin"),
    ("vec", "k_tail"): ("en", "addr", "data", "scale_en", "head", "scale"),
    ("vec", "v_tail"): ("en", "addr", "data", "scale_en", "head", "scale"),
    ("vec", "vm_w"): ("en", "addr", "data"),
    ("vec", "scores"): ("valid", "payload"),
    ("vec", "logits"): ("valid", "payload"),
}
STREAMS = ("issue__valid", "issue__ready", "issue__payload")


def trace_signals(top: str, rows: int) -> list[str]:
    """Signals to make public, for `run_bench`."""
    names = [f"{top}.{unit}.{signal}" for unit in ("mm", "vec") for signal in STREAMS]
    for (unit, port), fields in PORTS.items():
        for row in range(rows):
            names += [f"{top}.{unit}.{port}__{row}__{item}" for item in fields]
    return names


class CoreTrace:
    """Records issues and writes, in order of time.

    Attributes
    ----------
    events : list of tuple
        (cycle, "issue", unit, payload) or (cycle, port, row, fields).
    """

    def __init__(self, dut: Any, rows: int) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._dut, self._rows = dut, rows
        self._issues = {
            unit: [getattr(getattr(dut, unit), name) for name in STREAMS] for unit in ("mm", "vec")
        }
        self._writes = [
            (port, row, [getattr(getattr(dut, unit), f"{port}__{row}__{f}") for f in fields])
            for (unit, port), fields in PORTS.items()
            for row in range(rows)
        ]
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        cycle = 0
        while True:
            await RisingEdge(self._dut.clk)
            cycle += 1
            for unit, (valid, ready, payload) in self._issues.items():
                if int(valid.value) and int(ready.value):
                    self.events.append((cycle, "issue", unit, int(payload.value)))
            for port, row, handles in self._writes:
                enable = int(handles[0].value)
                if enable or (port in ("k_tail", "v_tail") and int(handles[3].value)):
                    self.events.append((cycle, port, row, [int(h.value) for h in handles]))
