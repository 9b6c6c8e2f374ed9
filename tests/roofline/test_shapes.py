"""A model's shape from its config.json."""

import pytest
from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.shapes import model_shape

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def test_the_shape_of_a_known_model_has_its_parameters() -> None:
    shape = model_shape(LLAMA_8B)
    assert shape.parameters == pytest.approx(8.03e9, rel=0.001)
    assert (shape.head_dim, shape.kv_heads) == (128, 8)
    tied = model_shape({**LLAMA_8B, "tie_word_embeddings": True})
    assert shape.parameters - tied.parameters == 4096 * 128256


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({**LLAMA_8B, "hidden_size": None}, "hidden_size .* None", id="missing"),
        pytest.param({**LLAMA_8B, "num_hidden_layers": 0}, "num_hidden_layers .* 0", id="zero"),
        pytest.param({**LLAMA_8B, "vocab_size": "x"}, "vocab_size .* 'x'", id="not-a-number"),
    ],
)
def test_a_config_that_lacks_a_number_is_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        model_shape(config)
