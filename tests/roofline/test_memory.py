"""The memory ledger: adds up, sizes the KV pool, refuses what cannot work."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind
from ridgeline_roofline.memory import MemoryFacts, activation_bytes, memory_ledger, sampler_bytes
from ridgeline_roofline.shapes import ModelShape

MB = 10**6
MODEL = ModelShape(30, 576, 1536, 9, 3, 64, 49152, tied_embeddings=True)
GROUP = KVGroup(GroupId(0), tuple(range(30)), KVKind.FULL, 16, 3, 64, KVDtype.BF16)
FACTS = MemoryFacts(
    limit_bytes=4_000 * MB,
    weights_bytes=269 * MB,
    runtime_bytes=600 * MB,
    model=MODEL,
    groups=(GROUP,),
    activation_bytes_per_element=4,
    max_step_tokens=2_048,
    max_batch=32,
    max_context_tokens=8_192,
)


def test_the_pool_gets_what_is_left() -> None:
    ledger = memory_ledger(FACTS, min_kv_tokens=8_192)
    fixed = 269 * MB + 600 * MB + activation_bytes(FACTS) + sampler_bytes(FACTS) + 200 * MB
    assert ledger.kv_blocks == {0: (FACTS.limit_bytes - fixed) // GROUP.block_bytes}
    assert ledger.kv_tokens == ledger.kv_blocks[GroupId(0)] * 16
    assert ledger.limit_bytes - ledger.used_bytes < GROUP.block_bytes


def test_a_pool_is_not_larger_than_the_batch_can_fill() -> None:
    ledger = memory_ledger(replace(FACTS, max_batch=2), min_kv_tokens=1)
    assert ledger.kv_tokens == 2 * 8_192
    assert "all that a full batch can fill" in ledger.text()


def test_a_set_limit_caps_the_pool() -> None:
    ledger = memory_ledger(replace(FACTS, kv_limit_bytes=100 * MB), min_kv_tokens=1)
    assert {line.name: line.size_bytes for line in ledger.lines}["KV pool"] <= 100 * MB
    assert "the set limit" in ledger.text()


def test_every_group_holds_the_same_tokens() -> None:
    other = replace(GROUP, group=GroupId(1), block_tokens=64, heads=1)
    ledger = memory_ledger(replace(FACTS, groups=(GROUP, other)), min_kv_tokens=1)
    assert abs(ledger.kv_blocks[GroupId(0)] * 16 - ledger.kv_blocks[GroupId(1)] * 64) < 64
    assert ledger.kv_tokens == min(ledger.kv_blocks[GroupId(0)] * 16, ledger.kv_blocks[GroupId(1)] * 64)


def test_the_ledger_is_printed_a_line_an_entry() -> None:
    text = memory_ledger(FACTS, min_kv_tokens=1).text()
    names = [line.split()[0] for line in text.splitlines()]
    lines = ["runtime", "KV", "weights", "activations", "sampling", "margin"]
    assert names == [*lines, "limit", "peak", "sequences"]
    assert "135 M parameters" in text or "134 M parameters" in text


def test_lines_are_guesses_until_they_are_measured() -> None:
    guessed = memory_ledger(FACTS, min_kv_tokens=1)
    measured = guessed.with_measured({"weights": 300 * MB})
    said = {line.split()[0]: line for line in measured.text().splitlines()}
    assert "300.0 MB  measured" in said["weights"]
    assert "guessed" in said["runtime"]
    assert measured.used_bytes - guessed.used_bytes == 31 * MB


def test_the_peak_is_the_full_batch_or_the_loading_whichever_is_higher() -> None:
    ledger = memory_ledger(replace(FACTS, loading_bytes=400 * MB, kv_limit_bytes=30 * MB), min_kv_tokens=1)
    assert ledger.peak_bytes == (269 + 600 + 400) * MB
    full = memory_ledger(replace(FACTS, loading_bytes=400 * MB), min_kv_tokens=1)
    assert full.peak_bytes == full.used_bytes - 200 * MB


@pytest.mark.parametrize(
    ("changes", "at_the_limit", "typical"),
    [
        pytest.param(
            {"kv_limit_bytes": 1_000 * MB}, 5, 32, id="the-pool-bounds-long-ones-and-the-batch-short-ones"
        ),
        pytest.param({"kv_limit_bytes": 100 * MB}, 0, 4, id="not-one-at-the-limit"),
        pytest.param({"max_context_tokens": 512}, 32, 32, id="a-context-below-the-typical-length"),
    ],
)
def test_sequences_that_fit_are_counted_as_a_ceiling(
    changes: dict[str, int], at_the_limit: int, typical: int
) -> None:
    facts = replace(FACTS, **changes)
    ledger = memory_ledger(facts, min_kv_tokens=1)
    assert ledger.sequences(facts.max_context_tokens) == at_the_limit
    assert ledger.sequences(1024) == (typical if facts.max_context_tokens >= 1024 else 16)
    last = ledger.text().splitlines()[-1]
    assert last.startswith(f"sequences at once, at most: {at_the_limit} of {facts.max_context_tokens} tokens")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"limit_bytes": 1_000 * MB}, r"8192 tokens of KV need 189 MB.*give the worker", id="no-memory"
        ),
        pytest.param({"weights_bytes": 9_000 * MB}, r"and 0 MB are left", id="weights-alone-are-too-large"),
        pytest.param(
            {"kv_limit_bytes": 10 * MB}, r"and 10 MB are left.*allow the KV pool", id="limit-set-too-low"
        ),
        pytest.param({"max_batch": 40_000}, r"smaller max_batch", id="batch-too-large"),
    ],
)
def test_a_start_that_cannot_fit_is_refused_with_the_ledger(changes: dict[str, int], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        memory_ledger(replace(FACTS, **changes), min_kv_tokens=8_192)
    assert "activations" in refused.value.message
    assert refused.value.param == "memory"


@given(
    st.integers(800, 100_000),
    st.integers(1, 128),
    st.integers(16, 8_192),
    st.one_of(st.none(), st.integers(1, 9_000)),
)
def test_the_lines_never_exceed_the_limit(limit_mb: int, batch: int, step: int, kv_mb: int | None) -> None:
    facts = replace(
        FACTS,
        limit_bytes=limit_mb * MB,
        max_batch=batch,
        max_step_tokens=step,
        kv_limit_bytes=None if kv_mb is None else kv_mb * MB,
    )
    try:
        ledger = memory_ledger(facts, min_kv_tokens=16)
    except SettingsError:
        assume(False)
        return
    assert ledger.used_bytes <= ledger.limit_bytes
    assert ledger.kv_tokens >= 16
