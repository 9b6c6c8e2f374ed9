"""Who owns a block, what a hit may give, and what is evicted."""

from ridgeline_testing.planting import Defect

_POOL = "ridgeline_engine.block_pool:BlockPool"
_CACHE = "ridgeline_engine.prefix_cache:PrefixCache"
_KV = "ridgeline_engine.kv_manager:KVManager"
_POOL_TESTS = "tests/engine/test_block_pool.py"
_CACHE_TESTS = "tests/engine/test_prefix_cache.py"
_HIT_TESTS = "tests/engine/test_engine_prefix_hits.py"

BLOCKS: tuple[Defect, ...] = (
    Defect(
        "a freed block is reused while a launch may touch it",
        f"{_POOL}.release",
        "if fence is None:",
        "if True:",
        f"{_POOL_TESTS}::test_a_quarantined_block_is_not_reused_before_its_launch_completed",
    ),
    Defect(
        "any completion frees what waits for a later launch",
        f"{_POOL}.retire",
        "if fence > launch:",
        "if False:",
        f"{_POOL_TESTS}::test_a_quarantined_block_is_not_reused_before_its_launch_completed",
    ),
    Defect(
        "heads are evicted before their tails",
        f"{_POOL}.release",
        "in reversed(blocks)",
        "in blocks",
        f"{_POOL_TESTS}::test_the_tail_of_the_least_recently_freed_is_evicted_first",
    ),
    Defect(
        "a sharer is not counted",
        "ridgeline_engine.block_pool:_Take.do",
        "found.holders[block] = held + 1",
        "found.holders[block] = 1",
        "tests/engine/test_choices.py::test_the_prompt_is_computed_once_for_all_choices",
    ),
    Defect(
        "a block is released twice unnoticed",
        f"{_POOL}.release",
        "if found.holders[block] <= 0:",
        "if False:",
        f"{_POOL_TESTS}::test_a_second_release_and_a_share_of_nothing_are_bugs",
    ),
    Defect(
        "one group's blocks are taken though another group has none",
        f"{_POOL}.acquire",
        "not self.can_allocate(need, sharing=shared)",
        "False",
        f"{_POOL_TESTS}::test_allocation_is_for_all_groups_or_none",
    ),
    Defect(
        "the reader gets the copy and the writer writes the shared block",
        f"{_KV}.admit",
        "group, source, target)",
        "group, target, source)",
        "tests/engine/test_choices.py::test_each_choice_is_what_it_would_be_alone[40-with-cache]",
    ),
    Defect(
        "a fork writes into the block that it shares",
        f"{_KV}.fork",
        "range(first, whole)",
        "range(first, whole + 1)",
        "tests/engine/test_choices.py::test_each_choice_is_what_it_would_be_alone[40-with-cache]",
    ),
    Defect(
        "a full hit computes nothing again",
        "ridgeline_engine.kv_search:PrefixSearch.find",
        "tokens = len(sequence.tokens) - 1",
        "tokens = len(sequence.tokens)",
        f"{_HIT_TESTS}::test_a_hit_saves_whole_blocks_but_never_the_last_token",
    ),
    Defect(
        "a hit is believed without comparing tokens",
        f"{_CACHE}.find",
        " or entry.tokens != packed[start : start + size]",
        "",
        f"{_CACHE_TESTS}::test_a_forced_collision_of_hashes_does_not_cross",
    ),
    Defect(
        "a tail is hit behind another head",
        f"{_CACHE}.find",
        "entry.parent is not parent and not _same_chain(entry.parent, parent)",
        "False",
        f"{_CACHE_TESTS}::test_a_tail_is_not_hit_behind_a_head_that_took_the_hash_of_its_own",
    ),
    Defect(
        "a hit crosses salts whose hashes collide",
        f"{_CACHE}.find",
        "parent is None and entry.scope != scope",
        "False",
        f"{_CACHE_TESTS}::test_another_scope_is_never_hit[another-salt]",
    ),
    Defect(
        "hashes leave the salt out",
        "ridgeline_contracts.blockhash:root_hash",
        "_sized(scope.salt)",
        'b""',
        "tests/contracts/test_blockhash.py::test_scopes_have_unrelated_hashes[salt]",
    ),
    Defect(
        "hashes leave the adapter out",
        "ridgeline_contracts.blockhash:root_hash",
        "_sized(scope.adapter_revision.encode())",
        'b""',
        "tests/contracts/test_blockhash.py::test_scopes_have_unrelated_hashes[adapter]",
    ),
    Defect(
        "hashes leave an image out",
        "ridgeline_contracts.blockhash:granule_hash",
        "for item in media]",
        "for item in ()]",
        "tests/contracts/test_blockhash.py::test_media_changes_the_hashes_from_its_granule_on",
    ),
    Defect(
        "tenants that do not trust each other share a salt",
        "ridgeline_gateway.admission:Admission._cache_salt",
        'f"tenant {tenant.tenant_id}"',
        '"tenants"',
        "tests/gateway/test_chat_endpoint.py"
        "::test_equal_prompts_of_tenants_without_a_trust_group_have_unrelated_salts",
    ),
    Defect(
        "a trust group changes nothing",
        "ridgeline_gateway.admission:Admission._cache_salt",
        "if tenant.trust_group is None",
        "if True",
        "tests/gateway/test_chat_endpoint.py"
        "::test_equal_prompts_of_two_tenants_have_unrelated_salts_unless_they_trust_each_other",
    ),
    Defect(
        "a freed block is forgotten though nobody needs the room",
        "ridgeline_engine.block_pool:_Group.put_back",
        "if self.hittable[block]:",
        "if False:",
        f"{_HIT_TESTS}::test_a_hit_saves_whole_blocks_but_never_the_last_token",
    ),
    Defect(
        "hittable blocks go before blank ones",
        "ridgeline_engine.block_pool:_Take.__init__",
        "len(found.blank) - count)",
        "len(found.blank) - max(0, count - len(found.kept)))",
        f"{_POOL_TESTS}::test_blank_blocks_are_handed_out_before_hittable_ones",
    ),
    Defect(
        "an eviction is not told",
        "ridgeline_engine.kv_index:KVIndex._log_evicted",
        "if gone:",
        "if False:",
        f"{_HIT_TESTS}::test_kv_events_name_the_blocks_by_the_contracts_hash",
    ),
    Defect(
        "KV of a faulted row is hit",
        "ridgeline_engine.kv_index:KVIndex.distrust",
        "cache.with_descendants(table.blocks)",
        "[]",
        "tests/engine/test_engine.py::test_a_chunked_prompt_that_faults_late_leaves_no_block_in_the_cache",
    ),
    Defect(
        "a cleared cache goes on being hit",
        "ridgeline_engine.kv_index:KVIndex.clear",
        "cache.entries(list(cache.blocks()))",
        "[]",
        f"{_HIT_TESTS}::test_a_cleared_cache_is_not_hit",
    ),
    Defect(
        "a block counts as stored before it is computed",
        "ridgeline_engine.kv_index:KVIndex.store",
        "tokens=sequence.computed_tokens",
        "tokens=len(sequence.tokens)",
        f"{_HIT_TESTS}::test_what_is_not_computed_yet_is_not_hit",
    ),
    Defect(
        "a hit ends in the middle of a group's block",
        "ridgeline_engine.kv_search:PrefixSearch.find",
        "tokens -= tokens % self._granule_tokens",
        "pass",
        f"{_HIT_TESTS}::test_a_hit_ends_on_a_block_of_every_group",
    ),
    Defect(
        "event numbers have gaps",
        "ridgeline_engine.kv_events:KVEventLog.add",
        "self._sequence += 1",
        "self._sequence += 2",
        "tests/engine/test_kv_events.py::test_events_are_numbered_from_one_and_come_oldest_first",
    ),
)
