"""Instructions of the vector unit as one flat record, whatever their opcode."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data

from ..common.arith import bits_for_range
from ..config import DeviceConfig
from ..interfaces import ACT_GROUP_BITS, SCALE_BITS, VM_ADDR_BITS
from ..isa import LAYOUTS, OP_WIDTH, Op
from ..overlap.decode import opcode, view

__all__ = ["command", "decode"]


def command(config: DeviceConfig) -> data.StructLayout:
    """Every field that an instruction of the vector unit may have; absent ones are 0.

    ``vm_word`` is the operand's word of vector memory, loop stride included.
    """
    return data.StructLayout(
        {
            "op": OP_WIDTH,
            "wait": 1,
            "signal": 1,
            "groups": 10,
            "vm_word": bits_for_range(config.vm_depth // config.lanes),
            "act": ACT_GROUP_BITS,
            "scale": SCALE_BITS,
            "mode": 2,
            "head_groups": 2,
            "gain": 1,
            "gain_frac": 4,
            "rms": 1,
            "eps": 40,
            "sbase": signed(8),
            "pairs": 7,
            "gqa": 5,
        }
    )


def decode(m: Module, config: DeviceConfig, issue: data.View) -> data.View:
    """Return the record of an issued instruction, combinational."""
    result = Signal(command(config), name="decoded")
    known = {name for name, _ in result.shape()}
    vm = Signal(VM_ADDR_BITS)
    m.d.comb += [
        result.op.eq(opcode(issue.code)),
        # Operands start at whole groups, so at whole words.
        result.vm_word.eq(vm >> (config.lanes.bit_length() - 1)),
    ]
    with m.Switch(opcode(issue.code)):
        for op in (Op.EMBED, Op.ROPE_TABLE, Op.QUANT, Op.SOFTMAX, Op.SYNC):
            fields = view(op, issue.code)
            with m.Case(int(op)):
                for entry in LAYOUTS[op]:
                    if entry.name in known:
                        m.d.comb += result[entry.name].eq(fields[entry.name])
                if op == Op.EMBED:
                    m.d.comb += vm.eq(fields.vm)
                elif op == Op.QUANT:
                    stride = Signal(VM_ADDR_BITS)
                    m.d.comb += [stride.eq(fields.vm1 * issue.i1), vm.eq(fields.vm + stride)]
    return result
