"""From components to Verilog text: the one place where Verilog is written."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["complete_cases", "to_verilog"]

_CASE = re.compile(r"^\s*(?:\(\*.*\*\)\s*)*case[xz]? \(")
_DEFAULT = re.compile(r"^\s*default\s*:")
_END = re.compile(r"^(\s*)endcase\b")


def complete_cases(text: str) -> str:
    """Give every case statement without a default an empty one.

    Yosys assigns a signal before a case that need not match, which is sound; lint tools cannot
    know, and complain. The text must be as Yosys writes it: case, default and endcase each begin a
    line.
    """
    lines, complete = [], [False]
    for line in text.split("\n"):
        end = _END.match(line)
        if _CASE.match(line):
            complete.append(False)
        elif _DEFAULT.match(line):
            complete[-1] = True
        elif end and not complete.pop():
            lines.append(f"{end.group(1)}  default: ;")
        lines.append(line)
    if len(complete) != 1:
        raise ValueError("case statements without an end")
    return "\n".join(lines)


def to_verilog(component: Any, name: str) -> str:
    """Return the Verilog of an Amaranth component.

    Parameters
    ----------
    component : Elaboratable
        A component or anything that `amaranth.back.verilog.convert` takes without more arguments.
    name : str
        Name of the top module.
    """
    from amaranth.back import verilog

    return complete_cases(verilog.convert(component, name=name, emit_src=False))
