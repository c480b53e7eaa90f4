"""Number formats, function tables and the golden integer arithmetic (numpy only).

Hardware generators take constants and ROM contents from `formats` and `tables`; testbenches and the
emulator take results from `ops` and `attention`.
"""

from . import attention, formats, ops, tables

__all__ = ["attention", "formats", "ops", "tables"]
