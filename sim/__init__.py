"""Simulation: Verilator builds, the cocotb runner, bus models and the simulated card."""
