"""Verifier profiles: how long a GPU class takes for what the decode loop asks of it.

A profile is a JSON file; the ones in ``profiles/`` are chosen by name, others by path. It gives
virtual time its verifier side. This machine's own speed never enters, so a run gives the same
statistics everywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfvg_host.files import is_file, read_json, user_path
from dfvg_hw.errors import UsageError

__all__ = ["DEFAULT_PROFILE", "VerifierProfile", "load_profile", "profile_names"]

DEFAULT_PROFILE = "gpu-24g"
_FOLDER = Path(__file__).parent / "profiles"
_FORMAT = 1
_COUNT_DIGITS = 9
_FIELDS = {
    "format": int,
    "name": str,
    "title": str,
    "measured": bool,
    "origin": str,
    "verify_us": dict,
    "prefill_fixed_us": float,
    "prefill_token_us": float,
    "draft_us": float,
}


@dataclass(frozen=True)
class VerifierProfile:
    """Latencies of one verifier class with one class of target. All times in seconds.

    Attributes
    ----------
    name, title: short name, and one line that says what is described.
    measured: False if the figures are an assumption.
    origin: where the figures come from.
    nodes, latencies: (node count, latency) of one verify pass over the root and that many nodes;
        ascending counts that start at 0, latencies that never fall. Between them latency is
        linear, beyond the last pair it goes on with the last slope.
    prefill_fixed, prefill_token: latency of the prompt's pass: fixed + per token.
    draft: latency of one pass of a small draft model if it ran on the verifier itself.
    """

    name: str
    title: str
    measured: bool
    origin: str
    nodes: tuple[int, ...]
    latencies: tuple[float, ...]
    prefill_fixed: float
    prefill_token: float
    draft: float

    def verify(self, nodes: int) -> float:
        """Return the latency of one target pass over the root and ``nodes`` tree nodes, s."""
        if nodes < 0:
            raise ValueError(f"node count must be 0 or more, not {nodes}")
        if len(self.nodes) == 1:
            return self.latencies[0]
        place = min(max(bisect_right(self.nodes, nodes), 1), len(self.nodes) - 1)
        left, right = self.nodes[place - 1], self.nodes[place]
        low, high = self.latencies[place - 1], self.latencies[place]
        return low + (high - low) * (nodes - left) / (right - left)

    def prefill(self, tokens: int) -> float:
        """Return the latency of the target's pass over a prompt, s."""
        return self.prefill_fixed + self.prefill_token * tokens

    @property
    def kind(self) -> str:
        """``measured`` or ``assumed``, for the summary line."""
        return "measured" if self.measured else "assumed"


def profile_names() -> list[str]:
    """Return the names of the profiles that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(name_or_path: str = DEFAULT_PROFILE) -> VerifierProfile:
    """Return the profile of that name, or the one in the JSON file at that path.

    Raises
    ------
    UsageError
        Unknown name, unreadable file, or a field that is missing, of the wrong type or out of
        range; the line names it.
    """
    path = _FOLDER / f"{name_or_path}.json"
    if name_or_path not in profile_names():
        path = user_path(name_or_path)
        if not is_file(path):
            raise UsageError(
                f"unknown verifier profile {name_or_path!r}: accepted are "
                f"{', '.join(profile_names())}, or the path of a JSON file"
            )
    try:
        data = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"verifier profile {path} is not readable JSON: {error}") from None
    return _build(data, str(path))


def _build(data: Any, where: str) -> VerifierProfile:
    if not isinstance(data, dict):
        raise UsageError(f"verifier profile {where} must be a JSON object")
    unknown = sorted(set(data) - set(_FIELDS))
    if unknown:
        raise UsageError(
            f"verifier profile {where} has unknown field {unknown[0]!r}: known are "
            f"{', '.join(_FIELDS)}"
        )
    for name, kind in _FIELDS.items():
        _check_field(data, name, kind, where)
    if data["format"] != _FORMAT:
        raise UsageError(f"verifier profile {where} has format {data['format']}: {_FORMAT} is read")
    nodes, latencies = _curve(data["verify_us"], where)
    return VerifierProfile(
        name=data["name"],
        title=data["title"],
        measured=data["measured"],
        origin=data["origin"],
        nodes=nodes,
        latencies=latencies,
        prefill_fixed=data["prefill_fixed_us"] * 1e-6,
        prefill_token=data["prefill_token_us"] * 1e-6,
        draft=data["draft_us"] * 1e-6,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_field(data: dict[str, Any], name: str, kind: type, where: str) -> None:
    if name not in data:
        raise UsageError(f"verifier profile {where} lacks the field {name!r}")
    value = data[name]
    if kind is float:
        # Bounded so that virtual time stays exact in integer cycles.
        if not _is_number(value) or not 0 <= value <= 1e9:
            raise UsageError(
                f"verifier profile {where}: {name} is {value!r}: 0 to 1e9 microseconds"
            )
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"verifier profile {where}: {name} is {value!r}: a {kind.__name__}")
    elif kind is str and not value:
        raise UsageError(f"verifier profile {where}: {name} is empty")


def _curve(table: dict[str, Any], where: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    pairs = []
    for key, value in table.items():
        count = key.isdecimal() and len(key) <= _COUNT_DIGITS
        # From a nanosecond on, so that no pass takes no time.
        if not count or not _is_number(value) or not 1e-3 <= value <= 1e9:
            raise UsageError(
                f"verifier profile {where}: verify_us has {key[:20]!r}: {value!r}, not a node "
                f"count of up to {_COUNT_DIGITS} digits and microseconds from 0.001 to 1e9"
            )
        pairs.append((int(key), value * 1e-6))
    pairs.sort()
    nodes = tuple(count for count, _ in pairs)
    latencies = tuple(latency for _, latency in pairs)
    if not nodes or nodes[0] != 0 or len(set(nodes)) != len(nodes):
        raise UsageError(
            f"verifier profile {where}: verify_us needs node counts from 0 on, each once, "
            f"not {list(nodes)}"
        )
    for place in range(1, len(pairs)):
        if latencies[place] < latencies[place - 1]:
            raise UsageError(
                f"verifier profile {where}: verify_us falls from {nodes[place - 1]} to "
                f"{nodes[place]} nodes; more nodes can't take less time"
            )
    return nodes, latencies
