"""The analytic floor of a step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.step import StepModel, StepShape
from ridgeline_roofline.shapes import MachineShape, model_shape
from ridgeline_roofline.step_model import AnalyticStepModel, linearised

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
GPU = MachineShape("80 GB, 3.35 TB/s, 990 TFLOP/s", 80 * 10**9, 3.35e12, 990e12, 0.5)
MODEL = AnalyticStepModel(model_shape(LLAMA_8B), GPU, weight_bytes_per_parameter=2, kv_token_bytes=131_072)


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


def test_one_decode_row_takes_the_time_to_read_the_weights() -> None:
    # 7.50 G parameters (no input embedding) of 2 bytes at 3.35 TB/s, and half a millisecond.
    assert MODEL.predict_ms(StepShape(1, 1)) == pytest.approx(7.50e9 * 2 / 3.35e12 * 1e3 + 0.5, rel=0.01)


def test_a_long_prefill_takes_the_time_of_its_arithmetic() -> None:
    tokens = 8_192
    shape = StepShape(prefill_tokens=tokens, prefill_context_tokens=tokens**2 // 2)
    linear = 2 * 6.98e9 * tokens / 990e12
    attention = 4 * 32 * 4096 * tokens**2 / 2 / 990e12
    assert MODEL.predict_ms(shape) == pytest.approx((linear + attention) * 1e3 + 0.5, rel=0.02)


def test_context_costs_its_bytes() -> None:
    more = MODEL.predict_ms(StepShape(64, 200_000)) - MODEL.predict_ms(StepShape(64, 100_000))
    assert more == pytest.approx(100_000 * 131_072 / 3.35e12 * 1e3, rel=0.001)


def test_parts_add_up_and_say_where_the_time_goes() -> None:
    shape = StepShape(32, 30_000, 256, 100_000)
    parts = MODEL.parts(shape)
    assert [part.name for part in parts] == ["linear layers", "logits", "attention", "overhead"]
    assert sum(part.duration_ms for part in parts) == MODEL.predict_ms(shape)
    assert parts[0].derivation.startswith("linear layers: 13958.6 MB and ")
    assert MODEL.predict_ms(StepShape()) == 0.5


def test_half_the_efficiency_takes_twice_the_time_but_for_the_overhead() -> None:
    shape = StepShape(32, 30_000)
    slow = replace(MODEL, efficiency=0.5)
    assert slow.predict_ms(shape) - 0.5 == pytest.approx(2 * (MODEL.predict_ms(shape) - 0.5))


def _predict(rows: int, context: int, chunk: int, before: int) -> float:
    return MODEL.predict_ms(StepShape(rows, context, chunk, chunk * before + chunk * chunk // 2))


@given(
    st.integers(0, 256),
    st.integers(0, 10**6),
    st.integers(0, 8_192),
    st.integers(0, 10**5),
    st.integers(0, 3),
)
def test_more_work_never_takes_less_time(
    rows: int, context: int, chunk: int, before: int, grown: int
) -> None:
    work = [rows, context, chunk, before]
    more = [count + (1 + count // 10 if index == grown else 0) for index, count in enumerate(work)]
    assert _predict(*more) >= _predict(*work) - 1e-9


def test_linear_coefficients_agree_at_a_typical_step_and_are_no_less_than_zero() -> None:
    model: StepModel = linearised(MODEL, decode_rows=32, context_tokens=32_000, chunk_tokens=512)
    for shape in (StepShape(32, 32_000), StepShape(32, 32_000, 512), StepShape(1, 1)):
        assert model.predict_ms(shape) == pytest.approx(MODEL.predict_ms(shape), rel=0.01)
    found = linearised(MODEL, decode_rows=1, context_tokens=1, chunk_tokens=1)
    assert min(found.base_ms, found.per_row_ms, found.per_context_token_ms) >= 0
