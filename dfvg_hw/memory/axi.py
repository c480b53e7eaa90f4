"""AXI4 and AXI4-Lite as interface signatures, named as every vendor tool expects.

The members carry the standard channel names (``awaddr``, ``awvalid``, ...), so a board file joins
them to a vendor's block by name. Signatures are written from the manager's (master's) side: a
component that answers on a bus takes ``In(axi4(...))``, one that drives it ``Out(axi4(...))``.

Rules that every manager of this project keeps (and `sim.cocotb.axi` checks):

* INCR bursts of whole bus words, aligned to the word, never across a 4 KiB line, at most 256 beats;
* one ID per manager: data and responses come back in order;
* all write strobes are high: a sparse strobe can't become one packet on some links;
* an address or data beat, once valid, stays unchanged until it is accepted.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

__all__ = [
    "AXI_LINE",
    "BURST_BEATS",
    "Burst",
    "Cache",
    "Resp",
    "axi4",
    "axi4_lite",
    "axi4_read",
    "axi4_write",
    "burst_words",
    "join",
]

AXI_LINE = 4096
"""Bytes of an address line that no burst may cross."""

BURST_BEATS = 256
"""Most beats of an INCR burst."""


class Burst(enum.IntEnum):
    """Values of ``arburst`` and ``awburst``."""

    FIXED = 0
    INCR = 1
    WRAP = 2


class Resp(enum.IntEnum):
    """Values of ``rresp`` and ``bresp``; bit 1 is set exactly for the errors."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class Cache(enum.IntEnum):
    """Values of ``arcache`` and ``awcache`` in use."""

    DEVICE = 0b0000
    MODIFIABLE = 0b0011
    """Normal memory that need not be cached: an interconnect may widen, split and merge bursts."""


def burst_words(word_bytes: int, limit: int = BURST_BEATS) -> int:
    """Return the longest burst in words: a power of two, within 4 KiB, 256 beats and `limit`.

    A burst that ends at the next multiple of a power of two never crosses a multiple of a larger
    one, so aligning ends to this length keeps the 4 KiB rule by construction.

    Parameters
    ----------
    word_bytes : int
        Bytes of a bus word, a power of two.
    limit : int
        Words that the manager can buffer; at least 1.
    """
    most = min(AXI_LINE // word_bytes, BURST_BEATS, limit)
    return 1 << (most.bit_length() - 1)


def _check(name: str, value: int, accepted: tuple[int, ...]) -> None:
    if value not in accepted:
        listed = ", ".join(map(str, accepted))
        raise ValueError(f"AXI {name} is {value!r}: accepted are {listed}")


def _check_axi4(addr_bits: int, data_bits: int, id_bits: int) -> None:
    _check("data_bits", data_bits, tuple(8 << n for n in range(8)))
    if not 12 <= addr_bits <= 64:
        raise ValueError(f"AXI addr_bits is {addr_bits!r}: accepted are 12 to 64")
    if not 1 <= id_bits <= 32:
        raise ValueError(f"AXI id_bits is {id_bits!r}: accepted are 1 to 32")


def _address_channel(name: str, addr_bits: int, id_bits: int) -> dict[str, wiring.Member]:
    return {
        f"{name}id": Out(id_bits),
        f"{name}addr": Out(addr_bits),
        f"{name}len": Out(8),
        f"{name}size": Out(3),
        f"{name}burst": Out(2),
        f"{name}cache": Out(4),
        f"{name}prot": Out(3),
        f"{name}valid": Out(1),
        f"{name}ready": In(1),
    }


def axi4_read(*, addr_bits: int, data_bits: int, id_bits: int = 1) -> wiring.Signature:
    """Signature of a manager that only reads: channels AR and R; parameters as in `axi4`."""
    _check_axi4(addr_bits, data_bits, id_bits)
    return wiring.Signature(
        _address_channel("ar", addr_bits, id_bits)
        | {
            "rid": In(id_bits),
            "rdata": In(data_bits),
            "rresp": In(2),
            "rlast": In(1),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def axi4_write(*, addr_bits: int, data_bits: int, id_bits: int = 1) -> wiring.Signature:
    """Signature of a manager that only writes: channels AW, W and B; parameters as in `axi4`."""
    _check_axi4(addr_bits, data_bits, id_bits)
    return wiring.Signature(
        _address_channel("aw", addr_bits, id_bits)
        | {
            "wdata": Out(data_bits),
            "wstrb": Out(data_bits // 8),
            "wlast": Out(1),
            "wvalid": Out(1),
            "wready": In(1),
            "bid": In(id_bits),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
        }
    )


def axi4(*, addr_bits: int, data_bits: int, id_bits: int = 1) -> wiring.Signature:
    """Signature of an AXI4 manager, all five channels.

    Parameters
    ----------
    addr_bits : int
        Bits of a byte address, 12 to 64.
    data_bits : int
        Bits of a data word: 8 times a power of two, 8 to 1024.
    id_bits : int
        Bits of a transaction ID, 1 to 32.

    Raises
    ------
    ValueError
        Naming the parameter and what is accepted.
    """
    shape = {"addr_bits": addr_bits, "data_bits": data_bits, "id_bits": id_bits}
    return wiring.Signature({**axi4_write(**shape).members, **axi4_read(**shape).members})


def join(m: Module, port: Any, reader: Any, writer: Any) -> None:
    """Drive a full AXI4 port from a manager that reads and one that writes.

    Parameters
    ----------
    m : Module
    port : interface of ``axi4``
        On the outside of the component, seen from inside.
    reader : interface of ``axi4_read``
    writer : interface of ``axi4_write``
    """
    for part in (reader, writer):
        for name, member in part.signature.members.items():
            outer, inner = getattr(port, name), getattr(part, name)
            m.d.comb += outer.eq(inner) if member.flow == Out else inner.eq(outer)


def axi4_lite(*, addr_bits: int, data_bits: int = 32) -> wiring.Signature:
    """Signature of an AXI4-Lite manager.

    Parameters
    ----------
    addr_bits : int
        Bits of a byte address, 1 to 64.
    data_bits : int
        32 or 64.

    Raises
    ------
    ValueError
        Naming the parameter and what is accepted.
    """
    _check("data_bits", data_bits, (32, 64))
    if not 1 <= addr_bits <= 64:
        raise ValueError(f"AXI addr_bits is {addr_bits!r}: accepted are 1 to 64")
    members = {}
    for channel in ("aw", "ar"):
        members |= {
            f"{channel}addr": Out(addr_bits),
            f"{channel}prot": Out(3),
            f"{channel}valid": Out(1),
            f"{channel}ready": In(1),
        }
    members |= {
        "wdata": Out(data_bits),
        "wstrb": Out(data_bits // 8),
        "wvalid": Out(1),
        "wready": In(1),
        "bresp": In(2),
        "bvalid": In(1),
        "bready": Out(1),
        "rdata": In(data_bits),
        "rresp": In(2),
        "rvalid": In(1),
        "rready": Out(1),
    }
    return wiring.Signature(members)
