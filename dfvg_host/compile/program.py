"""The overlay program of a LLaMA-architecture draft.

One program for any depth: the layer loop is written once. It's rotated by one norm, i.e. the body
starts with the K projection and ends with the norm of the *next* layer (or of the head), so that
every wait in the body has its signal in the same iteration. Tokens, by consumer:

========================  =================================================
MM k                      norm before it (first iteration: before the loop)
QUANT K, V / SYNC VEC     MM k, v / MM q
MM SCORE, MM PV           QUANT q, SOFTMAX of the same KV head
SOFTMAX                   MM SCORE
QUANT a                   SYNC MM behind the last PV
========================  =================================================
"""

from __future__ import annotations

from dfvg_host.quantize.integer import Kind, ModelDims, Requant
from dfvg_host.quantize.scales import pv_requant, score_requant
from dfvg_hw.config import GROUP, DeviceConfig
from dfvg_hw.errors import ImageError
from dfvg_hw.isa import Dest, Instruction, LoadKind, Op, OutOp, QuantMode
from dfvg_hw.numerics import formats as fm

from .layout import ALIGN, MemoryMap, Run
from .limits import VmMap

__all__ = ["PROGRAM_LENGTH", "Shifts", "build_program"]

PROGRAM_LENGTH = 39
"""Instructions of every program; the memory map is laid out before the program exists."""

Shifts = dict[Kind, Requant]

_X_SCALE, _Q_SCALE = 0, 1  # row-scale entries; probabilities follow the queries


class _Writer:
    """Appends instructions; the names of operands and places live here."""

    def __init__(self, layout: MemoryMap, shifts: Shifts, eps_k: int, embed_sbase: int) -> None:
        self.layout, self.shifts = layout, shifts
        self.eps_k, self.embed_sbase = eps_k, embed_sbase
        self.dims: ModelDims = layout.dims
        self.config: DeviceConfig = layout.config
        self.vm = VmMap(self.dims)
        self.code: list[Instruction] = []

    def emit(self, op: Op, **fields: int) -> None:
        self.code.append(Instruction(op, **fields))

    def load(self, run: Run, dest: Dest, layered: bool = True, ahead: int = 0) -> None:
        """LOAD of a linear run; `ahead` layers further on than the loop index says."""
        stride = self.layout.layer_stride // ALIGN
        self.emit(
            Op.LOAD,
            kind=LoadKind.LINEAR,
            dest=dest,
            base=run.address // ALIGN + ahead * stride,
            words=run.words,
            stride0=stride if layered else 0,
        )

    def matmul(
        self, kind: Kind, out: OutOp, vm: int, wait: bool = False, signal: bool = False
    ) -> None:
        n, k = self.dims.shape(kind)
        shifts = self.shifts[kind]
        self.emit(
            Op.MM,
            wait=wait,
            signal=signal,
            out=out,
            blocks=n // (self.config.bus_bytes // 2),
            groups=k // GROUP,
            scale=_X_SCALE,
            pre=shifts.pre,
            sbase=shifts.sbase,
            vm=vm,
        )

    def quantize(self, size: int, vm: int, wait: bool = True, norm: bool = False) -> None:
        """QUANT of a whole vector to activation group 0, with gain and rms if `norm`."""
        fields = {"gain": 1, "gain_frac": fm.GAIN_FRAC, "rms": 1, "eps": self.eps_k} if norm else {}
        self.emit(
            Op.QUANT,
            wait=wait,
            signal=1,
            mode=QuantMode.ROW,
            groups=size // GROUP,
            vm=vm,
            scale=_X_SCALE,
            **fields,
        )

    def quantize_heads(self, mode: QuantMode, size: int, vm: int, **fields: int) -> None:
        groups = self.dims.head_groups
        self.emit(Op.QUANT, mode=mode, groups=size // GROUP, head_groups=groups, vm=vm, **fields)


def _prologue(w: _Writer) -> None:
    w.emit(Op.LOAD, kind=LoadKind.EMBED_ROWS, dest=Dest.VEC)
    w.emit(Op.LOAD, kind=LoadKind.ROPE_ROWS, dest=Dest.VEC)
    w.load(w.layout.run("gain_in"), Dest.VEC, layered=False)
    w.emit(Op.EMBED, groups=w.dims.hidden_pad // GROUP, vm=w.vm.x, sbase=w.embed_sbase)
    w.emit(Op.ROPE_TABLE, pairs=w.dims.head_pad // 2)
    w.quantize(w.dims.hidden_pad, w.vm.x, wait=False, norm=True)


def _attention(w: _Writer) -> None:
    d, vm = w.dims, w.vm
    w.load(w.layout.run("kvq"), Dest.MM)
    w.matmul(Kind.K, OutOp.ROPE, vm.k, wait=True, signal=True)
    w.matmul(Kind.V, OutOp.STORE, vm.v, signal=True)
    w.matmul(Kind.Q, OutOp.ROPE, vm.q, signal=True)
    w.quantize_heads(QuantMode.HEAD_K, d.kv_size, vm.k, wait=1)
    w.quantize_heads(QuantMode.HEAD_V, d.kv_size, vm.v, wait=1)
    w.emit(Op.SYNC, wait=1, dest=Dest.VEC)
    w.emit(Op.LOOP, level=1, count=d.kv_heads)
    _kv_head(w)
    w.emit(Op.LOOP_END, level=1)
    w.emit(Op.SYNC, signal=1, dest=Dest.MM)
    w.load(w.layout.run("out"), Dest.MM)
    w.quantize(d.q_size, vm.q)
    w.matmul(Kind.OUT, OutOp.ADD, vm.x, wait=True, signal=True)


def _kv_head(w: _Writer) -> None:
    d, vm = w.dims, w.vm
    stride = d.gqa * d.head_pad
    probabilities = d.gqa * d.head_groups  # activation groups behind the queries
    score, pv = score_requant(d.head_groups), pv_requant(w.config.seq_pages)
    heads = {"groups": d.head_groups, "gqa": d.gqa}
    w.emit(Op.LOAD, kind=LoadKind.K_PAGES, dest=Dest.MM)
    w.emit(Op.LOAD, kind=LoadKind.V_PAGES, dest=Dest.MM)
    w.quantize_heads(QuantMode.HEAD_Q, stride, vm.q, vm1=stride, scale=_Q_SCALE, signal=1)
    w.emit(
        Op.MM,
        wait=1,
        signal=1,
        out=OutOp.SCORE,
        scale=_Q_SCALE,
        pre=score.pre,
        sbase=score.sbase,
        **heads,
    )
    scale = _Q_SCALE + d.gqa
    w.emit(Op.SOFTMAX, wait=1, signal=1, gqa=d.gqa, act=probabilities, scale=scale)
    w.emit(
        Op.MM,
        wait=1,
        out=OutOp.PV,
        act=probabilities,
        scale=scale,
        pre=pv.pre,
        sbase=pv.sbase,
        vm=vm.q,
        vm1=stride,
        **heads,
    )


def _feed_forward(w: _Writer) -> None:
    w.load(w.layout.run("gain_post"), Dest.VEC)
    w.quantize(w.dims.hidden_pad, w.vm.x, norm=True)
    w.load(w.layout.run("ffn"), Dest.MM)
    w.matmul(Kind.GATE_UP, OutOp.SWIGLU, w.vm.h, wait=True, signal=True)
    w.quantize(w.dims.ffn_pad, w.vm.h)
    w.matmul(Kind.DOWN, OutOp.ADD, w.vm.x, wait=True, signal=True)
    w.load(w.layout.run("gain_in"), Dest.VEC, ahead=1)
    w.quantize(w.dims.hidden_pad, w.vm.x, norm=True)


def build_program(
    layout: MemoryMap, shifts: Shifts, eps_k: int, embed_sbase: int
) -> list[Instruction]:
    """Write the program.

    Raises
    ------
    ImageError
        If the config's program memory is too small.
    """
    w = _Writer(layout, shifts, eps_k, embed_sbase)
    _prologue(w)
    w.emit(Op.LOOP, level=0, count=layout.dims.layers)
    _attention(w)
    _feed_forward(w)
    w.emit(Op.LOOP_END, level=0)
    w.emit(Op.SKIP_NO_HEAD, count=2)
    w.load(layout.head, Dest.MM, layered=False)
    w.matmul(Kind.HEAD, OutOp.TOPK, 0, wait=True)
    w.emit(Op.PASS_END)
    if len(w.code) > layout.config.prog_depth:
        raise ImageError(
            f"the program has {len(w.code)} instructions: config {layout.config.name!r} has "
            f"prog_depth {layout.config.prog_depth}"
        )
    if len(w.code) != PROGRAM_LENGTH:
        raise AssertionError(f"program has {len(w.code)} instructions, not {PROGRAM_LENGTH}")
    return w.code
