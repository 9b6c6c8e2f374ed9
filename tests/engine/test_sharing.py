"""What shared blocks save on a published trace, and the workload where the saving vanishes."""

import pytest
from ridgeline_testing.scenarios.sharing import measure, workloads

REQUESTS = 16
"""The first of the trace: all at once, or 3 s later."""


def _figures(name: str, *, requests: int = REQUESTS) -> dict[str, float]:
    return measure(workloads()[name][:requests])


def test_a_common_system_prompt_saves_its_share() -> None:
    # 16 prompts of 238,968 tokens in all begin with the same 512: of its 15 repetitions all are hits.
    figures = _figures("as it is")
    assert figures["prompt_tokens_hit_ratio"] == pytest.approx(15 * 512 / 238_968, rel=1e-3)
    assert 0.02 < figures["blocks_saved_ratio"] < 0.05


def test_choices_of_one_request_share_its_prompt() -> None:
    # Four tables name a prompt's blocks, one holds them: three of four are saved, but for the outputs' own.
    figures = _figures("four choices of each answer", requests=6)
    assert 0.65 < figures["blocks_saved_ratio"] < 0.77
    # Each fork computes the last token of the prompt alone.
    assert figures["prompt_tokens_hit_ratio"] > 0.74


def test_tenants_that_share_nothing_save_nothing() -> None:
    figures = _figures("a tenant of its own for each")
    assert figures["blocks_saved_ratio"] == 0
    assert figures["prompt_tokens_hit_ratio"] == 0
