"""A modest CPU as a device: what a worker without a calibration assumes of the machine that it starts on."""

from typing import Final

from ridgeline_roofline.catalogue.figure import Evidence, Figure
from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.units import Unit

_SOURCE: Final = "order of a server core with AVX2; `ridgeline calibrate` measures it"
_BYTES_PER_S: Final = 8e9
_FLOPS_PER_S: Final = 1e11


def modest_cpu(threads: int) -> Gpu:
    """Rates grow with the threads; nothing is known of power, price or links."""

    def guess(value: float, unit: Unit) -> Figure:
        return Figure(value, unit, _SOURCE, Evidence.ASSUMED)

    nothing = guess(0.0, Unit.WATTS)
    return Gpu(
        gpu_id="cpu",
        name=f"a modest CPU, {threads} threads",
        memory=guess(0.0, Unit.BYTES),
        bandwidth=guess(_BYTES_PER_S * threads, Unit.BYTES_PER_S),
        flops={dtype: guess(_FLOPS_PER_S * threads, Unit.FLOP_PER_S) for dtype in (Dtype.BF16, Dtype.FP32)},
        multiprocessors=guess(threads, Unit.COUNT),
        l2=guess(1e6 * threads, Unit.BYTES),
        link=guess(2 * _BYTES_PER_S, Unit.BYTES_PER_S),
        domain_gpus=guess(1, Unit.COUNT),
        tdp=nothing,
        idle_power=nothing,
        usd_per_s=guess(0.0, Unit.USD_PER_S),
        host_link=guess(_BYTES_PER_S, Unit.BYTES_PER_S),
    )
