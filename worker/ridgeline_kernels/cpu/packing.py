"""The packed layout of a weight: panels of 16 outputs, input features outermost inside a panel.

bf16: [panels, ceil(in / 2), 16, 2], two neighbouring input features of one output side by side; this is what the
vector units widen cheaply, and what the bf16 dot-product and tile instructions read. fp32: [panels, in, 16].
Outputs are padded with zeros to whole panels, and bf16 inputs to an even number.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline_kernels.cpu.big_pages import BigPages

PANEL = 16


def pack(weight: Tensor, memory: BigPages) -> Tensor:
    """Packs weight [out, in] (bf16 or fp32) into a new tensor of the same dtype, taken from `memory`."""
    out, features = weight.shape
    panels = -(-out // PANEL)
    paired = weight.dtype == torch.bfloat16
    padded = functional.pad(weight, (0, features % 2 if paired else 0, 0, panels * PANEL - out))
    shape = (panels, PANEL, -1, 2) if paired else (panels, PANEL, -1)
    laid_out = padded.view(shape).transpose(1, 2)
    return memory.empty(tuple(laid_out.shape), weight.dtype).copy_(laid_out)


def unpack_rows(packed: Tensor, ids: Tensor, features: int) -> Tensor:
    """Rows `ids` (int64 [n]) of the weight that `packed` was made from: [n, in]."""
    panel, lane = ids // PANEL, ids % PANEL
    if packed.dtype == torch.bfloat16:
        return packed[panel, :, lane].flatten(1)[:, :features]
    return packed[panel, :, lane]


def pad_bias(bias: Tensor, out: int) -> Tensor:
    """bias [out] as fp32, padded with zeros to whole panels."""
    return functional.pad(bias.float(), (0, -(-out // PANEL) * PANEL - out)).contiguous()
