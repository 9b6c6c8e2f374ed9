"""What one GPU of a layout holds: its weights, a sequence's KV with its copies, and how many sequences fit.

weights    layers' matrices / (tp x pp), experts / (their shards x pp), tables in BF16 or wider / tp
sequence   KV / heads that divide over tp (copies once they run out) / pp; it lives on one DP rank
sequences  dp x floor(what is left of a GPU / a sequence's share of it)
"""

from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.catalogue.model_spec import ModelSpec
from ridgeline_roofline.step.layout import Layout, kv_share


def weight_bytes(model: ModelSpec, layout: Layout, formats: Formats) -> float:
    """On the fullest GPU. Embedding, output matrix, norms and biases are never narrower than BF16."""
    element = formats.weights.bytes_per_element
    experts = sum(count * moe.experts * moe.expert_parameters for count, moe in model.moe_layers())
    layers = experts / layout.expert_shards + (model.layer_matrix_parameters - experts) / layout.tp
    tables = (model.parameters - model.layer_matrix_parameters) / layout.tp
    return layers / layout.pp * element + tables * max(element, Dtype.BF16.bytes_per_element)


def sequence_bytes(model: ModelSpec, layout: Layout, formats: Formats, context_tokens: float) -> float:
    """KV and states of one sequence on one GPU of its DP rank."""
    tokens = sum(
        count * mixer.kv_elements_per_token * mixer.seen_tokens(context_tokens) * kv_share(mixer, layout.tp)
        for count, mixer in model.mixers()
    )
    states = model.kv_bytes(0, formats.kv) / layout.tp
    return (tokens * formats.kv.bytes_per_element + states) / layout.pp


def held_sequences(
    model: ModelSpec, gpu: Gpu, layout: Layout, formats: Formats, context_tokens: float, *, usable: float
) -> int:
    """In the whole layout; `usable`: share of a GPU's memory for weights and KV. 0 where weights leave no room."""
    left = gpu.memory_bytes * usable - weight_bytes(model, layout, formats)
    return layout.dp * max(0, int(left / sequence_bytes(model, layout, formats, context_tokens)))
