"""Errors that a user can cause and mend.

Every one is a `ValueError` whose text is a single line that names the offending value and what is
accepted. The command line prints that line and exits with `DfvgError.exit_code`; anything else
that escapes is a bug and keeps its traceback.
"""

__all__ = [
    "BuildError",
    "ConfigError",
    "DeviceError",
    "DfvgError",
    "ImageError",
    "ModelError",
    "ProtocolError",
    "UsageError",
]


class DfvgError(ValueError):
    """Base of all errors that are the input's or the machine's fault, not the program's."""

    exit_code = 2


class ConfigError(DfvgError):
    """A `DeviceConfig` field, or a combination of fields, that can't be built."""


class ImageError(DfvgError):
    """A `.dfvg` file that is truncated, corrupt, foreign, of another version or too large."""


class ModelError(DfvgError):
    """A model or tokenizer that is missing, of an unsupported kind, or doesn't match its pair."""


class DeviceError(DfvgError):
    """A draft device that can't be opened or whose capabilities or versions don't match."""


class ProtocolError(DfvgError):
    """A message that breaks the tree protocol: bad CRC, sequence, id, parent or length."""


class BuildError(DfvgError):
    """A simulation build that can't run: missing tool, too little disk or memory, tool failure."""


class UsageError(DfvgError):
    """A command-line option or API argument with an unusable value."""
