"""Virtual time: verifier profiles, the clock, and the figures a run is compared with."""

from .baseline import Baseline, baseline
from .clock import VirtualClock
from .profile import DEFAULT_PROFILE, VerifierProfile, load_profile, profile_names

__all__ = [
    "DEFAULT_PROFILE",
    "Baseline",
    "VerifierProfile",
    "VirtualClock",
    "baseline",
    "load_profile",
    "profile_names",
]
