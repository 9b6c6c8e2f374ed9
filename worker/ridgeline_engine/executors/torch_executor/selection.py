"""The largest values of each row. On a CPU by numpy, whose kernels for this are vectorised and torch's are
not."""

import numpy as np
import torch
from torch import Tensor


def argmax(values: Tensor) -> Tensor:
    """int64 [rows], the lowest index on a tie; NaN counts as the largest. values [rows, width]."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.argmax(values.numpy(), axis=-1))
    return values.argmax(dim=-1)


def largest(values: Tensor, count: int) -> Tensor:
    """[rows, count], largest first; count <= width."""
    if values.device.type != "cpu":
        return torch.topk(values, count, dim=-1).values
    array = values.numpy()
    if count < array.shape[-1]:
        array = np.partition(array, -count, axis=-1)[:, -count:]
    return torch.from_numpy(np.sort(array, axis=-1)).flip(-1)
