"""How long each instruction keeps the vector unit busy: the cycle model's numbers.

Exact where nothing is waited for; `tests/cocotb/tb_vector.py` compares with the hardware.
"""

from __future__ import annotations

from ..config import GROUP, DeviceConfig
from ..head.lse import LSE_LATENCY
from ..isa import Instruction, Op, QuantMode
from .loader import gain_lanes
from .passes import STAGES
from .scalar import SCALAR_LATENCY
from .sequencer import SETTLE

__all__ = ["emit_cycles", "vector_cycles"]

_FRAME = 4
"""Accept, decode, start, finish."""


def _pass(config: DeviceConfig, groups: int) -> int:
    """One walk over `groups` groups of every row."""
    return groups * GROUP // config.lanes + STAGES + 2


def _scalar(config: DeviceConfig) -> int:
    """The scalar unit's turn through all rows."""
    return config.rows + SCALAR_LATENCY + 2


def _quant(config: DeviceConfig, instruction: Instruction) -> int:
    row = instruction.mode == QuantMode.ROW
    groups = instruction.groups if row else instruction.head_groups
    scopes = 1 if row else instruction.groups // groups
    scope = 2 * _pass(config, groups) + _scalar(config) + 1
    if instruction.rms:
        scope += _scalar(config)
    return scopes * scope


def _gain_delay(config: DeviceConfig, instruction: Instruction) -> int:
    """Cycles that the first pass waits for gains; a wait for a token hides some of them."""
    if not instruction.gain:
        return 0
    pieces = config.lanes // gain_lanes(config)  # per word of vector memory
    words = instruction.groups * GROUP // config.lanes
    # The last gain arrives (pieces - 1) * words later than if the loader kept up with the pass.
    late = (pieces - 1) * words + 2
    return max(0, late - (SETTLE + 1 if instruction.wait else 0))


def vector_cycles(
    config: DeviceConfig, instruction: Instruction, *, rows: int, pages: int = 0
) -> int:
    """Cycles from accepting an instruction until the next can be accepted.

    Without the time it waits for a token or for memory words.

    Parameters
    ----------
    config : DeviceConfig
    instruction : Instruction
        EMBED, ROPE_TABLE, QUANT, SOFTMAX or SYNC.
    rows : int
        Valid rows of the pass.
    pages : int
        KV pages of the longest sequence in the pass (SOFTMAX).

    Raises
    ------
    ValueError
        For an opcode of another engine.
    """
    total = _FRAME + (SETTLE + 1 if instruction.wait else 0)
    idle_rows = config.rows - rows
    if instruction.op == Op.QUANT:
        return total + _quant(config, instruction) + _gain_delay(config, instruction)
    if instruction.op == Op.EMBED:
        unpack = instruction.groups * GROUP // config.lanes
        return total + rows * (unpack + 3) + idle_rows + _pass(config, instruction.groups)
    if instruction.op == Op.ROPE_TABLE:
        return total + rows * (instruction.pairs + 2) + idle_rows + 1
    if instruction.op == Op.SOFTMAX:
        if not pages:
            return total + 2
        walk = pages * GROUP // config.lanes + 8
        return total + instruction.gqa * (walk + _scalar(config) - 1)
    if instruction.op == Op.SYNC:
        return total
    raise ValueError(f"{instruction.op.name} is not an instruction of the vector unit")


def emit_cycles(config: DeviceConfig, wanting: int) -> int:
    """Cycles from row 0's last logit until every child has been sent, without back-pressure.

    `wanting` is the number of rows that want children, at least 1. Counted is every cycle in which
    the engine isn't idle, that of the logit included.
    """
    return config.rows + LSE_LATENCY + 1 + wanting * (4 + 2 * config.topk)
