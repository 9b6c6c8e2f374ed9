"""The packed layout of weights of 8 or 4 bits; `csrc/quant.h` reads it.

uint8 [panels, groups, head + 2 * bits * group]: for each panel of 16 outputs and group of input features the 16 scales
in bf16, with int4 the 16 offsets too, then words of 32 bits, 16 outputs side by side. With b bits a word holds 16 / b
pairs of neighbouring input features: place p of its low half is feature 2 p of them, of its high half feature 2 p + 1.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline_kernels.cpu.big_pages import BigPages
from ridgeline_kernels.cpu.packing import PANEL
from ridgeline_kernels.cpu.quantised import QuantFormat, Quantised

_PANEL_BYTES = PANEL * 2
"""A number in bf16 for each output of a panel."""
_WORD_BYTES = 4


def packed_shape(out: int, features: int, quant: QuantFormat) -> tuple[int, int, int]:
    groups = quant.padded(features) // quant.group
    return -(-out // PANEL), groups, _head_bytes(quant) + PANEL * quant.group * quant.bits // 8


def empty_packed(out: int, features: int, quant: QuantFormat, memory: BigPages) -> Tensor:
    return memory.empty(packed_shape(out, features, quant), torch.uint8)


def pack_panels(found: Quantised, quant: QuantFormat, to: Tensor) -> None:
    """Writes outputs, filled up to whole panels with zeros, to panels `to` of a packed tensor."""
    panels, groups, _ = to.shape
    missing = panels * PANEL - len(found.codes)
    codes = functional.pad(found.codes, (0, 0, 0, 0, 0, missing))
    heads = [found.scales] if found.offsets is None else [found.scales, found.offsets]
    for place, numbers in enumerate(heads):
        padded = functional.pad(numbers, (0, 0, 0, missing)).view(panels, PANEL, groups)
        begin = place * _PANEL_BYTES
        to[:, :, begin : begin + _PANEL_BYTES] = padded.transpose(1, 2).contiguous().view(torch.uint8)
    words = codes.view(panels, PANEL, groups, -1, 16 // quant.bits, 2).transpose(-1, -2)
    stored = words.reshape(panels, PANEL, groups, -1).view(torch.uint8)
    if quant.bits == 4:
        stored = (stored[..., 0::2] & 0xF) | (stored[..., 1::2] << 4)
    words = stored.reshape(panels, PANEL, groups, -1, _WORD_BYTES).permute(0, 2, 3, 1, 4)
    to[:, :, _head_bytes(quant) :] = words.reshape(panels, groups, -1)


def unpack_rows(packed: Tensor, ids: Tensor, features: int, quant: QuantFormat) -> Tensor:
    """Rows `ids` (int64 [n]) of the weight that the codes stand for: fp32 [n, features]."""
    chosen, lane = packed[ids // PANEL], ids % PANEL
    groups, rows = packed.shape[1], torch.arange(len(ids))
    head = _head_bytes(quant)
    numbers = chosen[:, :, :head].contiguous().view(torch.bfloat16)
    scales = numbers[rows, :, lane]
    offsets = numbers[rows, :, lane + PANEL] if quant.has_offsets else None
    words = chosen[:, :, head:].reshape(len(ids), groups, -1, PANEL, _WORD_BYTES)
    stored = words[rows, :, :, lane].flatten(2).view(torch.int8)
    if quant.bits == 4:
        stored = torch.stack((stored << 4 >> 4, stored >> 4), dim=-1).flatten(2)
    words = stored.view(len(ids), groups, -1, 2, 16 // quant.bits).transpose(-1, -2)
    return Quantised(words.reshape(len(ids), groups, -1), scales, offsets, features).weight()


def _head_bytes(quant: QuantFormat) -> int:
    return _PANEL_BYTES * (2 if quant.has_offsets else 1)
