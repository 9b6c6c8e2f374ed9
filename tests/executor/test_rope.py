"""The table of rotations against transformers' own."""

from typing import Any

import numpy as np
import pytest
import torch
from ridgeline_engine.executors.config_fields import ConfigFields
from ridgeline_engine.executors.rope import cos_sin_table, read_rope
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"rope_theta": 10_000.0}, id="plain"),
        pytest.param({"rope_theta": 1e5}, id="other-base"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, id="new-field-names"),
        pytest.param({"rope_theta": 5e5, "rope_scaling": LLAMA3}, id="llama3"),
        pytest.param({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}}, id="linear"),
        pytest.param({"rope_theta": 1e4, "rope_scaling": None}, id="null-scaling"),
    ],
)
def test_the_table_equals_transformers(config: dict[str, Any]) -> None:
    positions = 4096
    table = cos_sin_table(read_rope(ConfigFields(config)), head_dim=64, context_tokens=positions)
    module = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=8192, **config
        )
    )
    cos, sin = module(torch.zeros(1, dtype=torch.float32), torch.arange(positions).unsqueeze(0))
    assert table.dtype == np.float32
    # An inverse frequency may differ in its last place, which a late position multiplies.
    np.testing.assert_allclose(table[:, :32], cos[0, :, :32].numpy(), atol=6e-4)
    np.testing.assert_allclose(table[:, 32:], sin[0, :, :32].numpy(), atol=6e-4)
