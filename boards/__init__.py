"""Boards, one module each: `python -m boards.NAME`.

Vendor parts (clock generators, PCIe hard blocks, memory controllers) live here and only here,
behind the AXI or TLP boundary of `dfvg_hw`.
"""
