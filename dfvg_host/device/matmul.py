"""Exact integer matrix products at the speed of int8 instructions.

The array accumulates ``sum_g (dot product of group g) << shift_g`` in 48 bits. Groups of a row that
share a shift are one plane: an int8 matrix product over the planes (other groups zeroed) gives
exact int32 sums, which are shifted and added in int64.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from dfvg_hw.config import GROUP
from dfvg_hw.numerics.ops import Quantized

__all__ = ["matmul_exact"]

IntArray = NDArray[np.int64]
_CHUNK = 1 << 26  # elements of an intermediate result


@cache
def _int8_product_is_exact() -> bool:
    """Whether `torch._int_mm` is exact here, at the values where saturating kernels fail."""
    a = torch.full((32, 256), 127, dtype=torch.int8)
    b = torch.full((256, 32), -127, dtype=torch.int8)
    a[::2], b[:, ::3] = -127, 127
    try:
        out = torch._int_mm(a, b)
    except (RuntimeError, AttributeError):
        return False
    return bool((out.double() == a.double() @ b.double()).all())


def _product(planes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """int8 (P, K) times int8 (N, K) transposed, exact: int32 or float64."""
    if _int8_product_is_exact():
        return torch._int_mm(planes, weight.t())
    return planes.double() @ weight.double().t()


def _planes(x: Quantized) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Operands (P, K), and each plane's row and shift."""
    rows, groups = x.shift.shape
    keys = np.arange(rows)[:, None] * 16 + x.shift
    distinct, index = np.unique(keys, return_inverse=True)
    index = index.reshape(rows, groups)
    planes = np.zeros((len(distinct), groups, GROUP), np.int8)
    group = np.broadcast_to(np.arange(groups), index.shape)
    planes[index, group] = x.q.reshape(rows, groups, GROUP)
    flat = torch.from_numpy(planes.reshape(len(distinct), -1))
    return flat, torch.from_numpy(distinct // 16), torch.from_numpy(distinct % 16)


def matmul_exact(x: Quantized, weight: torch.Tensor) -> IntArray:
    """Accumulators of MATMUL, equal to `dfvg_hw.numerics.ops.dot_groups`.

    Parameters
    ----------
    x : Quantized
        Operands of shape (rows, K).
    weight : torch.Tensor of int8, shape (N, K)

    Returns
    -------
    ndarray of int64, shape (rows, N)
    """
    planes, row, shift = _planes(x)
    n = weight.shape[0]
    acc = torch.zeros(x.q.shape[0], n, dtype=torch.int64)
    step = max(1, _CHUNK // max(len(planes), 1))
    for i in range(0, n, step):
        part = _product(planes, weight[i : i + step]).to(torch.int64)
        acc[:, i : i + step].index_add_(0, row, part << shift[:, None])
    return acc.numpy()
