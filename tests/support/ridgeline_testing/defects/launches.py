"""Launches, completions and whose result is whose."""

from ridgeline_testing.planting import Defect

_ENGINE_TESTS = "tests/engine/test_engine.py"
_ASYNC_TESTS = "tests/engine/test_async.py"
_STEADY_TESTS = "tests/engine/test_steady.py"
_COMPLETION_TESTS = "tests/engine/test_completions.py"

LAUNCHES: tuple[Defect, ...] = (
    Defect(
        "a result for a slot's former owner is taken",
        "ridgeline_engine.engine:Engine._commit",
        "if sequence.slot != row.slot or sequence.generation != row.generation:",
        "if False:",
        f"{_ENGINE_TESTS}::test_a_cancel_during_a_launch_gives_one_terminal_row_and_no_token_after_it",
    ),
    Defect(
        "the generation of an answer is not looked at",
        "ridgeline_engine.commit:check_rows",
        "if row.slot != result.slot or row.generation != result.generation:",
        "if row.slot != result.slot:",
        f"{_COMPLETION_TESTS}::test_an_answer_for_another_owner_or_slot_stops_the_engine[an-earlier-owner]",
    ),
    Defect(
        "rows are taken in the order of the answer whatever slot they name",
        "ridgeline_engine.commit:check_rows",
        "if row.slot != result.slot or row.generation != result.generation:",
        "if False:",
        f"{_COMPLETION_TESTS}::test_an_answer_for_another_owner_or_slot_stops_the_engine[rows-swapped]",
    ),
    Defect(
        "a completion of another launch is taken",
        "ridgeline_engine.pipeline:Pipeline.complete",
        "if result.launch != opened.plan.launch or len(result.rows) != len(opened.plan.rows):",
        "if False:",
        f"{_COMPLETION_TESTS}::test_a_wrong_completion_is_refused_and_the_right_one_still_counts"
        "[the-launch-before-again]",
    ),
    Defect(
        "pages of a cancelled row do not wait for its launch",
        "ridgeline_engine.scheduler:Scheduler.end",
        "self.kv.release(sequence, fence=fence)",
        "self.kv.release(sequence, fence=None)",
        f"{_ENGINE_TESTS}::test_pages_and_slot_of_a_cancelled_row_wait_for_its_launch",
    ),
    Defect(
        "pages of a preempted row do not wait for its launch",
        "ridgeline_engine.policy.room:RoomMaker._take_away",
        "queues.kv.release(sequence, fence=self._fence)",
        "queues.kv.release(sequence, fence=None)",
        f"{_ASYNC_TESTS}::test_pages_and_slot_of_a_preempted_row_wait_for_its_launch",
    ),
    Defect(
        "a slot is given to the next while its launch runs",
        "ridgeline_engine.slots:Slots.give_back",
        "if fence is None:",
        "if True:",
        "tests/engine/test_slots.py::test_a_slot_waits_for_the_launch_that_may_still_write_it",
    ),
    Defect(
        "owners of a slot are not told apart",
        "ridgeline_engine.slots:Slots.take",
        "self._generations[slot] + 1",
        "self._generations[slot]",
        "tests/engine/test_slots.py::test_each_owner_of_a_slot_has_a_number_of_its_own",
    ),
    Defect(
        "a wasted row is not counted",
        "ridgeline_engine.outbox:Outbox._finish",
        "self._ledger.wasted_rows += sequence.pending_tokens",
        "pass",
        f"{_ASYNC_TESTS}::test_an_end_token_costs_one_wasted_row_which_is_counted",
    ),
    Defect(
        "a row in flight samples at the position of the one before",
        "ridgeline_engine.drafting:StepDraft._add",
        "len(sequence.tokens) + pending - sequence.prompt_tokens",
        "len(sequence.tokens) - sequence.prompt_tokens",
        f"{_ASYNC_TESTS}::test_the_next_step_is_handed_over_before_the_last_one_is_known",
    ),
    Defect(
        "a mask is made before the token in front of it is known",
        "ridgeline_engine.pipeline:Pipeline.start",
        "if self._open and needs_masks(self._masks, opened):",
        "if False:",
        f"{_ASYNC_TESTS}::test_a_mask_is_made_from_the_token_before_and_others_do_not_wait_for_it[on]",
    ),
    Defect(
        "a fault of one request ends the loop",
        "ridgeline_engine.engine:Engine._commit",
        "except Exception as error:",
        "except ZeroDivisionError as error:",
        "tests/engine/test_isolation.py::test_the_others_go_on[off-at-a-later-commit]",
    ),
    Defect(
        "a choice may end twice",
        "ridgeline_engine.outbox:Outbox._finish",
        "if sequence.state is SequenceState.FINISHED:",
        "if True:",
        f"{_ENGINE_TESTS}::test_an_end_token_is_emitted_counted_and_ends_the_choice",
    ),
    Defect(
        "what was sampled behind an end token is emitted",
        "ridgeline_engine.commit:accept",
        "if reason is not None:",
        "if reason is not None and kept == len(sampled):",
        "tests/engine/test_commit.py::test_what_was_sampled_behind_the_end_is_accepted_but_not_emitted",
    ),
    Defect(
        "accepted tokens are counted as emitted ones are",
        "ridgeline_engine.commit:accept",
        "progress.accepted_tokens += len(sampled)",
        "progress.accepted_tokens += 1",
        "tests/engine/test_commit.py::test_what_was_sampled_behind_the_end_is_accepted_but_not_emitted",
    ),
    Defect(
        "rejected drafts count as computed",
        "ridgeline_engine.commit:accept",
        "rejected = row.draft_tokens - max(0, len(sampled) - 1)",
        "rejected = 0",
        "tests/engine/test_commit.py::test_rejected_drafts_roll_the_lengths_back[none-accepted]",
    ),
    Defect(
        "what was run in vain is not counted as computed",
        "ridgeline_engine.commit:accept",
        "progress.computed_tokens += run",
        "progress.computed_tokens += min(run, max(1, len(result.tokens)))",
        "tests/engine/test_commit.py::test_rejected_drafts_roll_the_lengths_back[none-accepted]",
    ),
    Defect(
        "a plan is promised beyond its blocks",
        "ridgeline_engine.steady:_has_blocks",
        "return kv.pool.can_allocate(need)",
        "return True",
        f"{_STEADY_TESTS}::test_blocks_bound_it",
    ),
    Defect(
        "a plan is promised though somebody waits",
        "ridgeline_engine.steady:steady_steps",
        "and len(scheduler.waiting) == 0",
        "",
        f"{_STEADY_TESTS}::test_a_step_with_a_prompt_or_with_somebody_waiting_is_not_steady",
    ),
    Defect(
        "a plan is promised beyond the next fit of the step model",
        "ridgeline_engine.steady:steady_steps",
        "most = max(1, min(left, steps_to_refit))",
        "most = max(1, left)",
        f"{_STEADY_TESTS}::test_a_long_decode_is_steady_up_to_the_next_fit_of_the_step_model",
    ),
    Defect(
        "more steps are committed at once than are alike",
        "ridgeline_engine.engine:Engine.commit",
        "if opened is None or not 1 <= steps <= steady:",
        "if opened is None:",
        f"{_STEADY_TESTS}::test_more_than_was_promised_is_refused",
    ),
    Defect(
        "the host's time is left out of a step",
        "ridgeline_engine.ledger:StepLedger.record",
        "host_ms=",
        "host_ms=0.0 * ",
        "tests/engine/test_ledger.py::test_a_steps_time_is_the_devices_and_the_hosts",
    ),
    Defect(
        "the core takes its load after each step",
        "ridgeline_worker.core_loop:CoreLoop._load_if_due",
        "if now_ms < self._load_due_ms and self._engine.has_work:",
        "if False:",
        "tests/worker/test_core_loop.py::test_the_load_is_not_taken_with_each_step_but_always_with_the_last",
    ),
    Defect(
        "a gateway that does not read fills the worker's memory",
        "ridgeline_worker.session:Outbox.put",
        "if self._rows + rows > self._max_rows:",
        "if False:",
        "tests/worker/test_slow_readers.py::test_an_outbox_holds_rows_up_to_its_bound_and_no_more",
    ),
)
