"""Who runs, who waits, who goes, and by which numbers."""

from ridgeline_testing.planting import Defect

_PLANNER = "ridgeline_engine.step_planner:StepPlanner"
_THRESHOLDS = "ridgeline_engine.policy.thresholds:Thresholds"
_ROOM = "ridgeline_engine.policy.room:RoomMaker"
_SCHEDULER_TESTS = "tests/engine/test_scheduler.py"
_LIMIT_TESTS = "tests/engine/test_policy_limits.py"
_PREEMPTION_TESTS = "tests/engine/test_policy_preemption.py"
_DECISION_TESTS = "tests/roofline/test_policy_decisions.py"
_CHUNK_TESTS = "tests/roofline/test_decisions.py"

SCHEDULING: tuple[Defect, ...] = (
    Defect(
        "prompts run before what decodes",
        "ridgeline_engine.scheduler:Scheduler.draft",
        "self._planner.plan_decode(step, priority)\n        self._planner.plan_prompts(step, priority)",
        "self._planner.plan_prompts(step, priority)\n        self._planner.plan_decode(step, priority)",
        f"{_SCHEDULER_TESTS}::test_decode_rows_run_beside_a_chunk_that_keeps_the_step_below_the_target",
    ),
    Defect(
        "a chunk is not cut to the target",
        f"{_THRESHOLDS}.chunk",
        "tpot_target_ms=settings.tpot_target_ms if beside_interactive else None",
        "tpot_target_ms=None",
        f"{_SCHEDULER_TESTS}::test_decode_rows_run_beside_a_chunk_that_keeps_the_step_below_the_target",
    ),
    Defect(
        "each prompt gets the whole budget of the step",
        f"{_THRESHOLDS}.chunk",
        "planned_tokens=planned.prefill_tokens",
        "planned_tokens=0",
        f"{_SCHEDULER_TESTS}::test_without_decode_rows_a_step_is_filled_with_prompts",
    ),
    Defect(
        "the batch is as large as the slots",
        f"{_PLANNER}._within_class_limits",
        "return census.interactive.rows < self._thresholds.batch_cap(step.model, census).value",
        "return True",
        f"{_LIMIT_TESTS}::test_no_more_interactive_sequences_run_than_the_batch_cap",
    ),
    Defect(
        "the batch cap is that of the highest throughput",
        "ridgeline_roofline.decisions.batch_cap:batch_cap",
        "fitting = largest_batch_within(model, context, limit, facts.tpot_target_ms)",
        "fitting = limit",
        f"{_DECISION_TESTS}::test_the_batch_cap[what-stays-within-the-target]",
    ),
    Defect(
        "continuous batching is credited with the longest output that there is",
        "ridgeline_roofline.decisions.batching_gain:continuous_gain",
        "value = longest / mean",
        "value = max(ordered) / mean",
        f"{_DECISION_TESTS}::test_the_gain_of_continuous_batching[two-lengths-two-rows]",
    ),
    Defect(
        "a batch cap that sank lets all rows go on",
        f"{_PLANNER}._paused",
        "if len(decoding) <= most:",
        "if True:",
        f"{_LIMIT_TESTS}::test_rows_beyond_a_cap_that_sank_pause_and_those_that_had_most_pause_first",
    ),
    Defect(
        "who has had least pauses first",
        "ridgeline_engine.step_planner:_attained",
        "(sequence.output_tokens,",
        "(-sequence.output_tokens,",
        f"{_LIMIT_TESTS}::test_rows_beyond_a_cap_that_sank_pause_and_those_that_had_most_pause_first",
    ),
    Defect(
        "the batch class keeps its KV when interactive work comes",
        f"{_ROOM}.keep_batch_share",
        "while census.batch.context_tokens > share and",
        "while False and",
        f"{_LIMIT_TESTS}::test_batch_sequences_give_way_when_interactive_ones_come",
    ),
    Defect(
        "a batch sequence is admitted beyond the share of its class",
        f"{_PLANNER}._within_class_limits",
        "return census.batch.context_tokens + tokens <= share",
        "return True",
        f"{_LIMIT_TESTS}::test_a_batch_sequence_waits_while_its_class_has_its_share",
    ),
    Defect(
        "the share of the batch class is the pool",
        "ridgeline_roofline.decisions.kv_share:batch_kv_tokens",
        "value = min(facts.pool_tokens, rows * mean)",
        "value = facts.pool_tokens",
        f"{_DECISION_TESTS}::test_the_kv_of_the_batch_class[what-the-target-leaves]",
    ),
    Defect(
        "idle tenants bank credit",
        "ridgeline_engine.policy.accounts:TenantAccounts.enter",
        "account.served_ms = max(account.served_ms, self._floor_ms)",
        "pass",
        "tests/engine/test_policy_accounts.py::test_idle_time_is_no_credit",
    ),
    Defect(
        "weights of tenants are not looked at",
        "ridgeline_engine.policy.accounts:TenantAccount.charge",
        "cost_ms / self.weight",
        "cost_ms",
        "tests/engine/test_policy_accounts.py::test_a_heavier_tenant_is_charged_less_for_the_same",
    ),
    Defect(
        "output tokens are free",
        f"{_PLANNER}.plan_decode_row",
        "step.costs.output_token_ms + end * step.costs.output_context_ms",
        "0.0",
        f"{_LIMIT_TESTS}::test_recomputation_after_a_preemption_is_not_charged",
    ),
    Defect(
        "a recomputation is charged to the tenant",
        f"{_PLANNER}._plan_chunk",
        "known = max(start, sequence.charged_tokens)",
        "known = start",
        f"{_LIMIT_TESTS}::test_recomputation_after_a_preemption_is_not_charged",
    ),
    Defect(
        "an output token weighs as much as a prompt token",
        "ridgeline_roofline.decisions.fair_share:token_costs",
        "output_token_ms=shallow + base_ms / rows",
        "output_token_ms=first / reference",
        f"{_DECISION_TESTS}::test_an_output_token_weighs_more_than_a_prompt_token_and_the_weight_can_be_set",
    ),
    Defect(
        "tenants do not take turns",
        "ridgeline_engine.policy.waiting:WaitingQueue._account",
        "if not self._fair or sequence.account is None:",
        "if True:",
        "tests/engine/test_policy_waiting.py"
        "::test_the_tenant_that_had_least_goes_first_and_ranks_decide_within_it",
    ),
    Defect(
        "a long prompt is passed for ever",
        "ridgeline_engine.policy.ranks:shortest_prefill_first",
        "due_ms = facts.received_ms + facts.overtaking_ratio * facts.prefill_ms",
        "due_ms = facts.prefill_ms",
        "tests/engine/test_ranks.py::test_a_shorter_prompt_passes_a_longer_one_only_for_a_time[just-after-fair]",
    ),
    Defect(
        "a short prompt waits behind a long one",
        "ridgeline_engine.policy.ranks:shortest_prefill_first",
        "due_ms = facts.received_ms + facts.overtaking_ratio * facts.prefill_ms",
        "due_ms = facts.received_ms",
        "tests/engine/test_ranks.py"
        "::test_a_shorter_prompt_passes_a_longer_one_only_for_a_time[a-short-one-soon-after-fair]",
    ),
    Defect(
        "the batch class runs as interactive work does",
        "ridgeline_engine.policy.ranks:_class_rank",
        "else 1.0",
        "else 0.0",
        "tests/engine/test_ranks.py::test_interactive_goes_before_batch_whatever_their_lengths",
    ),
    Defect(
        "a long prompt at the head of the queue is overtaken while blocks are short",
        f"{_PLANNER}._admit",
        "# No overtaking: a long prompt would wait for ever.\n            step.blocked = True\n            return",
        "continue",
        f"{_SCHEDULER_TESTS}::test_a_long_prompt_at_the_head_of_the_queue_is_not_overtaken",
    ),
    Defect(
        "a chunk deep in a long prompt makes a gap without bound",
        "ridgeline_roofline.decisions.chunk_budget:chunk_budget_tokens",
        "floor = max(least, _largest_fitting(model, facts, wanted, bound.value))",
        "floor = wanted",
        f"{_DECISION_TESTS}::test_the_floor_of_a_chunk_yields_as_the_prompt_before_it_grows",
    ),
    Defect(
        "nothing is refused however late it would be",
        "ridgeline_engine.scheduler:Scheduler.refusal",
        "if backlog is None or waiting == 0 or excess <= 0:",
        "if True:",
        f"{_LIMIT_TESTS}"
        "::test_a_request_that_would_miss_the_first_token_target_is_refused_until_the_backlog_is_done",
    ),
    Defect(
        "the backlog is reckoned as if nothing decoded",
        "ridgeline_roofline.decisions.backlog:backlog_tokens",
        "facts.chunk.decode_rows, facts.chunk.context_tokens, chunk",
        "0, 0, chunk",
        f"{_DECISION_TESTS}::test_a_ttft_target_becomes_a_backlog",
    ),
    Defect(
        "an admission leaves no block to those that run",
        "ridgeline_roofline.decisions.admission_reserve:admission_reserve_blocks",
        "return Decision(\n        running_sequences,",
        "return Decision(\n        0,",
        f"{_CHUNK_TESTS}::test_the_reserve_is_a_block_for_each_running_sequence_and_none_for_an_empty_engine",
    ),
    Defect(
        "every preemption recomputes",
        "ridgeline_roofline.decisions.preemption:preemption_choice",
        "value = min(costs, key=lambda kind: costs[kind])",
        "value = PreemptionKind.RECOMPUTE",
        f"{_DECISION_TESTS}::test_the_cheapest_way_out_of_a_full_pool[copies-are-cheapest]",
    ),
    Defect(
        "every preemption swaps where it can",
        "ridgeline_roofline.decisions.preemption:preemption_choice",
        "value = min(costs, key=lambda kind: costs[kind])",
        "value = PreemptionKind.SWAP if PreemptionKind.SWAP in costs else PreemptionKind.RECOMPUTE",
        f"{_DECISION_TESTS}::test_the_cheapest_way_out_of_a_full_pool[slow-copies]",
    ),
    Defect(
        "the youngest goes whatever it has to lose",
        "ridgeline_engine.policy.victims:choose_victim",
        "if best is None or cost_ms <= best[0]:",
        "if True:",
        f"{_PREEMPTION_TESTS}::test_the_one_with_least_to_lose_goes",
    ),
    Defect(
        "who ranks first may have to go",
        f"{_ROOM}._free_some",
        "[each for each in junior if each is not running[0]]",
        "running[:1]",
        f"{_PREEMPTION_TESTS}::test_who_ranks_first_is_never_asked_to_go",
    ),
    Defect(
        "an interactive sequence goes for a batch one",
        f"{_ROOM}._free_some",
        "if each.rank >= sequence.rank and each not in planned",
        "if each is not sequence",
        f"{_PREEMPTION_TESTS}::test_a_batch_sequence_never_takes_an_interactive_ones_blocks",
    ),
    Defect(
        "an interactive sequence goes though the batch class holds blocks",
        f"{_ROOM}._free_some",
        "if batch and sequence.request.priority is PriorityClass.INTERACTIVE:",
        "if False:",
        f"{_PREEMPTION_TESTS}"
        "::test_no_interactive_sequence_goes_or_pauses_while_the_batch_class_holds_blocks[recompute]",
    ),
    Defect(
        "a preempted sequence loses its place",
        f"{_ROOM}._take_away",
        "resumed=True",
        "resumed=False",
        f"{_PREEMPTION_TESTS}::test_a_preempted_sequence_comes_back_before_another_tenants_newcomer",
    ),
    Defect(
        "what the cache keeps of a victim counts as lost",
        "ridgeline_engine.policy.victims:facts_of",
        "min(stored, sequence.computed_tokens) - int(situation.wanted_tokens)",
        "0",
        f"{_PREEMPTION_TESTS}::test_what_the_cache_will_keep_is_not_counted_as_lost",
    ),
    Defect(
        "small copies are priced at the full bandwidth",
        "ridgeline_roofline.decisions.kv_tier:effective_bandwidth",
        "return tier.lanes * copy_bytes / one_s",
        "return tier.bandwidth_bytes_per_s",
        "tests/roofline/test_plan_memory.py::test_small_copies_do_not_reach_the_bandwidth",
    ),
    Defect(
        "the wear of an SSD is free",
        "ridgeline_roofline.decisions.kv_tier:tier_value",
        "gained - size * tier.wear_usd_per_byte",
        "gained",
        "tests/roofline/test_plan_memory.py::test_a_tier_that_wears_is_not_worth_a_prefix_that_is_seldom_asked_for",
    ),
    Defect(
        "launches overlap though the host's time cannot be hidden",
        "ridgeline_roofline.decisions.open_launches:open_launches",
        "if saved_ms > wasted_ms else 1",
        "if True else 1",
        "tests/engine/test_async.py::test_auto_overlaps_where_the_hosts_time_can_be_hidden[1.0-False]",
    ),
)
