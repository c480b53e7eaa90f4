"""Models to images: rotate, quantise, lay out, write the program, gather segments; and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dfvg_host.quantize.integer import (
    IntegerLayer,
    IntegerMatrix,
    IntegerModel,
    Kind,
    ModelDims,
    Requant,
)
from dfvg_host.quantize.llama import FloatModel, quantize_model
from dfvg_host.quantize.rotate import rotate
from dfvg_hw.config import PAGE, DeviceConfig
from dfvg_hw.isa import INSTRUCTION_BYTES, Instruction, Op, OutOp, assemble

from .image import DraftImage, Segment
from .layout import (
    LAYER_RUNS,
    MemoryMap,
    align,
    pack_embedding,
    pack_gain,
    pack_layer,
    pack_matrix,
    pack_rope,
    unpack_matrix,
)
from .limits import check_fits
from .program import PROGRAM_LENGTH, build_program

__all__ = ["compile_model", "image_from_integers", "integer_model", "memory_map"]

Bytes = NDArray[np.uint8]


def memory_map(dims: ModelDims, config: DeviceConfig) -> MemoryMap:
    """Where everything lies in device memory."""
    return MemoryMap(dims, config, PROGRAM_LENGTH * INSTRUCTION_BYTES)


def compile_model(
    model: FloatModel,
    config: DeviceConfig,
    context: int | None = None,
    source: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DraftImage:
    """Compile a float model for a device.

    Parameters
    ----------
    model : FloatModel
    config : DeviceConfig
    context : int, optional
        The model's own limit of committed tokens; the config's holds too.
    source : dict, optional
        Remembered in the image.
    progress : callable
        Gets one line per step.

    Raises
    ------
    ImageError
        If it doesn't fit the config; nothing has been quantised then.
    ModelError
        If a value is outside the device's formats.
    """
    model = _whole_blocks(model, config, progress)
    check_fits(model.dims, config)
    memory_map(model.dims, config).check()
    integers = quantize_model(rotate(model), config.seq_pages * PAGE, progress)
    limit = min(config.max_ctx, context or config.max_ctx)
    return image_from_integers(integers, config, limit, source or {})


def _whole_blocks(
    model: FloatModel, config: DeviceConfig, progress: Callable[[str], None]
) -> FloatModel:
    """Cut the head to whole scale blocks: hardware has no padding channels to tell apart.

    Ids that are cut (the last ones, fewer than bus_bytes/2) are never proposed; decoding stays
    exact, because the target may still choose them.
    """
    rows, per = model.dims.out_vocab, config.bus_bytes // 2
    keep = rows - rows % per
    if keep == rows:
        return model
    progress(f"head cut from {rows} to {keep} rows, a multiple of {per}")
    return dataclasses.replace(
        model,
        dims=dataclasses.replace(model.dims, out_vocab=keep),
        head=model.head[:keep],
        output_ids=model.output_ids[:keep],
    )


def image_from_integers(
    model: IntegerModel, config: DeviceConfig, context: int, source: dict[str, Any]
) -> DraftImage:
    """Lay out an integer model and write its program."""
    layout, bus = memory_map(model.dims, config), config.bus_bytes
    program = build_program(layout, model.requant, model.eps_k, model.embedding_sbase)
    ids = model.output_ids.astype("<u4").view(np.uint8)
    segments = [
        Segment("program", 0, np.frombuffer(assemble(program), np.uint8)),
        Segment("embedding", layout.embed, pack_embedding(model, bus)),
        Segment("rope", layout.rope, pack_rope(model)),
        Segment("ids", layout.ids, np.concatenate((ids, np.zeros(-len(ids) % 64, np.uint8)))),
    ]
    for index, layer in enumerate(model.layers):
        address = layout.layers + index * layout.layer_stride
        segments.append(Segment(f"layer{index}", address, pack_layer(layer, bus)))
    segments.append(Segment("gain_final", layout.final, pack_gain(model.gain_final)))
    segments.append(Segment("head", layout.head.address, pack_matrix(model.head, bus)))
    image = DraftImage(
        config=config,
        dims=model.dims,
        registers=layout.registers(len(program)),
        segments=segments,
        memory_bytes=layout.end,
        context=context,
        source=source,
    )
    image.seal()
    return image


# ---- and back ---------------------------------------------------------------------------------


def _shifts(program: list[Instruction]) -> dict[Kind, Requant]:
    """Shifts of each kind of matrix, from the MM instructions in stream order."""
    linear = [i for i in program if i.op is Op.MM and i.out not in (OutOp.SCORE, OutOp.PV)]
    return {kind: Requant(i.pre, i.sbase) for kind, i in zip(Kind, linear, strict=True)}


def _layer(data: Bytes, dims: ModelDims, layout: MemoryMap) -> IntegerLayer:
    gains, matrices, offset = {}, {}, 0
    for name, kinds in LAYER_RUNS:
        size = layout.run_bytes(kinds)
        if not kinds:
            gains[name] = data[offset : offset + size].view("<i2").astype(np.int16)
        start = offset
        for kind in kinds:
            matrices[kind] = _matrix(data[start:], dims, kind, layout)
            start += layout.run_bytes((kind,))
        offset += align(size)
    return IntegerLayer(gains["gain_in"], gains["gain_post"], matrices)


def _matrix(data: Bytes, dims: ModelDims, kind: Kind, layout: MemoryMap) -> IntegerMatrix:
    return unpack_matrix(data, *dims.shape(kind), layout.config.bus_bytes)


def integer_model(image: DraftImage) -> IntegerModel:
    """Recover the integer model from an image's bytes: what the emulator computes with."""
    d, layout, program = image.dims, memory_map(image.dims, image.config), image.program
    rows = image.segment("embedding").data.reshape(d.vocab, -1)
    k = d.hidden_pad
    pairs = image.segment("rope").data.view("<i2").reshape(layout.positions, -1, 2)
    embed = next(i for i in program if i.op is Op.EMBED)
    norm = next(i for i in program if i.op is Op.QUANT and i.rms)
    return IntegerModel(
        dims=d,
        eps_k=norm.eps,
        requant=_shifts(program),
        layers=[_layer(image.segment(f"layer{i}").data, d, layout) for i in range(d.layers)],
        gain_final=image.segment("gain_final").data.view("<i2").astype(np.int16),
        head=_matrix(image.segment("head").data, d, Kind.HEAD, layout),
        embedding=torch.from_numpy(np.ascontiguousarray(rows[:, :k]).view(np.int8)),
        embedding_code=np.ascontiguousarray(rows[:, k : k + 2]).view("<u2").reshape(-1),
        embedding_sbase=embed.sbase,
        cos=pairs[..., 0].astype(np.int16),
        sin=pairs[..., 1].astype(np.int16),
        output_ids=image.output_ids,
    )
