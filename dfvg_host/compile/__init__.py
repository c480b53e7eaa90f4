"""From models to draft images: layout in device memory, program, file format."""

from .compiler import compile_model, integer_model, memory_map
from .image import DraftImage, read_image, write_image

__all__ = [
    "DraftImage",
    "compile_model",
    "integer_model",
    "memory_map",
    "read_image",
    "write_image",
]
