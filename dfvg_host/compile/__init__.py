"""From models to draft images: layout in device memory, program, file format."""

from .compiler import compile_model, integer_model, memory_map
from .image import DraftImage, read_image, write_image
from .load import draft_image, is_image

__all__ = [
    "DraftImage",
    "compile_model",
    "draft_image",
    "integer_model",
    "is_image",
    "memory_map",
    "read_image",
    "write_image",
]
