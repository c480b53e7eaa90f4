"""The project's version, read by the build backend without importing the package."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
