"""Devices: what each can move, compute and hold, with the source of every figure.

Peaks are dense (no structured sparsity). Memory is what the driver reports, not the name on the box.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ridgeline_contracts.errors import SettingsError, Unsupported

from ridgeline_roofline.catalogue.figure import Evidence, Figure
from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.units import Unit

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. The figures carry units and sources; the properties give plain numbers in SI units."""

    gpu_id: str
    name: str
    memory: Figure
    bandwidth: Figure
    flops: Mapping[Dtype, Figure]
    """Dense peak by arithmetic. What is missing, the device cannot do faster than BF16."""
    multiprocessors: Figure
    l2: Figure
    link: Figure
    """To its neighbours in the fast domain, both directions together, bytes/s a device."""
    domain_gpus: Figure
    """Devices that reach each other over that link."""
    tdp: Figure
    idle_power: Figure
    usd_per_s: Figure
    host_link: Figure
    """To the host's memory, one direction."""
    alternatives: Mapping[str, Figure] = field(default_factory=dict)
    """Other published values of a figure, by the figure's name."""

    @property
    def memory_bytes(self) -> float:
        return self.memory.value

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.bandwidth.value

    @property
    def link_one_way_bytes_per_s(self) -> float:
        return self.link.value / 2

    def flops_per_s(self, dtype: Dtype) -> float:
        """Peak for matrices multiplied in `dtype`; where the device lacks it, the next wider that it has."""
        return self.flops[self.arithmetic(dtype)].value

    def arithmetic(self, dtype: Dtype) -> Dtype:
        """What the device multiplies in when asked for `dtype`. Raises Unsupported where nothing fits."""
        for candidate in (dtype, *_WIDER[dtype]):
            if candidate in self.flops:
                return candidate
        raise Unsupported(f"{self.gpu_id} multiplies in {' '.join(self.flops)}, not in {dtype}")

    def ridge_flop_per_byte(self, dtype: Dtype) -> float:
        """Operations that must be done on each byte read before arithmetic is the limit."""
        return self.flops_per_s(dtype) / self.bandwidth_bytes_per_s

    def figures(self) -> dict[str, Figure]:
        """All figures by name, alternatives last."""
        named = {
            "memory": self.memory,
            "bandwidth": self.bandwidth,
            **{f"flops {dtype}": figure for dtype, figure in self.flops.items()},
            "multiprocessors": self.multiprocessors,
            "l2": self.l2,
            "link": self.link,
            "domain gpus": self.domain_gpus,
            "tdp": self.tdp,
            "idle power": self.idle_power,
            "price": self.usd_per_s,
            "host link": self.host_link,
        }
        return named | dict(self.alternatives)


_WIDER: Final[Mapping[Dtype, tuple[Dtype, ...]]] = {
    Dtype.NVFP4: (Dtype.FP8, Dtype.BF16, Dtype.FP32),
    Dtype.MXFP4: (Dtype.NVFP4, Dtype.FP8, Dtype.BF16, Dtype.FP32),
    Dtype.FP8: (Dtype.BF16, Dtype.FP32),
    Dtype.INT8: (Dtype.BF16, Dtype.FP32),
    Dtype.INT4: (Dtype.BF16, Dtype.FP32),
    Dtype.BF16: (Dtype.FP32,),
    Dtype.FP32: (),
}


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Rows of the table below, in the units that data sheets use."""

    name: str
    memory_mib: float
    tb_per_s: float
    tflops: Mapping[Dtype, float]
    multiprocessors: int
    l2_mb: float
    link_gb_per_s: float
    domain_gpus: int
    tdp_w: float
    usd_per_h: float
    host_gb_per_s: float = 64.0


_HOPPER: Final = {Dtype.FP32: 66.9, Dtype.BF16: 989.4, Dtype.FP8: 1978.9, Dtype.INT8: 1978.9}
_SHEETS: Final[Mapping[str, _Sheet]] = {
    "h100-sxm": _Sheet("H100 SXM5 80 GB", 81_559, 3.35, _HOPPER, 132, 50, 900, 8, 700, 2.5),
    "h100-pcie": _Sheet(
        "H100 PCIe 80 GB",
        81_559,
        2.0,
        {Dtype.FP32: 51.2, Dtype.BF16: 756.0, Dtype.FP8: 1513.0, Dtype.INT8: 1513.0},
        114,
        50,
        600,
        2,
        350,
        2.0,
    ),
    "h200": _Sheet("H200 SXM 141 GB", 143_771, 4.8, _HOPPER, 132, 50, 900, 8, 700, 3.2),
    "b200": _Sheet(
        "B200 (HGX) 180 GB",
        183_359,
        8.0,
        {Dtype.FP32: 75.0, Dtype.BF16: 2250.0, Dtype.FP8: 4500.0, Dtype.INT8: 4500.0, Dtype.NVFP4: 9000.0},
        148,
        126,
        1800,
        8,
        1000,
        5.0,
        128.0,
    ),
    "gb200": _Sheet(
        "GB200 NVL72, one GPU of 72",
        189_471,
        8.0,
        {Dtype.FP32: 80.0, Dtype.BF16: 2500.0, Dtype.FP8: 5000.0, Dtype.INT8: 5000.0, Dtype.NVFP4: 10000.0},
        152,
        126,
        1800,
        72,
        1200,
        6.0,
        450.0,
    ),
}
_ALTERNATIVES: Final[Mapping[str, Mapping[str, Figure]]] = {
    "b200": {
        "bandwidth by bus and clock": Figure(
            7.67e12, Unit.BYTES_PER_S, "bus width times memory clock", Evidence.DERIVED
        )
    }
}
_IDLE_SHARE: Final = 0.12
GPU_IDS: Final = tuple(_SHEETS)
THIS_MACHINE: Final = "this"


def gpu_named(gpu_id: str) -> Gpu:
    """Raises SettingsError that lists the ids. `this` comes from a calibration, not from here."""
    sheet = _SHEETS.get(gpu_id)
    if sheet is None:
        known = " ".join((*GPU_IDS, THIS_MACHINE))
        raise SettingsError(f"gpu={gpu_id!r} is not in the catalogue: give one of {known}", param="gpu")
    return _gpu(gpu_id, sheet)


def _gpu(gpu_id: str, sheet: _Sheet) -> Gpu:
    vendor = f"NVIDIA data sheet, {sheet.name}"
    return Gpu(
        gpu_id=gpu_id,
        name=sheet.name,
        memory=Figure(sheet.memory_mib * _MIB, Unit.BYTES, "nvidia-smi memory.total", Evidence.DRIVER),
        bandwidth=Figure(sheet.tb_per_s * 1e12, Unit.BYTES_PER_S, vendor),
        flops={
            dtype: Figure(value * 1e12, Unit.FLOP_PER_S, f"{vendor}, dense")
            for dtype, value in sheet.tflops.items()
        },
        multiprocessors=Figure(sheet.multiprocessors, Unit.COUNT, vendor),
        l2=Figure(sheet.l2_mb * 1e6, Unit.BYTES, vendor),
        link=Figure(sheet.link_gb_per_s * 1e9, Unit.BYTES_PER_S, f"{vendor}, both directions"),
        domain_gpus=Figure(sheet.domain_gpus, Unit.COUNT, vendor),
        tdp=Figure(sheet.tdp_w, Unit.WATTS, vendor),
        idle_power=Figure(
            sheet.tdp_w * _IDLE_SHARE, Unit.WATTS, f"{_IDLE_SHARE:.0%} of the limit", Evidence.ASSUMED
        ),
        usd_per_s=Figure(
            sheet.usd_per_h / 3600,
            Unit.USD_PER_S,
            "order of a rented GPU hour; give your own",
            Evidence.ASSUMED,
        ),
        host_link=Figure(sheet.host_gb_per_s * 1e9, Unit.BYTES_PER_S, f"{vendor}, one direction"),
        alternatives=_ALTERNATIVES.get(gpu_id, {}),
    )
