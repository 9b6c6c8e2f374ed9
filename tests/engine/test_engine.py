"""The engine's promises to whoever submits: what it refuses, what it emits, how a request ends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ridgeline_contracts.errors import InvalidRequest, Overloaded, SettingsError, Unsupported
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.kv import KVKind
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import MAX_CHOICES
from ridgeline_engine.kv_events import KVSnapshot
from ridgeline_engine.request import FinishReason, PriorityClass, Request, RequestKey
from ridgeline_testing.fake_executor import EOS_TOKEN_ID, VOCAB_TOKENS, expected_output, kv_group

MakeBench = Callable[..., Any]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPT = tuple((5 * index) % 40 for index in range(37))


def _prompt_that_ends_early(sampling: SamplingParams, *, least: int, most: int) -> tuple[int, ...]:
    """A prompt whose output, with end tokens counting, has `least` to `most` tokens and ends with one."""
    for first in range(VOCAB_TOKENS):
        for second in range(VOCAB_TOKENS):
            output = expected_output((first, second), sampling)
            if least <= len(output) <= most and output[-1] == EOS_TOKEN_ID:
                return (first, second)
    raise AssertionError("no such prompt")


@pytest.mark.parametrize(
    ("prompt", "sampling", "changes", "error", "message"),
    [
        pytest.param((), GREEDY, {}, InvalidRequest, "prompt has no tokens", id="empty-prompt"),
        pytest.param((1, 40), GREEDY, {}, InvalidRequest, "token id 40 at position 1", id="id-too-large"),
        pytest.param((-1,), GREEDY, {}, InvalidRequest, "token id -1 at position 0", id="id-negative"),
        pytest.param(
            (1,) * 512, GREEDY, {}, InvalidRequest, "512 tokens; the context is 512", id="past-the-context"
        ),
        pytest.param((1,), replace(GREEDY, top_p=0.0), {}, InvalidRequest, "top_p=0", id="bad-sampling"),
        pytest.param(
            (1,), replace(GREEDY, stop_token_ids=(99,)), {}, InvalidRequest, "token 99", id="stop-id-unknown"
        ),
        pytest.param((1,), GREEDY, {"choices": 0}, InvalidRequest, "n=0", id="no-choices"),
        pytest.param((1,), GREEDY, {"choices": 999}, Unsupported, "n=999", id="too-many-choices"),
        pytest.param((1,), GREEDY, {"weight": 0.0}, InvalidRequest, "weight=0", id="no-weight"),
        pytest.param(
            (1,), GREEDY, {"emitted": ((1,), (1,))}, InvalidRequest, "2 choices", id="emitted-of-whom"
        ),
        pytest.param(
            (1,), GREEDY, {"emitted": ((77,),)}, InvalidRequest, "emitted has token id 77", id="emitted-id"
        ),
        pytest.param((1,), GREEDY, {"adapter_revision": "x"}, Unsupported, "adapters", id="adapter"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_leaves_no_trace(
    bench: Any, prompt: Any, sampling: SamplingParams, changes: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bench.submit("bad", prompt, sampling, **changes)
    assert not bench.engine.has_work
    bench.engine.check()


def test_a_prompt_that_can_never_fit_in_the_pool_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench(blocks=2)
    with pytest.raises(InvalidRequest, match=r"33 tokens can never fit.*holds 32"):
        bench.submit("a", (1,) * 33, GREEDY)
    key = bench.submit("b", (1,) * 32, GREEDY)
    bench.run()
    # What fits is served, clipped to the pool as it would be to the context.
    assert len(bench.output(key)) == 1


def test_a_live_key_is_refused_and_a_finished_one_may_come_again(bench: Any) -> None:
    bench.submit("a", PROMPT, GREEDY)
    with pytest.raises(InvalidRequest, match="request a attempt 0 is already running"):
        bench.submit("a", PROMPT, GREEDY)
    bench.run()
    bench.submit("a", PROMPT, GREEDY)


def test_a_full_queue_and_a_drain_refuse_with_a_time_to_come_again(make_bench: MakeBench) -> None:
    bench = make_bench({"max_waiting": 2})
    bench.submit("a", PROMPT, GREEDY, choices=2)
    with pytest.raises(Overloaded, match="2 sequences wait") as full:
        bench.submit("b", PROMPT, GREEDY)
    assert full.value.retry_after_ms
    bench.engine.drain()
    assert bench.engine.load().draining
    bench.step()
    with pytest.raises(Overloaded, match="draining"):
        bench.submit("b", PROMPT, GREEDY)
    bench.run()
    assert bench.engine.metrics().finished["length"] == 2


def test_an_idle_engine_launches_nothing(bench: Any) -> None:
    assert bench.engine.step() == []
    assert not bench.engine.launch()
    assert bench.executor.plans == []


def test_max_tokens_is_clipped_to_the_context_that_is_left(make_bench: MakeBench) -> None:
    bench = make_bench(max_context_tokens=40)
    key = bench.submit("a", PROMPT, replace(GREEDY, max_tokens=100))
    bench.run()
    assert len(bench.output(key)) == 3
    assert bench.finish(key).reason is FinishReason.LENGTH


def test_an_end_token_is_emitted_counted_and_ends_the_choice(bench: Any) -> None:
    sampling = SamplingParams(max_tokens=30, temperature=0.0)
    prompt = _prompt_that_ends_early(sampling, least=3, most=12)
    key = bench.submit("a", prompt, sampling)
    bench.run()
    output = bench.output(key)
    assert output == expected_output(prompt, sampling)
    assert output[-1] == EOS_TOKEN_ID
    assert bench.finish(key).reason is FinishReason.STOP
    assert bench.finish(key).counts.emitted_tokens == len(output)


def test_min_tokens_keeps_end_tokens_away_and_ignore_eos_for_good(bench: Any) -> None:
    sampling = SamplingParams(max_tokens=30, temperature=0.0)
    prompt = _prompt_that_ends_early(sampling, least=1, most=4)
    late = bench.submit("late", prompt, replace(sampling, min_tokens=6))
    never = bench.submit("never", prompt, replace(sampling, ignore_eos=True))
    bench.run()
    assert EOS_TOKEN_ID not in bench.output(late)[:6]
    assert len(bench.output(late)) > 6
    assert len(bench.output(never)) == 30
    assert EOS_TOKEN_ID in bench.output(never)


def test_a_stop_token_ends_the_choice_even_under_ignore_eos(bench: Any) -> None:
    whole = expected_output(PROMPT, GREEDY)
    key = bench.submit("a", PROMPT, replace(GREEDY, stop_token_ids=(whole[3],)))
    bench.run()
    assert bench.output(key) == whole[: whole.index(whole[3]) + 1]
    assert bench.finish(key).reason is FinishReason.STOP


def test_a_retry_goes_on_at_its_offset_and_with_its_random_numbers(bench: Any) -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, ignore_eos=True, seed=3, presence_penalty=1.0)
    whole = expected_output(PROMPT, sampling, seed=3)
    key = bench.submit("a", PROMPT, sampling, emitted=(whole[:7],))
    bench.run()
    assert bench.output(key) == whole[7:]
    assert bench.rows[0].first_offset == 7
    counts = bench.finish(key).counts
    assert (counts.prompt_tokens, counts.emitted_tokens) == (len(PROMPT), 13)


@pytest.mark.parametrize(
    ("emitted", "sampling", "reason"),
    [
        pytest.param((5, 6), replace(GREEDY, max_tokens=2), FinishReason.LENGTH, id="its-length-was-reached"),
        pytest.param(
            (5, EOS_TOKEN_ID),
            replace(GREEDY, ignore_eos=False),
            FinishReason.STOP,
            id="its-end-token-had-come",
        ),
    ],
)
def test_a_retry_of_what_was_complete_ends_without_a_launch(
    bench: Any, emitted: tuple[int, ...], sampling: SamplingParams, reason: FinishReason
) -> None:
    key = bench.submit("a", PROMPT, sampling, emitted=(emitted,))
    bench.run()
    assert bench.executor.plans == []
    assert bench.finish(key).reason is reason
    assert [(row.first_offset, row.tokens) for row in bench.rows] == [(2, ())]


def test_logprobs_come_with_each_token_that_asked_for_them(bench: Any) -> None:
    asked = bench.submit("asked", PROMPT, replace(GREEDY, logprobs=2))
    silent = bench.submit("silent", PROMPT, GREEDY)
    bench.run()
    logprobs = [each for row in bench.rows if row.key == asked for each in row.logprobs]
    assert [each.token for each in logprobs] == list(bench.output(asked))
    assert all(len(each.top) == 2 for each in logprobs)
    assert not any(row.logprobs for row in bench.rows if row.key == silent)


def test_a_cancel_during_a_launch_gives_one_terminal_row_and_no_token_after_it(bench: Any) -> None:
    key = bench.submit("a", PROMPT, GREEDY)
    other = bench.submit("b", PROMPT[:5], GREEDY)
    bench.step(2)
    before = len(bench.output(key))
    assert bench.engine.launch()
    assert bench.engine.cancel(key)
    bench.engine.check()
    bench.rows += bench.engine.complete()
    bench.run()
    assert len(bench.output(key)) == before
    assert bench.finish(key).reason is FinishReason.CANCELLED
    assert bench.finish(key).counts.emitted_tokens == before
    assert bench.engine.counts().late_results == 1
    assert bench.output(other) == expected_output(PROMPT[:5], GREEDY)
    assert not bench.engine.cancel(key)


def test_pages_and_slot_of_a_cancelled_row_wait_for_its_launch(make_bench: MakeBench) -> None:
    bench = make_bench({"max_batch": 1}, blocks=3)
    key = bench.submit("a", PROMPT, GREEDY)
    bench.step()
    bench.engine.launch()
    bench.engine.cancel(key)
    assert bench.engine.load().free_blocks == 0
    waiting = bench.submit("b", PROMPT[:20], GREEDY)
    assert not bench.engine.launch()
    bench.rows += bench.engine.complete()
    assert bench.engine.load().free_blocks == 3
    bench.run()
    assert bench.output(waiting) == expected_output(PROMPT[:20], GREEDY)


def test_a_waiting_request_can_be_cancelled(make_bench: MakeBench) -> None:
    bench = make_bench({"max_batch": 1})
    bench.submit("a", PROMPT, GREEDY)
    bench.step()
    key = bench.submit("b", PROMPT, GREEDY)
    bench.engine.cancel(key)
    assert [row.key for row in bench.step() if row.finish is not None] == [key]
    assert bench.finish(key).counts.computed_tokens == 0


def test_a_fault_of_one_row_fails_that_request_alone_and_its_kv_is_not_hit(bench: Any) -> None:
    bench.executor.faults[PROMPT] = "its logits are not finite"
    bad = bench.submit("bad", PROMPT, GREEDY)
    good = bench.submit("good", PROMPT[:20], GREEDY)
    bench.run()
    finish = bench.finish(bad)
    assert finish.reason is FinishReason.ERROR
    assert finish.error is not None
    assert "its logits are not finite" in finish.error.message
    assert bench.output(good) == expected_output(PROMPT[:20], GREEDY)
    assert bench.engine.counts().row_faults == 1
    bench.executor.faults.clear()
    again = bench.submit("again", (*PROMPT[:32], 9), GREEDY)
    bench.run()
    # Block 0 was the good request's, but the bad one had read it: it may be what was wrong.
    assert bench.finish(again).counts.cached_tokens == 0


def test_a_chunked_prompt_that_faults_late_leaves_no_block_in_the_cache(make_bench: MakeBench) -> None:
    bench = make_bench({"max_step_tokens": 16, "min_chunk_tokens": 16})
    bench.executor.faults[PROMPT] = "its logits are not finite"
    bench.submit("bad", PROMPT, GREEDY)
    bench.run()
    assert bench.engine.load().cached_blocks == 0
    assert bench.engine.kv_events.after(0) == KVSnapshot(2 + 1, ())


def test_clocks_and_counts_are_those_of_the_request(bench: Any) -> None:
    bench.clock.advance(100.0)
    key = bench.submit("a", PROMPT, GREEDY)
    bench.clock.advance(7.0)
    bench.run()
    finish = bench.finish(key)
    assert finish.clocks.engine_queue_ms == 7.0
    assert finish.clocks.engine_ttft_ms is not None
    assert 7.0 < finish.clocks.engine_ttft_ms < finish.clocks.engine_total_ms
    assert finish.counts.computed_tokens == len(PROMPT) + 7
    assert finish.counts.accepted_tokens == finish.counts.emitted_tokens == 8


def test_the_load_report_counts_queues_by_class_and_blocks(make_bench: MakeBench) -> None:
    bench = make_bench({"max_batch": 1, "max_step_tokens": 16, "min_chunk_tokens": 16}, blocks=10)
    bench.submit("a", PROMPT, GREEDY)
    bench.step()
    bench.submit("b", PROMPT[:10], GREEDY, priority=PriorityClass.BATCH)
    load = bench.engine.load()
    interactive, batch = load.classes
    assert (interactive.priority, interactive.waiting, interactive.waiting_tokens) == (
        PriorityClass.INTERACTIVE,
        0,
        len(PROMPT) - 16,
    )
    assert (batch.waiting, batch.waiting_tokens) == (1, 10)
    assert (load.running, load.free_blocks, load.cached_blocks, load.total_blocks) == (1, 7, 0, 10)
    bench.run()
    idle = bench.engine.load()
    assert (idle.running, idle.free_blocks, idle.cached_blocks) == (0, 10, 2 + 1)


def test_metrics_measure_steps_against_the_prediction(bench: Any) -> None:
    for index in range(4):
        bench.submit(str(index), PROMPT[: 9 + index], replace(GREEDY, max_tokens=100))
    bench.run()
    metrics = bench.engine.metrics()
    assert metrics.steps == len(bench.executor.plans)
    assert metrics.prefill_tokens == 9 + 10 + 11 + 12
    assert metrics.decode_tokens == 4 * 99
    assert metrics.emitted_tokens == 400
    assert metrics.finished == {"stop": 0, "length": 4, "cancelled": 0, "error": 0}
    last = metrics.last_step
    assert last is not None
    assert last.step_ms == pytest.approx(last.device_ms + last.host_ms)
    # Fitted by now: the last step was foreseen to within a tenth.
    assert last.predicted_ms == pytest.approx(last.step_ms, rel=0.1)


def test_the_engine_says_how_its_thresholds_come_about(bench: Any) -> None:
    assert "nothing decodes" in bench.engine.derivations()[0]
    bench.submit("a", PROMPT, GREEDY)
    bench.step(2)
    chunk, reserve = bench.engine.derivations()[:2]
    assert "1 rows over 39 tokens" in chunk
    assert "reserve = 1 blocks" in reserve


def test_the_engine_offers_choices_and_its_own_batch_limit(make_bench: MakeBench) -> None:
    offered = make_bench({"max_batch": 3}).engine.capabilities
    assert (offered.max_choices, offered.max_batch) == (MAX_CHOICES, 3)
    assert make_bench({"max_batch": 30}).engine.capabilities.max_batch == 8


@pytest.mark.parametrize(
    ("settings", "executor", "message"),
    [
        pytest.param({"max_step_tokens": 0}, {}, "max_step_tokens=0", id="no-step"),
        pytest.param({"max_batch": 0}, {}, "max_batch=0", id="no-batch"),
        pytest.param({"tpot_target_ms": 0.0}, {}, "tpot_target_ms=0", id="no-target"),
        pytest.param({"policy": "best"}, {}, "policy='best'", id="unknown-policy"),
        pytest.param({}, {"blocks": 0}, "has no blocks", id="no-blocks"),
        pytest.param({}, {"groups": (kv_group(block_tokens=24),)}, "block_tokens=24", id="odd-blocks"),
    ],
)
def test_a_setup_that_cannot_work_stops_the_start(
    make_bench: MakeBench, settings: dict[str, object], executor: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        make_bench(settings, **executor)


def test_a_recurrent_group_is_refused(make_bench: MakeBench) -> None:
    with pytest.raises(Unsupported, match="recurrent"):
        make_bench(groups=(replace(kv_group(), kind=KVKind.RECURRENT),))


def test_closing_the_engine_closes_the_executor(bench: Any) -> None:
    bench.engine.close()
    assert bench.executor.closed


def test_two_attempts_of_one_request_are_two_pieces_of_work(bench: Any) -> None:
    first = bench.submit("a", PROMPT, GREEDY)
    second = RequestKey(RequestId("a"), Attempt(1))
    bench.engine.submit(Request(second, PROMPT, GREEDY))
    bench.step(2)
    bench.engine.cancel(first)
    bench.run()
    assert bench.finish(first).reason is FinishReason.CANCELLED
    assert bench.output(second) == expected_output(PROMPT, GREEDY)
