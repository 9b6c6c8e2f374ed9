"""`ridgeline plan catalogue`: every figure with its unit, source and kind of evidence."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table as RichTable
from ridgeline_roofline.catalogue.figure import Figure
from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.catalogue.gpus import GPU_IDS, THIS_MACHINE, gpu_named
from ridgeline_roofline.catalogue.links import LINK_IDS, link_named
from ridgeline_roofline.catalogue.model_spec import ModelSpec
from ridgeline_roofline.catalogue.models import MODEL_IDS, model_named
from ridgeline_roofline.units import Unit, show

from ridgeline_cli.plan.rendering import console


def catalogue_json() -> dict[str, Any]:
    """All of it in SI base units."""
    return {
        "gpus": {gpu_id: _figures(gpu_named(gpu_id).figures()) for gpu_id in GPU_IDS},
        "links": {link_id: _figures(_link_figures(link_id)) for link_id in LINK_IDS},
        "dtypes": {dtype.value: {"bits_per_element": dtype.bits_per_element} for dtype in Dtype},
        "models": {model_id: _model(model_named(model_id)) for model_id in MODEL_IDS},
    }


def print_catalogue() -> None:
    out = console()
    table = RichTable("gpu or link", "figure", "value", "evidence", "source", box=box.SIMPLE_HEAD)
    for gpu_id in GPU_IDS:
        _add(table, gpu_id, gpu_named(gpu_id).figures())
    for link_id in LINK_IDS:
        _add(table, link_id, _link_figures(link_id))
    out.print(table)
    out.print(f"`{THIS_MACHINE}` is this machine, once `ridgeline calibrate` has measured it.")
    models = RichTable(
        "model", "layers", "parameters", "a token multiplies with", "KV bytes a token (bf16)", "published in",
        box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for model_id in MODEL_IDS:
        found = _model(model_named(model_id))
        models.add_row(
            model_id,
            str(found["layers"]),
            f"{found['parameters'] / 1e9:.3f} G",
            f"{found['active_parameters'] / 1e9:.3f} G",
            f"{found['kv_bytes_per_token']:,.0f}",
            found["weights"],
        )
    out.print(models)
    formats = RichTable("dtype", "bits an element, scales included", box=box.SIMPLE_HEAD)
    for dtype in Dtype:
        formats.add_row(dtype.value, f"{dtype.bits_per_element:g}")
    out.print(formats)


def _add(table: RichTable, owner: str, figures: Mapping[str, Figure]) -> None:
    for name, figure in figures.items():
        table.add_row(owner, name, show(figure.value, figure.unit), figure.evidence.value, figure.source)
        owner = ""
    table.add_section()


def _figures(figures: Mapping[str, Figure]) -> dict[str, Any]:
    return {
        name: {
            "value": figure.value,
            "unit": figure.unit.value,
            "evidence": figure.evidence.value,
            "source": figure.source,
        }
        for name, figure in figures.items()
    }


def _link_figures(link_id: str) -> dict[str, Figure]:
    link = link_named(link_id)
    return {"bandwidth one way": link.bandwidth, "latency": link.latency}


def _model(spec: ModelSpec) -> dict[str, Any]:
    return {
        "layers": spec.layers,
        "parameters": spec.parameters,
        "active_parameters": spec.active_parameters,
        "matrix_parameters": spec.matrix_parameters,
        "kv_bytes_per_token": spec.kv_elements_per_token * Dtype.BF16.bytes_per_element,
        "context_tokens": spec.context_tokens,
        "weights": spec.native_weights.value,
        "kv_unit": Unit.BYTES_PER_TOKEN.value,
    }
