"""The hardware: Amaranth components, formats, numerics and configuration.

Vendor-free by rule: nothing in this package imports torch, cocotb or a board. Host code imports
its constants from here, so that every format exists once.
"""

from dfvg_hw.version import __version__

__all__ = ["__version__"]
