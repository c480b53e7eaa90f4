"""From floating-point models to the device's integers."""

from .integer import IntegerLayer, IntegerMatrix, IntegerModel, Kind, ModelDims, Requant
from .llama import FloatLayer, FloatModel, quantize_model
from .rotate import rotate

__all__ = [
    "FloatLayer",
    "FloatModel",
    "IntegerLayer",
    "IntegerMatrix",
    "IntegerModel",
    "Kind",
    "ModelDims",
    "Requant",
    "quantize_model",
    "rotate",
]
