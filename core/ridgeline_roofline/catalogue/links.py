"""Links between devices and nodes: one-way bandwidth and the fixed cost of a message."""

from dataclasses import dataclass
from typing import Final

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.figure import Evidence, Figure
from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.units import Unit, parse_quantity


@dataclass(frozen=True, slots=True)
class Link:
    """One direction, one device's share."""

    link_id: str
    bandwidth: Figure
    latency: Figure
    """One message of no size, between two devices, in s."""

    @property
    def bytes_per_s(self) -> float:
        return self.bandwidth.value

    @property
    def latency_s(self) -> float:
        return self.latency.value


_MEASURED_KIND: Final = "order of published microbenchmarks; a calibration replaces it"
_LINKS: Final = {
    # id: (Gb/s one way, latency us, source)
    "ib-ndr": (400.0, 3.0, "InfiniBand NDR port, line rate"),
    "ib-hdr": (200.0, 3.0, "InfiniBand HDR port, line rate"),
    "ib-xdr": (800.0, 3.0, "InfiniBand XDR port, line rate"),
    "roce-400": (400.0, 5.0, "400 Gb/s Ethernet with RoCE v2, line rate"),
    "efa-p5": (400.0, 12.0, "EFA on p5, 3,200 Gb/s shared by 8 GPUs"),
    "eth-100": (100.0, 25.0, "100 Gb/s Ethernet with TCP, line rate"),
    "eth-25": (25.0, 30.0, "25 Gb/s Ethernet with TCP, line rate"),
    "pcie4": (256.0, 2.0, "PCIe 4.0 x16, one way"),
    "pcie5": (512.0, 2.0, "PCIe 5.0 x16, one way"),
}
LINK_IDS: Final = tuple(_LINKS)
_FAST_LATENCY_S: Final = 2e-6
_OTHER_LATENCY_S: Final = 5e-6


def link_named(text: str) -> Link:
    """A link by its id, or by a rate such as `400Gb/s`. Raises SettingsError that lists the ids."""
    row = _LINKS.get(text)
    if row is not None:
        gigabits, microseconds, source = row
        return Link(
            text,
            Figure(gigabits * 1e9 / 8, Unit.BYTES_PER_S, source),
            Figure(microseconds * 1e-6, Unit.SECONDS, _MEASURED_KIND, Evidence.ASSUMED),
        )
    try:
        rate = parse_quantity(text, Unit.BYTES_PER_S, name="link")
    except SettingsError:
        known = " ".join(LINK_IDS)
        raise SettingsError(
            f"link={text!r} is neither a link nor a rate: give one of {known}, or for example 400Gb/s",
            param="link",
        ) from None
    if rate <= 0:
        raise SettingsError(f"link={text!r}: give a rate above 0, for example 400Gb/s", param="link")
    return Link(
        text,
        Figure(rate, Unit.BYTES_PER_S, "given"),
        Figure(_OTHER_LATENCY_S, Unit.SECONDS, _MEASURED_KIND, Evidence.ASSUMED),
    )


def fast_link(gpu: Gpu) -> Link:
    """The link inside a GPU's fast domain (NVLink)."""
    return Link(
        f"{gpu.gpu_id} fast domain",
        Figure(gpu.link_one_way_bytes_per_s, Unit.BYTES_PER_S, gpu.link.source, gpu.link.evidence),
        Figure(_FAST_LATENCY_S, Unit.SECONDS, _MEASURED_KIND, Evidence.ASSUMED),
    )
