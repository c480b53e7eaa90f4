"""Code that runs inside a cocotb simulation: drivers, checkers and scoreboards."""
