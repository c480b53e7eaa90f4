"""The simulated card: the whole design in Verilator, with device memory and a host around it."""

from .card import CardOptions, SimCard, build_card

__all__ = ["CardOptions", "SimCard", "build_card"]
